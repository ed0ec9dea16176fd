//! The server's own count of commands, those that scripts run included.

use std::time::Duration;

use redis::{Client, Connection, RedisResult};

pub struct CommandCounter(Connection);

impl CommandCounter {
    pub fn connect(url: &str) -> RedisResult<Self> {
        let connection = Client::open(url)?.get_connection_with_timeout(Duration::from_secs(5))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self(connection))
    }

    /// The commands that the server has run so far. They are never reset: the server may be in use.
    pub fn count(&mut self) -> RedisResult<u64> {
        let statistics: String = redis::cmd("INFO").arg("commandstats").query(&mut self.0)?;
        Ok(statistics.lines().filter_map(calls).sum())
    }
}

/// The calls in a line like `cmdstat_get:calls=21,usec=17,…`, but none of those commands that only observe the
/// server: they are ours.
fn calls(line: &str) -> Option<u64> {
    let (command, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    if command == "info" || command.starts_with("config") {
        return None;
    }
    statistics.split(',').next()?.parse().ok()
}
