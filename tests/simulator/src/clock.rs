//! Clocks, which differ in what they show and in how fast they go.

use std::time::Duration;

/// A clock. Its user gives it the true time, since the begin of the schedule.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The time that it showed at the last change.
    shown: Duration,
    /// The true time of that change.
    changed_at: Duration,
    /// How much faster it is than the true time, in millionths.
    drift: i64,
}

/// The promises hold if the rates of two clocks differ by less than this, in millionths: 1 %, as `lib.rs` says. The numbers of
/// the library itself are not used to judge it.
pub(crate) const ASSUMED_DRIFT: u32 = 10_000;
const MILLION: i128 = 1_000_000;

impl Clock {
    pub fn new(shown: Duration, drift: i64) -> Self {
        Self {
            shown,
            changed_at: Duration::ZERO,
            drift,
        }
    }

    pub fn read(&self, true_time: Duration) -> Duration {
        let passed = true_time.saturating_sub(self.changed_at);
        self.shown + scaled(passed, MILLION + i128::from(self.drift), MILLION)
    }

    /// Returns the true time in which the clock goes on by `shown`, rounded up.
    pub fn true_length(&self, shown: Duration) -> Duration {
        let length = scaled(shown, MILLION, MILLION + i128::from(self.drift));
        length + Duration::from_nanos(1)
    }

    /// Has the clock lose a fifth of the time, from the begin.
    pub(crate) fn slow_down(&mut self) {
        self.drift -= 200_000;
    }

    /// Sets the clock forward.
    pub fn jump(&mut self, true_time: Duration, by: Duration) {
        self.shown = self.read(true_time) + by;
        self.changed_at = true_time;
    }

    /// Sets the clock back.
    pub(crate) fn set_back(&mut self, true_time: Duration, by: Duration) {
        self.shown = self.read(true_time).saturating_sub(by);
        self.changed_at = true_time;
    }
}

fn scaled(length: Duration, times: i128, parts: i128) -> Duration {
    let nanos = i128::try_from(length.as_nanos()).unwrap_or(i128::MAX / MILLION);
    let scaled = u64::try_from(nanos.saturating_mul(times) / parts);
    Duration::from_nanos(scaled.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_on_a_clock_that_drifts_ends_when_the_clock_says_so() {
        for drift in [-5_000, -1, 0, 1, 5_000] {
            let mut clock = Clock::new(Duration::from_secs(7), drift);
            clock.jump(Duration::from_secs(1), Duration::from_secs(2));
            let (begun, wait) = (Duration::from_secs(3), Duration::from_millis(1_234));
            let end = begun + clock.true_length(wait);
            assert!(clock.read(end) >= clock.read(begun) + wait);
            let before = end.saturating_sub(Duration::from_micros(1));
            assert!(clock.read(before) < clock.read(begun) + wait);
        }
    }
}
