//! Processes elect a leader by one lock with a short lease. The leader is killed, and the next one takes over.
//!
//! `cargo run --example leader`, with a Redis on this machine; `REDIS_URL` names another.
//!
//! - `candidate`: a process that waits to lead, and leads
//! - `acts`: the acts of the leaders, each with a fence

mod acts;
mod candidate;

use std::process::{self, Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, error::Error, thread};

use crate::acts::{Act, Acts};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const CANDIDATES: usize = 4;
/// The longest time without a leader, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn main() -> Outcome {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    if let Some(name) = env::args().nth(1) {
        return candidate::stand(&url, &name);
    }
    let name = format!("leader:{}", process::id());
    let mut acts = Acts::new(&url, &name)?;
    let mut living = Vec::new();
    for _ in 0..CANDIDATES {
        let mut candidate = Command::new(env::current_exe()?);
        living.push(candidate.arg(&name).stdin(Stdio::piped()).spawn()?);
    }
    let mut last = None;
    while !living.is_empty() {
        let begun = Instant::now();
        let act = next_leader(&mut acts, last, &living)?;
        let (process, fence, waited) = (act.process, act.fence, begun.elapsed());
        println!("process {process} leads by fence {fence}, after {waited:.1?}; it is killed");
        last = Some(act);
        let at = living
            .iter()
            .position(|candidate| candidate.id() == process);
        let mut leader = living.swap_remove(at.ok_or("it is not alive")?);
        thread::sleep(Duration::from_millis(100)); // It leads for a while.
        // SIGKILL gives the leader no chance to release the lock.
        let (killed, _) = (leader.kill(), leader.wait()?);
        killed?;
    }
    let count = acts.check()?;
    println!(
        "In {count} acts no two leaders had one fence, and each leader had a larger fence than the last."
    );
    Ok(())
}

/// Blocks until a living process acts with a newer fence than the last leader.
fn next_leader(acts: &mut Acts, last: Option<Act>, living: &[Child]) -> Outcome<Act> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(act) = acts.newest()?
            && last.is_none_or(|last| last.fence < act.fence)
            && living.iter().any(|candidate| candidate.id() == act.process)
        {
            return Ok(act);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err("no process took over".into())
}
