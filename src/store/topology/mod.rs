//! The stores of the layers above.
//!
//! | module | its subject |
//! | --- | --- |
//! | `single` | the store of one server, at a fixed address or behind sentinels |
//! | `sentinel` | the master of a Sentinel set |
//! | `cluster` | the masters of a Redis Cluster, by slot |
//! | `quorum` | several independent servers, and the vote over them |
//! | `finder` | the thread that finds the servers of a Sentinel set or a cluster |
//! | `link` | a request's way over a connection to the master that it is for |

pub(crate) mod cluster;
mod finder;
pub(crate) mod link;
pub(crate) mod quorum;
mod sentinel;
pub(crate) mod single;
