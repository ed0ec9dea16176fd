//! Tables of Markdown, and numbers.

use std::fmt::Write;

/// Returns a table. A column of numbers is not aligned, as on the other pages.
pub(super) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!(
        "| {} |\n|{}\n",
        heads.join(" | "),
        " --- |".repeat(heads.len())
    );
    for row in rows {
        let cells: Vec<_> = row
            .iter()
            .map(|cell| cell.replace('|', "\\|").replace('\n', " "))
            .collect();
        // A string takes each text.
        writeln!(text, "| {} |", cells.join(" | ")).ok();
    }
    text
}

/// Returns a number with a comma after each three digits.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a part of a whole in percent, or a dash if there is no whole.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

/// Returns a time as seconds, rounded up, because it is the most of something.
pub(super) fn seconds(ms: u64) -> String {
    let tenths = ms.div_ceil(100);
    format!("{}.{} s", number(tenths / 10), tenths % 10)
}

/// Returns a time in the unit that suits it.
pub(super) fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", number(seconds / 60)),
        7_200..172_800 => format!("{} h", number(seconds / 3_600)),
        _ => format!("{} days", number(seconds / 86_400)),
    }
}

/// Returns a text as code, on one line.
pub(super) fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'"))
}
