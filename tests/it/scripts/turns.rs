//! The turns of waiters on one node of a quorum, as `quorum_turn.lua` writes them.

use std::ops::RangeInclusive;

use super::{Redis, owner};
use crate::support::companions_of;

/// The longest turn, ms.
pub(super) const LONGEST: u64 = 100;

/// A turn in a model.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) who: usize,
    /// The ms at which it ends, as exactly as the model knows it.
    ends: RangeInclusive<u64>,
}

impl Turn {
    /// Begins the turn of a waiter that a script has woken. The node's time was in `time`, µs. A turn that has begun is
    /// not made longer.
    pub(super) fn begin(turn: &mut Option<Self>, who: usize, time: &RangeInclusive<u64>) {
        if turn.as_ref().is_none_or(|turn| turn.who != who) {
            let ends = time.start() / 1_000 + LONGEST..=time.end() / 1_000 + LONGEST;
            *turn = Some(Self { who, ends });
        }
    }

    /// Returns whether the turn lasts, in a script that read its node's time in `time`, µs. Returns `None` if it may have
    /// ended meanwhile.
    pub(super) fn lasts(&self, time: &RangeInclusive<u64>) -> Option<bool> {
        if *self.ends.start() > time.end() / 1_000 {
            Some(true)
        } else {
            (*self.ends.end() <= time.start() / 1_000).then_some(false)
        }
    }

    /// Lets the time of the turn pass.
    pub(super) fn pass(turn: &mut Option<Self>, redis: &mut Redis, lock: &str) {
        if let Some(turn) = turn {
            redis.end_turn(lock);
            turn.ends = 1..=1;
        }
    }

    /// Returns whether a node has this turn, and notes when it ends.
    pub(super) fn agrees(turn: &mut Option<Self>, redis: &mut Redis, lock: &str) -> bool {
        let stored = redis.turn(lock);
        match (turn, stored) {
            (None, None) => true,
            (Some(turn), Some((ends, who))) => {
                let is_same = who == owner(turn.who) && turn.ends.contains(&ends);
                turn.ends = ends..=ends;
                is_same
            }
            _ => false,
        }
    }
}

impl Redis {
    /// Returns the ms at which the turn of a waiter ends, and the waiter.
    pub(super) fn turn(&mut self, lock: &str) -> Option<(u64, String)> {
        let [_, _, waiters] = companions_of(lock);
        let field: Option<String> = self.ask(&["HGET", &waiters, "=turn"]);
        let field = field?;
        let (ends, who) = field.split_once(' ').expect("it begins with a time");
        Some((ends.parse().expect("ms"), who.to_owned()))
    }

    /// Lets the time of a turn pass.
    pub(super) fn end_turn(&mut self, lock: &str) {
        let [_, _, waiters] = companions_of(lock);
        let (_, who) = self.turn(lock).expect("it is the turn of a waiter");
        let () = self.ask(&["HSET", &waiters, "=turn", &format!("1 {who}")]);
    }
}
