//! The way to a server, and the time that a call on this way has.

use std::time::{Duration, Instant};

use crate::config::{Server, Settings};
use crate::error::Failure;
use crate::script::ScriptSettings;
use crate::store::NodeReport;
use crate::store::server::cuts::Cuts;
use crate::store::transport::resolve::Resolver;
use crate::sync::{Arc, AtomicBool};

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
    /// Finds the addresses of the server's host.
    pub(crate) resolver: Arc<Resolver>,
    /// Signs that the server may have lost its data.
    pub(crate) cuts: Arc<Cuts>,
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
        resolver: Arc::default(),
        cuts: Arc::default(),
    }
}

/// The time of one step of a call.
#[derive(Clone, Copy)]
pub(crate) struct TimeSpan {
    pub(crate) begun: Instant,
    pub(crate) limit: Duration,
}

/// The time that a call still has.
pub(crate) struct Budget {
    pub(crate) started: Instant,
    whole: Duration,
}

impl Budget {
    pub(crate) fn new(whole: Duration) -> Self {
        Self::since(Instant::now(), whole)
    }

    /// Returns a budget that begins now.
    pub(crate) fn since(now: Instant, whole: Duration) -> Self {
        Self {
            started: now,
            whole,
        }
    }

    /// Returns a budget for steps that have time limits of their own.
    pub(crate) fn unlimited() -> Self {
        Self::new(Duration::MAX)
    }

    /// Returns the time for a step that may take at most `limit`. It is never zero, because zero would mean no limit.
    pub(crate) fn left(&self, limit: Duration) -> Duration {
        self.step(limit).limit
    }

    /// Returns the same, with the time at which the step begins.
    pub(crate) fn step(&self, limit: Duration) -> TimeSpan {
        let begun = Instant::now();
        let passed = begun.saturating_duration_since(self.started);
        let left = self.whole.saturating_sub(passed);
        TimeSpan {
            begun,
            limit: limit.min(left).max(Duration::from_millis(1)),
        }
    }
}
