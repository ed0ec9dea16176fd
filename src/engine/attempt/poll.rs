//! How often a waiting process polls, so that it picks a lock up within its pickup window (`wire/lifetime.rs`).
//!
//! | holder | subscription | pause |
//! | --- | --- | --- |
//! | this crate's | confirmed | 950 ms, which is the cost of a lost message; at most half of the pickup window |
//! | this crate's | none | 250 ms: only a poll shows that the lock was handed over to this process |
//! | this crate's | the first try is under way | 50 ms |
//! | another client, which sends no message | any | 50 to 100 ms; longer if this process has many delegates |
//!
//! A waiter names its pickup window in each of its requests. The window starts with the hand-over, and the waiter's next
//! request raises it to the waiter's lease. A waiter that is late loses its turn, so a process polls within that window. A
//! grant by message lasts for the pickup window from the last poll, so the process polls twice in it. If no message can come,
//! it polls well within the window: a short lease has a window of 250 ms.
//!
//! Other limits belong to these pauses. A wait never sleeps for longer than a second
//! ([`LONGEST_SLEEP`](crate::sys::LONGEST_SLEEP)). The scripts pass over a waiter that was silent for longer than its pickup
//! window (`queue.lua`), and drop it after three polls ([`lifetime`](crate::wire::lifetime::WAITER_LIFE)).

use std::time::Duration;

use crate::owner::OWNER_PREFIX;
use crate::sys::random::{jittered, jittered_by_half};
use crate::sys::{Arc, Rng};
use crate::wire::lifetime::POLL;

/// The pause without a subscription: only a poll shows that the lock was handed over to this process.
pub(crate) const NO_SUBSCRIPTION: Duration = Duration::from_millis(250);
/// The pause if the holder is another client, which sends no message when it releases.
const FOREIGN: Duration = Duration::from_millis(100);
/// How much longer that pause becomes for each delegate of this process. So all delegates together send at most 500
/// polls in a second, or 1,000 with the jitter.
const FOREIGN_EACH: Duration = Duration::from_millis(2);
/// The pause during the first try to subscribe. The confirmation ends it early.
pub(crate) const SUBSCRIBING: Duration = Duration::from_millis(50);

/// Whether messages can reach this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionState {
    /// SUBSCRIBE was confirmed.
    Ready(Arc<str>),
    /// The first try is under way, and has not taken long. A delegate waits for it before it queues.
    NotYet,
    /// There is no subscription. A delegate queues without a channel, and polls often.
    NoSubscription,
}

impl SubscriptionState {
    /// Returns the channel to queue under. Returns `None` if the delegate must not queue yet.
    pub(crate) fn channel(&self) -> Option<Arc<str>> {
        match self {
            Self::Ready(channel) => Some(Arc::clone(channel)),
            Self::NotYet => None,
            Self::NoSubscription => Some(Arc::from("")),
        }
    }
}

/// Returns how long to sleep after the reply that `holder` holds the lock. `window` is the pickup window. `busy_threads` is
/// how many threads of this process ask Redis.
pub(crate) fn pause(
    subscription: &SubscriptionState,
    window: Duration,
    holder: &str,
    busy_threads: u32,
    rng: &dyn Rng,
) -> Duration {
    let pause = match subscription {
        SubscriptionState::Ready(_) => POLL.min(window / 2),
        SubscriptionState::NotYet => SUBSCRIBING,
        SubscriptionState::NoSubscription => NO_SUBSCRIPTION.min(window / 3),
    };
    // Jitter only shortens it, so that it stays below the pickup window.
    let pause = jittered(rng, pause);
    if holder.starts_with(OWNER_PREFIX) {
        return pause;
    }
    let foreign = FOREIGN.max(FOREIGN_EACH * busy_threads);
    pause.min(jittered_by_half(rng, foreign))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Machine;

    const HOLDERS: [&str; 2] = ["lh1:owner", "of another client"];

    fn states() -> [SubscriptionState; 3] {
        [
            SubscriptionState::Ready("channel".into()),
            SubscriptionState::NotYet,
            SubscriptionState::NoSubscription,
        ]
    }

    #[test]
    fn waiters_that_began_together_do_not_poll_in_step() {
        for state in &states() {
            for holder in HOLDERS {
                let poll = || {
                    let window = Duration::from_secs(2);
                    pause(state, window, holder, 1, &Machine::default())
                };
                let polls = |_| (0..20).map(|_| poll()).sum::<Duration>();
                let mut ends: Vec<_> = (0..50).map(polls).collect();
                ends.sort_unstable();
                let apart = ends[49].saturating_sub(ends[0]);
                assert!(apart > poll() / 4, "{state:?} {holder}: {apart:?} apart");
            }
        }
    }

    #[test]
    fn a_waiter_never_spins() {
        for state in &states() {
            for holder in HOLDERS {
                for window in [250, 2_000].map(Duration::from_millis) {
                    let pause = pause(state, window, holder, 1, &Machine::default());
                    let least = Duration::from_millis(35);
                    assert!(pause > least, "{state:?} {holder}: {pause:?}");
                }
            }
        }
    }
}
