//! The verdict of a soak: does the process use more and more?
//!
//! A line through the points of the second half of a run says how fast a number rises. The first half does not count: the
//! pools fill meanwhile, the threads touch their stacks, and the allocator spreads out until it finds room again for whatever
//! the faults make it hold at once.
//!
//! No two single points are compared, because faults open and close dozens of connections at any time. Nor does the line alone
//! judge: by accident, a short run rises as fast as a leak. So the verdict asks between which bounds the true slope is. The
//! points after one another are alike, and a line through all of them seems surer than it is. Means of a twentieth of the
//! run each are nearly independent, and the scatter of ten of those around the line gives the bounds.
//!
//! | the bounds of the slope | verdict |
//! | --- | --- |
//! | both below half of the smallest leak that must be found | steady |
//! | both above zero, and the upper one is not below that half | grows |
//! | otherwise | undecided: the run was too short, or too restless |
//!
//! A run passes only if it is steady in everything. So it has to show that nothing leaks; that no leak was seen is not enough.

#![allow(
    clippy::cast_precision_loss,
    reason = "the numbers are far below 2 to the power of 52"
)]

use std::fmt;

use crate::record::Soak;

/// The number of means in the second half of a run.
const MEANS: usize = 10;
/// The slope is within this many of its standard errors with 95 %: Student's t with two degrees of freedom less than means.
const STUDENT: f64 = 2.306;

/// How a number of the points goes on.
pub(crate) struct Trend {
    what: &'static str,
    mean: f64,
    /// The slope of the line in a minute, and how far the bounds are from it.
    pub(crate) a_minute: f64,
    pub(crate) within: f64,
    /// The smallest leak that must be found, in a minute.
    leak: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Steady,
    Undecided,
    Grows,
}

impl Verdict {
    /// Returns the verdict of a whole run.
    pub(crate) fn of(run: &Soak) -> Self {
        let verdicts = Trend::all(run).map(|trend| trend.verdict());
        verdicts.into_iter().fold(Self::Steady, Self::max)
    }
}

impl Trend {
    /// Returns the trends of the memory, the descriptors and the threads.
    pub(crate) fn all(run: &Soak) -> [Self; 3] {
        let minutes = run.seconds as f64 / 60.0;
        [
            // 1 KiB in a second.
            Self::through("memory, KiB", &run.memory_kib, minutes, 60.0),
            Self::through("descriptors", &run.descriptors, minutes, 1.0),
            Self::through("threads", &run.threads, minutes, 1.0),
        ]
    }

    /// Returns the trend of points that are equally far from one another.
    fn through(what: &'static str, points: &[f64], minutes: f64, leak: f64) -> Self {
        let half = &points[points.len() / 2..];
        let means: Vec<_> = half
            .chunks_exact((half.len() / MEANS).max(1))
            .map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64)
            .collect();
        let count = means.len() as f64;
        let (centre, mean) = ((count - 1.0) / 2.0, means.iter().sum::<f64>() / count);
        // How far each mean is from the middle of the half, in means.
        let offsets = (0..means.len()).map(|number| number as f64 - centre);
        let both: Vec<_> = offsets.zip(&means).collect();
        let spread: f64 = both.iter().map(|(at, _)| at.powi(2)).sum();
        let slope = both.iter().map(|(at, value)| at * *value).sum::<f64>() / spread;
        let residual = |(at, value): &(f64, &f64)| (*value - mean - slope * at).powi(2);
        let residuals: f64 = both.iter().map(residual).sum();
        let error = (residuals / (count - 2.0) / spread).sqrt();
        let in_a_minute = count * 2.0 / minutes;
        Self {
            what,
            mean,
            a_minute: slope * in_a_minute,
            within: STUDENT * error * in_a_minute,
            leak,
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let (lower, upper) = (self.a_minute - self.within, self.a_minute + self.within);
        if upper < self.leak / 2.0 {
            Verdict::Steady
        } else if lower > 0.0 {
            Verdict::Grows
        } else {
            Verdict::Undecided
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Steady => "steady",
            Self::Undecided => "undecided",
            Self::Grows => "grows",
        })
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            mean,
            a_minute,
            within,
            leak,
        } = self;
        write!(
            f,
            "{what}: {}; mean {mean:.1}, {a_minute:+.2} ± {within:.2} a minute in the second half (a leak is {leak})",
            self.verdict()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const MINUTES: u16 = 120;
    /// The smallest leaks, in a minute.
    const NO_LEAK: [f64; 3] = [0.0; 3];
    const MEMORY: [f64; 3] = [60.0, 0.0, 0.0];
    const DESCRIPTORS: [f64; 3] = [0.0, 1.0, 0.0];
    const THREADS: [f64; 3] = [0.0, 0.0, 1.0];

    /// Returns a run that rises for half an hour, and leaks so much in a minute. Each point is like the one before it, as on
    /// real servers: the noise has the standard deviations and the memory of runs there.
    fn run(minutes: u16, [memory, descriptors, threads]: [f64; 3], seed: u64) -> Soak {
        const POINTS: u16 = 120;
        let mut random = Random::new(seed, 0);
        let mut series = |level: f64, noise: f64, leak: f64| {
            let mut wave = 0.0;
            (0..POINTS)
                .map(|point| {
                    let at = f64::from(point) * f64::from(minutes) / f64::from(POINTS);
                    // The sum of twelve is nearly normal, with a standard deviation of 1.
                    let twelve = (0..12).map(|_| random.within(0..1_000) as f64 / 1_000.0);
                    let shock = twelve.sum::<f64>() - 6.0;
                    wave = 0.6 * wave + 0.8 * noise * shock;
                    level * (1.0 - 0.2 * (-at / 10.0).exp()) + wave + leak * at
                })
                .collect()
        };
        Soak {
            seconds: u64::from(minutes) * 60,
            memory_kib: series(20_000.0, 400.0, memory),
            descriptors: series(95.0, 3.0, descriptors),
            threads: series(71.0, 0.7, threads),
            ..Soak::default()
        }
    }

    fn verdicts(minutes: u16, leaks: [f64; 3]) -> Vec<Verdict> {
        let runs = (0..200).map(|seed| run(minutes, leaks, seed));
        runs.map(|run| Verdict::of(&run)).collect()
    }

    fn count(verdicts: &[Verdict], expected: Verdict) -> usize {
        verdicts.iter().filter(|it| **it == expected).count()
    }

    #[test]
    fn two_hours_with_the_smallest_leak_grow_and_steady_ones_pass() {
        for leaks in [MEMORY, DESCRIPTORS, THREADS] {
            let verdicts = verdicts(MINUTES, leaks);
            assert_eq!(
                count(&verdicts, Verdict::Grows),
                verdicts.len(),
                "{leaks:?}"
            );
        }
        let steady = verdicts(MINUTES, NO_LEAK);
        assert_eq!(count(&steady, Verdict::Grows), 0);
        let passed = count(&steady, Verdict::Steady);
        assert!(passed * 100 >= steady.len() * 99, "{passed} pass");
    }

    #[test]
    fn a_run_that_is_too_short_does_not_pass_with_a_leak() {
        for minutes in [1, 5, 20, 60] {
            for leaks in [MEMORY, DESCRIPTORS] {
                let passed = count(&verdicts(minutes, leaks), Verdict::Steady);
                assert_eq!(passed, 0, "{minutes} min {leaks:?}");
            }
        }
    }

    #[test]
    fn the_slope_is_that_of_the_second_half() {
        let points: Vec<_> = (0..120).map(|it| f64::from(it.max(60))).collect();
        let line = Trend::through("it", &points, 60.0, 1.0);
        assert!((line.a_minute - 2.0).abs() < 1e-9, "{line}");
        assert!(line.within < 1e-9, "{line}");
    }

    #[test]
    fn a_run_without_points_is_undecided() {
        assert_eq!(Verdict::of(&Soak::default()), Verdict::Undecided);
    }
}
