//! Distributed locks on Redis for threaded programs.

mod clock;
mod config;
mod core;
mod engine;
mod error;
mod guard;
mod lock;
mod manager;
mod name;
mod random;
mod script;
mod store;
mod sync;

pub use crossbeam_channel::Receiver;
pub use error::{Error, Lost, LostCause, Result};
pub use guard::{Lease, LeaseState, LockGuard};
pub use lock::mutex::Mutex;
pub use manager::{Builder, LockManager};
