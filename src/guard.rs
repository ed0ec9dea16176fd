//! Guards, the lease that a guard derefs to, and the trait over all guards.

pub use generic::Guard;
pub(crate) use generic::Sealed;
pub use lease::{Lease, LeaseState};
pub use multi::MultiGuard;
pub use reentrant::ReentrantGuard;
pub use single::{LockGuard, Permit, ReadGuard, WriteGuard};

mod generic;
mod lease;
mod multi;
mod reentrant;
mod single;
