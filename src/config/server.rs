//! The servers: the one that a URL names, the nodes of a cluster, and the sentinels of a set with the servers behind them.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use super::credentials::Logins;
#[cfg(feature = "tls")]
use super::tls::{self, TlsClients};
use super::{Secret, Settings};
use crate::error::{Error, Result};
use crate::sys::{Arc, Time};

/// One server, in the form that the redis crate needs.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) info: ConnectionInfo,
    /// The address, without user or password.
    pub(crate) address: Arc<str>,
    /// Where each login asks for the password, if it may change.
    logins: Option<Arc<Logins>>,
    /// The certificates, if the program has given some.
    #[cfg(feature = "tls")]
    tls: Option<Arc<TlsClients>>,
}

/// The nodes of a cluster from which the others are found.
#[derive(Clone, Debug)]
pub(crate) struct ClusterNodes {
    /// At least one. All have the same login, and all have TLS or none has.
    pub(crate) seeds: Vec<Server>,
}

/// The sentinels of a master, and the master's name.
#[derive(Clone, Debug)]
pub(crate) struct SentinelSet {
    pub(crate) sentinels: Vec<Server>,
    pub(crate) master: String,
}

/// Returns an address that another server has named, with TLS or without.
fn named_address(host: &str, port: u16, is_tls: bool) -> ConnectionAddr {
    let host = host.to_owned();
    if is_tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// Reads the URLs of the sentinels of a set, or of the nodes of a cluster. Such a server has no database, and `no_database`
/// says what to do instead.
///
/// # Errors
///
/// [`Error::Config`] with `option`, or with the option `url`.
fn seeds(
    urls: &[String],
    settings: &Settings,
    option: &'static str,
    no_database: &str,
) -> Result<Vec<Server>> {
    let wrong = |reason: &str| Err(Error::config(option, reason));
    let mut seeds = Vec::<Server>::with_capacity(urls.len());
    for url in urls {
        let server = Server::new(url, settings)?;
        if matches!(server.info.addr(), ConnectionAddr::Unix(_)) {
            return wrong("each has a host and a port");
        }
        if server.info.redis_settings().db() != 0 {
            return wrong(no_database);
        }
        if seeds
            .iter()
            .any(|other| other.speaks_tls() != server.speaks_tls())
        {
            return wrong("some have TLS, and others do not");
        }
        if seeds.iter().any(|other| other.address == server.address) {
            return wrong("one of them is named twice");
        }
        seeds.push(server);
    }
    if seeds.is_empty() {
        return wrong("there is none");
    }
    Ok(seeds)
}

impl Server {
    /// Reads a `redis://`, `rediss://` (feature `tls`), `valkey://` or `unix://` URL. A database, user or password in
    /// the settings overrides the one in the URL.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]; its text never repeats the URL, which may hold a password.
    pub(crate) fn new(url: &str, settings: &Settings) -> Result<Self> {
        let mut server = Self::parse(url)?;
        let mut login = server.info.redis_settings().clone();
        if let Some(number) = settings.database {
            login = login.set_db(number);
        }
        if let Some(username) = &settings.username {
            login = login.set_username(username);
        }
        if let Some(Secret(password)) = &settings.password {
            login = login.set_password(password);
        }
        server.info = server.info.set_redis_settings(login);
        server.logins.clone_from(&settings.logins);
        #[cfg(feature = "tls")]
        if let Some(tls) = &settings.tls {
            if !server.speaks_tls() {
                let reason = format!("{} has no TLS; begin its URL with rediss", server.address);
                return Err(Error::config("tls", reason));
            }
            server.tls = Some(Arc::clone(tls));
        }
        Ok(server)
    }

    /// Returns whether the server is reached by TLS.
    pub(crate) fn speaks_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Returns the server at another address, with this login and these certificates.
    fn at(&self, address: ConnectionAddr) -> Self {
        let mut server = self.clone();
        server.address = address.to_string().into();
        server.info = server.info.set_addr(address);
        server
    }

    /// Returns the configuration of rustls for a new connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the certificates of the system cannot be read.
    #[cfg(feature = "tls")]
    pub(crate) fn tls_config(&self) -> std::io::Result<Arc<rustls::ClientConfig>> {
        match &self.tls {
            Some(tls) => Ok(tls.config()),
            None => tls::default_config(),
        }
    }

    /// Returns whether the program's certificates have changed since `begun`: see [`TlsClients::have_changed_since`].
    #[cfg_attr(not(feature = "tls"), allow(unused_variables, clippy::unused_self))]
    pub(crate) fn certificates_have_changed_since(&self, begun: Time) -> bool {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.have_changed_since(begun);
        }
        false
    }

    /// Reads a URL, as [`Self::new`] does, without settings.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let wrong = |what: &str| {
            let how = if is_of_a_socket(url) {
                SOCKET_FORM
            } else {
                HOST_FORM
            };
            Error::config("url", format!("{what}; write {how}"))
        };
        let Some(parsed) = redis::parse_redis_url(url) else {
            return Err(wrong(what_does_not_parse(url)));
        };
        // The redis crate ignores parameters that it does not know.
        let known = if is_of_a_socket(url) {
            &["db", "user", "pass", "protocol"][..]
        } else {
            &["protocol"]
        };
        if parsed
            .query_pairs()
            .any(|(name, _)| !known.contains(&&*name))
        {
            let known = known.join("`, `");
            return Err(wrong(&format!("it has a parameter other than `{known}`")));
        }
        let is_tls = ["rediss", "valkeys"].contains(&parsed.scheme());
        // Another crate of the program may have turned on TLS in the redis crate.
        if is_tls && cfg!(not(feature = "tls")) {
            let reason = "TLS needs `features = [\"tls\"]` of leasehold in Cargo.toml";
            return Err(Error::config("url", reason));
        }
        if parsed.fragment().is_some() && !is_tls {
            return Err(wrong("it has a fragment, which begins with #"));
        }
        // The redis crate's sentence gives the reason. Its details quote the input, so they are left out.
        let info = url
            .into_connection_info()
            .map_err(|error| wrong(&description(&error)))?;
        if info.redis_settings().db() < 0 {
            return Err(wrong("its database is negative"));
        }
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            info.addr()
        {
            if host.is_empty() || *port == 0 {
                return Err(wrong("it has no host, or its port is 0"));
            }
        }
        if let ConnectionAddr::TcpTls { insecure, .. } = info.addr() {
            if *insecure {
                let reason = "a server without a trusted certificate is not supported";
                return Err(Error::config("url", reason));
            }
        }
        let address = info.addr().to_string().into();
        Ok(Self {
            info,
            address,
            logins: None,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// Returns the user and the password for a login.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is none now, in words.
    pub(crate) fn login(&self) -> std::result::Result<[Option<String>; 2], String> {
        let fixed = self.info.redis_settings();
        let user = fixed.username().map(str::to_owned);
        let Some(logins) = &self.logins else {
            return Ok([user, fixed.password().map(str::to_owned)]);
        };
        let (other, password) = logins.next()?;
        Ok([other.or(user), Some(password).filter(|it| !it.is_empty())])
    }

    /// Returns a text that the server sent, with `<password>` in place of the password.
    pub(crate) fn without_password(&self, text: &str) -> String {
        let text = match self.info.redis_settings().password() {
            Some(password) if !password.is_empty() => text.replace(password, "<password>"),
            _ => text.to_owned(),
        };
        match &self.logins {
            Some(logins) => logins.hide(text),
            None => text,
        }
    }
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
        let seeds = seeds(urls, settings, "urls", "a cluster has only database 0")?;
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
        // The database and the login that may change are those of the master.
        let of_sentinels = Settings {
            database: None,
            logins: None,
            ..settings.clone()
        };
        let no_database = "a sentinel has no database; Builder::database sets that of the master";
        let sentinels = seeds(urls, &of_sentinels, "sentinels", no_database)?;
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
        server.logins.clone_from(&settings.logins);
        server
    }
}

/// The form of a server's URL.
const HOST_FORM: &str = "redis://user:password@host:port/database, where all but the host may be left out, and a special \
                         character in the user or password is percent-encoded, such as %40 for @";
/// The form of a Unix socket's URL.
const SOCKET_FORM: &str = "unix:///path?user=…&pass=…&db=…, where the parameters may be left out, and are percent-encoded";

fn is_of_a_socket(url: &str) -> bool {
    let scheme = url
        .split(':')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    scheme == "unix" || scheme.ends_with("+unix")
}

/// Returns the reason why a URL does not parse.
fn what_does_not_parse(url: &str) -> &'static str {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "it has no scheme";
    };
    let scheme = scheme.to_ascii_lowercase();
    if !["redis", "rediss", "valkey", "valkeys"].contains(&&*scheme) && !is_of_a_socket(url) {
        return "its scheme is unknown";
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    if name.is_empty() {
        "it has no host"
    } else if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        "its port is not a number from 1 to 65535"
    } else {
        "its host cannot be read"
    }
}

/// Returns the redis crate's sentence for an error, without the details behind it.
fn description(error: &redis::RedisError) -> String {
    let text = error.to_string();
    let kept = text.split(" - ").next().unwrap_or_default();
    kept.trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let server = Server::parse("redis://user:s3cret%3A@example.org:7000/3").expect("a URL");
        assert_eq!(&*server.address, "example.org:7000");
        assert_eq!(server.info.redis_settings().db(), 3);
        assert_eq!(server.info.redis_settings().password(), Some("s3cret:"));
        let settings = Settings {
            database: Some(5),
            ..Settings::default()
        };
        let server = Server::new("redis://h/3", &settings).expect("a URL");
        assert_eq!(server.info.redis_settings().db(), 5);
        assert!(Server::parse("unix:///run/redis.sock?db=2").is_ok());
    }

    #[test]
    fn the_login_that_may_change_is_that_of_all_but_the_sentinels() {
        let settings = Settings {
            logins: Some(Logins::of_program(|| (None, "new".to_owned()))),
            node_credentials: Some((Some("node".to_owned()), Secret("old".to_owned()))),
            ..Settings::default()
        };
        let login = |server: &Server| {
            let [user, password] = server.login().expect("it has one");
            format!(
                "{}:{}",
                user.unwrap_or_default(),
                password.unwrap_or_default()
            )
        };
        let url = || ["redis://me:old@h1/".to_owned()];
        let set = SentinelSet::new(&url(), "mine", &settings).expect("a URL");
        assert_eq!(login(&set.sentinels[0]), "me:old");
        assert_eq!(login(&set.server_at("h2", 1, &settings)), "node:new");
        let nodes = ClusterNodes::new(&url(), &settings).expect("a URL");
        assert_eq!(login(&nodes.seeds[0]), "me:new");
        assert_eq!(login(&nodes.server_at("h2", 1)), "me:new");
        // Each node of a quorum is such a server.
        let single = Server::new("redis://h1/", &settings).expect("a URL");
        assert_eq!(login(&single), ":new");
    }

    /// Other crates of this build know TLS; that is none of this one's.
    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_needs_its_feature() {
        let error = Server::parse("rediss://h/").expect_err("there is no TLS");
        assert!(
            error.to_string().contains("features = [\"tls\"]"),
            "{error}"
        );
    }

    #[test]
    fn bad_urls_are_refused_without_being_repeated() {
        for url in [
            "",
            "nonsense",
            "http://:s3cret@h",
            "redis://:s3cret@h:99999",
            "redis://:s3cret@h/x",
            "redis://:s3cret@/",
            "redis://:s3cret@h/-1",
            "redis://:s3cret@0.0.0.0",
            "redis://:s3cret@h:0",
            "redis://:s3cret%ff@h/",
            "redis://h?protocol=s3cret",
            "unix://?pass=s3cret&db=s3cret",
            "redis://h/?s3cret=1",
            "unix:///path?s3cret=1",
            "redis://h/#s3cret",
        ] {
            let error = Server::parse(url).expect_err(url);
            let text = format!("{error} {error:?}");
            assert!(!text.contains("s3cret"), "{text}");
            // The error says how to write it.
            assert!(text.contains("://") || text.contains("TLS"), "{text}");
        }
    }

    #[test]
    fn the_error_of_a_url_names_what_is_wrong() {
        for (url, what) in [
            ("localhost:6379", "it has no scheme"),
            ("http://h/", "its scheme is unknown"),
            ("redis://user:pa/ss@h/", "its port is not a number"),
            ("redis://h:70000/", "its port is not a number"),
            ("redis://:1/", "it has no host"),
            ("redis://h:0/", "it has no host, or its port is 0"),
            ("redis://h h/", "its host cannot be read"),
            ("redis://h/one", "invalid database number"),
            (
                "redis://h/?db=1",
                "it has a parameter other than `protocol`",
            ),
            (
                "unix:///run/redis.sock?name=a",
                "it has a parameter other than `db`",
            ),
        ] {
            let text = Server::parse(url).expect_err(url).to_string();
            assert!(
                text.starts_with(&format!("invalid `url`: {what}")),
                "{url}: {text}"
            );
        }
    }

    #[test]
    fn the_settings_come_before_the_url() {
        let settings = Settings {
            username: Some("mine".into()),
            password: Some(Secret("s3cret".into())),
            database: Some(4),
            ..Settings::default()
        };
        assert!(!format!("{settings:?}").contains("s3cret"));
        for url in [
            "redis://h/",
            "redis://user:pass@h/3",
            "unix:///run/redis.sock?user=u&pass=p",
        ] {
            let server = Server::new(url, &settings).expect("a URL");
            let login = server.info.redis_settings();
            assert_eq!(login.username(), Some("mine"));
            assert_eq!(login.password(), Some("s3cret"));
            assert_eq!(login.db(), 4);
        }
    }
}
