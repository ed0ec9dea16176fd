//! A nightly job on two hosts, whose first try fails: the other host does it, and nobody does it twice.
//!
//! `cargo run --example once`, with a Redis on this machine; `REDIS_URL` names another. The parent stands for the cron of each
//! host, and starts a process of this program for each start of the job.

use std::process::{self, Command};
use std::time::{Duration, SystemTime};
use std::{env, error::Error};

use leasehold::LockManager;

/// Longer than the job and a lease.
const WAIT: Duration = Duration::from_hours(1);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The job, as cron starts it on a host. The fire is the time of the schedule, which all hosts know, and not that of the start.
fn nightly(locks: &LockManager, job: &str, fire: SystemTime, work: fn() -> Outcome) -> Outcome {
    // The hosts start together. If the one at work fails, the other has waited for it.
    let Some(guard) = locks.once(job).claim_for(fire, WAIT)? else {
        println!("  it was done, or still runs elsewhere");
        return Ok(());
    };
    work()?; // After an error the guard is dropped, which records nothing.
    guard.done()?;
    println!("  I did it");
    Ok(())
}

fn main() -> Outcome {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let locks = LockManager::connect(&url)?;
    if let [job, fire, work] = &env::args().skip(1).collect::<Vec<_>>()[..] {
        let fire = SystemTime::UNIX_EPOCH + Duration::from_secs(fire.parse()?);
        let work: fn() -> Outcome = match &**work {
            "fails" => || Err("the disk is full".into()),
            _ => || Ok(()),
        };
        return nightly(&locks, job, fire, work);
    }
    let job = format!("once:{}", process::id());
    let night = 1_795_834_800; // three o'clock
    for (host, night, work, succeeds) in [
        ("A", night, "fails", false),
        ("B", night, "works", true),
        ("A", night, "works", true),
        ("B", night + 86_400, "works", true),
    ] {
        println!("Host {host} starts the job of night {night}:");
        let mut program = Command::new(env::current_exe()?);
        let ended = program.args([&job, &night.to_string(), work]).status()?;
        if ended.success() != succeeds {
            return Err("the job ended in another way".into());
        }
    }
    let last = locks.once(&job).last()?.ok_or("nothing was done")?;
    println!(
        "The last one was done at {:?}, by {:?}.",
        last.at, last.label
    );
    let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(night + 86_400);
    (last.fire == expected)
        .then_some(())
        .ok_or("another night".into())
}
