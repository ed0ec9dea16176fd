//! How long an attempt goes on without a grant, and how it ends for the thread that drives it.
//!
//! A wait goes on until its thread's deadline. A failure ends it in the cases of this table, the first that fits; in
//! all others, the attempt backs off.
//!
//! | failure | the attempt ends |
//! | --- | --- |
//! | permanent: denied, wrong type, other permits, an answer that makes no sense | for all threads |
//! | the thread's deadline cut the request short | for this thread alone, which gets the answer before it, if any; another may carry the attempt on |
//! | at or after the thread's deadline | the same, but this thread gets the failure |
//! | of a try | for all threads |
//! | before a wait has begun | the same, unless the manager waits through outages, or the slot of the lock moves to another node |
//! | of an outage that has lasted for its limit, in a wait without a deadline | for all threads |

use std::time::Duration;

use super::{Context, Step};
use crate::error::{Failure, FailureKind};
use crate::net::deadline::Wait;
use crate::sys::random::{jittered, jittered_by_half};
use crate::sys::{LONGEST_SLEEP, Time};

/// The shortest sleep: the next request follows at once.
pub(super) const SHORTEST_PAUSE: Duration = Duration::from_millis(2);

/// The pause after the votes of a quorum were split. Each further pause is longer by as much.
const AFTER_SPLIT: Duration = Duration::from_millis(4);
/// After this number of splits the pauses do not grow.
const MOST_SPLITS: u32 = 8;

/// The first pause after a failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The first pause after a grant that too few replicas have: the lock is free for others in the meantime.
pub(super) const UNCONFIRMED_PAUSE: Duration = Duration::from_millis(100);

/// The answers and failures that decide whether a wait goes on.
#[derive(Debug)]
pub(super) struct Patience {
    wait: WaitState,
    /// The failures since the last answer.
    outage: Option<Outage>,
    /// How often the votes of a quorum were split.
    splits: u32,
}

/// How far the wait has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitState {
    /// No wait has begun: the first failure is returned at once.
    NotBegun,
    /// A thread of this process waits: failures are waited out.
    Begun,
    /// A wait has begun, and this process had the lock just now, so the lock is contended.
    Contended,
    /// A wait has begun, and Redis answered "held" at this time.
    Held(Time),
}

impl Patience {
    pub(super) fn new(wait: WaitState) -> Self {
        Self {
            wait,
            outage: None,
            splits: 0,
        }
    }

    /// Returns whether failures are waited out.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.wait, WaitState::NotBegun)
    }

    /// Returns whether others are known to have wanted the lock.
    pub(super) fn is_contended(&self) -> bool {
        matches!(self.wait, WaitState::Contended | WaitState::Held(_))
    }

    /// Returns the last failure, if Redis has not answered since.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.outage.as_ref().and_then(Outage::failure)
    }

    /// Notes that Redis answered "held". That ends every outage but one of replicas.
    pub(super) fn answered_held(&mut self, now: Time) {
        self.wait = WaitState::Held(now);
        self.outage.take_if(|outage| !outage.outlives_an_answer());
    }

    /// Returns the end for this thread, if its time or the limit of an outage is over. A try that was not answered
    /// still has its one request.
    pub(super) fn end(&self, context: &Context<'_>) -> Option<Step> {
        let is_over = match context.wait {
            Wait::Try => self.is_contended(),
            Wait::Forever => {
                let outage = self.outage.as_ref()?;
                let failure = outage.too_long(context.now, context.outage_limit)?;
                return Some(Step::Failed(failure));
            }
            Wait::Until(end) => context.now >= end && (self.has_begun() || self.outage.is_some()),
        };
        is_over.then(|| Step::TimeOver(self.failure()))
    }

    /// Backs off after a failure, or ends the attempt: the table at the top.
    pub(super) fn back_off(
        &mut self,
        failure: Failure,
        cut_short: bool,
        context: &Context<'_>,
    ) -> Step {
        // 1. A permanent failure ends the attempt for all threads.
        if !failure.is_transient() {
            return Step::Failed(failure);
        }
        // 2. A failure after this thread's deadline does not end the attempt for the threads behind it.
        if context.wait.is_over(context.now) {
            let result = if cut_short {
                self.before(failure, context)
            } else {
                Some(failure)
            };
            return Step::TimeOver(result);
        }
        // 3. This was a try, or no wait has begun: the failure is returned.
        let is_moving = failure.kind == FailureKind::SlotMoves;
        let waits = self.has_begun() || context.waits_through_outages || is_moving;
        if context.wait == Wait::Try || !waits {
            return Step::Failed(failure);
        }
        // 4. Sleep, unless the outage has lasted for its limit.
        let pause = Outage::note(&mut self.outage, failure, context.now, context.outage_limit);
        match self.end(context) {
            Some(end) => end,
            None => sleep(jittered(context.rng, pause), context),
        }
    }

    /// Goes on after a split of the votes of a quorum, by which nobody has the lock. A try asks once more. A wait asks again
    /// after a moment, which differs from process to process.
    pub(super) fn split(&mut self, failure: Failure, context: &Context<'_>) -> Step {
        self.splits += 1;
        if context.wait == Wait::Try && self.splits > 1 {
            return Step::Failed(failure);
        }
        if context.wait.is_over(context.now) {
            return Step::TimeOver(self.failure().or(Some(failure)));
        }
        let pause = AFTER_SPLIT * self.splits.min(MOST_SPLITS);
        sleep(jittered_by_half(context.rng, pause), context)
    }

    /// Returns the result of a thread whose deadline `cut` its last request short. `None`: it had the answer "held".
    fn before(&self, cut: Failure, context: &Context<'_>) -> Option<Failure> {
        let was_held = matches!(self.wait, WaitState::Held(at) if at >= context.arrived);
        self.failure().or_else(|| (!was_held).then_some(cut))
    }
}

/// Returns a sleep, which ends at the thread's own deadline. That is later than now, so the sleep has a length.
pub(super) fn sleep(length: Duration, context: &Context<'_>) -> Step {
    let until = context.now + length.clamp(SHORTEST_PAUSE, LONGEST_SLEEP);
    Step::Sleep(until.min(context.wait.end().unwrap_or(until)))
}

/// The requests that have failed since the last answer. "Held" does not answer whether replicas confirm writes. So an
/// outage of the replicas outlives that answer: others may hold the lock now and then.
#[derive(Debug)]
struct Outage {
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
    fn note(this: &mut Option<Self>, failure: Failure, now: Time, limit: Duration) -> Duration {
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
    fn outlives_an_answer(&mut self) -> bool {
        self.interrupted = true;
        is_of_replicas(&self.failure)
    }

    /// Returns the last failure, unless an answer came after it.
    fn failure(&self) -> Option<Failure> {
        (!self.interrupted).then(|| self.failure.clone())
    }

    /// Returns the last failure, unless an answer came after it, if the outage has lasted for `limit`.
    fn too_long(&self, now: Time, limit: Duration) -> Option<Failure> {
        self.failure().filter(|_| now.since(self.since) >= limit)
    }
}

/// Returns whether a grant failed only because too few replicas confirmed it.
pub(super) fn is_of_replicas(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::NotReplicated { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn failure(kind: FailureKind) -> Failure {
        Failure::not_executed(kind, "a fault of the test")
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
