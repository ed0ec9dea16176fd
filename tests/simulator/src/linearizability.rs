//! Whether a history of a fenced register is linearizable: whether one order of its calls explains all results.
//!
//! A call takes effect at one instant between its invocation and its return. The search is that of Wing and Gong ("Testing
//! and verifying concurrent objects", 1993). It remembers each set of calls that it has taken, with the state of the register
//! after them, as Lowe does ("Testing for linearizability", 2017): a second search from there would find nothing new.
//!
//! The search has the events of the history in a list, in their order. At an event of the list:
//!
//! | the event | and then |
//! | --- | --- |
//! | an invocation, which the state allows, with a new set and state | takes the call: its events leave the list. Begins at the front |
//! | another invocation | looks at the next event |
//! | a return | a call must come before it. Puts the last call back, and looks at the event behind its invocation |
//! | a return, and no call is taken | no order explains the history |
//! | the end of the list | the order is found: only calls of unknown outcome are left, and had no effect |

use std::collections::HashSet;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read,
    Write(u64),
}

/// The result of a call that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The register took the fence, and has this value.
    Accepted(u64),
    /// The register has seen a larger fence.
    Rejected,
}

/// A call of a history.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub action: Action,
    pub fence: u64,
    /// The place of the invocation in the history.
    pub invoked: usize,
    /// The place of the return, and the result. A call without a return may take effect at any time, or never.
    pub returned: Option<(usize, Outcome)>,
}

/// A register that rejects each fence that is smaller than one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Register {
    value: u64,
    fence: u64,
}

#[derive(Clone, Copy)]
enum Event {
    Invocation(usize),
    Return,
}

/// The events of a history that no taken call has: a list through an array. Both its ends are at [`FRONT`].
struct Events {
    /// The events, with the places of the previous and the next one.
    events: Vec<(Event, usize, usize)>,
    /// The places of the events of each call.
    of_calls: Vec<(usize, Option<usize>)>,
}

const FRONT: usize = 0;

impl Register {
    /// Returns the register after a call, or `None` if it does not answer so. A call of unknown outcome that changes nothing
    /// is left to be one that never took effect.
    fn after(self, call: &Call) -> Option<Self> {
        let taken = (call.fence >= self.fence).then_some(Self {
            value: match call.action {
                Action::Read => self.value,
                Action::Write(value) => value,
            },
            fence: call.fence,
        });
        match (call.returned, taken) {
            (Some((_, Outcome::Accepted(value))), Some(after)) if value == after.value => taken,
            (Some((_, Outcome::Rejected)), None) => Some(self),
            (None, Some(after)) if after != self => taken,
            _ => None,
        }
    }
}

impl Events {
    fn new(calls: &[Call]) -> Self {
        let mut ordered = Vec::new();
        for (number, call) in calls.iter().enumerate() {
            ordered.push((call.invoked, number, Event::Invocation(number)));
            ordered.extend((call.returned).map(|(place, _)| (place, number, Event::Return)));
        }
        ordered.sort_by_key(|(place, ..)| *place);
        let count = ordered.len() + 1;
        let mut of_calls = vec![(FRONT, None); calls.len()];
        // The front is no event.
        let mut events = vec![(Event::Return, count - 1, 1 % count)];
        for (_, number, event) in ordered {
            let place = events.len();
            match event {
                Event::Invocation(_) => of_calls[number].0 = place,
                Event::Return => of_calls[number].1 = Some(place),
            }
            events.push((event, place - 1, (place + 1) % count));
        }
        Self { events, of_calls }
    }

    fn next(&self, place: usize) -> usize {
        self.events[place].2
    }

    fn remove(&mut self, place: usize) {
        let (_, previous, next) = self.events[place];
        self.events[previous].2 = next;
        self.events[next].1 = previous;
    }

    /// Puts the event that was removed last back.
    fn put_back(&mut self, place: usize) {
        let (_, previous, next) = self.events[place];
        self.events[previous].2 = place;
        self.events[next].1 = place;
    }

    fn take(&mut self, call: usize) {
        let (invocation, end) = self.of_calls[call];
        self.remove(invocation);
        if let Some(end) = end {
            self.remove(end);
        }
    }

    fn undo(&mut self, call: usize) {
        let (invocation, end) = self.of_calls[call];
        if let Some(end) = end {
            self.put_back(end);
        }
        self.put_back(invocation);
    }
}

/// Returns whether some order explains the results of these calls at a register that begins with 0.
#[must_use]
pub fn is_linearizable(calls: &[Call]) -> bool {
    let mut events = Events::new(calls);
    let mut register = Register::default();
    // The calls that are taken, each with the register before it. `set` has the same calls.
    let mut taken = Vec::<(usize, Register)>::new();
    let mut set = vec![0_u64; calls.len().div_ceil(64)];
    let mut known = HashSet::new();
    let mut place = events.next(FRONT);
    while place != FRONT {
        match events.events[place].0 {
            Event::Invocation(call) => {
                let bit = 1 << (call % 64);
                set[call / 64] |= bit;
                let after = register.after(&calls[call]);
                let new = after.filter(|after| known.insert((set.clone(), *after)));
                if let Some(after) = new {
                    taken.push((call, register));
                    register = after;
                    events.take(call);
                    place = events.next(FRONT);
                } else {
                    set[call / 64] &= !bit;
                    place = events.next(place);
                }
            }
            Event::Return => {
                let Some((call, before)) = taken.pop() else {
                    return false;
                };
                set[call / 64] &= !(1 << (call % 64));
                register = before;
                events.undo(call);
                place = events.next(events.of_calls[call].0);
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a call with its places of invocation and return.
    fn call(action: Action, fence: u64, (invoked, returned): (usize, usize), to: Outcome) -> Call {
        Call {
            action,
            fence,
            invoked,
            returned: Some((returned, to)),
        }
    }

    fn unknown(action: Action, fence: u64, invoked: usize) -> Call {
        Call {
            action,
            fence,
            invoked,
            returned: None,
        }
    }

    use Action::{Read, Write};
    use Outcome::{Accepted, Rejected};

    #[test]
    fn calls_one_after_another_have_one_order() {
        let mut calls = vec![
            call(Read, 5, (0, 1), Accepted(0)),
            call(Write(1), 5, (2, 3), Accepted(1)),
            call(Read, 9, (4, 5), Accepted(1)),
            call(Write(7), 5, (6, 7), Rejected),
            call(Read, 9, (8, 9), Accepted(1)),
        ];
        assert!(is_linearizable(&calls));
        // The stale write is let through.
        calls[3].returned = Some((7, Accepted(7)));
        calls[4].returned = Some((9, Accepted(7)));
        assert!(!is_linearizable(&calls));
        assert!(is_linearizable(&[]));
    }

    #[test]
    fn a_reader_must_not_see_an_old_value() {
        let read = |value| {
            [
                call(Write(1), 5, (0, 1), Accepted(1)),
                call(Read, 5, (2, 3), Accepted(value)),
            ]
        };
        assert!(is_linearizable(&read(1)));
        assert!(!is_linearizable(&read(0)));
    }

    #[test]
    fn calls_at_the_same_time_have_any_order() {
        // The search must take the later invocation first, and must undo a wrong choice.
        let calls = |last| {
            [
                call(Write(1), 5, (0, 4), Accepted(1)),
                call(Write(2), 5, (1, 5), Accepted(2)),
                call(Read, 5, (2, 3), Accepted(2)),
                call(Read, 5, (6, 7), Accepted(last)),
            ]
        };
        assert!(is_linearizable(&calls(1)));
        assert!(is_linearizable(&calls(2)));
        assert!(!is_linearizable(&calls(0)));
    }

    #[test]
    fn a_fence_is_rejected_only_behind_a_larger_one() {
        let second = |places| {
            [
                call(Write(1), 9, (0, 3), Accepted(1)),
                call(Write(2), 5, places, Rejected),
            ]
        };
        assert!(is_linearizable(&second((1, 2))));
        assert!(is_linearizable(&second((4, 5))));
        let before = [
            call(Write(2), 5, (0, 1), Rejected),
            call(Write(1), 9, (2, 3), Accepted(1)),
        ];
        assert!(!is_linearizable(&before));
    }

    #[test]
    fn a_call_of_unknown_outcome_takes_effect_late_or_never() {
        let read = |values: [u64; 2]| {
            [
                unknown(Write(1), 5, 0),
                call(Read, 5, (1, 2), Accepted(values[0])),
                call(Read, 5, (3, 4), Accepted(values[1])),
            ]
        };
        assert!(is_linearizable(&read([0, 0])));
        assert!(is_linearizable(&read([0, 1])));
        assert!(is_linearizable(&read([1, 1])));
        assert!(!is_linearizable(&read([1, 0])));
        let behind_a_larger_fence = [
            unknown(Write(1), 5, 0),
            call(Read, 9, (1, 2), Accepted(0)),
            call(Read, 9, (3, 4), Accepted(1)),
        ];
        assert!(!is_linearizable(&behind_a_larger_fence));
        let too_early = [call(Read, 5, (0, 1), Accepted(1)), unknown(Write(1), 5, 2)];
        assert!(!is_linearizable(&too_early));
    }

    /// Compares the search with one that tries each order.
    #[test]
    fn the_search_agrees_with_a_search_of_all_orders() {
        let mut random = crate::random::Random::new(41, 0);
        let mut counts = [0, 0];
        for _ in 0..4_000 {
            let calls = random_history(&mut random);
            let expected = has_an_order(&calls, Register::default(), &mut vec![false; calls.len()]);
            assert_eq!(is_linearizable(&calls), expected, "{calls:?}");
            counts[usize::from(expected)] += 1;
        }
        assert!(counts[0] > 500 && counts[1] > 500, "{counts:?}");
    }

    fn random_history(random: &mut crate::random::Random) -> Vec<Call> {
        let count = random.within(2..6) as usize;
        let mut places: Vec<_> = (0..2 * count).collect();
        for place in (1..places.len()).rev() {
            places.swap(place, random.index(place + 1));
        }
        let call = |places: &[usize]| {
            let (first, second) = (places[0].min(places[1]), places[0].max(places[1]));
            let (action, read) = match random.within(0..2) {
                0 => (Read, random.within(0..3)),
                _ => (Write(random.within(0..3)), 0),
            };
            let outcome = match (random.within(0..8), action) {
                (0, _) => None,
                (1, _) => Some(Rejected),
                (_, Read) => Some(Accepted(read)),
                (_, Write(value)) => Some(Accepted(value)),
            };
            Call {
                action,
                fence: random.within(5..7),
                invoked: first,
                returned: outcome.map(|outcome| (second, outcome)),
            }
        };
        places.chunks(2).map(call).collect()
    }

    fn has_an_order(calls: &[Call], register: Register, is_taken: &mut Vec<bool>) -> bool {
        let left = |number: &usize| !is_taken[*number];
        let left: Vec<_> = (0..calls.len()).filter(left).collect();
        let ends = left.iter().filter_map(|number| calls[*number].returned);
        let Some((first_end, _)) = ends.min_by_key(|(place, _)| *place) else {
            return true;
        };
        for number in left {
            let call = &calls[number];
            if call.invoked > first_end {
                continue;
            }
            if let Some(after) = register.after(call) {
                is_taken[number] = true;
                let found = has_an_order(calls, after, is_taken);
                is_taken[number] = false;
                if found {
                    return true;
                }
            }
        }
        false
    }
}
