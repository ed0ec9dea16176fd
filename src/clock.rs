//! The clock of a lease's holder.
//!
//! Leases are measured on a clock that runs through suspend: on Linux `CLOCK_BOOTTIME` (`clock_gettime(2)`). A laptop
//! that slept through its lease has lost the lock. The usual monotonic clock stops during suspend, so it would not show
//! that.

use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "testing")]
use crate::added_time::AddedTime;
use crate::sync::thread;

/// The longest sleep of a thread. While the machine is suspended, this clock goes on, but the time of a sleep does not. So a
/// thread looks at the clock at least as often, and notices a resume.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// An instant, in nanoseconds of the holder's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Time(u64);

impl Time {
    /// An instant after all others: the deadline of a wait without a time limit.
    pub(crate) const NEVER: Time = Time(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` until this instant. Returns zero if this instant is not later.
    pub(crate) fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates: an instant that is `Duration::MAX` later is [`Time::NEVER`].
    fn add(self, length: Duration) -> Time {
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, length: Duration) -> Time {
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(nanos))
    }
}

/// Returns a length in whole milliseconds, rounded up, because Redis rejects a time to live of zero. Saturates.
pub(crate) const fn ms_rounded_up(length: Duration) -> u64 {
    // `Duration::as_millis` divides a number of 128 bits.
    let part = length.subsec_nanos().div_ceil(1_000_000) as u64;
    length.as_secs().saturating_mul(1_000).saturating_add(part)
}

/// Returns this process's wall-clock time, in µs since 1970. Only fences depend on it.
pub(crate) fn clock_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let us = since.map_or(1, |since| u64::try_from(since.as_micros()).unwrap_or(1));
    us.saturating_add(added_here().as_micros() as u64)
}

/// Returns the time that a test kit has added to the clocks on this thread.
#[inline]
fn added_here() -> Duration {
    #[cfg(feature = "testing")]
    let added = AddedTime::here().map_or(Duration::ZERO, |added| added.get());
    #[cfg(not(feature = "testing"))]
    let added = Duration::ZERO;
    added
}

/// Has a function read the clocks that this thread reads, on whatever thread it runs.
pub(crate) fn on_this_clock<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    #[cfg(feature = "testing")]
    let added = AddedTime::here();
    move || {
        #[cfg(feature = "testing")]
        let _entered = added.as_ref().map(AddedTime::enter);
        body()
    }
}

/// A source of the current time. Tests use a clock that they move.
pub(crate) trait Clock: Send + Sync {
    fn now(&self) -> Time;

    /// Returns the time since 1970 in µs.
    fn us(&self) -> u64 {
        clock_us()
    }

    /// Blocks until the thread is unparked, or until then, for at most [`LONGEST_SLEEP`]. May return earlier.
    fn park_until(&self, until: Time) {
        let left = until.since(self.now());
        if !left.is_zero() {
            thread::park_timeout(left.min(LONGEST_SLEEP));
        }
    }
}

/// The machine's clock.
#[derive(Debug, Default)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Time {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        // Other systems have no such clock by this name. On macOS, the monotonic clock runs through suspend too.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(id);
        // Both fields are at least 0, because these clocks count from the start of the machine.
        let now = Time(
            now.tv_sec
                .unsigned_abs()
                .saturating_mul(1_000_000_000)
                .saturating_add(now.tv_nsec.unsigned_abs()),
        );
        #[cfg(feature = "testing")]
        let now = now + added_here();
        now
    }
}

/// The clock of an engine. Each check of a guard reads it, so the machine's clock is called directly, and not through a
/// trait object.
pub(crate) enum EngineClock {
    System,
    #[cfg(any(test, feature = "testing"))]
    OfTest(crate::sync::Arc<dyn Clock>),
}

impl Clock for EngineClock {
    #[inline]
    fn now(&self) -> Time {
        match self {
            Self::System => SystemClock.now(),
            #[cfg(any(test, feature = "testing"))]
            Self::OfTest(clock) => clock.now(),
        }
    }

    fn us(&self) -> u64 {
        match self {
            Self::System => SystemClock.us(),
            #[cfg(any(test, feature = "testing"))]
            Self::OfTest(clock) => clock.us(),
        }
    }

    fn park_until(&self, until: Time) {
        match self {
            Self::System => SystemClock.park_until(until),
            #[cfg(any(test, feature = "testing"))]
            Self::OfTest(clock) => clock.park_until(until),
        }
    }
}

#[cfg(test)]
pub(crate) mod manual {
    use super::{Clock, Time};
    use crate::sync::{AtomicU64, Ordering};
    use std::time::Duration;

    /// A clock that moves only when a test advances it.
    #[derive(Debug)]
    pub(crate) struct ManualClock(AtomicU64);

    impl ManualClock {
        pub(crate) fn starting_at(start: Time) -> Self {
            Self(AtomicU64::new(start.as_nanos()))
        }

        pub(crate) fn advance(&self, by: Duration) {
            let nanos = u64::try_from(by.as_nanos()).expect("a test's step fits");
            self.0.fetch_add(nanos, Ordering::SeqCst);
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Time {
            Time::from_nanos(self.0.load(Ordering::SeqCst))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_saturates() {
        assert_eq!(SystemClock.now() + Duration::MAX, Time::NEVER);
        assert_eq!(Time::from_nanos(5) - Duration::MAX, Time::from_nanos(0));
    }

    #[test]
    fn a_part_of_a_millisecond_counts_as_one() {
        for nanos in [0, 1, 999_999, 1_000_000, 1_000_001, 86_400_000_000_000] {
            let length = Duration::from_nanos(nanos);
            assert_eq!(ms_rounded_up(length), nanos.div_ceil(1_000_000));
        }
        assert_eq!(ms_rounded_up(Duration::MAX), u64::MAX);
    }

    #[test]
    fn the_clock_moves_forward() {
        let first = SystemClock.now();
        let second = SystemClock.now();
        assert!(second >= first);
        assert!(first > Time::from_nanos(0));
    }
}
