//! The nodes of a quorum: several servers of one test, which the test may stop and configure.

use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use leasehold::{Builder, LockManager};

use super::{Raw, Server, build, secs};

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
        patient_quorum(self.urls())
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
}

/// Returns settings of a quorum for a busy machine, whose nodes may take longer than the default allows.
pub(crate) fn patient_quorum(urls: Vec<String>) -> Builder {
    LockManager::quorum(urls)
        .connect_timeout(secs(10))
        .io_timeout(secs(5))
        .node_timeout(secs(5))
        .restart_delay(Duration::ZERO)
}
