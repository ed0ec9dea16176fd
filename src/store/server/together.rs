//! The connections of a process along one route lead to one server.
//!
//! Behind a stable address, such as that of a load balancer, new connections reach another server after a failover. The
//! old ones may go on: a master that was demoted still answers a PING, and keeps a subscription. Then no message reaches
//! this process, and other processes get every lock before it.
//!
//! | the sign | seen by |
//! | --- | --- |
//! | `READONLY` | any link |
//! | nobody listens to this process's channel, although its subscription goes on | the first request of each link after a SUBSCRIBE, and of each new connection: `PUBSUB NUMSUB` goes before it in the same write |
//!
//! After a sign a new *era* begins: each link connects anew before its next request, and the process subscribes anew within a
//! second. Signs within a pause of the last one begin none. The pause doubles while signs go on, because a proxy may count no
//! subscribers, and the address may lead to the old server for a while.
//!
//! A node of a cluster counts only its own subscribers, so there nobody asks.

use std::time::Duration;

use redis::Value;

use crate::script::Command;
use crate::sys::{Arc, AtomicU64, Mutex, Ordering, Time};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The eras of a route, and the subscription along it.
#[derive(Debug, Default)]
pub(crate) struct Together {
    era: AtomicU64,
    /// The number of the subscription. 0 if there is none, or it is to end.
    subscription: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The channel of the last subscription, and its number.
    channel: Arc<str>,
    last: u64,
    /// When the era began, and the pause from then on.
    begun_at: Option<Time>,
    pause: Duration,
}

impl Together {
    /// Returns the number of the era. A connection of an earlier one must be closed.
    pub(crate) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Begins a new era, because two connections lead to different servers.
    pub(crate) fn begin_anew(&self) {
        let mut state = self.state.lock();
        let now = Time::now();
        let since = state.begun_at.map(|begun_at| now.since(begun_at));
        if since.is_some_and(|since| since < state.pause) {
            return;
        }
        let goes_on = since.is_some_and(|since| since < state.pause * 2);
        let doubled = if goes_on {
            state.pause * 2
        } else {
            FIRST_PAUSE
        };
        state.pause = doubled.min(LONGEST_PAUSE);
        state.begun_at = Some(now);
        self.subscription.store(0, Ordering::Release);
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the process listens to this channel, on a connection of this era.
    pub(crate) fn subscribed(&self, channel: &str, era: u64) {
        let mut state = self.state.lock();
        if self.era() == era {
            state.channel = channel.into();
            state.last += 1;
            self.subscription.store(state.last, Ordering::Release);
        }
    }

    /// Notes that the subscription has ended.
    pub(crate) fn unsubscribed(&self) {
        self.subscription.store(0, Ordering::Release);
    }

    /// Returns the question whether somebody listens to the process's channel, and the number of the subscription. Returns
    /// `None` if there is none, or a connection has `asked` about it.
    pub(crate) fn question(&self, asked: u64) -> Option<(Command, u64)> {
        let number = self.subscription.load(Ordering::Acquire);
        if number == 0 || number == asked {
            return None;
        }
        let channel = Arc::clone(&self.state.lock().channel);
        let question = Command::new("PUBSUB")
            .arg("NUMSUB")
            .arg(&*channel)
            .to_owned();
        Some((question, number))
    }

    /// Takes in the answer to that question. An error, such as a missing right, says nothing.
    pub(crate) fn answered(&self, answer: &Value) {
        if matches!(answer, Value::Array(parts) if parts.last() == Some(&Value::Int(0))) {
            self.begin_anew();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Machine;
    use crate::sys::test_machine::manual::ManualClock;

    fn nobody() -> Value {
        Value::Array(vec![Value::BulkString(b"c".into()), Value::Int(0)])
    }

    /// A proxy that counts no subscribers.
    #[test]
    fn signs_without_end_begin_an_era_a_minute() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        let together = Together::default();
        for _ in 0..36_000 {
            clock.advance(Duration::from_millis(100));
            together.answered(&nobody());
        }
        let eras = together.era();
        assert!((60..=70).contains(&eras), "{eras}");
        // The next failover is another one.
        clock.advance(LONGEST_PAUSE * 2);
        together.begin_anew();
        clock.advance(FIRST_PAUSE);
        together.begin_anew();
        assert_eq!(together.era(), eras + 2);
    }

    #[test]
    fn each_connection_asks_once_about_each_subscription_of_its_era() {
        let together = Together::default();
        assert!(together.question(0).is_none(), "there is none");
        together.subscribed("c", 0);
        let (_, first) = together.question(0).expect("there is one");
        assert!(together.question(first).is_none());
        together.answered(&Value::Array(vec![Value::Int(1)]));
        together.answered(&Value::Nil);
        assert_eq!(together.era(), 0);
        together.answered(&nobody());
        assert_eq!(together.era(), 1);
        assert!(together.question(0).is_none(), "it is to end");
        together.subscribed("c", 0);
        assert!(together.question(0).is_none(), "it is of the last era");
        together.subscribed("c", 1);
        let (_, second) = together.question(first).expect("there is one");
        together.unsubscribed();
        assert!(together.question(first).is_none());
        assert!(second > first);
    }
}
