//! Random histories of requests to the real Lua scripts, compared with plain models. Several owners ask in any order,
//! repeat requests, die and expire. That covers more cases than the threads of a test would.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError, TestRunner};
use redis::{Connection, RedisResult, Value};

use crate::support::{PATIENCE, Server, companions_of};

/// So long that no lease expires unless a test makes it, however busy the machine is.
const LEASE: &str = "36000000";
/// The pickup window in ms. A waiter that was silent for longer is passed over.
const CLAIM: &str = "3600000";
/// The silence in ms for which a waiter is passed over.
const STALL: u64 = 5_400_000;
/// The time in ms after which a silent waiter is dropped.
const LIFE: u64 = 7_200_000;
/// At least the number of owners in any test.
const OWNERS: usize = 8;

/// Joins the parts of a script. The path is relative to the files one folder further down.
macro_rules! script {
    ($($part:literal),+) => {
        concat!($(include_str!(concat!("../../../src/script/lua/", $part))),+)
    };
}

// These modules stand after the macro because they use it.
mod fast_paths;
mod fences;
mod mutexes;
mod quorum;
mod quorum_multi;
mod quorum_owners;
mod quorum_shares;
mod shares;
mod turns;

type Check = Result<(), TestCaseError>;

struct Redis(Connection);

/// Opens a connection to a test's own server.
fn connect(server: &Server) -> Connection {
    let client = redis::Client::open(server.url()).expect("a url");
    client.get_connection().expect("the server is there")
}

/// Opens a connection that waits for a message for at most [`PATIENCE`].
fn connect_to_listen(server: &Server) -> Connection {
    let listening = connect(server);
    listening
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout");
    listening
}

impl Redis {
    fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> T {
        let mut packed = redis::cmd(command[0]);
        packed.arg(&command[1..]);
        packed.query(&mut self.0).expect("an answer")
    }

    fn eval(&mut self, script: &str, locks: &[&str], args: &[&str]) -> Value {
        self.try_eval(script, locks, args).expect("no script fails")
    }

    fn try_eval(&mut self, script: &str, locks: &[&str], args: &[&str]) -> RedisResult<Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(4 * locks.len());
        for lock in locks {
            command.arg(lock).arg(&companions_of(lock));
        }
        command.arg(args);
        command.query(&mut self.0)
    }

    fn now(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    fn now_us(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&["TIME"]);
        seconds * 1_000_000 + micros
    }

    /// Returns the time in ms at which a key expires: -1 if it never expires, and -2 if there is no key.
    fn expiry(&mut self, key: &str) -> i64 {
        if let Ok(expiry) = redis::cmd("PEXPIRETIME").arg(key).query(&mut self.0) {
            return expiry;
        }
        // Redis before 7 tells only the time that is left. The clock must not move on while it answers.
        loop {
            let before = self.now();
            let left: i64 = self.ask(&["PTTL", key]);
            if left < 0 {
                return left;
            }
            if self.now() == before {
                return before.cast_signed() + left;
            }
        }
    }

    fn exists(&mut self, key: &str) -> bool {
        self.ask(&["EXISTS", key])
    }

    /// Returns the record of the last fence of a lock.
    fn record(&mut self, lock: &str) -> Option<u64> {
        let [fence, _, _] = companions_of(lock);
        self.ask(&["GET", &fence])
    }

    /// Makes a key a list, which no script about a lock writes.
    fn spoil(&mut self, key: &str) {
        let () = self.ask(&["DEL", key]);
        let () = self.ask(&["RPUSH", key, "x"]);
    }

    /// Acts as a user that may use all commands but one.
    fn without<T>(&mut self, command: &str, act: impl FnOnce(&mut Self) -> T) -> T {
        let denied = format!("-{command}");
        let user = ["reset", "on", "nopass", "~*", "&*", "+@all", &denied];
        let () = self.ask(&[&["ACL", "SETUSER", "limited"][..], &user].concat());
        let () = self.ask(&["AUTH", "limited", ""]);
        let result = act(self);
        let () = self.ask(&["AUTH", "default", ""]);
        result
    }

    /// Sets the last poll of a waiter to `ms` ago.
    fn age(&mut self, lock: &str, owner: &str, ms: u64) {
        let [_, _, waiters] = companions_of(lock);
        let entry: String = self.ask(&["HGET", &waiters, owner]);
        let (_, rest) = entry.split_once(' ').expect("it begins with a time");
        let entry = format!("{} {rest}", self.now() - ms);
        let () = self.ask(&["HSET", &waiters, owner, &entry]);
    }

    /// Returns whether a waiter was silent for longer than its pickup window.
    fn is_silent(&mut self, lock: &str, owner: &str) -> bool {
        let [_, _, waiters] = companions_of(lock);
        let entry: String = self.ask(&["HGET", &waiters, owner]);
        let (seen, _) = entry.split_once(' ').expect("it begins with a time");
        self.now() - seen.parse::<u64>().expect("ms") >= STALL
    }

    fn queue(&mut self, lock: &str) -> Vec<String> {
        let [_, queue, waiters] = companions_of(lock);
        let mut known: BTreeSet<String> = self.ask(&["HKEYS", &waiters]);
        known.retain(|field| !field.starts_with('='));
        let queue: Vec<String> = self.ask(&["ZRANGE", &queue, "0", "-1"]);
        assert_eq!(known, queue.iter().cloned().collect());
        queue
    }
}

/// A connection that listens to channels.
struct Listener {
    connection: Connection,
    /// A subscriber of the waiters' channels, which reads nothing. NUMSUB counts no patterns.
    _subscriber: Option<Connection>,
}

impl Listener {
    /// A message on this channel ends the messages of a request.
    const END: &str = "end";

    /// Listens to all channels.
    fn new(server: &Server) -> Self {
        let mut subscriber = connect_to_listen(server);
        for who in 0..OWNERS {
            let subscribe = redis::cmd("SUBSCRIBE")
                .arg(channel(who))
                .get_packed_command();
            let sent = subscriber.send_packed_command(&subscribe);
            sent.expect("Redis is there");
            subscriber.recv_response().expect("subscribed");
        }
        Self {
            _subscriber: Some(subscriber),
            ..Self::to(server, &["*"])
        }
    }

    /// Listens to one channel only.
    fn to_one(server: &Server, channel: &str) -> Self {
        Self::to(server, &[channel, Self::END])
    }

    fn to(server: &Server, patterns: &[&str]) -> Self {
        let mut connection = connect_to_listen(server);
        for pattern in patterns {
            let subscribe = redis::cmd("PSUBSCRIBE").arg(pattern).get_packed_command();
            let sent = connection.send_packed_command(&subscribe);
            sent.expect("Redis is there");
            connection.recv_response().expect("subscribed");
        }
        Self {
            connection,
            _subscriber: None,
        }
    }

    /// Returns the messages since the last call, each with its channel. Leaves out those that tell a waiter of another's
    /// turn: it depends on the time whether a script sends one.
    fn messages(&mut self, redis: &mut Redis) -> Vec<(String, String)> {
        let mut messages = self.all_messages(redis);
        messages.retain(|(_, payload)| {
            let after_owner = payload.split_once(' ').map(|(_, rest)| rest);
            after_owner.is_none_or(|rest| rest.parse::<u64>().is_err())
        });
        messages
    }

    /// Returns all messages since the last call, each with its channel.
    fn all_messages(&mut self, redis: &mut Redis) -> Vec<(String, String)> {
        let () = redis.ask(&["PUBLISH", Self::END, ""]);
        let mut messages = Vec::new();
        loop {
            let push = self.connection.recv_response().expect("a message");
            let message = redis::Msg::from_value(&push).expect("a message");
            let channel = message.get_channel_name().to_owned();
            if channel == Self::END {
                return messages;
            }
            messages.push((channel, message.get_payload().expect("text")));
        }
    }
}

/// Returns the channel on which a waiter listens.
fn channel(who: usize) -> String {
    format!("channel-{who}")
}

/// Returns the message that wakes a waiter, with its channel.
fn hint(who: usize) -> (String, String) {
    (channel(who), owner(who))
}

/// Returns the code of an error. Redis before 7 puts it behind other words: `ERR … @user_script:1: -OOM command …`.
fn code(reply: RedisResult<Value>) -> String {
    let error = reply.expect_err("an error");
    let (code, detail) = (error.code(), error.detail());
    let words = [code, detail].map(Option::unwrap_or_default).join(" ");
    let in_script = words.rsplit_once("@user_script:");
    let in_script = in_script.and_then(|(_, rest)| rest.split_once(": "));
    let own = in_script.and_then(|(_, own)| own.trim_start_matches('-').split(' ').next());
    own.or(code).expect("it has a code").to_owned()
}

/// Runs random histories on one server, which is emptied before each.
fn run<T: std::fmt::Debug>(
    cases: u32,
    histories: impl Strategy<Value = T>,
    check: impl FnMut(&mut Redis, T) -> Check,
) {
    run_on(&Server::start(), cases, histories, check);
}

/// Does the same with a listener to all channels.
fn run_heard<T: std::fmt::Debug>(
    cases: u32,
    histories: impl Strategy<Value = T>,
    mut check: impl FnMut(&mut Redis, &mut Listener, T) -> Check,
) {
    let server = Server::start();
    let mut listener = Listener::new(&server);
    run_on(&server, cases, histories, |redis, history| {
        // The last history may have ended before it read all messages.
        listener.messages(redis);
        check(redis, &mut listener, history)
    });
}

fn run_on<T: std::fmt::Debug>(
    server: &Server,
    cases: u32,
    histories: impl Strategy<Value = T>,
    mut check: impl FnMut(&mut Redis, T) -> Check,
) {
    let redis = std::cell::RefCell::new(Redis(connect(server)));
    let check = std::cell::RefCell::new(&mut check);
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    };
    let outcome = TestRunner::new(config).run(&histories, |history| {
        let mut redis = redis.borrow_mut();
        let () = redis.ask(&["FLUSHALL"]);
        (check.borrow_mut())(&mut redis, history)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, history)) => panic!("{why}\n{history:?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

/// Runs one history on its own server.
fn once(check: impl FnOnce(&mut Redis)) {
    let server = Server::start();
    check(&mut Redis(connect(&server)));
}

/// Runs one history on its own server, with a listener to all channels.
fn once_heard(check: impl FnOnce(&mut Redis, &mut Listener)) {
    let server = Server::start();
    let mut listener = Listener::new(&server);
    check(&mut Redis(connect(&server)), &mut listener);
}

fn owner(who: usize) -> String {
    format!("lh1:{who}:x")
}
