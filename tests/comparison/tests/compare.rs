//! Random sequences of commands and scripts, which the server in memory and a real one answer alike.
//!
//! `REDIS_URL` names the real server: `scripts/with-server redis-8.2 cargo test --package leasehold-comparison`.
//! `PROPTEST_CASES` sets how many sequences there are.
//!
//! A sequence is about a few keys and locks. Some keys expire meanwhile. The real server answers `TIME` and the command in
//! one write, and then the server in memory answers the command at that time. So both have almost one time. At the end all
//! keys are compared.
//!
//! Equal are all replies, but for these differences, and for one that is gone when the sequence is executed again. There are
//! no others:
//!
//! * of an error only the first word;
//! * of `HGETALL`, `SMEMBERS`, `SPOP` and `KEYS` the order, and of members whose scores are times;
//! * two times, as of now or for a while, may differ by `SLACK`, and what is left of two turns too.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_comparison::{Step, packed, requests};
use leasehold_testing::memory::MemoryServer;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::{Parser, Value};

const THREADS: u32 = 8;
/// How far two times in ms may be apart. Two in µs may be a thousand times as far apart.
const SLACK: i128 = 500;
/// How far a time may be from now, in ms.
const NEAR: i128 = 30 * 24 * 3_600 * 1_000;
/// Durations in ms. Other numbers are smaller or larger.
const MILLIS_LONG: std::ops::Range<i128> = 1_000..2_000_000_000;
/// The rest of a turn on a quorum, in ms. Other numbers are smaller or larger.
const TURN: std::ops::Range<i128> = 20..101;
/// Durations in µs. No other number is within these bounds.
const MICROS_LONG: std::ops::Range<i128> = 10_000_000_000..1_000_000_000_000;

/// A connection to both servers.
struct Pair {
    real: TcpStream,
    answers: Parser,
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
            answers: Parser::new(),
            connection: memory.connect(),
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.real.write_all(bytes).expect("the server listens");
    }

    /// Reads the next answer of the real server.
    fn read(&mut self) -> Value {
        let answer = self.answers.parse_value(&mut self.real);
        answer.expect("an answer")
    }
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
        MemoryServer::start("0".repeat(40), Duration::ZERO)
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
        let answer = self.in_memory(request, self.asking.connection);
        (real, redis::parse_redis_value(&answer).expect("an answer"))
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
        let output = self.in_memory(b"", self.listening.connection);
        let (mut unread, mut messages) = (&output[..], Parser::new());
        let memory = std::iter::from_fn(|| messages.parse_value(&mut unread).ok());
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
    let is_turn = TURN.contains(&one) && TURN.contains(&other);
    let is_millis = |n: i128| (n - now).abs() < NEAR || MILLIS_LONG.contains(&n);
    let is_micros = |n: i128| (n / 1_000 - now).abs() < NEAR || MICROS_LONG.contains(&n);
    let apart = (one - other).abs();
    apart == 0
        || is_turn
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
    for request in requests(steps, prefix) {
        let has = |word: &str| {
            request
                .windows(word.len())
                .any(|part| part == word.as_bytes())
        };
        let mut unordered = [("HGETALL", 2), ("SMEMBERS", 1), ("SPOP", 1)].into_iter();
        let each = unordered.find(|(word, _)| has(word)).map(|(_, each)| each);
        check(both, &request, each)?;
        let is_short = request.ends_with(b"$1\r\n1\r\n");
        if is_short && has("PEXPIRE") {
            // Time itself is what is tested: the key expires on both servers.
            thread::sleep(Duration::from_millis(3));
        }
    }
    // Those beside a lock begin with a brace.
    let all = packed(&["KEYS".into(), format!("*{prefix}*")]);
    let keys = check(both, &all, Some(1))?;
    let keys: Vec<String> = redis::from_redis_value(keys).expect("keys");
    for key in &keys {
        let kind = check(both, &packed(&["TYPE".into(), key.clone()]), None)?;
        let words: &[&str] = match kind {
            Value::SimpleString(kind) => match kind.as_str() {
                "hash" => &["HGETALL"],
                "list" => &["LRANGE", "0", "-1"],
                "set" => &["SMEMBERS"],
                "zset" => &["ZRANGE", "0", "-1", "WITHSCORES"],
                _ => &["GET"],
            },
            other => panic!("{other:?}"),
        };
        let mut look = vec![words[0].to_owned(), key.clone()];
        look.extend(words[1..].iter().map(|word| (*word).to_owned()));
        // The scores may be times, and a millisecond may pass between the two servers.
        let each = match words[0] {
            "HGETALL" | "ZRANGE" => Some(2),
            "SMEMBERS" => Some(1),
            _ => None,
        };
        check(both, &packed(&look), each)?;
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
        let (keys, _) = both.ask_words(&["KEYS", &format!("*{prefix}*")]);
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
