//! The quantum in use, and the measurements that it follows.
//!
//! A hand-over to this process takes:
//!
//! | part | measured by |
//! | --- | --- |
//! | the request of the other process, and the message | the round trip of the request in the next row: each of the two goes one way |
//! | the request by which this process picks the lock up | the delegate, from the message to the grant |
//!
//! The message wakes the delegate, and its next request is granted. The following are not measured: a pickup
//! without a message, because polls set its duration; one that was not granted at once; and one whose request was sent
//! twice, because the connection was closed.

use std::time::Duration;

use crate::core::attempt::SubscriptionState;
use crate::core::quantum::RecentHandOvers;
use crate::sys::{AtomicU64, Ordering};

pub(super) struct Quantum {
    /// The quantum that the settings fix. `None` if it follows the measurements.
    fixed: Option<Duration>,
    /// The last [`RecentHandOvers`] of all names of the manager.
    recent: AtomicU64,
}

impl Quantum {
    pub(super) fn new(fixed: Option<Duration>) -> Self {
        Self {
            fixed,
            recent: AtomicU64::new(RecentHandOvers::default().to_bits()),
        }
    }

    /// Returns the quantum of a process with this subscription.
    pub(super) fn get(&self, subscription: &SubscriptionState) -> Duration {
        match self.fixed {
            Some(fixed) => fixed,
            None => RecentHandOvers::from_bits(self.recent.load(Ordering::Relaxed))
                .quantum(subscription),
        }
    }

    /// Notes a hand-over to this process. `pickup` is the time from the message to the grant, and `round_trip` the part
    /// of it from the request to its reply.
    pub(super) fn note_hand_over(&self, pickup: Duration, round_trip: Duration) {
        let with = |bits| {
            Some(
                RecentHandOvers::from_bits(bits)
                    .with(pickup + round_trip)
                    .to_bits(),
            )
        };
        // The closure always returns a value, so this does not fail.
        self.recent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, with)
            .ok();
    }
}
