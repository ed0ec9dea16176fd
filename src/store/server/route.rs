//! The way to a server.

use std::time::Duration;

use crate::config::{Server, Settings};
use crate::error::Failure;
use crate::script::ScriptSettings;
use crate::stats::PoolCounters;
use crate::store::NodeReport;
use crate::store::server::data_loss_signs::DataLossSigns;
use crate::store::transport::resolve::Resolver;
use crate::sys::{Arc, AtomicBool};

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
        resolver: Arc::default(),
        data_loss_signs: Arc::default(),
        pools: Arc::clone(&settings.pools),
    }
}
