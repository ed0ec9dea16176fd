//! A process of a story: this program, with other arguments.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::{env, thread};

use crate::Outcome;
use crate::record::Line;

/// A process. Dropping it kills it.
pub struct Process {
    child: Child,
    stdin: ChildStdin,
}

impl Process {
    /// Starts a process that plays a part, and sends its lines to the record of the story.
    pub fn start(
        name: &'static str,
        part: &str,
        url: &str,
        record: &Sender<Line>,
    ) -> Outcome<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args([part, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let record = record.clone();
        thread::spawn(move || {
            let lines = stdout.lines().map_while(Result::ok);
            for line in lines.filter_map(|line| Line::parse(name, &line)) {
                record.send(line).ok();
            }
        });
        Ok(Self { child, stdin })
    }

    /// Lets the process take its next step.
    pub fn go_on(&mut self) -> Outcome {
        Ok(writeln!(self.stdin, "go on")?)
    }

    /// Waits until the process has done its part.
    pub fn end(mut self) -> Outcome {
        self.go_on()?;
        match self.child.wait()? {
            status if status.success() => Ok(()),
            status => Err(format!("a process ended with {status}").into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
