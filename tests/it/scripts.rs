//! What concerns a script alone, and no call of the library reaches: what it leaves in the keys, arguments that are stale or
//! late, keys of other clients, full memory, missing rights, and queues that are longer than a test has processes.
//!
//! The contract shows what follows from the scripts for callers. These tests send the scripts to a real Redis by hand, in
//! the order that they need.

use std::collections::BTreeSet;

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
/// How long the record of the last fence is kept after that fence, in ms.
const MEMORY: &str = "600000";
/// The units that a writer takes.
const ALL: &str = "4294967295";
/// At least the number of owners that listen in any test.
const OWNERS: usize = 8;

mod fast_paths;
mod queue;
mod quorum;

struct Redis(Connection);

/// Opens a connection to a test's own server.
fn connect(server: &Server) -> Connection {
    let client = redis::Client::open(server.url()).expect("a url");
    client.get_connection().expect("the server is there")
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

    fn now_us(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&["TIME"]);
        seconds * 1_000_000 + micros
    }

    fn now(&mut self) -> u64 {
        self.now_us() / 1000
    }

    /// Returns the ms that a key has left. Less than 0 if it never expires, or if there is no key.
    fn left(&mut self, key: &str) -> i64 {
        self.ask(&["PTTL", key])
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

    /// Acts while the memory of the server is full.
    fn while_full<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let () = self.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let result = act(self);
        let () = self.ask(&["CONFIG", "SET", "maxmemory", "0"]);
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

    /// Returns the waiters of a lock in their order. Each of them has a record.
    fn queue(&mut self, lock: &str) -> Vec<String> {
        let [_, queue, waiters] = companions_of(lock);
        let mut known: BTreeSet<String> = self.ask(&["HKEYS", &waiters]);
        known.retain(|field| !field.starts_with('='));
        let queue: Vec<String> = self.ask(&["ZRANGE", &queue, "0", "-1"]);
        assert_eq!(known, queue.iter().cloned().collect());
        queue
    }
}

/// A connection that listens to all channels.
struct Listener {
    connection: Connection,
    /// A subscriber of the waiters' channels, which reads nothing. NUMSUB counts no patterns.
    _subscriber: Connection,
}

impl Listener {
    /// A message on this channel ends the messages of a request.
    const END: &str = "end";

    fn new(server: &Server) -> Self {
        let listen = |command: &str, channels: &[String]| {
            let mut connection = connect(server);
            let limit = connection.set_read_timeout(Some(PATIENCE));
            limit.expect("a timeout");
            for channel in channels {
                let subscribe = redis::cmd(command).arg(channel).get_packed_command();
                let sent = connection.send_packed_command(&subscribe);
                sent.expect("Redis is there");
                connection.recv_response().expect("subscribed");
            }
            connection
        };
        let channels: Vec<_> = (0..OWNERS).map(channel).collect();
        Self {
            connection: listen("PSUBSCRIBE", &["*".to_owned()]),
            _subscriber: listen("SUBSCRIBE", &channels),
        }
    }

    /// Returns the messages since the last call, each with its channel. Leaves out those that tell a waiter of another's
    /// turn: it depends on the time whether a script sends one.
    fn messages(&mut self, redis: &mut Redis) -> Vec<(String, String)> {
        let () = redis.ask(&["PUBLISH", Self::END, ""]);
        let mut messages = Vec::new();
        loop {
            let push = self.connection.recv_response().expect("a message");
            let message = redis::Msg::from_value(&push).expect("a message");
            let channel = message.get_channel_name().to_owned();
            if channel == Self::END {
                return messages;
            }
            let payload: String = message.get_payload().expect("text");
            let after_owner = payload.split_once(' ').map(|(_, rest)| rest);
            if after_owner.is_none_or(|rest| rest.parse::<u64>().is_err()) {
                messages.push((channel, payload));
            }
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

/// Runs a test on its own server.
fn once(check: impl FnOnce(&mut Redis)) {
    let server = Server::start();
    check(&mut Redis(connect(&server)));
}

/// Runs a test on its own server, with a listener to all channels.
fn once_heard(check: impl FnOnce(&mut Redis, &mut Listener)) {
    let server = Server::start();
    let mut listener = Listener::new(&server);
    check(&mut Redis(connect(&server)), &mut listener);
}

fn owner(who: usize) -> String {
    format!("lh1:{who}:x")
}
