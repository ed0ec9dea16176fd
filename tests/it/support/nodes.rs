//! The nodes of a quorum: several servers of one test, which the test may stop and configure. The servers that tests
//! share.

use std::cell::Cell;
use std::env;
use std::sync::LazyLock;
use std::thread::{self, ScopedJoinHandle};

use leasehold::{Builder, LockManager};

use super::{Raw, Server, build, log, patient, unused_url};

thread_local! {
    /// How many servers [`shared`] and [`start_servers`] return in this test.
    static NODES: Cell<usize> = const { Cell::new(1) };
}

/// Runs a test on a quorum of this many servers. The threads that the test starts must not call [`shared`] or
/// [`start_servers`].
pub(crate) fn on_nodes(count: usize, test: impl FnOnce()) {
    NODES.set(count);
    test();
    NODES.set(1);
}

/// Returns the server or the nodes that tests share: the server of `REDIS_URL`, or else one for all tests of this
/// process. A test of a quorum has nodes that are shared by all such tests of this process.
///
/// No test may flush, stop or configure them. Names on them must be made by [`super::name`].
pub(crate) fn shared() -> &'static Raw {
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
    if NODES.get() == 1 {
        &SERVER.0
    } else {
        &QUORUM.0
    }
}

/// Starts the server, or the nodes, of a test that may stop and configure them.
#[track_caller]
pub(crate) fn start_servers() -> Nodes {
    Nodes::start(NODES.get())
}

/// Returns the URL of a server, or of nodes, that do not exist.
pub(crate) fn unused_urls() -> String {
    vec![(); NODES.get()]
        .iter()
        .map(|()| unused_url())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Several independent servers.
pub(crate) struct Nodes(Vec<Server>);

impl Nodes {
    /// Starts this number of servers, in parallel.
    #[track_caller]
    pub(crate) fn start(count: usize) -> Self {
        Self::start_each(count, Server::start)
    }

    /// Starts this number of servers by `start`, in parallel.
    #[track_caller]
    pub(crate) fn start_each(count: usize, start: impl Fn() -> Server + Sync) -> Self {
        thread::scope(|scope| {
            let starting: Vec<_> = (0..count).map(|_| scope.spawn(&start)).collect();
            let servers = starting.into_iter().map(ScopedJoinHandle::join);
            Self(servers.map(|server| server.expect("it starts")).collect())
        })
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    /// Returns settings for a busy machine. The nodes are new, so they vote at once.
    pub(crate) fn builder(&self) -> Builder {
        patient(&self.url())
    }

    /// Returns a new manager. To a lock, two managers are like two processes.
    #[track_caller]
    pub(crate) fn manager(&self) -> LockManager {
        build(self.builder())
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.0
    }

    pub(crate) fn raws(&self) -> Vec<Raw> {
        self.0.iter().map(Server::raw).collect()
    }

    /// Returns the URLs of all nodes as one text.
    pub(crate) fn url(&self) -> String {
        self.urls().join(" ")
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::new(&self.url())
    }

    pub(crate) fn pause(&self) {
        self.0.iter().for_each(Server::pause);
    }

    pub(crate) fn resume(&self) {
        self.0.iter().for_each(Server::resume);
    }

    /// Kills all servers, and starts empty ones.
    pub(crate) fn restart(&self) {
        self.0.iter().for_each(Server::kill);
        self.0.iter().for_each(Server::restart);
    }
}
