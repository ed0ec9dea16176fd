//! The states of an attempt, and the input and the output of its steps. The table in [`super`] has the transitions. The
//! input is an event, with facts about the call and the present. The output is an action, or a grant.

use std::time::Duration;

use crate::config::Terms;
use crate::engine::attempt::poll::SubscriptionState;
use crate::error::Failure;
use crate::sys::{Arc, Rng, Time};
use crate::wire::lifetime::valid_until;
use crate::wire::{Ask, End, GiveBack, GrantMessage, How, Nonce, Reply};

/// The facts that an attempt needs for a step.
pub(crate) struct Context<'a> {
    /// When the driving thread called.
    pub(crate) arrived: Time,
    pub(crate) terms: Terms,
    /// When the driving thread gives up; `None` if it only tries.
    pub(crate) until: Option<Time>,
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
    /// For how long the threads of this process may have a lease that is asked for now, while others wait.
    pub(crate) quantum: Duration,
    /// How many fences a grant reserves if the lease will go to other threads, for that quantum. Otherwise it reserves one.
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
    /// The request that was sent at this time was answered. `resent`: Redis may execute it twice.
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
    /// A sleep is over, without a message.
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
    /// The quantum for which the fences were reserved.
    pub(crate) quantum: Duration,
    /// The fences of the further names of a set.
    pub(crate) rest: Vec<u64>,
    /// A reading of the clock from before the request.
    pub(crate) sent: Time,
    pub(crate) deadline: Time,
    /// The pickup window, if Redis keeps the lock only for that time because it was granted by message. A renewal must
    /// follow at once.
    pub(crate) pickup_window: Option<Duration>,
    /// Whether a message granted the lock, and not a reply.
    pub(crate) is_by_message: bool,
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
        quantum: Duration,
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
            quantum,
            rest,
            sent,
            deadline,
            pickup_window: None,
            is_by_message: false,
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

    /// Returns until when Redis may execute a request of it, if that is later than `now`.
    pub(super) fn uncertain_after(&self, now: Time) -> Option<Time> {
        self.uncertain_until.filter(|until| *until > now)
    }

    /// Notes a request of unknown outcome that was sent at `sent`, and that Redis may execute until `until`.
    pub(super) fn note_uncertain(&mut self, sent: Time, until: Time, lease: Duration) {
        self.uncertain_until = self.uncertain_until.max(Some(until));
        // Executed at the last moment, the request takes the lock for a lease from then.
        self.key_gone_at = self.key_gone_at.max(Some(sent + lease * 2));
    }
}

#[derive(Debug)]
pub(super) enum AttemptState {
    /// No request is under way.
    Ask,
    /// No request is under way. A quorum has withdrawn the owner from some nodes, so the next request is of a new owner.
    /// Until then this one stays in the queues of the others.
    Outvoted,
    /// This request is under way.
    Sent(Sent),
    /// The owner holds the lock.
    Granted,
}

/// A request, and the terms on which its answer is read.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) ask: Ask,
    /// The quantum of the lease, for which the fences are reserved.
    pub(super) quantum: Duration,
    pub(super) pickup_window: Duration,
}

/// The terms on which a request lets a hand-over grant the lock by message.
#[derive(Debug)]
pub(super) struct AllowedGrant {
    pub(super) nonce: Nonce,
    /// When the request was sent.
    pub(super) sent: Time,
    /// The quantum of the lease.
    pub(super) quantum: Duration,
    pub(super) pickup_window: Duration,
}

impl AttemptState {
    /// Takes out the request under way.
    pub(super) fn end_request(&mut self) -> Sent {
        match std::mem::replace(self, Self::Ask) {
            Self::Sent(request) => request,
            Self::Ask | Self::Outvoted | Self::Granted => unreachable!(
                "an attempt takes in an answer or a failure only while a request is under way"
            ),
        }
    }

    /// Returns whether the request under way offers a lease to be shared.
    pub(super) fn may_share(&self) -> bool {
        matches!(self, Self::Sent(Sent { ask, .. }) if ask.shareable_owner.is_some())
    }
}

impl Sent {
    /// Returns the grant by message that the request allows, if it was sent at this time.
    pub(super) fn allowed_grant(&self, sent: Time) -> Option<AllowedGrant> {
        Some(AllowedGrant {
            nonce: self.ask.nonce?,
            sent,
            quantum: self.quantum,
            pickup_window: self.pickup_window,
        })
    }
}
