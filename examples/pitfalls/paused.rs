//! A holder that the system pauses, here by SIGSTOP. When it resumes, another process holds the lock. It does not
//! know that, because it checked just before the pause. No lock can help here. The store can, if it compares fences.

use std::time::Duration;

use rustix::process::Signal;
use shared::{PATIENCE, wait_until};

use crate::claims::{heading, naive, ours};
use crate::naive::take;
use crate::process::{Process, hear};
use crate::stage::{Outcome, Stage};
use crate::store::Store;

pub fn run(stage: &Stage) -> Outcome {
    heading("A paused holder writes late");
    let mut redis = stage.redis()?;
    let key = stage.name("paused:naive");
    let mut store = Store::new(stage.redis()?, &stage.name("paused:naive:store"));
    let mut process = Process::start("paused", "naive", &key)?;
    process.hear()?;
    process.signal(Signal::STOP)?;
    wait_until("the lease is over", || {
        take(&mut redis, &key, "second", 60_000)
    })?;
    store.write_blindly("the second's")?;
    process.tell("go on")?;
    process.signal(Signal::CONT)?;
    process.hear()?;
    let spoilt = store.read()?.as_deref() == Some("the paused one's");
    naive(
        spoilt,
        "it was paused for longer than its lease, and then overwrote the second's value",
    )?;

    let name = stage.name("paused:ours");
    let mut store = Store::new(stage.redis()?, &stage.name("paused:ours:store"));
    let mut process = Process::start("paused", "ours", &name)?;
    let old = process.hear()?;
    process.signal(Signal::STOP)?;
    let second = stage.locks()?.try_lock_for(&name, PATIENCE)?;
    let second = second.ok_or("the lease never ended")?;
    let written = store.write("the second's", second.fence())?;
    process.tell("go on")?;
    process.signal(Signal::CONT)?;
    let refused = process.hear()? == "written: false, held: false";
    let kept = store.read()?.as_deref() == Some("the second's");
    ours(
        written && refused && kept,
        &format!("the store refused fence {old} after {}", second.fence()),
    )
}

/// Runs the process that is paused. It waits for a line, so that it does not write before the pause.
pub fn second(stage: &Stage, part: &str, name: &str) -> Outcome {
    let mut store = Store::new(stage.redis()?, &format!("{name}:store"));
    if part == "naive" {
        let taken = take(&mut stage.redis()?, name, "the paused one", 500)?;
        println!("{taken}");
        hear()?;
        store.write_blindly("the paused one's")?;
        println!("written");
    } else {
        let locks = stage.locks()?;
        let guard = locks.mutex(name).lease(Duration::from_secs(2)).lock()?;
        guard.check()?;
        println!("{}", guard.fence());
        hear()?;
        let written = store.write("the paused one's", guard.fence())?;
        println!("written: {written}, held: {}", guard.check().is_ok());
    }
    Ok(())
}
