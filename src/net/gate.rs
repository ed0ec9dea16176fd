//! The gate before a pool. It lets in as many threads as the pool has connections.
//!
//! | event | nobody waits | threads wait |
//! | --- | --- | --- |
//! | a thread comes, and a connection is free | it enters | cannot happen: a connection that comes back goes to a thread that waits |
//! | a thread comes, and none is free | it waits | it waits: a holder behind the other holders, any other thread behind all |
//! | a connection comes back | it is free | it belongs to the first thread, which is woken |
//! | the time or the call of a waiting thread is over | | it leaves the queue, unless a connection belongs to it already |
//!
//! A holder is a thread that releases or keeps a lock, or that was notified of a hand-over and would lose its turn. So a
//! thousand threads that ask for locks cannot keep a release waiting, and none of them passes one that came before.

use std::collections::BTreeMap;

use crate::net::deadline::Deadline;
use crate::stats::Recorder;
use crate::sys::{Arc, Condvar, Mutex, MutexGuard};

pub(crate) struct Gate {
    state: Mutex<GateState>,
}

struct GateState {
    free: usize,
    /// The threads that wait, the first one first.
    waiting: BTreeMap<Place, Arc<Condvar>>,
    arrivals: u64,
}

/// Whether the thread only asks for a lock, and so waits behind holders, and the number of its arrival.
type Place = (bool, u64);

/// The right to one connection. Its drop passes the right on.
pub(crate) struct Turn<'a> {
    gate: &'a Gate,
}

impl Gate {
    pub(crate) fn new(size: u32) -> Self {
        Self {
            state: Mutex::new(GateState {
                free: size as usize,
                waiting: BTreeMap::new(),
                arrivals: 0,
            }),
        }
    }

    /// Blocks until a connection belongs to this thread. Returns `None` if the time or the call was over before.
    pub(crate) fn enter(&self, wait: &mut Deadline<'_>, waits: &Recorder) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        if state.free > 0 {
            state.free -= 1;
            return Some(Turn { gate: self });
        }
        let begun = wait.now();
        let has_entered = stand_in_line(state, wait);
        waits.record(wait.now().since(begun));
        if !has_entered {
            return None;
        }
        Some(Turn { gate: self })
    }

    /// Takes all that are free, without a wait.
    pub(crate) fn enter_all_free(&self) -> Vec<Turn<'_>> {
        let free = std::mem::take(&mut self.state.lock().free);
        (0..free).map(|_| Turn { gate: self }).collect()
    }
}

/// Waits behind the threads that wait already. Returns false if the time or the call was over first.
fn stand_in_line(mut state: MutexGuard<'_, GateState>, wait: &mut Deadline<'_>) -> bool {
    let place = (!wait.has_priority, state.arrivals);
    let woken = Arc::new(Condvar::new());
    state.arrivals += 1;
    state.waiting.insert(place, Arc::clone(&woken));
    // The thread that gives this one a connection takes its place out of the queue.
    while state.waiting.contains_key(&place) {
        let Some(slice) = wait.next_look() else {
            state.waiting.remove(&place);
            return false;
        };
        state = woken.wait_for(state, slice);
    }
    true
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        match state.waiting.pop_first() {
            Some((_, woken)) => {
                drop(state);
                woken.notify_one();
            }
            None => state.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::sys::{AtomicBool, Ordering, Time};

    const SOON: Duration = Duration::from_secs(20);

    fn within(limit: Duration, has_priority: bool) -> Deadline<'static> {
        let mut deadline = Deadline::after(limit);
        deadline.has_priority = has_priority;
        deadline
    }

    fn enter(gate: &Gate, has_priority: bool) -> Turn<'_> {
        let turn = gate.enter(&mut within(SOON, has_priority), &Recorder::default());
        turn.expect("it comes free")
    }

    fn waiting(gate: &Gate) -> usize {
        gate.state.lock().waiting.len()
    }

    /// Threads come one by one, some of them with priority, while all turns are taken.
    #[test]
    fn holders_enter_first_and_all_others_in_the_order_of_their_arrival() {
        const COMING: [bool; 8] = [false, false, true, false, true, false, false, true];
        for size in [1, 3] {
            let gate = Gate::new(size);
            let held: Vec<_> = (0..size).map(|_| enter(&gate, false)).collect();
            let entered = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for (number, has_priority) in COMING.into_iter().enumerate() {
                    let (gate, entered) = (&gate, &entered);
                    scope.spawn(move || {
                        let turn = enter(gate, has_priority);
                        entered.lock().push(number);
                        drop(turn);
                    });
                    while waiting(gate) <= number {
                        thread::yield_now();
                    }
                }
                // With one turn, each thread enters after the one before it.
                drop(held);
            });
            let mut entered = std::mem::take(&mut *entered.lock());
            if size > 1 {
                entered.sort_unstable();
                assert!(entered.into_iter().eq(0..COMING.len()));
            } else {
                assert_eq!(entered, [2, 4, 7, 0, 1, 3, 5, 6]);
            }
            assert_eq!(gate.enter_all_free().len(), size as usize);
        }
    }

    /// The turn belongs to the thread that waits, from the moment at which it comes back.
    #[test]
    fn a_thread_that_comes_passes_none_that_waits() {
        let gate = Gate::new(1);
        let held = enter(&gate, false);
        thread::scope(|scope| {
            let first = scope.spawn(|| enter(&gate, false));
            while waiting(&gate) == 0 {
                thread::yield_now();
            }
            drop(held);
            let newcomer = gate.enter(&mut within(Duration::ZERO, true), &Recorder::default());
            assert!(newcomer.is_none());
            drop(first.join().expect("no panic"));
        });
        drop(enter(&gate, false));
    }

    #[test]
    fn a_wait_ends_at_its_time_limit_and_leaves_the_queue() {
        let gate = Gate::new(1);
        let held = enter(&gate, false);
        let short = Duration::from_millis(20);
        for has_priority in [false, true] {
            let begun = Time::now();
            let turn = gate.enter(&mut within(short, has_priority), &Recorder::default());
            assert!(turn.is_none() && begun.elapsed() >= short);
            assert_eq!(waiting(&gate), 0);
        }
        drop(held);
        drop(enter(&gate, false));
    }

    #[test]
    fn a_wait_ends_when_its_call_is_over() {
        let gate = Gate::new(1);
        let held = enter(&gate, false);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let wait = scope.spawn(|| {
                let is_over = || is_over.load(Ordering::SeqCst);
                let mut deadline = within(SOON * 10, false).ended_by(&is_over);
                gate.enter(&mut deadline, &Recorder::default()).is_none()
            });
            while waiting(&gate) == 0 {
                thread::yield_now();
            }
            is_over.store(true, Ordering::SeqCst);
            let begun = Time::now();
            assert!(wait.join().expect("no panic"), "it has a turn");
            assert!(begun.elapsed() < SOON, "it waits for its time limit");
        });
        drop(held);
        drop(enter(&gate, false));
    }
}
