//! Runs schedules, and prints their counts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold_simulator::checks::Counts;
use leasehold_simulator::faults::FaultKind;
use leasehold_simulator::{Plan, Report, Topology};

const HELP: &str = "\
Runs the library on machines that seeds decide.

leasehold-simulator [--seeds FROM..TO] [--topology single|quorum]
leasehold-simulator --trace SEED [--topology single|quorum]

--seeds     the seeds of the schedules; 0..200 if it is left out
--topology  one server, or a quorum of three; both if it is left out
--trace     prints each event of one schedule

The exit code is 1 if a schedule has failed. The same seed of the same commit fails again.";

struct Asked {
    seeds: Range<u64>,
    topologies: Vec<Topology>,
    trace: Option<u64>,
}

/// The sums of several schedules.
#[derive(Default)]
struct Sums {
    schedules: u32,
    with_pauses: u32,
    corrupted_with_pauses: u32,
    counts: Counts,
    faults: BTreeMap<FaultKind, u32>,
    simulated: Duration,
    steps: u64,
}

fn main() -> ExitCode {
    let asked = match asked(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(what) => {
            eprintln!("{what}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    stay_on_one_processor();
    for topology in asked.topologies {
        let has_failed = match asked.trace {
            Some(seed) => trace(seed, topology),
            None => run(asked.seeds.clone(), topology),
        };
        if has_failed {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn asked(mut words: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked {
        seeds: 0..200,
        topologies: vec![Topology::Single, Topology::Quorum],
        trace: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |word: &str| word.parse().map_err(|_| format!("{word} is no number"));
        match word.as_str() {
            "--seeds" => {
                let value = value()?;
                let (from, to) = value.split_once("..").ok_or("seeds are FROM..TO")?;
                asked.seeds = number(from)?..number(to)?;
            }
            "--topology" => asked.topologies = vec![value()?.parse()?],
            "--trace" => asked.trace = Some(number(&value()?)?),
            _ => return Err(format!("{word} is unknown")),
        }
    }
    Ok(asked)
}

/// Has all threads run on the processor of this one, because only one of them runs at a time. That doubles the speed.
fn stay_on_one_processor() {
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    // A refusal costs only time.
    rustix::thread::sched_setaffinity(None, &one).ok();
}

/// Prints each event of a schedule. Returns whether it has failed.
fn trace(seed: u64, topology: Topology) -> bool {
    let plan = Plan {
        seed,
        topology,
        bug: None,
        keeps_trace: true,
    };
    let report = plan.run();
    for line in &report.trace {
        println!("{line}");
    }
    println!(
        "{topology} {seed}: {report:?}",
        report = Report {
            trace: Vec::new(),
            ..report.clone()
        }
    );
    report.failure.is_some()
}

/// Runs schedules, and prints their sums. Returns whether one has failed.
fn run(seeds: Range<u64>, topology: Topology) -> bool {
    let begun = Instant::now();
    let mut sums = Sums::default();
    for seed in seeds {
        let plan = Plan {
            seed,
            topology,
            bug: None,
            keeps_trace: false,
        };
        let report = plan.run();
        if let Some(failure) = &report.failure {
            println!("{topology}: seed {seed} fails: {failure}");
            return true;
        }
        sums.add(&report);
    }
    sums.print(topology, begun.elapsed());
    false
}

impl Sums {
    fn add(&mut self, report: &Report) {
        self.schedules += 1;
        self.simulated += report.took;
        self.steps += report.steps;
        let (sums, counts) = (&mut self.counts, &report.counts);
        sums.grants += counts.grants;
        sums.hand_overs += counts.hand_overs;
        sums.refusals += counts.refusals;
        sums.losses += counts.losses;
        sums.rejected_writes += counts.rejected_writes;
        sums.unfenced_corruptions += counts.unfenced_corruptions;
        sums.longest_wait = sums.longest_wait.max(counts.longest_wait);
        for (kind, count) in &counts.errors {
            *sums.errors.entry(kind.clone()).or_default() += count;
        }
        for (kind, count) in &report.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
        if report.faults.contains_key(&FaultKind::Pause) {
            self.with_pauses += 1;
            self.corrupted_with_pauses += u32::from(counts.unfenced_corruptions > 0);
        }
    }

    fn print(&self, topology: Topology, took: Duration) {
        let Counts {
            grants,
            hand_overs,
            refusals,
            errors,
            losses,
            rejected_writes,
            unfenced_corruptions,
            longest_wait,
        } = &self.counts;
        let schedules = self.schedules.max(1);
        println!("{topology}: {} schedules, no violation", self.schedules);
        println!(
            "  grants {grants}, hand-overs {hand_overs}, refusals {refusals}, losses {losses}"
        );
        let errors: Vec<_> = errors
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        println!("  errors: {}", errors.join(", "));
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        println!("  faults: {}", faults.join(", "));
        println!(
            "  rejected writes {rejected_writes}, corruptions of an unfenced register {unfenced_corruptions}"
        );
        println!(
            "  schedules with a pause {}, and with such a corruption {}",
            self.with_pauses, self.corrupted_with_pauses
        );
        println!("  longest wait after the last fault {longest_wait:.3?}");
        println!(
            "  {:.2} ms and {} steps a schedule, of {:.1?} each",
            took.as_secs_f64() * 1_000.0 / f64::from(schedules),
            self.steps / u64::from(schedules),
            self.simulated / schedules
        );
    }
}
