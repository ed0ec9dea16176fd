//! The nodes of a cluster that a user names, and those that they name.

use super::server::{self, Server, named_address};
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
        let seeds = server::seeds(urls, settings, "urls", "a cluster has only database 0")?;
        let login = |server: &Server| {
            let login = server.info.redis_settings();
            [login.username(), login.password()].map(|it| it.map(str::to_owned))
        };
        if seeds.iter().any(|seed| login(seed) != login(&seeds[0])) {
            let reason = "the nodes of a cluster have one login, but these have several";
            return Err(Error::config("urls", reason));
        }
        Ok(Self { seeds })
    }

    /// Returns the server at an address that a node has named. Its login is that of the nodes that the user names.
    pub(crate) fn server_at(&self, host: &str, port: u16) -> Server {
        let address = named_address(host, port, self.seeds[0].speaks_tls());
        self.seeds[0].at(address)
    }
}
