//! The locks that `run` takes, whatever their kind.

use std::slice;
use std::time::{Duration, SystemTime};

use leasehold::{
    Cancel, Election, Fired, Leadership, Lease, Lock, LockGuard, LockManager, Lost, MultiGuard,
    MultiLock, Mutex, Once, OnceGuard, Permit, Permits, ReadGuard, Reader, Receiver, Result,
    WriteGuard, Writer,
};

use super::Options;

/// For how long a record is kept at least.
const KEEP_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A lock that can be acquired.
pub enum Wanted {
    Mutex(Mutex),
    Read(Reader),
    Write(Writer),
    Permits(Permits),
    Multi(MultiLock),
    Once(Once, Schedule),
    /// With the value that the leader publishes.
    Leader(Election, String),
}

/// Which fire of a job that runs once.
#[derive(Clone, Copy)]
pub enum Schedule {
    At(SystemTime),
    Every(Duration),
}

/// A lock that is held.
pub enum Held {
    Mutex(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(Permit),
    Multi(MultiGuard),
    Once(OnceGuard),
    Leader(Leadership),
}

impl Wanted {
    pub fn new(locks: &LockManager, options: &Options, cancel: &Cancel) -> Self {
        let name = &options.names[0];
        let rwlock = || locks.rwlock(name).cancel_with(cancel);
        if let Some(value) = &options.value {
            Self::Leader(locks.election(name).cancel_with(cancel), value.clone())
        } else if let Some(schedule) = options.schedule() {
            let mut once = locks.once(name).cancel_with(cancel);
            if let Schedule::Every(period) = schedule {
                // The record must outlive some fires that fail.
                once = once.keep_for(KEEP_FOR.max(period * 4));
            }
            Self::Once(once, schedule)
        } else if options.names.len() > 1 {
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

    /// Blocks until the lock is held. Returns `None` if others held the lock for the whole wait, or if the fire was done. A wait
    /// of zero only tries, and one of `Duration::MAX` has no end.
    pub fn acquire(&self, wait: Duration) -> Result<Option<Held>> {
        Ok(match self {
            Self::Mutex(lock) => lock.try_lock_for(wait)?.map(Held::Mutex),
            Self::Read(lock) => lock.try_lock_for(wait)?.map(Held::Read),
            Self::Write(lock) => lock.try_lock_for(wait)?.map(Held::Write),
            Self::Permits(lock) => lock.try_lock_for(wait)?.map(Held::Permits),
            Self::Multi(lock) => lock.try_lock_for(wait)?.map(Held::Multi),
            Self::Once(once, Schedule::At(fire)) => once.claim_for(*fire, wait)?.map(Held::Once),
            Self::Once(once, Schedule::Every(period)) => {
                once.claim_every(*period, wait)?.map(Held::Once)
            }
            Self::Leader(election, value) => election.campaign_for(value, wait)?.map(Held::Leader),
        })
    }

    /// Returns the last fire, if it is the one that was wanted at this time, or a later one. The clock of this machine says which
    /// one `--once-every` wants: it may be wrong by nearly half of that time.
    pub fn done(&self, asked_at: SystemTime) -> Result<Option<Fired>> {
        let Self::Once(once, schedule) = self else {
            return Ok(None);
        };
        Ok(once.last()?.filter(|last| match schedule {
            Schedule::At(fire) => last.fire >= *fire,
            Schedule::Every(period) => last.fire + *period / 2 > asked_at,
        }))
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
            Self::Once(guard) => slice::from_ref(guard),
            Self::Leader(guard) => slice::from_ref(guard),
        }
    }

    pub fn on_lost(&self) -> Receiver<Lost> {
        match self {
            Self::Multi(guard) => guard.on_lost(),
            _ => self.leases()[0].on_lost(),
        }
    }

    /// Fails if the lock was lost before. A fire that `succeeded` is recorded, and that may fail too; of one that did not, nothing
    /// can fail, so a loss is not told here.
    pub fn release(self, succeeded: bool) -> Result<()> {
        match self {
            Self::Once(guard) if succeeded => guard.done(),
            // A drop records nothing, so that another host tries again.
            Self::Once(_) => Ok(()),
            Self::Mutex(guard) => guard.release(),
            Self::Read(guard) => guard.release(),
            Self::Write(guard) => guard.release(),
            Self::Permits(guard) => guard.release(),
            Self::Multi(guard) => guard.release(),
            Self::Leader(guard) => guard.resign(),
        }
    }
}
