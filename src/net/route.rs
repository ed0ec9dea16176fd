//! The way to a server, and what all connections along it share: the signs that the server has lost its data, and whether
//! they lead to one server.
//!
//! # The connections of a process along one route lead to one server
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
//! second. After a sign, further signs of the same sort start no new era until the pause ends. The pause doubles while such
//! signs go on, because the address may lead to the old server for a while, and a proxy may count no subscribers.
//!
//! A node of a cluster counts only its own subscribers, so there nobody asks.

use std::io;
use std::time::Duration;

use redis::Value;

use crate::config::{Server, Settings};
use crate::error::Failure;
use crate::net::login::Connecting;
use crate::net::refusal::says;
use crate::net::resolve::Resolver;
use crate::net::socket::CLOSED;
use crate::stats::PoolCounters;
use crate::sys::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Time};
use crate::wire::{Command, ScriptSettings};

/// The pauses between two eras.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A report whether a server is reached, by the connections of one thread.
#[derive(Clone, Debug)]
pub(crate) struct NodeReport {
    /// The place of the server in the store, which the server may leave to another one. A quorum as a whole has a place
    /// too.
    pub(crate) place: usize,
    /// The address of the server. `None` for a quorum as a whole.
    pub(crate) node: Option<Arc<str>>,
    /// The failure, if the server cannot be reached.
    pub(crate) failure: Option<Failure>,
}

/// The way to a server. All connections of a manager share it.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) server: Arc<Server>,
    pub(crate) script_settings: Arc<ScriptSettings>,
    pub(crate) connect_timeout: Duration,
    pub(crate) io_timeout: Duration,
    /// How many replicas must confirm a grant or renewal.
    pub(crate) replicas: u32,
    /// Whether the server must be a node of a Redis Cluster. Otherwise it must not be one.
    pub(crate) is_of_a_cluster: bool,
    /// Whether a connection has asked the server for its mode and for its policy when its memory is full. The
    /// first connection of the route asks.
    pub(crate) asked_about_itself: Arc<AtomicBool>,
    /// The attempts to connect to the server.
    pub(crate) connecting: Arc<Connecting>,
    /// Whether all connections lead to one server.
    pub(crate) together: Arc<Together>,
    /// Finds the addresses of the server's host.
    pub(crate) resolver: Arc<Resolver>,
    /// Signs that the server may have lost its data.
    pub(crate) data_loss_signs: Arc<DataLossSigns>,
    /// The counters of the manager's pools.
    pub(crate) pools: Arc<PoolCounters>,
}

impl Route {
    /// Returns the way to another server that may have the same locks. It shares all that does not belong to one server.
    pub(crate) fn to(&self, server: Server) -> Self {
        Self {
            server: Arc::new(server),
            asked_about_itself: Arc::default(),
            connecting: Arc::default(),
            together: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns a report of the server, in a store that has only one place.
    pub(crate) fn report(&self, failure: Option<&Failure>) -> NodeReport {
        NodeReport {
            place: 0,
            node: Some(Arc::clone(&self.server.address)),
            failure: failure.cloned(),
        }
    }
}

/// Returns the way to a server.
pub(crate) fn route(server: Server, settings: &Settings) -> Route {
    Route {
        server: Arc::new(server),
        script_settings: Arc::new(ScriptSettings::new(settings)),
        connect_timeout: settings.connect_timeout,
        io_timeout: settings.io_timeout,
        replicas: settings.replicas,
        is_of_a_cluster: false,
        asked_about_itself: Arc::default(),
        connecting: Arc::default(),
        together: Arc::default(),
        resolver: Arc::default(),
        data_loss_signs: Arc::default(),
        pools: Arc::clone(&settings.pools),
    }
}

/// Signs that a server may have lost its data: the times of the last one, and of the last answer without a request, in
/// nanoseconds of the machine's clock.
///
/// A connection that the other side closed or refused is such a sign. So is a server that is loading or has become a
/// replica. A server that does not answer may only be slow. All links along a route note their signs in one place, and
/// the layers above ask when the last one was seen.
///
/// An answer without a request is another sign: an earlier caller may have taken such an answer for its own. So every
/// lease that was confirmed before must be confirmed again.
#[derive(Debug, Default)]
pub(crate) struct DataLossSigns {
    last: AtomicU64,
    last_surplus: AtomicU64,
}

impl DataLossSigns {
    /// Returns when a sign was last seen. Returns the clock's zero if there was none.
    pub(crate) fn last(&self) -> Time {
        Time::from_nanos(self.last.load(Ordering::Acquire))
    }

    /// Returns when an answer without a request was last seen. Returns the clock's zero if there was none.
    pub(crate) fn last_surplus(&self) -> Time {
        Time::from_nanos(self.last_surplus.load(Ordering::Acquire))
    }

    /// Notes an answer without a request.
    pub(crate) fn note_surplus(&self) {
        self.note();
        self.last_surplus
            .fetch_max(self.last().as_nanos(), Ordering::AcqRel);
    }

    /// Notes an error of a connection.
    pub(crate) fn note_error(&self, error: &io::Error) {
        if CLOSED.contains(&error.kind()) || error.kind() == io::ErrorKind::ConnectionRefused {
            self.note();
        }
    }

    /// Notes an error answer.
    pub(crate) fn note_answer(&self, error: &redis::ServerError) {
        if says(error, &["LOADING", "READONLY", "MASTERDOWN"]) {
            self.note();
        }
    }

    /// Notes a sign.
    pub(crate) fn note(&self) {
        let now = Time::now().as_nanos();
        self.last.fetch_max(now, Ordering::AcqRel);
    }
}

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

/// The state of the route as one connection knows it. Before each request it looks whether that is still the latest.
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

    fn is_a_sign(note: impl FnOnce(&DataLossSigns)) -> bool {
        let signs = DataLossSigns::default();
        note(&signs);
        signs.last() > Time::from_nanos(0)
    }

    #[test]
    fn a_closed_or_refused_connection_is_a_sign_and_a_slow_one_is_not() {
        let error = |kind: io::ErrorKind| is_a_sign(|signs| signs.note_error(&kind.into()));
        assert!(CLOSED.iter().all(|kind| error(*kind)));
        assert!(error(io::ErrorKind::ConnectionRefused));
        assert!(!error(io::ErrorKind::TimedOut));
    }

    #[test]
    fn a_server_that_loads_or_is_a_replica_is_a_sign() {
        let answer = |line: &str| match redis::parse_redis_value(line.as_bytes()) {
            Ok(Value::ServerError(error)) => is_a_sign(|signs| signs.note_answer(&error)),
            other => panic!("{other:?}"),
        };
        assert!(answer("-LOADING Redis is loading\r\n"));
        assert!(answer("-READONLY You can't write\r\n"));
        assert!(!answer("-OOM command not allowed\r\n"));
    }

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
