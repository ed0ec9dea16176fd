//! The metrics of the feature `metrics`, which docs/metrics.md lists. A manager gets its handles from the program's recorder
//! when it is built, so recording takes a few atomic operations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};
use metrics::{describe_counter, describe_gauge, describe_histogram};

use crate::engine::acquire::{CAUSES, OUTCOMES};
use crate::error::LostCause;
use crate::wire::LockKind;

const KINDS: [&str; 5] = ["mutex", "read", "write", "semaphore", "multi"];

pub(crate) struct Exported {
    pub(crate) held: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) at_risk: Gauge,
    /// The series of the names that are labels.
    named: BTreeMap<String, Series>,
    /// The series of all other names.
    others: Series,
}

/// The series that may have a name as a label.
pub(crate) struct Series {
    waits: Histogram,
    pub(crate) holds: Histogram,
    pub(crate) requests: Histogram,
    pub(crate) renewal_lags: Histogram,
    pub(crate) hand_overs: Counter,
    rate_waits: Histogram,
    rate_refused: Counter,
    acquires: [[Counter; OUTCOMES.len()]; KINDS.len()],
    lost: [Counter; CAUSES.len()],
}

impl Exported {
    pub(crate) fn new(names: &BTreeSet<String>) -> Self {
        describe();
        let series_of = |name: &String| (name.clone(), Series::new(Some(name)));
        Self {
            held: gauge!("leasehold_held"),
            waiting: gauge!("leasehold_waiting"),
            at_risk: gauge!("leasehold_at_risk"),
            named: names.iter().map(series_of).collect(),
            others: Series::new(None),
        }
    }

    /// Returns the series of a name.
    pub(crate) fn of(&self, name: &str) -> &Series {
        self.named.get(name).unwrap_or(&self.others)
    }
}

impl Series {
    fn new(name: Option<&String>) -> Self {
        let with = |labels: &[(&'static str, &'static str)]| -> Vec<Label> {
            let name = name.map(|name| Label::new("name", name.clone()));
            name.into_iter()
                .chain(labels.iter().map(Label::from))
                .collect()
        };
        let acquires = |kind, outcome| {
            let labels = with(&[("kind", kind), ("outcome", outcome)]);
            counter!("leasehold_acquires_total", labels)
        };
        Self {
            waits: histogram!("leasehold_wait_seconds", with(&[])),
            holds: histogram!("leasehold_hold_seconds", with(&[])),
            requests: histogram!("leasehold_request_seconds", with(&[])),
            renewal_lags: histogram!("leasehold_renewal_lag_seconds", with(&[])),
            hand_overs: counter!("leasehold_hand_overs_total", with(&[])),
            rate_waits: histogram!("leasehold_rate_wait_seconds", with(&[])),
            rate_refused: counter!("leasehold_rate_refused_total", with(&[])),
            acquires: KINDS.map(|kind| OUTCOMES.map(|outcome| acquires(kind, outcome))),
            lost: CAUSES.map(|cause| counter!("leasehold_lost_total", with(&[("cause", cause)]))),
        }
    }

    /// Records the end of a call. Only the wait for a guard, or until the time was over, is measured.
    pub(crate) fn call(&self, kind: LockKind, outcome: &str, waited: Duration) {
        let kind = match kind {
            LockKind::Mutex => 0,
            LockKind::Read => 1,
            LockKind::Write => 2,
            LockKind::Semaphore { .. } => 3,
            LockKind::Multi => 4,
        };
        if let Some(index) = OUTCOMES.iter().position(|it| *it == outcome) {
            self.acquires[kind][index].increment(1);
        }
        if let "acquired" | "passed_on" | "timed_out" = outcome {
            self.waits.record(waited);
        }
    }

    /// Records the end of a call of a rate limiter. Only the wait for a place is measured.
    pub(crate) fn rate(&self, waited: Duration, is_admitted: bool) {
        if is_admitted {
            self.rate_waits.record(waited);
        } else {
            self.rate_refused.increment(1);
        }
    }

    pub(crate) fn lost(&self, cause: LostCause) {
        self.lost[cause as usize].increment(1);
    }
}

/// Gives the recorder the text of each metric. An exporter for Prometheus serves it as `HELP`.
fn describe() {
    describe_histogram!(
        "leasehold_wait_seconds",
        "Times of calls until they have a guard, or end in vain"
    );
    describe_histogram!(
        "leasehold_hold_seconds",
        "Times from the grant of a guard to its end"
    );
    describe_histogram!(
        "leasehold_request_seconds",
        "Times of requests, with all retries"
    );
    describe_histogram!(
        "leasehold_renewal_lag_seconds",
        "Times by which renewals were sent too late"
    );
    describe_counter!(
        "leasehold_acquires_total",
        "Calls for a lock that have ended"
    );
    describe_counter!(
        "leasehold_hand_overs_total",
        "Locks that Redis gave to the next process"
    );
    describe_histogram!(
        "leasehold_rate_wait_seconds",
        "Times of calls of rate limiters until they are admitted"
    );
    describe_counter!(
        "leasehold_rate_refused_total",
        "Calls of rate limiters that were not admitted"
    );
    describe_counter!("leasehold_lost_total", "Locks that were lost");
    describe_gauge!("leasehold_held", "Guards that exist now");
    describe_gauge!("leasehold_waiting", "Calls that wait for a lock now");
    describe_gauge!("leasehold_at_risk", "Leases whose renewal is overdue");
    describe_gauge!(
        "leasehold_connections",
        "Connections of the pool in use now"
    );
}
