//! A long job that stops in good order when it loses its lock, and goes on from there when it is run again.
//!
//! `cargo run --example batch_job`, with a Redis on this machine; `REDIS_URL` names another.
//!
//! - `job`: the job, with a guard of its own scope
//! - `progress`: where it writes down how far it is, by its fence

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
    // Renewed every two seconds, so that is how long a loss by somebody else's hand may go unnoticed.
    let mutex = locks.mutex(&name).lease(Duration::from_secs(6));
    let mut progress = Progress::new(&url, &format!("{name}:progress"))?;

    println!("The first run, whose lock an operator will delete:");
    let mut operator = redis::Client::open(url)?.get_connection()?;
    let first = job::run(&mutex, &mut progress, |step, lost| {
        if step == 4 {
            operator.del(&name)?;
            // A step that lasts until the loss is known, so that this example goes the same way every time.
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
        println!("By its old fence the first run can commit nothing any more.");
    }
    if (first.start..first.end, second.start..second.end) != (0..5, 5..job::STEPS) {
        return Err("the first run should have done steps 0 to 4, the second the others".into());
    }
    if late || first.fence >= second.fence {
        return Err("the fence should have kept the first run out".into());
    }
    Ok(())
}
