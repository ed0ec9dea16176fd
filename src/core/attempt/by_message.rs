//! Grants by message ([`crate::message::GrantMessage`]): which of them an attempt allows, and which it uses.
//!
//! | step | the attempt |
//! | --- | --- |
//! | 1 | sends a request that queues: it carries a new nonce, and so allows a grant by message |
//! | 2 | gets the reply "held", or no reply: only a grant with this nonce counts from now on. The reply says that no earlier grant to this owner stands. |
//! | 3 | gets a message with that nonce: the hand-over came after the request was sent. So the lease lasts for the pickup window from that time. |
//!
//! In these cases the attempt does not use the message. It asks, and Redis finds its owner as the holder:
//!
//! | case | because |
//! | --- | --- |
//! | so little of the pickup window is left that the lease would be at risk, or that three round trips of the link take longer | the lease could end before its first renewal |
//! | another thread drives the attempt now, with other terms | the record of the waiter has the terms before |
//! | other threads of this process wait | a grant by message has one fence, and a reply brings enough for them |
//!
//! The attempt ends with the grant. So it uses one message at most, and none after a grant by reply. A release or a
//! withdrawal ends it too.

use crate::core::attempt::state::{Offer, State};
use crate::core::attempt::{Attempt, Grant, StepContext};
use crate::core::lease::valid_until;
use crate::core::timer_queue::at_risk_below;
use crate::message::{GrantMessage, Nonce};
use crate::sync::Arc;

impl Attempt {
    /// Returns the grant of a message. Returns `None` if the attempt must not use it.
    pub(super) fn accept(
        &self,
        state: &State,
        message: GrantMessage,
        context: &StepContext<'_>,
    ) -> Option<Grant> {
        let State::Ask(in_redis) = state else {
            return None;
        };
        let (offer, sent) = self.offer.as_ref()?;
        let lease = context.terms.lease();
        let kept_for = offer.pickup_window.min(lease);
        let deadline = valid_until(*sent, kept_for);
        let is_usable = message.nonce == offer.nonce
            && offer.terms == context.terms
            && (message.fence > 0) == context.terms.fencing
            && !context.crowded
            && context.now + at_risk_below(kept_for).max(context.round_trip * 3) <= deadline;
        is_usable.then(|| Grant {
            owner: Arc::clone(&self.owner),
            fence: message.fence,
            fences: u64::from(context.terms.fencing),
            quantum: offer.quantum,
            rest: Vec::new(),
            sent: *sent,
            deadline,
            pickup_window: (kept_for < lease).then_some(kept_for),
            is_by_message: true,
            contended: true,
            uncertain_until: in_redis
                .uncertain_until()
                .filter(|until| *until > context.now),
            kept_until: in_redis.kept_until(),
        })
    }

    /// Returns the grant by message that the next request allows.
    pub(super) fn offer(channel: Option<&str>, context: &StepContext<'_>) -> Option<Box<Offer>> {
        if !context.grants_by_message || context.crowded || channel.is_none_or(str::is_empty) {
            return None;
        }
        Some(Box::new(Offer {
            nonce: Nonce::new(context.rng),
            terms: context.terms,
            quantum: context.quantum,
            pickup_window: context.pickup_window,
        }))
    }
}
