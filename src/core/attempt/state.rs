//! The states of an attempt. The table in [`super`] has the transitions.

use std::time::Duration;

use super::step::EndedOwner;
use crate::message::Nonce;
use crate::sys::{Arc, Time};

#[derive(Debug)]
pub(super) enum AttemptState {
    /// No request is under way. The next one asks for the lock, or takes over the lease of `from`.
    Ask {
        in_redis: InRedis,
        from: Option<EndedOwner>,
    },
    /// No request is under way. A quorum has withdrawn the owner from some nodes, so the next request is of a new owner.
    /// Until then this one stays in the queues of the others.
    Outvoted(InRedis),
    /// A request is under way that asks for the lock, or takes over the lease of `from`.
    Sent {
        request: Sent,
        in_redis: InRedis,
        from: Option<EndedOwner>,
    },
    /// The owner holds the lock.
    Granted,
}

/// The traces of the attempt's owner that Redis may have.
#[derive(Debug, Default)]
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
    pub(super) key_gone_at: Time,
}

/// The terms of the request under way, which its answer is read by.
#[derive(Debug)]
pub(super) struct Sent {
    /// How many fences a grant reserves.
    pub(super) fences: u64,
    /// The quantum of the lease, for which the fences are reserved.
    pub(super) quantum: Duration,
    /// Whether the request names a lease of this process that more threads may share instead.
    pub(super) may_share: bool,
    /// The channel under which the queue will know the owner; `None` if the owner must not queue.
    pub(super) channel: Option<Arc<str>>,
    /// The grant by message that it allows.
    pub(super) allowed_grant: Option<Box<AllowedGrant>>,
}

/// The terms on which a request lets a hand-over grant the lock by message.
#[derive(Debug)]
pub(super) struct AllowedGrant {
    pub(super) nonce: Nonce,
    /// The quantum of the lease.
    pub(super) quantum: Duration,
    pub(super) pickup_window: Duration,
}

impl AttemptState {
    /// Returns the state in which the next request asks for the lock.
    pub(super) fn ask(in_redis: InRedis) -> Self {
        Self::Ask {
            in_redis,
            from: None,
        }
    }

    /// Takes the request under way apart: its terms, the traces of its owner, and the lease that it takes over.
    pub(super) fn into_request(self) -> (Sent, InRedis, Option<EndedOwner>) {
        match self {
            Self::Sent {
                request,
                in_redis,
                from,
            } => (request, in_redis, from),
            Self::Ask { .. } | Self::Outvoted(_) | Self::Granted => unreachable!(
                "an attempt takes in an answer or a failure only while a request is under way"
            ),
        }
    }

    /// Returns whether the request under way offers a lease to be shared.
    pub(super) fn may_share(&self) -> bool {
        matches!(self, Self::Sent { request, .. } if request.may_share)
    }
}

impl InRedis {
    /// Returns the traces of an owner that has left the queue.
    pub(super) fn not_queued(self) -> Self {
        Self {
            queued: false,
            ..self
        }
    }

    /// Returns whether Redis may have the owner at all.
    pub(super) fn has_owner(&self) -> bool {
        self.queued || self.uncertain.is_some()
    }

    pub(super) fn uncertain_until(&self) -> Option<Time> {
        self.uncertain.map(|uncertain| uncertain.until)
    }

    /// Returns the same, if it is later than `now`.
    pub(super) fn uncertain_after(&self, now: Time) -> Option<Time> {
        self.uncertain_until().filter(|until| *until > now)
    }

    pub(super) fn key_gone_at(&self) -> Option<Time> {
        self.uncertain.map(|uncertain| uncertain.key_gone_at)
    }

    /// Notes a request of unknown outcome.
    pub(super) fn note(&mut self, other: Uncertain) {
        let one = self.uncertain.unwrap_or(other);
        self.uncertain = Some(Uncertain {
            until: one.until.max(other.until),
            key_gone_at: one.key_gone_at.max(other.key_gone_at),
        });
    }
}

impl Uncertain {
    /// A request that was sent at `sent`, and that Redis may execute until `until`.
    pub(super) fn new(sent: Time, until: Time, lease: Duration) -> Self {
        Self {
            until,
            // Executed at the last moment, the request takes the lock for a lease from then.
            key_gone_at: sent + lease * 2,
        }
    }
}
