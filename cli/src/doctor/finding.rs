//! The findings of the checks, as lines for people and as objects of JSON.

use std::fmt::Write as _;

use serde_json::json;

use crate::output::safe;

/// How much a finding matters, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    /// The check could not look. This does not change the exit status.
    Skip,
    Warn,
    /// Locks are not safe, or do not work.
    Bad,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }

    /// Returns the name in its colour, padded to the width of the longest.
    fn coloured(self) -> String {
        let colour = match self {
            Self::Ok => 32,
            Self::Skip => 2,
            Self::Warn => 33,
            Self::Bad => 31,
        };
        format!("\u{1b}[{colour}m{:<4}\u{1b}[0m", self.name())
    }
}

/// The result of a check at a server, or at all of them.
#[derive(Clone, Debug)]
pub struct Finding {
    pub check: &'static str,
    /// The address of the server. Empty for all servers together.
    pub server: String,
    pub level: Level,
    pub found: String,
    /// The consequence for locks. Empty if nothing is wrong.
    pub means: String,
    /// How to mend it. Empty if nothing is wrong.
    pub mend: String,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, found, "", "")
    }

    /// Returns the finding of a check that could not look.
    pub fn skip(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(check, Level::Skip, found, "", mend)
    }

    pub fn warn(
        check: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self::new(check, Level::Warn, found, means, mend)
    }

    pub fn bad(
        check: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self::new(check, Level::Bad, found, means, mend)
    }

    pub fn new(
        check: &'static str,
        level: Level,
        found: impl Into<String>,
        means: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            check,
            server: String::new(),
            level,
            found: found.into(),
            means: means.into(),
            mend: mend.into(),
        }
    }

    /// Returns the finding at this server.
    pub fn at(mut self, server: &str) -> Self {
        server.clone_into(&mut self.server);
        self
    }

    fn place(&self) -> &str {
        if self.server.is_empty() {
            "all"
        } else {
            &self.server
        }
    }
}

/// The width of what stands in front of the words of a finding.
const INDENT: usize = 13;

/// Returns a line for each finding, and two more for each that is not `ok`. Lines of many words are wrapped.
pub fn lines(findings: &[Finding], has_colour: bool, columns: usize) -> String {
    let width = |text: fn(&Finding) -> &str| {
        let widths = findings.iter().map(|it| safe(text(it)).chars().count());
        widths.max().unwrap_or(0)
    };
    let (of_places, of_checks) = (width(Finding::place), width(|it| it.check));
    let mut text = String::new();
    for finding in findings {
        let level = if has_colour {
            finding.level.coloured()
        } else {
            format!("{:<4}", finding.level.name())
        };
        let (place, found) = (safe(finding.place()), safe(&finding.found));
        let _ = writeln!(
            text,
            "{level}  {place:of_places$}  {:of_checks$}  {found}",
            finding.check
        );
        for (what, words) in [("means", &finding.means), ("mend", &finding.mend)] {
            if !words.is_empty() {
                let words = wrapped(&safe(words), columns.saturating_sub(INDENT));
                let _ = writeln!(text, "      {what:<5}  {words}");
            }
        }
    }
    text
}

/// Returns a text with line breaks between words, so that no line is longer than its longest word or `columns`.
fn wrapped(text: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > columns {
            let _ = write!(wrapped, "\n{:INDENT$}", "");
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += length;
    }
    wrapped
}

/// Returns an object for each finding, each on a line.
pub fn json(findings: &[Finding]) -> String {
    let object = |finding: &Finding| {
        let object = json!({
            "check": finding.check,
            "server": finding.place(),
            "level": finding.level.name(),
            "found": finding.found,
            "means": finding.means,
            "mend": finding.mend,
        });
        format!("{object}\n")
    };
    findings.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_finding_wrap_at_the_edge_of_the_terminal() {
        let findings = [Finding::bad("eviction", "found", "one two three", "four")];
        let lines = |columns| lines(&findings, false, columns);
        let unwrapped =
            "bad   all  eviction  found\n      means  one two three\n      mend   four\n";
        assert_eq!(lines(usize::MAX), unwrapped);
        assert_eq!(lines(26), unwrapped);
        assert_eq!(
            lines(25),
            unwrapped.replace(" three", "\n             three")
        );
        let narrow = "\n             two\n             three";
        assert_eq!(lines(1), unwrapped.replace(" two three", narrow));
    }
}
