//! The contract: the promises of every kind of lock on every topology, in simulated time.
//!
//! A test is a body, a kind and a topology. A body is a function that gets a world: processes with managers and threads,
//! servers, and their faults. A seed decides what the body leaves open: which thread runs next, and how long
//! messages take.
//!
//! | variable | its meaning |
//! | --- | --- |
//! | `LEASEHOLD_SEEDS` | how many seeds each body runs with; 1 if it is not set |
//! | `LEASEHOLD_SEED` | runs this seed alone. A failure prints each event |
//! | `LEASEHOLD_WORLD` | `real` runs each body once on real servers, in real time |

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]

mod matrix;
mod real;
mod redis;
mod simulated;
mod subject;
mod world;

mod addresses;
mod along;
mod background;
mod cancels;
mod claims;
mod clocks;
mod closes;
mod closures;
mod cluster;
mod commits;
mod crashes;
mod detached;
mod elections;
mod error_table;
mod events;
mod exclusion;
mod failovers;
mod faults;
mod fencing;
mod foreign;
mod gaps;
mod greetings;
mod holder_and_waiter;
mod interface;
mod link_phases;
mod links;
mod logins;
mod loss;
mod message_grants;
mod min_hold;
mod multi;
mod mutex;
mod mutex_loss;
mod once;
mod operators;
mod outages;
mod poller_gaps;
mod polling;
mod quantum;
mod quorum;
mod rate_limiter;
mod reentrant;
mod refusals;
mod replicas;
mod rights;
mod rwlock;
mod semaphore;
mod sentinel;
mod stats;
mod storms;
mod suspends;
mod threads;
mod traces;
mod waits;

use std::env;
use std::process::ExitCode;

use leasehold_simulator::{Stage, Topology, note_log_line, processor};
use libtest_mimic::{Arguments, Failed, Trial};
use log::{Level, LevelFilter, Log, Metadata, Record};

use matrix::{CHAPTERS, SUBJECTS, why_not};
use real::Real;
use simulated::Simulated;
use subject::Kind;
use world::World;

/// A logger that panics at each record. No body may notice, because `lib.rs` promises that no lock fails by the program's logger.
struct Panics;

impl Log for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // The text is made, as by any logger.
        let text = record.args().to_string();
        if record.level() <= Level::Info {
            note_log_line();
        }
        // `panic!` would print a message that looks like a failure.
        std::panic::resume_unwind(Box::new(text));
    }

    fn flush(&self) {}
}

fn main() -> ExitCode {
    if !is_real() {
        log::set_logger(&Panics).expect("there is no other");
        log::set_max_level(LevelFilter::Trace);
    }
    let arguments = Arguments::from_args();
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let is_real = is_real();
    for topology in Topology::ALL {
        if !is_real {
            let name = format!("{topology}::a_seed_decides_everything");
            trials.push(Trial::test(name, move || {
                a_seed_decides_everything(topology)
            }));
        }
        for (kind, of_kind) in Kind::NAMES {
            for (capability, bodies) in CHAPTERS.iter().copied().flatten() {
                if why_not(*capability, kind, topology).is_some() {
                    continue;
                }
                for (behaviour, body) in *bodies {
                    if is_real && !real::can_show(behaviour, topology) {
                        continue;
                    }
                    let name = format!("{topology}_{of_kind}::{behaviour}");
                    let (shown, body) = (name.clone(), *body);
                    let body = move |world: &World| body(world, kind);
                    trials.push(Trial::test(name, move || run(&shown, body, topology)));
                }
            }
        }
    }
    if !is_real {
        trials.extend(trials_of_subjects());
    }
    trials
}

fn trials_of_subjects() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (chapter, topologies, bodies) in SUBJECTS.iter().copied() {
        for topology in topologies.iter().copied() {
            let of_topology = match topologies {
                [_] => String::new(),
                _ => format!("_{topology}"),
            };
            for (behaviour, body) in bodies.iter().copied() {
                let name = format!("{chapter}{of_topology}::{behaviour}");
                let shown = name.clone();
                trials.push(Trial::test(name, move || run(&shown, body, topology)));
            }
        }
    }
    trials
}

/// A seed decides everything, so a failure can be replayed.
fn a_seed_decides_everything(topology: Topology) -> Result<(), Failed> {
    let hash = || {
        let outcome = Stage::run(7, topology, false, |stage| {
            let world = World::new(Simulated::new(stage.clone()));
            exclusion::no_update_is_lost(&world, Kind::Mutex);
        });
        outcome.hash
    };
    if hash() == hash() {
        Ok(())
    } else {
        Err("two runs of one seed differ".into())
    }
}

/// Runs a body in each of its worlds.
fn run(
    name: &str,
    body: impl Fn(&World) + Copy + Send + 'static,
    topology: Topology,
) -> Result<(), Failed> {
    if is_real() {
        body(&World::new(Real::new(topology)));
        return Ok(());
    }
    processor::stay();
    let only = number_in("LEASEHOLD_SEED");
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..number_in("LEASEHOLD_SEEDS").unwrap_or(1),
    };
    for seed in seeds {
        let outcome = Stage::run(seed, topology, only.is_some(), move |stage| {
            body(&World::new(Simulated::new(stage.clone())));
        });
        if let Some(failure) = outcome.failure {
            for line in outcome.trace {
                eprintln!("{line}");
            }
            let again = "cargo test --test contract -- --exact";
            return Err(
                format!("seed {seed}: {failure}\n  LEASEHOLD_SEED={seed} {again} {name}").into(),
            );
        }
    }
    Ok(())
}

/// Returns whether the bodies run on real servers.
fn is_real() -> bool {
    match env::var("LEASEHOLD_WORLD").ok().as_deref() {
        None | Some("simulated") => false,
        Some("real") => true,
        Some(other) => panic!("LEASEHOLD_WORLD is real or simulated, not {other}"),
    }
}

fn number_in(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().expect(variable))
}
