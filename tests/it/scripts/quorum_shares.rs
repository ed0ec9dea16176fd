//! A reader-writer lock on one node of a quorum.

use std::collections::BTreeMap;

use redis::{RedisResult, Value};

use super::fences::{
    Fences, LEEWAY, MEMORY, Unused, granted, held, is_of_a_reader, raise, records,
};
use super::quorum_owners::force_release;
use super::{CLAIM, LEASE, LIFE, Listener, Redis, channel, connect, hint, once, once_heard, owner};
use crate::support::{Server, companions_of};

mod faults;
mod model;

const QUORUM_SHARE_ACQUIRE: &str = script!(
    "record.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "share.lua",
    "quorum_turn.lua",
    "quorum_share.lua",
    "quorum_fence.lua",
    "quorum_share_acquire.lua"
);
const QUORUM_SHARE_RELEASE: &str = script!(
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "share.lua",
    "quorum_turn.lua",
    "quorum_share.lua",
    "quorum_share_release.lua"
);

const NAME: &str = "a";
/// The units that a writer takes.
const ALL: u64 = 4_294_967_295;
/// The units of each owner.
const UNITS: [u64; 7] = [1, 1, 1, 1, ALL, ALL, ALL];
/// The number of fences that each owner asks for.
const COUNTS: [u64; UNITS.len()] = [1, 1, 1, 1, 1, 50, 3_000_000];
/// Owners for the tests of one case.
const READERS: [usize; 4] = [0, 1, 2, 3];
const WRITERS: [usize; 3] = [4, 5, 6];

/// A request to one node.
#[derive(Clone, Copy, Debug)]
enum Request {
    Acquire {
        who: usize,
        waits: bool,
        clock: u64,
    },
    Raise {
        who: usize,
        first: u64,
    },
    Release {
        who: usize,
        unused: Option<Unused>,
        withdraws: bool,
    },
    /// An operator takes the lock from the owner.
    Break {
        who: usize,
    },
}

impl Request {
    fn send(&self, redis: &mut Redis) -> RedisResult<Value> {
        match *self {
            Self::Acquire { who, waits, clock } => {
                let channel = if waits { channel(who) } else { "-".into() };
                send_acquire(redis, who, LEASE, clock, &channel)
            }
            Self::Raise { who, first } => {
                raise(redis, &[NAME], who, UNITS[who], COUNTS[who], &[first])
            }
            Self::Release {
                who,
                unused,
                withdraws,
            } => {
                let [used, last, first] = &Unused::arguments(unused);
                let withdraws = if withdraws { "1" } else { "0" };
                let (me, life, units) = (owner(who), LIFE.to_string(), UNITS[who].to_string());
                let args = [&*me, used, last, first, &life, "1", withdraws, &units];
                redis.try_eval(QUORUM_SHARE_RELEASE, &[NAME], &args)
            }
            Self::Break { who } => force_release(redis, NAME, who),
        }
    }

    fn must_send(&self, redis: &mut Redis) -> Value {
        self.send(redis).expect("no script fails")
    }
}

fn send_acquire(
    redis: &mut Redis,
    who: usize,
    lease: &str,
    clock: u64,
    channel: &str,
) -> RedisResult<Value> {
    send_acquire_after(redis, who, lease, clock, channel, "0")
}

/// Does the same. `was_writer` is '1' if a writer has just become this reader.
fn send_acquire_after(
    redis: &mut Redis,
    who: usize,
    lease: &str,
    clock: u64,
    channel: &str,
    was_writer: &str,
) -> RedisResult<Value> {
    let (me, count, clock) = (owner(who), COUNTS[who].to_string(), clock.to_string());
    let (memory, life, units) = (MEMORY.to_string(), LIFE.to_string(), UNITS[who].to_string());
    let args = [
        &*me, lease, &count, &memory, &clock, channel, CLAIM, &life, "1", &units, was_writer,
    ];
    redis.try_eval(QUORUM_SHARE_ACQUIRE, &[NAME], &args)
}

/// Returns the member of the sorted set that is an owner's lease.
fn member(who: usize) -> String {
    format!("{} {}", UNITS[who], owner(who))
}

fn is_writer(who: usize) -> bool {
    UNITS[who] == ALL
}

/// Returns the leases that are listed, and the ms at which each of them ends.
fn leases(redis: &mut Redis) -> BTreeMap<String, u64> {
    redis.ask(&["ZRANGEBYSCORE", NAME, "1", "+inf", "WITHSCORES"])
}

/// Makes a lease expire without any script that notices it.
fn lapse(redis: &mut Redis, who: usize) {
    let () = redis.ask(&["ZADD", NAME, "XX", "1", &member(who)]);
}

/// Sends an acquire with the right clock.
fn acquire(redis: &mut Redis, who: usize, waits: bool) -> Value {
    let clock = redis.now_us();
    Request::Acquire { who, waits, clock }.must_send(redis)
}

fn acquire_free(redis: &mut Redis, who: usize) -> Fences {
    let (fences, _) = granted(&acquire(redis, who, false)).expect("its units are free");
    fences
}

fn end(redis: &mut Redis, who: usize, withdraws: bool) -> Value {
    let unused = None;
    let request = Request::Release {
        who,
        unused,
        withdraws,
    };
    request.must_send(redis)
}

fn release(redis: &mut Redis, who: usize) -> Value {
    end(redis, who, false)
}

fn withdraw(redis: &mut Redis, who: usize) -> Value {
    end(redis, who, true)
}

#[test]
fn a_reader_has_the_record_and_reserves_nothing() {
    let ([reader, other, ..], [writer, next, _]) = (READERS, WRITERS);
    once(|redis| {
        // Redis has no record, so the first reader makes one, which the other reader has too.
        let before = redis.now_us();
        let fences = acquire_free(redis, reader);
        let time = before..=redis.now_us();
        assert_eq!(fences.first, fences.last);
        assert!(time.contains(&fences.first));
        assert_eq!(acquire_free(redis, other), fences);
        for who in [reader, other] {
            assert_eq!(release(redis, who), Value::Int(1));
        }
        let written = acquire_free(redis, writer);
        assert!(written.first > fences.first);
        release(redis, writer);

        let [fence, _, _] = companions_of(NAME);
        let () = redis.ask(&["PEXPIRE", &fence, "60000"]);
        let Fences { last, .. } = acquire_free(redis, reader);
        assert_eq!(last, written.last);
        assert_eq!(acquire_free(redis, other).first, written.last);
        let left: u64 = redis.ask(&["PTTL", &fence]);
        assert!(left <= 60_000, "the record was written");
        // Another node answered more to the first reader.
        let first = last + 5;
        let who = reader;
        let raise = Request::Raise { who, first };
        assert_eq!(raise.must_send(redis), records(&[first]));
        assert_eq!(acquire_free(redis, other).first, first);
        for who in [reader, other] {
            release(redis, who);
        }
        assert_eq!(raise.must_send(redis), Value::Int(0));
        assert!(acquire_free(redis, next).first > first);
    });
}

#[test]
fn a_repeated_request_never_shortens_a_lease() {
    for who in [READERS[0], WRITERS[1]] {
        once(|redis| {
            let clock = redis.now_us();
            let ask = |redis: &mut Redis, lease| {
                let reply = send_acquire(redis, who, lease, clock, "-").expect("Redis replies");
                granted(&reply).expect("its units are free, or its own");
                let end: i64 = redis.ask(&["ZSCORE", NAME, &member(who)]);
                assert_eq!(redis.expiry(NAME), end);
                end
            };
            let longest = ask(redis, "3600000");
            assert_eq!(ask(redis, "1000"), longest);
            assert!(ask(redis, "7200000") > longest);
            // The lease has ended, so this begins a new one.
            lapse(redis, who);
            assert!(ask(redis, "60000") < longest);
        });
    }
}

#[test]
fn an_expired_lease_excludes_no_owner() {
    let ([reader, ..], [writer, next, _]) = (READERS, WRITERS);
    once_heard(|redis, listener| {
        for (holder, caller) in [(writer, reader), (reader, writer), (writer, next)] {
            let () = redis.ask(&["FLUSHALL"]);
            let fences = acquire_free(redis, holder);
            let reply = acquire(redis, caller, true);
            assert_eq!(held(&reply).1, owner(holder));
            lapse(redis, holder);
            let (who, first) = (holder, fences.last + 1);
            let raise = Request::Raise { who, first };
            assert_eq!(raise.must_send(redis), Value::Int(0));
            assert_eq!(redis.record(NAME), Some(fences.last));
            assert_eq!(listener.messages(redis), []);
            // The holder's own release finds it, and so does the caller.
            assert_eq!(release(redis, holder), Value::Int(0));
            assert!(!redis.exists(NAME));
            assert_eq!(listener.messages(redis), [hint(caller)]);
            redis.end_turn(NAME);
            acquire_free(redis, holder);
            assert_eq!(listener.messages(redis), [hint(caller)]);
            lapse(redis, holder);
            acquire_free(redis, caller);
            let listed: Vec<_> = leases(redis).into_keys().collect();
            assert_eq!(listed, [member(caller)]);
        }
    });
}

/// The caller asks again when that lease ends.
#[test]
fn a_held_lock_names_the_lease_that_ends_first() {
    let ([a, b, c, _], [writer, ..]) = (READERS, WRITERS);
    once(|redis| {
        let clock = redis.now_us();
        for (who, lease) in [(a, LEASE), (b, "3600000"), (c, LEASE)] {
            let reply = send_acquire(redis, who, lease, clock, "-").expect("Redis replies");
            granted(&reply).expect("its units are free");
        }
        let reply = acquire(redis, writer, false);
        let (ttl, holder) = held(&reply);
        assert!(is_of_a_reader(&reply));
        assert!((1..=3_600_000).contains(&ttl), "{ttl}");
        assert_eq!(holder, owner(b));
    });
}

/// A reader that waits may share its turn with other readers, so the reply says that it is a reader.
#[test]
fn a_turn_names_its_waiter_and_its_kind() {
    let ([reader, ..], [holder, writer, caller]) = (READERS, WRITERS);
    for (waiter, is_reader) in [(reader, true), (writer, false)] {
        once_heard(|redis, _| {
            acquire_free(redis, holder);
            for who in [waiter, caller] {
                assert_eq!(held(&acquire(redis, who, true)).1, owner(holder));
            }
            release(redis, holder);
            redis.lengthen_turn(NAME);
            let reply = acquire(redis, caller, true);
            assert_eq!(held(&reply).1, owner(waiter));
            assert_eq!(is_of_a_reader(&reply), is_reader);
        });
    }
}

#[test]
fn a_release_wakes_the_first_live_waiters_and_gives_them_nothing() {
    let ([a, b, c, d], [first, second, last]) = (READERS, WRITERS);
    once_heard(|redis, listener| {
        acquire_free(redis, first);
        for who in [a, b, second, c, last, d] {
            assert!(granted(&acquire(redis, who, true)).is_none());
        }
        redis.age(NAME, &owner(a), LIFE * 2);
        assert_eq!(release(redis, first), Value::Int(3));
        assert_eq!(listener.messages(redis), [hint(b)]);
        assert!(!redis.exists(NAME), "it was given to a waiter");
        assert_eq!(redis.queue(NAME), [b, second, c, last, d].map(owner));
        // A copy of the release wakes no waiter.
        assert_eq!(release(redis, first), Value::Int(0));
        assert_eq!(listener.messages(redis), []);

        // The turn lapses, so it is the next waiter's turn. The first one has kept its place.
        redis.end_turn(NAME);
        assert_eq!(held(&acquire(redis, a, false)).1, owner(second));
        assert_eq!(listener.messages(redis), [hint(b), hint(second)]);
        assert_eq!(redis.queue(NAME), [b, second, c, last, d].map(owner));
        let (_, others) = granted(&acquire(redis, b, true)).expect("no waiter is before it");
        assert!(others);
        assert_eq!(release(redis, b), Value::Int(3));
        assert_eq!(listener.messages(redis), [hint(second)]);
        // The writer gives up. The reader behind it is woken in its place.
        assert_eq!(withdraw(redis, second), Value::Int(0));
        assert_eq!(listener.messages(redis), [hint(c)]);
        // The other writer dies, so no writer is between the readers any more.
        redis.age(NAME, &owner(last), LIFE * 2);
        acquire_free(redis, a);
        assert_eq!(release(redis, a), Value::Int(3));
        assert_eq!(listener.messages(redis), [hint(c), hint(d)]);
        // When all turns have lapsed, a writer that does not wait gets the free lock.
        redis.end_turn(NAME);
        assert_eq!(held(&acquire(redis, first, false)).1, owner(d));
        assert_eq!(listener.messages(redis), [hint(c), hint(d)]);
        redis.end_turn(NAME);
        let reply = acquire(redis, first, false);
        assert!(matches!(granted(&reply), Some((_, true))));
    });
}

#[test]
fn a_new_reader_waits_behind_a_live_writer() {
    let ([a, b, c, d], [writer, ..]) = (READERS, WRITERS);
    once_heard(|redis, listener| {
        // A reader that waits keeps no reader out.
        acquire_free(redis, WRITERS[1]);
        acquire(redis, b, true);
        release(redis, WRITERS[1]);
        acquire_free(redis, a);
        acquire(redis, writer, true);
        for waits in [false, true] {
            assert_eq!(held(&acquire(redis, c, waits)).1, owner(a));
        }
        // The reader before the writer goes in.
        granted(&acquire(redis, b, true)).expect("no writer is before it");
        // A writer that is dead keeps no reader out, until it asks again.
        redis.age(NAME, &owner(writer), LIFE * 2);
        granted(&acquire(redis, c, true)).expect("the writer is dead");
        acquire(redis, writer, true);
        assert_eq!(held(&acquire(redis, d, true)).1, owner(a));
        listener.messages(redis);
        for (reader, released) in [(a, 1), (b, 1), (c, 3)] {
            assert_eq!(release(redis, reader), Value::Int(released));
        }
        assert_eq!(listener.messages(redis), [hint(writer)]);
        assert_eq!(redis.turn(NAME).expect("its turn").0, owner(writer));
        granted(&acquire(redis, writer, true)).expect("it is free");
        assert_eq!(redis.turn(NAME), None);
    });
}

/// Its process is gone: its channel has no subscriber.
#[test]
fn a_writer_that_is_not_reached_keeps_no_reader_out() {
    let ([a, b, ..], [writer, ..]) = (READERS, WRITERS);
    once(|redis| {
        acquire_free(redis, a);
        acquire(redis, writer, true);
        acquire_free(redis, b);
    });
}

/// A process that was outvoted asks under a new owner. Its readers do not use the turn of its writer.
#[test]
fn a_writer_has_the_turn_of_its_processs_former_writer() {
    let ([reader, ..], [holder, former, next]) = (READERS, WRITERS);
    once_heard(|redis, _| {
        let process = channel(former);
        let ask = |redis: &mut Redis, who| {
            let clock = redis.now_us();
            let reply = send_acquire(redis, who, LEASE, clock, &process);
            granted(&reply.expect("Redis replies")).is_some()
        };
        acquire_free(redis, holder);
        assert!(!ask(redis, former));
        release(redis, holder);
        redis.lengthen_turn(NAME);
        assert!(!ask(redis, reader));
        assert!(ask(redis, next), "it is its turn, or nobody's");
    });
}

#[test]
fn a_writer_that_becomes_a_reader_passes_the_writers_that_wait() {
    let ([reader, other, ..], [writer, next, _]) = (READERS, WRITERS);
    once_heard(|redis, _| {
        acquire_free(redis, writer);
        acquire(redis, next, true);
        assert_eq!(release(redis, writer), Value::Int(3));
        let clock = redis.now_us();
        let reply = send_acquire_after(redis, reader, LEASE, clock, "-", "1");
        let (_, others) = granted(&reply.expect("Redis replies")).expect("it comes first");
        assert!(others);
        for who in [next, other] {
            assert_eq!(held(&acquire(redis, who, true)).1, owner(reader));
        }
    });
}

/// The process of the first waiter is gone: its channel has no subscriber.
#[test]
fn a_release_skips_a_waiter_that_is_not_reached() {
    let ([a, b, ..], [holder, writer, _]) = (READERS, WRITERS);
    for gone in [a, writer] {
        let server = Server::start();
        let mut redis = Redis(connect(&server));
        let mut listener = Listener::to_one(&server, &channel(b));
        acquire_free(&mut redis, holder);
        for who in [gone, b] {
            acquire(&mut redis, who, true);
        }
        assert_eq!(release(&mut redis, holder), Value::Int(3));
        assert_eq!(listener.messages(&mut redis), [hint(b)]);
        assert_eq!(redis.queue(NAME), [owner(b)]);
    }
}

/// Redis executes all requests of a writer again, after the grant of another writer. The first writer's clock is ahead,
/// so the other writer's fence is between those of the first.
#[test]
fn late_copies_of_a_writers_requests_never_lower_the_record() {
    let [other, who, _] = WRITERS;
    once(|redis| {
        let clock = redis.now_us() + LEEWAY / 2;
        let (waits, withdraws) = (false, false);
        let acquire = Request::Acquire { who, waits, clock };
        let (reserved, _) = granted(&acquire.must_send(redis)).expect("it is free");
        let first = reserved.first + 7;
        let raise = Request::Raise { who, first };
        let end = first + COUNTS[who] - 1;
        assert_eq!(raise.must_send(redis), records(&[end]));
        let release = Request::Release {
            who,
            unused: Some(Unused { used: 0, reserved }),
            withdraws,
        };
        release.must_send(redis);
        assert_eq!(redis.record(NAME), Some(end), "it gave a raise back");

        let others = acquire_free(redis, other);
        let () = redis.ask(&["DEL", NAME]);
        for request in [acquire, raise, release] {
            request.must_send(redis);
        }
        assert!(redis.record(NAME) > Some(others.first));
    });
}

#[test]
fn a_writer_gives_unused_fences_back() {
    let who = WRITERS[2];
    once(|redis| {
        let end = |redis: &mut Redis, used, reserved| {
            let (unused, withdraws) = (Some(Unused { used, reserved }), false);
            let request = Request::Release {
                who,
                unused,
                withdraws,
            };
            assert_eq!(request.must_send(redis), Value::Int(1));
            redis.record(NAME)
        };
        let reserved = acquire_free(redis, who);
        let used = reserved.first + 3;
        assert_eq!(end(redis, used, reserved), Some(used));
        // The first fence was answered, so it is not given back.
        let reserved = acquire_free(redis, who);
        assert_eq!(end(redis, 0, reserved), Some(reserved.first));
    });
}
