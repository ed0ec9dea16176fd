//! The lines of all processes of a story.

use std::sync::mpsc::{Receiver, Sender, channel};

use shared::PATIENCE;

use crate::{Outcome, now_us};

/// Something that happened in a process.
pub struct Line {
    pub at_us: u64,
    pub process: &'static str,
    pub what: String,
    /// The fence of the guard, if the line is about one.
    pub fence: Option<u64>,
}

/// The lines that the processes have printed, in the order in which they came.
pub struct Record {
    pub sender: Sender<Line>,
    receiver: Receiver<Line>,
    pub lines: Vec<Line>,
}

impl Line {
    /// Reads a line that a process has printed.
    pub fn parse(process: &'static str, line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        Some(Self {
            at_us: words.next()?.parse().ok()?,
            process,
            what: words.next()?.to_owned(),
            fence: words.next().and_then(|fence| fence.parse().ok()),
        })
    }
}

impl Record {
    pub fn new() -> Self {
        let (sender, receiver) = channel();
        Self {
            sender,
            receiver,
            lines: Vec::new(),
        }
    }

    /// Blocks until a process has printed any of these, in all of its lines, this number of times.
    pub fn wait_for(&mut self, process: &str, any_of: &[&str], times: usize) -> Outcome {
        let is_it = |line: &Line| line.process == process && any_of.contains(&&*line.what);
        while self.lines.iter().filter(|line| is_it(line)).count() < times {
            let line = self.receiver.recv_timeout(PATIENCE);
            self.lines
                .push(line.map_err(|_| format!("{process}: no line {any_of:?} in time"))?);
        }
        Ok(())
    }

    /// Adds a line about the processes' surroundings.
    pub fn add(&mut self, what: &str) -> Outcome {
        self.lines.push(Line {
            at_us: now_us()?,
            process: "-",
            what: what.into(),
            fence: None,
        });
        Ok(())
    }
}
