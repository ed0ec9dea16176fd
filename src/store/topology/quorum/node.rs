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
//! whole seconds. Nor must it vote while its clock may be behind a fence that it has forgotten: for 2 s. The uptime
//! comes from the node, by its own clock, which may be set forward. So the uptime that is believed is at most the time
//! since this process last heard from the process that ran before it.

use std::time::Duration;

use crate::clock::{Clock, SystemClock, Time};
use crate::config::FENCE_LEAD;
use crate::core::lease::drift;
use crate::error::{Failure, FailureKind, Outcome};
use crate::message::LockKind;
use crate::name::Target;
use crate::store::NodeReport;
use crate::store::server::route::Route;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

/// The pause before the first probe of a node that is down. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two probes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The pause before a release without an answer is repeated.
const REPEATED_AFTER: Duration = Duration::from_secs(1);
/// The first [`Orphan::repeated_after`]. Each further pause is twice as long.
pub(super) const FIRST_REPETITION: Duration = Duration::from_secs(1);
/// How much the whole seconds of an uptime may hide.
const UPTIME_MARGIN: Duration = Duration::from_secs(1);
/// For how long no caller waits for a node alone after it was late. Then one waits again, because the node may
/// be well.
const LATE_FOR: Duration = Duration::from_secs(1);
/// The largest number of owners that are kept to be released at a node. Further ones stay until their lease ends.
const MOST_ORPHANS: usize = 10_000;
/// The shortest pause between two searches of the full list for owners whose time is over.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct QuorumNode {
    pub(super) number: usize,
    pub(super) route: Route,
    is_up: AtomicBool,
    /// Until when no caller waits for this node alone, in nanoseconds of the clock, because it was late.
    late_until: AtomicU64,
    /// When the last answer came, in nanoseconds of the clock.
    heard_at: AtomicU64,
    /// Since when the node may vote, in nanoseconds of the clock.
    may_vote_at: AtomicU64,
    state: Mutex<NodeState>,
}

#[derive(Default)]
struct NodeState {
    /// Why the node is down.
    failure: Option<Failure>,
    pause: Duration,
    /// The `run_id` of the server's process. `None` before the first connection.
    run_id: Option<String>,
    orphans: Vec<Orphan>,
    /// When the full list may be searched again for owners whose time is over.
    search_at: Option<Time>,
    /// When a job is planned that releases them.
    orphans_planned_at: Option<Time>,
}

/// An owner that must not stay at a node, because no lease relies on it there.
#[derive(Clone)]
pub(super) struct Orphan {
    pub(super) kind: LockKind,
    pub(super) target: Target,
    pub(super) owner: Arc<str>,
    pub(super) units: u32,
    /// Until when the node may have the owner.
    pub(super) until: Time,
    /// The pause before the release is repeated although the node has answered it. A request for the lock, sent on a
    /// connection that has ended, may reach the node after the release. `None` if there is no such request.
    pub(super) repeated_after: Option<Duration>,
    /// When the release is due.
    pub(super) due: Time,
}

impl Orphan {
    /// Returns the orphan if its release must be repeated, as `is_done` says that the node has executed it.
    pub(super) fn again(mut self, is_done: bool, now: Time) -> Option<Self> {
        let pause = match (&mut self.repeated_after, is_done) {
            (_, false) => REPEATED_AFTER,
            (None, true) => return None,
            (Some(after), true) => {
                let pause = *after;
                *after *= 2;
                pause
            }
        };
        self.due = now + pause;
        (self.due < self.until).then_some(self)
    }
}

impl QuorumNode {
    pub(super) fn new(number: usize, route: Route) -> Self {
        Self {
            number,
            route,
            is_up: AtomicBool::new(true),
            late_until: AtomicU64::new(0),
            heard_at: AtomicU64::new(0),
            may_vote_at: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// Returns a report of this node.
    pub(super) fn report(&self, failure: Option<Failure>) -> NodeReport {
        NodeReport {
            place: self.number,
            node: Some(Arc::clone(&self.route.server.address)),
            failure,
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
        let at = Time::from_nanos(self.may_vote_at.load(Ordering::Acquire));
        if at <= now {
            return Ok(());
        }
        let words = format!(
            "{}: it has restarted, and may vote in {:.1?} (see `restart_delay`)",
            self.route.server.address,
            at.since(now)
        );
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::NotExecuted,
            words,
        ))
    }

    /// Notes that the node has answered. `is_late`: nobody waited for this answer any more.
    pub(super) fn heard(&self, now: Time, is_late: bool) {
        self.heard_at.fetch_max(now.as_nanos(), Ordering::AcqRel);
        if !is_late && self.late_until.load(Ordering::Relaxed) > 0 {
            self.late_until.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether the node has answered anything since then.
    pub(super) fn was_heard_since(&self, sent: Time) -> bool {
        self.heard_at.load(Ordering::Acquire) >= sent.as_nanos()
    }

    pub(super) fn is_late(&self) -> bool {
        let until = self.late_until.load(Ordering::Relaxed);
        until > 0 && until > SystemClock.now().as_nanos()
    }

    pub(super) fn note_late(&self) {
        let until = SystemClock.now() + LATE_FOR;
        self.late_until.store(until.as_nanos(), Ordering::Relaxed);
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
        self.late_until.store(0, Ordering::Relaxed);
        self.is_up.store(true, Ordering::Release);
    }

    /// Notes which process of the server a new connection leads to. `uptime` is what the server says.
    pub(super) fn identified(&self, run_id: &str, uptime: Duration, restart_delay: Duration) {
        let now = SystemClock.now();
        let mut state = self.state.lock();
        let uptime = match &state.run_id {
            Some(known) if known == run_id => return,
            Some(_) => {
                let heard_at = Time::from_nanos(self.heard_at.load(Ordering::Acquire));
                uptime.min(now.since(heard_at))
            }
            None => uptime,
        };
        let delay = if restart_delay.is_zero() {
            Duration::ZERO
        } else {
            // An extension asks for a little more than the delay, because its holder counts less.
            let longest = (restart_delay + drift(restart_delay) * 2).max(FENCE_LEAD);
            (longest + UPTIME_MARGIN).saturating_sub(uptime)
        };
        state.run_id = Some(run_id.to_owned());
        let at = now + delay;
        self.may_vote_at.store(at.as_nanos(), Ordering::Release);
    }

    /// Returns whether this node was last seen to be the process with this `run_id`.
    pub(super) fn is(&self, run_id: &str) -> bool {
        let state = self.state.lock();
        state.run_id.as_deref() == Some(run_id)
    }

    /// Keeps an owner that must be released at this node.
    pub(super) fn add_orphan(&self, orphan: Orphan) {
        let mut state = self.state.lock();
        if state.orphans.len() >= MOST_ORPHANS {
            let now = SystemClock.now();
            if state.search_at.is_none_or(|at| at <= now) {
                state.search_at = Some(now + SEARCH_PAUSE);
                state.orphans.retain(|orphan| orphan.until > now);
            }
        }
        if state.orphans.len() < MOST_ORPHANS {
            state.orphans.push(orphan);
        }
    }

    /// Returns the pause after which the caller must release orphans, if no job is planned for then. A node that is down
    /// releases them after the probe that finds it up.
    pub(super) fn plan_orphans(&self, now: Time) -> Option<Duration> {
        let mut state = self.state.lock();
        let due = state.orphans.iter().map(|orphan| orphan.due).min()?;
        let is_planned = state.orphans_planned_at.is_some_and(|at| at <= due);
        if !self.is_up() || is_planned {
            return None;
        }
        state.orphans_planned_at = Some(due);
        Some(due.since(now))
    }

    /// Takes out the owners whose release at this node is due.
    pub(super) fn take_orphans(&self, now: Time) -> Vec<Orphan> {
        let mut state = self.state.lock();
        state.orphans_planned_at = None;
        let orphans = std::mem::take(&mut state.orphans).into_iter();
        let (due, later) = orphans
            .filter(|orphan| orphan.until > now)
            .partition(|orphan| orphan.due <= now);
        state.orphans = later;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Server, Settings};
    use crate::store::server::route::route;

    #[test]
    fn a_release_is_repeated_while_a_request_for_the_lock_may_come() {
        let at = |secs| Time::from_nanos(0) + Duration::from_secs(secs);
        let orphan = |repeated_after: Option<Duration>| Orphan {
            kind: LockKind::Mutex,
            target: crate::name::LockKey::new("", "n").expect("a name").into(),
            owner: "o".into(),
            units: 1,
            until: at(20),
            repeated_after,
            due: at(0),
        };
        // Without an answer it is repeated in any case, and never after its time.
        for after in [None, Some(FIRST_REPETITION)] {
            let again = orphan(after).again(false, at(5)).expect("it is repeated");
            assert_eq!(again.due, at(5) + REPEATED_AFTER);
            assert!(orphan(after).again(false, at(20)).is_none());
        }
        assert!(orphan(None).again(true, at(5)).is_none(), "it is done");
        let mut repeated = orphan(Some(FIRST_REPETITION));
        for due in [1, 3, 7, 15] {
            let now = repeated.due;
            repeated = repeated.again(true, now).expect("a request may come");
            assert_eq!(repeated.due, at(due));
        }
        assert!(repeated.again(true, at(15)).is_none(), "its time is over");
    }

    #[test]
    fn only_releases_that_are_due_are_taken() {
        let settings = Settings::default();
        let server = Server::new("redis://h/", &settings).expect("a URL");
        let node = QuorumNode::new(0, route(server, &settings));
        let now = SystemClock.now();
        let orphan = |due: Time, until: Time| Orphan {
            kind: LockKind::Mutex,
            target: crate::name::LockKey::new("", "n").expect("a name").into(),
            owner: "o".into(),
            units: 1,
            until,
            repeated_after: None,
            due,
        };
        let (soon, later) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(node.plan_orphans(now), None, "there is none");
        node.add_orphan(orphan(now + soon, now + later));
        assert_eq!(node.plan_orphans(now), Some(soon));
        assert_eq!(node.plan_orphans(now), None, "it is planned");
        node.add_orphan(orphan(now, now + later));
        node.add_orphan(orphan(now, now));
        assert_eq!(node.plan_orphans(now), Some(Duration::ZERO));
        assert_eq!(node.take_orphans(now).len(), 1, "the time of one is over");
        assert_eq!(node.plan_orphans(now), Some(soon));
        assert_eq!(node.take_orphans(now + soon).len(), 1);
        assert!(node.take_orphans(now + later).is_empty());
    }

    #[test]
    fn a_restarted_node_waits_until_its_clock_has_passed_its_fences() {
        let settings = Settings::default();
        let server = Server::new("redis://h/", &settings).expect("a URL");
        let node = QuorumNode::new(0, route(server, &settings));
        let delay = Duration::from_millis(10);
        node.identified("before", Duration::from_secs(100), delay);
        assert!(node.check_may_vote(SystemClock.now()).is_ok());
        let restarted = SystemClock.now();
        node.heard(restarted, false);
        node.identified("after", Duration::from_secs(100), delay);
        assert!(node.check_may_vote(restarted + FENCE_LEAD).is_err());
        let later = SystemClock.now() + FENCE_LEAD + UPTIME_MARGIN;
        assert!(node.check_may_vote(later).is_ok());
    }
}
