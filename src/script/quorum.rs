//! The requests to one node of a quorum.
//!
//! The store of a quorum makes several of them of one request, one for each node and step. So they are not requests
//! themselves, but the same commands that `encode` returns.

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use super::reply;
use super::script_settings::{ScriptSettings, ms};
use super::text::{
    KEEP, QUORUM_ACQUIRE, QUORUM_RAISE, QUORUM_RELEASE, RENEW, ScriptRef, of_waiters,
};
use crate::core::quorum::{Reserved, Vote};
use crate::message::{Ask, Gone, Reply};
use crate::name::{Companion, LARGEST_FENCE, LockKey};

/// The unused fences that a node takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeGiveBack {
    /// The last fence that was given to a guard; 0 if there was none.
    pub(crate) used: u64,
    /// The fences of this node's own reply.
    pub(crate) reserved: Reserved,
}

/// Returns the commands that load the scripts of a node.
pub(crate) fn load() -> [redis::Cmd; 5] {
    let own = [
        &QUORUM_ACQUIRE,
        &QUORUM_RAISE,
        &QUORUM_RELEASE,
        &RENEW,
        &KEEP,
    ];
    own.map(super::text::Script::load)
}

/// Returns the command that asks a node for a mutex. `clock` is this process's time, in µs since 1970.
pub(crate) fn acquire(
    key: &LockKey,
    ask: &Ask,
    clock: u64,
    script_settings: &ScriptSettings,
) -> redis::Cmd {
    let mut command = QUORUM_ACQUIRE.with_companions(ScriptRef::Digest, std::slice::from_ref(key));
    command
        .arg(&*ask.owner)
        .arg(ms(ask.lease))
        .arg(ask.fences)
        .arg(ms(script_settings.fence_memory))
        .arg(clock)
        .arg(ask.channel.as_deref().unwrap_or("-"))
        .arg(ms(script_settings.pickup_window(ask.lease)));
    of_waiters(&mut command);
    command
}

/// Returns the command that raises the record of a node to the end of `count` fences from `fence` on.
pub(crate) fn raise(
    key: &LockKey,
    owner: &str,
    fence: u64,
    count: u64,
    script_settings: &ScriptSettings,
) -> redis::Cmd {
    let mut command = QUORUM_RAISE.command(ScriptRef::Digest, 2);
    command
        .arg(key.key())
        .arg(key.companion(Companion::Fence))
        .arg(owner)
        .arg(fence)
        .arg(count)
        .arg(ms(script_settings.fence_memory));
    command
}

/// Returns the command that releases a mutex at a node. A withdrawal also takes the owner out of the queue.
pub(crate) fn release(
    key: &LockKey,
    owner: &str,
    give_back: Option<NodeGiveBack>,
    is_withdrawal: bool,
) -> redis::Cmd {
    let mut command = QUORUM_RELEASE.with_companions(ScriptRef::Digest, std::slice::from_ref(key));
    command.arg(owner);
    match give_back {
        Some(NodeGiveBack { used, reserved }) => {
            command.arg(used).arg(reserved.last).arg(reserved.first)
        }
        None => command.arg("").arg("").arg(""),
    };
    of_waiters(&mut command);
    command.arg(u8::from(is_withdrawal));
    command
}

/// Reads a node's answer to a request for a lock of this number of names.
pub(crate) fn vote(names: usize, value: &Value) -> Option<Vote> {
    let Value::Array(parts) = value else {
        return None;
    };
    if let [Value::Int(0), Value::Int(ttl), Value::BulkString(holder)] = parts.as_slice() {
        return Some(Vote::Held {
            holder: String::from_utf8_lossy(holder).into(),
            ttl: u64::try_from(*ttl)
                .ok()
                .filter(|ttl| *ttl > 0)
                .map(Duration::from_millis),
        });
    }
    let (contended, fences) = parts.split_last()?;
    let fences: SmallVec<[Reserved; 1]> = fences
        .chunks(2)
        .map(|pair| match pair {
            [Value::Int(first), Value::Int(last)] => {
                let reserved = Reserved {
                    first: fence(*first)?,
                    last: fence(*last)?,
                };
                (reserved.first <= reserved.last).then_some(reserved)
            }
            _ => None,
        })
        .collect::<Option<_>>()?;
    match contended {
        Value::Int(contended @ (0 | 1)) if fences.len() == names => Some(Vote::Granted {
            fences,
            contended: *contended == 1,
        }),
        _ => None,
    }
}

/// Reads a node's answer to a raise: its record, unless another owner holds the lock.
pub(crate) fn raised(value: &Value) -> Option<Result<u64, Gone>> {
    match value {
        Value::Int(0) => Some(Err(Gone::Removed)),
        Value::Int(-1) => Some(Err(Gone::Taken)),
        Value::Int(record) => fence(*record).map(Ok),
        _ => None,
    }
}

/// Reads a node's answer to a release.
pub(crate) fn released(value: &Value) -> Option<Reply> {
    reply::release(value)
}

/// Returns a fence that a script counts exactly.
fn fence(number: i64) -> Option<u64> {
    let number = u64::try_from(number).ok();
    number.filter(|number| (1..=LARGEST_FENCE).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn a_grant_has_the_fences_of_each_name() {
        let reserved = |first, last| Reserved { first, last };
        let granted = |fences: &[Reserved], contended| {
            Some(Vote::Granted {
                fences: SmallVec::from_slice(fences),
                contended,
            })
        };
        assert_eq!(
            vote(1, &numbers(&[5, 9, 1])),
            granted(&[reserved(5, 9)], true)
        );
        let two = [reserved(5, 5), reserved(7, 8)];
        assert_eq!(vote(2, &numbers(&[5, 5, 7, 8, 0])), granted(&two, false));
    }

    #[test]
    fn hostile_answers_are_no_votes() {
        for (names, answer) in [
            (1, Value::Nil),
            (1, Value::Int(5)),
            (1, numbers(&[])),
            (1, numbers(&[0])),
            (1, numbers(&[5, 9])),
            (1, numbers(&[9, 5, 0])),
            (1, numbers(&[0, 5, 0])),
            (1, numbers(&[5, 9, 2])),
            (1, numbers(&[5, 9, 5, 9, 0])),
            (2, numbers(&[5, 9, 0])),
            (1, numbers(&[5, 1 << 53, 0])),
        ] {
            assert_eq!(vote(names, &answer), None, "{answer:?}");
        }
        for answer in [Value::Nil, Value::Int(-5), Value::Int(i64::MAX)] {
            assert_eq!(raised(&answer), None, "{answer:?}");
        }
    }
}
