//! Random sequences of commands and scripts, which the server in memory and a real one answer alike.
//!
//! `REDIS_URL` names the real server: `scripts/with-server redis-8.2 cargo test --features testing --lib memory`.
//! `PROPTEST_CASES` sets how many sequences there are.
//!
//! A sequence is about a few keys and locks. Some keys expire meanwhile. The real server answers `TIME` and the command in one write, and then the
//! server in memory answers it at that time. So both have almost one time. At the end all keys are compared.
//!
//! Equal are all replies, but for these differences, and for one that is gone when the sequence is executed again. There are
//! no others:
//!
//! * of an error only the first word;
//! * of `HGETALL` and `KEYS` the order, and of members whose scores are times;
//! * two times, as of now or for a while, may differ by `SLACK`.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Value;

use super::{MemoryServer, request as packed};
use crate::core::quorum::Reserved;
use crate::message::{
    AcquireMode, Adopt, Ask, GiveBack, Keep, LockKind, Nonce, PlainRelease, RateRequest, Renewal,
    Request, Verb,
};
use crate::name::{LockKey, Target};
use crate::script::quorum::{self, LockId, NodeGiveBack};
use crate::script::{self, ScriptSettings};
use crate::store::transport::frame::{self, Frame};
use crate::sys::{Arc, Machine};

const THREADS: u32 = 8;
/// How far two times in ms may be apart. Two in µs may be a thousand times as far apart.
const SLACK: i128 = 500;
/// How far a time may be from now, in ms.
const NEAR: i128 = 30 * 24 * 3_600 * 1_000;
/// Durations in ms. Other numbers are smaller or larger.
const MILLIS_LONG: std::ops::Range<i128> = 1_000..1_000_000_000;
/// Durations in µs. No other number is within these bounds.
const MICROS_LONG: std::ops::Range<i128> = 10_000_000_000..1_000_000_000_000;
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

/// One step of a sequence. The numbers choose what it is.
type Step = (u8, u8, [u8; 6]);

/// Returns the request of a step.
fn request(step: Step, prefix: &str) -> Vec<u8> {
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
    };
    let renewal = Renewal {
        kind,
        key: &key,
        owner: owner.to_string(),
        units,
        lease: lease(numbers) * 2,
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
        9 if kind == LockKind::Mutex => Verb::GiveTo { owner, to: other },
        9 | 10 => Verb::Withdraw { owner, units },
        _ => {
            let rate_key = LockKey::new(prefix, "rate").expect("a name");
            let (renewals, releases) = ([renewal], [release]);
            let of_mutex = kind == LockKind::Mutex && numbers[3] % 2 == 0;
            let request = match numbers[4] % 6 {
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
            return script::encode(&request, &settings()).by_text().packed();
        }
    };
    let request = Request::Lock {
        kind,
        target: &target,
        verb: &verb,
    };
    script::encode(&request, &settings()).by_text().packed()
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
        _ if numbers[4] % 2 == 0 => quorum::force_release(&key, &other),
        _ => {
            let adopt = Adopt {
                owner,
                lease: lease(numbers),
                from: other,
                last: 0,
                fencing: true,
            };
            quorum::adopt(&key, &adopt, 1_000_000, &settings)
        }
    };
    command.by_text().packed()
}

/// A connection to both servers.
struct Pair {
    real: TcpStream,
    unread: Vec<u8>,
    connection: u64,
}

impl Pair {
    fn new(memory: &mut MemoryServer) -> Self {
        let url = std::env::var("REDIS_URL").expect("run it under scripts/with-redis");
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        let real = TcpStream::connect(address).expect("the server is there");
        real.set_nodelay(true).expect("a socket");
        Self {
            real,
            unread: Vec::new(),
            connection: memory.connect(),
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.real.write_all(bytes).expect("the server listens");
    }

    /// Reads the next answer of the real server.
    fn read(&mut self) -> Value {
        let mut part = [0; 8_192];
        loop {
            if let Some(answer) = take_answer(&mut self.unread) {
                return answer;
            }
            let read = self.real.read(&mut part).expect("an answer");
            assert!(read > 0, "the server has closed the connection");
            self.unread.extend_from_slice(&part[..read]);
        }
    }
}

/// Takes the first answer out of these bytes, if it is whole.
fn take_answer(bytes: &mut Vec<u8>) -> Option<Value> {
    let end = Frame::default()
        .end(bytes, usize::MAX)
        .expect("an answer")?;
    let answer: Vec<_> = bytes.drain(..end).collect();
    Some(frame::parse(&answer).expect("an answer"))
}

/// Both servers.
struct Both {
    memory: MemoryServer,
    asking: Pair,
    listening: Pair,
    now: Duration,
}

/// The channels of a sequence that have a subscriber, behind its prefix. The last one ends the messages.
const CHANNELS: [&str; 5] = ["a", "0", "1", "q0", "end"];

impl Both {
    fn new() -> Self {
        let mut memory = Self::started();
        Self {
            asking: Pair::new(&mut memory),
            listening: Pair::new(&mut memory),
            memory,
            now: Duration::ZERO,
        }
    }

    fn started() -> MemoryServer {
        MemoryServer::start("0".repeat(40), Duration::ZERO).expect("memory")
    }

    /// Starts the server in memory anew, with the same connections.
    fn memory_restarts(&mut self) {
        self.memory = Self::started();
        for pair in [&mut self.asking, &mut self.listening] {
            pair.connection = self.memory.connect();
        }
    }

    /// Returns the answers of the real server and of the one in memory.
    fn ask(&mut self, request: &[u8]) -> (Value, Value) {
        let time = packed(&["TIME"]);
        self.asking.send(&[&time, request].concat());
        let time = self.asking.read();
        let (seconds, micros): (u64, u64) = redis::from_redis_value(time).expect("a time");
        self.now = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let real = self.asking.read();
        let mut answer = self.in_memory(request, self.asking.connection);
        (real, take_answer(&mut answer).expect("an answer"))
    }

    /// Returns what the server in memory has for a connection after a request.
    fn in_memory(&mut self, request: &[u8], connection: u64) -> Vec<u8> {
        self.memory.receive(connection, request, self.now);
        let output = self.memory.take_output(connection);
        output.expect("the connection is open")
    }

    /// Subscribes to the channels of a sequence, or ends that.
    fn subscribe(&mut self, command: &str, prefix: &str) {
        let mut words = vec![command.to_owned()];
        words.extend(CHANNELS.map(|channel| format!("{prefix}{channel}")));
        let request = packed(&words);
        self.listening.send(&request);
        for _ in CHANNELS {
            self.listening.read();
        }
        self.in_memory(&request, self.listening.connection);
    }

    /// Returns the messages since the last call, of the real server and of the one in memory.
    fn messages(&mut self, prefix: &str) -> (Value, Value) {
        let end = format!("{prefix}end");
        self.ask_words(&["PUBLISH", &end, ""]);
        let mut real = Vec::new();
        loop {
            let message = self.listening.read();
            let is_last = format!("{message:?}").contains(&end);
            real.push(message);
            if is_last {
                break;
            }
        }
        let mut output = self.in_memory(b"", self.listening.connection);
        let memory = std::iter::from_fn(|| take_answer(&mut output));
        (Value::Array(real), Value::Array(memory.collect()))
    }

    fn ask_words(&mut self, words: &[&str]) -> (Value, Value) {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        self.ask(&packed(&words))
    }
}

/// Returns whether two answers are alike, as the comment of this module says.
fn are_alike(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Int(one), Value::Int(other)) => are_alike_numbers((*one).into(), (*other).into()),
        (Value::BulkString(one), Value::BulkString(other)) => {
            one == other
                || are_alike_texts(
                    &String::from_utf8_lossy(one),
                    &String::from_utf8_lossy(other),
                )
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|(one, other)| are_alike(one, other))
        }
        (Value::ServerError(one), Value::ServerError(other)) => one.code() == other.code(),
        (one, other) => one == other,
    }
}

fn are_alike_numbers(one: i128, other: i128) -> bool {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = i128::from(since.expect("it is past 1970").as_secs()) * 1_000;
    let is_millis = |n: i128| (n - now).abs() < NEAR || MILLIS_LONG.contains(&n);
    let is_micros = |n: i128| (n / 1_000 - now).abs() < NEAR || MICROS_LONG.contains(&n);
    let apart = (one - other).abs();
    apart == 0
        || (is_millis(one) && is_millis(other) && apart <= SLACK)
        || (is_micros(one) && is_micros(other) && apart <= SLACK * 1_000)
}

/// Compares texts, and the numbers in them as numbers.
fn are_alike_texts(one: &str, other: &str) -> bool {
    let parts = |text: &str| -> Vec<String> {
        let mut parts = Vec::<String>::new();
        let mut was_digit = None;
        for letter in text.chars() {
            let is_digit = letter.is_ascii_digit();
            match parts.last_mut() {
                Some(last) if was_digit == Some(is_digit) => last.push(letter),
                _ => parts.push(letter.into()),
            }
            was_digit = Some(is_digit);
        }
        parts
    };
    let (one, other) = (parts(one), parts(other));
    one.len() == other.len()
        && one.iter().zip(&other).all(|(one, other)| {
            one == other
                || one
                    .parse()
                    .ok()
                    .zip(other.parse().ok())
                    .is_some_and(|(one, other)| are_alike_numbers(one, other))
        })
}

/// Orders the elements of an answer, or its pairs.
fn ordered(value: Value, each: usize) -> Value {
    let Value::Array(parts) = value else {
        return value;
    };
    let mut groups: Vec<_> = parts.chunks(each).map(<[Value]>::to_vec).collect();
    groups.sort_by_key(|group| format!("{group:?}"));
    Value::Array(groups.concat())
}

/// Returns a request for a person. A script of the crate is too long, so only its end is shown.
fn shown(request: &[u8]) -> String {
    let words = String::from_utf8_lossy(request).replace("\r\n", " ");
    let end = words.char_indices().rev().nth(1_500);
    end.map_or(words.clone(), |(at, _)| format!("…{}", &words[at..]))
}

/// Executes a sequence on both servers.
fn compare(both: &mut Both, steps: &[Step], prefix: &str) -> Result<(), TestCaseError> {
    let check = |both: &mut Both, request: &[u8], each: Option<usize>| {
        let (real, memory) = both.ask(request);
        let (real, memory) = match each {
            Some(each) => (ordered(real, each), ordered(memory, each)),
            None => (real, memory),
        };
        prop_assert!(
            are_alike(&real, &memory),
            "{}\nreal:   {real:?}\nmemory: {memory:?}",
            shown(request)
        );
        Ok(real)
    };
    both.subscribe("SUBSCRIBE", prefix);
    for step in steps {
        let request = request(*step, prefix);
        let is_hash = request.windows(7).any(|part| part == b"HGETALL");
        check(both, &request, is_hash.then_some(2))?;
        let is_short = request.ends_with(b"$1\r\n1\r\n");
        if is_short && request.windows(7).any(|part| part == b"PEXPIRE") {
            // Time itself is what is tested: the key expires on both servers.
            thread::sleep(Duration::from_millis(3));
        }
    }
    let all = packed(&["KEYS".into(), format!("{prefix}*")]);
    let keys = check(both, &all, Some(1))?;
    let keys: Vec<String> = redis::from_redis_value(keys).expect("keys");
    for key in &keys {
        let kind = check(both, &packed(&["TYPE".into(), key.clone()]), None)?;
        let words: &[&str] = match kind {
            Value::SimpleString(kind) => match kind.as_str() {
                "hash" => &["HGETALL"],
                "list" => &["LRANGE", "0", "-1"],
                "zset" => &["ZRANGE", "0", "-1", "WITHSCORES"],
                _ => &["GET"],
            },
            other => panic!("{other:?}"),
        };
        let mut look = vec![words[0].to_owned(), key.clone()];
        look.extend(words[1..].iter().map(|word| (*word).to_owned()));
        // The scores may be times, and a millisecond may pass between the two servers.
        let is_of_pairs = ["HGETALL", "ZRANGE"].contains(&words[0]);
        check(both, &packed(&look), is_of_pairs.then_some(2))?;
        check(both, &packed(&["PTTL".into(), key.clone()]), None)?;
    }
    let (real, memory) = both.messages(prefix);
    prop_assert!(
        are_alike(&real, &memory),
        "messages\nreal:   {real:?}\nmemory: {memory:?}"
    );
    Ok(())
}

/// Several sequences are executed at a time, because each waits for the real server.
#[test]
fn the_server_in_memory_answers_as_a_real_one() {
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(compare_sequences);
        }
    });
}

fn compare_sequences() {
    let both = RefCell::new(Both::new());
    let (run, case) = (uuid::Uuid::new_v4(), Cell::new(0));
    let steps = proptest::collection::vec(any::<Step>(), 1..40);
    let all = ProptestConfig::default();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: all.cases.div_ceil(THREADS),
        ..all
    });
    let mut compared = |steps: &[Step]| {
        case.set(case.get() + 1);
        let prefix = format!("{run}:{}:", case.get());
        let both = &mut *both.borrow_mut();
        let outcome = compare(both, steps, &prefix);
        let (keys, _) = both.ask_words(&["KEYS", &format!("{prefix}*")]);
        let keys: Vec<String> = redis::from_redis_value(keys).expect("keys");
        for key in keys {
            both.ask_words(&["DEL", &key]);
        }
        // Also after a sequence that has failed.
        both.messages(&prefix);
        both.subscribe("UNSUBSCRIBE", &prefix);
        both.memory_restarts();
        outcome
    };
    let compared = RefCell::new(&mut compared);
    let outcome = runner.run(&steps, |steps| {
        let mut compared = compared.borrow_mut();
        // A millisecond may pass between the two servers, and `PEXPIRE GT` may see it. So a difference counts if the
        // sequence makes it each time.
        (0..2)
            .find_map(|_| compared(&steps).ok())
            .map_or_else(|| compared(&steps), Ok)
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
