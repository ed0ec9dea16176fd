//! The standard library's threads and synchronisation primitives.
//!
//! All code that blocks or shares memory imports them from this module. So a model checker can replace them in one
//! place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Weak};
pub(crate) use std::thread::{self, Thread};

use std::sync::PoisonError;
use std::time::Duration;

/// A mutex without poisoning.
///
/// No code of this crate panics while it holds such a mutex. But a test's substitute may, and then later calls must not
/// panic too.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

pub(crate) type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Blocks until it is notified, or until `limit` has passed. May return earlier.
    pub(crate) fn wait_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> MutexGuard<'a, T> {
        self.0
            .wait_timeout(guard, for_a_while(limit))
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Blocks until the thread is unparked, or until `limit` has passed. May return earlier.
pub(crate) fn park_timeout(limit: Duration) {
    thread::park_timeout(for_a_while(limit));
}

/// Returns how long a thread may sleep. A test kit may move the time forward, so with one no thread sleeps for long.
#[inline]
fn for_a_while(limit: Duration) -> Duration {
    #[cfg(feature = "testing")]
    if TEST_KITS.load(Ordering::Relaxed) > 0 {
        return limit.min(Duration::from_millis(5));
    }
    limit
}

/// The number of servers of the test kit that there are.
#[cfg(feature = "testing")]
pub(crate) static TEST_KITS: AtomicU32 = AtomicU32::new(0);
