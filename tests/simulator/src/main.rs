//! Runs schedules, and prints their counts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use leasehold_simulator::checks::Counts;
use leasehold_simulator::faults::FaultKind;
use leasehold_simulator::{Plan, Report, Topology};

const HELP: &str = "\
Runs the library on machines that seeds decide.

leasehold-simulator [--seeds FROM..TO] [--topology single|quorum] [--jobs N]
leasehold-simulator --trace SEED [--topology single|quorum]

--seeds     the seeds of the schedules; 0..200 if it is left out
--topology  one server, or a quorum of three; both if it is left out
--jobs      how many processes share the seeds, each with its own sums; 1 if it is left out
--trace     prints each event of one schedule

The exit code is 1 if a schedule has failed. The same seed of the same commit fails again.";

struct Asked {
    seeds: Range<u64>,
    topologies: Vec<Topology>,
    jobs: u64,
    trace: Option<u64>,
}

/// The sums of several schedules.
#[derive(Default)]
struct Sums {
    schedules: u32,
    with_pauses: u32,
    corrupted_with_pauses: u32,
    counts: Counts,
    /// The first seed with each exception.
    first_with: BTreeMap<&'static str, u64>,
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
    if asked.jobs > 1 {
        return share(&asked);
    }
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
        jobs: 1,
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
            "--jobs" => asked.jobs = number(&value()?)?,
            "--trace" => asked.trace = Some(number(&value()?)?),
            _ => return Err(format!("{word} is unknown")),
        }
    }
    Ok(asked)
}

/// Runs the schedules in several processes. Each has its own part of the seeds. One that fails does not end the others.
fn share(asked: &Asked) -> ExitCode {
    let Range { start, end } = asked.seeds;
    let bound = |job| start + end.saturating_sub(start) * job / asked.jobs;
    let program = std::env::current_exe().expect("the program has a path");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut has_failed = false;
    for topology in &asked.topologies {
        let start = |job| {
            let seeds = format!("{}..{}", bound(job), bound(job + 1));
            // The new process stays there.
            stay_on(job as usize % processors);
            Command::new(&program)
                .args(["--seeds", &seeds, "--topology", &topology.to_string()])
                .spawn()
                .expect("the system starts a process")
        };
        let jobs: Vec<_> = (0..asked.jobs).map(start).collect();
        for mut job in jobs {
            has_failed |= !job.wait().is_ok_and(|status| status.success());
        }
    }
    ExitCode::from(u8::from(has_failed))
}

/// Has all threads run on the processor of this one, because only one of them runs at a time. That doubles the speed.
fn stay_on_one_processor() {
    stay_on(rustix::thread::sched_getcpu());
}

fn stay_on(processor: usize) {
    let mut one = rustix::thread::CpuSet::new();
    one.set(processor);
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
        sums.add(seed, &report);
    }
    sums.print(topology, begun.elapsed());
    false
}

impl Sums {
    fn add(&mut self, seed: u64, report: &Report) {
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
        for (exception, count) in &counts.exceptions {
            *sums.exceptions.entry(exception).or_default() += count;
            self.first_with.entry(exception).or_insert(seed);
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
            exceptions,
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
        for (exception, count) in exceptions {
            let seed = self.first_with[exception];
            println!("  exceptions: {exception} {count}, first with the seed {seed}");
        }
        println!("  longest wait after the last fault {longest_wait:.3?}");
        println!(
            "  {:.2} ms and {} steps a schedule, of {:.1?} each",
            took.as_secs_f64() * 1_000.0 / f64::from(schedules),
            self.steps / u64::from(schedules),
            self.simulated / schedules
        );
    }
}
