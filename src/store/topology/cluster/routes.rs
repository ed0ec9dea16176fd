//! The ways to the nodes of a cluster.

use crate::config::{ClusterNodes, Server, Settings};
use crate::error::Failure;
use crate::store::server::pool::PoolThreads;
use crate::store::server::route::{Route, route};
use crate::store::topology::cluster::master::{Address, Master};
use crate::sys::Arc;

/// The parts of a way to a node.
pub(super) struct ClusterRoutes {
    pub(super) nodes: ClusterNodes,
    pub(super) settings: Settings,
    /// A way to the first node that the user names. It has the parts that all nodes share.
    pub(super) first: Route,
    /// The threads of the pools of all masters.
    pub(super) threads: PoolThreads,
}

impl ClusterRoutes {
    pub(super) fn new(nodes: ClusterNodes, settings: &Settings) -> Result<Self, Failure> {
        let settings = Settings {
            // Only the events thread may keep it.
            listener: None,
            ..settings.clone()
        };
        Ok(Self {
            first: of_a_cluster(route(nodes.seeds[0].clone(), &settings)),
            threads: PoolThreads::start()?,
            nodes,
            settings,
        })
    }

    /// Returns the way to a server.
    pub(super) fn to(&self, server: Server) -> Route {
        Route {
            data_loss_signs: Arc::clone(&self.first.data_loss_signs),
            resolver: Arc::clone(&self.first.resolver),
            script_settings: Arc::clone(&self.first.script_settings),
            ..of_a_cluster(route(server, &self.settings))
        }
    }

    /// Returns the way to the node at an address.
    pub(super) fn to_address(&self, address: &Address) -> Route {
        self.to(self.nodes.server_at(&address.host, address.port))
    }

    /// Makes a master at an address.
    pub(super) fn new_master(&self, address: &Address) -> Arc<Master> {
        let route = self.to_address(address);
        Master::new(address.clone(), route, self.settings.pool_size)
    }
}

/// Returns the way to a node of a cluster.
fn of_a_cluster(route: Route) -> Route {
    let script_settings = route.script_settings.as_ref().clone().of_a_cluster();
    Route {
        script_settings: Arc::new(script_settings),
        is_of_a_cluster: true,
        ..route
    }
}
