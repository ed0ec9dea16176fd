//! Another client, in a separate program. It reads one command a line, and replies to each with a line, `yes` or `no`.

use std::env;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

use super::{Foreign, poll};
use crate::support::Raw;

/// The differences between the clients.
pub(super) trait Client: Send + 'static {
    /// Whether the program knows the command `wait`, which waits for the lock by the client's own blocking call.
    const BLOCKS: bool = false;

    /// Returns the command that starts it for a lock with this name.
    fn command(redis: &Raw, name: &str) -> Command;
}

/// Names a Python that has redis-py and python-redis-lock. `.ci/long` makes such a Python.
const PYTHON: &str = "LEASEHOLD_PYTHON";

/// Returns the command that runs `tests/CLIENT/client.py`.
pub(super) fn in_python(client: &str) -> Command {
    let Some(python) = env::var_os(PYTHON).filter(|python| !python.is_empty()) else {
        panic!("{PYTHON} does not say which Python has the packages of {client}; see .ci/long");
    };
    let mut command = Command::new(python);
    let program = format!("{}/../{client}/client.py", env!("CARGO_MANIFEST_DIR"));
    command.args(["-u", &program]);
    command
}

/// Returns the URLs of the servers for the command line of a client, separated by commas.
pub(super) fn urls(redis: &Raw) -> String {
    redis.url().replace(' ', ",")
}

/// A running client of one lock. The client ends when its standard input is closed.
pub(super) struct Program<C> {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    client: PhantomData<C>,
}

impl<C> Program<C> {
    /// Starts the client and waits until it answers.
    fn start(command: &mut Command) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let commands = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut client = Self {
            process,
            commands,
            answers,
            client: PhantomData,
        };
        assert!(client.ask("hello"));
        client
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Sends a command and returns the answer.
    pub(super) fn ask(&mut self, command: impl Display) -> bool {
        let commands = self.commands.as_mut().expect("it is open until the drop");
        writeln!(commands, "{command}").expect("the client listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it is text");
        match answer.trim_end() {
            "yes" => true,
            "no" => false,
            other => panic!("{command}: the client says {other:?}"),
        }
    }

    /// Sends a command with a time to live, or without one, and returns the answer.
    pub(super) fn ask_with(&mut self, command: &str, ttl: Option<Duration>) -> bool {
        match ttl {
            Some(ttl) => self.ask(format!("{command} {}", ttl.as_millis())),
            None => self.ask(command),
        }
    }
}

impl<C: Client> Foreign for Program<C> {
    fn new(redis: &Raw, name: &str) -> Self {
        Self::start(&mut C::command(redis, name))
    }

    fn try_acquire(&mut self, ttl: Option<Duration>) -> bool {
        self.ask_with("acquire", ttl)
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        self.ask_with("extend", Some(ttl))
    }

    fn release(&mut self) -> bool {
        self.ask("release")
    }

    fn acquire(&mut self, ttl: Duration) {
        if C::BLOCKS {
            assert!(self.ask_with("wait", Some(ttl)));
        } else {
            poll(self, ttl);
        }
    }
}

impl<C> Drop for Program<C> {
    fn drop(&mut self) {
        self.commands.take();
        self.process.wait().ok();
    }
}
