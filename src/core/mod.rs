//! The decisions of a lock, without threads that block.
//!
//! Each function takes the present time as an argument, and returns what to do next. No module of `core` has a
//! clock, a thread, a mutex or a socket. So a simulator can run the same code as the threads:
//!
//! * [`attempt`]: one process's way to a lock, from the first request to the grant;
//! * [`poll`]: how often an attempt polls, and how long it has to pick up a lock that was handed over to it; [`outage`]:
//!   how it handles failures;
//! * [`release_task`]: the end of a lease in Redis, and of an ended owner;
//! * [`queue`]: the threads of this process that want one name, and how they share a lease;
//! * [`quorum`]: the decisions of a lock over several independent servers;
//! * [`fence`]: blocks of fencing tokens; [`quantum`]: how long threads of a process hand a lock on in memory;
//! * [`lease`]: how long a lease is valid, and how it ends;
//! * [`timer_queue`]: the times at which things are due.

pub(crate) mod attempt;
pub(crate) mod fence;
pub(crate) mod lease;
mod outage;
pub(crate) mod poll;
pub(crate) mod quantum;
pub(crate) mod queue;
pub(crate) mod quorum;
pub(crate) mod release_task;
pub(crate) mod timer_queue;
