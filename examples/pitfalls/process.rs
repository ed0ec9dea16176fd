//! A second process: this program, whose arguments name its part. The processes exchange lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, io};

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::Outcome;

/// The argument that makes this program a second process.
pub const AS: &str = "--as";

/// A second process. Dropping it kills it.
pub struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(pitfall: &str, part: &str, name: &str) -> Outcome<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args([AS, pitfall, part, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        Ok(Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    /// Returns the process's next line.
    pub fn hear(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line)? {
            0 => Err("the second process ended too early".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    pub fn tell(&mut self, line: &str) -> Outcome {
        Ok(writeln!(self.stdin, "{line}")?)
    }

    pub fn signal(&self, signal: Signal) -> Outcome {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for the end of the process. Returns whether it crashed.
    pub fn crashed(&mut self) -> Outcome<bool> {
        Ok(self.child.wait()?.code().is_none())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Waits for a line, in the second process. Returns an error if the first process has ended.
pub fn hear() -> Outcome {
    match io::stdin().read_line(&mut String::new())? {
        0 => Err("the first process is gone".into()),
        _ => Ok(()),
    }
}
