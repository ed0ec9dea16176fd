//! The time limits of one guard: `max_hold`, at which the watch thread ends the guard, and `warn_after`, at which it
//! warns.

use std::time::Duration;

use crate::engine::lease::leases::Leases;
use crate::engine::lease::process_lease::{Hold, ProcessLease};
use crate::engine::lease::release::HoldEnd;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::lease::watch::Watch;
use crate::error::LostCause;
use crate::sys::{Arc, AtomicU8, AtomicU64, Ordering, Time};

/// The limits of a guard that has at least one.
#[derive(Default)]
pub(crate) struct HoldLimits {
    max_hold: Option<Arc<HoldLimit>>,
    warn_after: Option<Arc<HoldLimit>>,
}

/// One limit of one guard.
///
/// | state | event | next state |
/// | --- | --- | --- |
/// | open | the guard ends | finished: the limit does nothing |
/// | open | the watch thread finds the time over | exceeded: the watch thread does the action |
/// | finished, exceeded | either event | the same: only the first event counts |
pub(crate) struct HoldLimit {
    pub(crate) process_lease: Arc<ProcessLease>,
    guard_number: u32,
    fence: u64,
    since: Time,
    action: Action,
    length: Duration,
    pub(crate) due: Time,
    /// The number of the limit in the watch thread's timer queue.
    pub(crate) number: AtomicU64,
    state: AtomicU8,
}

/// The action when the time is over.
enum Action {
    /// End the guard.
    End,
    /// Warn, unless the guard has reached this `max_hold`.
    Warn { max_hold: Option<Arc<HoldLimit>> },
}

const OPEN: u8 = 0;
const FINISHED: u8 = 1;
const EXCEEDED: u8 = 2;

impl HoldLimits {
    /// Registers the limits of a guard with the watch thread. Returns `None` if the guard has no limit.
    pub(crate) fn watch(
        leases: &Arc<Leases>,
        hold: &Hold,
        guard_number: u32,
        since: Time,
        max_hold: Option<Duration>,
    ) -> Option<Box<Self>> {
        let warn_after = leases.client.settings.warn_after;
        if max_hold.is_none() && warn_after.is_none() {
            return None;
        }
        let watch = |length: Duration, action| {
            let limit = Arc::new(HoldLimit {
                process_lease: Arc::clone(&hold.process_lease),
                guard_number,
                fence: hold.fence,
                since,
                action,
                length,
                // The time counts from now, so that a thread that wakes late has all of it.
                due: leases.client.now() + length,
                number: AtomicU64::new(0),
                state: AtomicU8::new(OPEN),
            });
            let (_, number) = leases.watch.register_timer(limit.due, Arc::clone(&limit));
            limit.number.store(number, Ordering::Relaxed);
            limit
        };
        let max_hold = max_hold.map(|length| watch(length, Action::End));
        let warn_after = warn_after.map(|length| {
            let max_hold = max_hold.clone();
            watch(length, Action::Warn { max_hold })
        });
        Some(Box::new(Self {
            max_hold,
            warn_after,
        }))
    }

    /// Returns the limits for the view of one name of the guard. The view reads lost with the guard, and causes no
    /// warning.
    pub(crate) fn of_one_name(&self) -> Option<Box<Self>> {
        let max_hold = Some(Arc::clone(self.max_hold.as_ref()?));
        Some(Box::new(Self {
            max_hold,
            warn_after: None,
        }))
    }

    /// Returns the length of `max_hold`.
    pub(crate) fn max_hold(&self) -> Option<Duration> {
        self.max_hold.as_ref().map(|limit| limit.length)
    }

    /// Returns whether the guard has reached its `max_hold`.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.max_hold
            .as_ref()
            .is_some_and(|limit| limit.is_exceeded())
    }

    /// Ends the limits at the end of the guard. Returns false if the watch thread has ended the guard before.
    pub(crate) fn finish(&self, watch: &Watch) -> bool {
        let is_first = |limit: &Arc<HoldLimit>| {
            let number = limit.number.load(Ordering::Relaxed);
            watch.deregister_timer((limit.due, number));
            limit.decide(FINISHED)
        };
        self.warn_after.as_ref().map(is_first);
        self.max_hold.as_ref().is_none_or(is_first)
    }
}

impl HoldLimit {
    /// Sets the final state. Returns true for the first caller only.
    fn decide(&self, how: u8) -> bool {
        self.state
            .compare_exchange(OPEN, how, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn is_exceeded(&self) -> bool {
        self.state.load(Ordering::Acquire) == EXCEEDED
    }

    /// Does the action, unless the guard has ended.
    pub(crate) fn act(&self, leases: &Arc<Leases>, now: Time) {
        if !self.decide(EXCEEDED) {
            return;
        }
        let held = now.since(self.since);
        match &self.action {
            Action::Warn { max_hold } => {
                let is_over = max_hold.as_ref().is_some_and(|limit| limit.is_exceeded());
                let is_live = matches!(
                    self.process_lease.validity.status(now),
                    LeaseStatus::Live(_)
                );
                if is_live && !is_over {
                    leases
                        .client
                        .count_held_long(&self.process_lease, self.fence, held);
                }
            }
            Action::End => {
                // The guard reads lost from `decide` on. Count and notify the loss before the next thread gets the
                // lock.
                leases
                    .client
                    .count_end_at_max_hold(&self.process_lease, self.fence, held);
                for listener in self.process_lease.remove_listeners(self.guard_number) {
                    listener.notify(LostCause::MaxHold);
                }
                let ended = leases.end_hold(&self.process_lease, now, HoldEnd::Release);
                // The watch thread does no I/O, so the renewal thread sends the release.
                if let (_, Some((release_task, _counted))) = ended {
                    leases.release_later(&self.process_lease.entry, release_task);
                }
            }
        }
    }
}
