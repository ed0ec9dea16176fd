//! One node of a quorum: whether it is asked, since when it may vote, and the connections that are made to it in the
//! background.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | up | a caller finds its connection closed, and no spare one | up; a thread connects, for one caller after another |
//! | up | it has connected | up; the connection is a spare |
//! | up | a request has no answer for `node_timeout`, and the node does not show that it is well | down |
//! | up | a connect fails | down, but open connections are used if the failure is transient: the server may have too many clients |
//! | down | the pause is over: a quarter of the time for which it has been down, from 50 ms to 1 s | down; a thread probes the node: it connects |
//! | down | a caller lacks a majority, and the last probe failed 50 ms ago or earlier | the same |
//! | down | the probe fails | down; the next pause begins |
//! | down | the probe succeeds | up. The other nodes that are down are probed at once |
//!
//! A caller skips a node that is down, except for open connections as the table says. It waits for a connect only if it
//! cannot go on without ([`super::connection`]), and never for a probe: without a majority it fails at once, with the
//! failures of the last probes. At most one thread connects to a node. It lives only for that, and the thread of the pool
//! begins the probes.
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

use redis::Value;

use crate::config::FENCE_LEAD;
use crate::error::{Chain, Failure, FailureKind, Outcome};
use crate::logging;
use crate::net::refusal::unavailable;
use crate::net::route::{NodeReport, Route};
use crate::panics::survived;
use crate::quorum::QuorumState;
use crate::quorum::connection::{Connection, Recipients};
use crate::sys::random::jittered;
use crate::sys::time::ms_rounded_up;
use crate::sys::{Arc, Machine, Mutex, Time, thread};
use crate::wire::lifetime::drift;
use crate::wire::{self, Command};

/// The shortest pause between two probes of a node that is down.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two probes.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How much the whole seconds of an uptime may hide.
const UPTIME_MARGIN: Duration = Duration::from_secs(1);

/// The note about the restart delay is renewed after this number of restart delays.
const NOTE_RENEWED_AFTER: u32 = 5;
/// The same time for a note of zero.
const ZERO_RENEWED_AFTER: Duration = Duration::from_secs(300);
/// A node keeps the note for this many times the time after which it is renewed.
const NOTE_KEPT_FOR: u32 = 2;
/// The time after which it is tried again to make a note at a node that had no memory for one.
const NOTE_TRIED_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Node {
    pub(super) number: usize,
    pub(super) route: Route,
    state: Mutex<NodeState>,
}

pub(super) struct NodeState {
    /// `None` while the node is up.
    down: Option<Down>,
    /// Since when a thread connects to the node.
    connecting_since: Option<Time>,
    spares: Vec<Connection>,
    /// When the last answer was read.
    heard_at: Time,
    /// When the newest request was sent that the node has answered.
    answered_sent_at: Time,
    /// Since when the node may vote.
    may_vote_at: Time,
    /// Whether the note was there when it was last compared, or could be made.
    has_note: bool,
    /// When the note must be renewed and compared again.
    note_due_at: Time,
    /// The `run_id` of the server's process. `None` before the first connection.
    run_id: Option<String>,
    /// How many processes of the server this process has known.
    processes: u32,
}

/// A node that is down.
struct Down {
    failure: Failure,
    since: Time,
    /// When it was noted last.
    failed_at: Time,
    /// Whether its open connections are not used either.
    is_silent: bool,
    /// When the next probe is planned. An earlier plan is void.
    probe_at: Time,
}

/// The next step of a caller that wants to ask a node.
pub(super) enum Admission {
    /// It can ask on its open connection.
    Ask,
    /// Its connection is closed, and here is another one.
    Spare(Box<Connection>),
    /// Its connection is closed, and somebody must connect.
    Connect,
    /// It must close its connection: a new one notes the restart delay again.
    Renew,
}

impl Node {
    pub(super) fn new(number: usize, route: Route) -> Self {
        let never = Time::from_nanos(0);
        Self {
            number,
            route,
            state: Mutex::new(NodeState {
                down: None,
                connecting_since: None,
                spares: Vec::new(),
                heard_at: never,
                answered_sent_at: never,
                may_vote_at: never,
                has_note: false,
                note_due_at: never,
                run_id: None,
                processes: 0,
            }),
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

    /// Returns what a caller does that wants to ask the node on this connection.
    ///
    /// # Errors
    ///
    /// Returns the reason why it must not ask: the node is down, or must not vote.
    pub(super) fn admit(
        &self,
        connection: &Connection,
        recipients: Recipients,
    ) -> Result<Admission, Failure> {
        let (mut state, now) = (self.state.lock(), Time::now());
        let is_open = connection.is_open();
        if let Some(down) = state
            .down
            .as_ref()
            .filter(|down| down.is_silent || !is_open)
        {
            return Err(down.failure.clone().with(Outcome::NotExecuted));
        }
        if !is_open {
            let spare = state.spares.pop();
            return Ok(spare.map_or(Admission::Connect, |spare| {
                Admission::Spare(Box::new(spare))
            }));
        }
        // A node that is down may accept no connection for that.
        if connection.is_idle() && state.down.is_none() && now >= state.note_due_at {
            return Ok(Admission::Renew);
        }
        // Only a new connection shows that the node has restarted.
        match recipients {
            Recipients::Voters => self.check_may_vote(&state, now)?,
            Recipients::Granters => self.check_may_grant(&state, now)?,
            Recipients::All | Recipients::Rest => {}
        }
        Ok(Admission::Ask)
    }

    /// Returns whether the node can be asked to join, as far as this process knows.
    pub(super) fn may_join(&self, now: Time) -> bool {
        let state = self.state.lock();
        state.down.is_none() && self.check_may_grant(&state, now).is_ok()
    }

    /// Returns whether the node is down because it does not answer.
    pub(super) fn is_silent(&self) -> bool {
        let state = self.state.lock();
        state.down.as_ref().is_some_and(|down| down.is_silent)
    }

    /// Returns the reason why the node is down.
    pub(super) fn check_up(&self) -> Result<(), Failure> {
        match &self.state.lock().down {
            None => Ok(()),
            Some(down) => Err(down.failure.clone().with(Outcome::NotExecuted)),
        }
    }

    /// Returns the reason why the node is not asked while it is being connected to.
    pub(super) fn being_opened(&self) -> Failure {
        self.refuses("it is being connected to")
    }

    fn refuses(&self, why: impl std::fmt::Display) -> Failure {
        unavailable(format!("{}: {why}", self.route.server.address))
    }

    /// Returns the reason why the node must not vote yet.
    fn check_may_vote(&self, state: &NodeState, now: Time) -> Result<(), Failure> {
        if state.may_vote_at <= now {
            return Ok(());
        }
        let begun = if state.processes > 1 {
            "it has restarted"
        } else {
            "its server has started a moment ago"
        };
        let left = state.may_vote_at.since(now);
        Err(self.refuses(format_args!(
            "{begun}, and may vote in {left:.1?} (see `restart_delay`)"
        )))
    }

    /// Returns the reason why the node must not grant a lock yet.
    fn check_may_grant(&self, state: &NodeState, now: Time) -> Result<(), Failure> {
        if state.has_note {
            return self.check_may_vote(state, now);
        }
        Err(self.refuses("it has no memory for the note about `restart_delay`, and may not vote"))
    }

    /// Notes that the node has answered a request that was sent at `sent`.
    pub(super) fn heard(&self, sent: Time, now: Time) {
        let mut state = self.state.lock();
        state.heard_at = state.heard_at.max(now);
        state.answered_sent_at = state.answered_sent_at.max(sent);
    }

    /// Returns whether the node shows that it is well, although a request of that time has no answer: it has answered a
    /// request that is as new, or something was heard from it since `heard_since`.
    ///
    /// An answer to an older request may have waited here until it was read, so it shows little.
    pub(super) fn is_well(&self, sent: Time, heard_since: Time) -> bool {
        let state = self.state.lock();
        state.answered_sent_at >= sent || state.heard_at >= heard_since
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
            Some(_) => uptime.min(now.since(state.heard_at)),
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
        state.may_vote_at = now + delay;
        state.processes
    }

    /// Returns whether the note was compared, or the node is down.
    pub(super) fn is_checked(&self) -> bool {
        let state = self.state.lock();
        state.has_note || state.down.is_some()
    }

    /// Returns since when a thread connects to the node.
    pub(super) fn connecting_since(&self) -> Option<Time> {
        self.state.lock().connecting_since
    }

    /// Closes the spare connections that nobody has used for `idle`.
    pub(super) fn close_idle(&self, idle: Duration) {
        let is_used = |spare: &Connection| spare.used.elapsed() < idle;
        self.state.lock().spares.retain(is_used);
    }
}

impl QuorumState {
    /// Starts a thread that connects to a node once, if none does, and the state of the node is such.
    pub(super) fn begin_to_connect(&self, number: usize, is_due: impl FnOnce(&NodeState) -> bool) {
        {
            let mut node = self.nodes[number].state.lock();
            if node.connecting_since.is_some() || !is_due(&node) {
                return;
            }
            node.connecting_since = Some(Time::now());
        }
        let weak = self.weak_self.clone();
        let connect = move || {
            if let Some(state) = weak.upgrade() {
                let opened = survived(|| Connection::open(&state, number));
                let opened = opened.unwrap_or_else(|| Err(unavailable("the connect panicked")));
                state.connected(number, opened.map_err(Failure::of_connecting));
            }
        };
        if let Err(error) = thread::spawn("leasehold-connect", connect) {
            let words = format!("no thread could be started to connect: {error}");
            self.connected(number, Err(unavailable(words)));
        }
    }

    /// Begins to probe the nodes that are down, because a caller lacks a majority. It does not wait for that.
    pub(super) fn probe_all(&self) {
        for node in &self.nodes {
            self.begin_to_connect(node.number, |node| {
                let down = node.down.as_ref();
                down.is_some_and(|down| down.failed_at.elapsed() >= SHORTEST_PAUSE)
            });
        }
    }

    /// Notes how a connect to a node ended.
    fn connected(&self, number: usize, opened: Result<Connection, Failure>) {
        let mut node = self.nodes[number].state.lock();
        node.connecting_since = None;
        match opened {
            Ok(spare) => {
                node.spares.push(spare);
                let was_down = node.down.take().is_some();
                drop(node);
                if was_down {
                    let address = &self.nodes[number].route.server.address;
                    logging::info!("{address} is asked again");
                    for other in &self.nodes {
                        self.begin_to_connect(other.number, |node| node.down.is_some());
                    }
                }
            }
            Err(failure) => {
                if let Some(down) = &mut node.down {
                    (down.failure, down.failed_at) = (failure.clone(), Time::now());
                    self.plan_probe(number, down);
                }
                drop(node);
                self.note_down(number, &failure, !failure.is_transient());
            }
        }
        *self.connects.lock() += 1;
        self.connected.notify_all();
    }

    /// Notes that a node is down; with `is_silent` also on its open connections. Plans the first probe.
    pub(super) fn note_down(&self, number: usize, failure: &Failure, is_silent: bool) {
        let mut node = self.nodes[number].state.lock();
        if let Some(down) = &mut node.down {
            down.is_silent |= is_silent;
            return;
        }
        let now = Time::now();
        let down = node.down.insert(Down {
            failure: failure.clone(),
            since: now,
            failed_at: now,
            is_silent,
            probe_at: now,
        });
        self.plan_probe(number, down);
        drop(node);
        let address = &self.nodes[number].route.server.address;
        let why = Chain(&*failure.cause);
        logging::warning!("{address} is not asked for a while: {why}");
    }

    /// Plans the next probe of a node that is down, instead of any that was planned.
    fn plan_probe(&self, number: usize, down: &mut Down) {
        let pause = (down.since.elapsed() / 4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        let pause = jittered(&Machine::here(), pause);
        let at = Time::now() + pause;
        down.probe_at = at;
        let weak = self.weak_self.clone();
        self.background.after(pause, move || {
            if let Some(state) = weak.upgrade() {
                state.begin_to_connect(number, |node| {
                    node.down.as_ref().is_some_and(|down| down.probe_at == at)
                });
            }
        });
    }

    /// Reads the report of a server about itself on a new connection. Returns the number of its process.
    pub(super) fn identify(&self, number: usize, report: &str) -> Result<u32, Failure> {
        let field = |name: &str| {
            let mut fields = report.lines().filter_map(|line| line.split_once(':'));
            fields.find_map(|(field, value)| (field == name).then(|| value.trim()))
        };
        let node = &self.nodes[number];
        let address = &node.route.server.address;
        let refused = |kind, words: String| Err(Failure::plain(kind, Outcome::NotExecuted, words));
        if field("role") != Some("master") {
            return refused(
                FailureKind::Unavailable,
                format!("{address}: it is not a master"),
            );
        }
        // Of a server whose clock was set back since its start, the number is negative.
        let uptime = field("uptime_in_seconds").and_then(|seconds| seconds.parse::<i64>().ok());
        let uptime = uptime.map(|seconds| u64::try_from(seconds).unwrap_or(0));
        let Some((run_id, uptime)) = field("run_id").zip(uptime) else {
            let words = format!("{address}: INFO does not tell its run_id and its uptime");
            return refused(FailureKind::Protocol, words);
        };
        // Two nodes may connect at the same time.
        let _one_at_a_time = self.identifying.lock();
        let is_same = |other: &&Node| {
            other.number != number && other.state.lock().run_id.as_deref() == Some(run_id)
        };
        if let Some(same) = self.nodes.iter().find(is_same) {
            let words = format!("{address} and {} are one server", same.route.server.address);
            return refused(FailureKind::Config("nodes"), words);
        }
        Ok(node.identified(run_id, Duration::from_secs(uptime), self.restart_delay))
    }

    /// Returns the command that notes the restart delay at a node: see the section on it at the top.
    pub(super) fn note_restart_delay(&self) -> Command {
        let kept = self.note_renewed_after() * NOTE_KEPT_FOR;
        wire::quorum::note_restart_delay(&self.delay_key, self.restart_delay, kept)
    }

    /// Compares the note of a node with the restart delay of this process.
    pub(super) fn compare_restart_delay(
        &self,
        number: usize,
        answer: Value,
    ) -> Result<(), Failure> {
        let node = &self.nodes[number];
        let compared = |has_note, after| {
            let mut state = node.state.lock();
            (state.has_note, state.note_due_at) = (has_note, Time::now() + after);
        };
        let noted_ms: Option<u64> = match node.route.accepted(answer)? {
            Value::BulkString(ms) => String::from_utf8_lossy(&ms).parse().ok(),
            Value::Nil => {
                compared(false, NOTE_TRIED_AFTER);
                return Ok(());
            }
            _ => None,
        };
        if noted_ms == Some(ms_rounded_up(self.restart_delay)) {
            compared(true, self.note_renewed_after());
            return Ok(());
        }
        let others = noted_ms.map_or("another value".to_owned(), |noted_ms| {
            format!("{:?}", Duration::from_millis(noted_ms))
        });
        let (address, own) = (&node.route.server.address, self.restart_delay);
        let words = format!(
            "{address}: other clients use {others}, and this one uses {own:?}; all clients of a quorum need one value; \
             to change it, stop them all, wait for the longer time, delete the key {:?} at each node, and start them",
            self.delay_key
        );
        let kind = FailureKind::Config("restart_delay");
        Err(Failure::plain(kind, Outcome::NotExecuted, words))
    }

    fn note_renewed_after(&self) -> Duration {
        if self.restart_delay.is_zero() {
            ZERO_RENEWED_AFTER
        } else {
            self.restart_delay * NOTE_RENEWED_AFTER
        }
    }

    /// Returns how often a connect has ended.
    pub(super) fn connects(&self) -> u64 {
        *self.connects.lock()
    }

    /// Blocks until that number is not `seen` any more, at most until then.
    pub(super) fn await_connect(&self, seen: u64, until: Time) {
        let mut connects = self.connects.lock();
        while *connects == seen {
            let left = until.since(Time::now());
            if left.is_zero() {
                return;
            }
            connects = self.connected.wait_for(connects, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Server, Settings};
    use crate::net::route::route;

    fn node() -> Node {
        let settings = Settings::default();
        let server = Server::new("redis://h/", &settings).expect("a URL");
        Node::new(0, route(server, &settings))
    }

    #[test]
    fn a_restarted_node_waits_until_its_clock_has_passed_its_fences() {
        let node = node();
        let delay = Duration::from_millis(10);
        let may_vote = |node: &Node, now| node.check_may_vote(&node.state.lock(), now).is_ok();
        node.identified("before", Duration::from_secs(100), delay);
        assert!(may_vote(&node, Time::now()));
        let restarted = Time::now();
        node.heard(restarted, restarted);
        node.identified("after", Duration::from_secs(100), delay);
        assert!(!may_vote(&node, restarted + FENCE_LEAD));
        let later = Time::now() + FENCE_LEAD + UPTIME_MARGIN;
        assert!(may_vote(&node, later));
    }

    #[test]
    fn an_old_answer_that_is_read_late_does_not_show_that_a_node_is_well() {
        let node = node();
        let begin = Time::now();
        let at = |ms| begin + Duration::from_millis(ms);
        // The answer to a release has come before the next request, and is read after it.
        node.heard(at(0), at(11));
        let is_well = |node: &Node, now: u64| node.is_well(at(10), at(now - 100));
        assert!(is_well(&node, 100), "it was heard a moment ago");
        assert!(!is_well(&node, 210));
        node.heard(at(10), at(211));
        assert!(is_well(&node, 400), "it answers as new a request");
    }
}
