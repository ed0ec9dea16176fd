//! The time limits of one guard: `max_hold`, at which the watch thread ends the guard, and `warn_after`, at which it
//! warns.

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::lease::process_lease::{Hold, ProcessLease};
use crate::engine::lease::release::HoldEnd;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::lease::watch::Watch;
use crate::engine::timer_queue::TimerKey;
use crate::error::LostCause;
use crate::sys::{Arc, AtomicU8, Ordering, Time};

/// The limits of a guard that has at least one. Each has a place in the timer queue of the watch thread.
///
/// | state | event | next state |
/// | --- | --- | --- |
/// | any | the lease has ended or was lost before | the same: the limits do nothing |
/// | open | the guard ends | finished: the limits do nothing |
/// | open | the watch thread finds the time of `warn_after` over | open: it warns |
/// | open | the watch thread finds the time of `max_hold` over | exceeded: it ends the guard |
/// | finished, exceeded | any event | the same: only the first end counts |
pub(crate) struct HoldLimits {
    pub(crate) process_lease: Arc<ProcessLease>,
    guard_number: u32,
    fence: u64,
    since: Time,
    pub(crate) max_hold: Option<Duration>,
    /// When the watch thread ends the guard.
    ends_at: Option<Time>,
    /// When the watch thread warns.
    warns_at: Option<Time>,
    /// The number of both in the timer queue.
    number: u64,
    state: AtomicU8,
}

const OPEN: u8 = 0;
const FINISHED: u8 = 1;
const EXCEEDED: u8 = 2;

impl HoldLimits {
    /// Registers the limits of a guard with the watch thread. Returns `None` if the guard has no limit.
    pub(crate) fn watch(
        engine: &Engine,
        hold: &Hold,
        guard_number: u32,
        max_hold: Option<Duration>,
    ) -> Option<Arc<Self>> {
        let warn_after = engine.client.settings.warn_after;
        if max_hold.is_none() && warn_after.is_none() {
            return None;
        }
        // The time counts from now, so that a thread that wakes late has all of it.
        let now = engine.client.now();
        let limits = Arc::new(Self {
            process_lease: Arc::clone(&hold.process_lease),
            guard_number,
            fence: hold.fence,
            since: hold.since,
            max_hold,
            ends_at: max_hold.map(|length| now + length),
            warns_at: warn_after.map(|length| now + length),
            number: engine.next_number.fetch_add(1, Ordering::Relaxed),
            state: AtomicU8::new(OPEN),
        });
        engine.watch.register_limits(&limits);
        Some(limits)
    }

    /// Returns their keys in the timer queue.
    pub(crate) fn timer_keys(&self) -> impl Iterator<Item = TimerKey> {
        let times = [self.ends_at, self.warns_at].into_iter().flatten();
        times.map(|at| (at, self.number))
    }

    /// Returns whether the guard has reached its `max_hold`.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.state.load(Ordering::Acquire) == EXCEEDED
    }

    /// Ends the limits at the end of the guard. Returns false if the watch thread has ended the guard before.
    pub(crate) fn finish(&self, watch: &Watch) -> bool {
        watch.deregister_limits(self);
        self.decide(FINISHED)
    }

    /// Sets the final state. Returns true for the first caller only.
    fn decide(&self, how: u8) -> bool {
        self.state
            .compare_exchange(OPEN, how, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Warns, or ends the guard, as the limit wants it that was due at `due`. Does nothing if the guard has ended or its lease is lost.
    pub(crate) fn act(&self, engine: &Engine, due: Time, now: Time) {
        let (client, process_lease) = (&engine.client, &self.process_lease);
        let held = now.since(self.since);
        // After a loss, the guard has its cause already.
        if !matches!(process_lease.validity.status(now), LeaseStatus::Live(_)) {
            return;
        }
        if self.ends_at != Some(due) {
            if self.state.load(Ordering::Acquire) == OPEN {
                client.count_held_long(process_lease, self.fence, held);
            }
            return;
        }
        if !self.decide(EXCEEDED) {
            return;
        }
        // The guard reads lost from here on. Count and notify the loss before the next thread gets the lock.
        client.count_end_at_max_hold(process_lease, self.fence, held);
        for listener in process_lease.remove_listeners(self.guard_number) {
            listener.notify(LostCause::MaxHold);
        }
        let ended = engine.end_hold(process_lease, now, HoldEnd::Release);
        // The watch thread does no I/O, so the renewal thread sends the release.
        if let (_, Some((release_task, _counted))) = ended {
            engine.release_later(&process_lease.entry, release_task);
        }
    }
}
