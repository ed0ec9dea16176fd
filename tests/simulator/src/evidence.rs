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
/// The text in the place of results that do not exist.
const NOT_RUN: &str = "Not run yet.";

/// The text and the picture of a part of the page.
#[derive(Default)]
struct Part {
    text: String,
    /// The picture, by its name in `docs/evidence`.
    picture: Option<(&'static str, String)>,
}

/// Writes the page and its pictures.
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
