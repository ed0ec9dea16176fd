//! The rate limiter's command.

use std::time::Duration;

use redis::Value;

use super::text::{By, PASS};
use super::{Pass, Reply};
use crate::name::LockKey;

pub(super) fn command(key: &LockKey, pass: &Pass, by: By) -> redis::Cmd {
    let mut command = PASS.command(by, 1);
    command
        .arg(key.key())
        .arg(pass.permits)
        .arg(us(pass.per))
        .arg(us(pass.patience));
    command
}

pub(super) fn reply(value: &Value) -> Option<Reply> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [Value::Int(passed), Value::Int(wait)] = parts.as_slice() else {
        return None;
    };
    let wait = Duration::from_micros(u64::try_from(*wait).ok()?);
    match passed {
        1 => Some(Reply::Passed(wait)),
        0 => Some(Reply::NotPassed(wait)),
        _ => None,
    }
}

/// Rounded up, so that no window is shorter than it was asked for; and no longer than Lua can count exactly.
fn us(length: Duration) -> u64 {
    const MOST: u64 = 1 << 52;
    u64::try_from(length.as_nanos().div_ceil(1_000)).map_or(MOST, |us| us.min(MOST))
}
