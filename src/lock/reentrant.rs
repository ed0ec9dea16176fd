//! The reentrant mutex: a mutex that its holding thread may lock again.
//!
//! Each thread lists the locks that it holds. Only the thread itself reads its list, so locking again takes no mutex
//! and sends nothing. An entry of the list does not keep its lock alive: the lock ends with the last guard.

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Result};
use crate::guard::{Lease, ReentrantGuard};
use crate::lock::{Handle, Ran, debug, options, run, until};
use crate::message::LockKind;
use crate::sync::{Arc, Weak};

/// A [`Mutex`](crate::Mutex) that a thread may lock again while it holds it.
///
/// The guards of a thread share one hold on the lock. Locking again reads the clock, and sends nothing. It changes
/// nothing about the lease, whatever the options of the handle are. If the hold was lost, locking again returns
/// [`Error::Lost`]. The last guard that ends releases the lock. Other threads wait for that, also those of this
/// process.
///
/// It is the same lock as the mutex of its name, and excludes that. Only the reentrant handles of one manager know the
/// holds of a thread.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let account = locks.reentrant_mutex("account:7");
/// let outer = account.lock()?;
/// let inner = account.lock()?; // no request: this thread holds it
/// assert_eq!(inner.fence(), outer.fence());
/// drop(outer);
/// inner.release()?; // the last one releases
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ReentrantMutex {
    handle: Handle,
}

options!(ReentrantMutex);
debug!(ReentrantMutex);

/// One lock that this thread holds.
struct Held {
    /// The address of the engine. No other engine has that address while the hold keeps this one.
    engine: *const Engine,
    key: Arc<str>,
    hold: Weak<Lease>,
}

impl Held {
    fn is_of(&self, key: &Arc<str>) -> bool {
        // Most often the same handle locks again.
        Arc::ptr_eq(&self.key, key) || self.key == *key
    }
}

thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

impl ReentrantMutex {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Acquires the lock. Returns at once if this thread holds it. Otherwise blocks until the lock is granted, as
    /// [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock), and [`Error::Lost`]: this thread has guards of the lock, but the lock
    /// was lost.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(account: &leasehold::ReentrantMutex) -> leasehold::Result<()> {
    /// let (outer, inner) = (account.lock()?, account.lock()?);
    /// # drop((outer, inner));
    /// # Ok(()) }
    /// ```
    pub fn lock(&self) -> Result<ReentrantGuard> {
        match self.enter(|| {
            self.handle
                .acquire_without_limit(LockKind::Mutex, 1)
                .map(Some)
        })? {
            Some(guard) => Ok(guard),
            None => unreachable!("a wait without a time limit does not end while the lock is held"),
        }
    }

    /// Acquires the lock if it is free, or if this thread holds it. Returns `None` if another thread or process holds
    /// it. Blocks for at most one request.
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantMutex::lock). No error is retried.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(account: &leasehold::ReentrantMutex) -> leasehold::Result<()> {
    /// if let Some(guard) = account.try_lock()? {
    ///     guard.release()?; // after the work
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Acquires the lock within `wait`. Returns `None` if it was held at Redis's last reply. Blocks as
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does, unless this thread holds the lock.
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantMutex::lock), but transient errors are retried until the end of the wait instead of for
    /// `outage_limit`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(account: &leasehold::ReentrantMutex) -> leasehold::Result<()> {
    /// if let Some(guard) = account.try_lock_for(Duration::from_secs(2))? {
    ///     guard.release()?; // after the work
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<ReentrantGuard>> {
        self.enter(|| self.handle.acquire_within(LockKind::Mutex, 1, wait))
    }

    /// Acquires the lock before `deadline`. Returns `None` if it was held at Redis's last reply. Blocks as
    /// [`try_lock_for`](ReentrantMutex::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](ReentrantMutex::try_lock_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # fn example(account: &leasehold::ReentrantMutex) -> leasehold::Result<()> {
    /// let guard = account.try_lock_until(Instant::now() + Duration::from_secs(2))?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<ReentrantGuard>> {
        self.try_lock_for(until(deadline))
    }

    /// Runs `f` under the lock, and ends the guard. Waits for the lock for at most `wait`. Returns what
    /// [`Mutex::with`](crate::Mutex::with) returns.
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with). If this thread has lost the lock before, it is [`Error::Lost`], and `f`
    /// does not run.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(account: &leasehold::ReentrantMutex) -> leasehold::Result<()> {
    /// let fence = account.with(Duration::from_secs(2), |lease| lease.fence())?;
    /// # let _ = fence;
    /// # Ok(()) }
    /// ```
    pub fn with<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.run(wait, f)?.into_result()
    }

    /// Runs `f` under the lock, and ends the guard. Returns the result of `f` even if the lock was lost meanwhile, as
    /// [`Mutex::run`](crate::Mutex::run) does. Waits for the lock for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run), and [`Error::Lost`]: this thread has lost the lock before.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(account: &leasehold::ReentrantMutex) -> leasehold::Result<()> {
    /// let ran = account.run(Duration::from_secs(2), |lease| lease.fence())?;
    /// println!("fence {}, lost: {:?}", ran.value, ran.lost);
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let call = |guard: &ReentrantGuard| f(guard);
        if let Some(guard) = self.again()? {
            return Ok(run(guard, call, ReentrantGuard::release));
        }
        let acquire = |target: &_, until| self.handle.acquire(target, LockKind::Mutex, 1, until);
        let first = |guard_inner| self.first(guard_inner);
        self.handle
            .run(wait, acquire, first, call, ReentrantGuard::release)
    }

    fn enter(
        &self,
        acquire: impl FnOnce() -> Result<Option<GuardInner>>,
    ) -> Result<Option<ReentrantGuard>> {
        if let Some(guard) = self.again()? {
            return Ok(Some(guard));
        }
        Ok(acquire()?.map(|guard_inner| self.first(guard_inner)))
    }

    /// Returns another guard if this thread has one.
    fn again(&self) -> Result<Option<ReentrantGuard>> {
        let key = self.handle.target()?.id();
        self.handle.check_cancelled()?;
        let engine = Arc::as_ptr(&self.handle.engine);
        let hold = HELD.try_with(|held| {
            let held = held.borrow();
            let held = held
                .iter()
                .find(|held| held.engine == engine && held.is_of(key));
            held.and_then(|held| held.hold.upgrade())
        });
        // A thread that ends has no list any more. Then its guards are unknown.
        let Some(hold) = hold.ok().flatten() else {
            return Ok(None);
        };
        if let Err(lost) = hold.check() {
            // In a forked child every hold is lost, but the call must return `Closed`.
            self.handle.engine.check_open()?;
            return Err(lost);
        }
        if self.handle.engine.is_closed() {
            return Err(Error::Closed);
        }
        Ok(Some(ReentrantGuard::new(hold)))
    }

    /// Makes this thread's first guard, and lists it.
    fn first(&self, guard_inner: GuardInner) -> ReentrantGuard {
        let hold = Arc::new(Lease::new(guard_inner));
        if let Ok(target) = self.handle.target() {
            let entry = Held {
                engine: Arc::as_ptr(&self.handle.engine),
                key: Arc::clone(target.id()),
                hold: Arc::downgrade(&hold),
            };
            HELD.try_with(|held| {
                let mut all = held.borrow_mut();
                all.retain(|held| held.hold.strong_count() > 0);
                all.push(entry);
            })
            .ok();
        }
        ReentrantGuard::new(hold)
    }
}
