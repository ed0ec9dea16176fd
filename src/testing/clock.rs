//! The clock of a test kit: the machine's, and what the test has added.

use std::fmt;
use std::time::Duration;

use crate::sys::real;
use crate::sys::test_machine::MovedByTest;
use crate::sys::thread::{self, Thread};
use crate::sys::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, Time, Weak};

#[derive(Default)]
pub(super) struct TestClock {
    /// The time that the test has added, in nanoseconds.
    added: AtomicU64,
    /// The engines that read it.
    engines: Mutex<Vec<Weak<dyn MovedByTest>>>,
    /// The threads that sleep until some time of this clock.
    sleepers: Mutex<Vec<Thread>>,
    /// The number of calls that have not returned, and that may ask a server.
    pub(super) calls: AtomicU32,
}

impl TestClock {
    /// Returns the time that the test has added.
    pub(super) fn added(&self) -> Duration {
        Duration::from_nanos(self.added.load(Ordering::SeqCst))
    }

    pub(super) fn now(&self) -> Time {
        real::now() + self.added()
    }

    /// Returns the time since 1970 in µs.
    pub(super) fn wall_us(&self) -> u64 {
        let added = u64::try_from(self.added().as_micros()).unwrap_or(u64::MAX);
        real::wall_us().saturating_add(added)
    }

    /// Moves the clock forward. Nothing happens at the times in between.
    pub(super) fn advance(&self, by: Duration) {
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
        for sleeper in self.sleepers.lock().iter() {
            sleeper.unpark();
        }
    }

    /// Has the managers renew all their leases, because the test has done something to the locks.
    pub(super) fn renew_all(&self) {
        for engine in self.engines() {
            engine.renew_all();
        }
    }

    /// Returns what the managers have still to do, if there is anything.
    pub(super) fn busy_part(&self) -> Option<&'static str> {
        let engines = self.engines();
        let busy = engines.iter().find_map(|engine| engine.busy_part());
        busy.or_else(|| (self.calls.load(Ordering::SeqCst) > 0).then_some("requests"))
    }

    pub(super) fn register(&self, engine: Weak<dyn MovedByTest>) {
        let mut engines = self.engines.lock();
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(engine);
    }

    pub(super) fn engines(&self) -> Vec<Arc<dyn MovedByTest>> {
        let engines = self.engines.lock();
        engines.iter().filter_map(Weak::upgrade).collect()
    }

    /// Does what [`Machine::park_until`](crate::sys::Machine::park_until) says.
    pub(super) fn park_until(&self, until: Time) {
        let this = thread::current();
        self.sleepers.lock().push(this.clone());
        // From here on, a move of the clock unparks this thread.
        real::park_for(until.since(self.now()));
        self.sleepers.lock().retain(|other| other.id() != this.id());
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestClock").field(&self.added()).finish()
    }
}
