//! A throwaway server.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, FromRedisValue};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::process::{Pid, Signal, kill_process};

use crate::{PATIENCE, Result};

/// A shell script that starts a server with a configuration, and kills it when the standard input of the script ends.
/// So a program that is killed leaves no server behind.
const SUPERVISOR: &str = r#"
dir=$(mktemp -d "${TMPDIR:-/tmp}/leasehold.XXXXXX") || exit
printf '%s\n' "$1" "dir \"$dir\"" "logfile \"$dir/log\"" >"$dir/conf"
redis-server "$dir/conf" $2 </dev/null >/dev/null 2>&1 &
server=$!
echo "$server $dir"
read -r _
kill -KILL "$server" 2>/dev/null
wait "$server" 2>/dev/null
rm -rf "$dir"
"#;
/// The server saves nothing, and its replicas follow it at once.
const CONFIG: &str =
    "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\nrepl-ping-replica-period 1\n";
/// How many ports are tried. Another process may take a port between its choice and its use.
const PORTS: u32 = 20;
const TIMEOUT: Duration = Duration::from_secs(5);

/// A server on the loopback interface. Dropping it kills the server.
pub struct Server {
    supervisor: Child,
    pid: Pid,
    dir: PathBuf,
    port: Port,
}

/// A port that no other program finds free while this value lives, also when the server is killed: another server in its
/// place would answer its clients.
struct Port {
    number: u16,
    _socket: OwnedFd,
}

impl Server {
    /// Starts a server, and blocks until it is ready. `config` has further lines of its configuration.
    pub fn start(config: &str) -> Result<Self> {
        let config = format!("{CONFIG}{config}");
        Self::on_some_port(&config, "", "Ready to accept connections")
    }

    /// Starts a sentinel. `config` names the master.
    pub(crate) fn start_sentinel(config: &str) -> Result<Self> {
        Self::on_some_port(config, "--sentinel", "Sentinel ID is")
    }

    fn on_some_port(config: &str, mode: &str, ready: &str) -> Result<Self> {
        let server =
            (0..PORTS).find_map(|_| Self::on(unused_port(), config, mode, ready).transpose());
        server.unwrap_or_else(|| Err("no free port for a server".into()))
    }

    /// Returns `None` if the port is taken.
    fn on(port: Port, config: &str, mode: &str, ready: &str) -> Result<Option<Self>> {
        let config = format!("bind 127.0.0.1\nport {}\n{config}", port.number);
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "supervisor", &config, mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must end this process alone. The supervisor ends after it.
            .process_group(0)
            .spawn()?;
        let stdout = supervisor.stdout.take().ok_or("no output of the shell")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let (pid, dir) = line.trim_end().split_once(' ').ok_or("no server")?;
        let server = Self {
            supervisor,
            pid: Pid::from_raw(pid.parse()?).ok_or("a server without a process")?,
            dir: Path::new(dir).to_owned(),
            port,
        };
        let (log, begun) = (server.dir.join("log"), Instant::now());
        while begun.elapsed() < PATIENCE {
            let log = fs::read_to_string(&log).unwrap_or_default();
            if log.contains(ready) {
                return Ok(Some(server));
            }
            if log.contains("Failed listening on port") {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err("redis-server does not start; is it in PATH?".into())
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Returns the host and the port.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Returns the URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Returns the directory of the server, which ends with it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sends a signal to the server's process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid, signal)?)
    }

    /// Opens a connection, as a client without leasehold would. Each answer has a time limit.
    pub fn connect(&self) -> redis::RedisResult<Connection> {
        let redis = redis::Client::open(self.url())?.get_connection_with_timeout(TIMEOUT)?;
        redis.set_read_timeout(Some(TIMEOUT))?;
        Ok(redis)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        self.supervisor.wait().ok();
    }
}

/// A client that asks again and again while servers fail.
pub struct Poller<'a> {
    server: &'a Server,
    connection: Option<Connection>,
}

impl<'a> Poller<'a> {
    /// Returns a client of a server.
    #[must_use]
    pub fn new(server: &'a Server) -> Self {
        let connection = None;
        Self { server, connection }
    }

    /// Returns the server.
    #[must_use]
    pub fn server(&self) -> &'a Server {
        self.server
    }

    /// Returns `None` after any error. The next call connects again, because a replica that becomes the master closes
    /// its connections.
    pub fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Option<T> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.server.connect().ok()?,
        };
        let answer = command.query(&mut connection).ok()?;
        self.connection = Some(connection);
        Some(answer)
    }
}

/// Returns a free port below the range of outgoing connections. A node of a Cluster needs a second port, which is larger
/// by 10,000 and below that range too.
fn unused_port() -> Port {
    loop {
        let number = 10_000 + (RandomState::new().hash_one(0u8) % 11_000) as u16;
        if let Ok(socket) = reserve(number) {
            return Port {
                number,
                _socket: socket,
            };
        }
    }
}

/// Fails if the port has any other socket. After that, a server may use the port too, because it sets `SO_REUSEADDR`.
fn reserve(port: u16) -> rustix::io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let reserved = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    bind(&reserved, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    sockopt::set_socket_reuseaddr(&reserved, true)?;
    Ok(reserved)
}
