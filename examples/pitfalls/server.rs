//! A Redis that may be killed.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use redis::Connection;

use crate::stage::Outcome;

/// Kills the server when its own standard input ends, so that no server is left behind, however this program ends.
const KEEPER: &str = r#""$@" </dev/null & exec >&-; read -r _; kill -KILL $! 2>/dev/null"#;

/// Keeps no file, not even for its replica.
const OPTIONS: &str = "--bind 127.0.0.1 --appendonly no --repl-diskless-sync yes --repl-diskless-sync-delay 0 \
                       --repl-diskless-load swapdb";

/// A throwaway server. Dropping it kills it.
pub struct Server {
    pub port: u16,
    keeper: Child,
    lifeline: Option<ChildStdin>,
    /// Open for as long as the server writes to it.
    _log: BufReader<ChildStdout>,
}

impl Server {
    pub fn start() -> Outcome<Self> {
        // Between its choice and its use a port may be taken by somebody else.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut keeper = Command::new("sh")
                .args(["-c", KEEPER, "keeper", "redis-server"])
                .args(OPTIONS.split(' '))
                .args(["--save", "", "--port", &port.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let lifeline = keeper.stdin.take();
            let mut log = BufReader::new(keeper.stdout.take().ok_or("no stdout")?);
            let ready = is_ready(&mut log)?;
            let server = Self {
                port,
                keeper,
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
        self.keeper.wait().ok();
    }
}

/// Reads until the server says so. False where it ends before that: there is none in PATH, or the port is taken.
fn is_ready(log: &mut impl BufRead) -> Outcome<bool> {
    for line in log.lines() {
        if line?.contains("Ready to accept connections") {
            return Ok(true);
        }
    }
    Ok(false)
}
