//! Runs of schedules, simulated and real.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;

use super::NOT_RUN;
use super::table::{code, number, table as table_of, time};
use crate::record::Run;

/// The topologies in the order of the columns.
const TOPOLOGIES: [&str; 4] = ["single", "sentinel", "cluster", "quorum"];

/// Returns the table of schedules: simulated ones by topology, and real ones by server.
pub(super) fn table(simulated: &[&Run], real: &[&Run]) -> String {
    if simulated.is_empty() && real.is_empty() {
        return NOT_RUN.to_owned();
    }
    let servers: BTreeSet<_> = real
        .iter()
        .filter_map(|run| run.server.as_deref())
        .collect();
    let of_topology = |name| (name, those(simulated, |run| run.topology == name));
    let of_server = |name| (name, those(real, |run| run.server.as_deref() == Some(name)));
    let columns: Vec<_> = (TOPOLOGIES.into_iter().map(of_topology))
        .chain(servers.into_iter().map(of_server))
        .collect();
    let row = |name: &str, show: &dyn Fn(&[&Run]) -> Option<String>| {
        let cells = columns.iter().map(|(_, runs)| {
            let cell = show(runs).filter(|_| !runs.is_empty());
            cell.unwrap_or("–".to_owned())
        });
        once(name.to_owned()).chain(cells).collect::<Vec<_>>()
    };
    let figure =
        |name, show: &dyn Fn(&Run) -> Option<u64>| row(name, &|runs| show(&sum(runs)).map(number));
    let rows = [
        figure("schedules", &|run| Some(run.schedules)),
        figure("faults", &|run| Some(count(&run.faults))),
        figure("grants", &|run| Some(run.grants)),
        figure("grants while exclusion was not promised", &|run| {
            run.unpromised_grants
        }),
        figure("hand-overs to another process", &|run| Some(run.hand_overs)),
        figure("answers \"held\"", &|run| Some(run.refusals)),
        figure("calls that returned an error", &|run| {
            Some(count(&run.errors))
        }),
        figure("calls after the faults that must not fail", &|run| {
            run.calm_calls
        }),
        figure("writes by `commit`", &|run| run.commits),
        figure("guards that were lost", &|run| Some(run.losses)),
        figure("stale writes that a fence rejected", &|run| {
            Some(run.rejected_writes)
        }),
        figure("corruptions of a register without fences", &|run| {
            Some(run.unfenced_corruptions)
        }),
        row("**schedules that broke a rule**", &|runs| {
            Some(number(broken(runs)))
        }),
        row("time that it took", &|runs| Some(time(sum(runs).took_s))),
    ];
    let heads = columns.iter().map(|(name, _)| *name);
    table_of(&once("").chain(heads).collect::<Vec<_>>(), &rows)
}

fn those<'a>(runs: &[&'a Run], are: impl Fn(&Run) -> bool) -> Vec<&'a Run> {
    runs.iter().copied().filter(|run| are(run)).collect()
}

/// Returns how many schedules broke a rule. One may break several.
fn broken(runs: &[&Run]) -> u64 {
    let seeds = runs.iter().flat_map(|run| {
        let seeds = run.violations.iter().map(|it| it.seed);
        seeds.map(|seed| (&run.topology, seed))
    });
    seeds.collect::<BTreeSet<_>>().len() as u64
}

/// Returns the table of the faults of simulated schedules, and those that only real servers had.
pub(super) fn faults(simulated: &[&Run], real: &[&Run]) -> String {
    let (all, real) = (sum(simulated).faults, sum(real).faults);
    let of = |topology| sum(&those(simulated, |run| run.topology == topology)).faults;
    let columns: Vec<_> = TOPOLOGIES
        .into_iter()
        .map(of)
        .chain(once(real.clone()))
        .collect();
    let rows = by_size(&all).into_iter().map(|(kind, _)| {
        let cells = columns.iter().map(|column| match column.get(kind) {
            None | Some(0) => "–".to_owned(),
            Some(count) => number(*count),
        });
        once(kind.clone()).chain(cells).collect()
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return NOT_RUN.to_owned();
    }
    let heads = [&["fault"], &TOPOLOGIES[..], &["real servers"]].concat();
    let others = real.into_iter().filter(|(kind, _)| !all.contains_key(kind));
    format!(
        "{}\n- Faults of real servers alone: {}.",
        table_of(&heads, &rows),
        list(&others.collect())
    )
}

/// Returns counts as text, the largest first.
pub(super) fn list(counts: &BTreeMap<String, u64>) -> String {
    let counts = by_size(counts).into_iter();
    let counts = counts.map(|(kind, count)| format!("{} {}", code(kind), number(count)));
    let counts: Vec<_> = counts.collect();
    if counts.is_empty() {
        return "none".to_owned();
    }
    counts.join(", ")
}

/// Returns the counts that are not zero, the largest first.
fn by_size(counts: &BTreeMap<String, u64>) -> Vec<(&String, u64)> {
    let counts = counts.iter().map(|(kind, count)| (kind, *count));
    let mut counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
    counts.sort_by_key(|(_, count)| u64::MAX - count);
    counts
}

pub(super) fn sum(runs: &[&Run]) -> Run {
    let mut sum = Run::default();
    for run in runs {
        sum.schedules += run.schedules;
        sum.grants += run.grants;
        sum.hand_overs += run.hand_overs;
        sum.refusals += run.refusals;
        sum.losses += run.losses;
        sum.rejected_writes += run.rejected_writes;
        sum.unfenced_corruptions += run.unfenced_corruptions;
        sum.longest_wait_ms = sum.longest_wait_ms.max(run.longest_wait_ms);
        sum.took_s += run.took_s;
        for (sum, of_it) in [
            (&mut sum.errors, &run.errors),
            (&mut sum.faults, &run.faults),
            (&mut sum.exceptions, &run.exceptions),
        ] {
            for (kind, count) in of_it {
                *sum.entry(kind.clone()).or_default() += count;
            }
        }
        for (sum, of_it) in [
            (&mut sum.unpromised_grants, run.unpromised_grants),
            (&mut sum.calm_calls, run.calm_calls),
            (&mut sum.commits, run.commits),
        ] {
            *sum = of_it.map(|of_it| sum.unwrap_or_default() + of_it).or(*sum);
        }
        sum.violations.extend(run.violations.iter().cloned());
    }
    sum
}

pub(super) fn count(counts: &BTreeMap<String, u64>) -> u64 {
    counts.values().sum()
}
