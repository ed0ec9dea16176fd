//! The reader-writer lock: many readers or one writer, over all processes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::guard::{Lease, ReadGuard, WriteGuard};
use crate::lock::{Handle, Ran, debug, options, until};
use crate::message::{ALL, Kind};

/// A lock that many readers hold at a time, or one writer, among all threads of all processes that use the same
/// Redis.
///
/// Neither side starves: a writer that waits stops new readers, and after a writer all readers that wait go in
/// together, before the next writer (the phases alternate, as in B. Brandenburg, J. Anderson, "Spin-based
/// reader-writer synchronization for multiprocessor real-time systems", 2010). The readers of one process share one
/// hold, and sit down in it without a request for a [`quantum`](crate::Builder::quantum) at a time; then one of them
/// asks whether anybody waits. So a writer waits for a quantum, and for the readers that are in.
///
/// Each reader's process has a lease of its own: the crash of one costs the others nothing, and a writer at most that
/// lease. A thread that asks to write while it reads waits for itself; one that asks to read while it reads may wait for
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
///     // … change it, by `writing.fence()` …
///     let reading = writing.downgrade()?; // nobody else writes in between
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

    /// Comes in as a reader, waiting for as long as a writer is in or waits.
    ///
    /// While blocked it is as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub fn read(&self) -> Result<ReadGuard> {
        self.handle.wait(Kind::Read, 1).map(ReadGuard::new)
    }

    /// As [`read`](RwLock::read), if that needs no wait. `None` means that it does. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        self.try_read_for(Duration::ZERO)
    }

    /// As [`read`](RwLock::read), waiting for at most `wait`. `None` means that it was not to be had.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub fn try_read_for(&self, wait: Duration) -> Result<Option<ReadGuard>> {
        let guard_inner = self.handle.wait_for(Kind::Read, 1, wait)?;
        Ok(guard_inner.map(ReadGuard::new))
    }

    /// As [`read`](RwLock::read), waiting until `deadline` at the latest. `None` means that the last answer was that
    /// the lock is held.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub fn try_read_until(&self, deadline: Instant) -> Result<Option<ReadGuard>> {
        self.try_read_for(until(deadline))
    }

    /// Runs `f` as a reader, waiting for at most `wait`; as [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with).
    pub fn with_read<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.run_read(wait, f)?.into_result()
    }

    /// Runs `f` as a reader, waiting for at most `wait`, and returns its result even if the lease was lost meanwhile; as
    /// [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    pub fn run_read<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let acquire = |target: &_, until| self.handle.acquire(target, Kind::Read, 1, until);
        let call = |guard: &ReadGuard| f(guard);
        self.handle
            .run(wait, acquire, ReadGuard::new, call, ReadGuard::release)
    }

    /// Comes in as the writer, waiting for as long as anybody else is in.
    ///
    /// While blocked it is as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub fn write(&self) -> Result<WriteGuard> {
        self.handle.wait(Kind::Write, ALL).map(WriteGuard::new)
    }

    /// As [`write`](RwLock::write), if that needs no wait. `None` means that it does. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.try_write_for(Duration::ZERO)
    }

    /// As [`write`](RwLock::write), waiting for at most `wait`. `None` means that it was not to be had.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub fn try_write_for(&self, wait: Duration) -> Result<Option<WriteGuard>> {
        let guard_inner = self.handle.wait_for(Kind::Write, ALL, wait)?;
        Ok(guard_inner.map(WriteGuard::new))
    }

    /// As [`write`](RwLock::write), waiting until `deadline` at the latest. `None` means that the last answer was that
    /// the lock is held.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub fn try_write_until(&self, deadline: Instant) -> Result<Option<WriteGuard>> {
        self.try_write_for(until(deadline))
    }

    /// Runs `f` as the writer, waiting for at most `wait`; as [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`](crate::Mutex::with).
    pub fn with_write<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        self.run_write(wait, f)?.into_result()
    }

    /// Runs `f` as the writer, waiting for at most `wait`, and returns its result even if the lease was lost meanwhile; as
    /// [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    pub fn run_write<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let acquire = |target: &_, until| self.handle.acquire(target, Kind::Write, ALL, until);
        let call = |guard: &WriteGuard| f(guard);
        self.handle
            .run(wait, acquire, WriteGuard::new, call, WriteGuard::release)
    }
}
