//! One process's way to a lock: it asks, queues, sleeps and asks again, until the lock is granted or nobody wants it.
//!
//! An attempt has one owner at a time: the name under which Redis knows the attempt. After a failure that may leave the
//! owner in Redis, it may go on under a new one. An attempt belongs to a name's queue in this
//! process, not to a thread. A delegate that gives up hands the attempt to the next thread, with its place in the queue
//! in Redis.
//!
//! | state | input | next state | step |
//! | --- | --- | --- | --- |
//! | `Ask` | go, woken | `AskSent` | send *acquire*: a request may go before the queue, until one has put the owner into it |
//! | `TakeOver` | go, woken | `TakeOverSent` | send *take-over* of the lease that this process's last guard ended |
//! | `AskSent`, `TakeOverSent` | go, woken: the request was not written | as from `Ask`, `TakeOver` | the same |
//! | `AskSent`, `TakeOverSent` | granted in time | `Granted` | done |
//! | `AskSent`, `TakeOverSent` | granted, but the lease may be over | `Ask`, new owner | abandon the owner, back off |
//! | `AskSent`, `TakeOverSent` | the offered lease may be shared | `Ask` | done: the owner is not used |
//! | `AskSent`, `TakeOverSent` | held | `Ask` | a try is done; a wait sleeps until a message, the holder's expiry, or its poll |
//! | `AskSent`, `TakeOverSent` | held, and the subscription began or ended meanwhile | `Ask` | ask again at once: the queue has the wrong channel |
//! | `AskSent`, `TakeOverSent` | outvoted, and a holder may have a majority | `Outvoted` | as after held, but the end of another's turn does not wake it |
//! | `AskSent`, `TakeOverSent` | outvoted, and the votes are split | `Ask`, new owner | a try asks once more; a wait asks again after a moment |
//! | `AskSent`, `TakeOverSent` | failed, because a quorum has too few votes | `Ask`, new owner | abandon the lease that was to be taken over, back off |
//! | `Outvoted` | go, woken | `AskSent` | abandon the owner; send *acquire* under a new one |
//! | `AskSent`, `TakeOverSent` | held by the former owner, whose withdrawal is on its way | `Ask` | no answer: back off |
//! | `AskSent`, `TakeOverSent` | the semaphore has another number of permits | `Ask` | done |
//! | `AskSent`, `TakeOverSent` | failed, certainly not executed | `Ask`, `TakeOver` | back off |
//! | `AskSent` | failed, outcome unknown | `Ask` | back off, ask under the same owner: asking is idempotent |
//! | `AskSent` | failed after a part was executed | `Ask` | the same |
//! | `AskSent` | granted, but too few replicas confirmed it | `Ask`, new owner | abandon the owner, back off |
//! | `TakeOverSent` | failed, outcome unknown or partly executed | `Ask`, new owner | abandon both owners, back off |
//! | `Ask` | granted by message, as [`by_message`] allows it | `Granted` | done |
//! | any but `Granted` | granted by message otherwise | | as woken |
//! | any but `Granted` | go, woken, but the thread's time is over | the same | done: the next thread may continue the attempt |
//!
//! Backing off means to sleep, unless the failure ends the attempt (the table in `patience`). An answer to another
//! request counts as a failure of unknown outcome.
//!
//! An owner for which a release or a withdrawal was sent never asks again. An owner with a request of unknown outcome is
//! *uncertain* until a lease has passed since the request was sent: Redis may still execute the request. A thread that
//! ends such an owner repeats the ending until then ([`super::release_task`]).

mod begin;
mod by_message;
mod leaving;
mod patience;
mod state;
mod step;

use std::time::Duration;

use crate::clock::Time;
use crate::core::lease::valid_until;
use crate::core::quorum::LONGEST_TURN;
use crate::core::{pickup, poll};
use crate::error::{Failure, FailureKind, Outcome};
use crate::message::{AcquireMode, Ask, Reply, Verb};
use crate::sync::Arc;

use patience::{Patience, SHORTEST_PAUSE, sleep};
use state::{InRedis, Offer, Sent, State, Uncertain};

pub(crate) use crate::core::poll::SubscriptionState;
pub(crate) use step::{Grant, Input, OrphanedOwner, Step, StepContext};

/// How long after a holder's reported expiry to ask: Redis drops a key no earlier than its time.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);

/// The attempt of one process at one name.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The name under which Redis knows the attempt.
    owner: Arc<str>,
    /// The number of units of the lock that the attempt is for.
    units: u32,
    state: State,
    patience: Patience,
    /// The last grant by message that was allowed and may come, and when the request was sent that allowed it.
    offer: Option<(Box<Offer>, Time)>,
    /// The owner before this one, if too few replicas confirmed its grant. Its key stays until it is withdrawn.
    former_owner: Option<Arc<str>>,
    /// Former owners whose release has not begun.
    orphaned_owners: Vec<OrphanedOwner>,
}

impl Attempt {
    /// Returns whether failures are waited out.
    pub(crate) fn waits(&self) -> bool {
        self.patience.has_begun()
    }

    /// Returns whether the attempt has done nothing yet, so that another may take its place.
    pub(crate) fn is_new(&self) -> bool {
        match &self.state {
            State::Ask(in_redis) | State::AskSent { in_redis, .. } => {
                !in_redis.has_owner() && !self.patience.is_contended()
            }
            State::Outvoted(_)
            | State::TakeOver { .. }
            | State::TakeOverSent { .. }
            | State::Granted => false,
        }
    }

    /// Returns whether a thread that wants `units` of the lock can carry the attempt on.
    pub(crate) fn is_for(&self, units: u32) -> bool {
        self.units == units
    }

    /// Returns whether `holder` is the former owner, whose withdrawal is on its way. "Held" by that owner is no answer.
    pub(crate) fn is_former_owner(&self, holder: &str) -> bool {
        self.former_owner.as_deref() == Some(holder)
    }

    /// Returns the owner to which messages are addressed.
    pub(crate) fn owner(&self) -> &Arc<str> {
        &self.owner
    }

    /// Takes out the owners that must be released in the background.
    pub(crate) fn orphaned_owners(&mut self) -> Vec<OrphanedOwner> {
        std::mem::take(&mut self.orphaned_owners)
    }

    /// Ends an attempt that no thread continues. Returns the owners that may be left in Redis.
    pub(crate) fn abandon(mut self) -> Vec<OrphanedOwner> {
        match std::mem::replace(&mut self.state, State::Granted) {
            State::Ask(in_redis) | State::Outvoted(in_redis) | State::AskSent { in_redis, .. } => {
                self.leave_behind(&in_redis);
            }
            State::TakeOver { from, queued } | State::TakeOverSent { from, queued, .. } => {
                self.orphaned_owners.push(from);
                self.leave_behind(&InRedis::new(queued));
            }
            // The holder of the grant ends this owner. A release from here would end the lock under a guard.
            State::Granted => {}
        }
        self.orphaned_owners
    }

    /// Takes an event in. Returns the next thing to do.
    pub(crate) fn step(&mut self, input: Input, context: &StepContext<'_>) -> Step {
        // Each branch takes the state apart, and returns the one that follows.
        let state = std::mem::replace(&mut self.state, State::Granted);
        let (state, step) = match input {
            Input::GrantedByMessage(message) => match self.accept(&state, message, context) {
                Some(grant) => (State::Granted, Step::Granted(grant)),
                None => self.go_on(state, context),
            },
            Input::Go | Input::Woken => self.go_on(state, context),
            Input::Replied {
                sent,
                reply,
                resent,
            } => self.replied(state, sent, resent, reply, context),
            Input::Failed {
                sent,
                failure,
                cut_short,
            } => {
                let state = self.failed(state, sent, &failure, context);
                (state, self.patience.back_off(failure, cut_short, context))
            }
        };
        self.state = state;
        step
    }

    /// Sends the next request, unless the thread's time is over.
    fn go_on(&mut self, state: State, context: &StepContext<'_>) -> (State, Step) {
        match self.patience.end(context) {
            Some(over) => (state, over),
            None => self.send(state, context),
        }
    }

    /// Takes in that the thread has ended its call, and left the request that was sent at `sent`. Another thread may
    /// continue the attempt. So this decides nothing, and counts as no failure of the server.
    pub(crate) fn left(&mut self, sent: Time, failure: &Failure, context: &StepContext<'_>) {
        let state = std::mem::replace(&mut self.state, State::Granted);
        self.state = self.failed(state, sent, failure, context);
    }

    /// Sends the next request. A request that is under way already was not written: its thread gave up first.
    fn send(&mut self, state: State, context: &StepContext<'_>) -> (State, Step) {
        let state = match state {
            State::Outvoted(in_redis) => self.rename(&in_redis, context),
            state => state,
        };
        match state {
            State::Ask(in_redis) | State::AskSent { in_redis, .. } => {
                let (ask, request) = self.request(in_redis.queued, context);
                let mode = if in_redis.queued {
                    AcquireMode::QueueFirst
                } else {
                    AcquireMode::TakeFree
                };
                let verb = Verb::Acquire { ask, mode };
                let in_redis = InRedis {
                    queued: in_redis.queued || request.queues(),
                    ..in_redis
                };
                (State::AskSent { request, in_redis }, Step::Send(verb))
            }
            State::TakeOver { from, queued } | State::TakeOverSent { from, queued, .. } => {
                let (ask, request) = self.request(queued, context);
                let verb = Verb::TakeOver {
                    ask,
                    from: Arc::clone(&from.owner),
                    give_back: from.give_back,
                };
                let state = State::TakeOverSent {
                    queued: queued || request.queues(),
                    request,
                    from,
                };
                (state, Step::Send(verb))
            }
            State::Outvoted(_) => unreachable!("it has a new owner"),
            State::Granted => unreachable!("an attempt ends with its grant"),
        }
    }

    /// Returns the terms of the next request, and the part of them that its answer is read by.
    fn request(&mut self, queued: bool, context: &StepContext<'_>) -> (Ask, Sent) {
        // A contended lock is likely to be contended again. A lock that was free most likely has no other waiter.
        let has_several_guards = context.crowded || self.patience.is_contended();
        let channel = channel(context);
        let shareable_owner = context.shareable_owner.clone().filter(|_| !queued);
        let offer = Self::offer(channel.as_deref(), context);
        let ask = Ask {
            owner: Arc::clone(&self.owner),
            units: self.units,
            lease: context.terms.lease(),
            fences: if !context.terms.fencing {
                0
            } else if has_several_guards {
                context.fence_block
            } else {
                context.fewest_fences
            },
            // An owner in the queue waits its turn.
            shareable_owner,
            channel,
            nonce: offer.as_deref().map(|offer| offer.nonce),
        };
        let request = Sent {
            fences: ask.fences,
            quantum: context.quantum,
            offered: ask.shareable_owner.is_some(),
            channel: ask.channel.clone(),
            offer,
        };
        (ask, request)
    }

    /// Takes an answer in.
    fn replied(
        &mut self,
        state: State,
        sent: Time,
        resent: bool,
        reply: Reply,
        context: &StepContext<'_>,
    ) -> (State, Step) {
        match reply {
            Reply::Granted {
                fence,
                count,
                rest,
                contended,
            } => {
                let noted = self.note_reply(state, sent, resent, context);
                let fences = count.unwrap_or(noted.request.fences);
                self.granted(noted, sent, (fence, fences, rest, contended), context)
            }
            Reply::Shared if state.offers() => {
                let NotedReply { in_redis, .. } = self.note_reply(state, sent, resent, context);
                // Only an owner that is not in the queue offers a lease, and this answer puts none there.
                let in_redis = InRedis {
                    queued: false,
                    ..in_redis
                };
                (State::Ask(in_redis), Step::Shared)
            }
            Reply::Held { ttl, holder } => {
                let noted = self.note_reply(state, sent, resent, context);
                let step = self.held(&noted.request, ttl, &holder, context);
                (State::Ask(noted.in_redis), step)
            }
            Reply::Outvoted {
                holder: Some(holder),
                ttl,
                ..
            } => {
                let noted = self.note_reply(state, sent, resent, context);
                // The owner stays in the queues, so that a message reaches this attempt. The next request is of another
                // owner. If somebody waits, that owner comes last. So the attempt does not ask just because the turn of
                // another waiter ends. A lease may end in so short a time too, so the attempt polls soon.
                let is_of_a_lease = |ttl: &Duration| *ttl > LONGEST_TURN;
                let ttl =
                    ttl.map(|ttl| Some(ttl).filter(is_of_a_lease).unwrap_or(pickup::SHORTEST));
                let step = self.held(&noted.request, ttl, &holder, context);
                (State::Outvoted(noted.in_redis), step)
            }
            Reply::Outvoted {
                holder: None,
                granted,
                needed,
                ..
            } => {
                let noted = self.note_reply(state, sent, resent, context);
                let state = self.rename_withdrawn(&noted.in_redis, context);
                let failure = Failure::no_quorum(needed as usize, granted as usize, Vec::new());
                (state, self.patience.split(failure, context))
            }
            Reply::Differs(stored) => {
                let NotedReply { in_redis, .. } = self.note_reply(state, sent, resent, context);
                let kind = FailureKind::PermitsDiffer {
                    asked: context.total_units,
                    stored,
                };
                let words = "the semaphore in Redis has another number of permits";
                let failure = Failure::plain(kind, Outcome::NotExecuted, words);
                (
                    State::Ask(in_redis),
                    self.patience.back_off(failure, false, context),
                )
            }
            _ => {
                let failure = Failure::another_question();
                let state = self.failed(state, sent, &failure, context);
                (state, self.patience.back_off(failure, false, context))
            }
        }
    }

    /// Notes that the request under way has an answer, whichever it is.
    fn note_reply(
        &mut self,
        state: State,
        sent: Time,
        resent: bool,
        context: &StepContext<'_>,
    ) -> NotedReply {
        let (mut request, mut in_redis, from) = state.into_request();
        self.offer = request.offer.take().map(|offer| (offer, sent));
        // 1. Redis may execute a request twice if it was sent twice.
        if resent {
            let lease = context.terms.lease();
            in_redis.note(Uncertain::new(sent, sent + lease, lease));
        }
        // 2. Every answer to a take-over ends the old lease, and takes its unused fences back. But Redis may still
        //    execute an earlier request of the old owner.
        let has_taken_over = from.is_some();
        let uncertain = from.filter(|from| from.uncertain_until.is_some());
        self.orphaned_owners
            .extend(uncertain.map(|from| OrphanedOwner {
                give_back: None,
                ..from
            }));
        NotedReply {
            request,
            in_redis,
            has_taken_over,
        }
    }

    /// Takes a grant in: its fence, the number of fences, the fences of further names, and whether others wait.
    fn granted(
        &mut self,
        noted: NotedReply,
        sent: Time,
        (fence, fences, rest, contended): (u64, u64, Vec<u64>, bool),
        context: &StepContext<'_>,
    ) -> (State, Step) {
        let lease = context.terms.lease();
        let deadline = valid_until(sent, lease);
        let mut in_redis = noted.in_redis;
        // 1. The lease may be over already. Then leave its owner behind, and ask under another.
        if context.now >= deadline {
            in_redis.note(Uncertain::new(sent, sent + lease, lease));
            let state = self.rename(&in_redis, context);
            let failure = Failure::too_late();
            return (state, self.patience.back_off(failure, false, context));
        }
        // 2. The owner has left the queue. An uncertain request of it is the grant's from here on.
        let grant = Grant {
            owner: Arc::clone(&self.owner),
            fence,
            fences,
            quantum: noted.request.quantum,
            rest,
            sent,
            deadline,
            pickup_window: None,
            is_by_message: false,
            // A lock that this process waited for is likely to have other waiters. A take-over would have found them.
            contended: contended || (self.patience.is_contended() && !noted.has_taken_over),
            uncertain_until: in_redis
                .uncertain_until()
                .filter(|until| *until > context.now),
            kept_until: in_redis.kept_until(),
        };
        (State::Granted, Step::Granted(grant))
    }

    /// Takes in that `holder` holds the lock, for `ttl` if that is known.
    fn held(
        &mut self,
        request: &Sent,
        ttl: Option<Duration>,
        holder: &str,
        context: &StepContext<'_>,
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
        // 4. Sleep until the next poll, or until the holder's lease expires. A lease that never expires, or is about to
        //    expire, gives no time to wake up: poll.
        let poll = if request.channel == channel(context) {
            poll::pause(
                &context.subscription,
                context.pickup_window,
                holder,
                context.delegates,
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
}

/// A request that was answered.
struct NotedReply {
    request: Sent,
    in_redis: InRedis,
    /// Whether the request took a lease over.
    has_taken_over: bool,
}

/// Returns the channel to queue under; `None` if the request must not queue. A try never queues.
fn channel(context: &StepContext<'_>) -> Option<Arc<str>> {
    context.until.and_then(|_| context.subscription.channel())
}

#[cfg(test)]
mod tests;
