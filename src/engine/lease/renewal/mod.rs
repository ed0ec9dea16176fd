//! The renewal thread: one for all leases of a manager, on a dedicated connection.
//!
//! | step | the thread |
//! | --- | --- |
//! | 1 | at the first lease: connects, and loads the script into the server, so that a renewal takes one round trip. While a delegate waits: checks a silent connection |
//! | 2 | takes a batch of leases that are due, or nearly due, out of the timer queue, and notes them as in flight |
//! | 3 | sends the batch in one request |
//! | 4 | puts each confirmed lease back at its next renewal, and each unconfirmed one at its retry; leaves each lost lease to the watch thread; repeats from 2 until no lease is due |
//! | 5 | keeps the records of the last fences once in half of their life, and sends the release tasks that are due, until the connection fails or a lease is due ([`releases`]) |
//! | 6 | sleeps until the next lease or release task is due, for at most a second |
//!
//! If an answer without a request has come, an earlier request may have been answered wrongly; and a failover may have taken
//! the lock from any lease. So the thread makes all leases due within a second of either. After a wrong answer, a guard
//! reads `AtRisk` until Redis has confirmed its lease again.
//!
//! No error or panic makes the thread forget a lease or a release task. Before it sends a request, it notes the leases
//! as in flight, and leaves the release tasks in their timer queue at a later time.
//!
//! A lease that was granted by message lasts for the pickup window only. It is due ten milliseconds after its grant, and so
//! before most renewals of other leases. Most contended leases have ended by then, and need no renewal. No lease is granted
//! by message unless the thread runs, has connected, and is not stuck in a request ([`RenewalThread::is_ready`]), so a
//! delegate that begins to wait makes the thread start and connect ([`RenewalThread::prepare`]). If no reply has come on the
//! connection for five seconds, the delegate makes the thread check it.
//!
//! The thread also looks at leases without renewal, by a renewal that lengthens nothing. Otherwise a job could hold a lock
//! for a day, and learn only at its end that the key is gone.
//!
//! A lease is registered before its first guard exists, and deregistered before its release is sent.
//!
//! The renewal thread starts with the first lease or release task, and ends when there has been neither for a while. A
//! release task in the timer queue keeps the thread alive, and so the client too, also after the last handle and guard. The thread uses nothing above the client and
//! the watch thread, to which it leaves a lease that is lost, or must be looked at earlier.
//!
//! # Records
//!
//! Redis forgets the record of a last fence `fence_memory` after the grant. A lock that is held for longer would then have no
//! fence and no time in [`inspect`](crate::LockManager::inspect). So the thread keeps the records of all leases once in half
//! of that time. It sends one batch in a round, behind the renewals that are due. A renewal cannot do it, because it may touch
//! the lock's key alone.

use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::ending::tasks::Endings;
use crate::engine::lease::process_lease::ProcessLease;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::lease::watch::Watch;
use crate::engine::observe::events::Unreached;
use crate::engine::timer_queue::{
    TimerQueue, WorkerTimer, gathered_within, next_due, pop_due, renewal_due, renewal_limit,
    retry_after,
};
use crate::error::{Chain, Failure};
use crate::event::Connection;
use crate::logging;
use crate::net::deadline::LEAST;
use crate::panics::survived;
use crate::server::DedicatedConnection;
use crate::sys::{Arc, AtomicBool, Condvar, LONGEST_SLEEP, Mutex, Ordering, Rng, Time};
use crate::wire::{Renewal, Renewed, Request};

mod releases;

/// The number of keys in one request. The last lease of a batch may exceed it, if that lease has several keys. The
/// server is busy for about a millisecond with such a request.
pub(crate) const BATCH: usize = 200;
/// How long after its grant by message a lease is raised to its full length. Redis need not raise a lease that ends
/// before.
const RAISED_AFTER: Duration = Duration::from_millis(10);
/// After this time without a reply, the connection must be checked before a lease may be granted by message: a router may
/// have forgotten it, and sends no sign of that.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// How long a round of the thread takes until the thread counts as stuck.
const STUCK_AFTER: Duration = Duration::from_millis(20);
/// A lease without renewal is looked at as often as a lease of this length is renewed: about every ten seconds.
const LOOKED_AT_AS: Duration = Duration::from_secs(30);
/// How many times as often a lease is renewed that lacks votes, if an early renewal may bring one.
const SOONER_WITHOUT_VOTES: u32 = 4;
/// The value of `renewal_due_ns` for a lease that is in flight.
const IN_FLIGHT: u64 = 0;
/// The shortest sleep after a panic, so that repeated panics do not use a whole core. Also the time after which a
/// release task is repeated if the thread panicked while it was sent.
pub(crate) const AFTER_PANIC: Duration = Duration::from_millis(100);

/// The number of leases that are put back while the mutex is held. Other threads wait for the mutex meanwhile.
const AT_A_TIME: usize = 50;
/// The shortest sleep after a failure. It is short because other leases may be due, and it limits the load if the
/// server is down.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// The shortest time between two warnings of an outage.
const WARNS_EVERY: Duration = Duration::from_secs(10);

/// The part of `fence_memory` after which the records are kept once more, if that has failed.
const RETRIED_AFTER: u32 = 8;

pub(crate) struct RenewalThread {
    client: Arc<Client>,
    pub(crate) state: Mutex<RenewalState>,
    /// Notified if an earlier time is due, if a thread that waits here must check its condition again, and if the
    /// leases are dropped.
    pub(crate) changed: Condvar,
    /// Handles a lease that a renewal has found lost.
    pub(crate) watch: Arc<Watch>,
    /// Whether a release of any key is unsent. Set under the mutex.
    pub(crate) has_unsent: AtomicBool,
}

/// Leases that one request renews.
type Batch = Arc<[Arc<ProcessLease>]>;

/// The state of the renewal thread, guarded by its mutex.
#[derive(Default)]
pub(crate) struct RenewalState {
    pub(crate) leases: TimerQueue<Arc<ProcessLease>>,
    /// The batch whose renewal was sent, and the time at which it was taken out of `leases`.
    pub(crate) in_flight: Option<(Time, Batch)>,
    records: Records,
    pub(crate) endings: Endings,
    /// Whether a release task was dropped because too many wait for a repeat.
    has_dropped: bool,
    pub(crate) timer: WorkerTimer,
    /// When the round under way began, in which the thread connects and sends requests.
    pub(crate) busy_since: Option<Time>,
    pub(crate) opening: Opening,
    /// The last sign that any lease may be no grant, after which all leases were made due.
    pub(crate) doubt_at: Option<Time>,
    /// When a reply last came on the connection of the thread that runs now.
    pub(crate) replied_at: Option<Time>,
    /// Whether the last request failed because of the connection.
    pub(crate) failing: bool,
    /// When an outage was last logged, and whether it goes on.
    pub(crate) warned: Option<(Time, bool)>,
    pub(crate) unreached: Unreached,
}

#[derive(Default)]
struct Records {
    /// When the records of all leases are kept next. `None` before the first lease.
    due: Option<Time>,
    /// The leases whose records are still to be kept this time.
    left: Vec<Arc<ProcessLease>>,
}

/// How far the thread has come with its connection for renewals.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The first lease to renew will have it opened, or the first look at another one.
    #[default]
    NotWanted,
    /// There is a lease to renew. Or a delegate waits, and a message may grant it one. The thread must connect, or check its
    /// connection.
    Wanted,
    /// The thread connects, or checks its connection.
    Begun,
    /// The thread has connected. Whether a later request failed is noted elsewhere.
    Opened,
    /// The thread could not connect, or has dropped its connection after a panic. It tries again for the next renewal, or
    /// when a delegate next waits.
    Failed,
}

impl RenewalThread {
    pub(crate) fn new(client: Arc<Client>, watch: Arc<Watch>) -> Self {
        Self {
            client,
            state: Mutex::default(),
            changed: Condvar::new(),
            watch,
            has_unsent: AtomicBool::new(false),
        }
    }

    /// Registers a lease, which was granted or extended by a request sent at `sent`. Does nothing for a lease without
    /// renewal that ends before the first look.
    ///
    /// # Errors
    ///
    /// Returns the error of the system if the thread cannot be started. Then the lease is not registered.
    pub(crate) fn register(
        self: &Arc<Self>,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
    ) -> std::io::Result<()> {
        let due = if process_lease.is_in_pickup_window() {
            self.client.now() + RAISED_AFTER
        } else {
            let lacks_votes = (self.client.store.votes())
                .is_some_and(|votes| votes.lacks_votes(&self.client.owner_of(process_lease)));
            next_renewal(
                process_lease,
                sent,
                lacks_votes,
                self.client.machine().jitter(),
            )
        };
        let deadline = process_lease.validity.deadline();
        if !process_lease.terms.renew && deadline.is_none_or(|deadline| deadline <= due) {
            return Ok(());
        }
        let mut state = self.state.lock();
        self.ensure_running(&mut state)?;
        state.take(process_lease);
        state.put(process_lease, due);
        // Connect at once. On a slow link there may be no time for that when the renewal is due. A look can
        // wait.
        if process_lease.terms.renew && state.opening == Opening::NotWanted {
            state.opening = Opening::Wanted;
        }
        let wakes_at = match state.opening {
            Opening::Wanted => self.client.now(),
            Opening::NotWanted | Opening::Begun | Opening::Opened | Opening::Failed => due,
        };
        self.wake_for(&mut state, wakes_at);
        Ok(())
    }

    /// Makes the thread renew a lease at once, even one without renewal, to check whether Redis still holds the lock for it.
    /// Does nothing if the thread cannot be started.
    pub(crate) fn renew_now(self: &Arc<Self>, process_lease: &Arc<ProcessLease>) {
        let now = self.client.now();
        let mut state = self.state.lock();
        if self.ensure_running(&mut state).is_err() {
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

    /// Ends the thread as soon as nothing is left to release.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.timer.stop();
        // Nobody waits for it any more.
        state.opening = Opening::NotWanted;
        // No guard is left. A lease whose guard was never made, because something panicked, must not be renewed for ever.
        let without_guard = std::mem::take(&mut state.leases);
        drop(state);
        drop(without_guard);
        self.changed.notify_all();
    }

    /// Wakes the thread if it sleeps past `due`.
    pub(crate) fn wake_for(&self, state: &mut RenewalState, due: Time) {
        if state.timer.expect(due) {
            self.changed.notify_all();
        }
    }

    /// Starts the thread if it does not run.
    pub(crate) fn ensure_running(
        self: &Arc<Self>,
        state: &mut RenewalState,
    ) -> std::io::Result<()> {
        if state.timer.is_running() {
            return Ok(());
        }
        let renewal = Arc::clone(self);
        let run = move || renewal.run();
        self.client.machine().spawn("leasehold-renewal", run)?;
        state.timer.started();
        (state.opening, state.replied_at) = (Opening::NotWanted, None);
        state.records = Records::default();
        Ok(())
    }

    /// Makes the thread start and connect, so that a lease can be granted by message. Makes it check a connection that has been
    /// [silent](SILENT_AFTER). If the thread cannot be started, no lease is granted by message.
    pub(crate) fn prepare(self: &Arc<Self>) {
        let now = self.client.now();
        let mut state = self.state.lock();
        if self.ensure_running(&mut state).is_err() {
            return;
        }
        let wakes_at = match state.opening {
            Opening::Opened if state.is_silent(now) => now,
            // This wakes no thread. It only keeps the thread from ending soon.
            Opening::Begun | Opening::Opened => now + LONGEST_SLEEP,
            Opening::NotWanted | Opening::Wanted | Opening::Failed => now,
        };
        if wakes_at == now {
            state.opening = Opening::Wanted;
        }
        self.wake_for(&mut state, wakes_at);
    }

    /// Makes the thread renew all leases at once.
    #[cfg(feature = "seam")]
    pub(crate) fn renew_all(&self, now: Time) {
        let mut state = self.state.lock();
        state.renew_all_by(now);
        self.wake_for(&mut state, now);
    }

    /// Returns whether nothing is due, and the thread waits for no reply.
    #[cfg(feature = "seam")]
    pub(crate) fn is_at_rest(&self, now: Time) -> bool {
        let state = self.state.lock();
        let nothing_is_due = state.next_due().is_none_or(|due| due > now);
        (state.busy_since.is_none() && nothing_is_due) || !state.timer.is_running()
    }

    /// Returns whether a lease that is due now would be renewed at once, as far as this process knows.
    pub(crate) fn is_ready(&self, now: Time) -> bool {
        let state = self.state.lock();
        let is_stuck = state
            .busy_since
            .is_some_and(|since| now > since + STUCK_AFTER);
        let has_opened = state.opening == Opening::Opened;
        state.timer.is_running() && has_opened && !state.failing && !is_stuck
    }

    fn run(&self) {
        let mut dedicated_connection: Option<Box<dyn DedicatedConnection>> = None;
        loop {
            self.state.lock().busy_since = Some(self.client.now());
            let round = survived(|| {
                // 1. Connect, if there is a lease and the thread has not connected yet. Check a silent connection.
                let dedicated_connection = dedicated_connection
                    .get_or_insert_with(|| self.client.store.dedicated_connection());
                let is_silent = {
                    let mut state = self.state.lock();
                    let now = self.client.now();
                    let is_silent = state.is_silent(now);
                    state.must_open(now).then_some(is_silent)
                };
                if let Some(is_silent) = is_silent {
                    // If this fails, the first renewal connects again, and logs a failure.
                    let opened = dedicated_connection.open(is_silent);
                    let mut state = self.state.lock();
                    if opened.is_ok() {
                        state.opening = Opening::Opened;
                        state.replied_at = Some(self.client.now());
                    } else {
                        state.opening = Opening::Failed;
                    }
                }
                let doubt = self
                    .client
                    .store
                    .last_surplus()
                    .max(self.client.store.last_failover());
                self.state.lock().renew_all_after(doubt, self.client.now());
                // 2 to 5. Renewals go first: a lease cannot wait, a release can.
                let renewed = self.renew_due(&mut **dedicated_connection);
                self.keep_records(&mut **dedicated_connection);
                let ended = self.send_due_releases(&mut **dedicated_connection);
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
            let now = self.client.now();
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
    fn renew_due(&self, dedicated_connection: &mut dyn DedicatedConnection) -> bool {
        loop {
            let Some((batch, lags)) = self.state.lock().take_due(self.client.now()) else {
                return true;
            };
            for (process_lease, lag) in batch.iter().zip(lags) {
                self.client.count_lag(process_lease, lag);
            }
            let renewed = self.renew(dedicated_connection, &batch);
            self.state.lock().in_flight = None;
            self.tell_of_servers(dedicated_connection);
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
        dedicated_connection: &mut dyn DedicatedConnection,
        batch: &[Arc<ProcessLease>],
    ) -> Result<(), Failure> {
        let leases: Vec<Renewal> = batch
            .iter()
            .flat_map(|process_lease| {
                self.client
                    .renewals(process_lease, process_lease.renewed_for())
            })
            .collect();
        // The limit leaves time for a retry, even for the shortest lease.
        let shortest = batch
            .iter()
            .map(|process_lease| process_lease.confirmed_length())
            .min();
        let limit = renewal_limit(shortest.unwrap_or_default());
        let sent = self.client.now();
        self.client.stats.requests.add(1);
        let answer = dedicated_connection.call(&Request::Renew(&leases), limit);
        let replies = match answer.and_then(|answer| answer.reply.renewed()) {
            Ok(replies) => replies,
            Err(failure) if !failure.is_of_the_connection() && batch.len() > 1 => {
                let (first, second) = batch.split_at(batch.len() / 2);
                let first = self.renew(dedicated_connection, first);
                return self.renew(dedicated_connection, second).and(first);
            }
            Err(failure) => {
                self.not_confirmed(batch);
                return Err(failure);
            }
        };
        let (now, mut replies) = (self.client.now(), &replies[..]);
        // The whole batch gets the same jitter: its leases stay together, and different batches drift apart.
        let jitter = self.client.machine().jitter();
        for part in batch.chunks(AT_A_TIME) {
            let confirmed: Vec<_> = part
                .iter()
                .filter_map(|process_lease| {
                    let own;
                    (own, replies) = replies.split_at(process_lease.keys().len());
                    let is_confirmed = self.confirmed(process_lease, sent, own)?;
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
    /// must be looked at earlier.
    pub(crate) fn apply(
        &self,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
        lease: Duration,
        replies: &[Renewed],
    ) -> LeaseStatus {
        let now = self.client.now();
        let before = process_lease.validity.deadline();
        let (status, ends_earlier) = process_lease.renewed(sent, now, lease, replies);
        // Its renewal may become overdue again before the deadline that it had. Read the clock anew, because the watch thread may
        // have found the lease at risk meanwhile.
        let now = self.client.now();
        let was_overdue = before.is_some_and(|it| process_lease.is_overdue(now, it));
        if ends_earlier || was_overdue || matches!(status, LeaseStatus::Lost(_)) {
            self.watch.handle_now(process_lease);
        }
        status
    }

    /// Applies the replies for one lease. Returns true if they confirm the lease, false if it must be retried, and
    /// `None` if it is not renewed any more.
    fn confirmed(
        &self,
        process_lease: &Arc<ProcessLease>,
        sent: Time,
        replies: &[Renewed],
    ) -> Option<bool> {
        match self.apply(process_lease, sent, process_lease.renewed_for(), replies) {
            LeaseStatus::Live(_) if !replies.iter().all(Renewed::is_confirmed) => {
                self.client.stats.renewals_failed.add(1);
                Some(false)
            }
            LeaseStatus::Live(left) => {
                // A look is no renewal.
                if process_lease.terms.renew {
                    self.client.count_renewal(process_lease, left);
                    if replies.iter().any(Renewed::has_new_misses) {
                        self.client.tell_of_misses(process_lease);
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
    fn not_confirmed(&self, batch: &[Arc<ProcessLease>]) {
        self.client.stats.renewals_failed.add(batch.len() as u64);
        let now = self.client.now();
        let mut state = self.state.lock();
        for process_lease in batch {
            state.put_back(process_lease, retry_at(process_lease, now));
        }
    }

    /// Logs the first failure of an outage. While one master of a cluster fails, each reply of another master seems to end the
    /// outage, so the next one is logged after a while.
    pub(crate) fn failed(&self, failure: &Failure) {
        let now = self.client.now();
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
    pub(crate) fn reached(&self) {
        let mut state = self.state.lock();
        state.replied_at = Some(self.client.now());
        state.failing = false;
        let goes_on = state.warned.as_mut().map(|(_, goes_on)| goes_on);
        let went_on = goes_on.is_some_and(std::mem::take);
        drop(state);
        if went_on {
            logging::info!("leases are renewed and released again");
        }
    }

    /// Tells the listener which servers the last requests have reached, and which they have not.
    pub(crate) fn tell_of_servers(&self, dedicated_connection: &mut dyn DedicatedConnection) {
        for report in dedicated_connection.take_reports() {
            let event = {
                let mut state = self.state.lock();
                state.unreached.note(Connection::Renewal, report)
            };
            if let Some(event) = event {
                self.client.events.tell(|| event);
            }
        }
    }

    /// Keeps the records of one batch of leases, if they are due.
    fn keep_records(&self, dedicated_connection: &mut dyn DedicatedConnection) {
        let (now, memory) = (self.client.now(), self.client.settings.fence_memory);
        let (batch, limit) = {
            let mut state = self.state.lock();
            let Some(renewal) = next_due(&state.leases) else {
                return;
            };
            (state.take_records(now, memory / 2), renewal.since(now))
        };
        if batch.is_empty() {
            return;
        }
        let records = batch.iter();
        let records = records.flat_map(|lease| self.client.renewals(lease, Duration::ZERO));
        let records: Vec<_> = records.collect();
        self.client.stats.requests.add(1);
        let kept = dedicated_connection.call(&Request::KeepRecords(&records), limit.max(LEAST));
        self.tell_of_servers(dedicated_connection);
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
    /// Returns true once, after the first lease to renew was registered, or may soon be, or when the first look is due.
    pub(crate) fn must_open(&mut self, now: Time) -> bool {
        let must_open = self.should_open(now);
        if must_open {
            self.opening = Opening::Begun;
        }
        must_open
    }

    pub(crate) fn should_open(&self, now: Time) -> bool {
        match self.opening {
            Opening::NotWanted => next_due(&self.leases).is_some_and(|due| due <= now),
            Opening::Wanted => true,
            Opening::Begun | Opening::Opened | Opening::Failed => false,
        }
    }

    /// Returns whether no reply has come on the connection for a while.
    pub(crate) fn is_silent(&self, now: Time) -> bool {
        let is_long_ago = |at| now.since(at) >= SILENT_AFTER;
        self.replied_at.is_some_and(is_long_ago)
    }

    pub(crate) fn next_due(&self) -> Option<Time> {
        let release_task = self.endings.next();
        let (lease, records) = (next_due(&self.leases), self.records.due);
        [lease, lease.and(records), release_task]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn put(&mut self, process_lease: &Arc<ProcessLease>, due: Time) {
        process_lease
            .renewal_due_ns
            .store(due.as_nanos(), Ordering::Relaxed);
        self.leases
            .insert((due, process_lease.number), Arc::clone(process_lease));
    }

    pub(crate) fn take(&mut self, process_lease: &ProcessLease) {
        let due = Time::from_nanos(process_lease.renewal_due_ns.load(Ordering::Relaxed));
        self.leases.remove(&(due, process_lease.number));
    }

    /// Makes all leases due after a sign that any of them may be no grant: an answer without a request, or a failover.
    pub(crate) fn renew_all_after(&mut self, doubt: Time, now: Time) {
        if doubt <= self.doubt_at.unwrap_or(Time::from_nanos(0)) {
            return;
        }
        self.doubt_at = Some(doubt);
        self.renew_all_by(now);
    }

    /// Makes all leases due at this time, unless they are due earlier. A lease that is in flight is renewed once more.
    pub(crate) fn renew_all_by(&mut self, latest: Time) {
        let in_flight = self.in_flight.iter().flat_map(|(_, batch)| batch.iter());
        let in_flight: Vec<_> = in_flight
            .filter(|process_lease| is_in_flight(process_lease))
            .cloned()
            .collect();
        let later = self.leases.split_off(&(latest, u64::MAX)).into_values();
        for process_lease in later.chain(in_flight) {
            // A thread that ends a lease sets its status before it takes the lease out of this queue.
            if process_lease.validity.deadline().is_some() {
                self.put(&process_lease, latest);
            }
        }
    }

    /// Puts a lease that was in flight back at `due`. Two cases are left out:
    ///
    /// | meanwhile | why |
    /// | --- | --- |
    /// | the lease has ended | its thread has set the status, and will not look for the lease here again |
    /// | [`renew_now`](RenewalThread::renew_now) was called for it | the lease is in the timer queue, and this reply may be older than that call |
    pub(crate) fn put_back(&mut self, process_lease: &Arc<ProcessLease>, due: Time) {
        if is_in_flight(process_lease) && process_lease.validity.deadline().is_some() {
            self.put(process_lease, due);
        }
    }

    /// Takes out a batch of leases that are due, or nearly due, with how late each is. Notes them as in flight.
    fn take_due(&mut self, now: Time) -> Option<(Batch, Vec<Duration>)> {
        let (mut batch, mut lags, mut keys) = (Vec::new(), Vec::new(), 0);
        while keys < BATCH {
            let Some((&(due, _), process_lease)) = self.leases.first_key_value() else {
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
            let Some((_, process_lease)) = pop_due(&mut self.leases, due) else {
                break;
            };
            // A lease past its deadline is not renewed: other processes would only wait longer for its key.
            if let LeaseStatus::Live(_) = process_lease.validity.status(now) {
                lags.push(now.since(due));
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
        let batch: Batch = batch.into();
        self.in_flight = Some((now, Arc::clone(&batch)));
        Some((batch, lags))
    }

    /// Puts back the batch in flight after a panic, for a retry.
    pub(crate) fn put_back_in_flight(&mut self) {
        self.endings.forget_in_flight();
        let Some((since, batch)) = self.in_flight.take() else {
            return;
        };
        for process_lease in &*batch {
            self.put_back(process_lease, retry_at(process_lease, since));
        }
    }

    /// Takes out a batch of leases whose records are due. They stay due until the last batch was taken.
    fn take_records(&mut self, now: Time, every: Duration) -> Vec<Arc<ProcessLease>> {
        let Records { due, left } = &mut self.records;
        let due = due.get_or_insert(now + every);
        if *due > now {
            return Vec::new();
        }
        if left.is_empty() {
            let leases = self.leases.values();
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

/// Returns when a lease is renewed next that was confirmed by a request sent at `sent`. If it lacks votes of a quorum that an
/// early renewal may bring, that is after a quarter of the usual time.
pub(crate) fn next_renewal(
    process_lease: &ProcessLease,
    sent: Time,
    lacks_votes: bool,
    jitter: u64,
) -> Time {
    if !process_lease.terms.renew {
        return renewal_due(sent, LOOKED_AT_AS, jitter);
    }
    let parts = if lacks_votes { SOONER_WITHOUT_VOTES } else { 1 };
    renewal_due(sent, process_lease.confirmed_length() / parts, jitter)
}

/// Returns when a lease is renewed again whose renewal has failed at `now`.
pub(crate) fn retry_at(process_lease: &ProcessLease, now: Time) -> Time {
    let left = match process_lease.validity.status(now) {
        LeaseStatus::Live(left) => left,
        LeaseStatus::Ended | LeaseStatus::Lost(_) => Duration::ZERO,
    };
    now + retry_after(process_lease.confirmed_length(), left)
}

/// Returns whether a renewal of the lease is under way, and the lease is not in the timer queue.
fn is_in_flight(process_lease: &ProcessLease) -> bool {
    process_lease.renewal_due_ns.load(Ordering::Relaxed) == IN_FLIGHT
}
