//! The manager's settings that travel with the calls, and durations as whole milliseconds.

use std::time::Duration;

use super::command::Command;
use crate::core::poll;
use crate::sys::time::ms_rounded_up;

/// The settings that travel with the calls.
#[derive(Clone, Debug)]
pub(crate) struct ScriptSettings {
    pub(super) fence_memory: Duration,
    /// The longest pickup window of a waiter.
    longest_window: Duration,
    /// How long a contended mutex is left free once in `quantum`, for clients that poll.
    pub(super) poller_gap: Duration,
    /// Zero without a gap, because then no script looks at it.
    quantum: Duration,
    /// Whether a PUBLISH counts all subscribers. In a cluster it counts those of one node.
    counts_subscribers: bool,
}

/// How long a process stays in a queue after it was last seen: three polls.
const WAITER_LIFE: Duration = Duration::from_secs(3);

impl ScriptSettings {
    pub(crate) fn new(fence_memory: Duration, io_timeout: Duration) -> Self {
        Self {
            fence_memory,
            longest_window: poll::longest_pickup_window(io_timeout),
            poller_gap: Duration::ZERO,
            quantum: Duration::ZERO,
            counts_subscribers: true,
        }
    }

    /// Returns the settings for the nodes of a cluster.
    pub(crate) fn of_a_cluster(self) -> Self {
        Self {
            counts_subscribers: false,
            ..self
        }
    }

    /// Sets the gap, and the quantum that goes with it. A gap needs a fixed quantum.
    pub(crate) fn with_gap(self, poller_gap: Duration, quantum: Option<Duration>) -> Self {
        Self {
            poller_gap,
            quantum: quantum.unwrap_or_default(),
            ..self
        }
    }

    /// Returns the pickup window of a waiter with this lease.
    pub(super) fn pickup_window(&self, lease: Duration) -> Duration {
        poll::pickup_window(lease, self.longest_window)
    }

    /// Adds the arguments of `queue.lua`. Each script that queues or wakes a waiter has them.
    pub(super) fn of_waiters(&self, command: &mut Command) {
        of_waiters(command, self.counts_subscribers);
    }

    /// Adds the arguments of `gap.lua`. Without `may_leave` there is no gap.
    pub(super) fn gap(&self, command: &mut Command, may_leave: bool) {
        let gap = if may_leave {
            ms_rounded_up(self.poller_gap)
        } else {
            0
        };
        command.arg(gap).arg(ms_rounded_up(self.quantum));
    }
}

/// Adds the arguments of `queue.lua`. `counts_subscribers`: a PUBLISH counts all subscribers, and not those of one node.
pub(super) fn of_waiters(command: &mut Command, counts_subscribers: bool) {
    command
        .arg(ms_rounded_up(WAITER_LIFE))
        .arg(u8::from(counts_subscribers));
}
