//! A mutex on one node of a quorum.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::slice;

use proptest::prelude::*;
use proptest::sample::Index;
use redis::{RedisResult, Value};

use super::fences::{
    Fences, HOUR, LEEWAY, MEMORY, ROUNDING, Unused, Used, check_raised, granted, held, more, raise,
    raised, records, skew, used,
};
use super::{
    CLAIM, Check, LEASE, LIFE, Listener, Redis, STALL, channel, code, connect, hint, once,
    once_heard, owner, run,
};
use crate::support::{Server, companions_of};

const QUORUM_ACQUIRE: &str = script!(
    "record.lua",
    "quorum_fence.lua",
    "quorum_acquire_free.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "quorum_turn.lua",
    "quorum_acquire.lua"
);
const QUORUM_RELEASE: &str = script!(
    "quorum_release_plain.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "quorum_turn.lua",
    "quorum_release.lua"
);

const NAMES: [&str; 2] = ["a", "b"];
/// The number of fences that each owner asks for.
const COUNTS: [u64; 4] = [1, 50, 1_000, 3_000_000];

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
}

impl Request {
    /// Sends the request to the mutex `name`.
    fn send(&self, redis: &mut Redis, name: &str) -> RedisResult<Value> {
        match *self {
            Self::Acquire { who, waits, clock } => {
                let channel = if waits { "" } else { "-" };
                send_acquire(redis, name, who, LEASE, clock, channel)
            }
            Self::Raise { who, first } => raise(redis, &[name], who, 0, COUNTS[who], &[first]),
            Self::Release {
                who,
                unused,
                withdraws,
            } => {
                let [used, last, first] = &Unused::arguments(unused);
                let withdraws = if withdraws { "1" } else { "0" };
                let (me, life) = (owner(who), LIFE.to_string());
                let args = [&*me, used, last, first, &life, "0", withdraws];
                redis.try_eval(QUORUM_RELEASE, &[name], &args)
            }
        }
    }

    fn must_send(&self, redis: &mut Redis, name: &str) -> Value {
        self.send(redis, name).expect("no script fails")
    }
}

fn send_acquire(
    redis: &mut Redis,
    name: &str,
    who: usize,
    lease: &str,
    clock: u64,
    channel: &str,
) -> RedisResult<Value> {
    let (me, count, clock) = (owner(who), COUNTS[who].to_string(), clock.to_string());
    let (memory, life) = (MEMORY.to_string(), LIFE.to_string());
    let args = [
        &*me, lease, &count, &memory, &clock, channel, CLAIM, &life, "0",
    ];
    redis.try_eval(QUORUM_ACQUIRE, &[name], &args)
}

#[derive(Clone, Debug)]
enum Step {
    /// The owner asks. With `true` it waits, otherwise it tries.
    /// Its clock differs from the server's by this number of µs.
    Acquire(usize, bool, i64),
    /// Another node answered a fence that is larger by this number.
    Raise(usize, u64),
    /// The owner releases, and may give unused fences back.
    Release(usize, Option<Used>),
    Withdraw(usize, Option<Used>),
    /// Redis executes a copy of an earlier request.
    Repeat(Index),
    /// A waiter dies.
    Die(usize),
    /// The key of the lock is deleted.
    Delete,
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..COUNTS.len();
    prop_oneof![
        9 => (who(), any::<bool>(), skew())
            .prop_map(|(who, waits, skew)| Step::Acquire(who, waits, skew)),
        3 => (who(), more()).prop_map(|(who, more)| Step::Raise(who, more)),
        5 => (who(), used()).prop_map(|(who, used)| Step::Release(who, used)),
        2 => (who(), used()).prop_map(|(who, used)| Step::Withdraw(who, used)),
        4 => any::<Index>().prop_map(Step::Repeat),
        1 => who().prop_map(Step::Die),
        1 => Just(Step::Delete),
    ]
}

/// The content of a mutex's keys: its value, the record of the last fence, the queue, and the owners in `waiters`.
type Content = (Option<String>, Option<u64>, Vec<String>, BTreeSet<String>);

/// The model of one mutex on one node.
#[derive(Default)]
struct Model {
    holder: Option<usize>,
    is_marked: bool,
    /// The last fence that was reserved, or 0.
    record: u64,
    /// The waiters in order, and whether they are dead.
    queue: Vec<(usize, bool)>,

    // The rest follows from the requests and replies only.
    /// All requests.
    sent: Vec<Request>,
    /// The owner that a reply granted the mutex to, unless it has been released or deleted since.
    granted: Option<usize>,
    /// The largest fence that was answered or used.
    floor: u64,
    /// The fences that each owner was last granted.
    reserved: [Option<Fences>; COUNTS.len()],
    /// The first fence that each owner uses. A raise moves it.
    first_used: [u64; COUNTS.len()],
}

impl Model {
    /// Returns the request of a step, if the step is one.
    fn request(&self, step: &Step, now: u64) -> Option<Request> {
        Some(match *step {
            Step::Acquire(who, waits, skew) => Request::Acquire {
                who,
                waits,
                clock: now.saturating_add_signed(skew),
            },
            Step::Raise(who, more) => Request::Raise {
                who,
                first: self.reserved[who]?.first + more,
            },
            Step::Release(who, used) => self.release(who, used, false),
            Step::Withdraw(who, used) => self.release(who, used, true),
            Step::Repeat(_) if self.sent.is_empty() => return None,
            Step::Repeat(index) => *index.get(&self.sent),
            Step::Die(_) | Step::Delete => return None,
        })
    }

    fn release(&self, who: usize, used: Option<Used>, withdraws: bool) -> Request {
        let unused = used
            .zip(self.reserved[who])
            .map(|(used, reserved)| used.unused(reserved, self.first_used[who]));
        Request::Release {
            who,
            unused,
            withdraws,
        }
    }

    /// Applies a request to the model, and compares the reply. The node's time was in `time`.
    fn answered(&mut self, request: &Request, reply: &Value, time: &RangeInclusive<u64>) -> Check {
        match *request {
            Request::Acquire { who, waits, clock } => {
                let Some((fences, others)) = granted(reply) else {
                    return self.refused(who, waits, reply);
                };
                prop_assert!(
                    self.holder.is_none_or(|it| it == who),
                    "{:?} holds it",
                    self.holder
                );
                self.leave(who);
                prop_assert_eq!(others, !self.queue.is_empty());
                if self.holder.is_none() {
                    self.holder = Some(who);
                    self.is_marked = others;
                }
                fences.check(self.record, COUNTS[who], clock, time)?;
                self.record = fences.last;
                self.reserved[who] = Some(fences);
                self.first_used[who] = fences.first;

                prop_assert!(
                    self.granted.is_none_or(|it| it == who),
                    "two owners hold it"
                );
                self.granted = Some(who);
                prop_assert!(
                    fences.first > self.floor,
                    "a fence is not larger than all before"
                );
                self.floor = fences.first;
            }
            Request::Raise { who, first } => match self.holder {
                Some(holder) if holder == who => {
                    let record = raised(reply)[0];
                    check_raised(record, self.record, first, COUNTS[who], time)?;
                    self.record = record;
                    self.first_used[who] = self.first_used[who].max(first);
                }
                Some(_) => prop_assert_eq!(reply, &Value::Int(-1)),
                None => prop_assert_eq!(reply, &Value::Int(0)),
            },
            Request::Release {
                who,
                unused,
                withdraws,
            } => {
                if matches!(reply, Value::Int(1 | 3)) {
                    self.granted.take_if(|it| *it == who);
                }
                let before = self.holder;
                if before == Some(who) {
                    self.give_back(who, unused);
                    self.holder = None;
                    self.is_marked = false;
                }
                if withdraws {
                    self.leave(who);
                }
                let is_free = self.holder.is_none() && (before.is_some() || withdraws);
                if is_free {
                    // The script drops the dead waiters before the first live one.
                    let dead = self.queue.iter().take_while(|(_, is_dead)| *is_dead);
                    self.queue.drain(..dead.count());
                }
                let wanted = match before {
                    None => 0,
                    Some(holder) if holder != who => -1,
                    Some(_) if self.queue.is_empty() => 1,
                    Some(_) => 3,
                };
                prop_assert_eq!(reply, &Value::Int(wanted));
            }
        }
        Ok(())
    }

    /// Applies the reply that another owner holds the mutex.
    fn refused(&mut self, who: usize, waits: bool, reply: &Value) -> Check {
        let holder = self.holder.filter(|holder| *holder != who);
        let Value::Array(parts) = reply else {
            panic!("{reply:?}");
        };
        let holder = holder.map(|who| Value::BulkString(owner(who).into()));
        prop_assert_eq!(Some(&parts[2]), holder.as_ref());
        let lease: i64 = LEASE.parse().expect("a number");
        prop_assert!(
            matches!(parts[1], Value::Int(ttl) if (1..=lease).contains(&ttl)),
            "{:?}",
            parts
        );
        if waits {
            match self.queue.iter_mut().find(|(it, _)| *it == who) {
                Some((_, is_dead)) => *is_dead = false,
                None => self.queue.push((who, false)),
            }
            self.is_marked = true;
        }
        Ok(())
    }

    fn give_back(&mut self, who: usize, unused: Option<Unused>) {
        let Some(unused) = unused else {
            return;
        };
        let Unused { used, reserved } = unused;
        // Another node reserved the fences that this one did not.
        if used <= self.record && self.reserved[who] == Some(reserved) {
            self.floor = self.floor.max(used);
        }
        self.record = unused.record_after(self.record);
    }

    fn leave(&mut self, who: usize) {
        self.queue.retain(|(it, _)| *it != who);
    }

    /// Compares the keys of the mutex with the model.
    fn agrees(&self, redis: &mut Redis, name: &str) -> Check {
        let [fence, queue, waiters] = companions_of(name);
        let mut content = redis::pipe();
        content
            .get(name)
            .get(&fence)
            .zrange(&queue, 0, -1)
            .hkeys(&waiters);
        let content = content.query::<Content>(&mut redis.0);
        let (value, record, queued, records) = content.expect("Redis replies");
        let mark = if self.is_marked { "!" } else { "" };
        prop_assert_eq!(value, self.holder.map(|who| owner(who) + mark));
        prop_assert!(
            self.is_marked || self.holder.is_none() || queued.is_empty(),
            "no mark"
        );
        prop_assert_eq!(record.unwrap_or(0), self.record);
        prop_assert!(
            self.record >= self.floor,
            "the record fell below {}",
            self.floor
        );
        let waiting: Vec<_> = self.queue.iter().map(|(who, _)| owner(*who)).collect();
        prop_assert_eq!(&queued, &waiting);
        prop_assert_eq!(records, waiting.into_iter().collect());

        let keys = [name, &*fence, &queue, &waiters];
        let expiry = keys.map(|key| redis.expiry(key));
        // The reply is -1 for a key without expiry, and -2 without the key.
        prop_assert!(!expiry.contains(&-1), "{:?} expire at {:?}", keys, expiry);
        let kept_until = (self.record / 1_000 + MEMORY).cast_signed() - ROUNDING;
        prop_assert!(
            self.record == 0 || expiry[1] >= kept_until,
            "the record expires early"
        );
        Ok(())
    }
}

fn history(redis: &mut Redis, steps: &[(usize, Step)]) -> Check {
    let mut models = [Model::default(), Model::default()];
    for (index, step) in steps {
        let (name, model) = (NAMES[*index], &mut models[*index]);
        let before = redis.now_us();
        if let Some(request) = model.request(step, before) {
            let reply = request.must_send(redis, name);
            model.answered(&request, &reply, &(before..=redis.now_us()))?;
            model.sent.push(request);
        }
        match *step {
            Step::Die(who) => {
                if let Some((_, is_dead)) = model.queue.iter_mut().find(|(it, _)| *it == who) {
                    redis.age(name, &owner(who), LIFE * 2);
                    *is_dead = true;
                }
            }
            Step::Delete => {
                let () = redis.ask(&["DEL", name]);
                (model.holder, model.is_marked, model.granted) = (None, false, None);
            }
            _ => {}
        }
        for (name, model) in NAMES.into_iter().zip(&models) {
            model.agrees(redis, name)?;
        }
    }
    Ok(())
}

#[test]
fn a_quorums_mutexes_agree_with_their_model() {
    let steps = prop::collection::vec((0..NAMES.len(), step()), 1..60);
    run(150, steps, |redis, steps| history(redis, &steps));
}

/// Sends an acquire for the mutex `a`, with the right clock.
fn acquire(redis: &mut Redis, who: usize, waits: bool) -> Value {
    let clock = redis.now_us();
    Request::Acquire { who, waits, clock }.must_send(redis, "a")
}

fn acquire_free(redis: &mut Redis, who: usize) -> Fences {
    let (fences, _) = granted(&acquire(redis, who, false)).expect("it is free");
    fences
}

fn release(redis: &mut Redis, who: usize, unused: Option<Unused>) -> Value {
    let withdraws = false;
    let request = Request::Release {
        who,
        unused,
        withdraws,
    };
    request.must_send(redis, "a")
}

fn withdraw(redis: &mut Redis, who: usize) -> Value {
    let (unused, withdraws) = (None, true);
    let request = Request::Release {
        who,
        unused,
        withdraws,
    };
    request.must_send(redis, "a")
}

#[test]
fn a_node_follows_a_wrong_clock_by_at_most_a_second() {
    for skew in [HOUR, -HOUR] {
        once(|redis| {
            let before = redis.now_us();
            let clock = before.saturating_add_signed(skew);
            let (who, waits) = (2, false);
            let reply = Request::Acquire { who, waits, clock }.must_send(redis, "a");
            let after = redis.now_us();
            let (fences, _) = granted(&reply).expect("it is free");
            let clamped = |now: u64| clock.clamp(now - LEEWAY, now + LEEWAY);
            assert!((clamped(before)..=clamped(after)).contains(&fences.first));
            let last = |now: u64| (now + LEEWAY).min(fences.first + COUNTS[who] - 1);
            let last = last(before).max(fences.first)..=last(after).max(fences.first);
            assert!(last.contains(&fences.last), "{fences:?}");
            assert_eq!(redis.record("a"), Some(fences.last));
            // The record is kept from now on, even if its fence is long ago.
            let [fence, _, _] = companions_of("a");
            let expiry = redis.expiry(&fence);
            let from = before.max(fences.last) / 1_000 + MEMORY;
            assert!(expiry >= from.cast_signed() - ROUNDING, "{expiry}");
        });
    }
}

#[test]
fn a_companion_of_another_type_blocks_an_acquire_and_no_release() {
    let companions = companions_of("a");
    let [fence, queue, _] = &companions;
    for spoiled in &companions {
        // A free lock.
        once(|redis| {
            redis.spoil(spoiled);
            let clock = redis.now_us();
            for waits in [false, true] {
                let (who, name) = (1, "a");
                let reply = Request::Acquire { who, waits, clock }.send(redis, name);
                assert_eq!(code(reply), "WRONGTYPE", "{spoiled}");
                let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
                assert_eq!(&keys[..], slice::from_ref(spoiled), "the script wrote");
            }
        });
        // A held lock with a waiter.
        once(|redis| {
            let fences = acquire_free(redis, 1);
            if spoiled == fence {
                acquire(redis, 2, true);
            }
            redis.spoil(spoiled);
            let (who, first) = (1, fences.last);
            let raised = Request::Raise { who, first }.send(redis, "a");
            if spoiled == fence {
                assert_eq!(code(raised), "WRONGTYPE");
            } else {
                assert!(raised.is_ok());
                let (who, waits, clock) = (2, true, fences.first);
                let reply = Request::Acquire { who, waits, clock }.send(redis, "a");
                assert_eq!(code(reply), "WRONGTYPE", "{spoiled}");
                assert_eq!(redis.ask::<String>(&["GET", "a"]), owner(1), "it is marked");
                assert!(spoiled == queue || !redis.exists(queue));
            }
            let unused = Unused {
                used: 0,
                reserved: fences,
            };
            let released = if spoiled == fence { 3 } else { 1 };
            let reply = release(redis, 1, Some(unused));
            assert_eq!(reply, Value::Int(released), "{spoiled}");
            assert!(!redis.exists("a"));
            assert_eq!(withdraw(redis, 2), Value::Int(0), "{spoiled}");
            assert!(redis.exists(spoiled), "it is another client's");
        });
        // A withdrawal of an owner that holds the lock.
        once(|redis| {
            acquire_free(redis, 1);
            redis.spoil(spoiled);
            assert_eq!(withdraw(redis, 1), Value::Int(1), "{spoiled}");
            assert!(!redis.exists("a"));
        });
    }
}

#[test]
fn a_repeated_acquire_never_shortens_a_lease() {
    once(|redis| {
        let clock = redis.now_us();
        let ask = |redis: &mut Redis, lease| {
            let reply = send_acquire(redis, "a", 1, lease, clock, "-").expect("Redis replies");
            let (_, others) = granted(&reply).expect("it is free, or this owner's");
            (redis.expiry("a"), others)
        };
        let (longest, _) = ask(redis, "3600000");
        assert_eq!(ask(redis, "1000"), (longest, false));
        acquire(redis, 2, true);
        assert_eq!(ask(redis, "1000"), (longest, true));
        let (longer, _) = ask(redis, "7200000");
        assert!(longer > longest);
        let value: String = redis.ask(&["GET", "a"]);
        assert_eq!(value, owner(1) + "!", "the mark is lost");
    });
}

#[test]
fn fences_are_not_given_back_after_another_owner_has_reserved() {
    once(|redis| {
        let reserved = acquire_free(redis, 1);
        let () = redis.ask(&["DEL", "a"]);
        let others = acquire_free(redis, 2);
        assert!(others.first > reserved.first);
        release(redis, 2, None);
        // Redis executes a copy of the first acquire late, and then the release.
        let newest = acquire_free(redis, 1);
        let unused = Unused { used: 0, reserved };
        assert_eq!(release(redis, 1, Some(unused)), Value::Int(1));
        assert_eq!(redis.record("a"), Some(newest.last));
        let next = acquire_free(redis, 3);
        assert!(next.first > others.last);
    });
}

/// Redis executes all requests of an owner again, after the grant of another owner. The owner's clock is ahead, so the
/// other owner's fence is between those of the first.
#[test]
fn late_copies_of_an_owners_requests_never_lower_the_record() {
    once(|redis| {
        let (who, waits, withdraws) = (1, false, false);
        let clock = redis.now_us() + LEEWAY / 2;
        let acquire = Request::Acquire { who, waits, clock };
        let (reserved, _) = granted(&acquire.must_send(redis, "a")).expect("it is free");
        let first = reserved.first + 7;
        let raise = Request::Raise { who, first };
        let raised = raise.must_send(redis, "a");
        let release = Request::Release {
            who,
            unused: Some(Unused { used: 0, reserved }),
            withdraws,
        };
        release.must_send(redis, "a");
        // The record is not the end that the release names, so nothing is given back.
        assert_eq!(raised, records(&[first + COUNTS[who] - 1]));
        assert_eq!(redis.record("a"), Some(first + COUNTS[who] - 1));

        let other = acquire_free(redis, 0);
        let () = redis.ask(&["DEL", "a"]);
        for request in [acquire, raise, release] {
            request.must_send(redis, "a");
        }
        assert!(redis.record("a") > Some(other.first));
    });
}

#[test]
fn unused_fences_are_given_back() {
    once(|redis| {
        let reserved = acquire_free(redis, 2);
        let used = reserved.first + 3;
        release(redis, 2, Some(Unused { used, reserved }));
        assert_eq!(redis.record("a"), Some(used));
        // The first fence was answered, so it is not given back.
        let reserved = acquire_free(redis, 2);
        release(redis, 2, Some(Unused { used: 0, reserved }));
        assert_eq!(redis.record("a"), Some(reserved.first));
        // Another node answered more.
        let reserved = acquire_free(redis, 2);
        let used = reserved.last + 1;
        release(redis, 2, Some(Unused { used, reserved }));
        assert_eq!(redis.record("a"), Some(reserved.last));
    });
}

#[test]
fn a_raise_for_an_owner_that_is_gone_changes_nothing() {
    once(|redis| {
        let fences = acquire_free(redis, 1);
        let (who, first) = (1, fences.last + 100);
        let raise = Request::Raise { who, first };
        release(redis, 1, None);
        assert_eq!(raise.must_send(redis, "a"), Value::Int(0));
        assert_eq!(redis.record("a"), Some(fences.last));

        let others = acquire_free(redis, 2);
        let first = others.last + 1;
        let raise = Request::Raise { who, first };
        assert_eq!(raise.must_send(redis, "a"), Value::Int(-1));
        assert_eq!(redis.record("a"), Some(others.last));
        // For the holder it raises the record, and never lowers it.
        let who = 2;
        for (first, last) in [
            (first, first + COUNTS[who] - 1),
            (first + 5, first + 5 + COUNTS[who] - 1),
            (first, first + 5 + COUNTS[who] - 1),
        ] {
            let reply = Request::Raise { who, first }.must_send(redis, "a");
            assert_eq!(reply, records(&[last]));
            assert_eq!(redis.record("a"), Some(last));
        }
    });
}

#[test]
fn a_release_wakes_the_first_live_waiter_and_does_not_give_it_the_lock() {
    let server = Server::start();
    let (holder, first, second, third) = (0, 1, 2, 3);
    // The process of the first waiter is gone: its channel has no subscriber.
    let subscribed = [&*channel(second), &*channel(third), Listener::END];
    let mut listener = Listener::to(&server, &subscribed);
    let mut redis = Redis(connect(&server));
    acquire_free(&mut redis, holder);
    for who in [first, second, third] {
        assert_eq!(wait_for(&mut redis, who), Some(owner(holder)));
    }
    let life = LIFE.to_string();
    let end = |redis: &mut Redis, who, withdraws| {
        let args = [&*owner(who), "", "", "", &life, "1", withdraws];
        redis.eval(QUORUM_RELEASE, &["a"], &args)
    };
    assert_eq!(end(&mut redis, holder, "0"), Value::Int(3));
    redis.lengthen_turn("a");
    assert_eq!(listener.messages(&mut redis), [hint(second)]);
    assert!(!redis.exists("a"), "it was given to a waiter");
    assert_eq!(redis.queue("a"), [second, third].map(owner));
    // A copy of the release wakes no waiter. The waiter that was woken gives up.
    assert_eq!(end(&mut redis, holder, "0"), Value::Int(0));
    assert_eq!(end(&mut redis, second, "1"), Value::Int(0));
    redis.lengthen_turn("a");
    assert_eq!(listener.messages(&mut redis), [hint(third)]);
    assert!(!redis.exists("a"), "it was given to a waiter");
    assert_eq!(redis.queue("a"), [owner(third)]);
    // Until its turn is over, only the waiter that was woken last gets the free lock. Then anybody gets it.
    assert_eq!(held(&acquire(&mut redis, first, false)).1, owner(third));
    redis.end_turn("a");
    let reply = acquire(&mut redis, first, false);
    assert!(matches!(granted(&reply), Some((_, true))));
    assert_eq!(redis.ask::<String>(&["GET", "a"]), owner(first) + "!");
}

#[test]
fn a_waiter_has_its_turn_once_for_each_release() {
    let (holder, waiter, other, same_process) = (0, 1, 2, 3);
    once_heard(|redis, _| {
        for next in [waiter, same_process] {
            acquire_free(redis, holder);
            assert_eq!(wait_for(redis, waiter), Some(owner(holder)));
            assert_eq!(release(redis, holder, None), Value::Int(3));
            redis.lengthen_turn("a");
            assert_eq!(held(&acquire(redis, other, false)).1, owner(waiter));
            // After the waiter, or another owner of its process, no turn is left over for the next release.
            let clock = redis.now_us();
            let reply = send_acquire(redis, "a", next, LEASE, clock, &channel(waiter));
            let reply = reply.expect("Redis replies");
            let is_contended = next != waiter;
            assert!(matches!(granted(&reply), Some((_, contended)) if contended == is_contended));
            assert_eq!(redis.turn("a"), None);
            release(redis, next, None);
            withdraw(redis, waiter);
        }
    });
}

/// Acquires the mutex `a` as a waiter with a channel. Returns the owner that has the mutex or its turn.
fn wait_for(redis: &mut Redis, who: usize) -> Option<String> {
    let clock = redis.now_us();
    let reply = send_acquire(redis, "a", who, LEASE, clock, &channel(who)).expect("Redis replies");
    granted(&reply).is_none().then(|| held(&reply).1)
}

#[test]
fn a_waiter_that_let_its_turn_lapse_has_no_other_until_it_asks_again() {
    let (holder, first, second, caller) = (0, 1, 2, 3);
    once_heard(|redis, listener| {
        acquire_free(redis, holder);
        for who in [first, second] {
            assert_eq!(wait_for(redis, who), Some(owner(holder)));
        }
        assert_eq!(release(redis, holder, None), Value::Int(3));
        assert_eq!(redis.turn("a"), Some((owner(first), 100)));
        assert_eq!(listener.messages(redis), [hint(first)]);
        // The caller that finds the turn lapsed begins the next one's, and is refused.
        redis.end_turn("a");
        assert_eq!(held(&acquire(redis, caller, false)).1, owner(second));
        assert_eq!(redis.turn("a"), Some((owner(second), 100)));
        assert_eq!(listener.messages(redis), [hint(first), hint(second)]);
        assert_eq!(redis.queue("a"), [first, second].map(owner));
        // A further release wakes the first waiter, and gives it no turn.
        assert_eq!(wait_for(redis, second), None);
        assert_eq!(release(redis, second, None), Value::Int(1));
        assert_eq!(listener.messages(redis), [hint(first)]);
        assert_eq!(redis.turn("a"), None);
        acquire_free(redis, caller);

        // When it asks again, it has its place, and each turn is twice as long as the one that lapsed.
        assert_eq!(wait_for(redis, second), Some(owner(caller)));
        for length in [200, 400] {
            assert_eq!(wait_for(redis, first), Some(owner(caller)));
            assert_eq!(redis.queue("a"), [first, second].map(owner));
            assert_eq!(release(redis, caller, None), Value::Int(3));
            assert_eq!(redis.turn("a"), Some((owner(first), length)));
            assert_eq!(listener.messages(redis), [hint(first)]);
            // A lapsed turn that nobody has noticed is still its own.
            redis.end_turn("a");
            if length == 400 {
                assert_eq!(wait_for(redis, first), None);
                break;
            }
            // A waiter that withdraws notices it too.
            assert_eq!(withdraw(redis, second), Value::Int(0));
            assert_eq!(redis.turn("a"), None);
            assert_eq!(listener.messages(redis), [hint(first)]);
            acquire_free(redis, caller);
            assert_eq!(wait_for(redis, second), Some(owner(caller)));
        }
    });
}

#[test]
fn the_second_waiter_is_told_how_long_the_turn_of_a_silent_one_lasts() {
    let (holder, first, silent, second) = (0, 1, 2, 3);
    once_heard(|redis, listener| {
        acquire_free(redis, holder);
        for who in [first, silent, second] {
            assert_eq!(wait_for(redis, who), Some(owner(holder)));
        }
        redis.age("a", &owner(first), STALL / 2);
        redis.age("a", &owner(silent), STALL);
        assert_eq!(release(redis, holder, None), Value::Int(3));
        let told = (channel(second), format!("{} 100", owner(second)));
        assert_eq!(listener.all_messages(redis), [hint(first), told]);
        assert_eq!(redis.queue("a"), [first, silent, second].map(owner));
    });
}

/// The user of Redis may not use one of the commands.
#[test]
fn a_missing_right_leaves_no_lock_behind() {
    once(|redis| {
        for command in ["time", "set", "zscore", "hget", "zcard", "zrem", "hdel"] {
            let () = redis.ask(&["FLUSHALL"]);
            acquire_free(redis, 1);
            acquire(redis, 2, true);
            let clock = redis.now_us();
            let () = redis.ask(&["DEL", "a"]);
            let (who, waits) = (2, true);
            let request = Request::Acquire { who, waits, clock };
            let reply = redis.without(command, |redis| request.send(redis, "a"));
            assert!(reply.is_err(), "{command} is not used");
            assert!(!redis.exists("a"), "{command}");
        }
    });
}

#[test]
fn full_memory_rejects_an_acquire_and_no_release() {
    once(|redis| {
        let reserved = acquire_free(redis, 2);
        acquire(redis, 1, true);
        let () = redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let clock = redis.now_us();
        for (who, name) in [(1, "b"), (2, "a"), (3, "a")] {
            let waits = true;
            let reply = Request::Acquire { who, waits, clock }.send(redis, name);
            assert_eq!(code(reply), "OOM", "{name}");
        }
        assert!(!redis.exists("b"));
        assert_eq!(redis.queue("a"), [owner(1)]);
        let unused = Unused { used: 0, reserved };
        assert_eq!(release(redis, 2, Some(unused)), Value::Int(3));
        assert!(!redis.exists("a"));
    });
}
