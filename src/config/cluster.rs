//! The nodes of a cluster that a user names, and those that they name.

use redis::{ConnectionAddr, RedisConnectionInfo};

use super::server::{Server, named_address};
use super::settings::Settings;
use crate::error::{Error, Result};

/// The nodes of a cluster from which the others are found.
#[derive(Clone, Debug)]
pub(crate) struct ClusterNodes {
    /// At least one. All have the same login, and all have TLS or none has.
    pub(crate) seeds: Vec<Server>,
}

impl ClusterNodes {
    /// Reads the URLs of the nodes.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] with the option `urls`, `database` or `url`.
    pub(crate) fn new(urls: &[String], settings: &Settings) -> Result<Self> {
        if settings.database.is_some_and(|number| number != 0) {
            return Err(Error::config("database", "a cluster has only database 0"));
        }
        let wrong = |reason: &str| Err(Error::config("urls", reason));
        let mut seeds = Vec::<Server>::with_capacity(urls.len());
        for url in urls {
            let server = Server::new(url, settings)?;
            if matches!(server.info.addr(), ConnectionAddr::Unix(_)) {
                return wrong("a node of a cluster has a host and a port");
            }
            if login(&server).db() != 0 {
                return wrong("a cluster has only database 0");
            }
            if let Some(first) = seeds.first() {
                if first.speaks_tls() != server.speaks_tls() {
                    return wrong("some have TLS, and others do not");
                }
                let both = [first, &server].map(login);
                let [one, other] = both.map(|login| (login.username(), login.password()));
                if one != other {
                    return wrong("the nodes of a cluster have one login, but these have several");
                }
            }
            if seeds.iter().any(|other| other.address == server.address) {
                return wrong("one of them is named twice");
            }
            seeds.push(server);
        }
        if seeds.is_empty() {
            return wrong("there is none");
        }
        Ok(Self { seeds })
    }

    /// Returns the server at an address that a node has named. Its login is that of the nodes that the user names.
    pub(crate) fn server_at(&self, host: &str, port: u16) -> Server {
        let address = named_address(host, port, self.seeds[0].speaks_tls());
        self.seeds[0].at(address)
    }
}

fn login(server: &Server) -> &RedisConnectionInfo {
    server.info.redis_settings()
}
