//! What a manager has done so far, in figures.
//!
//! Recording is a few additions to atomic words, in no order with anything else, so it costs nanoseconds and nobody
//! waits for it. Many threads add to the same words, which is what costs: so a guard is counted by having its wait and
//! its hold recorded, each with its like, and not again.

use std::fmt;
use std::time::Duration;

use histogram::{AtomicHistogram, Histogram};

use crate::error::LostCause;
use crate::sync::{AtomicU64, Ordering};

/// What a manager has done since it was built: see [`LockManager::stats`](crate::LockManager::stats).
///
/// The figures are read one after the other while threads go on, so among them may be one that counts a guard which
/// another does not count yet. None ever falls, but [`held`](Stats::held) and [`waiting`](Stats::waiting).
///
/// What a guard and a lease are is said at [`Event`](crate::Event).
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// drop(locks.lock("orders:42")?);
/// let stats = locks.stats();
/// println!(
///     "{} guards, of which Redis was asked for {}; 99 % waited for less than {:?}",
///     stats.waits.count(),
///     stats.acquired,
///     stats.waits.quantile(0.99),
/// );
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Guards that Redis was asked for.
    pub acquired: u64,
    /// Guards that were handed out in memory, without a request.
    pub passed_on: u64,
    /// Guards that were ended while they held their lock, as far as this process knew.
    pub released: u64,
    /// Guards that there are now, those of lost leases too, but for those that were ended at their `max_hold`.
    pub held: u64,
    /// Calls that had to wait. A call that waits through an outage counts from the first reply "held".
    pub contended: u64,
    /// Calls that wait now. A call that waits through an outage counts from the first reply "held".
    pub waiting: u64,
    /// Tries that were answered "held".
    pub tries_held: u64,
    /// Waits that ended without the lock because their time was over.
    pub timed_out: u64,
    /// Calls for a lock that ended in an error.
    pub failed: u64,
    /// Locks that Redis has given to who was first in its queue, on the way out.
    pub handed_over: u64,
    /// Renewals that the server has confirmed, each of one lease, and extensions.
    pub renewed: u64,
    /// Renewals that were sent and not confirmed.
    pub renewals_failed: u64,
    /// Leases that ran out.
    pub lost_expired: u64,
    /// Leases that another owner has taken.
    pub lost_taken: u64,
    /// Leases whose key was removed.
    pub lost_removed: u64,
    /// Guards that were ended at their `max_hold`.
    pub lost_max_hold: u64,
    /// Guards that were held for longer than [`warn_after`](crate::Builder::warn_after).
    pub held_long: u64,
    /// Releases, and clearings of what an attempt may have left in Redis, that had to be sent once more.
    pub endings_repeated: u64,
    /// Requests, of whatever purpose, but for SUBSCRIBE.
    pub requests: u64,
    /// Events that were dropped because the listener was too slow, or could not be given a thread.
    pub events_dropped: u64,
    /// From a call to the moment at which the lock was its thread's; one for each guard.
    pub waits: Distribution,
    /// From then to its end; one for each guard that has ended.
    pub holds: Distribution,
    /// How late renewals were sent, by when they were due; one for each lease and renewal.
    pub renewal_lags: Distribution,
}

impl Stats {
    /// Returns how many guards were handed out: those that Redis was asked for, and those that were passed on in memory.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.acquired + self.passed_on
    }

    /// All that was lost, whatever the cause.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_expired + self.lost_taken + self.lost_removed + self.lost_max_hold
    }
}

/// Some lengths of time that are nearly equal: see [`Distribution::buckets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The longest that may be in it. All lengths over three days are in the last bucket.
    pub upper: Duration,
    /// How many there are in it.
    pub count: u64,
}

/// How many lengths of time there were, and how long they were.
///
/// The least and the greatest are exact. What is between is known to about 3 %, up to three days; above that all count
/// as the greatest. It takes 11 KiB.
///
/// # Exporting it
///
/// [`buckets`](Distribution::buckets) and [`sum`](Distribution::sum) are what a histogram of a metrics library needs. Both
/// only rise from one reading of [`LockManager::stats`](crate::LockManager::stats) to the next. For the time between two
/// readings there is [`since`](Distribution::since), for several managers together [`merge`](Distribution::merge).
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let before = locks.stats().waits;
/// // … a minute later …
/// let minute = locks.stats().waits.since(&before);
/// let mut at_most = 0;
/// for bucket in minute.buckets() {
///     at_most += bucket.count;
///     println!("wait_seconds_bucket{{le=\"{}\"}} {at_most}", bucket.upper.as_secs_f64());
/// }
/// println!("wait_seconds_sum {}", minute.sum().as_secs_f64());
/// println!("wait_seconds_count {}", minute.count());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Distribution {
    buckets: Histogram,
    count: u64,
    least: u64,
    greatest: u64,
}

impl Distribution {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest; zero where there was none.
    #[must_use]
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.least)
    }

    /// The longest; zero where there was none.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.greatest)
    }

    /// The mean, to within 2 %; zero where there was none.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)] // Far finer than the buckets are.
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

    /// The sum in nanoseconds, if each length were the middle of its bucket. Whole numbers, so that it never falls while
    /// the counts rise.
    fn sum_of_middles(&self) -> u128 {
        let middle =
            |bucket: &histogram::Bucket| u128::midpoint(bucket.start().into(), bucket.end().into());
        self.buckets
            .iter()
            .map(|bucket| u128::from(bucket.count()) * middle(&bucket))
            .sum()
    }

    /// Returns the buckets that have a length in them, the shortest first. Each is at most 3.2 % wide. Their counts are
    /// not cumulative: together they are [`count`](Distribution::count).
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let filled = self.buckets.iter().filter(|bucket| bucket.count() > 0);
        filled.map(|bucket| Bucket {
            upper: Duration::from_nanos(bucket.end()),
            count: bucket.count(),
        })
    }

    /// Returns what was added between an `earlier` reading of the same distribution and this one. Its
    /// [`min`](Distribution::min) and [`max`](Distribution::max) are known to 3.2 % only.
    ///
    /// A bucket whose earlier count is larger counts as zero: `earlier` may be that of another manager.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut buckets = self.buckets.clone();
        for (now, before) in buckets
            .as_mut_slice()
            .iter_mut()
            .zip(earlier.buckets.as_slice())
        {
            *now = now.saturating_sub(*before);
        }
        let filled = || buckets.iter().filter(|bucket| bucket.count() > 0);
        let least = filled().next().map_or(0, |bucket| bucket.start());
        let greatest = filled().last().map_or(0, |bucket| match bucket.end() {
            // The last one has no end.
            LONGEST => self.greatest,
            end => end,
        });
        let count = filled().map(|bucket| bucket.count()).sum();
        Self {
            count,
            least: if count == 0 { 0 } else { least.max(self.least) },
            greatest: greatest.min(self.greatest),
            buckets,
        }
    }

    /// Returns both together, as if all had been recorded in one.
    #[must_use]
    pub fn merge(&self, others: &Self) -> Self {
        self.clone().and(others)
    }

    /// The length that a part `q` of all did not exceed: `0.5` gives the median, `0.99` what all but the slowest
    /// hundredth took, `1.0` the greatest. It is never too small, and too large by 3.2 % at the most. A `q` beyond
    /// these counts as the nearest of them; zero where there was none.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Duration {
        // Written so that it holds for what is no number too.
        let q = if q > 0.0 { q.min(1.0) } else { 0.0 };
        let end = match self.buckets.quantile_bucket(q) {
            // The last one has no end.
            Ok(Some(bucket)) if bucket.end() < LONGEST => bucket.end(),
            Ok(_) | Err(_) => self.greatest,
        };
        Duration::from_nanos(end.clamp(self.least, self.greatest))
    }
}

impl Distribution {
    /// These and those.
    fn and(mut self, others: &Self) -> Self {
        if self.count == 0 {
            return others.clone();
        }
        if others.count > 0 {
            let added = self.buckets.checked_add_assign(&others.buckets);
            debug_assert!(added.is_ok(), "they have the same buckets");
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

/// Each power of two is cut into as many parts as this power of two, 32: a part is 3.1 % wide.
const PARTS: u8 = 5;
/// Lengths are told apart up to this power of two of nanoseconds, 78 hours.
const POWERS: u8 = 48;
const LONGEST: u64 = (1 << POWERS) - 1;

/// Where lengths of time are recorded.
pub(crate) struct Recorder {
    buckets: AtomicHistogram,
    least: AtomicU64,
    greatest: AtomicU64,
}

impl Recorder {
    fn new() -> Self {
        let buckets = AtomicHistogram::new(PARTS, POWERS);
        Self {
            buckets: buckets.expect("there are fewer parts than nanoseconds"),
            least: AtomicU64::new(u64::MAX),
            greatest: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, length: Duration) {
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        // Read first: they seldom change, and a word that is only read costs no other core anything.
        if nanos < self.least.load(Ordering::Relaxed) {
            self.least.fetch_min(nanos, Ordering::Relaxed);
        }
        if nanos > self.greatest.load(Ordering::Relaxed) {
            self.greatest.fetch_max(nanos, Ordering::Relaxed);
        }
        let counted = self.buckets.increment(nanos.min(LONGEST));
        debug_assert!(counted.is_ok(), "there is a bucket for every length");
    }

    fn load(&self) -> Distribution {
        let buckets = self.buckets.load();
        let count = buckets.as_slice().iter().sum();
        let greatest = self.greatest.load(Ordering::Relaxed);
        Distribution {
            buckets,
            count,
            least: self.least.load(Ordering::Relaxed).min(greatest),
            greatest,
        }
    }
}

/// A number that only rises.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a manager counts.
pub(crate) struct Counters {
    pub(crate) contended: Count,
    /// Waits that have ended, however.
    pub(crate) waits_over: Count,
    pub(crate) tries_held: Count,
    pub(crate) timed_out: Count,
    pub(crate) failed: Count,
    pub(crate) handed_over: Count,
    pub(crate) renewed: Count,
    pub(crate) renewals_failed: Count,
    pub(crate) held_long: Count,
    pub(crate) endings_repeated: Count,
    pub(crate) requests: Count,
    lost_expired: Count,
    lost_taken: Count,
    lost_removed: Count,
    lost_max_hold: Count,
    /// Of the guards that Redis was asked for, and of those that were handed out in memory.
    pub(crate) waits_asked: Recorder,
    pub(crate) waits_passed_on: Recorder,
    /// Of the guards that held their lock to the end, and of the others.
    pub(crate) holds_released: Recorder,
    pub(crate) holds_lost: Recorder,
    pub(crate) renewal_lags: Recorder,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            contended: Count::default(),
            waits_over: Count::default(),
            tries_held: Count::default(),
            timed_out: Count::default(),
            failed: Count::default(),
            handed_over: Count::default(),
            renewed: Count::default(),
            renewals_failed: Count::default(),
            held_long: Count::default(),
            endings_repeated: Count::default(),
            requests: Count::default(),
            lost_expired: Count::default(),
            lost_taken: Count::default(),
            lost_removed: Count::default(),
            lost_max_hold: Count::default(),
            waits_asked: Recorder::new(),
            waits_passed_on: Recorder::new(),
            holds_released: Recorder::new(),
            holds_lost: Recorder::new(),
            renewal_lags: Recorder::new(),
        }
    }

    pub(crate) fn lost(&self, cause: LostCause) -> &Count {
        match cause {
            LostCause::Expired => &self.lost_expired,
            LostCause::Taken => &self.lost_taken,
            LostCause::Removed => &self.lost_removed,
            LostCause::MaxHold => &self.lost_max_hold,
        }
    }

    /// All figures. Later ones first, so that none counts an end without its beginning.
    pub(crate) fn load(&self, events_dropped: u64) -> Stats {
        let waits_over = self.waits_over.get();
        let (released, lost) = (self.holds_released.load(), self.holds_lost.load());
        let (asked, passed_on) = (self.waits_asked.load(), self.waits_passed_on.load());
        let contended = self.contended.get();
        let (acquired, passed, ended) = (asked.count, passed_on.count, released.count);
        let (waits, holds) = (asked.and(&passed_on), released.and(&lost));
        Stats {
            acquired,
            passed_on: passed,
            released: ended,
            held: waits.count.saturating_sub(holds.count),
            contended,
            waiting: contended.saturating_sub(waits_over),
            tries_held: self.tries_held.get(),
            timed_out: self.timed_out.get(),
            failed: self.failed.get(),
            handed_over: self.handed_over.get(),
            renewed: self.renewed.get(),
            renewals_failed: self.renewals_failed.get(),
            lost_expired: self.lost_expired.get(),
            lost_taken: self.lost_taken.get(),
            lost_removed: self.lost_removed.get(),
            lost_max_hold: self.lost_max_hold.get(),
            held_long: self.held_long.get(),
            endings_repeated: self.endings_repeated.get(),
            requests: self.requests.get(),
            events_dropped,
            waits,
            holds,
            renewal_lags: self.renewal_lags.load(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn of_nothing_all_is_nothing() {
        let none = Recorder::new().load();
        assert_eq!(none.count(), 0);
        let all = [none.min(), none.max(), none.mean(), none.quantile(0.5)];
        assert_eq!(all, [Duration::ZERO; 4]);
    }

    #[test]
    fn whatever_is_asked_for_is_answered() {
        let recorder = Recorder::new();
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
        let (some, others) = (Recorder::new(), Recorder::new());
        for nanos in [7, 900, 50_000] {
            some.record(Duration::from_nanos(nanos));
        }
        others.record(Duration::from_nanos(3));
        let none = Recorder::new();
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
        let recorder = Recorder::new();
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
        // Of another's, what is more is nothing.
        let none = Recorder::new().load().since(&after);
        assert_eq!(
            (none.count(), none.sum(), none.max()),
            (0, Duration::ZERO, Duration::ZERO)
        );
    }

    #[test]
    fn the_sum_is_near_and_bears_the_longest() {
        let recorder = Recorder::new();
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
        let buckets = Recorder::new().buckets.load();
        assert_eq!(size_of_val(buckets.as_slice()), 11 * 1024);
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
            let recorder = Recorder::new();
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
            let exact = lengths.iter().sum::<u64>() / lengths.len() as u64;
            let found = nanos(some.mean());
            prop_assert!(found.abs_diff(exact) <= exact / 50 + 1, "{found} for {exact}");
        }
    }
}
