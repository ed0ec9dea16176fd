//! The number of commands that the server counts, also those in scripts.

use std::time::Duration;

use redis::{Client, Connection, RedisResult};

pub struct CommandCounter(Connection);

impl CommandCounter {
    pub fn connect(url: &str) -> RedisResult<Self> {
        let connection = Client::open(url)?.get_connection_with_timeout(Duration::from_secs(5))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self(connection))
    }

    /// Returns the number of commands that the server has run so far. Nothing resets it, because other programs may
    /// use the server.
    pub fn count(&mut self) -> RedisResult<u64> {
        let statistics: String = redis::cmd("INFO").arg("commandstats").query(&mut self.0)?;
        Ok(statistics.lines().filter_map(calls).sum())
    }
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
