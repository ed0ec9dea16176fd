//! A master of a cluster, with its own connections.

use once_cell::race::OnceBox;

use crate::config::{ClusterNodes, Server, Settings};
use crate::error::{Failure, FailureKind, Outcome};
use crate::logging;
use crate::net::pool::{Pool, PoolThreads};
use crate::net::route::{Route, route};
use crate::server::link::Link;
use crate::sys::{Arc, AtomicBool, Mutex, Ordering};

/// Where a node listens, in the words of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// A master, with its own pool of connections.
pub(super) struct Master {
    pub(super) address: Address,
    pub(super) route: Route,
    /// Empty before the first request.
    pool: OnceBox<Arc<Pool<Link>>>,
    /// A thread that makes the pool has it.
    making_pool: Mutex<()>,
    pool_size: u32,
    /// Whether a later map does not have this master.
    pub(super) is_retired: AtomicBool,
    /// Whether a request has failed since the last answer.
    pub(super) is_suspected: AtomicBool,
}

impl Master {
    pub(super) fn new(address: Address, route: Route, pool_size: u32) -> Arc<Self> {
        Arc::new(Self {
            address,
            route,
            pool: OnceBox::new(),
            making_pool: Mutex::default(),
            pool_size,
            is_retired: AtomicBool::new(false),
            is_suspected: AtomicBool::new(false),
        })
    }

    pub(super) fn pool(&self, threads: &PoolThreads) -> Result<&Arc<Pool<Link>>, Failure> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        // After a failover, many threads ask for the pool of the new master at once. One of them makes it.
        let _making = self.making_pool.lock();
        self.pool.get_or_try_init(|| {
            let way = Arc::new(self.route.clone());
            let link = move || Link::pooled(Arc::clone(&way), None);
            let counters = Arc::clone(&self.route.pools);
            let pool = Pool::new(link, self.pool_size, threads, counters)?;
            Ok(Box::new(pool))
        })
    }

    pub(super) fn note_answer(&self) {
        // Most answers find no suspicion, and write nothing.
        if self.is_suspected.load(Ordering::Relaxed)
            && self.is_suspected.swap(false, Ordering::Relaxed)
        {
            let address = &self.route.server.address;
            logging::info!("the master {address} answers again");
        }
    }

    /// Returns a failure to reach it with where its address is from: perhaps only the nodes reach that.
    pub(super) fn named(&self, failure: Failure) -> Failure {
        if !failure.is_of_io() {
            return failure;
        }
        let address = &self.route.server.address;
        failure.about(format!("the cluster names {address} as a master"))
    }

    /// Returns a failure if a later map does not have this master: another may have its slots.
    pub(super) fn check_in_use(&self) -> Result<(), Failure> {
        if !self.is_retired.load(Ordering::Acquire) {
            return Ok(());
        }
        let words = format!(
            "{} was replaced during the request",
            self.route.server.address
        );
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::Unknown,
            words,
        ))
    }
}

/// The parts of a way to a node.
pub(super) struct Routes {
    pub(super) nodes: ClusterNodes,
    pub(super) settings: Settings,
    /// A way to the first node that the user names. It has the parts that all nodes share.
    pub(super) first: Route,
    /// The threads of the pools of all masters.
    pub(super) threads: PoolThreads,
}

impl Routes {
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
