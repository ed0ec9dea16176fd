//! One server: how to reach it, who shares its connections, and what its error answers mean.
//!
//! | module | its subject |
//! | --- | --- |
//! | `shared` | the connections to one server, which threads share that call at the same moment |
//! | `pool` | the connections to the nodes of a quorum, which a thread has for itself |
//! | `places` | the r2d2 pool of places for connections, for both |
//! | `tasks` | the tasks of the thread of a pool, each at its time |
//! | `ping` | whether servers answer |
//! | `raw` | commands that the command line makes itself |
//! | `pubsub` | one connection that listens |
//! | `login` | connecting and logging in, for all of these |
//! | `server_info` | the first question to a server: is it one master, and may it evict locks? |
//! | `route` | the way to a server: its address and time limits |
//! | `errors` | the failures of a connection, and what each means for a request |
//! | `refusal` | the error answers of a server, and what each means |
//! | `data_loss_signs` | signs that a server has lost its data |

pub(crate) mod data_loss_signs;
pub(crate) mod errors;
pub(crate) mod login;
pub(crate) mod ping;
pub(crate) mod places;
pub(crate) mod pool;
pub(crate) mod pubsub;
#[cfg(feature = "cli")]
pub(crate) mod raw;
pub(crate) mod refusal;
pub(crate) mod route;
pub(crate) mod server_info;
pub(crate) mod shared;
pub(crate) mod tasks;
