//! The servers of a quorum.

use std::time::Duration;

use leasehold::{Builder, LockManager};

use crate::Result;
use crate::cores::Cores;
use crate::server::Server;

/// The number of servers of each quorum here.
const NODES: usize = 5;
/// The time that a node gets for an answer. Long, because all nodes share a core, perhaps with other programs.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts independent servers for a quorum. All of them share the cores for servers.
pub fn start(cores: &Cores) -> Result<Vec<Server>> {
    (0..NODES).map(|_| Server::start(cores)).collect()
}

/// Returns the URLs of servers, in the form that [`builder`] and a job take.
pub fn urls<'a>(servers: impl IntoIterator<Item = &'a Server>) -> String {
    let urls: Vec<_> = servers.into_iter().map(Server::url).collect();
    urls.join(",")
}

/// Returns the settings of a quorum of these servers. They have just started, so they vote at once. A quorum of one
/// server is the same as [`LockManager::single`].
pub fn builder(urls: &str) -> Builder {
    LockManager::quorum(urls.split(','))
        .restart_delay(Duration::ZERO)
        .node_timeout(NODE_TIMEOUT)
}
