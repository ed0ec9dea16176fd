//! One process's way to a lock: asked, queued, woken, claimed, interrupted by outages, granted or abandoned.
//!
//! An attempt has one owner, which is in Redis what the attempt is here. It belongs to a name's queue in this
//! process, not to a thread: a delegate that gives up hands it to the next thread, place in the queue and all.
//!
//! | state | on | what follows |
//! | --- | --- | --- |
//! | ask | go | send *acquire*: at once the first time, then only past the queue |
//! | take over | go | send *take-over* of the tenure that this process's last guard ended |
//! | any, sent | granted in time | done |
//! | any, sent | granted too late to be believed | abandon the owner, go on under a new one, as after a failure |
//! | ask, sent | share what you have | done: the owner is not used |
//! | any, sent | held | a try is done; a wait sleeps until a message, the holder's expiry, or its poll |
//! | any, sent | held, and the subscription began or ended meanwhile | ask again at once: the queue has the wrong channel |
//! | ask, sent | failed, and no wait has begun | done: the first error is returned at once; or back off, if the manager waits through outages |
//! | any, sent | failed for good (denied, wrong type, other permits, nonsense) | done |
//! | any, sent | failed half way | the same, and the owner is cancelled once, with what it may have taken |
//! | ask, sent | failed, may pass | back off, ask again under the same owner: asking is idempotent |
//! | any, sent | granted, but too few replicas confirmed it | cancel the owner, back off, ask under a new one |
//! | any, sent | held by the owner that was cancelled so | no answer: back off, ask again |
//! | any, sent | cut short by the thread's own deadline | the answer before it counts: held, or its failure; if there is none, this one |
//! | take over, sent | failed, outcome unknown, or answered to another question | abandon both owners, back off, ask under a new one |
//! | take over, sent | failed, certainly not carried out | back off, take over again |
//! | sleeping | woken, or time | ask again |
//! | any | given up | [`Attempt::abandon`] says what may be left behind in Redis |
//!
//! An owner for which a release or a cancel has been sent never asks again. An owner with a request of unknown
//! outcome stays in *doubt* until a lease has passed since it was sent: its request may still be carried out,
//! so whoever ends that owner repeats the ending until then ([`super::ending`]).

use std::time::Duration;

use crate::clock::Time;
use crate::config::Terms;
use crate::core::lease::valid_until;
use crate::core::outage::{LONGEST_PAUSE, Outage, is_of_replicas};
use crate::core::poll;
use crate::error::{Failure, FailureKind};
use crate::message::{Ask, GiveBack, Reply, Verb};
use crate::owner;
use crate::random::{Chance, jittered};
use crate::sync::Arc;

pub(crate) use crate::core::poll::Hearing;

/// How long after a holder's reported expiry to look: the server drops a key no earlier than its time.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// What the attempt finds around it at each step.
pub(crate) struct Surroundings<'a> {
    pub(crate) now: Time,
    /// When the driving thread called.
    pub(crate) arrived: Time,
    pub(crate) terms: Terms,
    /// When the driving thread gives up; none where it only tries.
    pub(crate) until: Option<Time>,
    pub(crate) hearing: Hearing,
    /// How many fences a grant should bring where it can be passed on.
    pub(crate) block: u64,
    /// A tenure of this process's that more threads may sit in, if nobody else waits.
    pub(crate) beside: Option<Arc<str>>,
    /// Into how many units the lock is divided.
    pub(crate) of: u32,
    /// Whether other threads of this process wait.
    pub(crate) crowded: bool,
    /// How many delegates this process has, over all names.
    pub(crate) delegates: u32,
    pub(crate) outage_limit: Duration,
    /// Whether a failure of the first request is waited out too.
    pub(crate) waits_through_outages: bool,
    pub(crate) label: &'a str,
    pub(crate) chance: &'a dyn Chance,
}

/// What happened since the last step.
#[derive(Debug)]
pub(crate) enum Input {
    /// A thread begins to drive it.
    Go,
    /// The request that was sent at this time was answered. `resent`: it may have been carried out twice.
    Replied {
        sent: Time,
        reply: Reply,
        resent: bool,
    },
    /// The request that was sent at this time failed. `cut_short`: only because the driving thread's wait was over.
    Failed {
        sent: Time,
        failure: Failure,
        cut_short: bool,
    },
    /// A sleep is over, by a message or by time.
    Woken,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step {
    Send(Verb),
    Sleep(Time),
    Done(Outcome),
}

/// How it ended, for the thread that drives it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Grant),
    /// The tenure that was offered may be sat in for another quantum.
    Shared,
    /// The thread's time is over. The last answer was that somebody else holds the lock, or else there is the
    /// failure that kept it from being asked. Another thread may carry the attempt on.
    TimeOver(Option<Failure>),
    /// It failed for everybody.
    Failed(Failure),
}

/// A lock that was granted.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) owner: Arc<str>,
    pub(crate) fence: u64,
    pub(crate) fences: u64,
    /// The fences of the further names, where there are several.
    pub(crate) rest: Vec<u64>,
    /// A reading of the clock from before the request.
    pub(crate) sent: Time,
    pub(crate) deadline: Time,
    /// Whether other processes are known, or bound, to wait for it.
    pub(crate) contended: bool,
    /// Until when a request of unknown outcome may still be carried out.
    pub(crate) doubt: Option<Time>,
    /// Until when Redis may keep the key because of such a request, whose lease may be longer than this grant's.
    pub(crate) kept_until: Option<Time>,
}

/// Something of ours that may be left in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leftover {
    pub(crate) owner: Arc<str>,
    pub(crate) units: u32,
    /// Until when "not there" is not yet final.
    pub(crate) doubt: Option<Time>,
    /// Until when Redis may keep it, where that is known to be longer than the lease of the thread that ends it.
    pub(crate) kept_until: Option<Time>,
    /// The unused part of its fences, if it was a tenure.
    pub(crate) give_back: Option<GiveBack>,
}

#[derive(Debug)]
enum State {
    Ask,
    TakeOver {
        from: Leftover,
        give_back: Option<GiveBack>,
    },
}

/// The attempt of one process at one name.
#[derive(Debug)]
pub(crate) struct Attempt {
    owner: Arc<str>,
    /// How much of the lock it is for.
    units: u32,
    state: State,
    /// Whether Redis may have this owner in the lock's queue.
    queued: bool,
    /// The channel that the last request named, under which the queue knows this owner.
    named: Option<Arc<str>>,
    /// Whether anything was ever answered.
    answered: bool,
    /// Whether a failure is waited out: a wait has begun. Until then it is returned at once.
    waits: bool,
    /// How many fences the request under way reserves, and whether it was sent to a contended lock.
    asked: u64,
    /// The tenure that was offered to be shared instead.
    offered: Option<Arc<str>>,
    doubt: Option<Time>,
    /// Until when Redis may keep the key, if a request in doubt is carried out.
    kept_until: Option<Time>,
    /// When "held" was answered last.
    held: Option<Time>,
    /// The owner before this one, if too few replicas confirmed its grant: its key stays until its cancel is carried out.
    unconfirmed: Option<Arc<str>>,
    outage: Option<Outage>,
    leftovers: Vec<Leftover>,
}

impl Attempt {
    /// An attempt from nothing, at so much of the lock.
    pub(crate) fn new(chance: &dyn Chance, label: &str, units: u32) -> Self {
        Self {
            owner: owner::generate(chance, label),
            units,
            state: State::Ask,
            queued: false,
            named: None,
            answered: false,
            waits: false,
            asked: 1,
            offered: None,
            doubt: None,
            kept_until: None,
            held: None,
            unconfirmed: None,
            outage: None,
            leftovers: Vec::new(),
        }
    }

    /// An attempt of a thread that has waited behind others of its process.
    pub(crate) fn after_waiting(chance: &dyn Chance, label: &str, units: u32) -> Self {
        Self {
            waits: true,
            ..Self::new(chance, label, units)
        }
    }

    /// An attempt to keep a lock that this process holds as `from`, whose tenure has been ended here.
    pub(crate) fn take_over(
        chance: &dyn Chance,
        label: &str,
        from: Leftover,
        give_back: Option<GiveBack>,
    ) -> Self {
        Self {
            answered: true,
            ..Self::take_back(chance, label, from, give_back, true)
        }
    }

    /// The same where its release has not been sent: nobody has been told of it. `waits`: a wait has begun.
    pub(crate) fn take_back(
        chance: &dyn Chance,
        label: &str,
        from: Leftover,
        give_back: Option<GiveBack>,
        waits: bool,
    ) -> Self {
        let units = from.units;
        Self {
            waits,
            state: State::TakeOver { from, give_back },
            ..Self::new(chance, label, units)
        }
    }

    /// Whether a failure is waited out.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Whether it has done nothing yet, so that another may take its place.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.state, State::Ask) && !self.queued && !self.answered && self.doubt.is_none()
    }

    /// Whether a thread that wants so much of the lock can carry it on.
    pub(crate) fn is_for(&self, units: u32) -> bool {
        self.units == units
    }

    /// Whether `holder` is an earlier owner of this attempt, whose cancel is on its way: then "held" is no answer.
    pub(crate) fn is_former_owner(&self, holder: &str) -> bool {
        self.unconfirmed.as_deref() == Some(holder)
    }

    /// The owner under which messages come.
    pub(crate) fn owner(&self) -> &Arc<str> {
        &self.owner
    }

    /// What has been left behind on the way and is to be released in the background.
    pub(crate) fn leftovers(&mut self) -> Vec<Leftover> {
        std::mem::take(&mut self.leftovers)
    }

    /// Nobody carries this on: what may be left of it in Redis.
    pub(crate) fn abandon(mut self) -> Vec<Leftover> {
        if let State::TakeOver { from, give_back } = std::mem::replace(&mut self.state, State::Ask)
        {
            self.leftovers.push(Leftover { give_back, ..from });
        }
        if self.queued || self.doubt.is_some() {
            let owner = Arc::clone(&self.owner);
            self.leave_behind(owner);
        }
        self.leftovers
    }

    /// Has an owner of this attempt released, with what is known of its requests.
    fn leave_behind(&mut self, owner: Arc<str>) {
        self.leftovers.push(Leftover {
            owner,
            units: self.units,
            doubt: self.doubt.take(),
            kept_until: self.kept_until.take(),
            give_back: None,
        });
    }

    /// Notes a request that was sent at `sent`, and may be carried out until `doubt`.
    fn note_doubt(&mut self, sent: Time, doubt: Time, around: &Surroundings<'_>) {
        let lease = around.terms.lease();
        self.doubt = self.doubt.max(Some(doubt));
        // Carried out at the last moment, it takes the lock for a lease from then.
        self.kept_until = self.kept_until.max(Some(sent + lease * 2));
    }

    pub(crate) fn step(&mut self, input: Input, around: &Surroundings<'_>) -> Step {
        match input {
            Input::Go | Input::Woken => {
                if let Some(over) = self.time_is_over(around) {
                    return over;
                }
                Step::Send(self.request(around))
            }
            Input::Replied {
                sent,
                reply,
                resent,
            } => {
                if resent {
                    self.note_doubt(sent, sent + around.terms.lease(), around);
                }
                self.replied(sent, &reply, around)
            }
            Input::Failed {
                sent,
                failure,
                cut_short,
            } => self.failed(sent, failure, cut_short, around),
        }
    }

    fn request(&mut self, around: &Surroundings<'_>) -> Verb {
        let channel = channel(around);
        // A lock that was contended will be again; one that was free is most likely wanted by nobody else.
        let passed_on = around.crowded || self.answered;
        self.asked = if passed_on { around.block } else { 1 };
        let ask = Ask {
            owner: Arc::clone(&self.owner),
            units: self.units,
            lease: around.terms.lease(),
            fences: self.asked,
            // One that stands in the queue waits its turn.
            beside: around.beside.clone().filter(|_| !self.queued),
            channel,
        };
        self.offered.clone_from(&ask.beside);
        self.named.clone_from(&ask.channel);
        let queues = ask.channel.is_some();
        let verb = match &self.state {
            State::Ask => Verb::Acquire {
                ask,
                at_once: !self.queued,
            },
            State::TakeOver {
                from, give_back, ..
            } => Verb::TakeOver {
                ask,
                from: Arc::clone(&from.owner),
                give_back: *give_back,
            },
        };
        self.queued |= queues;
        verb
    }

    fn replied(&mut self, sent: Time, reply: &Reply, around: &Surroundings<'_>) -> Step {
        match reply {
            Reply::Granted {
                fence,
                rest,
                contended,
            } => {
                let (fence, contended) = (*fence, *contended);
                let taken_over = self.has_taken_over();
                let deadline = valid_until(sent, around.terms.lease());
                if around.now >= deadline {
                    self.note_doubt(sent, sent + around.terms.lease(), around);
                    self.renamed(around);
                    return self.setback(Failure::too_late(), false, around);
                }
                self.queued = false;
                Step::Done(Outcome::Granted(Grant {
                    owner: Arc::clone(&self.owner),
                    fence,
                    fences: self.asked,
                    rest: rest.clone(),
                    sent,
                    deadline,
                    contended: contended || (self.answered && !taken_over),
                    doubt: self.doubt.filter(|doubt| *doubt > around.now),
                    kept_until: self.kept_until,
                }))
            }
            Reply::Shared if self.offered.is_some() => {
                self.has_taken_over();
                self.queued = false;
                Step::Done(Outcome::Shared)
            }
            Reply::Held { ttl, holder } => {
                self.has_taken_over();
                if self.is_former_owner(holder) {
                    if let Some(failure) = self.outage.as_ref().and_then(Outage::failure) {
                        return self.setback(failure, false, around);
                    }
                }
                self.answered = true;
                self.waits = true;
                self.held = Some(around.now);
                self.outage.take_if(|outage| !outage.outlives_an_answer());
                if let Some(over) = self.time_is_over(around) {
                    return over;
                }
                let poll = self.poll(holder, around);
                // Somebody else's lock that never expires, or is about to, says nothing: poll.
                let wait = ttl.map_or(poll, |ttl| (ttl + AFTER_EXPIRY).min(poll));
                sleep(wait, around)
            }
            Reply::Differs(stored) => {
                self.has_taken_over();
                let kind = FailureKind::PermitsDiffer {
                    asked: around.of,
                    stored: *stored,
                };
                let words = "others use it with another number of permits";
                self.failed(sent, Failure::plain(kind, false, words), false, around)
            }
            _ => self.failed(sent, Failure::another_question(), false, around),
        }
    }

    /// How long to sleep after "held", at most.
    fn poll(&self, holder: &str, around: &Surroundings<'_>) -> Duration {
        if self.named != channel(around) {
            // The subscription began or ended during the request. A message for this owner may go to a channel that
            // nobody listens on, or not be sent at all, until the next request names the right channel.
            return AFTER_EXPIRY;
        }
        let lease = around.terms.lease();
        poll::pause(
            &around.hearing,
            lease,
            holder,
            around.delegates,
            around.chance,
        )
    }

    /// Whatever was answered to it, the tenure that was to be taken over is over. False where there was none.
    fn has_taken_over(&mut self) -> bool {
        let State::TakeOver { from, .. } = std::mem::replace(&mut self.state, State::Ask) else {
            return false;
        };
        if from.doubt.is_some() {
            self.leftovers.push(from);
        }
        true
    }

    fn failed(
        &mut self,
        sent: Time,
        failure: Failure,
        cut_short: bool,
        around: &Surroundings<'_>,
    ) -> Step {
        if let Some(doubt) = failure.doubt(sent, around.terms.lease()) {
            self.note_doubt(sent, doubt, around);
            let is_unconfirmed = is_of_replicas(&failure);
            let unconfirmed = is_unconfirmed.then(|| Arc::clone(&self.owner));
            // The release that must follow for the old owner may hit the new one's grant: neither asks again.
            if let State::TakeOver { from, give_back } =
                std::mem::replace(&mut self.state, State::Ask)
            {
                self.leftovers.push(Leftover {
                    give_back,
                    doubt: from.doubt.max(self.doubt),
                    kept_until: from.kept_until.max(self.kept_until),
                    ..from
                });
                self.renamed(around);
            } else if is_unconfirmed {
                // Nobody has a guard of it, so nobody may find it held.
                self.renamed(around);
            }
            self.unconfirmed = unconfirmed;
        }
        self.setback(failure, cut_short, around)
    }

    /// Leaves the present owner behind, to be released, and goes on under another.
    fn renamed(&mut self, around: &Surroundings<'_>) {
        let new = owner::generate(around.chance, around.label);
        let old = std::mem::replace(&mut self.owner, new);
        self.leave_behind(old);
        self.queued = false;
    }

    /// Sleeps after a failure, or ends where it will not pass, nobody waits for it to, or it has lasted long.
    fn setback(&mut self, failure: Failure, cut_short: bool, around: &Surroundings<'_>) -> Step {
        // A request that was cut short by this thread's deadline says nothing to the threads behind it.
        if failure.passes() && around.until.is_some_and(|until| around.now >= until) {
            let failure = if cut_short {
                self.before_the_cut(failure, around)
            } else {
                Some(failure)
            };
            return Step::Done(Outcome::TimeOver(failure));
        }
        let waits = self.waits || around.waits_through_outages;
        if !failure.passes() || around.until.is_none() || !waits {
            return Step::Done(Outcome::Failed(failure));
        }
        let pause = Outage::note(&mut self.outage, failure, around.now, around.outage_limit);
        if let Some(over) = self.time_is_over(around) {
            return over;
        }
        sleep(jittered(around.chance, pause), around)
    }

    /// Returns the result of a thread whose last request was `cut` short: `None` for "held", if that was the answer before.
    fn before_the_cut(&self, cut: Failure, around: &Surroundings<'_>) -> Option<Failure> {
        let was_held = self.held.is_some_and(|at| at >= around.arrived);
        let before = self.outage.as_ref().and_then(Outage::failure);
        before.or_else(|| (!was_held).then_some(cut))
    }

    /// What to return where the thread's time, or the patience with an outage, is over. A try that has not
    /// been answered yet still has its one request.
    fn time_is_over(&self, around: &Surroundings<'_>) -> Option<Step> {
        let over = match around.until {
            None => self.answered,
            Some(Time::NEVER) => {
                let outage = self.outage.as_ref()?;
                let failure = outage.too_long(around.now, around.outage_limit)?;
                return Some(Step::Done(Outcome::Failed(failure)));
            }
            Some(until) => around.now >= until && (self.waits || self.outage.is_some()),
        };
        over.then(|| {
            let failure = self.outage.as_ref().and_then(Outage::failure);
            Step::Done(Outcome::TimeOver(failure))
        })
    }
}

/// The channel to queue under; `None` if the request must not queue. A try never queues.
fn channel(around: &Surroundings<'_>) -> Option<Arc<str>> {
    around.until.and_then(|_| around.hearing.channel())
}

/// The thread's own end is later than now, or it would not sleep: this never is a sleep of no length.
fn sleep(length: Duration, around: &Surroundings<'_>) -> Step {
    let until = around.now + length.clamp(AFTER_EXPIRY, LONGEST_PAUSE);
    Step::Sleep(until.min(around.until.unwrap_or(Time::NEVER)))
}

#[cfg(test)]
mod tests;
