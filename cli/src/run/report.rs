//! The messages of `run` on standard error: text for people, or with `--json` an object a line.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};
use leasehold::{Lost, LostCause};
use serde_json::{Value, json};

use super::Options;
use super::terminal::Terminal;
use crate::output;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Text,
    Json,
    Quiet,
}

/// The lines that the writer may still have to write. More are dropped: nobody reads standard error then.
const MOST_LINES: usize = 100;
/// How long the last lines may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A thread writes the lines, because a pipe that nobody reads must not stop the front.
#[derive(Clone)]
pub struct Report {
    style: Style,
    names: Vec<String>,
    lines: Sender<String>,
    /// Disconnected when all lines are written.
    written: Receiver<()>,
}

impl Report {
    pub fn new(options: &Options) -> io::Result<Self> {
        let job = &options.job;
        let style = if job.json || job.json_fd.is_some() {
            Style::Json
        } else if job.quiet {
            Style::Quiet
        } else {
            Style::Text
        };
        let (lines, to_write) = bounded::<String>(MOST_LINES);
        let (writes, written) = bounded::<()>(0);
        let other = job.json_fd.clone();
        let thread = thread::Builder::new().name("messages".into());
        thread.spawn(move || {
            let _writes = writes;
            for line in to_write {
                // In one write, because others may write to the same pipe. There is nowhere to report a failure to.
                let _ = match &other {
                    Some(file) => (&**file).write_all(line.as_bytes()),
                    None => io::stderr().write_all(line.as_bytes()),
                };
            }
        })?;
        Ok(Self {
            style,
            names: options.names.clone(),
            lines,
            written,
        })
    }

    /// Writes a failure, in each style.
    pub fn fail(&self, event: &str, text: &str, fields: Value) {
        match self.style {
            Style::Text | Style::Quiet => self.write(output::complaint(text)),
            Style::Json => self.json(event, fields),
        }
    }

    /// Writes an event for people and programs: in each style but `--quiet`.
    pub fn tell(&self, event: &str, text: &str, fields: Value) {
        if self.style != Style::Quiet {
            self.fail(event, text, fields);
        }
    }

    /// Writes an event for programs: with `--json` alone.
    pub fn log(&self, event: &str, fields: Value) {
        if self.style == Style::Json {
            self.json(event, fields);
        }
    }

    pub fn lost(&self, lost: &Lost) {
        let cause = match lost.cause {
            LostCause::Expired => "expired",
            LostCause::Taken => "taken",
            LostCause::Removed => "removed",
            LostCause::MaxHold => "max_hold",
            _ => "unknown",
        };
        let fields = json!({ "name": &*lost.name, "cause": cause, "fence": lost.fence });
        self.fail("lost", &lost.to_string(), fields);
    }

    /// Blocks until all lines are written, also those of its clones, but not for long.
    pub fn finish(self) {
        drop(self.lines);
        let _ = self.written.recv_timeout(LAST_LINES);
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn is_quiet(&self) -> bool {
        self.style == Style::Quiet
    }

    /// Returns whether a line can be written over itself for a person. A shell that has this process in the background shows
    /// its prompt there.
    pub fn has_terminal(&self) -> bool {
        self.style == Style::Text
            && io::stderr().is_terminal()
            && Terminal::open().is_some_and(|terminal| terminal.is_ours())
    }

    fn json(&self, event: &str, fields: Value) {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let mut object = json!({ "event": event, "time": time, "names": self.names });
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        self.write(format!("{object}\n"));
    }

    fn write(&self, line: String) {
        let _ = self.lines.try_send(line);
    }
}
