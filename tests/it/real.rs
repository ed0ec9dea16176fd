//! Seeded schedules on real servers. They are like those of the simulator, with real processes, signals and sockets.
//!
//! | module | its subject |
//! | --- | --- |
//! | `plan` | the plan of a seed: settings, and faults with their times |
//! | `stage` | the servers, and the faults that hit them |
//! | `schedule` | one schedule: the processes, the faults, and the end |
//! | `program` | the program of a process |
//! | `record` | the events of all processes, in a file |
//! | `register` | numbers that holders increase |
//! | `checks` | the rules, by the record |
//!
//! A schedule has three processes of two threads, at least two faults of servers or links, and at least one of a process.
//! The seed decides what happens, and when. The system decides the rest, so a seed that fails may pass the next time.

mod checks;
mod plan;
mod program;
mod record;
mod register;
mod schedule;
mod stage;

use std::env;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::support::{
    Server, Topology, append_evidence, commit, counts_in_json, server_in_evidence, text_in_json,
};

use plan::Plan;
use schedule::Counts;
use stage::Stage;

/// The variable with the task of a process.
const TASK: &str = "LEASEHOLD_IT_REAL";
/// The start of each name.
const PREFIX: &str = "real:";
/// The variables with the number of schedules of a long run, and its first seed.
const COUNT: &str = "LEASEHOLD_REAL";
const FIRST_SEED: &str = "LEASEHOLD_REAL_FROM";

const TOPOLOGIES: [(Topology, &str); 4] = [
    (Topology::Single, "single"),
    (Topology::Sentinel, "sentinel"),
    (Topology::Cluster, "cluster"),
    (Topology::Quorum, "quorum"),
];
/// The variable with the number of schedules of a topology that run at a time in a long run.
const LANES: &str = "LEASEHOLD_REAL_LANES";
/// The exception of a schedule whose servers did not do what a fault needs.
const NOT_RUN: &str = "schedules whose servers did not recover";
/// How many schedules make a line of results.
const PIECE: u64 = 25;

/// The task of a process.
struct Task {
    topology: Topology,
    seed: u64,
    number: u32,
    /// The path of the record.
    record: String,
    /// The URL of the server of the registers.
    register: String,
    /// The URLs of the servers: see [`settings_of`](crate::support::settings_of).
    url: String,
}

impl Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            number,
            record,
            register,
            url,
            ..
        } = self;
        let topology = name_of_topology(self.topology);
        write!(f, "{topology} {seed} {number} {record} {register} {url}")
    }
}

impl Task {
    fn parse(text: &str) -> Self {
        let words: Vec<_> = text.splitn(6, ' ').collect();
        let [topology, seed, number, record, register, url] = words[..] else {
            panic!("no task: {text}");
        };
        let found = TOPOLOGIES.iter().find(|(_, name)| *name == topology);
        Self {
            topology: found.expect("a topology").0,
            seed: seed.parse().expect("a number"),
            number: number.parse().expect("a number"),
            record: record.to_owned(),
            register: register.to_owned(),
            url: url.to_owned(),
        }
    }
}

fn name_of_topology(topology: Topology) -> &'static str {
    let found = TOPOLOGIES.iter().find(|(own, _)| *own == topology);
    found.expect("each has a name").1
}

/// Runs schedules one after the other, on servers of their own.
fn run(topology: Topology, seeds: impl IntoIterator<Item = u64>, register: &Server) -> Counts {
    let mut counts = Counts::default();
    let mut stage = None;
    for seed in seeds {
        let plan = Plan::new(topology, seed);
        let found = if_well(|| {
            let stage = stage.take().unwrap_or_else(|| Stage::start(topology));
            stage.wait_until_well();
            stage
        });
        let Some(found) = found else {
            *counts.exceptions.entry(NOT_RUN).or_default() += 1;
            continue;
        };
        found.wait_until_granting(&plan);
        let of_seed = plan.run(&found, &register.url());
        if !of_seed.exceptions.contains_key(NOT_RUN) {
            stage = Some(found);
        }
        counts.add(of_seed);
    }
    counts
}

/// Does something that waits until servers are well. Returns `None` if they are not. A machine that is too busy may be the
/// reason, and it says nothing about the library.
fn if_well<T>(act: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}

impl Counts {
    /// Returns the line of results for these seeds.
    fn line(
        &self,
        commit: &str,
        topology: Topology,
        (first_seed, end_seed): (u64, u64),
        took_s: u64,
    ) -> String {
        let violations = self.violations.iter().map(|(seed, what)| {
            let what = text_in_json(what);
            format!(r#"{{"seed": {seed}, "what": {what}}}"#)
        });
        let violations: Vec<_> = violations.collect();
        let Self {
            schedules,
            grants,
            hand_overs,
            refusals,
            losses,
            rejected_writes,
            unfenced_corruptions,
            with_pauses,
            corrupted_with_pauses,
            longest_wait,
            errors,
            faults,
            exceptions,
            ..
        } = self;
        format!(
            r#"{{"commit": "{commit}", "topology": "{topology}", "server": "{server}", "first_seed": {first_seed}, "end_seed": {end_seed}, "schedules": {schedules}, "grants": {grants}, "hand_overs": {hand_overs}, "refusals": {refusals}, "losses": {losses}, "rejected_writes": {rejected_writes}, "unfenced_corruptions": {unfenced_corruptions}, "schedules_with_pauses": {with_pauses}, "corrupted_with_pauses": {corrupted_with_pauses}, "longest_wait_ms": {longest_wait_ms}, "errors": {errors}, "faults": {faults}, "exceptions": {exceptions}, "took_s": {took_s}, "violations": [{violations}]}}"#,
            topology = name_of_topology(topology),
            server = server_in_evidence(),
            longest_wait_ms = longest_wait.as_millis(),
            errors = counts_in_json(errors),
            faults = counts_in_json(faults),
            exceptions = counts_in_json(exceptions),
            violations = violations.join(", "),
        )
    }
}

#[test]
#[ignore = "it takes as long as LEASEHOLD_REAL=COUNT says: 3,000 schedules take most of an hour"]
fn many_real_schedules_keep_the_rules() {
    let number = |variable: &str, default| {
        env::var(variable).map_or(default, |text| text.parse().expect("a number"))
    };
    let commit = &commit();
    let of_each: u64 = number(COUNT, 100) / TOPOLOGIES.len() as u64;
    let (first, lanes_of_each) = (number(FIRST_SEED, 0), number(LANES, 2));
    let end = first + of_each;
    let register = Server::start();
    let next = TOPOLOGIES.map(|_| AtomicU64::new(first));
    let (violations, not_run) = thread::scope(|scope| {
        let mut lanes = Vec::new();
        for ((topology, _), next) in TOPOLOGIES.into_iter().zip(&next) {
            for _ in 0..lanes_of_each {
                let register = &register;
                lanes.push(scope.spawn(move || run_pieces(commit, topology, next, end, register)));
            }
        }
        let counts = lanes.into_iter().map(|it| it.join().expect("it runs"));
        counts.fold((0, 0), |all, it| (all.0 + it.0, all.1 + it.1))
    });
    assert_eq!(violations, 0, "docs/evidence/real.jsonl has them");
    let all = of_each * TOPOLOGIES.len() as u64;
    assert!(
        not_run <= all / 10,
        "{not_run} of {all} in all topologies: {NOT_RUN}"
    );
}

/// Runs pieces of the seeds up to `end`, and appends a line of results for each. Returns the numbers of violations, and of
/// schedules whose servers did not recover.
fn run_pieces(
    commit: &str,
    topology: Topology,
    next: &AtomicU64,
    end: u64,
    register: &Server,
) -> (u64, u64) {
    let (mut violations, mut not_run) = (0, 0);
    loop {
        let first = next.fetch_add(PIECE, Ordering::SeqCst);
        if first >= end {
            return (violations, not_run);
        }
        let last = end.min(first + PIECE);
        let begun = Instant::now();
        let counts = run(topology, first..last, register);
        let line = counts.line(commit, topology, (first, last), begun.elapsed().as_secs());
        println!("{line}");
        append_evidence("real.jsonl", &line);
        violations += counts.violations.len() as u64;
        not_run += counts.exceptions.get(NOT_RUN).unwrap_or(&0);
    }
}
