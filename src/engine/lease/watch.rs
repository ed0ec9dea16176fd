//! The watch thread: ends each lease at its deadline, by the clock of this process.
//!
//! The thread does no I/O and runs no code of the program. So neither a dead network, nor a stuck renewal thread, nor a
//! full pool can delay it.
//!
//! | step | the thread |
//! | --- | --- |
//! | 1 | takes each due lease and each due limit of a guard out of its timer queue; handles the lease by the table below, and lets the limit act ([`Timed`]) |
//! | 2 | four times a second, looks ahead: puts each lease that would be due within a second, but was renewed since, back at its new time |
//! | 3 | sleeps until the next lease or limit is due, for at most a second, so that it notices a resume from suspend |
//!
//! Step 2 takes 200 leases at a time, and does step 1 in between. So the number of leases does not delay a loss.
//!
//! | a due lease | the thread |
//! | --- | --- |
//! | has ended | does nothing |
//! | is lost: its deadline has passed, or a renewal found it gone | ends it: the next thread asks Redis, and the listeners receive the loss |
//! | is live, and there is an event listener | reports it as at risk, if a renewal is overdue; puts it back |
//! | is live | puts it back at its deadline |
//!
//! With an event listener, the time of a renewed lease is first the time at which its renewal becomes overdue, and then
//! its deadline. Otherwise the time is the deadline.
//!
//! The thread starts with the first lease, and ends when it has had nothing to watch for a while. A [`LossHandler`] does
//! the work that follows from a loss.

use crate::engine::client::Client;
use crate::engine::lease::process_lease::ProcessLease;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::timer_queue::{TimerKey, TimerQueue, WorkerTimer};
use crate::error::LostCause;
use crate::event::EventKind;
use crate::logging;
use crate::panics::survived;
use crate::sys::{Arc, Condvar, Mutex, Ordering, Time, Weak};
use std::time::Duration;

/// The span of a look ahead. A lease that was renewed is put back up to this time before its old time, so that the
/// thread does not wake for each lease.
const LOOKS_AHEAD: Duration = Duration::from_secs(1);
/// The shortest time between two looks ahead. Each of them visits all leases of the span, renewed or not.
const LOOKS_EVERY: Duration = Duration::from_millis(250);
/// The number of leases that are visited while the mutex is held. Other threads wait for the mutex meanwhile.
const AT_A_TIME: usize = 200;

pub(crate) struct Watch {
    state: Mutex<WatchState>,
    /// Notified if an earlier time is due, and if the leases are dropped.
    changed: Condvar,
    losses: Weak<dyn LossHandler>,
}

/// Does what follows from the loss of a lease.
pub(crate) trait LossHandler: Send + Sync {
    /// Handles the loss of a lease that may still have guards. Does no I/O.
    fn lost(&self, process_lease: &Arc<ProcessLease>, cause: LostCause);
}

/// The state of the watch thread, guarded by its mutex.
#[derive(Default)]
struct WatchState {
    /// The leases. In one queue with the limits they would take up more memory, and there are many leases.
    leases: TimerQueue<Arc<ProcessLease>>,
    /// The limits of guards.
    timed: TimerQueue<Arc<dyn Timed>>,
    next_timed: u64,
    timer: WorkerTimer,
    /// Whether the thread handles what it has taken out.
    acts: bool,
}

/// A limit of a guard, which acts at its time.
pub(crate) trait Timed: Send + Sync {
    /// Acts, because the time is over. Does no I/O.
    fn act(&self, now: Time);
}

impl Watch {
    pub(crate) fn new(losses: Weak<dyn LossHandler>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            losses,
        }
    }

    /// Registers a lease. Starts the thread if it does not run.
    ///
    /// # Errors
    ///
    /// Returns the error of the system if the thread cannot be started. Then the lease is not registered.
    pub(crate) fn register_lease(
        self: &Arc<Self>,
        client: &Arc<Client>,
        process_lease: &Arc<ProcessLease>,
    ) -> std::io::Result<()> {
        let Some(look) = look_at(client, process_lease) else {
            return Ok(());
        };
        let mut state = self.state.lock();
        if !state.timer.is_running() {
            self.spawn(client)?;
            state.timer.started();
        }
        state.put(process_lease, look);
        self.wake_for(&mut state, look);
        Ok(())
    }

    /// Takes a lease out of the timer queue, if it is there.
    pub(crate) fn deregister_lease(&self, process_lease: &ProcessLease) {
        self.state.lock().take(process_lease);
    }

    /// Makes a lease due at once, because a renewal found it lost.
    pub(crate) fn handle_now(&self, process_lease: &Arc<ProcessLease>) {
        let mut state = self.state.lock();
        if state.take(process_lease) {
            let now = Time::from_nanos(0);
            state.put(process_lease, now);
            self.wake_for(&mut state, now);
        }
    }

    /// Registers a limit that acts at `due`. Returns its timer key. The thread runs already, because the lease is registered.
    pub(crate) fn register_timer(&self, due: Time, timed: Arc<dyn Timed>) -> TimerKey {
        let mut state = self.state.lock();
        let timer_key = (due, state.next_timed);
        state.next_timed += 1;
        state.timed.insert(timer_key, timed);
        self.wake_for(&mut state, due);
        timer_key
    }

    /// Takes a limit out of the timer queue, if it is there.
    pub(crate) fn deregister_timer(&self, timer_key: TimerKey) {
        // The limit may be the last to refer to the leases, so drop it without the mutex.
        let removed = self.state.lock().timed.remove(timer_key);
        drop(removed);
    }

    /// Ends the thread as soon as nothing is left to watch.
    pub(crate) fn stop(&self) {
        self.state.lock().timer.stop();
        self.changed.notify_all();
    }

    /// Wakes the thread, because a test has moved the clock.
    #[cfg(feature = "seam")]
    pub(crate) fn look_at_the_clock(&self) {
        // A thread that has looked and does not sleep yet holds the mutex.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Returns whether nothing is due, and the thread has handled what was.
    #[cfg(feature = "seam")]
    pub(crate) fn is_at_rest(&self, now: Time) -> bool {
        let state = self.state.lock();
        !state.acts && state.next_due().is_none_or(|due| due > now)
    }

    /// Returns when the next lease or limit is due.
    #[cfg(feature = "seam")]
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.state.lock().next_due()
    }

    /// Wakes the thread if it sleeps past `due`.
    fn wake_for(&self, state: &mut WatchState, due: Time) {
        if state.timer.expect(due) {
            self.changed.notify_all();
        }
    }

    fn spawn(self: &Arc<Self>, client: &Arc<Client>) -> std::io::Result<()> {
        let (watch, weak) = (Arc::clone(self), Arc::downgrade(client));
        let run = move || watch.run(&weak);
        client.machine().spawn("leasehold-watch", run)
    }

    fn run(&self, client: &Weak<Client>) {
        let mut looks_at = Time::from_nanos(0);
        loop {
            // Hold both only during a round, so that they end with the last handle and guard.
            let (Some(client), Some(losses)) = (client.upgrade(), self.losses.upgrade()) else {
                return;
            };
            // A panic does not end the thread: all other leases are still in the timer queue.
            let round = || {
                // 1. Settle all that is due.
                self.handle_all_due(&client, &*losses);
                // 2. Look ahead, four times a second.
                if client.now() >= looks_at {
                    self.look_ahead(&client, &*losses);
                    looks_at = client.now() + LOOKS_EVERY;
                }
            };
            if survived(round).is_none() {
                logging::error!("the watch thread panicked and goes on");
            }
            // 3. Sleep until the next time, or end if nothing was registered for a while.
            let now = client.now();
            drop(losses);
            drop(client);
            let mut state = self.state.lock();
            let next = state.next_due();
            let Some(sleep) = state.timer.rest(now, next) else {
                return;
            };
            self.changed.wait_for(state, sleep).timer.woke();
        }
    }

    /// Puts back the leases that would wake the thread soon although they were renewed since.
    fn look_ahead(&self, client: &Client, losses: &dyn LossHandler) {
        let until = client.now() + LOOKS_AHEAD;
        let mut after = (Time::from_nanos(0), 0);
        while let Some(last) = self.put_back_moved(client, after, until) {
            after = last;
            self.handle_all_due(client, losses);
        }
    }

    /// Visits the next leases after the timer key `after`, and puts back those whose new time is after `until`. Returns the
    /// last timer key visited, or `None` if no lease before `until` is left.
    fn put_back_moved(&self, client: &Client, after: TimerKey, until: Time) -> Option<TimerKey> {
        let mut state = self.state.lock();
        let (mut looked_at, mut last, mut moved) = (0, None, Vec::new());
        for (timer_key, process_lease) in state.leases.due_between(after, until).take(AT_A_TIME) {
            looked_at += 1;
            last = Some(timer_key);
            if let Some(look) = look_at(client, process_lease).filter(|look| *look > until) {
                moved.push((Arc::clone(process_lease), look));
            }
        }
        for (process_lease, look) in &moved {
            if state.take(process_lease) {
                state.put(process_lease, *look);
            }
        }
        last.filter(|_| looked_at == AT_A_TIME)
    }

    /// Settles all that is due.
    fn handle_all_due(&self, client: &Client, losses: &dyn LossHandler) {
        loop {
            let now = client.now();
            // Unlock the mutex before anything is handled.
            let (lease, timed) = {
                let mut state = self.state.lock();
                let due = (state.leases.pop_due(now), state.timed.pop_due(now));
                state.acts = due.0.is_some() || due.1.is_some();
                due
            };
            if lease.is_none() && timed.is_none() {
                return;
            }
            if let Some(timed) = timed {
                timed.act(now);
            }
            if let Some(process_lease) = lease {
                self.handle_due(client, losses, &process_lease, now);
            }
        }
    }

    /// Settles a due lease. Logs nothing, because a logger may block: the events thread logs the loss.
    fn handle_due(
        &self,
        client: &Client,
        losses: &dyn LossHandler,
        process_lease: &Arc<ProcessLease>,
        now: Time,
    ) {
        loop {
            match process_lease.validity.status(now) {
                LeaseStatus::Ended => return,
                LeaseStatus::Lost(cause) => return losses.lost(process_lease, cause),
                // `put_back` returns false if the lease has ended or was lost meanwhile. Then read its status again.
                LeaseStatus::Live(left) => {
                    let deadline = now + left;
                    let risk = risk_of(client, process_lease, deadline);
                    if let Some(risk) = risk.filter(|risk| now < *risk) {
                        if self.put_back(process_lease, risk) {
                            return;
                        }
                    } else if self.put_back(process_lease, deadline) {
                        if risk.is_some() {
                            #[cfg(feature = "metrics")]
                            process_lease.export_risk(now, &client.exported.at_risk);
                            let kind = EventKind::AtRisk { remaining: left };
                            client.events.tell(|| client.event(process_lease, kind));
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Puts a lease back at this time. Returns false if the lease has ended: a thread that ends a lease sets its status
    /// before it takes the lease out of this queue, and so would not find it.
    fn put_back(&self, process_lease: &Arc<ProcessLease>, look: Time) -> bool {
        let mut state = self.state.lock();
        let is_live = process_lease.validity.deadline().is_some();
        if is_live {
            state.put(process_lease, look);
        }
        is_live
    }
}

/// Returns when a lease with this deadline becomes at risk. Returns `None` without renewal, or if neither an event listener
/// nor a metric needs it.
fn risk_of(client: &Client, process_lease: &ProcessLease, deadline: Time) -> Option<Time> {
    let is_wanted = cfg!(feature = "metrics") || client.events.is_wanted();
    (is_wanted && process_lease.terms.renew).then(|| process_lease.at_risk_from(deadline))
}

/// Returns when a lease is due, or `None` if it has ended.
fn look_at(client: &Client, process_lease: &ProcessLease) -> Option<Time> {
    let deadline = process_lease.validity.deadline()?;
    Some(risk_of(client, process_lease, deadline).unwrap_or(deadline))
}

impl WatchState {
    fn next_due(&self) -> Option<Time> {
        let both = [self.leases.next(), self.timed.next()];
        both.into_iter().flatten().min()
    }

    fn put(&mut self, process_lease: &Arc<ProcessLease>, at: Time) {
        process_lease
            .watch_due_ns
            .store(at.as_nanos(), Ordering::Relaxed);
        self.leases
            .insert((at, process_lease.number), Arc::clone(process_lease));
    }

    fn take(&mut self, process_lease: &ProcessLease) -> bool {
        let at = Time::from_nanos(process_lease.watch_due_ns.load(Ordering::Relaxed));
        self.leases.remove((at, process_lease.number)).is_some()
    }
}
