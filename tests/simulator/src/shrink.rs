//! Makes a schedule that fails smaller: finds a few of its faults and operations that still break the same rule.
//!
//! | a round leaves out, if the rest still fails | |
//! | --- | --- |
//! | all operations of a thread, or of a kind | each one once |
//! | a half of what is left, a quarter, and so on down to single parts | Zeller's delta debugging ("Simplifying and isolating failure-inducing input", 2002) |
//!
//! What is left out changes the order of the threads. So each try has several orders.

use std::collections::BTreeSet;
use std::fmt;

use crate::programs::What;
use crate::scenario::{FIRST_STREAM, Kept, Scenario};
use crate::schedule::Plan;

/// How many orders of the threads a try has.
const ORDERS: u64 = 4;
/// How many schedules are run.
const MOST_RUNS: u32 = 4_000;
/// How many schedules may fail. The threads of such a schedule stay until the process ends.
const MOST_FAILURES: u32 = 100;

/// A small schedule that fails.
#[derive(Clone, Debug)]
pub struct Shrunk {
    pub plan: Plan,
    pub kept: Kept,
    pub failure: String,
    /// How many schedules were run.
    pub runs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Fault(usize),
    Operation(usize, usize),
}

struct Search {
    scenario: Scenario,
    rule: String,
    parts: Vec<Part>,
    stream: u64,
    failure: String,
    runs: u32,
    failures: u32,
}

/// Returns a small schedule that breaks the same rule as this one, or `None` if this one breaks none.
#[must_use]
pub fn shrink(plan: Plan) -> Option<Shrunk> {
    let scenario = plan.scenario();
    let all = scenario.all();
    let failure = scenario.run().failure?;
    let faults = all.faults.into_iter().map(Part::Fault);
    let operations =
        (all.operations.into_iter()).map(|(thread, number)| Part::Operation(thread, number));
    let mut search = Search {
        rule: rule(&failure),
        parts: faults.chain(operations).collect(),
        stream: all.stream,
        failure,
        runs: 1,
        failures: 1,
        scenario,
    };
    while search.round() {}
    Some(Shrunk {
        plan,
        kept: kept(&search.parts, search.stream),
        failure: search.failure,
        runs: search.runs,
    })
}

/// Returns which rule a failure breaks: its words without numbers and names.
#[must_use]
pub fn rule(failure: &str) -> String {
    let is_plain = |word: &&str| word.len() > 2 && word.bytes().all(|it| it.is_ascii_lowercase());
    let words: Vec<_> = failure.split(' ').filter(is_plain).collect();
    words.join(" ")
}

fn kept(parts: &[Part], stream: u64) -> Kept {
    let mut kept = Kept {
        faults: Vec::new(),
        operations: Vec::new(),
        stream,
    };
    for part in parts {
        match *part {
            Part::Fault(number) => kept.faults.push(number),
            Part::Operation(thread, number) => kept.operations.push((thread, number)),
        }
    }
    kept
}

impl Search {
    /// Tries to leave parts out, each of them at least once. Returns whether some were left out.
    fn round(&mut self) -> bool {
        let before = self.parts.len();
        for thread in 0..self.scenario.programs.len() {
            self.leave_out(|part, _| matches!(part, Part::Operation(its, _) if its == thread));
        }
        let kinds = self.parts.iter().filter_map(|part| self.kind(*part));
        for kind in kinds.collect::<BTreeSet<_>>() {
            let scenario = self.scenario.clone();
            self.leave_out(|part, _| kind_of(&scenario, part) == Some(kind));
        }
        let mut size = self.parts.len().div_ceil(2);
        while size > 0 {
            let mut begin = 0;
            while begin < self.parts.len() {
                let range = begin..begin + size;
                if !self.leave_out(|_, place| range.contains(&place)) {
                    begin += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
        self.parts.len() < before && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.runs >= MOST_RUNS || self.failures >= MOST_FAILURES
    }

    fn kind(&self, part: Part) -> Option<What> {
        kind_of(&self.scenario, part)
    }

    /// Leaves parts out, if the rest still fails. Returns whether it does.
    fn leave_out(&mut self, is_left_out: impl Fn(Part, usize) -> bool) -> bool {
        let places = self.parts.iter().copied().enumerate();
        let rest = places.filter(|(place, part)| !is_left_out(*part, *place));
        let rest: Vec<_> = rest.map(|(_, part)| part).collect();
        let has_work = rest.iter().any(|part| matches!(part, Part::Operation(..)));
        if rest.len() == self.parts.len() || !has_work {
            return false;
        }
        let others = (FIRST_STREAM..=ORDERS).filter(|it| *it != self.stream);
        for stream in std::iter::once(self.stream)
            .chain(others)
            .collect::<Vec<_>>()
        {
            if self.is_over() {
                return false;
            }
            self.runs += 1;
            let Some(failure) = self.scenario.keep(&kept(&rest, stream)).run().failure else {
                continue;
            };
            self.failures += 1;
            if rule(&failure) == self.rule {
                (self.parts, self.stream, self.failure) = (rest, stream, failure);
                return true;
            }
        }
        false
    }
}

fn kind_of(scenario: &Scenario, part: Part) -> Option<What> {
    match part {
        Part::Fault(_) => None,
        Part::Operation(thread, number) => Some(scenario.programs[thread][number].what),
    }
}

/// Shows the schedule, and a test that runs it.
impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            plan,
            kept,
            failure,
            runs,
        } = self;
        writeln!(f, "{}", plan.scenario().keep(kept))?;
        let (seed, topology) = (plan.seed, plan.topology);
        writeln!(f, "after {runs} schedules: {failure}\n")?;
        writeln!(f, "#[test]\nfn seed_{seed}_of_{topology}_passes() {{")?;
        writeln!(f, "    let plan = Plan {{")?;
        writeln!(f, "        seed: {seed},")?;
        writeln!(f, "        topology: Topology::{topology:?},")?;
        match plan.bug {
            None => writeln!(f, "        bug: None,")?,
            Some(bug) => writeln!(f, "        bug: Some(Bug::{bug:?}),")?,
        }
        writeln!(f, "        keeps_trace: false,\n    }};")?;
        writeln!(f, "    let kept = Kept {{")?;
        writeln!(f, "        faults: vec!{:?},", kept.faults)?;
        writeln!(f, "        operations: vec!{:?},", kept.operations)?;
        writeln!(f, "        stream: {},\n    }};", kept.stream)?;
        writeln!(f, "    let report = plan.scenario().keep(&kept).run();")?;
        writeln!(f, "    assert_eq!(report.failure, None);\n}}")
    }
}
