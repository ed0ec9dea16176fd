//! The lock of old tutorials. Its value is the time of its end, by the clock of its holder. Another client that finds
//! it ended takes it by `GETSET`. One fast clock breaks it, and even the loser of a race writes.

use redis::{Connection, TypedCommands};

use crate::claims::{heading, naive, ours};
use crate::stage::{Outcome, Stage};

const LEASE_MS: u64 = 10_000;

pub fn run(stage: &Stage) -> Outcome {
    heading("The clients' clocks decide when a lock is over (GETSET)");
    let mut redis = stage.redis()?;

    // One clock is 20 s fast.
    let key = stage.name("skewed");
    let first = take(&mut redis, &key, 1_000)?;
    let second = take(&mut redis, &key, 1_000 + 20_000)?;
    naive(
        first && second,
        "a client whose clock is 20 s fast took a held lock: two hold it",
    )?;

    // All clocks agree now. Two clients read the same end, which has passed, before either writes.
    let key = stage.name("race");
    redis.set(&key, 5_000)?;
    let over = is_over(&mut redis, &key, 6_000)? && is_over(&mut redis, &key, 6_500)?;
    let first = over && replace(&mut redis, &key, 6_000)?;
    let own = redis.get(&key)?;
    let second = replace(&mut redis, &key, 6_500)?;
    let overwritten = first && !second && redis.get(&key)? != own;
    naive(
        overwritten,
        "the loser of the race overwrote the winner's expiry with its own",
    )?;

    let name = stage.name("ours");
    let guard = stage.locks()?.lock(&name)?;
    let refused = stage.locks()?.try_lock(&name)?.is_none();
    ours(
        refused,
        "only the clock of Redis ends a lease, and no client's clock",
    )?;
    let untouched = redis.get(&name)?.as_deref() == Some(guard.owner());
    ours(
        untouched,
        "a client that does not get the lock does not change its value",
    )?;
    ours(
        guard.release().is_ok(),
        "the holder had the lock until its release",
    )
}

/// Tries to acquire the lock, as a client whose clock reads `now`.
fn take(redis: &mut Connection, key: &str, now: u64) -> Outcome<bool> {
    if redis.set_nx(key, now + LEASE_MS)? {
        return Ok(true);
    }
    Ok(is_over(redis, key, now)? && replace(redis, key, now)?)
}

fn is_over(redis: &mut Connection, key: &str, now: u64) -> Outcome<bool> {
    let end: Option<u64> = redis.get(key)?.map(|end| end.parse()).transpose()?;
    Ok(end.is_none_or(|end| end < now))
}

/// Returns whether the lock had still ended, so that this client holds it now.
fn replace(redis: &mut Connection, key: &str, now: u64) -> Outcome<bool> {
    let old = redis.getset(key, now + LEASE_MS)?;
    let old: Option<u64> = old.map(|end| end.parse()).transpose()?;
    Ok(old.is_none_or(|end| end < now))
}
