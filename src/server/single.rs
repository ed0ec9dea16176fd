//! One Redis server, at a fixed address or found by sentinels.

use crate::config::{SentinelSet, Server, Settings};
use crate::error::Failure;
use crate::net::deadline::{Deadline, Phase};
use crate::net::login::{Pinged, ping_all};
use crate::net::pool::{Pool, PoolThreads};
use crate::net::pubsub::{self, PubSubEvent};
use crate::net::route::{Route, route};
use crate::server::finder::Findings;
use crate::server::link::Link;
use crate::server::sentinel::Discovery;
use crate::server::{Answer, DedicatedConnection, Store};
use crate::sys::{Arc, Time};
use crate::wire::Request;

/// A node, and the store of one.
pub(crate) struct Node {
    pool: Arc<Pool<Link>>,
    _threads: PoolThreads,
    /// The way to the server. If sentinels find it, only the parts that all masters share.
    route: Route,
    discovery: Option<Arc<Discovery>>,
}

impl Node {
    pub(crate) fn new(server: Server, settings: &Settings) -> Result<Self, Failure> {
        Self::with_discovery(route(server, settings), None, settings)
    }

    pub(crate) fn behind(sentinels: SentinelSet, settings: &Settings) -> Result<Self, Failure> {
        let discovery = Discovery::new(sentinels, settings);
        let unknown = discovery.unknown.clone();
        Self::with_discovery(unknown, Some(Arc::new(discovery)), settings)
    }

    fn with_discovery(
        route: Route,
        discovery: Option<Arc<Discovery>>,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let threads = PoolThreads::start()?;
        let (way, finds) = (Arc::new(route.clone()), discovery.clone());
        let link = move || Link::pooled(Arc::clone(&way), finds.clone());
        let counters = Arc::clone(&settings.pools);
        Ok(Self {
            pool: Pool::new(link, settings.pool_size, &threads, counters)?,
            _threads: threads,
            route,
            discovery,
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(discovery) = &self.discovery {
            discovery.finder.end();
        }
    }
}

impl Store for Node {
    fn call(&self, request: &Request<'_>, mut deadline: Deadline<'_>) -> Result<Answer, Failure> {
        let Some(discovery) = &self.discovery else {
            return Link::call_in_turn(&self.pool, &self.route, request, false, &mut deadline);
        };
        // A call that waits for a master needs no connection yet.
        let time = deadline.phase(Phase::Master, self.route.connect_timeout);
        let is_known = |findings: &Findings<_>| findings.trusted().map(drop);
        discovery.finder.wait(time, is_known)?;
        // It goes alone: an answer counts only if its connection leads to the master.
        let mut link = self.pool.check_out(&mut deadline)?;
        link.call(request, &mut deadline)
    }

    fn ping(&self, mut deadline: Deadline<'_>) -> Result<Vec<Pinged>, Failure> {
        let route = match &self.discovery {
            None => self.route.clone(),
            Some(discovery) => {
                let time = deadline.phase(Phase::Master, self.route.connect_timeout);
                discovery.master(time)?.1
            }
        };
        Ok(ping_all(vec![route]))
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(Link::dedicated(self.route.clone(), self.discovery.clone()))
    }

    fn last_data_loss_sign(&self) -> Time {
        self.route.data_loss_signs.last()
    }

    fn last_surplus(&self) -> Time {
        self.route.data_loss_signs.last_surplus()
    }

    fn last_failover(&self) -> Time {
        let last = self.discovery.as_ref().map(|it| it.finder.last_failover());
        last.unwrap_or(Time::from_nanos(0))
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        match &self.discovery {
            None => pubsub::listen(&self.route, channels, hear),
            Some(discovery) => discovery.listen(channels, hear),
        }
    }
}
