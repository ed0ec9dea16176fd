//! The guard of a reentrant mutex, which stays on its thread.

use std::marker::PhantomData;
use std::ops::Deref;

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::guard::lease::Lease;
#[cfg(doc)]
use crate::guard::single::LockGuard;
use crate::sys::{Arc, MutexGuard};

/// A guard of a [`ReentrantMutex`](crate::ReentrantMutex). The guards of one thread share one hold on the lock.
/// Dropping the last of them releases the lock, as dropping a [`LockGuard`] does.
///
/// A guard stays on its thread.
///
/// ```compile_fail
/// fn is_send<T: Send>() {}
/// is_send::<leasehold::ReentrantGuard>();
/// ```
#[must_use = "if unused the lock is released at once"]
#[derive(Debug)]
pub struct ReentrantGuard {
    hold: Arc<Lease>,
    /// The standard library's guard is not `Send`, so this one is not either.
    on_its_thread: PhantomData<MutexGuard<'static, ()>>,
}

impl ReentrantGuard {
    pub(crate) fn new(hold: Arc<Lease>) -> Self {
        Self {
            hold,
            on_its_thread: PhantomData,
        }
    }

    /// Ends this guard. If it is the thread's last guard of the lock, releases the lock as [`LockGuard::release`]
    /// does.
    ///
    /// Only the release of the last guard blocks.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock was lost before.
    /// * The other errors of [`LockGuard::release`], if this is the last guard.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(account: &leasehold::ReentrantMutex) -> leasehold::Result<()> {
    /// let (outer, inner) = (account.lock()?, account.lock()?);
    /// outer.release()?; // sends nothing
    /// inner.release()?; // releases the lock
    /// # Ok(()) }
    /// ```
    pub fn release(self) -> Result<()> {
        // All guards of the lock are of this thread, so their count does not change meanwhile.
        if Arc::strong_count(&self.hold) > 1 {
            return self.hold.check();
        }
        match Arc::try_unwrap(self.hold) {
            Ok(last) => last.guard_inner.release(),
            Err(hold) => hold.check(),
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.hold
    }
}
