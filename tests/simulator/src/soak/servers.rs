//! Real servers for the soak, in directories of their own. Dropping them ends them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, LockManager};
use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// A node of a quorum votes again after this time, which is longer than a lease.
const RESTART_DELAY: Duration = Duration::from_secs(3);
const MASTER: &str = "mine";
const SLOTS: usize = 16_384;

/// The servers of one topology.
pub(super) struct Deployment {
    pub(super) name: &'static str,
    servers: Vec<Server>,
    /// The one sentinel of a master.
    sentinel: Option<Server>,
}

/// A server, which keeps its port.
pub(super) struct Server {
    port: u16,
    dir: PathBuf,
    options: Vec<String>,
    process: Child,
}

impl Deployment {
    pub(super) fn start_all() -> Vec<Self> {
        let of = |name, servers| Self {
            name,
            servers,
            sentinel: None,
        };
        let start = |_| Server::start(&[]);
        let mut all = vec![
            of("single", vec![Server::start(&[])]),
            of("quorum", (0..3).map(start).collect()),
            of("cluster", cluster()),
        ];
        let master = Server::start(&[]);
        let sentinel = Server::start_sentinel(master.port);
        all.push(Self {
            name: "sentinel",
            servers: vec![master],
            sentinel: Some(sentinel),
        });
        all
    }

    pub(super) fn servers(&mut self) -> &mut [Server] {
        &mut self.servers
    }

    /// Returns settings for these servers.
    pub(super) fn builder(&self) -> Builder {
        let urls: Vec<_> = self.servers.iter().map(Server::url).collect();
        match self.name {
            "single" => LockManager::single(&urls[0]),
            "quorum" => LockManager::quorum(urls).restart_delay(RESTART_DELAY),
            "cluster" => LockManager::cluster(urls),
            _ => LockManager::sentinel(self.sentinel.iter().map(Server::url), MASTER),
        }
    }
}

/// Starts three masters of a Cluster.
fn cluster() -> Vec<Server> {
    // A stopped master keeps its slots.
    let options = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "3600000",
    ];
    let nodes: Vec<_> = (0..3).map(|_| Server::start(&options)).collect();
    for (number, node) in nodes.iter().enumerate() {
        let end = |number| number * SLOTS / nodes.len();
        let (first, last) = (end(number), end(number + 1) - 1);
        node.ask(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
        node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
    }
    for node in &nodes[1..] {
        nodes[0].ask(&format!("CLUSTER MEET 127.0.0.1 {}", node.port));
    }
    for node in &nodes {
        node.wait_until("the cluster is well", |node| {
            let info = node.ask("CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        });
    }
    nodes
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let options: Vec<_> = options.iter().map(|&it| it.to_owned()).collect();
        Self::start_with(unused_port(), options)
    }

    fn start_sentinel(master: u16) -> Self {
        let port = unused_port();
        let dir = directory_of(port);
        fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("sentinel.conf");
        let settings = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds {MASTER} 3600000\n"
        );
        fs::write(&file, settings).expect("a file");
        let options = vec![file.display().to_string(), "--sentinel".to_owned()];
        Self::start_with(port, options)
    }

    fn start_with(port: u16, options: Vec<String>) -> Self {
        let dir = directory_of(port);
        fs::create_dir_all(&dir).expect("a directory");
        let server = Self {
            port,
            process: spawn(port, &dir, &options),
            dir,
            options,
        };
        server.wait_until_up();
        server
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn wait_until_up(&self) {
        self.wait_until("the server answers", |it| {
            it.ask("PING").starts_with("+PONG")
        });
    }

    fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !condition(self) {
            assert!(begun.elapsed() < PATIENCE, "it never came: {what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the beginning of the answer to a command, or an empty text if there is none.
    pub(super) fn ask(&self, command: &str) -> String {
        self.try_ask(command).unwrap_or_default()
    }

    fn try_ask(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "{command}\r\n")?;
        let mut answer = String::new();
        let mut lines = BufReader::new(stream);
        lines.read_line(&mut answer)?;
        if let Some(length) = answer.strip_prefix('$') {
            // A text with its length in front.
            let length: usize = length.trim_end().parse().unwrap_or(0);
            while answer.len() < length {
                if lines.read_line(&mut answer)? == 0 {
                    break;
                }
            }
        }
        Ok(answer)
    }

    /// Kills the server, and starts it again after a while. It has lost its data, and a node of a Cluster keeps its slots.
    pub(super) fn restart(&mut self, after: Duration) {
        self.end();
        thread::sleep(after);
        self.process = spawn(self.port, &self.dir, &self.options);
        self.wait_until_up();
    }

    /// Stops the process of the server for a while.
    pub(super) fn stall(&self, length: Duration) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP).expect("the server is ours");
        thread::sleep(length);
        kill_process(pid, Signal::CONT).expect("the server is ours");
    }

    fn end(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        fs::remove_dir_all(&self.dir).ok();
    }
}

fn directory_of(port: u16) -> PathBuf {
    std::env::temp_dir().join(format!("leasehold-soak-{}-{port}", std::process::id()))
}

fn spawn(port: u16, dir: &PathBuf, options: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    // A sentinel takes its file first.
    command.args(options);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    if !options.iter().any(|option| option == "--sentinel") {
        command.args(["--save", "", "--appendonly", "no"]);
    }
    command
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("this needs a redis-server in PATH")
}

/// Returns the name and the version of the servers, such as `valkey 9.1.2`.
pub(super) fn version() -> String {
    let asked = Command::new("redis-server").arg("--version").output();
    let text = asked.expect("this needs a redis-server in PATH").stdout;
    let text = String::from_utf8_lossy(&text).to_lowercase();
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let version = words.find_map(|word| word.strip_prefix("v="));
    format!("{name} {}", version.unwrap_or("of no version"))
}

/// Returns a free port whose bus port is below 65,536.
fn unused_port() -> u16 {
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it has one").port();
        if port < 55_000 {
            return port;
        }
    }
}
