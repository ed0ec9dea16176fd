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
mod tests {
    use super::*;
    use crate::core::outage::UNCONFIRMED_PAUSE;
    use crate::random::SystemChance;

    const LEASE: Duration = Duration::from_secs(30);
    const START: Time = Time::from_nanos(1 << 50);

    /// An attempt, and the present as its thread sees it.
    struct Scene {
        chance: SystemChance,
        now: Time,
        until: Option<Time>,
        hearing: Hearing,
        lease: Duration,
        delegates: u32,
        waits_through_outages: bool,
        attempt: Attempt,
    }

    impl Scene {
        fn new(until: Option<Time>) -> Self {
            let chance = SystemChance::new();
            Self {
                attempt: Attempt::new(&chance, "l", 1),
                chance,
                now: START,
                until,
                hearing: Hearing::Ready("c".into()),
                lease: LEASE,
                delegates: 1,
                waits_through_outages: false,
            }
        }

        fn waiting() -> Self {
            Self::new(Some(Time::NEVER))
        }

        fn step(&mut self, input: Input) -> Step {
            self.attempt.step(
                input,
                &Surroundings {
                    now: self.now,
                    arrived: START,
                    terms: Terms::new(self.lease, true),
                    until: self.until,
                    hearing: self.hearing.clone(),
                    block: 100,
                    beside: None,
                    of: 1,
                    crowded: false,
                    delegates: self.delegates,
                    outage_limit: Duration::from_mins(1),
                    waits_through_outages: self.waits_through_outages,
                    label: "l",
                    chance: &self.chance,
                },
            )
        }

        fn send(&mut self, input: Input) -> Verb {
            match self.step(input) {
                Step::Send(verb) => verb,
                other => panic!("{other:?}"),
            }
        }

        fn replied(&mut self, reply: Reply) -> Step {
            let sent = self.now;
            self.step(Input::Replied {
                sent,
                reply,
                resent: false,
            })
        }

        fn failed(&mut self, kind: FailureKind, unknown: bool) -> Step {
            let sent = self.now;
            let failure = Failure::plain(kind, unknown, "bad weather");
            self.step(Input::Failed {
                sent,
                failure,
                cut_short: false,
            })
        }
    }

    fn held(ttl: Option<Duration>) -> Reply {
        Reply::Held {
            ttl,
            holder: "lh1:other:l".into(),
        }
    }

    const GRANTED: Reply = Reply::Granted {
        fence: 7,
        rest: Vec::new(),
        contended: false,
    };

    fn sleep_of(step: Step, now: Time) -> Duration {
        match step {
            Step::Sleep(until) => until.since(now),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_free_lock_is_one_request_with_one_fence() {
        let mut scene = Scene::waiting();
        let Verb::Acquire { ask, at_once } = scene.send(Input::Go) else {
            panic!("not asked");
        };
        assert_eq!((ask.fences, at_once), (1, true));
        let Step::Done(Outcome::Granted(grant)) = scene.replied(GRANTED) else {
            panic!("not granted");
        };
        assert_eq!(
            (grant.fence, grant.contended, grant.doubt),
            (7, false, None)
        );
        assert_eq!(grant.deadline, valid_until(START, LEASE));
        assert_eq!(scene.attempt.abandon(), []);
    }

    #[test]
    fn what_was_not_offered_cannot_be_shared() {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        let Step::Done(Outcome::Failed(failure)) = scene.replied(Reply::Shared) else {
            panic!("it was believed");
        };
        assert_eq!(failure.kind, FailureKind::Protocol);
    }

    #[test]
    fn a_try_never_queues_and_ends_with_the_answer() {
        let mut scene = Scene::new(None);
        let Verb::Acquire { ask, .. } = scene.send(Input::Go) else {
            panic!("not asked");
        };
        assert_eq!(ask.channel, None);
        let step = scene.replied(held(None));
        assert!(matches!(step, Step::Done(Outcome::TimeOver(None))));
        assert_eq!(scene.attempt.abandon(), []);
    }

    #[test]
    fn a_wait_queues_only_after_the_first_try_to_subscribe() {
        let mut scene = Scene::waiting();
        scene.hearing = Hearing::NotYet;
        let Verb::Acquire { ask, .. } = scene.send(Input::Go) else {
            panic!("not asked");
        };
        assert_eq!(ask.channel, None);
        assert!(sleep_of(scene.replied(held(None)), START) <= poll::SUBSCRIBING);
        scene.send(Input::Woken);
        // Confirmed while the request was under way.
        scene.hearing = Hearing::Ready("c".into());
        assert!(sleep_of(scene.replied(held(None)), START) <= AFTER_EXPIRY);
        let Verb::Acquire { ask, at_once } = scene.send(Input::Woken) else {
            panic!("not asked");
        };
        assert_eq!((ask.channel.as_deref(), at_once), (Some("c"), true));
        scene.replied(held(None));
        // Queued under its channel: the queue goes first now.
        scene.hearing = Hearing::NoSubscription;
        let Verb::Acquire { ask, at_once } = scene.send(Input::Woken) else {
            panic!("not asked");
        };
        assert_eq!((ask.channel.as_deref(), at_once), (Some(""), false));
        assert!(sleep_of(scene.replied(held(None)), START) <= poll::NO_SUBSCRIPTION);
    }

    /// For each state of the subscription before a request and after it: only what the request named can wake it.
    #[test]
    fn a_request_that_named_the_wrong_channel_is_followed_by_another_at_once() {
        let states = [Hearing::Ready("c".into()), Hearing::NoSubscription];
        for before in &states {
            for after in &states {
                let mut scene = Scene::waiting();
                scene.hearing = before.clone();
                scene.send(Input::Go);
                scene.hearing = after.clone();
                let slept = sleep_of(scene.replied(held(None)), START);
                assert_eq!(slept <= AFTER_EXPIRY, before != after, "{slept:?}");
            }
        }
    }

    /// It may have been handed the lock, for its claim window, and the message may be lost or never sent.
    #[test]
    fn polls_come_within_the_claim_window() {
        for (lease_ms, window_ms) in [
            (10, 250),
            (250, 250),
            (600, 600),
            (1000, 1000),
            (30_000, 1000),
        ] {
            let window = Duration::from_millis(window_ms);
            for hearing in [Hearing::Ready("c".into()), Hearing::NoSubscription] {
                let mut scene = Scene::waiting();
                scene.lease = Duration::from_millis(lease_ms);
                scene.hearing = hearing.clone();
                scene.send(Input::Go);
                let slept = sleep_of(scene.replied(held(None)), START);
                let most = match hearing {
                    Hearing::NoSubscription => window / 3,
                    _ => window * 19 / 20,
                };
                assert!(slept <= most, "{lease_ms} ms, {hearing:?}: {slept:?}");
            }
        }
    }

    /// No message tells of its release. Many delegates share what the process may send.
    #[test]
    fn a_holder_of_another_client_is_polled_more_often() {
        for (delegates, least_ms, most_ms) in [
            (1, 50, 100),
            (50, 50, 100),
            (200, 200, 400),
            (5000, 700, 950),
        ] {
            for holder in ["6e0b1c", "", "lh2:other"] {
                let mut scene = Scene::waiting();
                scene.delegates = delegates;
                scene.send(Input::Go);
                let holder = holder.into();
                let slept = sleep_of(scene.replied(Reply::Held { ttl: None, holder }), START);
                let bounds = Duration::from_millis(least_ms)..=Duration::from_millis(most_ms);
                assert!(bounds.contains(&slept), "{delegates}: {slept:?}");
            }
        }
    }

    #[test]
    fn a_sleep_ends_at_the_reported_expiry_and_is_never_of_no_length() {
        for (ttl, least, most) in [
            (None, 700, 950),
            (Some(60_000), 700, 950),
            (Some(100), 100, 110),
            (Some(0), 1, 10),
        ] {
            let mut scene = Scene::waiting();
            scene.send(Input::Go);
            let slept = sleep_of(scene.replied(held(ttl.map(Duration::from_millis))), START);
            let bounds = Duration::from_millis(least)..=Duration::from_millis(most);
            assert!(bounds.contains(&slept), "{ttl:?}: {slept:?}");
        }
    }

    #[test]
    fn the_first_error_is_returned_and_later_ones_are_waited_out() {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        let step = scene.failed(FailureKind::Unavailable, true);
        assert!(matches!(step, Step::Done(Outcome::Failed(_))));
        // It may still be carried out.
        assert_eq!(scene.attempt.abandon()[0].doubt, Some(START + LEASE));

        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        scene.replied(held(None));
        let owner = Arc::clone(scene.attempt.owner());
        scene.send(Input::Woken);
        let mut slept = Duration::ZERO;
        let failure = loop {
            match scene.failed(FailureKind::Unavailable, true) {
                Step::Sleep(until) => {
                    assert!(until > scene.now && until.since(scene.now) <= LONGEST_PAUSE);
                    slept += until.since(scene.now);
                    scene.now = until;
                }
                Step::Done(Outcome::Failed(failure)) => break failure,
                other => panic!("{other:?}"),
            }
            // The same owner: its place in the queue is kept.
            match scene.step(Input::Woken) {
                Step::Send(verb) => assert_eq!(*verb.owner(), owner),
                Step::Done(Outcome::Failed(failure)) => break failure,
                other => panic!("{other:?}"),
            }
        };
        assert!(failure.passes());
        assert!(
            slept >= Duration::from_mins(1) && slept < Duration::from_secs(65),
            "{slept:?}"
        );
    }

    #[test]
    fn a_request_cut_short_by_one_threads_deadline_fails_no_other() {
        let mut scene = Scene::new(Some(START + Duration::from_millis(1)));
        scene.send(Input::Go);
        scene.now = START + Duration::from_millis(100);
        let step = scene.failed(FailureKind::Unavailable, true);
        assert!(matches!(step, Step::Done(Outcome::TimeOver(Some(_)))));
    }

    #[test]
    fn other_permits_end_a_wait_and_leave_no_place_in_the_queue() {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        scene.replied(held(None));
        scene.send(Input::Woken);
        let step = scene.replied(Reply::Differs(5));
        let Step::Done(Outcome::Failed(failure)) = step else {
            panic!("it goes on: {step:?}");
        };
        let (asked, stored) = (1, 5);
        assert_eq!(failure.kind, FailureKind::PermitsDiffer { asked, stored });
        assert_eq!(scene.attempt.abandon().len(), 1);
    }

    #[test]
    fn what_will_not_pass_ends_a_wait() {
        for kind in [
            FailureKind::Denied,
            FailureKind::WrongType,
            FailureKind::Protocol,
        ] {
            let mut scene = Scene::waiting();
            scene.send(Input::Go);
            scene.replied(held(None));
            scene.send(Input::Woken);
            let step = scene.failed(kind, false);
            assert!(matches!(step, Step::Done(Outcome::Failed(failure)) if failure.kind == kind));
        }
    }

    #[test]
    fn a_deadline_during_an_outage_is_an_error_for_this_thread_alone() {
        let mut scene = Scene::new(Some(START + Duration::from_secs(1)));
        scene.send(Input::Go);
        scene.replied(held(None));
        scene.send(Input::Woken);
        scene.now = START + Duration::from_secs(1);
        let step = scene.failed(FailureKind::Unavailable, false);
        assert!(matches!(step, Step::Done(Outcome::TimeOver(Some(_)))));
        // The next thread carries it on, under the same owner.
        let owner = Arc::clone(scene.attempt.owner());
        scene.until = Some(Time::NEVER);
        assert_eq!(*scene.send(Input::Go).owner(), owner);
    }

    #[test]
    fn a_grant_after_an_unknown_outcome_stays_in_doubt() {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        scene.replied(held(None));
        scene.send(Input::Woken);
        scene.failed(FailureKind::Unavailable, true);
        scene.now = START + Duration::from_secs(1);
        scene.send(Input::Woken);
        let Step::Done(Outcome::Granted(grant)) = scene.replied(GRANTED) else {
            panic!("not granted");
        };
        assert_eq!(grant.doubt, Some(START + LEASE));
        assert!(grant.contended);
    }

    #[test]
    fn a_grant_by_a_request_that_went_out_twice_stays_in_doubt() {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        let step = scene.step(Input::Replied {
            sent: START,
            reply: GRANTED,
            resent: true,
        });
        let Step::Done(Outcome::Granted(grant)) = step else {
            panic!("not granted");
        };
        assert_eq!(grant.doubt, Some(START + LEASE));
    }

    #[test]
    fn a_grant_past_its_validity_is_not_one() {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        scene.replied(held(None));
        let owner = Arc::clone(scene.attempt.owner());
        scene.send(Input::Woken);
        let sent = scene.now;
        scene.now = valid_until(sent, LEASE);
        let step = scene.step(Input::Replied {
            sent,
            reply: GRANTED,
            resent: false,
        });
        assert!(matches!(step, Step::Sleep(_)));
        assert_eq!(scene.attempt.leftovers()[0].owner, owner);
        assert_ne!(*scene.attempt.owner(), owner);
    }

    const UNCONFIRMED: FailureKind = FailureKind::NotReplicated {
        wanted: 2,
        confirmed: 1,
    };

    /// The answer to a grant that too few replicas confirmed.
    fn unconfirmed(scene: &mut Scene) -> Step {
        let failure = Failure {
            half_done: true,
            ..Failure::plain(UNCONFIRMED, false, "1 of 2")
        };
        let sent = scene.now;
        scene.step(Input::Failed {
            sent,
            failure,
            cut_short: false,
        })
    }

    /// One cancel is enough: the request was carried out, and cannot be carried out later.
    #[test]
    fn a_grant_that_too_few_replicas_have_is_cancelled_before_the_next_try() {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        scene.replied(held(None));
        for _ in 0..3 {
            let owner = Arc::clone(scene.attempt.owner());
            scene.send(Input::Woken);
            let Step::Sleep(until) = unconfirmed(&mut scene) else {
                panic!("it does not go on");
            };
            assert!(until.since(scene.now) >= UNCONFIRMED_PAUSE * 3 / 4);
            let left = scene.attempt.leftovers();
            assert_eq!((left.len(), &left[0].owner), (1, &owner));
            assert_eq!(left[0].doubt, Some(scene.now));
            assert_ne!(*scene.attempt.owner(), owner);
            scene.now = until;
            // The cancel is on its way: that the lock is still held says nothing.
            scene.send(Input::Woken);
            let ttl = None;
            let step = scene.replied(Reply::Held { ttl, holder: owner });
            assert!(matches!(step, Step::Sleep(_)), "{step:?}");
            // Another holds it for a while.
            scene.send(Input::Woken);
            scene.replied(held(None));
        }
        // That others come and go says nothing of the replicas.
        scene.now = scene.now + Duration::from_secs(40);
        scene.send(Input::Woken);
        assert!(matches!(unconfirmed(&mut scene), Step::Sleep(_)));
        scene.send(Input::Woken);
        scene.replied(held(None));
        scene.now = scene.now + Duration::from_secs(40);
        scene.send(Input::Woken);
        let Step::Done(Outcome::Failed(failure)) = unconfirmed(&mut scene) else {
            panic!("it waits for ever");
        };
        assert_eq!(failure.kind, UNCONFIRMED);
    }

    #[test]
    fn a_first_request_that_fails_is_waited_out_if_that_is_asked_for() {
        for until in [
            Some(Time::NEVER),
            Some(START + Duration::from_mins(1)),
            None,
        ] {
            let mut scene = Scene::new(until);
            scene.waits_through_outages = true;
            scene.send(Input::Go);
            let mut step = scene.failed(FailureKind::Unavailable, false);
            assert_eq!(matches!(step, Step::Sleep(_)), until.is_some(), "{step:?}");
            while let Step::Sleep(end) = step {
                scene.now = end;
                step = scene.step(Input::Woken);
                if let Step::Send(_) = step {
                    step = scene.failed(FailureKind::Unavailable, false);
                }
            }
            let is_error = matches!(
                step,
                Step::Done(Outcome::Failed(_) | Outcome::TimeOver(Some(_)))
            );
            assert!(is_error, "{step:?}");
            let waited = scene.now.since(START);
            assert_eq!(
                waited >= Duration::from_mins(1),
                until.is_some(),
                "{waited:?}"
            );
        }
    }

    /// For each answer to the request before it.
    #[test]
    fn a_request_that_is_cut_short_leaves_the_answer_before_it() {
        let end = START + Duration::from_secs(1);
        let cut_short = |scene: &mut Scene| {
            scene.send(Input::Woken);
            let sent = scene.now;
            scene.now = end;
            let failure = Failure {
                timed_out: true,
                ..Failure::plain(FailureKind::Unavailable, true, "no answer in time")
            };
            match scene.step(Input::Failed {
                sent,
                failure,
                cut_short: true,
            }) {
                Step::Done(Outcome::TimeOver(failure)) => failure.map(|failure| failure.kind),
                other => panic!("{other:?}"),
            }
        };
        let mut nothing = Scene::new(Some(end));
        assert_eq!(cut_short(&mut nothing), Some(FailureKind::Unavailable));

        let mut was_held = Scene::new(Some(end));
        was_held.send(Input::Go);
        was_held.replied(held(None));
        assert_eq!(cut_short(&mut was_held), None);
        // An answer from before this thread's wait does not count.
        was_held.now = START;
        was_held.attempt.held = Some(START - Duration::from_millis(1));
        assert_eq!(cut_short(&mut was_held), Some(FailureKind::Unavailable));

        let mut failed = Scene::new(Some(end));
        failed.send(Input::Go);
        failed.replied(held(None));
        failed.send(Input::Woken);
        unconfirmed(&mut failed);
        assert_eq!(cut_short(&mut failed), Some(UNCONFIRMED));
    }

    fn taking_over(scene: &mut Scene) -> Arc<str> {
        let from: Arc<str> = "lh1:mine:l".into();
        let leftover = Leftover {
            owner: Arc::clone(&from),
            units: 1,
            doubt: None,
            kept_until: None,
            give_back: None,
        };
        scene.attempt = Attempt::take_over(&scene.chance, "l", leftover, None);
        let verb = scene.send(Input::Go);
        assert!(matches!(verb, Verb::TakeOver { from: f, .. } if f == from));
        from
    }

    #[test]
    fn a_take_over_of_unknown_outcome_leaves_both_owners_behind() {
        let mut scene = Scene::waiting();
        let from = taking_over(&mut scene);
        let owner = Arc::clone(scene.attempt.owner());
        assert!(matches!(
            scene.failed(FailureKind::Unavailable, true),
            Step::Sleep(_)
        ));
        let left: Vec<_> = scene.attempt.leftovers();
        assert_eq!([&left[0].owner, &left[1].owner], [&from, &owner]);
        assert!(
            left.iter()
                .all(|leftover| leftover.doubt == Some(START + LEASE))
        );
        scene.now = scene.now + Duration::from_secs(1);
        let verb = scene.send(Input::Woken);
        assert!(matches!(verb, Verb::Acquire { .. }));
        assert!(*verb.owner() != owner && *verb.owner() != from);
    }

    #[test]
    fn an_answer_to_another_question_takes_nothing_over() {
        for reply in [Reply::Shared, Reply::Released] {
            let mut scene = Scene::waiting();
            let from = taking_over(&mut scene);
            let owner = Arc::clone(scene.attempt.owner());
            let step = scene.replied(reply);
            assert!(matches!(step, Step::Done(Outcome::Failed(_))), "{step:?}");
            let left = scene.attempt.abandon();
            let left: Vec<_> = left.iter().map(|leftover| &*leftover.owner).collect();
            assert_eq!(left, [&*from, &*owner]);
        }
    }

    /// By one cancel: nothing of it is to come.
    #[test]
    fn what_was_refused_half_way_leaves_its_owner_behind() {
        for half_done in [false, true] {
            let mut scene = Scene::new(None);
            scene.send(Input::Go);
            let failure = Failure {
                half_done,
                ..Failure::plain(FailureKind::Denied, false, "no right to this")
            };
            let sent = scene.now;
            let step = scene.step(Input::Failed {
                sent,
                failure,
                cut_short: false,
            });
            assert!(matches!(step, Step::Done(Outcome::Failed(_))), "{step:?}");
            let left = scene.attempt.abandon();
            let doubts: Vec<_> = left.iter().map(|leftover| leftover.doubt).collect();
            assert_eq!(doubts, if half_done { vec![Some(sent)] } else { vec![] });
        }
    }

    #[test]
    fn a_take_over_that_was_not_sent_is_sent_again_or_cleaned_up() {
        let mut scene = Scene::waiting();
        let from = taking_over(&mut scene);
        assert!(matches!(
            scene.failed(FailureKind::Unavailable, false),
            Step::Sleep(_)
        ));
        scene.now = scene.now + Duration::from_secs(1);
        assert!(matches!(scene.send(Input::Woken), Verb::TakeOver { .. }));
        assert_eq!(scene.attempt.abandon()[0].owner, from);
    }

    #[test]
    fn who_takes_a_release_back_keeps_the_patience_of_its_wait() {
        for waits in [false, true] {
            let mut scene = Scene::waiting();
            let from = Leftover {
                owner: "lh1:mine:l".into(),
                units: 1,
                doubt: None,
                kept_until: None,
                give_back: None,
            };
            scene.attempt = Attempt::take_back(&scene.chance, "l", from.clone(), None, waits);
            scene.send(Input::Go);
            let step = scene.failed(FailureKind::Unavailable, false);
            assert_eq!(matches!(step, Step::Sleep(_)), waits, "{step:?}");
            // Not taken over, it is still to be released.
            assert_eq!(scene.attempt.abandon()[0], from);
        }
    }

    #[test]
    fn a_take_over_that_is_abandoned_leaves_its_unused_fences_to_be_given_back() {
        let unused = Some(GiveBack { used: 1, last: 9 });
        for failure in [None, Some(true), Some(false)] {
            let mut scene = Scene::waiting();
            let from = Leftover {
                owner: "lh1:mine:l".into(),
                units: 1,
                doubt: None,
                kept_until: None,
                give_back: None,
            };
            scene.attempt = Attempt::take_over(&scene.chance, "l", from, unused);
            scene.send(Input::Go);
            if let Some(unknown) = failure {
                scene.failed(FailureKind::Unavailable, unknown);
            }
            assert_eq!(scene.attempt.abandon()[0].give_back, unused);
        }
    }

    #[test]
    fn a_take_over_from_an_owner_in_doubt_leaves_that_owner_behind() {
        for reply in [GRANTED, held(None)] {
            let mut scene = Scene::waiting();
            let from = Leftover {
                owner: "lh1:mine:l".into(),
                units: 1,
                doubt: Some(START + LEASE),
                kept_until: None,
                give_back: None,
            };
            scene.attempt = Attempt::take_over(&scene.chance, "l", from.clone(), None);
            scene.send(Input::Go);
            scene.replied(reply);
            assert_eq!(scene.attempt.leftovers(), [from]);
        }
    }

    #[test]
    fn a_take_over_that_was_handed_over_waits_in_the_queue() {
        let mut scene = Scene::waiting();
        taking_over(&mut scene);
        assert!(matches!(scene.replied(held(None)), Step::Sleep(_)));
        assert!(matches!(
            scene.send(Input::Woken),
            Verb::Acquire { at_once: false, .. }
        ));
        let left = scene.attempt.abandon();
        assert_eq!(
            left.len(),
            1,
            "the old owner is gone, the new one is queued"
        );
    }
}
