//! EVIDENCE.md: the results of long runs. It is made of the files in `docs/evidence` alone.
//!
//! | module | its subject |
//! | --- | --- |
//! | `page.md` | the text of the page, with `{{names}}` in the places of results |
//! | `results` | the files |
//! | `runs` | runs of schedules: sums, commits, faults, violations |
//! | `bugs` | the bugs that were made on purpose |
//! | `pauses` | the experiment with pauses |
//! | `soak` | the long run on real servers |
//! | `table` | tables and numbers |
//! | `picture` | charts |

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the figures of charts are small, and not negative"
)]

mod bugs;
mod pauses;
mod picture;
mod results;
mod runs;
mod soak;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::record::Run;

use results::Results;
use runs::Runs;
use table::number;

const PAGE: &str = include_str!("evidence/page.md");
/// How the sentence of README.md begins.
const SENTENCE: &str = "- **Evidence.** ";
/// The longest line of README.md.
const WIDTH: usize = 120;
/// The text in the place of results that do not exist.
const NOT_RUN: &str = "Not run yet.";

/// The text and the picture of a part of the page.
#[derive(Default)]
struct Part {
    text: String,
    /// The picture, by its name in `docs/evidence`.
    picture: Option<(&'static str, String)>,
}

/// Writes the page, its pictures, and the sentence of README.md.
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
    let results = Results::read(&root.join("docs/evidence"))?;
    let patches = fs::read_dir(root.join("tests/simulator/mutants")).map_or(0, Iterator::count);
    let simulated = Runs::of_seeds(results.simulated);
    let real = Runs::new(results.real);
    let parts = [
        (
            "answers",
            text(answers(&simulated, &real, &results.mutants, patches)),
        ),
        ("simulated", text(simulated.by_topology())),
        ("commits", text(simulated.by_commit())),
        ("real", text(real.by_topology())),
        (
            "real_commits",
            text(if real.is_empty() {
                String::new()
            } else {
                real.by_commit()
            }),
        ),
        ("faults", runs::faults(&simulated, &real)),
        ("errors", text(runs::errors(&simulated, &real))),
        ("exceptions", text(runs::exceptions(&simulated, &real))),
        ("violations", text(runs::violations(&simulated, &real))),
        ("register", runs::register(&simulated, &real)),
        ("mutants", bugs::by_hand(&results.mutants, patches)),
        (
            "cargo_mutants",
            text(bugs::by_machine(results.cargo_mutants.as_ref())),
        ),
        ("pauses", pauses::part(&results.pauses)),
        ("soak", soak::part(&results.soak)),
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
    let readme = fs::read_to_string(root.join("README.md"))
        .map_err(|error| format!("README.md: {error}"))?;
    let sentence = sentence(&simulated, &real, &results.mutants);
    files.insert("README.md".to_owned(), with_sentence(&readme, &sentence)?);
    Ok(files)
}

fn text(text: String) -> Part {
    Part {
        text,
        picture: None,
    }
}

/// Returns the first table of the page.
fn answers(simulated: &Runs, real: &Runs, mutants: &[results::Mutant], patches: usize) -> String {
    let (of_simulated, of_real) = (simulated.sum(), real.sum());
    let rows = [
        (
            "How much was run?",
            format!(
                "{} on simulated machines, and {} on real servers.",
                size(&of_simulated),
                size(&of_real)
            ),
        ),
        ("Was a rule broken?", runs::verdict(simulated, real)),
        (
            "Was a stale write accepted?",
            format!(
                "A register that checks fences {}, and rejected {} writes. One that checks nothing was corrupted {} times.",
                runs::fenced_register(simulated, real),
                number(of_simulated.rejected_writes + of_real.rejected_writes),
                number(of_simulated.unfenced_corruptions + of_real.unfenced_corruptions),
            ),
        ),
        (
            "Was a lock lost, and did its holder know?",
            format!(
                "{} guards were lost. A guard that hid its loss, or came back, would have broken a rule.",
                number(of_simulated.losses + of_real.losses),
            ),
        ),
        (
            "How long did a call wait after the last fault had ended?",
            format!(
                "On simulated machines {}, and on real servers {}.",
                longest_wait(&of_simulated),
                longest_wait(&of_real)
            ),
        ),
        (
            "Would the checks find a bug?",
            bugs::verdict(mutants, patches),
        ),
    ];
    let rows = rows.map(|(question, answer)| vec![question.to_owned(), answer]);
    table::table(&["question", "answer"], &rows)
}

/// Returns how much was run.
fn size(sum: &Run) -> String {
    if sum.schedules == 0 {
        return "nothing yet".to_owned();
    }
    format!(
        "{} schedules with {} faults and {} grants",
        number(sum.schedules),
        number(runs::count(&sum.faults)),
        number(sum.grants)
    )
}

fn longest_wait(sum: &Run) -> String {
    if sum.schedules == 0 {
        return "nothing was run yet".to_owned();
    }
    format!("at most {}", table::seconds(sum.longest_wait_ms))
}

/// Returns the sentence of README.md, with its link.
fn sentence(simulated: &Runs, real: &Runs, mutants: &[results::Mutant]) -> String {
    let (of_simulated, of_real) = (simulated.sum(), real.sum());
    let broken = match runs::broken(simulated, real) {
        (0, _) => "in which no rule was broken".to_owned(),
        (broken, passing) if broken == passing => {
            format!("and the {broken} that broke a rule, all of which pass since")
        }
        (broken, passing) => {
            format!("and the {broken} that broke a rule, of which {passing} pass since")
        }
    };
    let found = if mutants.is_empty() {
        String::new()
    } else {
        format!(
            "; {} seeded bugs that were run were found",
            bugs::share_killed(mutants)
        )
    };
    format!(
        "{SENTENCE}[EVIDENCE.md] shows {} schedules on simulated machines and {} on real servers, with {} faults, {} grants and {} losses, {broken}{found}.",
        number(of_simulated.schedules),
        number(of_real.schedules),
        number(runs::count(&of_simulated.faults) + runs::count(&of_real.faults)),
        number(of_simulated.grants + of_real.grants),
        number(of_simulated.losses + of_real.losses),
    )
}

/// Puts a sentence in the place of the one that README.md has.
fn with_sentence(readme: &str, sentence: &str) -> Result<String, String> {
    let (before, after) = readme
        .split_once(SENTENCE)
        .ok_or(format!("README.md has no line that begins with {SENTENCE}"))?;
    let end = after
        .find("\n- ")
        .into_iter()
        .chain(after.find("\n\n"))
        .min()
        .unwrap_or(after.len());
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let line = lines.last().map_or(0, String::len);
        if line + word.len() >= WIDTH {
            lines.push(" ".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    Ok(format!("{before}{}{}", lines.join("\n"), &after[end..]))
}
