//! Whether a lease of this process may go on: what Redis has confirmed of it, and what a renewal changes.

use std::time::Duration;

use crate::clock::Time;
use crate::core::lease::LeaseStatus;
use crate::core::queue::Health;
use crate::engine::Engine;
use crate::engine::contention::LastReply;
use crate::engine::process_lease::{NameState, ProcessLease};
use crate::message::{Renewal, Renewed};
use crate::sync::Arc;

impl Engine {
    /// Returns the owner of a lease as it is written in Redis.
    pub(super) fn owner_of(&self, process_lease: &ProcessLease) -> Arc<str> {
        process_lease.owner.to_arc(&self.settings.label)
    }

    /// Returns a renewal for `lease` for each key of a process lease.
    pub(super) fn renewals<'a>(
        &'a self,
        process_lease: &'a ProcessLease,
        lease: Duration,
    ) -> impl Iterator<Item = Renewal<'a>> + use<'a> {
        let label: &'a str = &self.settings.label;
        process_lease.keys().iter().map(move |key| Renewal {
            kind: process_lease.entry.kind,
            key,
            owner: process_lease.owner.text(label),
            units: process_lease.units,
            lease,
        })
    }

    /// Applies the replies to a renewal ([`ProcessLease::renewed`]). Has the watch thread handle the lease if it is lost, or
    /// ends earlier than before.
    pub(super) fn apply_renewal(
        &self,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
        lease: Duration,
        replies: &[Renewed],
    ) -> LeaseStatus {
        let before = process_lease.validity.deadline();
        let status = process_lease.renewed(sent, self.now(), lease, replies);
        // A lease that has ended has no deadline, and `None` is less than any.
        if process_lease.validity.deadline() < before && status != LeaseStatus::Ended {
            self.watch.handle_now(process_lease);
        }
        if process_lease.linger.is_some() && process_lease.is_contended() {
            self.end_linger(process_lease);
        }
        status
    }

    /// Returns the holder of the lock, as far as this process knows.
    pub(super) fn holder(&self, state: &NameState) -> Option<Arc<str>> {
        match (state.queue.process_lease(), state.contention.last()) {
            (Some(process_lease), _) => Some(self.owner_of(process_lease)),
            (None, LastReply::Held(holder)) => Some(Arc::clone(holder)),
            (None, _) => None,
        }
    }

    /// Returns whether a lease may go to the next thread in memory at `now`.
    ///
    /// If the server closed a connection, it may have restarted without its data. A lease whose last confirmation is
    /// older than that does not go to the next thread in memory: that thread asks Redis.
    pub(super) fn health(self: &Arc<Self>, process_lease: &Arc<ProcessLease>, now: Time) -> Health {
        let health = process_lease.health(now);
        let cut = self.store.last_cut();
        if health != Health::Good
            || cut == Time::from_nanos(0)
            || process_lease.is_confirmed_after(cut)
        {
            return health;
        }
        if process_lease.entry.kind.sharing().together {
            // The lease goes on while other threads ask. Renew it now: once confirmed, it can be shared in memory
            // again.
            self.renewal.renew_now(self, process_lease);
        }
        Health::Poor
    }
}
