//! Times that were measured, as `doctor` and `bench` show them. A histogram keeps each time to within 1 %, so any number
//! of times has the same size.

use std::fmt::Write as _;
use std::time::Duration;

use histogram::Histogram;
use serde_json::{Value, json};

/// The histogram divides each power of two into 2^7 buckets.
const GROUPING_POWER: u8 = 7;
/// The width of the longest bar of the histogram.
const LONGEST_BAR: u64 = 40;

/// Times that were measured.
#[derive(Clone)]
pub struct Figures {
    /// The times in ns.
    times: Histogram,
    count: u64,
    max: Duration,
}

impl Figures {
    pub fn new() -> Self {
        Self {
            times: Histogram::new(GROUPING_POWER, 64).expect("the powers are in their bounds"),
            count: 0,
            max: Duration::ZERO,
        }
    }

    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Each number of 64 bits has a bucket.
        let _ = self.times.increment(ns);
        self.count += 1;
        self.max = self.max.max(time);
    }

    pub fn add_all(&mut self, others: &Self) {
        // Both have the same powers.
        let _ = self.times.checked_add_assign(&others.times);
        self.count += others.count;
        self.max = self.max.max(others.max);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the time that this percentage of all times do not exceed. Returns zero if there are no times.
    pub fn percentile(&self, percent: u64) -> Duration {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.times.iter().find(|bucket| {
            seen += bucket.count();
            seen >= wanted
        });
        let time = bucket.map_or(0, |bucket| bucket.end());
        Duration::from_nanos(time).min(self.max)
    }

    /// Returns p50, p90, p99 and the maximum, as text.
    pub fn summary(&self) -> String {
        let at = |percent| brief(self.percentile(percent));
        format!(
            "p50 {}   p90 {}   p99 {}   max {}",
            at(50),
            at(90),
            at(99),
            brief(self.max)
        )
    }

    /// Returns p50, p90, p99 and the maximum in µs, and the histogram.
    pub fn json(&self) -> Value {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let bars: Vec<_> = self
            .bars()
            .iter()
            .map(|(end, count)| json!({"below_us": us(*end), "count": count}))
            .collect();
        json!({
            "count": self.count,
            "p50_us": us(self.percentile(50)),
            "p90_us": us(self.percentile(90)),
            "p99_us": us(self.percentile(99)),
            "max_us": us(self.max),
            "histogram": bars,
        })
    }

    /// Returns a line for each range of times: up to 100 µs, 200 µs, 500 µs, 1 ms, and so on.
    pub fn histogram(&self) -> String {
        let bars = self.bars();
        let most = bars
            .iter()
            .map(|(_, count)| *count)
            .max()
            .unwrap_or(1)
            .max(1);
        let mut text = String::new();
        for (end, count) in bars {
            let length = (count * LONGEST_BAR).div_ceil(most) as usize;
            let _ = writeln!(
                text,
                "  < {:>8}  {:<40}  {count}",
                brief(end),
                "#".repeat(length)
            );
        }
        text
    }

    /// Returns the ranges from that of the shortest time to that of the longest: the end of each, and its number of times.
    fn bars(&self) -> Vec<(Duration, u64)> {
        let used = self.times.iter().filter(|bucket| bucket.count() > 0);
        let mut bars: Vec<(u64, u64)> = Vec::new();
        for bucket in used {
            loop {
                match bars.last_mut() {
                    None => bars.push((next_end(bucket.start()), 0)),
                    Some((end, _)) if *end <= bucket.start() => {
                        let next = next_end(*end);
                        bars.push((next, 0));
                    }
                    Some((_, count)) => {
                        *count += bucket.count();
                        break;
                    }
                }
            }
        }
        let bars = bars.into_iter();
        bars.map(|(end, count)| (Duration::from_nanos(end), count))
            .collect()
    }
}

/// Returns the first end of a range that is larger: 1, 2 or 5 times a power of ten.
fn next_end(than: u64) -> u64 {
    let powers = (0..19).map(|power| 10_u64.pow(power));
    let ends = powers.flat_map(|power| [1, 2, 5].map(|digit| power * digit));
    let mut ends = ends.into_iter();
    ends.find(|end| *end > than).unwrap_or(u64::MAX)
}

/// Returns a short time with three digits: `850ns`, `12.3µs`, `1.23ms`, `250ms`, `2.50s`.
pub fn brief(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = match time.as_nanos() {
        ns @ 0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (seconds * 1e6, "µs"),
        1_000_000..1_000_000_000 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    let digits = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brief_time_has_three_digits() {
        let of = |ns| brief(Duration::from_nanos(ns));
        assert_eq!(of(850), "850ns");
        assert_eq!(of(12_345), "12.3µs");
        assert_eq!(of(1_234_567), "1.23ms");
        assert_eq!(of(250_000_000), "250ms");
        assert_eq!(of(2_500_000_000), "2.50s");
    }

    #[test]
    fn percentiles_and_bars_are_those_of_the_times() {
        let mut figures = Figures::new();
        assert_eq!(figures.percentile(99), Duration::ZERO);
        for us in 1..100 {
            figures.add(Duration::from_micros(us));
        }
        let near = |percent, us| {
            let found = figures.percentile(percent).as_secs_f64() * 1e6;
            (found - f64::from(us)).abs() < f64::from(us) * 0.02
        };
        assert!(near(50, 50) && near(99, 99) && near(100, 99));
        let us = Duration::from_micros;
        let ends: Vec<_> = figures.bars().iter().map(|(end, _)| *end).collect();
        assert_eq!(ends, [2, 5, 10, 20, 50, 100].map(us));
        let counts: u64 = figures.bars().iter().map(|(_, count)| count).sum();
        assert_eq!(counts, 99);
    }
}
