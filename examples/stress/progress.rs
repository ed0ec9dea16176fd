//! The line that moves while the threads work.

use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use crate::clock;
use crate::ledger::Ledger;
use crate::options::{Options, Work};

/// Moves to the start of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

pub struct Progress {
    is_shown: bool,
    work: Work,
    start: Duration,
}

impl Progress {
    /// Returns a line on stderr. It is hidden if stderr is no terminal, or the run prints JSON.
    pub fn new(options: &Options, start: Duration) -> Self {
        Self {
            is_shown: !options.json && stderr().is_terminal(),
            work: options.work,
            start,
        }
    }

    /// Shows the updates in the ledger so far.
    pub fn show(&self, ledger: &Ledger) {
        if !self.is_shown {
            return;
        }
        // If the ledger cannot be read, the threads report it.
        let Ok(updates) = ledger.updates() else {
            return;
        };
        let elapsed = clock::now().saturating_sub(self.start);
        let per_second = u128::from(updates) * 1_000 / elapsed.as_millis().max(1);
        let last = match self.work {
            Work::Seconds(seconds) if elapsed > seconds => ", the last are in line",
            Work::Seconds(_) | Work::Increments(_) => "",
        };
        eprint!(
            "{CLEAR}{:>3} s: {} guards, {}/s{last}",
            elapsed.as_secs(),
            grouped(updates),
            grouped(per_second as u64),
        );
    }

    /// Prints a line on stderr above the line that moves.
    pub fn say(&self, line: &str) {
        self.clear();
        eprintln!("stress: {line}");
    }

    pub fn clear(&self) {
        if self.is_shown {
            eprint!("{CLEAR}");
        }
    }
}

/// Returns a whole number with a comma between each three digits.
pub fn grouped(number: impl Display) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}
