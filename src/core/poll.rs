//! How often a waiting process asks without having been woken.
//!
//! | holder | subscription | pause |
//! | --- | --- | --- |
//! | of ours | confirmed | 950 ms, which is the cost of a lost message |
//! | of ours | none | 250 ms: a poll is the only way to find that it was handed the lock |
//! | of ours | the first try is under way | 50 ms |
//! | another client, which sends no message | any | 50 to 100 ms; longer if this process has many delegates |
//!
//! A process that was handed the lock has its pickup window to ask for it. So it polls within that window, and well within
//! it if no message can come: a short lease has a window of 250 ms.

use std::time::Duration;

use crate::core::pickup::shortest_window;
use crate::owner::OWNER_PREFIX;
use crate::random::{Rng, jittered, jittered_by_half};
use crate::sync::Arc;

/// A waiting process asks at least this often, so a lost message costs at most this. Jitter only shortens it, so that it
/// stays below the pickup window.
const SUBSCRIBED: Duration = Duration::from_millis(950);
/// The same if this process has no subscription: a poll is then its only way to find that it was handed the lock.
pub(super) const NO_SUBSCRIPTION: Duration = Duration::from_millis(250);
/// The same if the holder is another client, which sends no message when it releases.
const FOREIGN: Duration = Duration::from_millis(100);
/// How much longer that pause becomes for each delegate of this process: so all of them together send at most 500 polls
/// in a second, or 1,000 with the jitter.
const FOREIGN_EACH: Duration = Duration::from_millis(2);
/// The same during the first try to subscribe; the confirmation ends this sleep.
pub(super) const SUBSCRIBING: Duration = Duration::from_millis(50);

/// Whether messages can reach this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionState {
    /// SUBSCRIBE was confirmed.
    Ready(Arc<str>),
    /// The first try is under way, and has not taken long: wait for it before queueing.
    NotYet,
    /// There is no subscription, for whatever reason: queue without a channel, and poll often.
    NoSubscription,
}

impl SubscriptionState {
    /// The channel to queue under; `None` if nobody may queue yet.
    pub(super) fn channel(&self) -> Option<Arc<str>> {
        match self {
            Self::Ready(channel) => Some(Arc::clone(channel)),
            Self::NotYet => None,
            Self::NoSubscription => Some(Arc::from("")),
        }
    }
}

/// How long to sleep after the answer that this owner holds the lock. `delegates` is their number in this process.
pub(super) fn pause(
    subscription: &SubscriptionState,
    lease: Duration,
    holder: &str,
    delegates: u32,
    rng: &dyn Rng,
) -> Duration {
    let window = shortest_window(lease);
    let pause = match subscription {
        SubscriptionState::Ready(_) => SUBSCRIBED.min(window * 19 / 20),
        SubscriptionState::NotYet => SUBSCRIBING,
        SubscriptionState::NoSubscription => NO_SUBSCRIPTION.min(window / 3),
    };
    let pause = jittered(rng, pause);
    if holder.starts_with(OWNER_PREFIX) {
        return pause;
    }
    let foreign = FOREIGN.max(FOREIGN_EACH * delegates);
    pause.min(jittered_by_half(rng, foreign))
}
