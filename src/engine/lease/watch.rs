//! The watch thread: ends each lease at its deadline, by the clock of this process.
//!
//! The thread does no I/O, and runs no code of the program but the gauge of its metrics recorder. So neither a dead network,
//! nor a stuck renewal thread, nor a full pool can delay it.
//!
//! | step | the thread |
//! | --- | --- |
//! | 1 | looks ahead: puts the leases that would be due soon, but were renewed since, back at their new times |
//! | 2 | takes each due lease and each due limit of a guard out of its timer queue; handles the lease by the table below, and lets the limit act |
//! | 3 | sleeps until the next lease or limit is due, for at most a second, so that it notices a resume from suspend |
//!
//! | a due lease | the thread |
//! | --- | --- |
//! | has ended | does nothing |
//! | is lost: its deadline has passed, or a renewal found it gone | ends it: the next thread asks Redis, and the listeners receive the loss |
//! | is live, and there is an event listener or a recorder | reports it as at risk, once, if its renewal is overdue; puts it back |
//! | is live | puts it back at its deadline |
//!
//! With a listener or a recorder, the time of a renewed lease is first the time at which its renewal becomes overdue, and
//! then its deadline. Otherwise the time is the deadline.
//!
//! The thread starts with the first lease, and ends when it has had nothing to watch for a while. [`Watch::next`] returns the
//! lease or guard that must end, and [`serve`] ends it.

use std::io;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::client::Client;
use crate::engine::lease::limits::HoldLimits;
use crate::engine::lease::process_lease::ProcessLease;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::timer_queue::{Timed, TimerQueue, Worker, WorkerTimer, next_due, pop_due};
use crate::error::LostCause;
use crate::event::EventKind;
use crate::sys::{Arc, Ordering, Time};

/// How far the thread looks ahead: with many leases it wakes about four times a second, and not for each of them.
const LOOKS_AHEAD: Duration = Duration::from_millis(250);
/// The time of a lease that must be handled, and not only looked at ahead.
const AT_ONCE: Time = Time::from_nanos(0);
/// The number of leases that are put back while the mutex is held. Other threads wait for the mutex meanwhile.
const AT_A_TIME: usize = 200;

pub(crate) type Watch = Worker<WatchState>;

/// A lease or guard whose time is over.
enum Due {
    /// The lease was lost. It may still have guards.
    Lost(Arc<ProcessLease>, LostCause),
    /// A limit that was due at this time.
    Limit(Arc<HoldLimits>, Time),
}

/// What the watch thread watches.
#[derive(Default)]
pub(crate) struct WatchState {
    /// The leases. In one queue with the limits they would take up more memory, and there are many leases.
    leases: TimerQueue<Arc<ProcessLease>>,
    /// The limits of guards.
    limits: TimerQueue<Arc<HoldLimits>>,
    timer: WorkerTimer,
}

impl Watch {
    /// Registers a lease. Starts the thread if it does not run.
    ///
    /// # Errors
    ///
    /// Returns the error of the system if the thread cannot be started. Then the lease is not registered.
    pub(crate) fn register_lease(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        process_lease: &Arc<ProcessLease>,
    ) -> io::Result<()> {
        let Some(look) = look_at(&engine.client, process_lease) else {
            return Ok(());
        };
        let mut state = self.lock();
        self.ensure_running(&mut state, engine, "leasehold-watch", serve)?;
        state.put(process_lease, look);
        self.wake_for(&mut state, look);
        Ok(())
    }

    /// Takes a lease out of the timer queue, if it is there.
    pub(crate) fn deregister_lease(&self, process_lease: &ProcessLease) {
        self.lock().take(process_lease);
    }

    /// Makes a lease due at once, because a renewal found it lost, or changed when it must be looked at next.
    pub(crate) fn handle_now(&self, process_lease: &Arc<ProcessLease>) {
        let mut state = self.lock();
        if state.take(process_lease) {
            state.put(process_lease, AT_ONCE);
            self.wake_for(&mut state, AT_ONCE);
        }
    }

    /// Registers the limits of a guard. The thread runs already, because the lease is registered.
    pub(crate) fn register_limits(&self, limits: &Arc<HoldLimits>) {
        let mut state = self.lock();
        for timer_key in limits.timer_keys() {
            state.limits.insert(timer_key, Arc::clone(limits));
            self.wake_for(&mut state, timer_key.0);
        }
    }

    /// Takes the limits of a guard out of the timer queue, if they are there.
    pub(crate) fn deregister_limits(&self, limits: &HoldLimits) {
        let mut state = self.lock();
        for timer_key in limits.timer_keys() {
            state.limits.remove(&timer_key);
        }
    }

    /// Takes out what must end now, and returns it with the time. Returns `None` if nothing more is due.
    fn next(&self, client: &Client) -> Option<(Due, Time)> {
        loop {
            let now = client.now();
            // Unlock the mutex before anything is handled.
            let (lease, limit) = {
                let mut state = self.lock();
                if !state.look_ahead(client, now) {
                    continue;
                }
                let lease = pop_due(&mut state.leases, now);
                let limit = match lease {
                    None => pop_due(&mut state.limits, now),
                    Some(_) => None,
                };
                (lease, limit)
            };
            let Some((_, process_lease)) = lease else {
                let (due, limits) = limit?;
                return Some((Due::Limit(limits, due), now));
            };
            if let Some(cause) = self.settle(client, &process_lease, now) {
                return Some((Due::Lost(process_lease, cause), now));
            }
        }
    }

    /// Puts a due lease back that is live. Returns the cause if it is lost. Logs nothing, because a logger may block: the
    /// events thread logs the loss.
    fn settle(
        &self,
        client: &Client,
        process_lease: &Arc<ProcessLease>,
        now: Time,
    ) -> Option<LostCause> {
        loop {
            match process_lease.validity.status(now) {
                LeaseStatus::Ended => return None,
                LeaseStatus::Lost(cause) => return Some(cause),
                LeaseStatus::Live(_) => {}
            }
            let risk_of = |deadline| risk_of(client, process_lease, deadline);
            let look = |deadline| risk_of(deadline).filter(|risk| now < *risk);
            // Otherwise it has ended or was lost meanwhile. Then read its status again.
            if let Some(deadline) = self.put_back(process_lease, look) {
                let is_overdue = risk_of(deadline).is_some_and(|risk| risk <= now);
                if process_lease.note_risk(is_overdue) {
                    #[cfg(feature = "metrics")]
                    process_lease.export_risk(now, &client.exported.at_risk);
                    if is_overdue {
                        let remaining = deadline.since(now);
                        let kind = EventKind::AtRisk { remaining };
                        client.events.tell(|| client.event(process_lease, kind));
                    }
                }
                return None;
            }
        }
    }

    /// Puts a lease back at the time that `look` returns for its deadline, or else at its deadline. Returns the deadline, or
    /// `None` if the lease has ended.
    ///
    /// A thread that ends a lease, or moves its deadline, does so before it looks for the lease in this queue. So what it
    /// could not do there is seen here.
    fn put_back(
        &self,
        process_lease: &Arc<ProcessLease>,
        look: impl Fn(Time) -> Option<Time>,
    ) -> Option<Time> {
        let mut state = self.lock();
        let deadline = process_lease.validity.deadline()?;
        state.put(process_lease, look(deadline).unwrap_or(deadline));
        Some(deadline)
    }
}

/// Ends all leases and guards that must end.
fn serve(engine: &Arc<Engine>) {
    while let Some((due, now)) = engine.watch.next(&engine.client) {
        match due {
            Due::Lost(process_lease, cause) => engine.lost(&process_lease, cause),
            Due::Limit(limits, due) => limits.act(engine, due, now),
        }
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

impl Timed for WatchState {
    fn timer(&mut self) -> &mut WorkerTimer {
        &mut self.timer
    }

    fn next_due(&self) -> Option<Time> {
        let both = [next_due(&self.leases), next_due(&self.limits)];
        both.into_iter().flatten().min()
    }
}

impl WatchState {
    /// Puts leases back that would be due soon, but were renewed since. Returns false if there may be more of them.
    fn look_ahead(&mut self, client: &Client, now: Time) -> bool {
        for _ in 0..AT_A_TIME {
            let Some((&(at, _), process_lease)) = self.leases.first_key_value() else {
                return true;
            };
            let look = look_at(client, process_lease).filter(|look| *look > at);
            let Some(look) = look.filter(|_| at > AT_ONCE && at <= now + LOOKS_AHEAD) else {
                return true;
            };
            let process_lease = Arc::clone(process_lease);
            self.take(&process_lease);
            self.put(&process_lease, look);
        }
        false
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
        self.leases.remove(&(at, process_lease.number)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Terms;
    use crate::engine::attempt::Grant;
    use crate::engine::queue::Names;
    use crate::name::{LockKey, Target};
    use crate::wire::LockKind;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn held_until(deadline: Time) -> Arc<ProcessLease> {
        let target = Target::from(LockKey::new("", "n").expect("a name"));
        let entry = Names::new().with(LockKind::Mutex, &target, |entry, _| Arc::clone(entry));
        let grant = Grant {
            owner: "lh1:x:p".into(),
            units: 1,
            terms: Terms::new(Duration::from_secs(1), true),
            fence: 1,
            fences: 1,
            rest: Vec::new(),
            sent: at(1),
            deadline,
            pickup_window: None,
            contended: false,
            uncertain_until: None,
            key_gone_at: None,
        };
        Arc::new(ProcessLease::new(1, "p", entry, grant))
    }

    /// The thread has taken the lease out and read its deadline, when votes of a quorum end it earlier.
    #[test]
    fn a_lease_that_ends_earlier_while_it_is_put_back_is_due_at_its_end() {
        let (watch, lease) = (Watch::default(), held_until(at(100)));
        lease.validity.move_to(at(10), at(50));
        watch.handle_now(&lease);
        assert_eq!(watch.put_back(&lease, |_| None), Some(at(50)));
        assert_eq!(watch.lock().next_due(), Some(at(50)));
    }
}
