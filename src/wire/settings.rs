//! The settings that travel with the requests, and the names at which this process has lately met a client of another library.

use std::time::Duration;

use once_cell::race::OnceBox;

use crate::config::{LONGEST_QUANTUM, Settings};
use crate::name::LockKey;
use crate::owner;
use crate::sys::hash::HashMap;
use crate::sys::time::ms_rounded_up;
use crate::sys::{Arc, Mutex, Time};
use crate::wire::lifetime::WAITER_LIFE;
use crate::wire::script::Command;
use crate::wire::{LockKind, Reply, Request};

/// The gap that opens by itself once in a quantum, which is 50 ms unless the program sets another one. It is never longer than
/// the quantum. Many libraries try every 100 or 200 ms. About every fourth try of theirs meets such a gap, and the threads of
/// this crate lose less than a third of the time.
pub(crate) const GAP: Duration = Duration::from_millis(20);
/// For how long a name counts as shared after the last sight of the other client.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// The names that are remembered at most.
const MOST_NAMES: usize = 1_024;

/// The settings that travel with the calls.
#[derive(Clone, Debug)]
pub(crate) struct ScriptSettings {
    pub(crate) fence_memory: Duration,
    /// How long a contended mutex is left free once in `quantum`, for clients that poll. `None`: for [`GAP`], if such a
    /// client is about.
    poller_gap: Option<Duration>,
    pollers: Arc<Pollers>,
    quantum: Duration,
    /// Whether a PUBLISH counts all subscribers. In a cluster it counts those of one node.
    counts_subscribers: bool,
}

/// When a client of another library was last seen at each name. Such a client does not queue, but tries again and again. So
/// while it may be about, a contended mutex is now and then left free for a moment (`lua/gap.lua`).
///
/// Each process notes what it sees itself. One that has not met the client yet may take a free mutex in the gap of another
/// process, which costs the client one try. The client holds the mutex every few hundred milliseconds then, so the others
/// meet it soon.
///
/// Most processes never meet one, and have no map. So their requests lock no mutex to find that out.
#[derive(Debug, Default)]
pub(crate) struct Pollers(OnceBox<Mutex<HashMap<LockKey, Time>>>);

impl ScriptSettings {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            fence_memory: settings.fence_memory,
            poller_gap: settings.poller_gap,
            pollers: Arc::default(),
            quantum: settings.fixed_quantum().unwrap_or(LONGEST_QUANTUM),
            counts_subscribers: true,
        }
    }

    /// Returns the settings for the nodes of a cluster.
    pub(crate) fn of_a_cluster(self) -> Self {
        Self {
            counts_subscribers: false,
            ..self
        }
    }

    /// Notes from a reply that a client of another library holds the mutex of the request.
    pub(crate) fn note_holder(&self, request: &Request<'_>, reply: &Reply) {
        let (Request::Ask(lock, _), Reply::Held { holder, .. }) = (request, reply) else {
            return;
        };
        let is_mutex = lock.kind == LockKind::Mutex;
        if is_mutex && self.poller_gap.is_none() && !owner::is_ours(holder) {
            self.pollers.note(lock.target.first());
        }
    }

    /// Returns how long a mutex is left free once in a quantum.
    pub(crate) fn gap_at(&self, key: &LockKey) -> Duration {
        match self.poller_gap {
            // It is no longer than the quantum either.
            Some(gap) => gap,
            None if self.pollers.are_at(key) => GAP.min(self.quantum),
            None => Duration::ZERO,
        }
    }

    /// Adds the arguments of `queue.lua`. Each script that queues or wakes a waiter has them.
    pub(crate) fn of_waiters(&self, command: &mut Command) {
        command
            .arg(ms_rounded_up(WAITER_LIFE))
            .arg(u8::from(self.counts_subscribers));
    }

    /// Adds the arguments of `gap.lua`.
    pub(crate) fn gap(&self, command: &mut Command, gap: Duration) {
        command
            .arg(ms_rounded_up(gap))
            .arg(ms_rounded_up(self.quantum));
    }
}

impl Pollers {
    /// Notes that such a client has the mutex now.
    pub(crate) fn note(&self, key: &LockKey) {
        let now = Time::now();
        let mut seen = self.0.get_or_init(Box::default).lock();
        if seen.len() >= MOST_NAMES {
            seen.retain(|_, at| now < *at + REMEMBERED_FOR);
        }
        if seen.len() < MOST_NAMES || seen.contains_key(key) {
            seen.insert(key.clone(), now);
        }
    }

    /// Returns whether such a client may be about.
    pub(crate) fn are_at(&self, key: &LockKey) -> bool {
        let Some(seen) = self.0.get() else {
            return false;
        };
        let at = seen.lock().get(key).copied();
        at.is_some_and(|at| Time::now() < at + REMEMBERED_FOR)
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
        let seen = pollers.0.get().expect("one is about");
        assert_eq!(seen.lock().len(), 1);
    }
}
