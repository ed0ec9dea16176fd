//! The delegate: the only thread of a process that asks Redis for a name. The threads behind it wait for the result.
//!
//! It drives an [`Attempt`], which decides without clock, thread or connection:
//!
//! 1. The delegate waits until the renewal thread has sent the releases of the same keys ([`crate::engine::lease::renewal`]).
//! 2. It checks whether the call must end: the manager is closed, or the token is cancelled.
//! 3. The attempt decides: send a request, sleep, or end.
//! 4. The delegate does that, and gives the attempt the result as the next [`Input`]. Then it repeats from step 2.
//!
//! The result of a sleep may be a message that grants the lock. The delegate gives it to the attempt only if the renewal
//! thread is ready to raise the lease from the pickup window to its full length. Otherwise the delegate asks Redis, which
//! raises it at once.
//!
//! | how the loop ends | the delegate | the threads behind it |
//! | --- | --- | --- |
//! | granted | gets a guard ([`crate::engine::attempt::granted`]) | get guards if the lease has room for them, else wait |
//! | Redis lets more readers into this process's lease | gets a guard; if the lease has ended, repeats from step 2 with a new attempt | get guards if the lease has room for them |
//! | time over, or cancelled | gets no guard | the next thread becomes the delegate, and continues the attempt with its place in the queue in Redis |
//! | failed, in a wait | gets the error | get the error |
//! | failed, in a try | gets the error | tries get the error; the next thread that waits becomes the delegate |
//! | manager closed | gets [`Error::Closed`] | get [`Error::Closed`] |

use std::mem;
use std::time::Duration;

use crate::engine::attempt::rules::{Attempt, CallContext, Grant, Input, Step, StepContext};
use crate::engine::lease::fence;
use crate::engine::lease::guard_inner::GuardInner;
use crate::engine::lease::notes::LastReply;
use crate::engine::lease::process_lease::{Entry, Hold, ProcessLease, Signal};
use crate::engine::queue::rules::GrantedTo;
use crate::engine::wakeup::Waker;
use crate::engine::way_in::{NotAcquired, WayIn};
use crate::error::{Error, Failure, FailureKind, Result};
use crate::owner;
use crate::sys::{Arc, Ordering, Time};
use crate::wire::{GrantMessage, LockKind, Reply, Verb, lifetime};

impl<'a> WayIn<'a> {
    /// Returns what the attempt must know of the call. A hand-over may grant the lock by message. But these leases are
    /// granted by reply only:
    ///
    /// | lease | because |
    /// | --- | --- |
    /// | of another kind than a mutex | other scripts hand it over |
    /// | on a quorum | one node cannot grant it |
    /// | that counts replicas | the hand-over waits for no replica |
    /// | without renewal | nothing would raise it to its full length |
    pub(crate) fn call_context(&self, entry: &Entry) -> CallContext<'a> {
        let (settings, terms) = (&self.client.settings, self.call.options.terms());
        CallContext {
            arrived: self.arrived,
            terms,
            until: self.call.until,
            pickup_window: lifetime::pickup_window(
                terms.lease(),
                lifetime::longest_pickup_window(settings.io_timeout),
            ),
            grants_by_message: matches!(entry.kind, LockKind::Mutex)
                && self.call.options.renew
                && settings.replicas == 0
                && self.client.store.votes().is_none(),
            outage_limit: settings.outage_limit,
            waits_through_outages: settings.wait_through_outages,
            tail: self.tail(),
            rng: self.client.machine(),
        }
    }

    /// Begins the lease of a grant, and returns the delegate's guard.
    fn granted(&self, entry: &Arc<Entry>, grant: Grant) -> Result<GuardInner, NotAcquired> {
        let (leases, call) = (self.leases, self.call);
        let count = |hold: &Hold, now| self.count_granted(hold, now, true);
        match leases.begin_lease(entry, &call.params(), grant, GrantedTo::Delegate, count) {
            Ok((hold, since)) => Ok(self.guard(hold, since)),
            Err(failure) => {
                let waiting = entry.lock().queue.failed();
                for waiter in waiting {
                    waiter.send(Signal::Failed(failure.clone()));
                }
                leases.names.retire(entry);
                Err(call.failed(failure))
            }
        }
    }

    /// Returns a lease of this process that more threads could share, if Redis allows another quantum.
    fn lease_to_share(&self, entry: &Entry) -> Option<Arc<ProcessLease>> {
        if !entry.kind.sharing().together {
            return None;
        }
        let (now, terms) = (self.client.now(), self.call.options.terms());
        let health = |process_lease: &Arc<ProcessLease>| self.leases.health(process_lease, now);
        let state = entry.lock();
        state
            .queue
            .shareable_lease(self.call.units, terms, health)
            .cloned()
    }
}

/// A thread that is the delegate of a name, while it asks.
pub(crate) struct Delegate<'w, 'a> {
    pub(crate) way_in: &'w mut WayIn<'a>,
    pub(crate) entry: &'w Arc<Entry>,
    pub(crate) attempt: Box<Attempt>,
    pub(crate) call_context: &'w CallContext<'a>,
    /// The registration under which a message wakes this thread, once there is one.
    pub(crate) waker: Option<Waker>,
    /// When a message woke this thread, until the next request. Redis may have handed the lock over to this owner, so
    /// that the pickup window runs.
    pub(crate) message_at: Option<Time>,
    /// How long the last request took.
    pub(crate) round_trip: Duration,
}

impl<'w> Delegate<'w, '_> {
    /// Asks Redis until the thread has a guard, or its call has ended without one. The thread counts as busy.
    pub(crate) fn run(mut self) -> Result<GuardInner, NotAcquired> {
        let leases = self.way_in.leases;
        // 1. Wait for unsent releases. Otherwise Redis could answer that this process itself still holds the lock.
        if let Err(failure) = self.way_in.wait_for_releases() {
            let why = self.way_in.call.failed(failure.clone());
            match self.way_in.call.until {
                None => self.end_tries(&failure),
                Some(_) => self.give_attempt_to_next(),
            }
            return Err(why);
        }
        let mut input = Input::Go;
        // The lease that the last request offered to share.
        let mut offered = None;
        // A test does not move the clock between the time at which a request is sent and the guard.
        let mut called = None;
        loop {
            // 2. End a call that must end. But if a request has a result, the attempt must get it first. If the outcome
            //    is unknown, the attempt notes that Redis may still execute the request.
            let has_result = matches!(input, Input::Replied { .. } | Input::Failed { .. });
            if !has_result && self.way_in.client.is_closed() {
                self.end_all(&Signal::Closed);
                return Err(Error::Closed.into());
            }
            if !has_result && self.way_in.call.is_cancelled() {
                self.give_attempt_to_next();
                return Err(Error::Cancelled.into());
            }

            // 3. Let the attempt decide. If it changes its owner, the former owner may still have something in Redis:
            //    the renewal thread releases that.
            let lease_to_share = self.way_in.lease_to_share(self.entry);
            let context = self.step_context(lease_to_share.as_deref());
            let step = self.attempt.step(input, &context);
            for ended_owner in self.attempt.ended_owners() {
                let lease = self.call_context.terms.lease();
                leases.clean_up(self.entry, ended_owner, lease);
            }

            // 4. Do that. A request and a sleep have a result for the attempt; the other steps end the call.
            input = match step {
                Step::Send(verb) => {
                    offered = lease_to_share;
                    if called.is_none() {
                        called = Some(self.way_in.client.machine().begin_call());
                    }
                    self.send(&verb)
                }
                Step::Sleep(until) => {
                    called = None;
                    self.way_in.warn_if_long(self.entry, true);
                    self.sleep(until.min(self.way_in.long_at))
                }
                Step::Shared => match self.share(offered.take()) {
                    Some(guard) => return Ok(guard),
                    // The lease has ended meanwhile. Ask again, with a new attempt.
                    None => Input::Go,
                },
                Step::Granted(grant) => {
                    if let (true, Some(message_at)) = (grant.is_by_message, self.message_at) {
                        self.note_hand_over(message_at);
                        self.way_in.client.stats.granted_by_message.add(1);
                    }
                    // From here on, a message for this owner has no effect.
                    drop(self.waker);
                    return self.way_in.granted(self.entry, grant);
                }
                Step::TimeOver(failure) => {
                    let why = match failure {
                        Some(failure) => self.way_in.call.failed(failure),
                        None => self.way_in.held(self.entry),
                    };
                    self.give_attempt_to_next();
                    return Err(why);
                }
                Step::Failed(failure) => {
                    let why = self.way_in.call.failed(failure.clone());
                    if self.way_in.call.until.is_none() {
                        self.end_tries(&failure);
                    } else {
                        self.end_all(&Signal::Failed(failure));
                    }
                    return Err(why);
                }
            };
        }
    }

    /// Returns what the attempt must know for its next step.
    fn step_context(&self, lease_to_share: Option<&ProcessLease>) -> StepContext<'w> {
        let (leases, client, call) = (self.way_in.leases, self.way_in.client, self.way_in.call);
        let now = client.now();
        let subscription = leases.wakeup.subscription(now);
        let quantum = leases.quantum.get(&subscription);
        // A lease with a `min_hold` is not handed to the next thread, so it needs one fence.
        let fence_block = if call.options.min_hold.is_zero() {
            fence::block(self.entry.kind, quantum)
        } else {
            1
        };
        StepContext {
            call: self.call_context,
            now,
            subscription,
            failed_over_at: leases.renewal.failed_over_at(),
            round_trip: self.round_trip,
            quantum,
            fence_block,
            shareable_owner: lease_to_share.map(|process_lease| client.owner_of(process_lease)),
            crowded: self.entry.lock().queue.is_crowded(),
            busy_threads: client.busy_threads.load(Ordering::Relaxed),
        }
    }

    /// Sends a request of the attempt. Notes the reply for the threads that wait behind the delegate.
    fn send(&mut self, verb: &Verb) -> Input {
        let (leases, client, entry) = (self.way_in.leases, self.way_in.client, self.entry);
        if verb.queues() {
            // The message may arrive before the reply, so the thread registers before it sends the request.
            leases
                .wakeup
                .register(&mut self.waker, self.attempt.owner());
        }
        let (sent, message_at) = (client.now(), self.message_at.take());
        let way_in = &*self.way_in;
        let is_over = || way_in.is_over();
        let mut deadline = client.deadline(way_in.call.until).ended_by(&is_over);
        // The pickup window may run, so this request must not wait behind others for a connection.
        deadline.has_priority = message_at.is_some();
        let answer = client.send(&entry.request(verb), deadline);
        self.round_trip = client.now().since(sent);
        let units = way_in.call.units;
        leases.clean_up_nodes(entry, verb.owner(), units);
        if let (Verb::TakeOver { from, .. }, Ok(_)) = (verb, &answer) {
            leases.clean_up_nodes(entry, from, units);
        }
        match answer {
            Ok(mut answer) => {
                if let Reply::Differs { others, reply } = answer.reply {
                    client.warn_of_permits(entry, others);
                    answer.reply = *reply;
                }
                if let (Some(message_at), Reply::Granted { .. }, false) =
                    (message_at, &answer.reply, answer.resent)
                {
                    self.note_hand_over(message_at);
                }
                if let Reply::Held { ttl, holder, .. }
                | Reply::Outvoted {
                    holder: Some(holder),
                    ttl,
                    ..
                } = &answer.reply
                {
                    if !self.attempt.is_former_owner(holder) {
                        let shown = owner::shown(holder).into();
                        note_held(entry, client.now(), &shown, verb.queues());
                        self.way_in.count_wait(|| Some(shown));
                        if ttl.is_none() && !owner::is_ours(holder) {
                            self.way_in.warn_of_no_expiry();
                        }
                    }
                }
                Input::Replied {
                    sent,
                    reply: answer.reply,
                    resent: answer.resent,
                }
            }
            // The call must end, so the thread stopped waiting, or the failure is of no interest to it. The threads behind
            // it ask Redis themselves. The attempt notes whether Redis may still execute the request.
            Err(failure) if self.way_in.is_over() && failure.is_transient() => {
                let context = self.step_context(None);
                self.attempt.left(sent, &failure, &context);
                Input::Woken
            }
            Err(failure) => {
                let cut_short = self.is_cut_short(sent, &failure);
                if !cut_short {
                    let mut state = entry.lock();
                    let last = LastReply::Failed(failure.clone());
                    state.notes.note_last_reply(last);
                    state.queue.not_answered();
                }
                Input::Failed {
                    sent,
                    failure,
                    cut_short,
                }
            }
        }
    }

    /// Notes how long this process has taken to pick the lock up after the message.
    fn note_hand_over(&self, message_at: Time) {
        let pickup = self.way_in.client.now().since(message_at);
        let quantum = &self.way_in.leases.quantum;
        quantum.note_hand_over(pickup, self.round_trip);
        self.way_in.client.stats.hand_overs_received.add(1);
    }

    /// Returns whether a request timed out only because the wait ended before the time limit of a request had passed.
    /// Such a failure is no sign of a fault of the server.
    fn is_cut_short(&self, sent: Time, failure: &Failure) -> bool {
        let (client, until) = (self.way_in.client, self.way_in.call.until);
        let limit = match failure.kind {
            // A quorum says that the request timed out only if its nodes had less than `node_timeout`.
            FailureKind::NoQuorum(_) => client.settings.node_timeout,
            _ => client.settings.io_timeout,
        };
        failure.timed_out
            && until.is_some_and(|until| client.now() >= until && until < sent + limit)
    }

    /// Sleeps until a message comes, `until` has passed, or the call must end. Returns the result of the sleep.
    fn sleep(&mut self, until: Time) -> Input {
        let (leases, client) = (self.way_in.leases, self.way_in.client);
        leases.wakeup.start(client);
        if self.call_context.grants_by_message {
            leases.renewal.prepare(&leases.client);
        }
        let waker = leases
            .wakeup
            .register(&mut self.waker, self.attempt.owner());
        // From here on, a cancel wakes this thread.
        let cancel = self.way_in.call.cancel;
        let _registered = cancel.map(|token| token.register(waker.parker()));
        // `close` sets its flag before it wakes all registered threads. So either this thread sees the flag, or `close`
        // wakes it.
        if self.way_in.is_over() {
            return Input::Woken;
        }
        let Some(message) = waker.wait(client.machine(), until) else {
            return Input::Woken;
        };
        self.message_at.get_or_insert_with(|| client.now());
        let is_usable = |grant: &GrantMessage| {
            leases.renewal.is_ready(client.now()) && !grant.is_ahead_of(client.machine().wall_us())
        };
        Input::Message(message.grant().filter(is_usable))
    }

    /// Begins another quantum of the offered lease, with a guard for this thread. Returns `None` if the lease has
    /// ended.
    fn share(&mut self, offered: Option<Arc<ProcessLease>>) -> Option<GuardInner> {
        let (way_in, leases) = (&*self.way_in, self.way_in.leases);
        let now = way_in.client.now();
        let new = way_in.attempt(Attempt::after_waiting);
        let used = mem::replace(&mut *self.attempt, new);
        way_in.clean_up_after(self.entry, used);
        let hold = leases.reopen(self.entry, &*offered?, now, |hold| {
            way_in.count_granted(hold, now, true);
        })?;
        Some(way_in.guard(hold, now))
    }

    /// Hands the attempt to the next thread. If there is none, ends the attempt, which leaves the queue in Redis.
    fn give_attempt_to_next(self) {
        drop(self.waker);
        let next = self.entry.lock().queue.delegate_left();
        match next {
            Some(waiter) => {
                self.way_in.leases.count_busy().pass_on();
                waiter.send(Signal::Delegate(Some(self.attempt)));
            }
            None => self.way_in.abandon(self.entry, *self.attempt),
        }
    }

    /// Ends the attempt, and the wait of every thread behind it.
    fn end_all(self, why: &Signal) {
        drop(self.waker);
        let waiting = self.entry.lock().queue.failed();
        for waiter in waiting {
            waiter.send(match why {
                Signal::Failed(failure) => Signal::Failed(failure.clone()),
                _ => Signal::Closed,
            });
        }
        self.way_in.abandon(self.entry, *self.attempt);
    }

    /// Ends the attempt of a try, and the tries behind it. The next thread that waits becomes the delegate, because the
    /// failure of a try must not end a wait.
    fn end_tries(self, why: &Failure) {
        drop(self.waker);
        let (tries, next) = {
            let mut state = self.entry.lock();
            let (tries, next) = state.queue.try_failed();
            if next.is_some() {
                state.notes.forget_last_reply();
            }
            (tries, next)
        };
        for waiter in tries {
            waiter.send(Signal::Failed(why.clone()));
        }
        let waits = self.attempt.waits();
        self.way_in.clean_up_after(self.entry, *self.attempt);
        match next {
            Some(waiter) => waiter.send(Signal::AfterTry { waits }),
            None => self.way_in.leases.names.retire(self.entry),
        }
    }
}

/// Notes that another owner holds the lock. Ends the tries that wait behind the delegate.
fn note_held(entry: &Entry, now: Time, holder: &Arc<str>, is_queued: bool) {
    let tries = {
        let mut state = entry.lock();
        state.notes.note_held(now, holder);
        state.queue.answered_held(is_queued)
    };
    for waiter in tries {
        waiter.send(Signal::Held);
    }
}
