//! The renewal thread: one for all leases of a manager, on a connection of its own.
//!
//! | step | does |
//! | --- | --- |
//! | 0 | at the first lease: connects, and has the server load the script, so that a renewal is one round trip |
//! | 1 | takes what is due, or will be soon, out of the timetable, up to a batch, and notes that it is in flight |
//! | 2 | sends the batch in one request |
//! | 3 | puts each confirmed lease to its next time, each other one to its retry time; hands each lost one to the watch thread |
//! | 4 | sends the endings that are due, until one fails |
//! | 5 | sleeps until the next is due, for at most a second |
//!
//! A lease that is in flight is noted as such, and an ending stays in the timetable, before anything is sent: so
//! neither an error nor a panic on the way can make the thread forget one. A lease is registered before its guard is handed out, and deregistered before
//! its release is sent.
//!
//! The thread starts with the first lease or ending, and ends when there has been neither for a while. An
//! ending that is queued keeps the engine, and so the thread, alive.

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
use crate::engine::events::Notice;
use crate::engine::process_lease::ProcessLease;
use crate::error::{Chain, Failure};
use crate::event::Connection;
use crate::logging;
use crate::message::{Call, Renewal, Renewed};
use crate::name::LockKey;
use crate::panics::survived;
use crate::stats::Recorder;
use crate::store::DedicatedConnection;
use crate::sync::{Arc, Condvar, Mutex, Ordering, Weak, thread};

use release_tasks::Job;

/// How many keys, or a few more where a lease has several, go into one request: the server pauses about a millisecond for it.
pub(super) const BATCH: usize = 200;
/// How many leases are put back with the mutex held: whoever wants it waits for so long.
const AT_A_TIME: usize = 50;
/// The place of a lease that is in flight.
const IN_FLIGHT: u64 = 0;
/// After a failure: what else is due is tried next, but a server that is gone is not asked without a pause.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// After a panic, so that one that comes again and again does not take a core.
const AFTER_PANIC: Duration = Duration::from_millis(100);

pub(crate) struct RenewalThread {
    state: Mutex<State>,
    /// Something earlier is due, an ending was settled, or the engine goes.
    changed: Condvar,
}

/// Guarded by the renewal's mutex.
#[derive(Default)]
struct State {
    leases: TimerQueue<Arc<ProcessLease>>,
    /// Those whose renewal is under way, and which so have no place; and since when.
    in_flight: Option<(Time, Arc<[Arc<ProcessLease>]>)>,
    release_tasks: TimerQueue<Job>,
    timer: WorkerTimer,
    next_job: u64,
    /// How many endings the server has not answered yet.
    unsettled: usize,
    /// Whether the thread has connected for renewals.
    has_opened: bool,
    /// Whether an ending was given up without an answer, and the server has answered nothing since.
    is_given_up: bool,
    /// By their keys the first places of the releases that guards left to this thread, until their first request is
    /// over.
    background_places: HashMap<LockKey, SmallVec<[Place; 1]>>,
    /// Whether the server was out of reach the last time, so that it is said once.
    failing: bool,
}

impl RenewalThread {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Renews a lease that was granted by a request sent at `sent`, unless its terms say not to.
    ///
    /// # Errors
    ///
    /// Why the thread could not be started; then the lease is not renewed.
    pub(crate) fn register(
        self: &Arc<Self>,
        engine: &Engine,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
    ) -> std::io::Result<()> {
        if !process_lease.terms.renew {
            return Ok(());
        }
        let due = renewal_due(sent, process_lease.terms.lease(), engine.rng.bits());
        let mut state = self.state.lock();
        self.ensure_running(&mut state, engine)?;
        state.put(process_lease, due);
        // It connects now: a slow link leaves no time for that when the renewal is due.
        let wakes_at = if state.has_opened { due } else { engine.now() };
        self.wake_for(&mut state, wakes_at);
        Ok(())
    }

    /// Renews a lease at once, whatever its terms: somebody says that the lock was taken from it, and the answer
    /// tells. Where no thread can be had for that, its deadline does.
    pub(crate) fn renew_now(self: &Arc<Self>, engine: &Engine, process_lease: &Arc<ProcessLease>) {
        let now = engine.now();
        let mut state = self.state.lock();
        if self.ensure_running(&mut state, engine).is_err() {
            return;
        }
        state.take(process_lease);
        // Whoever ends a lease sets it first and looks for its place second.
        if process_lease.validity.deadline().is_some() {
            state.put(process_lease, now);
            self.wake_for(&mut state, now);
        }
    }

    pub(crate) fn deregister(&self, process_lease: &ProcessLease) {
        self.state.lock().take(process_lease);
    }

    pub(crate) fn stop(&self) {
        self.state.lock().timer.stop();
        self.changed.notify_all();
    }

    fn wake_for(&self, state: &mut State, due: Time) {
        if state.timer.expect(due) {
            self.changed.notify_all();
        }
    }

    fn ensure_running(self: &Arc<Self>, state: &mut State, engine: &Engine) -> std::io::Result<()> {
        if state.timer.is_running() {
            return Ok(());
        }
        let (renewal, engine) = (Arc::clone(self), engine.weak_self.clone());
        thread::Builder::new()
            .name("leasehold-renewal".into())
            .spawn(move || renewal.run(&engine))?;
        state.timer.started();
        state.has_opened = false;
        Ok(())
    }

    fn run(&self, engine: &Weak<Engine>) {
        let mut dedicated_connection: Option<Box<dyn DedicatedConnection>> = None;
        loop {
            // Held only while there is work, so that the last handle and guard can end the engine.
            let Some(engine) = engine.upgrade() else {
                return;
            };
            let round = survived(|| {
                let dedicated_connection =
                    dedicated_connection.get_or_insert_with(|| engine.store.dedicated_connection());
                if self.state.lock().must_open() {
                    // If it fails, the first renewal tries again and logs why.
                    dedicated_connection.open().ok();
                }
                let renewed = self.renew_due(&engine, &mut **dedicated_connection);
                let ended = self.send_due_releases(&engine, &mut **dedicated_connection);
                renewed && ended
            });
            if round.is_none() {
                logging::error!("the renewal thread panicked and goes on with all its leases");
                // The connection may be in the middle of something.
                dedicated_connection = None;
                self.state.lock().put_back_in_flight();
            }
            let now = engine.now();
            drop(engine);
            let mut state = self.state.lock();
            let next = state.next_due();
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

    /// Renews what is due, batch by batch, until a request fails. False where one did.
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
            match renewed {
                Err(failure) if failure.is_of_the_connection() => {
                    self.failed(engine, failure);
                    return false;
                }
                // The server answers; what it refuses is tried again by itself.
                Err(_) | Ok(()) => self.reached(engine),
            }
        }
    }

    /// Renews a batch by one request. Where the server refuses it, because of a key in it that this user may not
    /// touch, it goes in halves: one bad key must not cost the others.
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
        // One lost answer must not cost the shortest of them.
        let shortest = batch
            .iter()
            .map(|process_lease| process_lease.terms.lease())
            .min();
        let limit = renewal_limit(shortest.unwrap_or_default());
        let sent = engine.now();
        engine.stats.requests.add(1);
        let answer = dedicated_connection.call(&Call::Renew(&leases), limit);
        let said = match answer.and_then(|answer| answer.reply.renewed()) {
            Ok(said) => said,
            Err(failure) if !failure.unknown && !failure.is_transient() && batch.len() > 1 => {
                let (first, second) = batch.split_at(batch.len() / 2);
                let first = self.renew(engine, dedicated_connection, first);
                return self.renew(engine, dedicated_connection, second).and(first);
            }
            Err(failure) => {
                self.not_confirmed(engine, batch);
                return Err(failure);
            }
        };
        let (now, mut said) = (engine.now(), &said[..]);
        // One for all of them: what is renewed together stays together, and batches drift apart.
        let jitter = engine.rng.bits();
        for part in batch.chunks(AT_A_TIME) {
            let confirmed: Vec<_> = part
                .iter()
                .filter_map(|process_lease| {
                    let of_this;
                    (of_this, said) = said.split_at(process_lease.keys().len());
                    let is_confirmed = self.confirmed(engine, process_lease, sent, now, of_this)?;
                    let lease = process_lease.terms.lease();
                    let due = if is_confirmed {
                        renewal_due(sent, lease, jitter)
                    } else {
                        now + retry_after(lease)
                    };
                    Some((process_lease, due))
                })
                .collect();
            let mut state = self.state.lock();
            // Redis answers, and the keys of endings that were given up have expired.
            state.is_given_up = false;
            for (process_lease, due) in confirmed {
                state.put_back(process_lease, due);
            }
        }
        Ok(())
    }

    /// Takes in what was said of one lease: whether it is confirmed, or tried again; none where it is not renewed any
    /// more.
    fn confirmed(
        &self,
        engine: &Engine,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
        now: Time,
        said: &[Renewed],
    ) -> Option<bool> {
        match process_lease.renewed(sent, now, process_lease.renewed_for(), said) {
            LeaseStatus::Live(_) if said.contains(&Renewed::Refused) => {
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
                engine.watch.settle_now(process_lease);
                None
            }
        }
    }

    /// Nothing is known of what became of these: they are tried again.
    fn not_confirmed(&self, engine: &Engine, batch: &[Arc<ProcessLease>]) {
        engine.stats.renewals_failed.add(batch.len() as u64);
        let now = engine.now();
        let mut state = self.state.lock();
        for process_lease in batch {
            state.put_back(
                process_lease,
                now + retry_after(process_lease.terms.lease()),
            );
        }
    }

    fn failed(&self, engine: &Engine, failure: Failure) {
        let was_failing = std::mem::replace(&mut self.state.lock().failing, true);
        if !was_failing {
            let why = Chain(&*failure.cause);
            logging::warning!("leases cannot be renewed or released now, retrying: {why}");
            engine
                .events
                .tell(|| Notice::Unreachable(Connection::Renewal, failure.into_error(None)));
        }
    }

    fn reached(&self, engine: &Engine) {
        let was_failing = std::mem::replace(&mut self.state.lock().failing, false);
        if was_failing {
            logging::info!("leases are renewed and released again");
            engine
                .events
                .tell(|| Notice::Recovered(Connection::Renewal));
        }
    }
}

impl State {
    /// Returns true once, when the first lease is there.
    fn must_open(&mut self) -> bool {
        let is_first = !self.has_opened && self.leases.next().is_some();
        self.has_opened |= is_first;
        is_first
    }

    fn next_due(&self) -> Option<Time> {
        match (self.leases.next(), self.release_tasks.next()) {
            (Some(lease), Some(release_task)) => Some(lease.min(release_task)),
            (lease, release_task) => lease.or(release_task),
        }
    }

    fn put(&mut self, process_lease: &Arc<ProcessLease>, due: Time) {
        process_lease
            .renewal_place
            .store(due.as_nanos(), Ordering::Relaxed);
        self.leases.insert(due, Arc::clone(process_lease));
    }

    fn take(&mut self, process_lease: &ProcessLease) {
        let due = Time::from_nanos(process_lease.renewal_place.load(Ordering::Relaxed));
        self.leases.remove((due, process_lease.number));
    }

    /// Puts a lease that was in flight into its next place, unless its guard has ended it meanwhile: that sets the
    /// lease first and looks for its place second. One that was hastened after its renewal was sent has its place: the
    /// answer may be older than what is said of it.
    fn put_back(&mut self, process_lease: &Arc<ProcessLease>, due: Time) {
        let is_in_flight = process_lease.renewal_place.load(Ordering::Relaxed) == IN_FLIGHT;
        if is_in_flight && process_lease.validity.deadline().is_some() {
            self.put(process_lease, due);
        }
    }

    /// The leases that are due, or will be soon, up to a batch. They are in flight from here on.
    fn take_due(&mut self, now: Time, lags: &Recorder) -> Option<Arc<[Arc<ProcessLease>]>> {
        let (mut batch, mut keys) = (Vec::new(), 0);
        while keys < BATCH {
            let Some((due, process_lease)) = self.leases.first() else {
                break;
            };
            if due > now + gathered_within(process_lease.terms.lease()) {
                break;
            }
            let Some(process_lease) = self.leases.pop_due(due) else {
                break;
            };
            // One that has run out is not renewed: its key would only keep the others waiting.
            if let LeaseStatus::Live(_) = process_lease.validity.status(now) {
                lags.record(now.since(due));
                keys += process_lease.keys().len();
                process_lease
                    .renewal_place
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

    /// After a panic: nothing is known of what was in flight.
    fn put_back_in_flight(&mut self) {
        let Some((since, batch)) = self.in_flight.take() else {
            return;
        };
        for process_lease in &*batch {
            self.put_back(
                process_lease,
                since + retry_after(process_lease.terms.lease()),
            );
        }
    }
}
