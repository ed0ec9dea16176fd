//! The masters: plain servers that do not know each other.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use redis::TypedCommands;
use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;

/// A shell script that prints the process of a server, starts it, and kills it when the standard input of the script
/// ends. So this program leaves no server behind.
const SUPERVISOR: &str = r#"sh -c 'echo $$; exec "$@"' server "$@" </dev/null &
    exec >&-; read -r _; kill -KILL $! 2>/dev/null"#;
const OPTIONS: [&str; 6] = ["--bind", "127.0.0.1", "--appendonly", "no", "--save", ""];
const SECOND: Duration = Duration::from_secs(1);

/// A temporary server. Dropping it kills the server.
pub struct Node {
    pub address: String,
    process: Pid,
    supervisor: Child,
    lifeline: Option<ChildStdin>,
    /// Kept open because the server writes to it.
    _log: BufReader<ChildStdout>,
}

impl Node {
    pub fn start() -> Outcome<Self> {
        // Another process may take a port between its choice and its use.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut supervisor = Command::new("sh")
                .args(["-c", SUPERVISOR, "supervisor", "redis-server"])
                .args(OPTIONS)
                .args(["--port", &port.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let mut log = BufReader::new(supervisor.stdout.take().ok_or("no stdout")?);
            let mut process = String::new();
            log.read_line(&mut process)?;
            let mut lines = log.by_ref().lines().map_while(Result::ok);
            if lines.any(|line| line.contains("Ready to accept connections")) {
                return Ok(Self {
                    address: format!("127.0.0.1:{port}"),
                    process: Pid::from_raw(process.trim().parse()?).ok_or("no process")?,
                    lifeline: supervisor.stdin.take(),
                    supervisor,
                    _log: log,
                });
            }
        }
        Err("no server started: is there a redis-server in PATH?".into())
    }

    /// Sends a signal to the server's process.
    pub fn signal(&self, signal: Signal) -> Outcome {
        Ok(kill_process(self.process, signal)?)
    }

    /// Returns the value of a key, as a client without leasehold reads it.
    pub fn get(&self, key: &str) -> redis::RedisResult<Option<String>> {
        let client = redis::Client::open(format!("redis://{}/", self.address))?;
        let mut redis = client.get_connection_with_timeout(SECOND)?;
        redis.set_read_timeout(Some(SECOND))?;
        redis.get(key)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        self.supervisor.wait().ok();
    }
}
