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
    /// Another number after each new era and each new subscription.
    version: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    era: u64,
    /// The channel of the subscription, if there is one that is not to end.
    channel: Option<Arc<str>>,
    read_only: Pause,
    elsewhere: Pause,
}

/// What a connection knows of the route: whether that is the latest, it compares before each request.
#[derive(Default)]
pub(crate) struct Known {
    version: u64,
    /// A connection of an earlier era must be closed.
    pub(crate) era: u64,
    /// The question whether somebody listens to the process's channel, until it has its answer.
    pub(crate) question: Option<Command>,
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
    /// Returns whether nothing has happened along the route since a connection has looked.
    pub(crate) fn is_latest(&self, known: &Known) -> bool {
        self.version.load(Ordering::Acquire) == known.version
    }

    /// Returns what a connection has to know now.
    pub(crate) fn look(&self) -> Known {
        let state = self.state.lock();
        let ask = |channel: &Arc<str>| {
            let mut question = Command::new("PUBSUB");
            question.arg("NUMSUB").arg(&**channel).to_owned()
        };
        Known {
            version: self.version.load(Ordering::Acquire),
            era: state.era,
            question: state.channel.as_ref().map(ask),
        }
    }

    /// Returns the number of the era.
    pub(crate) fn era(&self) -> u64 {
        self.state.lock().era
    }

    /// Notes that a server is a replica. So other connections may lead to another server.
    pub(crate) fn read_only(&self) {
        self.note(|state| &mut state.read_only);
    }

    /// Notes a sign, which begins a new era unless its pause goes on.
    fn note(&self, sign: fn(&mut State) -> &mut Pause) {
        let mut state = self.state.lock();
        if sign(&mut state).begin() {
            state.channel = None;
            state.era += 1;
            self.version.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Notes that the process listens to this channel, on a connection of this era.
    pub(crate) fn subscribed(&self, channel: &str, era: u64) {
        let mut state = self.state.lock();
        if state.era == era {
            state.channel = Some(channel.into());
            self.version.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Notes that the subscription has ended.
    pub(crate) fn unsubscribed(&self) {
        self.state.lock().channel = None;
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether the server of this connection has the subscription, by the answer to that question. If not, begins a new
    /// era, or after the pause of the last one: the connection asks again until then. An error, such as a missing right, says
    /// nothing.
    pub(crate) fn is_confirmed_by(&self, answer: &Value) -> bool {
        let is_elsewhere =
            matches!(answer, Value::Array(parts) if parts.last() == Some(&Value::Int(0)));
        if is_elsewhere {
            self.note(|state| &mut state.elsewhere);
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
        let asks = || together.look().question.is_some();
        let first = together.look();
        assert!(!asks(), "there is none");
        together.subscribed("c", 0);
        assert!(asks() && !together.is_latest(&first));
        together.is_confirmed_by(&Value::Array(vec![Value::Int(1)]));
        together.is_confirmed_by(&Value::Nil);
        assert_eq!(together.era(), 0);
        let known = together.look();
        assert!(together.is_latest(&known));
        together.is_confirmed_by(&nobody());
        assert_eq!(together.era(), 1);
        assert!(!asks() && !together.is_latest(&known), "it is to end");
        together.subscribed("c", 0);
        assert!(!asks(), "it is of the last era");
        together.subscribed("c", 1);
        assert!(asks());
        together.unsubscribed();
        assert!(!asks());
    }
}
