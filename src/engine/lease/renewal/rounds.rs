//! The rounds of the renewal thread, and the replies to renewals.
//!
//! # Records
//!
//! Redis forgets the record of a last fence `fence_memory` after the grant. A lock that is held for longer would then have no
//! fence and no time in [`inspect`](crate::LockManager::inspect). So the thread keeps the records of all leases once in half
//! of that time. It sends one batch in a round, behind the renewals that are due. A renewal cannot do it, because it may touch
//! the lock's key alone.

use std::time::Duration;

use super::{AFTER_PANIC, BATCH, Opening, RenewalState, RenewalThread, next_renewal, retry_at};
use crate::engine::client::Client;
use crate::engine::lease::process_lease::ProcessLease;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::timer_queue::renewal_limit;
use crate::error::{Chain, Failure};
use crate::event::Connection;
use crate::logging;
use crate::net::deadline::LEAST;
use crate::panics::survived;
use crate::server::DedicatedConnection;
use crate::sys::{Arc, Rng, Time, Weak};
use crate::wire::{Renewal, Renewed, Request};

/// The number of leases that are put back while the mutex is held. Other threads wait for the mutex meanwhile.
const AT_A_TIME: usize = 50;
/// The shortest sleep after a failure. It is short because other leases may be due, and it limits the load if the
/// server is down.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// The shortest time between two warnings of an outage.
const WARNS_EVERY: Duration = Duration::from_secs(10);

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
    pub(super) fn run(&self, client: &Weak<Client>) {
        let mut dedicated_connection: Option<Box<dyn DedicatedConnection>> = None;
        loop {
            // Hold the client only during a round, so that the client ends with the last handle, guard and release task.
            let Some(client) = client.upgrade() else {
                return;
            };
            self.state.lock().busy_since = Some(client.now());
            let round = survived(|| {
                // 1. Connect, if there is a lease and the thread has not connected yet. Check a silent connection.
                let dedicated_connection =
                    dedicated_connection.get_or_insert_with(|| client.store.dedicated_connection());
                let is_silent = {
                    let mut state = self.state.lock();
                    let now = client.now();
                    let is_silent = state.is_silent(now);
                    state.must_open(now).then_some(is_silent)
                };
                if let Some(is_silent) = is_silent {
                    // If this fails, the first renewal connects again, and logs a failure.
                    let opened = dedicated_connection.open(is_silent);
                    let mut state = self.state.lock();
                    if opened.is_ok() {
                        state.opening = Opening::Opened;
                        state.replied_at = Some(client.now());
                    } else {
                        state.opening = Opening::Failed;
                    }
                }
                let doubt = client
                    .store
                    .last_surplus()
                    .max(client.store.last_failover());
                self.state.lock().renew_all_after(doubt, client.now());
                // 2 to 5. Renewals go first: a lease cannot wait, a release can.
                let renewed = self.renew_due(&client, &mut **dedicated_connection);
                self.keep_records(&client, &mut **dedicated_connection);
                let ended = self.send_due_releases(&client, &mut **dedicated_connection);
                renewed && ended
            });
            if round.is_none() {
                logging::error!("the renewal thread panicked and goes on with all its leases");
                // The connection may have a reply outstanding. The leases in flight must be renewed again.
                dedicated_connection = None;
                let mut state = self.state.lock();
                state.opening = Opening::Failed;
                state.put_back_in_flight();
            }
            // 6. Sleep until the next time, or end if nothing has been due for a while.
            let now = client.now();
            drop(client);
            let mut state = self.state.lock();
            state.busy_since = None;
            // A thread that wants the connection since the last step 1 could not wake this one, which did not sleep.
            let next = if state.should_open(now) {
                Some(now)
            } else {
                state.next_due()
            };
            let Some(sleep) = state.timer.rest(now, next) else {
                return;
            };
            let least = match round {
                Some(true) => Duration::ZERO,
                Some(false) => AFTER_FAILURE,
                None => AFTER_PANIC,
            };
            let sleep = sleep.max(least);
            self.changed.wait_for(state, sleep).timer.woke();
        }
    }

    /// Does steps 2 to 4: renews the leases that are due, batch by batch. Returns false after a failure of the
    /// connection.
    fn renew_due(
        &self,
        client: &Client,
        dedicated_connection: &mut dyn DedicatedConnection,
    ) -> bool {
        loop {
            let Some(batch) = self.state.lock().take_due(client.now(), client) else {
                return true;
            };
            let renewed = self.renew(client, dedicated_connection, &batch);
            self.state.lock().in_flight = None;
            self.tell_of_servers(client, dedicated_connection);
            match renewed {
                Err(failure) if failure.is_of_the_connection() => {
                    self.failed(client, &failure);
                    return false;
                }
                // Redis replies. A lease that it refused is retried at its own time.
                Err(_) | Ok(()) => self.reached(client),
            }
        }
    }

    /// Renews a batch by one request. If the server refuses the request, sends it again in halves: one key that this
    /// user may not use must not prevent the renewal of the others.
    fn renew(
        &self,
        client: &Client,
        dedicated_connection: &mut dyn DedicatedConnection,
        batch: &[Arc<ProcessLease>],
    ) -> Result<(), Failure> {
        let leases: Vec<Renewal> = batch
            .iter()
            .flat_map(|process_lease| client.renewals(process_lease, process_lease.renewed_for()))
            .collect();
        // The limit leaves time for a retry, even for the shortest lease.
        let shortest = batch
            .iter()
            .map(|process_lease| process_lease.confirmed_length())
            .min();
        let limit = renewal_limit(shortest.unwrap_or_default());
        let sent = client.now();
        client.stats.requests.add(1);
        let answer = dedicated_connection.call(&Request::Renew(&leases), limit);
        let replies = match answer.and_then(|answer| answer.reply.renewed()) {
            Ok(replies) => replies,
            Err(failure) if !failure.is_of_the_connection() && batch.len() > 1 => {
                let (first, second) = batch.split_at(batch.len() / 2);
                let first = self.renew(client, dedicated_connection, first);
                return self.renew(client, dedicated_connection, second).and(first);
            }
            Err(failure) => {
                self.not_confirmed(client, batch);
                return Err(failure);
            }
        };
        let (now, mut replies) = (client.now(), &replies[..]);
        // The whole batch gets the same jitter: its leases stay together, and different batches drift apart.
        let jitter = client.machine().jitter();
        for part in batch.chunks(AT_A_TIME) {
            let confirmed: Vec<_> = part
                .iter()
                .filter_map(|process_lease| {
                    let own;
                    (own, replies) = replies.split_at(process_lease.keys().len());
                    let is_confirmed = self.confirmed(client, process_lease, sent, own)?;
                    let due = if is_confirmed {
                        let lacks_votes = own.iter().any(Renewed::lacks_votes);
                        next_renewal(process_lease, sent, lacks_votes, jitter)
                    } else {
                        retry_at(process_lease, now)
                    };
                    Some((process_lease, due))
                })
                .collect();
            let mut state = self.state.lock();
            state.endings.redis_replies();
            for (process_lease, due) in confirmed {
                state.put_back(process_lease, due);
            }
        }
        Ok(())
    }

    /// Applies the replies to a renewal ([`ProcessLease::renewed`]). Leaves the lease to the watch thread if it is lost, or
    /// ends earlier than before.
    pub(crate) fn apply(
        &self,
        client: &Client,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
        lease: Duration,
        replies: &[Renewed],
    ) -> LeaseStatus {
        let before = process_lease.validity.deadline();
        let status = process_lease.renewed(sent, client.now(), lease, replies);
        // A lease that has ended has no deadline, and `None` is less than any.
        if process_lease.validity.deadline() < before && status != LeaseStatus::Ended {
            self.watch.handle_now(process_lease);
        }
        status
    }

    /// Applies the replies for one lease. Returns true if they confirm the lease, false if it must be retried, and
    /// `None` if it is not renewed any more.
    fn confirmed(
        &self,
        client: &Client,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
        replies: &[Renewed],
    ) -> Option<bool> {
        match self.apply(
            client,
            process_lease,
            sent,
            process_lease.renewed_for(),
            replies,
        ) {
            LeaseStatus::Live(_) if !replies.iter().all(Renewed::is_confirmed) => {
                client.stats.renewals_failed.add(1);
                Some(false)
            }
            LeaseStatus::Live(left) => {
                // A look is no renewal.
                if process_lease.terms.renew {
                    client.count_renewal(process_lease, left);
                    if replies.iter().any(Renewed::has_new_misses) {
                        client.tell_of_misses(process_lease);
                    }
                }
                Some(true)
            }
            LeaseStatus::Ended => None,
            LeaseStatus::Lost(_) => {
                self.deregister(process_lease);
                None
            }
        }
    }

    /// Puts back a batch without a reply, for a retry.
    fn not_confirmed(&self, client: &Client, batch: &[Arc<ProcessLease>]) {
        client.stats.renewals_failed.add(batch.len() as u64);
        let now = client.now();
        let mut state = self.state.lock();
        for process_lease in batch {
            state.put_back(process_lease, retry_at(process_lease, now));
        }
    }

    /// Logs the first failure of an outage. While one master of a cluster fails, each reply of another master seems to end the
    /// outage, so the next one is logged after a while.
    pub(crate) fn failed(&self, client: &Client, failure: &Failure) {
        let now = client.now();
        let mut state = self.state.lock();
        state.failing = true;
        let is_known = |(at, goes_on): (Time, bool)| goes_on || now < at + WARNS_EVERY;
        if state.warned.is_some_and(is_known) {
            return;
        }
        state.warned = Some((now, true));
        drop(state);
        let why = Chain(&*failure.cause);
        logging::warning!("leases cannot be renewed or released now, retrying: {why}");
    }

    /// Notes a reply. Logs the end of an outage.
    pub(crate) fn reached(&self, client: &Client) {
        let mut state = self.state.lock();
        state.replied_at = Some(client.now());
        state.failing = false;
        let goes_on = state.warned.as_mut().map(|(_, goes_on)| goes_on);
        let went_on = goes_on.is_some_and(std::mem::take);
        drop(state);
        if went_on {
            logging::info!("leases are renewed and released again");
        }
    }

    /// Tells the listener which servers the last requests have reached, and which they have not.
    pub(crate) fn tell_of_servers(
        &self,
        client: &Client,
        dedicated_connection: &mut dyn DedicatedConnection,
    ) {
        for report in dedicated_connection.take_reports() {
            let event = {
                let mut state = self.state.lock();
                state.unreached.note(Connection::Renewal, report)
            };
            if let Some(event) = event {
                client.events.tell(|| event);
            }
        }
    }

    /// Keeps the records of one batch of leases, if they are due.
    fn keep_records(&self, client: &Client, dedicated_connection: &mut dyn DedicatedConnection) {
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
