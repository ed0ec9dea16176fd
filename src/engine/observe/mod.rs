//! The counters and events of a lock's life. Only this module and `acquire` change the counters that the tables name, which
//! [`Stats`](crate::stats::Stats) and the facade `metrics` ([`crate::stats::exported`]) show. [`events`] has the thread that calls
//! the listener, and `spans` the spans of the feature `tracing`.
//!
//! | on the way in ([`crate::engine::acquire`]) | counters | event |
//! | --- | --- | --- |
//! | a call begins to wait for the lock | `contended` | contended |
//! | a call gets a guard from Redis | a histogram of waits | acquired |
//! | a call gets a guard from another thread | a histogram of waits | passed on |
//! | a call ends without a guard | `tries_held`, a histogram of waits that timed out, or `failed` | |
//! | a call that has waited ends | `waits_over` | |
//!
//! | on the way out | counters | event |
//! | --- | --- | --- |
//! | a guard ends with a live lease | a histogram of holds | released |
//! | a guard ends after a loss | a histogram of holds | |
//! | a guard has been held for longer than `warn_after` | `held_long` | held long |
//! | a lease is lost, or a guard reaches its `max_hold` | `lost` by cause | lost |
//! | Redis confirms a renewal | `renewed` | renewed |
//! | Redis hands the lock over to another process | `handed_over` | handed over |
//!
//! A rate limiter has no guards: its calls have metrics alone.

use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::lease::process_lease::{Hold, ProcessLease};
use crate::engine::lease::rules::LeaseStatus;
use crate::error::LostCause;
use crate::event::{Event, EventKind};
use crate::stats::Ended;
use crate::sys::Time;
use crate::wire::{LockKind, Reply, Request};

pub(crate) mod events;

pub(crate) fn ended_by(from_redis: bool) -> Ended {
    if from_redis {
        Ended::Acquired
    } else {
        Ended::PassedOn
    }
}

impl Client {
    /// Counts a guard. The caller must call this before any thread can use the guard. Otherwise events of its end, or
    /// of a later guard, could come first.
    pub(crate) fn count_guard(&self, hold: &Hold, waited: Duration, from_redis: bool) {
        let fence = hold.fence;
        let (waits, kind) = if from_redis {
            (
                &self.stats.waits_asked,
                EventKind::Acquired { fence, waited },
            )
        } else {
            (
                &self.stats.waits_passed_on,
                EventKind::PassedOn { fence, waited },
            )
        };
        waits.record(waited);
        let entry = &hold.process_lease.entry;
        let series = self.exported.of(entry.target.name());
        series.call(entry.kind, ended_by(from_redis), waited);
        self.exported.held.increment(1);
        self.events.step(|| self.event(&hold.process_lease, kind));
    }

    /// Counts the end of a guard that was held for `held`. The caller must call this before the next thread gets the
    /// lock.
    pub(crate) fn count_end(
        &self,
        process_lease: &ProcessLease,
        fence: u64,
        now: Time,
        held: Duration,
    ) {
        self.export_end(process_lease, held);
        if let LeaseStatus::Live(_) = process_lease.validity.status(now) {
            self.stats.holds_released.record(held);
            let kind = EventKind::Released { fence, held };
            self.events.step(|| self.event(process_lease, kind));
        } else {
            self.stats.holds_lost.record(held);
        }
    }

    /// Counts the end of a guard at its `max_hold`.
    pub(crate) fn count_end_at_max_hold(
        &self,
        process_lease: &ProcessLease,
        fence: u64,
        held: Duration,
    ) {
        self.export_end(process_lease, held);
        self.stats.holds_lost.record(held);
        self.count_loss(process_lease, fence, LostCause::MaxHold);
    }

    fn export_end(&self, process_lease: &ProcessLease, held: Duration) {
        let series = self.exported.of(process_lease.entry.target.name());
        series.holds.record(held);
        self.exported.held.decrement(1);
    }

    /// Counts a guard that has been held for longer than `warn_after`.
    pub(crate) fn count_held_long(&self, process_lease: &ProcessLease, fence: u64, held: Duration) {
        self.stats.held_long.add(1);
        let kind = EventKind::HeldLong { fence, held };
        self.events.warn(|| self.event(process_lease, kind));
    }

    /// Counts a renewal that is sent `lag` too late.
    pub(crate) fn count_lag(&self, process_lease: &ProcessLease, lag: Duration) {
        self.stats.renewal_lags.record(lag);
        let series = self.exported.of(process_lease.entry.target.name());
        series.renewal_lags.record(lag);
    }

    /// Counts a renewal that Redis has confirmed. `left` is the time that is left of the lease.
    pub(crate) fn count_renewal(&self, process_lease: &ProcessLease, left: Duration) {
        self.stats.renewed.add(1);
        #[cfg(feature = "metrics")]
        process_lease.export_risk(self.now(), &self.exported.at_risk);
        let kind = EventKind::Renewed { remaining: left };
        self.events.tell(|| self.event(process_lease, kind));
    }

    /// Tells the listener which nodes of a quorum have no vote for a lease.
    pub(crate) fn tell_of_misses(&self, process_lease: &ProcessLease) {
        let missing = self.missing_nodes(process_lease);
        self.events.tell(|| {
            let nodes = missing.iter().map(|node| node.to_string().into());
            let nodes = nodes.collect();
            self.event(process_lease, EventKind::LacksVotes { nodes })
        });
    }

    /// Counts the loss of a lease, or of one guard at its `max_hold`.
    pub(crate) fn count_loss(&self, process_lease: &ProcessLease, fence: u64, cause: LostCause) {
        self.stats.lost(cause).add(1);
        let series = self.exported.of(process_lease.entry.target.name());
        series.lost(cause);
        let kind = EventKind::Lost { fence, cause };
        self.events.warn(|| self.event(process_lease, kind));
    }

    /// Counts a call of a rate limiter that has ended without an error.
    pub(crate) fn count_rate(&self, name: &str, waited: Duration, is_admitted: bool) {
        self.exported.of(name).rate(waited, is_admitted);
    }

    /// Counts a request of a thread of the program.
    pub(crate) fn count_request(&self, request: &Request<'_>, took: Duration) {
        self.stats.request_times.record(took);
        // A request that is not about one lock has no name.
        let name = request.lock().map_or("", |lock| lock.target.name());
        self.exported.of(name).requests.record(took);
    }

    /// Counts a hand-over to another process, if the reply to this request reports one.
    pub(crate) fn count_hand_over(&self, request: &Request<'_>, reply: &Reply) {
        let reply = match reply {
            Reply::Differs { reply, .. } => reply,
            reply => reply,
        };
        let (lock, end) = match (request, reply) {
            // The script of a mutex says whether it has given the lock to that holder.
            (Request::Ask(lock, ask), Reply::Held { handed_over, .. })
                if *handed_over || lock.kind != LockKind::Mutex =>
            {
                (lock, ask.ending.as_ref())
            }
            (Request::End(lock, end), Reply::HandedOver) => (lock, Some(*end)),
            _ => return,
        };
        let Some(end) = end else { return };
        let name = lock.target.name();
        self.stats.handed_over.add(1);
        self.exported.of(name).hand_overs.increment(1);
        self.events
            .step(|| Event::of_lock(name, Some(&end.owner), EventKind::HandedOver));
    }

    /// Returns an event of a lease.
    pub(crate) fn event(
        &self,
        process_lease: &ProcessLease,
        kind: EventKind<'static>,
    ) -> Event<'static> {
        let owner = self.owner_of(process_lease);
        Event::of_lock(process_lease.entry.target.name(), Some(&owner), kind)
    }
}

/// The spans of the feature `tracing`, which docs/metrics.md lists. Their parent is the span that the calling thread is in. No
/// thread enters them, because a guard may go to another thread.
#[cfg(feature = "tracing")]
pub(crate) mod spans {
    use std::mem;

    use tracing::field::{Empty, Value};
    use tracing::info_span;

    use crate::engine::lease::rules::LeaseStatus;
    use crate::error::{Error, Result};
    use crate::panics::survived;
    use crate::stats::exported::label_of;

    /// A span. The program's subscriber is foreign code, which may panic: a delegate must not end so, and the drop of a guard
    /// must not panic. So its panics end here.
    pub(crate) struct Span(tracing::Span);

    impl Span {
        fn new(span: impl FnOnce() -> tracing::Span) -> Self {
            Self(survived(span).unwrap_or_else(tracing::Span::none))
        }

        pub(crate) fn none() -> Self {
            Self(tracing::Span::none())
        }

        pub(crate) fn record(&self, field: &str, value: impl Value) {
            survived(|| self.0.record(field, value));
        }
    }

    impl Drop for Span {
        fn drop(&mut self) {
            let span = mem::replace(&mut self.0, tracing::Span::none());
            survived(|| drop(span));
        }
    }

    pub(crate) fn wait(name: &str) -> Span {
        Span::new(
            || info_span!(target: "leasehold", "leasehold.wait", name, fence = Empty, outcome = Empty),
        )
    }

    pub(crate) fn hold(name: &str, fence: u64) -> Span {
        Span::new(
            || info_span!(target: "leasehold", "leasehold.hold", name, fence, outcome = Empty),
        )
    }

    /// Records the end of a guard by a release.
    pub(crate) fn released(hold: &Span, result: &Result<()>) {
        let outcome = match result {
            Ok(()) => "released",
            Err(Error::Lost(lost)) => label_of(lost.cause),
            // In a forked child, a mutex of the subscriber may stay locked without end.
            Err(Error::Forked) => return,
            Err(_) => "release_failed",
        };
        hold.record("outcome", outcome);
    }

    /// Records the end of a guard whose lock stays in Redis.
    pub(crate) fn detached(hold: &Span, status: LeaseStatus) {
        let outcome = match status {
            LeaseStatus::Lost(cause) => label_of(cause),
            _ => "detached",
        };
        hold.record("outcome", outcome);
    }
}
