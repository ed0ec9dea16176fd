//! The reentrant mutex: a mutex that its holding thread may lock again.
//!
//! Which locks a thread holds is known to that thread alone, in a list of its own. An entry holds on to nothing: it
//! ends with the last guard. So locking again takes no mutex and sends nothing, and no lock outlives its guards.

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Result};
use crate::guard::{Lease, ReentrantGuard};
use crate::lock::{Handle, Ran, debug, options, run, until};
use crate::message::Kind;
use crate::sync::{Arc, Weak};

/// A [`Mutex`](crate::Mutex) that the thread which holds it may lock again.
///
/// The thread's guards share one hold: locking again sends nothing, takes no longer than a look at the clock,
/// neither lengthens nor shortens the lease, whatever the handle says, and gives [`Error::Lost`] once the hold was
/// lost. The last guard to go releases. Other threads, also of this process, wait their turn.
///
/// It is the same lock as the mutex of its name, and excludes it; but only reentrant handles of one manager know of
/// each other on a thread.
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

/// One lock that this thread holds. The engine is told by its address, which is its own for as long as the hold
/// keeps it.
struct Held {
    engine: *const Engine,
    key: Arc<str>,
    hold: Weak<Lease>,
}

thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

impl ReentrantMutex {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Acquires the lock, waiting for as long as it takes; at once where this thread holds it. While blocked it is as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock), and [`Error::Lost`] where this thread has guards of it that have lost
    /// it.
    pub fn lock(&self) -> Result<ReentrantGuard> {
        match self.enter(|| self.handle.wait(Kind::Mutex, 1).map(Some))? {
            Some(guard) => Ok(guard),
            None => unreachable!("a wait without an end does not end with \"held\""),
        }
    }

    /// Acquires the lock if it is free, or this thread holds it. Blocks for one request at the most.
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantMutex::lock); nothing is retried.
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Acquires the lock, waiting for at most `wait`; as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantMutex::lock), but an outage ends with the wait: [`Error::Unavailable`].
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<ReentrantGuard>> {
        self.enter(|| self.handle.wait_for(Kind::Mutex, 1, wait))
    }

    /// Acquires the lock, waiting until `deadline` at the latest.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](ReentrantMutex::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<ReentrantGuard>> {
        self.try_lock_for(until(deadline))
    }

    /// Runs `f` under the lock, waiting for it for at most `wait`; as [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with); where this thread has lost the lock already, `f` never runs and it is
    /// [`Error::Lost`] too.
    pub fn with<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.run(wait, f)?.into_result()
    }

    /// Runs `f` under the lock, waiting for it for at most `wait`, and returns its result even if the lease was lost
    /// meanwhile; as [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run), and [`Error::Lost`] if this thread has lost the lock already.
    pub fn run<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let call = |guard: &ReentrantGuard| f(guard);
        if let Some(guard) = self.again()? {
            return Ok(run(guard, call, ReentrantGuard::release));
        }
        let acquire = |target: &_, until| self.handle.acquire(target, Kind::Mutex, 1, until);
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

    /// Another guard, where this thread has one.
    fn again(&self) -> Result<Option<ReentrantGuard>> {
        let key = self.handle.target()?.id();
        self.handle.check_cancelled()?;
        let engine = Arc::as_ptr(&self.handle.engine);
        let hold = HELD.try_with(|held| {
            let held = held.borrow();
            let held = held
                .iter()
                .find(|held| held.engine == engine && held.key == *key);
            held.and_then(|held| held.hold.upgrade())
        });
        // While the thread ends, it has no list any more, and none of its guards is known.
        let Some(hold) = hold.ok().flatten() else {
            return Ok(None);
        };
        if let Err(lost) = hold.check() {
            // In a forked child every hold reads lost, but a call is told the reason.
            self.handle.engine.check_open()?;
            return Err(lost);
        }
        if self.handle.engine.is_closed() {
            return Err(Error::Closed);
        }
        Ok(Some(ReentrantGuard::new(hold)))
    }

    /// This thread's first guard.
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
