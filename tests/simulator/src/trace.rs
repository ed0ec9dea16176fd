//! The events of a schedule, in their order.

use std::fmt::{self, Write};
use std::time::Duration;

/// The events of a schedule: their hash, and their text if somebody will read it.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
    line: String,
}

impl Trace {
    pub(crate) fn new(is_kept: bool) -> Self {
        Self {
            // The offset basis of FNV-1a.
            hash: 0xcbf2_9ce4_8422_2325,
            lines: is_kept.then(Vec::new),
            line: String::new(),
        }
    }

    pub(crate) fn note(&mut self, at: Duration, event: fmt::Arguments<'_>) {
        self.line.clear();
        let nanos = at.as_nanos();
        write!(self.line, "{nanos:>13} {event}").expect("a string takes all");
        for byte in self.line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(self.line.clone());
        }
    }

    /// Returns a hash of all events, their times and their order.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns a line for each event, or nothing if they were not kept.
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}
