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

/// Returns a line for each finding, and two more for each that is not `ok`.
pub fn lines(findings: &[Finding], has_colour: bool) -> String {
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
                let _ = writeln!(text, "      {what:<5}  {}", safe(words));
            }
        }
    }
    text
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
