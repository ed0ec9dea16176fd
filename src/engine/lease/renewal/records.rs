//! The records of the last fences of the leases, which Redis forgets `fence_memory` after a grant.
//!
//! A lock that is held for longer would have no fence and no time in [`inspect`](crate::LockManager::inspect) any more. So the
//! renewal thread keeps the records of all leases once in half of that time. It sends one batch in a round, behind the renewals
//! that are due. A renewal cannot do it: it may touch the lock's key alone.

use std::time::Duration;

use super::{BATCH, RenewalState, RenewalThread};
use crate::engine::client::Client;
use crate::engine::lease::process_lease::ProcessLease;
use crate::net::deadline::LEAST;
use crate::server::DedicatedConnection;
use crate::sys::{Arc, Time};
use crate::wire::Request;

/// The part of `fence_memory` after which the records are kept once more, if that has failed.
const RETRIED_AFTER: u32 = 8;

#[derive(Default)]
pub(super) struct Records {
    /// When the records of all leases are kept next. `None` before the first lease.
    pub(super) due: Option<Time>,
    /// The leases whose records are still to be kept this time.
    left: Vec<Arc<ProcessLease>>,
}

impl RenewalThread {
    /// Keeps the records of one batch of leases, if they are due.
    pub(super) fn keep_records(
        &self,
        client: &Client,
        dedicated_connection: &mut dyn DedicatedConnection,
    ) {
        let (now, memory) = (client.now(), client.settings.fence_memory);
        let (batch, limit) = {
            let mut state = self.state.lock();
            let Some(renewal) = state.leases.next() else {
                return;
            };
            (state.take_records(now, memory / 2), renewal.since(now))
        };
        if batch.is_empty() {
            return;
        }
        let records = batch.iter();
        let records = records.flat_map(|lease| client.renewals(lease, Duration::ZERO));
        let records: Vec<_> = records.collect();
        client.stats.requests.add(1);
        let kept = dedicated_connection.call(&Request::KeepRecords(&records), limit.max(LEAST));
        self.tell_of_servers(client, dedicated_connection);
        // One that Redis refuses must not keep those behind it waiting.
        if kept.is_err_and(|failure| failure.is_of_the_connection()) {
            self.state.lock().records = Records {
                due: Some(now + memory / RETRIED_AFTER),
                left: Vec::new(),
            };
        }
    }
}

impl RenewalState {
    /// Takes out a batch of leases whose records are due. They stay due until the last batch was taken.
    fn take_records(&mut self, now: Time, every: Duration) -> Vec<Arc<ProcessLease>> {
        let Records { due, left } = &mut self.records;
        let due = due.get_or_insert(now + every);
        if *due > now {
            return Vec::new();
        }
        if left.is_empty() {
            let leases = self.leases.iter().map(|(_, lease)| lease);
            left.extend(leases.filter(|lease| lease.terms.fencing).cloned());
        }
        let (mut batch, mut keys) = (Vec::new(), 0);
        while keys < BATCH {
            let Some(lease) = left.pop() else { break };
            keys += lease.keys().len();
            batch.push(lease);
        }
        if left.is_empty() {
            *due = now + every;
        }
        batch
    }
}
