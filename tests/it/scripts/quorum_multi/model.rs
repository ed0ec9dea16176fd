//! Random histories of multi-locks on one node of a quorum, and the plain model that they agree with.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use proptest::prelude::*;
use proptest::sample::Index;
use redis::Value;

use super::{NAMES, Request, SETS, granted};
use crate::scripts::fences::{Fences, MEMORY, ROUNDING, check_raised, held, more, raised, skew};
use crate::scripts::quorum_owners::broken;
use crate::scripts::turns::Turns;
use crate::scripts::{Check, LEASE, LIFE, Listener, Redis, hint, owner, run_heard};
use crate::support::companions_of;

#[derive(Clone, Debug)]
enum Step {
    /// The owner asks. With `true` it waits, otherwise it tries. Its clock differs from the server's by this number of
    /// µs.
    Acquire(usize, bool, i64),
    /// Another node answered fences that are larger by these numbers.
    Raise(usize, [u64; NAMES.len()]),
    Release(usize),
    Break(usize, usize),
    /// Redis executes a copy of an earlier request.
    Repeat(Index),
    /// A waiter dies.
    Die(usize),
    /// The key of a name expires.
    RunOut(usize),
    /// The time of a turn at a name passes.
    EndTurn(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..SETS.len();
    let name = || 0..NAMES.len();
    prop_oneof![
        9 => (who(), prop::bool::weighted(0.8), skew())
            .prop_map(|(who, waits, skew)| Step::Acquire(who, waits, skew)),
        2 => (who(), [more(), more(), more()]).prop_map(|(who, more)| Step::Raise(who, more)),
        6 => who().prop_map(Step::Release),
        1 => (who(), name()).prop_map(|(who, name)| Step::Break(who, name)),
        4 => any::<Index>().prop_map(Step::Repeat),
        1 => who().prop_map(Step::Die),
        2 => name().prop_map(Step::RunOut),
        2 => name().prop_map(Step::EndTurn),
    ]
}

/// Messages, each with its channel.
type Messages = Vec<(String, String)>;

/// The model of one name on one node.
#[derive(Default)]
struct Name {
    holder: Option<usize>,
    is_marked: bool,
    /// The last fence that was reserved, or 0.
    record: u64,
    /// The waiters in order, and whether they are dead.
    queue: Vec<(usize, bool)>,
    turns: Turns,
    /// The largest fence that was answered.
    floor: u64,
}

impl Name {
    fn leave(&mut self, who: usize) -> bool {
        let before = self.queue.len();
        self.queue.retain(|(it, _)| *it != who);
        self.turns.left(who);
        self.queue.len() < before
    }

    /// Frees the name if `who` holds it. Takes that owner out of the queue. If the name is free now and the owner held
    /// it or waited for it, it is the first live waiter's turn. Adds the messages. Returns whether there is such a waiter.
    fn give_up(&mut self, who: usize, time: &RangeInclusive<u64>, messages: &mut Messages) -> bool {
        let is_holder = self.holder == Some(who);
        if is_holder {
            (self.holder, self.is_marked) = (None, false);
        }
        let has_waited = self.leave(who);
        self.holder.is_none() && (is_holder || has_waited) && self.wake(time, messages)
    }

    /// Begins the turn of the first live waiter. Adds the messages to that waiter, and to the waiters that are passed over.
    /// Returns whether there is one.
    fn wake(&mut self, time: &RangeInclusive<u64>, messages: &mut Messages) -> bool {
        self.turns.end_lapsed(&self.queue, time);
        let mut place = 0;
        while let Some(&(first, is_dead)) = self.queue.get(place) {
            // The script drops the dead waiters before the first live one.
            if is_dead {
                self.leave(first);
                continue;
            }
            messages.push(hint(first));
            if !self.turns.is_passed_over(first) {
                self.turns.begin(first, time);
                return true;
            }
            place += 1;
        }
        self.turns.turn = None;
        false
    }

    /// Returns the waiter whose turn it is, if the name is free.
    fn turn_of(&self) -> Option<usize> {
        let turn = self.turns.turn.as_ref()?;
        let is_there = self.holder.is_none() && !self.queue.is_empty();
        is_there.then_some(turn.who)
    }
}

/// The model of all names on one node.
#[derive(Default)]
struct Model {
    names: [Name; NAMES.len()],
    /// The messages of the last request.
    messages: Messages,

    // The rest follows from the requests and replies only.
    /// All requests.
    sent: Vec<Request>,
    /// The owners that a reply granted all their names to, unless one was released, broken or gone since.
    granted: BTreeSet<usize>,
    /// The fences that each owner was last granted.
    reserved: [Vec<u64>; SETS.len()],
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
            Step::Raise(who, _) if self.reserved[who].is_empty() => return None,
            Step::Raise(who, more) => {
                let firsts = self.reserved[who].iter().zip(more);
                let firsts = firsts.map(|(first, more)| first + more).collect();
                Request::Raise { who, firsts }
            }
            Step::Release(who) => Request::Release { who },
            Step::Break(who, name) => Request::Break { who, name },
            Step::Repeat(_) if self.sent.is_empty() => return None,
            Step::Repeat(ref index) => index.get(&self.sent).clone(),
            Step::Die(_) | Step::RunOut(_) | Step::EndTurn(_) => return None,
        })
    }

    /// Applies a request to the model, and compares the reply. The node's time was in `time`.
    fn answered(&mut self, request: &Request, reply: &Value, time: &RangeInclusive<u64>) -> Check {
        self.messages.clear();
        match *request {
            Request::Acquire { who, waits, clock } => {
                // A turn of another that has lapsed is followed by the next waiter's.
                for name in SETS[who] {
                    let name = &mut self.names[*name];
                    let is_there = name.holder.is_none() && !name.queue.is_empty();
                    if is_there && name.turns.has_lapsed_before(who, time) {
                        name.wake(time, &mut self.messages);
                    }
                }
                // If it is the turn of a set at one name, the turns of others at its other names do not matter.
                let is_own_turn = |name: &usize| self.names[*name].turn_of() == Some(who);
                let has_turn = SETS[who].iter().any(is_own_turn);
                let is_held = |name: &&usize| {
                    let name = &self.names[**name];
                    let other = name.turn_of().filter(|_| !has_turn);
                    name.holder.or(other).is_some_and(|other| other != who)
                };
                match SETS[who].iter().find(is_held) {
                    Some(first_held) => self.refused(who, waits, *first_held, reply, time),
                    None => self.is_granted(who, clock, reply, time),
                }
            }
            Request::Raise { who, ref firsts } => {
                let held = self.held(who);
                if held != 1 {
                    prop_assert_eq!(reply, &Value::Int(held));
                    return Ok(());
                }
                let records = raised(reply);
                prop_assert_eq!(records.len(), SETS[who].len());
                for ((name, first), raised) in SETS[who].iter().zip(firsts).zip(records) {
                    let name = &mut self.names[*name];
                    check_raised(raised, name.record, *first, 1, time)?;
                    name.record = raised;
                    name.floor = name.floor.max(*first);
                }
                Ok(())
            }
            Request::Release { who } => {
                let held = self.held(who);
                let mut is_woken = false;
                for name in SETS[who] {
                    let name = &mut self.names[*name];
                    let is_holder = name.holder == Some(who);
                    let has_next = name.give_up(who, time, &mut self.messages);
                    is_woken |= is_holder && has_next;
                }
                let wanted = if held == 1 && is_woken { 3 } else { held };
                prop_assert_eq!(reply, &Value::Int(wanted));
                self.granted.remove(&who);
                Ok(())
            }
            Request::Break { who, name } => {
                let name = &mut self.names[name];
                let is_broken = name.holder == Some(who);
                if is_broken {
                    name.give_up(who, time, &mut self.messages);
                    self.messages.push(broken(who));
                    self.granted.remove(&who);
                }
                prop_assert_eq!(reply, &Value::Int(i64::from(is_broken)));
                Ok(())
            }
        }
    }

    /// Returns 1 if the owner holds all its names, 0 if one is gone, and -1 if another owner holds one.
    fn held(&self, who: usize) -> i64 {
        let held = |name: &usize| match self.names[*name].holder {
            Some(holder) if holder == who => 1,
            Some(_) => -1,
            None => 0,
        };
        SETS[who].iter().map(held).min().expect("a name")
    }

    fn is_granted(
        &mut self,
        who: usize,
        clock: u64,
        reply: &Value,
        time: &RangeInclusive<u64>,
    ) -> Check {
        let Some((fences, others)) = granted(reply) else {
            return Err(TestCaseError::fail(format!("no name of {who} is held")));
        };
        prop_assert_eq!(fences.len(), SETS[who].len());
        let mut wanted = false;
        for (name, first) in SETS[who].iter().zip(&fences) {
            let name = &mut self.names[*name];
            if !name.queue.is_empty() {
                name.turns.turn = None;
            }
            name.leave(who);
            if name.holder.is_none() {
                (name.holder, name.is_marked) = (Some(who), !name.queue.is_empty());
            }
            wanted |= !name.queue.is_empty();
            let [first, last] = [*first; 2];
            Fences { first, last }.check(name.record, 1, clock, time)?;
            name.record = last;
            prop_assert!(first > name.floor, "a fence is too small");
            name.floor = first;
        }
        prop_assert_eq!(others, wanted);
        let may_hold = |other: &usize| {
            *other == who || SETS[*other].iter().all(|name| !SETS[who].contains(name))
        };
        prop_assert!(
            self.granted.iter().all(may_hold),
            "{:?} hold some too",
            self.granted
        );
        self.granted.insert(who);
        self.reserved[who] = fences;
        Ok(())
    }

    /// Applies the reply that another owner holds a name, or has its turn there. The owner gives all names up, and waits
    /// for that one.
    fn refused(
        &mut self,
        who: usize,
        waits: bool,
        first_held: usize,
        reply: &Value,
        time: &RangeInclusive<u64>,
    ) -> Check {
        for name in SETS[who] {
            if *name != first_held {
                self.names[*name].give_up(who, time, &mut self.messages);
            }
        }
        let name = &mut self.names[first_held];
        if waits {
            name.turns.asked(who);
            match name.queue.iter_mut().find(|(it, _)| *it == who) {
                Some((_, is_dead)) => *is_dead = false,
                None => name.queue.push((who, false)),
            }
            name.is_marked = name.holder.is_some();
        }
        let (ttl, holder) = held(reply);
        let (longest, named) = match (name.holder, &name.turns.turn) {
            (None, Some(turn)) => (turn.length.cast_signed(), Some(turn.who)),
            (holder, _) => (LEASE.parse().expect("a number"), holder),
        };
        prop_assert!((1..=longest).contains(&ttl), "{}", ttl);
        prop_assert_eq!(Some(holder), named.map(owner));
        // An owner that lost one name may hold others until it asks again.
        self.granted.remove(&who);
        Ok(())
    }

    /// Compares the keys of all names with the model.
    fn agrees(&mut self, redis: &mut Redis) -> Check {
        for (name, model) in NAMES.into_iter().zip(&mut self.names) {
            prop_assert!(
                model.turns.agrees(redis, name),
                "{}: the turn is not {:?}",
                name,
                model.turns
            );
            let value: Option<String> = redis.ask(&["GET", name]);
            let mark = if model.is_marked { "!" } else { "" };
            prop_assert_eq!(value, model.holder.map(|who| owner(who) + mark));
            let is_seen = model.is_marked || model.holder.is_none();
            prop_assert!(is_seen || model.queue.is_empty(), "no mark");
            prop_assert_eq!(redis.record(name).unwrap_or(0), model.record);
            prop_assert!(model.record >= model.floor, "{}: the record fell", name);
            let waiting: Vec<_> = model.queue.iter().map(|(who, _)| owner(*who)).collect();
            prop_assert_eq!(redis.queue(name), waiting);

            let [fence, queue, waiters] = companions_of(name);
            for key in [name, &queue, &waiters] {
                prop_assert_ne!(redis.expiry(key), -1, "{} has no expiry", key);
            }
            let kept_until = (model.record / 1_000 + MEMORY).cast_signed() - ROUNDING;
            prop_assert!(model.record == 0 || redis.expiry(&fence) >= kept_until);
        }
        for who in &self.granted {
            prop_assert_eq!(self.held(*who), 1, "{} lost a name", who);
        }
        Ok(())
    }
}

fn history(redis: &mut Redis, listener: &mut Listener, steps: &[Step]) -> Check {
    let mut model = Model::default();
    for step in steps {
        let before = redis.now_us();
        if let Some(request) = model.request(step, before) {
            let reply = request.must_send(redis);
            let time = before..=redis.now_us();
            let mut turns = model
                .names
                .iter()
                .filter_map(|name| name.turns.turn.as_ref());
            if turns.any(|turn| turn.lasts(&time).is_none()) {
                // A turn may have ended before or after the request: the rest of this history proves nothing.
                return Ok(());
            }
            model.answered(&request, &reply, &time)?;
            prop_assert_eq!(listener.messages(redis), &model.messages[..]);
            model.sent.push(request);
        }
        match *step {
            Step::Die(who) => {
                for (name, model) in NAMES.into_iter().zip(&mut model.names) {
                    if let Some((_, is_dead)) = model.queue.iter_mut().find(|(it, _)| *it == who) {
                        redis.age(name, &owner(who), LIFE * 2);
                        *is_dead = true;
                    }
                }
            }
            Step::EndTurn(name) => {
                model.names[name].turns.pass(redis, NAMES[name]);
            }
            Step::RunOut(name) => {
                let () = redis.ask(&["DEL", NAMES[name]]);
                let model_of_name = &mut model.names[name];
                (model_of_name.holder, model_of_name.is_marked) = (None, false);
                model.granted.retain(|who| !SETS[*who].contains(&name));
            }
            _ => {}
        }
        model.agrees(redis)?;
    }
    Ok(())
}

#[test]
fn a_quorums_multi_locks_agree_with_their_model() {
    let steps = prop::collection::vec(step(), 1..60);
    run_heard(200, steps, |redis, listener, steps| {
        history(redis, listener, &steps)
    });
}
