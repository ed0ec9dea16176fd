//! The scripts of one node of a quorum. Each test of several kinds shares one server.

use std::slice;

use leasehold::seam::script;
use redis::{RedisResult, Value};

use super::{ALL, CLAIM, LEASE, LIFE, MEMORY, Redis, channel, code, hint, once, once_heard, owner};
use crate::support::companions_of;

const NAME: &str = "a";
const NAMES: [&str; 3] = ["a", "b", "c"];
/// How far a client's clock, and the end of the reserved fences, may be from the node's time, in µs.
const LEEWAY: u64 = 1_000_000;
/// The number of fences that an owner of a single name asks for.
const COUNT: u64 = 50;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Mutex,
    Multi,
    Reader,
    Writer,
}

use Kind::{Multi, Mutex, Reader, Writer};

impl Kind {
    const ALL: [Self; 4] = [Mutex, Multi, Reader, Writer];

    fn names(self) -> &'static [&'static str] {
        if self == Multi { &NAMES } else { &NAMES[..1] }
    }

    /// Returns the kind that excludes this one.
    fn rival(self) -> Self {
        if self == Reader { Writer } else { self }
    }

    /// Returns the units of an owner if several owners share the lock, else 0.
    fn units(self) -> &'static str {
        match self {
            Mutex | Multi => "0",
            Reader => "1",
            Writer => ALL,
        }
    }

    /// Returns the number of fences that an owner asks for.
    fn count(self) -> u64 {
        if matches!(self, Mutex | Writer) {
            COUNT
        } else {
            1
        }
    }
}

/// A request for a lock.
#[derive(Clone, Copy)]
struct Ask<'a> {
    lease: &'a str,
    clock: u64,
    channel: &'a str,
}

impl Default for Ask<'_> {
    /// A try, of a client whose clock is behind.
    fn default() -> Self {
        Self {
            lease: LEASE,
            clock: 0,
            channel: "-",
        }
    }
}

fn send_acquire(redis: &mut Redis, kind: Kind, who: usize, ask: Ask) -> RedisResult<Value> {
    let (me, life, clock) = (owner(who), LIFE.to_string(), ask.clock.to_string());
    let count = kind.count().to_string();
    let args = [
        &*me,
        ask.lease,
        &count,
        MEMORY,
        &clock,
        ask.channel,
        CLAIM,
        &life,
        "1",
    ];
    match kind {
        Mutex | Multi => redis.try_eval(script("quorum_acquire"), kind.names(), &args),
        Reader | Writer => {
            let args = [&args[..], &[kind.units(), "0"]].concat();
            redis.try_eval(script("quorum_share_acquire"), kind.names(), &args)
        }
    }
}

/// Asks once. Returns the first fence, or else the owner that has the lock or its turn.
fn acquire(redis: &mut Redis, kind: Kind, who: usize) -> Result<u64, String> {
    outcome(&send_acquire(redis, kind, who, Ask::default()).expect("no script fails"))
}

/// Does the same as a waiter.
fn wait(redis: &mut Redis, kind: Kind, who: usize) -> Result<u64, String> {
    wait_on(redis, kind, who, &channel(who))
}

fn wait_on(redis: &mut Redis, kind: Kind, who: usize, channel: &str) -> Result<u64, String> {
    let ask = Ask {
        channel,
        ..Ask::default()
    };
    outcome(&send_acquire(redis, kind, who, ask).expect("no script fails"))
}

fn outcome(reply: &Value) -> Result<u64, String> {
    let Value::Array(parts) = reply else {
        panic!("{reply:?}");
    };
    match &parts[..] {
        [Value::Int(0), _, Value::BulkString(holder), ..] => {
            Err(String::from_utf8_lossy(holder).into_owned())
        }
        [Value::Int(first @ 1..), ..] => Ok(first.cast_unsigned()),
        _ => panic!("{reply:?}"),
    }
}

/// Ends the lock of an owner, or its wait. It gives unused fences back: `[used, last]`.
fn send_end(
    redis: &mut Redis,
    kind: Kind,
    who: usize,
    withdraws: bool,
    unused: [u64; 2],
) -> RedisResult<Value> {
    let (me, life) = (owner(who), LIFE.to_string());
    let withdraws = if withdraws { "1" } else { "0" };
    let [used, last] = unused.map(|fence| fence.to_string());
    let [used, last] = if unused == [0; 2] {
        [""; 2]
    } else {
        [&*used, &*last]
    };
    let args = [&*me, used, last, &life, "1"];
    match kind {
        Mutex | Multi => redis.try_eval(script("quorum_release"), kind.names(), &args),
        Reader | Writer => {
            let args = [&args[..], &[withdraws, kind.units()]].concat();
            redis.try_eval(script("quorum_share_release"), kind.names(), &args)
        }
    }
}

fn end(redis: &mut Redis, kind: Kind, who: usize, withdraws: bool) -> i64 {
    number(send_end(redis, kind, who, withdraws, [0; 2]))
}

fn release(redis: &mut Redis, kind: Kind, who: usize) -> i64 {
    end(redis, kind, who, false)
}

fn number(reply: RedisResult<Value>) -> i64 {
    redis::from_redis_value(reply.expect("no script fails")).expect("a number")
}

/// Raises the record of each name, as if another node had answered `first`.
fn raise(redis: &mut Redis, kind: Kind, who: usize, first: u64) -> RedisResult<Value> {
    let mut command = redis::cmd("EVAL");
    command
        .arg(script("quorum_raise"))
        .arg(2 * kind.names().len());
    for name in kind.names() {
        let [fence, _, _] = companions_of(name);
        command.arg(name).arg(fence);
    }
    command
        .arg(owner(who))
        .arg(kind.units())
        .arg(kind.count())
        .arg(MEMORY);
    for _ in kind.names() {
        command.arg(first);
    }
    command.query(&mut redis.0)
}

/// Changes the owner of the mutex from `from` to `to`.
fn adopt(redis: &mut Redis, from: usize, to: usize, lease: &str, clock: u64) -> RedisResult<Value> {
    let clock = clock.to_string();
    let args = [&*owner(to), lease, MEMORY, &clock, &owner(from), "1"];
    redis.try_eval(script("quorum_adopt"), &[NAME], &args)
}

/// Has the node join the lease of an owner, which has these last fences.
fn join(redis: &mut Redis, kind: Kind, who: usize, last: u64) -> RedisResult<Value> {
    let (me, last) = (owner(who), last.to_string());
    let mut args = vec![&*me, LEASE, kind.units(), MEMORY];
    args.resize(args.len() + kind.names().len(), &*last);
    redis.try_eval(script("quorum_join"), kind.names(), &args)
}

/// Takes the lock from an owner, as an operator does.
fn force_release(redis: &mut Redis, who: usize) -> RedisResult<Value> {
    let args = [&*owner(who), "broken", &LIFE.to_string(), "1"];
    redis.try_eval(script("quorum_force_release"), &[NAME], &args)
}

fn value(redis: &mut Redis) -> Option<String> {
    redis.ask(&["GET", NAME])
}

/// Makes a mutex have this value, with a record of the last fence.
fn hold(redis: &mut Redis, value: &str, record: u64) {
    let [fence, _, _] = companions_of(NAME);
    let () = redis.ask(&["SET", NAME, value, "PX", LEASE]);
    let () = redis.ask(&["SET", &fence, &record.to_string(), "PX", LEASE]);
}

impl Redis {
    /// Returns the waiter whose turn it is, and the length of the turn, ms.
    fn turn(&mut self) -> Option<(String, u64)> {
        let [_, _, waiters] = companions_of(NAME);
        let field: Option<String> = self.ask(&["HGET", &waiters, "=turn"]);
        let field = field?;
        let [_, length, who] = field.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{field}");
        };
        Some((who.to_owned(), length.parse().expect("ms")))
    }

    /// Lets the time of a turn pass.
    fn end_turn(&mut self) {
        let (who, length) = self.turn().expect("it is the turn of a waiter");
        self.write_turn(&format!("1 {length} {who}"));
    }

    /// Has a turn last for an hour, also if its time has passed unnoticed because the machine stalled.
    fn lengthen_turn(&mut self) {
        let (who, _) = self.turn().expect("it is the turn of a waiter");
        let hour = 3_600_000;
        let ends = self.now() + hour;
        self.write_turn(&format!("{ends} {hour} {who}"));
    }

    fn write_turn(&mut self, turn: &str) {
        let [_, _, waiters] = companions_of(NAME);
        let () = self.ask(&["HSET", &waiters, "=turn", turn]);
    }
}

#[test]
fn a_waiter_that_let_its_turn_lapse_has_no_other_until_it_asks_again() {
    let (holder, first, second, caller) = (0, 1, 2, 3);
    once_heard(|redis, listener| {
        acquire(redis, Mutex, holder).expect("it is free");
        for who in [first, second] {
            assert_eq!(wait(redis, Mutex, who), Err(owner(holder)));
        }
        assert_eq!(release(redis, Mutex, holder), 3);
        assert_eq!(redis.turn(), Some((owner(first), 100)));
        assert_eq!(listener.messages(redis), [hint(first)]);
        // The caller that finds the turn lapsed begins the next one's, and is refused.
        redis.end_turn();
        assert_eq!(acquire(redis, Mutex, caller), Err(owner(second)));
        assert_eq!(redis.turn(), Some((owner(second), 100)));
        assert_eq!(listener.messages(redis), [hint(first), hint(second)]);
        assert_eq!(redis.queue(NAME), [first, second].map(owner));
        // A further release wakes the first waiter, and gives it no turn.
        wait(redis, Mutex, second).expect("it is its turn, or nobody's");
        assert_eq!(release(redis, Mutex, second), 1);
        assert_eq!(listener.messages(redis), [hint(first)]);
        assert_eq!(redis.turn(), None);
        acquire(redis, Mutex, caller).expect("it is free");

        // When it asks again, it has its place, and each turn is twice as long as the one that lapsed.
        assert_eq!(wait(redis, Mutex, second), Err(owner(caller)));
        for length in [200, 400] {
            assert_eq!(wait(redis, Mutex, first), Err(owner(caller)));
            assert_eq!(redis.queue(NAME), [first, second].map(owner));
            assert_eq!(release(redis, Mutex, caller), 3);
            assert_eq!(redis.turn(), Some((owner(first), length)));
            assert_eq!(listener.messages(redis), [hint(first)]);
            redis.end_turn();
            if length == 200 {
                // A waiter that withdraws notices that it has lapsed.
                assert_eq!(end(redis, Mutex, second, true), 0);
                assert_eq!(redis.turn(), None);
                assert_eq!(listener.messages(redis), [hint(first)]);
                acquire(redis, Mutex, caller).expect("it is nobody's turn");
                assert_eq!(wait(redis, Mutex, second), Err(owner(caller)));
            }
        }
        // A lapsed turn that nobody has noticed is still its own.
        wait(redis, Mutex, first).expect("it is its turn");
    });
}

/// A process that was outvoted asks under a new owner, and has the turn of its former one. Its readers do not use the turn of
/// its writer.
#[test]
fn a_process_has_the_turn_of_its_former_owner() {
    let (holder, former, next, other) = (0, 1, 2, 3);
    once_heard(|redis, _| {
        for kind in [Mutex, Reader, Writer] {
            let () = redis.ask(&["FLUSHALL"]);
            acquire(redis, kind.rival(), holder).expect("it is free");
            assert_eq!(wait(redis, kind, former), Err(owner(holder)));
            assert_eq!(release(redis, kind.rival(), holder), 3, "{kind:?}");
            redis.lengthen_turn();
            assert_eq!(acquire(redis, kind.rival(), other), Err(owner(former)));
            if kind == Writer {
                let refused = wait_on(redis, Reader, next, &channel(former));
                assert_eq!(refused, Err(owner(former)));
                end(redis, Reader, next, true);
            }
            let granted = wait_on(redis, kind, next, &channel(former));
            granted.expect("it is the turn of its process");
            // No turn is left over for the next release.
            assert_eq!(redis.turn(), None, "{kind:?}");
        }
    });
}

#[test]
fn a_writer_that_waits_keeps_new_readers_out_while_it_lives() {
    let (first, before, writer, nobody) = (0, 1, 2, 100);
    once_heard(|redis, listener| {
        // A reader that waits keeps no reader out.
        acquire(redis, Writer, 7).expect("it is free");
        assert!(wait(redis, Reader, before).is_err());
        release(redis, Writer, 7);
        acquire(redis, Reader, first).expect("readers share");
        // The process of this writer is gone: its channel has no subscriber.
        assert!(wait(redis, Writer, nobody).is_err());
        acquire(redis, Reader, 3).expect("no writer is reached");
        end(redis, Writer, nobody, true);
        assert!(wait(redis, Writer, writer).is_err());
        assert_eq!(acquire(redis, Reader, 4), Err(owner(first)));
        assert_eq!(wait(redis, Reader, 4), Err(owner(first)));
        // The reader before the writer goes in.
        wait(redis, Reader, before).expect("no writer is before it");
        // A writer that was silent for too long keeps no reader out, until it asks again.
        redis.age(NAME, &owner(writer), LIFE * 2);
        wait(redis, Reader, 4).expect("the writer is dead");
        assert!(wait(redis, Writer, writer).is_err());
        assert!(wait(redis, Reader, 5).is_err());
        listener.messages(redis);
        for (reader, released) in [(first, 1), (before, 1), (3, 1), (4, 3)] {
            assert_eq!(release(redis, Reader, reader), released);
        }
        assert_eq!(listener.messages(redis), [hint(writer)]);
        wait(redis, Writer, writer).expect("it is its turn");
    });
}

#[test]
fn no_repeat_shortens_a_lease() {
    const SHORT: &str = "1000";
    once(|redis| {
        for kind in Kind::ALL {
            let () = redis.ask(&["FLUSHALL"]);
            let ask = |redis: &mut Redis, lease| {
                let ask = Ask {
                    lease,
                    ..Ask::default()
                };
                let reply = send_acquire(redis, kind, 1, ask);
                outcome(&reply.expect("no script fails")).expect("it is free, or its own");
            };
            ask(redis, LEASE);
            // The mark, too, stays.
            assert_eq!(wait(redis, kind.rival(), 2), Err(owner(1)));
            let before: Vec<u8> = redis.ask(&["DUMP", NAME]);
            ask(redis, SHORT);
            for name in kind.names() {
                assert!(redis.left(name) > 1_000_000, "{kind:?}");
            }
            assert_eq!(redis.ask::<Vec<u8>>(&["DUMP", NAME]), before, "{kind:?}");
            // The first name expires last of all: a join of the owner does not shorten it either.
            assert_eq!(number(join(redis, kind, 1, 7)), 1);
            assert!(redis.left(NAME) > 1_000_000, "{kind:?}");
        }
        hold(redis, &owner(0), 5);
        for (from, to) in [(0, 1), (0, 1), (1, 0), (0, 2)] {
            outcome(&adopt(redis, from, to, SHORT, 0).expect("no script fails")).expect("adopted");
            assert_eq!(value(redis), Some(owner(to)));
            assert!(redis.left(NAME) > 1_000_000);
        }
    });
}

/// Redis executes all requests of an owner again, after the grant of another owner. The owner's clock is ahead, so the
/// other owner's fence is between those of the first.
#[test]
fn late_copies_never_lower_the_record() {
    let (late, other) = (1, 2);
    once(|redis| {
        for kind in [Mutex, Multi, Writer] {
            let records = |redis: &mut Redis| {
                let records = kind
                    .names()
                    .iter()
                    .map(|name| redis.record(name).expect("a record"));
                records.collect::<Vec<_>>()
            };
            let () = redis.ask(&["FLUSHALL"]);
            let ask = Ask {
                clock: redis.now_us() + LEEWAY / 2,
                ..Ask::default()
            };
            let send =
                |redis: &mut Redis| send_acquire(redis, kind, late, ask).expect("no script fails");
            let first = outcome(&send(redis)).expect("it is free");
            let unused = [first, records(redis)[0]];
            let send_rest = |redis: &mut Redis| {
                raise(redis, kind, late, first + 7).expect("no script fails");
                send_end(redis, kind, late, false, unused).expect("no script fails");
            };
            send_rest(redis);
            // The record is not the end that the release names, so nothing is given back.
            let raised = first + 7 + kind.count() - 1;
            assert!(records(redis).iter().all(|record| *record == raised));
            // The owner is gone, so its raise changes nothing.
            assert_eq!(number(raise(redis, kind, late, raised + 100)), 0);
            acquire(redis, kind, other).expect("it is free");
            let others = records(redis);
            assert!(others.iter().all(|record| *record > raised));
            let beside = number(raise(redis, kind, late, others[0] + 100));
            assert_eq!(beside, if kind == Writer { 0 } else { -1 });
            assert_eq!(records(redis), others);
            let () = redis.ask(&[&["DEL"][..], kind.names()].concat());
            send(redis);
            send_rest(redis);
            for (now, before) in records(redis).into_iter().zip(others) {
                assert!(now > before, "{kind:?}");
            }
        }
        // An adoption raises the record, however far that is from the time of the node and of the client.
        let now = redis.now_us();
        for (record, clock) in [
            (now + 10 * LEEWAY, now),
            (now + 10 * LEEWAY, 0),
            (now - LEEWAY, 0),
            (now - LEEWAY, now + 10 * LEEWAY),
        ] {
            hold(redis, &owner(0), record);
            let reply = adopt(redis, 0, 1, LEASE, clock).expect("no script fails");
            let fence = outcome(&reply).expect("it is adopted");
            assert!(fence > record);
            assert_eq!(redis.record(NAME), Some(fence));
        }
    });
}

#[test]
fn only_unused_fences_are_given_back() {
    once(|redis| {
        for kind in [Mutex, Writer] {
            let () = redis.ask(&["FLUSHALL"]);
            let take = |redis: &mut Redis, who| {
                let first = acquire(redis, kind, who).expect("it is free");
                (first, redis.record(NAME).expect("a record"))
            };
            let give_back = |redis: &mut Redis, unused| {
                assert_eq!(number(send_end(redis, kind, 1, false, unused)), 1);
                redis.record(NAME).expect("a record")
            };
            let (first, last) = take(redis, 1);
            assert_eq!(last, first + COUNT - 1);
            assert_eq!(give_back(redis, [first + 3, last]), first + 3);
            // Another owner has reserved since. Then Redis executes a copy of the first acquire late.
            let (first, last) = take(redis, 1);
            let () = redis.ask(&["DEL", NAME]);
            take(redis, 2);
            release(redis, kind, 2);
            let (_, newest) = take(redis, 1);
            assert_eq!(give_back(redis, [first, last]), newest);
        }
    });
}

#[test]
fn a_key_of_another_type_blocks_an_acquire_and_no_end() {
    once(|redis| {
        for kind in Kind::ALL {
            let companions = kind.names().iter().copied().flat_map(companions_of);
            for spoiled in &companions.collect::<Vec<_>>() {
                let waiting = Ask {
                    channel: "",
                    ..Ask::default()
                };
                for ask in [Ask::default(), waiting] {
                    let () = redis.ask(&["FLUSHALL"]);
                    redis.spoil(spoiled);
                    let reply = send_acquire(redis, kind, 1, ask);
                    assert_eq!(code(reply), "WRONGTYPE", "{kind:?}, {spoiled}");
                    let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
                    assert_eq!(&keys[..], slice::from_ref(spoiled), "the script wrote");
                    let joined = join(redis, kind, 1, 7);
                    assert_eq!(code(joined), "WRONGTYPE", "{kind:?}, {spoiled}");
                    assert!(kind.names().iter().all(|name| !redis.exists(name)));
                }
                for withdraws in [false, true] {
                    let () = redis.ask(&["FLUSHALL"]);
                    acquire(redis, kind, 1).expect("it is free");
                    redis.spoil(spoiled);
                    for released in [1, 0] {
                        assert_eq!(end(redis, kind, 1, withdraws), released, "{spoiled}");
                        assert!(kind.names().iter().all(|name| !redis.exists(name)));
                    }
                    assert!(redis.exists(spoiled), "it is another client's");
                }
                if kind != Multi {
                    let () = redis.ask(&["FLUSHALL"]);
                    acquire(redis, kind, 1).expect("it is free");
                    redis.spoil(spoiled);
                    assert_eq!(number(force_release(redis, 1)), 1, "{spoiled}");
                    assert!(!redis.exists(NAME) && redis.exists(spoiled));
                }
            }
        }
        // One of the names is another client's.
        for name in NAMES {
            let () = redis.ask(&["FLUSHALL"]);
            acquire(redis, Multi, 1).expect("it is free");
            redis.spoil(name);
            assert_eq!(end(redis, Multi, 1, false), -1, "{name}");
            for other in NAMES {
                assert_eq!(redis.exists(other), other == name);
            }
        }
        let [fence, _, _] = companions_of(NAME);
        hold(redis, &owner(1), 5);
        redis.spoil(&fence);
        assert_eq!(code(adopt(redis, 1, 2, LEASE, 0)), "WRONGTYPE");
        assert_eq!(value(redis), Some(owner(1)));
    });
}

/// Redis refuses the first write of a script, and no later one.
#[test]
fn full_memory_rejects_an_acquire_and_no_release() {
    once(|redis| {
        for kind in Kind::ALL {
            let rejects = |redis: &mut Redis, callers: &[(Kind, usize)]| {
                redis.while_full(|redis| {
                    let before: Option<Vec<u8>> = redis.ask(&["DUMP", NAME]);
                    for (kind, who) in callers {
                        let ask = Ask {
                            channel: "",
                            ..Ask::default()
                        };
                        assert_eq!(
                            code(send_acquire(redis, *kind, *who, ask)),
                            "OOM",
                            "{kind:?}"
                        );
                    }
                    assert_eq!(redis.ask::<Option<Vec<u8>>>(&["DUMP", NAME]), before);
                });
            };
            let () = redis.ask(&["FLUSHALL"]);
            rejects(redis, &[(kind, 1)]);
            redis.while_full(|redis| assert_eq!(code(join(redis, kind, 1, 7)), "OOM"));
            assert_eq!((redis.exists(NAME), redis.record(NAME)), (false, None));
            // A repeat by the holder, and a further waiter.
            acquire(redis, kind, 1).expect("it is free");
            rejects(redis, &[(kind, 1), (kind.rival(), 2)]);
            assert!(redis.queue(NAME).is_empty());
            redis.while_full(|redis| assert_eq!(release(redis, kind, 1), 1));
            assert!(!redis.exists(NAME), "{kind:?}");
        }
        hold(redis, &owner(1), 5);
        redis.while_full(|redis| assert_eq!(code(adopt(redis, 1, 2, LEASE, 0)), "OOM"));
        assert_eq!(
            (value(redis), redis.record(NAME)),
            (Some(owner(1)), Some(5))
        );
    });
}

/// The user of Redis may not use one of the commands.
#[test]
fn a_missing_right_leaves_no_lock_behind() {
    const OF_MUTEXES: &[&str] = &["time", "set", "zscore", "hget", "zcard", "zrem", "hdel"];
    const OF_MULTI_LOCKS: &[&str] = &["get", "getrange", "exists"];
    const OF_SHARES: &[&str] = &[
        "time",
        "exists",
        "zscore",
        "zrange",
        "zrangebyscore",
        "zcard",
        "zadd",
        "zrem",
        "hget",
        "hlen",
        "hdel",
    ];
    once(|redis| {
        for (kind, commands) in [
            (Mutex, [OF_MUTEXES, &[]]),
            (Multi, [OF_MUTEXES, OF_MULTI_LOCKS]),
            (Reader, [OF_SHARES, &["get"]]),
            (Writer, [OF_SHARES, &["set"]]),
        ] {
            for command in commands.concat() {
                let () = redis.ask(&["FLUSHALL"]);
                acquire(redis, kind.rival(), 1).expect("it is free");
                let waiting = Ask {
                    channel: "",
                    ..Ask::default()
                };
                send_acquire(redis, kind, 2, waiting).expect("it waits");
                let () = redis.ask(&[&["DEL"][..], kind.names()].concat());
                let reply = redis.without(command, |redis| send_acquire(redis, kind, 2, waiting));
                assert!(reply.is_err(), "{kind:?} does not use {command}");
                for name in kind.names() {
                    assert!(!redis.exists(name), "{kind:?} without {command}");
                }
            }
            // The user may not read the waiters.
            let () = redis.ask(&["FLUSHALL"]);
            acquire(redis, kind, 1).expect("it is free");
            assert!(wait(redis, kind.rival(), 2).is_err());
            let released = redis.without("hget", |redis| release(redis, kind, 1));
            assert_eq!(released, 1, "{kind:?}");
            assert!(!redis.exists(NAME));
        }
    });
}

#[test]
fn only_the_whole_owner_can_be_adopted_from() {
    once(|redis| {
        let me = owner(0);
        // Another label, a lock that is kept for a while after its release, and two values of other clients.
        for held in [
            me.clone() + "x",
            me.clone() + "!~",
            "lh1".into(),
            "x".repeat(300),
        ] {
            hold(redis, &held, 5);
            assert_eq!(number(adopt(redis, 0, 1, LEASE, 0)), -2, "{held}");
            assert_eq!((value(redis), redis.record(NAME)), (Some(held), Some(5)));
        }
        // The adopter may repeat its request. A second one finds the mutex taken. The mark for waiters stays.
        hold(redis, &(me + "!"), 5);
        for _ in 0..2 {
            outcome(&adopt(redis, 0, 1, LEASE, 0).expect("no script fails")).expect("adopted");
            assert_eq!(value(redis), Some(owner(1) + "!"));
        }
        assert_eq!(number(adopt(redis, 0, 2, LEASE, 0)), -2);
        let () = redis.ask(&["DEL", NAME]);
        assert_eq!(number(adopt(redis, 0, 2, LEASE, 0)), -1);
        assert!(!redis.exists(NAME));
    });
}

#[test]
fn an_operator_takes_a_lock_from_its_owner_alone() {
    let (holder, waiter, other) = (1, 2, 3);
    let broken = |who| ("broken".to_owned(), owner(who));
    once_heard(|redis, listener| {
        for suffix in ["", "!", "!~", "!~!"] {
            let () = redis.ask(&["FLUSHALL"]);
            hold(redis, &owner(holder), 5);
            assert!(wait(redis, Mutex, waiter).is_err());
            let held = owner(holder) + suffix;
            hold(redis, &held, 5);
            assert_eq!(number(force_release(redis, other)), 0);
            assert_eq!(value(redis), Some(held));
            assert_eq!(listener.messages(redis), []);
            assert_eq!(number(force_release(redis, holder)), 1, "{suffix}");
            assert!(!redis.exists(NAME), "it was given to a waiter");
            assert_eq!(listener.messages(redis), [hint(waiter), broken(holder)]);
            // A copy of the request finds no lock.
            assert_eq!(number(force_release(redis, holder)), 0);
            assert_eq!(listener.messages(redis), []);
        }
        // The writer needs all units, so it is woken after the last reader.
        let () = redis.ask(&["FLUSHALL"]);
        for reader in [holder, other] {
            acquire(redis, Reader, reader).expect("readers share");
        }
        assert!(wait(redis, Writer, waiter).is_err());
        assert_eq!(number(force_release(redis, waiter)), 0);
        assert_eq!(number(force_release(redis, other)), 1);
        assert_eq!(listener.messages(redis), [broken(other)]);
        assert_eq!(number(force_release(redis, holder)), 1);
        assert_eq!(listener.messages(redis), [hint(waiter), broken(holder)]);
        assert!(!redis.exists(NAME));
        // A key that is no lock.
        let () = redis.ask(&["ZADD", NAME, "1", "x"]);
        assert_eq!(code(force_release(redis, holder)), "WRONGTYPE");
        assert!(redis.exists(NAME));
    });
}

#[test]
fn a_node_joins_a_lease_that_nobody_else_excludes_there() {
    let (me, waiter) = (1, 2);
    once_heard(|redis, _| {
        // Far ahead of the node's time.
        let last = redis.now_us() + 1_000 * LEEWAY;
        for kind in Kind::ALL {
            let () = redis.ask(&["FLUSHALL"]);
            assert_eq!(number(join(redis, kind, me, last)), 1);
            assert_eq!(number(join(redis, kind, me, last - 1)), 1);
            for name in kind.names() {
                assert_eq!(redis.record(name), Some(last), "{kind:?}");
            }
            // A second owner is refused, and changes nothing.
            if kind != Reader {
                assert_eq!(number(join(redis, kind, waiter, last + 9)), 0);
                assert_eq!(redis.record(NAME), Some(last));
            }
            // The owner leaves the queue, the turn of another ends, and the value has the mark for the others.
            let () = redis.ask(&["FLUSHALL"]);
            acquire(redis, kind.rival(), 0).expect("it is free");
            for who in [me, waiter] {
                assert!(wait(redis, kind, who).is_err());
            }
            release(redis, kind.rival(), 0);
            assert_eq!(number(join(redis, kind, me, 7)), 1, "{kind:?}");
            assert_eq!(redis.queue(NAME), [owner(waiter)]);
            assert_eq!(redis.turn(), None);
            if matches!(kind, Mutex | Multi) {
                assert_eq!(
                    value(redis),
                    Some(owner(me) + "!"),
                    "nobody would wake the waiter"
                );
            }
        }
        // All names are joined, or none.
        for held in [owner(waiter), "theirs".to_owned(), owner(me) + "!~"] {
            for name in NAMES {
                let () = redis.ask(&["FLUSHALL"]);
                let () = redis.ask(&["SET", name, &held, "PX", LEASE]);
                assert_eq!(number(join(redis, Multi, me, last)), 0, "{held}");
                let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
                assert_eq!(keys, [name]);
            }
        }
    });
}
