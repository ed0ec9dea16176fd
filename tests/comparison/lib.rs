//! The requests of the sequences that `tests/compare.rs` compares: commands, scripts, and what leasehold sends.
//!
//! What leasehold sends is the text beside its encoders, `src/wire/requests.txt`, with other names, owners and times. A test of
//! the library keeps that text true.

use std::sync::LazyLock;
use std::time::Duration;

/// So long that nothing expires during a test.
const LONG: Duration = Duration::from_secs(36_000);

/// Commands. A word in braces stands for one of several: see [`word`].
const TEMPLATES: &[&str] = &[
    "SET {k} {v}",
    "SET {k} {v} {set} PX {ms}",
    "SET {k} {v} {set} {set}",
    "SET {k} {v} PXAT {n}",
    "SET {k} {v} EX {s}",
    "SETNX {k} {v}",
    "SETEX {k} {s} {v}",
    "PSETEX {k} {ms} {v}",
    "GETSET {k} {v}",
    "GET {k}",
    "MGET {k} {k}",
    "GETDEL {k}",
    "GETEX {k} EX {s}",
    "GETEX {k} PX {ms}",
    "GETEX {k} {set}",
    "GETEX {k} PERSIST",
    "GETEX {k} PXAT {n}",
    "SETRANGE {k} {n} {v}",
    "APPEND {k} {v}",
    "STRLEN {k}",
    "GETRANGE {k} {n} {n}",
    "INCR {k}",
    "INCRBY {k} {n}",
    "DECR {k}",
    "DECRBY {k} {n}",
    "UNLINK {k} {k}",
    "DEL {k} {k}",
    "EXISTS {k} {k}",
    "TYPE {k}",
    "PEXPIRE {k} {ms} {ttl}",
    "PEXPIRE {k} {ms}",
    "PEXPIRE {k} {p}",
    "PEXPIREAT {k} {n} {ttl}",
    "PEXPIREAT {k} {n}",
    "EXPIRE {k} {s} {ttl}",
    "EXPIREAT {k} {n} {ttl}",
    "EXPIREAT {k} {n}",
    "PERSIST {k}",
    "PTTL {k}",
    "TTL {k}",
    "HSET {hk} {f} {v}",
    "HSET {hk} {f} {v} {f} {v}",
    "HSET {hk} {f} {v} {f}",
    "HMSET {hk} {f} {v}",
    "HSETNX {hk} {f} {v}",
    "HINCRBY {hk} {f} {v}",
    "HGET {hk} {f}",
    "HDEL {hk} {f} {f}",
    "HLEN {hk}",
    "HGETALL {hk}",
    "RPUSH {lk} {f} {f} {f}",
    "LPUSH {lk} {f} {f} {f}",
    "LPUSHX {lk} {f} {f} {f}",
    "RPUSHX {lk} {f}",
    "LINSERT {lk} {side} {f} {f}",
    "LTRIM {lk} {n} {n}",
    "LREM {lk} {n} {f}",
    "LPOP {lk}",
    "LPOP {lk} {n}",
    "RPOP {lk}",
    "RPOP {lk} {n}",
    "LLEN {lk}",
    "LINDEX {lk} {n}",
    "LSET {lk} {n} {v}",
    "LRANGE {lk} {n} {n}",
    "SADD {sk} {f}",
    "SADD {sk} {f} {f}",
    "SREM {sk} {f} {f}",
    "SPOP {sk} {all}",
    "SCARD {sk}",
    "SISMEMBER {sk} {f}",
    "SMEMBERS {sk}",
    "ZADD {zk} {n} {f}",
    "ZADD {zk} {n} {f} {n} {f}",
    "ZADD {zk} {z} {n} {f} {n} {f}",
    "ZADD {zk} {z} {z} {n} {f}",
    "ZADD {zk} INCR {n} {f}",
    "ZADD {zk} {x} {f}",
    "ZINCRBY {zk} {x} {f}",
    "ZREM {zk} {f} {f}",
    "ZREMRANGEBYRANK {zk} {n} {n}",
    "ZREMRANGEBYSCORE {zk} {b} {b}",
    "ZCARD {zk}",
    "ZSCORE {zk} {f}",
    "ZPOPMIN {zk}",
    "ZPOPMIN {zk} {n}",
    "ZPOPMAX {zk}",
    "ZPOPMAX {zk} {n}",
    "ZRANGE {zk} {n} {n}",
    "ZRANGE {zk} {n} {n} WITHSCORES",
    "ZRANGE {zk} {n} {n} REV",
    "ZRANGE {zk} {b} {b} BYSCORE WITHSCORES",
    "ZRANGE {zk} {b} {b} BYSCORE REV",
    "ZRANGE {zk} {b} {b} BYSCORE LIMIT {i} {n}",
    "ZRANGE {zk} {n} {n} LIMIT {i} {n}",
    "ZRANGEBYSCORE {zk} {b} {b}",
    "ZRANGEBYSCORE {zk} {b} {b} WITHSCORES LIMIT {i} {n}",
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
        "k" => &["a", "b", "c", "d", "e"],
        // A type of values has a key that its commands name more often than the others.
        "hk" => &["a", "a", "a", "b", "c", "d"],
        "lk" => &["b", "b", "b", "a", "c", "d"],
        "sk" => &["c", "c", "c", "a", "b", "d"],
        "zk" => &["d", "d", "d", "a", "b", "c"],
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
        "side" => &["BEFORE", "AFTER", "after", "what"],
        // A set has fewer members. Which ones `SPOP` takes is random otherwise.
        "all" => &["7", "0", "-1", "x"],
        "z" => &["NX", "XX", "GT", "LT", "CH", "INCR", "ch"],
        "f" => &["p", "q", "r", ""],
        "b" => &["-inf", "+inf", "(0", "1", "(2", "3", "what"],
        _ => unreachable!("{of}"),
    };
    let word = words[usize::from(choice) % words.len()];
    if of.ends_with('k') {
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

/// One step of a sequence. The numbers choose what it is.
pub type Step = (u8, u8, [u8; 6]);

/// The words for the keys of the types of values.
const OF_TYPES: [&str; 4] = ["{hk}", "{lk}", "{sk}", "{zk}"];

/// Returns the requests of a sequence. Half of the sequences are about one type of values, because others seldom have two
/// commands about the same list.
pub fn requests(steps: &[Step], prefix: &str) -> impl Iterator<Item = Vec<u8>> {
    let chosen = steps.first().map_or(0, |step| usize::from(step.1));
    let of_type = OF_TYPES.get(chosen % (2 * OF_TYPES.len()));
    let is_of_it = move |template: &&str| of_type.is_none_or(|of_type| template.contains(of_type));
    let templates: Vec<_> = TEMPLATES.iter().copied().filter(is_of_it).collect();
    steps.iter().map(move |step| {
        let is_other = of_type.is_none() || step.2[5] % 4 == 0;
        let templates = if is_other { TEMPLATES } else { &templates };
        let what = if is_other { step.0 } else { 0 };
        request((what, step.1, step.2), templates, prefix)
    })
}

/// Returns the request of a step.
fn request(step: Step, templates: &[&str], prefix: &str) -> Vec<u8> {
    let (what, which, numbers) = step;
    let choices = numbers.into_iter().cycle();
    match what % 4 {
        0 => {
            let template = templates[usize::from(which) % templates.len()];
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
        2 => lock_request(which, numbers, prefix, "one server"),
        // No lock on one server has the key of one on a quorum.
        _ => lock_request(which, numbers, &format!("{prefix}q"), "a node"),
    }
}

/// Returns the length of a lease. Two that end in one millisecond may have another order on the other server, so lengths
/// are seldom equal.
fn lease(numbers: [u8; 6]) -> Duration {
    let [.., one, other] = numbers.map(u32::from);
    LONG + Duration::from_secs(10) * (one * 256 + other)
}

/// A request that leasehold sends.
struct Sent {
    /// What it is, and for which kind of lock.
    what: &'static str,
    words: Vec<&'static str>,
}

/// The requests about locks, to one server and to a node of a quorum, and the others. A gap ends after a few milliseconds, which
/// two servers do not see alike, and two scans may find the keys in another order.
static REQUESTS: LazyLock<[Vec<Sent>; 3]> = LazyLock::new(|| {
    let mut requests = [const { Vec::new() }; 3];
    for line in include_str!("../../src/wire/requests.txt").lines() {
        let (what, words) = line.rsplit_once(": ").expect("it has a name");
        let group = match what.split_once(", ").map(|(first, _)| first) {
            Some("with a gap" | "in a cluster") => continue,
            Some("a node") => 1,
            Some(_) => 0,
            None if ["ping", "scan"].contains(&what) => continue,
            None => 2,
        };
        let words = split(words);
        requests[group].push(Sent { what, words });
    }
    requests
});

/// Splits a line into its words. A word in quotes may have spaces.
fn split(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let (quoted, end) = match rest.strip_prefix('\'') {
            Some(quoted) => (quoted, '\''),
            None => (rest, ' '),
        };
        let (word, after) = quoted.split_once(end).unwrap_or((quoted, ""));
        words.push(word);
        rest = after.trim_start();
    }
    words
}

/// Returns the name of a lock. Most requests for it are of one kind. A reader-writer lock has one name for both kinds.
fn name(what: &str, numbers: [u8; 6]) -> &'static str {
    let [name, .., rest] = numbers.map(usize::from);
    let names: &[&str] = match what {
        _ if rest % 16 == 0 => &["m", "w", "s"],
        _ if what.contains("Read") || what.contains("Write") => &["w"],
        _ if what.contains("Semaphore") => &["s"],
        _ if what.contains("Mutex") => &["m", "n"],
        "rate limit" => &["rate"],
        _ => &["m", "n", "w", "s"],
    };
    names[name % names.len()]
}

/// Returns a request of leasehold, to one server or to a node of a quorum.
fn lock_request(which: u8, numbers: [u8; 6], prefix: &str, to: &str) -> Vec<u8> {
    let [first, owner, other, fences, ..] = numbers.map(usize::from);
    let group = match to {
        "a node" => 1,
        _ if which % 12 == 0 => 2,
        _ => 0,
    };
    let requests = &REQUESTS[group];
    let Sent { what, words } = &requests[(usize::from(which) * 256 + first) % requests.len()];
    let owner_of = |number| format!("lh1:00000000-0000-4000-8000-00000000000{}:l", number % 4);
    let channel = format!("{prefix}{}", owner % 4);
    let lasts = lease(numbers).as_millis().to_string();
    let (one, two) = if what.contains("Multi") {
        ("m", "n")
    } else {
        (name(what, numbers), "n")
    };
    let (one, two) = (format!("{prefix}{one}"), format!("{prefix}{two}"));
    let replaced = |word: &&str| match *word {
        // A rate limiter counts in µs.
        "3" if *what == "rate limit" => (1 + owner % 3).to_string(),
        "2" if *what == "rate limit" => LONG.as_micros().to_string(),
        "2000" if *what == "rate limit" => (LONG.as_micros() * (fences as u128 % 3)).to_string(),
        // A lease, or the time for which a lock is kept.
        "30000" | "700" => lasts.clone(),
        // For how long fences are remembered.
        "600000" => LONG.as_millis().to_string(),
        "lh1:owner:l" => owner_of(owner),
        "lh1:other:l" => owner_of(other),
        word => match word.strip_prefix("p:{t}m") {
            Some("") => two.clone(),
            Some(companion) => format!("{{{two}}}{}", companion.replace(":lht:", ":lh:")),
            None => word.replace("p:n", &one).replace("leasehold:c", &channel),
        },
    };
    let mut request: Vec<_> = words.iter().map(replaced).collect();
    if words[0].starts_with("EVAL") {
        "EVAL".clone_into(&mut request[0]);
        leasehold::seam::script(words[1]).clone_into(&mut request[1]);
    }
    packed(&request)
}
