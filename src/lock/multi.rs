//! The multi-lock: several mutexes, all or none.
//!
//! One request acquires the names that one script can touch, all or none. On one server that is all names. On a
//! cluster it is the names of one slot: then the slots' names are acquired one after the other, in the order of the
//! slots. The set holds the names of earlier slots meanwhile. Every process uses that order. Within a slot, a set
//! keeps a name only while it waits for a later one. So there is no circle of waits. A set gives up earlier names only
//! if it is a try, times out, or fails, or if one of them is lost.
//!
//! The wait for a later slot has no limit, so an earlier name may be lost meanwhile. The set looks at all of them before
//! it returns a guard. It asks no server: each name has a lease, which the renewal thread renews during the wait, and
//! its deadline is by this process's clock. A lease that has not ended is exclusive, as that of any other guard. If one
//! has ended, the set releases all names, and begins again.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Time;
use crate::engine::Engine;
use crate::engine::call::NotAcquired;
use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Failure, FailureKind, Lost, Outcome, Result};
use crate::guard::{Lease, MultiGuard};
use crate::lock::{Handle, Ran, Unfit, debug, options, until, within_limit, without_limit};
use crate::message::LockKind;
use crate::name::{LockKey, Target};
use crate::sync::Arc;

/// Several mutexes that are locked together: all of them or none.
///
/// One script acquires them all. So sets that overlap cannot deadlock, in whatever order their names are given. While
/// one name is held, the free names stay free for others.
///
/// A set of one name is like a [`Mutex`](crate::Mutex) of that name: threads of this process hand it over in memory.
///
/// A set that waits stands in the queue of the first name that is held, by the byte order of the names. When its turn
/// comes there, it acquires all names if they are free. If another name is held, the order decides:
///
/// | the name that is held | the set |
/// | --- | --- |
/// | comes after the name that the set was handed | keeps the name that it was handed, and is the next in turn at the held one |
/// | comes before the name that the set was handed | hands that name on at once, and is the next in turn at the held one |
///
/// So no two sets keep what the other waits for.
///
/// Processes that hold the names for long do not starve a set. The set waits its turn once. Then it waits for at most
/// two holds of each further name, and for two more for each set that came to the front there before it. Sets do not
/// starve a waiter either: if a set at the front was given a name before other waiters, the first of these waiters is
/// next.
///
/// On a [quorum](crate::LockManager::quorum) a set is handed no name, and keeps none while it waits. So there its wait
/// has no bound if other processes hold two of its names most of the time.
///
/// On a [cluster](crate::LockManager::cluster) one script acquires the names of one slot, and slots are acquired one after
/// the other, in the order of their numbers. So a set that waits keeps the names of earlier slots, and a process that dies
/// meanwhile delays the others by a lease. A try sends one request for each slot. Names with the same `{tag}` share a slot,
/// and behave as on a single server.
///
/// While a set keeps a name, no process uses that name. The set keeps it for as long as the other name is held. That
/// has no limit: the key of another client may never expire. A wait with a limit
/// ([`try_lock_for`](MultiLock::try_lock_for)) gives the name back when the wait ends. If the waiting process dies,
/// that name is free after at most 1 s, or twice [`io_timeout`](crate::Builder::io_timeout) if that is longer.
///
/// A thread may hold a name of a set by another guard, and wait for a second name of that set. Then it must take the
/// names in the order of their bytes, or on a cluster in that of their slots. In another order, the thread and the set can wait for each other until one of
/// them gives up.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let transfer = locks.multi(["account:7", "account:9"]);
/// let guard = transfer.lock()?;
/// for lease in guard.leases() {
///     println!("{} has fence {}", lease.name(), lease.fence());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    /// The handle to all names.
    handle: Handle,
    /// The names that one request acquires together, in the order of the requests.
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

    /// Acquires all names. Blocks until they are granted, as [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// A blocked call may keep some of the names: see [`MultiLock`]. A thread that holds one of the names already
    /// waits for itself.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(transfer: &leasehold::MultiLock) -> leasehold::Result<()> {
    /// let guard = transfer.lock()?;
    /// // … the transfer …
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn lock(&self) -> Result<MultiGuard> {
        without_limit(self.acquire(Some(Time::NEVER))).map(MultiGuard::new)
    }

    /// Acquires all names if all are free. Returns `None` if one is held. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(transfer: &leasehold::MultiLock) -> leasehold::Result<()> {
    /// if let Some(guard) = transfer.try_lock()? {
    ///     guard.release()?; // after the transfer
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Acquires all names within `wait`. Returns `None` if one was held at Redis's last reply. Blocks as
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(transfer: &leasehold::MultiLock) -> leasehold::Result<()> {
    /// if let Some(guard) = transfer.try_lock_for(Duration::from_secs(2))? {
    ///     guard.release()?; // after the transfer
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        let held = within_limit(self.acquire(self.handle.until(wait)))?;
        Ok(held.map(MultiGuard::new))
    }

    /// Acquires all names before `deadline`. Returns `None` if one was held at Redis's last reply. Blocks as
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](MultiLock::try_lock_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # fn example(transfer: &leasehold::MultiLock) -> leasehold::Result<()> {
    /// let guard = transfer.try_lock_until(Instant::now() + Duration::from_secs(2))?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard>> {
        self.try_lock_for(until(deadline))
    }

    /// Runs `f` under all names, and releases them. Waits for the names for at most `wait`. Returns what
    /// [`Mutex::with`](crate::Mutex::with) returns.
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(transfer: &leasehold::MultiLock) -> leasehold::Result<()> {
    /// let fences = transfer.with(Duration::from_secs(2), |leases| (leases[0].fence(), leases[1].fence()))?;
    /// # let _ = fences;
    /// # Ok(()) }
    /// ```
    pub fn with<T>(&self, wait: Duration, f: impl FnOnce(&[Lease]) -> T) -> Result<T> {
        self.run(wait, f)?.into_result()
    }

    /// Runs `f` under all names, and releases them. Returns the result of `f` even if a name was lost meanwhile, as
    /// [`Mutex::run`](crate::Mutex::run) does. Waits for the names for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(transfer: &leasehold::MultiLock) -> leasehold::Result<()> {
    /// let ran = transfer.run(Duration::from_secs(2), |leases| leases.len())?;
    /// println!("{} names, lost: {:?}", ran.value, ran.lost);
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, wait: Duration, f: impl FnOnce(&[Lease]) -> T) -> Result<Ran<T>> {
        let acquire = |_: &_, until| self.acquire(until);
        let call = |guard: &MultiGuard| f(guard.leases());
        self.handle
            .run(wait, acquire, MultiGuard::new, call, MultiGuard::release)
    }

    /// Acquires the names of one slot after the other. If that fails, or an earlier name is lost, all names are
    /// released. After a loss it begins again, unless this is a try or the time is over.
    fn acquire(&self, until: Option<Time>) -> Result<Vec<GuardInner>, NotAcquired> {
        self.handle.target()?;
        loop {
            let groups = self.groups.iter();
            let held = groups.map(|group| {
                // A single name is an ordinary mutex, which the threads of this process hand over in memory.
                let kind = match group.keys() {
                    [_] => LockKind::Mutex,
                    _ => LockKind::Multi,
                };
                self.handle.acquire(group, kind, 1, until)
            });
            let held = held.collect::<Result<Vec<_>, _>>()?;
            // The last group was granted just now, and is returned like any other lock.
            let earlier = &held[..held.len().saturating_sub(1)];
            let Some(lost) = earlier.iter().find_map(|guard| guard.status().err()) else {
                return Ok(held);
            };
            if until.is_none_or(|until| self.handle.engine.now() >= until) {
                return Err(lost_before_the_others(&lost).into());
            }
        }
    }
}

/// Returns the error of a set that has lost a name before it had the others.
fn lost_before_the_others(lost: &Lost) -> Error {
    let words = format!("a name was lost before the others were acquired: {lost}");
    Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
        .into_error(Some(&lost.name))
}
