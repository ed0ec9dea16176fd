//! The states of an attempt. The table in [`super`] has the transitions.

use std::time::Duration;

use super::step::OrphanedOwner;
use crate::clock::Time;
use crate::config::Terms;
use crate::message::Nonce;
use crate::sync::Arc;

#[derive(Debug)]
pub(super) enum State {
    /// No request is under way; the next one asks for the lock.
    Ask(InRedis),
    /// No request is under way. A quorum has withdrawn the owner from some nodes, so the next request is of a new owner.
    /// Until then this one stays in the queues of the others.
    Outvoted(InRedis),
    /// No request is under way; the next one takes over the lease of `from`.
    TakeOver { from: OrphanedOwner, queued: bool },
    /// A request for the lock is under way.
    AskSent { request: Sent, in_redis: InRedis },
    /// A request that takes over the lease of `from` is under way.
    TakeOverSent {
        request: Sent,
        from: OrphanedOwner,
        queued: bool,
    },
    /// The owner holds the lock.
    Granted,
}

/// The traces of the attempt's owner that Redis may have.
#[derive(Debug)]
pub(super) struct InRedis {
    /// Whether the owner may be in the lock's queue.
    pub(super) queued: bool,
    pub(super) uncertain: Option<Uncertain>,
}

/// Requests of unknown outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uncertain {
    /// Until when Redis may execute one of them.
    pub(super) until: Time,
    /// Until when Redis may keep the lock for the owner, if it executes one.
    pub(super) kept_until: Time,
}

/// The terms of the request under way, which its answer is read by.
#[derive(Debug)]
pub(super) struct Sent {
    /// How many fences a grant reserves.
    pub(super) fences: u64,
    /// The quantum of the lease, for which the fences are reserved.
    pub(super) quantum: Duration,
    /// Whether a lease was offered to be shared instead.
    pub(super) offered: bool,
    /// The channel under which the queue will know the owner; `None` if the owner must not queue.
    pub(super) channel: Option<Arc<str>>,
    /// The grant by message that it allows.
    pub(super) offer: Option<Box<Offer>>,
}

/// The terms on which a request lets a hand-over grant the lock by message.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) nonce: Nonce,
    pub(super) terms: Terms,
    /// The quantum of the lease.
    pub(super) quantum: Duration,
    pub(super) pickup_window: Duration,
}

impl State {
    pub(super) fn new() -> Self {
        Self::Ask(InRedis::new(false))
    }

    pub(super) fn take_over(from: OrphanedOwner) -> Self {
        Self::TakeOver {
            from,
            queued: false,
        }
    }

    /// Takes the request under way apart: its terms, the traces of its owner, and the lease that it takes over.
    pub(super) fn into_request(self) -> (Sent, InRedis, Option<OrphanedOwner>) {
        match self {
            Self::AskSent { request, in_redis } => (request, in_redis, None),
            Self::TakeOverSent {
                request,
                from,
                queued,
            } => (request, InRedis::new(queued), Some(from)),
            Self::Ask(_) | Self::Outvoted(_) | Self::TakeOver { .. } | Self::Granted => {
                no_request()
            }
        }
    }

    /// Returns the state before the request under way. Only the owner's place in the queue stays: it is never certain
    /// that Redis does not have it.
    pub(super) fn before_request(self) -> Self {
        match self {
            Self::AskSent { in_redis, .. } => Self::Ask(in_redis),
            Self::TakeOverSent { from, queued, .. } => Self::TakeOver { from, queued },
            Self::Ask(_) | Self::Outvoted(_) | Self::TakeOver { .. } | Self::Granted => {
                no_request()
            }
        }
    }

    /// Returns whether the request under way offers a lease to be shared.
    pub(super) fn offers(&self) -> bool {
        match self {
            Self::AskSent { request, .. } | Self::TakeOverSent { request, .. } => request.offered,
            Self::Ask(_) | Self::Outvoted(_) | Self::TakeOver { .. } | Self::Granted => false,
        }
    }
}

impl InRedis {
    pub(super) fn new(queued: bool) -> Self {
        Self {
            queued,
            uncertain: None,
        }
    }

    /// Returns whether Redis may have the owner at all.
    pub(super) fn has_owner(&self) -> bool {
        self.queued || self.uncertain.is_some()
    }

    pub(super) fn uncertain_until(&self) -> Option<Time> {
        self.uncertain.map(|uncertain| uncertain.until)
    }

    pub(super) fn kept_until(&self) -> Option<Time> {
        self.uncertain.map(|uncertain| uncertain.kept_until)
    }

    /// Notes a request of unknown outcome.
    pub(super) fn note(&mut self, other: Uncertain) {
        let one = self.uncertain.unwrap_or(other);
        self.uncertain = Some(Uncertain {
            until: one.until.max(other.until),
            kept_until: one.kept_until.max(other.kept_until),
        });
    }
}

impl Uncertain {
    /// A request that was sent at `sent`, and that Redis may execute until `until`.
    pub(super) fn new(sent: Time, until: Time, lease: Duration) -> Self {
        Self {
            until,
            // Executed at the last moment, the request takes the lock for a lease from then.
            kept_until: sent + lease * 2,
        }
    }
}

impl Sent {
    /// Returns whether the request leaves its owner in the queue of a lock that is held.
    pub(super) fn queues(&self) -> bool {
        self.channel.is_some()
    }
}

fn no_request() -> ! {
    unreachable!("an attempt takes in an answer or a failure only while a request is under way")
}
