//! The raise of leases that were granted by message.
//!
//! A lease that was granted by message lasts for the pickup window only. It is due ten milliseconds after its grant, and so
//! before most renewals of other leases. Most contended leases have ended by then, and need no renewal. No lease is granted
//! by message unless the thread runs, has connected, and is not stuck in a request ([`RenewalThread::is_ready`]). So a
//! delegate that begins to wait has the thread start and connect ([`RenewalThread::prepare`]).

use std::time::Duration;

use super::RenewalThread;
use crate::clock::Time;
use crate::core::timer_queue::LONGEST_SLEEP;
use crate::engine::Engine;
use crate::sync::Arc;

/// How long after its grant by message a lease is raised to its full length. Redis need not raise a lease that ends
/// before.
pub(super) const RAISED_AFTER: Duration = Duration::from_millis(10);
/// How long a round of the thread takes until the thread counts as stuck.
const STUCK_AFTER: Duration = Duration::from_millis(20);

/// How far the thread has come with its connection for renewals.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Opening {
    /// The first lease will have it opened.
    #[default]
    NotWanted,
    /// A delegate waits, and a message may grant it a lease.
    Wanted,
    /// The thread connects.
    Begun,
    /// The thread has connected. Whether a later request failed is noted elsewhere.
    Opened,
    /// The thread could not connect, or has dropped its connection after a panic. It tries again for the next renewal, or when a delegate next waits.
    Failed,
}

impl Opening {
    /// Returns the state after the thread has tried to connect.
    pub(super) fn ended(is_open: bool) -> Self {
        if is_open { Self::Opened } else { Self::Failed }
    }
}

impl RenewalThread {
    /// Has the thread start and connect, so that a lease can be granted by message. If the thread cannot be started, no
    /// lease is.
    pub(crate) fn prepare(self: &Arc<Self>, engine: &Engine) {
        let now = engine.now();
        let mut state = self.state.lock();
        if self.ensure_running(&mut state, engine).is_err() {
            return;
        }
        let wakes_at = if matches!(state.opening, Opening::Begun | Opening::Opened) {
            // This wakes no thread. It only keeps the thread from ending soon.
            now + LONGEST_SLEEP
        } else {
            state.opening = Opening::Wanted;
            now
        };
        self.wake_for(&mut state, wakes_at);
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
}
