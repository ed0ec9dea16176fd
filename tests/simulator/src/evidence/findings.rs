//! The schedules that broke a rule, and why. A person writes the lines of `findings.jsonl`: no run can tell a cause.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::NOT_RUN;
use super::results::Results;
use super::table::{code, number};

/// The causes, in the order of the table, and what the first table says of them.
const CAUSES: [(&str, &str); 5] = [
    ("library", "were faults of the library, and are mended"),
    ("simulator", "were faults of the simulator"),
    ("servers", "were faults of the servers"),
    (
        "rule",
        "broke no promise: the check demanded more, and was loosened",
    ),
    (OPEN, "**are not explained yet**"),
];
const OPEN: &str = "open";

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
    /// The test that would show it again.
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
    let runs = results.simulated.0.iter().chain(&results.real.0);
    let all: u64 = runs.map(|run| run.schedules).sum();
    if all == 0 {
        return NOT_RUN.to_owned();
    }
    let broken = broken(results);
    let cause = |schedule| {
        let mut findings = results.findings.iter();
        let finding = findings.find(|it| it.schedules.contains(schedule));
        finding.map_or(OPEN, |it| &*it.cause)
    };
    let with = |wanted| broken.keys().filter(|it| cause(it) == wanted).count();
    let causes = CAUSES.map(|(wanted, what)| (with(wanted), what));
    let causes = causes.into_iter().filter(|(count, _)| *count > 0);
    let causes: Vec<_> = causes
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    format!(
        "Since the beginning, {} of {} recorded schedules [broke a rule](#findings). {}.",
        number(broken.len() as u64),
        number(all),
        causes.join("; ")
    )
}

/// Returns the table of findings. What nobody has explained stands at its end.
pub(super) fn table(results: &Results) -> String {
    let mut rows = Vec::new();
    for (cause, _) in CAUSES {
        for finding in results.findings.iter().filter(|it| it.cause == cause) {
            rows.push(row(finding));
        }
    }
    let explained: Vec<_> = results
        .findings
        .iter()
        .flat_map(|it| &it.schedules)
        .collect();
    for (schedule, what) in broken(results) {
        if !explained.contains(&&schedule) {
            let finding = Finding {
                fault: what.to_owned(),
                cause: OPEN.to_owned(),
                found_by: "a run".to_owned(),
                schedules: vec![schedule],
                first_bad: None,
                shown_by: None,
            };
            rows.push(row(&finding));
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

fn row(finding: &Finding) -> Vec<String> {
    let or_none = |text: &Option<String>| text.as_deref().map_or("–".to_owned(), code);
    let mut seeds: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for it in &finding.schedules {
        let of_run = seeds.entry((&it.commit, &it.topology)).or_default();
        of_run.push(it.seed.to_string());
    }
    let seeds = seeds.into_iter().map(|((commit, topology), seeds)| {
        format!("; {topology} {} on {}", seeds.join(", "), code(commit))
    });
    vec![
        finding.fault.clone(),
        finding.cause.clone(),
        finding.found_by.clone() + &seeds.collect::<String>(),
        or_none(&finding.first_bad),
        or_none(&finding.shown_by),
    ]
}
