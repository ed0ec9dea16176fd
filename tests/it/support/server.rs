//! Real servers, each on a port of its own.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal};

use super::{Clock, Raw, log, threads, wait_until};

/// Starts a server and outlives whoever asked for it: when its standard input ends, for whatever reason, the
/// server is killed. So not even a test process that is killed itself leaves a server behind. That works on a
/// stopped server too.
///
/// Told `again`, it kills the server and says so, and starts it again over the same data at the next line.
const KEEPER: &str = r#"
dir=$(mktemp -d "${TMPDIR:-/tmp}/leasehold-it.XXXXXX") || exit
while
  : >"$dir/log"
  "$@" --dir "$dir" --logfile "$dir/log" </dev/null >/dev/null 2>&1 &
  server=$!
  echo "$server $dir"
  read -r word
  kill -KILL "$server"
  wait "$server" 2>/dev/null
  [ "$word" = again ] && echo gone && read -r _
do :; done
rm -rf "$dir"
"#;

/// How many ports are tried; each may be taken by somebody else between its choice and its use.
const PORTS: u32 = 20;

/// The server for tests that need any: that of `REDIS_URL`, or else one for all tests of this process. It is
/// never flushed, stopped or reconfigured, so names on it are to be made by [`super::name`].
pub(crate) fn shared() -> &'static Raw {
    static SHARED: LazyLock<(Raw, Option<Server>)> = LazyLock::new(|| {
        log::install();
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
    log::install();
    url(unused_port())
}

/// A server of one test's own, that it may do anything to. Dropping it stops it.
pub(crate) struct Server {
    port: u16,
    options: Vec<String>,
    /// Where it has a clock of its own.
    clock: Option<Clock>,
    running: Mutex<Option<Running>>,
}

struct Running {
    keeper: Child,
    /// Closing it ends the server.
    lifeline: Option<ChildStdin>,
    /// What the keeper says.
    says: BufReader<ChildStdout>,
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
        Self::begin(options, None)
    }

    /// Starts one whose clock can be set, without a second of anybody's time passing.
    #[track_caller]
    pub(crate) fn with_clock() -> Self {
        Self::begin(&[], Some(Clock::new()))
    }

    /// Starts one that has all that it acknowledged when it is killed and started again.
    #[track_caller]
    pub(crate) fn keeping_data(options: &[&str]) -> Self {
        let durable = ["--appendonly", "yes", "--appendfsync", "always"];
        Self::begin(&[&durable, options].concat(), None)
    }

    /// Starts one that also speaks TLS, on another port, with a certificate and its key from these files.
    #[allow(dead_code, reason = "only the tests of TLS need it")]
    #[track_caller]
    pub(crate) fn with_tls(certificate: &str, key: &str) -> (Self, u16) {
        on_free_ports(|port| {
            let tls_port = unused_port();
            let options = [
                "--tls-port",
                &tls_port.to_string(),
                "--tls-cert-file",
                certificate,
                "--tls-key-file",
                key,
                "--tls-auth-clients",
                "no",
            ];
            let server = Self::on(port, &options.map(str::to_owned), &mut None)?;
            Some((server, tls_port))
        })
    }

    #[track_caller]
    fn begin(options: &[&str], mut clock: Option<Clock>) -> Self {
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        on_free_ports(|port| Self::on(port, &options, &mut clock))
    }

    /// None where the port is taken.
    fn on(port: u16, options: &[String], clock: &mut Option<Clock>) -> Option<Self> {
        let running = Running::start(port, options, clock.as_ref())?;
        Some(Self {
            port,
            options: options.to_owned(),
            clock: clock.take(),
            running: Mutex::new(Some(running)),
        })
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
            *running = Running::start(self.port, &self.options, self.clock.as_ref());
            running.is_some()
        });
    }

    /// Kills the server; what it has on disk is there for [`Self::start_again`].
    pub(crate) fn kill_for_now(&self) {
        self.with_running(Running::kill_for_now);
    }

    /// Starts the server that was killed, with the data that it had, and returns when it listens: it may still be
    /// loading.
    pub(crate) fn start_again(&self) {
        self.with_running(|running| {
            wait_until("the server has its port back", || {
                let listens = running.start_again();
                if !listens {
                    running.kill_for_now();
                }
                listens
            });
        });
    }

    /// The directory of its data.
    pub(crate) fn dir(&self) -> PathBuf {
        self.with_running(|running| running.dir.clone())
    }

    /// Sets the clock of a server that has its own, and waits until the server reads it: Valkey 9.1 looks at the clock
    /// once a millisecond, and what it set to expire just before would be over at once.
    #[track_caller]
    pub(crate) fn set_clock_ahead(&self, seconds: i64) {
        const NEAR: u64 = 60;
        let clock = self.clock.as_ref().expect("it was started with one");
        clock.set_ahead(seconds);
        let raw = self.raw();
        wait_until("the server reads its new clock", || {
            let (reads, _): (u64, u64) = raw.ask(&["TIME"]);
            let ours = SystemTime::now().duration_since(UNIX_EPOCH);
            let ours = ours.expect("it is past 1970").as_secs();
            reads.abs_diff(ours.saturating_add_signed(seconds)) < NEAR
        });
    }

    fn with_running<T>(&self, f: impl FnOnce(&mut Running) -> T) -> T {
        f(self.running().as_mut().expect("the server was started"))
    }

    fn signal(&self, signal: Signal) {
        let pid = self.with_running(|running| running.pid);
        threads::signal(pid, signal);
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// None where the port is taken.
    fn start(port: u16, options: &[String], clock: Option<&Clock>) -> Option<Self> {
        let mut keeper = Command::new("sh");
        keeper
            .args(["-c", KEEPER, "keeper", "env"])
            .args(clock.map(Clock::variables).unwrap_or_default())
            .arg("redis-server");
        let is_sentinel = options.iter().any(|option| option == "--sentinel");
        if is_sentinel {
            // The file of its settings comes first, and it keeps no data.
            keeper.args(options);
        }
        keeper.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        if !is_sentinel {
            keeper
                .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
                .args(options);
        }
        let mut keeper = keeper
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C is for the test process; the keeper comes after it.
            .process_group(0)
            .spawn()
            .expect("a shell");
        let lifeline = keeper.stdin.take();
        let stdout = keeper.stdout.take().expect("it is piped");
        let mut says = BufReader::new(stdout);
        let (pid, dir) = started(&mut says);
        let running = Self {
            keeper,
            lifeline,
            says,
            pid,
            dir,
        };
        let ready = if is_sentinel {
            "Sentinel ID is"
        } else {
            "Ready to accept connections"
        };
        running.comes_to(ready).then_some(running)
    }

    /// Waits until the server's log has come so far. False where it never will, because the port is taken.
    fn comes_to(&self, line: &str) -> bool {
        let mut taken = false;
        wait_until("the server is ready", || {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            taken = log.contains("Failed listening on port");
            taken || log.contains(line)
        });
        !taken
    }

    fn kill_for_now(&mut self) {
        self.tell("again");
        assert_eq!(heard(&mut self.says), "gone");
    }

    fn start_again(&mut self) -> bool {
        self.tell("");
        (self.pid, self.dir) = started(&mut self.says);
        // It listens before it loads what it has.
        self.comes_to("Server initialized")
    }

    fn tell(&mut self, word: &str) {
        let lifeline = self.lifeline.as_mut().expect("it is open");
        writeln!(lifeline, "{word}").expect("the keeper listens");
    }
}

/// What the keeper says of a server that it has started.
fn started(keeper: &mut impl BufRead) -> (Pid, PathBuf) {
    let line = heard(keeper);
    let (pid, dir) = line.split_once(' ').expect("a process and a directory");
    let pid = pid.parse().ok().and_then(Pid::from_raw);
    (pid.expect("a pid"), dir.into())
}

fn heard(keeper: &mut impl BufRead) -> String {
    let mut line = String::new();
    keeper.read_line(&mut line).expect("the keeper's line");
    line.trim_end().to_owned()
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        self.keeper.wait().ok();
    }
}

/// Starts a server with what tries to start it on one port.
#[track_caller]
fn on_free_ports<T>(mut start: impl FnMut(u16) -> Option<T>) -> T {
    log::install();
    let version = Command::new("redis-server").arg("--version").output();
    if let Err(error) = version {
        panic!("these tests need a redis-server in PATH: {error}");
    }
    let started = (0..PORTS).find_map(|_| start(unused_port()));
    started.unwrap_or_else(|| panic!("no free port in {PORTS} tries"))
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
