//! The semaphore: so many permits, over all processes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Result};
use crate::guard::{Lease, Permit};
use crate::lock::{Handle, Ran, options, until};
use crate::message::{ALL, Kind};

/// A lock of so many permits, which any number of threads of all processes hold some of.
///
/// Permits are leases: those of a process that was killed come back after the lease. Processes are served first
/// come, first served, and who wants many at once is not overtaken for good by those who want few: nothing is given
/// past the first that waits, but what a process passes among its own threads for a
/// [`quantum`](crate::Builder::quantum) at a time: to the one that waits longest of those that have not asked Redis. Several permits are taken at once or not at all, so no two askers wait for
/// each other's half.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let downloads = locks.semaphore("downloads", 8);
/// let permit = downloads.acquire()?;
/// // … one of at most eight, over all machines …
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

options!(Semaphore);

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = self.handle.debug("Semaphore", f);
        debug
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

impl Semaphore {
    pub(crate) fn new(mut handle: Handle, permits: u32) -> Self {
        if permits == 0 || permits == ALL {
            let reason = format!("{permits} is not between 1 and 4294967294");
            handle.refuse(Error::config("permits", reason));
        }
        Self { handle, permits }
    }

    /// Acquires a permit, waiting for as long as it takes.
    ///
    /// While blocked it is as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock), and [`Error::PermitsDiffer`] where others use the semaphore with
    /// another number of permits at this time.
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1)
    }

    /// Acquires a permit if one is to be had without a wait. `None` means that none is. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire); nothing is retried.
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.try_acquire_many(1)
    }

    /// Acquires a permit, waiting for at most `wait`. `None` means that none was to be had.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire), but an outage ends with the wait: [`Error::Unavailable`].
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>> {
        self.try_acquire_many_for(1, wait)
    }

    /// Acquires a permit, waiting until `deadline` at the latest. `None` means that the last answer was that none is free.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Semaphore::try_acquire_for).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Permit>> {
        self.try_acquire_many_until(1, deadline)
    }

    /// Runs `f` with a permit, waiting for at most `wait`; as [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with), and [`Error::PermitsDiffer`].
    pub fn with_permit<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.with_permits(1, wait, f)
    }

    /// Runs `f` with a permit, waiting for at most `wait`, and returns its result even if the lease was lost meanwhile; as
    /// [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run), and [`Error::PermitsDiffer`].
    pub fn run_permit<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        self.run_permits(1, wait, f)
    }

    /// Acquires `n` permits together, waiting for as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire), and [`Error::Config`] where `n` is 0 or more than there are.
    pub fn acquire_many(&self, n: u32) -> Result<Permit> {
        self.check(n)?;
        self.handle.wait(self.kind(), n).map(Permit::new)
    }

    /// Acquires `n` permits together if they are to be had without a wait.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many); nothing is retried.
    pub fn try_acquire_many(&self, n: u32) -> Result<Option<Permit>> {
        self.try_acquire_many_for(n, Duration::ZERO)
    }

    /// Acquires `n` permits together, waiting for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many), but an outage ends with the wait: [`Error::Unavailable`].
    pub fn try_acquire_many_for(&self, n: u32, wait: Duration) -> Result<Option<Permit>> {
        self.check(n)?;
        let guard_inner: Option<GuardInner> = self.handle.wait_for(self.kind(), n, wait)?;
        Ok(guard_inner.map(Permit::new))
    }

    /// Acquires `n` permits together, waiting until `deadline` at the latest. `None` means that the last answer was that too
    /// few are free.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many_for`](Semaphore::try_acquire_many_for).
    pub fn try_acquire_many_until(&self, n: u32, deadline: Instant) -> Result<Option<Permit>> {
        self.try_acquire_many_for(n, until(deadline))
    }

    /// Runs `f` with `n` permits, waiting for at most `wait`; as [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with), [`Error::PermitsDiffer`], and [`Error::Config`] if `n` is 0 or more than
    /// the semaphore has.
    pub fn with_permits<T>(
        &self,
        n: u32,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<T> {
        self.run_permits(n, wait, f)?.into_result()
    }

    /// Runs `f` with `n` permits, waiting for at most `wait`, and returns its result even if the lease was lost meanwhile;
    /// as [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run), [`Error::PermitsDiffer`], and [`Error::Config`] if `n` is 0 or more than
    /// the semaphore has.
    pub fn run_permits<T>(
        &self,
        n: u32,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<Ran<T>> {
        self.check(n)?;
        let acquire = |target: &_, until| self.handle.acquire(target, self.kind(), n, until);
        let call = |permit: &Permit| f(permit);
        self.handle
            .run(wait, acquire, Permit::new, call, Permit::release)
    }

    fn check(&self, n: u32) -> Result<()> {
        self.handle.target()?;
        if (1..=self.permits).contains(&n) {
            return Ok(());
        }
        let reason = format!(
            "{n} of {} permits: at least 1 and at most all can be acquired",
            self.permits
        );
        Err(Error::config("n", reason))
    }

    fn kind(&self) -> Kind {
        Kind::Semaphore {
            total_units: self.permits,
        }
    }
}
