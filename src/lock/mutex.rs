//! The mutex: one guard at a time, among all processes.

use std::ops::Deref;
use std::time::{Duration, Instant};

use crate::claim::Claim;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::guard::{Lease, LockGuard};
use crate::lock::handle::{Handle, Ran, within_limit, without_limit};
use crate::lock::methods::options;
use crate::net::deadline::Wait;
use crate::sys::time::left_until;
use crate::wire::LockKind;

/// A lock that one guard holds at a time, among all threads of all processes that use the same Redis.
///
/// A handle is cheap to clone, and holds no lock. In Redis the lock is the plain string that
/// `SET name owner NX PX lease` makes, so it excludes other clients that lock in this way.
///
/// Threads are served first come, first served, and so are processes. While other processes wait, a process keeps the
/// lock among its own threads for at most one [`quantum`](crate::Builder::quantum) at a time.
///
/// There is no poisoning: a thread that panics releases the lock. A thread that locks a mutex which it already holds
/// waits for itself; a [`ReentrantMutex`](crate::ReentrantMutex) allows that. A client of another library that polls
/// is not in the queue, and can starve: see [`poller_gap`](crate::Builder::poller_gap).
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
///
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let orders = locks.mutex("orders").lease(Duration::from_secs(10));
/// if let Some(guard) = orders.try_lock_for(Duration::from_millis(500))? {
///     println!("granted, with fence {}", guard.fence());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    pub(crate) handle: Handle,
}

impl Mutex {
    /// Acquires the lock. Blocks until it is granted.
    ///
    /// A blocked thread sleeps. Only one thread of a process asks Redis for a name: it wakes when a message comes, and at
    /// least once a second. When Redis has replied once, transient errors are retried until Redis has not replied for
    /// [`outage_limit`](crate::Builder::outage_limit).
    ///
    /// # Guarantees
    ///
    /// Those of [the crate](crate#what-it-promises).
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`]: the name cannot be used. Nothing was sent.
    /// * [`Error::Config`]: a setting cannot be used, and nothing was sent. Or the server does not have the database.
    /// * [`Error::Unavailable`]: the first request failed, or Redis did not reply for `outage_limit`.
    /// * [`Error::NotReplicated`]: too few [`replicas`](crate::Builder::replicas) confirmed the first grant, or every
    ///   grant for `outage_limit`.
    /// * [`Error::Denied`], [`Error::WrongType`], [`Error::Unsupported`], [`Error::Protocol`]: a request failed. It is
    ///   not retried.
    /// * [`Error::Closed`]: the manager is closed.
    /// * [`Error::Forked`]: this process is a forked child.
    /// * [`Error::Cancelled`]: the handle's [token](crate::Cancel) is cancelled.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(orders: &leasehold::Mutex) -> leasehold::Result<()> {
    /// let guard = orders.lock()?;
    /// // … the work …
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn lock(&self) -> Result<LockGuard> {
        let acquired = self.handle.acquire(LockKind::Mutex, 1, Wait::Forever);
        without_limit(acquired).map(LockGuard::new)
    }

    /// Acquires the lock if it is free. Returns `None` if it is held.
    ///
    /// Blocks for one request; on a quorum, for a few rounds if the votes are split. No request is sent if another thread
    /// of this process holds the lock.
    ///
    /// # Errors
    ///
    /// As [`lock`](Mutex::lock). No error is retried.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(report: &leasehold::Mutex) -> leasehold::Result<()> {
    /// match report.try_lock()? {
    ///     Some(guard) => guard.release()?, // after the work
    ///     None => println!("another host is at work"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Acquires the lock within `wait`. Returns `None` if it was held at Redis's last reply.
    ///
    /// Blocks for at most `wait`, and possibly 100 ms longer, or 200 ms if all connections are in use: the last request has
    /// at least 100 ms, and so has a wait for a connection of the pool before it. With
    /// [`background_release`](crate::Builder::background_release), so has a release of this thread's process that goes first. If
    /// the end of the wait cuts a request short, the reply before it counts.
    ///
    /// A wait of zero is [`try_lock`](Mutex::try_lock). A wait of `Duration::MAX` has no end.
    ///
    /// # Errors
    ///
    /// As [`lock`](Mutex::lock), but transient errors are retried until the end of the wait instead of for
    /// `outage_limit`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(orders: &leasehold::Mutex) -> leasehold::Result<()> {
    /// if let Some(guard) = orders.try_lock_for(Duration::from_secs(2))? {
    ///     // … the work …
    ///     guard.release()?;
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "blocking_timeout")]
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>> {
        let wait = self.handle.wait_of(wait);
        let acquired = within_limit(self.handle.acquire(LockKind::Mutex, 1, wait))?;
        Ok(acquired.map(LockGuard::new))
    }

    /// Acquires the lock before `deadline`. Returns `None` if it was held at Redis's last reply. Blocks as
    /// [`try_lock_for`](Mutex::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Mutex::try_lock_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # fn example(stock: &leasehold::Mutex, orders: &leasehold::Mutex) -> leasehold::Result<()> {
    /// let deadline = Instant::now() + Duration::from_secs(2);
    /// let both = (stock.try_lock_until(deadline)?, orders.try_lock_until(deadline)?);
    /// # drop(both);
    /// # Ok(()) }
    /// ```
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>> {
        self.try_lock_for(left_until(deadline))
    }

    /// Takes over a lock that was [detached](LockGuard::detach), in this process or another, with the settings of this
    /// handle: [`LockManager::adopt`](crate::LockManager::adopt), whose page has the guarantees. Blocks for at most one
    /// request.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: the claim is for a lock of another name, or a setting cannot be used. Nothing was sent.
    /// * Any other error, as [`LockManager::adopt`](crate::LockManager::adopt).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let orders = locks.mutex("orders").lease(Duration::from_secs(10));
    /// let claim = orders.lock()?.detach();
    /// // … on another thread, in another process, a little later …
    /// let guard = orders.adopt(&claim)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn adopt(&self, claim: &Claim) -> Result<LockGuard> {
        self.handle.adopt(claim).map(LockGuard::new)
    }

    /// Runs `f` under the lock, and releases the lock. Waits for the lock for at most `wait`.
    ///
    /// If `f` returns an error, it is part of the result: `Ok(Err(…))`. If the lock is lost, the result of `f` is
    /// dropped. [`run`](Mutex::run) returns it then too.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: `f` ran, but the lease ended before `f` did.
    /// * [`Error::Timeout`]: the lock was held until the end of the wait. `f` did not run.
    /// * The other errors of [`try_lock_for`](Mutex::try_lock_for): `f` did not run.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(orders: &leasehold::Mutex) -> leasehold::Result<()> {
    /// let fence = orders.with(Duration::from_secs(5), |lease| lease.fence())?;
    /// # let _ = fence;
    /// # Ok(()) }
    /// ```
    pub fn with<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.run(wait, f)?.into_result()
    }

    /// Runs `f` under the lock, and releases the lock. Returns the result of `f` even if the lock was lost meanwhile.
    /// Waits for the lock for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Mutex::try_lock_for), and [`Error::Timeout`] if the lock was held until the end of the
    /// wait. After each error `f` did not run.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let ran = locks.mutex("invoices").run(Duration::from_secs(5), |lease| {
    ///     // … send the invoices, with `lease.fence()` …
    ///     17
    /// })?;
    /// println!("{} invoices were sent", ran.value);
    /// if let Some(lost) = ran.lost {
    ///     println!("check them: {lost}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let acquire = |wait| {
            let held = self.handle.acquire(LockKind::Mutex, 1, wait);
            held.map(LockGuard::new)
        };
        self.handle.run(wait, acquire, LockGuard::deref, f)
    }
}

options!(Mutex);
