//! The verdict of a soak: a line through the samples after the warm-up.

#![allow(
    clippy::cast_precision_loss,
    reason = "the numbers are far below 2 to the power of 52"
)]

use std::fmt;

use crate::record::Sample;

/// The first samples, one in this many, do not count: pools, tables and the allocator fill meanwhile.
const WARM_UP: usize = 4;

/// How a number of the samples goes on.
///
/// It grows if two things are true. In the time after the warm-up, the line rises by more than the tolerance. And the slope is
/// more than three times its standard error, so it is no accident of a few samples.
pub(crate) struct Trend {
    what: &'static str,
    mean: f64,
    /// How much the line rises from its begin to its end.
    rise: f64,
    rise_an_hour: f64,
    /// The standard error of `rise`.
    error: f64,
    tolerance: f64,
}

impl Trend {
    /// Returns the trends of the memory, the descriptors and the threads.
    pub(crate) fn of(samples: &[&Sample]) -> [Self; 3] {
        let samples = &samples[samples.len() / WARM_UP..];
        let trend = |what, value: fn(&Sample) -> u64, tolerance| {
            let points = samples
                .iter()
                .map(|it| (it.seconds as f64, value(it) as f64));
            Self::through(what, &points.collect::<Vec<_>>(), tolerance)
        };
        [
            trend("resident kB", |it| it.resident_kb, 2_048.0),
            trend("descriptors", |it| it.descriptors, 6.0),
            trend("threads", |it| it.threads, 3.0),
        ]
    }

    fn through(what: &'static str, points: &[(f64, f64)], tolerance: f64) -> Self {
        let count: f64 = points.iter().map(|_| 1.0).sum();
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (at, value) = (mean(|it| it.0), mean(|it| it.1));
        let spread: f64 = points.iter().map(|it| (it.0 - at).powi(2)).sum();
        let slope = points
            .iter()
            .map(|it| (it.0 - at) * (it.1 - value))
            .sum::<f64>()
            / spread.max(f64::MIN_POSITIVE);
        let line = |x: f64| value + slope * (x - at);
        let residuals: f64 = points.iter().map(|it| (it.1 - line(it.0)).powi(2)).sum();
        let slope_error = (residuals / (count - 2.0) / spread).sqrt();
        let length = match points {
            [first, .., last] => last.0 - first.0,
            _ => 0.0,
        };
        Self {
            what,
            mean: value,
            rise: slope * length,
            rise_an_hour: slope * 3_600.0,
            error: slope_error * length,
            tolerance,
        }
    }

    /// Returns the slope of the line, for a minute.
    pub(crate) fn a_minute(&self) -> f64 {
        self.rise_an_hour / 60.0
    }

    pub(super) fn grows(&self) -> bool {
        // The error of two samples is no number, so they do not grow.
        self.rise > self.tolerance && self.rise > 3.0 * self.error
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            mean,
            rise,
            rise_an_hour,
            error,
            tolerance,
        } = self;
        let verdict = if self.grows() { "grows" } else { "flat" };
        write!(
            f,
            "{what}: {verdict}; mean {mean:.0}, {rise:+.1} ± {error:.1} after the warm-up (tolerance {tolerance:.0}), \
             {rise_an_hour:+.1} an hour"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(value: impl Fn(u32) -> f64) -> Vec<(f64, f64)> {
        (0..200)
            .map(|number| (f64::from(number) * 5.0, value(number)))
            .collect()
    }

    #[test]
    fn a_leak_is_found_and_noise_is_none() {
        let noise = |number: u32| f64::from(number * 7_919 % 13);
        let grows = |value: &dyn Fn(u32) -> f64| Trend::through("it", &points(value), 6.0).grows();
        assert!(grows(&|number| 50.0
            + noise(number)
            + f64::from(number) / 10.0));
        assert!(!grows(&|number| 50.0 + noise(number)));
        assert!(!grows(
            &|number| 90.0 + noise(number) - f64::from(number) / 10.0
        ));
        let line = Trend::through("it", &points(f64::from), 6.0);
        assert!((line.a_minute() - 12.0).abs() < 1e-6, "{line}");
        // It rises by too little.
        assert!(!grows(&|number| 50.0 + f64::from(number) / 100.0));
    }
}
