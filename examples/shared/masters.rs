//! The figures that servers report about themselves.

use std::time::Duration;

use redis::{Client, Connection, IntoConnectionInfo, RedisResult};

use crate::{Result, Topology};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that ask all masters of a run for their figures.
pub struct Masters(Vec<Connection>);

/// The figures of all masters so far, added up.
#[derive(Clone, Copy, Default)]
pub struct Figures {
    /// The CPU time.
    pub cpu: Duration,
    /// The number of commands, also those in scripts. Those that ask for the figures do not count.
    pub commands: u64,
    /// The number of other connections at this time.
    pub connections: u64,
    /// The memory in use at this time, in bytes.
    pub memory: u64,
}

impl Masters {
    /// Connects to all masters.
    pub fn connect(topology: &Topology) -> Result<Self> {
        let masters = topology.masters()?.into_iter().map(connect);
        Ok(Self(masters.collect::<RedisResult<_>>()?))
    }

    /// Returns the number of masters.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Asks for the figures.
    pub fn figures(&mut self) -> Result<Figures> {
        let mut all = Figures::default();
        for master in &mut self.0 {
            let info: String = redis::cmd("INFO").arg("all").query(master)?;
            all.add(&info)?;
        }
        Ok(all)
    }
}

impl Figures {
    fn add(&mut self, info: &str) -> Result<()> {
        let field = |name: &str| {
            let mut lines = info.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.ok_or_else(|| format!("the server does not report {name}"))
        };
        let seconds =
            field("used_cpu_user")?.parse::<f64>()? + field("used_cpu_sys")?.parse::<f64>()?;
        self.cpu += Duration::from_secs_f64(seconds);
        self.commands += info.lines().filter_map(calls).sum::<u64>();
        self.connections += field("connected_clients")?.parse::<u64>()? - 1;
        self.memory += field("used_memory")?.parse::<u64>()?;
        Ok(())
    }
}

/// Opens a connection whose answers have a time limit.
pub(crate) fn connect(to: impl IntoConnectionInfo) -> RedisResult<Connection> {
    let connection = Client::open(to)?.get_connection_with_timeout(TIMEOUT)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    Ok(connection)
}

/// Returns the calls in a line like `cmdstat_get:calls=21,usec=17,…`. Returns `None` for the commands by which this
/// program observes the server.
fn calls(line: &str) -> Option<u64> {
    let (command, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    if command == "info" || command.starts_with("config") {
        return None;
    }
    statistics.split(',').next()?.parse().ok()
}
