//! Cron starts a job on two hosts each minute. The job runs once a minute, although the hosts' clocks differ.
//!
//! `cargo run --example cron`, with a Redis on this machine; `REDIS_URL` names another. The parent stands for cron, and
//! starts a process of this program for each job of each host. Host B's job starts when host A's has ended: that happens
//! if the clock of B is behind.
//!
//! - `job`: the job, as cron starts it on a host

mod job;

use std::process::{self, Command};
use std::time::{Duration, Instant};
use std::{env, error::Error, thread};

use leasehold::LockManager;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A minute, less a margin of 10 s. The clocks of the hosts may differ by the margin.
const MIN_HOLD: Duration = Duration::from_secs(60 - 10);
const SHORT: Duration = Duration::from_millis(300);

fn main() -> Outcome {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    if let [host, report, ms] = &env::args().skip(1).collect::<Vec<_>>()[..] {
        return job::run(&url, host, report, Duration::from_millis(ms.parse()?));
    }
    let locks = LockManager::connect(&url)?;
    let mut redis = redis::Client::open(url)?.get_connection()?;
    let [first, second, third] = [1, 2, 3].map(|n| format!("cron:{}:{n}", process::id()));
    println!("A report is due each minute. Host B's clock is behind: it starts its job after A's.");

    println!("Without min_hold:");
    start("A", &first, Duration::ZERO)?;
    start("B", &first, Duration::ZERO)?;
    job::was_sent(&mut redis, &first, 2)?;
    println!("  Wrong: 1 report was due, and 2 were sent. The lock was free again when B asked.");

    println!("With a min_hold of {MIN_HOLD:?}, a minute less 10 s for the clocks:");
    start("A", &second, MIN_HOLD)?;
    start("B", &second, MIN_HOLD)?;
    job::was_sent(&mut redis, &second, 1)?;
    let info = locks.inspect(&second)?.ok_or("the lock is free")?;
    let left = info.holders[0].ttl.filter(|left| *left <= MIN_HOLD);
    let left = left.ok_or("the lock is kept for too long")?;
    println!("  Right: 1 report was due, and 1 was sent. A's process has ended, but Redis keeps");
    println!("  the lock for another {left:.1?}, and then frees it for the next minute.");

    println!("The next report, with a min_hold of {SHORT:?} so that you need not wait:");
    let begun = Instant::now();
    start("A", &third, SHORT)?;
    while locks.inspect(&third)?.is_some() && begun.elapsed() < MIN_HOLD {
        thread::sleep(Duration::from_millis(5));
    }
    let passed = begun.elapsed();
    println!("  The lock is free again, {passed:.0?} after the start of A's job.");
    start("B", &third, SHORT)?;
    job::was_sent(&mut redis, &third, 2)?;
    println!("  Right: 2 reports were due, and 2 were sent.");
    Ok(())
}

/// Starts the job of a host, and blocks until its process has ended.
fn start(host: &str, report: &str, min_hold: Duration) -> Outcome {
    let mut program = Command::new(env::current_exe()?);
    let ms = min_hold.as_millis().to_string();
    let ended = program.args([host, report, &ms]).status()?;
    ended.success().then_some(()).ok_or("a job failed".into())
}
