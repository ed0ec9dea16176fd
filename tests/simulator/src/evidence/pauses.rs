//! The experiment with pauses.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::NOT_RUN;
use super::table::{number, percent, table as table_of, time};

/// The updates of the programs of one client whose processes pause.
#[derive(Deserialize)]
pub(super) struct Paused {
    commit: String,
    client: String,
    server: String,
    seconds: u64,
    updates_acknowledged: u64,
    updates_lost: u64,
    pauses: u64,
    updates_rejected: u64,
    /// How long after the next grant a late write was taken, at most. `None` if none was taken, or it was not measured.
    #[serde(default)]
    latest_write_ms: Option<u64>,
}

/// Returns the lines of each client on the last commit on which it was run.
fn newest(runs: &[Paused]) -> BTreeMap<&str, Vec<&Paused>> {
    let last: BTreeMap<_, _> = runs
        .iter()
        .map(|run| (&*run.client, &*run.commit))
        .collect();
    let mut newest: BTreeMap<&str, Vec<&Paused>> = BTreeMap::new();
    for run in runs.iter().filter(|run| last[&*run.client] == run.commit) {
        newest.entry(&run.client).or_default().push(run);
    }
    newest
}

pub(super) fn commits(runs: &[Paused]) -> BTreeSet<&str> {
    newest(runs)
        .values()
        .flatten()
        .map(|run| &*run.commit)
        .collect()
}

pub(super) fn table(runs: &[Paused]) -> String {
    let rows = newest(runs).into_iter().map(|(client, runs)| {
        let sum = |figure: fn(&Paused) -> u64| runs.iter().copied().map(figure).sum::<u64>();
        let servers: BTreeSet<_> = runs.iter().map(|run| &*run.server).collect();
        let acknowledged = sum(|run| run.updates_acknowledged);
        let lost = sum(|run| run.updates_lost);
        let latest = runs.iter().filter_map(|run| run.latest_write_ms).max();
        vec![
            client.to_owned(),
            servers.into_iter().collect::<Vec<_>>().join(", "),
            time(sum(|run| run.seconds)),
            number(sum(|run| run.pauses)),
            number(acknowledged),
            number(sum(|run| run.updates_rejected)),
            number(lost),
            percent(lost, acknowledged),
            latest.map_or("–".to_owned(), |ms| format!("{} ms", number(ms))),
        ]
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return NOT_RUN.to_owned();
    }
    let heads = [
        "lock",
        "server",
        "time",
        "pauses",
        "acknowledged updates",
        "rejected",
        "lost",
        "share lost",
        "latest write taken",
    ];
    table_of(&heads, &rows)
}
