//! The schedules that broke a rule, and why. A person writes the lines of `findings.jsonl`: no run can tell a cause.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::results::Results;
use super::table::{code, number};

/// The causes, in the order of the table, and what the first table says of them.
const CAUSES: [(&str, &str); 5] = [
    ("library", "were faults of the library, and are mended"),
    ("simulator", "were faults of the simulator"),
    ("servers", "were faults of the servers"),
    (
        "rule",
        "broke no promise: the check demanded more, and they pass since it was loosened",
    ),
    ("open", "**are not explained yet**"),
];

/// One fault, and the schedules that showed it.
#[derive(Deserialize)]
pub(super) struct Finding {
    fault: String,
    /// One of [`CAUSES`].
    cause: String,
    found_by: String,
    #[serde(default)]
    schedules: Vec<Schedule>,
    /// The first commit that had the fault.
    first_bad: Option<String>,
    /// The command that shows it, or would.
    shown_by: Option<String>,
}

#[derive(Clone, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Schedule {
    commit: String,
    topology: String,
    seed: u64,
}

/// Returns each schedule on record that broke a rule, with what it did.
fn broken(results: &Results) -> BTreeMap<Schedule, &str> {
    let runs = results.simulated.0.iter().chain(&results.real.0);
    let broken = runs.flat_map(|run| {
        run.violations.iter().map(|violation| {
            let schedule = Schedule {
                commit: run.commit.clone(),
                topology: run.topology.clone(),
                seed: violation.seed,
            };
            (schedule, &*violation.what)
        })
    });
    broken.collect()
}

/// Returns the answer to "Was a rule broken?".
pub(super) fn verdict(results: &Results) -> String {
    let broken = broken(results);
    let runs = results.simulated.0.iter().chain(&results.real.0);
    let all = runs.map(|run| run.schedules).sum();
    let mut by_cause: BTreeMap<&str, u64> = BTreeMap::new();
    for schedule in broken.keys() {
        let finding = results
            .findings
            .iter()
            .find(|it| it.schedules.contains(schedule));
        *by_cause
            .entry(finding.map_or("open", |it| &*it.cause))
            .or_default() += 1;
    }
    let causes = CAUSES
        .iter()
        .filter_map(|(cause, what)| Some(format!("{} {what}", by_cause.get(cause)?)));
    format!(
        "Since the beginning, {} of {} schedules of all commits [broke a rule](#findings). {}.",
        number(broken.len() as u64),
        number(all),
        causes.collect::<Vec<_>>().join("; ")
    )
}

/// Returns the table of findings. What nobody has explained stands at its end.
pub(super) fn table(results: &Results) -> String {
    let mut rows = Vec::new();
    for (cause, _) in CAUSES {
        for finding in results.findings.iter().filter(|it| it.cause == cause) {
            rows.push(vec![
                finding.fault.clone(),
                cause.to_owned(),
                found_by(finding),
                finding.first_bad.as_deref().map_or("–".to_owned(), code),
                finding.shown_by.as_deref().map_or("–".to_owned(), code),
            ]);
        }
    }
    let explained: BTreeSet<_> = results
        .findings
        .iter()
        .flat_map(|it| &it.schedules)
        .collect();
    for (schedule, what) in broken(results) {
        if !explained.contains(&schedule) {
            let Schedule {
                commit,
                topology,
                seed,
            } = schedule;
            let found_by = format!("{topology} {seed} on {}", code(&commit));
            rows.push(vec![
                what.to_owned(),
                "**open**".to_owned(),
                found_by,
                "–".to_owned(),
                "–".to_owned(),
            ]);
        }
    }
    let heads = [
        "fault",
        "cause",
        "found by",
        "first bad commit",
        "test that shows it",
    ];
    super::table::table(&heads, &rows)
}

/// Returns who has found it, with the seeds on record.
fn found_by(finding: &Finding) -> String {
    let mut seeds: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for it in &finding.schedules {
        seeds
            .entry((&it.commit, &it.topology))
            .or_default()
            .push(it.seed.to_string());
    }
    let seeds = seeds.iter().map(|((commit, topology), seeds)| {
        format!("{topology} {} on {}", seeds.join(", "), code(commit))
    });
    [finding.found_by.clone()]
        .into_iter()
        .chain(seeds)
        .collect::<Vec<_>>()
        .join("; ")
}
