//! A lock that the parent detaches and its child adopts, while a waiter is in the queue for the lock.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use leasehold::LockManager;

use crate::{CLAIM, Outcome, loss_of};

pub fn show(locks: &LockManager, elsewhere: &LockManager, name: &str) -> Outcome {
    let guard = locks.lock(name)?;
    let parents = guard.fence();
    println!("  parent: I hold the lock by fence {parents}.");

    let waits = elsewhere.mutex(name);
    let waiter = thread::spawn(move || waits.lock().map(|guard| guard.fence()));
    while locks.inspect(name)?.is_none_or(|info| info.waiters == 0) && !waiter.is_finished() {
        thread::sleep(Duration::from_millis(1));
    }
    println!("  waiter: I wait for the lock, and I am first in its queue.");

    let claim = guard.detach();
    println!("  parent: I have detached the lock. I start a child with this claim: {claim}");
    let mut child = Command::new(env::current_exe()?)
        .env(CLAIM, claim.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut printed = BufReader::new(child.stdout.take().ok_or("it is piped")?).lines();
    let childs: u64 = printed.next().ok_or("the child has no lock")??.parse()?;
    println!("  child: I have adopted the claim. I hold the lock by fence {childs}.");

    let loss = loss_of(locks, &claim)?;
    println!("  parent: I tried to adopt the claim too, but it works only once: {loss}.");

    drop(child.stdin.take());
    if !child.wait()?.success() {
        return Err("the child has lost the lock".into());
    }
    println!("  child: I have released the lock.");
    let waiters = waiter.join().expect("it does not panic")?;
    println!("  waiter: I have got the lock, by fence {waiters}.");
    if !(parents < childs && childs < waiters) {
        return Err("the fence should have risen from holder to holder".into());
    }
    println!(
        "  Each new holder has a larger fence, and the waiter has the largest. So the waiter got"
    );
    println!("  the lock after the child, and not between the parent and the child.");
    Ok(())
}
