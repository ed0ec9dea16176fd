//! The semaphore: a number of permits, among all processes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Result};
use crate::guard::{Lease, Permit};
use crate::lock::{Handle, Ran, options, until};
use crate::message::{ALL, LockKind};

/// A lock with a number of permits, for all threads of all processes that use the same Redis.
///
/// A guard holds one or more permits. They are a lease: the permits of a process that was killed come back when that
/// lease ends. Several permits are acquired at once or not at all, so no two callers wait for each other's part. All
/// processes that use a semaphore at one time must use the same number of permits.
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

    /// Acquires a permit. Blocks until it is granted, as [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock), and [`Error::PermitsDiffer`]: the semaphore is in use with another
    /// number of permits.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let permit = downloads.acquire()?;
    /// // … the download …
    /// permit.release()?;
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1)
    }

    /// Acquires a permit if that needs no wait. Returns `None` if it needs one. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire). No error is retried.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// if downloads.try_acquire()?.is_none() {
    ///     println!("too many downloads");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.try_acquire_many(1)
    }

    /// Acquires a permit within `wait`. Returns `None` if no permit was free at Redis's last reply. Blocks as
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire), but transient errors are retried until the end of the wait instead of for
    /// `outage_limit`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let permit = downloads.try_acquire_for(Duration::from_secs(2))?;
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>> {
        self.try_acquire_many_for(1, wait)
    }

    /// Acquires a permit before `deadline`. Returns `None` if no permit was free at Redis's last reply. Blocks as
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Semaphore::try_acquire_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let permit = downloads.try_acquire_until(Instant::now() + Duration::from_secs(2))?;
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Permit>> {
        self.try_acquire_many_until(1, deadline)
    }

    /// Runs `f` with a permit, and releases the permit. Waits for it for at most `wait`. Returns what
    /// [`Mutex::with`](crate::Mutex::with) returns.
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with), and [`Error::PermitsDiffer`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let fence = downloads.with_permit(Duration::from_secs(2), |lease| lease.fence())?;
    /// # let _ = fence;
    /// # Ok(()) }
    /// ```
    pub fn with_permit<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.with_permits(1, wait, f)
    }

    /// Runs `f` with a permit, and releases the permit. Returns the result of `f` even if the permit was lost
    /// meanwhile, as [`Mutex::run`](crate::Mutex::run) does. Waits for the permit for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run), and [`Error::PermitsDiffer`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let ran = downloads.run_permit(Duration::from_secs(2), |lease| lease.fence())?;
    /// println!("fence {}, lost: {:?}", ran.value, ran.lost);
    /// # Ok(()) }
    /// ```
    pub fn run_permit<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        self.run_permits(1, wait, f)
    }

    /// Acquires `n` permits together. Blocks until they are granted, as [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire), and [`Error::Config`]: `n` is 0, or more than the permits of the semaphore.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let permits = downloads.acquire_many(4)?;
    /// # drop(permits);
    /// # Ok(()) }
    /// ```
    pub fn acquire_many(&self, n: u32) -> Result<Permit> {
        self.check(n)?;
        self.handle
            .acquire_without_limit(self.kind(), n)
            .map(Permit::new)
    }

    /// Acquires `n` permits together if that needs no wait. Returns `None` if it needs one. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many). No error is retried.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let permits = downloads.try_acquire_many(4)?;
    /// # drop(permits);
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_many(&self, n: u32) -> Result<Option<Permit>> {
        self.try_acquire_many_for(n, Duration::ZERO)
    }

    /// Acquires `n` permits together within `wait`. Returns `None` if too few were free at Redis's last reply. Blocks
    /// as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many), but transient errors are retried until the end of the wait
    /// instead of for `outage_limit`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let permits = downloads.try_acquire_many_for(4, Duration::from_secs(2))?;
    /// # drop(permits);
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_many_for(&self, n: u32, wait: Duration) -> Result<Option<Permit>> {
        self.check(n)?;
        let guard_inner: Option<GuardInner> = self.handle.acquire_within(self.kind(), n, wait)?;
        Ok(guard_inner.map(Permit::new))
    }

    /// Acquires `n` permits together before `deadline`. Returns `None` if too few were free at Redis's last reply.
    /// Blocks as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many_for`](Semaphore::try_acquire_many_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let deadline = Instant::now() + Duration::from_secs(2);
    /// let permits = downloads.try_acquire_many_until(4, deadline)?;
    /// # drop(permits);
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_many_until(&self, n: u32, deadline: Instant) -> Result<Option<Permit>> {
        self.try_acquire_many_for(n, until(deadline))
    }

    /// Runs `f` with `n` permits, and releases them. Waits for them for at most `wait`. Returns what
    /// [`Mutex::with`](crate::Mutex::with) returns.
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with), and [`Error::PermitsDiffer`]. [`Error::Config`] also if `n` is 0, or
    /// more than the permits of the semaphore.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let fence = downloads.with_permits(4, Duration::from_secs(2), |lease| lease.fence())?;
    /// # let _ = fence;
    /// # Ok(()) }
    /// ```
    pub fn with_permits<T>(
        &self,
        n: u32,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<T> {
        self.run_permits(n, wait, f)?.into_result()
    }

    /// Runs `f` with `n` permits, and releases them. Returns the result of `f` even if the permits were lost
    /// meanwhile, as [`Mutex::run`](crate::Mutex::run) does. Waits for the permits for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run), and [`Error::PermitsDiffer`]. [`Error::Config`] also if `n` is 0, or more
    /// than the permits of the semaphore.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let ran = downloads.run_permits(4, Duration::from_secs(2), |lease| lease.fence())?;
    /// println!("fence {}, lost: {:?}", ran.value, ran.lost);
    /// # Ok(()) }
    /// ```
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

    fn kind(&self) -> LockKind {
        LockKind::Semaphore {
            total_units: self.permits,
        }
    }
}
