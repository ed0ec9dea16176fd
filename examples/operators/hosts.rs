//! The hosts: each has a job under a lock.

use leasehold::{LockGuard, LockManager};

use crate::{Outcome, PATIENCE};

/// Works until somebody asks for the lock. A job would look between two steps of its work.
pub fn stop_when_asked(guard: LockGuard) -> Outcome {
    let request = guard.on_requested().recv_timeout(PATIENCE)?;
    println!("  host-a stops, and releases the lock: {}", request.why);
    Ok(guard.release()?)
}

/// Works on, and never looks. When the lock was taken from it, its guard reads lost.
pub fn hang(guard: &LockGuard) -> Outcome {
    let lost = guard.on_lost().recv_timeout(PATIENCE)?;
    println!("  host-b learns it: {lost}");
    match guard.check() {
        Err(_) => Ok(()),
        Ok(()) => Err("the guard reads held".into()),
    }
}

/// Waits until the lock is free.
pub fn wait_for_a_turn(locks: &LockManager, name: &str) -> Outcome {
    let guard = locks.try_lock_for(name, PATIENCE)?;
    let guard = guard.ok_or("it was not released in time")?;
    println!("  host-c has it now, with fence {}", guard.fence());
    Ok(guard.release()?)
}
