//! What is said to Redis, and what it answers.
//!
//! A [`Call`] is data: the store sends it, a simulator can carry it out itself, and nothing above this module
//! knows a script's arguments. Each script is a file; its header states keys, arguments, reply, and why it
//! may be repeated. Names and owners travel as `KEYS` and `ARGV`, never as script text.

use std::time::Duration;

use once_cell::sync::Lazy;
use redis::Value;

use crate::error::{Failure, FailureKind};
use crate::name::{Companion, LockKey};
use crate::sync::Arc;

/// How long a process in a queue is believed alive without a sign of it: three polls.
const WAITER_LIFE: Duration = Duration::from_secs(3);

/// The shortest claim window.
const LEAST_CLAIM: Duration = Duration::from_millis(250);

/// Something to ask of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    /// Whether anybody is there.
    Ping,
    /// Something about one lock.
    Lock {
        kind: Kind,
        key: &'a LockKey,
        verb: &'a Verb,
    },
    /// The renewal of many leases.
    Renew(&'a [Renewal]),
}

/// The kinds of lock that Redis is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Mutex,
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
    /// End the tenure of `from` in favour of whoever waits in another process, or else of this one again.
    TakeOver {
        ask: Ask,
        from: Arc<str>,
        give_back: Option<GiveBack>,
    },
    /// Give up a lock that nobody is known to wait for.
    Release { owner: Arc<str> },
    /// Give the lock to the first waiter.
    HandOver {
        owner: Arc<str>,
        give_back: Option<GiveBack>,
    },
    /// Give up whatever this owner may have: the lock, or its place in the queue.
    Cancel { owner: Arc<str> },
}

impl Verb {
    /// The owner that it is about.
    pub(crate) fn owner(&self) -> &Arc<str> {
        match self {
            Self::Acquire { ask, .. } | Self::TakeOver { ask, .. } => &ask.owner,
            Self::Release { owner } | Self::HandOver { owner, .. } | Self::Cancel { owner } => {
                owner
            }
        }
    }

    /// Whether it leaves its owner in the queue where the lock is held.
    pub(crate) fn queues(&self) -> bool {
        match self {
            Self::Acquire { ask, .. } | Self::TakeOver { ask, .. } => ask.channel.is_some(),
            Self::Release { .. } | Self::HandOver { .. } | Self::Cancel { .. } => false,
        }
    }
}

/// What a grant is asked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) owner: Arc<str>,
    pub(crate) lease: Duration,
    /// How many fences to reserve.
    pub(crate) fences: u64,
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
pub(crate) struct Renewal {
    pub(crate) key: LockKey,
    pub(crate) owner: Arc<str>,
    pub(crate) lease: Duration,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Pong,
    Granted {
        fence: u64,
        /// Whether processes wait for it.
        contended: bool,
    },
    Held {
        /// How long the holder's lease still runs; none where it has no end, or is about to.
        ttl: Option<Duration>,
        holder: Arc<str>,
    },
    Released,
    /// Not released: processes wait, so it must be handed over.
    Contended,
    /// Not released: this owner did not hold it any more.
    NotOwner(Gone),
    Renewed(Vec<Renewed>),
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
}

impl Wire {
    pub(crate) fn new(fence_memory: Duration, io_timeout: Duration) -> Self {
        Self {
            fence_memory,
            // Time for the message, or a poll, and for a request that has to be repeated.
            claim_window: Duration::from_secs(1).max(io_timeout * 2),
        }
    }

    /// The claim window of a waiter: no longer than its lease, so that one that crashes with the lock handed to
    /// it delays the others by no more than that; but long enough for a busy machine to wake up in.
    fn claim(&self, lease: Duration) -> Duration {
        lease.max(LEAST_CLAIM).min(self.claim_window)
    }
}

/// A script: its text, and the digest by which a server that has it knows it.
struct Script {
    text: &'static str,
    digest: Lazy<redis::Script>,
}

macro_rules! script {
    ($($part:literal),+) => {
        Script {
            text: concat!($(include_str!($part)),+),
            digest: Lazy::new(|| redis::Script::new(concat!($(include_str!($part)),+))),
        }
    };
}

static ACQUIRE: Script = script!("fence.lua", "mutex_take.lua", "queue.lua", "mutex_wait.lua");
static QUANTUM: Script = script!(
    "fence.lua",
    "queue.lua",
    "mutex_quantum.lua",
    "mutex_wait.lua"
);
static RELEASE: Script = script!("mutex_release.lua");
static HAND_OVER: Script = script!("queue.lua", "mutex_handover.lua");
static RENEW: Script = script!("renew.lua");

/// How a script is named to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// By its digest; a server that does not have it answers `NOSCRIPT`.
    Digest,
    /// By its text, which the server then keeps.
    Text,
}

impl Call<'_> {
    /// The command to send.
    pub(crate) fn command(&self, by: By, wire: &Wire) -> redis::Cmd {
        match self {
            Call::Ping => redis::cmd("PING"),
            Call::Lock {
                kind: Kind::Mutex,
                key,
                verb,
            } => mutex(key, verb, by, wire),
            Call::Renew(batch) => {
                let mut command = RENEW.command(by, batch.len());
                for renewal in *batch {
                    command.arg(renewal.key.key());
                }
                for renewal in *batch {
                    command.arg(&*renewal.owner).arg(ms(renewal.lease));
                }
                command
            }
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
            (Call::Lock { verb, .. }, value) => match verb {
                Verb::Acquire { .. } | Verb::TakeOver { .. } => grant(&value),
                Verb::Release { .. } | Verb::HandOver { .. } | Verb::Cancel { .. } => match value {
                    Value::Int(1) => Some(Reply::Released),
                    Value::Int(2) => Some(Reply::Contended),
                    Value::Int(0) => Some(Reply::NotOwner(Gone::Removed)),
                    Value::Int(-1) => Some(Reply::NotOwner(Gone::Taken)),
                    _ => None,
                },
            },
            _ => None,
        };
        reply.ok_or_else(|| {
            let words = "an answer of a form that was not asked for";
            Failure::plain(FailureKind::Protocol, true, words)
        })
    }
}

fn mutex(key: &LockKey, verb: &Verb, by: By, wire: &Wire) -> redis::Cmd {
    let with_companions = |of: &Script| {
        let mut command = of.command(by, 4);
        command.arg(key.key());
        for which in [Companion::Fence, Companion::Queue, Companion::Waiters] {
            command.arg(key.companion(which));
        }
        command
    };
    let ask = |command: &mut redis::Cmd, ask: &Ask, how: &str| {
        command
            .arg(&*ask.owner)
            .arg(ms(ask.lease))
            .arg(ask.fences)
            .arg(ms(wire.fence_memory))
            .arg(how)
            .arg(ask.channel.as_deref().unwrap_or("-"))
            .arg(ms(wire.claim(ask.lease)))
            .arg(ms(WAITER_LIFE))
            .arg(HEARD);
    };
    let unused = |command: &mut redis::Cmd, block: &Option<GiveBack>| match block {
        Some(GiveBack { used, last }) => {
            command.arg(used).arg(last);
        }
        None => {
            command.arg("").arg("");
        }
    };
    let hand_over = |owner: &str, give_back: &Option<GiveBack>, queued: bool| {
        let mut command = with_companions(&HAND_OVER);
        command.arg(owner);
        unused(&mut command, give_back);
        command
            .arg(ms(WAITER_LIFE))
            .arg(HEARD)
            .arg(u8::from(queued));
        command
    };
    match verb {
        Verb::Acquire { ask: what, at_once } => {
            let mut command = with_companions(&ACQUIRE);
            ask(&mut command, what, if *at_once { "take" } else { "poll" });
            command
        }
        Verb::TakeOver {
            ask: what,
            from,
            give_back,
        } => {
            let mut command = with_companions(&QUANTUM);
            ask(&mut command, what, "poll");
            command.arg(&**from);
            unused(&mut command, give_back);
            command
        }
        Verb::Release { owner } => {
            let mut command = RELEASE.command(by, 1);
            command.arg(key.key()).arg(&**owner);
            command
        }
        Verb::HandOver { owner, give_back } => hand_over(owner, give_back, false),
        Verb::Cancel { owner } => hand_over(owner, &None, true),
    }
}

/// One server counts all that hear a message.
const HEARD: &str = "1";

impl Script {
    fn command(&self, by: By, keys: usize) -> redis::Cmd {
        // Room for the longest mutex call with an ordinary name, so that it is built without growing.
        let mut command = redis::Cmd::with_capacity(20, 640);
        match by {
            By::Digest => command.arg("EVALSHA").arg(self.digest.get_hash()),
            By::Text => command.arg("EVAL").arg(self.text),
        };
        command.arg(keys);
        command
    }
}

fn ms(length: Duration) -> u64 {
    // Settings are bounded far below this; rounded up, because a time to live of zero is an error.
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn grant(value: &Value) -> Option<Reply> {
    let granted = |fence: i64, contended| {
        let fence = u64::try_from(fence).ok().filter(|fence| *fence > 0)?;
        Some(Reply::Granted { fence, contended })
    };
    match value {
        Value::Int(fence) => granted(*fence, false),
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(0), Value::Int(ttl), Value::BulkString(holder)] => Some(Reply::Held {
                ttl: u64::try_from(*ttl)
                    .ok()
                    .filter(|ttl| *ttl > 0)
                    .map(Duration::from_millis),
                holder: String::from_utf8_lossy(holder).into(),
            }),
            [Value::Int(fence), Value::Int(1)] => granted(*fence, true),
            _ => None,
        },
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
    use crate::name::MARK;

    fn key() -> LockKey {
        LockKey::new("", "n").expect("a name")
    }

    fn acquire() -> Verb {
        Verb::Acquire {
            ask: Ask {
                owner: "lh1:u:l".into(),
                lease: Duration::from_nanos(10_000_001),
                fences: 1,
                channel: None,
            },
            at_once: true,
        }
    }

    #[test]
    fn the_mark_of_the_scripts_is_the_mark_of_the_names() {
        let queue = include_str!("queue.lua");
        assert!(queue.contains(&format!("local MARK = '{MARK}'")));
        assert!(include_str!("mutex_release.lua").contains(&format!("'{MARK}'")));
        assert!(include_str!("renew.lua").contains(&format!("'{MARK}'")));
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
        let odd = LockKey::new("", "'..redis.call('FLUSHALL')..'").expect("a name");
        let call = Call::Lock {
            kind: Kind::Mutex,
            key: &odd,
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
        assert_eq!(parts[3], odd.key());
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
        let renewal = Renewal {
            key: key(),
            owner: Arc::clone(&owner),
            lease: Duration::from_secs(1),
        };
        assert_eq!(keys(Call::Renew(&[renewal.clone(), renewal])), "2");
        let (key, release) = (key(), Verb::Release { owner });
        let call = Call::Lock {
            kind: Kind::Mutex,
            key: &key,
            verb: &release,
        };
        assert_eq!(keys(call), "1");
    }

    #[test]
    fn hostile_replies_are_refused_not_believed() {
        let (key, verb) = (key(), acquire());
        let call = Call::Lock {
            kind: Kind::Mutex,
            key: &key,
            verb: &verb,
        };
        for value in [
            Value::Nil,
            Value::Okay,
            Value::Int(0),
            Value::Int(-5),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(5), Value::Int(2)]),
            Value::Array(vec![Value::Int(0), Value::Int(1), Value::Int(1)]),
        ] {
            let failure = call.reply(value.clone()).expect_err("no grant");
            assert_eq!(failure.kind, FailureKind::Protocol, "{value:?}");
        }
        let release = Verb::Release {
            owner: "lh1:u:l".into(),
        };
        let call = Call::Lock {
            kind: Kind::Mutex,
            key: &key,
            verb: &release,
        };
        assert!(call.reply(Value::Int(7)).is_err());
        assert!(
            Call::Renew(&[])
                .reply(Value::Array(vec![Value::Int(1)]))
                .is_err()
        );
    }
}
