//! A temporary server, and the figures that it reports.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue};
use rustix::process::{Pid, Signal, kill_process};

use crate::Result;
use crate::bare;
use crate::cores::{Cores, End};

/// A shell script that starts a server without persistence, and kills it when the standard input of the script ends. So
/// a run that is killed leaves no server behind.
const SUPERVISOR: &str = r#"
dir=$(mktemp -d "${TMPDIR:-/tmp}/leasehold-limits.XXXXXX") || exit
redis-server --bind 127.0.0.1 --port "$1" --save '' --appendonly no --daemonize no \
    --dir "$dir" --logfile "$dir/log" </dev/null >/dev/null 2>&1 &
server=$!
echo "$server $dir"
read -r _
kill -KILL "$server"
wait "$server" 2>/dev/null
rm -rf "$dir"
"#;

/// How many ports are tried. Another process may take a port between its choice and its use.
const PORTS: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// A server on the cores for servers. Dropping it ends the server.
pub struct Server {
    supervisor: Child,
    pid: Pid,
    dir: PathBuf,
    url: String,
}

impl Server {
    /// Starts a server and waits until it is ready. Binds this thread to the clients' cores afterwards.
    pub fn start(cores: &Cores) -> Result<Self> {
        cores.bind(End::Server)?;
        let server = (0..PORTS).find_map(|_| Self::on(unused_port()).transpose());
        cores.bind(End::Client)?;
        server.unwrap_or_else(|| Err("no free port for a server".into()))
    }

    /// Returns `None` if the port is taken.
    fn on(port: u16) -> Result<Option<Self>> {
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "supervisor", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must end this process alone. The supervisor ends after it.
            .process_group(0)
            .spawn()?;
        let stdout = supervisor
            .stdout
            .take()
            .ok_or("the supervisor has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let (pid, dir) = line
            .trim_end()
            .split_once(' ')
            .ok_or("the supervisor does not report the server")?;
        let server = Self {
            supervisor,
            pid: Pid::from_raw(pid.parse()?).ok_or("a server without a process")?,
            dir: Path::new(dir).to_owned(),
            url: format!("redis://127.0.0.1:{port}/"),
        };
        let log = server.dir.join("log");
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

    /// Returns a directory for files of the row. It ends with the server.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stops the server's process, which keeps its connections and answers nothing.
    pub fn hang(&self) -> Result<()> {
        Ok(kill_process(self.pid, Signal::STOP)?)
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

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        self.supervisor.wait().ok();
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

/// Returns a free port below the range of outgoing connections.
fn unused_port() -> u16 {
    loop {
        let port = 10_000 + (RandomState::new().hash_one(0u8) % 22_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
