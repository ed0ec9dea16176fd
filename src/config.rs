//! The settings, parsed and checked. Nothing past this module sees a URL or a number out of bounds.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::error::{Error, Result};
use crate::event::SharedListener;
use crate::owner::{MARK, MAX_LABEL, is_label};
use crate::sync::Arc;

/// The shortest lease: below it, the drift taken off and one request would leave nothing.
pub(crate) const MIN_LEASE: Duration = Duration::from_millis(10);
/// The longest lease: a crashed holder delays the others for as long.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest gap that a mutex is left free for clients that poll. `gap.lua` has it too.
const LONGEST_GAP: Duration = Duration::from_millis(500);
/// More replicas than anybody has: a larger number is a mistake.
const MAX_REPLICAS: u32 = 1000;
/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 1024;

/// What a tenure was granted on. It is passed only between threads that ask for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Small, because every tenure has it: a day has 86,400,000.
    lease_ms: u32,
    pub(crate) renew: bool,
}

impl Terms {
    /// The lease is rounded up to what Redis counts in.
    pub(crate) const fn new(lease: Duration, renew: bool) -> Self {
        let ms = lease.as_nanos().div_ceil(1_000_000);
        debug_assert!(ms <= MAX_LEASE.as_millis(), "it was checked");
        Self {
            lease_ms: ms as u32,
            renew,
        }
    }

    pub(crate) fn lease(self) -> Duration {
        Duration::from_millis(self.lease_ms.into())
    }
}

/// What a handle asks for: the manager's defaults, or its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
}

impl Options {
    /// # Errors
    ///
    /// [`Error::Config`] where something is out of bounds.
    pub(crate) fn check(&self) -> Result<()> {
        if self.max_hold == Some(Duration::ZERO) {
            return Err(Error::config("max_hold", "zero"));
        }
        if self.min_hold > MAX_LEASE {
            let reason = format!("{:?} is longer than 24 h", self.min_hold);
            return Err(Error::config("min_hold", reason));
        }
        if (MIN_LEASE..=MAX_LEASE).contains(&self.lease) {
            return Ok(());
        }
        let reason = format!("{:?} is not between 10 ms and 24 h", self.lease);
        Err(Error::config("lease", reason))
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms::new(self.lease, self.renew)
    }
}

/// A password among the settings, which Debug does not show.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<password>")
    }
}

/// Everything a manager was built with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: String,
    pub(crate) label: String,
    pub(crate) options: Options,
    pub(crate) quantum: Duration,
    pub(crate) poller_gap: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) io_timeout: Duration,
    pub(crate) outage_limit: Duration,
    /// Whether a wait begins with its call, and not with its first answer.
    pub(crate) wait_through_outages: bool,
    pub(crate) fence_memory: Duration,
    pub(crate) pool_size: u32,
    pub(crate) background_release: bool,
    pub(crate) replicas: u32,
    pub(crate) database: Option<i64>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) warn_after: Option<Duration>,
    pub(crate) listener: Option<SharedListener>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            label: default_label(),
            options: Options {
                lease: Duration::from_secs(30),
                renew: true,
                max_hold: None,
                min_hold: Duration::ZERO,
            },
            quantum: Duration::from_millis(50),
            poller_gap: Duration::ZERO,
            connect_timeout: Duration::from_secs(2),
            io_timeout: Duration::from_secs(1),
            outage_limit: Duration::from_secs(60),
            wait_through_outages: false,
            fence_memory: Duration::from_secs(10 * 60),
            pool_size: 10,
            background_release: false,
            replicas: 0,
            database: None,
            username: None,
            password: None,
            warn_after: None,
            listener: None,
        }
    }
}

impl Settings {
    /// # Errors
    ///
    /// [`Error::Config`] naming the first setting that cannot be used.
    pub(crate) fn check(&self) -> Result<()> {
        self.options.check()?;
        let check = |option, value: Duration, bounds: RangeInclusive<Duration>, said: &str| {
            if bounds.contains(&value) {
                return Ok(());
            }
            Err(Error::config(option, format!("{value:?} is not {said}")))
        };
        let (ms, hour) = (Duration::from_millis(1), Duration::from_secs(60 * 60));
        let (short, said) = (ms..=hour, "between 1 ms and 1 h");
        check("quantum", self.quantum, short.clone(), said)?;
        check(
            "poller_gap",
            self.poller_gap,
            Duration::ZERO..=LONGEST_GAP.min(self.quantum),
            "between 0 and 500 ms, and no longer than the quantum",
        )?;
        check("connect_timeout", self.connect_timeout, short.clone(), said)?;
        check("io_timeout", self.io_timeout, short, said)?;
        let any = ms..=Duration::MAX;
        check("outage_limit", self.outage_limit, any, "at least 1 ms")?;
        let year = Duration::from_secs(1)..=hour * 24 * 366;
        check(
            "fence_memory",
            self.fence_memory,
            year,
            "between 1 s and 366 days",
        )?;
        if !(1..=1024).contains(&self.pool_size) {
            return Err(Error::config("pool_size", "not between 1 and 1,024"));
        }
        if self.replicas > MAX_REPLICAS {
            return Err(Error::config("replicas", "more than 1,000"));
        }
        if self.database.is_some_and(|number| number < 0) {
            return Err(Error::config("database", "negative"));
        }
        if self.warn_after == Some(Duration::ZERO) {
            return Err(Error::config("warn_after", "zero"));
        }
        if self.prefix.len() > MAX_PREFIX {
            return Err(Error::config("prefix", "longer than 1,024 bytes"));
        }
        if self.label.len() > MAX_LABEL {
            return Err(Error::config("label", "longer than 128 bytes"));
        }
        if !self.label.chars().all(is_label) {
            let reason = format!("only visible ASCII characters other than {MARK:?} are allowed");
            return Err(Error::config("label", reason));
        }
        Ok(())
    }
}

/// `host:pid`, so that whoever looks into Redis finds the process.
fn default_label() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let host: String = host
        .chars()
        .take(64)
        .map(|c| if is_label(c) { c } else { '-' })
        .collect();
    format!("{host}:{}", std::process::id())
}

/// One server, as the redis crate wants it.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) info: ConnectionInfo,
    /// Its address, without user or password.
    pub(crate) address: Arc<str>,
}

impl Server {
    /// Reads a `redis://`, `rediss://` (feature `tls`), `valkey://` or `unix://` URL. The settings' database, user and
    /// password come before the URL's.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]; its text never repeats the URL, which may hold a password.
    pub(crate) fn new(url: &str, settings: &Settings) -> Result<Self> {
        let mut server = Self::parse(url, settings.database)?;
        let mut login = server.info.redis_settings().clone();
        if let Some(username) = &settings.username {
            login = login.set_username(username);
        }
        if let Some(Secret(password)) = &settings.password {
            login = login.set_password(password);
        }
        server.info = server.info.set_redis_settings(login);
        Ok(server)
    }

    /// Reads a URL, as [`Self::new`].
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub(crate) fn parse(url: &str, database: Option<i64>) -> Result<Self> {
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
        // The redis crate would pass over these.
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
        if parsed.fragment().is_some() && !is_tls {
            return Err(wrong("it has a fragment, which begins with #"));
        }
        // The redis crate's own sentence says what is wrong; its details quote the input, and are left out.
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
            // Another crate may have taught the redis crate what this one has not learnt.
            if cfg!(not(feature = "tls")) {
                return Err(Error::config("url", "TLS needs the feature `tls`"));
            }
            if *insecure {
                let reason = "a server without a trusted certificate is not supported";
                return Err(Error::config("url", reason));
            }
        }
        let address = info.addr().to_string().into();
        let mut login: RedisConnectionInfo = info.redis_settings().clone();
        if let Some(number) = database {
            login = login.set_db(number);
        }
        Ok(Self {
            info: info.set_redis_settings(login),
            address,
        })
    }

    /// Returns a text of the server's with `<password>` in place of the password.
    pub(crate) fn without_password(&self, text: &str) -> String {
        match self.info.redis_settings().password() {
            Some(password) if !password.is_empty() => text.replace(password, "<password>"),
            _ => text.to_owned(),
        }
    }
}

/// How to write the URL of a server.
const HOST_FORM: &str = "redis://user:password@host:port/database, where all but the host may be left out, and a special \
                         character in the user or password is percent-encoded, such as %40 for @";
/// How to write the URL of a Unix socket.
const SOCKET_FORM: &str = "unix:///path?user=…&pass=…&db=…, where the parameters may be left out, and are percent-encoded";

fn is_of_a_socket(url: &str) -> bool {
    let scheme = url
        .split(':')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    scheme == "unix" || scheme.ends_with("+unix")
}

/// Returns why a URL does not parse.
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

/// The redis crate's sentence for an error, without the details that follow it.
fn description(error: &redis::RedisError) -> String {
    let text = error.to_string();
    let kept = text.split(" - ").next().unwrap_or_default();
    kept.trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_bounds() {
        Settings::default().check().expect("the defaults");
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let settings = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().expect_err("out of bounds").to_string()
        };
        for (text, named) in [
            (settings(|s| s.options.lease = Duration::ZERO), "lease"),
            (
                settings(|s| s.options.lease = Duration::from_millis(9)),
                "lease",
            ),
            (settings(|s| s.options.lease = Duration::MAX), "lease"),
            (
                settings(|s| s.options.max_hold = Some(Duration::ZERO)),
                "max_hold",
            ),
            (
                settings(|s| s.options.min_hold = MAX_LEASE + Duration::from_nanos(1)),
                "min_hold",
            ),
            (settings(|s| s.quantum = Duration::ZERO), "quantum"),
            (settings(|s| s.poller_gap = s.quantum * 2), "poller_gap"),
            (settings(|s| s.io_timeout = Duration::ZERO), "io_timeout"),
            (
                settings(|s| s.connect_timeout = Duration::MAX),
                "connect_timeout",
            ),
            (
                settings(|s| s.outage_limit = Duration::ZERO),
                "outage_limit",
            ),
            (
                settings(|s| s.fence_memory = Duration::ZERO),
                "fence_memory",
            ),
            (
                settings(|s| s.warn_after = Some(Duration::ZERO)),
                "warn_after",
            ),
            (settings(|s| s.pool_size = 0), "pool_size"),
            (settings(|s| s.replicas = 1001), "replicas"),
            (settings(|s| s.database = Some(-1)), "database"),
            (settings(|s| s.label = "a b".into()), "label"),
            (settings(|s| s.label = "a!".into()), "label"),
            (settings(|s| s.label = "é".into()), "label"),
            (settings(|s| s.prefix = "p".repeat(2000)), "prefix"),
        ] {
            assert!(text.starts_with(&format!("invalid `{named}`: ")), "{text}");
        }
    }

    #[test]
    fn urls_are_read() {
        let server =
            Server::parse("redis://user:s3cret%3A@example.org:7000/3", None).expect("a URL");
        assert_eq!(&*server.address, "example.org:7000");
        assert_eq!(server.info.redis_settings().db(), 3);
        assert_eq!(server.info.redis_settings().password(), Some("s3cret:"));
        let server = Server::parse("redis://h/3", Some(5)).expect("a URL");
        assert_eq!(server.info.redis_settings().db(), 5);
        assert!(Server::parse("unix:///run/redis.sock?db=2", None).is_ok());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_trusts_nobody_who_is_not_trusted() {
        assert!(Server::parse("rediss://h/", None).is_ok());
        let error = Server::parse("rediss://h/#insecure", None).expect_err("insecure");
        assert!(error.to_string().starts_with("invalid `url`"), "{error}");
    }

    /// Other crates of this build know TLS; that is none of this one's.
    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_needs_its_feature() {
        let error = Server::parse("rediss://h/", None).expect_err("there is no TLS");
        assert!(error.to_string().starts_with("invalid `url`"), "{error}");
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
            let error = Server::parse(url, None).expect_err(url);
            let text = format!("{error} {error:?}");
            assert!(!text.contains("s3cret"), "{text}");
            // The error says how to write it.
            assert!(text.contains("://") || text.contains("TLS"), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_url_is_told() {
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
            let text = Server::parse(url, None).expect_err(url).to_string();
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
