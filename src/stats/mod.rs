//! The counters of a manager, and a reading of them.
//!
//! Counting adds to a few atomic words in any order. It takes nanoseconds, and no thread waits for it, but many threads
//! write to the same words. So a guard is recorded only twice: its wait when it begins, and its hold when it ends. The numbers
//! of guards are computed from these records.

use std::fmt;
use std::time::Duration;

use crate::error::LostCause;
use crate::sys::{AtomicU64, Ordering};

pub(crate) use distribution::Recorder;
pub use distribution::{Bucket, Distribution};
use exported::Gauge;
pub(crate) use exported::{Ended, Exported};

mod distribution;
pub(crate) mod exported;

/// The counters of a manager since it was built: see [`LockManager::stats`](crate::LockManager::stats).
///
/// The counters are read one after the other while threads go on, so one counter may include a guard that another does not
/// include yet. No counter falls, except [`held`](Stats::held), [`waiting`](Stats::waiting) and
/// [`connections_in_use`](Stats::connections_in_use). [`quantum`](Stats::quantum) is no counter.
///
/// [`Event`](crate::Event) defines a guard and a lease.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// drop(locks.lock("orders:42")?);
/// let stats = locks.stats();
/// println!(
///     "{} guards, {} of them from Redis; 99 % waited for less than {:?}",
///     stats.waits.count(),
///     stats.acquired,
///     stats.waits.quantile(0.99),
/// );
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Guards that Redis granted.
    pub acquired: u64,
    /// Guards that threads got in memory, without a request.
    pub passed_on: u64,
    /// Guards that ended while they held their lock, as far as this process knew.
    pub released: u64,
    /// Guards that exist now. Guards that have lost their lock count too, except those that reached their `max_hold`.
    pub held: u64,
    /// Calls that have begun to wait for a lock. A call that waits through an outage counts from the first reply that
    /// the lock is held.
    pub contended: u64,
    /// Calls that wait for a lock now, of those in [`contended`](Stats::contended).
    pub waiting: u64,
    /// Tries that found the lock held.
    pub tries_held: u64,
    /// Waits that ended because their time was over, while the lock was held.
    pub timed_out: u64,
    /// Calls for a lock that ended in an error, after they had begun to wait or to ask Redis. An adoption is not
    /// counted.
    pub failed: u64,
    /// Releases with which Redis gave the lock to the next in its queue, or left it free for others for a
    /// [`poller_gap`](crate::Builder::poller_gap).
    pub handed_over: u64,
    /// Guards for which another process has handed the lock over to this one while it waited, of those in
    /// [`acquired`](Stats::acquired).
    pub hand_overs_received: u64,
    /// Guards that Redis granted by a message, of those in [`hand_overs_received`](Stats::hand_overs_received): this process
    /// had to send no further request.
    pub granted_by_message: u64,
    /// Renewals that Redis confirmed, each of one lease. Extensions count too.
    pub renewed: u64,
    /// Renewals by the renewal thread that Redis did not confirm, each of one lease.
    pub renewals_failed: u64,
    /// Leases that expired.
    pub lost_expired: u64,
    /// Leases that were lost to another owner.
    pub lost_taken: u64,
    /// Leases that were lost because Redis did not have them any more.
    pub lost_removed: u64,
    /// Guards that were ended because they reached their `max_hold`.
    pub lost_max_hold: u64,
    /// Guards that were held for longer than [`warn_after`](crate::Builder::warn_after).
    pub held_long: u64,
    /// Releases that the renewal thread sends again because a request failed, or had to wait too long for a connection:
    /// of leases, and of owners that calls may have left in Redis when they ended. A release that a majority of a quorum has
    /// confirmed does not count, although the other nodes get it again.
    pub endings_repeated: u64,
    /// Requests for locks and rate limiters, those of operators, and the PING of
    /// [`Builder::build`](crate::Builder::build). The commands that a new connection sends first do
    /// not count.
    pub requests: u64,
    /// The quantum in use: how long this process may hand a lock from thread to thread in memory while another process
    /// waits for it. [`Builder::quantum`](crate::Builder::quantum) explains how it follows the hand-overs.
    pub quantum: Duration,
    /// Events that were dropped because the listener was too slow, or because its thread could not be started.
    pub events_dropped: u64,
    /// Connections of the pool that threads use now, of the [`pool_size`](crate::Builder::pool_size). On a quorum, each
    /// counts the connections to all nodes as one. On a cluster, each master has a pool.
    pub connections_in_use: u64,
    /// The times for which threads waited for a connection of the pool, or until the call of another thread sent their
    /// request: one for each call that had to wait. If many are long, the pool is too small.
    pub connection_waits: Distribution,
    /// The times of requests, with the wait for a connection, the time of connecting if there was none, and all retries:
    /// one for each request of a thread of the program. The renewal thread's requests do not count.
    pub request_times: Distribution,
    /// The times from a call to the grant of its guard: one for each guard.
    pub waits: Distribution,
    /// The times of waits that ended because their time was over: one for each in [`timed_out`](Stats::timed_out).
    pub waits_timed_out: Distribution,
    /// The times from the grant of a guard to its end: one for each guard that has ended.
    pub holds: Distribution,
    /// The times by which renewals were sent too late: one for each renewal of a lease.
    pub renewal_lags: Distribution,
}

impl Stats {
    /// Returns the number of all guards: those that Redis granted, and those that threads got in memory.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.acquired + self.passed_on
    }

    /// Returns the number of all losses, whatever the cause.
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

/// The counters of a manager, which its threads add to.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) contended: Count,
    /// Calls that have ended, of those in `contended`.
    pub(crate) waits_over: Count,
    pub(crate) tries_held: Count,
    pub(crate) failed: Count,
    pub(crate) handed_over: Count,
    pub(crate) hand_overs_received: Count,
    pub(crate) granted_by_message: Count,
    pub(crate) renewed: Count,
    pub(crate) renewals_failed: Count,
    pub(crate) held_long: Count,
    pub(crate) endings_repeated: Count,
    pub(crate) requests: Count,
    /// The losses, by their causes.
    lost: [Count; exported::CAUSES.len()],
    /// The waits of guards that Redis granted.
    pub(crate) waits_asked: Recorder,
    /// The waits of guards that threads got in memory.
    pub(crate) waits_passed_on: Recorder,
    /// The holds of guards that held their lock until their end.
    pub(crate) holds_released: Recorder,
    /// The holds of guards that had lost their lock, or had reached their `max_hold`.
    pub(crate) holds_lost: Recorder,
    pub(crate) renewal_lags: Recorder,
    pub(crate) waits_timed_out: Recorder,
    pub(crate) request_times: Recorder,
}

/// The counters of all pools of a manager.
pub(crate) struct PoolCounters {
    /// How many connections threads have checked out.
    in_use: AtomicU64,
    /// The times for which threads waited for one.
    pub(crate) waits: Recorder,
    exported: Gauge,
}

impl Default for PoolCounters {
    fn default() -> Self {
        Self {
            in_use: AtomicU64::new(0),
            waits: Recorder::default(),
            exported: exported::connections(),
        }
    }
}

impl PoolCounters {
    pub(crate) fn taken(&self) {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        self.exported.increment(1);
    }

    pub(crate) fn given_back(&self) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        self.exported.decrement(1);
    }
}

impl fmt::Debug for PoolCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolCounters").field(&self.in_use).finish()
    }
}

impl Counters {
    pub(crate) fn lost(&self, cause: LostCause) -> &Count {
        &self.lost[exported::cause_place(cause)]
    }

    /// Returns a reading of all counters. It reads ends before beginnings, so it never has an end without its
    /// beginning.
    pub(crate) fn load(
        &self,
        pools: &PoolCounters,
        events_dropped: u64,
        quantum: Duration,
    ) -> Stats {
        let waits_over = self.waits_over.get();
        let (released, lost) = (self.holds_released.load(), self.holds_lost.load());
        let (asked, passed_on) = (self.waits_asked.load(), self.waits_passed_on.load());
        let contended = self.contended.get();
        let (acquired, passed, ended) = (asked.count(), passed_on.count(), released.count());
        let (waits, holds) = (asked.and(&passed_on), released.and(&lost));
        let waits_timed_out = self.waits_timed_out.load();
        Stats {
            acquired,
            passed_on: passed,
            released: ended,
            held: waits.count().saturating_sub(holds.count()),
            contended,
            waiting: contended.saturating_sub(waits_over),
            tries_held: self.tries_held.get(),
            timed_out: waits_timed_out.count(),
            failed: self.failed.get(),
            handed_over: self.handed_over.get(),
            hand_overs_received: self.hand_overs_received.get(),
            granted_by_message: self.granted_by_message.get(),
            renewed: self.renewed.get(),
            renewals_failed: self.renewals_failed.get(),
            lost_expired: self.lost(LostCause::Expired).get(),
            lost_taken: self.lost(LostCause::Taken).get(),
            lost_removed: self.lost(LostCause::Removed).get(),
            lost_max_hold: self.lost(LostCause::MaxHold).get(),
            held_long: self.held_long.get(),
            endings_repeated: self.endings_repeated.get(),
            requests: self.requests.get(),
            quantum,
            events_dropped,
            connections_in_use: pools.in_use.load(Ordering::Relaxed),
            connection_waits: pools.waits.load(),
            request_times: self.request_times.load(),
            waits,
            waits_timed_out,
            holds,
            renewal_lags: self.renewal_lags.load(),
        }
    }
}
