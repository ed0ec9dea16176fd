//! A Redis server that the example may kill.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use redis::Connection;

use crate::stage::Outcome;

/// A shell script that kills the server when its standard input ends, so that this program leaves no server behind.
const SUPERVISOR: &str = r#""$@" </dev/null & exec >&-; read -r _; kill -KILL $! 2>/dev/null"#;

/// The server writes no file, not even to feed its replica.
const OPTIONS: &str = "--bind 127.0.0.1 --appendonly no --repl-diskless-sync yes --repl-diskless-sync-delay 0 \
                       --repl-diskless-load swapdb";

/// A temporary server. Dropping it kills the server.
pub struct Server {
    pub port: u16,
    supervisor: Child,
    lifeline: Option<ChildStdin>,
    /// Kept open because the server writes to it.
    _log: BufReader<ChildStdout>,
}

impl Server {
    pub fn start() -> Outcome<Self> {
        // Another process may take a port between its choice and its use.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut supervisor = Command::new("sh")
                .args(["-c", SUPERVISOR, "supervisor", "redis-server"])
                .args(OPTIONS.split(' '))
                .args(["--save", "", "--port", &port.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let lifeline = supervisor.stdin.take();
            let mut log = BufReader::new(supervisor.stdout.take().ok_or("no stdout")?);
            let ready = is_ready(&mut log)?;
            let server = Self {
                port,
                supervisor,
                lifeline,
                _log: log,
            };
            if ready {
                return Ok(server);
            }
        }
        Err("no server started: is there a redis-server in PATH?".into())
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn redis(&self) -> Outcome<Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        self.supervisor.wait().ok();
    }
}

/// Blocks until the server is ready. Returns `false` if it ends before that: none is in PATH, or the port is taken.
fn is_ready(log: &mut impl BufRead) -> Outcome<bool> {
    for line in log.lines() {
        if line?.contains("Ready to accept connections") {
            return Ok(true);
        }
    }
    Ok(false)
}
