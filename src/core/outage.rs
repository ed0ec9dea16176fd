//! Failures in a row of one wait: the pauses between its requests, and when the wait gives up.

use std::time::Duration;

use crate::error::{Failure, FailureKind};
use crate::sys::{LONGEST_SLEEP, Time};

/// The first pause after a failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The first pause after a grant that too few replicas have: the lock is free for others in the meantime.
pub(super) const UNCONFIRMED_PAUSE: Duration = Duration::from_millis(100);

/// The requests that have failed since the last answer. "Held" does not answer whether replicas confirm writes. So an
/// outage of the replicas outlives that answer: others may hold the lock now and then.
#[derive(Debug)]
pub(super) struct Outage {
    since: Time,
    /// The time of the last failure.
    last: Time,
    pause: Duration,
    failure: Failure,
    /// Whether "held" was answered after the last failure.
    interrupted: bool,
}

impl Outage {
    /// Notes one more failure. Returns the pause that must follow.
    pub(super) fn note(
        this: &mut Option<Self>,
        failure: Failure,
        now: Time,
        limit: Duration,
    ) -> Duration {
        this.take_if(|outage| {
            let is_another = !is_of_replicas(&failure) || now.since(outage.last) > limit;
            outage.interrupted && is_another
        });
        let least = if is_of_replicas(&failure) {
            UNCONFIRMED_PAUSE
        } else {
            FIRST_PAUSE
        };
        let outage = this.get_or_insert_with(|| Self {
            since: now,
            last: now,
            pause: least,
            failure: failure.clone(),
            interrupted: false,
        });
        let pause = outage.pause.max(least);
        outage.last = now;
        outage.pause = (pause * 2).min(LONGEST_SLEEP);
        outage.failure = failure;
        outage.interrupted = false;
        pause
    }

    /// Notes the answer "held". Returns whether the outage may go on with the next failure.
    pub(super) fn outlives_an_answer(&mut self) -> bool {
        self.interrupted = true;
        is_of_replicas(&self.failure)
    }

    /// Returns the last failure, unless an answer came after it.
    pub(super) fn failure(&self) -> Option<Failure> {
        (!self.interrupted).then(|| self.failure.clone())
    }

    /// Returns the last failure, unless an answer came after it, if the outage has lasted for `limit`.
    pub(super) fn too_long(&self, now: Time, limit: Duration) -> Option<Failure> {
        self.failure().filter(|_| now.since(self.since) >= limit)
    }
}

/// Returns whether a grant failed only because too few replicas confirmed it.
pub(super) fn is_of_replicas(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::NotReplicated { .. })
}
