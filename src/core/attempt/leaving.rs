//! The owners that an attempt leaves behind, and the states after that: rows of the table in [`super`].

use super::Attempt;
use super::state::{InRedis, State, Uncertain};
use super::step::{OrphanedOwner, StepContext};
use crate::clock::Time;
use crate::core::outage::is_of_replicas;
use crate::error::{Failure, FailureKind};
use crate::owner;
use crate::sync::Arc;

impl Attempt {
    /// Takes in that the request under way failed. Returns the state to go on from.
    pub(super) fn failed(
        &mut self,
        state: State,
        sent: Time,
        failure: &Failure,
        context: &StepContext<'_>,
    ) -> State {
        let lease = context.terms.lease();
        // 0. A quorum has withdrawn the owner, so it must not ask again. The former lease is released by the renewal
        //    thread.
        if let FailureKind::NoQuorum { .. } = failure.kind {
            let (_, in_redis, from) = state.into_request();
            self.orphaned_owners.extend(from);
            return self.rename_withdrawn(&in_redis, context);
        }
        // 1. Redis certainly executed nothing: go on from the state before the request.
        let Some(until) = failure.uncertain_until(sent, lease) else {
            return state.before_request();
        };
        // 2. The owner may come to hold the lock.
        let (request, mut in_redis, from) = state.into_request();
        self.offer = request.offer.map(|offer| (offer, sent));
        in_redis.note(Uncertain::new(sent, until, lease));
        let is_unconfirmed = is_of_replicas(failure);
        if is_unconfirmed {
            self.former_owner = Some(Arc::clone(&self.owner));
        }
        match from {
            // 3. The release that must follow for the old owner may end a grant of the new one: neither asks again.
            Some(from) => {
                self.orphaned_owners.push(OrphanedOwner {
                    uncertain_until: from.uncertain_until.max(in_redis.uncertain_until()),
                    kept_until: from.kept_until.max(in_redis.kept_until()),
                    ..from
                });
                self.rename(&in_redis, context)
            }
            // 4. No guard relies on an unconfirmed grant, so the grant must not keep the lock from others.
            None if is_unconfirmed => self.rename(&in_redis, context),
            // 5. Asking again under the same owner is idempotent.
            None => State::Ask(in_redis),
        }
    }

    /// Leaves the owner behind, to be released, and makes a new one. Returns the state of the new owner.
    pub(super) fn rename(&mut self, in_redis: &InRedis, context: &StepContext<'_>) -> State {
        self.leave_behind(in_redis);
        self.owner = owner::generate(context.rng, context.label);
        self.offer = None;
        State::new()
    }

    /// Makes a new owner after a quorum has withdrawn this one from all nodes that it asked, and from their queues.
    pub(super) fn rename_withdrawn(
        &mut self,
        in_redis: &InRedis,
        context: &StepContext<'_>,
    ) -> State {
        let in_redis = InRedis {
            queued: false,
            ..*in_redis
        };
        self.rename(&in_redis, context)
    }

    /// Adds the owner to the orphaned owners, if Redis may have it.
    pub(super) fn leave_behind(&mut self, in_redis: &InRedis) {
        if in_redis.has_owner() {
            self.orphaned_owners.push(OrphanedOwner {
                owner: Arc::clone(&self.owner),
                units: self.units,
                uncertain_until: in_redis.uncertain_until(),
                kept_until: in_redis.kept_until(),
                give_back: None,
            });
        }
    }
}
