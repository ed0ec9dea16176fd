//! The figures that the system and the server report.

use std::error::Error;
use std::fs;
use std::time::Duration;

use redis::{Client, Connection};

/// Returns the CPU time of this process so far, in user mode and in the kernel.
pub fn cpu() -> Result<Duration, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field is the program's name in parentheses, which may contain spaces. `utime` and `stime` are the
    // 14th and the 15th field (proc_pid_stat(5)).
    let rest = stat.rsplit_once(')').ok_or("no stat")?.1;
    let ticks: f64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum();
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(
        ticks / f64::from(u32::try_from(per_second)?),
    ))
}

/// Returns the memory that this process uses, in bytes.
pub fn memory() -> Result<usize, Box<dyn Error>> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).ok_or("no statm")?.parse()?;
    Ok(pages * rustix::param::page_size())
}

impl Served {
    /// Returns the difference to earlier figures.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            commands: self.commands - earlier.commands,
            connections: self.connections,
        }
    }
}

/// A connection that asks the server for its figures.
pub struct Server(Connection);

/// The figures of the server so far.
pub struct Served {
    pub cpu: Duration,
    /// The number of commands, also those in scripts.
    pub commands: u64,
    /// The number of other connections at this time.
    pub connections: u64,
}

impl Server {
    pub fn connect(url: &str) -> redis::RedisResult<Self> {
        let connection = Client::open(url)?.get_connection_with_timeout(Duration::from_secs(5))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self(connection))
    }

    pub fn served(&mut self) -> Result<Served, Box<dyn Error>> {
        let info: String = redis::cmd("INFO").arg("all").query(&mut self.0)?;
        let field = |name: &str| {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.ok_or_else(|| format!("the server tells no {name}"))
        };
        let seconds =
            field("used_cpu_user")?.parse::<f64>()? + field("used_cpu_sys")?.parse::<f64>()?;
        Ok(Served {
            cpu: Duration::from_secs_f64(seconds),
            commands: info.lines().filter_map(calls).sum(),
            connections: field("connected_clients")?.parse::<u64>()? - 1,
        })
    }
}

/// Returns the calls in a line like `cmdstat_get:calls=21,usec=17,…`. Returns `None` for `INFO`, which this program
/// sends.
fn calls(line: &str) -> Option<u64> {
    let (command, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    if command == "info" {
        return None;
    }
    statistics.split(',').next()?.parse().ok()
}
