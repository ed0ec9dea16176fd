//! Hand-written locks that fail, each beside a lock of leasehold that does not.
//!
//! `cargo run --example pitfalls`, or `-- NAME` for one of them, with a Redis on this machine; `REDIS_URL` names
//! another. `failover` also needs a `redis-server` in PATH.
//!
//! Each example does its steps in the order that does harm, so no result depends on luck. The exit status is 0 only if
//! every naive lock failed as expected, and ours held. Over a failover ours does not hold either. There only its fence
//! helps.
//!
//! - a file for each pitfall, as in `PITFALLS`
//! - `naive`, `store`: the naive lock, and the data that a lock protects
//! - `stage`, `claims`: names and connections, and the checked claims
//! - `process`: a second process

mod claims;
mod crash;
mod failover;
mod get_then_del;
mod naive;
mod overrun;
mod paused;
mod process;
mod release_by_del;
mod skewed_clock;
mod stage;
mod store;

use std::env;

use crate::stage::{Outcome, Stage};

type Pitfall = (&'static str, fn(&Stage) -> Outcome);

const PITFALLS: [Pitfall; 7] = [
    ("crash", crash::run),
    ("skewed_clock", skewed_clock::run),
    ("release_by_del", release_by_del::run),
    ("get_then_del", get_then_del::run),
    ("overrun", overrun::run),
    ("paused", paused::run),
    ("failover", failover::run),
];

fn main() -> Outcome {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let stage = Stage::from_env();
    match arguments[..] {
        [] => play(&stage, &PITFALLS),
        // This process is the second one of a pitfall.
        [process::AS, "crash", part, name] => crash::second(&stage, part, name),
        [process::AS, "paused", part, name] => paused::second(&stage, part, name),
        [name] => match PITFALLS.iter().position(|pitfall| pitfall.0 == name) {
            Some(at) => play(&stage, &PITFALLS[at..=at]),
            None => Err(format!("{name} is none of {:?}", PITFALLS.map(|(name, _)| name)).into()),
        },
        _ => Err("usage: pitfalls [NAME]".into()),
    }
}

fn play(stage: &Stage, pitfalls: &[Pitfall]) -> Outcome {
    let mut failed = Vec::new();
    for (name, run) in pitfalls {
        if let Err(error) = run(stage) {
            println!("  FAILED     {error:#}");
            failed.push(*name);
        }
        stage.clean_up()?;
    }
    if !failed.is_empty() {
        return Err(format!("not as expected: {}", failed.join(", ")).into());
    }
    println!(
        "Every naive lock failed as expected. Ours held, but not over a failover: that needs the fence."
    );
    Ok(())
}
