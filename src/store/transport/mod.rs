//! Bytes and replies, each with a time limit.
//!
//! | module | its subject |
//! | --- | --- |
//! | `exchange` | requests to several servers, and their answers as they come |
//! | `socket` | a connection: bytes, with a time limit for each request and its answer |
//! | `tls` | the same bytes, encrypted |
//! | `frame` | where an answer ends |
//! | `resolve` | the addresses of a host, within a time limit |

pub(crate) mod exchange;
pub(crate) mod frame;
pub(crate) mod resolve;
pub(crate) mod socket;
#[cfg(feature = "tls")]
pub(crate) mod tls;
