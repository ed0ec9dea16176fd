//! The clock of a test kit: the machine's, and what the test has added.
//!
//! Each kit has one. Its managers read it too:
//!
//! | reads the time | by |
//! | --- | --- |
//! | the engine | its [`EngineClock`](crate::clock::EngineClock) |
//! | the store | [`SystemClock`], which shows the added time too during each call of the store ([`AddedTime::enter`]) |
//! | a thread that sleeps | it wakes often while there is a test kit ([`crate::sync`]), and looks |

use std::fmt;
use std::time::Duration;

use crate::added_time::AddedTime;
use crate::clock::{Clock, SystemClock, Time};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};

#[derive(Default)]
pub(crate) struct TestClock {
    pub(crate) added: AddedTime,
    /// The engines that read it.
    engines: Mutex<Vec<Weak<dyn OnTestClock>>>,
    /// When the test last did something to the locks, in nanoseconds of this clock.
    disturbed_at: AtomicU64,
}

/// A part of the program that reads the clock, and sleeps until a time that it shows.
pub(crate) trait OnTestClock: Send + Sync {
    /// Wakes the threads that sleep until some time.
    fn look_at_the_clock(&self);

    /// Returns whether nothing is due, and no thread is busy with something that was due.
    fn is_at_rest(&self) -> bool;

    /// Returns the length of the shortest lease that is renewed.
    fn shortest_lease(&self) -> Option<Duration>;
}

impl TestClock {
    /// Moves the clock forward. Nothing happens at the times in between.
    pub(crate) fn advance(&self, by: Duration) {
        self.added.add(by);
        self.wake_all();
    }

    /// Has the managers renew all their leases, because the test has done something to the locks.
    pub(crate) fn disturb(&self) {
        let now = self.now().as_nanos();
        self.disturbed_at.fetch_max(now, Ordering::SeqCst);
        self.wake_all();
    }

    pub(crate) fn disturbed_at(&self) -> Time {
        Time::from_nanos(self.disturbed_at.load(Ordering::SeqCst))
    }

    pub(crate) fn register(&self, engine: Weak<dyn OnTestClock>) {
        let mut engines = self.engines.lock();
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(engine);
    }

    pub(crate) fn engines(&self) -> Vec<Arc<dyn OnTestClock>> {
        let engines = self.engines.lock();
        engines.iter().filter_map(Weak::upgrade).collect()
    }

    fn wake_all(&self) {
        for engine in self.engines() {
            engine.look_at_the_clock();
        }
    }
}

impl Clock for TestClock {
    fn now(&self) -> Time {
        // On this thread the machine's clock may show the added time of another kit, or of this one.
        let _entered = self.added.enter();
        SystemClock.now()
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestClock").field(&self.added.get()).finish()
    }
}
