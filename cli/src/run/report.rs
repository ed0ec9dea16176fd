//! The messages of `run` on standard error: text for people, or with `--json` an object a line.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};
use leasehold::{LockInfo, LockManager, Lost, LostCause};
use rustix::process::getpid;
use serde_json::{Value, json};

use super::Options;
use super::terminal::Terminal;
use crate::output::{self, age, safe, span};

/// The time between two looks at the holder while `run` waits.
const LOOK: Duration = Duration::from_secs(1);

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
pub struct Report {
    style: Style,
    names: Vec<String>,
    lines: Sender<String>,
    /// Disconnected when all lines are written.
    written: Receiver<()>,
}

impl Report {
    pub fn new(options: &Options) -> io::Result<Self> {
        let style = match options {
            Options { json: true, .. }
            | Options {
                json_fd: Some(_), ..
            } => Style::Json,
            Options { quiet: true, .. } => Style::Quiet,
            _ => Style::Text,
        };
        let (lines, to_write) = bounded::<String>(MOST_LINES);
        let (writes, written) = bounded::<()>(0);
        let other = options.json_fd.clone();
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

    /// Blocks until all lines are written, but not for long.
    pub fn finish(self) {
        drop(self.lines);
        let _ = self.written.recv_timeout(LAST_LINES);
    }

    /// Returns whether a person sees the line about the holder.
    pub fn shows_waits(&self) -> bool {
        self.style == Style::Text && io::stderr().is_terminal()
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

/// Shows on the terminal who holds the lock, until the receiver is disconnected.
pub fn show_wait(locks: &LockManager, names: &[String], until: &Receiver<()>) {
    let host = rustix::system::uname();
    let label = format!(
        "{}:{}",
        host.nodename().to_string_lossy(),
        getpid().as_raw_nonzero()
    );
    let begun = Instant::now();
    let mut is_shown = false;
    // A lock that is free is granted before the first look.
    while until
        .recv_timeout(LOOK)
        .is_err_and(|error| error.is_timeout())
    {
        // A shell that has this process in the background shows its prompt there.
        if !Terminal::open().is_some_and(|terminal| terminal.is_ours()) {
            continue;
        }
        let seen = names.iter().find_map(|name| locks.inspect(name).ok()?);
        let text = seen.map_or_else(
            || format!("waiting for {}", names.join(", ")),
            |info| waiting_for(&info, &label),
        );
        let text = format!("{text} ({})", span(begun.elapsed()));
        // The line is written over itself, and must not wrap.
        let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| size.ws_col);
        let most = usize::from(columns).max(20) - 1;
        let text: String = safe(&text).chars().take(most).collect();
        let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
        is_shown = true;
    }
    if is_shown {
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
}

/// Returns the line that a waiter with this label shows.
fn waiting_for(info: &LockInfo, label: &str) -> String {
    let mut line = format!("waiting for {}", info.name);
    match info.holders.first() {
        Some(holder) => {
            let by = holder.label.as_deref().unwrap_or("another client");
            let _ = write!(line, ", held by {by}");
            if let Some(since) = holder.since {
                let _ = write!(line, " for {}", span(age(since)));
            }
            if let Some(note) = &holder.note {
                let _ = write!(line, ", note: {note}");
            }
            if info.holders.len() > 1 {
                let _ = write!(line, ", and {} others", info.holders.len() - 1);
            }
        }
        None => line.push_str(", which is free"),
    }
    let place = info
        .waiting
        .iter()
        .position(|it| it.label.as_deref() == Some(label));
    if let Some(place) = place {
        let _ = write!(line, "; place {} of {}", place + 1, info.waiters);
    }
    line
}
