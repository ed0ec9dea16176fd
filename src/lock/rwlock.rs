//! The reader-writer lock: any number of readers or one writer, among all processes.

use std::ops::Deref;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::guard::{Lease, ReadGuard, WriteGuard};
use crate::lock::handle::{Handle, Ran};
use crate::lock::methods::{options, ways};
use crate::wire::{ALL, LockKind};

/// A lock that many readers or one writer hold at a time, among all threads of all processes that use the same Redis.
///
/// Neither side starves. A writer that waits keeps new readers out. After a writer, all readers that wait get the lock
/// together, before the next writer. (The phases alternate as in B. Brandenburg, J. Anderson, "Spin-based
/// reader-writer synchronization for multiprocessor real-time systems", 2010.)
///
/// The readers of one process share a lease. For one [`quantum`](crate::Builder::quantum), further readers of the process
/// join that lease without a request. Then one of them asks Redis whether a process waits, so a writer waits for at most
/// one quantum, and for the readers that have the lock then.
///
/// Each process that reads has a separate lease. If it crashes, other readers are not delayed, and a writer is delayed by
/// at most that lease.
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
    pub(crate) handle: Handle,
}

ways! {
    /// Acquires the lock as a reader.
    ///
    /// Blocks while a writer holds the lock, or waits for it already, as [`Mutex::lock`](crate::Mutex::lock) does.
    RwLock => ReadGuard: read, try_read, try_read_for, try_read_until, with_read, run_read;
    what: "the lock as a reader", lock: "config", errors: ".";
    leases: ReadGuard::deref => Lease;
    |self, wait| self.handle.acquire(LockKind::Read, 1, wait).map(ReadGuard::new)
}

ways! {
    /// Acquires the lock as the writer.
    ///
    /// Blocks while readers or another writer hold the lock, as [`Mutex::lock`](crate::Mutex::lock) does.
    RwLock => WriteGuard: write, try_write, try_write_for, try_write_until, with_write, run_write;
    what: "the lock as the writer", lock: "config", errors: ".";
    leases: WriteGuard::deref => Lease;
    |self, wait| self.handle.acquire(LockKind::Write, ALL, wait).map(WriteGuard::new)
}

options!(RwLock);
