//! The requests to one node of a quorum.
//!
//! The store of a quorum makes several of them of one request, one for each node and step. So they are not requests
//! themselves, but the same commands that `encode` returns.

use std::time::Duration;

use once_cell::race::OnceBox;
use redis::Value::{self, Array, BulkString, Int};
use smallvec::SmallVec;

use crate::name::{Companion, LockKey};
use crate::sys::Arc;
use crate::sys::time::ms_rounded_up;
use crate::wire::lock::{self, fence};
use crate::wire::operators;
use crate::wire::script::{
    Command, OF_A_QUORUM, QUORUM_ACQUIRE, QUORUM_ADOPT, QUORUM_JOIN, QUORUM_RAISE,
    QUORUM_RESTART_DELAY, QUORUM_SHARE_ACQUIRE, Script,
};
use crate::wire::{Adopt, Ask, End, Gone, LockId, LockKind, Reply, ScriptSettings};

/// The fences that a node has reserved for a grant of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// The fences that a node has reserved for each name of a lock.
pub(crate) type ReservedByName = SmallVec<[Reserved; 1]>;

/// A node's answer to a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    Granted {
        fences: ReservedByName,
        /// Whether other processes wait for the lock at this node.
        contended: bool,
    },
    Held(NodeHolder),
    /// The request would adopt a mutex, and its detached owner does not hold it.
    Gone(Gone),
}

/// The owner that a node names: the holder of a lock, or the waiter whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeHolder {
    pub(crate) owner: Arc<str>,
    /// How long its lease or its turn lasts from now on; `None` if that is not known.
    pub(crate) ttl: Option<Duration>,
    /// Whether it is a reader. Other readers may then hold the lock there too, or may use that turn.
    pub(crate) is_reader: bool,
}

/// Returns the commands that load the scripts of a node. They have 60 KB, so all connections send the same ones.
pub(crate) fn load() -> &'static [Command; 8] {
    static LOAD: OnceBox<[Command; 8]> = OnceBox::new();
    LOAD.get_or_init(|| Box::new(OF_A_QUORUM.map(Script::load)))
}

/// Returns the command that notes the restart delay at a node, under this key for this time. The answer is the restart
/// delay that the clients of the node use, in ms.
pub(crate) fn note_restart_delay(key: &str, delay: Duration, kept: Duration) -> Command {
    let mut command = QUORUM_RESTART_DELAY.command(1);
    command.arg(key).arg(ms_rounded_up(delay));
    command.arg(ms_rounded_up(kept));
    // By its text, because a new connection sends it.
    command.by_text()
}

/// Returns the command that asks a node for a lock. `clock` is this process's time, in µs since 1970. The end of a lease that
/// the request takes over is a command of its own.
pub(crate) fn acquire(
    lock: LockId<'_>,
    ask: &Ask,
    clock: u64,
    script_settings: &ScriptSettings,
) -> Command {
    let is_shared = !matches!(lock.kind, LockKind::Mutex | LockKind::Multi);
    let script = if is_shared {
        &QUORUM_SHARE_ACQUIRE
    } else {
        &QUORUM_ACQUIRE
    };
    let mut command = lock::begin_ask(script, lock, ask, clock, script_settings);
    if is_shared {
        // A process that has just released the lock as a writer becomes a reader before other writers.
        let is_other = |end: &End| end.units != ask.units;
        let was_writer = lock.kind == LockKind::Read && ask.ending.as_ref().is_some_and(is_other);
        command.arg(ask.units).arg(u8::from(was_writer));
    }
    command
}

/// Returns the command that raises the records of a node: each to the end of `count` fences from the fence of its name
/// on.
pub(crate) fn raise(
    lock: LockId<'_>,
    (owner, units): (&str, u32),
    fences: &[u64],
    count: u64,
    script_settings: &ScriptSettings,
) -> Command {
    let keys = lock.target.keys();
    let mut command = QUORUM_RAISE.command(2 * keys.len());
    for key in keys {
        command.arg(key.key()).arg(key.companion(Companion::Fence));
    }
    command
        .arg(owner)
        .arg(lock.kind.units_in_key(units))
        .arg(count)
        .arg(ms_rounded_up(script_settings.fence_memory))
        .arg(fences);
    command
}

/// Returns the command that has one more node hold a lock for its owner. `keys` are those of its names, and `ends` the
/// last fence of the owner for each of them.
pub(crate) fn join<'k>(
    kind: LockKind,
    keys: impl ExactSizeIterator<Item = &'k LockKey>,
    (owner, units): (&str, u32),
    lease: Duration,
    ends: &[u64],
    script_settings: &ScriptSettings,
) -> Command {
    let mut command = QUORUM_JOIN.with_companions(keys);
    command
        .arg(owner)
        .arg(ms_rounded_up(lease))
        .arg(kind.units_in_key(units))
        .arg(ms_rounded_up(script_settings.fence_memory))
        .arg(ends);
    command
}

/// Returns the command that ends an owner at a node.
pub(crate) fn end(lock: LockId<'_>, end: &End, script_settings: &ScriptSettings) -> Command {
    lock::end(lock, end, true, script_settings)
}

/// Returns the command that gives a mutex a new owner at a node.
pub(crate) fn adopt(
    key: &LockKey,
    adopt: &Adopt,
    clock: u64,
    script_settings: &ScriptSettings,
) -> Command {
    let mut command = QUORUM_ADOPT.command(2);
    command
        .arg(key.key())
        .arg(key.companion(Companion::Fence))
        .arg(&*adopt.owner)
        .arg(ms_rounded_up(adopt.lease))
        .arg(ms_rounded_up(script_settings.fence_memory))
        .arg(clock)
        .arg(&*adopt.from)
        .arg(u8::from(adopt.fencing));
    command.by_text()
}

/// Returns the command that takes a lock of any kind from an owner at a node.
pub(crate) fn force_release(key: &LockKey, owner: &str, settings: &ScriptSettings) -> Command {
    operators::force_release(key, owner, true, settings).by_text()
}

/// Reads a node's answer to a request for a lock, which has a fence with `fencing`.
pub(crate) fn vote(lock: LockId<'_>, fencing: bool, value: &Value) -> Option<Vote> {
    let Array(parts) = value else {
        return None;
    };
    if let [Int(0), Int(ttl), BulkString(holder), reader @ ..] = parts.as_slice() {
        return Some(Vote::Held(NodeHolder {
            owner: String::from_utf8_lossy(holder).into(),
            ttl: u64::try_from(*ttl)
                .ok()
                .filter(|ttl| *ttl > 0)
                .map(Duration::from_millis),
            is_reader: match reader {
                [] => false,
                [Int(1)] => true,
                _ => return None,
            },
        }));
    }
    let (contended, fences) = parts.split_last()?;
    let reserved = |first: &Value, last: &Value| {
        let reserved = Reserved {
            first: fence(fencing, first)?,
            last: fence(fencing, last)?,
        };
        (reserved.first <= reserved.last).then_some(reserved)
    };
    let fences: ReservedByName = fences
        .chunks(2)
        .map(|pair| match pair {
            [first, last] => reserved(first, last),
            _ => None,
        })
        .collect::<Option<_>>()?;
    match contended {
        Int(contended @ (0 | 1)) if fences.len() == lock.target.keys().len() => {
            Some(Vote::Granted {
                fences,
                contended: *contended == 1,
            })
        }
        _ => None,
    }
}

/// Returns whether a node's answer to a request for a lock may be a grant.
pub(crate) fn may_have_granted(value: &Value) -> bool {
    let Array(parts) = value else {
        // The node has refused the request, perhaps after its first writes.
        return true;
    };
    !matches!(parts[..], [Int(0), _, BulkString(_), ..])
}

/// Reads a node's answer to a raise: its record for each name, unless the owner does not hold the lock.
pub(crate) fn raised(value: &Value) -> Option<Result<Vec<u64>, Gone>> {
    match value {
        Int(0) => Some(Err(Gone::Removed)),
        Int(-1) => Some(Err(Gone::Taken)),
        Array(records) => {
            let records = records.iter().map(|record| fence(true, record));
            records.collect::<Option<_>>().map(Ok)
        }
        _ => None,
    }
}

/// Reads a node's answer to a join: whether the owner holds the lock there.
pub(crate) fn joined(value: &Value) -> Option<bool> {
    match value {
        Int(joined @ (0 | 1)) => Some(*joined == 1),
        _ => None,
    }
}

/// Reads a node's answer to a release.
pub(crate) fn released(value: &Value) -> Option<Reply> {
    lock::released(value)
}

/// Reads a node's answer to an adoption.
pub(crate) fn adopted(lock: LockId<'_>, fencing: bool, value: &Value) -> Option<Vote> {
    match value {
        Int(-1) => Some(Vote::Gone(Gone::Removed)),
        Int(-2) => Some(Vote::Gone(Gone::Taken)),
        value => {
            let vote = vote(lock, fencing, value);
            vote.filter(|vote| matches!(vote, Vote::Granted { .. }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Target;

    /// A time in microseconds, in 1970.
    const T: i64 = 1_000_000_000_000;

    fn numbers(numbers: &[i64]) -> Value {
        Array(numbers.iter().copied().map(Int).collect())
    }

    fn target(names: usize) -> Target {
        let keys = ["a", "b"].map(|name| LockKey::new("", name).expect("a name"));
        Target::all(keys[..names].to_vec()).expect("different names")
    }

    #[test]
    fn a_grant_has_the_fences_of_each_name() {
        let reserved = |first: u64, last: u64| Reserved {
            first: T as u64 + first,
            last: T as u64 + last,
        };
        let granted = |fences: &[Reserved], contended| {
            Some(Vote::Granted {
                fences: SmallVec::from_slice(fences),
                contended,
            })
        };
        let (one, two) = (target(1), target(2));
        let lock = |kind, target| LockId { kind, target };
        let answer = numbers(&[T + 5, T + 9, 1]);
        for kind in [LockKind::Mutex, LockKind::Read, LockKind::Write] {
            assert_eq!(
                vote(lock(kind, &one), true, &answer),
                granted(&[reserved(5, 9)], true)
            );
        }
        let both = [reserved(5, 6), reserved(7, 7)];
        let answer = numbers(&[T + 5, T + 6, T + 7, T + 7, 0]);
        assert_eq!(
            vote(lock(LockKind::Multi, &two), true, &answer),
            granted(&both, false)
        );
    }

    #[test]
    fn a_vote_tells_whether_it_names_a_reader() {
        let target = target(1);
        let lock = LockId {
            kind: LockKind::Write,
            target: &target,
        };
        let holder = || BulkString(b"a".to_vec());
        for (ttl, rest, expected) in [
            (9, vec![], Some((Some(9), false))),
            (9, vec![Int(1)], Some((Some(9), true))),
            (-1, vec![Int(1)], Some((None, true))),
            (9, vec![Int(2)], None),
            (9, vec![Value::Nil], None),
            (9, vec![Int(1), Int(1)], None),
        ] {
            let expected = expected.map(|(ttl, is_reader)| {
                Vote::Held(NodeHolder {
                    owner: "a".into(),
                    ttl: ttl.map(Duration::from_millis),
                    is_reader,
                })
            });
            let begin = vec![Int(0), Int(ttl), holder()];
            let answer = Array([begin, rest].concat());
            assert_eq!(vote(lock, true, &answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn hostile_answers_are_no_votes() {
        let (one, two) = (target(1), target(2));
        for (kind, target, answer) in [
            (LockKind::Mutex, &one, Value::Nil),
            (LockKind::Mutex, &one, Int(T + 5)),
            (LockKind::Mutex, &one, numbers(&[])),
            (LockKind::Mutex, &one, numbers(&[0])),
            (LockKind::Mutex, &one, numbers(&[T + 5, T + 9])),
            (LockKind::Mutex, &one, numbers(&[T + 9, T + 5, 0])),
            (LockKind::Mutex, &one, numbers(&[0, T + 5, 0])),
            (LockKind::Mutex, &one, numbers(&[T + 5, T + 9, 2])),
            (
                LockKind::Mutex,
                &one,
                numbers(&[T + 5, T + 9, T + 5, T + 9, 0]),
            ),
            (LockKind::Mutex, &one, numbers(&[T + 5, 1 << 53, 0])),
            // Smaller than the time of any server.
            (LockKind::Mutex, &one, numbers(&[5, 9, 0])),
            (LockKind::Multi, &two, numbers(&[T + 5, T + 5, 0])),
            (LockKind::Multi, &two, numbers(&[T + 5, T + 5, T + 7, 0])),
            (
                LockKind::Multi,
                &two,
                numbers(&[T + 5, T + 5, T + 7, T + 6, 0]),
            ),
        ] {
            let lock = LockId { kind, target };
            assert_eq!(vote(lock, true, &answer), None, "{answer:?}");
            assert_eq!(adopted(lock, true, &answer), None, "{answer:?}");
        }
        for answer in [Value::Nil, Int(-5), Int(7), numbers(&[0])] {
            assert_eq!(raised(&answer), None, "{answer:?}");
        }
    }
}
