//! The machine that a thread runs on: the real one, or with the feature `seam` one that a test has made.
//!
//! | a thread | runs on |
//! | --- | --- |
//! | of the library | the machine of the thread that has started it |
//! | of the program, while it asks a server | the machine of its manager ([`Machine::begin_call`]) |
//! | of the program, otherwise | the real one |
//!
//! The engine asks the machine of its manager, because a guard may be used on any thread of the program. Threads of the
//! library, and the layers below the engine, ask the machine of their thread, by [`Time::now`] and [`wall_us`].
//!
//! Without the feature `seam`, a machine is a value without a size, and these functions are the system's. With it, a real
//! machine is an `Option` that is `None`: a manager that runs on it does the same, after one look at it.

#[cfg(any(test, feature = "seam"))]
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::Arc;
#[cfg(feature = "seam")]
use super::Weak;
use super::random::Rng;
use super::test_machine::TestMachine;
#[cfg(feature = "seam")]
use super::test_machine::{self, MovedByTest, TestNetwork, TestScheduler};
use super::time::Time;

/// The machine of a manager, a thread or a call.
#[derive(Clone, Default)]
pub(crate) struct Machine {
    #[cfg(any(test, feature = "seam"))]
    of_test: Option<Arc<dyn TestMachine>>,
}

/// The machine of a thread before it entered another one. Its drop brings it back.
pub(crate) struct Entered {
    before: Machine,
    /// The machine that counts this call.
    called: Option<Machine>,
}

#[cfg(any(test, feature = "seam"))]
thread_local! {
    static HERE: RefCell<Machine> = const { RefCell::new(Machine { of_test: None }) };
}

#[cfg(any(test, feature = "seam"))]
impl Machine {
    pub(crate) fn new(of_test: Arc<dyn TestMachine>) -> Self {
        Self {
            of_test: Some(of_test),
        }
    }

    /// Returns the machine of this thread.
    #[inline]
    pub(crate) fn here() -> Self {
        // A guard may be dropped when the thread has ended so far that this is over.
        let here = HERE.try_with(|here| here.borrow().clone());
        here.unwrap_or_default()
    }

    /// Makes this the machine of this thread, and returns the one before.
    fn replace(self) -> Self {
        let before = HERE.try_with(|here| here.replace(self));
        before.unwrap_or_default()
    }

    /// Returns what a test has made, or `None` if this is the real machine.
    fn of_test(&self) -> Option<&Arc<dyn TestMachine>> {
        self.of_test.as_ref()
    }

    /// Returns what decides which thread runs, if that is not the operating system.
    #[inline]
    #[cfg(feature = "seam")]
    pub(super) fn scheduler(&self) -> Option<&dyn TestScheduler> {
        self.of_test()?.scheduler()
    }
}

/// There is only the real machine.
#[cfg(not(any(test, feature = "seam")))]
#[allow(clippy::unused_self, reason = "with the feature they use it")]
impl Machine {
    pub(crate) fn here() -> Self {
        Self {}
    }

    fn replace(self) -> Self {
        self
    }

    fn of_test(&self) -> Option<&Arc<dyn TestMachine>> {
        None
    }
}

impl Machine {
    /// Makes this thread run on this machine until the result is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Entered {
        Entered {
            before: self.clone().replace(),
            called: None,
        }
    }

    /// Does the same for a call that may ask a server. Blocks while a test moves the clock, unless this is a thread of the
    /// library, which has entered already.
    #[inline]
    pub(crate) fn begin_call(&self) -> Entered {
        let called = self.of_test().filter(|_| Self::here().of_test().is_none());
        if let Some(machine) = called {
            machine.call_begins();
        }
        let mut entered = self.enter();
        entered.called = called.map(|_| self.clone());
        entered
    }

    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.of_test()
            .map_or_else(real::now, |machine| machine.now())
    }

    /// Returns the time of the clock that programs read.
    pub(crate) fn instant(&self) -> Instant {
        self.of_test()
            .map_or_else(Instant::now, |machine| machine.instant())
    }

    /// Returns the time of day, in µs since 1970. Only fences depend on it.
    pub(crate) fn wall_us(&self) -> u64 {
        self.of_test()
            .map_or_else(real::wall_us, |machine| machine.wall_us())
    }

    /// Returns an error if a test has the next thread refused.
    pub(super) fn may_start_thread(&self) -> io::Result<()> {
        self.of_test()
            .map_or(Ok(()), |machine| machine.may_start_thread())
    }

    /// Tells a test of an engine that runs on this machine.
    #[cfg(feature = "seam")]
    pub(crate) fn register(&self, engine: Weak<dyn MovedByTest>) {
        if let Some(machine) = self.of_test() {
            machine.register(engine);
        }
    }

    /// Returns the machine of a manager that is about to be made.
    #[cfg(feature = "seam")]
    pub(crate) fn new_process(&self) -> Self {
        let process = self.of_test().and_then(|machine| machine.new_process());
        process.map_or_else(|| self.clone(), Self::new)
    }

    /// Takes the network from its manager, if a test has made the machine for that.
    #[cfg(feature = "seam")]
    pub(crate) fn kill(&self) -> bool {
        self.of_test().is_some_and(|machine| machine.kill())
    }

    /// Returns the network in memory, if the machine has one.
    #[cfg(feature = "seam")]
    pub(super) fn network(&self) -> Option<Arc<dyn TestNetwork>> {
        self.of_test()?.network()
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        std::mem::take(&mut self.before).replace();
        let called = self.called.as_ref();
        if let Some(machine) = called.and_then(Machine::of_test) {
            machine.call_ends();
        }
    }
}

/// The random numbers of the system, or of a scheduler of a test.
impl Rng for Machine {
    fn uuid(&self) -> Uuid {
        #[cfg(feature = "seam")]
        if let Some(scheduler) = self.scheduler() {
            return test_machine::uuid(scheduler);
        }
        Uuid::new_v4()
    }

    fn bits(&self) -> u64 {
        #[cfg(feature = "seam")]
        if let Some(scheduler) = self.scheduler() {
            return scheduler.random();
        }
        real::bits()
    }

    fn jitter(&self) -> u64 {
        #[cfg(feature = "seam")]
        if let Some(scheduler) = self.scheduler() {
            return scheduler.random();
        }
        real::jitter()
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine")
    }
}

impl Time {
    /// Returns the time of this thread's machine.
    #[inline]
    pub(crate) fn now() -> Self {
        Machine::here().now()
    }

    /// Returns the time that has passed since this instant.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }
}

/// Returns the time of day of this thread's machine: see [`Machine::wall_us`].
pub(crate) fn wall_us() -> u64 {
    Machine::here().wall_us()
}

/// The real machine.
pub(crate) mod real {
    use std::time::{SystemTime, UNIX_EPOCH};

    use once_cell::sync::OnceCell;
    use uuid::Uuid;

    use crate::sys::time::Time;
    use crate::sys::{AtomicU64, Ordering};

    /// Returns the time.
    #[inline]
    pub(crate) fn now() -> Time {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        // Other systems have no such clock by this name. On macOS, the monotonic clock runs through suspend too.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(id);
        // Both fields are at least 0, because these clocks count from the start of the machine.
        Time::from_nanos(
            now.tv_sec
                .unsigned_abs()
                .saturating_mul(1_000_000_000)
                .saturating_add(now.tv_nsec.unsigned_abs()),
        )
    }

    /// Returns the time of day, in µs since 1970.
    pub(crate) fn wall_us() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(1, |since| u64::try_from(since.as_micros()).unwrap_or(1))
    }

    /// Returns 64 random bits.
    pub(crate) fn bits() -> u64 {
        // A UUID has six fixed bits: four at the end of its first half, and two at the beginning of its second half.
        let (first, second) = Uuid::new_v4().as_u64_pair();
        first & !0xffff | second & 0xffff
    }

    /// Returns the next number of `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014),
    /// which starts from a number of the system.
    pub(crate) fn jitter() -> u64 {
        static STATE: OnceCell<AtomicU64> = OnceCell::new();
        let state = STATE.get_or_init(|| AtomicU64::new(bits()));
        let mut z = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::test_machine::manual::ManualClock;

    #[test]
    fn the_clock_moves_forward() {
        let first = Time::now();
        let second = Time::now();
        assert!(second >= first);
        assert!(first > Time::from_nanos(0));
    }

    #[test]
    fn a_thread_runs_on_the_machine_of_the_one_that_started_it() {
        let start = Time::from_nanos(7);
        let machine = Machine::new(Arc::new(ManualClock::starting_at(start)));
        let inside = {
            let _entered = machine.enter();
            let (told, inside) = std::sync::mpsc::channel();
            let tell = move || told.send(Time::now()).expect("the test listens");
            crate::sys::thread::spawn("", tell).expect("a thread");
            let _real = Machine::default().enter();
            assert!(Time::now() > start);
            inside
        };
        assert_eq!(inside.recv(), Ok(start));
        assert!(Time::now() > start);
    }

    #[test]
    fn none_of_the_64_bits_is_fixed() {
        let (mut zeros, mut ones) = (0, 0);
        for _ in 0..200 {
            let bits = real::bits();
            (zeros, ones) = (zeros | !bits, ones | bits);
        }
        assert_eq!((zeros, ones), (u64::MAX, u64::MAX));
    }
}
