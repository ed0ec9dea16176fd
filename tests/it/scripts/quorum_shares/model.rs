//! Random histories of a reader-writer lock on one node of a quorum, and the plain model that they agree with.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use proptest::prelude::*;
use proptest::sample::Index;
use redis::Value;

use super::{ALL, COUNTS, NAME, Request, UNITS, is_writer, lapse, leases, member};
use crate::scripts::fences::{
    Fences, MEMORY, ROUNDING, Unused, Used, check_raised, granted, held, is_of_a_reader, more,
    raised, skew, used,
};
use crate::scripts::quorum_owners::broken;
use crate::scripts::turns::Turns;
use crate::scripts::{Check, LEASE, LIFE, Listener, Redis, hint, owner, run_heard};
use crate::support::companions_of;

#[derive(Clone, Debug)]
enum Step {
    /// The owner asks. With `true` it waits, otherwise it tries. Its clock differs from the server's by this number of
    /// µs.
    Acquire(usize, bool, i64),
    /// Another node answered a fence that is larger by this number.
    Raise(usize, u64),
    /// The owner releases, and may give unused fences back. With `true` it withdraws.
    Release(usize, Option<Used>, bool),
    Break(usize),
    /// Redis executes a copy of an earlier request.
    Repeat(Index),
    /// A waiter dies.
    Die(usize),
    /// The lease of a holder expires, and no script has noticed it yet.
    Lapse(usize),
    /// The key of the lock is deleted.
    Delete,
    /// The time of a turn passes.
    EndTurn,
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..UNITS.len();
    prop_oneof![
        9 => (who(), any::<bool>(), skew())
            .prop_map(|(who, waits, skew)| Step::Acquire(who, waits, skew)),
        3 => (who(), more()).prop_map(|(who, more)| Step::Raise(who, more)),
        7 => (who(), used(), prop::bool::weighted(0.3))
            .prop_map(|(who, used, withdraws)| Step::Release(who, used, withdraws)),
        1 => who().prop_map(Step::Break),
        4 => any::<Index>().prop_map(Step::Repeat),
        1 => who().prop_map(Step::Die),
        2 => who().prop_map(Step::Lapse),
        1 => Just(Step::Delete),
        2 => Just(Step::EndTurn),
    ]
}

/// The model of one lock on one node.
#[derive(Default)]
struct Model {
    /// The owners whose leases are listed, and whether their time is over.
    holders: BTreeMap<usize, bool>,
    /// The last fence that was reserved, or 0.
    record: u64,
    /// The waiters in order, and whether they are dead.
    queue: Vec<(usize, bool)>,
    turns: Turns,
    /// The messages of the last request.
    messages: Vec<(String, String)>,

    // The rest follows from the requests and replies only.
    /// All requests.
    sent: Vec<Request>,
    /// The owners that a reply granted the lock to, unless it was released, broken or over since.
    granted: BTreeSet<usize>,
    /// The largest fence that an owner had.
    floor: u64,
    /// The fences that each owner was last granted.
    reserved: [Option<Fences>; UNITS.len()],
    /// The first fence that each owner uses. A raise moves it.
    first_used: [u64; UNITS.len()],
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
            Step::Release(who, used, withdraws) => {
                // A reader reserves nothing.
                let used = used.filter(|_| is_writer(who)).zip(self.reserved[who]);
                let unused =
                    used.map(|(used, reserved)| used.unused(reserved, self.first_used[who]));
                Request::Release {
                    who,
                    unused,
                    withdraws,
                }
            }
            Step::Break(who) => Request::Break { who },
            Step::Repeat(_) if self.sent.is_empty() => return None,
            Step::Repeat(index) => *index.get(&self.sent),
            Step::Die(_) | Step::Lapse(_) | Step::Delete | Step::EndTurn => return None,
        })
    }

    /// Returns whether the units of this owner are free.
    fn fits(&self, who: usize) -> bool {
        if is_writer(who) {
            self.holders.is_empty()
        } else {
            !self.holders.keys().any(|holder| is_writer(*holder))
        }
    }

    /// Returns whether a live waiter stands before this owner that may not share the lock with it.
    fn is_behind_another(&self, who: usize) -> bool {
        let before = self.queue.iter().take_while(|(it, _)| *it != who);
        let mut live = before.filter(|(it, is_dead)| !is_dead && !self.turns.is_passed_over(*it));
        live.any(|(it, _)| is_writer(who) || is_writer(*it))
    }

    /// Returns whether this owner has to wait although its units are free: for the readers that hold the lock, or for the
    /// turn of another waiter. If such a turn has lapsed, the turn of the next waiter begins first.
    fn must_wait(&mut self, who: usize, time: &RangeInclusive<u64>) -> bool {
        if self.queue.iter().all(|(it, _)| *it == who) {
            return false;
        }
        if self.holders.is_empty() {
            if self.turns.has_lapsed_before(who, time) {
                self.wake(time);
            }
            if self.turns.turn.as_ref().is_none_or(|turn| turn.who == who) {
                return false;
            }
        }
        self.is_behind_another(who)
    }

    /// Drops the leases whose time is over. Returns whether there were any.
    fn prune(&mut self) -> bool {
        let before = self.holders.len();
        self.holders.retain(|_, is_over| !*is_over);
        self.holders.len() < before
    }

    fn leave(&mut self, who: usize) {
        self.queue.retain(|(it, _)| *it != who);
        self.turns.left(who);
    }

    /// Wakes the first live waiters: a writer if all units are free, or all readers before the next writer. If nobody
    /// holds the lock, it is the first one's turn. Returns whether there were any.
    fn wake(&mut self, time: &RangeInclusive<u64>) -> bool {
        self.turns.end_lapsed(&self.queue, time);
        let (mut place, mut is_woken) = (0, false);
        while let Some(&(who, is_dead)) = self.queue.get(place) {
            if is_dead {
                self.leave(who);
                continue;
            }
            place += 1;
            if self.turns.is_passed_over(who) {
                self.messages.extend((!is_woken).then(|| hint(who)));
                continue;
            }
            if !self.fits(who) || (is_writer(who) && is_woken) {
                break;
            }
            self.messages.push(hint(who));
            if !is_woken && self.holders.is_empty() {
                self.turns.begin(who, time);
            }
            is_woken = true;
            if is_writer(who) {
                break;
            }
        }
        is_woken
    }

    /// Applies a request to the model, and compares the reply. The node's time was in `time`.
    fn answered(&mut self, request: &Request, reply: &Value, time: &RangeInclusive<u64>) -> Check {
        self.messages.clear();
        match *request {
            Request::Acquire { who, waits, clock } => {
                self.prune();
                let is_holder = self.holders.contains_key(&who);
                if !is_holder && (!self.fits(who) || self.must_wait(who, time)) {
                    return self.refused(who, waits, reply);
                }
                let Some((fences, others)) = granted(reply) else {
                    return Err(TestCaseError::fail(format!("{who} has free units")));
                };
                self.holders.insert(who, false);
                if !self.queue.is_empty() {
                    self.turns.turn = None;
                }
                self.leave(who);
                prop_assert_eq!(others, !self.queue.is_empty());
                self.is_granted(who, fences, clock, time)?;
            }
            Request::Raise { who, first } => {
                if self.holders.get(&who) != Some(&false) {
                    prop_assert_eq!(reply, &Value::Int(0));
                    return Ok(());
                }
                let record = raised(reply)[0];
                check_raised(record, self.record, first, COUNTS[who], time)?;
                self.record = record;
                self.first_used[who] = self.first_used[who].max(first);
                if !is_writer(who) {
                    self.floor = self.floor.max(first);
                }
            }
            Request::Release {
                who,
                unused,
                withdraws,
            } => {
                let has_expired = self.prune();
                let released = self.holders.remove(&who).is_some();
                if released {
                    self.give_back(who, unused);
                }
                if withdraws {
                    self.leave(who);
                }
                let is_woken = (released || has_expired || withdraws) && self.wake(time);
                if withdraws && !is_woken {
                    self.turns.turn = None;
                }
                let wanted = match (released, is_woken) {
                    (false, _) => 0,
                    (true, false) => 1,
                    (true, true) => 3,
                };
                prop_assert_eq!(reply, &Value::Int(wanted));
                if matches!(reply, Value::Int(1 | 3)) {
                    self.granted.remove(&who);
                }
            }
            Request::Break { who } => {
                self.prune();
                let is_broken = self.holders.remove(&who).is_some();
                if is_broken {
                    self.wake(time);
                    self.messages.push(broken(who));
                    self.granted.remove(&who);
                }
                prop_assert_eq!(reply, &Value::Int(i64::from(is_broken)));
            }
        }
        Ok(())
    }

    /// Applies a grant. Readers have the record, and a writer has new fences.
    fn is_granted(
        &mut self,
        who: usize,
        fences: Fences,
        clock: u64,
        time: &RangeInclusive<u64>,
    ) -> Check {
        if is_writer(who) || self.record == 0 {
            fences.check(self.record, COUNTS[who], clock, time)?;
            self.record = fences.last;
        } else {
            let [first, last] = [self.record; 2];
            prop_assert_eq!(fences, Fences { first, last });
        }
        self.reserved[who] = Some(fences);
        self.first_used[who] = fences.first;

        let may_share = |other: &usize| *other == who || !is_writer(who) && !is_writer(*other);
        prop_assert!(
            self.granted.iter().all(may_share),
            "{:?} hold it too",
            self.granted
        );
        self.granted.insert(who);
        prop_assert!(
            fences.first >= self.floor + u64::from(is_writer(who)),
            "a fence is too small"
        );
        self.floor = fences.first;
        Ok(())
    }

    /// Applies the reply that other owners hold the lock, or that it is the turn of another.
    fn refused(&mut self, who: usize, waits: bool, reply: &Value) -> Check {
        let (ttl, holder) = held(reply);
        let mut longest: i64 = LEASE.parse().expect("a number");
        let mut names = self.holders.keys();
        let mut is_named = names.any(|who| owner(*who) == holder);
        if self.holders.is_empty() {
            let turn = self.turns.turn.as_ref();
            longest = turn.map_or(0, |turn| turn.length.cast_signed());
            is_named = turn.is_some_and(|turn| owner(turn.who) == holder);
        }
        prop_assert!((1..=longest).contains(&ttl), "{}", ttl);
        prop_assert!(is_named, "{} does not hold it", holder);
        let mut all = self.holders.keys().copied();
        let is_reader = match &self.turns.turn {
            // The node has no record of a waiter that has left the queue, so its answer names no reader.
            Some(turn) if self.holders.is_empty() => {
                let is_known = self.queue.iter().any(|(who, _)| *who == turn.who);
                is_known && !is_writer(turn.who)
            }
            _ => all.any(|who| !is_writer(who)),
        };
        prop_assert_eq!(is_of_a_reader(reply), is_reader);
        if waits {
            self.turns.asked(who);
            match self.queue.iter_mut().find(|(it, _)| *it == who) {
                Some((_, is_dead)) => *is_dead = false,
                None => self.queue.push((who, false)),
            }
        }
        Ok(())
    }

    fn give_back(&mut self, who: usize, unused: Option<Unused>) {
        let Some(unused) = unused else {
            return;
        };
        // Another node reserved the fences that this one did not.
        if unused.used <= self.record && self.reserved[who] == Some(unused.reserved) {
            self.floor = self.floor.max(unused.used);
        }
        self.record = unused.record_after(self.record);
    }

    /// Compares the keys of the lock with the model.
    fn agrees(&mut self, redis: &mut Redis) -> Check {
        prop_assert!(
            self.turns.agrees(redis, NAME),
            "the turn is not {:?}",
            self.turns
        );
        let mut leases: BTreeMap<String, i64> =
            redis.ask(&["ZRANGE", NAME, "0", "-1", "WITHSCORES"]);
        if !self.holders.is_empty() {
            let used: u64 = self.holders.keys().map(|who| UNITS[*who]).sum();
            prop_assert!(used <= ALL, "readers and a writer hold it");
            prop_assert_eq!(leases.remove("=of"), Some(-ALL.cast_signed()));
            prop_assert_eq!(leases.remove("=used"), Some(-used.cast_signed()));
        }
        let listed: BTreeSet<_> = leases.keys().cloned().collect();
        let holders: BTreeSet<_> = self.holders.keys().map(|who| member(*who)).collect();
        prop_assert_eq!(listed, holders);
        prop_assert_eq!(redis.record(NAME).unwrap_or(0), self.record);
        prop_assert!(
            self.record >= self.floor,
            "the record fell below {}",
            self.floor
        );
        let waiting: Vec<_> = self.queue.iter().map(|(who, _)| owner(*who)).collect();
        prop_assert_eq!(redis.queue(NAME), waiting);

        let [fence, queue, waiters] = companions_of(NAME);
        for key in [NAME, &queue, &waiters] {
            prop_assert_ne!(redis.expiry(key), -1, "{} has no expiry", key);
        }
        let last = leases.values().max().copied().unwrap_or_default();
        prop_assert!(last == 0 || redis.expiry(NAME) + ROUNDING > last);
        let kept_until = (self.record / 1_000 + MEMORY).cast_signed() - ROUNDING;
        prop_assert!(self.record == 0 || redis.expiry(&fence) >= kept_until);
        Ok(())
    }
}

fn history(redis: &mut Redis, listener: &mut Listener, steps: &[Step]) -> Check {
    let mut model = Model::default();
    for step in steps {
        let before = redis.now_us();
        if let Some(request) = model.request(step, before) {
            let ends = leases(redis);
            let reply = request.must_send(redis);
            let time = before..=redis.now_us();
            let turn = model.turns.turn.as_ref();
            if turn.is_some_and(|turn| turn.lasts(&time).is_none()) {
                // The turn may have ended before or after the request: the rest of this history proves nothing.
                return Ok(());
            }
            model.answered(&request, &reply, &time)?;
            prop_assert_eq!(listener.messages(redis), &model.messages[..]);
            model.sent.push(request);
            for (lease, end) in leases(redis) {
                prop_assert!(ends.get(&lease).is_none_or(|before| *before <= end));
            }
        }
        match *step {
            Step::Die(who) => {
                if let Some((_, is_dead)) = model.queue.iter_mut().find(|(it, _)| *it == who) {
                    redis.age(NAME, &owner(who), LIFE * 2);
                    *is_dead = true;
                }
            }
            Step::Lapse(who) => {
                if let Some(is_over) = model.holders.get_mut(&who) {
                    lapse(redis, who);
                    *is_over = true;
                    model.granted.remove(&who);
                }
            }
            Step::EndTurn => model.turns.pass(redis, NAME),
            Step::Delete => {
                let () = redis.ask(&["DEL", NAME]);
                model.holders.clear();
                model.granted.clear();
            }
            _ => {}
        }
        model.agrees(redis)?;
    }
    Ok(())
}

#[test]
fn a_quorums_readers_and_writers_agree_with_their_model() {
    let steps = prop::collection::vec(step(), 1..60);
    run_heard(200, steps, |redis, listener, steps| {
        history(redis, listener, &steps)
    });
}
