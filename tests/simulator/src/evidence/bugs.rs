//! Bugs that were made on purpose, and what found them.

use super::picture::{Bars, Scale};
use super::results::{CargoMutants, Mutant};
use super::table::{code, number, table};
use super::{NOT_RUN, Part};

/// The schedules within which a bug should be found.
const SOON: u64 = 5_000;

/// Returns the answer to "Would the checks find a bug?". `patches` is the number of patches in the tree.
pub(super) fn verdict(mutants: &[Mutant], patches: usize) -> String {
    if mutants.is_empty() {
        return NOT_RUN.to_owned();
    }
    let soon = mutants
        .iter()
        .filter(|mutant| is_found_soon(mutant))
        .count();
    let rest = match patches.saturating_sub(mutants.len()) {
        0 => String::new(),
        rest => format!(" {} more were not run yet.", number(rest as u64)),
    };
    format!(
        "{} bugs that were made on purpose were found, {} of them by simulated schedules alone, within {}.{rest}",
        share_killed(mutants),
        number(soon as u64),
        number(SOON)
    )
}

/// Returns how many of all were found.
pub(super) fn share_killed(mutants: &[Mutant]) -> String {
    let killed = mutants
        .iter()
        .filter(|mutant| mutant.killed_by != "nothing");
    format!(
        "{} of {}",
        number(killed.count() as u64),
        number(mutants.len() as u64)
    )
}

fn is_found_soon(mutant: &Mutant) -> bool {
    mutant.killed_by == "simulator" && mutant.schedules.is_some_and(|schedules| schedules <= SOON)
}

pub(super) fn by_hand(mutants: &[Mutant], patches: usize) -> Part {
    if mutants.is_empty() {
        return super::text(NOT_RUN.to_owned());
    }
    let rows: Vec<_> = mutants
        .iter()
        .map(|mutant| {
            let by = mutant.by.as_deref().unwrap_or_default();
            vec![
                mutant.breaks.clone(),
                code(&mutant.patch),
                match &*mutant.killed_by {
                    "simulator" => format!("schedules, {by}"),
                    "test" => code(by),
                    _ => "**nothing**".to_owned(),
                },
                match mutant.schedules {
                    Some(schedules) if mutant.killed_by == "simulator" => number(schedules),
                    _ => "–".to_owned(),
                },
                mutant.what.as_deref().unwrap_or_default().replace('`', "'"),
                code(&mutant.commit),
            ]
        })
        .collect();
    let heads = [
        "the rule that it breaks",
        "patch",
        "found by",
        "after schedules",
        "finding",
        "commit",
    ];
    let by_simulator = mutants.iter().filter_map(|mutant| {
        let schedules = mutant.schedules.filter(|_| mutant.killed_by == "simulator");
        Some((mutant.patch.clone(), vec![schedules? as f64]))
    });
    let mut groups: Vec<_> = by_simulator.collect();
    groups.sort_by(|a, b| a.1[0].total_cmp(&b.1[0]));
    let picture = (!groups.is_empty()).then(|| {
        let bars = Bars {
            title: "Simulated schedules until a seeded bug was found",
            about: "Bars: the number of simulated schedules after which each seeded bug was found."
                .to_owned(),
            unit: "schedules, by powers of ten",
            series: vec!["schedules".to_owned()],
            groups,
            scale: Scale::Logarithmic,
            show: |value| number(value as u64),
            caption: "Bugs that only a test finds are not shown. docs/evidence/mutants.jsonl",
        };
        ("mutants", bars.draw())
    });
    Part {
        text: format!("{}\n\n{}", verdict(mutants, patches), table(&heads, &rows)),
        picture,
    }
}

pub(super) fn by_machine(mutants: Option<&CargoMutants>) -> String {
    let Some(mutants) = mutants else {
        return NOT_RUN.to_owned();
    };
    let figures = [
        ("commit", code(&mutants.commit)),
        ("files", number(mutants.files.len() as u64)),
        ("changes tried", number(mutants.mutants)),
        ("found by a unit test", number(mutants.caught)),
        ("ended by a time limit", number(mutants.timeout)),
        ("did not compile", number(mutants.unviable)),
        ("survived", number(mutants.survivors.len() as u64)),
    ];
    let figures = figures.map(|(name, figure)| vec![name.to_owned(), figure]);
    let mut text = table(&["", ""], &figures);
    if !mutants.survivors.is_empty() {
        let rows: Vec<_> = mutants
            .survivors
            .iter()
            .map(|survivor| vec![code(&survivor.mutant), survivor.why.clone()])
            .collect();
        text += "\nNo test can find these:\n\n";
        text += &table(&["change", "reason"], &rows);
    }
    text
}
