//! EVIDENCE.md: the results of long runs. It is made of the files in `docs/evidence` and of the seeded bugs.
//!
//! Each section shows the commit of the last run in its file, so the page is of one commit as soon as every run of that commit
//! is recorded. Until then it says which section is of which commit.
//!
//! | module | its subject |
//! | --- | --- |
//! | `page.md` | the text of the page, with `{{names}}` in the places of results |
//! | `results` | the files |
//! | `runs` | schedules, simulated and real |
//! | `findings` | the schedules that broke a rule, and why |
//! | `judge` | the verdicts of the judge that is not ours |
//! | `bugs` | the bugs that were made on purpose |
//! | `pauses` | the experiment with pauses |
//! | `soak` | the long run on real servers |
//! | `table` | tables and numbers |
//! | `picture` | the chart of the soak |

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the figures of charts are small, and not negative"
)]

mod bugs;
mod findings;
mod judge;
mod pauses;
mod picture;
mod results;
mod runs;
mod soak;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::record::Run;
use results::Results;
use runs::{count, sum};
use table::{code, number, seconds, table};

const PAGE: &str = include_str!("evidence/page.md");
/// The text in the place of results that do not exist.
const NOT_RUN: &str = "Not run yet.";

/// The text and the picture of a part of the page.
#[derive(Default)]
struct Part {
    text: String,
    /// The picture, by its name in `docs/evidence`.
    picture: Option<(&'static str, String)>,
}

/// Writes the page and its picture.
///
/// # Errors
///
/// A file that cannot be read or written, and the reason.
pub fn write(root: &Path) -> Result<(), String> {
    for (path, text) in files(root)? {
        fs::write(root.join(&path), text).map_err(|error| format!("{path}: {error}"))?;
        println!("{path}");
    }
    Ok(())
}

/// Returns the text of each file that [`write()`] writes, by its path.
///
/// # Errors
///
/// A file that cannot be read, and the reason.
pub fn files(root: &Path) -> Result<BTreeMap<String, String>, String> {
    let results = Results::read(root)?;
    let (simulated, real) = (results.simulated.newest(), results.real.newest());
    let both = |what: &str, of: fn(&Run) -> &BTreeMap<String, u64>| {
        let [simulated, real] = [&simulated, &real].map(|runs| runs::list(of(&sum(runs))));
        format!("- {what}, simulated: {simulated}.\n- {what}, on real servers: {real}.")
    };
    let soak = results.newest_soak();
    let parts = [
        ("commits", text(commits(&results))),
        ("answers", text(answers(&results))),
        ("schedules", text(runs::table(&simulated, &real))),
        ("faults", text(runs::faults(&simulated, &real))),
        (
            "errors",
            text(both("Errors that calls returned", |run| &run.errors)),
        ),
        (
            "exceptions",
            text(both("Exceptions", |run| &run.exceptions)),
        ),
        ("findings", text(findings::table(&results))),
        ("judge", text(judge::table(&results.judge))),
        ("bugs", text(bugs::table(&results))),
        ("unseen", text(bugs::unseen(&results.bugs))),
        ("pauses", text(pauses::table(&results.pauses))),
        ("soak", soak::part(&soak)),
    ];
    let mut files = BTreeMap::new();
    let mut page = PAGE.to_owned();
    for (name, part) in parts {
        let mut text = part.text;
        if let Some((file, picture)) = part.picture {
            let path = format!("docs/evidence/{file}.svg");
            text = format!("![{}]({path})\n\n{text}", picture::about(&picture));
            files.insert(path, picture);
        }
        page = page.replace(&format!("{{{{{name}}}}}"), text.trim_end());
    }
    files.insert("EVIDENCE.md".to_owned(), page);
    Ok(files)
}

fn text(text: String) -> Part {
    Part {
        text,
        picture: None,
    }
}

/// Returns the commit of the page, or those of its sections if they differ.
fn commits(results: &Results) -> String {
    let one = |commit: Option<_>| commit.into_iter().collect();
    let sections: [(&str, BTreeSet<&str>); 6] = [
        (
            "Simulated schedules",
            one(results.simulated.newest_commit()),
        ),
        ("Real servers", one(results.real.newest_commit())),
        ("A judge that is not ours", judge::commits(&results.judge)),
        ("Bugs made on purpose", bugs::commits(results)),
        ("Pauses that lose updates", pauses::commits(&results.pauses)),
        ("The soak", one(results.newest_soak_commit())),
    ];
    let of_page = &sections[0].1;
    if of_page.len() == 1 && sections.iter().all(|(_, commits)| commits == of_page) {
        return format!(
            "All figures but those since the beginning are of commit {}.",
            codes(of_page)
        );
    }
    let sections = sections.map(|(section, commits)| {
        let commits = if commits.is_empty() {
            "not run yet".to_owned()
        } else {
            codes(&commits)
        };
        format!("{section}: {commits}")
    });
    format!(
        "**The figures are not of one commit yet**, because the runs of the last one are not complete. Each section is of the last commit \
         that it was run on, and tells what the checks do now, so a run of before may have had fewer. {}.",
        sections.join("; ")
    )
}

fn codes(commits: &BTreeSet<&str>) -> String {
    let commits: Vec<_> = commits.iter().map(|commit| code(commit)).collect();
    commits.join(", ")
}

/// Returns the table of questions and answers.
fn answers(results: &Results) -> String {
    let (simulated, real) = (
        sum(&results.simulated.newest()),
        sum(&results.real.newest()),
    );
    let size = |sum: &Run| {
        format!(
            "{} schedules with {} faults and {} grants",
            number(sum.schedules),
            number(count(&sum.faults)),
            number(sum.grants)
        )
    };
    let rows = [
        (
            "How much was run?",
            format!(
                "{} on simulated machines, and {} on real servers.",
                size(&simulated),
                size(&real)
            ),
        ),
        ("Was a rule broken?", findings::verdict(results)),
        (
            "Did faults bite?",
            format!(
                "{} guards were lost. A register that takes each write was corrupted {} times, and one that checks fences rejected {} writes.",
                number(simulated.losses + real.losses),
                number(simulated.unfenced_corruptions + real.unfenced_corruptions),
                number(simulated.rejected_writes + real.rejected_writes)
            ),
        ),
        (
            "How long did a call wait after the last fault had ended?",
            format!(
                "On simulated machines at most {}, and on real servers at most {}.",
                seconds(simulated.longest_wait_ms),
                seconds(real.longest_wait_ms)
            ),
        ),
        ("Would the checks find a bug?", bugs::verdict(&results.bugs)),
    ];
    let rows = rows.map(|(question, answer)| vec![question.to_owned(), answer]);
    table(&["question", "answer"], &rows)
}
