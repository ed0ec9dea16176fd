//! One node of a quorum: whether it is asked, and since when it may vote.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | up | a connection fails, or nothing was heard since a request that is older than `node_timeout` | down |
//! | down | a probe fails | down; the pause before the next probe doubles, up to 5 s |
//! | down | a probe is answered | up |
//!
//! A caller does not wait for a node that is down. It skips the node, and a background thread probes it
//! ([`super::background`]).
//!
//! # Delayed restarts
//!
//! A node that restarts without its data may grant a lock that somebody holds. So it must not vote until every lease
//! has passed that it may have forgotten: for `restart_delay`, and a second more because the node counts its uptime in
//! whole seconds. The uptime comes from the node, by its own clock, which may be set forward. So the uptime that is
//! believed is at most the time since this process last heard from the process that ran before it.

use std::time::Duration;

use crate::clock::{Clock, SystemClock, Time};
use crate::error::{Failure, FailureKind, Outcome};
use crate::name::Target;
use crate::store::route::Route;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

/// The pause before the first probe of a node that is down. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two probes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How much the whole seconds of an uptime may hide.
const UPTIME_MARGIN: Duration = Duration::from_secs(1);
/// The largest number of owners that are kept to be released at a node. Further ones stay until their lease ends.
const MOST_LEFTOVERS: usize = 10_000;

pub(super) struct QuorumNode {
    pub(super) number: usize,
    pub(super) route: Route,
    is_up: AtomicBool,
    /// Whether a caller has stopped waiting for an answer of this node. No caller then waits for it alone, until it
    /// answers.
    is_late: AtomicBool,
    /// When the last answer came, in nanoseconds of the clock.
    heard_at: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why the node is down.
    failure: Option<Failure>,
    pause: Duration,
    server: Option<RunningServer>,
    leftovers: Vec<Leftover>,
}

/// The process of a server, from its start to its end.
struct RunningServer {
    run_id: String,
    may_vote_at: Time,
}

/// An owner that may be left at a node.
#[derive(Clone)]
pub(super) struct Leftover {
    pub(super) target: Target,
    pub(super) owner: Arc<str>,
    /// When the node must have dropped the key.
    pub(super) until: Time,
}

impl QuorumNode {
    pub(super) fn new(number: usize, route: Route) -> Self {
        Self {
            number,
            route,
            is_up: AtomicBool::new(true),
            is_late: AtomicBool::new(false),
            heard_at: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Returns the reason why the node is not asked at all.
    pub(super) fn check_up(&self) -> Result<(), Failure> {
        if self.is_up() {
            return Ok(());
        }
        let failure = self.state.lock().failure.clone();
        // It came up meanwhile.
        failure.map_or(Ok(()), |failure| {
            Err(Failure {
                outcome: Outcome::NotExecuted,
                ..failure
            })
        })
    }

    /// Returns the reason why the node must not vote yet.
    pub(super) fn check_may_vote(&self, now: Time) -> Result<(), Failure> {
        let at = self
            .state
            .lock()
            .server
            .as_ref()
            .map(|server| server.may_vote_at);
        match at {
            Some(at) if at > now => {
                let words = format!(
                    "{}: it has restarted, and may vote in {:.1?} (`restart_delay`)",
                    self.route.server.address,
                    at.since(now)
                );
                Err(Failure::plain(
                    FailureKind::Unavailable,
                    Outcome::NotExecuted,
                    words,
                ))
            }
            _ => Ok(()),
        }
    }

    /// Notes that the node has answered.
    pub(super) fn heard(&self) {
        let now = SystemClock.now().as_nanos();
        self.heard_at.fetch_max(now, Ordering::AcqRel);
        if self.is_late() {
            self.is_late.store(false, Ordering::Release);
        }
    }

    /// Returns whether the node has answered anything since then.
    pub(super) fn was_heard_since(&self, sent: Time) -> bool {
        self.heard_at.load(Ordering::Acquire) >= sent.as_nanos()
    }

    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Acquire)
    }

    pub(super) fn note_late(&self) {
        self.is_late.store(true, Ordering::Release);
    }

    /// Notes that the node is down. Returns the pause before the next probe, unless one is planned already.
    pub(super) fn note_down(&self, failure: &Failure) -> Option<Duration> {
        let mut state = self.state.lock();
        if !self.is_up() {
            return None;
        }
        state.failure = Some(failure.clone());
        state.pause = FIRST_PAUSE;
        self.is_up.store(false, Ordering::Release);
        Some(state.pause)
    }

    /// Notes that a probe failed. Returns the pause before the next one.
    pub(super) fn note_still_down(&self, failure: Failure) -> Duration {
        let mut state = self.state.lock();
        state.failure = Some(failure);
        state.pause = (state.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        state.pause
    }

    /// Notes that the node is up.
    pub(super) fn note_up(&self) {
        let mut state = self.state.lock();
        state.failure = None;
        self.is_late.store(false, Ordering::Release);
        self.is_up.store(true, Ordering::Release);
    }

    /// Notes which process of the server a new connection leads to. `uptime` is what the server says.
    pub(super) fn identified(&self, run_id: &str, uptime: Duration, restart_delay: Duration) {
        let now = SystemClock.now();
        let mut state = self.state.lock();
        let uptime = match &state.server {
            Some(server) if server.run_id == run_id => return,
            Some(_) => {
                let heard_at = Time::from_nanos(self.heard_at.load(Ordering::Acquire));
                uptime.min(now.since(heard_at))
            }
            None => uptime,
        };
        let delay = if restart_delay.is_zero() {
            Duration::ZERO
        } else {
            (restart_delay + UPTIME_MARGIN).saturating_sub(uptime)
        };
        state.server = Some(RunningServer {
            run_id: run_id.to_owned(),
            may_vote_at: now + delay,
        });
    }

    /// Returns whether this node was last seen to be the process with this `run_id`.
    pub(super) fn is(&self, run_id: &str) -> bool {
        let state = self.state.lock();
        state
            .server
            .as_ref()
            .is_some_and(|server| server.run_id == run_id)
    }

    /// Keeps an owner that must be released at this node. Returns whether it is the only one.
    pub(super) fn add_leftover(&self, leftover: Leftover) -> bool {
        let mut state = self.state.lock();
        if state.leftovers.len() >= MOST_LEFTOVERS {
            let now = SystemClock.now();
            state.leftovers.retain(|leftover| leftover.until > now);
        }
        if state.leftovers.len() < MOST_LEFTOVERS {
            state.leftovers.push(leftover);
        }
        state.leftovers.len() == 1
    }

    /// Takes out the owners that must still be released at this node.
    pub(super) fn take_leftovers(&self) -> Vec<Leftover> {
        let now = SystemClock.now();
        let mut leftovers = std::mem::take(&mut self.state.lock().leftovers);
        leftovers.retain(|leftover| leftover.until > now);
        leftovers
    }
}
