//! The servers of a run, as a command line names them.

use std::env;
use std::ffi::OsString;

use leasehold::{Builder, LockManager};
use lexopt::ValueExt;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::Result;
use crate::masters::connect;

/// The lines of a help text about the options of [`Topology::set`].
pub const TOPOLOGY_HELP: &str = "  --sentinel MASTER=URL,URL,...
                  use the master of this name, which these sentinels watch
  --cluster URL,URL,...
                  use the Redis Cluster of these nodes
  --quorum URL,URL,...
                  use a quorum of these servers
  --restart-delay-ms D
                  of a quorum: a server votes once it has been up for D milliseconds, and a lease is not
                  longer; 0 turns both off [default: 60000]
";

/// The servers of a run.
#[derive(Clone)]
pub enum Topology {
    /// One server.
    Single(String),
    /// The URLs of sentinels, and the name of their master.
    Sentinel(Vec<String>, String),
    /// Nodes of a Cluster.
    Cluster(Vec<String>),
    /// Independent servers.
    Quorum(Vec<String>),
}

impl Topology {
    /// Returns the server of `REDIS_URL`, or that of this machine.
    #[must_use]
    pub fn from_env() -> Self {
        Self::Single(env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned()))
    }

    /// Sets the servers by the value of an option.
    pub fn set(&mut self, option: &str, value: OsString) -> Result<(), lexopt::Error> {
        if !matches!(self, Self::Single(_)) {
            return Err("--sentinel, --cluster and --quorum exclude each other".into());
        }
        let value = value.string()?;
        let urls = |list: &str| list.split(',').map(str::to_owned).collect();
        *self = match option {
            "sentinel" => {
                let (master, list) = value
                    .split_once('=')
                    .filter(|(master, _)| !master.contains("://"))
                    .ok_or("--sentinel needs MASTER=URL,URL,...")?;
                Self::Sentinel(urls(list), master.to_owned())
            }
            "cluster" => Self::Cluster(urls(&value)),
            _ => Self::Quorum(urls(&value)),
        };
        // The library checks each URL, and connects to none here.
        match self.builder().build_lazy() {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("--{option}: {error}").into()),
        }
    }

    /// Returns the arguments that name the same servers to another process.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let (option, value) = match self {
            Self::Single(_) => return Vec::new(),
            Self::Sentinel(urls, master) => ("--sentinel", format!("{master}={}", urls.join(","))),
            Self::Cluster(urls) => ("--cluster", urls.join(",")),
            Self::Quorum(urls) => ("--quorum", urls.join(",")),
        };
        vec![option.to_owned(), value]
    }

    /// Returns a builder of a manager.
    pub fn builder(&self) -> Builder {
        match self {
            Self::Single(url) => LockManager::single(url),
            Self::Sentinel(urls, master) => LockManager::sentinel(urls, master),
            Self::Cluster(urls) => LockManager::cluster(urls),
            Self::Quorum(urls) => LockManager::quorum(urls.iter().map(String::as_str)),
        }
    }

    /// Asks for the masters, and returns them.
    pub(crate) fn masters(&self) -> Result<Vec<ConnectionInfo>> {
        match self {
            Self::Single(url) => Ok(vec![url.as_str().into_connection_info()?]),
            Self::Sentinel(urls, master) => first_answer(urls, |url| master_of(url, master)),
            Self::Cluster(urls) => first_answer(urls, masters_of),
            Self::Quorum(urls) => {
                let urls = urls.iter();
                let urls = urls.map(|url| Ok(url.as_str().into_connection_info()?));
                urls.collect()
            }
        }
    }
}

/// Returns the answer of the first server that answers.
fn first_answer<T>(urls: &[String], ask: impl Fn(&str) -> Result<T>) -> Result<T> {
    let mut last = Err("there is no server".into());
    for url in urls {
        last = ask(url);
        if last.is_ok() {
            break;
        }
    }
    last
}

/// Asks a sentinel for the master of a name.
fn master_of(url: &str, master: &str) -> Result<Vec<ConnectionInfo>> {
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let address: Option<(String, u16)> = ask.query(&mut connect(url.into_connection_info()?)?)?;
    let (host, port) = address.ok_or_else(|| format!("a sentinel knows no master {master:?}"))?;
    Ok(vec![
        ConnectionAddr::Tcp(host, port).into_connection_info()?,
    ])
}

/// Asks a node of a Cluster for the masters that have slots.
fn masters_of(url: &str) -> Result<Vec<ConnectionInfo>> {
    let node = url.into_connection_info()?;
    let nodes: String = redis::cmd("CLUSTER")
        .arg("NODES")
        .query(&mut connect(node.clone())?)?;
    // A line is `ID HOST:PORT@BUS FLAGS MASTER PING PONG EPOCH LINK SLOTS…`.
    let masters = nodes.lines().filter_map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let flags = words.get(2)?;
        let is_master = flags.contains("master") && !flags.contains("fail");
        (is_master && words.len() > 8).then_some(words[1])
    });
    let info = |address: &str| {
        let (host, port) = address
            .split('@')
            .next()
            .and_then(|address| address.rsplit_once(':'))
            .ok_or("a node has no address")?;
        let host = match (host, node.addr()) {
            // A node may not know its own address.
            ("", ConnectionAddr::Tcp(host, _)) => host,
            (host, _) => host,
        };
        let address = ConnectionAddr::Tcp(host.to_owned(), port.parse()?);
        Ok(node.clone().set_addr(address))
    };
    masters.map(info).collect()
}
