//! Text for people and for pipes. A closed pipe ends no subcommand with a panic.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

/// Writes a line to standard error, behind the name of the program.
pub fn complain(text: &str) {
    // In one write, because others may write to the same pipe. There is nowhere to report a failure to.
    let _ = io::stderr().write_all(complaint(text).as_bytes());
}

/// Returns the line of a message on standard error. A text of others must not move the cursor, nor look like two messages.
pub fn complaint(text: &str) -> String {
    format!("leasehold: {}\n", safe(text))
}

/// Writes to standard output. A reader that has gone, as `head` does, is no failure.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Returns rows as aligned columns on a terminal, and otherwise separated by tabs, without the heading.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    if !io::stdout().is_terminal() {
        for row in rows {
            let cells: Vec<_> = row.iter().map(|cell| safe(cell)).collect();
            text.push_str(&cells.join("\t"));
            text.push('\n');
        }
        return text;
    }
    aligned(heading, rows)
}

fn aligned(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let all: Vec<_> = std::iter::once(&heading).chain(rows).collect();
    let width = |column: usize| {
        let widths = all.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..heading.len()).map(width).collect();
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{:width$}  ", safe(cell));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns a text without characters that would move the cursor of a terminal. Any client of Redis can write a name.
pub fn safe(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// Returns a time span for people, with its two largest units: `2h 5m`, `3.2s`, `250ms`.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..10 => format!("{:.1}s", time.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m {}s", seconds % 60),
        3_600..86_400 => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Returns how long ago a time was. A time ahead of this machine's clock is now.
pub fn age(since: SystemTime) -> Duration {
    since.elapsed().unwrap_or_default()
}
