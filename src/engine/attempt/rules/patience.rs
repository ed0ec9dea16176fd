//! How long an attempt goes on without a grant, and how it ends for the thread that drives it.
//!
//! A wait goes on until its thread's deadline. A failure ends it in the cases of this table, the first that fits; in
//! all others, the attempt backs off.
//!
//! | failure | the attempt ends |
//! | --- | --- |
//! | permanent: denied, wrong type, other permits, an answer that makes no sense | for all threads |
//! | at or after the thread's deadline | for this thread alone; another may carry the attempt on |
//! | the same, and only because of the deadline | the same; the answer before the failure counts, if there is one |
//! | of a try | for all threads |
//! | before a wait has begun | the same, unless the manager waits through outages, or the slot of the lock moves to another node |
//! | of an outage that has lasted for its limit, in a wait without a deadline | for all threads |

use std::time::Duration;

use super::step::{Context, Step};
use crate::engine::attempt::outage::Outage;
use crate::error::{Failure, FailureKind};
use crate::sys::random::{jittered, jittered_by_half};
use crate::sys::{LONGEST_SLEEP, Time};

/// The shortest sleep: the next request follows at once.
pub(super) const SHORTEST_PAUSE: Duration = Duration::from_millis(2);

/// The pause after the votes of a quorum were split. Each further pause is longer by as much.
const AFTER_SPLIT: Duration = Duration::from_millis(4);
/// After this number of splits the pauses do not grow.
const MOST_SPLITS: u32 = 8;

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

    /// Takes in that Redis answered "held". That ends every outage but one of replicas.
    pub(super) fn answered_held(&mut self, now: Time) {
        self.wait = WaitState::Held(now);
        self.outage.take_if(|outage| !outage.outlives_an_answer());
    }

    /// Returns the end for this thread, if its time or the limit of an outage is over. A try that was not answered
    /// still has its one request.
    pub(super) fn end(&self, context: &Context<'_>) -> Option<Step> {
        let is_over = match context.until {
            None => self.is_contended(),
            Some(Time::NEVER) => {
                let outage = self.outage.as_ref()?;
                let failure = outage.too_long(context.now, context.outage_limit)?;
                return Some(Step::Failed(failure));
            }
            Some(until) => context.now >= until && (self.has_begun() || self.outage.is_some()),
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
        if context.until.is_some_and(|until| context.now >= until) {
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
        if context.until.is_none() || !waits {
            return Step::Failed(failure);
        }
        // 4. Sleep, unless the outage has lasted for its limit.
        let pause = Outage::note(&mut self.outage, failure, context.now, context.outage_limit);
        match self.end(context) {
            Some(end) => end,
            None => sleep(jittered(context.rng, pause), context),
        }
    }

    /// Takes in that the votes of a quorum are split: nobody has the lock. A try asks once more. A wait asks again after
    /// a moment, which differs from process to process.
    pub(super) fn split(&mut self, failure: Failure, context: &Context<'_>) -> Step {
        self.splits += 1;
        if context.until.is_none() && self.splits > 1 {
            return Step::Failed(failure);
        }
        if context.until.is_some_and(|until| context.now >= until) {
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
    Step::Sleep(until.min(context.until.unwrap_or(Time::NEVER)))
}
