//! The answers that several kinds of lock share.

use std::time::Duration;

use redis::Value;

use crate::name::LARGEST_FENCE;
use crate::wire::{Gone, Reply};

/// The smallest fence: a time of 1970, in microseconds. A fence is at least the server's time, so the `1` that answers a
/// release is none.
const SMALLEST_FENCE: u64 = 1_000_000_000_000;

/// Returns the fence of a grant. With `fencing`, it must be a time of the server, and a number that a script counts exactly.
/// Otherwise the next grant could have the same. Without, it must be 0.
pub(crate) fn fence(fencing: bool, value: &Value) -> Option<u64> {
    let Value::Int(fence) = value else {
        return None;
    };
    let allowed = if fencing {
        SMALLEST_FENCE..=LARGEST_FENCE
    } else {
        0..=0
    };
    let fence = u64::try_from(*fence).ok();
    fence.filter(|fence| allowed.contains(fence))
}

/// Reads the answer to a request for a lock of this number of names, each of which has a fence with `fencing`.
pub(crate) fn grant(names: usize, fencing: bool, value: &Value) -> Option<Reply> {
    let fence_of = |value: &Value| fence(fencing, value);
    let granted = |first: &Value, rest: &[Value], contended: i64| {
        if rest.len() + 1 != names {
            return None;
        }
        Some(Reply::Granted {
            fence: fence_of(first)?,
            count: None,
            rest: rest.iter().map(fence_of).collect::<Option<_>>()?,
            contended: contended == 1,
        })
    };
    match value {
        Value::Int(-1) => Some(Reply::NotOwner(Gone::Removed)),
        Value::Int(-2) => Some(Reply::NotOwner(Gone::Taken)),
        Value::Int(_) => granted(value, &[], 0),
        Value::Array(parts) => match parts.as_slice() {
            [
                Value::Int(0),
                Value::Int(ttl),
                Value::BulkString(holder),
                rest @ ..,
            ] if matches!(rest, [] | [Value::Int(1)]) => Some(Reply::Held {
                ttl: u64::try_from(*ttl).ok().map(Duration::from_millis),
                holder: String::from_utf8_lossy(holder).into(),
                handed_over: !rest.is_empty(),
            }),
            [Value::Int(-2), Value::Int(others), reply] => Some(Reply::Differs {
                others: u32::try_from(*others).ok()?,
                reply: Box::new(grant(names, fencing, reply)?),
            }),
            [Value::Int(_), Value::Int(2)] => Some(Reply::Shared),
            [first, rest @ .., Value::Int(contended @ (0 | 1))] => granted(first, rest, *contended),
            _ => None,
        },
        _ => None,
    }
}

/// Reads the answer to a request that gives something up.
pub(crate) fn release(value: &Value) -> Option<Reply> {
    match value {
        Value::Int(1) => Some(Reply::Released),
        Value::Int(2) => Some(Reply::Contended),
        Value::Int(3) => Some(Reply::HandedOver),
        Value::Int(0) => Some(Reply::NotOwner(Gone::Removed)),
        Value::Int(-1) => Some(Reply::NotOwner(Gone::Taken)),
        _ => None,
    }
}
