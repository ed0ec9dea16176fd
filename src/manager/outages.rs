//! The settings for a server that is out of reach.

use std::time::Duration;

use super::Builder;

impl Builder {
    /// How long a wait without a deadline outlasts a server that is out of reach. At least 1 ms. Defaults to
    /// 60 s.
    pub fn outage_limit(mut self, limit: Duration) -> Self {
        self.settings.outage_limit = limit;
        self
    }

    /// Sets whether a call that waits retries transient errors from its first request on.
    ///
    /// Without it, an error of the first request is returned at once, so a loop that locks again spins while the server
    /// restarts. With it, such a call blocks until it has its lock, or its wait is over, or, if it waits without an end,
    /// [`outage_limit`](Builder::outage_limit) has passed; then it returns the last error. A try is never retried.
    /// Defaults to `false`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/")
    ///     .wait_through_outages(true)
    ///     .build_unchecked()?;
    /// let guard = locks.lock("job")?; // also while the server is restarted
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn wait_through_outages(mut self, on: bool) -> Self {
        self.settings.wait_through_outages = on;
        self
    }
}
