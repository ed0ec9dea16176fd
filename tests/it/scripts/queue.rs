//! The queue of a lock on one server: its order beside multi-locks, its records, and its length.

use leasehold::seam::script;
use redis::Value;

use super::{
    ALL, CLAIM, LEASE, LIFE, MEMORY, Redis, STALL, channel, hint, once, once_heard, owner,
};
use crate::support::companions_of;

/// The most waiters that one script passes over.
const MOST_PASSED: usize = 64;

/// An owner, and the names of its mutex or multi-lock.
type Party = (usize, &'static [&'static str]);

const A: Party = (1, &["a"]);
const B: Party = (2, &["b"]);
const C: Party = (3, &["c"]);
const OTHER_C: Party = (4, &["c"]);
const AC: Party = (5, &["a", "c"]);
const BC: Party = (6, &["b", "c"]);

/// Asks for all names. `how` is `take`, or `poll` for a waiter.
fn ask(redis: &mut Redis, (who, names): (usize, &[&str]), how: &str, channel: &str) -> Value {
    let (me, life) = (owner(who), LIFE.to_string());
    let args = [&*me, LEASE, "1", MEMORY, how, channel, CLAIM, &life, "0"];
    match names {
        [_] => redis.eval(script("mutex_acquire"), names, &args),
        _ => redis.eval(script("multi_acquire"), names, &[&args[..], &[""]].concat()),
    }
}

/// Asks as a waiter. Returns whether all names were granted.
fn poll(redis: &mut Redis, party: (usize, &[&str])) -> bool {
    is_granted(&ask(redis, party, "poll", ""))
}

fn is_granted(reply: &Value) -> bool {
    match reply {
        Value::Array(parts) => parts[0] != Value::Int(0),
        reply => matches!(reply, Value::Int(1..)),
    }
}

fn release(redis: &mut Redis, (who, names): (usize, &[&str])) -> Value {
    match names {
        [name] => end(redis, who, name, "0", "0"),
        _ => redis.eval(
            script("multi_release"),
            names,
            &[&owner(who), "", "", &LIFE.to_string(), "0"],
        ),
    }
}

/// Releases a mutex or withdraws from it, and may leave a gap of these ms.
fn end(redis: &mut Redis, who: usize, name: &str, withdraws: &str, gap: &str) -> Value {
    let (me, life) = (owner(who), LIFE.to_string());
    let args = [&*me, "", "", &life, "1", withdraws, gap, "50"];
    redis.eval(script("mutex_hand_over"), &[name], &args)
}

/// Returns the holder of a mutex, without the mark for waiters.
fn holder(redis: &mut Redis, name: &str) -> Option<String> {
    let value: Option<String> = redis.ask(&["GET", name]);
    value.map(|value| value.trim_end_matches('!').to_owned())
}

/// Puts two multi-locks to the front of the queue of `c`: each of them has its first name, and waits for that one. Returns
/// their order.
fn bring_to_the_front(redis: &mut Redis, waiting: &[Party]) -> [Party; 2] {
    for party in [A, B, C, BC, AC].iter().chain(waiting) {
        poll(redis, *party);
    }
    let mut places = Vec::new();
    for (single, set) in [(A, AC), (B, BC)] {
        release(redis, single);
        poll(redis, set);
        places.push(owner(set.0));
        assert!(redis.queue("c").starts_with(&places));
    }
    [AC, BC]
}

#[test]
fn multi_locks_at_the_front_of_a_queue_keep_their_order() {
    once(|redis| {
        let sets = bring_to_the_front(redis, &[]);
        let places = sets.map(|set| owner(set.0));
        for set in [AC, BC, BC, AC] {
            poll(redis, set);
            assert_eq!(holder(redis, set.1[0]), Some(owner(set.0)));
            assert_eq!(redis.queue("c"), places);
        }
        release(redis, C);
        for set in sets {
            assert_eq!(holder(redis, "c"), Some(owner(set.0)));
            assert!(poll(redis, set));
            release(redis, set);
        }
    });
}

/// Two multi-locks stand at the front, before a waiter from the rest of the queue. Then another such waiter comes.
#[test]
fn the_front_of_a_queue_and_the_rest_take_turns() {
    once(|redis| {
        for is_dead in [false, true] {
            let () = redis.ask(&["FLUSHALL"]);
            let [first, second] = bring_to_the_front(redis, &[OTHER_C]);
            release(redis, C);
            assert!(poll(redis, first));
            poll(redis, C);
            let queue = [second, OTHER_C, C].map(|party| owner(party.0));
            assert_eq!(redis.queue("c"), queue);
            let mut next = vec![OTHER_C, second, C];
            if is_dead {
                redis.age("c", &owner(OTHER_C.0), LIFE * 2);
                next = vec![C, second];
            }
            let mut last = first;
            for party in next {
                release(redis, last);
                assert_eq!(holder(redis, "c"), Some(owner(party.0)));
                assert!(poll(redis, party));
                last = party;
            }
            release(redis, last);
            assert!(!redis.exists("c"));
            assert_eq!(redis.queue("c"), [""; 0]);
        }
    });
}

/// Each join keeps both keys of the queue for a life at least, whatever time they had left before.
#[test]
fn a_waiter_that_joins_keeps_the_queue_alive() {
    let [_, queue, waiters] = companions_of("a");
    let keys = [&*queue, &*waiters];
    once(|redis| {
        poll(redis, A);
        // The last one: the records of the waiters are gone alone, as after an eviction.
        let spoilers: [&[&[&str]]; 4] = [
            &[],
            &[
                &["PEXPIRE", &queue, "3600000"],
                &["PEXPIRE", &waiters, "3600000"],
            ],
            &[&["PERSIST", &queue], &["PERSIST", &waiters]],
            &[&["DEL", &waiters]],
        ];
        for commands in spoilers {
            for command in commands {
                let () = redis.ask(command);
            }
            poll(redis, (2, &["a"]));
            for key in keys {
                let left = redis.left(key);
                assert!(left >= LIFE.cast_signed(), "{key}: {left} ms");
            }
        }
    });
}

/// The waiter that would ask when the gap ends gives up: once after a hand-over, once after a take-over.
#[test]
fn a_withdrawal_in_a_poller_gap_wakes_the_next_waiter() {
    let (hasty, patient) = (2, 3);
    let name: &[&str] = &["a"];
    once_heard(|redis, listener| {
        for takes_over in [false, true] {
            let () = redis.ask(&["FLUSHALL"]);
            ask(redis, A, "take", "-");
            if takes_over {
                ask(redis, (patient, name), "take", &channel(patient));
                let (me, life, from) = (owner(hasty), LIFE.to_string(), owner(A.0));
                let args = [
                    &*me,
                    LEASE,
                    "1",
                    MEMORY,
                    "poll",
                    &channel(hasty),
                    CLAIM,
                    &life,
                ];
                let args = [&args[..], &["0", &from, "", "", "500", "500"]].concat();
                redis.eval(script("mutex_acquire"), name, &args);
            } else {
                ask(redis, (hasty, name), "take", &channel(hasty));
                ask(redis, (patient, name), "take", &channel(patient));
                end(redis, A.0, "a", "0", "500");
            }
            assert!(!redis.exists("a"), "no gap was left");
            listener.messages(redis);
            end(redis, hasty, "a", "1", "0");
            assert_eq!(listener.messages(redis), [hint(patient)]);
        }
    });
}

/// A request that Redis executes late must not shorten a lease that a later request or a renewal has made longer. It writes
/// in any case, because a WAIT that follows must wait for a write.
#[test]
fn no_repeat_shortens_a_lease() {
    const SHORT: &str = "1000";
    let (me, life) = (owner(1), LIFE.to_string());
    let take = |fences, end: &[&'static str]| {
        let start = [&*me, SHORT, fences, MEMORY, "take", "-", CLAIM, &life, "0"];
        [&start[..], end].concat()
    };
    let (fenced, unfenced) = (take("1", &[]), take("0", &[]));
    let (set, unfenced_set) = (take("1", &[""]), take("0", &[""]));
    let adopt = |fences| [&*me, SHORT, MEMORY, "lh1:from", fences, "0"];
    let (adopt, adopt_unfenced) = (adopt("1"), adopt("0"));
    once(|redis| {
        let written = |redis: &mut Redis| -> u64 {
            let report: String = redis.ask(&["INFO", "persistence"]);
            let mut lines = report.lines();
            let changes = lines.find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
            changes
                .and_then(|changes| changes.parse().ok())
                .expect("a number")
        };
        let names = ["a", "b", "c"];
        for (script, count, args) in [
            (script("mutex_acquire"), 1, &fenced[..]),
            (script("mutex_acquire"), 1, &unfenced),
            (script("multi_acquire"), 3, &set),
            (script("multi_acquire"), 3, &unfenced_set),
            (script("mutex_adopt"), 1, &adopt),
            (script("mutex_adopt"), 1, &adopt_unfenced),
        ] {
            for name in names {
                let () = redis.ask(&["SET", name, &me, "PX", LEASE]);
            }
            let before = written(redis);
            redis.eval(script, &names[..count], args);
            assert!(written(redis) > before);
            for name in names {
                assert!(redis.left(name) > 1_000_000, "{name}");
            }
        }
        // Another owner has the last name now. The copy waits for that name, and keeps the first.
        let () = redis.ask(&["SET", "c", "lh1:2:x", "PX", LEASE]);
        let waiting = [&*me, SHORT, "1", MEMORY, "poll", "", CLAIM, &life, "0", ""];
        redis.eval(script("multi_acquire"), &names, &waiting);
        assert!(redis.left("a") > 1_000_000);
    });
}

/// The key of a semaphore lives for as long as the longest lease.
#[test]
fn no_short_lease_of_a_permit_shortens_another() {
    const SHORT: &str = "1000";
    let life = LIFE.to_string();
    once(|redis| {
        for (who, lease) in [(1, LEASE), (2, LEASE), (1, SHORT)] {
            let me = owner(who);
            let args = [&*me, lease, "1", MEMORY, "permits", "-", CLAIM, &life, "0"];
            let args = [&args[..], &["1", "2", "", "", "", ""]].concat();
            redis.eval(script("share_acquire"), &["n"], &args);
        }
        let renew = ["EVAL", script("renew"), "1", "n", &owner(2), SHORT, "1"];
        assert_eq!(redis.ask::<Vec<i64>>(&renew), [1]);
        assert!(redis.left("n") > 1_000_000);
        for who in [1, 2] {
            let ends: u64 = redis.ask(&["ZSCORE", "n", &format!("1 {}", owner(who))]);
            assert!(ends > redis.now() + 1_000_000, "{who}");
        }
    });
}

#[test]
fn a_record_that_is_kept_is_neither_shortened_nor_made() {
    once(|redis| {
        for (record, life) in [("short", "300000"), ("long", LEASE)] {
            let () = redis.ask(&["SET", record, "5", "PX", life]);
        }
        let () = redis.ask(&["SET", "endless", "5"]);
        let records = ["short", "long", "endless", "none"];
        let keep = [
            &["EVAL", script("keep_record"), "4"][..],
            &records,
            &[MEMORY],
        ]
        .concat();
        for _ in 0..2 {
            assert_eq!(redis.ask::<Vec<i64>>(&keep), [1; 4]);
        }
        let [short, long, endless, _] = records.map(|record| redis.left(record));
        assert!((400_000..=600_000).contains(&short), "{short}");
        assert!(long > 600_000, "{long}");
        assert_eq!((endless, redis.exists("none")), (-1, false));
    });
}

#[test]
fn a_renewal_creates_no_lease() {
    once(|redis| {
        let renew = |redis: &mut Redis, who, units| -> Vec<i64> {
            redis.ask(&["EVAL", script("renew"), "1", "a", &owner(who), LEASE, units])
        };
        for units in ["0", "1", ALL] {
            assert_eq!(renew(redis, 1, units), [0]);
            assert!(!redis.exists("a"));
        }
        ask(redis, A, "take", "-");
        assert_eq!(renew(redis, 2, "0"), [-1]);
        assert_eq!(holder(redis, "a"), Some(owner(A.0)));
    });
}

/// A release that comes late finds the lock of another owner.
#[test]
fn a_release_takes_nothing_from_another_owner() {
    const LATE: usize = 7;
    once(|redis| {
        for has_waiter in [false, true] {
            let () = redis.ask(&["FLUSHALL"]);
            assert!(poll(redis, A));
            if has_waiter {
                assert!(!poll(redis, (9, &["a"])));
            }
            let before: Vec<u8> = redis.ask(&["DUMP", "a"]);
            let plain = ["EVAL", script("mutex_release"), "1", "a", &owner(LATE)];
            assert_eq!(redis.ask::<i64>(&plain), -1);
            for withdraws in ["0", "1"] {
                assert_eq!(end(redis, LATE, "a", withdraws, "0"), Value::Int(-1));
            }
            assert_eq!(release(redis, (LATE, &["a", "b"])), Value::Int(-1));
            assert_eq!(redis.ask::<Vec<u8>>(&["DUMP", "a"]), before);
            assert_eq!(redis.queue("a").len(), usize::from(has_waiter));
        }
    });
}

#[test]
fn the_caller_has_the_lock_if_a_script_can_pass_over_no_more_waiters() {
    let life = LIFE.to_string();
    let last = MOST_PASSED + 1;
    let mutex = |redis: &mut Redis, who| poll(redis, (who, &["n"]));
    let permit = |redis: &mut Redis, who| {
        let me = owner(who);
        let args = [&*me, LEASE, "1", MEMORY, "permits", "", CLAIM, &life, "0"];
        let args = [&args[..], &["1", "1", "", "", "", ""]].concat();
        is_granted(&redis.eval(script("share_acquire"), &["n"], &args))
    };
    once(|redis| {
        for is_mutex in [true, false] {
            let ask = |redis: &mut Redis, who| {
                if is_mutex {
                    mutex(redis, who)
                } else {
                    permit(redis, who)
                }
            };
            let () = redis.ask(&["FLUSHALL"]);
            for who in 0..=last {
                assert_eq!(ask(redis, who), who == 0);
            }
            for who in 1..last {
                redis.age("n", &owner(who), STALL);
            }
            let me = owner(0);
            let released = if is_mutex {
                end(redis, 0, "n", "0", "0")
            } else {
                redis.eval(
                    script("share_release"),
                    &["n"],
                    &[&me, "", "", &life, "0", "0", "1"],
                )
            };
            assert_eq!(released, Value::Int(1));
            assert!(!redis.exists("n"));
            assert_eq!(redis.queue("n").len(), last);
            assert!(ask(redis, last));
            // It did not take the places of the others.
            assert_eq!(redis.queue("n").len(), MOST_PASSED);
            assert!(!ask(redis, 1));
            let () = redis.ask(&["DEL", "n"]);
            assert!(ask(redis, 1));
        }
    });
}
