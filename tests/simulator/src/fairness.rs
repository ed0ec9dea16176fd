//! Whether processes get a lock in the order in which they asked.
//!
//! | a call | counts |
//! | --- | --- |
//! | waits for one name that it wants alone, since after the last fault, on living connections | may be bypassed |
//! | gets the name from another process, and asked at least [`SETTLED`] after it | has bypassed it |
//! | gets the name, which its own process had last | is in its process's turn, which ends within [`LONGEST_TURN`] if another process has waited since before it |
//! | is of a reader, a writer or a permit, or on a quorum | may be bypassed [`MOST_BYPASSES`] times: readers go in together, and a quorum has no order |
//! | is behind another thread of its process | takes its process's place after that one has ended, or has lost its lease |
//! | is of a multi-lock, or of a job | has no place in this order |
//! | is the first to get a name since a thread detached it, or had it with a `min_hold` | may come before others: nobody handed the lock over |

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::programs::{Choice, Operation, What};

/// The time after which the first request of a waiter has surely arrived.
const SETTLED: Duration = Duration::from_secs(1);
/// Until when a thread may get a name from another one of its process, from the begin of the process's turn. It is longer than
/// a quantum, because a thread may stand still for a moment.
const LONGEST_TURN: Duration = Duration::from_millis(500);
/// How often a waiter may be bypassed that has no strict place.
const MOST_BYPASSES: u32 = 6;

/// What a waiter may count on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Nobody gets the name who asked later.
    Strict,
    /// A few may.
    Bounded,
    None,
}

impl Order {
    fn of(what: What, is_ordered: bool) -> Self {
        match what {
            What::Mutex | What::Reentrant | What::Closure | What::Unfenced | What::Campaign
                if is_ordered =>
            {
                Self::Strict
            }
            What::Mutex
            | What::Reentrant
            | What::Closure
            | What::Unfenced
            | What::Campaign
            | What::Writer
            | What::Reader
            | What::Permit => Self::Bounded,
            _ => Self::None,
        }
    }
}

#[derive(Default)]
pub(crate) struct Fairness {
    asking: Vec<Asking>,
    next: u64,
    last_processes: BTreeMap<&'static str, usize>,
    /// When the turn of that process began.
    turns_began: BTreeMap<&'static str, Duration>,
    /// Since when a process has had a place in the queue of a name: a thread takes over that of one that gives up.
    queued_since: BTreeMap<(usize, &'static str), Duration>,
    /// When a call or a lease of a process for a name last ended. Then the next one of its threads asks.
    ended_at: BTreeMap<(usize, &'static str), Duration>,
    /// The names whose lock was detached since somebody got it, or is kept until its `min_hold` is over.
    left: BTreeSet<&'static str>,
}

/// A call that has no answer yet.
struct Asking {
    ticket: u64,
    process: usize,
    name: &'static str,
    since: Duration,
    order: Order,
    /// Whether its hold has a `min_hold`.
    keeps: bool,
    /// Whether the order counts for it, because it waits, and nothing disturbs it.
    is_observed: bool,
    bypassed: u32,
}

impl Fairness {
    /// Notes that a call begins. Returns its ticket.
    pub(crate) fn asks(
        &mut self,
        operation: &Operation,
        process: usize,
        since: Duration,
        (is_observed, is_ordered, has_min_hold): (bool, bool, bool),
    ) -> u64 {
        let ticket = self.next;
        self.next += 1;
        let order = Order::of(operation.what, is_ordered);
        let waits = operation.wait != Some(Duration::ZERO);
        let keeps = has_min_hold || matches!(operation.choice, Some(Choice::MinHold(_)));
        for name in &operation.names {
            let is_its = |asking: &Asking| asking.process == process && asking.name == *name;
            if !self.asking.iter().any(is_its) {
                self.queued_since.insert((process, name), since);
            }
            self.asking.push(Asking {
                ticket,
                process,
                name,
                since,
                order,
                keeps,
                is_observed: is_observed && waits,
                bypassed: 0,
            });
        }
        ticket
    }

    /// Notes that a process has ended its hold of these names.
    pub(crate) fn ended(&mut self, process: usize, names: &[&'static str], now: Duration) {
        for name in names {
            self.ended_at.insert((process, name), now);
        }
    }

    /// Notes that a lock was detached.
    pub(crate) fn detached(&mut self, name: &'static str) {
        self.left.insert(name);
    }

    /// Notes the answer to a call. Returns how many waiters of other processes saw it come and go before them, if they were in
    /// an order with it, and how often one of them has been bypassed at most.
    pub(crate) fn answered(
        &mut self,
        (ticket, process): (u64, usize),
        now: Duration,
        is_granted: bool,
        is_alive: &[bool],
    ) -> Result<(u64, u32), String> {
        let (answered, left): (Vec<_>, Vec<_>) =
            (self.asking.drain(..)).partition(|asking| asking.ticket == ticket);
        self.asking = left;
        for Asking { name, .. } in &answered {
            self.ended_at.insert((process, name), now);
        }
        let (mut in_order, mut most_bypassed) = (0, 0);
        for answered in answered.into_iter().filter(|_| is_granted) {
            let name = answered.name;
            // The lease of a multi-lock serves one guard, so it is nobody's turn.
            let before = if answered.order == Order::None {
                self.last_processes.remove(name)
            } else {
                self.last_processes.insert(name, process)
            };
            let is_new_turn = before != Some(process);
            if is_new_turn {
                self.turns_began.insert(name, now);
            }
            let turn_began = self.turns_began[name];
            let queued_since = self.queued_since.insert((process, name), now);
            let asked_at = answered.since.min(queued_since.unwrap_or_default());
            let was_left = self.left.remove(name);
            if answered.keeps {
                self.left.insert(name);
            }
            if answered.order == Order::None || was_left {
                continue;
            }
            let others = self.asking.iter_mut().filter(|asking| {
                asking.name == name
                    && asking.is_observed
                    && asking.order != Order::None
                    && asking.process != process
                    && is_alive[asking.process]
            });
            for asking in others {
                let ended_at = self.ended_at.get(&(asking.process, name));
                let since = asking.since.max(ended_at.copied().unwrap_or_default());
                let (is_before, what) = if is_new_turn {
                    (
                        since + SETTLED < asked_at,
                        format!("asked at {asked_at:?} and has got"),
                    )
                } else {
                    let is_over = now > turn_began + LONGEST_TURN;
                    let what = format!("has had since {turn_began:?} and gets again");
                    (since + SETTLED < turn_began && is_over, what)
                };
                asking.bypassed += u32::from(is_before);
                most_bypassed = asking.bypassed.max(most_bypassed);
                let most = if asking.order == Order::Strict {
                    0
                } else {
                    MOST_BYPASSES
                };
                if asking.bypassed > most {
                    return Err(format!(
                        "p{process} {what} {name}, before p{}, which has waited since {since:?}",
                        asking.process
                    ));
                }
                in_order += u64::from(is_new_turn && !is_before);
            }
        }
        Ok((in_order, most_bypassed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::End;

    const ALIVE: [bool; 3] = [true; 3];
    /// On one server.
    const OBSERVED: (bool, bool, bool) = (true, true, false);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn waits_for(what: What, names: &[&'static str]) -> Operation {
        Operation {
            at: Duration::ZERO,
            what,
            names: names.to_vec(),
            wait: None,
            cancelled_after: None,
            choice: None,
            way: 0,
            rounds: 1,
            forks: false,
            end: End::Release,
            pause: Duration::ZERO,
            seed: 0,
        }
    }

    /// A thread of p1 gets `a` after a multi-lock of p1, and p2 has waited since `since`.
    fn after_a_multi_lock(since: Duration) -> Result<(u64, u32), String> {
        let (multi, mutex) = (
            waits_for(What::Multi, &["a", "c"]),
            waits_for(What::Mutex, &["a"]),
        );
        let mut fairness = Fairness::default();
        let first = fairness.asks(&multi, 1, at(0), OBSERVED);
        let second = fairness.asks(&mutex, 1, at(2), OBSERVED);
        fairness.asks(&mutex, 2, since, OBSERVED);
        assert_eq!(
            fairness.answered((first, 1), at(10), true, &ALIVE),
            Ok((0, 0))
        );
        fairness.ended(1, &["a", "c"], at(11));
        fairness.answered((second, 1), at(11), true, &ALIVE)
    }

    #[test]
    fn a_mutex_after_a_multi_lock_of_its_process_has_the_place_of_its_own_request() {
        assert_eq!(after_a_multi_lock(at(4)), Ok((1, 0)));
        assert!(after_a_multi_lock(Duration::ZERO).is_err());
    }

    #[test]
    fn a_waiter_behind_a_lost_lease_has_the_place_of_a_request_after_the_loss() {
        let mutex = waits_for(What::Mutex, &["a"]);
        let comes_between = |is_lost| {
            let mut fairness = Fairness::default();
            let holder = fairness.asks(&mutex, 0, at(0), OBSERVED);
            let granted = fairness.answered((holder, 0), at(0), true, &ALIVE);
            assert_eq!(granted, Ok((0, 0)));
            fairness.asks(&mutex, 0, at(1), OBSERVED);
            let other = fairness.asks(&mutex, 2, at(5), OBSERVED);
            if is_lost {
                fairness.ended(0, &["a"], at(6));
            }
            fairness.answered((other, 2), at(7), true, &ALIVE)
        };
        assert_eq!(comes_between(true), Ok((1, 0)));
        assert!(comes_between(false).is_err());
    }

    /// Its key expires, and whoever asks first has it.
    #[test]
    fn nobody_hands_over_a_lock_that_a_min_hold_keeps() {
        let mutex = waits_for(What::Mutex, &["a"]);
        let comes_between = |has_min_hold| {
            let mut fairness = Fairness::default();
            let holder = fairness.asks(&mutex, 0, at(0), (true, true, has_min_hold));
            let granted = fairness.answered((holder, 0), at(0), true, &ALIVE);
            assert_eq!(granted, Ok((0, 0)));
            fairness.asks(&mutex, 1, at(1), OBSERVED);
            let other = fairness.asks(&mutex, 2, at(5), OBSERVED);
            fairness.answered((other, 2), at(7), true, &ALIVE)
        };
        assert_eq!(comes_between(true), Ok((0, 0)));
        assert!(comes_between(false).is_err());
    }

    #[test]
    fn a_writer_may_be_bypassed_a_few_times() {
        let (writer, reader) = (
            waits_for(What::Writer, &["rw"]),
            waits_for(What::Reader, &["rw"]),
        );
        let mut fairness = Fairness::default();
        fairness.asks(&writer, 0, at(0), OBSERVED);
        for time in 1..=u64::from(MOST_BYPASSES) + 1 {
            let process = 1 + time as usize % 2;
            let ticket = fairness.asks(&reader, process, at(10 * time), OBSERVED);
            let answered = fairness.answered((ticket, process), at(10 * time + 1), true, &ALIVE);
            assert_eq!(answered.is_err(), time > u64::from(MOST_BYPASSES));
        }
    }

    #[test]
    fn a_turn_of_a_process_ends_while_another_waits() {
        let mutex = waits_for(What::Mutex, &["a"]);
        let turn_of = |length| {
            let mut fairness = Fairness::default();
            let first = fairness.asks(&mutex, 1, at(0), OBSERVED);
            let second = fairness.asks(&mutex, 1, at(0), OBSERVED);
            fairness.asks(&mutex, 2, at(1), OBSERVED);
            assert_eq!(
                fairness.answered((first, 1), at(10), true, &ALIVE),
                Ok((1, 0))
            );
            fairness.answered((second, 1), at(10) + length, true, &ALIVE)
        };
        assert_eq!(turn_of(LONGEST_TURN), Ok((0, 0)));
        assert!(turn_of(LONGEST_TURN + Duration::from_millis(1)).is_err());
    }
}
