//! The sentinels that a user names, and the servers behind them.

use redis::RedisConnectionInfo;

use super::server::{self, Server, named_address};
use super::settings::{Secret, Settings};
use crate::error::{Error, Result};

/// The sentinels of a master, and the master's name.
#[derive(Clone, Debug)]
pub(crate) struct SentinelSet {
    pub(crate) sentinels: Vec<Server>,
    pub(crate) master: String,
}

impl SentinelSet {
    /// Reads the URLs of the sentinels.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] with the option `sentinels`, `master` or `url`.
    pub(crate) fn new(urls: &[String], master: &str, settings: &Settings) -> Result<Self> {
        if master.is_empty() {
            return Err(Error::config("master", "it has no name"));
        }
        // The database is that of the master. Sentinels have none.
        let of_sentinels = Settings {
            database: None,
            ..settings.clone()
        };
        let no_database = "a sentinel has no database; Builder::database sets that of the master";
        let sentinels = server::seeds(urls, &of_sentinels, "sentinels", no_database)?;
        Ok(Self {
            sentinels,
            master: master.to_owned(),
        })
    }

    /// Returns the server of the master while its address is not known. It is only for messages.
    pub(crate) fn unknown_master(&self) -> Server {
        let mut server = self.sentinels[0].clone();
        server.address = format!("the master {:?}", self.master).into();
        server
    }

    /// Returns the server at an address that the sentinels have named.
    pub(crate) fn server_at(&self, host: &str, port: u16, settings: &Settings) -> Server {
        // If the sentinels have TLS, the servers have it too.
        let address = named_address(host, port, self.sentinels[0].speaks_tls());
        let mut login = RedisConnectionInfo::default().set_db(settings.database.unwrap_or(0));
        if let Some((user, Secret(password))) = &settings.node_credentials {
            login = login.set_password(password);
            if let Some(user) = user {
                login = login.set_username(user);
            }
        }
        let mut server = self.sentinels[0].at(address);
        server.info = server.info.set_redis_settings(login);
        server
    }
}
