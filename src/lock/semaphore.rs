//! The semaphore: a number of permits, among all processes.

use std::ops::Deref;
use std::time::{Duration, Instant};

use crate::engine::acquire::NotAcquired;
use crate::error::{Error, Result};
use crate::guard::{Lease, Permit};
use crate::lock::handle::{Handle, Ran};
use crate::lock::methods::{options, ways};
use crate::net::deadline::Wait;
use crate::wire::{ALL, LockKind};

/// A lock with a number of permits, for all threads of all processes that use the same Redis.
///
/// A guard holds one or more permits. They are a lease: the permits of a process that was killed come back when that
/// lease ends. Several permits are acquired at once or not at all, so no two callers wait for each other's part. All
/// processes should give a semaphore the same number of permits. [`LockManager::semaphore`](crate::LockManager::semaphore)
/// says what happens while the number changes.
///
/// Processes are served first come, first served. No process overtakes the first that waits, even if the first waits
/// for more permits than are free. There is one exception: for one [`quantum`](crate::Builder::quantum), a process
/// keeps a permit among its own threads. The next thread behind the one that asks Redis gets it in memory, if it wants
/// as many permits.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let downloads = locks.semaphore("downloads", 8);
/// let permit = downloads.acquire()?;
/// // … one of at most eight, on all machines together …
/// drop(permit);
/// let half = downloads.acquire_many(4)?;
/// assert_eq!(half.count(), 4);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(mut handle: Handle, permits: u32) -> Self {
        if permits == 0 || permits == ALL {
            let reason = format!("{permits} is not between 1 and 4294967294");
            handle.refuse(Error::config("permits", reason));
        }
        Self { handle, permits }
    }

    /// Acquires `n` permits, and waits as `wait` says.
    fn acquire_units(&self, wait: Wait, n: u32) -> Result<Permit, NotAcquired> {
        self.handle.target()?;
        if !(1..=self.permits).contains(&n) {
            let reason = format!(
                "{n} of {} permits: at least 1 and at most all can be acquired",
                self.permits
            );
            return Err(Error::config("n", reason).into());
        }
        let kind = LockKind::Semaphore {
            total_units: self.permits,
        };
        self.handle.acquire(kind, n, wait).map(Permit::new)
    }
}

ways! {
    /// Acquires a permit. Blocks until it is granted, as [`Mutex::lock`](crate::Mutex::lock) does.
    Semaphore => Permit: acquire, try_acquire, try_acquire_for, try_acquire_until, with_permit, run_permit;
    what: "a permit", lock: "downloads",
    errors: ".";
    leases: Permit::deref => Lease;
    |self, wait| self.acquire_units(wait, 1)
}

ways! {
    /// Acquires `n` permits together. Blocks until they are granted, as [`Mutex::lock`](crate::Mutex::lock) does.
    Semaphore => Permit:
        acquire_many, try_acquire_many, try_acquire_many_for, try_acquire_many_until, with_permits, run_permits;
    what: "`n` permits together", lock: "downloads",
    errors: ", and [`Error::Config`]: `n` is 0, or more than the permits of the semaphore. Nothing was sent.";
    leases: Permit::deref => Lease;
    |self, wait, n: u32 = "4"| self.acquire_units(wait, n)
}

options!(Semaphore, permits);
