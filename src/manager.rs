//! The manager.

use std::fmt;
use std::time::Duration;

use crate::claim::Claim;
use crate::engine::Engine;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::guard::{Lease, LockGuard};
use crate::lock::multi::MultiLock;
use crate::lock::mutex::Mutex;
use crate::lock::rate_limiter::RateLimiter;
use crate::lock::reentrant::ReentrantMutex;
use crate::lock::rwlock::RwLock;
use crate::lock::semaphore::Semaphore;
use crate::lock::{Handle, Ran};
use crate::stats::Stats;
use crate::sync::Arc;

/// Hands out locks. One is enough for a process; clones share everything.
///
/// It draws connections from a pool for the requests of the callers' threads. The renewal of leases and the
/// listening for wake-ups have connections of their own, so that any number of waiting threads cannot delay
/// them. Its threads are started when there is something for them to do, and end when there is nothing left.
///
/// Dropping the last clone does not end guards that are still held: they keep what they need.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::LockManager;
/// use std::time::Duration;
///
/// let locks = LockManager::single("redis://127.0.0.1/")
///     .lease(Duration::from_secs(10))
///     .prefix("lock:")
///     .build()?;
/// let total = locks.with_lock("report", Duration::from_secs(5), |lease| {
///     // … at most one thread of all processes is here …
///     lease.fence()
/// })?;
/// # let _ = total;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockManager {
    pub(crate) engine: Arc<Engine>,
}

impl LockManager {
    /// Acquires the lock called `name`, waiting for as long as it takes: [`Mutex::lock`] with the manager's
    /// settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Result<LockGuard> {
        self.mutex(name).lock()
    }

    /// Acquires the lock called `name` if it is free: [`Mutex::try_lock`] with the manager's settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`].
    pub fn try_lock(&self, name: impl AsRef<str>) -> Result<Option<LockGuard>> {
        self.mutex(name).try_lock()
    }

    /// Acquires the lock called `name`, waiting for at most `wait`: [`Mutex::try_lock_for`] with the manager's
    /// settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`].
    pub fn try_lock_for(&self, name: impl AsRef<str>, wait: Duration) -> Result<Option<LockGuard>> {
        self.mutex(name).try_lock_for(wait)
    }

    /// Runs `f` under the lock called `name`, waiting for it for at most `wait`: [`Mutex::with`] with the
    /// manager's settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`].
    pub fn with_lock<T>(
        &self,
        name: impl AsRef<str>,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<T> {
        self.mutex(name).with(wait, f)
    }

    /// Runs `f` under the lock called `name`, waiting for it for at most `wait`, and returns its result even if the lease
    /// was lost meanwhile: [`Mutex::run`] with the manager's settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`].
    pub fn run<T>(
        &self,
        name: impl AsRef<str>,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<Ran<T>> {
        self.mutex(name).run(wait, f)
    }

    /// A handle to the mutex called `name`, for settings of its own or for use again and again.
    ///
    /// A name has 1 to 1,024 bytes of UTF-8. What is wrong with it comes from the first call.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.handle(name.as_ref()))
    }

    /// A handle to the mutex called `name` that a thread may lock again while it holds it.
    ///
    /// It is the same lock as [`mutex`](LockManager::mutex) of that name.
    #[must_use]
    pub fn reentrant_mutex(&self, name: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex::new(self.handle(name.as_ref()))
    }

    /// A handle to the reader-writer lock called `name`.
    ///
    /// A name is that of one kind of lock at a time: a mutex and a reader-writer lock of one name are told that it
    /// is the wrong type.
    #[must_use]
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.handle(name.as_ref()))
    }

    /// A handle to the semaphore called `name`, of so many permits: at least 1, at most 4,294,967,294. All who use
    /// it at one time must give the same number.
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(self.handle(name.as_ref()), permits)
    }

    /// A handle to several mutexes, locked all or none. At least one name, and none twice.
    ///
    /// They are the same locks as [`mutex`](LockManager::mutex) of these names.
    #[must_use]
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(Arc::clone(&self.engine), names)
    }

    /// A handle to the rate limiter called `name`: at least 1 permit in any window of length `per`, which is from
    /// 1 ms to a year.
    #[must_use]
    pub fn rate_limiter(&self, name: impl AsRef<str>, permits: u32, per: Duration) -> RateLimiter {
        RateLimiter::new(self.handle(name.as_ref()), permits, per)
    }

    /// Takes over a lock that was [detached](LockGuard::detach), in this process or another, with this manager's
    /// settings, which must have the same prefix. Its lease begins anew; what it was extended to before was for the claim.
    /// It blocks for one request.
    ///
    /// # Guarantees
    ///
    /// If several calls adopt one claim, exactly one gets a guard. Its fence is larger than the claim's, and nobody has held the lock
    /// in between; those who wait for it keep their places.
    ///
    /// It may be repeated: after an [`Error::Unavailable`] the same manager is given the lock if its first request was
    /// carried out and only the answer was lost. Where it is not repeated, such a lock ends with its lease.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock is no longer the claim's. Another has adopted it, its lease has ended, or it was lost
    ///   before it was detached. Also a claim whose fence the lock never gave.
    /// * [`Error::InvalidName`], [`Error::Closed`]: nothing was sent.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::WrongType`], [`Error::Protocol`]: the server could not be
    ///   asked.
    /// * [`Error::NotReplicated`]: too few [`replicas`](crate::Builder::replicas) confirmed it.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let claim = locks.lock("orders:42")?.detach();
    /// // … on another thread, in another process, a little later …
    /// match locks.adopt(&claim) {
    ///     Ok(guard) => println!("held again, as number {}", guard.fence()),
    ///     Err(leasehold::Error::Lost(lost)) => println!("too late: {lost}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn adopt(&self, claim: &Claim) -> Result<LockGuard> {
        self.engine.adopt(claim).map(LockGuard::new)
    }

    fn handle(&self, name: &str) -> Handle {
        Handle::new(Arc::clone(&self.engine), name)
    }

    /// What this manager has done so far, over all its clones. It blocks for nothing and asks nobody; also once the
    /// manager is closed, and in a forked child, which has the figures of the moment at which it was forked.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let stats = locks.stats();
    /// println!("{} held, {} lost so far", stats.held, stats.lost());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Ends all waits, of all clones, with [`Error::Closed`](crate::Error::Closed), as every later call, and
    /// waits for at most `wait` until Redis has replied to every queued release. Returns true if it replied to all.
    /// Returns false also if the renewal thread gave up a release because Redis did not answer for as long as it may
    /// have kept the lock. That counts until Redis answers the renewal thread again.
    ///
    /// Guards that are held stay held, and renewed, until they are dropped. What a request that is on its way is granted
    /// is such a guard too.
    #[must_use = "false means that something is released only when its lease is over"]
    pub fn close(&self, wait: Duration) -> bool {
        self.engine.close(wait)
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager").finish_non_exhaustive()
    }
}
