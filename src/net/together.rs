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
//! second. A sign within a pause of the last one of its sort begins none. The pause doubles while such signs go on, because the
//! address may lead to the old server for a while, and a proxy may count no subscribers.
//!
//! A node of a cluster counts only its own subscribers, so there nobody asks.

use std::time::Duration;

use redis::Value;

use crate::sys::{Arc, AtomicU64, Mutex, Ordering, Time};
use crate::wire::Command;

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
    read_only: Pause,
    elsewhere: Pause,
}

/// The pause between two eras that one sort of sign begins.
#[derive(Debug, Default)]
struct Pause {
    begun_at: Option<Time>,
    length: Duration,
}

impl Pause {
    /// Begins the next pause, unless one goes on. Returns whether it has begun.
    fn begin(&mut self) -> bool {
        let now = Time::now();
        let since = self.begun_at.map(|begun_at| now.since(begun_at));
        if since.is_some_and(|since| since < self.length) {
            return false;
        }
        let goes_on = since.is_some_and(|since| since < self.length * 2);
        let length = if goes_on {
            self.length * 2
        } else {
            FIRST_PAUSE
        };
        self.length = length.min(LONGEST_PAUSE);
        self.begun_at = Some(now);
        true
    }
}

impl Together {
    /// Returns the number of the era. A connection of an earlier one must be closed.
    pub(crate) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Notes that a server is a replica. So other connections may lead to another server.
    pub(crate) fn read_only(&self) {
        if self.state.lock().read_only.begin() {
            self.begin_anew();
        }
    }

    fn begin_anew(&self) {
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

    /// Returns whether the server of this connection has the subscription, by the answer to that question. If not, begins a new
    /// era, or after the pause of the last one: the connection asks again until then. An error, such as a missing right, says
    /// nothing.
    pub(crate) fn is_confirmed_by(&self, answer: &Value) -> bool {
        let is_elsewhere =
            matches!(answer, Value::Array(parts) if parts.last() == Some(&Value::Int(0)));
        if is_elsewhere && self.state.lock().elsewhere.begin() {
            self.begin_anew();
        }
        !is_elsewhere
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
            together.is_confirmed_by(&nobody());
        }
        let eras = together.era();
        assert!((60..=70).contains(&eras), "{eras}");
        // A replica is another sign, and the next failover another one.
        for _ in 0..2 {
            together.read_only();
            together.read_only();
            clock.advance(FIRST_PAUSE * 2);
        }
        assert_eq!(together.era(), eras + 2);
    }

    #[test]
    fn each_connection_asks_once_about_each_subscription_of_its_era() {
        let together = Together::default();
        assert!(together.question(0).is_none(), "there is none");
        together.subscribed("c", 0);
        let (_, first) = together.question(0).expect("there is one");
        assert!(together.question(first).is_none());
        together.is_confirmed_by(&Value::Array(vec![Value::Int(1)]));
        together.is_confirmed_by(&Value::Nil);
        assert_eq!(together.era(), 0);
        together.is_confirmed_by(&nobody());
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
