//! Multi-locks on one node of a quorum.

use std::slice;

use redis::{RedisResult, Value};

use super::fences::{LEEWAY, MEMORY, held, raise, records};
use super::quorum_owners::force_release;
use super::{CLAIM, LEASE, LIFE, Redis, channel, code, hint, once, once_heard, owner};
use crate::support::companions_of;

mod model;

const QUORUM_MULTI_ACQUIRE: &str = script!(
    "record.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "quorum_turn.lua",
    "quorum_fence.lua",
    "quorum_multi_acquire.lua"
);
const QUORUM_MULTI_RELEASE: &str = script!(
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "quorum_turn.lua",
    "quorum_multi_release.lua"
);

const NAMES: [&str; 3] = ["a", "b", "c"];
/// The names of each owner, as indexes of `NAMES`. An owner of one name acts as a mutex.
const SETS: [&[usize]; 8] = [
    &[0],
    &[1],
    &[2],
    &[0, 1],
    &[1, 2],
    &[0, 2],
    &[0, 1, 2],
    &[0, 1, 2],
];
/// Owners for the tests of one case.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const AB: usize = 3;
const BC: usize = 4;
const ABC: usize = 6;

/// Returns the names of an owner.
fn names(who: usize) -> Vec<&'static str> {
    SETS[who].iter().map(|name| NAMES[*name]).collect()
}

/// A request to one node.
#[derive(Clone, Debug)]
enum Request {
    Acquire {
        who: usize,
        waits: bool,
        clock: u64,
    },
    /// The first fences are by the owner's names.
    Raise {
        who: usize,
        firsts: Vec<u64>,
    },
    Release {
        who: usize,
    },
    /// An operator takes a name from the owner.
    Break {
        who: usize,
        name: usize,
    },
}

impl Request {
    fn send(&self, redis: &mut Redis) -> RedisResult<Value> {
        match *self {
            Self::Acquire { who, waits, clock } => {
                let channel = if waits { channel(who) } else { "-".into() };
                send_acquire(redis, who, LEASE, clock, &channel)
            }
            Self::Raise { who, ref firsts } => raise(redis, &names(who), who, 0, 1, firsts),
            Self::Release { who } => {
                let args = [&*owner(who), &LIFE.to_string(), "1"];
                redis.try_eval(QUORUM_MULTI_RELEASE, &names(who), &args)
            }
            Self::Break { who, name } => force_release(redis, NAMES[name], who),
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
    let (me, memory, clock, life) = (
        owner(who),
        MEMORY.to_string(),
        clock.to_string(),
        LIFE.to_string(),
    );
    let args = [
        &*me, lease, "1", &memory, &clock, channel, CLAIM, &life, "1",
    ];
    redis.try_eval(QUORUM_MULTI_ACQUIRE, &names(who), &args)
}

/// Returns the fence of each name, and whether others wait for one of them. Returns `None` if a name is held.
fn granted(reply: &Value) -> Option<(Vec<u64>, bool)> {
    let Value::Array(parts) = reply else {
        panic!("{reply:?}");
    };
    if let [Value::Int(0), _, Value::BulkString(_)] = parts[..] {
        return None;
    }
    let mut fences: Vec<u64> = redis::FromRedisValue::from_redis_value_ref(reply).expect("fences");
    let others = fences.pop().expect("it says whether others wait");
    assert!(others <= 1 && !fences.contains(&0), "{reply:?}");
    Some((fences, others == 1))
}

/// Sends an acquire with the right clock.
fn acquire(redis: &mut Redis, who: usize, waits: bool) -> Value {
    let clock = redis.now_us();
    Request::Acquire { who, waits, clock }.must_send(redis)
}

fn acquire_free(redis: &mut Redis, who: usize) -> Vec<u64> {
    let (fences, _) = granted(&acquire(redis, who, false)).expect("its names are free");
    fences
}

fn release(redis: &mut Redis, who: usize) -> Value {
    Request::Release { who }.must_send(redis)
}

/// Returns the holder of each name, with the mark for waiters.
fn holders(redis: &mut Redis) -> [Option<String>; NAMES.len()] {
    redis.ask(&[&["MGET"][..], &NAMES].concat())
}

#[test]
fn a_held_name_leaves_the_set_no_name() {
    once_heard(|redis, listener| {
        acquire_free(redis, B);
        // The set waits for `b`, although `c` is held too from then on.
        assert_eq!(held(&acquire(redis, ABC, true)).1, owner(B));
        acquire_free(redis, C);
        assert_eq!(held(&acquire(redis, ABC, true)).1, owner(B));
        let queues = NAMES.map(|name| redis.queue(name));
        assert_eq!(queues, [vec![], vec![owner(ABC)], vec![]]);
        // A try does not join a queue.
        assert_eq!(held(&acquire(redis, AB, false)).1, owner(B));
        assert_eq!(redis.queue("b"), [owner(ABC)]);
        acquire(redis, BC, true);
        assert_eq!(holders(redis), [None, Some(owner(B) + "!"), Some(owner(C))]);

        // The set is woken, and finds `c` held. Now it waits there, and the other set is woken in its place.
        assert_eq!(release(redis, B), Value::Int(3));
        assert_eq!(listener.messages(redis), [hint(ABC)]);
        assert_eq!(held(&acquire(redis, ABC, true)).1, owner(C));
        assert_eq!(listener.messages(redis), [hint(BC)]);
        let queues = NAMES.map(|name| redis.queue(name));
        assert_eq!(queues, [vec![], vec![owner(BC)], vec![owner(ABC)]]);
        // While it waits, another owner takes the first name.
        acquire_free(redis, A);
        assert_eq!(release(redis, C), Value::Int(3));
        assert_eq!(listener.messages(redis), [hint(ABC)]);
        assert_eq!(held(&acquire(redis, ABC, true)).1, owner(A));
        assert_eq!(release(redis, A), Value::Int(3));
        assert_eq!(listener.messages(redis), [hint(ABC)]);
        let (fences, others) = granted(&acquire(redis, ABC, true)).expect("all are free");
        assert_eq!(fences.len(), 3);
        assert!(others, "the other set waits for `b`");
        let held_by_set = [owner(ABC), owner(ABC) + "!", owner(ABC)].map(Some);
        assert_eq!(holders(redis), held_by_set);
    });
}

/// An owner had all names, and then another owner took one of them. A copy of the first owner's request comes late.
#[test]
fn a_set_that_lost_a_name_gives_the_others_up_when_it_asks_again() {
    once_heard(|redis, listener| {
        let fences = acquire_free(redis, ABC);
        acquire(redis, A, true);
        let () = redis.ask(&["DEL", "b"]);
        let (who, firsts) = (ABC, fences.iter().map(|fence| fence + 9).collect());
        let raise = Request::Raise { who, firsts };
        assert_eq!(raise.must_send(redis), Value::Int(0));
        acquire_free(redis, B);
        let before = NAMES.map(|name| redis.record(name));
        assert_eq!(raise.must_send(redis), Value::Int(-1));
        assert_eq!(NAMES.map(|name| redis.record(name)), before);

        assert_eq!(held(&acquire(redis, ABC, false)).1, owner(B));
        assert_eq!(holders(redis), [None, Some(owner(B)), None]);
        assert_eq!(listener.messages(redis), [hint(A)]);
        // With its release it finds nothing, and wakes no waiter again.
        assert_eq!(release(redis, ABC), Value::Int(-1));
        assert_eq!(listener.messages(redis), []);
    });
}

#[test]
fn a_release_frees_all_names_and_wakes_a_waiter_of_each() {
    once_heard(|redis, listener| {
        acquire_free(redis, ABC);
        for who in [A, AB, BC, C] {
            assert_eq!(held(&acquire(redis, who, true)).1, owner(ABC));
        }
        redis.age("a", &owner(A), LIFE * 2);
        assert_eq!(release(redis, ABC), Value::Int(3));
        assert_eq!(listener.messages(redis), [AB, BC, C].map(hint));
        assert_eq!(holders(redis), [None, None, None]);
        let queues = NAMES.map(|name| redis.queue(name));
        assert_eq!(queues, [AB, BC, C].map(|who| vec![owner(who)]));
        // A copy of the release wakes no waiter.
        assert_eq!(release(redis, ABC), Value::Int(0));
        assert_eq!(listener.messages(redis), []);
        // The turns pass. A waiter gives up after it was woken.
        for name in NAMES {
            redis.end_turn(name);
        }
        acquire(redis, A, false);
        acquire(redis, B, true);
        acquire(redis, AB, true);
        acquire(redis, ABC, true);
        listener.messages(redis);
        release(redis, A);
        assert_eq!(listener.messages(redis), [hint(AB)]);
        assert_eq!(release(redis, AB), Value::Int(-1));
        assert_eq!(listener.messages(redis), [hint(ABC)]);
    });
}

#[test]
fn a_repeated_acquire_never_shortens_a_lease() {
    once(|redis| {
        let expiries = |redis: &mut Redis| NAMES.map(|name| redis.expiry(name));
        let ask = |redis: &mut Redis, lease| {
            let clock = redis.now_us();
            let reply = send_acquire(redis, ABC, lease, clock, "-").expect("Redis replies");
            granted(&reply).expect("its names are free, or its own");
        };
        ask(redis, "3600000");
        acquire(redis, A, true);
        let longest = expiries(redis);
        ask(redis, "1000");
        assert_eq!(expiries(redis), longest);
        ask(redis, "7200000");
        let longer = expiries(redis);
        assert!((0..3).all(|name| longer[name] > longest[name] + 3_000_000));
        let value: String = redis.ask(&["GET", "a"]);
        assert_eq!(value, owner(ABC) + "!", "the mark is lost");
    });
}

/// Redis executes all requests of a set again, after the grant of another owner. The clock of the set is ahead.
#[test]
fn late_copies_of_a_sets_requests_never_lower_a_record() {
    once(|redis| {
        let (waits, clock) = (false, redis.now_us() + LEEWAY / 2);
        let acquire = Request::Acquire {
            who: ABC,
            waits,
            clock,
        };
        let (fences, _) = granted(&acquire.must_send(redis)).expect("they are free");
        let who = ABC;
        let firsts: Vec<_> = fences
            .iter()
            .zip([0, 5, 7])
            .map(|(f, more)| f + more)
            .collect();
        let raise = Request::Raise {
            who,
            firsts: firsts.clone(),
        };
        assert_eq!(raise.must_send(redis), records(&firsts));
        let release = Request::Release { who };
        release.must_send(redis);
        let other = acquire_free(redis, BC);
        let () = redis.ask(&["DEL", "b", "c"]);
        for request in [acquire, raise, release] {
            request.must_send(redis);
        }
        for (name, fence) in ["b", "c"].into_iter().zip(other) {
            assert!(redis.record(name) > Some(fence));
        }
    });
}

#[test]
fn a_companion_of_another_type_blocks_an_acquire_and_no_release() {
    once(|redis| {
        for spoiled in &NAMES.map(companions_of).concat() {
            let () = redis.ask(&["FLUSHALL"]);
            redis.spoil(spoiled);
            for waits in [false, true] {
                let (who, clock) = (ABC, redis.now_us());
                let request = Request::Acquire { who, waits, clock };
                assert_eq!(code(request.send(redis)), "WRONGTYPE", "{spoiled}");
                let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
                assert_eq!(&keys[..], slice::from_ref(spoiled), "the script wrote");
            }

            let () = redis.ask(&["DEL", spoiled]);
            acquire_free(redis, ABC);
            redis.spoil(spoiled);
            assert_eq!(release(redis, ABC), Value::Int(1), "{spoiled}");
            assert_eq!(holders(redis), [None, None, None]);
            assert_eq!(release(redis, ABC), Value::Int(0), "{spoiled}");
            assert!(redis.exists(spoiled), "it is another client's");
        }
    });
}

#[test]
fn a_key_of_another_type_keeps_no_other_name_from_its_release() {
    for name in NAMES {
        once_heard(|redis, listener| {
            acquire_free(redis, ABC);
            for who in [A, B, C] {
                acquire(redis, who, true);
            }
            redis.spoil(name);
            let (who, waits, clock) = (ABC, true, redis.now_us());
            let acquire = Request::Acquire { who, waits, clock };
            assert_eq!(code(acquire.send(redis)), "WRONGTYPE", "{name}");
            assert_eq!(release(redis, ABC), Value::Int(-1), "{name}");
            for other in NAMES {
                assert_eq!(redis.exists(other), other == name, "{other}");
            }
            let others = [A, B, C].into_iter().filter(|who| NAMES[*who] != name);
            let hints: Vec<_> = others.map(hint).collect();
            assert_eq!(listener.messages(redis), hints);
        });
    }
}

#[test]
fn full_memory_rejects_an_acquire_and_no_release() {
    once_heard(|redis, _| {
        acquire_free(redis, BC);
        acquire(redis, B, true);
        let () = redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let before = holders(redis);
        // All names free, one held, and a repeat by the holder.
        for who in [A, ABC, BC] {
            let (waits, clock) = (true, redis.now_us());
            let request = Request::Acquire { who, waits, clock };
            assert_eq!(code(request.send(redis)), "OOM", "{who}");
            assert_eq!(holders(redis), before);
            assert_eq!(redis.record("a"), None);
        }
        assert_eq!(redis.queue("b"), [owner(B)]);
        assert_eq!(release(redis, BC), Value::Int(3));
        assert_eq!(holders(redis), [None, None, None]);
    });
}

/// The user of Redis may not read the waiters.
#[test]
fn a_missing_right_keeps_no_lock_from_its_release() {
    once(|redis| {
        acquire_free(redis, ABC);
        for who in [A, B] {
            acquire(redis, who, true);
        }
        let released = redis.without("hget", |redis| release(redis, ABC));
        assert_eq!(released, Value::Int(1));
        assert_eq!(holders(redis), [None, None, None]);
    });
}

#[test]
fn a_raise_that_fails_raises_no_later_name() {
    let [fence, _, _] = companions_of("b");
    once(|redis| {
        let fences = acquire_free(redis, ABC);
        redis.spoil(&fence);
        let firsts: Vec<_> = fences.iter().map(|fence| fence + 5).collect();
        let (who, raised) = (ABC, firsts[0]);
        let raise = Request::Raise { who, firsts };
        assert_eq!(code(raise.send(redis)), "WRONGTYPE");
        assert_eq!(redis.record("a"), Some(raised));
        assert_eq!(redis.record("c"), Some(fences[2]));
    });
}

/// The user of Redis may not use one of the commands.
#[test]
fn a_missing_right_leaves_no_lock_behind() {
    once(|redis| {
        for command in [
            "time", "get", "getrange", "exists", "set", "zscore", "hget", "zcard", "zrem", "hdel",
        ] {
            let () = redis.ask(&["FLUSHALL"]);
            acquire_free(redis, C);
            acquire(redis, ABC, true);
            let () = redis.ask(&["DEL", "c"]);
            let (who, waits, clock) = (ABC, true, 0);
            let request = Request::Acquire { who, waits, clock };
            let reply = redis.without(command, |redis| request.send(redis));
            assert!(reply.is_err(), "{command} is not used");
            for name in NAMES {
                assert!(!redis.exists(name), "{command}");
            }
        }
    });
}
