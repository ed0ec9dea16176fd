//! Real servers, each on a port of its own.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal};

use super::{Raw, threads, wait_until};

/// Starts a server and outlives whoever asked for it: when its standard input ends, for whatever reason, the
/// server is killed. So not even a test process that is killed itself leaves a server behind. That works on a
/// stopped server too.
const KEEPER: &str = r#"
dir=$(mktemp -d "${TMPDIR:-/tmp}/leasehold-it.XXXXXX") || exit
"$@" --dir "$dir" --logfile "$dir/log" </dev/null >/dev/null 2>&1 &
server=$!
echo "$server $dir"
read -r _
kill -KILL "$server"
wait "$server" 2>/dev/null
rm -rf "$dir"
"#;

/// How many ports are tried; each may be taken by somebody else between its choice and its use.
const PORTS: u32 = 20;

/// The server for tests that need any: that of `REDIS_URL`, or else one for all tests of this process. It is
/// never flushed, stopped or reconfigured, so names on it are to be made by [`super::name`].
pub(crate) fn shared() -> &'static Raw {
    static SHARED: LazyLock<(Raw, Option<Server>)> = LazyLock::new(|| {
        if let Some(url) = std::env::var("REDIS_URL")
            .ok()
            .filter(|url| !url.is_empty())
        {
            return (Raw::new(&url), None);
        }
        let server = Server::start();
        (server.raw(), Some(server))
    });
    &SHARED.0
}

/// The URL of a server that is not there.
pub(crate) fn unused_url() -> String {
    url(unused_port())
}

/// A server of one test's own, that it may do anything to. Dropping it stops it.
pub(crate) struct Server {
    port: u16,
    options: Vec<String>,
    running: Mutex<Option<Running>>,
}

struct Running {
    keeper: Child,
    /// Closing it ends the server.
    lifeline: Option<ChildStdin>,
    pid: Pid,
    dir: PathBuf,
}

impl Server {
    /// Starts a server and waits until it is ready.
    #[track_caller]
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts one with further options.
    #[track_caller]
    pub(crate) fn with(options: &[&str]) -> Self {
        let version = Command::new("redis-server").arg("--version").output();
        if let Err(error) = version {
            panic!("these tests need a redis-server in PATH: {error}");
        }
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        for _ in 0..PORTS {
            let port = unused_port();
            if let Some(running) = Running::start(port, &options) {
                return Self {
                    port,
                    options,
                    running: Mutex::new(Some(running)),
                };
            }
        }
        panic!("no free port in {PORTS} tries");
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::new(&self.url())
    }

    /// Stops the server in its tracks: connections stay open, and nothing is answered.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the server; all its data is lost.
    pub(crate) fn kill(&self) {
        self.running().take();
    }

    /// Kills the server, where it has not been yet, and starts an empty one on the same port.
    pub(crate) fn restart(&self) {
        let mut running = self.running();
        running.take();
        wait_until("the server has its port back", || {
            *running = Running::start(self.port, &self.options);
            running.is_some()
        });
    }

    fn signal(&self, signal: Signal) {
        let running = self.running();
        threads::signal(running.as_ref().expect("the server runs").pid, signal);
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// None where the port is taken.
    fn start(port: u16, options: &[String]) -> Option<Self> {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper", "redis-server"])
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C is for the test process; the keeper comes after it.
            .process_group(0)
            .spawn()
            .expect("a shell");
        let lifeline = keeper.stdin.take();
        let stdout = keeper.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the keeper's line");
        let (pid, dir) = line
            .trim_end()
            .split_once(' ')
            .expect("a process and a directory");
        let running = Self {
            keeper,
            lifeline,
            pid: pid.parse().ok().and_then(Pid::from_raw).expect("a pid"),
            dir: dir.into(),
        };
        let mut taken = false;
        wait_until("the server is ready", || {
            let log = fs::read_to_string(running.dir.join("log")).unwrap_or_default();
            taken = log.contains("Failed listening on port");
            taken || log.contains("Ready to accept connections")
        });
        (!taken).then_some(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        self.keeper.wait().ok();
    }
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// Below the range from which systems take the ports of outgoing connections.
fn unused_port() -> u16 {
    loop {
        let chance = RandomState::new().hash_one(0u8);
        let port = 10_000 + u16::try_from(chance % 22_000).expect("it is small");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
