//! The requests of the sequences that `tests/compare.rs` compares: commands, scripts, and what leasehold sends.
//!
//! This package compiles `wire/` of the library and the layers below it for itself, to make the requests of leasehold. The Redis in memory is that of the test kit, which links the library: only bytes go from here to there.

#![allow(
    dead_code,
    unused_imports,
    reason = "the library uses all of it, this a part"
)]

#[path = "../../src/config/mod.rs"]
mod config;
#[path = "../../src/error/mod.rs"]
mod error;
#[path = "../../src/event.rs"]
mod event;
#[path = "../../src/name.rs"]
mod name;
#[path = "../../src/owner.rs"]
mod owner;
#[path = "../../src/panics.rs"]
mod panics;
#[path = "../../src/stats/mod.rs"]
mod stats;
#[path = "../../src/sys/mod.rs"]
mod sys;
#[path = "../../src/wire/mod.rs"]
mod wire;

use std::time::Duration;

use crate::name::{LockKey, Target};
use crate::sys::{Arc, Machine};
use crate::wire::quorum::{self, LockId, NodeGiveBack, Reserved};
use crate::wire::{
    AcquireMode, Adopt, Ask, GiveBack, Keep, LockKind, Nonce, PlainRelease, RateRequest, Renewal,
    Request, Verb,
};
use crate::wire::{Command, ScriptSettings};

/// So long that nothing expires during a test.
const LONG: Duration = Duration::from_secs(36_000);

/// Commands. A word in braces stands for one of several: see [`word`].
const TEMPLATES: &[&str] = &[
    "SET {k} {v}",
    "SET {k} {v} {set} PX {ms}",
    "SET {k} {v} {set} {set}",
    "SET {k} {v} PXAT {n}",
    "SET {k} {v} EX {s}",
    "GET {k}",
    "APPEND {k} {v}",
    "STRLEN {k}",
    "GETRANGE {k} {n} {n}",
    "INCR {k}",
    "DEL {k} {k}",
    "EXISTS {k} {k}",
    "TYPE {k}",
    "PEXPIRE {k} {ms} {ttl}",
    "PEXPIRE {k} {ms}",
    "PEXPIRE {k} {p}",
    "PEXPIREAT {k} {n} {ttl}",
    "PEXPIREAT {k} {n}",
    "PTTL {k}",
    "HSET {k} {f} {v}",
    "HSET {k} {f} {v} {f} {v}",
    "HSET {k} {f} {v} {f}",
    "HGET {k} {f}",
    "HDEL {k} {f} {f}",
    "HLEN {k}",
    "HGETALL {k}",
    "RPUSH {k} {v} {v}",
    "LPOP {k}",
    "LPOP {k} {n}",
    "LLEN {k}",
    "LINDEX {k} {n}",
    "LSET {k} {n} {v}",
    "LRANGE {k} {n} {n}",
    "ZADD {k} {n} {f}",
    "ZADD {k} {n} {f} {n} {f}",
    "ZADD {k} {z} {n} {f} {n} {f}",
    "ZADD {k} {z} {z} {n} {f}",
    "ZADD {k} INCR {n} {f}",
    "ZADD {k} {x} {f}",
    "ZREM {k} {f} {f}",
    "ZCARD {k}",
    "ZSCORE {k} {f}",
    "ZPOPMIN {k}",
    "ZPOPMIN {k} {n}",
    "ZRANGE {k} {n} {n}",
    "ZRANGE {k} {n} {n} WITHSCORES",
    "ZRANGE {k} {n} {n} REV",
    "ZRANGE {k} {b} {b} BYSCORE WITHSCORES",
    "ZRANGE {k} {b} {b} BYSCORE REV",
    "ZRANGE {k} {b} {b} BYSCORE LIMIT {i} {n}",
    "ZRANGE {k} {n} {n} LIMIT {i} {n}",
    "ZRANGEBYSCORE {k} {b} {b}",
    "ZRANGEBYSCORE {k} {b} {b} WITHSCORES LIMIT {i} {n}",
    "PUBLISH {k} {v}",
    "PUBSUB NUMSUB {k} {k}",
    "PUBSUB {v}",
    "SCRIPT EXISTS {v} {v}",
    "EVALSHA {v} 0",
    "EVAL {v} {n}",
    "ECHO {v}",
    "PING",
    "PING {v}",
    "PING {v} {v}",
    "SELECT {d}",
    "GET",
    "GET {k} {k}",
    "NOSUCH {k}",
    "CONFIG {v}",
];

/// Scripts of one key and one argument.
const SCRIPTS: &[&str] = &[
    "return {1, 2.7, -2.7, 'x', false, true, {4, {}}, nil, 3}",
    "return {KEYS[1] == nil, ARGV[1], #KEYS, #ARGV}",
    "return redis.call('GET', KEYS[1])",
    "return redis.pcall('GET', KEYS[1])",
    "return redis.pcall('INCR', KEYS[1])",
    "return redis.call('ZADD', KEYS[1], 3, ARGV[1], 1.5, 'b')",
    "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')",
    "return redis.call('LPOP', KEYS[1], 2)",
    "return redis.call('SET', KEYS[1], ARGV[1], 'NX')",
    "return redis.call('SET', KEYS[1], 12345678901234567)",
    "return redis.call('SET', KEYS[1], 10 / 4)",
    "return redis.call('TYPE', KEYS[1])",
    "return redis.call('TYPE', KEYS[1]).ok",
    "return redis.call('SET', KEYS[1], ARGV[1]).ok",
    "return redis.pcall('NOSUCH').err ~= nil",
    "return redis.pcall('GET').err ~= nil",
    "return redis.call('SUBSCRIBE', 'x')",
    "return redis.call()",
    "return redis.call('GET', {})",
    "return redis.error_reply('MINE it is')",
    "return redis.status_reply('FINE')",
    "return {err = 'MINE too'}",
    "return {ok = 'FINE too'}",
    "error('an error')",
    "error({err = 'MINE again'})",
    "return nosuch",
    "global = 1",
    "local a = nil; return a.b",
    "return pcall(redis.call, 'INCR', KEYS[1])",
    "local ok, e = pcall(redis.call, 'LLEN', KEYS[1]); return ok or type(e) == 'table' and e.err or e",
    "return tostring(1e15) .. ' ' .. tostring(0.1) .. ' ' .. 1e15",
    "return string.format('%.0f %s', 1e15, 2^53)",
    "return tonumber('0x10') + tonumber('1e3')",
    "return {string.match('12 ab', '^(%d+) (%a+)$')}",
    "return table.getn({1, 2}) + #'abc' + math.floor(-2.5)",
    "return {unpack({1, 2, 3}, 2)}",
    "this is no Lua",
];

/// Returns the word that stands for `{of}`. `choice` chooses one.
fn word(of: &str, choice: u8, prefix: &str) -> String {
    let words: &[&str] = match of {
        "k" => &["a", "b", "c", "d"],
        "v" => &["", "x", "10", "-3", "1.5", "NaN", "a b", "999999999999999"],
        "n" => &["0", "1", "2", "-1", "-2", "3", "7", "-9"],
        "i" => &["0", "1", "2"],
        "x" => &["", "x", "1.5", "NaN", "inf", "-inf", "1e3", " 1"],
        "s" => &["36000", "0", "-1", "x"],
        "p" => &["0", "-1", "x", "1"],
        "d" => &["-1", "16", "x"],
        "ms" => &["36000000", "72000000"],
        "ttl" => &["NX", "XX", "GT", "LT", "what"],
        "set" => &["NX", "XX", "GET", "KEEPTTL", "nx", "what"],
        "z" => &["NX", "XX", "GT", "LT", "CH", "INCR", "ch"],
        "f" => &["p", "q", "r", ""],
        "b" => &["-inf", "+inf", "(0", "1", "(2", "3", "what"],
        _ => unreachable!("{of}"),
    };
    let word = words[usize::from(choice) % words.len()];
    if of == "k" {
        return format!("{prefix}{word}");
    }
    word.to_owned()
}

/// Returns the bytes of a command.
pub fn packed(words: &[impl AsRef<str>]) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word.as_ref());
    }
    command.get_packed_command()
}

/// Returns the bytes of a command that leasehold sends.
fn sent(command: &Command) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.by_text().pack(&mut bytes);
    bytes
}

/// One step of a sequence. The numbers choose what it is.
pub type Step = (u8, u8, [u8; 6]);

/// Returns the request of a step.
#[must_use]
pub fn request(step: Step, prefix: &str) -> Vec<u8> {
    let (what, which, numbers) = step;
    let choices = numbers.into_iter().cycle();
    match what % 4 {
        0 => {
            let template = TEMPLATES[usize::from(which) % TEMPLATES.len()];
            let words = template.split(' ').zip(choices);
            let words = words.map(|(part, choice)| match part.strip_prefix('{') {
                Some(of) => word(of.trim_end_matches('}'), choice, prefix),
                None => part.to_owned(),
            });
            packed(&words.collect::<Vec<_>>())
        }
        1 => {
            let script = SCRIPTS[usize::from(which) % SCRIPTS.len()];
            let mut choices = choices;
            let mut choose = |of| word(of, choices.next().unwrap_or_default(), prefix);
            packed(&[
                "EVAL".into(),
                script.into(),
                "1".into(),
                choose("k"),
                choose("v"),
            ])
        }
        2 => lock_request(which, numbers, prefix),
        _ => node_request(which, numbers, prefix),
    }
}

fn settings() -> ScriptSettings {
    ScriptSettings::new(LONG, Duration::from_secs(1))
}

/// The names of the locks of a sequence, and the kind that most requests for a name have.
const LOCKS: [(&str, LockKind); 5] = [
    ("m", LockKind::Mutex),
    ("n", LockKind::Mutex),
    ("w", LockKind::Write),
    ("r", LockKind::Read),
    ("s", LockKind::Semaphore { total_units: 3 }),
];

/// Returns the length of a lease. Two that end in one millisecond may have another order on the other server, so lengths
/// are seldom equal.
fn lease(numbers: [u8; 6]) -> Duration {
    let [.., one, other] = numbers.map(u32::from);
    LONG + Duration::from_secs(10) * (one * 256 + other)
}

/// The choices of a step about a lock, made by its numbers.
struct Choice {
    kind: LockKind,
    target: Target,
    key: LockKey,
    owner: Arc<str>,
    other: Arc<str>,
    units: u32,
    ask: Ask,
    give_back: Option<GiveBack>,
}

fn choice(numbers: [u8; 6], prefix: &str) -> Choice {
    let [name, owner, other, channel, fences, rest] = numbers.map(usize::from);
    let key = |name: usize| {
        // A reader-writer lock has one name for both kinds.
        let name = if LOCKS[name].0 == "r" {
            "w"
        } else {
            LOCKS[name].0
        };
        LockKey::new(prefix, name).expect("a name")
    };
    let name = name % LOCKS.len();
    let kind = if rest % 16 == 0 {
        LOCKS[(name + 1) % LOCKS.len()].1
    } else if rest % 16 == 1 {
        LockKind::Multi
    } else {
        LOCKS[name].1
    };
    let target = match kind {
        LockKind::Multi => Target::all(vec![key(0), key(1)]),
        _ => Target::all(vec![key(name)]),
    };
    let owner_of = |number: usize| -> Arc<str> {
        format!("lh1:00000000-0000-4000-8000-00000000000{}:l", number % 4).into()
    };
    let units = match kind {
        LockKind::Write => u32::MAX,
        LockKind::Semaphore { .. } => 1 + (rest as u32 / 16) % 3,
        _ => 1,
    };
    Choice {
        kind,
        target: target.expect("different names"),
        key: key(name),
        owner: owner_of(owner),
        other: owner_of(other),
        units,
        ask: Ask {
            owner: owner_of(owner),
            units,
            lease: lease(numbers),
            fences: (fences % 3) as u64,
            shareable_owner: (kind == LockKind::Read && other % 2 == 0).then(|| owner_of(other)),
            channel: match channel % 4 {
                0 => None,
                1 => Some("".into()),
                _ => Some(format!("{prefix}{}", owner % 4).into()),
            },
            nonce: (channel % 4 == 3).then(|| Nonce::new(&Machine::default())),
        },
        give_back: (fences % 2 == 0).then_some(GiveBack { used: 5, last: 9 }),
    }
}

/// Returns a request of a lock on one server.
fn lock_request(which: u8, numbers: [u8; 6], prefix: &str) -> Vec<u8> {
    let Choice {
        kind,
        target,
        key,
        owner,
        other,
        units,
        ask,
        give_back,
    } = choice(numbers, prefix);
    let fencing = ask.fences > 0;
    let keep = Keep {
        owner: Arc::clone(&owner),
        units,
        life: lease(numbers),
        wakes: numbers[2] % 2 == 0,
        give_back,
    };
    let adopt = Adopt {
        owner: Arc::clone(&owner),
        lease: lease(numbers),
        from: Arc::clone(&other),
        last: 0,
        fencing,
        shortens: numbers[2] % 2 == 0,
    };
    let renewal = Renewal {
        kind,
        key: &key,
        owner: owner.to_string(),
        units,
        lease: lease(numbers) * 2,
        may_join: false,
    };
    let release = PlainRelease {
        kind: LockKind::Mutex,
        target: &target,
        owner: &owner,
        units,
    };
    let verb = match which % 12 {
        0..3 => Verb::Acquire {
            ask,
            mode: AcquireMode::TakeFree,
        },
        3..5 => Verb::Acquire {
            ask,
            mode: AcquireMode::QueueFirst,
        },
        5 => Verb::TakeOver {
            ask,
            from: other,
            give_back,
        },
        6 => Verb::Release { owner, units },
        7 => Verb::HandOver {
            owner,
            units,
            give_back,
        },
        8 => Verb::Keep(keep),
        9 | 10 => Verb::Withdraw { owner, units },
        _ => {
            let rate_key = LockKey::new(prefix, "rate").expect("a name");
            let (renewals, releases) = ([renewal], [release]);
            let of_mutex = kind == LockKind::Mutex && numbers[3] % 2 == 0;
            let request = match numbers[4] % 6 {
                0 if numbers[1] % 2 == 0 => Request::KeepRecords(&renewals),
                0 => Request::Renew(&renewals),
                1 if of_mutex => Request::Release(&releases),
                1 | 2 => Request::RateLimit {
                    key: &rate_key,
                    request: RateRequest {
                        permits: 1 + u32::from(numbers[1] % 3),
                        per: LONG,
                        patience: LONG * u32::from(numbers[2] % 3),
                    },
                },
                3 => Request::Adopt {
                    key: &key,
                    adopt: &adopt,
                },
                4 => Request::Inspect {
                    keys: target.keys(),
                    named: numbers[1] % 2 == 0,
                },
                _ => Request::ForceRelease {
                    key: &key,
                    owner: &adopt.from,
                },
            };
            return sent(&wire::encode(&request, &settings()));
        }
    };
    let request = Request::Lock {
        kind,
        target: &target,
        verb: &verb,
    };
    sent(&wire::encode(&request, &settings()))
}

/// Returns a request of a lock to a node of a quorum.
fn node_request(which: u8, numbers: [u8; 6], prefix: &str) -> Vec<u8> {
    let prefix = format!("{prefix}q");
    let Choice {
        kind,
        target,
        key,
        owner,
        other,
        units,
        mut ask,
        ..
    } = choice(numbers, &prefix);
    // A quorum has no semaphores.
    let kind = match kind {
        LockKind::Semaphore { .. } => LockKind::Read,
        kind => kind,
    };
    if kind == LockKind::Read {
        ask.units = 1;
    }
    let lock = LockId {
        kind,
        target: &target,
    };
    let settings = settings();
    let command = match which % 8 {
        0..3 => quorum::acquire(lock, &ask, numbers[4] % 2 == 0, 1_000_000, &settings),
        3 => quorum::raise(
            lock,
            (&owner, ask.units),
            &vec![7; target.keys().len()],
            2,
            &settings,
        ),
        4 | 5 => {
            let reserved = Reserved { first: 7, last: 9 };
            let give_back = (kind == LockKind::Mutex).then_some(NodeGiveBack { used: 7, reserved });
            quorum::release(lock, (&owner, ask.units), give_back, numbers[4] % 2 == 0)
        }
        6 => {
            let keep = Keep {
                owner,
                units,
                life: lease(numbers),
                wakes: true,
                give_back: None,
            };
            quorum::keep(lock, &keep, &settings)
        }
        7 if numbers[3] % 2 == 0 => quorum::join(
            kind,
            target.keys().iter(),
            (&owner, ask.units),
            lease(numbers),
            &vec![8; target.keys().len()],
            &settings,
        ),
        _ if numbers[4] % 2 == 0 => quorum::force_release(&key, &other),
        _ => {
            let adopt = Adopt {
                owner,
                lease: lease(numbers),
                from: other,
                last: 0,
                fencing: true,
                shortens: true,
            };
            quorum::adopt(&key, &adopt, 1_000_000, &settings)
        }
    };
    sent(&command)
}
