//! The verdicts of a judge that is not ours on histories of simulated schedules.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::NOT_RUN;
use super::table::{number, table as table_of, time};

#[derive(Deserialize)]
pub(super) struct Judged {
    commit: String,
    topology: String,
    histories: u64,
    events: u64,
    accepted: u64,
    /// Copies of good histories with one fault each.
    corrupted: u64,
    rejected: u64,
    /// Histories without a verdict within the limits of the judge.
    undecided: u64,
    took_s: u64,
}

pub(super) fn commits(judged: &[Judged]) -> BTreeSet<&str> {
    judged.last().into_iter().map(|it| &*it.commit).collect()
}

pub(super) fn table(judged: &[Judged]) -> String {
    let newest = judged
        .iter()
        .filter(|it| commits(judged).contains(&*it.commit));
    let rows: Vec<_> = newest
        .map(|it| {
            let figures = [
                it.histories,
                it.events,
                it.accepted,
                it.corrupted,
                it.rejected,
                it.undecided,
            ];
            let mut row = vec![it.topology.clone()];
            row.extend(figures.map(number));
            row.push(time(it.took_s));
            row
        })
        .collect();
    if rows.is_empty() {
        return NOT_RUN.to_owned();
    }
    let heads = [
        "topology",
        "histories",
        "events",
        "accepted",
        "corrupted copies",
        "rejected of them",
        "undecided",
        "time",
    ];
    table_of(&heads, &rows)
}
