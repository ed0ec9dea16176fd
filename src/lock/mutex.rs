//! The mutex: one guard at a time, over all processes.

use std::fmt;
use std::time::{Duration, Instant};

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::guard::{Lease, LockGuard};
use crate::lock::{Handle, Ran, debug, options, until};
use crate::message::Kind;

/// A lock that one guard holds at a time, among all threads of all processes that use the same Redis.
///
/// A handle is cheap to clone and holds no lock by itself. In Redis it is the plain string that
/// `SET name owner NX PX lease` makes, so it excludes other clients that lock this way.
///
/// Threads are served first come, first served, and so are processes; while other processes wait, a process
/// passes the lock among its own threads for one [`quantum`](crate::Builder::quantum) at a time.
///
/// There is no poisoning: a thread that panics releases the lock. A thread that locks a mutex it holds already
/// waits for itself. A client of another kind that polls is outside of the queue, and can starve.
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
///     println!("in, as number {}", guard.fence());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    pub(super) handle: Handle,
}

options!(Mutex);
debug!(Mutex);

impl Mutex {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Acquires the lock, waiting for as long as it takes.
    ///
    /// While blocked the thread is parked: woken by the thread or process before it, and at the latest once a
    /// second where it is the one that asks Redis for this process. Once it waits, a server that is out of reach
    /// is retried until [`outage_limit`](crate::Builder::outage_limit).
    ///
    /// # Guarantees
    ///
    /// As on [the front page](crate#what-it-promises).
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`]: nothing was sent.
    /// * [`Error::Config`]: a setting cannot be used, and nothing was sent; or the server does not have the database.
    /// * [`Error::Unavailable`]: the first request failed, or an outage lasted for `outage_limit`.
    /// * [`Error::NotReplicated`]: the same, if too few [`replicas`](crate::Builder::replicas) confirmed the grant.
    /// * [`Error::Denied`], [`Error::WrongType`], [`Error::Unsupported`], [`Error::Protocol`]: at once.
    /// * [`Error::Closed`]: the manager was closed.
    /// * [`Error::Cancelled`]: the handle's [token](crate::Cancel) was cancelled.
    pub fn lock(&self) -> Result<LockGuard> {
        self.handle.wait(Kind::Mutex, 1).map(LockGuard::new)
    }

    /// Acquires the lock if it is free. `None` means that it is held. If another thread of this process holds it, no
    /// request is sent.
    ///
    /// Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`lock`](Mutex::lock); nothing is retried.
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Acquires the lock, waiting for at most `wait`. `None` means that the last answer was that it is held.
    /// A request that the end of the wait cuts short is no answer: then the answer before it counts.
    ///
    /// A wait of zero is [`try_lock`](Mutex::try_lock); one of `Duration::MAX` has no end. The last request is given
    /// 100 ms at the least, so the call may end later by as much, or twice that where a connection is to be made.
    ///
    /// # Errors
    ///
    /// As [`lock`](Mutex::lock), but an outage ends with the wait: [`Error::Unavailable`].
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>> {
        let guard_inner = self.handle.wait_for(Kind::Mutex, 1, wait)?;
        Ok(guard_inner.map(LockGuard::new))
    }

    /// Acquires the lock, waiting until `deadline` at the latest. `None` means that the last answer was that it
    /// is held.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Mutex::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>> {
        self.try_lock_for(until(deadline))
    }

    /// Runs `f` under the lock, waiting for it for at most `wait`, and releases it afterwards.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: `f` ran, but the lease ended before it did.
    /// * Any other error, such as [`Error::Timeout`]: `f` never ran.
    ///
    /// An error of `f` itself is part of what it returns: `Ok(Err(…))`. If the lease was lost, the result of `f` is
    /// dropped: use [`run`](Mutex::run) if it matters then.
    pub fn with<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.run(wait, f)?.into_result()
    }

    /// Runs `f` under the lock, waiting for it for at most `wait`, and returns its result even if the lease was lost
    /// meanwhile.
    ///
    /// It is [`with`](Mutex::with) for a closure whose result matters after a loss too: its work was done, and the
    /// loss stands beside the result.
    ///
    /// # Errors
    ///
    /// Any error, such as [`Error::Timeout`]: `f` never ran.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let ran = locks.mutex("invoices").run(Duration::from_secs(5), |lease| {
    ///     // … the work, by the number `lease.fence()` …
    ///     17
    /// })?;
    /// println!("{} invoices were sent", ran.value);
    /// if let Some(lost) = ran.lost {
    ///     println!("check them: {lost}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let acquire = |target: &_, until| self.handle.acquire(target, Kind::Mutex, 1, until);
        let call = |guard: &LockGuard| f(guard);
        self.handle
            .run(wait, acquire, LockGuard::new, call, LockGuard::release)
    }
}
