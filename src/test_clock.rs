//! The clock of a test kit: the machine's, and what the test has added.
//!
//! Each kit has one. Its managers read it too:
//!
//! | reads the time | by |
//! | --- | --- |
//! | the engine | its [`EngineClock`](crate::clock::EngineClock) |
//! | the store | [`SystemClock`], which shows the added time too during each call of the store, and on the threads that the call starts ([`AddedTime::enter`]) |
//! | a thread that sleeps until some time | it looks at this clock again whenever the test moves it |

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::added_time::{AddedTime, EnteredTime};
use crate::clock::{Clock, LONGEST_SLEEP, SystemClock, Time};
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, Thread, Weak, thread};

/// The clock and the servers, which all managers of a test kit share.
#[derive(Clone)]
pub(crate) struct TestKit {
    pub(crate) clock: Arc<TestClock>,
    /// The servers, which live as long as their last manager.
    #[expect(dead_code, reason = "it keeps them alive")]
    pub(crate) servers: Arc<dyn Any + Send + Sync>,
}

#[derive(Default)]
pub(crate) struct TestClock {
    pub(crate) added: AddedTime,
    /// The engines that read it.
    engines: Mutex<Vec<Weak<dyn OnTestClock>>>,
    /// The threads that sleep until some time of this clock.
    sleepers: Mutex<Vec<Thread>>,
    /// The number of calls of stores that have not returned.
    calls: AtomicU32,
}

/// A call of a store, which reads this clock until it is dropped.
pub(crate) struct StoreCall<'a> {
    clock: &'a TestClock,
    _entered: EnteredTime,
}

/// A part of the program that reads the clock, and sleeps until a time that it shows.
pub(crate) trait OnTestClock: Send + Sync {
    /// Wakes its threads that sleep until some time.
    fn look_at_the_clock(&self);

    /// Has all leases renewed at once.
    fn renew_all(&self);

    /// Returns what is due, or what a thread is busy with that was due.
    fn busy_part(&self) -> Option<&'static str>;

    /// Returns the length of the shortest lease that is renewed, or of a lease with the default settings if that is
    /// shorter.
    fn shortest_lease(&self) -> Duration;
}

impl TestClock {
    /// Moves the clock forward. Nothing happens at the times in between.
    pub(crate) fn advance(&self, by: Duration) {
        self.added.add(by);
        for engine in self.engines() {
            engine.look_at_the_clock();
        }
        for sleeper in self.sleepers.lock().iter() {
            sleeper.unpark();
        }
    }

    /// Has the managers renew all their leases, because the test has done something to the locks.
    pub(crate) fn renew_all(&self) {
        for engine in self.engines() {
            engine.renew_all();
        }
    }

    /// Begins a call of a store.
    pub(crate) fn call(&self) -> StoreCall<'_> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        StoreCall {
            clock: self,
            _entered: self.added.enter(),
        }
    }

    /// Returns what the managers have still to do, if there is anything.
    pub(crate) fn busy_part(&self) -> Option<&'static str> {
        let engines = self.engines();
        let busy = engines.iter().find_map(|engine| engine.busy_part());
        busy.or_else(|| (self.calls.load(Ordering::SeqCst) > 0).then_some("requests"))
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
}

impl Drop for StoreCall<'_> {
    fn drop(&mut self) {
        self.clock.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Time {
        // On this thread the machine's clock may show the added time of another kit, or of this one.
        let _entered = self.added.enter();
        SystemClock.now()
    }

    fn us(&self) -> u64 {
        let _entered = self.added.enter();
        SystemClock.us()
    }

    fn park_until(&self, until: Time) {
        let this = thread::current();
        self.sleepers.lock().push(this.clone());
        // From here on, a move of the clock unparks this thread.
        let left = until.since(self.now());
        if !left.is_zero() {
            thread::park_timeout(left.min(LONGEST_SLEEP));
        }
        self.sleepers.lock().retain(|other| other.id() != this.id());
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestClock").field(&self.added.get()).finish()
    }
}

impl fmt::Debug for TestKit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clock.fmt(f)
    }
}
