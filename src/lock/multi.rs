//! The multi-lock: several mutexes, all or none.
//!
//! Names that one script can touch are one group, taken all or none by one request. Where the topology keeps some
//! apart (the slots of a cluster), there are several groups, and these are taken one after the other, holding those
//! before, in the order of their slots. That order is everybody's, and within a slot a set keeps names only while it
//! waits for one after them, so there is no circle of waits. A set gives names up only at a try, a timeout or a failure.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Time;
use crate::engine::Engine;
use crate::engine::guard_inner::GuardInner;
use crate::engine::request::NotAcquired;
use crate::error::Result;
use crate::guard::{Lease, MultiGuard};
use crate::lock::{Handle, Ran, Unfit, debug, options, until, within_limit, without_limit};
use crate::message::Kind;
use crate::name::{LockKey, Target};
use crate::sync::Arc;

/// Several mutexes that are locked together: all of them or none.
///
/// One script takes them all: sets that overlap cannot deadlock, in whatever order their names are given. While one name
/// is held, the free ones stay free for everybody. A waiting set stands in the queue of the first name, in the order of
/// their bytes, that is held.
///
/// When its turn comes there, it takes the set if all of it is free. If a name further on in that order is held, the set
/// keeps the name that it was handed, and is the next in turn at the other. If a name before it is held, the set hands
/// its name on at once, and is the next in turn at the other. So no two sets keep what the other waits for.
///
/// A set is not starved by processes that hold its names for long. It waits its turn once, and then for at most two holds
/// of each further name, and two more for each set that came to the front there before it. Nor do sets starve a waiter: if
/// a set at the front was given a name past other waiters, the first of these is next.
///
/// While a set keeps a name, nobody uses that name. The set keeps it for as long as the other name is held, without a
/// limit: also if the other name belongs to a client whose key never expires. A wait with a limit
/// ([`try_lock_for`](MultiLock::try_lock_for)) gives the name back when the wait ends. If the waiting process dies, that
/// name is free after at most the pickup window: 1 s, or twice [`io_timeout`](crate::Builder::io_timeout).
///
/// A thread that holds a name of a set by another guard, and waits for a second name of that set, must take them in the
/// order of their bytes. In another order the thread and the set can wait for each other until one of them gives up.
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
    /// Of all the names.
    handle: Handle,
    /// Those that are taken by one request each, in order.
    groups: Vec<Target>,
}

options!(MultiLock);
debug!(MultiLock);

impl MultiLock {
    pub(crate) fn new<N: AsRef<str>>(
        engine: Arc<Engine>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let names: Vec<N> = names.into_iter().collect();
        let target = names
            .iter()
            .map(|name| LockKey::new(&engine.settings.prefix, name.as_ref()))
            .collect::<Result<Vec<_>>>()
            .and_then(Target::all)
            .map_err(|error| Unfit {
                error,
                given: {
                    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
                    names.join(" + ").into()
                },
            });
        let groups = match &target {
            Ok(all) if engine.has_slots() => all.by_slot(),
            Ok(all) => vec![all.clone()],
            Err(_) => Vec::new(),
        };
        Self {
            handle: Handle::of(engine, target),
            groups,
        }
    }

    /// Acquires all of them, waiting for as long as it takes.
    ///
    /// While blocked it is as [`Mutex::lock`](crate::Mutex::lock), and may keep some of the names, as [`MultiLock`] tells. A
    /// thread that holds one of them already waits for itself.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub fn lock(&self) -> Result<MultiGuard> {
        without_limit(self.acquire(Some(Time::NEVER))).map(MultiGuard::new)
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
        let held = within_limit(self.acquire(self.handle.until(wait)))?;
        Ok(held.map(MultiGuard::new))
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
        self.run(wait, f)?.into_result()
    }

    /// Runs `f` under all of them, waiting for at most `wait`, and returns its result even if one was lost meanwhile; as
    /// [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    pub fn run<T>(&self, wait: Duration, f: impl FnOnce(&[Lease]) -> T) -> Result<Ran<T>> {
        let acquire = |_: &_, until| self.acquire(until);
        let call = |guard: &MultiGuard| f(guard.leases());
        self.handle
            .run(wait, acquire, MultiGuard::new, call, MultiGuard::release)
    }

    /// Acquires one group of names after the other. If one fails, those before it are dropped, and so released.
    fn acquire(&self, until: Option<Time>) -> Result<Vec<GuardInner>, NotAcquired> {
        self.handle.target()?;
        let groups = self.groups.iter();
        groups
            .map(|group| self.handle.acquire(group, Kind::Multi, 1, until))
            .collect()
    }
}
