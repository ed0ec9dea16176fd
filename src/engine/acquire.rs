//! The way in: entering a name's queue, waiting there, and asking Redis for all who wait.

use std::time::Duration;

use crate::cancel::{Cancel, Registered};
use crate::clock::Time;
use crate::config::Options;
use crate::core::attempt::{Attempt, Input, Outcome, Step, Surroundings};
use crate::core::ending::Ending;
use crate::core::fence;
use crate::core::queue::{Arrival, Turn, Wants};
use crate::engine::Engine;
use crate::engine::events::Notice;
use crate::engine::holding::Holding;
use crate::engine::names::{Entry, Last, Signal, Slot};
use crate::engine::tenure::Tenure;
use crate::engine::wakeup::Waker;
use crate::error::{Error, Failure, FailureKind, Result};
use crate::name::Target;
use crate::script::{Kind, Reply, Verb};
use crate::store::{LEAST, Limits};
use crate::sync::{Arc, thread};

/// What a thread asks for.
pub(crate) struct Request<'a> {
    pub(crate) kind: Kind,
    pub(crate) target: &'a Target,
    pub(crate) options: Options,
    /// How much of the lock.
    pub(crate) units: u32,
    /// Until when it waits; none where it only tries.
    pub(crate) until: Option<Time>,
    /// The token that may end it early.
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Request<'_> {
    /// Whether the call must end: the manager is closed, or the token cancelled. Takes no mutex.
    fn is_over(&self, engine: &Engine) -> bool {
        engine.is_closed() || self.is_cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }
}

/// A call on its way in, for the figures.
pub(super) struct Visit<'a> {
    engine: &'a Engine,
    arrived: Time,
    /// Whether it has begun to wait.
    waits: bool,
    /// Its place with the token that may end it, from its first sleep on.
    registered: Option<Registered>,
}

impl Visit<'_> {
    /// It has to wait; called again, that is known. A try waits for an answer and not for the lock.
    fn waits(&mut self, request: &Request<'_>, holder: impl FnOnce() -> Option<Arc<str>>) {
        if request.until.is_none() || std::mem::replace(&mut self.waits, true) {
            return;
        }
        self.engine.stats.contended.add(1);
        self.engine
            .events
            .step(|| Notice::Contended(request.target.name().into(), holder()));
    }

    /// It is about to sleep: from here on a cancel unparks it.
    fn sleeps(&mut self, request: &Request<'_>) {
        if self.registered.is_none() {
            self.registered = request.cancel.map(Cancel::register);
        }
    }

    /// It has its turn, `since` then.
    pub(super) fn begins(&self, turn: &Turn<Arc<Tenure>>, since: Time, asked: bool) {
        let waited = since.since(self.arrived);
        self.engine.begins(&turn.tenure, turn.fence, waited, asked);
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.engine.stats.waits_over.add(1);
        }
    }
}

/// What it gets, unless an error.
pub(crate) enum Acquired<T = Holding> {
    Turn(T),
    /// The lock was held all the while, lastly by this owner.
    Busy(Option<Arc<str>>),
}

impl Engine {
    /// Acquires, blocking until it is granted, held to the end of the wait, or failed.
    pub(crate) fn acquire(self: &Arc<Self>, request: &Request<'_>) -> Result<Acquired> {
        self.check_open()?;
        request.options.check()?;
        if request.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let acquired = self.enter(request);
        match (&acquired, request.until) {
            (Ok(Acquired::Turn(_)), _) => {}
            (Ok(Acquired::Busy(_)), None) => self.stats.tries_held.add(1),
            (Ok(Acquired::Busy(_)), Some(_)) => self.stats.timed_out.add(1),
            (Err(_), _) => self.stats.failed.add(1),
        }
        acquired
    }

    fn enter(self: &Arc<Self>, request: &Request<'_>) -> Result<Acquired> {
        let wants = Wants {
            units: request.units,
            terms: request.options.terms(),
            waits: request.until.is_some(),
        };
        let now = self.now();
        let mut visit = Visit {
            engine: self,
            arrived: now,
            waits: false,
            registered: None,
        };
        let mut slot = None;
        let (entry, arrival) = self
            .names
            .with(request.kind, request.target, |entry, state| {
                let arrival = state.queue.arrive(
                    wants,
                    now,
                    |tenure| self.health(tenure, now),
                    || Arc::clone(slot.insert(Slot::new())),
                );
                if matches!(arrival, Arrival::Delegate) {
                    state.forget_last();
                }
                (Arc::clone(entry), arrival)
            });
        match (arrival, slot) {
            (Arrival::Queued(ticket), Some(slot)) => {
                visit.waits(request, || entry.lock().holder(&self.settings.label));
                self.wait(request, &entry, ticket, &slot, &mut visit)
            }
            (Arrival::Turn(turn), _) => {
                visit.begins(&turn, now, false);
                Ok(Acquired::Turn(self.turn(request, turn, now)))
            }
            (Arrival::Held, _) => Ok(self.busy(&entry)),
            (Arrival::Delegate | Arrival::Queued(_), _) => {
                let label = &self.settings.label;
                let attempt = Attempt::new(&*self.chance, label, request.units);
                self.ask(request, &entry, Box::new(attempt), &mut visit)
            }
        }
    }

    /// Waits behind the delegate.
    fn wait(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Arc<Entry>,
        ticket: u64,
        slot: &Slot,
        visit: &mut Visit<'_>,
    ) -> Result<Acquired> {
        let arrived = visit.arrived;
        // A try waits for one answer, which takes no longer than a request.
        let until = request.until.unwrap_or(arrived + self.settings.io_timeout);
        // Whoever closes sets the flag before it looks into the queue: one of us sees the other.
        let mut until = if self.is_closed() { self.now() } else { until };
        visit.sleeps(request);
        // Whether somebody has taken this thread out of the queue, and its signal is on the way.
        let mut is_taken_out = false;
        let signal = loop {
            // Looked at first: a grant wins over a cancel.
            if let Some(signal) = slot.take() {
                break signal;
            }
            if request.is_cancelled() && !is_taken_out {
                if entry.lock().queue.leave(ticket) {
                    return Err(Error::Cancelled);
                }
                is_taken_out = true;
                until = Time::NEVER;
            }
            if until == Time::NEVER {
                thread::park();
                continue;
            }
            let left = until.since(self.now());
            if !left.is_zero() {
                // No longer than a second at a time: parking does not run through suspend, the clock does.
                thread::park_timeout(left.min(Duration::from_secs(1)));
                continue;
            }
            let mut state = entry.lock();
            if self.is_closed() && state.queue.leave(ticket) {
                return Err(Error::Closed);
            }
            // The first request has this long at the least, however short the wait of those behind it.
            if matches!(state.last(), Last::NoAnswer) && until < arrived + LEAST {
                until = arrived + LEAST;
                continue;
            }
            if state.queue.leave(ticket) {
                return match (state.last(), state.holder(&self.settings.label)) {
                    (_, Some(holder)) => Ok(Acquired::Busy(Some(holder))),
                    // It is this process's own until its release is over.
                    (_, None) if state.queue.is_ending() => Ok(Acquired::Busy(None)),
                    (Last::Failed(failure), None) => {
                        Err(failure.clone().into_error(Some(request.target.name())))
                    }
                    // The question under way has no answer yet; but one before it may have had, during this wait.
                    (Last::NoAnswer | Last::Held(_), None) => match state.holder_since(arrived) {
                        Some(holder) => Ok(Acquired::Busy(Some(holder))),
                        None => Err(no_answer(request)),
                    },
                };
            }
            is_taken_out = true;
            until = Time::NEVER;
        };
        match signal {
            Signal::Turn(turn, since) => {
                visit.begins(&turn, since, false);
                Ok(Acquired::Turn(self.turn(request, turn, since)))
            }
            Signal::Delegate(attempt) => {
                let label = &self.settings.label;
                let anew = || Attempt::after_waiting(&*self.chance, label, request.units);
                let attempt = match attempt {
                    Some(attempt) if attempt.is_for(request.units) => attempt,
                    Some(other) => {
                        self.clean_up_after(entry, *other, request.options.terms().lease());
                        Box::new(anew())
                    }
                    None => Box::new(anew()),
                };
                self.ask(request, entry, attempt, visit)
            }
            Signal::AfterTry { waits } => {
                let begin = if waits {
                    Attempt::after_waiting
                } else {
                    Attempt::new
                };
                let attempt = begin(&*self.chance, &self.settings.label, request.units);
                self.ask(request, entry, Box::new(attempt), visit)
            }
            Signal::Held => Ok(self.busy(entry)),
            Signal::Failed(failure) => Err(failure.into_error(Some(request.target.name()))),
            Signal::Closed => Err(Error::Closed),
        }
    }

    /// The main loop of a delegate: does what the attempt says and tells it what came of that.
    fn ask(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Arc<Entry>,
        mut attempt: Box<Attempt>,
        visit: &mut Visit<'_>,
    ) -> Result<Acquired> {
        let lease = request.options.terms().lease();
        let _asking = self.asking();
        if !request.is_over(self) {
            self.settle_outgoing(request, entry, &mut attempt);
        }
        let mut waker: Option<Waker> = None;
        let mut input = Input::Go;
        let mut beside = None;
        // Whether a message has come for it: the lock is its own if it asks soon.
        let mut called = false;
        let outcome = loop {
            // What came of a request is taken in first: an unknown outcome is the attempt's to remember, or nobody would
            // undo what the server makes of it later.
            if self.is_closed() && matches!(input, Input::Go | Input::Woken) {
                self.give_up(entry, *attempt, lease, &Signal::Closed);
                return Err(Error::Closed);
            }
            if request.is_cancelled() && matches!(input, Input::Go | Input::Woken) {
                drop(waker);
                self.step_down(entry, attempt, lease);
                return Err(Error::Cancelled);
            }
            let offered = self.offered(request, entry);
            let around = self.surroundings(request, entry, visit.arrived, offered.as_deref());
            let step = attempt.step(input, &around);
            for leftover in attempt.leftovers() {
                self.clean_up(entry, leftover, lease);
            }
            input = match step {
                Step::Send(verb) => {
                    // Before a request that queues, or the message to it could come unheard.
                    if verb.queues() {
                        self.wakeup.register(&mut waker, attempt.owner());
                    }
                    beside = offered;
                    let haste = std::mem::take(&mut called);
                    self.send_verb(request, entry, &attempt, &verb, haste, visit)
                }
                Step::Sleep(until) => {
                    visit.sleeps(request);
                    called |= self.sleep_until(request, until, &mut waker, attempt.owner());
                    Input::Woken
                }
                Step::Done(Outcome::Shared) => {
                    let label = &self.settings.label;
                    let anew = Attempt::after_waiting(&*self.chance, label, request.units);
                    self.clean_up_after(entry, std::mem::replace(&mut *attempt, anew), lease);
                    let now = self.now();
                    let tenure = beside.take();
                    match tenure.and_then(|tenure| self.reopen(entry, &tenure, now, visit)) {
                        Some(turn) => return Ok(Acquired::Turn(self.turn(request, turn, now))),
                        // It has ended meanwhile.
                        None => Input::Go,
                    }
                }
                Step::Done(outcome) => break outcome,
            };
        };
        // A message that still comes for this owner finds nobody, and needs nobody.
        drop(waker);
        match outcome {
            Outcome::Granted(grant) => self.granted(request, entry, grant, visit),
            Outcome::Shared => unreachable!("the loop goes on with it"),
            Outcome::TimeOver(failure) => {
                self.step_down(entry, attempt, lease);
                match failure {
                    Some(failure) => Err(failure.into_error(Some(request.target.name()))),
                    None => Ok(self.busy(entry)),
                }
            }
            Outcome::Failed(failure) if request.until.is_none() => {
                self.give_up_try(entry, *attempt, lease, &failure);
                Err(failure.into_error(Some(request.target.name())))
            }
            Outcome::Failed(failure) => {
                self.give_up(entry, *attempt, lease, &Signal::Failed(failure.clone()));
                Err(failure.into_error(Some(request.target.name())))
            }
        }
    }

    /// Returns the present state, as an attempt needs it for its next step.
    fn surroundings<'a>(
        &'a self,
        request: &Request<'_>,
        entry: &Entry,
        arrived: Time,
        offered: Option<&Tenure>,
    ) -> Surroundings<'a> {
        let now = self.now();
        Surroundings {
            now,
            arrived,
            terms: request.options.terms(),
            until: request.until,
            hearing: self.wakeup.hearing(now),
            // A tenure with a `min_hold` is not passed on before that.
            block: if request.options.min_hold.is_zero() {
                fence::block(entry.kind, self.settings.quantum)
            } else {
                1
            },
            of: entry.kind.of(),
            beside: offered.map(|tenure| self.owner_of(tenure)),
            crowded: entry.lock().queue.is_crowded(),
            delegates: self.delegates(),
            outage_limit: self.settings.outage_limit,
            waits_through_outages: self.settings.wait_through_outages,
            label: &self.settings.label,
            chance: &*self.chance,
        }
    }

    /// Sends an attempt's request, and notes its answer for those who wait behind the delegate.
    fn send_verb(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Arc<Entry>,
        attempt: &Attempt,
        verb: &Verb,
        haste: bool,
        visit: &mut Visit<'_>,
    ) -> Input {
        let sent = self.now();
        let is_over = || request.is_over(self);
        let limits = Limits {
            haste,
            is_over: Some(&is_over),
            ..self.limits(request.until)
        };
        match self.call(entry, verb, limits) {
            Ok(answer) => {
                match &answer.reply {
                    Reply::Held { holder, .. } if !attempt.is_former_owner(holder) => {
                        answered_held(entry, self.now(), holder, verb.queues());
                        visit.waits(request, || Some(Arc::clone(holder)));
                    }
                    _ => {}
                }
                Input::Replied {
                    sent,
                    reply: answer.reply,
                    resent: answer.resent,
                }
            }
            // The thread stopped waiting for a connection: nothing was sent, so there is nothing to take in.
            Err(failure) if is_over() && failure.was_not_sent() => Input::Woken,
            Err(failure) => {
                let cut_short = self.is_cut_short(request, sent, &failure);
                if !cut_short {
                    not_answered(entry, &failure);
                }
                Input::Failed {
                    sent,
                    failure,
                    cut_short,
                }
            }
        }
    }

    /// Whether a request failed only because the wait was over before `io_timeout` was: then it is no answer.
    fn is_cut_short(&self, request: &Request<'_>, sent: Time, failure: &Failure) -> bool {
        failure.timed_out
            && request
                .until
                .is_some_and(|until| self.now() >= until && until < sent + self.settings.io_timeout)
    }

    /// Sleeps between two requests; true where a message came.
    fn sleep_until(
        self: &Arc<Self>,
        request: &Request<'_>,
        until: Time,
        waker: &mut Option<Waker>,
        owner: &Arc<str>,
    ) -> bool {
        self.wakeup.start(self);
        let waker = self.wakeup.register(waker, owner);
        // Whoever closes sets the flag before it wakes all: one of us sees the other.
        !request.is_over(self) && waker.wait(until.since(self.now()))
    }

    /// What this process released goes before what it asks for: a release that was left to the renewal thread is
    /// taken back where it is not on its way yet, and else waited for.
    fn settle_outgoing(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Arc<Entry>,
        attempt: &mut Attempt,
    ) {
        let keys = entry.target.keys();
        // No longer than one request takes, however many they are: neither a renewal thread that is stuck nor a server
        // that does not answer is to hold up who asks.
        let limit = self.now() + self.settings.io_timeout;
        let until = request.until.map_or(limit, |until| until.min(limit));
        let is_over = || request.is_over(self);
        for place in self.renewal.left_here(keys) {
            let Some((left, ending)) = self.renewal.take_back(place) else {
                self.renewal
                    .wait_until_sent(self, keys, place, until, &is_over);
                continue;
            };
            let is_the_same =
                left.is_of(entry) && !entry.kind.sharing().several && !ending.keeps_back();
            if is_the_same && attempt.is_new() {
                let (from, unused) = ending.unsent();
                let (label, waits) = (&self.settings.label, attempt.waits());
                *attempt = Attempt::take_back(&*self.chance, label, from, unused, waits);
            } else if self.now() >= until || is_over() {
                self.renewal.end(self, &left, ending);
            } else {
                // What fails of it goes on in the background.
                let limits = Limits {
                    is_over: Some(&is_over),
                    ..self.limits(Some(until))
                };
                self.send_ending(&left, ending, limits).ok();
            }
        }
    }

    /// It was held all the while.
    fn busy<T>(&self, entry: &Entry) -> Acquired<T> {
        Acquired::Busy(entry.lock().holder(&self.settings.label))
    }

    /// Hands the attempt to the next thread, or, if there is none, leaves the queue in Redis.
    fn step_down(&self, entry: &Arc<Entry>, attempt: Box<Attempt>, lease: Duration) {
        let next = entry.lock().queue.delegate_left();
        match next {
            Some(slot) => slot.send(Signal::Delegate(Some(attempt))),
            None => self.abandon(entry, *attempt, lease),
        }
    }

    /// Ends the attempt and everybody's wait behind it.
    fn give_up(&self, entry: &Arc<Entry>, attempt: Attempt, lease: Duration, why: &Signal) {
        let waiting = entry.lock().queue.failed();
        for slot in waiting {
            slot.send(match why {
                Signal::Failed(failure) => Signal::Failed(failure.clone()),
                _ => Signal::Closed,
            });
        }
        self.abandon(entry, attempt, lease);
    }

    /// Ends the attempt of a try. Those who wait behind it do not fail with it: the next of them asks.
    fn give_up_try(&self, entry: &Arc<Entry>, attempt: Attempt, lease: Duration, why: &Failure) {
        let (tries, next) = {
            let mut state = entry.lock();
            let (tries, next) = state.queue.try_failed();
            if next.is_some() {
                state.forget_last();
            }
            (tries, next)
        };
        for slot in tries {
            slot.send(Signal::Failed(why.clone()));
        }
        let waits = attempt.waits();
        self.clean_up_after(entry, attempt, lease);
        match next {
            Some(slot) => slot.send(Signal::AfterTry { waits }),
            None => self.names.retire(entry),
        }
    }

    fn abandon(&self, entry: &Arc<Entry>, attempt: Attempt, lease: Duration) {
        self.clean_up_after(entry, attempt, lease);
        self.names.retire(entry);
    }

    fn clean_up_after(&self, entry: &Arc<Entry>, attempt: Attempt, lease: Duration) {
        for leftover in attempt.abandon() {
            self.clean_up(entry, leftover, lease);
        }
    }

    /// Has something released in the background.
    pub(crate) fn clean_up(
        &self,
        entry: &Arc<Entry>,
        leftover: crate::core::attempt::Leftover,
        lease: Duration,
    ) {
        let ending = Ending::of_leftover(leftover, self.now(), lease);
        self.renewal.end(self, entry, ending);
    }
}

fn not_answered(entry: &Entry, failure: &Failure) {
    let mut state = entry.lock();
    state.note_last(Last::Failed(failure.clone()));
    state.queue.not_answered();
}

/// Whoever waited for this answer only has it.
fn answered_held(entry: &Entry, now: Time, holder: &Arc<str>, queued: bool) {
    let tried = {
        let mut state = entry.lock();
        state.note_held(now, holder);
        state.queue.answered_held(queued)
    };
    for slot in tried {
        slot.send(Signal::Held);
    }
}

fn no_answer(request: &Request<'_>) -> Error {
    let words = "the wait ended before the server answered";
    Failure::plain(FailureKind::Unavailable, true, words).into_error(Some(request.target.name()))
}
