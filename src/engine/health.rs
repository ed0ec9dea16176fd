//! How a lease of this process goes on: whether the next thread may get it in memory, and its holder for other threads.

use crate::clock::Time;
use crate::core::queue::Health;
use crate::engine::contention::LastReply;
use crate::engine::leases::Leases;
use crate::engine::process_lease::{NameState, ProcessLease};
use crate::sync::Arc;

impl Leases {
    /// Returns the holder of the lock, as far as this process knows.
    pub(super) fn holder(&self, state: &NameState) -> Option<Arc<str>> {
        match (state.queue.process_lease(), state.contention.last()) {
            (Some(process_lease), _) => Some(self.client.owner_of(process_lease)),
            (None, LastReply::Held(holder)) => Some(Arc::clone(holder)),
            (None, _) => None,
        }
    }

    /// Returns whether a lease may go to the next thread in memory at `now`.
    ///
    /// If the server closed a connection, it may have restarted without its data. A lease whose last confirmation is
    /// older than that does not go to the next thread in memory: that thread asks Redis.
    pub(super) fn health(&self, process_lease: &Arc<ProcessLease>, now: Time) -> Health {
        let health = process_lease.health(now);
        let cut = self.client.store.last_cut();
        if health != Health::Good
            || cut == Time::from_nanos(0)
            || process_lease.is_confirmed_after(cut)
        {
            return health;
        }
        if process_lease.entry.kind.sharing().together {
            // The lease goes on while other threads ask. Renew it now: once confirmed, it can be shared in memory
            // again.
            self.renewal.renew_now(&self.client, process_lease);
        }
        Health::Poor
    }
}
