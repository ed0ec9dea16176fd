//! A lock that is detached, and that nobody adopts. It ends with its lease.

use std::time::{Duration, Instant};

use leasehold::LockManager;

use crate::{Outcome, loss_of};

const LEASE: Duration = Duration::from_millis(500);

pub fn show(locks: &LockManager, elsewhere: &LockManager, name: &str) -> Outcome {
    let begun = Instant::now();
    let claim = locks.mutex(name).lease(LEASE).lock()?.detach();
    println!("  parent: I hold the lock with a lease of {LEASE:?}, and detach it.");
    let guard = elsewhere.lock(name)?;
    let waited = begun.elapsed();
    if waited < LEASE {
        return Err("the detached lock was free before its lease ended".into());
    }
    println!("  waiter: I have got the lock after {waited:.0?}, at the end of that lease.");
    let loss = loss_of(locks, &claim)?;
    println!("  parent: I tried to adopt the claim, but too late: {loss}.");
    guard.release()?;
    println!("  Nobody renews a detached lock, so it is free when its lease ends.");
    Ok(())
}
