//! One node of a quorum: whether it is asked, and since when it may vote.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | up | a request has no answer for `node_timeout`, and the node does not show that it is well | down |
//! | up | a connect fails | down, but open connections are used if the failure is transient: the server may have too many clients |
//! | down | a probe fails | down; the pause before the next probe doubles, up to 5 s, if a majority is up |
//! | down | a probe is answered | up |
//!
//! A caller skips a node that is down, except for open connections as the table says. The node's opener probes the node
//! ([`super::opener`]).
//!
//! One timeout alone is no proof, because this process or the node may have had no CPU time. A node that hangs has
//! answered no request that is as new as the one without an answer, and it has been silent for half of `node_timeout`.
//!
//! # Delayed restarts
//!
//! A node that restarts without its data may grant a lock that somebody holds. So it must not vote until every lease
//! has passed that it may have forgotten: for `restart_delay`, and a second more because the node counts its uptime in
//! whole seconds. Nor must it vote while its clock may be behind a fence that it has forgotten: for 2 s. The uptime
//! comes from the node, by its own clock, which may be set forward. So the uptime that is believed is at most the time
//! since this process last heard from the process that ran before it.
//!
//! A `restart_delay` protects the leases of a process only if no other process has a shorter one. So the processes
//! compare their values by a *note* at each node, the key `<prefix>leasehold:restart_delay`. Example: A has 60 s, and B
//! starts with 4 s.
//!
//! 1. A connects to a node, and sets the note to `60000` for ten times 60 s, before its first request.
//! 2. B connects, and finds the note of A. B does not ask the node, and does not touch the note. B cannot be built. If B
//!    was built without a check, it asks no node for a lock before a majority has answered and no node had such a note.
//! 3. After five times 60 s, A connects again before its next request to the node. That renews the note, or finds that
//!    the note has changed. So the note lives longer than each lease of A.
//!
//! A note of zero lives for ten minutes, and is renewed after five. A lease of such a process may be longer.
//!
//! A node without memory for a note is asked to renew and to release, but for no lock. Each second a process that asks
//! for one tries to make the note.

use std::time::Duration;

use crate::config::FENCE_LEAD;
use crate::error::{Failure, FailureKind, Outcome};
use crate::net::refusal::unavailable;
use crate::net::route::{NodeReport, Route};
use crate::sys::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Time};
use crate::wire::lifetime::drift;

/// The pause before the first probe of a node that is down. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two probes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How much the whole seconds of an uptime may hide.
const UPTIME_MARGIN: Duration = Duration::from_secs(1);
/// For how long no caller waits for a node alone after it was late. Then one waits again, because the node may
/// be well.
const LATE_FOR: Duration = Duration::from_secs(1);

pub(super) struct QuorumNode {
    pub(super) number: usize,
    pub(super) route: Route,
    is_up: AtomicBool,
    /// Whether its open connections are not used either while it is down.
    is_silent: AtomicBool,
    /// Until when no caller waits for this node alone, in nanoseconds of the clock, because it was late.
    late_until: AtomicU64,
    /// When the last answer was read, in nanoseconds of the clock.
    heard_at: AtomicU64,
    /// When the newest request was sent that the node has answered, in nanoseconds of the clock.
    answered_sent_at: AtomicU64,
    /// Since when the node may vote, in nanoseconds of the clock.
    may_vote_at: AtomicU64,
    /// Whether the note was there when it was last compared, or could be made.
    has_note: AtomicBool,
    /// When the note must be renewed and compared again, in nanoseconds of the clock.
    note_due_at: AtomicU64,
    state: Mutex<NodeState>,
}

#[derive(Default)]
struct NodeState {
    /// Why the node is down.
    failure: Option<Failure>,
    pause: Duration,
    /// The `run_id` of the server's process. `None` before the first connection.
    run_id: Option<String>,
    /// How many processes of the server this process has known.
    processes: u32,
}

impl QuorumNode {
    pub(super) fn new(number: usize, route: Route) -> Self {
        Self {
            number,
            route,
            is_up: AtomicBool::new(true),
            is_silent: AtomicBool::new(false),
            late_until: AtomicU64::new(0),
            heard_at: AtomicU64::new(0),
            answered_sent_at: AtomicU64::new(0),
            may_vote_at: AtomicU64::new(0),
            has_note: AtomicBool::new(false),
            note_due_at: AtomicU64::new(0),
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

    /// Returns whether connections that are open can be used.
    pub(super) fn may_answer(&self) -> bool {
        self.is_up() || !self.is_silent.load(Ordering::Acquire)
    }

    /// Returns the reason why the node is down.
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

    /// Returns the reason why the node is not asked while its opener connects.
    pub(super) fn being_opened(&self) -> Failure {
        let address = &self.route.server.address;
        unavailable(format!("{address}: it is being connected to"))
    }

    /// Returns the reason why the node must not vote yet.
    pub(super) fn check_may_vote(&self, now: Time) -> Result<(), Failure> {
        let at = Time::from_nanos(self.may_vote_at.load(Ordering::Acquire));
        if at <= now {
            return Ok(());
        }
        let begun = if self.state.lock().processes > 1 {
            "it has restarted"
        } else {
            "its server has started a moment ago"
        };
        let words = format!(
            "{}: {begun}, and may vote in {:.1?} (see `restart_delay`)",
            self.route.server.address,
            at.since(now)
        );
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::NotExecuted,
            words,
        ))
    }

    /// Returns the reason why the node must not grant a lock yet.
    pub(super) fn check_may_grant(&self, now: Time) -> Result<(), Failure> {
        if self.has_note() {
            return self.check_may_vote(now);
        }
        let words = format!(
            "{}: it has no memory for the note about `restart_delay`, and may not vote",
            self.route.server.address
        );
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::NotExecuted,
            words,
        ))
    }

    /// Notes that the node has answered a request that was sent at `sent`. A late mark ends if the answer is not late, or
    /// took no longer than `grace`.
    pub(super) fn heard(&self, sent: Time, now: Time, is_late: bool, grace: Duration) {
        self.heard_at.fetch_max(now.as_nanos(), Ordering::AcqRel);
        self.answered_sent_at
            .fetch_max(sent.as_nanos(), Ordering::AcqRel);
        let is_in_time = !is_late || now.since(sent) <= grace;
        if is_in_time && self.late_until.load(Ordering::Relaxed) > 0 {
            self.late_until.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether the node shows that it is well, although a request of that time has no answer: it has answered a
    /// request that is as new, or something was heard from it since `heard_since`.
    ///
    /// An answer to an older request may have waited here until it was read, so it shows little.
    pub(super) fn is_well(&self, sent: Time, heard_since: Time) -> bool {
        let has_answered = self.answered_sent_at.load(Ordering::Acquire) >= sent.as_nanos();
        has_answered || self.heard_at.load(Ordering::Acquire) >= heard_since.as_nanos()
    }

    pub(super) fn is_late(&self) -> bool {
        let until = self.late_until.load(Ordering::Relaxed);
        until > 0 && until > Time::now().as_nanos()
    }

    pub(super) fn note_late(&self) {
        let until = Time::now() + LATE_FOR;
        self.late_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Notes that the node is down; with `is_silent` also on its open connections. Returns the pause before the next probe,
    /// unless one is planned already.
    pub(super) fn note_down(&self, failure: &Failure, is_silent: bool) -> Option<Duration> {
        let mut state = self.state.lock();
        if self.is_up() || is_silent {
            self.is_silent.store(is_silent, Ordering::Release);
        }
        if !self.is_up() {
            return None;
        }
        state.failure = Some(failure.clone());
        state.pause = FIRST_PAUSE;
        self.is_up.store(false, Ordering::Release);
        Some(state.pause)
    }

    /// Notes that a probe failed. Returns the pause before the next one, which is no longer than the last if the opener
    /// `hurries`.
    pub(super) fn note_still_down(&self, failure: Failure, hurries: bool) -> Duration {
        let mut state = self.state.lock();
        state.failure = Some(failure);
        if !hurries {
            state.pause = (state.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
        state.pause
    }

    /// Notes that the node is up. Returns whether it was down.
    pub(super) fn note_up(&self) -> bool {
        let mut state = self.state.lock();
        if self.is_up() {
            return false;
        }
        state.failure = None;
        self.late_until.store(0, Ordering::Relaxed);
        self.is_up.store(true, Ordering::Release);
        true
    }

    /// Notes which process of the server a new connection leads to. `uptime` is what the server says. Returns the number of
    /// the process: another one for each that was started after this.
    pub(super) fn identified(
        &self,
        run_id: &str,
        uptime: Duration,
        restart_delay: Duration,
    ) -> u32 {
        let now = Time::now();
        let mut state = self.state.lock();
        let uptime = match &state.run_id {
            Some(known) if known == run_id => return state.processes,
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
        state.processes += 1;
        let at = now + delay;
        self.may_vote_at.store(at.as_nanos(), Ordering::Release);
        state.processes
    }

    /// Notes that the note was found not to differ. Without memory the node may have none. It is due again at this time.
    pub(super) fn compared(&self, has_note: bool, due_at: Time) {
        self.has_note.store(has_note, Ordering::Release);
        self.note_due_at.store(due_at.as_nanos(), Ordering::Release);
    }

    pub(super) fn has_note(&self) -> bool {
        self.has_note.load(Ordering::Acquire)
    }

    /// Returns when the note must be renewed and compared again.
    pub(super) fn note_due_at(&self) -> Time {
        Time::from_nanos(self.note_due_at.load(Ordering::Acquire))
    }

    /// Returns whether this node was last seen to be the process with this `run_id`.
    pub(super) fn is(&self, run_id: &str) -> bool {
        let state = self.state.lock();
        state.run_id.as_deref() == Some(run_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Server, Settings};
    use crate::net::route::route;

    fn node() -> QuorumNode {
        let settings = Settings::default();
        let server = Server::new("redis://h/", &settings).expect("a URL");
        QuorumNode::new(0, route(server, &settings))
    }

    #[test]
    fn a_restarted_node_waits_until_its_clock_has_passed_its_fences() {
        let node = node();
        let delay = Duration::from_millis(10);
        node.identified("before", Duration::from_secs(100), delay);
        assert!(node.check_may_vote(Time::now()).is_ok());
        let restarted = Time::now();
        node.heard(restarted, restarted, false, delay);
        node.identified("after", Duration::from_secs(100), delay);
        assert!(node.check_may_vote(restarted + FENCE_LEAD).is_err());
        let later = Time::now() + FENCE_LEAD + UPTIME_MARGIN;
        assert!(node.check_may_vote(later).is_ok());
    }

    #[test]
    fn an_old_answer_that_is_read_late_does_not_show_that_a_node_is_well() {
        let node = node();
        let begin = Time::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let grace = Duration::from_millis(50);
        // The answer to a release has come before the next request, and is read after it.
        node.heard(at(0), at(11), true, grace);
        let is_well = |node: &QuorumNode, now: u64| node.is_well(at(10), at(now - 100));
        assert!(is_well(&node, 100), "it was heard a moment ago");
        assert!(!is_well(&node, 210));
        node.heard(at(10), at(211), true, grace);
        assert!(is_well(&node, 400), "it answers as new a request");
    }

    #[test]
    fn a_late_mark_ends_with_an_answer_that_came_soon() {
        let node = node();
        let (sent, grace) = (Time::now(), Duration::from_millis(50));
        node.note_late();
        node.heard(sent, sent + grace * 2, true, grace);
        assert!(node.is_late());
        node.heard(sent, sent + grace, true, grace);
        assert!(!node.is_late());
    }
}
