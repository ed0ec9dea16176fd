//! A throwaway server, and what it says of itself.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue};

use crate::Result;
use crate::bare;
use crate::cores::{Cores, End};

/// Starts a server without persistence, and outlives whoever asked for it: when its standard input ends, for whatever
/// reason, the server is killed. So not even a run that is killed leaves one behind.
const KEEPER: &str = r#"
dir=$(mktemp -d "${TMPDIR:-/tmp}/leasehold-limits.XXXXXX") || exit
redis-server --bind 127.0.0.1 --port "$1" --save '' --appendonly no --daemonize no \
    --dir "$dir" --logfile "$dir/log" </dev/null >/dev/null 2>&1 &
server=$!
echo "$dir"
read -r _
kill -KILL "$server"
wait "$server" 2>/dev/null
rm -rf "$dir"
"#;

/// How many ports are tried; each may be taken by somebody else between its choice and its use.
const PORTS: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// A server on the cores for servers. Dropping it ends it.
pub struct Server {
    keeper: Child,
    url: String,
}

impl Server {
    /// Starts one and waits until it is ready. This thread is bound to the clients' cores afterwards.
    pub fn start(cores: &Cores) -> Result<Self> {
        cores.bind(End::Server)?;
        let server = (0..PORTS).find_map(|_| Self::on(unused_port()).transpose());
        cores.bind(End::Client)?;
        server.unwrap_or_else(|| Err("no free port for a server".into()))
    }

    /// None where the port is taken.
    fn on(port: u16) -> Result<Option<Self>> {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C is for us; the keeper comes after.
            .process_group(0)
            .spawn()?;
        let stdout = keeper.stdout.take().ok_or("the keeper has no output")?;
        let url = format!("redis://127.0.0.1:{port}/");
        let server = Self { keeper, url };
        let mut dir = String::new();
        BufReader::new(stdout).read_line(&mut dir)?;
        let log = Path::new(dir.trim_end()).join("log");
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let log = fs::read_to_string(&log).unwrap_or_default();
            if log.contains("Ready to accept connections") {
                return Ok(Some(server));
            }
            if log.contains("Failed listening on port") {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err("redis-server does not start; is it in PATH?".into())
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// A way to ask the server about itself, which does not count.
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

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().ok();
    }
}

/// The commands that the server runs for so many guards, or what stands for a guard.
pub struct Tally {
    observer: Observer,
    commands: u64,
    guards: u64,
}

impl Tally {
    /// Counts the commands while `work` is done, which brings so many guards, and returns what it measured.
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
    /// The commands that the server has run, those that scripts ran included.
    pub fn commands(&mut self) -> Result<u64> {
        let statistics: String = redis::cmd("INFO").arg("commandstats").query(&mut self.0)?;
        Ok(statistics.lines().filter_map(calls).sum())
    }

    /// The time that the server has spent on a core.
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

    /// How many other connections have sent something within the last so many seconds.
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

    /// Any command.
    pub fn ask<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T> {
        Ok(command.query(&mut self.0)?)
    }
}

/// The calls in a line like `cmdstat_get:calls=21,usec=17,…`, but for those of commands that only observe.
fn calls(line: &str) -> Option<u64> {
    let (command, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    if command == "info" || command.starts_with("client") {
        return None;
    }
    statistics.split(',').next()?.parse().ok()
}

/// Below the range from which systems take the ports of outgoing connections.
fn unused_port() -> u16 {
    loop {
        let port = 10_000 + (RandomState::new().hash_one(0u8) % 22_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
