//! Failures in a row of one wait: the pauses between its requests, and when the wait gives up.

use std::time::Duration;

use crate::error::{Failure, FailureKind};
use crate::sys::{LONGEST_SLEEP, Time};

/// The first pause after a failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The first pause after a grant that too few replicas have: the lock is free for others in the meantime.
pub(crate) const UNCONFIRMED_PAUSE: Duration = Duration::from_millis(100);

/// The requests that have failed since the last answer. "Held" does not answer whether replicas confirm writes. So an
/// outage of the replicas outlives that answer: others may hold the lock now and then.
#[derive(Debug)]
pub(crate) struct Outage {
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
    pub(crate) fn note(
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
    pub(crate) fn outlives_an_answer(&mut self) -> bool {
        self.interrupted = true;
        is_of_replicas(&self.failure)
    }

    /// Returns the last failure, unless an answer came after it.
    pub(crate) fn failure(&self) -> Option<Failure> {
        (!self.interrupted).then(|| self.failure.clone())
    }

    /// Returns the last failure, unless an answer came after it, if the outage has lasted for `limit`.
    pub(crate) fn too_long(&self, now: Time, limit: Duration) -> Option<Failure> {
        self.failure().filter(|_| now.since(self.since) >= limit)
    }
}

/// Returns whether a grant failed only because too few replicas confirmed it.
pub(crate) fn is_of_replicas(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::NotReplicated { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    const LIMIT: Duration = Duration::from_mins(1);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn failure(kind: FailureKind) -> Failure {
        Failure::plain(kind, Outcome::NotExecuted, "a fault of the test")
    }

    const OF_REPLICAS: FailureKind = FailureKind::NotReplicated {
        wanted: 2,
        confirmed: 1,
    };

    /// Notes failures at these times, each after the answer "held". Returns for how long the outage has lasted at the end.
    fn with_answers_between(failures: &[(FailureKind, Time)]) -> Duration {
        let mut outage = None;
        for (kind, now) in failures {
            Outage::note(&mut outage, failure(*kind), *now, LIMIT);
            outage.as_mut().expect("noted").outlives_an_answer();
        }
        let outage = outage.expect("noted");
        outage.last.since(outage.since)
    }

    #[test]
    fn only_an_outage_of_the_replicas_goes_on_after_an_answer() {
        let minute = at(60_000);
        let moment = Duration::from_nanos(1);
        let (here, refused) = (OF_REPLICAS, FailureKind::Unavailable);
        let lasted = |first: &FailureKind, second: &FailureKind, until| {
            with_answers_between(&[(*first, at(0)), (*second, until)])
        };
        assert_eq!(lasted(&here, &here, minute), LIMIT);
        assert_eq!(lasted(&here, &here, minute + moment), Duration::ZERO);
        assert_eq!(lasted(&here, &refused, at(1)), Duration::ZERO);
        assert_eq!(lasted(&refused, &refused, at(1)), Duration::ZERO);
    }

    #[test]
    fn each_pause_is_twice_as_long_up_to_the_longest() {
        for (kind, first) in [
            (FailureKind::Unavailable, FIRST_PAUSE),
            (OF_REPLICAS, UNCONFIRMED_PAUSE),
        ] {
            let mut outage = None;
            let mut expected = first;
            for number in 0..10 {
                let pause = Outage::note(&mut outage, failure(kind), at(number), LIMIT);
                assert_eq!(pause, expected);
                expected = (expected * 2).min(LONGEST_SLEEP);
            }
            assert_eq!(expected, LONGEST_SLEEP);
        }
    }

    #[test]
    fn an_outage_is_too_long_from_its_limit_on_unless_an_answer_has_come() {
        let mut outage = None;
        Outage::note(&mut outage, failure(FailureKind::Unavailable), at(5), LIMIT);
        let mut outage = outage.expect("noted");
        assert!(outage.too_long(at(60_004), LIMIT).is_none());
        assert!(outage.too_long(at(60_005), LIMIT).is_some());
        outage.outlives_an_answer();
        assert!(outage.too_long(at(60_005), LIMIT).is_none());
        assert!(outage.failure().is_none());
    }
}
