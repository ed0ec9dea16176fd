//! The servers of a manager, and the stores that they make.

use std::fmt;

use crate::config::{ClusterNodes, SentinelSet, Server, Settings};
use crate::error::{Error, Failure, Result};
#[cfg(doc)]
use crate::manager::LockManager;
use crate::quorum::Quorum;
use crate::server::Store;
use crate::server::cluster::Cluster;
use crate::server::single::Node;
use crate::sys::Arc;

/// The servers of a manager.
#[derive(Clone)]
pub(super) enum Servers {
    Single(String),
    /// The URLs of the sentinels, and the name of the master.
    Sentinel(Vec<String>, String),
    /// The URLs of some nodes.
    Cluster(Vec<String>),
    Quorum(Vec<Endpoint>),
}

impl Servers {
    /// Makes the store. Limits the leases, if the servers require it. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]: a URL or a setting cannot be used.
    /// [`Error::Unsupported`]: a node of a quorum is no single server.
    /// [`Error::Unavailable`]: the system starts no further thread.
    pub(super) fn store(&self, settings: &mut Settings) -> Result<Arc<dyn Store>> {
        let failed = |failure: Failure| failure.into_error(None);
        Ok(match self {
            Self::Single(url) => {
                let server = Server::new(url, settings)?;
                Arc::new(Node::new(server, settings).map_err(failed)?)
            }
            Self::Sentinel(urls, master) => {
                let sentinels = SentinelSet::new(urls, master, settings)?;
                Arc::new(Node::behind(sentinels, settings).map_err(failed)?)
            }
            Self::Cluster(urls) => {
                let nodes = ClusterNodes::new(urls, settings)?;
                Arc::new(Cluster::new(nodes, settings).map_err(failed)?)
            }
            Self::Quorum(nodes) => match nodes.as_slice() {
                [] => return Err(Error::config("nodes", "a quorum needs at least one node")),
                [only] => return only.servers.store(settings),
                nodes => {
                    let servers = nodes.iter().map(|node| node.server(settings));
                    let servers = servers.collect::<Result<_>>()?;
                    settings.check_quorum()?;
                    Arc::new(Quorum::new(servers, settings).map_err(failed)?)
                }
            },
        })
    }
}

/// A node of a quorum: see [`LockManager::quorum`]. A URL is one: `"redis://host/".into()`.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) servers: Servers,
}

impl Endpoint {
    /// Returns the master of a Sentinel set: see [`LockManager::sentinel`].
    ///
    /// As the only node it is the same as `LockManager::sentinel`. As one of several nodes it is not supported yet: then
    /// [`Builder::build`](crate::Builder::build) returns [`Error::Unsupported`]. A failover may make the new master forget
    /// a vote, and it could vote for a second owner at once. A single server that has restarted waits for
    /// [`restart_delay`](crate::Builder::restart_delay), but a promoted replica has been up for long.
    ///
    /// # Example
    ///
    /// ```
    /// use leasehold::{Endpoint, Error, LockManager};
    ///
    /// let set = Endpoint::sentinel(["redis://one:26379/", "redis://two:26379/"], "mymaster");
    /// let nodes = [set, "redis://three/".into(), "redis://four/".into()];
    /// assert!(matches!(LockManager::quorum(nodes).build(), Err(Error::Unsupported { .. })));
    /// ```
    pub fn sentinel<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, master: &str) -> Self {
        Self {
            servers: Servers::Sentinel(owned(urls), master.to_owned()),
        }
    }

    /// Returns a Redis Cluster: see [`LockManager::cluster`]. As one of several nodes it is not supported yet, for the
    /// reason that [`sentinel`](Self::sentinel) has.
    ///
    /// # Example
    ///
    /// ```
    /// use leasehold::{Endpoint, Error, LockManager};
    ///
    /// let cluster = Endpoint::cluster(["redis://one/", "redis://two/"]);
    /// let nodes = [cluster, "redis://three/".into(), "redis://four/".into()];
    /// assert!(matches!(LockManager::quorum(nodes).build(), Err(Error::Unsupported { .. })));
    /// ```
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self {
            servers: Servers::Cluster(owned(urls)),
        }
    }

    /// Returns the server, if it is a single one.
    fn server(&self, settings: &Settings) -> Result<Server> {
        let topology = match &self.servers {
            Servers::Single(url) => return Server::new(url, settings),
            Servers::Sentinel(..) => "a Sentinel set as a node of a quorum",
            Servers::Cluster(_) => "a Redis Cluster as a node of a quorum",
            Servers::Quorum(_) => "a quorum as a node of a quorum",
        };
        Err(Error::Unsupported {
            what: "after a failover it could vote for a second owner",
            topology,
        })
    }
}

impl From<&str> for Endpoint {
    fn from(url: &str) -> Self {
        url.to_owned().into()
    }
}

impl From<String> for Endpoint {
    fn from(url: String) -> Self {
        Self {
            servers: Servers::Single(url),
        }
    }
}

fn owned<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Vec<String> {
    let urls = urls.into_iter();
    urls.map(|url| url.as_ref().to_owned()).collect()
}

impl fmt::Debug for Endpoint {
    /// Writes nothing of the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}
