//! The reader-writer lock: any number of readers or one writer, among all processes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::guard::{Lease, ReadGuard, WriteGuard};
use crate::lock::{Handle, Ran, debug, options, until};
use crate::message::{ALL, LockKind};

/// A lock that many readers or one writer hold at a time, among all threads of all processes that use the same Redis.
///
/// Neither side starves. A writer that waits keeps new readers out. After a writer, all readers that wait get the lock
/// together, before the next writer. (The phases alternate as in B. Brandenburg, J. Anderson, "Spin-based
/// reader-writer synchronization for multiprocessor real-time systems", 2010.)
///
/// The readers of one process share a lease. For one [`quantum`](crate::Builder::quantum), further readers of the
/// process join that lease without a request. Then one of them asks Redis whether a process waits. So a writer waits
/// for at most one quantum, and for the readers that have the lock then.
///
/// Each process that reads has a separate lease. If such a process crashes, other readers are not delayed, and a
/// writer is delayed by at most that lease.
///
/// A thread that asks to write while it reads waits for itself. A thread that asks to read while it reads may wait for
/// a writer that waits for it.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let config = locks.rwlock("config");
/// {
///     let writing = config.write()?;
///     // … change it, with `writing.fence()` …
///     let reading = writing.downgrade()?; // no other writer comes in between
///     # let _ = reading;
/// }
/// let reading = config.read()?;
/// # let _ = reading;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    handle: Handle,
}

options!(RwLock);
debug!(RwLock);

impl RwLock {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Acquires the lock as a reader. Blocks while a writer holds it, or waits for it already: as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let guard = config.read()?;
    /// // … read it …
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn read(&self) -> Result<ReadGuard> {
        self.handle
            .acquire_without_limit(LockKind::Read, 1)
            .map(ReadGuard::new)
    }

    /// Acquires the lock as a reader if that needs no wait. Returns `None` if it needs one. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// if config.try_read()?.is_none() {
    ///     println!("the configuration is about to change");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        self.try_read_for(Duration::ZERO)
    }

    /// Acquires the lock as a reader within `wait`. Returns `None` if that was not possible at Redis's last reply.
    /// Blocks as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let guard = config.try_read_for(Duration::from_secs(2))?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn try_read_for(&self, wait: Duration) -> Result<Option<ReadGuard>> {
        let guard_inner = self.handle.acquire_within(LockKind::Read, 1, wait)?;
        Ok(guard_inner.map(ReadGuard::new))
    }

    /// Acquires the lock as a reader before `deadline`. Returns `None` if that was not possible at Redis's last reply.
    /// Blocks as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let guard = config.try_read_until(Instant::now() + Duration::from_secs(2))?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn try_read_until(&self, deadline: Instant) -> Result<Option<ReadGuard>> {
        self.try_read_for(until(deadline))
    }

    /// Runs `f` as a reader, and releases the lock. Waits for the lock for at most `wait`. Returns what
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
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let text = config.with_read(Duration::from_secs(2), |_| std::fs::read_to_string("config"))?;
    /// # drop(text);
    /// # Ok(()) }
    /// ```
    pub fn with_read<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.run_read(wait, f)?.into_result()
    }

    /// Runs `f` as a reader, and releases the lock. Returns the result of `f` even if the lock was lost meanwhile, as
    /// [`Mutex::run`](crate::Mutex::run) does. Waits for the lock for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let ran = config.run_read(Duration::from_secs(2), |_| std::fs::read_to_string("config"))?;
    /// println!("{:?}, lost: {:?}", ran.value, ran.lost);
    /// # Ok(()) }
    /// ```
    pub fn run_read<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let acquire = |target: &_, until| self.handle.acquire(target, LockKind::Read, 1, until);
        let call = |guard: &ReadGuard| f(guard);
        self.handle
            .run(wait, acquire, ReadGuard::new, call, ReadGuard::release)
    }

    /// Acquires the lock as the writer. Blocks while readers or another writer hold it: as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let guard = config.write()?;
    /// // … change it, with `guard.fence()` …
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn write(&self) -> Result<WriteGuard> {
        self.handle
            .acquire_without_limit(LockKind::Write, ALL)
            .map(WriteGuard::new)
    }

    /// Acquires the lock as the writer if that needs no wait. Returns `None` if it needs one. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// if config.try_write()?.is_none() {
    ///     println!("the configuration is in use");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.try_write_for(Duration::ZERO)
    }

    /// Acquires the lock as the writer within `wait`. Returns `None` if that was not possible at Redis's last reply.
    /// Blocks as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let guard = config.try_write_for(Duration::from_secs(2))?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn try_write_for(&self, wait: Duration) -> Result<Option<WriteGuard>> {
        let guard_inner = self.handle.acquire_within(LockKind::Write, ALL, wait)?;
        Ok(guard_inner.map(WriteGuard::new))
    }

    /// Acquires the lock as the writer before `deadline`. Returns `None` if that was not possible at Redis's last
    /// reply. Blocks as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let guard = config.try_write_until(Instant::now() + Duration::from_secs(2))?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn try_write_until(&self, deadline: Instant) -> Result<Option<WriteGuard>> {
        self.try_write_for(until(deadline))
    }

    /// Runs `f` as the writer, and releases the lock. Waits for the lock for at most `wait`. Returns what
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
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let fence = config.with_write(Duration::from_secs(2), |lease| lease.fence())?;
    /// # let _ = fence;
    /// # Ok(()) }
    /// ```
    pub fn with_write<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.run_write(wait, f)?.into_result()
    }

    /// Runs `f` as the writer, and releases the lock. Returns the result of `f` even if the lock was lost meanwhile,
    /// as [`Mutex::run`](crate::Mutex::run) does. Waits for the lock for at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let ran = config.run_write(Duration::from_secs(2), |lease| lease.fence())?;
    /// println!("fence {}, lost: {:?}", ran.value, ran.lost);
    /// # Ok(()) }
    /// ```
    pub fn run_write<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let acquire = |target: &_, until| self.handle.acquire(target, LockKind::Write, ALL, until);
        let call = |guard: &WriteGuard| f(guard);
        self.handle
            .run(wait, acquire, WriteGuard::new, call, WriteGuard::release)
    }
}
