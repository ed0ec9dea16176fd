//! A server of a row, and the figures that it reports.

use std::path::Path;
use std::time::Duration;

use redis::{Connection, FromRedisValue};
use rustix::process::Signal;

use crate::Result;
use crate::bare;
use crate::cores::Cores;

/// A server on the cores for servers. Dropping it ends the server.
pub struct Server {
    server: shared::Server,
    url: String,
}

impl Server {
    /// Starts a server and waits until it is ready. Binds this thread to the clients' cores afterwards.
    pub fn start(cores: &Cores) -> Result<Self> {
        let server = cores.start(|| shared::Server::start(""))?;
        let url = server.url();
        Ok(Self { server, url })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns a directory for files of the row. It ends with the server.
    pub fn dir(&self) -> &Path {
        self.server.dir()
    }

    /// Stops the server's process, which keeps its connections and answers nothing.
    pub fn hang(&self) -> Result<()> {
        self.server.signal(Signal::STOP)
    }

    /// Returns a connection whose commands are not counted.
    pub fn observer(&self) -> Result<Observer> {
        Ok(Observer(bare::connect(&self.url)?))
    }

    pub fn tally(&self) -> Result<Tally> {
        Ok(Tally {
            observer: self.observer()?,
            commands: 0,
            guards: 0,
        })
    }
}

/// The number of commands that the server runs for a number of guards, or of what a row counts instead.
pub struct Tally {
    observer: Observer,
    commands: u64,
    guards: u64,
}

impl Tally {
    /// Counts the commands of `work`, which returns its number of guards and a measured value. Returns that value.
    pub fn count(&mut self, work: impl FnOnce() -> Result<(u64, f64)>) -> Result<f64> {
        let before = self.observer.commands()?;
        let (guards, measured) = work()?;
        self.commands += self.observer.commands()? - before;
        self.guards += guards;
        Ok(measured)
    }

    pub fn commands_per_guard(&self) -> f64 {
        self.commands as f64 / self.guards as f64
    }
}

pub struct Observer(Connection);

impl Observer {
    /// Returns the number of commands that the server has run, with those inside scripts.
    pub fn commands(&mut self) -> Result<u64> {
        let statistics: String = redis::cmd("INFO").arg("commandstats").query(&mut self.0)?;
        Ok(statistics.lines().filter_map(calls).sum())
    }

    /// Returns the CPU time of the server.
    pub fn cpu(&mut self) -> Result<Duration> {
        let info: String = redis::cmd("INFO").arg("cpu").query(&mut self.0)?;
        let field = |name| {
            let value = info.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| value.parse::<f64>().ok())
        };
        let (user, system) = field("used_cpu_user:")
            .zip(field("used_cpu_sys:"))
            .ok_or("the server does not say what time it has used")?;
        Ok(Duration::from_secs_f64(user + system))
    }

    /// Returns how many other connections have sent a command within the last `seconds`.
    pub fn connections(&mut self, seconds: u64) -> Result<usize> {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut self.0)?;
        let own: u64 = redis::cmd("CLIENT").arg("ID").query(&mut self.0)?;
        let field = |line: &str, name: &str| {
            let words = line
                .split(' ')
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            words.and_then(|value| value.parse::<u64>().ok())
        };
        let active = |line: &&str| {
            field(line, "id") != Some(own) && field(line, "idle").is_some_and(|idle| idle < seconds)
        };
        Ok(clients.lines().filter(active).count())
    }

    /// Sends any command.
    pub fn ask<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T> {
        Ok(command.query(&mut self.0)?)
    }
}

/// Returns the calls in a line like `cmdstat_get:calls=21,usec=17,…`, or `None` for the commands of an [`Observer`].
fn calls(line: &str) -> Option<u64> {
    let (command, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    if command == "info" || command.starts_with("client") {
        return None;
    }
    statistics.split(',').next()?.parse().ok()
}
