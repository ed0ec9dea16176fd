//! The fences that a node of a quorum reserves and raises.

use std::ops::RangeInclusive;

use proptest::prelude::*;
use redis::{RedisResult, Value};

use super::{Check, Redis, owner};
use crate::support::companions_of;

const QUORUM_RAISE: &str = script!(
    "record.lua",
    "value.lua",
    "quorum_fence.lua",
    "quorum_raise.lua"
);

/// How long the record of the last fence is kept after that fence, in ms.
pub(super) const MEMORY: u64 = 600_000;
/// How far a client's clock, and the end of the reserved fences, may be from the node's time, in µs.
pub(super) const LEEWAY: u64 = 1_000_000;
/// One hour in µs.
pub(super) const HOUR: i64 = 3_600_000_000;
/// How much the expiry of a key may differ from what was asked for, in ms.
pub(super) const ROUNDING: i64 = 2;

/// The fences that a node reserved for an owner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fences {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Fences {
    /// Checks that a node may have reserved these fences. The record was `record`, and the client asked for `count`
    /// fences from `clock` on. The node's time was in `time`, as in all functions below.
    pub(super) fn check(
        self,
        record: u64,
        count: u64,
        clock: u64,
        time: &RangeInclusive<u64>,
    ) -> Check {
        let first = |now: u64| (record + 1).max(clock.clamp(now - LEEWAY, now + LEEWAY));
        let wanted = first(*time.start())..=first(*time.end());
        prop_assert!(
            wanted.contains(&self.first),
            "{:?} begins not in {:?}",
            self,
            wanted
        );
        let last = |now: u64| (self.first + count - 1).min(now + LEEWAY).max(self.first);
        let wanted = last(*time.start())..=last(*time.end());
        prop_assert!(
            wanted.contains(&self.last),
            "{:?} ends not in {:?}",
            self,
            wanted
        );
        // The same as a rule: no reservation is more than LEEWAY ahead, unless the record was.
        prop_assert!(
            self.last <= (time.end() + LEEWAY).max(record + 1),
            "{:?} is ahead",
            self
        );
        Ok(())
    }
}

/// Raises the record of each name to the end of `count` fences. `firsts` has the first fence for each name.
pub(super) fn raise(
    redis: &mut Redis,
    names: &[&str],
    who: usize,
    units: u64,
    count: u64,
    firsts: &[u64],
) -> RedisResult<Value> {
    let mut command = redis::cmd("EVAL");
    command.arg(QUORUM_RAISE).arg(2 * names.len());
    for name in names {
        let [fence, _, _] = companions_of(name);
        command.arg(name).arg(fence);
    }
    command.arg(owner(who)).arg(units).arg(count).arg(MEMORY);
    command.arg(firsts).query(&mut redis.0)
}

/// Returns the reply to a raise after which the names have these records.
pub(super) fn records(records: &[u64]) -> Value {
    let records = records.iter().map(|record| record.cast_signed());
    Value::Array(records.map(Value::Int).collect())
}

/// Returns the records that a reply to a raise names.
pub(super) fn raised(reply: &Value) -> Vec<u64> {
    redis::from_redis_value_ref(reply).expect("records")
}

/// Checks the record `raised` that a node answered to a raise to the end of `count` fences from `first` on.
pub(super) fn check_raised(
    raised: u64,
    record: u64,
    first: u64,
    count: u64,
    time: &RangeInclusive<u64>,
) -> Check {
    let end = |now: u64| (first + count - 1).min(first.max(now + LEEWAY));
    let wanted = record.max(end(*time.start()))..=record.max(end(*time.end()));
    prop_assert!(
        wanted.contains(&raised),
        "{} is not in {:?}",
        raised,
        wanted
    );
    Ok(())
}

/// Returns the fences that a reply grants, and whether others wait. Returns `None` if another owner holds the lock.
pub(super) fn granted(reply: &Value) -> Option<(Fences, bool)> {
    let Value::Array(parts) = reply else {
        panic!("{reply:?}");
    };
    match parts[..] {
        [
            Value::Int(first @ 1..),
            Value::Int(last @ 1..),
            Value::Int(others @ 0..=1),
        ] => {
            let [first, last] = [first, last].map(i64::cast_unsigned);
            Some((Fences { first, last }, others == 1))
        }
        [Value::Int(0), Value::Int(_), Value::BulkString(_)]
        | [
            Value::Int(0),
            Value::Int(_),
            Value::BulkString(_),
            Value::Int(1),
        ] => None,
        _ => panic!("{reply:?}"),
    }
}

/// Returns the time to live and the owner of the lease that a reply names.
pub(super) fn held(reply: &Value) -> (i64, String) {
    assert!(granted(reply).is_none(), "{reply:?}");
    match reply {
        Value::Array(parts) => match &parts[..] {
            [_, Value::Int(ttl), Value::BulkString(holder), ..] => {
                (*ttl, String::from_utf8_lossy(holder).into_owned())
            }
            _ => panic!("{reply:?}"),
        },
        _ => panic!("{reply:?}"),
    }
}

/// Returns whether a reply says that readers hold the lock, or that it is the turn of one.
pub(super) fn is_of_a_reader(reply: &Value) -> bool {
    matches!(reply, Value::Array(parts) if matches!(parts[..], [_, _, _, Value::Int(1)]))
}

/// The fences that a release gives back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unused {
    /// The last fence that was used, or 0.
    pub(super) used: u64,
    pub(super) reserved: Fences,
}

impl Unused {
    /// Returns the arguments of a release: the last fence used, and the last and the first that were reserved.
    pub(super) fn arguments(unused: Option<Self>) -> [String; 3] {
        unused.map_or_else(Default::default, |unused| {
            let Fences { first, last } = unused.reserved;
            [unused.used, last, first].map(|fence| fence.to_string())
        })
    }

    /// Returns the record after the release of the holder.
    pub(super) fn record_after(self, record: u64) -> u64 {
        let kept = self.used.max(self.reserved.first);
        if record == self.reserved.last && kept < record {
            kept
        } else {
            record
        }
    }
}

/// How many of its fences an owner has used.
#[derive(Clone, Copy, Debug)]
pub(super) enum Used {
    Nothing,
    First,
    Some,
    All,
    /// The owner has larger fences from another node than this node reserved.
    Beyond,
}

impl Used {
    /// Returns the fences to give back, of an owner that uses fences from `first` on.
    pub(super) fn unused(self, reserved: Fences, first: u64) -> Unused {
        let used = match self {
            Self::Nothing => 0,
            Self::First => first,
            Self::Some => reserved.last.min(first + 3),
            Self::All => reserved.last,
            Self::Beyond => reserved.last + 5,
        };
        Unused { used, reserved }
    }
}

pub(super) fn used() -> impl Strategy<Value = Option<Used>> {
    let all = [
        Used::Nothing,
        Used::First,
        Used::Some,
        Used::All,
        Used::Beyond,
    ];
    prop::option::weighted(0.8, prop::sample::select(all.to_vec()))
}

/// Returns the difference between an owner's clock and the server's, in µs.
pub(super) fn skew() -> impl Strategy<Value = i64> {
    prop::sample::select(vec![0, 200_000, -300_000, 5 * HOUR, -5 * HOUR])
}

/// Returns by how much another node's answer is larger.
pub(super) fn more() -> impl Strategy<Value = u64> {
    prop_oneof![
        9 => prop::sample::select(vec![0, 7, 77_000]),
        1 => Just(HOUR.cast_unsigned()),
    ]
}
