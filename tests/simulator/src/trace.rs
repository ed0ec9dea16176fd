//! The events of a schedule, in their order.
//!
//! The hash is of the same numbers and bytes, whether the text is kept or not.

use std::fmt::{self, Write};
use std::time::Duration;

/// How many bytes of a piece the trace has.
const LONGEST_PIECE: usize = 600;

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
            hash: 0,
            lines: is_kept.then(Vec::new),
            line: String::new(),
        }
    }

    pub(crate) fn note(&mut self, at: Duration, event: fmt::Arguments<'_>) {
        self.line.clear();
        self.line.write_fmt(event).expect("a string takes all");
        self.hash = hashed(hashed_time(self.hash, at), self.line.as_bytes());
        if let Some(lines) = &mut self.lines {
            lines.push(line(at, &self.line));
        }
    }

    /// Notes which thread runs next.
    pub(crate) fn note_thread(&mut self, at: Duration, number: usize) {
        self.hash = mixed(hashed_time(self.hash, at), number as u64);
        if let Some(lines) = &mut self.lines {
            lines.push(line(at, &number));
        }
    }

    /// Notes bytes that have arrived.
    pub(crate) fn note_bytes(&mut self, at: Duration, way: fmt::Arguments<'_>, bytes: &[u8]) {
        let first = &bytes[..bytes.len().min(LONGEST_PIECE)];
        self.line.clear();
        self.line.write_fmt(way).expect("a string takes all");
        self.hash = hashed(hashed_time(self.hash, at), self.line.as_bytes());
        self.hash = mixed(hashed(self.hash, first), bytes.len() as u64);
        if let Some(lines) = &mut self.lines {
            lines.push(line(
                at,
                &format_args!("{}: {}", self.line, readable(first)),
            ));
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

fn line(at: Duration, event: &impl fmt::Display) -> String {
    format!("{:>13} {event}", at.as_nanos())
}

/// Returns bytes as one line, without scripts and lengths.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_data = |line: &&str| !line.starts_with(['*', '$']) && line.len() < 80;
    text.split("\r\n")
        .filter(is_data)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The step of `FxHash`, which takes a number at a time.
fn mixed(hash: u64, number: u64) -> u64 {
    (hash.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95)
}

fn hashed_time(hash: u64, at: Duration) -> u64 {
    mixed(mixed(hash, at.as_secs()), u64::from(at.subsec_nanos()))
}

fn hashed(hash: u64, bytes: &[u8]) -> u64 {
    let number = |part: &[u8]| {
        let mut number = [0; 8];
        number[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(number)
    };
    let parts = bytes.chunks(8).map(number);
    mixed(parts.fold(hash, mixed), bytes.len() as u64)
}
