//! The scripts that take a lock on one node of a quorum from its owner: an adopter's and an operator's. And the one that gives
//! its owner the lock on one more node.

use redis::{RedisResult, Value};

use super::fences::{Fences, LEEWAY, MEMORY, granted, raise, records};
use super::{LEASE, LIFE, Redis, channel, code, hint, once, once_heard, owner};
use crate::support::companions_of;

const QUORUM_ADOPT: &str = script!(
    "record.lua",
    "value.lua",
    "quorum_fence.lua",
    "quorum_adopt.lua"
);
const QUORUM_JOIN: &str = script!(
    "record.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "share.lua",
    "quorum_turn.lua",
    "quorum_fence.lua",
    "quorum_join.lua"
);
const QUORUM_FORCE_RELEASE: &str = script!(
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "share.lua",
    "quorum_turn.lua",
    "quorum_share.lua",
    "quorum_force_release.lua",
    "force_release.lua"
);

/// Takes the lock `name` from an owner, as an operator does.
pub(super) fn force_release(redis: &mut Redis, name: &str, who: usize) -> RedisResult<Value> {
    let args = [&*owner(who), "broken", &LIFE.to_string(), "1"];
    redis.try_eval(QUORUM_FORCE_RELEASE, &[name], &args)
}

/// Returns the message that an operator sends to the process of an owner.
pub(super) fn broken(who: usize) -> (String, String) {
    ("broken".to_owned(), owner(who))
}

const NAME: &str = "a";
/// The units that a writer takes.
const ALL: u64 = 4_294_967_295;
const DETACHED: usize = 0;
const ADOPTER: usize = 1;
const OTHER: usize = 2;
const WAITER: usize = 3;

/// Makes an owner the holder of a mutex, with a record of the last fence.
fn hold(redis: &mut Redis, value: &str, lease: &str, record: u64) {
    let [fence, _, _] = companions_of(NAME);
    let () = redis.ask(&["SET", NAME, value, "PX", lease]);
    let () = redis.ask(&["SET", &fence, &record.to_string(), "PX", "3600000"]);
}

/// Puts a waiter into the queue.
fn queue(redis: &mut Redis, who: usize, units: &str) {
    let [_, queue, waiters] = companions_of(NAME);
    let place = redis.ask::<u64>(&["ZCARD", &queue]) + 1;
    let waiter = format!("{} 1000 {units} {}", redis.now(), channel(who));
    let () = redis.ask(&["HSET", &waiters, &owner(who), &waiter]);
    let () = redis.ask(&["ZADD", &queue, &place.to_string(), &owner(who)]);
}

/// Changes the owner of the mutex from `from` to `to`.
fn adopt(redis: &mut Redis, from: usize, to: usize, lease: &str, clock: u64) -> RedisResult<Value> {
    let (memory, clock) = (MEMORY.to_string(), clock.to_string());
    let args = [&*owner(to), lease, &memory, &clock, &owner(from), "1"];
    redis.try_eval(QUORUM_ADOPT, &[NAME], &args)
}

fn must_adopt(redis: &mut Redis, from: usize, to: usize, lease: &str) -> Value {
    let clock = redis.now_us();
    adopt(redis, from, to, lease, clock).expect("the script does not fail")
}

fn value(redis: &mut Redis) -> Option<String> {
    redis.ask(&["GET", NAME])
}

#[test]
fn one_adopter_gets_a_mutex_and_the_second_finds_it_taken() {
    once(|redis| {
        let before = redis.now_us();
        hold(redis, &owner(DETACHED), LEASE, before - 1_000);
        let reply = must_adopt(redis, DETACHED, ADOPTER, LEASE);
        let (fences, others) = granted(&reply).expect("it is adopted");
        assert_eq!(fences.first, fences.last);
        assert!((before..=redis.now_us()).contains(&fences.first));
        assert!(!others);
        assert_eq!(redis.record(NAME), Some(fences.last));
        assert_eq!(value(redis), Some(owner(ADOPTER)));

        let taken = must_adopt(redis, DETACHED, OTHER, LEASE);
        assert_eq!(taken, Value::Int(-2));
        assert_eq!(value(redis), Some(owner(ADOPTER)));
        assert_eq!(redis.record(NAME), Some(fences.last));
        // The first adopter may repeat its request. It gets a larger fence.
        let reply = must_adopt(redis, DETACHED, ADOPTER, LEASE);
        let (repeated, _) = granted(&reply).expect("it is adopted");
        assert!(repeated.first > fences.last);
        let first = repeated.last + 5;
        let raised = raise(redis, &[NAME], ADOPTER, 0, 1, &[first]);
        assert_eq!(raised, Ok(records(&[first])));

        let () = redis.ask(&["DEL", NAME]);
        for who in [ADOPTER, OTHER] {
            let gone = must_adopt(redis, DETACHED, who, LEASE);
            assert_eq!(gone, Value::Int(-1));
        }
        assert!(!redis.exists(NAME));
        assert_eq!(redis.record(NAME), Some(first));
    });
}

#[test]
fn an_adoption_keeps_the_mark_for_waiters() {
    once(|redis| {
        hold(redis, &(owner(DETACHED) + "!"), LEASE, 5);
        for _ in 0..2 {
            let reply = must_adopt(redis, DETACHED, ADOPTER, LEASE);
            assert!(matches!(granted(&reply), Some((_, true))));
            assert_eq!(value(redis), Some(owner(ADOPTER) + "!"));
        }
    });
}

#[test]
fn only_the_whole_owner_can_be_adopted_from() {
    once(|redis| {
        let me = owner(DETACHED);
        // Another label, a lock that is kept for a while after its release, and two values of other clients.
        for value in [me.clone() + "x", me + "!~", "lh1".into(), "x".repeat(300)] {
            hold(redis, &value, LEASE, 5);
            let reply = must_adopt(redis, DETACHED, ADOPTER, LEASE);
            assert_eq!(reply, Value::Int(-2), "{value}");
            assert_eq!(redis.ask::<String>(&["GET", NAME]), value);
            assert_eq!(redis.record(NAME), Some(5));
        }
    });
}

/// An adopter that gets too few of the nodes gives the mutex back.
#[test]
fn an_adopter_gives_a_mutex_back_with_its_whole_lease() {
    once(|redis| {
        hold(redis, &owner(DETACHED), "3600000", 5);
        let before = redis.expiry(NAME);
        let mut last = 5;
        for (from, to, lease) in [
            (DETACHED, ADOPTER, "1000"),
            (DETACHED, ADOPTER, "1000"),
            (ADOPTER, DETACHED, "1000"),
            (DETACHED, OTHER, "1000"),
        ] {
            let reply = must_adopt(redis, from, to, lease);
            let (fences, _) = granted(&reply).expect("it is adopted");
            assert!(fences.first > last);
            last = fences.last;
            assert_eq!(value(redis), Some(owner(to)));
            assert!(redis.expiry(NAME) >= before, "the lease was shortened");
        }
        must_adopt(redis, DETACHED, OTHER, "7200000");
        assert!(redis.expiry(NAME) > before + 3_000_000);
    });
}

#[test]
fn an_adoption_never_lowers_the_record() {
    once(|redis| {
        let now = redis.now_us();
        // The record is far ahead, and the adopter's clock is too slow or too fast.
        for (record, clock) in [
            (now + 10 * LEEWAY, now),
            (now + 10 * LEEWAY, 0),
            (now - LEEWAY, 0),
            (now - LEEWAY, now + 10 * LEEWAY),
        ] {
            hold(redis, &owner(DETACHED), LEASE, record);
            let before = redis.now_us();
            let reply = adopt(redis, DETACHED, ADOPTER, LEASE, clock);
            let time = before..=redis.now_us();
            let (fences, _) = granted(&reply.expect("Redis replies")).expect("it is adopted");
            fences
                .check(record, 1, clock, &time)
                .expect("these fences are possible");
            let Fences { first, last } = fences;
            assert!(first > record && last == first);
            assert_eq!(redis.record(NAME), Some(last));
        }
    });
}

#[test]
fn an_adoption_that_fails_changes_nothing() {
    let [fence, _, _] = companions_of(NAME);
    once(|redis| {
        hold(redis, &owner(DETACHED), LEASE, 5);
        redis.spoil(&fence);
        let reply = adopt(redis, DETACHED, ADOPTER, LEASE, 0);
        assert_eq!(code(reply), "WRONGTYPE");
        assert_eq!(value(redis), Some(owner(DETACHED)));
    });
    once(|redis| {
        hold(redis, &owner(DETACHED), LEASE, 5);
        let () = redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let reply = adopt(redis, DETACHED, ADOPTER, LEASE, 0);
        assert_eq!(code(reply), "OOM");
        assert_eq!(value(redis), Some(owner(DETACHED)));
        assert_eq!(redis.record(NAME), Some(5));
    });
    once(|redis| {
        redis.spoil(NAME);
        let reply = adopt(redis, DETACHED, ADOPTER, LEASE, 0);
        assert_eq!(code(reply), "WRONGTYPE");
        assert!(!redis.exists(&fence));
    });
}

#[test]
fn an_operator_takes_a_mutex_from_its_owner_alone_and_its_waiters_are_only_woken() {
    once_heard(|redis, listener| {
        for suffix in ["", "!", "!~", "!~!"] {
            hold(redis, &(owner(OTHER) + suffix), LEASE, 5);
            for who in [WAITER, ADOPTER] {
                queue(redis, who, "1/1");
            }
            let reply = force_release(redis, NAME, DETACHED);
            assert_eq!(reply, Ok(Value::Int(0)));
            assert_eq!(value(redis), Some(owner(OTHER) + suffix));
            assert_eq!(listener.messages(redis), []);

            let reply = force_release(redis, NAME, OTHER);
            assert_eq!(reply, Ok(Value::Int(1)), "{suffix}");
            assert!(!redis.exists(NAME), "it was given to a waiter");
            assert_eq!(listener.messages(redis), [hint(WAITER), broken(OTHER)]);
            assert_eq!(redis.queue(NAME), [WAITER, ADOPTER].map(owner));
            assert_eq!(redis.record(NAME), Some(5));
            // A copy of the request finds no lock.
            let reply = force_release(redis, NAME, OTHER);
            assert_eq!(reply, Ok(Value::Int(0)));
            assert_eq!(listener.messages(redis), []);
            let () = redis.ask(&["FLUSHALL"]);
        }
    });
}

/// Makes these owners the readers of the lock.
fn read(redis: &mut Redis, readers: &[String]) {
    let later = (redis.now() + 3_600_000).to_string();
    let [of, used] = [ALL.to_string(), readers.len().to_string()].map(|units| format!("-{units}"));
    let () = redis.ask(&["ZADD", NAME, &of, "=of", &used, "=used"]);
    for reader in readers {
        let () = redis.ask(&["ZADD", NAME, &later, &format!("1 {reader}")]);
    }
    let () = redis.ask(&["PEXPIREAT", NAME, &later]);
}

/// The random histories of the other kinds break locks too.
#[test]
fn an_operator_takes_a_lock_from_one_of_several_owners() {
    once_heard(|redis, listener| {
        // One of the readers keeps the lock for a while after its release.
        read(redis, &[owner(DETACHED), owner(OTHER) + "!~"]);
        queue(redis, WAITER, &format!("{ALL}/{ALL}"));
        let reply = force_release(redis, NAME, ADOPTER);
        assert_eq!(reply, Ok(Value::Int(0)));

        assert_eq!(force_release(redis, NAME, OTHER), Ok(Value::Int(1)));
        // The writer needs all units, so it is not woken yet.
        assert_eq!(listener.messages(redis), [broken(OTHER)]);
        let used: i64 = redis.ask(&["ZSCORE", NAME, "=used"]);
        assert_eq!(used, -1);
        assert_eq!(force_release(redis, NAME, OTHER), Ok(Value::Int(0)));
        assert_eq!(force_release(redis, NAME, DETACHED), Ok(Value::Int(1)));
        assert_eq!(listener.messages(redis), [hint(WAITER), broken(DETACHED)]);
        assert!(!redis.exists(NAME), "it was given to the waiter");
        assert_eq!(redis.queue(NAME), [owner(WAITER)]);
    });
}

#[test]
fn a_key_of_another_type_keeps_no_lock_from_an_operator() {
    let companions = companions_of(NAME);
    for spoiled in &companions {
        for is_mutex in [true, false] {
            once(|redis| {
                if is_mutex {
                    hold(redis, &owner(OTHER), LEASE, 5);
                } else {
                    read(redis, &[owner(OTHER)]);
                }
                redis.spoil(spoiled);
                let reply = force_release(redis, NAME, OTHER);
                assert_eq!(reply, Ok(Value::Int(1)), "{spoiled}");
                assert!(!redis.exists(NAME));
                assert!(redis.exists(spoiled), "it is another client's");
            });
        }
    }
    once(|redis| {
        redis.spoil(NAME);
        let reply = force_release(redis, NAME, OTHER);
        assert_eq!(code(reply), "WRONGTYPE");
        let () = redis.ask(&["DEL", NAME]);
        let () = redis.ask(&["ZADD", NAME, "1", "x"]);
        let reply = force_release(redis, NAME, OTHER);
        assert_eq!(code(reply), "WRONGTYPE");
        assert!(redis.exists(NAME));
    });
}

/// Has this node join the lease of [`OTHER`], with `units` of each name, and these last fences.
fn join(redis: &mut Redis, names: &[&str], units: u64, ends: &[u64]) -> RedisResult<Value> {
    let (memory, units) = (MEMORY.to_string(), units.to_string());
    let me = owner(OTHER);
    let ends: Vec<_> = ends.iter().map(u64::to_string).collect();
    let mut args = vec![&*me, LEASE, &units, &memory];
    args.extend(ends.iter().map(String::as_str));
    redis.try_eval(QUORUM_JOIN, names, &args)
}

#[test]
fn a_node_joins_with_the_last_fence_and_leaves_a_lock_of_others_alone() {
    once(|redis| {
        // Far ahead of the node's time.
        let end = redis.now_us() + 1_000 * LEEWAY;
        assert_eq!(join(redis, &[NAME], 0, &[end]), Ok(Value::Int(1)));
        assert_eq!(value(redis), Some(owner(OTHER)));
        assert_eq!(redis.record(NAME), Some(end));
        // A repeat neither shortens the lease nor lowers the record.
        let () = redis.ask(&["PEXPIRE", NAME, "72000000"]);
        let before = redis.expiry(NAME);
        assert_eq!(join(redis, &[NAME], 0, &[end - 1]), Ok(Value::Int(1)));
        assert_eq!(
            (redis.expiry(NAME), redis.record(NAME)),
            (before, Some(end))
        );
        // A lease that would end earlier is raised, and keeps its mark.
        hold(redis, &(owner(OTHER) + "!"), "1000", 5);
        assert_eq!(join(redis, &[NAME], 0, &[end]), Ok(Value::Int(1)));
        assert_eq!(value(redis), Some(owner(OTHER) + "!"));
        assert!(redis.expiry(NAME) > redis.now().cast_signed() + 1_000_000);
        // Of another owner, of another client, and kept after a release.
        for value in [owner(WAITER), "theirs".into(), owner(OTHER) + "!~"] {
            hold(redis, &value, "1000000", 5);
            queue(redis, OTHER, "1/1");
            let before = redis.expiry(NAME);
            assert_eq!(
                join(redis, &[NAME], 0, &[end]),
                Ok(Value::Int(0)),
                "{value}"
            );
            assert_eq!(redis.ask::<String>(&["GET", NAME]), value);
            assert_eq!((redis.expiry(NAME), redis.record(NAME)), (before, Some(5)));
            assert_eq!(redis.queue(NAME), [owner(OTHER)]);
            let () = redis.ask(&["FLUSHALL"]);
        }
        // An unfenced lock has no record.
        assert_eq!(join(redis, &[NAME], 0, &[0]), Ok(Value::Int(1)));
        assert_eq!(redis.record(NAME), None);
    });
}

#[test]
fn an_owner_leaves_the_queue_when_the_node_joins_and_others_stay() {
    once(|redis| {
        queue(redis, OTHER, "1/1");
        assert_eq!(join(redis, &[NAME], 0, &[7]), Ok(Value::Int(1)));
        assert_eq!(
            (value(redis), redis.queue(NAME)),
            (Some(owner(OTHER)), vec![])
        );
        let () = redis.ask(&["DEL", NAME]);
        for who in [WAITER, OTHER] {
            queue(redis, who, "1/1");
        }
        assert_eq!(join(redis, &[NAME], 0, &[7]), Ok(Value::Int(1)));
        assert_eq!(
            value(redis),
            Some(owner(OTHER) + "!"),
            "nobody would wake the waiter"
        );
        assert_eq!(redis.queue(NAME), [owner(WAITER)]);
    });
}

#[test]
fn a_node_that_joins_in_the_turn_of_a_waiter_ends_it_without_a_lapse() {
    let from_a_reader = "1/1000000";
    for (units, waiter) in [(0, "1/1"), (1, from_a_reader)] {
        once(|redis| {
            queue(redis, WAITER, waiter);
            let [_, _, waiters] = companions_of(NAME);
            let turn = format!("{} 100 {}", redis.now() + 100, owner(WAITER));
            let () = redis.ask(&["HSET", &waiters, "=turn", &turn]);
            let before: String = redis.ask(&["HGET", &waiters, &owner(WAITER)]);
            assert_eq!(join(redis, &[NAME], units, &[7]), Ok(Value::Int(1)));
            assert_eq!(redis.turn(NAME), None);
            // The length of its next turn would stand there.
            assert_eq!(
                redis.ask::<String>(&["HGET", &waiters, &owner(WAITER)]),
                before
            );
        });
    }
}

#[test]
fn all_names_of_a_lock_are_joined_or_none() {
    once(|redis| {
        let names = [NAME, "b"];
        hold(redis, &owner(WAITER), LEASE, 5);
        assert_eq!(join(redis, &["b", NAME], 0, &[7, 8]), Ok(Value::Int(0)));
        assert_eq!((redis.exists("b"), redis.record("b")), (false, None));
        let () = redis.ask(&["DEL", NAME]);
        assert_eq!(join(redis, &names, 0, &[7, 8]), Ok(Value::Int(1)));
        let holders = names.map(|name| redis.ask::<String>(&["GET", name]));
        assert_eq!(holders, [owner(OTHER), owner(OTHER)]);
        assert_eq!(names.map(|name| redis.record(name)), [Some(7), Some(8)]);
    });
}

#[test]
fn a_node_joins_the_lease_of_a_reader_beside_other_readers() {
    once(|redis| {
        let used = |redis: &mut Redis| redis.ask::<i64>(&["ZSCORE", NAME, "=used"]);
        read(redis, &[owner(WAITER)]);
        assert_eq!(join(redis, &[NAME], ALL, &[7]), Ok(Value::Int(0)));
        assert_eq!((used(redis), redis.record(NAME)), (-1, None));
        for _ in 0..2 {
            assert_eq!(join(redis, &[NAME], 1, &[7]), Ok(Value::Int(1)));
            assert_eq!((used(redis), redis.record(NAME)), (-2, Some(7)));
        }
        assert!(redis.expiry(NAME) > redis.now().cast_signed() + 3_600_000);
        let () = redis.ask(&["DEL", NAME]);
        assert_eq!(join(redis, &[NAME], ALL, &[9]), Ok(Value::Int(1)));
        assert_eq!(
            (used(redis), redis.record(NAME)),
            (-ALL.cast_signed(), Some(9))
        );
        // Kept by this owner after its release.
        let () = redis.ask(&["DEL", NAME]);
        read(redis, &[owner(OTHER) + "!~"]);
        assert_eq!(join(redis, &[NAME], ALL, &[9]), Ok(Value::Int(0)));
    });
}

#[test]
fn a_join_that_fails_writes_no_lock() {
    let companions = companions_of(NAME);
    for spoiled in companions.iter().map(String::as_str).chain([NAME]) {
        for units in [0, 1, ALL] {
            once(|redis| {
                redis.spoil(spoiled);
                let reply = join(redis, &[NAME], units, &[7]);
                assert_eq!(code(reply), "WRONGTYPE", "{spoiled}");
                assert!(spoiled == NAME || !redis.exists(NAME), "{spoiled}");
            });
        }
    }
    for units in [0, 1] {
        once(|redis| {
            let () = redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
            assert_eq!(code(join(redis, &[NAME], units, &[7])), "OOM");
            assert!(!redis.exists(NAME) && redis.record(NAME).is_none());
        });
    }
}
