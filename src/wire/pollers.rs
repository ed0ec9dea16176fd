//! The names at which this process has lately met a client of another library. Such a client does not queue, but tries again
//! and again. So while it may be about, a contended mutex is now and then left free for a moment (`lua/gap.lua`).
//!
//! Each process notes what it sees itself. One that has not met the client yet may take a free mutex in the gap of another
//! process, which costs the client one try. The client holds the mutex every few hundred milliseconds then, so the others
//! meet it soon.

use std::time::Duration;

use crate::name::LockKey;
use crate::sys::hash::HashMap;
use crate::sys::{Mutex, Time};

/// The gap that opens by itself once in a quantum, which is 50 ms unless the program sets another one. It is never longer than
/// the quantum. Many libraries try every 100 or 200 ms. About every fourth try of theirs meets such a gap, and the threads of
/// this crate lose less than a third of the time.
pub(crate) const GAP: Duration = Duration::from_millis(20);
/// For how long a name counts as shared after the last sight of the other client.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// The names that are remembered at most.
const MOST_NAMES: usize = 1_024;

/// When a client of another library was last seen at a name.
#[derive(Debug, Default)]
pub(crate) struct Pollers(Mutex<HashMap<LockKey, Time>>);

impl Pollers {
    /// Notes that such a client has the mutex now.
    pub(crate) fn note(&self, key: &LockKey) {
        let now = Time::now();
        let mut seen = self.0.lock();
        if seen.len() >= MOST_NAMES {
            seen.retain(|_, at| now < *at + REMEMBERED_FOR);
        }
        if seen.len() < MOST_NAMES || seen.contains_key(key) {
            seen.insert(key.clone(), now);
        }
    }

    /// Returns whether such a client may be about.
    pub(crate) fn are_at(&self, key: &LockKey) -> bool {
        let seen = self.0.lock().get(key).copied();
        seen.is_some_and(|at| Time::now() < at + REMEMBERED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::test_machine::manual::ManualClock;
    use crate::sys::{Arc, Machine};

    #[test]
    fn names_are_forgotten_after_a_while_and_their_number_is_bounded() {
        let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 50)));
        let _entered = Machine::new(clock.clone()).enter();
        let key = |number: usize| LockKey::new("", &number.to_string()).expect("a name");
        let pollers = Pollers::default();
        for number in 0..=MOST_NAMES {
            pollers.note(&key(number));
        }
        assert!(pollers.are_at(&key(0)) && !pollers.are_at(&key(MOST_NAMES)));
        clock.advance(REMEMBERED_FOR);
        assert!(!pollers.are_at(&key(0)));
        pollers.note(&key(MOST_NAMES));
        assert!(pollers.are_at(&key(MOST_NAMES)));
        assert_eq!(pollers.0.lock().len(), 1);
    }
}
