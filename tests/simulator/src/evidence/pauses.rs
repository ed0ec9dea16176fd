//! The experiment with pauses.

use std::collections::BTreeSet;

use super::picture::{Bars, Scale};
use super::results::Paused;
use super::table::{code, number, percent, share, table, time};
use super::{NOT_RUN, Part};

pub(super) fn part(runs: &[Paused]) -> Part {
    if runs.is_empty() {
        return super::text(NOT_RUN.to_owned());
    }
    let mut clients: Vec<&str> = Vec::new();
    for run in runs {
        if !clients.contains(&&*run.client) {
            clients.push(&run.client);
        }
    }
    let (mut rows, mut groups) = (Vec::new(), Vec::new());
    for client in clients {
        let of = || runs.iter().filter(|run| run.client == client);
        let sum = |figure: fn(&Paused) -> u64| of().map(figure).sum::<u64>();
        let names = |name: fn(&Paused) -> &str| of().map(name).collect::<BTreeSet<_>>();
        let acknowledged = sum(|run| run.updates_acknowledged);
        let lost = sum(|run| run.updates_lost);
        let latest = of().filter_map(|run| run.latest_write_ms).max();
        let commits = names(|run| &run.commit).into_iter().map(code);
        rows.push(vec![
            client.to_owned(),
            names(|run| &run.server)
                .into_iter()
                .collect::<Vec<_>>()
                .join(", "),
            time(sum(|run| run.seconds)),
            number(sum(|run| run.pauses)),
            number(acknowledged),
            number(sum(|run| run.updates_rejected)),
            number(lost),
            format!("**{}**", percent(lost, acknowledged)),
            latest.map_or("–".to_owned(), |ms| format!("{} ms", number(ms))),
            commits.collect::<Vec<_>>().join(", "),
        ]);
        groups.push((client.to_owned(), vec![share(lost, acknowledged)]));
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
        "commit",
    ];
    let bars = Bars {
        title: "Acknowledged updates that were lost while holders paused",
        about: "Bars: the share of acknowledged updates that were lost, for each lock.".to_owned(),
        unit: "% of the acknowledged updates",
        series: vec!["lost".to_owned()],
        groups,
        scale: Scale::Linear,
        show: |value| format!("{value:.1} %"),
        caption: "Leases of 2 s, five processes, pauses every 5 s. docs/evidence/pauses.jsonl",
    };
    Part {
        text: table(&heads, &rows),
        picture: Some(("pauses", bars.draw())),
    }
}
