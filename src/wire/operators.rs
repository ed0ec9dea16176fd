//! The requests of operators about locks of any kind: `inspect.lua`, `force_release.lua`, and a scan of keys.

use std::time::Duration;

use redis::Value::{self, Array, BulkString, Int};

use crate::name::{BROKEN, LockKey};
use crate::sys::Arc;
use crate::wire::script::{Command, FORCE_RELEASE, INSPECT, QUORUM_FORCE_RELEASE};
use crate::wire::{Reply, ScriptSettings};

/// The state of a lock in Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The rate limiter, if it is no lock.
    pub(crate) limiter: Option<SeenLimiter>,
    /// How many units the lock has; `None` for a mutex.
    pub(crate) total_units: Option<u32>,
    /// The last fence that was reserved; `None` if Redis has forgotten it.
    pub(crate) fence: Option<u64>,
    pub(crate) waiters: u64,
    pub(crate) holders: Vec<SeenHolder>,
    /// The first waiters, in the order of the queue.
    pub(crate) waiting: Vec<SeenWaiter>,
}

/// A rate limiter in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenLimiter {
    pub(crate) permits: u32,
    pub(crate) per: Duration,
    /// How long a call would wait.
    pub(crate) wait: Duration,
}

/// One waiter of a lock in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenWaiter {
    pub(crate) owner: String,
    /// When it joined the queue, by the server's clock, in µs since 1970.
    pub(crate) joined_us: u64,
    pub(crate) units: u32,
}

/// One holder of a lock in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenHolder {
    pub(crate) owner: String,
    /// How long the lease still lasts; `None` if the key has no time to live.
    pub(crate) ttl: Option<Duration>,
    pub(crate) units: u32,
    /// Whether it has given the lock up, and keeps it from others for a while (`min_hold`).
    pub(crate) is_kept: bool,
    /// The addresses of the nodes of a quorum that name this holder.
    pub(crate) nodes: Vec<Arc<str>>,
}

/// The place where a scan continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The node that is scanned.
    pub(crate) node: u32,
    /// The server that is scanned, because another server's cursors are different. In a cluster these are the first 16
    /// digits of its `run_id`, and behind sentinels the number of the master. 0 before it was asked.
    pub(crate) run: u64,
    /// How many nodes before it have failed.
    pub(crate) failed: u32,
    /// A fingerprint of a cluster's masters, in their order, when the scan began; 0 before. If they are others at the end,
    /// the scan begins again.
    pub(crate) masters: u64,
    /// The node's own cursor.
    pub(crate) at: u64,
}

impl Cursor {
    pub(crate) const START: Self = Self {
        node: 0,
        run: 0,
        failed: 0,
        masters: 0,
        at: 0,
    };
}

/// At how many keys the server looks for a page of a scan, in less than a millisecond. With fewer, a list would take a round trip
/// for each few keys of other programs.
const KEYS_OF_A_PAGE: u32 = 1_000;

pub(super) fn inspect(keys: &[LockKey], named: bool) -> Command {
    let mut command = INSPECT.with_companions(keys);
    command.arg(if named { "named" } else { "found" });
    command
}

/// Reads the answer to an inspection of this number of keys. If a scan found the keys, the answer may be about the
/// first of them only.
pub(super) fn inspected(keys: usize, named: bool, value: Value) -> Option<Reply> {
    let least = if named { keys } else { 1 };
    match value {
        Array(seen) if (least..=keys).contains(&seen.len()) => seen
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
    let Array(parts) = value else {
        return None;
    };
    if let [Int(-1), Int(permits), Int(per), Int(wait)] = &parts[..] {
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
        Int(total_units),
        fence,
        Int(waiters),
        Array(holders),
        Array(waiting),
    ] = parts.as_slice()
    else {
        return None;
    };
    let fence = match fence {
        BulkString(text) => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok()),
        _ => None,
    };
    let holder = |parts: &[Value]| match parts {
        [BulkString(owner), Int(ttl_ms), Int(units), Int(kept)] => Some(SeenHolder {
            owner: String::from_utf8_lossy(owner).into_owned(),
            ttl: u64::try_from(*ttl_ms).ok().map(Duration::from_millis),
            units: u32::try_from(*units).ok()?,
            is_kept: *kept == 1,
            nodes: Vec::new(),
        }),
        _ => None,
    };
    let waiter = |parts: &[Value]| match parts {
        [BulkString(owner), Int(joined_us), Int(units)] => Some(SeenWaiter {
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

pub(super) fn scan(from: Cursor, prefix: &str, pattern: &str) -> Command {
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
pub(super) fn page(from: Cursor, value: Value) -> Option<Reply> {
    let Array(parts) = value else {
        return None;
    };
    let [BulkString(cursor), Array(keys)] = <[Value; 2]>::try_from(parts).ok()? else {
        return None;
    };
    let cursor: u64 = std::str::from_utf8(&cursor).ok()?.parse().ok()?;
    let key = |value| match value {
        BulkString(key) => Some(key),
        _ => None,
    };
    let next = Cursor { at: cursor, ..from };
    Some(Reply::Page {
        keys: keys.into_iter().map(key).collect::<Option<_>>()?,
        next: (cursor != 0).then_some(next),
    })
}

/// Returns the command that takes a lock from an owner, at a server or `at_node` of a quorum.
pub(super) fn force_release(
    key: &LockKey,
    owner: &str,
    at_node: bool,
    settings: &ScriptSettings,
) -> Command {
    let script = if at_node {
        &QUORUM_FORCE_RELEASE
    } else {
        &FORCE_RELEASE
    };
    let mut command = script.with_companions(std::slice::from_ref(key));
    command.arg(owner).arg(BROKEN);
    settings.of_waiters(&mut command);
    command
}

pub(super) fn publish(message: &str) -> Command {
    let mut command = Command::new("PUBLISH");
    command.arg(BROKEN).arg(message);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        BulkString(text.into())
    }

    #[test]
    fn hostile_replies_are_refused_not_believed() {
        let parts = |holders, waiting| Array(vec![Int(0), Value::Nil, Int(1), holders, waiting]);
        let none = Array(Vec::new());
        let seen = |holders| parts(holders, none.clone());
        let whole = [text("o"), Int(-1), Int(1), Int(0)];
        assert!(one(seen(Array(whole.to_vec()))).is_some());
        let waiter = |joined| Array(vec![text("w"), Int(joined), Int(1)]);
        assert!(one(parts(none.clone(), waiter(7))).is_some());
        for bad in [
            parts(none.clone(), waiter(-1)),
            parts(none.clone(), Value::Nil),
            parts(none.clone(), Array(whole.to_vec())),
            seen(Value::Nil),
            seen(Array(whole[..3].to_vec())),
            seen(Array(vec![text("o"), text("1"), Int(1), Int(0)])),
            Array(vec![Int(-1), Value::Nil, Int(0)]),
            Int(1),
        ] {
            assert_eq!(
                inspected(1, true, Array(vec![bad.clone()])),
                None,
                "{bad:?}"
            );
        }
        let one = || Array(vec![Value::Nil]);
        assert_eq!(inspected(2, true, one()), None);
        // The caller asks again about the other keys.
        assert!(inspected(2, false, one()).is_some());
        assert_eq!(inspected(2, false, Array(Vec::new())), None);
        assert_eq!(inspected(0, false, one()), None);
        for bad in [
            Array(vec![text("x"), Array(vec![])]),
            Array(vec![text("0"), Array(vec![Int(1)])]),
            Array(vec![text("0")]),
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
