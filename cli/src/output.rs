//! Text for people and for pipes. A closed pipe ends no subcommand with a panic.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use ratatui::text::Span;

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

/// Returns rows as lines of fields, separated by tabs.
pub fn fields(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().map(|cell| safe(cell)).collect();
        text.push_str(&cells.join("\t"));
        text.push('\n');
    }
    text
}

/// The width below which no column is cut.
const SHORTEST: usize = 12;
/// The spaces between two columns.
const GAP: usize = 2;

/// Returns rows as aligned columns below a heading. If they do not fit into `width`, texts are cut: first in the last column,
/// then in the widest ones, and at last at the ends of the lines.
pub fn aligned(heading: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(&heading)
        .chain(rows)
        .map(|row| row.iter().map(|cell| safe(cell)).collect())
        .collect();
    let widest = |column: usize| all.iter().map(|row| columns(&row[column])).max();
    let mut widths: Vec<_> = (0..heading.len()).filter_map(widest).collect();
    fit(&mut widths, width);
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let cell = cut(cell, *width);
            let padding = width - columns(&cell) + GAP;
            line.push_str(&cell);
            line.push_str(&" ".repeat(padding));
        }
        text.push_str(&cut(line.trim_end(), width));
        text.push('\n');
    }
    text
}

/// Makes columns narrower until they fit into a width, or are all short.
fn fit(widths: &mut [usize], width: usize) {
    let last = widths.len() - 1;
    while widths.iter().sum::<usize>() + GAP * last > width {
        let widest = (0..last).max_by_key(|column| widths[*column]);
        let column = match widest {
            Some(widest) if widths[last] <= SHORTEST => widest,
            _ => last,
        };
        if widths[column] <= SHORTEST {
            return;
        }
        widths[column] -= 1;
    }
}

/// Returns a text that takes at most this number of columns of a terminal. `…` stands for the rest.
fn cut(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.to_owned();
    }
    let mut shown = String::new();
    for c in text.chars() {
        shown.push(c);
        if columns(&shown) >= most {
            shown.pop();
            break;
        }
    }
    shown + "…"
}

/// Returns how many columns of a terminal a text takes.
fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// Shows a text on standard error if that is a terminal, over the last such text. An empty text only erases that.
pub fn passing(text: &str) {
    let mut err = io::stderr();
    if err.is_terminal() {
        // It must not wrap. There is nowhere to report a failure to.
        let text = cut(&safe(text), width(&err).saturating_sub(1));
        let _ = err.write_all(format!("\r\x1b[K{text}").as_bytes());
    }
}

/// Returns the width of a terminal. One that does not tell its width may have any.
pub fn width(terminal: impl AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(terminal);
    match size.map(|size| usize::from(size.ws_col)) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(columns) => columns,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(width: usize) -> Vec<String> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [
            row([
                "a",
                "a note of thirty characters...",
                "an owner of thirty-three letters.",
            ]),
            row(["名前の長い鍵", "-", "o"]),
        ];
        let text = aligned(&["NAME", "NOTE", "OWNER"], &rows, width);
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_table_fits_each_width() {
        for width in [usize::MAX, 100, 80, 79, 50, 40, 30, 10, 1] {
            let lines = lines(width);
            assert_eq!(lines.len(), 3);
            assert!(
                lines.iter().all(|line| columns(line) <= width),
                "{width}: {lines:?}"
            );
        }
    }

    #[test]
    fn the_last_column_is_cut_first_and_then_the_widest() {
        let wide = lines(79);
        assert_eq!(
            wide[1],
            "a             a note of thirty characters...  an owner of thirty-three letters."
        );
        assert!(wide[2].starts_with("名前の長い鍵  -  "), "{wide:?}");
        assert_eq!(
            lines(78)[1],
            "a             a note of thirty characters...  an owner of thirty-three letter…"
        );
        assert_eq!(
            lines(50)[1],
            "a             a note of thirty char…  an owner of…"
        );
        assert_eq!(lines(30)[1], "a             a note of t…  a…");
    }
}
