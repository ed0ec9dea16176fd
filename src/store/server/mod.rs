//! One server: how to reach it, how calls share its connections, and what its error answers mean.
//!
//! | module | its subject |
//! | --- | --- |
//! | `pool` | the connections, of which a call has one for itself |
//! | `gate` | the queue of the threads that wait for one |
//! | `tasks` | the tasks of a thread, each at its time |
//! | `ping` | whether servers answer |
//! | `pubsub` | one connection that listens |
//! | `connecting` | when a server that refuses is connected to again |
//! | `together` | the connections lead to one server, also after a failover behind its address |
//! | `login` | connecting and logging in, for all of these; the first question to a server: is it one master, and may it evict locks? |
//! | `route` | the way to a server: its address and time limits, and the signs that it has lost its data |
//! | `refusal` | the failures of a connection and the error answers of a server, and what each means |

pub(crate) mod connecting;
mod gate;
pub(crate) mod login;
pub(crate) mod ping;
pub(crate) mod pool;
pub(crate) mod pubsub;
pub(crate) mod refusal;
pub(crate) mod route;
pub(crate) mod tasks;
pub(crate) mod together;
