//! The way to a server.

use std::io;
use std::time::Duration;

use crate::config::{Server, Settings};
use crate::error::Failure;
use crate::net::connecting::Connecting;
use crate::net::refusal::says;
use crate::net::resolve::Resolver;
use crate::net::socket::CLOSED;
use crate::net::together::Together;
use crate::stats::PoolCounters;
use crate::sys::{Arc, AtomicBool, AtomicU64, Ordering, Time};
use crate::wire::ScriptSettings;

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
        script_settings: Arc::new(
            ScriptSettings::new(settings.fence_memory, settings.io_timeout)
                .with_gap(settings.poller_gap, settings.fixed_quantum()),
        ),
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

#[cfg(test)]
mod tests {
    use super::*;

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
            Ok(redis::Value::ServerError(error)) => is_a_sign(|signs| signs.note_answer(&error)),
            other => panic!("{other:?}"),
        };
        assert!(answer("-LOADING Redis is loading\r\n"));
        assert!(answer("-READONLY You can't write\r\n"));
        assert!(!answer("-OOM command not allowed\r\n"));
    }
}
