//! The connections to a server: bytes and replies with time limits, how calls share connections, and what error answers mean.
//!
//! 1. A call waits in line for a connection of the `pool`, and has it alone until it gives it back. Or another call that has a
//!    connection sends its request along (`line`).
//! 2. If the connection is not open, the call opens it on its own thread: it looks the host up (`resolve`), connects, begins
//!    `tls`, and logs in. A thread of the library leaves that out for a while at a server that has just refused (`login`).
//! 3. It looks whether anything is unread, writes the command, and reads until the answer ends (`socket`, `frame`).
//! 4. A failure or an error answer gets its meaning: may the server have executed the request (`refusal`), and may it have lost
//!    its data (`route`)?
//!
//! All of that ends at the call's `deadline`.
//!
//! | module | its subject |
//! | --- | --- |
//! | `deadline` | the time of a call |
//! | `socket` | a connection: bytes, with a time limit for each request and its answer |
//! | `tls` | the same bytes, encrypted |
//! | `frame` | where an answer ends |
//! | `resolve` | the addresses of a host, within a time limit |
//! | `route` | the way to a server: its address and time limits, the signs that it has lost its data, and whether all connections lead to one server |
//! | `login` | connecting and logging in; when a server that refuses is connected to again; the first question to a server: is it one master, and may it evict locks? |
//! | `refusal` | the failures of a connection and the error answers of a server, and what each means |
//! | `pool` | the connections, of which a call has one for itself |
//! | `line` | the calls that wait for a connection, and whose requests may go along with that of another call |
//! | `pubsub` | one connection that listens |
//! | `tasks` | the tasks of a thread, each at its time |

pub(crate) mod deadline;
pub(crate) mod frame;
pub(crate) mod line;
pub(crate) mod login;
pub(crate) mod pool;
pub(crate) mod pubsub;
pub(crate) mod refusal;
pub(crate) mod resolve;
pub(crate) mod route;
pub(crate) mod socket;
pub(crate) mod tasks;
#[cfg(feature = "tls")]
pub(crate) mod tls;
