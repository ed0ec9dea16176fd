//! The handles: one for each kind of lock, each a thin layer over the engine.
//!
//! | part of all handles | module |
//! | --- | --- |
//! | the names, the options, and the way into the engine ([`Handle::acquire`]) | `handle` |
//! | the result of a closure that ran under a lock ([`Ran`]) | `handle` |
//! | the methods that acquire: six for each way to use a kind | `mutex`, written out; `methods`, by a macro |
//! | the setters of the options | `methods` |
//! | the trait over all kinds | `generic` |

pub(crate) mod generic;
mod handle;
mod methods;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod rate_limiter;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;

pub(crate) use handle::Handle;
pub use handle::Ran;
