//! What is counted and told.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`events`] | the thread that calls the listener and logs warnings |
//! | [`metrics`] | the counters of a manager |
//! | `exported`, `spans` | the same for the facades `metrics` and `tracing` |

pub(crate) mod events;
#[cfg(feature = "metrics")]
pub(crate) mod exported;
pub(crate) mod metrics;
#[cfg(feature = "tracing")]
pub(crate) mod spans;
