//! redis-py's `Lock`, in a Python of its own: see `tests/redis_py/client.py`. Which Python, with redis-py in it, is what
//! `LEASEHOLD_REDIS_PY` says; `.ci/run` makes one, and runs these tests in it.

use std::env;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::{Foreign, each, each_without_expiry};
use crate::support::Raw;

/// Which Python has redis-py.
const PYTHON: &str = "LEASEHOLD_REDIS_PY";
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis_py/client.py");

/// It ends with its standard input.
struct RedisPy {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl RedisPy {
    fn ask(&mut self, command: impl Display) -> bool {
        let commands = self.commands.as_mut().expect("until it is dropped");
        writeln!(commands, "{command}").expect("the client listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it is text");
        match answer.trim_end() {
            "yes" => true,
            "no" => false,
            other => panic!("{command}: the client says {other:?}"),
        }
    }
}

impl Foreign for RedisPy {
    fn new(redis: &Raw, name: &str) -> Self {
        let Some(python) = env::var_os(PYTHON).filter(|python| !python.is_empty()) else {
            panic!("{PYTHON} does not say which Python has redis-py; see .ci/run");
        };
        let mut process = Command::new(&python)
            .args(["-u", CLIENT, redis.url(), name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", python.display()));
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

    fn try_acquire(&mut self, ttl: Option<Duration>) -> bool {
        match ttl {
            Some(ttl) => self.ask(format_args!("acquire {}", ttl.as_millis())),
            None => self.ask("acquire"),
        }
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        self.ask(format_args!("extend {}", ttl.as_millis()))
    }

    fn release(&mut self) -> bool {
        self.ask("release")
    }

    /// As its own users wait.
    fn acquire(&mut self, ttl: Duration) {
        assert!(self.ask(format_args!("wait {}", ttl.as_millis())));
    }
}

impl Drop for RedisPy {
    fn drop(&mut self) {
        self.commands.take();
        self.process.wait().ok();
    }
}

macro_rules! test {
    ($behaviour:ident) => {
        #[test]
        #[ignore = "it needs a Python with redis-py: .ci/run makes one"]
        fn $behaviour() {
            super::$behaviour::<RedisPy>();
        }
    };
}

each!(test);
each_without_expiry!(test);
