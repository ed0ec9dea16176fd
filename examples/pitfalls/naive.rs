//! A lock that is written in five minutes.

use redis::{Connection, ExistenceCheck, SetExpiry, SetOptions, TypedCommands};

use crate::stage::Outcome;

/// Acquires the lock at `key` if it is free, for `lease_ms`.
pub fn take(redis: &mut Connection, key: &str, owner: &str, lease_ms: u64) -> Outcome<bool> {
    let if_free = SetOptions::default()
        .conditional_set(ExistenceCheck::NX)
        .with_expiration(SetExpiry::PX(lease_ms));
    Ok(redis.set_options(key, owner, if_free)?.is_some())
}

/// Ends the lease of a key now, in place of the time that a slow program would take.
pub fn let_lapse(redis: &mut Connection, key: &str) -> Outcome {
    redis.pexpire(key, 0)?;
    Ok(())
}
