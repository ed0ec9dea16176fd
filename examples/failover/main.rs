//! The master of a Sentinel set is killed. 50 threads work under locks and write to a file that checks fencing tokens.
//!
//! `cargo run --example failover`, with a `redis-server` in PATH. The example starts its own servers.
//!
//! The exit status is 0 only if threads could lock again, the file took no write of a guard that another one had
//! replaced, and no other write was lost.
//!
//! - `turns`, `grants`: 40 threads that take turns at one lock, and the times at which they got it
//! - `jobs`: 10 threads that hold a lock each while the master is killed
//! - `file`: the file
//! - `switches`: the switches of the master

mod file;
mod grants;
mod jobs;
mod switches;
mod turns;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold::LockManager;
use rustix::process::Signal;
use shared::{MASTER, Result, Sentinels};

use crate::file::FencedFile;
use crate::jobs::Jobs;
use crate::switches::Switches;
use crate::turns::Turns;

/// The time after which the sentinels take a master for dead.
const DOWN_AFTER: Duration = Duration::from_secs(1);
/// Each manager stands for a machine. The machines share the locks through the servers alone.
const MACHINES: usize = 5;
/// The turns before the failover, and after it.
const TURNS: usize = 1_000;

fn main() -> Result<()> {
    let servers = Sentinels::start(2, DOWN_AFTER)?;
    let machines = (0..MACHINES).map(|_| locks(&servers));
    let machines = machines.collect::<leasehold::Result<Vec<_>>>()?;
    let file = Arc::new(FencedFile::create(1 + jobs::COUNT)?);
    let jobs = Jobs::start(&machines, &file)?;
    let turns = Turns::start(&machines, file);
    turns.wait_for_more(TURNS)?;

    let switches = Switches::start(&servers.sentinels()[0])?;
    let old = &servers.servers()[0];
    println!("the master {} is killed", old.address());
    old.signal(Signal::KILL)?;
    servers.wait_for_new_master(old)?;
    turns.wait_for_more(TURNS)?;
    switches.explain(&turns.grants.longest_gap());

    let lost = jobs.stop()?;
    if lost == 0 {
        return Err("no guard was lost, so the file had nothing to refuse".into());
    }
    let turns = turns.stop()?;
    println!("the file took all {turns} turns, and refused the late writes of {lost} lost guards");
    Ok(())
}

fn locks(servers: &Sentinels) -> leasehold::Result<LockManager> {
    LockManager::sentinel(servers.urls(), MASTER)
        .wait_through_outages(true)
        .build()
}

/// Waits for threads, and adds up their results.
fn join(threads: Vec<JoinHandle<Result<u64>>>) -> Result<u64> {
    let join = |thread: JoinHandle<_>| thread.join().expect("it does not panic");
    threads.into_iter().map(join).sum()
}
