//! A lock over five independent masters (Redlock). 100 threads take turns while a master is killed and another hangs.
//!
//! `cargo run --example quorum`, with a `redis-server` in PATH. The example starts its own masters.
//!
//! The exit status is 0 only if no update was lost, each fence was larger than the one before, and two masters alone
//! granted no lock.
//!
//! - `answers`: the answers of the masters
//! - `turns`, `account`: the threads, and the data that the lock protects

mod account;
mod answers;
mod turns;

use std::{error, time::Duration};

use leasehold::LockManager;
use rustix::process::Signal;
use shared::Server;

use crate::answers::{show_failures, show_holders};
use crate::turns::Turns;

type Outcome<T = ()> = Result<T, Box<dyn error::Error + Send + Sync>>;

const NODES: usize = 5;
const MAJORITY: usize = 3;
/// Each manager stands for a machine. The machines share the lock through the nodes alone.
const MACHINES: usize = 5;
/// The threads of each machine.
const THREADS: usize = 20;
/// The turns of each phase.
const TURNS: u64 = 1_000;

fn main() -> Outcome {
    let nodes: Vec<_> = (0..NODES)
        .map(|_| Server::start(""))
        .collect::<Outcome<_>>()?;
    let machines: Vec<_> = (0..MACHINES)
        .map(|_| locks(&nodes))
        .collect::<Result<_, _>>()?;
    let mutexes = machines.iter().map(|locks| locks.mutex("quorum:account"));
    let turns = Turns::start(mutexes.flat_map(|mutex| vec![mutex; THREADS]));
    let signal = |number: usize, signal, what| {
        println!("{} {what}", nodes[number].address());
        nodes[number].signal(signal)
    };
    turns.wait_for_more(TURNS)?;
    show_holders(&nodes, &machines[0])?;

    signal(1, Signal::KILL, "is killed")?;
    turns.wait_for_more(TURNS)?;
    signal(3, Signal::STOP, "hangs")?;
    turns.wait_for_more(TURNS)?;
    show_holders(&nodes, &machines[0])?;

    // Two nodes are left. The threads wait until there are three again.
    signal(4, Signal::STOP, "hangs too")?;
    show_failures(&machines[0])?;
    signal(4, Signal::CONT, "goes on")?;
    turns.wait_for_more(TURNS)?;

    let (balance, turns) = turns.stop()?;
    if balance != turns {
        return Err(format!("{turns} turns made only {balance}: an update was lost").into());
    }
    println!("{turns} turns made {balance}, and each had a larger fence than the one before.");
    Ok(())
}

fn locks(nodes: &[Server]) -> leasehold::Result<LockManager> {
    LockManager::quorum(nodes.iter().map(Server::url))
        .restart_delay(Duration::ZERO) // The nodes are new, so they have no lock to forget.
        .node_timeout(Duration::from_secs(1)) // The machine may be busy.
        .wait_through_outages(true)
        .build()
}
