//! Runs schedules, and prints their counts.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use leasehold_simulator::checks::Counts;
use leasehold_simulator::faults::FaultKind;
use leasehold_simulator::record::{self, Recorder, Run, Violation};
use leasehold_simulator::{Plan, Report, Topology, evidence, processor, shrink, soak};

const HELP: &str = "\
Runs the library on machines that seeds decide.

leasehold-simulator [--seeds FROM..TO] [--topology single|sentinel|cluster|quorum] [--jobs N] [--record FILE]
leasehold-simulator --trace|--shrink SEED [--topology single|sentinel|cluster|quorum]
leasehold-simulator --history SEED [--topology single|sentinel|cluster|quorum] [--dir DIR]
leasehold-simulator evidence
leasehold-simulator soak --minutes M [--record FILE] [--leak N]

--seeds     the seeds of the schedules; 0..200 if it is left out
--topology  one server, a Sentinel set, a cluster, or a quorum of three; all if it is left out
--jobs      how many processes share the seeds, each with its own sums; 1 if it is left out
--record    appends a line for each topology to FILE, such as docs/evidence/simulator.jsonl; a schedule that fails ends
            the run only without this option
--trace     prints each event of one schedule
--history   prints what was done with each of its locks and registers, as docs/evidence/README.md says
--dir       where it writes a file for each of them instead
--shrink    leaves out what a schedule that fails does not need, and prints the rest as a test
evidence    writes EVIDENCE.md and its picture from the files in docs/evidence
soak        uses real servers with faults for M minutes; fails unless memory, descriptors and threads are steady. FILE,
            such as docs/evidence/soak.jsonl, gets its line. To try the verdict, N KiB a second and N descriptors a
            minute leak

The exit code is 1 if a schedule has failed. The same seed of the same commit fails again.";

struct Asked {
    seeds: Range<u64>,
    topologies: Vec<Topology>,
    jobs: u64,
    /// The file that gets a line for each topology.
    record: Option<PathBuf>,
    /// What is printed of which schedule.
    printed: Option<(Printed, u64)>,
    /// The folder of the histories.
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy)]
enum Printed {
    Trace,
    History,
    Shrunk,
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
    /// The sum of the hashes of all events. A change that moves code only leaves it as it was.
    hash: u64,
    violations: Vec<Violation>,
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "soak") {
        return soak::main(&words[1..]);
    }
    let has_failed = if words == ["evidence"] {
        evidence::write(&record::root()).map(|()| false)
    } else {
        asked(words.into_iter())
            .map_err(|what| format!("{what}\n\n{HELP}"))
            .and_then(run_all)
    };
    match has_failed {
        Ok(has_failed) => ExitCode::from(u8::from(has_failed)),
        Err(what) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
    }
}

/// Runs all schedules that were asked for. Returns whether one has failed.
fn run_all(asked: Asked) -> Result<bool, String> {
    if asked.jobs > 1 {
        return Ok(share(&asked));
    }
    processor::stay();
    let recorder = asked.record.map(Recorder::new).transpose()?;
    let mut has_failed = false;
    for topology in asked.topologies {
        has_failed |= match asked.printed {
            Some((printed, seed)) => print(printed, seed, topology, asked.dir.as_deref())?,
            None => run(asked.seeds.clone(), topology, recorder.as_ref())?,
        };
        if has_failed && recorder.is_none() {
            break;
        }
    }
    Ok(has_failed)
}

fn asked(mut words: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked {
        seeds: 0..200,
        topologies: Topology::ALL.to_vec(),
        jobs: 1,
        printed: None,
        record: None,
        dir: None,
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
            "--record" => asked.record = Some(PathBuf::from(value()?)),
            "--trace" => asked.printed = Some((Printed::Trace, number(&value()?)?)),
            "--history" => asked.printed = Some((Printed::History, number(&value()?)?)),
            "--dir" => asked.dir = Some(PathBuf::from(value()?)),
            "--shrink" => asked.printed = Some((Printed::Shrunk, number(&value()?)?)),
            _ => return Err(format!("{word} is unknown")),
        }
    }
    Ok(asked)
}

/// Runs the schedules in several processes. Each has its own part of the seeds. One that fails does not end
/// the others. Returns whether one has failed.
fn share(asked: &Asked) -> bool {
    let Range { start, end } = asked.seeds;
    let bound = |job| start + end.saturating_sub(start) * job / asked.jobs;
    let program = std::env::current_exe().expect("the program has a path");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut has_failed = false;
    for topology in &asked.topologies {
        let start = |job| {
            let seeds = format!("{}..{}", bound(job), bound(job + 1));
            // The new process stays there.
            processor::stay_on(job as usize % processors);
            let record = asked.record.iter();
            Command::new(&program)
                .args(["--seeds", &seeds, "--topology", &topology.to_string()])
                .args(record.flat_map(|file| [OsStr::new("--record"), file.as_os_str()]))
                .spawn()
                .expect("the system starts a process")
        };
        let jobs: Vec<_> = (0..asked.jobs).map(start).collect();
        for mut job in jobs {
            has_failed |= !job.wait().is_ok_and(|status| status.success());
        }
    }
    has_failed
}

/// Prints something of a schedule. Returns whether the schedule has failed.
fn print(
    printed: Printed,
    seed: u64,
    topology: Topology,
    dir: Option<&Path>,
) -> Result<bool, String> {
    let plan = Plan {
        seed,
        topology,
        bug: None,
        keeps_trace: matches!(printed, Printed::Trace),
    };
    if let Printed::Shrunk = printed {
        let shrunk = shrink(plan);
        match &shrunk {
            Some(shrunk) => println!("{shrunk}"),
            None => println!("{topology}: seed {seed} does not fail"),
        }
        return Ok(shrunk.is_some());
    }
    let report = plan.run();
    let has_failed = report.failure.is_some();
    if let Printed::History = printed {
        let commit = record::commit().unwrap_or_else(|_| "changed".into());
        for (file, text) in report.history.files(plan, &commit) {
            let Some(dir) = dir else {
                print!("{text}");
                continue;
            };
            let path = dir.join(file);
            let written = fs::create_dir_all(dir).and_then(|()| fs::write(&path, text));
            written.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        return Ok(has_failed);
    }
    for line in &report.trace {
        println!("{line}");
    }
    let Report {
        failure,
        counts,
        faults,
        hash,
        took,
        steps,
        ..
    } = report;
    println!(
        "{topology} {seed}: {failure:?}, {counts:?}, {faults:?}, {took:?}, {steps} steps, hash {hash:016x}"
    );
    Ok(has_failed)
}

/// Runs schedules, and prints their sums. Returns whether one has failed. The first that fails ends the run, unless the run
/// is recorded.
fn run(seeds: Range<u64>, topology: Topology, recorder: Option<&Recorder>) -> Result<bool, String> {
    let begun = Instant::now();
    let mut sums = Sums::default();
    for seed in seeds.clone() {
        let plan = Plan {
            seed,
            topology,
            bug: None,
            keeps_trace: false,
        };
        let report = plan.run();
        if let Some(failure) = &report.failure {
            println!("{topology}: seed {seed} fails: {failure}");
            if recorder.is_none() {
                return Ok(true);
            }
        }
        sums.add(seed, &report);
    }
    sums.print(topology, begun.elapsed());
    if let Some(recorder) = recorder {
        recorder.append(&sums.run(seeds, topology, begun.elapsed()))?;
    }
    Ok(!sums.violations.is_empty())
}

impl Sums {
    fn add(&mut self, seed: u64, report: &Report) {
        self.violations
            .extend(report.failure.clone().map(|what| Violation { seed, what }));
        self.schedules += 1;
        self.simulated += report.took;
        self.steps += report.steps;
        self.hash = self.hash.wrapping_add(report.hash);
        let (sums, counts) = (&mut self.counts, &report.counts);
        sums.grants += counts.grants;
        sums.unpromised_grants += counts.unpromised_grants;
        sums.hand_overs += counts.hand_overs;
        sums.refusals += counts.refusals;
        sums.calm_calls += counts.calm_calls;
        sums.losses += counts.losses;
        sums.rejected_writes += counts.rejected_writes;
        sums.commits += counts.commits;
        sums.unfenced_corruptions += counts.unfenced_corruptions;
        sums.longest_wait = sums.longest_wait.max(counts.longest_wait);
        sums.fair_turns += counts.fair_turns;
        sums.most_bypassed = sums.most_bypassed.max(counts.most_bypassed);
        for (kind, count) in &counts.events {
            *sums.events.entry(kind).or_default() += count;
        }
        for (kind, count) in &counts.kinds {
            *sums.kinds.entry(*kind).or_default() += count;
        }
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

    /// Returns the line of the record.
    fn run(&self, seeds: Range<u64>, topology: Topology, took: Duration) -> Run {
        let counts = &self.counts;
        let faults = self.faults.iter();
        Run {
            topology: topology.to_string(),
            first_seed: seeds.start,
            end_seed: seeds.end,
            schedules: self.schedules.into(),
            grants: counts.grants,
            unpromised_grants: Some(counts.unpromised_grants),
            hand_overs: counts.hand_overs,
            refusals: counts.refusals,
            calm_calls: Some(counts.calm_calls),
            losses: counts.losses,
            rejected_writes: counts.rejected_writes,
            commits: Some(counts.commits),
            unfenced_corruptions: counts.unfenced_corruptions,
            schedules_with_pauses: self.with_pauses.into(),
            corrupted_with_pauses: self.corrupted_with_pauses.into(),
            longest_wait_ms: counts.longest_wait.as_millis() as u64,
            errors: counts.errors.clone(),
            exceptions: (counts.exceptions.iter())
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
            faults: faults
                .map(|(kind, count)| (kind.to_string(), u64::from(*count)))
                .collect(),
            steps: Some(self.steps),
            simulated_s: Some(self.simulated.as_secs()),
            took_s: took.as_secs(),
            violations: self.violations.clone(),
            ..Run::default()
        }
    }

    fn print(&self, topology: Topology, took: Duration) {
        let Counts {
            grants,
            unpromised_grants,
            hand_overs,
            refusals,
            errors,
            calm_calls,
            losses,
            rejected_writes,
            commits,
            unfenced_corruptions,
            exceptions,
            longest_wait,
            kinds,
            fair_turns,
            most_bypassed,
            events,
            overwritten: _,
        } = &self.counts;
        let schedules = self.schedules.max(1);
        println!(
            "{topology}: {} schedules, violations {}",
            self.schedules,
            self.violations.len()
        );
        println!(
            "  grants {grants}, without a promise {unpromised_grants}, hand-overs {hand_overs}, refusals {refusals}, losses {losses}"
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
            "  commits {commits}, rejected writes {rejected_writes}, corruptions of an unfenced register {unfenced_corruptions}"
        );
        println!(
            "  schedules with a pause {}, and with such a corruption {}",
            self.with_pauses, self.corrupted_with_pauses
        );
        println!("  grants by kind: {kinds:?}");
        println!("  events: {events:?}");
        for (exception, count) in exceptions {
            let seed = self.first_with[exception];
            println!("  exceptions: {exception} {count}, first with the seed {seed}");
        }
        println!(
            "  longest wait after the last fault {longest_wait:.3?}, calls that must not fail {calm_calls}, fair turns {fair_turns}, most bypasses {most_bypassed}"
        );
        println!(
            "  {:.2} ms and {} steps a schedule, of {:.1?} each",
            took.as_secs_f64() * 1_000.0 / f64::from(schedules),
            self.steps / u64::from(schedules),
            self.simulated / schedules
        );
        println!("  hash of all events {:016x}", self.hash);
    }
}
