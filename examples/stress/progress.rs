//! The bar that moves while the threads work.

use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::clock;
use crate::ledger::Ledger;
use crate::options::{Options, Work};

pub struct Progress {
    bar: ProgressBar,
    work: Work,
    start: Duration,
}

impl Progress {
    /// Returns a bar on stderr. It is hidden if stderr is no terminal, or the run prints JSON.
    pub fn new(options: &Options, start: Duration) -> Self {
        let length = match options.work {
            Work::Increments(increments) => {
                let threads = u64::from(options.threads) * u64::from(options.processes);
                threads.saturating_mul(increments)
            }
            Work::Seconds(seconds) => seconds.as_millis() as u64,
        };
        let target = if options.json {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let style = ProgressStyle::with_template("{elapsed:>4} {bar:40} {msg}")
            .expect("the template is well-formed");
        Self {
            bar: ProgressBar::with_draw_target(Some(length), target).with_style(style),
            work: options.work,
            start,
        }
    }

    /// Shows the updates in the ledger so far.
    pub fn show(&self, ledger: &Ledger) {
        if self.bar.is_hidden() {
            return;
        }
        // If the ledger cannot be read, the threads report it.
        let Ok(updates) = ledger.updates() else {
            return;
        };
        let elapsed = clock::now().saturating_sub(self.start);
        let position = match self.work {
            Work::Increments(_) => updates,
            Work::Seconds(_) => elapsed.as_millis() as u64,
        };
        let per_second = u128::from(updates) * 1_000 / elapsed.as_millis().max(1);
        let last = match self.work {
            Work::Seconds(seconds) if elapsed > seconds => ", the last are in line",
            Work::Seconds(_) | Work::Increments(_) => "",
        };
        // Setting the position draws the message too.
        self.bar.set_message(format!(
            "{} guards, {}/s{last}",
            HumanCount(updates),
            HumanCount(per_second as u64),
        ));
        self.bar.set_position(position);
    }

    /// Prints a line on stderr without breaking the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("stress: {line}"));
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
