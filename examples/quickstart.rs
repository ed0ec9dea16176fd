//! The two programs of README.md: a handler that answers 409 and 503, and a job that stops when it has lost its lock.
//!
//! `cargo run --example quickstart`, with a Redis on this machine; `REDIS_URL` names another. A test keeps both functions as
//! README.md shows them.

use std::{env, error::Error, thread};

use leasehold::LockManager; // one for all threads: LockManager::connect("redis://127.0.0.1/")?
use std::time::Duration;

/// Pays an order, and returns the HTTP status of the answer.
fn pay(locks: &LockManager, order: u32) -> u16 {
    match locks.try_lock_for(format!("orders:{order}"), Duration::from_secs(1)) {
        // Your code, which pays an open order only, and whose database rejects a smaller fence (a u64).
        Ok(Some(guard)) => charge(order, guard.fence()),
        Ok(None) => 409, // another request is at work on this order, maybe on another machine
        Err(error) if error.is_retryable() => 503, // Redis cannot be asked now
        Err(_) => 500,
    } // the guard was dropped: the next request has the lock
}

/// Settles the accounts that are still open.
fn settle_all(locks: &LockManager, open: impl Iterator<Item = u32>) -> leasehold::Result<()> {
    let Some(guard) = locks.try_lock("settlement")? else {
        return Ok(()); // another host is at work
    };
    for account in open {
        guard.check()?; // `Err(Lost)` once the lease is over: the next start does the rest
        settle(account, guard.fence());
    }
    guard.release()
}

fn charge(order: u32, fence: u64) -> u16 {
    println!("order {order} is paid, under fence {fence}");
    200
}

fn settle(account: u32, fence: u64) {
    println!("account {account} is settled, under fence {fence}");
}

fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let locks = LockManager::from_url(&url)?.prefix("quickstart:").build()?;

    expect(pay(&locks, 42), 200)?;
    // A guard of this thread stands for a request on another machine.
    let other = locks.lock("orders:42")?;
    expect(pay(&locks, 42), 409)?;
    drop(other);
    // Nothing listens at this port.
    let unreachable = LockManager::connect_lazy("redis://127.0.0.1:1/")?;
    expect(pay(&unreachable, 42), 503)?;

    settle_all(&locks, 1..=3)?;
    // The renewals of this manager do not reach Redis, and the work on account 2 takes longer than its lease.
    let lease = Duration::from_secs(1);
    let cut_off = LockManager::from_url(&url)?
        .prefix("quickstart:")
        .lease(lease)
        .renew(false)
        .build()?;
    let mut last = 0;
    let slow = (1..=3).inspect(|account| {
        last = *account;
        if last == 2 {
            thread::sleep(lease);
        }
    });
    match settle_all(&cut_off, slow) {
        Err(error) if last < 3 => println!("the job stops before account {last}: {error:#}"),
        result => return Err(format!("the job went on to account {last}: {result:?}").into()),
    }
    Ok(())
}

fn expect(status: u16, expected: u16) -> Result<(), String> {
    println!("the handler answers {status}");
    (status == expected)
        .then_some(())
        .ok_or_else(|| format!("{expected} was expected"))
}
