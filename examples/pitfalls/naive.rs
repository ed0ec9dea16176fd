//! The lock that one writes in five minutes.

use redis::{Connection, ExistenceCheck, SetExpiry, SetOptions, TypedCommands};

use crate::stage::Outcome;

/// Takes the lock at `key`, if it is free, for so long.
pub fn take(redis: &mut Connection, key: &str, owner: &str, lease_ms: u64) -> Outcome<bool> {
    let if_free = SetOptions::default()
        .conditional_set(ExistenceCheck::NX)
        .with_expiration(SetExpiry::PX(lease_ms));
    Ok(redis.set_options(key, owner, if_free)?.is_some())
}

/// Lets time pass for one key: its lease is over now. What a slow program waits for takes no waiting here.
pub fn let_lapse(redis: &mut Connection, key: &str) -> Outcome {
    redis.pexpire(key, 0)?;
    Ok(())
}
