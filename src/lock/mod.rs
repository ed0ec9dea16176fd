//! The handles: one for each kind of lock, each a thin layer over the engine.
//!
//! | part of all handles | module |
//! | --- | --- |
//! | the names, the options, and the way into the engine ([`Handle::acquire`]) | `handle` |
//! | the methods that acquire: six for each way to use a kind | `mutex`, written out; `ways`, by a macro |
//! | the setters of the options | `options` |
//! | the result of a closure that ran under a lock | `ran` |
//! | the trait over all kinds | `generic` |

pub(crate) mod generic;
mod handle;
pub(crate) mod multi;
pub(crate) mod mutex;
mod options;
mod ran;
pub(crate) mod rate_limiter;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
mod ways;

pub(crate) use handle::Handle;
pub use ran::Ran;
