//! The sentinels that a user names, and the servers behind them.

use redis::{ConnectionAddr, RedisConnectionInfo};

use super::server::{Server, named_address};
use super::settings::{Secret, Settings};
use crate::error::{Error, Result};

/// The sentinels of a master, and the master's name.
#[derive(Clone, Debug)]
pub(crate) struct SentinelSet {
    pub(crate) sentinels: Vec<Server>,
    pub(crate) master: String,
    /// Whether the sentinels speak TLS. Then the servers do so too.
    is_tls: bool,
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
        let mut sentinels = Vec::<Server>::with_capacity(urls.len());
        let mut is_tls = None;
        for url in urls {
            let server = Server::new(url, &of_sentinels)?;
            let speaks_tls = match server.info.addr() {
                ConnectionAddr::Tcp(..) => false,
                ConnectionAddr::TcpTls { .. } => true,
                _ => {
                    return Err(Error::config(
                        "sentinels",
                        "a sentinel has a host and a port",
                    ));
                }
            };
            if server.info.redis_settings().db() != 0 {
                let reason =
                    "a sentinel has no database; Builder::database sets that of the master";
                return Err(Error::config("sentinels", reason));
            }
            if *is_tls.get_or_insert(speaks_tls) != speaks_tls {
                return Err(Error::config(
                    "sentinels",
                    "some have TLS, and others do not",
                ));
            }
            if sentinels
                .iter()
                .any(|other| other.address == server.address)
            {
                return Err(Error::config("sentinels", "one of them is named twice"));
            }
            sentinels.push(server);
        }
        let Some(is_tls) = is_tls else {
            return Err(Error::config("sentinels", "there is none"));
        };
        Ok(Self {
            sentinels,
            master: master.to_owned(),
            is_tls,
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
        let address = named_address(host, port, self.is_tls);
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
