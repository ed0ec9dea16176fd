//! The settings of guards: their leases, fences and limits.

use std::time::Duration;

use crate::builder::settings::Builder;
#[cfg(doc)]
use crate::manager::LockManager;

impl Builder {
    /// Sets how long Redis keeps a lock without a renewal. A crashed holder delays the others by at most this time.
    /// From 10 ms to 24 h. Defaults to 30 s.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").lease(Duration::from_secs(10));
    /// ```
    #[doc(alias("expiry", "ttl"))]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.options.lease = lease;
        self
    }

    /// Sets whether leases are renewed for as long as their guards live. Without renewal, a guard is lost when its
    /// lease is over. Defaults to `true`.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").renew(false);
    /// ```
    #[doc(alias("extend", "heartbeat", "watchdog"))]
    pub fn renew(mut self, on: bool) -> Self {
        self.settings.options.renew = on;
        self
    }

    /// Sets whether guards have [fences](crate::Lease::fence). Without them, [`fence`](crate::Lease::fence) returns 0, and
    /// a free mutex is taken by a plain `SET NX PX`, which costs the server less than a script. Choose that only if nothing
    /// behind the lock checks fences: then nothing rejects the late write of a holder that was paused past its lease.
    /// Defaults to `true`.
    ///
    /// Processes with and without fences exclude each other, and may use the same names. A guard with a fence has a larger
    /// one than every earlier guard with a fence, if the server still has the last fence: [`fence_memory`](Builder::fence_memory)
    /// counts from the last guard with a fence. A thread never gets the lease of another thread of its process in memory if
    /// only one of them wants a fence: it asks the server.
    ///
    /// A guard that [`adopt`](LockManager::adopt) makes has a fence if the adopting manager's guards have one. A guard that
    /// [`downgrade`](crate::WriteGuard::downgrade) makes has one if the writer had one. With a
    /// [`poller_gap`](Builder::poller_gap), and on a [quorum](LockManager::quorum), a mutex is always taken by a script.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").fencing(false);
    /// ```
    pub fn fencing(mut self, on: bool) -> Self {
        self.settings.options.fencing = on;
        self
    }

    /// Sets how long one guard may be held. After that time its lock is released, and the guard reads `Lost`. If
    /// [`min_hold`](Builder::min_hold) is longer, the lock stays taken until that is over. Not zero. Defaults to `None`, no
    /// limit.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").max_hold(Some(Duration::from_secs(600)));
    /// ```
    pub fn max_hold(mut self, limit: Option<Duration>) -> Self {
        self.settings.options.max_hold = limit;
        self
    }

    /// Sets how long a lock stays taken from the grant of a guard on, even if the guard is released earlier. So a short
    /// job does not run twice on two hosts whose clocks differ.
    ///
    /// A guard that is released early ends at once. But no thread gets the lock before that time, in this process or
    /// another. The release wakes the first waiter, which learns when the lock is free, and asks again then. It holds also
    /// if [`max_hold`](Builder::max_hold) ends the guard earlier, or if the job panics. If the process crashes, loses the lease,
    /// or cannot reach Redis at the release, the lock is free at the end of its lease. For a job that must not run again after a
    /// crash either, set a [`lease`](Builder::lease) of the same length, and [`renew(false)`](Builder::renew).
    ///
    /// It has no effect on [`detach`](crate::LockGuard::detach). A guard that [`adopt`](LockManager::adopt) makes has
    /// the `min_hold` of the adopting manager, counted from the adoption. A guard that
    /// [`downgrade`](crate::WriteGuard::downgrade) makes keeps the time of the writer. At most 24 h. Defaults to zero.
    ///
    /// # Example
    ///
    /// Cron starts this job on several hosts at the same minute, and one of them runs it:
    ///
    /// ```no_run
    /// # fn run() {}
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").min_hold(Duration::from_secs(50));
    /// let locks = builder.build()?;
    /// if let Some(guard) = locks.try_lock("nightly-report")? {
    ///     run();
    ///     guard.release()?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn min_hold(mut self, length: Duration) -> Self {
        self.settings.options.min_hold = length;
        self
    }

    /// Sets how long a guard may be held before one warning is logged, with the lock's name, owner and fence. The
    /// listener receives it as [`Event::HeldLong`](crate::Event::HeldLong). The guard itself stays as it is. Not zero.
    /// Defaults to `None`, no warning.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").warn_after(Some(Duration::from_secs(60)));
    /// ```
    pub fn warn_after(mut self, limit: Option<Duration>) -> Self {
        self.settings.warn_after = limit;
        self
    }

    /// Sets how long a call may wait before a warning is logged, with the lock's name, its holder and the number of places
    /// in its queue. The listener receives it as [`Event::WaitsLong`](crate::Event::WaitsLong). The call waits on. A call
    /// warns once, and for one name there is one warning in this time. For the queue, the call may send a request that only
    /// reads, with the [rights of line 6](crate#rights-of-a-redis-user). Not zero. Defaults to `None`, no warning.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").warn_wait_after(Some(Duration::from_secs(30)));
    /// ```
    pub fn warn_wait_after(mut self, limit: Option<Duration>) -> Self {
        self.settings.warn_wait_after = limit;
        self
    }
}
