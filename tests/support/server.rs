//! Real Redis servers, each on its own port.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{Pid, Signal};

use super::{Clock, Raw, log, ms, secs, threads, wait_until};

/// A shell script that starts a server, and kills it when the standard input of the script ends. So a test process that
/// is killed leaves no server behind, not even a stopped one.
///
/// The first argument is the directory in which the server gets its own.
///
/// After the line `again` the script kills the server and prints `gone`. After the next line it starts the server again
/// over the same data.
const SUPERVISOR: &str = r#"
dir=$(mktemp -d "$1/leasehold-it.XXXXXX") || exit
shift
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

/// Returns a directory for the files of servers: that of `TMPDIR`, or else one in memory if the system has such a one. A
/// sentinel and a node of a cluster wait for the disk in the middle of a failover, and a busy disk would make them late.
pub(crate) fn dir_of_servers() -> PathBuf {
    let in_memory = PathBuf::from("/dev/shm");
    if env::var_os("TMPDIR").is_none() && in_memory.is_dir() {
        return in_memory;
    }
    env::temp_dir()
}

/// How many ports are tried. Another process may take a port between its choice and its use.
const PORTS: u32 = 20;
/// The ports of servers: below the range of outgoing connections.
const PORTS_GIVEN: Range<u16> = 10_000..32_000;
/// The options of a server that keeps all acknowledged writes.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
/// The options of a server whose clock the test can set. A thread of jemalloc reads that clock and sleeps by the kernel's, so
/// it would not sleep any more after the clock was set back.
const OWN_CLOCK: [&str; 2] = ["--jemalloc-bg-thread", "no"];
/// How much larger the port of a node's bus is.
const BUS: u16 = 10_000;

/// Returns the URL of a server that does not exist.
pub fn unused_url() -> String {
    log::install();
    url(unused_port())
}

/// A server of one test, which the test may stop and configure. Dropping it ends the server.
pub struct Server {
    port: u16,
    options: Vec<String>,
    /// The clock of the server, if the test sets it.
    clock: Option<Clock>,
    running: Mutex<Option<Running>>,
}

struct Running {
    supervisor: Child,
    /// The standard input of the supervisor. Closing it ends the server.
    lifeline: Option<ChildStdin>,
    /// The output of the supervisor.
    output: BufReader<ChildStdout>,
    pid: Pid,
    dir: PathBuf,
}

impl Server {
    /// Starts a server and waits until it is ready.
    #[track_caller]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further options.
    #[track_caller]
    pub fn with(options: &[&str]) -> Self {
        Self::begin(options, None)
    }

    /// Starts a node of a Cluster with further options. Its bus has a port that is larger by 10,000, because a server
    /// before Redis 7 can have no other.
    #[track_caller]
    pub fn of_cluster(options: &[&str]) -> Self {
        let options = [&["--cluster-enabled", "yes"], options].concat();
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        on_free_ports(|port| {
            let has_bus = PORTS_GIVEN.contains(&(port + BUS)) && take(port + BUS);
            has_bus.then(|| Self::on(port, &options, &mut None))?
        })
    }

    /// Starts a server whose clock the test can set.
    #[track_caller]
    pub fn with_clock() -> Self {
        Self::begin(&OWN_CLOCK, Some(Clock::new()))
    }

    /// Starts a server that keeps all acknowledged writes when it is killed and started again.
    #[track_caller]
    pub fn keeping_data(options: &[&str]) -> Self {
        Self::begin(&[&DURABLE, options].concat(), None)
    }

    /// Does the same with a clock that the test can set.
    #[track_caller]
    pub fn keeping_data_with_clock() -> Self {
        Self::begin(&[&DURABLE[..], &OWN_CLOCK].concat(), Some(Clock::new()))
    }

    /// Starts a server that also speaks TLS, on another port, with further options and with a certificate and its key
    /// from these files.
    #[track_caller]
    pub fn with_tls(certificate: &str, key: &str, options: &[&str]) -> (Self, u16) {
        let of_tls = [
            "--tls-cert-file",
            certificate,
            "--tls-key-file",
            key,
            "--tls-auth-clients",
            "no",
        ];
        Self::with_port("--tls-port", &[options, &of_tls].concat())
    }

    /// Starts a server with further options, and with a second free port that this option sets. Returns that port, too.
    #[track_caller]
    fn with_port(option: &str, options: &[&str]) -> (Self, u16) {
        on_free_ports(|port| {
            let second = unused_port();
            let options = options.iter().copied().map(str::to_owned);
            let second_port = [option.to_owned(), second.to_string()];
            let options: Vec<_> = options.chain(second_port).collect();
            let server = Self::on(port, &options, &mut None)?;
            Some((server, second))
        })
    }

    #[track_caller]
    fn begin(options: &[&str], mut clock: Option<Clock>) -> Self {
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        on_free_ports(|port| Self::on(port, &options, &mut clock))
    }

    /// Returns `None` if the port is taken.
    fn on(port: u16, options: &[String], clock: &mut Option<Clock>) -> Option<Self> {
        let running = Running::start(port, options, clock.as_ref())?;
        Some(Self {
            port,
            options: options.to_owned(),
            clock: clock.take(),
            running: Mutex::new(Some(running)),
        })
    }

    pub fn url(&self) -> String {
        url(self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn raw(&self) -> Raw {
        Raw::new(&self.url())
    }

    /// Stops the process of the server: connections stay open, and no request is answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the server. All its data is lost.
    pub fn kill(&self) {
        self.running().take();
    }

    /// Kills the server if it still runs, and starts an empty server on the same port.
    pub fn restart(&self) {
        let mut running = self.running();
        running.take();
        wait_until("the port is free again", || {
            *running = Running::start(self.port, &self.options, self.clock.as_ref());
            running.is_some()
        });
    }

    /// Kills the server, but keeps its data on disk for [`Self::start_again`].
    pub fn kill_for_now(&self) {
        self.with_running(Running::kill_for_now);
    }

    /// Starts the killed server again with its data. Returns when it listens, perhaps before it has loaded the data.
    pub fn start_again(&self) {
        self.with_running(|running| {
            wait_until("the port is free again", || {
                let listens = running.start_again();
                if !listens {
                    running.kill_for_now();
                }
                listens
            });
        });
    }

    /// Returns the directory of its data.
    pub fn dir(&self) -> PathBuf {
        self.with_running(|running| running.dir.clone())
    }

    /// Sets the clock of a server started by [`Self::with_clock`], and waits until the server reads the new time.
    ///
    /// Valkey 9.1 reads the clock once a millisecond. A key that it set just before would expire at once.
    #[track_caller]
    pub fn set_clock_ahead(&self, seconds: i64) {
        const NEAR: Duration = ms(500);
        let clock = self
            .clock
            .as_ref()
            .expect("the server was started with a clock");
        clock.set_ahead(seconds);
        let raw = self.raw();
        wait_until("the server reads its new clock", || {
            let (whole, micros): (u64, u64) = raw.ask(&["TIME"]);
            let reads = Duration::from_secs(whole) + Duration::from_micros(micros);
            let ours = SystemTime::now().duration_since(UNIX_EPOCH);
            let ours = ours.expect("it is past 1970");
            let ahead = secs(seconds.unsigned_abs());
            let wanted = if seconds < 0 {
                ours.saturating_sub(ahead)
            } else {
                ours + ahead
            };
            reads.abs_diff(wanted) < NEAR
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
    /// Returns `None` if the port is taken.
    fn start(port: u16, options: &[String], clock: Option<&Clock>) -> Option<Self> {
        let mut supervisor = Command::new("sh");
        supervisor
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(dir_of_servers())
            .arg("env")
            .args(clock.map(Clock::variables).unwrap_or_default());
        supervisor.arg("redis-server");
        let is_sentinel = options.iter().any(|option| option == "--sentinel");
        if is_sentinel {
            // A Sentinel takes its configuration file first. It keeps no data.
            supervisor.args(options);
        }
        supervisor.args(["--bind", "127.0.0.1"]);
        supervisor.args(["--port", &port.to_string()]);
        if !is_sentinel {
            supervisor
                .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
                .args(options);
        }
        let mut supervisor = supervisor
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must end the test process alone. The supervisor ends after it.
            .process_group(0)
            .spawn()
            .expect("a shell");
        let lifeline = supervisor.stdin.take();
        let stdout = supervisor.stdout.take().expect("it is piped");
        let mut output = BufReader::new(stdout);
        let (pid, dir) = started(&mut output);
        let running = Self {
            supervisor,
            lifeline,
            output,
            pid,
            dir,
        };
        let ready = if is_sentinel {
            "Sentinel ID is"
        } else {
            "Ready to accept connections"
        };
        running.logs(ready).then_some(running)
    }

    /// Blocks until the server has logged `line`. Returns `false` if the port is taken.
    fn logs(&self, line: &str) -> bool {
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
        assert_eq!(read_line(&mut self.output), "gone");
    }

    fn start_again(&mut self) -> bool {
        self.tell("");
        (self.pid, self.dir) = started(&mut self.output);
        // The server listens before it has loaded its data.
        self.logs("Server initialized")
    }

    fn tell(&mut self, word: &str) {
        let lifeline = self.lifeline.as_mut().expect("it is open");
        writeln!(lifeline, "{word}").expect("the supervisor reads");
    }
}

/// Reads the process id and the directory of a server that the supervisor has started.
fn started(supervisor: &mut impl BufRead) -> (Pid, PathBuf) {
    let line = read_line(supervisor);
    let (pid, dir) = line.split_once(' ').expect("a process and a directory");
    let pid = pid.parse().ok().and_then(Pid::from_raw);
    (pid.expect("a pid"), dir.into())
}

fn read_line(supervisor: &mut impl BufRead) -> String {
    let mut line = String::new();
    supervisor
        .read_line(&mut line)
        .expect("the supervisor's line");
    line.trim_end().to_owned()
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        self.supervisor.wait().ok();
    }
}

/// Why Redis before 7 grants locks although it has too few replicas: see [`cannot_show`].
pub const SCRIPTS_NEED_NO_REPLICAS: &str = "its scripts are not held to `min-replicas-to-write`";

/// Returns whether the servers of the tests are older than Redis 7. Then the caller's test shows nothing, so this
/// function prints why.
pub fn cannot_show(why: &str) -> bool {
    let is_old = is_before_redis_7();
    if is_old {
        println!("not shown by Redis before 7: {why}");
    }
    is_old
}

/// Returns whether the servers of the tests are older than Redis 7.
pub fn is_before_redis_7() -> bool {
    version_of_servers().starts_with("Redis server v=6.")
}

/// Returns whether the servers of the tests are those of the test kit, by `scripts/with-server memory`. They lack
/// something that the caller's test needs, so this function prints what.
pub fn lacks_in_memory(what: &str) -> bool {
    let is_in_memory = version_of_servers().contains("in memory");
    if is_in_memory {
        println!("not shown by a Redis in memory, which lacks {what}");
    }
    is_in_memory
}

pub(crate) fn version_of_servers() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let version = Command::new("redis-server").arg("--version").output();
        let version = version.unwrap_or_else(|error| {
            panic!("these tests need a redis-server in PATH: {error}");
        });
        String::from_utf8(version.stdout).expect("text")
    });
    &VERSION
}

/// Calls `start` with free ports until it returns a server.
#[track_caller]
fn on_free_ports<T>(mut start: impl FnMut(u16) -> Option<T>) -> T {
    log::install();
    // This panics if there is no server program.
    version_of_servers();
    let started = (0..PORTS).find_map(|_| start(unused_port()));
    started.unwrap_or_else(|| panic!("no free port in {PORTS} tries"))
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// Returns a free port below the range of outgoing connections. No test of this process gets it again: the server of
/// another test would take the place of one that was killed.
pub(crate) fn unused_port() -> u16 {
    loop {
        let chance = RandomState::new().hash_one(0u8) % PORTS_GIVEN.len() as u64;
        let port = PORTS_GIVEN.start + u16::try_from(chance).expect("it is small");
        if take(port) {
            return port;
        }
    }
}

/// Takes a port, if it has no socket and no test of this process has had it. A socket that does not listen keeps the port
/// of a killed server for an example.
fn take(port: u16) -> bool {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let trial = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    let is_free = bind(&trial, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok();
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    is_free && given.insert(port)
}
