//! The seam to the machine, with loom's atomics, mutexes and condition variables.

use std::ops::Deref;
use std::sync::PoisonError;
use std::time::Duration;

use loom::sync::{MutexGuard, atomic};

#[path = "../../src/sys/machine.rs"]
pub(crate) mod machine;
#[path = "../../src/sys/random.rs"]
mod random;
#[path = "../../src/sys/test_machine.rs"]
mod test_machine;
#[path = "../../src/sys/thread.rs"]
pub(crate) mod thread;
#[path = "../../src/sys/time.rs"]
pub(crate) mod time;

pub(crate) mod hash {
    pub(crate) use std::collections::HashMap;
}

pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(crate) use machine::{Machine, real};
pub(crate) use std::sync::Arc;
pub(crate) use time::Time;

/// loom keeps a `SeqCst` load from an older value only if a `SeqCst` store has written that too, so one writes the first value.
pub(crate) struct AtomicBool(atomic::AtomicBool);

impl Default for AtomicBool {
    fn default() -> Self {
        let new = atomic::AtomicBool::new(false);
        new.store(false, Ordering::SeqCst);
        Self(new)
    }
}

impl Deref for AtomicBool {
    type Target = atomic::AtomicBool;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[derive(Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable. Only a notification ends a wait, so no time limit hides one that is missing.
#[derive(Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _limit: Duration,
    ) -> MutexGuard<'a, T> {
        self.wait(guard)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
