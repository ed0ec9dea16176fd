//! A process hands its lock on to a child: it detaches the lock, and the child adopts it. Nobody gets it in between.
//!
//! `cargo run --example hand_on`, with a Redis on this machine; `REDIS_URL` names another. The parent starts a child of
//! this program, and passes the claim in the child's environment, which other users cannot read. The waiter has its own
//! lock manager, as a process on another host would.
//!
//! - `adopted`: a lock that the child adopts
//! - `child`: the child
//! - `forgotten`: a lock that is detached, and that nobody adopts

mod adopted;
mod child;
mod forgotten;

use std::{env, error, process};

use leasehold::{Claim, Error, LockManager};

type Outcome<T = ()> = Result<T, Box<dyn error::Error>>;

/// The environment variable that passes the claim.
const CLAIM: &str = "HAND_ON_CLAIM";

fn main() -> Outcome {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let locks = LockManager::connect(&url)?;
    if let Ok(claim) = env::var(CLAIM) {
        return child::go_on(&locks, &claim.parse()?);
    }
    let elsewhere = LockManager::connect(&url)?;
    println!("A child adopts the lock, while a waiter wants it:");
    adopted::show(&locks, &elsewhere, &format!("hand_on:{}:1", process::id()))?;
    println!("Nobody adopts the lock:");
    forgotten::show(&locks, &elsewhere, &format!("hand_on:{}:2", process::id()))
}

/// Tries to adopt a claim whose lock another holder has. Returns the text of the error.
fn loss_of(locks: &LockManager, claim: &Claim) -> Outcome<String> {
    match locks.adopt(claim) {
        Err(Error::Lost(lost)) => Ok(lost.to_string()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("the lock was adopted, although another has it".into()),
    }
}
