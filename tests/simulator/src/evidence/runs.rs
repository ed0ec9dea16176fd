//! Runs of schedules.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Run, Violation};

use super::picture::{Bars, Scale};
use super::table::{code, number, percent, seconds, share, table, time};
use super::{NOT_RUN, Part};

/// The topologies in the order of the columns.
const TOPOLOGIES: [&str; 4] = ["single", "sentinel", "cluster", "quorum"];

/// The outcome of each fault.
const OUTCOMES: [(&str, &str); 31] = [
    (
        "pauses",
        "A guard whose lease ends in the pause reads `Lost` at the first look after it. A late write is rejected by its fence.",
    ),
    (
        "crashes",
        "The others wait for at most the lease of the process.",
    ),
    (
        "pauses of a thread",
        "A guard compares the clock itself, so it reads `Lost` at its deadline, whichever thread stands still.",
    ),
    (
        "jumps of a clock",
        "The clock of a process jumps ahead, as after a suspend. Guards whose deadline has passed read `Lost` at the first look.",
    ),
    (
        "idle times",
        "The process notices dead connections before it needs them, or its first call opens others.",
    ),
    (
        "blocked links",
        "Calls end at their time limits, and waits go on. A lease that cannot be renewed is lost at its deadline.",
    ),
    (
        "cut links",
        "A call fails or is sent once more, and waits go on. A lock whose grant was lost is released.",
    ),
    ("closed connections", "As with cut links."),
    (
        "dead connections",
        "As with blocked links, until `io_timeout` ends the connections.",
    ),
    ("half-open links", "As with dead connections."),
    (
        "late links",
        "All goes on, more slowly. An answer that is later than its time limit counts for nothing.",
    ),
    ("dripping links", "All goes on, more slowly."),
    (
        "links that lose data",
        "Redis may have executed a request without an answer. It is withdrawn until a lease has passed.",
    ),
    (
        "stalls of a server",
        "As with blocked links. A quorum goes on if a majority is left.",
    ),
    ("pauses of clients", "As with stalls of a server."),
    (
        "restarts with data",
        "Waits go on. Leases are renewed if the server is back before their deadlines.",
    ),
    (
        "restarts without data",
        "Beyond the assumptions: one server forgets its locks. The holder learns of it at its next renewal, and the next fence is larger. A node of a quorum does not vote for `restart_delay`, so a quorum keeps exclusion.",
    ),
    (
        "rolling restarts",
        "As with restarts, for one server after the other.",
    ),
    (
        "failovers",
        "Beyond the assumptions if the new master misses a grant: two guards may read `Held` until the next renewal of the first. The fence of the second is larger.",
    ),
    (
        "failovers by hand",
        "As with failovers. In a Cluster the old master hands all data over.",
    ),
    ("killed masters", "As with failovers."),
    (
        "replicas that lag",
        "A failover to such a replica misses more grants and releases. A lock whose release is lost stays taken for the rest of its lease.",
    ),
    (
        "moved slots",
        "Requests follow the slot, and no lock is lost.",
    ),
    ("moves of a slot", "As with moved slots."),
    (
        "late requests",
        "Redis executes them after requests of newer connections. A release that may have come before its lock is repeated.",
    ),
    (
        "evicted keys",
        "Beyond the assumptions: as with restarts without data, for one lock.",
    ),
    (
        "keys of another type",
        "Calls for that name return `WrongType`, and a guard whose key is gone is lost at its next renewal. All other leases are renewed.",
    ),
    ("lost scripts", "They are sent again. No call fails."),
    (
        "refused rights",
        "Calls return `Denied`. Leases last until the rights are back, or are lost at their deadlines.",
    ),
    (
        "jumps of a server's clock",
        "Beyond the assumptions: keys expire early. The holder learns of it at its next renewal, and the next fence is larger.",
    ),
    (
        "server clocks set back",
        "A key lives longer than its lease, so the lock of a crashed process stays taken for longer.",
    ),
];

/// The lines of a file, in their order.
pub(super) struct Runs {
    counted: Vec<Run>,
    all: Vec<Run>,
}

/// A violation, and where it was found.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found<'a> {
    commit: &'a str,
    topology: &'a str,
    server: Option<&'a str>,
    violation: &'a Violation,
}

impl Runs {
    pub(super) fn new(runs: Vec<Run>) -> Self {
        Self {
            counted: runs.clone(),
            all: runs,
        }
    }

    /// Counts each seed of a commit once, because its second run is the same run again. Of two ranges that overlap, the
    /// smaller one is not counted.
    pub(super) fn of_seeds(runs: Vec<Run>) -> Self {
        let mut largest: Vec<_> = runs.iter().enumerate().collect();
        largest.sort_by_key(|(at, run)| (u64::MAX - run.schedules, *at));
        let mut counted: Vec<(usize, &Run)> = Vec::new();
        for (at, run) in largest {
            let overlaps = |(_, other): &(usize, &Run)| {
                other.commit == run.commit
                    && other.topology == run.topology
                    && other.first_seed < run.end_seed
                    && run.first_seed < other.end_seed
            };
            if !counted.iter().any(overlaps) {
                counted.push((at, run));
            }
        }
        counted.sort_by_key(|(at, _)| *at);
        Self {
            counted: counted.into_iter().map(|(_, run)| run.clone()).collect(),
            all: runs,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn sum(&self) -> Run {
        sum(self.counted.iter())
    }

    /// Returns the sum of a topology, or `None` if it was not run.
    fn of(&self, topology: &str) -> Option<Run> {
        let runs = || self.counted.iter().filter(|run| run.topology == topology);
        runs().next().map(|_| sum(runs()))
    }

    /// Returns all violations, each of them once.
    pub(super) fn violations(&self) -> BTreeSet<Found<'_>> {
        let found = self.all.iter().flat_map(|run| {
            run.violations.iter().map(|violation| Found {
                commit: &run.commit,
                topology: &run.topology,
                server: run.server.as_deref(),
                violation,
            })
        });
        found.collect()
    }

    /// Returns the commit of the last run of a seed after a violation, if that run broke no rule.
    fn passes_since(&self, found: &Found<'_>) -> Option<&str> {
        let seed = found.violation.seed;
        let has_seed = |run: &&Run| {
            run.topology == found.topology && (run.first_seed..run.end_seed).contains(&seed)
        };
        let last = self.all.iter().rfind(has_seed)?;
        let is_clean = last.violations.iter().all(|it| it.seed != seed);
        (is_clean && last.commit != found.commit).then_some(&*last.commit)
    }

    pub(super) fn by_topology(&self) -> String {
        if self.is_empty() {
            return NOT_RUN.to_owned();
        }
        let topologies: Vec<_> = TOPOLOGIES
            .iter()
            .map(|topology| (*topology, self.of(topology)))
            .collect();
        let mut heads = vec![""];
        heads.extend(TOPOLOGIES);
        heads.push("all");
        let all = self.sum();
        let row = |name: &str, show: &dyn Fn(&Run) -> String| {
            let mut cells = vec![name.to_owned()];
            cells.extend(topologies.iter().map(|(_, run)| match run {
                Some(run) => show(run),
                None => "not run yet".to_owned(),
            }));
            cells.push(show(&all));
            cells
        };
        let mut rows = vec![
            row("schedules", &|run| number(run.schedules)),
            row("faults", &|run| number(count(&run.faults))),
            row("grants", &|run| number(run.grants)),
            row("hand-overs to another process", &|run| {
                number(run.hand_overs)
            }),
            row("answers \"held\"", &|run| number(run.refusals)),
            row("calls that returned an error", &|run| {
                number(count(&run.errors))
            }),
            row("guards that were lost", &|run| number(run.losses)),
            row("stale writes that a fence rejected", &|run| {
                number(run.rejected_writes)
            }),
            row("corruptions of a register without fences", &|run| {
                number(run.unfenced_corruptions)
            }),
            row("longest wait after the last fault", &|run| {
                seconds(run.longest_wait_ms)
            }),
            row("**rules broken**", &|run| {
                format!("**{}**", number(run.violations.len() as u64))
            }),
        ];
        if all.unpromised_grants.is_some() {
            rows.insert(
                3,
                row("of these, while exclusion was not promised", &|run| {
                    run.unpromised_grants
                        .map_or("not counted".to_owned(), number)
                }),
            );
            rows.push(row("calls after the faults that must not fail", &|run| {
                run.calm_calls.map_or("not counted".to_owned(), number)
            }));
        }
        if all.steps.is_some() {
            rows.push(row("events in all", &|run| {
                number(run.steps.unwrap_or_default())
            }));
        }
        rows.push(row("time that it took", &|run| time(run.took_s)));
        table(&heads, &rows)
    }

    pub(super) fn by_commit(&self) -> String {
        if self.is_empty() {
            return NOT_RUN.to_owned();
        }
        let mut commits: Vec<(&str, &str)> = Vec::new();
        for run in &self.counted {
            let key = (&*run.commit, &*run.topology);
            if !commits.contains(&key) {
                commits.push(key);
            }
        }
        let has_servers = self.counted.iter().any(|run| run.server.is_some());
        let rows: Vec<_> = commits
            .into_iter()
            .map(|(commit, topology)| {
                let runs: Vec<_> = self
                    .counted
                    .iter()
                    .filter(|run| run.commit == commit && run.topology == topology)
                    .collect();
                let sum = sum(runs.iter().copied());
                let mut row = vec![code(commit), topology.to_owned()];
                if has_servers {
                    let servers: BTreeSet<_> = runs
                        .iter()
                        .filter_map(|run| run.server.as_deref())
                        .collect();
                    row.push(servers.into_iter().collect::<Vec<_>>().join(", "));
                }
                row.extend([
                    seeds(&runs),
                    number(sum.schedules),
                    number(count(&sum.faults)),
                    number(sum.grants),
                    number(sum.losses),
                    number(sum.violations.len() as u64),
                ]);
                row
            })
            .collect();
        let mut heads = vec!["commit", "topology"];
        if has_servers {
            heads.push("server");
        }
        heads.extend([
            "seeds",
            "schedules",
            "faults",
            "grants",
            "losses",
            "rules broken",
        ]);
        table(&heads, &rows)
    }
}

/// Returns the ranges of seeds. Ranges that follow each other are one.
fn seeds(runs: &[&Run]) -> String {
    let mut ranges: Vec<_> = runs
        .iter()
        .map(|run| (run.first_seed, run.end_seed))
        .collect();
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (first, end) in ranges {
        match joined.last_mut() {
            Some(last) if first <= last.1 => last.1 = end.max(last.1),
            _ => joined.push((first, end)),
        }
    }
    let texts: Vec<_> = joined
        .into_iter()
        .map(|(first, end)| format!("{first}..{end}"))
        .collect();
    texts.join(", ")
}

fn sum<'a>(runs: impl Iterator<Item = &'a Run>) -> Run {
    let mut sum = Run::default();
    for run in runs {
        sum.schedules += run.schedules;
        sum.grants += run.grants;
        sum.hand_overs += run.hand_overs;
        sum.refusals += run.refusals;
        sum.losses += run.losses;
        sum.rejected_writes += run.rejected_writes;
        sum.unfenced_corruptions += run.unfenced_corruptions;
        sum.schedules_with_pauses += run.schedules_with_pauses;
        sum.corrupted_with_pauses += run.corrupted_with_pauses;
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
            (&mut sum.steps, run.steps),
            (&mut sum.simulated_s, run.simulated_s),
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

/// Returns the answer to "Was a rule broken?".
pub(super) fn verdict(simulated: &Runs, real: &Runs) -> String {
    match broken(simulated, real) {
        (0, _) => "No. Each schedule kept [each rule](#what-each-schedule-checks).".to_owned(),
        (broken, passing) => format!(
            "In {} schedules, which [Rules broken](#rules-broken) lists. {} of them pass since, on a later commit.",
            number(broken as u64),
            number(passing as u64)
        ),
    }
}

/// Returns how many schedules broke a rule, and how many of these pass since.
pub(super) fn broken(simulated: &Runs, real: &Runs) -> (usize, usize) {
    let (mut broken, mut passing) = (0, 0);
    for runs in [simulated, real] {
        // One schedule may break several rules.
        let mut schedules = BTreeMap::new();
        for found in runs.violations() {
            let schedule = (found.commit, found.topology, found.violation.seed);
            schedules.insert(schedule, runs.passes_since(&found).is_some());
        }
        broken += schedules.len();
        passing += schedules.values().filter(|passes| **passes).count();
    }
    (broken, passing)
}

/// Returns what happened to a register that checks fences.
pub(super) fn fenced_register(simulated: &Runs, real: &Runs) -> String {
    let found = simulated.violations().into_iter().chain(real.violations());
    match found
        .filter(|found| has_lost_an_update(found.violation))
        .count()
    {
        0 => "lost no update".to_owned(),
        schedules => format!("**lost updates in {} schedules**", number(schedules as u64)),
    }
}

fn has_lost_an_update(violation: &Violation) -> bool {
    violation.what.contains("fenced register")
}

/// Returns the table of faults and topologies.
pub(super) fn faults(simulated: &Runs, real: &Runs) -> Part {
    if simulated.is_empty() && real.is_empty() {
        return super::text(NOT_RUN.to_owned());
    }
    let (all, of_real) = (simulated.sum(), real.sum());
    let kinds: BTreeSet<_> = all.faults.keys().chain(of_real.faults.keys()).collect();
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    let total = |kind: &str| {
        let of = |run: &Run| run.faults.get(kind).copied().unwrap_or_default();
        of(&all) + of(&of_real)
    };
    kinds.sort_by_key(|kind| u64::MAX - total(kind));
    let cell = |kind: &str, topology: &str| {
        let of = |runs: &Runs| {
            runs.of(topology)
                .map(|run| run.faults.get(kind).copied().unwrap_or_default())
        };
        match (of(simulated), of(real)) {
            (None, None) => "not run yet".to_owned(),
            (Some(of_simulated), None) => number(of_simulated),
            (of_simulated, Some(of_real)) => format!(
                "{} + {} real",
                number(of_simulated.unwrap_or_default()),
                number(of_real)
            ),
        }
    };
    let mut rows: Vec<_> = kinds
        .iter()
        .map(|kind| {
            let mut row = vec![(*kind).clone()];
            row.extend(TOPOLOGIES.map(|topology| cell(kind, topology)));
            row.push(outcome(kind).unwrap_or("–").to_owned());
            row
        })
        .collect();
    let mut last = vec!["**rules broken**".to_owned()];
    last.extend(TOPOLOGIES.map(|topology| {
        let of = |runs: &Runs| runs.of(topology).map(|run| run.violations.len());
        match (of(simulated), of(real)) {
            (None, None) => "not run yet".to_owned(),
            (of_simulated, of_real) => {
                let violations = of_simulated.unwrap_or_default() + of_real.unwrap_or_default();
                format!("**{}**", number(violations as u64))
            }
        }
    }));
    last.push("see [Rules broken](#rules-broken)".to_owned());
    rows.push(last);
    let mut heads = vec!["fault"];
    heads.extend(TOPOLOGIES);
    heads.push("design");
    let run: Vec<_> = TOPOLOGIES
        .into_iter()
        .filter(|topology| simulated.of(topology).is_some() || real.of(topology).is_some())
        .collect();
    let groups = kinds.iter().map(|kind| {
        let of = |runs: &Runs, topology| {
            let sum = runs.of(topology);
            sum.and_then(|run| run.faults.get(*kind).copied())
                .unwrap_or_default()
        };
        let values = run
            .iter()
            .map(|topology| of(simulated, topology) + of(real, topology));
        let values = values.map(|value| value as f64);
        ((*kind).clone(), values.collect())
    });
    let bars = Bars {
        title: "Faults by their kind",
        about: "Bars: how many faults of each kind the schedules had, by topology.".to_owned(),
        unit: "faults",
        series: run.iter().map(|topology| (*topology).to_owned()).collect(),
        groups: groups.collect(),
        scale: Scale::Linear,
        show: |value| number(value as u64),
        caption: "Simulated and real schedules of all commits in docs/evidence",
    };
    Part {
        text: table(&heads, &rows),
        picture: Some(("faults", bars.draw())),
    }
}

/// Returns the outcome of a kind of fault.
fn outcome(kind: &str) -> Option<&'static str> {
    let outcome = OUTCOMES.iter().find(|(of_it, _)| *of_it == kind)?;
    Some(outcome.1)
}

/// Returns how often calls returned each error.
pub(super) fn errors(simulated: &Runs, real: &Runs) -> String {
    by_name("error", simulated, real, |run| &run.errors)
}

pub(super) fn exceptions(simulated: &Runs, real: &Runs) -> String {
    if simulated.is_empty() && real.is_empty() {
        return NOT_RUN.to_owned();
    }
    let seen = by_name("exception", simulated, real, |run| &run.exceptions);
    if seen.is_empty() {
        "No run has counted one yet.".to_owned()
    } else {
        seen
    }
}

/// Returns a table of the counts of names, or nothing if no run has a count.
fn by_name(
    head: &str,
    simulated: &Runs,
    real: &Runs,
    counts: fn(&Run) -> &BTreeMap<String, u64>,
) -> String {
    let (of_simulated, of_real) = (simulated.sum(), real.sum());
    let names: BTreeSet<_> = counts(&of_simulated)
        .keys()
        .chain(counts(&of_real).keys())
        .collect();
    let rows: Vec<_> = names
        .into_iter()
        .map(|name| {
            let of = |run: &Run| number(counts(run).get(name).copied().unwrap_or_default());
            vec![code(name), of(&of_simulated), of(&of_real)]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&[head, "simulated", "real servers"], &rows)
}

/// Returns the table of the violations. Those that differ only by numbers and names stand in one row.
pub(super) fn violations(simulated: &Runs, real: &Runs) -> String {
    if simulated.is_empty() && real.is_empty() {
        return NOT_RUN.to_owned();
    }
    let mut rows = Vec::new();
    for runs in [simulated, real] {
        let found = runs.violations();
        let mut alike: BTreeMap<_, Vec<&Found<'_>>> = BTreeMap::new();
        for found in &found {
            let key = (
                found.commit,
                found.topology,
                found.server,
                kind(&found.violation.what),
            );
            alike.entry(key).or_default().push(found);
        }
        for ((commit, topology, server, kind), found) in alike {
            let seeds = found.iter().map(|found| found.violation.seed);
            let passing: Vec<_> = found
                .iter()
                .filter_map(|it| runs.passes_since(it))
                .collect();
            rows.push(vec![
                code(commit),
                match server {
                    Some(server) => format!("{topology}, {server}"),
                    None => topology.to_owned(),
                },
                kind,
                number(found.len() as u64),
                seeds.min().unwrap_or_default().to_string(),
                match passing.last() {
                    Some(commit) => {
                        format!("{}, on {}", number(passing.len() as u64), code(commit))
                    }
                    None => "0".to_owned(),
                },
            ]);
        }
    }
    if rows.is_empty() {
        return "None.".to_owned();
    }
    let heads = [
        "commit",
        "topology",
        "finding",
        "schedules",
        "first seed",
        "of them pass since",
    ];
    table(&heads, &rows)
}

/// Returns a failure without its numbers and owners.
fn kind(what: &str) -> String {
    let words = what.split(' ').map(|word| {
        if word.contains(|letter: char| letter.is_ascii_digit()) {
            "…"
        } else {
            word
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns how often a register without fences was corrupted, and one with fences.
pub(super) fn register(simulated: &Runs, real: &Runs) -> Part {
    if simulated.is_empty() && real.is_empty() {
        return super::text(NOT_RUN.to_owned());
    }
    let (mut rows, mut groups) = (Vec::new(), Vec::new());
    for (runs, of) in [(simulated, "simulated"), (real, "real servers")] {
        for topology in TOPOLOGIES {
            let Some(run) = runs.of(topology) else {
                continue;
            };
            let fenced = run.violations.iter();
            let fenced = fenced.filter(|it| has_lost_an_update(it)).count() as u64;
            rows.push(vec![
                format!("{topology}, {of}"),
                number(run.schedules_with_pauses),
                number(run.corrupted_with_pauses),
                percent(run.corrupted_with_pauses, run.schedules_with_pauses),
                number(fenced),
                number(run.rejected_writes),
            ]);
            groups.push((
                format!("{topology}, {of}"),
                vec![
                    share(run.corrupted_with_pauses, run.schedules_with_pauses),
                    share(fenced, run.schedules_with_pauses),
                ],
            ));
        }
    }
    let heads = [
        "topology",
        "schedules with pauses",
        "register without fences corrupted",
        "share",
        "register with fences corrupted",
        "writes that it rejected",
    ];
    let bars = Bars {
        title: "Schedules with pauses that corrupted a register",
        about: "Bars: the share of schedules with pauses that corrupted a register without fences, and one with fences, by topology."
            .to_owned(),
        unit: "% of the schedules with pauses",
        series: vec!["without fences".to_owned(), "with fences".to_owned()],
        groups,
        scale: Scale::Linear,
        show: |value| format!("{value:.1} %"),
        caption: "Schedules of all commits in docs/evidence",
    };
    Part {
        text: table(&heads, &rows),
        picture: Some(("register", bars.draw())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(commit: &str, seeds: (u64, u64), violations: &[u64]) -> Run {
        Run {
            commit: commit.to_owned(),
            topology: "single".to_owned(),
            first_seed: seeds.0,
            end_seed: seeds.1,
            schedules: seeds.1 - seeds.0,
            violations: violations
                .iter()
                .map(|seed| Violation {
                    seed: *seed,
                    what: format!("the fence {seed} of a is not larger than 7"),
                })
                .collect(),
            ..Run::default()
        }
    }

    #[test]
    fn a_seed_that_was_run_twice_on_one_commit_counts_once() {
        let runs = Runs::of_seeds(vec![
            run("a", (0, 10), &[]),
            run("a", (5, 100), &[]),
            run("a", (100, 110), &[]),
            run("b", (0, 10), &[]),
        ]);
        assert_eq!(runs.sum().schedules, 95 + 10 + 10);
    }

    #[test]
    fn a_violation_is_open_until_its_seed_passes_on_a_later_commit() {
        let first = run("a", (0, 10), &[3, 4]);
        let passes = |runs: Vec<Run>| {
            let runs = Runs::of_seeds(runs);
            let found = runs.violations();
            let since = found.iter().filter_map(|found| runs.passes_since(found));
            since.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(passes(vec![first.clone()]), [""; 0]);
        assert_eq!(passes(vec![first.clone(), run("b", (0, 4), &[])]), ["b"]);
        let again = run("b", (0, 10), &[4]);
        assert_eq!(passes(vec![first.clone(), again]), ["b"]);
        // The run of before is no later one.
        assert_eq!(passes(vec![run("b", (0, 10), &[]), first]), [""; 0]);
    }

    #[test]
    fn violations_that_differ_by_numbers_stand_in_one_row() {
        let runs = Runs::of_seeds(vec![run("a", (0, 10), &[3, 4])]);
        let table = violations(&runs, &Runs::new(Vec::new()));
        assert!(
            table.contains("| the fence … of a is not larger than … | 2 | 3 | 0 |"),
            "{table}"
        );
    }

    #[test]
    fn ranges_of_seeds_that_follow_each_other_are_one() {
        let runs = [
            run("a", (10, 20), &[]),
            run("a", (0, 10), &[]),
            run("a", (30, 40), &[]),
        ];
        assert_eq!(seeds(&runs.iter().collect::<Vec<_>>()), "0..20, 30..40");
    }
}
