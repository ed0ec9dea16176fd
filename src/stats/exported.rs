//! The figures that a manager tells the facade `metrics`, with that feature. A metric is added here, where it is registered with
//! its type, its name, its labels, and its text, which an exporter for Prometheus serves as `HELP`; and by a row in
//! docs/metrics.md.
//!
//! A manager gets its handles from the program's recorder when it is built, so recording takes a few atomic operations. In a
//! build without the feature the handles record nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::LostCause;
use crate::wire::LockKind;
use facade::{Counter, Histogram, counter, gauge, histogram};

pub(crate) use facade::Gauge;

/// Defines the labels of an enum, and the place of a variant among them. So no variant lacks a label.
macro_rules! labels {
    ($labels:ident, $place:ident, $of:ident { $($variant:ident: $label:literal,)* }) => {
        pub(super) const $labels: [&str; [$($label),*].len()] = [$($label),*];

        pub(super) fn $place(value: $of) -> usize {
            enum Place {
                $($variant,)*
            }
            match value {
                $($of::$variant { .. } => Place::$variant as usize,)*
            }
        }
    };
}

labels! {
    KINDS, kind_place, LockKind {
        Mutex: "mutex",
        Read: "read",
        Write: "write",
        Semaphore: "semaphore",
        Multi: "multi",
    }
}

labels! {
    OUTCOMES, outcome_place, Ended {
        Acquired: "acquired",
        PassedOn: "passed_on",
        Held: "held",
        TimedOut: "timed_out",
        Cancelled: "cancelled",
        Failed: "failed",
    }
}

labels! {
    CAUSES, cause_place, LostCause {
        Expired: "expired",
        Taken: "taken",
        Removed: "removed",
        MaxHold: "max_hold",
    }
}

/// How a call for a lock has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Redis granted the lock.
    Acquired,
    /// Another thread gave it in memory.
    PassedOn,
    /// A try found it held.
    Held,
    TimedOut,
    /// By the program's token, or because the manager is closed.
    Cancelled,
    Failed,
}

impl Ended {
    #[cfg(feature = "tracing")]
    pub(crate) fn label(self) -> &'static str {
        OUTCOMES[outcome_place(self)]
    }
}

/// Returns the label of a cause.
#[cfg(feature = "tracing")]
pub(crate) fn label_of(cause: LostCause) -> &'static str {
    CAUSES[cause_place(cause)]
}

#[cfg_attr(
    not(feature = "metrics"),
    allow(clippy::zero_sized_map_values, reason = "the handles are nothing then")
)]
pub(crate) struct Exported {
    pub(crate) held: Gauge,
    pub(crate) waiting: Gauge,
    /// Behind the feature, because what it shows costs a reading of the clock and a mutex.
    #[cfg(feature = "metrics")]
    pub(crate) at_risk: Gauge,
    /// The series of the names that are labels.
    named: BTreeMap<String, Series>,
    /// The series of all other names.
    others: Series,
}

/// Defines [`Series`]: the metrics that may have a name as their only label, each with its type, its name and its text.
macro_rules! series {
    ($($metric:ident: $type:ident($register:ident), $name:literal, $help:literal;)*) => {
        /// The series that may have a name as a label.
        pub(crate) struct Series {
            $(pub(crate) $metric: $type,)*
            acquires: [[Counter; OUTCOMES.len()]; KINDS.len()],
            lost: [Counter; CAUSES.len()],
        }

        impl Series {
            fn new(name: Option<&String>) -> Self {
                let with = |labels: &[(&'static str, &'static str)]| {
                    let name = name.map(|name| ("name", name.clone()));
                    let labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned()));
                    name.into_iter().chain(labels).collect::<Vec<_>>()
                };
                let acquires = |kind, outcome| {
                    let labels = with(&[("kind", kind), ("outcome", outcome)]);
                    let help = "Calls for a lock that have ended";
                    counter("leasehold_acquires_total", help, &labels)
                };
                let lost = |cause| {
                    let labels = with(&[("cause", cause)]);
                    counter("leasehold_lost_total", "Locks that were lost", &labels)
                };
                Self {
                    $($metric: $register($name, $help, &with(&[])),)*
                    acquires: KINDS.map(|kind| OUTCOMES.map(|outcome| acquires(kind, outcome))),
                    lost: CAUSES.map(lost),
                }
            }
        }
    };
}

series! {
    waits: Histogram(histogram), "leasehold_wait_seconds", "Times of calls until they have a guard, or end in vain";
    holds: Histogram(histogram), "leasehold_hold_seconds", "Times from the grant of a guard to its end";
    requests: Histogram(histogram), "leasehold_request_seconds", "Times of requests, with all retries";
    renewal_lags: Histogram(histogram), "leasehold_renewal_lag_seconds", "Times by which renewals were sent too late";
    hand_overs: Counter(counter), "leasehold_hand_overs_total", "Locks that Redis gave to the next process";
    rate_waits: Histogram(histogram), "leasehold_rate_wait_seconds",
        "Times of calls of rate limiters until they are admitted";
    rate_refused: Counter(counter), "leasehold_rate_refused_total", "Calls of rate limiters that were not admitted";
}

impl Exported {
    pub(crate) fn new(names: &BTreeSet<String>) -> Self {
        let series_of = |name: &String| (name.clone(), Series::new(Some(name)));
        Self {
            held: gauge("leasehold_held", "Guards that exist now"),
            waiting: gauge("leasehold_waiting", "Calls that wait for a lock now"),
            #[cfg(feature = "metrics")]
            at_risk: gauge("leasehold_at_risk", "Leases whose renewal is overdue"),
            named: names.iter().map(series_of).collect(),
            others: Series::new(None),
        }
    }

    /// Returns the series of a name.
    pub(crate) fn of(&self, name: &str) -> &Series {
        self.named.get(name).unwrap_or(&self.others)
    }
}

/// Returns the gauge of all pools of a manager.
pub(super) fn connections() -> Gauge {
    gauge(
        "leasehold_connections",
        "Connections of the pool in use now",
    )
}

impl Series {
    /// Records the end of a call. Only the wait for a guard, or until the time was over, is measured.
    pub(crate) fn call(&self, kind: LockKind, ended: Ended, waited: Duration) {
        self.acquires[kind_place(kind)][outcome_place(ended)].increment(1);
        if let Ended::Acquired | Ended::PassedOn | Ended::TimedOut = ended {
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
        self.lost[cause_place(cause)].increment(1);
    }
}

type Labels<'a> = &'a [(&'static str, String)];

/// The handles of the program's recorder. That is foreign code, which may panic, and it runs on threads that others wait for.
/// So its panics end here.
#[cfg(feature = "metrics")]
mod facade {
    use std::time::Duration;

    use metrics::{IntoF64, describe_counter, describe_gauge, describe_histogram};

    use super::Labels;
    use crate::panics::survived;

    pub(crate) struct Counter(metrics::Counter);
    pub(crate) struct Gauge(metrics::Gauge);
    pub(crate) struct Histogram(metrics::Histogram);

    impl Counter {
        pub(crate) fn increment(&self, more: u64) {
            survived(|| self.0.increment(more));
        }
    }

    impl Gauge {
        pub(crate) fn increment(&self, more: impl IntoF64) {
            survived(|| self.0.increment(more));
        }

        pub(crate) fn decrement(&self, less: impl IntoF64) {
            survived(|| self.0.decrement(less));
        }
    }

    impl Histogram {
        pub(crate) fn record(&self, time: Duration) {
            survived(|| self.0.record(time));
        }
    }

    pub(super) fn counter(name: &'static str, help: &'static str, labels: Labels<'_>) -> Counter {
        describe_counter!(name, help);
        Counter(metrics::counter!(name, labels))
    }

    pub(super) fn gauge(name: &'static str, help: &'static str) -> Gauge {
        describe_gauge!(name, help);
        Gauge(metrics::gauge!(name))
    }

    pub(super) fn histogram(
        name: &'static str,
        help: &'static str,
        labels: Labels<'_>,
    ) -> Histogram {
        describe_histogram!(name, help);
        Histogram(metrics::histogram!(name, labels))
    }
}

#[cfg(not(feature = "metrics"))]
mod facade {
    use super::Labels;

    /// Records nothing.
    pub(crate) struct Off;

    pub(crate) type Counter = Off;
    pub(crate) type Gauge = Off;
    pub(crate) type Histogram = Off;

    #[allow(clippy::unused_self, reason = "as the methods of that crate")]
    impl Off {
        pub(crate) fn increment(&self, _: impl Sized) {}

        pub(crate) fn decrement(&self, _: impl Sized) {}

        pub(crate) fn record(&self, _: impl Sized) {}
    }

    pub(super) fn counter(_: &str, _: &str, _: Labels<'_>) -> Off {
        Off
    }

    pub(super) fn gauge(_: &str, _: &str) -> Off {
        Off
    }

    pub(super) use counter as histogram;
}
