//! The renewal of many leases of any kind, and of the records of their fences: `renew.lua` and `keep_record.lua`.

use std::time::Duration;

use redis::Value::{self, Array, Int};

use crate::name::{Companion, LockKey};
use crate::sys::Time;
use crate::sys::time::ms_rounded_up;
use crate::wire::script::{Command, KEEP_RECORD, RENEW};
use crate::wire::{Gone, LockKind, ScriptSettings};

/// One lease to renew.
#[derive(Clone, Debug)]
pub(crate) struct Renewal<'a> {
    pub(crate) kind: LockKind,
    pub(crate) key: &'a LockKey,
    pub(crate) owner: String,
    pub(crate) units: u32,
    pub(crate) lease: Duration,
    /// Whether a node of a quorum without a vote may join. Only a lease that is renewed may gain votes.
    pub(crate) may_join: bool,
}

/// The result of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Done {
        /// Whether other processes wait for the lock.
        contended: bool,
    },
    /// The votes of a quorum: the lease lasts until then, at the nodes that still hold it.
    Voted {
        /// Whether other processes wait for the lock.
        contended: bool,
        until: Time,
        /// Rises with each vote about this owner. A result of a lower number came earlier.
        version: u32,
        /// Whether a majority of the nodes has confirmed this renewal. If not, it must be repeated.
        is_confirmed: bool,
        /// Whether the lease lacks votes that an early renewal may bring.
        lacks_votes: bool,
        /// Whether a node has no vote that had one at the last confirmed renewal, or this is the first.
        has_new_misses: bool,
    },
    Gone(Gone),
    /// The server rejected it.
    Refused,
    /// The node of its slot did not answer, or cannot serve the slot now. The others of the batch have their results.
    Unanswered,
}

impl Renewed {
    /// Returns whether the lease is renewed.
    pub(crate) fn is_confirmed(&self) -> bool {
        match self {
            Self::Done { .. } => true,
            Self::Voted { is_confirmed, .. } => *is_confirmed,
            Self::Gone(_) | Self::Refused | Self::Unanswered => false,
        }
    }

    /// Returns whether the lease lacks votes of a quorum that an early renewal may bring.
    pub(crate) fn lacks_votes(&self) -> bool {
        matches!(self, Self::Voted { lacks_votes, .. } if *lacks_votes)
    }

    /// Returns whether a further node of a quorum has no vote.
    pub(crate) fn has_new_misses(&self) -> bool {
        matches!(self, Self::Voted { has_new_misses, .. } if *has_new_misses)
    }

    fn read(value: &Value) -> Option<Self> {
        match value {
            Int(1) => Some(Self::Done { contended: false }),
            Int(2) => Some(Self::Done { contended: true }),
            Int(0) => Some(Self::Gone(Gone::Removed)),
            Int(-1) => Some(Self::Gone(Gone::Taken)),
            Int(-2) => Some(Self::Refused),
            _ => None,
        }
    }
}

pub(super) fn encode(batch: &[Renewal<'_>]) -> Command {
    let mut command = RENEW.command(batch.len());
    for renewal in batch {
        command.arg(renewal.key.key());
    }
    for renewal in batch {
        let shares = renewal.kind.units_in_key(renewal.units);
        let owner = renewal.owner.as_str();
        command
            .arg(owner)
            .arg(ms_rounded_up(renewal.lease))
            .arg(shares);
    }
    command
}

pub(super) fn keep_records(batch: &[Renewal<'_>], script_settings: &ScriptSettings) -> Command {
    let mut command = KEEP_RECORD.command(batch.len());
    for renewal in batch {
        command.arg(renewal.key.companion(Companion::Fence));
    }
    command.arg(ms_rounded_up(script_settings.fence_memory));
    command
}

/// Reads the answer to the renewal of this number of leases.
pub(super) fn decode(leases: usize, value: &Value) -> Option<Vec<Renewed>> {
    match value {
        Array(values) if values.len() == leases => values.iter().map(Renewed::read).collect(),
        _ => None,
    }
}
