//! A judge of the simulator's histories whose search is not ours: stateright's `LinearizabilityTester`.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`history`] | a history, as its file has it |
//! | [`models`] | a lock with fences, and a register |
//! | [`verdict`] | whether an order explains a history |
//! | [`corruption`] | copies of histories that no order explains |
//!
//! `cargo run --release -p leasehold-judge -- --help` tells how to run it.

#![allow(missing_docs, reason = "the package is for this repository alone")]

pub mod corruption;
pub mod history;
pub mod models;
pub mod verdict;

use std::time::{Duration, Instant};

use leasehold_simulator::random::Random;
use leasehold_simulator::{Plan, Topology};
use serde::Serialize;

use corruption::Corruption;
use history::History;
use verdict::{Verdict, judge};

/// A history with fewer events says little, and is not counted.
const LEAST_EVENTS: usize = 20;

/// The verdicts on the histories of some schedules.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdicts {
    pub histories: u64,
    pub events: u64,
    pub accepted: u64,
    /// Corrupted copies, at most one of each history.
    pub corrupted: u64,
    pub rejected: u64,
    /// Histories and corrupted copies whose search was given up.
    pub undecided: u64,
    /// Histories of plain registers that were rejected, and whose holders have overwritten an update. They count above neither as
    /// histories nor as corrupted copies.
    pub lost_updates: u64,
    #[serde(skip)]
    pub took: Duration,
    /// What is not as it must be.
    #[serde(skip)]
    pub wrong: Vec<String>,
}

impl Verdicts {
    /// Runs a schedule, and judges its histories and a corrupted copy of each. If the judge is `alone`, the rules of the simulator
    /// do not end the schedule.
    ///
    /// # Errors
    ///
    /// The text of a history is wrong.
    pub fn add(&mut self, plan: Plan, is_alone: bool) -> Result<(), String> {
        let scenario = plan.scenario();
        let report = if is_alone {
            scenario.unchecked().run()
        } else {
            scenario.run()
        };
        if let Some(failure) = report.failure {
            let Plan { seed, topology, .. } = plan;
            self.wrong.push(format!("{topology} {seed}: {failure}"));
        }
        let begun = Instant::now();
        let mut random = Random::new(plan.seed, 7);
        for (file, text) in report.history.files(plan, "") {
            let history = History::parse(&text)?;
            if history.events.len() < LEAST_EVENTS {
                continue;
            }
            let verdict = judge(&history)?;
            let was_overwritten = report.counts.overwritten.contains(&*history.name);
            if verdict == Verdict::Rejected && history.is_plain && was_overwritten {
                self.lost_updates += 1;
                continue;
            }
            self.histories += 1;
            self.events += history.events.len() as u64;
            self.count(&file, verdict, Verdict::Accepted);
            if verdict == Verdict::Accepted {
                self.judge_copy(&file, &history, &mut random)?;
            }
        }
        self.took += begun.elapsed();
        Ok(())
    }

    fn judge_copy(&mut self, file: &str, of: &History, random: &mut Random) -> Result<(), String> {
        let first = random.index(Corruption::ALL.len());
        let kinds = Corruption::ALL.iter().cycle().skip(first);
        let mut kinds = kinds.take(Corruption::ALL.len());
        let copy = kinds.find_map(|kind| Some((kind, kind.of(of, random)?)));
        if let Some((kind, copy)) = copy {
            self.corrupted += 1;
            let verdict = judge(&copy)?;
            self.count(&format!("{file}, {kind:?}"), verdict, Verdict::Rejected);
        }
        Ok(())
    }

    fn count(&mut self, what: &str, verdict: Verdict, expected: Verdict) {
        match verdict {
            Verdict::Undecided => self.undecided += 1,
            Verdict::Accepted if verdict == expected => self.accepted += 1,
            Verdict::Rejected if verdict == expected => self.rejected += 1,
            _ => {}
        }
        if verdict != expected {
            self.wrong.push(format!("{what}: {verdict:?}"));
        }
    }
}

/// Returns the plan of a schedule of the library as it is.
#[must_use]
pub fn plan(topology: Topology, seed: u64) -> Plan {
    Plan {
        seed,
        topology,
        bug: None,
        keeps_trace: false,
    }
}
