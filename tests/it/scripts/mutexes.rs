//! Mutexes and multi-locks.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::time::Duration;

use proptest::prelude::*;
use redis::Value;

use super::{
    CLAIM, Check, LEASE, LIFE, Listener, Redis, STALL, channel, connect, connect_to_listen, hint,
    once, once_heard, owner, run,
};
use crate::support::{Server, companions_of};

const MUTEX_TAKE_OVER: &str = script!(
    "record.lua",
    "fence.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "gap.lua",
    "mutex_take_over.lua",
    "mutex_acquire_held.lua",
    "mutex_acquire.lua"
);
pub(super) const MUTEX_HAND_OVER: &str = script!(
    "record.lua",
    "fence.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "mutex_hand_over_by_message.lua",
    "queue_next.lua",
    "gap.lua",
    "mutex_hand_over.lua"
);
pub(super) const MUTEX_ACQUIRE: &str = script!(
    "record.lua",
    "fence.lua",
    "mutex_acquire_free.lua",
    "value.lua",
    "queue.lua",
    "mutex_acquire_held.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "gap.lua",
    "mutex_acquire.lua"
);
const MULTI_RELEASE: &str = script!(
    "multi_release_plain.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "gap.lua",
    "multi_release.lua"
);
const MULTI_ACQUIRE: &str = script!(
    "record.lua",
    "fence.lua",
    "multi_acquire_free.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "gap.lua",
    "multi_acquire.lua"
);

#[derive(Clone, Debug)]
enum Step {
    /// The owner asks for its names. With `true` it waits, otherwise it tries.
    Acquire(usize, bool),
    Release(usize),
    Withdraw(usize),
    /// One owner ends, and another with the same names takes over.
    TakeOver(usize, usize),
    /// A waiter was silent for this number of ms: it stalls, or has died.
    Stall(usize, u64),
    /// A key expires.
    RunOut(usize),
}

const KEYS: [&str; 3] = ["a", "b", "c"];
/// The names of each owner. Owners with equal names are attempts of one process after each other.
const SETS: [&[&str]; 10] = [
    &["a"],
    &["a"],
    &["b"],
    &["c"],
    &["a", "b"],
    &["a", "b"],
    &["b", "c"],
    &["a", "c"],
    &["a", "b", "c"],
    &["c"],
];

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..SETS.len();
    prop_oneof![
        9 => (who(), prop::bool::weighted(0.8)).prop_map(|(who, waits)| Step::Acquire(who, waits)),
        5 => who().prop_map(Step::Release),
        1 => who().prop_map(Step::Withdraw),
        1 => (who(), who()).prop_map(|(from, to)| Step::TakeOver(from, to)),
        1 => (who(), prop::sample::select(vec![STALL, LIFE * 2])).prop_map(|(who, ms)| Step::Stall(who, ms)),
        1 => (0..KEYS.len()).prop_map(Step::RunOut),
    ]
}

/// The state that follows from the replies.
#[derive(Default)]
struct Known {
    granted: BTreeSet<usize>,
    /// Owners that lost a lock. They send nothing more until they are withdrawn.
    lost: BTreeSet<usize>,
    /// Waiters that were woken for a free key and have not asked since. They may be dead, which a later poll finds.
    told: BTreeSet<(&'static str, usize)>,
    /// Keys that expired, and that no owner has taken since.
    run_out: BTreeSet<&'static str>,
    /// Keys that a waiting multi-lock keeps for the moment. They may expire before the next step on a slow machine.
    kept: BTreeSet<&'static str>,
    /// Owners that took a free key although others wait. The next waiter that finds the key held marks its value.
    unmarked: BTreeSet<(&'static str, usize)>,
    fences: BTreeMap<&'static str, i64>,
}

fn sets(redis: &mut Redis, history: &[Step]) -> Check {
    let mut known = Known::default();
    for step in history {
        let queues = KEYS.map(|key| redis.queue(key));
        let is_waiting = |who| queues.iter().any(|queue| queue.contains(&owner(who)));
        let actor = match *step {
            Step::Acquire(who, waits) => {
                if known.lost.contains(&who) {
                    continue;
                }
                // An owner that waits goes on waiting.
                let reply = acquire(redis, who, waits || is_waiting(who), "");
                known.answered(redis, who, &reply)?;
                who
            }
            Step::TakeOver(from, to) => {
                let is_new = !known.granted.contains(&to) && !known.lost.contains(&to);
                if from == to || SETS[from] != SETS[to] || !is_new || is_waiting(to) {
                    continue;
                }
                if !known.granted.remove(&from) {
                    continue;
                }
                let reply = acquire(redis, to, true, &owner(from));
                known.answered(redis, to, &reply)?;
                to
            }
            Step::Release(who) | Step::Withdraw(who) => {
                let withdraws = matches!(step, Step::Withdraw(_));
                if !known.granted.remove(&who) && !withdraws {
                    continue;
                }
                known.lost.remove(&who);
                release(redis, who, withdraws);
                who
            }
            Step::Stall(who, ms) => {
                for key in SETS[who] {
                    if redis.queue(key).contains(&owner(who)) {
                        redis.age(key, &owner(who), ms);
                    }
                }
                continue;
            }
            Step::RunOut(index) => {
                let () = redis.ask(&["DEL", KEYS[index]]);
                let losers = |who: &usize| SETS[*who].contains(&KEYS[index]);
                known.lost.extend(known.granted.extract_if(.., losers));
                known.run_out.insert(KEYS[index]);
                continue;
            }
        };
        known
            .told
            .retain(|(key, who)| *who != actor || !SETS[actor].contains(key));
        for (key, before) in KEYS.into_iter().zip(queues) {
            known.agrees(redis, actor, key, &before)?;
        }
        // An owner that was granted its names still has all of them. An owner that waits may only keep names before
        // the one that it waits for. All others have none.
        for (who, set) in SETS.iter().enumerate() {
            let held = set.iter().filter(|key| holder(redis, key).0 == Some(who));
            let held = held.count();
            if known.granted.contains(&who) {
                prop_assert_eq!(held, set.len(), "{} lost some", who);
            } else if set.len() > 1 && who == actor {
                let holds = |key: &&str, redis: &mut Redis| holder(redis, key).0 == Some(who);
                let kept = set.iter().rposition(|key| holds(key, redis));
                let queue = set
                    .iter()
                    .position(|key| redis.queue(key).contains(&owner(who)));
                prop_assert!(kept.is_none() || kept < queue, "{} holds a part", who);
            }
        }
    }
    Ok(())
}

impl Known {
    /// Records a grant. It must cover all names, each with a larger fence than before.
    fn answered(&mut self, redis: &mut Redis, who: usize, reply: &Value) -> Check {
        let parts = match reply {
            Value::Int(_) => slice::from_ref(reply),
            Value::Array(parts) => parts.as_slice(),
            other => panic!("{other:?}"),
        };
        if matches!(parts[0], Value::Int(..=0)) {
            prop_assert!(!self.granted.contains(&who), "{:?}", reply);
            return Ok(());
        }
        self.granted.insert(who);
        for (key, fence) in SETS[who].iter().zip(parts) {
            let Value::Int(fence) = *fence else {
                panic!("{reply:?}");
            };
            let before = self.fences.insert(key, fence);
            let rises = before.is_none_or(|before| before < fence);
            prop_assert!(rises, "a fence was repeated");
            prop_assert_eq!(holder(redis, key).0, Some(who));
        }
        Ok(())
    }

    /// Checks a key after a step of `actor`. `before` lists the waiters before that step.
    fn agrees(
        &mut self,
        redis: &mut Redis,
        actor: usize,
        key: &'static str,
        before: &[String],
    ) -> Check {
        let now = redis.queue(key);
        let me = owner(actor);
        // A waiter that left the queue without asking was given the key, woken for a free key, or dead.
        for (who, set) in SETS.iter().enumerate() {
            let gone = before.contains(&owner(who)) && !now.contains(&owner(who));
            if gone && who != actor && set.len() > 1 {
                self.told.insert((key, who));
            }
        }
        // The other waiters kept their places.
        let kept: Vec<_> = before.iter().filter(|who| now.contains(who)).collect();
        let kept_now: Vec<_> = now.iter().filter(|who| before.contains(who)).collect();
        prop_assert_eq!(kept, kept_now, "{}", key);
        let (Some(holder), is_marked) = holder(redis, key) else {
            if self.kept.remove(key) {
                self.run_out.insert(key);
            }
            let is_known = self.run_out.contains(key) || self.told.iter().any(|told| told.0 == key);
            let is_free = is_known || now.iter().all(|who| redis.is_silent(key, who));
            prop_assert!(is_free, "{} is free: {:?}", key, now);
            return Ok(());
        };
        self.run_out.remove(key);
        if SETS[holder].len() > 1 && !self.granted.contains(&holder) {
            self.kept.insert(key);
        } else {
            self.kept.remove(key);
        }
        prop_assert!(!now.contains(&owner(holder)), "{} holds and waits", holder);
        if holder == actor && !before.contains(&me) {
            self.unmarked.insert((key, holder));
        }
        let past_the_queue = self.unmarked.contains(&(key, holder)) && !now.contains(&me);
        prop_assert!(
            now.is_empty() || is_marked || past_the_queue,
            "{} is not marked",
            key
        );
        Ok(())
    }
}

/// Returns the holder of a key, and whether its value has the mark for waiters.
fn holder(redis: &mut Redis, key: &str) -> (Option<usize>, bool) {
    let value: Option<String> = redis.ask(&["GET", key]);
    let Some(value) = value else {
        return (None, false);
    };
    let name = value.trim_end_matches('!');
    let holder = (0..SETS.len()).find(|who| owner(*who) == name);
    (holder, value.ends_with('!'))
}

fn release(redis: &mut Redis, who: usize, withdraws: bool) {
    let (me, life) = (owner(who), LIFE.to_string());
    if let [key] = SETS[who] {
        let withdraws = if withdraws { "1" } else { "0" };
        let args = [&*me, "", "", &life, "0", withdraws, "0", "50"];
        redis.eval(MUTEX_HAND_OVER, &[key], &args);
    } else {
        redis.eval(MULTI_RELEASE, SETS[who], &[&me, &life, "0"]);
    }
}

fn acquire(redis: &mut Redis, who: usize, waits: bool, from: &str) -> Value {
    let (me, life) = (owner(who), LIFE.to_string());
    let channel = if waits { "" } else { "-" };
    let queued = SETS[who].iter().any(|key| redis.queue(key).contains(&me));
    let how = if queued || !from.is_empty() {
        "poll"
    } else {
        "take"
    };
    let mut args = vec![&*me, LEASE, "1", "600000", how, channel, CLAIM, &life, "0"];
    match (SETS[who], from) {
        ([key], "") => redis.eval(MUTEX_ACQUIRE, &[key], &args),
        ([key], _) => {
            args.extend([from, "", "", "0", "50"]);
            redis.eval(MUTEX_TAKE_OVER, &[key], &args)
        }
        (keys, _) => {
            args.push(from);
            redis.eval(MULTI_ACQUIRE, keys, &args)
        }
    }
}

#[test]
fn mutexes_and_multi_locks_agree_with_their_rules() {
    run(
        300,
        prop::collection::vec(step(), 1..60),
        |redis, history| sets(redis, &history),
    );
}

/// Two multi-locks each keep a name and wait for the same third name.
#[test]
fn multi_locks_at_the_front_of_a_queue_keep_their_order() {
    let [a, b, c, bc, ac] = [0, 2, 3, 6, 7];
    once(|redis| {
        for single in [a, b, c] {
            acquire(redis, single, true, "");
        }
        for set in [bc, ac] {
            acquire(redis, set, true, "");
        }
        let mut places = Vec::new();
        for (single, set) in [(a, ac), (b, bc)] {
            release(redis, single, false);
            acquire(redis, set, true, "");
            places.push(owner(set));
            assert_eq!(redis.queue("c"), places);
        }
        for (key, set) in [("a", ac), ("b", bc), ("b", bc), ("a", ac)] {
            acquire(redis, set, true, "");
            assert_eq!(holder(redis, key).0, Some(set));
            assert_eq!(redis.queue("c"), places);
        }
        release(redis, c, false);
        for set in [ac, bc] {
            assert_eq!(holder(redis, "c").0, Some(set));
            acquire(redis, set, true, "");
            release(redis, set, false);
        }
    });
}

/// Two multi-locks stand at the front, before a waiter from the rest of the queue. Then another such waiter comes.
#[test]
fn the_front_of_a_queue_and_the_rest_take_turns() {
    let [a, b, c, bc, ac, waiting] = [0, 2, 3, 6, 7, 9];
    for is_dead in [false, true] {
        once(|redis| {
            for who in [a, b, c, bc, ac, waiting] {
                acquire(redis, who, true, "");
            }
            for (single, set) in [(b, bc), (a, ac)] {
                release(redis, single, false);
                acquire(redis, set, true, "");
            }
            assert_eq!(redis.queue("c"), [bc, ac, waiting].map(owner));
            release(redis, c, false);
            assert_eq!(holder(redis, "c").0, Some(bc));
            acquire(redis, bc, true, "");
            acquire(redis, c, true, "");
            assert_eq!(redis.queue("c"), [ac, waiting, c].map(owner));
            let mut next = vec![waiting, ac, c];
            if is_dead {
                redis.age("c", &owner(waiting), LIFE * 2);
                next = vec![c, ac];
            }
            let mut last = bc;
            for who in next {
                release(redis, last, false);
                assert_eq!(holder(redis, "c").0, Some(who));
                acquire(redis, who, true, "");
                last = who;
            }
            release(redis, last, false);
            assert_eq!(holder(redis, "c").0, None);
            assert_eq!(redis.queue("c"), [""; 0]);
        });
    }
}

/// Each join keeps both keys of the queue for a life at least, whatever time they had left before.
#[test]
fn a_waiter_that_joins_keeps_the_queue_alive() {
    let [_, queue, waiters] = companions_of("a");
    // A key without a time has none left.
    let left = |redis: &mut Redis, key: &str| -> u64 {
        u64::try_from(redis.ask::<i64>(&["PTTL", key])).unwrap_or(0)
    };
    once(|redis| {
        acquire(redis, 0, true, "");
        for ms in [0, LIFE / 2] {
            acquire(redis, 1, true, "");
            for key in [&queue, &waiters] {
                let left = left(redis, key);
                assert!(left >= LIFE, "{key}: {left} ms");
                if ms > 0 {
                    let () = redis.ask(&["PEXPIRE", key, &ms.to_string()]);
                }
            }
        }
        // The records of the waiters were deleted alone.
        let () = redis.ask(&["DEL", &waiters]);
        let (me, life) = (owner(1), LIFE.to_string());
        let args = [&*me, LEASE, "1", "600000", "poll", "", CLAIM, &life, "0"];
        redis.eval(MUTEX_ACQUIRE, &["a"], &args);
        for key in [&queue, &waiters] {
            assert!(left(redis, key) >= LIFE);
        }
    });
}

/// Only the records are gone, as after an eviction. Nobody may ever wait for the name again.
#[test]
fn records_of_waiters_that_are_new_have_a_time_to_live() {
    let [_, queue, waiters] = companions_of("a");
    once(|redis| {
        acquire(redis, 0, true, "");
        acquire(redis, 1, true, "");
        let () = redis.ask(&["DEL", &waiters]);
        let (me, life) = (owner(1), LIFE.to_string());
        let args = [&*me, LEASE, "1", "600000", "poll", "", CLAIM, &life, "0"];
        redis.eval(MUTEX_ACQUIRE, &["a"], &args);
        for key in [&queue, &waiters] {
            let left: i64 = redis.ask(&["PTTL", key]);
            assert!(left > 0, "{key}: {left} ms");
        }
    });
}

/// The waiter that would ask when the gap ends gives up: once after a hand-over, once after a take-over.
#[test]
fn a_withdrawal_in_a_poller_gap_wakes_the_next_waiter() {
    let life = LIFE.to_string();
    let ask = |redis: &mut Redis, script, who: &str, channel, rest: &[&str]| {
        let args = [
            who, LEASE, "1", "600000", "poll", channel, CLAIM, &life, "0",
        ];
        redis.eval(script, &["a"], &[&args[..], rest].concat());
    };
    let end = |redis: &mut Redis, who: &str, withdraws, gap| {
        let args = [who, "", "", &life, "0", withdraws, gap, "50"];
        redis.eval(MUTEX_HAND_OVER, &["a"], &args);
    };
    for takes_over in [false, true] {
        let server = Server::start();
        let mut redis = Redis(connect(&server));
        let mut hearing = connect_to_listen(&server);
        let mut hearing = hearing.as_pubsub();
        hearing.subscribe("patient").expect("subscribed");
        ask(&mut redis, MUTEX_ACQUIRE, "lh1:1:x", "-", &[]);
        if takes_over {
            ask(&mut redis, MUTEX_ACQUIRE, "lh1:3:x", "patient", &[]);
            let rest = ["lh1:1:x", "", "", "500", "500"];
            ask(&mut redis, MUTEX_TAKE_OVER, "lh1:2:x", "hasty", &rest);
        } else {
            ask(&mut redis, MUTEX_ACQUIRE, "lh1:2:x", "hasty", &[]);
            ask(&mut redis, MUTEX_ACQUIRE, "lh1:3:x", "patient", &[]);
            end(&mut redis, "lh1:1:x", "0", "500");
        }
        assert_eq!(holder(&mut redis, "a"), (None, false), "no gap was left");
        end(&mut redis, "lh1:2:x", "1", "0");
        let message = hearing.get_message().expect("the next waiter is woken");
        let owner: String = message.get_payload().expect("text");
        assert_eq!(owner, "lh1:3:x");
    }
}

/// How long a poller gap of these tests lasts, in ms. There is no longer one.
const GAP_MS: u64 = 500;

/// Runs a round that begins a gap and must end before the gap does, and returns what the round has seen. On a busy machine
/// a round may take longer. It shows nothing then, so it is repeated with empty data.
fn within_a_gap<T>(redis: &mut Redis, mut round: impl FnMut(&mut Redis) -> T) -> T {
    for _ in 0..100 {
        let () = redis.ask(&["FLUSHALL"]);
        let begun = redis.now();
        let seen = round(redis);
        if redis.now() < begun + GAP_MS {
            return seen;
        }
    }
    panic!("each round takes longer than a gap");
}

/// A multi-lock needs two names. One of them is free and has a waiter: first in a poller gap, then because its key
/// has expired.
#[test]
fn a_multi_lock_does_not_take_a_free_name_that_has_waiters() {
    let life = LIFE.to_string();
    let server = Server::start();
    let mut redis = Redis(connect(&server));
    let ask = |redis: &mut Redis, script, names: &[&str], who: &str, channel, rest: &[&str]| {
        let args = [
            who, LEASE, "1", "600000", "poll", channel, CLAIM, &life, "0",
        ];
        redis.eval(script, names, &[&args[..], rest].concat())
    };
    let held = |reply: &Value| match reply {
        Value::Array(reply) => match &reply[..] {
            [Value::Int(0), Value::Int(ttl), Value::BulkString(holder)] => {
                (*ttl, String::from_utf8_lossy(holder).into_owned())
            }
            other => panic!("it was granted: {other:?}"),
        },
        other => panic!("it was granted: {other:?}"),
    };
    let gap_ms = GAP_MS.to_string();
    let replies = within_a_gap(&mut redis, |redis| {
        ask(redis, MUTEX_ACQUIRE, &["a"], "lh1:1:x", "-", &[]);
        ask(redis, MUTEX_ACQUIRE, &["a"], "lh1:2:x", "", &[]);
        let gap = ["lh1:1:x", "", "", &life, "0", "0", &gap_ms, "50"];
        redis.eval(MUTEX_HAND_OVER, &["a"], &gap);
        ["-", ""].map(|channel| {
            let names = ["a", "b"];
            let reply = ask(redis, MULTI_ACQUIRE, &names, "lh1:3:x", channel, &[""]);
            (reply, redis.exists("a"))
        })
    });
    for (reply, exists) in replies {
        let (left, holder) = held(&reply);
        assert!(left >= 1 && left.unsigned_abs() <= GAP_MS, "{left}");
        assert_eq!(holder, "lh1:1:x", "it held the name before the gap");
        assert!(!exists, "the gap is the clients' that poll");
    }
    assert_eq!(redis.queue("a"), ["lh1:2:x", "lh1:3:x"]);
    // The gap has ended and no client took the name, so the multi-lock gives it to the first waiter.
    let [_, _, waiters] = companions_of("a");
    let () = redis.ask(&["HDEL", &waiters, "=gap"]);
    let reply = ask(&mut redis, MULTI_ACQUIRE, &["a", "b"], "lh1:3:x", "", &[""]);
    assert_eq!(held(&reply).1, "lh1:2:x");
    // No waiter stands before the multi-lock any more.
    let () = redis.ask(&["DEL", "a"]);
    let reply = ask(&mut redis, MULTI_ACQUIRE, &["a", "b"], "lh1:3:x", "", &[""]);
    assert!(
        matches!(&reply, Value::Array(fences) if fences.len() == 3 && fences[0] != Value::Int(0))
    );
}

/// A request that Redis executes late must not shorten a lease that a later request or a renewal has made longer.
#[test]
fn a_late_copy_of_a_request_never_shortens_a_granted_multi_lock() {
    let life = LIFE.to_string();
    let server = Server::start();
    let mut redis = Redis(connect(&server));
    let ask = |redis: &mut Redis, lease: &str| {
        let args = [
            "lh1:1:x", lease, "1", "600000", "poll", "", CLAIM, &life, "0", "",
        ];
        redis.eval(MULTI_ACQUIRE, &["a", "b", "c"], &args)
    };
    let longest = Duration::from_secs(3_600);
    let left = |redis: &mut Redis, key: &str| -> u64 { redis.ask(&["PTTL", key]) };
    ask(&mut redis, "3600000");
    ask(&mut redis, "1000");
    for key in ["a", "b", "c"] {
        assert!(
            left(&mut redis, key) > longest.as_millis() as u64 / 2,
            "the lease of {key} was shortened"
        );
    }
    // Another owner has the last name now. The copy of the request waits for that name, and keeps the first.
    let () = redis.ask(&["SET", "c", "lh1:2:x", "PX", LEASE]);
    ask(&mut redis, "1000");
    assert!(left(&mut redis, "a") > longest.as_millis() as u64 / 2);
    // A longer lease is not a late copy's: it counts.
    let () = redis.ask(&["DEL", "c"]);
    ask(&mut redis, "7200000");
    assert!(left(&mut redis, "a") > longest.as_millis() as u64);
}

/// The waiter that caused a poller gap may be gone before the gap ends. The gap is still the polling clients'.
#[test]
fn a_multi_lock_leaves_a_poller_gap_without_a_waiter_alone() {
    let life = LIFE.to_string();
    let server = Server::start();
    let mut redis = Redis(connect(&server));
    let args = |who, channel| {
        [
            who, LEASE, "1", "600000", "poll", channel, CLAIM, &life, "0",
        ]
    };
    let (gap_ms, set) = (GAP_MS.to_string(), ["a", "b"]);
    let end = |who, withdraws, gap| [who, "", "", &*life, "0", withdraws, gap, "50"];
    let (is_cut_short, reply) = within_a_gap(&mut redis, |redis| {
        redis.eval(MUTEX_ACQUIRE, &["a"], &args("lh1:1:x", "-"));
        redis.eval(MUTEX_ACQUIRE, &["a"], &args("lh1:2:x", ""));
        // A set that waits for `a` withdraws in the gap. That must not end the gap for the waiter.
        let waits = [&args("lh1:3:x", "")[..], &[""]].concat();
        redis.eval(MULTI_ACQUIRE, &set, &waits);
        redis.eval(MUTEX_HAND_OVER, &["a"], &end("lh1:1:x", "0", &gap_ms));
        redis.eval(MULTI_RELEASE, &set, &["lh1:3:x", &life, "0"]);
        let is_cut_short = redis.exists("a");
        // The only waiter withdraws too.
        redis.eval(MUTEX_HAND_OVER, &["a"], &end("lh1:2:x", "1", "0"));
        assert!(redis.queue("a").is_empty());
        let tries = [&args("lh1:4:x", "-")[..], &[""]].concat();
        (is_cut_short, redis.eval(MULTI_ACQUIRE, &set, &tries))
    });
    assert!(!is_cut_short, "a set's withdrawal cut the gap short");
    assert!(
        matches!(&reply, Value::Array(reply) if reply[0] == Value::Int(0)),
        "a set was granted a name in its gap: {reply:?}"
    );
    assert!(!redis.exists("a"));
}

/// A repeat finds its owner as the holder. Without a fence it writes nothing else, and a WAIT that follows must wait for a
/// write.
#[test]
fn a_repeat_without_fences_writes_and_never_shortens_a_lease() {
    const ADOPT: &str = script!("record.lua", "fence.lua", "value.lua", "mutex_adopt.lua");
    let life = LIFE.to_string();
    let acquire: [&str; 10] = [
        &owner(0),
        LEASE,
        "0",
        "600000",
        "take",
        "-",
        CLAIM,
        &life,
        "1",
        "",
    ];
    let adopt = [&*owner(0), LEASE, "600000", "lh1:from", "0", "0"];
    once(|redis| {
        // The lease was extended since, so it is longer than the one that is asked for.
        let long = (2 * LEASE.parse::<u64>().expect("a number")).to_string();
        for (script, names, args) in [
            (MUTEX_ACQUIRE, &["a"][..], &acquire[..9]),
            (MULTI_ACQUIRE, &["a", "b"], &acquire),
            (ADOPT, &["a"], &adopt),
        ] {
            for &name in names {
                let () = redis.ask(&["SET", name, &owner(0), "PX", &long]);
            }
            let written = |redis: &mut Redis| -> u64 {
                let report: String = redis.ask(&["INFO", "persistence"]);
                let mut lines = report.lines();
                let changes =
                    lines.find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
                changes
                    .and_then(|changes| changes.parse().ok())
                    .expect("a number")
            };
            let before = written(redis);
            redis.try_eval(script, names, args).expect("it is held");
            assert!(written(redis) > before);
            for &name in names {
                let left: u64 = redis.ask(&["PTTL", name]);
                assert!(left > LEASE.parse().expect("a number"), "{left}");
                assert_eq!(redis.record(name), None);
                let () = redis.ask(&["DEL", name]);
            }
        }
    });
}

/// Releases a mutex as owner 0, with the terms of an owner that may reserve fences.
fn hand_over(redis: &mut Redis, counts_subscribers: &str) -> Value {
    let (owner, life) = (owner(0), LIFE.to_string());
    let args = [
        &*owner,
        "",
        "",
        &life,
        counts_subscribers,
        "0",
        "0",
        "50",
        "600000",
    ];
    redis.eval(MUTEX_HAND_OVER, &["a"], &args)
}

/// Has owners ask for the mutex in this order. The first takes it, and the others queue with these channels.
fn queue_up(redis: &mut Redis, channels: &[&str]) {
    let life = LIFE.to_string();
    for (who, channel) in channels.iter().enumerate() {
        let owner = owner(who);
        let args = [
            &*owner, LEASE, "1", "600000", "take", channel, CLAIM, &life, "0",
        ];
        redis.eval(MUTEX_ACQUIRE, &["a"], &args);
    }
}

/// The reply to a release that has given the lock to a waiter.
const HANDED_OVER: Value = Value::Int(3);

#[test]
fn a_hand_over_publishes_the_fence_and_the_nonce_of_the_last_request() {
    once_heard(|redis, listener| {
        for (fences, has_fence) in [("1", true), ("0", false)] {
            let waiter = format!("{} {fences} nonce", channel(1));
            queue_up(redis, &["-", &format!("{} 1 old", channel(1))]);
            queue_up(redis, &["-", &waiter]);
            let before = redis.record("a").expect("owner 0 has a fence");
            assert_eq!(hand_over(redis, "1"), HANDED_OVER);
            let after = redis.record("a").expect("a record");
            assert_eq!(after > before, has_fence);
            let fence = if has_fence { after } else { 0 };
            let message = format!("{} nonce {fence}", owner(1));
            assert_eq!(listener.messages(redis), [(channel(1), message)]);
            assert_eq!(holder(redis, "a"), (Some(1), true));
            let ttl: u64 = redis.ask(&["PTTL", "a"]);
            assert!(ttl <= CLAIM.parse().expect("a number"), "{ttl}");
            let () = redis.ask(&["DEL", "a"]);
        }
    });
}

#[test]
fn a_grant_that_reaches_nobody_goes_to_the_next_waiter() {
    let server = Server::start();
    let (mut redis, mut listener) = (
        Redis(connect(&server)),
        Listener::to_one(&server, &channel(2)),
    );
    // A subscriber of the other waiter, because NUMSUB counts no patterns.
    let mut subscriber = connect_to_listen(&server);
    let subscribe = redis::cmd("SUBSCRIBE").arg(channel(2)).get_packed_command();
    subscriber
        .send_packed_command(&subscribe)
        .expect("Redis is there");
    subscriber.recv_response().expect("subscribed");
    let redis = &mut redis;
    let (gone, live) = ("nobody 1 one", format!("{} 1 two", channel(2)));
    queue_up(redis, &["-", gone, &live]);
    assert_eq!(hand_over(redis, "1"), HANDED_OVER);
    let fence = redis.record("a").expect("a record");
    let message = format!("{} two {fence}", owner(2));
    let messages = listener.messages(redis);
    assert_eq!(messages, [(channel(2), message)]);
    assert_eq!(holder(redis, "a"), (Some(2), true));
    // Without a live waiter the mutex is free.
    let () = redis.ask(&["DEL", "a"]);
    queue_up(redis, &["-", gone]);
    assert_eq!(hand_over(redis, "1"), Value::Int(1));
    assert!(!redis.exists("a"));
}

/// Has a waiter of the mutex poll. Returns whether it was granted.
fn poll(redis: &mut Redis, who: usize) -> bool {
    let (owner, life) = (owner(who), LIFE.to_string());
    let args = [&*owner, LEASE, "1", "600000", "poll", "", CLAIM, &life, "0"];
    match redis.eval(MUTEX_ACQUIRE, &["a"], &args) {
        Value::Array(parts) => parts[0] != Value::Int(0),
        _ => true,
    }
}

#[test]
fn silent_waiters_are_passed_over_and_keep_their_places() {
    // Three kinds of scripts choose the next waiter: a release, a poll at a free mutex, and a multi-lock.
    for how in 0..3 {
        once(|redis| {
            queue_up(redis, &["-", "", "", "", ""]);
            for who in [1, 2] {
                redis.age("a", &owner(who), STALL);
            }
            if how == 0 {
                assert_eq!(hand_over(redis, "0"), HANDED_OVER);
            } else {
                let () = redis.ask(&["DEL", "a"]);
            }
            if how == 1 {
                assert!(!poll(redis, 4));
            } else if how == 2 {
                let (me, life) = (owner(8), LIFE.to_string());
                let args = [
                    &*me, LEASE, "1", "600000", "take", "-", CLAIM, &life, "0", "",
                ];
                redis.eval(MULTI_ACQUIRE, &["a", "b"], &args);
            }
            assert_eq!(holder(redis, "a"), (Some(3), true));
            assert_eq!(redis.queue("a"), [1, 2, 4].map(owner));
            // One of them only stalled.
            assert!(!poll(redis, 2));
            let () = redis.ask(&["DEL", "a"]);
            assert!(!poll(redis, 4));
            assert_eq!(holder(redis, "a"), (Some(2), true));
            assert_eq!(redis.queue("a"), [1, 4].map(owner));
            // The other one was silent for its life.
            redis.age("a", &owner(1), LIFE * 2);
            let () = redis.ask(&["DEL", "a"]);
            assert!(poll(redis, 4));
            assert_eq!(redis.queue("a"), [""; 0]);
        });
    }
}

/// The most waiters that one script passes over.
pub(super) const MOST_PASSED: usize = 64;

#[test]
fn a_mutex_goes_to_the_caller_if_a_script_can_pass_over_no_more_waiters() {
    once(|redis| {
        let last = MOST_PASSED + 1;
        queue_up(redis, &vec![""; last + 1]);
        for who in 1..last {
            redis.age("a", &owner(who), STALL);
        }
        assert_eq!(hand_over(redis, "0"), Value::Int(1));
        assert!(!redis.exists("a"));
        assert_eq!(redis.queue("a").len(), last);
        assert!(poll(redis, last));
        assert_eq!(redis.queue("a").len(), MOST_PASSED);
        // It did not take the places of the others.
        assert!(!poll(redis, 1));
        let () = redis.ask(&["DEL", "a"]);
        assert!(poll(redis, 1));
    });
}

const KEEP: &str = script!(
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "keep.lua"
);

#[test]
fn a_mutex_that_min_hold_keeps_wakes_the_first_waiter_that_is_reached() {
    let (me, life) = (owner(0), LIFE.to_string());
    let wakes = [&*me, CLAIM, "0", "", "", &life, "1"];
    let alone =
        |redis: &mut Redis| -> i64 { redis.ask(&["EVAL", KEEP, "1", "a", &me, CLAIM, "0"]) };
    let server = Server::start();
    let mut redis = Redis(connect(&server));
    let mut listener = Listener::to_one(&server, &channel(2));
    let (redis, listener) = (&mut redis, &mut listener);
    queue_up(redis, &["-"]);
    assert_eq!(alone(redis), 1, "nobody waits");
    let () = redis.ask(&["DEL", "a"]);
    queue_up(redis, &["-", "nobody", &channel(2), &channel(3)]);
    // The form for the lock's key alone wakes nobody, and returns 2. A repeat does not lengthen the time.
    assert_eq!(alone(redis), 2);
    let () = redis.ask(&["PEXPIRE", "a", "1000000"]);
    assert_eq!(alone(redis), 2);
    assert_eq!(listener.messages(redis), []);
    for _ in 0..2 {
        assert_eq!(redis.eval(KEEP, &["a"], &wakes), Value::Int(1));
        assert_eq!(listener.messages(redis).pop(), Some(hint(2)));
    }
    let left: u64 = redis.ask(&["PTTL", "a"]);
    assert!(left <= 1_000_000, "{left}");
    let value: String = redis.ask(&["GET", "a"]);
    assert_eq!(value, format!("{me}!~"));
    // Another owner has the mutex.
    let () = redis.ask(&["SET", "a", &owner(9), "PX", LEASE]);
    assert_eq!(redis.eval(KEEP, &["a"], &wakes), Value::Int(-1));
    assert_eq!(listener.messages(redis), []);
}

/// The record of the last fence cannot be written. So the message is the owner alone, which then asks.
#[test]
fn a_grant_without_a_fence_is_a_wake_up() {
    once_heard(|redis, listener| {
        queue_up(redis, &["-", &format!("{} 1 nonce", channel(1))]);
        let [fence, _, _] = companions_of("a");
        redis.spoil(&fence);
        assert_eq!(hand_over(redis, "1"), HANDED_OVER);
        assert_eq!(listener.messages(redis), [hint(1)]);
        assert_eq!(holder(redis, "a"), (Some(1), true));
    });
}
