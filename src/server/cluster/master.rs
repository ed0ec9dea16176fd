//! A master of a cluster, with its own connections.

use once_cell::race::OnceBox;

use crate::config::{ClusterNodes, Settings};
use crate::error::{Failure, FailureKind, Outcome};
use crate::logging;
use crate::net::pool::{Pool, PoolThreads};
use crate::net::refusal::unavailable;
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
    id: OnceBox<String>,
    pub(super) address: Address,
    pub(super) route: Route,
    /// Empty before the first request.
    pool: OnceBox<Arc<Pool<Link>>>,
    /// A thread that makes the pool has it.
    making_pool: Mutex<()>,
    /// Whether a later map does not have this master.
    pub(super) is_retired: AtomicBool,
    /// Whether a request has failed since the last answer.
    pub(super) is_suspected: AtomicBool,
}

impl Master {
    pub(super) fn new(address: Address, route: Route) -> Arc<Self> {
        Arc::new(Self {
            id: OnceBox::new(),
            address,
            route,
            pool: OnceBox::new(),
            making_pool: Mutex::default(),
            is_retired: AtomicBool::new(false),
            is_suspected: AtomicBool::new(false),
        })
    }

    /// Returns its id in the cluster, which is empty before a table has named it.
    pub(super) fn id(&self) -> &str {
        self.id.get().map_or("", |id| id)
    }

    /// Gives it this id, unless it has one.
    pub(super) fn becomes(&self, id: &str) {
        self.id.get_or_init(|| Box::new(id.to_owned()));
    }

    pub(super) fn pool(&self, routes: &Routes) -> Result<&Arc<Pool<Link>>, Failure> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        // After a failover, many threads ask for the pool of the new master at once. One of them makes it.
        let _making = self.making_pool.lock();
        self.pool.get_or_try_init(|| {
            let way = Arc::new(self.route.clone());
            let link = move || Link::pooled(Arc::clone(&way), None);
            let counters = Arc::clone(&self.route.pools);
            let pool = Pool::new(link, routes.pool_size, &routes.threads, counters)?;
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

    /// Returns why it is suspected.
    pub(super) fn why_suspected(&self) -> Failure {
        let failure = self.route.connecting.failure();
        failure.unwrap_or_else(|| self.late())
    }

    /// Returns the failure of a request that it has not answered by now.
    pub(super) fn late(&self) -> Failure {
        let address = &self.route.server.address;
        unavailable(format!("{address} has not answered a request"))
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

/// The ways to the nodes.
pub(super) struct Routes {
    pub(super) nodes: ClusterNodes,
    /// The way to the first node that the user names. It has what all ways share.
    pub(super) first: Route,
    /// The threads of the pools of all masters.
    threads: PoolThreads,
    pool_size: u32,
}

impl Routes {
    pub(super) fn new(nodes: ClusterNodes, settings: &Settings) -> Result<Self, Failure> {
        let first = route(nodes.seeds[0].clone(), settings);
        let script_settings = first.script_settings.as_ref().clone().of_a_cluster();
        Ok(Self {
            nodes,
            first: Route {
                script_settings: Arc::new(script_settings),
                is_of_a_cluster: true,
                ..first
            },
            threads: PoolThreads::start()?,
            pool_size: settings.pool_size,
        })
    }

    /// Returns the way to the node at an address.
    pub(super) fn to(&self, address: &Address) -> Route {
        self.first
            .to(self.nodes.server_at(&address.host, address.port))
    }

    /// Makes a master at an address.
    pub(super) fn new_master(&self, address: &Address) -> Arc<Master> {
        Master::new(address.clone(), self.to(address))
    }
}
