//! The manager, which hands out locks.

use std::fmt;
use std::time::Duration;

use crate::claim::Claim;
use crate::engine::Engine;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::guard::{Lease, LockGuard};
use crate::lock::{
    Election, Handle, MultiLock, Mutex, Once, Ran, RateLimiter, ReentrantMutex, RwLock, Semaphore,
};
use crate::stats::Stats;
use crate::sys::Arc;

/// Hands out locks. One manager is enough for a process, and clones share everything.
///
/// The calling threads send their requests on connections from a pool. The renewal of leases has its own connection,
/// and so has the subscription for messages, so that no number of waiting threads delays them.
///
/// The manager starts two threads that look after its connections, and up to four more, each when it is first needed: for
/// renewals, deadlines, messages and events. Behind sentinels and on a cluster one more finds the masters, with one for each
/// sentinel, and with threads that live for a moment; so do those that connect to the nodes of a quorum. The threads for
/// renewals and for deadlines end a while after the last lease, and those for messages and for events end with the last clone
/// and guard.
///
/// Guards stay held when the last clone is dropped. They keep the manager's connections and threads alive.
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
    /// Acquires the lock called `name`, and waits for as long as it takes: [`Mutex::lock`] with the manager's settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = locks.lock("orders:42")?;
    /// println!("held, with fence {}", guard.fence());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lock(&self, name: impl AsRef<str>) -> Result<LockGuard> {
        self.mutex(name).lock()
    }

    /// Acquires the lock called `name` if it is free, and returns `None` if it is held: [`Mutex::try_lock`] with the
    /// manager's settings. Blocks for at most one request.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// if let Some(guard) = locks.try_lock("nightly-report")? {
    ///     println!("this host runs the job, with fence {}", guard.fence());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_lock(&self, name: impl AsRef<str>) -> Result<Option<LockGuard>> {
        self.mutex(name).try_lock()
    }

    /// Acquires the lock called `name`, and waits for at most `wait`: [`Mutex::try_lock_for`] with the manager's
    /// settings. Returns `None` if it was held until then.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// match locks.try_lock_for("orders:42", Duration::from_millis(500))? {
    ///     Some(guard) => println!("held, with fence {}", guard.fence()),
    ///     None => println!("another guard holds it"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "blocking_timeout")]
    pub fn try_lock_for(&self, name: impl AsRef<str>, wait: Duration) -> Result<Option<LockGuard>> {
        self.mutex(name).try_lock_for(wait)
    }

    /// Runs `f` under the lock called `name`, and returns its result: [`Mutex::with`] with the manager's settings.
    /// Waits for the lock for at most `wait`.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: `f` ran, but the lease ended before `f` did. The result of `f` is dropped: [`run`](LockManager::run)
    ///   returns it.
    /// * [`Error::Timeout`]: the lock was held for all of `wait`. `f` did not run.
    /// * Any other error, as [`Mutex::lock`]: `f` did not run.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let fence = locks.with_lock("report", Duration::from_secs(5), |lease| lease.fence())?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn with_lock<T>(
        &self,
        name: impl AsRef<str>,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<T> {
        self.mutex(name).with(wait, f)
    }

    /// Runs `f` under the lock called `name`, and returns its result even if the lease was lost meanwhile:
    /// [`Mutex::run`] with the manager's settings. Waits for the lock for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`]. After each error `f` did not run.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let ran = locks.run("invoices", Duration::from_secs(5), |_| 17)?;
    /// println!("{} invoices were sent; the lock was lost: {}", ran.value, ran.lost.is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn run<T>(
        &self,
        name: impl AsRef<str>,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<Ran<T>> {
        self.mutex(name).run(wait, f)
    }

    /// Returns a handle to the mutex called `name`. A handle can have its own settings, and serves any number of calls.
    ///
    /// A name has 1 to 1,024 bytes of UTF-8. If no lock can have the name, each call of the handle returns
    /// [`Error::InvalidName`] with the reason. The same holds for the handles of the other kinds.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let orders = locks.mutex("orders").lease(Duration::from_secs(10));
    /// let guard = orders.lock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        let handle = self.handle(name.as_ref());
        Mutex { handle }
    }

    /// Returns a handle to the mutex called `name` that a thread can lock again while it holds it. It is the same lock as
    /// [`mutex`](LockManager::mutex) of that name.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let account = locks.reentrant_mutex("account:7");
    /// let outer = account.lock()?;
    /// let inner = account.lock()?; // without a request
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn reentrant_mutex(&self, name: impl AsRef<str>) -> ReentrantMutex {
        let handle = self.handle(name.as_ref());
        ReentrantMutex { handle }
    }

    /// Returns a handle to the reader-writer lock called `name`.
    ///
    /// A name is that of one kind of lock at a time. While a mutex of this name is held, a call of this handle returns
    /// [`Error::WrongType`], and the other way round.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let reader = locks.rwlock("config").read()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        let handle = self.handle(name.as_ref());
        RwLock { handle }
    }

    /// Returns a handle to the semaphore called `name`, which has `permits` permits: from 1 to 4,294,967,294. For a
    /// number out of bounds each call returns [`Error::Config`].
    ///
    /// All users of the semaphore should give the same number. If they do not, each call counts the permits in use
    /// against its own number, and a manager logs a warning at WARN, once for each name. So a program can change the
    /// number while it runs: if `downloads` goes from 2 permits to 3, the old processes hold 2 at most, and the new ones
    /// take a third. The first process in the queue is let in when its permits fit in its own number, and none passes it.
    ///
    /// Unpublished versions of leasehold before this rule refuse a number that differs, and drop waiters with another
    /// number from the queue. Such waiters join again at their next poll. Replace these versions before the number
    /// changes.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let permit = locks.semaphore("downloads", 8).acquire()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(self.handle(name.as_ref()), permits)
    }

    /// Returns a handle to several mutexes that are locked together, all or none. They are the same locks as
    /// [`mutex`](LockManager::mutex) of these names. Without a name, or with one name twice, each call returns
    /// [`Error::Config`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = locks.multi(["account:7", "account:9"]).lock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(Arc::clone(&self.engine), names)
    }

    /// Returns a handle to the rate limiter called `name`, which admits at most `permits` calls in any window of length
    /// `per`. `permits` is at least 1, and `per` is from 1 ms to 365 days. For a number out of bounds each call returns
    /// [`Error::Config`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// locks.rate_limiter("mails", 20, Duration::from_secs(60)).acquire()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn rate_limiter(&self, name: impl AsRef<str>, permits: u32, per: Duration) -> RateLimiter {
        RateLimiter::new(self.handle(name.as_ref()), permits, per)
    }

    /// Returns a handle to a job that one host runs for each time of a schedule: see [`Once`]. While it runs, it holds the
    /// [`mutex`](LockManager::mutex) of this name.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, SystemTime};
    /// # fn example(three_o_clock: SystemTime) -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let wait = Duration::from_secs(60 * 60); // longer than the job and a lease
    /// if let Some(guard) = locks.once("report").claim_for(three_o_clock, wait)? {
    ///     // … the work …
    ///     guard.done()?;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn once(&self, name: impl AsRef<str>) -> Once {
        Once::new(self.handle(name.as_ref()))
    }

    /// Returns a handle to the election of a leader: see [`Election`]. A leader holds the [`mutex`](LockManager::mutex) of this
    /// name.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let leadership = locks.election("scheduler").campaign("10.0.0.7:8080")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.handle(name.as_ref()))
    }

    /// Takes over a lock that was [detached](LockGuard::detach), in this process or another. Blocks for at most one
    /// request.
    ///
    /// The manager must have the same prefix as the one that detached the lock. The guard has the settings of this
    /// manager, and a new lease of its length; [`Mutex::adopt`] uses those of a handle. An earlier
    /// [`extend`](Lease::extend) was for the claim only.
    ///
    /// # Guarantees
    ///
    /// If several calls adopt one claim, exactly one of them gets a guard. Its fence is larger than the claim's. Nobody
    /// has held the lock in between, and waiters keep their places.
    ///
    /// A call may be repeated. If Redis executed the first request and only its reply was lost, a second call of the
    /// same manager gets the lock. Without a second call, the lock ends with its lease.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock does not belong to the claim any more. Another call has adopted it, its lease has ended, or
    ///   it was lost before it was detached. A claim whose fence the lock cannot have given returns this error too.
    /// * [`Error::InvalidName`], [`Error::Closed`]: no request was sent.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::WrongType`], [`Error::Unsupported`], [`Error::Protocol`],
    ///   [`Error::Config`] (the server does not have the database): the request failed.
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
    ///     Ok(guard) => println!("held again, with fence {}", guard.fence()),
    ///     Err(leasehold::Error::Lost(lost)) => println!("too late: {lost}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn adopt(&self, claim: &Claim) -> Result<LockGuard> {
        self.mutex(claim.name()).adopt(claim)
    }

    fn handle(&self, name: &str) -> Handle {
        Handle::new(Arc::clone(&self.engine), name)
    }

    /// Returns the counters and distributions of this manager and all its clones. Does not block, and sends no request.
    ///
    /// A closed manager still has its figures. A manager in a forked child has those of the moment of the fork.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let stats = locks.stats();
    /// println!("{} held, {} lost so far", stats.held, stats.lost());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Closes the manager and all its clones: every wait ends with [`Error::Closed`], and so does every later call.
    /// Guards stay held, and their leases are renewed, until they are dropped. A request that is on its way may still
    /// be granted: then its call returns a guard. The channels of [`Election::observe`] are disconnected.
    ///
    /// Blocks for at most `wait`, until no call asks Redis any more and Redis has replied to every queued release. On a
    /// quorum, each node that may have the lock must have confirmed its release.
    ///
    /// | it returns | if |
    /// | --- | --- |
    /// | `true` | Redis has replied to every release that the renewal thread had to send |
    /// | `false` | `wait` was over before that |
    /// | `false` | the renewal thread gave up a release, because Redis must have dropped the key in the meantime, and has had no reply since |
    /// | `false` | this is a forked child |
    ///
    /// Redis may still execute an earlier request that had no reply. Example: this process asks for `orders:42`, has no reply
    /// within the [`io_timeout`](crate::Builder::io_timeout), and gives up. Redis replies to its release, and `close` returns
    /// `true`. Then the request for the lock arrives, which was delayed in the network. Now `orders:42` is held until the lease
    /// of that request ends. If the process goes on, its renewal thread releases the lock sooner: it repeats the release until
    /// a lease has passed since the request was sent. It releases nothing for an older request, such as one without a reply
    /// for an `io_timeout` that is as long as the lease.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// if !locks.close(Duration::from_secs(1)) {
    ///     eprintln!("some locks stay held until their leases end");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
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
