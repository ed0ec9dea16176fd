//! The clock of a test kit: the machine's, and what the test has added.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use leasehold::seam::{MovedByTest, TestMachine, Time};

/// For how long the kit waits for the managers to do what is due. A busy machine may need some of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct TestClock {
    /// The time that the test has added, in nanoseconds.
    added: AtomicU64,
    /// The engines that read it.
    engines: Mutex<Vec<Weak<dyn MovedByTest>>>,
    calls: Mutex<Calls>,
    /// Notified when the last call has returned, and when calls may begin.
    calls_changed: Condvar,
}

/// The calls of program threads that may ask a server.
#[derive(Default)]
struct Calls {
    /// The number of calls that have not returned.
    running: u32,
    /// How many tests are about to move the clock. A call does not begin meanwhile: it would find its time over.
    movers: u32,
}

/// The machine that the test runs on.
struct RealMachine;

impl TestMachine for RealMachine {}

/// A stop for new calls. Its drop lets them begin.
struct ClosedGate<'a>(&'a TestClock);

impl<'a> ClosedGate<'a> {
    fn close(clock: &'a TestClock) -> Self {
        locked(&clock.calls).movers += 1;
        Self(clock)
    }
}

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        locked(&self.0.calls).movers -= 1;
        self.0.calls_changed.notify_all();
    }
}

impl TestClock {
    /// Returns the time that the test has added.
    pub(crate) fn added(&self) -> Duration {
        Duration::from_nanos(self.added.load(Ordering::SeqCst))
    }

    pub(crate) fn now(&self) -> Time {
        RealMachine.now() + self.added()
    }

    /// Returns the time since 1970 in µs.
    pub(crate) fn wall_us(&self) -> u64 {
        let added = u64::try_from(self.added().as_micros()).unwrap_or(u64::MAX);
        RealMachine.wall_us().saturating_add(added)
    }

    /// Moves the clock forward, between the requests of the managers, by what `length` returns then. Nothing happens at the
    /// times in between.
    ///
    /// # Panics
    ///
    /// Panics if the requests have not ended within the test's [`PATIENCE`].
    pub(crate) fn advance(&self, length: impl FnOnce() -> Duration) {
        let _closed = ClosedGate::close(self);
        let until = RealMachine.now() + PATIENCE;
        let mut calls = locked(&self.calls);
        while calls.running > 0 {
            assert!(
                RealMachine.now() < until,
                "a call has not returned within {PATIENCE:?}"
            );
            calls = self.until_changed(calls);
        }
        drop(calls);
        // The threads of the library that send by themselves wait for none of these calls.
        while self.engines().iter().any(|engine| engine.sends_by_itself()) {
            assert!(
                RealMachine.now() < until,
                "a request of the library has not ended within {PATIENCE:?}"
            );
            thread::yield_now();
        }
        self.add(length());
    }

    fn add(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let add = |added: u64| Some(added.saturating_add(by));
        // The function always returns a number.
        let added = self
            .added
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        added.ok();
        for engine in self.engines() {
            engine.look_at_the_clock();
        }
    }

    /// Has the managers renew all their leases, because the test has done something to the locks.
    pub(crate) fn renew_all(&self) {
        for engine in self.engines() {
            engine.renew_all();
        }
    }

    /// Returns the time until a manager has next something to do for a lock, if one has.
    pub(crate) fn until_due(&self) -> Option<Duration> {
        let engines = self.engines();
        let due = engines.iter().filter_map(|engine| engine.next_due()).min();
        due.map(|due| due.since(self.now()))
    }

    /// Returns what the managers have still to do, if there is anything.
    pub(crate) fn busy_part(&self) -> Option<&'static str> {
        let engines = self.engines();
        engines.iter().find_map(|engine| engine.busy_part())
    }

    pub(crate) fn call_begins(&self) {
        let mut calls = locked(&self.calls);
        while calls.movers > 0 {
            calls = self.until_changed(calls);
        }
        calls.running += 1;
    }

    pub(crate) fn call_ends(&self) {
        let mut calls = locked(&self.calls);
        calls.running -= 1;
        if calls.running == 0 && calls.movers > 0 {
            self.calls_changed.notify_all();
        }
    }

    pub(crate) fn register(&self, engine: Weak<dyn MovedByTest>) {
        let mut engines = locked(&self.engines);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(engine);
    }

    pub(crate) fn engines(&self) -> Vec<Arc<dyn MovedByTest>> {
        let engines = locked(&self.engines);
        engines.iter().filter_map(Weak::upgrade).collect()
    }

    /// Blocks until the calls change. May return earlier.
    fn until_changed<'a>(&self, calls: MutexGuard<'a, Calls>) -> MutexGuard<'a, Calls> {
        let waited = self.calls_changed.wait_timeout(calls, PATIENCE);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestClock").field(&self.added()).finish()
    }
}

/// Locks a mutex, also after a panic of a thread that had it: the other threads go on.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
