//! The raise of leases that were granted by message.
//!
//! A lease that was granted by message lasts for the pickup window only. It is due ten milliseconds after its grant, and so
//! before most renewals of other leases. Most contended leases have ended by then, and need no renewal. No lease is granted
//! by message unless the thread runs, has connected, and is not stuck in a request ([`RenewalThread::is_ready`]). So a
//! delegate that begins to wait has the thread start and connect ([`RenewalThread::prepare`]).

use std::time::Duration;

use super::schedule::{Opening, RenewalThread};
use crate::clock::Time;
use crate::core::timer_queue::LONGEST_SLEEP;
use crate::engine::client::Client;
use crate::sync::Arc;

/// How long a round of the thread takes until the thread counts as stuck.
const STUCK_AFTER: Duration = Duration::from_millis(20);

impl RenewalThread {
    /// Has the thread start and connect, so that a lease can be granted by message. If the thread cannot be started, no
    /// lease is.
    pub(crate) fn prepare(self: &Arc<Self>, client: &Arc<Client>) {
        let now = client.now();
        let mut state = self.state.lock();
        if self.ensure_running(&mut state, client).is_err() {
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
