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

use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::engine::acquire::NotAcquired;
use crate::error::{Error, Failure, FailureKind, Lost, Result};
use crate::guard::{Lease, MultiGuard};
use crate::lock::handle::{Handle, Ran};
use crate::lock::methods::{options, ways};
use crate::name::{LockKey, Target, joined};
use crate::net::deadline::Wait;
use crate::sys::Arc;
use crate::wire::LockKind;

/// Several mutexes that are locked together: all of them or none.
///
/// One script acquires them all, so sets that overlap cannot deadlock, in whatever order their names are given. While one
/// name is held, the free names stay free for others.
///
/// A set has at most 1,000 names: one script acquires them, and the server serves nobody else meanwhile. With more, each
/// call returns [`Error::Config`], and nothing is sent.
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
/// While a set keeps a name, no process uses that name. The set keeps it for as long as the other name is held, which may
/// be without end, as the key of another client may never expire. A wait with a limit
/// ([`try_lock_for`](MultiLock::try_lock_for)) gives the name back when the wait ends. If the waiting process dies,
/// that name is free after at most 1 s, or twice [`io_timeout`](crate::Builder::io_timeout) if that is longer.
///
/// A thread may hold a name of a set by another guard, and wait for a second name of that set. Then it must take the
/// names in the order of their bytes, or on a cluster in that of their slots. In another order, the thread and the set can
/// wait for each other until one of them gives up.
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

impl MultiLock {
    pub(crate) fn new<N: AsRef<str>>(
        engine: Arc<Engine>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let names: Vec<N> = names.into_iter().collect();
        let target = names
            .iter()
            .map(|name| LockKey::new(&engine.client.settings.prefix, name.as_ref()))
            .collect::<Result<Vec<_>>>()
            .and_then(Target::all)
            .map_err(|error| {
                let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
                (error, joined(&names).into())
            });
        let groups = match &target {
            Ok(all) if engine.client.has_slots() => all.by_slot(),
            Ok(all) => vec![all.clone()],
            Err(_) => Vec::new(),
        };
        Self {
            handle: Handle::of(engine, target),
            groups,
        }
    }

    /// Acquires the names of one slot after the other. If that fails, or an earlier name is lost, all names are
    /// released. After a loss it begins again, unless this is a try or the time is over.
    fn acquire(&self, wait: Wait) -> Result<MultiGuard, NotAcquired> {
        // Without good names there is no group, and nobody to return the error.
        self.handle.target()?;
        let mut part = self.handle.clone();
        loop {
            let mut held = Held(Vec::with_capacity(self.groups.len()));
            for group in &self.groups {
                // A single name is an ordinary mutex, which the threads of this process hand over in memory.
                let kind = match group.keys() {
                    [_] => LockKind::Mutex,
                    _ => LockKind::Multi,
                };
                part.target = Ok(group.clone());
                held.0.push(part.acquire(kind, 1, wait)?);
            }
            // The last group was granted just now, and is returned like any other lock.
            let earlier = &held.0[..held.0.len().saturating_sub(1)];
            let Some(lost) = earlier.iter().find_map(|guard| guard.status().err()) else {
                return Ok(MultiGuard::new(std::mem::take(&mut held.0)));
            };
            if wait == Wait::Try || wait.is_over(self.handle.engine.client.now()) {
                return Err(lost_before_the_others(&lost).into());
            }
        }
    }
}

ways! {
    /// Acquires all names. Blocks until they are granted, as [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// A blocked call may keep some of the names: see [`MultiLock`]. A thread that holds one of the names already
    /// waits for itself.
    MultiLock => MultiGuard: lock, try_lock, try_lock_for, try_lock_until, with, run;
    what: "all names", lock: "transfer", errors: ".";
    leases: MultiGuard::leases => [Lease];
    |self, wait| self.acquire(wait)
}

options!(MultiLock);

/// The names that a set has so far. If it gives them up, nobody has held the set, so nobody waits for its `min_hold`.
struct Held(Vec<Lease>);

impl Drop for Held {
    fn drop(&mut self) {
        for lease in &self.0 {
            lease.process_lease.forget_min_hold();
        }
    }
}

/// Returns the error of a set that has lost a name before it had the others.
fn lost_before_the_others(lost: &Lost) -> Error {
    let words = format!("a name was lost before the others were acquired: {lost}");
    Failure::not_executed(FailureKind::Unavailable, words).into_error(Some(&lost.name))
}
