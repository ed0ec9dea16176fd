//! Lengths of time, recorded in buckets whose widths grow with the length.
//!
//! A [`Recorder`] is shared by all threads, which only add to atomic words. A [`Distribution`] is one reading of it.

use std::fmt;
use std::time::Duration;

use crate::sys::{AtomicU64, Ordering};

/// A group of lengths that are nearly equal: see [`Distribution::buckets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The longest length that belongs to the bucket. All lengths over three days are in the last bucket.
    pub upper: Duration,
    /// The number of lengths in the bucket.
    pub count: u64,
}

/// Recorded lengths of time: how many there were, and how long they were.
///
/// The shortest and the longest are exact. The lengths between them are known to about 3 %, up to three days. Lengths
/// over three days count as the longest. A distribution takes 11 KiB.
///
/// # Exporting it
///
/// [`count_at_most`](Distribution::count_at_most) and [`sum`](Distribution::sum) are what a histogram of Prometheus needs.
/// Both only rise from one reading of [`LockManager::stats`](crate::LockManager::stats) to the next. For the time between
/// two readings there is [`since`](Distribution::since), for several managers together [`merge`](Distribution::merge).
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// # use std::time::Duration;
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let waits = locks.stats().waits;
/// for ms in [1, 10, 100, 1_000, 10_000] {
///     let le = Duration::from_millis(ms);
///     let count = waits.count_at_most(le);
///     println!("wait_seconds_bucket{{le=\"{}\"}} {count}", le.as_secs_f64());
/// }
/// println!("wait_seconds_bucket{{le=\"+Inf\"}} {}", waits.count());
/// println!("wait_seconds_sum {}", waits.sum().as_secs_f64());
/// println!("wait_seconds_count {}", waits.count());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Distribution {
    /// How many lengths are in each bucket.
    counts: Box<[u64]>,
    count: u64,
    least: u64,
    greatest: u64,
}

impl Distribution {
    /// Returns how many lengths there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the shortest length, or zero if there was none.
    #[must_use]
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.least)
    }

    /// Returns the longest length, or zero if there was none.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.greatest)
    }

    /// Returns the mean, to within 2 %, or zero if there was no length.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)] // The error is far smaller than a bucket.
    pub fn mean(&self) -> Duration {
        if self.count == 0 {
            return Duration::ZERO;
        }
        let mean = (self.sum_of_middles() as f64 / self.count as f64) as u64;
        Duration::from_nanos(mean.clamp(self.least, self.greatest))
    }

    /// Returns the sum of all lengths, to within 2 %; a length over three days counts as three days.
    #[must_use]
    pub fn sum(&self) -> Duration {
        const SECOND: u128 = 1_000_000_000;
        let sum = self.sum_of_middles();
        let secs = u64::try_from(sum / SECOND).unwrap_or(u64::MAX);
        Duration::from_secs(secs) + Duration::from_nanos((sum % SECOND) as u64)
    }

    /// Returns the sum in nanoseconds, counting each length as the middle of its bucket. It is a whole number, so that
    /// it never falls while the counts rise.
    fn sum_of_middles(&self) -> u128 {
        let middle = |bounds: &Bounds| u128::midpoint(bounds.first.into(), bounds.last.into());
        filled(&self.counts)
            .map(|(bounds, count)| u128::from(count) * middle(&bounds))
            .sum()
    }

    /// Returns the buckets that have a length in them, the shortest first. Each is at most 3.2 % wide. Their counts are not
    /// cumulative, so together they are [`count`](Distribution::count).
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        filled(&self.counts).map(|(bounds, count)| Bucket {
            upper: Duration::from_nanos(bounds.last),
            count,
        })
    }

    /// Returns how many lengths were at most this, to within 3.2 % of `limit`, for a histogram with fixed buckets.
    ///
    /// A length may count although it is up to 3.2 % longer, but no shorter one is left out.
    #[must_use]
    pub fn count_at_most(&self, limit: Duration) -> u64 {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        if limit >= LONGEST {
            return self.count;
        }
        self.counts[..=bucket_of(limit)].iter().sum()
    }

    /// Returns what was added between an `earlier` reading of the same distribution and this one. Its
    /// [`min`](Distribution::min) and [`max`](Distribution::max) are known to 3.2 % only.
    ///
    /// A bucket whose earlier count is larger counts as zero: `earlier` may be that of another manager.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let both = self.counts.iter().zip(&earlier.counts);
        let counts: Box<[u64]> = both
            .map(|(now, before)| now.saturating_sub(*before))
            .collect();
        let least = filled(&counts).next().map_or(0, |(bounds, _)| bounds.first);
        let greatest = filled(&counts)
            .last()
            .map_or(0, |(bounds, _)| match bounds.last {
                // The last bucket has no upper end.
                LONGEST => self.greatest,
                end => end,
            });
        let count = counts.iter().sum();
        Self {
            counts,
            count,
            least: if count == 0 { 0 } else { least.max(self.least) },
            greatest: greatest.min(self.greatest),
        }
    }

    /// Returns both distributions together, as if all lengths had been recorded in one.
    #[must_use]
    pub fn merge(&self, others: &Self) -> Self {
        self.clone().and(others)
    }

    /// Returns the length that the part `q` of all lengths did not exceed: `0.5` gives the median, `1.0` the longest.
    /// The result is never too small, and at most 3.2 % too large. A `q` below 0 counts as 0, and a `q` above 1 as 1.
    /// Returns zero if there was no length.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)] // The error is far smaller than a bucket.
    pub fn quantile(&self, q: f64) -> Duration {
        // In this form a `q` that is not a number counts as 0.
        let q = if q > 0.0 { q.min(1.0) } else { 0.0 };
        let rank = ((q * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let found = filled(&self.counts).find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        let last = match found {
            // The last bucket has no upper end.
            Some((bounds, _)) if bounds.last < LONGEST => bounds.last,
            _ => self.greatest,
        };
        Duration::from_nanos(last.clamp(self.least, self.greatest))
    }
}

impl Distribution {
    /// Returns both distributions together, as [`merge`](Self::merge) does, without a copy.
    pub(super) fn and(mut self, others: &Self) -> Self {
        if self.count == 0 {
            return others.clone();
        }
        if others.count > 0 {
            for (count, more) in self.counts.iter_mut().zip(&others.counts) {
                *count += more;
            }
            self.count += others.count;
            self.least = self.least.min(others.least);
            self.greatest = self.greatest.max(others.greatest);
        }
        self
    }
}

impl fmt::Debug for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Distribution")
            .field("count", &self.count)
            .field("min", &self.min())
            .field("mean", &self.mean())
            .field("median", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

/// Each power of two is cut into as many parts as this power of two, 32: a part is 3.1 % wide. A length below 64 ns has a
/// bucket of its own.
const PARTS: u32 = 5;
/// The longest length that has a bucket is this power of two of nanoseconds, 78 hours.
const POWERS: u32 = 48;
const LONGEST: u64 = (1 << POWERS) - 1;
const BUCKETS: usize = ((POWERS - PARTS + 1) << PARTS) as usize;

/// The shortest and the longest length of a bucket.
struct Bounds {
    first: u64,
    last: u64,
}

/// Returns the number of the bucket to which a length belongs.
fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.min(LONGEST);
    let shift = (nanos | 1 << PARTS).ilog2() - PARTS;
    ((shift as usize) << PARTS) + (nanos >> shift) as usize
}

/// Returns the bounds of the bucket with this number.
fn bounds_of(bucket: usize) -> Bounds {
    let shift = (bucket >> PARTS).saturating_sub(1);
    let first = ((bucket - (shift << PARTS)) as u64) << shift;
    let last = first + ((1 << shift) - 1);
    Bounds { first, last }
}

/// Returns the bounds and the count of each bucket that has a length in it, the shortest first.
fn filled(counts: &[u64]) -> impl Iterator<Item = (Bounds, u64)> + '_ {
    let all = counts.iter().enumerate();
    all.filter(|(_, count)| **count > 0)
        .map(|(bucket, count)| (bounds_of(bucket), *count))
}

/// A recorder of lengths of time, for all threads.
pub(crate) struct Recorder {
    counts: Box<[AtomicU64]>,
    least: AtomicU64,
    greatest: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            least: AtomicU64::new(u64::MAX),
            greatest: AtomicU64::new(0),
        }
    }
}

impl Recorder {
    pub(crate) fn record(&self, length: Duration) {
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        // Read first: these words seldom change, and a read does not disturb other cores.
        if nanos < self.least.load(Ordering::Relaxed) {
            self.least.fetch_min(nanos, Ordering::Relaxed);
        }
        if nanos > self.greatest.load(Ordering::Relaxed) {
            self.greatest.fetch_max(nanos, Ordering::Relaxed);
        }
        self.counts[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> Distribution {
        let counts = self.counts.iter();
        let counts: Box<[u64]> = counts.map(|count| count.load(Ordering::Relaxed)).collect();
        let count = counts.iter().sum();
        let greatest = self.greatest.load(Ordering::Relaxed);
        Distribution {
            counts,
            count,
            least: self.least.load(Ordering::Relaxed).min(greatest),
            greatest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn of_nothing_all_is_nothing() {
        let none = Recorder::default().load();
        assert_eq!(none.count(), 0);
        let all = [none.min(), none.max(), none.mean(), none.quantile(0.5)];
        assert_eq!(all, [Duration::ZERO; 4]);
    }

    #[test]
    fn whatever_is_asked_for_is_answered() {
        let recorder = Recorder::default();
        recorder.record(Duration::from_micros(7));
        recorder.record(Duration::MAX);
        let some = recorder.load();
        assert_eq!(some.count(), 2);
        assert_eq!(some.max(), Duration::from_nanos(u64::MAX));
        for high in [1.0, 2.0, f64::INFINITY] {
            assert_eq!(some.quantile(high), some.max());
        }
        for low in [0.0, -1.0, f64::NAN] {
            assert!(some.quantile(low) < Duration::from_nanos(7_300));
        }
        assert!(format!("{some:?}").contains("count: 2"));
    }

    #[test]
    fn two_of_them_are_one_of_all() {
        let (some, others) = (Recorder::default(), Recorder::default());
        for nanos in [7, 900, 50_000] {
            some.record(Duration::from_nanos(nanos));
        }
        others.record(Duration::from_nanos(3));
        let none = Recorder::default();
        let both = some.load().and(&others.load());
        assert_eq!(both.count(), 4);
        assert_eq!(both.min(), Duration::from_nanos(3));
        assert_eq!(both.max(), Duration::from_micros(50));
        assert_eq!(both.quantile(0.5), Duration::from_nanos(7));
        for all in [both.clone().and(&none.load()), none.load().and(&both)] {
            assert_eq!(format!("{all:?}"), format!("{both:?}"));
        }
    }

    #[test]
    fn a_difference_and_its_reading_merge_to_the_later_one() {
        let recorder = Recorder::default();
        let record = |nanos: &[u64]| {
            for &n in nanos {
                recorder.record(Duration::from_nanos(n));
            }
        };
        record(&[7, 900, 900]);
        let before = recorder.load();
        assert_eq!(before.since(&before).count(), 0);
        assert_eq!(before.since(&before).max(), Duration::ZERO);
        record(&[900, 50_000]);
        let after = recorder.load();
        let between = after.since(&before);
        let counts: Vec<_> = between.buckets().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [1, 1]);
        let upper = between.buckets().next().expect("it has two").upper;
        assert!((900..=928).contains(&upper.as_nanos()), "{upper:?}");
        assert!(
            (872..=900).contains(&between.min().as_nanos()),
            "{between:?}"
        );
        assert_eq!(between.max(), Duration::from_micros(50));
        let all = between.merge(&before);
        assert_eq!((all.count(), all.sum()), (after.count(), after.sum()));
        assert!(all.buckets().eq(after.buckets()));
        // Another recorder has counted less, so the difference is nothing.
        let none = Recorder::default().load().since(&after);
        assert_eq!(
            (none.count(), none.sum(), none.max()),
            (0, Duration::ZERO, Duration::ZERO)
        );
    }

    #[test]
    fn the_sum_is_near_and_bears_the_longest() {
        let recorder = Recorder::default();
        for nanos in [1_000_000, 2_000_000, 3_000_000] {
            recorder.record(Duration::from_nanos(nanos));
        }
        let sum = recorder.load().sum().as_nanos();
        assert!((5_880_000..=6_120_000).contains(&sum), "{sum}");
        for _ in 0..1000 {
            recorder.record(Duration::MAX);
        }
        assert!(recorder.load().sum() > Duration::from_hours(72_000));
    }

    #[test]
    fn a_distribution_is_as_small_as_it_says() {
        assert_eq!(size_of_val(&*Recorder::default().load().counts), 11 * 1024);
    }

    #[test]
    fn each_bucket_begins_where_the_one_before_ends() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let bounds = bounds_of(bucket);
            assert_eq!(bounds.first, next);
            assert_eq!(bucket_of(bounds.first), bucket);
            assert_eq!(bucket_of(bounds.last), bucket);
            next = bounds.last + 1;
        }
        assert_eq!(next, LONGEST + 1);
    }

    proptest! {
        /// Against the plain model: a sorted list.
        #[test]
        fn figures_are_as_near_as_they_say(
            mut lengths in proptest::collection::vec(
                // Of every order of magnitude alike.
                (0u32..47, 0u64..1 << 47).prop_map(|(less, nanos)| nanos >> less),
                1..200,
            ),
            q in 0.0f64..=1.0,
        ) {
            let recorder = Recorder::default();
            for nanos in &lengths {
                recorder.record(Duration::from_nanos(*nanos));
            }
            lengths.sort_unstable();
            let some = recorder.load();
            let nanos = |length: Duration| u64::try_from(length.as_nanos()).expect("it fits");
            prop_assert_eq!(some.count(), lengths.len() as u64);
            prop_assert_eq!(nanos(some.min()), lengths[0]);
            prop_assert_eq!(nanos(some.max()), lengths[lengths.len() - 1]);
            #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)]
            let rank = (q * lengths.len() as f64).ceil() as usize;
            let exact = lengths[rank.max(1) - 1];
            let found = nanos(some.quantile(q));
            prop_assert!(found >= exact && found <= exact + exact / 32, "{found} for {exact}");
            for limit in [exact, exact / 2, exact.saturating_mul(2)] {
                let found = some.count_at_most(Duration::from_nanos(limit));
                let at_most = |limit: u64| lengths.iter().filter(|nanos| **nanos <= limit).count() as u64;
                let bounds = at_most(limit)..=at_most(limit + limit / 31);
                prop_assert!(bounds.contains(&found), "{found} of {bounds:?}");
            }
            let exact = lengths.iter().sum::<u64>() / lengths.len() as u64;
            let found = nanos(some.mean());
            prop_assert!(found.abs_diff(exact) <= exact / 50 + 1, "{found} for {exact}");
        }
    }
}
