//! One process's way to a lock: it asks, queues, sleeps and asks again, until the lock is granted or nobody wants it.
//!
//! [`Attempt`] decides what to send next, and what each reply means. It is driven by the delegate, a call on its way
//! ([`crate::engine::acquire`]). [`patience`] says how long it goes on, and [`poll`] how often it asks.
//!
//! An attempt has one owner at a time: the name under which Redis knows the attempt. After a failure that may leave the
//! owner in Redis, it may go on under a new one. It belongs to a name's queue in this process, not to a thread: a delegate
//! that gives up hands it to the next thread, with its place in the queue in Redis.
//!
//! | input | afterwards | step |
//! | --- | --- | --- |
//! | go, woken | the same owner | send *acquire*: a request may go before the queue, until one has put the owner into it |
//! | the same, with a lease that this process's last guard ended | the same owner | send *take-over* of that lease |
//! | the same, after it was outvoted by a holder | new owner | abandon the owner; send *acquire* under the new one |
//! | the same, but the thread's time is over | as before | done: the next thread may continue the attempt |
//! | granted in time | granted | done |
//! | granted, but the lease may be over | new owner | abandon the owner, back off |
//! | the offered lease may be shared | the same owner | done: the owner is not used |
//! | held | the same owner | a try is done; a wait sleeps until a message, the holder's expiry, or its poll |
//! | held, and the subscription began or ended meanwhile | the same owner | ask again at once: the queue has the wrong channel |
//! | held by the former owner, whose withdrawal is on its way | the same owner | no answer: back off |
//! | outvoted, and a holder may have a majority | outvoted | as after held, but the end of another's turn does not wake it |
//! | outvoted, and the votes are split | new owner | a try asks once more; a wait asks again after a moment |
//! | failed, because a quorum has too few votes | new owner | abandon the lease that was to be taken over, back off |
//! | failed, certainly not executed | as before | back off |
//! | an acquire failed, outcome unknown | the same owner | back off, ask under the same owner: asking is idempotent |
//! | an acquire failed after a part was executed | the same owner | the same |
//! | an acquire was granted, but too few replicas confirmed it | new owner | abandon the owner, back off |
//! | a take-over failed, outcome unknown or partly executed | new owner | abandon both owners, back off |
//! | a message that grants the lock, as the tables below allow it | granted | done |
//! | any other message | | as woken |
//!
//! Backing off means to sleep, unless the failure ends the attempt (the table in `patience`). An answer to another
//! request counts as a failure of unknown outcome.
//!
//! An owner for which a release or a withdrawal was sent never asks again. An owner with a request of unknown outcome is
//! *uncertain* until a lease has passed since the request was sent: Redis may still execute the request. A thread that
//! ends such an owner repeats the ending until then ([`crate::engine::ending`]).
//!
//! # Grants by message
//!
//! See [`crate::wire::GrantMessage`].
//!
//! | step | the attempt |
//! | --- | --- |
//! | 1 | sends a request that queues: it carries a new nonce, and so allows a grant by message |
//! | 2 | gets the reply "held", or no reply: only a grant with this nonce counts from now on. The reply says that no earlier grant to this owner stands. |
//! | 3 | gets a message with that nonce: the hand-over came after the request was sent. So the lease lasts for the pickup window from that time. |
//! | 4 | gets any message, or goes on in another thread: no message counts until the next request. Every client that may subscribe has seen the nonce of a message. |
//!
//! In these cases the attempt does not use the message. It asks, and Redis finds its owner as the holder:
//!
//! | case | because |
//! | --- | --- |
//! | so little of the pickup window is left that the lease would be at risk, or that three round trips of the link take longer | the lease could end before its first renewal |
//! | another thread drives the attempt now | the record of the waiter has the terms of the thread before |
//! | other threads of this process wait | a grant by message has one fence, and a reply brings enough for them |
//!
//! The attempt ends with the grant. So it uses one message at most, and none after a grant by reply. A release or a
//! withdrawal ends it too.

mod patience;
pub(crate) mod poll;

use std::time::Duration;

use crate::config::Terms;
use crate::engine::timer_queue::at_risk_below;
use crate::error::{Failure, FailureKind};
use crate::net::deadline::Wait;
use crate::owner;
use crate::sys::{Arc, Rng, Time};
use crate::wire::lifetime::{self, FIRST_TURN, valid_until};
use crate::wire::{Ask, End, GiveBack, GrantMessage, How, Nonce, Reply};

use patience::{Patience, SHORTEST_PAUSE, WaitState, is_of_replicas, sleep};
use poll::SubscriptionState;

/// How long after a holder's reported expiry to ask: Redis drops a key no earlier than its time.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);

/// The facts that an attempt needs for a step.
pub(crate) struct Context<'a> {
    /// When the driving thread called.
    pub(crate) arrived: Time,
    pub(crate) terms: Terms,
    /// How long the driving thread waits.
    pub(crate) wait: Wait,
    /// How long Redis keeps the lock for this process after a hand-over.
    pub(crate) pickup_window: Duration,
    /// Whether a hand-over may grant the lock by message.
    pub(crate) grants_by_message: bool,
    pub(crate) outage_limit: Duration,
    /// Whether a failure of the first request is waited out too.
    pub(crate) waits_through_outages: bool,
    /// The tail of the call's owners.
    pub(crate) tail: &'a str,
    pub(crate) rng: &'a dyn Rng,
    pub(crate) now: Time,
    pub(crate) subscription: SubscriptionState,
    /// When this process noticed the last failover. It may have lost a grant that a request before it allows.
    pub(crate) failed_over_at: Time,
    /// How long the last request took.
    pub(crate) round_trip: Duration,
    /// How many fences a grant reserves if the lease will go to other threads. Otherwise it reserves one.
    pub(crate) fence_block: u64,
    /// A lease of this process that more threads may share, if no other process waits.
    pub(crate) shareable_owner: Option<Arc<str>>,
    /// Whether other threads of this process wait.
    pub(crate) crowded: bool,
    /// How many threads of this process ask Redis, over all names.
    pub(crate) busy_threads: u32,
}

/// The event that leads to a step.
#[derive(Debug)]
pub(crate) enum Input {
    /// A thread begins to drive the attempt.
    Go,
    /// This request, which was sent at this time, was answered. `resent`: Redis may execute it twice.
    Replied {
        ask: Ask,
        sent: Time,
        reply: Reply,
        resent: bool,
    },
    /// This request, which was sent at this time, failed. `cut_short`: only because the driving thread's wait was over.
    Failed {
        ask: Ask,
        sent: Time,
        failure: Failure,
        cut_short: bool,
    },
    /// A sleep is over, without a message; or a request was given up, because the call must end.
    Woken,
    /// A sleep is over, by a message. `None`: the message grants nothing, or its grant must not be used.
    Message(Option<GrantMessage>),
}

/// The next thing to do for the thread that drives the attempt. All but the first two end its call.
#[derive(Debug)]
pub(crate) enum Step {
    Send(Ask),
    /// Sleep until a message comes, or until this time.
    Sleep(Time),
    Granted(Grant),
    /// Redis lets more threads share the lease that was offered, for another quantum.
    Shared,
    /// The thread's time is over. `None`: the last answer was "held". Otherwise this failure kept the thread from an
    /// answer. Another thread may continue the attempt.
    TimeOver(Option<Failure>),
    /// It failed, for the threads behind the delegate too.
    Failed(Failure),
}

/// A lock that was granted.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) owner: Arc<str>,
    /// The units of the lock that it is of.
    pub(crate) units: u32,
    pub(crate) terms: Terms,
    pub(crate) fence: u64,
    pub(crate) fences: u64,
    /// The fences of the further names of a set.
    pub(crate) rest: Vec<u64>,
    /// A reading of the clock from before the request.
    pub(crate) sent: Time,
    pub(crate) deadline: Time,
    /// The pickup window, if Redis keeps the lock only for that time because it was granted by message. A renewal must
    /// follow at once.
    pub(crate) pickup_window: Option<Duration>,
    /// Whether other processes wait for the lock, or are likely to.
    pub(crate) contended: bool,
    /// Until when Redis may still execute a request of unknown outcome.
    pub(crate) uncertain_until: Option<Time>,
    /// Until when Redis may keep the key for such a request, whose lease may be longer than this grant's.
    pub(crate) key_gone_at: Option<Time>,
}

impl Grant {
    /// Returns the grant of a reply to a request for one unit that was sent at `sent`, on these terms and with this number of
    /// fences.
    ///
    /// # Errors
    ///
    /// Returns a failure if the reply grants nothing, or comes so late at `now` that the lease may be over.
    pub(crate) fn of_reply(
        reply: Reply,
        owner: Arc<str>,
        terms: Terms,
        fences: u64,
        sent: Time,
        now: Time,
    ) -> Result<Self, Failure> {
        let Reply::Granted {
            fence,
            count,
            rest,
            contended,
        } = reply
        else {
            return Err(Failure::another_question());
        };
        let deadline = valid_until(sent, terms.lease());
        if now >= deadline {
            return Err(Failure::too_late());
        }
        Ok(Self {
            owner,
            units: 1,
            terms,
            fence,
            fences: count.unwrap_or(fences),
            rest,
            sent,
            deadline,
            pickup_window: None,
            contended,
            uncertain_until: None,
            key_gone_at: None,
        })
    }
}

/// An owner of this process that may be left in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedOwner {
    pub(crate) owner: Arc<str>,
    pub(crate) units: u32,
    /// The time until which Redis may execute an earlier acquire or take-over of this owner. Until then no reply to a
    /// release is final.
    pub(crate) uncertain_until: Option<Time>,
    /// Until when Redis may keep the key, if that may be longer than the lease of the thread that ends it.
    pub(crate) key_gone_at: Option<Time>,
    /// The unused part of the fences of a lease.
    pub(crate) give_back: Option<GiveBack>,
}

impl EndedOwner {
    /// Returns an owner that Redis does not know yet.
    pub(crate) fn new(owner: Arc<str>, units: u32) -> Self {
        Self {
            owner,
            units,
            uncertain_until: None,
            key_gone_at: None,
            give_back: None,
        }
    }

    /// Returns the hand-over that ends it.
    pub(crate) fn end(&self) -> End {
        End {
            give_back: self.give_back,
            ..End::new(Arc::clone(&self.owner), self.units, How::HandOver)
        }
    }

    /// Notes a request of unknown outcome that was sent at `sent`, and that Redis may execute until `until`.
    fn note_uncertain(&mut self, sent: Time, until: Time, lease: Duration) {
        self.uncertain_until = self.uncertain_until.max(Some(until));
        // Executed at the last moment, the request takes the lock for a lease from then.
        self.key_gone_at = self.key_gone_at.max(Some(sent + lease * 2));
    }
}

/// The attempt of one process at one name.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The name under which Redis knows the attempt, and what Redis may have of it.
    me: EndedOwner,
    /// Whether the owner may be in the lock's queue.
    queued: bool,
    /// Whether a quorum has withdrawn the owner from some nodes, so that the next request is of a new owner. Until then this
    /// one stays in the queues of the others.
    outvoted: bool,
    /// The lease of this process that the next request takes over, or the one under way.
    from: Option<EndedOwner>,
    patience: Patience,
    /// The last grant by message that was allowed and may come, when its request was sent, and the pickup window that the
    /// request named. The first message ends it.
    allowed_grant: Option<(Nonce, Time, Duration)>,
    /// The owner before this one, if too few replicas confirmed its grant. Its key stays until it is withdrawn.
    former_owner: Option<Arc<str>>,
    /// Former owners whose release has not begun.
    ended_owners: Vec<EndedOwner>,
}

impl Attempt {
    /// Begins an attempt at `units` of the lock. `has_waited`: its thread has waited behind others of its process.
    pub(crate) fn new(rng: &dyn Rng, tail: &str, units: u32, has_waited: bool) -> Self {
        Self {
            me: EndedOwner::new(owner::generate(rng, tail), units),
            queued: false,
            outvoted: false,
            from: None,
            patience: Patience::new(if has_waited {
                WaitState::Begun
            } else {
                WaitState::NotBegun
            }),
            allowed_grant: None,
            former_owner: None,
            ended_owners: Vec::new(),
        }
    }

    /// Begins an attempt to keep the lock that this process holds as `from`. Its lease has ended here.
    pub(crate) fn take_over(rng: &dyn Rng, tail: &str, from: EndedOwner) -> Self {
        let attempt = Self::new(rng, tail, from.units, true);
        Self {
            patience: Patience::new(WaitState::Contended),
            from: Some(from),
            ..attempt
        }
    }

    /// Returns whether failures are waited out.
    pub(crate) fn waits(&self) -> bool {
        self.patience.has_begun()
    }

    /// Returns whether a thread that wants `units` of the lock, with this tail, can carry the attempt on.
    pub(crate) fn is_for(&self, units: u32, tail: &str) -> bool {
        self.me.units == units && owner::tail_of(&self.me.owner) == Some(tail)
    }

    /// Returns whether `holder` is the former owner, whose withdrawal is on its way. "Held" by that owner is no answer.
    pub(crate) fn is_former_owner(&self, holder: &str) -> bool {
        self.former_owner.as_deref() == Some(holder)
    }

    /// Returns the owner to which messages are addressed.
    pub(crate) fn owner(&self) -> &Arc<str> {
        &self.me.owner
    }

    /// Takes out the owners that must be released in the background.
    pub(crate) fn ended_owners(&mut self) -> Vec<EndedOwner> {
        std::mem::take(&mut self.ended_owners)
    }

    /// Ends an attempt that no thread continues. Returns the owners that may be left in Redis: after a grant not the granted one,
    /// see [`Self::leave_to_grant`].
    pub(crate) fn abandon(mut self) -> Vec<EndedOwner> {
        self.ended_owners.extend(self.from.take());
        self.leave_behind();
        self.ended_owners
    }

    /// Applies an event. Returns the next thing to do.
    pub(crate) fn step(&mut self, input: Input, context: &Context<'_>) -> Step {
        match input {
            // Granted by message, as the tables at the top allow it; otherwise as woken.
            Input::Message(message) => match self.accept(message, context) {
                Some(grant) => Step::Granted(grant),
                None => self.go_on(context),
            },
            Input::Go => {
                self.allowed_grant = None;
                self.go_on(context)
            }
            Input::Woken => self.go_on(context),
            Input::Replied {
                ask,
                sent,
                reply,
                resent,
            } => self.replied(ask, sent, resent, reply, context),
            Input::Failed {
                ask,
                sent,
                failure,
                cut_short,
            } => {
                self.failed(&ask, sent, &failure, context);
                self.patience.back_off(failure, cut_short, context)
            }
        }
    }

    /// Sends the next request, unless the thread's time is over.
    fn go_on(&mut self, context: &Context<'_>) -> Step {
        if let Some(over) = self.patience.end(context) {
            return over;
        }
        // Outvoted: abandon the owner, and send an acquire under a new one.
        if self.outvoted {
            self.rename(context);
        }
        let ask = self.request(context);
        self.queued |= ask.queues();
        Step::Send(ask)
    }

    /// Returns the next request.
    fn request(&self, context: &Context<'_>) -> Ask {
        // A contended lock is likely to be contended again. A lock that was free most likely has no other waiter.
        let has_several_guards = context.crowded || self.patience.is_contended();
        let channel = match context.wait {
            // A try never queues.
            Wait::Try => None,
            Wait::Until(_) | Wait::Forever => context.subscription.channel(),
        };
        let allows_grant = context.grants_by_message
            && !context.crowded
            && channel.as_ref().is_some_and(|channel| !channel.is_empty());
        // An owner in the queue waits its turn.
        let waits_its_turn = self.queued;
        Ask {
            owner: Arc::clone(&self.me.owner),
            units: self.me.units,
            lease: context.terms.lease(),
            fences: if !context.terms.fencing {
                0
            } else if has_several_guards {
                context.fence_block
            } else {
                1
            },
            takes_free: !waits_its_turn && self.from.is_none(),
            shareable_owner: (context.shareable_owner.clone()).filter(|_| !waits_its_turn),
            channel,
            nonce: allows_grant.then(|| Nonce::new(context.rng)),
            pickup_window: context.pickup_window,
            ending: self.from.as_ref().map(EndedOwner::end),
        }
    }

    /// Acts on the answer to a request.
    fn replied(
        &mut self,
        ask: Ask,
        sent: Time,
        resent: bool,
        reply: Reply,
        context: &Context<'_>,
    ) -> Step {
        match reply {
            // Granted, in time or not.
            Reply::Granted { .. } => {
                self.answered(&ask, sent, resent, context);
                let (terms, now) = (context.terms, context.now);
                match Grant::of_reply(reply, ask.owner, terms, ask.fences, sent, now) {
                    // A lock that this process waited for is likely to have other waiters. A take-over would have found
                    // them.
                    Ok(grant) => {
                        let is_contended = self.patience.is_contended() && ask.ending.is_none();
                        let uncertain_until = self.leave_to_grant(now);
                        Step::Granted(Grant {
                            units: ask.units,
                            contended: grant.contended || is_contended,
                            key_gone_at: self.me.key_gone_at,
                            uncertain_until,
                            ..grant
                        })
                    }
                    // The lease may be over already. Abandon the owner, and ask under another.
                    Err(failure) => {
                        self.me.note_uncertain(sent, sent + ask.lease, ask.lease);
                        self.rename(context);
                        self.patience.back_off(failure, false, context)
                    }
                }
            }
            // The offered lease may be shared: the owner is not used. Only an owner that is not in the queue offers a
            // lease, and this answer puts none there.
            Reply::Shared if ask.shareable_owner.is_some() => {
                self.answered(&ask, sent, resent, context);
                self.queued = false;
                Step::Shared
            }
            // Held: a try is done, and a wait sleeps until a message, the holder's expiry, or its poll. Two other rows
            // stand in `held`: the holder is the former owner, or the subscription began or ended meanwhile.
            Reply::Held { ttl, holder, .. } => {
                self.answered(&ask, sent, resent, context);
                self.held(&ask, ttl, &holder, context)
            }
            // Outvoted, and a holder may have a majority. The owner stays in the queues, so that a message reaches this
            // attempt. The next request is of a new owner, which joins at the end of the queue, so a turn's end is no reason to
            // ask. But 100 ms may also be the rest of a lease, so poll after 250 ms.
            Reply::Outvoted {
                holder: Some(holder),
                ttl,
                ..
            } => {
                self.answered(&ask, sent, resent, context);
                self.outvoted = true;
                let is_of_a_lease = |ttl: &Duration| *ttl > FIRST_TURN;
                let ttl = ttl.map(|ttl| {
                    Some(ttl)
                        .filter(is_of_a_lease)
                        .unwrap_or(lifetime::SHORTEST_WINDOW)
                });
                self.held(&ask, ttl, &holder, context)
            }
            // Outvoted, and the votes are split: a try asks once more, and a wait asks again after a moment. A quorum has
            // withdrawn the owner.
            Reply::Outvoted {
                holder: None,
                counts,
                ..
            } => {
                self.answered(&ask, sent, resent, context);
                self.queued = false;
                self.rename(context);
                let failure = Failure::no_quorum(counts, Vec::new());
                self.patience.split(failure, context)
            }
            // An answer to another request counts as a failure of unknown outcome.
            _ => {
                let failure = Failure::another_question();
                self.failed(&ask, sent, &failure, context);
                self.patience.back_off(failure, false, context)
            }
        }
    }

    /// Notes that a request has an answer, whichever it is.
    fn answered(&mut self, ask: &Ask, sent: Time, resent: bool, context: &Context<'_>) {
        self.allowed_grant = ask.nonce.map(|nonce| (nonce, sent, ask.pickup_window));
        // 1. Redis may execute a request twice if it was sent twice.
        if resent {
            self.me.note_uncertain(sent, sent + ask.lease, ask.lease);
        }
        // 2. Every answer to a take-over ends the old lease, and takes its unused fences back. But Redis may still
        //    execute an earlier request of the old owner.
        let from = self.from.take();
        let uncertain = from.filter(|from| from.uncertain_until > Some(context.now));
        self.ended_owners.extend(uncertain.map(|from| EndedOwner {
            give_back: None,
            ..from
        }));
    }

    /// Goes on after the answer that `holder` holds the lock, for `ttl` if that is known.
    fn held(
        &mut self,
        ask: &Ask,
        ttl: Option<Duration>,
        holder: &str,
        context: &Context<'_>,
    ) -> Step {
        // 1. The former owner holds the lock only until its withdrawal arrives. The failure before stands.
        if self.is_former_owner(holder) {
            if let Some(failure) = self.patience.failure() {
                return self.patience.back_off(failure, false, context);
            }
        }
        // 2. This is an answer: a wait has begun, and an outage is over, except one of replicas.
        self.patience.answered_held(context.now);
        // 3. A try has its answer. A wait may be over.
        if let Some(over) = self.patience.end(context) {
            return over;
        }
        // 4. Sleep until the next poll, or until the holder's lease expires.
        let poll = if ask.channel == context.subscription.channel() {
            poll::pause(
                &context.subscription,
                ask.pickup_window,
                holder,
                context.busy_threads,
                context.rng,
            )
        } else {
            // The subscription began or ended during the request. A message for this owner may go to a channel that
            // nobody listens on, or not be sent at all, until the next request names the right channel.
            SHORTEST_PAUSE
        };
        sleep(
            ttl.map_or(poll, |ttl| poll.min(ttl + AFTER_EXPIRY)),
            context,
        )
    }

    /// Returns the grant of a message. Returns `None` if the attempt must not use it. Every message ends what the last
    /// request allowed.
    fn accept(&mut self, message: Option<GrantMessage>, context: &Context<'_>) -> Option<Grant> {
        let (nonce, sent, pickup_window) = self.allowed_grant.take()?;
        let message = message?;
        if self.outvoted || self.from.is_some() {
            return None;
        }
        let lease = context.terms.lease();
        let kept_for = pickup_window.min(lease);
        let deadline = valid_until(sent, kept_for);
        let is_usable = message.nonce == nonce
            && sent > context.failed_over_at
            && (message.fence > 0) == context.terms.fencing
            && !context.crowded
            && context.now + at_risk_below(kept_for).max(context.round_trip * 3) <= deadline;
        if !is_usable {
            return None;
        }
        let uncertain_until = self.leave_to_grant(context.now);
        Some(Grant {
            owner: Arc::clone(&self.me.owner),
            units: self.me.units,
            terms: context.terms,
            fence: message.fence,
            fences: u64::from(context.terms.fencing),
            rest: Vec::new(),
            sent,
            deadline,
            pickup_window: (kept_for < lease).then_some(kept_for),
            contended: true,
            uncertain_until,
            key_gone_at: self.me.key_gone_at,
        })
    }

    /// Leaves the owner to its guard, which ends it: if the attempt released it too, the guard would lose its lock. Returns
    /// until when Redis may still execute an earlier request of the owner, if that is after `now`.
    fn leave_to_grant(&mut self, now: Time) -> Option<Time> {
        self.queued = false;
        self.me.uncertain_until.take().filter(|until| *until > now)
    }

    /// Notes what Redis may have done of a request that failed, or whose thread has left before the answer because its call
    /// had to end. The caller decides what comes next: in the second case the server may be well, so another thread may
    /// continue the attempt.
    pub(crate) fn failed(
        &mut self,
        ask: &Ask,
        sent: Time,
        failure: &Failure,
        context: &Context<'_>,
    ) {
        // 0. A quorum has too few votes, and has withdrawn the owner. So the owner must not ask again. The renewal thread
        //    releases the lease that was to be taken over.
        if let FailureKind::NoQuorum(_) = failure.kind {
            self.ended_owners.extend(self.from.take());
            self.queued = false;
            self.rename(context);
            return;
        }
        // 1. Redis certainly executed nothing: go on as before. Only the owner's place in the queue stays: it is never
        //    certain that Redis does not have it.
        let Some(until) = failure.uncertain_until(sent, ask.lease) else {
            return;
        };
        // 2. The owner may come to hold the lock.
        self.allowed_grant = ask.nonce.map(|nonce| (nonce, sent, ask.pickup_window));
        self.me.note_uncertain(sent, until, ask.lease);
        let is_unconfirmed = is_of_replicas(failure);
        if is_unconfirmed {
            self.former_owner = Some(Arc::clone(&self.me.owner));
        }
        match self.from.take() {
            // 3. A take-over, outcome unknown or partly executed: abandon both owners. The release that must follow for
            //    the old owner may end a grant of the new one: neither asks again.
            Some(from) => {
                self.ended_owners.push(EndedOwner {
                    uncertain_until: from.uncertain_until.max(self.me.uncertain_until),
                    key_gone_at: from.key_gone_at.max(self.me.key_gone_at),
                    ..from
                });
                self.rename(context);
            }
            // 4. An acquire was granted, but too few replicas confirmed it: abandon the owner. No guard relies on an
            //    unconfirmed grant, so the grant must not keep the lock from others.
            None if is_unconfirmed => self.rename(context),
            // 5. An acquire, outcome unknown or partly executed: asking again under the same owner is idempotent.
            None => {}
        }
    }

    /// Leaves the owner behind, to be released, and makes a new one.
    fn rename(&mut self, context: &Context<'_>) {
        self.leave_behind();
        let owner = owner::generate(context.rng, context.tail);
        self.me = EndedOwner::new(owner, self.me.units);
        (self.queued, self.outvoted, self.allowed_grant) = (false, false, None);
    }

    /// Adds the owner to the ended owners, if Redis may have it.
    fn leave_behind(&mut self) {
        if self.queued || self.me.uncertain_until.is_some() {
            self.ended_owners.push(self.me.clone());
        }
    }
}

#[cfg(test)]
mod tests;
