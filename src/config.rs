//! The settings, parsed and checked. Nothing past this module sees a URL or a number out of bounds.

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::error::{Error, Result};
use crate::event::SharedListener;
use crate::name::{MARK, MAX_LABEL, is_label};
use crate::sync::Arc;

/// The shortest lease: below it, the drift taken off and one request would leave nothing.
pub(crate) const MIN_LEASE: Duration = Duration::from_millis(10);
/// The longest lease: a crashed holder delays the others for as long.
pub(crate) const MAX_LEASE: Duration = Duration::from_hours(24);
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
}

impl Options {
    /// # Errors
    ///
    /// [`Error::Config`] where something is out of bounds.
    pub(crate) fn check(&self) -> Result<()> {
        if self.max_hold == Some(Duration::ZERO) {
            return Err(Error::config("max_hold", "it is zero"));
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

/// Everything a manager was built with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: String,
    pub(crate) label: String,
    pub(crate) options: Options,
    pub(crate) quantum: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) io_timeout: Duration,
    pub(crate) outage_limit: Duration,
    pub(crate) fence_memory: Duration,
    pub(crate) pool_size: u32,
    pub(crate) background_release: bool,
    pub(crate) replicas: u32,
    pub(crate) database: Option<i64>,
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
            },
            quantum: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(2),
            io_timeout: Duration::from_secs(1),
            outage_limit: Duration::from_mins(1),
            fence_memory: Duration::from_mins(10),
            pool_size: 10,
            background_release: false,
            replicas: 0,
            database: None,
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
        let between = |option, value: Duration, least: Duration, most: Duration| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let reason = format!("{value:?} is not between {least:?} and {most:?}");
            Err(Error::config(option, reason))
        };
        let (ms, hour) = (Duration::from_millis(1), Duration::from_hours(1));
        between("quantum", self.quantum, ms, hour)?;
        between("connect_timeout", self.connect_timeout, ms, hour)?;
        between("io_timeout", self.io_timeout, ms, hour)?;
        between("outage_limit", self.outage_limit, ms, Duration::MAX)?;
        between(
            "fence_memory",
            self.fence_memory,
            Duration::from_secs(1),
            hour * 24 * 366,
        )?;
        if !(1..=1024).contains(&self.pool_size) {
            return Err(Error::config("pool_size", "it is not between 1 and 1,024"));
        }
        if self.replicas > MAX_REPLICAS {
            return Err(Error::config("replicas", "there are more than 1,000"));
        }
        if self.database.is_some_and(|number| number < 0) {
            return Err(Error::config("database", "it is negative"));
        }
        if self.warn_after == Some(Duration::ZERO) {
            return Err(Error::config("warn_after", "it is zero"));
        }
        if self.prefix.len() > MAX_PREFIX {
            return Err(Error::config("prefix", "it is longer than 1,024 bytes"));
        }
        if self.label.len() > MAX_LABEL {
            return Err(Error::config("label", "it is longer than 128 bytes"));
        }
        if !self.label.chars().all(is_label) {
            let reason = format!("only visible ASCII without {MARK:?} goes into an owner");
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
    /// Reads a `redis://`, `rediss://` (feature `tls`), `valkey://` or `unix://` URL.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]; its text never repeats the URL, which may hold a password.
    pub(crate) fn parse(url: &str, database: Option<i64>) -> Result<Self> {
        // The redis crate's own sentence says what is wrong; its details quote the input, and are left out.
        let info = url
            .into_connection_info()
            .map_err(|error| Error::config("url", description(&error)))?;
        if info.redis_settings().db() < 0 {
            return Err(Error::config("url", "its database is negative"));
        }
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            info.addr()
            && (host.is_empty() || *port == 0)
        {
            return Err(Error::config("url", "it names no host or no port"));
        }
        if let ConnectionAddr::TcpTls { insecure, .. } = info.addr() {
            // Another crate may have taught the redis crate what this one has not learnt.
            if cfg!(not(feature = "tls")) {
                return Err(Error::config("url", "TLS needs the feature `tls`"));
            }
            if *insecure {
                let reason = "whoever answers would be trusted, which is not supported";
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
            (settings(|s| s.quantum = Duration::ZERO), "quantum"),
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
            assert!(text.starts_with(named), "{text}");
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
        assert!(error.to_string().starts_with("url "), "{error}");
    }

    /// Other crates of this build know TLS; that is none of this one's.
    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_needs_its_feature() {
        let error = Server::parse("rediss://h/", None).expect_err("there is no TLS");
        assert!(error.to_string().starts_with("url "), "{error}");
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
        ] {
            let error = Server::parse(url, None).expect_err(url);
            let text = format!("{error} {error:?}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}
