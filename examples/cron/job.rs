//! The job, as cron starts it on a host.

use std::time::Duration;

use leasehold::LockManager;
use redis::{Connection, TypedCommands};

use crate::Outcome;

/// Sends the report, unless another host is sending it, or has begun to send it within the last `min_hold`.
pub fn run(url: &str, host: &str, report: &str, min_hold: Duration) -> Outcome {
    let locks = LockManager::connect(url)?;
    let mutex = locks.mutex(report).min_hold(min_hold);
    let Some(guard) = mutex.try_lock()? else {
        println!("  host {host}: the lock is taken, so I send no report");
        return Ok(());
    };
    let mut redis = redis::Client::open(url)?.get_connection()?;
    redis.incr(counter(report), 1)?; // This is all of the report, so the job is quick.
    guard.release()?; // Redis keeps the lock until `min_hold` is over, although this process ends.
    println!("  host {host}: I got the lock, sent the report, and released the lock");
    Ok(())
}

/// Returns an error unless the report was sent this number of times. Removes the counter.
pub fn was_sent(redis: &mut Connection, report: &str, times: u32) -> Outcome {
    let sent = redis.get_del(counter(report))?.unwrap_or_default();
    if sent != times.to_string() {
        return Err(format!("the report was sent {sent} times, and not {times}").into());
    }
    Ok(())
}

/// Returns the key of the number of times that a report was sent.
fn counter(report: &str) -> String {
    format!("{report}:sent")
}
