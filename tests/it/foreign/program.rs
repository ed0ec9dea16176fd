//! Another client, in a separate program. It reads one command a line, and replies to each with a line, `yes` or `no`.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::support::Raw;

/// Returns the URLs of the servers for the command line of a client, separated by commas.
pub(super) fn urls(redis: &Raw) -> String {
    redis.url().replace(' ', ",")
}

/// A running client of one lock. The client ends when its standard input is closed.
pub(super) struct Program {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Program {
    /// Starts the client and waits until it answers.
    pub(super) fn start(command: &mut Command) -> Self {
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
        };
        assert!(client.ask("hello"));
        client
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

impl Drop for Program {
    fn drop(&mut self) {
        self.commands.take();
        self.process.wait().ok();
    }
}
