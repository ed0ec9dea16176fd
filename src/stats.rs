//! What a manager has done so far, in figures.
//!
//! Recording is a few additions to atomic words, in no order with anything else, so it costs nanoseconds and nobody
//! waits for it. Many threads add to the same words, which is what costs: so a guard is counted by having its wait and
//! its hold recorded, each with its like, and not again.

use crate::error::LostCause;
use crate::sync::{AtomicU64, Ordering};

pub(crate) use distribution::Recorder;
pub use distribution::{Bucket, Distribution};

mod distribution;

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
        let (acquired, passed, ended) = (asked.count(), passed_on.count(), released.count());
        let (waits, holds) = (asked.and(&passed_on), released.and(&lost));
        Stats {
            acquired,
            passed_on: passed,
            released: ended,
            held: waits.count().saturating_sub(holds.count()),
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
