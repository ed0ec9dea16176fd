//! The everyday use of leasehold: acquire a lock, send its fence with each write, release the lock.
//!
//! `cargo run --example quickstart`, with a Redis on this machine; `REDIS_URL` names another.

use std::{env, error::Error, time::Duration};

use leasehold::LockManager;

const ORDER: &str = "quickstart:order:42";

/// The data that the lock protects. It remembers the newest fence. So a writer that was paused for longer than its
/// lease, and does not know it yet, does no harm.
#[derive(Default)]
struct Database {
    newest_fence: u64,
}

impl Database {
    fn write(&mut self, status: &str, fence: u64) -> Result<(), String> {
        if fence < self.newest_fence {
            return Err(format!("{fence} is older than {}", self.newest_fence));
        }
        self.newest_fence = fence;
        println!("database: the order is {status:?} now, by fence {fence}");
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let mut database = Database::default();

    let locks = LockManager::connect(&url)?;
    let guard = locks.lock(ORDER)?; // Blocks until we hold it. leasehold renews the lease.
    let first_fence = guard.fence();
    database.write("paid", first_fence)?;

    // Another manager stands for another machine.
    let elsewhere = LockManager::connect(&url)?;
    match elsewhere.try_lock(ORDER)? {
        None => println!("elsewhere: the order is locked"),
        Some(_) => return Err("two places hold one lock".into()),
    }

    // A drop releases the lock too. `release` also returns an error if the lock was lost before.
    guard.release()?;
    println!("released: no other client held the lock meanwhile");

    // The outer `?` returns an error of the lock, and the inner one an error of the closure.
    elsewhere.with_lock(ORDER, Duration::from_secs(5), |lease| {
        database.write("shipped", lease.fence())
    })??;

    match database.write("paid", first_fence) {
        Err(refusal) => println!("database: a late write is refused, {refusal}"),
        Ok(()) => return Err("the database accepted a late write".into()),
    }
    Ok(())
}
