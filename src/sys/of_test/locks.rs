//! Mutexes and condition variables whose waits a scheduler of a test may end. On a machine without one they are the standard
//! library's.
//!
//! | a thread | on a machine with a scheduler |
//! | --- | --- |
//! | locks a mutex | lets other threads run first, and then waits at the place of the mutex until it is free |
//! | unlocks it | wakes all threads that wait there |
//! | waits at a condition variable | unlocks the mutex, waits at the place of the variable, and locks the mutex again |
//!
//! A place is an address: nothing that a thread waits for moves meanwhile.
//!
//! A guard has the machine with it, so on the real machine a lock costs one look at the thread's machine, and its end none.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

use crate::sys::machine::Machine;

/// A mutex without poisoning: see `sys::locks`.
#[derive(Default)]
pub(crate) struct ScheduledMutex<T>(std::sync::Mutex<T>);

/// A mutex that a thread has locked. Its drop unlocks it.
pub(crate) struct ScheduledMutexGuard<'a, T> {
    mutex: &'a ScheduledMutex<T>,
    machine: Machine,
    /// `None` after the end of the guard has begun.
    locked: Option<std::sync::MutexGuard<'a, T>>,
}

/// A condition variable for [`ScheduledMutex`].
#[derive(Debug, Default)]
pub(crate) struct ScheduledCondvar(std::sync::Condvar);

/// Returns the place at which a thread waits for this.
pub(super) fn place<T>(of: &T) -> usize {
    ptr::from_ref(of).addr()
}

impl<T> ScheduledMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> ScheduledMutexGuard<'_, T> {
        let machine = Machine::here();
        if let Some(scheduler) = machine.scheduler() {
            scheduler.step();
        }
        self.lock_on(machine)
    }

    #[inline]
    fn lock_on(&self, machine: Machine) -> ScheduledMutexGuard<'_, T> {
        let locked = loop {
            let Some(scheduler) = machine.scheduler() else {
                break self.0.lock().unwrap_or_else(PoisonError::into_inner);
            };
            match self.0.try_lock() {
                Ok(locked) => break locked,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => scheduler.wait(place(self), None),
            }
        };
        ScheduledMutexGuard {
            mutex: self,
            machine,
            locked: Some(locked),
        }
    }
}

impl<T> Deref for ScheduledMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.locked.as_ref().expect("it is locked until its end")
    }
}

impl<T> DerefMut for ScheduledMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.locked.as_mut().expect("it is locked until its end")
    }
}

impl<T> Drop for ScheduledMutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.locked = None;
        if let Some(scheduler) = self.machine.scheduler() {
            scheduler.wake(place(self.mutex), true);
        }
    }
}

impl ScheduledCondvar {
    pub(crate) const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Blocks until it is notified. May return earlier.
    pub(crate) fn wait<'a, T>(
        &self,
        guard: ScheduledMutexGuard<'a, T>,
    ) -> ScheduledMutexGuard<'a, T> {
        self.wait_within(guard, None)
    }

    /// Blocks until it is notified, or until `limit` has passed. May return earlier.
    pub(crate) fn wait_for<'a, T>(
        &self,
        guard: ScheduledMutexGuard<'a, T>,
        limit: Duration,
    ) -> ScheduledMutexGuard<'a, T> {
        self.wait_within(guard, Some(limit))
    }

    fn wait_within<'a, T>(
        &self,
        mut guard: ScheduledMutexGuard<'a, T>,
        limit: Option<Duration>,
    ) -> ScheduledMutexGuard<'a, T> {
        if guard.machine.scheduler().is_some() {
            let (machine, mutex) = (guard.machine.clone(), guard.mutex);
            drop(guard);
            if let Some(scheduler) = machine.scheduler() {
                scheduler.wait(place(self), limit);
            }
            return mutex.lock_on(machine);
        }
        guard.locked = guard.locked.take().map(|locked| match limit {
            None => (self.0.wait(locked)).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let woken = self.0.wait_timeout(locked, limit);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        });
        guard
    }

    pub(crate) fn notify_one(&self) {
        self.notify(false);
    }

    pub(crate) fn notify_all(&self) {
        self.notify(true);
    }

    fn notify(&self, all: bool) {
        match Machine::here().scheduler() {
            Some(scheduler) => scheduler.wake(place(self), all),
            None if all => self.0.notify_all(),
            None => self.0.notify_one(),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for ScheduledMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
