//! The fields of a lease that most leases do not need: the fences of a multi-lock, requests of unknown outcome, extensions,
//! and loss listeners. They are apart, so that a lease takes up little memory.

use crossbeam_channel::Sender;

use crate::error::{Lost, LostCause};
use crate::event::ReleaseRequest;
use crate::sys::Time;

#[derive(Default)]
pub(super) struct ColdState {
    /// The fences of a multi-lock's names after the first.
    pub(super) rest: Vec<u64>,
    /// The time until which Redis may still execute an earlier request of this owner.
    pub(super) uncertain_until: Option<Time>,
    /// The time until which Redis may keep the key. It covers extensions without a reply, and requests of unknown
    /// outcome.
    pub(super) key_gone_at: Option<Time>,
    /// The time at which the last confirmed renewal was sent. Noted from the first extension on. Before that, the
    /// deadline shows this time.
    pub(super) confirmed: Option<Time>,
    /// The end of the longest `min_hold` of the guards. Redis keeps the lock until then, even after the last guard.
    pub(super) min_hold_until: Option<Time>,
    /// The number of the last votes of a quorum that were applied.
    pub(super) votes_version: u32,
    /// The channels that receive the loss.
    pub(super) listeners: Vec<LossListener>,
    /// The last request to release the lock.
    pub(super) requested: Option<ReleaseRequest>,
    /// The channels that receive such requests, each with the number of its guard.
    pub(super) request_listeners: Vec<(u32, Sender<ReleaseRequest>)>,
    /// Whether the metrics count the lease as at risk.
    #[cfg(feature = "metrics")]
    pub(super) is_at_risk: bool,
}

/// A channel for the loss of one guard.
pub(super) struct LossListener {
    pub(super) guard_number: u32,
    pub(super) sender: Sender<Lost>,
    /// The message. Its cause is a placeholder.
    pub(super) lost: Lost,
}

impl LossListener {
    /// Sends the loss with its cause.
    pub(super) fn notify(self, cause: LostCause) {
        // A full channel has the loss already. A channel without a receiver needs no message.
        self.sender.try_send(Lost { cause, ..self.lost }).ok();
    }
}
