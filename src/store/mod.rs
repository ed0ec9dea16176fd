//! The connections to Redis, and the calls on them.
//!
//! A *node* is one logical Redis that runs one script atomically. The layers above use it only through the trait
//! [`Store`]. So a store of several nodes, or of a test, can replace it. On a cluster the keys of one script must share a
//! slot ([`Store::has_slots`]). Every other node holds all keys, whatever their slots.
//!
//! | module | its subject |
//! | --- | --- |
//! | `api` | the trait [`Store`], by which the layers above use a store, and the limits and answers of a request |
//! | `node` | one server, and the store of one |
//! | `shared` | the connections to one server, which threads share that call at the same moment |
//! | `places` | the r2d2 pool of places for connections |
//! | `pool` | the connections to the nodes of a quorum, which a thread has for itself |
//! | `link` | a request's way over a connection |
//! | `pubsub` | one connection that listens |
//! | `login` | connecting and logging in, for both |
//! | `route` | the way to a server: its address and time limits |
//! | `errors` | the failures of a connection, and what each means for a request |
//! | `finder` | the thread that finds the servers of the next two |
//! | `sentinel` | the master of a Sentinel set |
//! | `cluster` | the masters of a Redis Cluster, by slot |
//! | `quorum` | several independent servers, and the vote over them |
//! | `refusal` | the error answers of a server, and what each means |
//! | `cuts` | signs that a server has lost its data |
//! | `server_info` | the first question to a server: is it one master, and may it evict locks? |
//! | `socket`, `tls` | bytes, with a time limit for each request and its answer |
//! | `exchange` | requests to several servers, and their answers as they come |
//! | `resolve` | the addresses of a host, within a time limit |
//! | `waker` | waiting for several sockets, and waking a thread that does |
//! | `frame` | where an answer ends |

mod api;
pub(crate) mod cluster;
mod cuts;
mod errors;
mod exchange;
mod finder;
pub(crate) mod frame;
mod link;
mod login;
pub(crate) mod node;
mod places;
mod pool;
pub(crate) mod pubsub;
pub(crate) mod quorum;
mod refusal;
mod resolve;
mod route;
mod sentinel;
mod server_info;
mod shared;
mod socket;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod waker;

use api::LOOK_EVERY;
pub(crate) use api::{Answer, DedicatedConnection, LEAST, Limits, NodeReport, PubSubEvent, Store};
