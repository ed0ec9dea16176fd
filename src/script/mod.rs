//! What is said to Redis, and what it answers.
//!
//! A [`Call`] is data: the store sends it, a simulator can carry it out itself, and nothing above this module
//! knows a script's arguments. Each script is a file; its header states keys, arguments, reply, and why it
//! may be repeated. Names and owners travel as `KEYS` and `ARGV`, never as script text.
//!
//! | module | its kinds |
//! | --- | --- |
//! | `mutex` | the mutex: a plain string, the de-facto format |
//! | `share` | readers and writers, permits: the leases of several owners in one sorted set |
//! | `multi` | several mutexes, all or none |
//! | `rate` | the rate limiter, which is no lock |
//! | `operators` | none: it looks at locks of any kind, and breaks them |

use std::time::Duration;

use redis::Value;

use crate::error::{Failure, FailureKind};
use crate::name::{LARGEST_FENCE, LockKey, Target};
use crate::sync::Arc;

pub(crate) use kind::{ALL, Kind, Sharing};
pub(crate) use operators::{Cursor, Seen, pattern_of};
pub(crate) use text::By;

mod kind;
mod multi;
mod mutex;
mod operators;
mod rate;
mod share;
mod text;

/// The shortest claim window.
const LEAST_CLAIM: Duration = Duration::from_millis(250);
/// The claim window of a long lease, unless `io_timeout` asks for a longer one.
const ORDINARY_CLAIM: Duration = Duration::from_secs(1);

/// The least that the claim window of a waiter with this lease can be, whatever `io_timeout` is.
pub(crate) fn shortest_claim_window(lease: Duration) -> Duration {
    lease.clamp(LEAST_CLAIM, ORDINARY_CLAIM)
}

/// Something to ask of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    /// Whether anybody is there.
    Ping,
    /// Something about one lock.
    Lock {
        kind: Kind,
        target: &'a Target,
        verb: &'a Verb,
    },
    /// The renewal of many leases.
    Renew(&'a [Renewal<'a>]),
    /// The release of many mutexes that nobody is known to wait for.
    Release(&'a [PlainRelease<'a>]),
    /// To be let past a rate limiter.
    Pass { key: &'a LockKey, pass: Pass },
    /// To give a mutex that was detached a new owner.
    Adopt { key: &'a LockKey, adopt: &'a Adopt },
    /// Who holds locks of any kind. Unless they are `named`, the keys may be anything of the user's.
    Inspect { keys: &'a [LockKey], named: bool },
    /// Some of the keys that a pattern matches.
    Scan { from: Cursor, pattern: &'a str },
    /// To break one owner's hold on a lock of any kind.
    ForceRelease { key: &'a LockKey, owner: &'a str },
}

/// What a claim is adopted on. It brings one fence: threads that wait already stand behind one who asks Redis, and so are
/// passed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adopt {
    /// The new owner.
    pub(crate) owner: Arc<str>,
    pub(crate) lease: Duration,
    /// The owner that was detached.
    pub(crate) from: Arc<str>,
    /// The fence of its last guard.
    pub(crate) last: u64,
}

/// What is asked of a rate limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) permits: u32,
    pub(crate) per: Duration,
    /// How long a wait is worth a place in the line.
    pub(crate) patience: Duration,
}

/// What can be asked about one lock. Every verb but `Acquire` and `TakeOver` only ever gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Ask for the lock.
    Acquire {
        ask: Ask,
        /// Whether a free lock is taken at once, or given to the first in the queue.
        at_once: bool,
    },
    /// End the tenure of `from` in favour of whoever waits in another process, or else of this one again. Asked by
    /// a reader, `from` is a writer that becomes it.
    TakeOver {
        ask: Ask,
        from: Arc<str>,
        give_back: Option<GiveBack>,
    },
    /// Give up a lock that nobody is known to wait for.
    Release { owner: Arc<str>, units: u32 },
    /// Give the lock to the first waiter.
    HandOver {
        owner: Arc<str>,
        units: u32,
        give_back: Option<GiveBack>,
    },
    /// Give up a lock, and keep it from everybody for `life` from now (`min_hold`).
    Keep {
        owner: Arc<str>,
        units: u32,
        life: Duration,
        give_back: Option<GiveBack>,
    },
    /// Give up whatever this owner may have: the lock, or its place in the queue.
    Cancel { owner: Arc<str>, units: u32 },
}

impl Verb {
    /// The owner that it is about.
    pub(crate) fn owner(&self) -> &Arc<str> {
        match self {
            Self::Acquire { ask, .. } | Self::TakeOver { ask, .. } => &ask.owner,
            Self::Release { owner, .. }
            | Self::HandOver { owner, .. }
            | Self::Keep { owner, .. }
            | Self::Cancel { owner, .. } => owner,
        }
    }

    /// Whether it leaves its owner in the queue where the lock is held.
    pub(crate) fn queues(&self) -> bool {
        match self {
            Self::Acquire { ask, .. } | Self::TakeOver { ask, .. } => ask.channel.is_some(),
            Self::Release { .. }
            | Self::HandOver { .. }
            | Self::Keep { .. }
            | Self::Cancel { .. } => false,
        }
    }
}

/// What a grant is asked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) owner: Arc<str>,
    /// How much of the lock.
    pub(crate) units: u32,
    pub(crate) lease: Duration,
    /// How many fences to reserve.
    pub(crate) fences: u64,
    /// An owner of this process's whose lease may be shared instead, if nobody waits for the lock.
    pub(crate) beside: Option<Arc<str>>,
    /// The channel to be woken on; where there is none, a held lock is not queued for.
    pub(crate) channel: Option<Arc<str>>,
}

/// What the server needs to take the unused part of a block of fences back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GiveBack {
    /// The last fence that was given to a guard.
    pub(crate) used: u64,
    /// The last fence of the block: where the server's record stands, unless somebody took it further.
    pub(crate) last: u64,
}

/// One lease to renew.
#[derive(Clone, Debug)]
pub(crate) struct Renewal<'a> {
    pub(crate) kind: Kind,
    pub(crate) key: &'a LockKey,
    pub(crate) owner: String,
    pub(crate) units: u32,
    pub(crate) lease: Duration,
}

/// One mutex to release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRelease<'a> {
    pub(crate) key: &'a LockKey,
    pub(crate) owner: &'a str,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Pong,
    Granted {
        fence: u64,
        /// The fences of the further names, where there are several.
        rest: Vec<u64>,
        /// Whether processes wait for it.
        contended: bool,
    },
    /// Not granted, but nobody waits: the lease that was asked for beside may be shared for another while.
    Shared,
    Held {
        /// How long the holder's lease still runs; none where it has no end, or is about to.
        ttl: Option<Duration>,
        holder: Arc<str>,
    },
    Released,
    /// Released, and given to who was first in the queue.
    HandedOver,
    /// Not released: processes wait, so it must be handed over.
    Contended,
    /// Not released: this owner did not hold it any more.
    NotOwner(Gone),
    /// Not granted: others divide the lock into so many units.
    Differs(u32),
    Renewed(Vec<Renewed>),
    /// What became of each release; none where the server refused it.
    Each(Vec<Option<Reply>>),
    /// Past the rate limiter, once so much time has gone by.
    Passed(Duration),
    /// Not past it: so much time would have to go by.
    NotPassed(Duration),
    /// What there is to be seen of each lock.
    /// Of what was found, perhaps only of the first: the others are to be asked about again.
    Inspected(Vec<Option<Seen>>),
    /// Some keys, and where to go on.
    Page {
        keys: Vec<Vec<u8>>,
        next: Option<Cursor>,
    },
}

impl Reply {
    /// What is said of each lease, where this is the answer to a renewal.
    pub(crate) fn renewed(self) -> Result<Vec<Renewed>, Failure> {
        match self {
            Self::Renewed(said) => Ok(said),
            _ => Err(Failure::another_question()),
        }
    }

    /// Whether somebody relies on what was written for it.
    pub(crate) fn is_gain(&self) -> bool {
        match self {
            Self::Granted { .. } | Self::Shared => true,
            Self::Renewed(said) => said.iter().any(|said| matches!(said, Renewed::Done { .. })),
            _ => false,
        }
    }
}

/// Where a lock went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The key is not there.
    Removed,
    /// Another owner's name stands in it.
    Taken,
}

/// What became of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Done { contended: bool },
    Gone(Gone),
    Refused,
}

/// The settings that travel with every call.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) fence_memory: Duration,
    /// How long a lock that was handed over waits for its new holder, at the most.
    claim_window: Duration,
    /// How long a contended mutex is left free once in `quantum`, for clients that poll.
    poller_gap: Duration,
    quantum: Duration,
}

impl Wire {
    pub(crate) fn new(fence_memory: Duration, io_timeout: Duration) -> Self {
        Self {
            fence_memory,
            // Time for the message, or a poll, and for a request that has to be repeated.
            claim_window: ORDINARY_CLAIM.max(io_timeout * 2),
            poller_gap: Duration::ZERO,
            quantum: Duration::ZERO,
        }
    }

    pub(crate) fn with_gap(self, poller_gap: Duration, quantum: Duration) -> Self {
        Self {
            poller_gap,
            quantum,
            ..self
        }
    }

    /// Adds what `gap.lua` wants to know. Without `may_leave` there is no gap.
    fn gap(&self, command: &mut redis::Cmd, may_leave: bool) {
        let gap = if may_leave { ms(self.poller_gap) } else { 0 };
        command.arg(gap).arg(ms(self.quantum));
    }

    /// The claim window of a waiter: no longer than its lease, so that one that crashes with the lock handed to
    /// it delays the others by no more than that; but long enough for a busy machine to wake up in.
    fn claim(&self, lease: Duration) -> Duration {
        lease.max(LEAST_CLAIM).min(self.claim_window)
    }
}

impl Call<'_> {
    /// Whether it is about what this process holds: a lease would end without it, or others wait for what it gives back.
    pub(crate) fn is_of_a_holder(&self) -> bool {
        match self {
            Call::Lock { verb, .. } => !matches!(verb, Verb::Acquire { .. }),
            Call::Renew(_) | Call::Release(_) => true,
            _ => false,
        }
    }

    /// The command to send.
    pub(crate) fn command(&self, by: By, wire: &Wire) -> redis::Cmd {
        match self {
            Call::Ping => redis::cmd("PING"),
            Call::Lock { kind, target, verb } => match kind {
                Kind::Mutex => mutex::command(target.first(), verb, by, wire),
                Kind::Read | Kind::Write | Kind::Semaphore { .. } => {
                    share::command(*kind, target.first(), verb, by, wire)
                }
                Kind::Multi => multi::command(target.keys(), verb, by, wire),
            },
            Call::Renew(batch) => {
                let mut command = text::RENEW.command(by, batch.len());
                for renewal in *batch {
                    command.arg(renewal.key.key());
                }
                for renewal in *batch {
                    let shares = match renewal.kind {
                        Kind::Mutex | Kind::Multi => 0,
                        Kind::Read | Kind::Write | Kind::Semaphore { .. } => renewal.units,
                    };
                    let owner = renewal.owner.as_str();
                    command.arg(owner).arg(ms(renewal.lease)).arg(shares);
                }
                command
            }
            Call::Release(batch) => mutex::release_many(batch, by),
            Call::Pass { key, pass } => rate::command(key, pass, by),
            Call::Adopt { key, adopt } => mutex::adopt(key, adopt, by, wire),
            Call::Inspect { keys, named } => operators::inspect(keys, *named, by),
            Call::Scan { from, pattern } => operators::scan(*from, pattern),
            Call::ForceRelease { key, owner } => operators::force_release(key, owner, by),
        }
    }

    /// Reads the answer to this call.
    ///
    /// # Errors
    ///
    /// A [`FailureKind::Protocol`] of unknown outcome where it is no answer to it.
    pub(crate) fn reply(&self, value: Value) -> Result<Reply, Failure> {
        let reply = match (self, value) {
            (Call::Ping, Value::SimpleString(_) | Value::BulkString(_)) => Some(Reply::Pong),
            (Call::Renew(batch), Value::Array(values)) if values.len() == batch.len() => values
                .iter()
                .map(renewed)
                .collect::<Option<_>>()
                .map(Reply::Renewed),
            (Call::Release(batch), Value::Array(values)) if values.len() == batch.len() => values
                .iter()
                .map(|value| match value {
                    Value::Int(-2) => Some(None),
                    value => released(value).map(Some),
                })
                .collect::<Option<_>>()
                .map(Reply::Each),
            (Call::Pass { pass, .. }, value) => rate::reply(pass, &value),
            (Call::Adopt { .. }, value) => grant(1, &value),
            (Call::Inspect { keys, named }, value) => {
                operators::inspected(keys.len(), *named, value)
            }
            (Call::Scan { .. }, value) => operators::page(value),
            (Call::ForceRelease { .. }, Value::Int(1)) => Some(Reply::Released),
            (Call::ForceRelease { .. }, Value::Int(0)) => Some(Reply::NotOwner(Gone::Removed)),
            (Call::Lock { verb, target, .. }, value) => match verb {
                Verb::Acquire { .. } | Verb::TakeOver { .. } => grant(target.keys().len(), &value),
                Verb::Release { .. }
                | Verb::HandOver { .. }
                | Verb::Keep { .. }
                | Verb::Cancel { .. } => released(&value),
            },
            _ => None,
        };
        reply.ok_or_else(|| {
            let words = "the answer does not have the form of a reply to this request";
            Failure::plain(FailureKind::Protocol, true, words)
        })
    }
}

fn ms(length: Duration) -> u64 {
    // Settings are bounded far below this; rounded up, because a time to live of zero is an error.
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Reads the answer to who asks for a lock of so many names, each of which has a fence.
fn grant(names: usize, value: &Value) -> Option<Reply> {
    let fence_of = |value: &Value| match value {
        Value::Int(fence) => u64::try_from(*fence)
            .ok()
            // A larger one was not counted exactly: the one after it could be the same.
            .filter(|fence| (1..=LARGEST_FENCE).contains(fence)),
        _ => None,
    };
    let granted = |first: &Value, rest: &[Value], contended: i64| {
        if rest.len() + 1 != names {
            return None;
        }
        Some(Reply::Granted {
            fence: fence_of(first)?,
            rest: rest.iter().map(fence_of).collect::<Option<_>>()?,
            contended: contended == 1,
        })
    };
    match value {
        Value::Int(-1) => Some(Reply::NotOwner(Gone::Removed)),
        Value::Int(-2) => Some(Reply::NotOwner(Gone::Taken)),
        Value::Int(_) => granted(value, &[], 0),
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(0), Value::Int(ttl), Value::BulkString(holder)] => Some(Reply::Held {
                ttl: u64::try_from(*ttl)
                    .ok()
                    .filter(|ttl| *ttl > 0)
                    .map(Duration::from_millis),
                holder: String::from_utf8_lossy(holder).into(),
            }),
            [Value::Int(-2), Value::Int(stored)] => {
                Some(Reply::Differs(u32::try_from(*stored).ok()?))
            }
            [Value::Int(_), Value::Int(2)] => Some(Reply::Shared),
            [first, rest @ .., Value::Int(contended @ (0 | 1))] => granted(first, rest, *contended),
            _ => None,
        },
        _ => None,
    }
}

fn released(value: &Value) -> Option<Reply> {
    match value {
        Value::Int(1) => Some(Reply::Released),
        Value::Int(2) => Some(Reply::Contended),
        Value::Int(3) => Some(Reply::HandedOver),
        Value::Int(0) => Some(Reply::NotOwner(Gone::Removed)),
        Value::Int(-1) => Some(Reply::NotOwner(Gone::Taken)),
        _ => None,
    }
}

fn renewed(value: &Value) -> Option<Renewed> {
    match value {
        Value::Int(1) => Some(Renewed::Done { contended: false }),
        Value::Int(2) => Some(Renewed::Done { contended: true }),
        Value::Int(0) => Some(Renewed::Gone(Gone::Removed)),
        Value::Int(-1) => Some(Renewed::Gone(Gone::Taken)),
        Value::Int(-2) => Some(Renewed::Refused),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::{self, MARK, MAX_LABEL};
    use crate::random::SystemChance;

    fn target(name: &str) -> Target {
        LockKey::new("", name).expect("a name").into()
    }

    fn acquire() -> Verb {
        Verb::Acquire {
            ask: Ask {
                owner: "lh1:u:l".into(),
                units: 1,
                lease: Duration::from_nanos(10_000_001),
                fences: 1,
                beside: None,
                channel: None,
            },
            at_once: true,
        }
    }

    #[test]
    fn the_mark_of_the_scripts_is_the_mark_of_the_names() {
        let value = include_str!("lua/value.lua");
        assert!(value.contains(&format!("local MARK = '{MARK}'")));
    }

    #[test]
    fn no_owner_is_as_long_as_the_part_of_a_value_that_scripts_read() {
        let longest =
            owner::generate(&SystemChance::new(), &"x".repeat(MAX_LABEL)).len() + MARK.len_utf8();
        let value = include_str!("lua/value.lua");
        let (_, read) = value
            .split_once("local MOST_OF_VALUE = ")
            .expect("it is set");
        let (read, _) = read.split_once('\n').expect("a line");
        assert!(longest < read.parse().expect("a number"));
    }

    #[test]
    fn times_are_rounded_up_to_whole_milliseconds() {
        assert_eq!(ms(Duration::from_nanos(10_000_001)), 11);
        assert_eq!(ms(Duration::from_nanos(1)), 1);
        assert_eq!(ms(Duration::MAX), u64::MAX);
    }

    #[test]
    fn names_and_owners_are_never_script_text() {
        let wire = Wire::new(Duration::from_mins(10), Duration::from_secs(1));
        let verb = acquire();
        let odd = target("'..redis.call('FLUSHALL')..'");
        let call = Call::Lock {
            kind: Kind::Mutex,
            target: &odd,
            verb: &verb,
        };
        let command = call.command(By::Text, &wire);
        let parts: Vec<_> = command
            .args_iter()
            .map(|part| match part {
                redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            })
            .collect();
        assert_eq!(parts[0], "EVAL");
        assert!(!parts[1].contains("FLUSHALL"));
        assert_eq!(parts[2], "4");
        assert_eq!(parts[3], odd.first().key());
    }

    /// A slot of a cluster that is being moved answers `TRYAGAIN` where a companion is not there.
    #[test]
    fn renewal_and_plain_release_declare_the_locks_key_alone() {
        let wire = Wire::new(Duration::from_mins(10), Duration::from_secs(1));
        let keys = |call: Call<'_>| {
            let command = call.command(By::Digest, &wire);
            let count = command.args_iter().nth(2);
            match count {
                Some(redis::Arg::Simple(count)) => String::from_utf8_lossy(count).into_owned(),
                _ => String::new(),
            }
        };
        let owner: Arc<str> = "lh1:u:l".into();
        let key = target("n").first().clone();
        let renewal = Renewal {
            kind: Kind::Mutex,
            key: &key,
            owner: owner.to_string(),
            units: 1,
            lease: Duration::from_secs(1),
        };
        assert_eq!(keys(Call::Renew(&[renewal.clone(), renewal])), "2");
        let (target, release) = (target("n"), Verb::Release { owner, units: 1 });
        let call = Call::Lock {
            kind: Kind::Mutex,
            target: &target,
            verb: &release,
        };
        assert_eq!(keys(call), "1");
    }

    #[test]
    fn hostile_replies_are_refused_not_believed() {
        let (target, verb) = (target("n"), acquire());
        let call = Call::Lock {
            kind: Kind::Mutex,
            target: &target,
            verb: &verb,
        };
        for value in [
            Value::Nil,
            Value::Okay,
            Value::Int(0),
            Value::Int(-5),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(5), Value::Int(3)]),
            Value::Array(vec![Value::Int(0), Value::Int(1), Value::Int(1)]),
            // Beyond what a script counts exactly.
            Value::Int(1 << 53),
            Value::Int(i64::MAX),
            // The fences of two names.
            Value::Array([5, 6, 0].map(Value::Int).into()),
        ] {
            let failure = call.reply(value.clone()).expect_err("no grant");
            assert_eq!(failure.kind, FailureKind::Protocol, "{value:?}");
        }
        let release = Verb::Release {
            owner: "lh1:u:l".into(),
            units: 1,
        };
        let call = Call::Lock {
            kind: Kind::Mutex,
            target: &target,
            verb: &release,
        };
        assert!(call.reply(Value::Int(7)).is_err());
        // To each name its fence.
        let keys = ["a", "b"].map(|name| LockKey::new("", name).expect("a name"));
        let target = Target::all(keys.into()).expect("two names");
        let call = Call::Lock {
            kind: Kind::Multi,
            target: &target,
            verb: &verb,
        };
        for (fences, is_one_each) in [(&[5][..], false), (&[5, 6], true), (&[5, 6, 7], false)] {
            let parts = fences.iter().chain(&[0]).copied().map(Value::Int);
            let reply = call.reply(Value::Array(parts.collect()));
            assert_eq!(reply.is_ok(), is_one_each, "{fences:?}");
        }
        assert!(
            Call::Renew(&[])
                .reply(Value::Array(vec![Value::Int(1)]))
                .is_err()
        );
    }
}
