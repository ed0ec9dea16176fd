//! The requests of operators about locks of any kind.

use std::time::Duration;

use redis::Value;

use crate::name::{BROKEN, LockKey};
use crate::wire::command::Command;
use crate::wire::text::{FORCE_RELEASE, INSPECT, ScriptSettings};
use crate::wire::{Cursor, Reply, Seen, SeenHolder, SeenLimiter, SeenWaiter};

/// At how many keys the server looks for a page of a scan, in less than a millisecond. With fewer, a list would take a round trip
/// for each few keys of other programs.
const KEYS_OF_A_PAGE: u32 = 1_000;

pub(crate) fn inspect(keys: &[LockKey], named: bool) -> Command {
    let mut command = INSPECT.with_companions(keys);
    command.arg(if named { "named" } else { "found" });
    command
}

/// Reads the answer to an inspection of this number of keys. If a scan found the keys, the answer may be about the
/// first of them only.
pub(crate) fn inspected(keys: usize, named: bool, value: Value) -> Option<Reply> {
    let least = if named { keys } else { 1 };
    match value {
        Value::Array(seen) if (least..=keys).contains(&seen.len()) => seen
            .into_iter()
            .map(|value| match value {
                Value::Nil => Some(None),
                value => one(value).map(Some),
            })
            .collect::<Option<_>>()
            .map(Reply::Inspected),
        _ => None,
    }
}

fn one(value: Value) -> Option<Seen> {
    let Value::Array(parts) = value else {
        return None;
    };
    if let [
        Value::Int(-1),
        Value::Int(permits),
        Value::Int(per),
        Value::Int(wait),
    ] = &parts[..]
    {
        let time = |us: &i64| u64::try_from(*us).ok().map(Duration::from_micros);
        let limiter = SeenLimiter {
            permits: u32::try_from(*permits).ok()?,
            per: time(per)?,
            wait: time(wait)?,
        };
        return Some(Seen {
            limiter: Some(limiter),
            ..Seen::default()
        });
    }
    let [
        Value::Int(total_units),
        fence,
        Value::Int(waiters),
        Value::Array(holders),
        Value::Array(waiting),
    ] = parts.as_slice()
    else {
        return None;
    };
    let fence = match fence {
        Value::BulkString(text) => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok()),
        _ => None,
    };
    let holder = |parts: &[Value]| match parts {
        [
            Value::BulkString(owner),
            Value::Int(ttl_ms),
            Value::Int(units),
            Value::Int(kept),
        ] => Some(SeenHolder {
            owner: String::from_utf8_lossy(owner).into_owned(),
            ttl: u64::try_from(*ttl_ms).ok().map(Duration::from_millis),
            units: u32::try_from(*units).ok()?,
            is_kept: *kept == 1,
            nodes: Vec::new(),
        }),
        _ => None,
    };
    let waiter = |parts: &[Value]| match parts {
        [
            Value::BulkString(owner),
            Value::Int(joined_us),
            Value::Int(units),
        ] => Some(SeenWaiter {
            owner: String::from_utf8_lossy(owner).into_owned(),
            joined_us: u64::try_from(*joined_us).ok()?,
            units: u32::try_from(*units).ok()?,
        }),
        _ => None,
    };
    Some(Seen {
        limiter: None,
        total_units: Some(u32::try_from(*total_units).ok()?).filter(|units| *units > 0),
        fence,
        waiters: u64::try_from(*waiters).ok()?,
        holders: holders.chunks(4).map(holder).collect::<Option<_>>()?,
        waiting: waiting.chunks(3).map(waiter).collect::<Option<_>>()?,
    })
}

pub(crate) fn scan(from: Cursor, prefix: &str, pattern: &str) -> Command {
    let mut command = Command::new("SCAN");
    command
        .arg(from.at)
        .arg("MATCH")
        .arg(pattern_of(prefix, pattern));
    command.arg("COUNT").arg(KEYS_OF_A_PAGE);
    command
}

/// Returns a Redis pattern that matches the prefix literally, followed by anything that `pattern` matches.
fn pattern_of(prefix: &str, pattern: &str) -> String {
    let mut whole = String::with_capacity(prefix.len() + pattern.len());
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | '\\') {
            whole.push('\\');
        }
        whole.push(c);
    }
    whole + pattern
}

/// Reads the answer to a scan that began at `from`.
pub(crate) fn page(from: Cursor, value: Value) -> Option<Reply> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [Value::BulkString(cursor), Value::Array(keys)] = <[Value; 2]>::try_from(parts).ok()?
    else {
        return None;
    };
    let cursor: u64 = std::str::from_utf8(&cursor).ok()?.parse().ok()?;
    let key = |value| match value {
        Value::BulkString(key) => Some(key),
        _ => None,
    };
    let next = Cursor { at: cursor, ..from };
    Some(Reply::Page {
        keys: keys.into_iter().map(key).collect::<Option<_>>()?,
        next: (cursor != 0).then_some(next),
    })
}

pub(crate) fn force_release(
    key: &LockKey,
    owner: &str,
    script_settings: &ScriptSettings,
) -> Command {
    let mut command = FORCE_RELEASE.with_companions(std::slice::from_ref(key));
    command.arg(owner).arg(BROKEN);
    script_settings.of_waiters(&mut command);
    command
}

pub(crate) fn publish(message: &str) -> Command {
    let mut command = Command::new("PUBLISH");
    command.arg(BROKEN).arg(message);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn hostile_replies_are_refused_not_believed() {
        let parts = |holders, waiting| {
            Value::Array(vec![
                Value::Int(0),
                Value::Nil,
                Value::Int(1),
                holders,
                waiting,
            ])
        };
        let none = Value::Array(Vec::new());
        let seen = |holders| parts(holders, none.clone());
        let whole = [text("o"), Value::Int(-1), Value::Int(1), Value::Int(0)];
        assert!(one(seen(Value::Array(whole.to_vec()))).is_some());
        let waiter = |joined| Value::Array(vec![text("w"), Value::Int(joined), Value::Int(1)]);
        assert!(one(parts(none.clone(), waiter(7))).is_some());
        for bad in [
            parts(none.clone(), waiter(-1)),
            parts(none.clone(), Value::Nil),
            parts(none.clone(), Value::Array(whole.to_vec())),
            seen(Value::Nil),
            seen(Value::Array(whole[..3].to_vec())),
            seen(Value::Array(vec![
                text("o"),
                text("1"),
                Value::Int(1),
                Value::Int(0),
            ])),
            Value::Array(vec![Value::Int(-1), Value::Nil, Value::Int(0)]),
            Value::Int(1),
        ] {
            assert_eq!(
                inspected(1, true, Value::Array(vec![bad.clone()])),
                None,
                "{bad:?}"
            );
        }
        let one = || Value::Array(vec![Value::Nil]);
        assert_eq!(inspected(2, true, one()), None);
        // The caller asks again about the other keys.
        assert!(inspected(2, false, one()).is_some());
        assert_eq!(inspected(2, false, Value::Array(Vec::new())), None);
        assert_eq!(inspected(0, false, one()), None);
        for bad in [
            Value::Array(vec![text("x"), Value::Array(vec![])]),
            Value::Array(vec![text("0"), Value::Array(vec![Value::Int(1)])]),
            Value::Array(vec![text("0")]),
            Value::Okay,
        ] {
            assert_eq!(page(Cursor::START, bad.clone()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_prefix_is_taken_as_it_is_written() {
        assert_eq!(pattern_of("", "a*"), "a*");
        assert_eq!(pattern_of("l:", "*"), "l:*");
        assert_eq!(pattern_of("[a]*?\\", "x?"), "\\[a]\\*\\?\\\\x?");
    }
}
