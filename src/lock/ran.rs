//! The outcome of a closure that ran under a lock.

use crate::error::{Error, Lost, Result};

/// The outcome of a closure that ran under a lock: see [`Mutex::run`](crate::Mutex::run).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the lock may have been lost while the closure ran"]
#[non_exhaustive]
pub struct Ran<T> {
    /// The result of the closure.
    pub value: T,
    /// The loss, if the lease ended before the closure did. Then another thread or process may have held the lock at
    /// the same time.
    pub lost: Option<Lost>,
}

impl<T> Ran<T> {
    /// Returns the value. If the lock was lost, returns the loss in its place, as [`Mutex::with`](crate::Mutex::with)
    /// does.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lease ended before the closure did.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(jobs: &leasehold::Mutex) -> leasehold::Result<()> {
    /// let ran = jobs.run(std::time::Duration::from_secs(5), |_| 17)?;
    /// println!("{} jobs, or the loss", ran.into_result()?);
    /// # Ok(()) }
    /// ```
    pub fn into_result(self) -> Result<T> {
        match self.lost {
            None => Ok(self.value),
            Some(lost) => Err(Error::Lost(lost)),
        }
    }
}
