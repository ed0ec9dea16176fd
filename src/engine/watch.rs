//! The watch thread: ends leases at their deadlines by the holder's own clock.
//!
//! It does no I/O and runs no user code, so nothing can delay it: not a dead network, not a stuck renewal, not
//! a full pool. One timetable holds every lease at its deadline. A lease whose deadline has moved since is put
//! back at the new one, whenever the thread is awake shortly before; one that has passed is settled as lost, whoever
//! waits behind it may ask, and whoever wants to know is told. Leases whose deadlines have moved are looked for a few times
//! a second and piece by piece; what is due is settled between two pieces, so that no number of leases delays a loss.
//! Where there is a listener, a lease that is renewed is
//! looked at when its renewal would be overdue too, be the renewal thread stuck or not.
//!
//! The thread starts with the first lease, sleeps for at most a second at a time (so that it notices a resume
//! from suspend), and ends when it has had nothing to watch for a while.

use crate::clock::Time;
use crate::core::lease::LeaseStatus;
use crate::core::timer_queue::{Numbered, Place, TimerQueue, WorkerTimer, at_risk_below};
use crate::engine::Engine;
use crate::engine::events::{LeaseInfo, Notice};
use crate::engine::hold_limit::HoldLimit;
use crate::engine::process_lease::ProcessLease;
use crate::logging;
use crate::panics::survived;
use crate::sync::{Arc, Condvar, Mutex, Ordering, Weak, thread};
use std::time::Duration;

/// How far ahead of its time a renewed lease is put back, so that the thread is not woken for each by itself.
const LOOKS_AHEAD: Duration = Duration::from_secs(1);
/// How often it looks ahead: each time it passes over all leases that end soon, whether they have moved or not.
const LOOKS_EVERY: Duration = Duration::from_millis(250);
/// How many leases are looked at with the mutex held: whoever wants it waits for so long.
const AT_A_TIME: usize = 200;

pub(crate) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

/// Guarded by the watch's mutex.
#[derive(Default)]
struct State {
    /// In a timetable of their own, which so has no room for anything else: they are many.
    leases: TimerQueue<Arc<ProcessLease>>,
    holds: TimerQueue<Arc<HoldLimit>>,
    next_hold: u64,
    timer: WorkerTimer,
}

impl Numbered for Arc<HoldLimit> {
    fn number(&self) -> u64 {
        self.place.load(Ordering::Relaxed)
    }
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Watches a lease; starts the thread if there is none.
    ///
    /// # Errors
    ///
    /// Why the thread could not be started; then the lease is not watched.
    pub(crate) fn register_lease(
        self: &Arc<Self>,
        engine: &Engine,
        process_lease: &Arc<ProcessLease>,
    ) -> std::io::Result<()> {
        let Some(deadline) = process_lease.validity.deadline() else {
            return Ok(());
        };
        let mut state = self.state.lock();
        if !state.timer.is_running() {
            self.spawn(engine)?;
            state.timer.started();
        }
        let look = risk_of(engine, process_lease, deadline).unwrap_or(deadline);
        state.put(process_lease, look);
        self.wake_for(&mut state, look);
        Ok(())
    }

    pub(crate) fn deregister_lease(&self, process_lease: &ProcessLease) {
        self.state.lock().take(process_lease);
    }

    /// Looks at a lease at once: somebody has found it lost.
    pub(crate) fn settle_now(&self, process_lease: &Arc<ProcessLease>) {
        let mut state = self.state.lock();
        if state.take(process_lease) {
            let now = Time::from_nanos(0);
            state.put(process_lease, now);
            self.wake_for(&mut state, now);
        }
    }

    /// Watches a guard's `max_hold`, or its `warn_after`. Its lease is watched already, so the thread runs.
    pub(crate) fn register_hold(&self, limit: &Arc<HoldLimit>) {
        let mut state = self.state.lock();
        limit.place.store(state.next_hold, Ordering::Relaxed);
        state.next_hold += 1;
        state.holds.insert(limit.due, Arc::clone(limit));
        self.wake_for(&mut state, limit.due);
    }

    pub(crate) fn deregister_hold(&self, limit: &HoldLimit) {
        let number = limit.place.load(Ordering::Relaxed);
        self.state.lock().holds.remove((limit.due, number));
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

    fn spawn(self: &Arc<Self>, engine: &Engine) -> std::io::Result<()> {
        let (watch, engine) = (Arc::clone(self), engine.weak_self.clone());
        thread::Builder::new()
            .name("leasehold-watch".into())
            .spawn(move || watch.run(&engine))
            .map(drop)
    }

    fn run(&self, engine: &Weak<Engine>) {
        let mut looks_at = Time::from_nanos(0);
        loop {
            // Held only while there is work, so that the last handle and guard can end the engine.
            let Some(engine) = engine.upgrade() else {
                return;
            };
            // Nothing below is known to panic; if something does, the leases are still in the timetable.
            let round = || {
                self.settle_due(&engine);
                if engine.now() >= looks_at {
                    self.look_ahead(&engine);
                    looks_at = engine.now() + LOOKS_EVERY;
                }
            };
            if survived(round).is_none() {
                logging::error!("the watch thread panicked and goes on");
            }
            let now = engine.now();
            drop(engine);
            let mut state = self.state.lock();
            let next = state.next_due();
            let Some(sleep) = state.timer.rest(now, next) else {
                return;
            };
            self.changed.wait_for(state, sleep).timer.woke();
        }
    }

    /// Puts back what would wake the thread soon for nothing: the deadlines of renewed leases have moved on.
    fn look_ahead(&self, engine: &Arc<Engine>) {
        let until = engine.now() + LOOKS_AHEAD;
        let mut after = (Time::from_nanos(0), 0);
        while let Some(last) = self.put_back_moved(engine, after, until) {
            after = last;
            self.settle_due(engine);
        }
    }

    /// Puts back the leases that have moved among the next few after `after`. Returns the place to go on after; `None`
    /// once all that stand before `until` were looked at.
    fn put_back_moved(&self, engine: &Engine, after: Place, until: Time) -> Option<Place> {
        let mut state = self.state.lock();
        let (mut looked_at, mut last, mut moved) = (0, None, Vec::new());
        for (place, process_lease) in state.leases.due_between(after, until).take(AT_A_TIME) {
            looked_at += 1;
            last = Some(place);
            if let Some(look) = look_at(engine, process_lease).filter(|look| *look > until) {
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

    /// Counts the pieces in which it looks ahead.
    #[cfg(test)]
    pub(super) fn pieces_before(&self, engine: &Engine, until: Time) -> usize {
        let next = |after: &Place| self.put_back_moved(engine, *after, until);
        std::iter::successors(Some((Time::from_nanos(0), 0)), next).count()
    }

    /// Settles everything that is due.
    fn settle_due(&self, engine: &Arc<Engine>) {
        loop {
            let now = engine.now();
            // The mutex is let go before anything is settled.
            let (lease, hold) = {
                let mut state = self.state.lock();
                (state.leases.pop_due(now), state.holds.pop_due(now))
            };
            if lease.is_none() && hold.is_none() {
                return;
            }
            if let Some(limit) = hold {
                limit.exceed(engine, now);
            }
            if let Some(process_lease) = lease {
                self.settle(engine, &process_lease, now);
            }
        }
    }

    /// Nothing is logged here, because a logger may block: the events thread logs the loss.
    fn settle(&self, engine: &Arc<Engine>, process_lease: &Arc<ProcessLease>, now: Time) {
        loop {
            match process_lease.validity.status(now) {
                LeaseStatus::Ended => return,
                LeaseStatus::Lost(cause) => return engine.lost(process_lease, cause),
                // Where it was ended or lost meanwhile, nobody found it in the timetable: look again.
                LeaseStatus::Live(left) => {
                    let deadline = now + left;
                    let risk = risk_of(engine, process_lease, deadline);
                    if let Some(risk) = risk.filter(|risk| now < *risk) {
                        if self.put_back(process_lease, risk) {
                            return;
                        }
                    } else if self.put_back(process_lease, deadline) {
                        if risk.is_some() {
                            let events = &engine.events;
                            events.tell(|| {
                                Notice::AtRisk(LeaseInfo::of(engine, process_lease), left)
                            });
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Looks at it again at that time. False where the lease is over: whoever ends one sets it first and looks for its place second.
    fn put_back(&self, process_lease: &Arc<ProcessLease>, look: Time) -> bool {
        let mut state = self.state.lock();
        let is_live = process_lease.validity.deadline().is_some();
        if is_live {
            state.put(process_lease, look);
        }
        is_live
    }
}

/// When a lease with this deadline will be at risk, where anybody wants to know.
fn risk_of(engine: &Engine, process_lease: &ProcessLease, deadline: Time) -> Option<Time> {
    let is_wanted = process_lease.terms.renew && engine.events.is_wanted();
    is_wanted.then(|| deadline - at_risk_below(process_lease.terms.lease()))
}

/// Returns when to look at a lease again, or `None` if it has ended.
fn look_at(engine: &Engine, process_lease: &ProcessLease) -> Option<Time> {
    let deadline = process_lease.validity.deadline()?;
    Some(risk_of(engine, process_lease, deadline).unwrap_or(deadline))
}

impl State {
    fn next_due(&self) -> Option<Time> {
        [self.leases.next(), self.holds.next()]
            .into_iter()
            .flatten()
            .min()
    }

    fn put(&mut self, process_lease: &Arc<ProcessLease>, at: Time) {
        process_lease
            .watch_place
            .store(at.as_nanos(), Ordering::Relaxed);
        self.leases.insert(at, Arc::clone(process_lease));
    }

    fn take(&mut self, process_lease: &ProcessLease) -> bool {
        let at = Time::from_nanos(process_lease.watch_place.load(Ordering::Relaxed));
        self.leases.remove((at, process_lease.number)).is_some()
    }
}
