//! The turns of waiters on one node of a quorum, as `quorum_turn.lua` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::{Redis, owner};
use crate::support::companions_of;

/// The length of a waiter's first turn, ms.
const FIRST: u64 = 100;

/// A turn in a model.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) who: usize,
    /// The ms at which it ends, as exactly as the model knows it.
    ends: RangeInclusive<u64>,
    /// Its length, ms.
    pub(super) length: u64,
}

/// The turns at one lock in a model. No window of a test is so short that it limits the length of a turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The turn that a node has noted. It may have lapsed.
    pub(super) turn: Option<Turn>,
    /// The waiters whose turns have lapsed, and the lengths of their next turns.
    late: BTreeMap<usize, u64>,
    /// Those of them that have not asked since.
    passed_over: BTreeSet<usize>,
}

impl Turn {
    /// Returns whether the turn lasts, in a script that read its node's time in `time`, µs. Returns `None` if it may have
    /// ended meanwhile.
    pub(super) fn lasts(&self, time: &RangeInclusive<u64>) -> Option<bool> {
        if *self.ends.start() > time.end() / 1_000 {
            Some(true)
        } else {
            (*self.ends.end() <= time.start() / 1_000).then_some(false)
        }
    }
}

impl Turns {
    /// Begins the turn of a waiter that a script has woken. The node's time was in `time`, µs. A turn that has begun is
    /// not made longer.
    pub(super) fn begin(&mut self, who: usize, time: &RangeInclusive<u64>) {
        if self.turn.as_ref().is_none_or(|turn| turn.who != who) {
            let length = self.late.get(&who).copied().unwrap_or(FIRST);
            let ends = time.start() / 1_000 + length..=time.end() / 1_000 + length;
            self.turn = Some(Turn { who, ends, length });
        }
    }

    /// Ends a turn that has lapsed, in a script that chooses the next waiter of `queue`.
    pub(super) fn end_lapsed(&mut self, queue: &[(usize, bool)], time: &RangeInclusive<u64>) {
        let has_lapsed = |turn: &mut Turn| turn.lasts(time) == Some(false);
        if let Some(Turn { who, length, .. }) = self.turn.take_if(has_lapsed) {
            let is_waiting = queue.iter().any(|(it, _)| *it == who);
            if is_waiting && self.passed_over.insert(who) {
                self.late.insert(who, 2 * length);
            }
        }
    }

    /// Returns whether the turn of a waiter other than `who` has lapsed.
    pub(super) fn has_lapsed_before(&self, who: usize, time: &RangeInclusive<u64>) -> bool {
        let has_lapsed = |turn: &Turn| turn.who != who && turn.lasts(time) == Some(false);
        self.turn.as_ref().is_some_and(has_lapsed)
    }

    /// Returns whether the next waiter is chosen past this one.
    pub(super) fn is_passed_over(&self, who: usize) -> bool {
        self.passed_over.contains(&who)
    }

    /// Notes that a waiter has asked.
    pub(super) fn asked(&mut self, who: usize) {
        self.passed_over.remove(&who);
    }

    /// Notes that a waiter has left the queue.
    pub(super) fn left(&mut self, who: usize) {
        self.late.remove(&who);
        self.passed_over.remove(&who);
    }

    /// Lets the time of the turn pass.
    pub(super) fn pass(&mut self, redis: &mut Redis, lock: &str) {
        if let Some(turn) = &mut self.turn {
            redis.end_turn(lock);
            turn.ends = 1..=1;
        }
    }

    /// Returns whether a node has this turn, and notes when it ends.
    pub(super) fn agrees(&mut self, redis: &mut Redis, lock: &str) -> bool {
        let stored = redis.stored_turn(lock);
        match (&mut self.turn, stored) {
            (None, None) => true,
            (Some(turn), Some((ends, length, who))) => {
                let is_same = (length, who) == (turn.length, owner(turn.who));
                let is_same = is_same && turn.ends.contains(&ends);
                turn.ends = ends..=ends;
                is_same
            }
            _ => false,
        }
    }
}

impl Redis {
    /// Returns the ms at which the turn of a waiter ends, its length, and the waiter.
    fn stored_turn(&mut self, lock: &str) -> Option<(u64, u64, String)> {
        let [_, _, waiters] = companions_of(lock);
        let field: Option<String> = self.ask(&["HGET", &waiters, "=turn"]);
        let field = field?;
        let (ends, rest) = field.split_once(' ').expect("it begins with a time");
        let (length, who) = rest.split_once(' ').expect("its length follows");
        let ms = |text: &str| text.parse().expect("ms");
        Some((ms(ends), ms(length), who.to_owned()))
    }

    /// Returns the waiter whose turn it is, and the length of the turn, ms.
    pub(super) fn turn(&mut self, lock: &str) -> Option<(String, u64)> {
        let (_, length, who) = self.stored_turn(lock)?;
        Some((who, length))
    }

    /// Lets the time of a turn pass.
    pub(super) fn end_turn(&mut self, lock: &str) {
        let (_, length, who) = self.stored_turn(lock).expect("it is the turn of a waiter");
        self.write_turn(lock, 1, length, &who);
    }

    /// Has a turn last for an hour, also if its time has passed unnoticed because the machine stalled.
    pub(super) fn lengthen_turn(&mut self, lock: &str) {
        let (_, _, who) = self.stored_turn(lock).expect("it is the turn of a waiter");
        let hour = 3_600_000;
        let ends = self.now() + hour;
        self.write_turn(lock, ends, hour, &who);
    }

    fn write_turn(&mut self, lock: &str, ends: u64, length: u64, who: &str) {
        let [_, _, waiters] = companions_of(lock);
        let turn = format!("{ends} {length} {who}");
        let () = self.ask(&["HSET", &waiters, "=turn", &turn]);
    }
}
