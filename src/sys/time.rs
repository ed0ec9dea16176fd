//! The clock of a lease's holder.
//!
//! Leases are measured on a clock that runs through suspend: on Linux `CLOCK_BOOTTIME` (`clock_gettime(2)`). A laptop
//! that slept through its lease has lost the lock. The usual monotonic clock stops during suspend, so it would not show
//! that.

use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

pub(crate) use std::time::SystemTime;

use super::machine::Machine;

/// The longest sleep of a thread. While the machine is suspended, this clock goes on, but the time of a sleep does not. So a
/// thread looks at the clock at least as often, and notices a resume.
pub const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Returns a time of day, from µs since 1970.
pub(crate) fn of_wall_us(us: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(us)
}

/// An instant, in nanoseconds of the holder's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// An instant after all others: the deadline of a wait without a time limit.
    pub const NEVER: Time = Time(u64::MAX);

    /// Returns the instant at this many nanoseconds of the clock.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds of the clock.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` until this instant. Returns zero if this instant is not later.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
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

/// Returns how long it is until this time of the program's own clock.
pub(crate) fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Machine::here().instant())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_saturates() {
        assert_eq!(Time::from_nanos(5) + Duration::MAX, Time::NEVER);
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
}
