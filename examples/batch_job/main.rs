//! A long job that stops cleanly when it loses its lock, and continues when it runs again.
//!
//! `cargo run --example batch_job`, with a Redis on this machine; `REDIS_URL` names another.
//!
//! - `job`: the job, which holds its lock by a guard of its scope
//! - `progress`: the record of finished steps, which checks the fence of each run

mod job;
mod progress;

use std::time::{Duration, Instant};
use std::{env, error::Error, process, thread};

use leasehold::LockManager;
use redis::TypedCommands;

use crate::progress::Progress;

fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let name = format!("batch_job:{}", process::id());
    let locks = LockManager::connect(&url)?;
    // The lease is renewed every two seconds, so the job learns of a deleted lock after at most that time.
    let mutex = locks.mutex(&name).lease(Duration::from_secs(6));
    let mut progress = Progress::new(&url, &format!("{name}:progress"))?;

    println!("The first run. An operator will delete its lock:");
    let mut operator = redis::Client::open(url)?.get_connection()?;
    let first = job::run(&mutex, &mut progress, |step, lost| {
        if step == 4 {
            operator.del(&name)?;
            // The step lasts until the job knows of the loss, so that every run of this example does the same.
            let begun = Instant::now();
            while lost.is_empty() && begun.elapsed() < Duration::from_mins(1) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    })?;

    println!("The second run:");
    let second = job::run(&mutex, &mut progress, |_, _| Ok(()))?;

    let late = progress.commit(first.end, first.fence)?;
    if !late {
        println!("The first run can commit nothing more by its old fence.");
    }
    if (first.start..first.end, second.start..second.end) != (0..5, 5..job::STEPS) {
        return Err("the first run should have done steps 0 to 4, the second the others".into());
    }
    if late || first.fence >= second.fence {
        return Err("the fence should have kept the first run out".into());
    }
    Ok(())
}
