//! The decisions, without the blocking.
//!
//! Everything here takes the present as an argument and returns what to do. There is no clock, thread,
//! mutex or socket below this module, so that a simulator can run the very code that the threads run:
//!
//! * [`attempt`]: one process's way to a lock, from the first request to the grant;
//! * [`poll`]: how often an attempt asks without having been woken; [`outage`]: what it makes of failures;
//! * [`pickup`]: how long a waiter has to pick up a lock that it was handed;
//! * [`release_task`]: the way out, and the clean-up of what may have been left behind;
//! * [`queue`]: the threads of this process that want one name, and the passing of a lease between them;
//!   [`ticket_queue`]: those of them that wait;
//! * [`fence`]: the numbers that order guards;
//! * [`lease`]: how long a lease may be believed, and how it ends;
//! * [`timer_queue`]: what is due when.

pub(crate) mod attempt;
pub(crate) mod fence;
pub(crate) mod lease;
#[cfg(test)]
mod model;
mod outage;
pub(crate) mod pickup;
mod poll;
pub(crate) mod queue;
pub(crate) mod release_task;
mod ticket_queue;
pub(crate) mod timer_queue;
