//! The renewal thread: one for all leases of a manager, on a dedicated connection.
//!
//! | step | the thread |
//! | --- | --- |
//! | 1 | at the first lease: connects, and has the server load the script, so that a renewal takes one round trip |
//! | 2 | takes a batch of leases that are due, or nearly due, out of the timer queue, and notes them as in flight |
//! | 3 | sends the batch in one request |
//! | 4 | puts each confirmed lease back at its next renewal, and each unconfirmed one at its retry; has the watch thread handle each lost lease; repeats from 2 until no lease is due |
//! | 5 | sends the release tasks that are due, until the connection fails or a lease is due ([`release_tasks`]) |
//! | 6 | sleeps until the next lease or release task is due, for at most a second |
//!
//! No error or panic makes the thread forget a lease or a release task. Before it sends a request, it notes the leases
//! as in flight, and leaves the release tasks in their timer queue at a later time.
//!
//! A lease that was granted by message must be raised soon: see [`message_grants`].
//!
//! A thread registers a lease before it makes the lease's first guard. It deregisters the lease before it sends the
//! release.
//!
//! The renewal thread starts with the first lease or release task, and ends when there has been neither for a while. A
//! release task in the timer queue keeps the engine alive, and so the thread too.

mod message_grants;
mod release_tasks;

use std::collections::HashMap;
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::Time;
use crate::core::lease::LeaseStatus;
use crate::core::timer_queue::{
    Place, TimerQueue, WorkerTimer, gathered_within, renewal_due, renewal_limit, retry_after,
};
use crate::engine::Engine;
use crate::engine::events::Unreached;
use crate::engine::process_lease::ProcessLease;
use crate::error::{Chain, Failure};
use crate::event::Connection;
use crate::logging;
use crate::message::{Renewal, Renewed, Request};
use crate::name::LockKey;
use crate::panics::survived;
use crate::stats::Recorder;
use crate::store::DedicatedConnection;
use crate::sync::{Arc, Condvar, Mutex, Ordering, Weak, thread};

use message_grants::{Opening, RAISED_AFTER};
use release_tasks::Job;

/// The number of keys in one request. The last lease of a batch may exceed it, if that lease has several keys. The
/// server is busy for about a millisecond with such a request.
pub(super) const BATCH: usize = 200;
/// The number of leases that are put back while the mutex is held. Other threads wait for the mutex meanwhile.
const AT_A_TIME: usize = 50;
/// The value of `renewal_due_ns` for a lease that is in flight.
const IN_FLIGHT: u64 = 0;
/// The shortest sleep after a failure. It is short because other leases may be due, and it limits the load if the
/// server is down.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// The shortest sleep after a panic, so that repeated panics do not use a whole core. Also the time after which a
/// release task is repeated if the thread panicked while it was sent.
const AFTER_PANIC: Duration = Duration::from_millis(100);

pub(crate) struct RenewalThread {
    state: Mutex<State>,
    /// Notified if an earlier time is due, if a thread that waits here must check its condition again, and if the
    /// engine is dropped.
    changed: Condvar,
}

/// The state of the renewal thread, guarded by its mutex.
#[derive(Default)]
struct State {
    leases: TimerQueue<Arc<ProcessLease>>,
    /// The batch whose renewal was sent, and the time at which it was taken out of `leases`.
    in_flight: Option<(Time, Arc<[Arc<ProcessLease>]>)>,
    release_tasks: TimerQueue<Job>,
    timer: WorkerTimer,
    next_job: u64,
    /// The number of release tasks to which Redis has not replied yet.
    unexecuted: usize,
    /// When the round under way began, in which the thread connects and sends requests.
    busy_since: Option<Time>,
    opening: Opening,
    /// Whether a release task was given up without a reply, and Redis has not replied to any request since.
    is_given_up: bool,
    /// The places of background releases by key, until their first request has a reply or has failed.
    background_places: HashMap<LockKey, SmallVec<[Place; 1]>>,
    /// Whether the last request failed because of the connection, so that an outage is logged once.
    failing: bool,
    unreached: Unreached,
}

impl RenewalThread {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Registers a lease, which was granted by a request sent at `sent`. Does nothing for a lease without renewal.
    ///
    /// # Errors
    ///
    /// Returns the error of the system if the thread cannot be started. Then the lease is not registered.
    pub(crate) fn register(
        self: &Arc<Self>,
        engine: &Engine,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
    ) -> std::io::Result<()> {
        if !process_lease.terms.renew {
            return Ok(());
        }
        let due = if process_lease.is_in_pickup_window() {
            engine.now() + RAISED_AFTER
        } else {
            renewal_due(sent, process_lease.terms.lease(), engine.rng.jitter())
        };
        let mut state = self.state.lock();
        self.ensure_running(&mut state, engine)?;
        state.put(process_lease, due);
        // Have the thread connect at once. On a slow link there may be no time for that when the renewal is due.
        let wakes_at = match state.opening {
            Opening::Begun | Opening::Opened | Opening::Failed => due,
            Opening::NotWanted | Opening::Wanted => engine.now(),
        };
        self.wake_for(&mut state, wakes_at);
        Ok(())
    }

    /// Has a lease renewed at once, even a lease without renewal, to check whether Redis still holds the lock for it.
    /// Does nothing if the thread cannot be started.
    pub(crate) fn renew_now(self: &Arc<Self>, engine: &Engine, process_lease: &Arc<ProcessLease>) {
        let now = engine.now();
        let mut state = self.state.lock();
        if self.ensure_running(&mut state, engine).is_err() {
            return;
        }
        state.take(process_lease);
        // A thread that ends a lease sets its status before it takes the lease out of this queue. So a lease with a
        // deadline will still be taken out.
        if process_lease.validity.deadline().is_some() {
            state.put(process_lease, now);
            self.wake_for(&mut state, now);
        }
    }

    /// Takes a lease out of the timer queue, if it is there.
    pub(crate) fn deregister(&self, process_lease: &ProcessLease) {
        self.state.lock().take(process_lease);
    }

    /// Ends the thread as soon as nothing is left to do.
    pub(crate) fn stop(&self) {
        self.state.lock().timer.stop();
        self.changed.notify_all();
    }

    /// Wakes the thread if it sleeps past `due`.
    fn wake_for(&self, state: &mut State, due: Time) {
        if state.timer.expect(due) {
            self.changed.notify_all();
        }
    }

    /// Starts the thread if it does not run.
    fn ensure_running(self: &Arc<Self>, state: &mut State, engine: &Engine) -> std::io::Result<()> {
        if state.timer.is_running() {
            return Ok(());
        }
        let (renewal, engine) = (Arc::clone(self), engine.weak_self.clone());
        thread::Builder::new()
            .name("leasehold-renewal".into())
            .spawn(move || renewal.run(&engine))?;
        state.timer.started();
        state.opening = Opening::NotWanted;
        Ok(())
    }

    fn run(&self, engine: &Weak<Engine>) {
        let mut dedicated_connection: Option<Box<dyn DedicatedConnection>> = None;
        loop {
            // Hold the engine only during a round, so that the engine ends with the last handle and guard.
            let Some(engine) = engine.upgrade() else {
                return;
            };
            self.state.lock().busy_since = Some(engine.now());
            let round = survived(|| {
                // 1. Connect, if there is a lease and the thread has not connected yet.
                let dedicated_connection =
                    dedicated_connection.get_or_insert_with(|| engine.store.dedicated_connection());
                if self.state.lock().must_open() {
                    // If this fails, the first renewal connects again, and logs a failure.
                    let is_open = dedicated_connection.open().is_ok();
                    self.state.lock().opening = Opening::ended(is_open);
                }
                // 2 to 5. Renewals go first: a lease cannot wait, a release can.
                let renewed = self.renew_due(&engine, &mut **dedicated_connection);
                let ended = self.send_due_releases(&engine, &mut **dedicated_connection);
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
            let now = engine.now();
            drop(engine);
            let mut state = self.state.lock();
            state.busy_since = None;
            // A thread that wants the connection since the last step 1 could not wake this one, which did not sleep.
            let next = if state.should_open() {
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
        engine: &Engine,
        dedicated_connection: &mut dyn DedicatedConnection,
    ) -> bool {
        loop {
            let lags = &engine.stats.renewal_lags;
            let Some(batch) = self.state.lock().take_due(engine.now(), lags) else {
                return true;
            };
            let renewed = self.renew(engine, dedicated_connection, &batch);
            self.state.lock().in_flight = None;
            self.tell_of_servers(engine, dedicated_connection);
            match renewed {
                Err(failure) if failure.is_of_the_connection() => {
                    self.failed(&failure);
                    return false;
                }
                // Redis replies. A lease that it refused is retried at its own time.
                Err(_) | Ok(()) => self.reached(),
            }
        }
    }

    /// Renews a batch by one request. If the server refuses the request, sends it again in halves: one key that this
    /// user may not use must not prevent the renewal of the others.
    fn renew(
        &self,
        engine: &Engine,
        dedicated_connection: &mut dyn DedicatedConnection,
        batch: &[Arc<ProcessLease>],
    ) -> Result<(), Failure> {
        let leases: Vec<Renewal> = batch
            .iter()
            .flat_map(|process_lease| engine.renewals(process_lease, process_lease.renewed_for()))
            .collect();
        // The limit leaves time for a retry, even for the shortest lease.
        let shortest = batch
            .iter()
            .map(|process_lease| process_lease.confirmed_length())
            .min();
        let limit = renewal_limit(shortest.unwrap_or_default());
        let sent = engine.now();
        engine.stats.requests.add(1);
        let answer = dedicated_connection.call(&Request::Renew(&leases), limit);
        let replies = match answer.and_then(|answer| answer.reply.renewed()) {
            Ok(replies) => replies,
            Err(failure) if !failure.is_of_the_connection() && batch.len() > 1 => {
                let (first, second) = batch.split_at(batch.len() / 2);
                let first = self.renew(engine, dedicated_connection, first);
                return self.renew(engine, dedicated_connection, second).and(first);
            }
            Err(failure) => {
                self.not_confirmed(engine, batch);
                return Err(failure);
            }
        };
        let (now, mut replies) = (engine.now(), &replies[..]);
        // The whole batch gets the same jitter: its leases stay together, and different batches drift apart.
        let jitter = engine.rng.jitter();
        for part in batch.chunks(AT_A_TIME) {
            let confirmed: Vec<_> = part
                .iter()
                .filter_map(|process_lease| {
                    let own;
                    (own, replies) = replies.split_at(process_lease.keys().len());
                    let is_confirmed = self.confirmed(engine, process_lease, sent, own)?;
                    let lease = process_lease.confirmed_length();
                    let due = if is_confirmed {
                        renewal_due(sent, lease, jitter)
                    } else {
                        now + retry_after(lease)
                    };
                    Some((process_lease, due))
                })
                .collect();
            let mut state = self.state.lock();
            // Redis replies again. The keys of release tasks that were given up have expired.
            state.is_given_up = false;
            for (process_lease, due) in confirmed {
                state.put_back(process_lease, due);
            }
        }
        Ok(())
    }

    /// Applies the replies for one lease. Returns true if they confirm the lease, false if it must be retried, and
    /// `None` if it is not renewed any more.
    fn confirmed(
        &self,
        engine: &Engine,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
        replies: &[Renewed],
    ) -> Option<bool> {
        match engine.apply_renewal(process_lease, sent, process_lease.renewed_for(), replies) {
            LeaseStatus::Live(_) if !replies.iter().all(Renewed::is_confirmed) => {
                engine.stats.renewals_failed.add(1);
                Some(false)
            }
            LeaseStatus::Live(left) => process_lease.terms.renew.then(|| {
                engine.count_renewal(process_lease, left);
                true
            }),
            LeaseStatus::Ended => None,
            LeaseStatus::Lost(_) => {
                self.deregister(process_lease);
                None
            }
        }
    }

    /// Puts back a batch without a reply, for a retry.
    fn not_confirmed(&self, engine: &Engine, batch: &[Arc<ProcessLease>]) {
        engine.stats.renewals_failed.add(batch.len() as u64);
        let now = engine.now();
        let mut state = self.state.lock();
        for process_lease in batch {
            state.put_back(
                process_lease,
                now + retry_after(process_lease.confirmed_length()),
            );
        }
    }

    /// Logs the first failure of an outage.
    fn failed(&self, failure: &Failure) {
        let was_failing = std::mem::replace(&mut self.state.lock().failing, true);
        if !was_failing {
            let why = Chain(&*failure.cause);
            logging::warning!("leases cannot be renewed or released now, retrying: {why}");
        }
    }

    /// Logs the end of an outage.
    fn reached(&self) {
        let was_failing = std::mem::replace(&mut self.state.lock().failing, false);
        if was_failing {
            logging::info!("leases are renewed and released again");
        }
    }

    /// Tells the listener which servers the last requests have reached, and which they have not.
    fn tell_of_servers(&self, engine: &Engine, dedicated_connection: &mut dyn DedicatedConnection) {
        for report in dedicated_connection.take_reports() {
            let event = {
                let mut state = self.state.lock();
                state.unreached.note(Connection::Renewal, report)
            };
            if let Some(event) = event {
                engine.events.tell(|| event);
            }
        }
    }
}

impl State {
    /// Returns true once, after the first lease was registered, or may soon be.
    fn must_open(&mut self) -> bool {
        let must_open = self.should_open();
        if must_open {
            self.opening = Opening::Begun;
        }
        must_open
    }

    fn should_open(&self) -> bool {
        match self.opening {
            Opening::NotWanted => self.leases.next().is_some(),
            Opening::Wanted => true,
            Opening::Begun | Opening::Opened | Opening::Failed => false,
        }
    }

    fn next_due(&self) -> Option<Time> {
        match (self.leases.next(), self.release_tasks.next()) {
            (Some(lease), Some(release_task)) => Some(lease.min(release_task)),
            (lease, release_task) => lease.or(release_task),
        }
    }

    fn put(&mut self, process_lease: &Arc<ProcessLease>, due: Time) {
        process_lease
            .renewal_due_ns
            .store(due.as_nanos(), Ordering::Relaxed);
        self.leases
            .insert((due, process_lease.number), Arc::clone(process_lease));
    }

    fn take(&mut self, process_lease: &ProcessLease) {
        let due = Time::from_nanos(process_lease.renewal_due_ns.load(Ordering::Relaxed));
        self.leases.remove((due, process_lease.number));
    }

    /// Puts a lease that was in flight back at `due`. Two cases are left out:
    ///
    /// | meanwhile | why |
    /// | --- | --- |
    /// | the lease has ended | its thread has set the status, and will not look for the lease here again |
    /// | [`renew_now`](RenewalThread::renew_now) was called for it | the lease has a place, and this reply may be older than that call |
    fn put_back(&mut self, process_lease: &Arc<ProcessLease>, due: Time) {
        let is_in_flight = process_lease.renewal_due_ns.load(Ordering::Relaxed) == IN_FLIGHT;
        if is_in_flight && process_lease.validity.deadline().is_some() {
            self.put(process_lease, due);
        }
    }

    /// Takes out a batch of leases that are due, or nearly due. Notes them as in flight.
    fn take_due(&mut self, now: Time, lags: &Recorder) -> Option<Arc<[Arc<ProcessLease>]>> {
        let (mut batch, mut keys) = (Vec::new(), 0);
        while keys < BATCH {
            let Some(((due, _), process_lease)) = self.leases.first() else {
                break;
            };
            let gathered_within = if process_lease.is_in_pickup_window() {
                Duration::ZERO
            } else {
                gathered_within(process_lease.confirmed_length())
            };
            if due > now + gathered_within {
                break;
            }
            let Some(process_lease) = self.leases.pop_due(due) else {
                break;
            };
            // A lease past its deadline is not renewed: other processes would only wait longer for its key.
            if let LeaseStatus::Live(_) = process_lease.validity.status(now) {
                lags.record(now.since(due));
                keys += process_lease.keys().len();
                process_lease
                    .renewal_due_ns
                    .store(IN_FLIGHT, Ordering::Relaxed);
                batch.push(process_lease);
            }
        }
        if batch.is_empty() {
            return None;
        }
        let batch: Arc<[_]> = batch.into();
        self.in_flight = Some((now, Arc::clone(&batch)));
        Some(batch)
    }

    /// Puts back the batch in flight after a panic, for a retry.
    fn put_back_in_flight(&mut self) {
        let Some((since, batch)) = self.in_flight.take() else {
            return;
        };
        for process_lease in &*batch {
            self.put_back(
                process_lease,
                since + retry_after(process_lease.confirmed_length()),
            );
        }
    }
}
