//! The locks that `run` takes, whatever their kind.

use std::slice;
use std::time::Duration;

use leasehold::{
    Cancel, Lease, Lock, LockGuard, LockManager, Lost, MultiGuard, MultiLock, Mutex, Permit,
    Permits, ReadGuard, Reader, Receiver, Result, WriteGuard, Writer,
};

use super::Options;

/// A lock that can be acquired.
pub enum Wanted {
    Mutex(Mutex),
    Read(Reader),
    Write(Writer),
    Permits(Permits),
    Multi(MultiLock),
}

/// A lock that is held.
pub enum Held {
    Mutex(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(Permit),
    Multi(MultiGuard),
}

impl Wanted {
    pub fn new(locks: &LockManager, options: &Options, cancel: &Cancel) -> Self {
        let name = &options.names[0];
        let rwlock = || locks.rwlock(name).cancel_with(cancel);
        if options.names.len() > 1 {
            Self::Multi(locks.multi(&options.names).cancel_with(cancel))
        } else if options.shared {
            Self::Read(rwlock().reader())
        } else if options.exclusive {
            Self::Write(rwlock().writer())
        } else if let Some((n, of)) = options.permits {
            Self::Permits(locks.semaphore(name, of).cancel_with(cancel).permits(n))
        } else {
            Self::Mutex(locks.mutex(name).cancel_with(cancel))
        }
    }

    /// Blocks until the lock is held. Returns `None` if others held the lock for the whole wait. A wait of zero only tries, and
    /// one of `Duration::MAX` has no end.
    pub fn acquire(&self, wait: Duration) -> Result<Option<Held>> {
        Ok(match self {
            Self::Mutex(lock) => lock.try_lock_for(wait)?.map(Held::Mutex),
            Self::Read(lock) => lock.try_lock_for(wait)?.map(Held::Read),
            Self::Write(lock) => lock.try_lock_for(wait)?.map(Held::Write),
            Self::Permits(lock) => lock.try_lock_for(wait)?.map(Held::Permits),
            Self::Multi(lock) => lock.try_lock_for(wait)?.map(Held::Multi),
        })
    }
}

impl Held {
    /// Returns the lease of each name.
    pub fn leases(&self) -> &[Lease] {
        match self {
            Self::Mutex(guard) => slice::from_ref(guard),
            Self::Read(guard) => slice::from_ref(guard),
            Self::Write(guard) => slice::from_ref(guard),
            Self::Permits(guard) => slice::from_ref(guard),
            Self::Multi(guard) => guard.leases(),
        }
    }

    pub fn on_lost(&self) -> Receiver<Lost> {
        match self {
            Self::Multi(guard) => guard.on_lost(),
            _ => self.leases()[0].on_lost(),
        }
    }

    /// Fails if the lock was lost before.
    pub fn release(self) -> Result<()> {
        match self {
            Self::Mutex(guard) => guard.release(),
            Self::Read(guard) => guard.release(),
            Self::Write(guard) => guard.release(),
            Self::Permits(guard) => guard.release(),
            Self::Multi(guard) => guard.release(),
        }
    }
}
