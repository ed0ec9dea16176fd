//! The reentrant mutex: a mutex that its holding thread may lock again.
//!
//! Each thread lists the locks that it holds. Only the thread itself reads its list, so locking again takes no mutex
//! and sends nothing. An entry of the list does not keep its lock alive: the lock ends with the last guard.

use std::cell::RefCell;
use std::ops::Deref;
use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::engine::Engine;
use crate::engine::acquire::NotAcquired;
use crate::error::{Error, Result};
use crate::guard::{Lease, ReentrantGuard};
use crate::lock::handle::{Handle, Ran};
use crate::lock::methods::{options, ways};
use crate::net::deadline::Wait;
use crate::sys::{Arc, Weak};
use crate::wire::LockKind;

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
    pub(crate) handle: Handle,
}

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
    /// Returns another guard if this thread has one. Otherwise acquires the lock, and waits as `wait` says.
    fn acquire(&self, wait: Wait) -> Result<ReentrantGuard, NotAcquired> {
        if let Some(guard) = self.again()? {
            return Ok(guard);
        }
        let first = self.handle.acquire(LockKind::Mutex, 1, wait)?;
        Ok(self.first(first))
    }

    /// Returns another guard if this thread has one.
    fn again(&self) -> Result<Option<ReentrantGuard>> {
        let key = self.handle.target()?.id();
        let token = self.handle.cancel.as_ref();
        if token.is_some_and(Cancel::is_cancelled) {
            return Err(Error::Cancelled);
        }
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
            // In a forked child every hold is lost, but the call must return `Forked`.
            self.handle.engine.client.check_open()?;
            return Err(lost);
        }
        if self.handle.engine.client.is_closed() {
            return Err(Error::Closed);
        }
        Ok(Some(ReentrantGuard::new(hold)))
    }

    /// Makes this thread's first guard, and lists it.
    fn first(&self, lease: Lease) -> ReentrantGuard {
        let hold = Arc::new(lease);
        if let Ok(target) = &self.handle.target {
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

ways! {
    /// Acquires the lock. Returns at once if this thread holds it. Otherwise blocks until the lock is granted, as
    /// [`Mutex::lock`](crate::Mutex::lock) does.
    ReentrantMutex => ReentrantGuard: lock, try_lock, try_lock_for, try_lock_until, with, run;
    what: "the lock", lock: "account",
    errors: ", and [`Error::Lost`] if this thread has guards of the lock, but had lost it before the call.";
    leases: ReentrantGuard::deref => Lease;
    |self, wait| self.acquire(wait)
}

options!(ReentrantMutex);
