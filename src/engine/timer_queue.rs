//! The timers of the threads that act by themselves: a queue of things by their time, the sleep and the loop of such a thread,
//! and the times at which a lease is renewed.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crate::engine::Engine;
use crate::logging;
use crate::panics::survived;
use crate::sys::{Arc, Condvar, LONGEST_SLEEP, Mutex, MutexGuard, Time, Weak};
use crate::wire::lifetime::drift;

/// The key of a thing in a [`TimerQueue`]: the time at which it is due, and a number that no other thing there has.
pub(crate) type TimerKey = (Time, u64);

/// Things in the order of their times. The caller that inserts a thing keeps its [`TimerKey`], and removes the thing by it.
pub(crate) type TimerQueue<T> = BTreeMap<TimerKey, T>;

/// Returns when the earliest thing is due.
pub(crate) fn next_due<T>(queue: &TimerQueue<T>) -> Option<Time> {
    queue.first_key_value().map(|((at, _), _)| *at)
}

/// Takes out the earliest thing, if it is due at `now`. Returns it with the time at which it was due.
pub(crate) fn pop_due<T>(queue: &mut TimerQueue<T>, now: Time) -> Option<(Time, T)> {
    let first = queue.first_entry()?;
    let (due, _) = *first.key();
    (due <= now).then(|| (due, first.remove()))
}

/// How long a thread without work stays. Locks come and go much faster than threads are made.
const IDLE: Duration = Duration::from_secs(5);

/// The sleep of a thread that serves a timer queue. It prevents wake-ups that the thread does not need.
///
/// | the thread | event | result |
/// | --- | --- | --- |
/// | has ended | a thing is inserted | it is started |
/// | sleeps | a thing is inserted that is due after its sleep | it sleeps on |
/// | sleeps | a thing is inserted that is due earlier | it is woken, and its next sleep ends at that time, even if the thing has gone |
/// | has done all work that is due | nothing was inserted for a while, and nothing is left | it ends |
#[derive(Debug, Default)]
pub(crate) struct WorkerTimer {
    running: bool,
    stopped: bool,
    asleep_until: Option<Time>,
    /// The time for which it was last woken.
    alarm: Option<Time>,
    /// Whether a thing was inserted since it last looked.
    used: bool,
    idle_since: Option<Time>,
}

impl WorkerTimer {
    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    pub(crate) fn started(&mut self) {
        *self = Self {
            running: true,
            stopped: self.stopped,
            ..Self::default()
        };
    }

    /// Makes the thread end as soon as nothing is left.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Notes that a thing was inserted that is due at `due`. Returns whether the thread must be woken for it.
    pub(crate) fn expect(&mut self, due: Time) -> bool {
        self.used = true;
        let early = self.asleep_until.is_some_and(|until| due < until);
        if early {
            self.asleep_until = Some(due);
            self.alarm = Some(due);
        }
        early
    }

    /// Returns how long the thread sleeps after all work that is due, until `next` at most; `None` if it ends.
    pub(crate) fn rest(&mut self, now: Time, next: Option<Time>) -> Option<Duration> {
        if std::mem::take(&mut self.used) || next.is_some() {
            self.idle_since = None;
        }
        let idle_since = *self.idle_since.get_or_insert(now);
        if next.is_none() && (self.stopped || now.since(idle_since) >= IDLE) {
            self.running = false;
            return None;
        }
        self.alarm = self.alarm.filter(|alarm| *alarm > now);
        let until = [next, self.alarm]
            .into_iter()
            .flatten()
            .fold(now + LONGEST_SLEEP, Time::min);
        self.asleep_until = Some(until);
        Some(until.since(now))
    }

    pub(crate) fn woke(&mut self) {
        self.asleep_until = None;
    }
}

/// The things that a [`Worker`] serves.
pub(crate) trait Timed {
    fn timer(&mut self) -> &mut WorkerTimer;

    /// Returns when the earliest thing is due.
    fn next_due(&self) -> Option<Time>;
}

/// A thread that serves things by their times, and these things. The renewal thread has a loop of its own, because others wait
/// for what it does, and it pauses after failures.
#[derive(Default)]
pub(crate) struct Worker<T> {
    things: Mutex<T>,
    /// Notified if an earlier time is due, and if the engine is dropped.
    changed: Condvar,
}

impl<T: Timed + Send + 'static> Worker<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.things.lock()
    }

    /// Starts the thread if it does not run. `serve` does what is due, or a part of it.
    pub(crate) fn ensure_running(
        self: &Arc<Self>,
        things: &mut T,
        engine: &Arc<Engine>,
        name: &'static str,
        serve: fn(&Arc<Engine>),
    ) -> io::Result<()> {
        if !things.timer().is_running() {
            let (worker, weak) = (Arc::clone(self), Arc::downgrade(engine));
            let run = move || worker.run(name, &weak, serve);
            engine.client.machine().spawn(name, run)?;
            things.timer().started();
        }
        Ok(())
    }

    /// Wakes the thread if it sleeps past `due`.
    pub(crate) fn wake_for(&self, things: &mut T, due: Time) {
        if things.timer().expect(due) {
            self.changed.notify_all();
        }
    }

    /// Ends the thread as soon as nothing is left.
    pub(crate) fn stop(&self) {
        self.lock().timer().stop();
        self.changed.notify_all();
    }

    /// Runs the thread. It holds the engine only while that acts, so that it ends with the last handle and guard.
    fn run(&self, name: &str, engine: &Weak<Engine>, serve: fn(&Arc<Engine>)) {
        while let Some(engine) = engine.upgrade() {
            // A panic does not end the thread: what is left has its time still.
            if survived(|| serve(&engine)).is_none() {
                logging::error!("the thread {name} panicked and goes on");
            }
            let now = engine.client.now();
            drop(engine);
            if !self.rest(now) {
                return;
            }
        }
    }

    /// Sleeps until something is due. Returns false if the thread must end.
    fn rest(&self, now: Time) -> bool {
        let mut things = self.lock();
        let next = things.next_due();
        let Some(sleep) = things.timer().rest(now, next) else {
            return false;
        };
        self.changed.wait_for(things, sleep).timer().woke();
        true
    }

    /// Wakes the thread, because a test has moved the clock.
    #[cfg(feature = "seam")]
    pub(crate) fn look_at_the_clock(&self) {
        // A thread that has looked and does not sleep yet holds the mutex.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Returns whether nothing is due, and the thread has done what was.
    #[cfg(feature = "seam")]
    pub(crate) fn is_at_rest(&self, now: Time) -> bool {
        let mut things = self.lock();
        let timer = things.timer();
        let acts = timer.running && timer.asleep_until.is_none();
        !acts && things.next_due().is_none_or(|due| due > now)
    }
}

const SHORTEST_RETRY: Duration = Duration::from_millis(2);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Returns when a lease is renewed that was confirmed by a request sent at `sent`. That is after a third of the lease,
/// so two more chances remain. It is earlier by up to a 24th, so leases that were acquired together drift apart.
pub(crate) fn renewal_due(sent: Time, lease: Duration, jitter: u64) -> Time {
    let (most, jitter) = (lease / 3, (jitter >> 48) as u32);
    // The top 16 bits are a fraction in 65,536ths.
    sent + most.saturating_sub(most / 8 * jitter / 65_536)
}

/// Returns how long after a failure a lease is renewed again of which this time is `left`. The rest of the lease has time
/// for a few more tries. But a server that comes back is not flooded with them.
///
/// An example: A has a lease of 12 s, and its server hangs for 11 s. With 0.5 s left, A tries every 150 ms.
pub(crate) fn retry_after(lease: Duration, left: Duration) -> Duration {
    let pause = (left / 8).max(gathered_within(lease) + SHORTEST_RETRY);
    pause.min(lease / 20).clamp(SHORTEST_RETRY, LONGEST_RETRY)
}

/// Returns how long before its time a lease may be renewed together with others. A wake-up and a request each cost as
/// much as many renewals. The time is less than [`retry_after`], so a failed renewal is not repeated at once.
pub(crate) fn gathered_within(lease: Duration) -> Duration {
    (lease / 80).min(Duration::from_millis(250))
}

/// Returns how long a renewal may take. After a lost reply there is time for another try, but a slow server has time to
/// reply to the first.
pub(crate) fn renewal_limit(lease: Duration) -> Duration {
    (lease / 4).max(Duration::from_millis(5))
}

/// Returns the remaining time below which a renewed lease is at risk. Half of the lease has passed then since it was
/// confirmed: neither the renewal at a third nor its repeats have succeeded. The remaining time is less the drift, so
/// this time is too. The drift is the larger part of a very short lease.
pub(crate) fn at_risk_below(lease: Duration) -> Duration {
    (lease / 2).saturating_sub(drift(lease))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(n: u64) -> Time {
        Time::from_nanos(n)
    }

    #[test]
    fn a_lease_is_renewed_between_a_quarter_and_a_third() {
        let lease = Duration::from_secs(12);
        let zero = at(0);
        assert_eq!(renewal_due(zero, lease, 0), zero + Duration::from_secs(4));
        let earliest = renewal_due(zero, lease, u64::MAX);
        assert!(
            earliest > zero + Duration::from_secs(3) && earliest < zero + Duration::from_secs(4)
        );
    }

    #[test]
    fn the_shortest_lease_is_renewed_in_time() {
        let lease = Duration::from_millis(10);
        let due = renewal_due(at(0), lease, 0);
        let deadline = crate::wire::lifetime::valid_until(at(0), lease);
        assert!(due + retry_after(lease, deadline.since(due)) < deadline);
    }

    #[test]
    fn no_lease_is_at_risk_before_its_renewal_is_due() {
        for lease in [10, 11, 12, 13, 100, 30_000].map(Duration::from_millis) {
            let deadline = crate::wire::lifetime::valid_until(at(0), lease);
            let left = |now: Time| deadline.since(now);
            let due = renewal_due(at(0), lease, 0);
            assert!(left(due) > at_risk_below(lease), "{lease:?}");
            assert_eq!(left(at(0) + lease / 2), at_risk_below(lease), "{lease:?}");
        }
    }

    #[test]
    fn the_times_of_a_renewal_are_parts_of_its_lease() {
        let (ms, lease) = (Duration::from_millis, Duration::from_secs(12));
        assert_eq!(retry_after(lease, lease), ms(600));
        assert_eq!(retry_after(lease, ms(4_000)), ms(500));
        assert_eq!(retry_after(lease, ms(500)), ms(152));
        assert_eq!(retry_after(lease * 5, lease * 5), ms(1_000));
        assert_eq!([lease, lease * 5].map(gathered_within), [150, 250].map(ms));
        assert_eq!([lease, ms(10)].map(renewal_limit), [3_000, 5].map(ms));
    }

    #[test]
    fn a_renewal_that_has_just_failed_is_not_gathered() {
        for lease in [10, 1_000, 30_000, 86_400_000].map(Duration::from_millis) {
            for left in [Duration::ZERO, lease] {
                assert!(gathered_within(lease) < retry_after(lease, left));
            }
        }
    }

    #[test]
    fn a_thread_is_woken_once_for_leases_that_come_and_go() {
        let start = at(1 << 40);
        let after = |ms| start + Duration::from_millis(ms);
        let mut timer = WorkerTimer::default();
        timer.started();
        assert_eq!(timer.rest(start, None), Some(LONGEST_SLEEP));
        assert!(timer.expect(after(10)));
        assert!(!timer.expect(after(10)), "it is on its way already");
        timer.woke();
        // The thing has gone for which it was woken. The next thing will be due after its sleep.
        assert_eq!(timer.rest(after(1), None), Some(Duration::from_millis(9)));
        assert!(!timer.expect(after(12)));
        assert_eq!(timer.rest(after(10), None), Some(LONGEST_SLEEP));
        timer.woke();
        assert!(!timer.expect(after(11)), "it looks anyway");
    }

    #[test]
    fn a_thread_ends_when_it_has_not_been_used_for_a_while() {
        let start = at(1 << 40);
        let after = |secs| start + Duration::from_secs(secs);
        let mut timer = WorkerTimer::default();
        timer.started();
        assert!(timer.is_running());
        assert!(timer.rest(start, None).is_some());
        timer.expect(after(60));
        assert!(
            timer.rest(after(5), None).is_some(),
            "used meanwhile, though empty now"
        );
        assert!(timer.rest(after(9), None).is_some());
        assert!(timer.rest(after(9), Some(after(60))).is_some());
        assert!(timer.rest(after(13), None).is_some());
        assert!(timer.rest(after(14), None).is_none());
        assert!(!timer.is_running());
        // A stopped thread ends as soon as nothing is left, and not before.
        timer.started();
        timer.stop();
        assert!(timer.rest(after(20), Some(after(60))).is_some());
        assert!(timer.rest(after(21), None).is_none());
        timer.started();
        assert!(timer.rest(after(21), None).is_none(), "it is stopped still");
    }

    #[test]
    fn things_come_out_by_their_times() {
        let mut queue: TimerQueue<&str> = TimerQueue::new();
        assert_eq!((next_due(&queue), pop_due(&mut queue, at(9))), (None, None));
        for (time, number, thing) in [(7, 0, "late"), (5, 2, "second"), (5, 1, "first")] {
            queue.insert((at(time), number), thing);
        }
        assert_eq!(next_due(&queue), Some(at(5)));
        assert_eq!(pop_due(&mut queue, at(4)), None);
        assert_eq!(pop_due(&mut queue, at(5)), Some((at(5), "first")));
        assert_eq!(pop_due(&mut queue, at(9)), Some((at(5), "second")));
        assert_eq!(pop_due(&mut queue, at(6)), None);
        assert_eq!(pop_due(&mut queue, at(7)), Some((at(7), "late")));
    }
}
