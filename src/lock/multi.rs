//! The multi-lock: several mutexes, all or none.

use std::fmt;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::Result;
use crate::guard::{Lease, MultiGuard};
use crate::lock::{Handle, options, until};
use crate::name::{LockKey, Target};
use crate::script::Kind;
use crate::sync::Arc;

/// Several mutexes that are locked together: all of them or none.
///
/// One script takes them all, so nobody ever holds a part of what they wait for: sets that overlap cannot deadlock,
/// in whatever order their names are given, and while one name is held the others stay free for everybody. Who waits
/// is told when the name that kept it back comes free, in that name's queue and in turn, and takes the set if all of
/// it is free then. So under constant contention for several of its names a set can wait for long: where that
/// matters, lock one name.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let transfer = locks.multi(["account:7", "account:9"]);
/// let guard = transfer.lock()?;
/// for lease in guard.leases() {
///     println!("{} by {}", lease.name(), lease.fence());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    handle: Handle,
}

options!(MultiLock);

impl MultiLock {
    pub(crate) fn new<N: AsRef<str>>(
        engine: Arc<Engine>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let target = names
            .into_iter()
            .map(|name| LockKey::new(&engine.settings.prefix, name.as_ref()))
            .collect::<Result<Vec<_>>>()
            .and_then(Target::all);
        Self {
            handle: Handle::of(engine, target),
        }
    }

    /// Acquires all of them, waiting for as long as it takes.
    ///
    /// While blocked it is as [`Mutex::lock`](crate::Mutex::lock), and holds none of them.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub fn lock(&self) -> Result<MultiGuard> {
        self.handle.wait(Kind::Multi, 1).map(MultiGuard::new)
    }

    /// Acquires all of them if all are free. `None` means that one is held. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Acquires all of them, waiting for at most `wait`. `None` means that at the last answer one was held.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        let holding = self.handle.wait_for(Kind::Multi, 1, wait)?;
        Ok(holding.map(MultiGuard::new))
    }

    /// Acquires all of them, waiting until `deadline` at the latest.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](MultiLock::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard>> {
        self.try_lock_for(until(deadline))
    }

    /// Runs `f` under all of them, waiting for at most `wait`; as [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with).
    pub fn with<T>(&self, wait: Duration, f: impl FnOnce(&[Lease]) -> T) -> Result<T> {
        let call = |guard: &MultiGuard| f(guard.leases());
        self.handle.with(
            Kind::Multi,
            wait,
            MultiGuard::new,
            call,
            MultiGuard::release,
        )
    }
}
