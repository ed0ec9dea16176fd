//! The requests about one lock, and to release many.
//!
//! | kind | its scripts | the key |
//! | --- | --- | --- |
//! | mutex | `mutex_*.lua` | a string, the owner. A mutex without a fence is first asked for by `SET NX`, without a script. |
//! | reader, writer, semaphore | `share_*.lua` | a sorted set: several owners have leases at the same time |
//! | multi-lock | `multi_*.lua` | a request has the keys of all its names, and their values are those of mutexes |

use std::time::Duration;

use redis::ToRedisArgs;
use redis::Value::{self, Array, BulkString, Int};

use crate::name::{Companion, LARGEST_FENCE, LockKey, Target};
use crate::sys::Arc;
use crate::sys::time::ms_rounded_up;
use crate::wire::script::{
    Command, KEEP, MULTI_ACQUIRE, MULTI_RELEASE, MUTEX_ACQUIRE, MUTEX_ADOPT, MUTEX_HAND_OVER,
    MUTEX_RELEASE, MUTEX_RELEASE_MANY, QUORUM_KEEP, QUORUM_RELEASE, QUORUM_SHARE_RELEASE,
    SHARE_ACQUIRE, SHARE_RELEASE, Script,
};
use crate::wire::{Gone, Nonce, NotReleased, Reply, ScriptSettings};

/// A kind of lock. Each kind has its rules in Redis and among the threads of a process.
///
/// A reader-writer lock is two kinds over one key. So the readers of a process and its writers have a queue and a
/// delegate each, and Redis decides between readers and writers as it does between processes. The number of permits is
/// part of a semaphore's kind: threads that disagree on it do not share a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LockKind {
    Mutex,
    Read,
    Write,
    Semaphore {
        total_units: u32,
    },
    /// Several mutexes, all or none.
    Multi,
}

/// The way in which the threads of a process share leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Whether any number of threads hold one lease at the same time. If not, one thread holds it.
    pub(crate) together: bool,
    /// Whether a process may have several leases of one lock at the same time.
    pub(crate) several: bool,
}

/// All units of a reader-writer lock. A writer takes them all, a reader takes one.
pub(crate) const ALL: u32 = u32::MAX;

/// A lock, as requests name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockId<'a> {
    pub(crate) kind: LockKind,
    pub(crate) target: &'a Target,
}

/// A request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) owner: Arc<str>,
    /// The number of units of the lock.
    pub(crate) units: u32,
    pub(crate) lease: Duration,
    /// The number of fences to reserve. With 0 the lock has no fence, and the reply has 0 in its place.
    pub(crate) fences: u64,
    /// Whether the caller takes a free lock before the processes in the queue. Otherwise the first of these gets it.
    pub(crate) takes_free: bool,
    /// An owner of this process. If nobody waits for the lock, the caller may share the lease of that owner instead.
    pub(crate) shareable_owner: Option<Arc<str>>,
    /// The channel on which a hand-over is published. `None` means that the caller does not queue for a held lock; an
    /// empty text means that it queues without a channel.
    pub(crate) channel: Option<Arc<str>>,
    /// With it, a hand-over may grant the lock by message. Only a request with a channel has one.
    pub(crate) nonce: Option<Nonce>,
    /// How long Redis keeps the lock for the caller after a hand-over. A request of an owner that queues, or that
    /// may be in the queue, must name it: with zero, the scripts pass that waiter over.
    pub(crate) pickup_window: Duration,
    /// The lease of this process that the request *takes over*: it ends first. If another process waits, the lock then goes
    /// to that process. A reader may take over from a writer, whose lease becomes the reader's.
    pub(crate) ending: Option<End>,
}

/// The end of an owner, of its lease or of its place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) owner: Arc<str>,
    pub(crate) units: u32,
    pub(crate) how: How,
    /// For how long the lock stays taken from now, for all processes (`min_hold`).
    pub(crate) kept_for: Duration,
    /// The unused fences that go back. A node of a quorum has a last one of its own.
    pub(crate) give_back: Option<GiveBack>,
}

/// How an owner ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It had the lock, without a known waiter and without unused fences. The request for a mutex, or for a lock that stays
    /// taken for a while, touches no key but the lock's.
    Release,
    /// It had the lock, which goes to the first waiter, if there is one. While the lock stays taken, that waiter is only woken.
    HandOver,
    /// It had the lock, or only a place in the queue.
    Withdraw,
}

/// The unused part of a block of fences, for the server to take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GiveBack {
    /// The last fence that was given to a guard.
    pub(crate) used: u64,
    /// The last fence of the block. The server's record stands there, unless another grant raised it.
    pub(crate) last: u64,
}

/// The terms on which a claim is adopted. An adoption brings one fence: other threads of this process that want the
/// lock wait behind a delegate, so none of them gets the adopted lock in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adopt {
    /// The new owner.
    pub(crate) owner: Arc<str>,
    pub(crate) lease: Duration,
    /// The owner that was detached.
    pub(crate) from: Arc<str>,
    /// The fence of the last guard of that owner; 0 if it had none.
    pub(crate) last: u64,
    /// Whether the new lease has a fence.
    pub(crate) fencing: bool,
    /// Whether the new lease may end before the old one. At the nodes of a quorum it never does.
    pub(crate) shortens: bool,
}

impl Ask {
    /// Returns a request that does not leave its owner in the queue. If you set `channel`, also set
    /// `pickup_window`; zero makes the scripts skip the waiter.
    pub(crate) fn once(owner: Arc<str>, units: u32, lease: Duration, fences: u64) -> Self {
        Self {
            owner,
            units,
            lease,
            fences,
            takes_free: true,
            shareable_owner: None,
            channel: None,
            nonce: None,
            pickup_window: Duration::ZERO,
            ending: None,
        }
    }

    /// Returns whether the request leaves its owner in the queue if the lock is held.
    pub(crate) fn queues(&self) -> bool {
        self.channel.is_some()
    }
}

impl End {
    /// Returns the end of an owner without unused fences. The lock does not stay taken.
    pub(crate) fn new(owner: Arc<str>, units: u32, how: How) -> Self {
        Self {
            owner,
            units,
            how,
            kept_for: Duration::ZERO,
            give_back: None,
        }
    }

    /// Returns whether it only releases a lock that has no known waiter.
    pub(crate) fn is_plain(&self) -> bool {
        self.how == How::Release && self.kept_for.is_zero()
    }
}

impl Sharing {
    /// Returns how many threads can hold one lease at the same time.
    pub(crate) const fn most_holds(self) -> u32 {
        if self.together { u32::MAX } else { 1 }
    }
}

impl LockKind {
    /// Returns how the threads of a process share leases of this kind.
    pub(crate) fn sharing(self) -> Sharing {
        match self {
            Self::Mutex | Self::Write | Self::Multi => Sharing {
                together: false,
                several: false,
            },
            Self::Read => Sharing {
                together: true,
                several: true,
            },
            Self::Semaphore { .. } => Sharing {
                together: false,
                several: true,
            },
        }
    }

    /// Returns the units of an owner as the key has them: 0 if the owner has the whole key.
    pub(crate) fn units_in_key(self, units: u32) -> u32 {
        match self {
            Self::Mutex | Self::Multi => 0,
            Self::Read | Self::Write | Self::Semaphore { .. } => units,
        }
    }

    /// Returns how many units a lock of this kind has.
    pub(crate) fn total_units(self) -> u32 {
        match self {
            Self::Mutex | Self::Multi => 1,
            Self::Read | Self::Write => ALL,
            Self::Semaphore { total_units } => total_units,
        }
    }
}

/// Returns the command that asks a server for a lock that is no node of a quorum.
pub(super) fn ask(lock: LockId<'_>, ask: &Ask, settings: &ScriptSettings) -> Command {
    let kind = lock.kind;
    let gap = match kind {
        LockKind::Mutex => settings.gap_at(lock.target.first()),
        _ => Duration::ZERO,
    };
    let (script, how) = match kind {
        // A free mutex may be in a gap. This process must not take it then, because the gap is for clients that poll.
        LockKind::Mutex if ask.takes_free && gap.is_zero() => (&MUTEX_ACQUIRE, "take"),
        LockKind::Mutex => (&MUTEX_ACQUIRE, "poll"),
        LockKind::Multi => (&MULTI_ACQUIRE, "take"),
        // The script lets the queue go first, even if the lock is free: a waiting writer stops new readers.
        LockKind::Read => (&SHARE_ACQUIRE, "read"),
        LockKind::Write => (&SHARE_ACQUIRE, "write"),
        LockKind::Semaphore { .. } => (&SHARE_ACQUIRE, "permits"),
    };
    let mut command = begin_ask(script, lock, ask, how, settings);
    let (ending, block) = match &ask.ending {
        Some(end) => (&*end.owner, end.give_back),
        None => ("", None),
    };
    match kind {
        LockKind::Mutex if ask.ending.is_none() => {}
        LockKind::Mutex => {
            command.arg(ending);
            give_back(&mut command, block);
            settings.gap(&mut command, gap);
        }
        // A grant brings one fence for each name, so there are none to give back.
        LockKind::Multi => {
            command.arg(ending);
        }
        LockKind::Read | LockKind::Write | LockKind::Semaphore { .. } => {
            command.arg(ask.units).arg(kind.total_units()).arg(ending);
            give_back(&mut command, block);
            command.arg(ask.shareable_owner.as_deref().unwrap_or_default());
        }
    }
    command
}

/// Returns the command of a script that asks for a lock, with the arguments that all of these have. `how` is the fifth.
pub(super) fn begin_ask(
    script: &'static Script,
    lock: LockId<'_>,
    ask: &Ask,
    how: impl ToRedisArgs,
    settings: &ScriptSettings,
) -> Command {
    let mut command = script.with_companions(lock.target.keys());
    command
        .arg(&*ask.owner)
        .arg(ms_rounded_up(ask.lease))
        .arg(ask.fences)
        .arg(ms_rounded_up(settings.fence_memory))
        .arg(how);
    let channel = ask.channel.as_deref().unwrap_or("-");
    match ask.nonce {
        // A grant by message has one fence, or none.
        Some(nonce) => command.arg(format!("{channel} {} {nonce}", ask.fences.min(1))),
        None => command.arg(channel),
    };
    command.arg(ms_rounded_up(ask.pickup_window));
    settings.of_waiters(&mut command);
    command
}

/// Returns the command that ends an owner, at a server or `at_node` of a quorum.
pub(super) fn end(
    lock: LockId<'_>,
    end: &End,
    at_node: bool,
    settings: &ScriptSettings,
) -> Command {
    let (kind, keys) = (lock.kind, lock.target.keys());
    let withdraws = end.how == How::Withdraw;
    if !withdraws && !end.kept_for.is_zero() {
        return keep(lock, end, at_node, settings);
    }
    let script = match kind {
        LockKind::Mutex | LockKind::Multi if at_node => &QUORUM_RELEASE,
        LockKind::Mutex if end.how == How::Release => {
            let mut command = MUTEX_RELEASE.command(1);
            command.arg(keys[0].key()).arg(&*end.owner);
            return command;
        }
        LockKind::Mutex => &MUTEX_HAND_OVER,
        LockKind::Multi => &MULTI_RELEASE,
        LockKind::Read | LockKind::Write | LockKind::Semaphore { .. } if at_node => {
            &QUORUM_SHARE_RELEASE
        }
        LockKind::Read | LockKind::Write | LockKind::Semaphore { .. } => &SHARE_RELEASE,
    };
    let mut command = script.with_companions(keys);
    command.arg(&*end.owner);
    // A grant of several names brings one fence for each, so there are none to give back.
    let block = end.give_back.filter(|_| kind != LockKind::Multi);
    give_back(&mut command, block);
    settings.of_waiters(&mut command);
    match kind {
        LockKind::Multi => {}
        LockKind::Mutex if at_node => {}
        LockKind::Mutex => {
            // A withdrawal ends no lease, so it begins no gap.
            let gap = if withdraws {
                Duration::ZERO
            } else {
                settings.gap_at(&keys[0])
            };
            command.arg(u8::from(withdraws));
            settings.gap(&mut command, gap);
            command.arg(ms_rounded_up(settings.fence_memory));
        }
        LockKind::Read | LockKind::Write | LockKind::Semaphore { .. } => {
            command.arg(u8::from(withdraws)).arg(end.units);
        }
    }
    command
}

/// Returns the command that keeps a lock for a while after the end of its lease. Fences can be given back for a single name
/// only.
fn keep(lock: LockId<'_>, end: &End, at_node: bool, settings: &ScriptSettings) -> Command {
    let script = if at_node { &QUORUM_KEEP } else { &KEEP };
    let keys = lock.target.keys();
    let wakes = end.how == How::HandOver;
    let mut command = if wakes {
        script.with_companions(keys)
    } else {
        let mut command = script.command(keys.len());
        for key in keys {
            command.arg(key.key());
        }
        command
    };
    command
        .arg(&*end.owner)
        .arg(ms_rounded_up(end.kept_for))
        .arg(lock.kind.units_in_key(end.units));
    if wakes {
        give_back(&mut command, end.give_back);
        settings.of_waiters(&mut command);
    }
    command
}

/// Adds the last fence used and the last of its block, or two empty texts.
fn give_back(command: &mut Command, block: Option<GiveBack>) {
    match block {
        Some(GiveBack { used, last }) => command.arg(used).arg(last),
        None => command.arg("").arg(""),
    };
}

/// Returns the command that takes a free lock without a script: a mutex without a fence, for a request that may go before the
/// queue. Returns `None` for another one, and if the mutex may be in a gap, which only the script can see.
pub(super) fn ask_plainly(
    lock: LockId<'_>,
    ask: &Ask,
    settings: &ScriptSettings,
) -> Option<Command> {
    let key = lock.target.first();
    let is_plain = lock.kind == LockKind::Mutex
        && ask.fences == 0
        && ask.takes_free
        && ask.ending.is_none()
        && settings.gap_at(key).is_zero();
    is_plain.then(|| {
        let mut command = Command::new("SET");
        command.arg(key.key()).arg(&*ask.owner);
        command.arg("NX").arg("PX").arg(ms_rounded_up(ask.lease));
        command
    })
}

pub(super) fn release_many(batch: &[(LockId<'_>, &End)]) -> Command {
    let mut command = MUTEX_RELEASE_MANY.command(batch.len());
    for (lock, _) in batch {
        command.arg(lock.target.first().key());
    }
    for (_, end) in batch {
        command.arg(&*end.owner);
    }
    command
}

/// Reads the answer to the release of this number of mutexes.
pub(super) fn released_many(mutexes: usize, value: &Value) -> Option<Reply> {
    match value {
        Array(values) if values.len() == mutexes => values
            .iter()
            .map(|value| match value {
                Int(-2) => Some(Err(NotReleased::Refused)),
                value => released(value).map(Ok),
            })
            .collect::<Option<_>>()
            .map(Reply::Each),
        _ => None,
    }
}

pub(super) fn adopt(key: &LockKey, adopt: &Adopt, settings: &ScriptSettings) -> Command {
    let mut command = MUTEX_ADOPT.command(2);
    command
        .arg(key.key())
        .arg(key.companion(Companion::Fence))
        .arg(&*adopt.owner)
        .arg(ms_rounded_up(adopt.lease))
        .arg(ms_rounded_up(settings.fence_memory))
        .arg(&*adopt.from)
        .arg(adopt.last)
        .arg(u8::from(adopt.fencing))
        .arg(u8::from(adopt.shortens));
    command
}

/// The smallest fence: a time of 1970, in microseconds. A fence is at least the server's time, so the `1` that answers a
/// release is none.
const SMALLEST_FENCE: u64 = 1_000_000_000_000;

/// Returns the fence of a grant. With `fencing`, it must be a time of the server, and a number that a script counts exactly.
/// Otherwise the next grant could have the same. Without, it must be 0.
pub(super) fn fence(fencing: bool, value: &Value) -> Option<u64> {
    let Int(fence) = value else {
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
pub(super) fn granted(names: usize, fencing: bool, value: &Value) -> Option<Reply> {
    let fence_of = |value: &Value| fence(fencing, value);
    let grant = |first: &Value, rest: &[Value], contended: i64| {
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
        Int(-1) => Some(Reply::NotOwner(Gone::Removed)),
        Int(-2) => Some(Reply::NotOwner(Gone::Taken)),
        Int(_) => grant(value, &[], 0),
        Array(parts) => match parts.as_slice() {
            [Int(0), Int(ttl), BulkString(holder), rest @ ..] if matches!(rest, [] | [Int(1)]) => {
                Some(Reply::Held {
                    ttl: u64::try_from(*ttl).ok().map(Duration::from_millis),
                    holder: String::from_utf8_lossy(holder).into(),
                    handed_over: !rest.is_empty(),
                })
            }
            [Int(-2), Int(others), reply] => Some(Reply::Differs {
                others: u32::try_from(*others).ok()?,
                reply: Box::new(granted(names, fencing, reply)?),
            }),
            [Int(_), Int(2)] => Some(Reply::Shared),
            [first, rest @ .., Int(contended @ (0 | 1))] => grant(first, rest, *contended),
            _ => None,
        },
        _ => None,
    }
}

/// Reads the answer to a request that gives something up.
pub(super) fn released(value: &Value) -> Option<Reply> {
    match value {
        Int(1) => Some(Reply::Released),
        Int(2) => Some(Reply::Contended),
        Int(3) => Some(Reply::HandedOver),
        Int(0) => Some(Reply::NotOwner(Gone::Removed)),
        Int(-1) => Some(Reply::NotOwner(Gone::Taken)),
        _ => None,
    }
}
