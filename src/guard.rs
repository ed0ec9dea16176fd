//! Guards, the lease that a guard derefs to, and the trait over all guards.

use std::fmt::Debug;

use crate::error::Result;

pub use lease::{Lease, LeaseState};
pub use multi::MultiGuard;
pub(crate) use sealed::Sealed;
pub use single::{LockGuard, Permit, ReadGuard, ReentrantGuard, WriteGuard};

mod lease;
mod multi;
mod single;

mod sealed {
    /// Keeps other crates from implementing a trait.
    pub trait Sealed {}
}

/// A guard of any kind: see [`Lock`](crate::Lock).
pub trait Guard: Sealed + Debug {
    /// Returns an error if the lock is lost, as [`Lease::check`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost): the lock is lost.
    fn check(&self) -> Result<()>;

    /// Releases the lock, as [`LockGuard::release`] does. Returns an error if the lock was lost before.
    ///
    /// # Errors
    ///
    /// As the guard's own method.
    fn release(self) -> Result<()>;
}

macro_rules! guards {
    ($($guard:ty: $checked:ty),*) => {$(
        impl Sealed for $guard {}

        impl Guard for $guard {
            fn check(&self) -> Result<()> {
                <$checked>::check(self)
            }

            fn release(self) -> Result<()> {
                <$guard>::release(self)
            }
        }
    )*};
}

guards!(
    LockGuard: Lease, ReentrantGuard: Lease, ReadGuard: Lease, WriteGuard: Lease, Permit: Lease,
    MultiGuard: MultiGuard
);
