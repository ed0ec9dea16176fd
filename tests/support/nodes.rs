//! The servers of one test, which the test may stop and configure, on each topology. The servers that tests share.

use std::cell::Cell;
use std::env;
use std::sync::LazyLock;
use std::thread::{self, ScopedJoinHandle};

use leasehold::{Builder, LockManager};

use super::{BEHIND, CLUSTER, Cluster, Raw, Sentinels, Server, build, log, patient};

/// The servers of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Single,
    /// A quorum of three nodes.
    Quorum,
    /// The master of a Sentinel set.
    Sentinel,
    /// Three masters of a Cluster.
    Cluster,
}

thread_local! {
    /// The topology of the servers that [`shared`] and [`start_servers`] return in this test.
    static TOPOLOGY: Cell<Topology> = const { Cell::new(Topology::Single) };
}

/// Runs a test on a topology. The threads that the test starts must not call [`shared`] or [`start_servers`].
pub fn on(topology: Topology, test: impl FnOnce()) {
    TOPOLOGY.set(topology);
    test();
    TOPOLOGY.set(Topology::Single);
}

/// Returns the servers that tests share: the server of `REDIS_URL`, or else one for all tests of this process. On
/// another topology, all such tests of this process share servers too.
///
/// No test may flush, stop or configure them. Names on them must be made by [`super::name`].
pub fn shared() -> &'static Raw {
    static SERVER: LazyLock<(Raw, Option<Server>)> = LazyLock::new(|| {
        log::install();
        if let Some(url) = env::var("REDIS_URL").ok().filter(|url| !url.is_empty()) {
            return (Raw::new(&url), None);
        }
        let server = Server::start();
        (server.raw(), Some(server))
    });
    static QUORUM: LazyLock<(Raw, Nodes)> = LazyLock::new(|| {
        let nodes = start_servers();
        (nodes.raw(), nodes)
    });
    static SENTINEL: LazyLock<(Raw, Nodes)> = LazyLock::new(|| {
        let nodes = start_servers();
        (nodes.raw(), nodes)
    });
    static CLUSTER: LazyLock<(Raw, Nodes)> = LazyLock::new(|| {
        let nodes = start_servers();
        (nodes.raw(), nodes)
    });
    match TOPOLOGY.get() {
        Topology::Single => &SERVER.0,
        Topology::Quorum => &QUORUM.0,
        Topology::Sentinel => &SENTINEL.0,
        Topology::Cluster => &CLUSTER.0,
    }
}

/// Starts the servers of a test that may stop and configure them.
#[track_caller]
pub fn start_servers() -> Nodes {
    match TOPOLOGY.get() {
        Topology::Single => Nodes::start(1),
        Topology::Quorum => Nodes::start(3),
        Topology::Sentinel => Nodes::behind_sentinels(),
        Topology::Cluster => Nodes {
            is_cluster: true,
            ..Cluster::without_failover()
        },
    }
}

/// Several independent servers, the master of a Sentinel set, or the masters of a Cluster.
pub struct Nodes {
    servers: Vec<Server>,
    /// The rest of the Sentinel set.
    sentinels: Option<Sentinels>,
    is_cluster: bool,
}

impl Nodes {
    /// Starts this number of servers, in parallel.
    #[track_caller]
    pub fn start(count: usize) -> Self {
        Self::start_each(count, Server::start)
    }

    /// Starts this number of servers by `start`, in parallel.
    #[track_caller]
    pub fn start_each(count: usize, start: impl Fn() -> Server + Sync) -> Self {
        thread::scope(|scope| {
            let starting: Vec<_> = (0..count).map(|_| scope.spawn(&start)).collect();
            let servers = starting.into_iter().map(ScopedJoinHandle::join);
            Self {
                servers: servers.map(|server| server.expect("it starts")).collect(),
                sentinels: None,
                is_cluster: false,
            }
        })
    }

    /// Starts a Sentinel set that does not fail over within a test.
    #[track_caller]
    fn behind_sentinels() -> Self {
        let mut sentinels = Sentinels::without_failover();
        Self {
            servers: vec![sentinels.take_master()],
            sentinels: Some(sentinels),
            is_cluster: false,
        }
    }

    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// Returns settings for a busy machine. The nodes are new, so they vote at once.
    pub fn builder(&self) -> Builder {
        patient(&self.url())
    }

    /// Returns a new manager. To a lock, two managers are like two processes.
    #[track_caller]
    pub fn manager(&self) -> LockManager {
        build(self.builder())
    }

    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub fn raws(&self) -> Vec<Raw> {
        self.servers.iter().map(Server::raw).collect()
    }

    /// Returns one text for all URLs: see [`settings_of`](super::settings_of).
    pub fn url(&self) -> String {
        let mut words = self.urls();
        if let Some(sentinels) = &self.sentinels {
            words.push(BEHIND.to_owned());
            words.extend(sentinels.urls());
        }
        if self.is_cluster {
            words.push(CLUSTER.to_owned());
        }
        words.join(" ")
    }

    pub fn raw(&self) -> Raw {
        Raw::new(&self.url())
    }

    pub fn pause(&self) {
        self.servers.iter().for_each(Server::pause);
    }

    pub fn resume(&self) {
        self.servers.iter().for_each(Server::resume);
    }

    /// Kills all servers, and starts empty ones. Those of a Cluster keep their slots.
    pub fn restart(&self) {
        if self.is_cluster {
            self.servers.iter().for_each(Server::kill_for_now);
            self.servers.iter().for_each(Server::start_again);
            return;
        }
        self.servers.iter().for_each(Server::kill);
        self.servers.iter().for_each(Server::restart);
    }
}
