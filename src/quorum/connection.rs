//! One connection to one node. Several requests may be on their way, so a caller need not wait for an answer that it
//! does not need. The state table at the top of [`crate::net::exchange`] has the rules. So a release that follows an
//! acquire on the same connection is executed after it, whether or not the acquire was answered. What an answer tells of the
//! votes is noted here too, so that it counts when nobody waits for it any more ([`About`]).
//!
//! A new connection asks the server which process it is, for how long it has been up, and whether it is a master
//! ([`super::node`]). In the same write it has the server load the scripts, and notes the restart delay.

use std::time::Duration;

use redis::Value;

use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::{Deadline, Phase};
use crate::net::exchange::{Pipeline, Unanswered};
use crate::net::login;
use crate::net::socket::TransportError;
use crate::quorum::QuorumState;
use crate::quorum::node::Node;
use crate::quorum::votes::ConnectionId;
use crate::sys::{Arc, Ordering, Time};
use crate::wire::{Command, quorum as node_request};

/// The largest number of answers that may be missing on a connection before it is left out.
const MOST_MISSING: usize = 32;
/// After this pause a connection on which answers are late looks for them before it is used. An idle one always looks.
const LOOKS_AFTER: Duration = Duration::from_millis(10);

/// A connection that nobody has used yet.
pub(super) struct Spare {
    pub(super) pipeline: Pipeline<About>,
    pub(super) id: ConnectionId,
    /// The number of the server's process to which it leads.
    pub(super) process: u32,
    pub(super) opened: Time,
}

/// What the answer to a command tells of the votes.
#[derive(Clone, Default)]
pub(super) enum About {
    #[default]
    Nothing,
    /// The end of this owner.
    End {
        owner: Arc<str>,
        /// The connection on which the node executes the end after every request for the lock, if there is one.
        asked_on: Option<ConnectionId>,
    },
    /// A request of this owner for the lock. Only a late answer is noted here.
    Ask {
        owner: Arc<str>,
        /// Whether the node may have the owner although it does not grant the lock: in its queue, or by a join.
        may_have_owner: bool,
    },
}

/// The commands of a round to one node, and what their answers are about.
pub(super) type Commands = Vec<(Command, About)>;

pub(super) struct NodeConnection {
    state: Arc<QuorumState>,
    pub(super) number: usize,
    /// Empty if the connection is closed.
    pipeline: Option<Pipeline<About>>,
    /// The name of the connection that is open, or was open last.
    pub(super) id: ConnectionId,
    /// The number of the server's process to which it leads, or led last.
    pub(super) process: u32,
    /// The time from the last request whose answer the caller waited for until it took that answer.
    pub(super) took: Duration,
    used: Time,
}

impl NodeConnection {
    pub(super) fn new(state: Arc<QuorumState>, number: usize) -> Self {
        Self {
            state,
            number,
            pipeline: None,
            id: ConnectionId::default(),
            process: 0,
            took: Duration::ZERO,
            used: Time::now(),
        }
    }

    fn node(&self) -> &Node {
        &self.state.nodes[self.number]
    }

    /// Returns the open connection if the caller waits for an answer on it.
    pub(super) fn asked(&mut self) -> Option<&mut Pipeline<About>> {
        self.pipeline
            .as_mut()
            .filter(|pipeline| pipeline.is_asked())
    }

    pub(super) fn is_open(&self) -> bool {
        self.pipeline.is_some()
    }

    /// Returns whether this connection was closed. The node may execute a request on it at any later time.
    pub(super) fn is_closed(&self, id: ConnectionId) -> bool {
        !self.is_open() || self.id != id
    }

    /// Returns whether the caller waits for an answer.
    pub(super) fn is_asked(&self) -> bool {
        self.pipeline.as_ref().is_some_and(Pipeline::is_asked)
    }

    pub(super) fn close_if_idle(&mut self, idle: Duration) {
        if self.used.elapsed() >= idle {
            self.close();
        }
        self.node().close_idle(idle);
    }

    fn close(&mut self) {
        let Some(mut pipeline) = self.pipeline.take() else {
            return;
        };
        for missing in pipeline.unanswered() {
            if let About::Ask { owner, .. } = &missing.about {
                let votes = &self.state.votes;
                votes.note(owner, self.number, |vote| vote.no_late_answer(self.id));
            }
        }
    }

    /// Looks at the connection before a request: reads late answers, and closes the connection if its end has come. Takes a
    /// spare for a closed connection. If there is none, the connection stays closed, and one is made in the background.
    ///
    /// # Errors
    ///
    /// Returns the reason why the node is not asked.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        loop {
            // The end of the connection may have shown that the node is down.
            if !self.is_open() || !self.node().may_answer() {
                self.node().check_up()?;
            }
            if self.pipeline.is_none() {
                let Some(spare) = self.state.spare(self.number) else {
                    return Ok(());
                };
                (self.id, self.process) = (spare.id, spare.process);
                (self.pipeline, self.used) = (Some(spare.pipeline), spare.opened);
            }
            self.look_at_open()?;
            if self.is_open() {
                return Ok(());
            }
        }
    }

    fn look_at_open(&mut self) -> Result<(), Failure> {
        let node_timeout = self.state.node_timeout;
        let is_long_ago = self.used.elapsed() >= LOOKS_AFTER;
        if let Some(pipeline) = &mut self.pipeline {
            let has_many = pipeline.unanswered().len() >= MOST_MISSING;
            let is_idle = pipeline.is_idle();
            if is_idle || is_long_ago || has_many || pipeline.is_overdue(node_timeout) {
                self.drop_late_answers(node_timeout);
            }
        }
        let Some(pipeline) = &mut self.pipeline else {
            return Ok(());
        };
        let missing = pipeline.unanswered().len();
        // A new connection notes the restart delay again.
        if missing == 0 && self.node().must_note_again() {
            self.pipeline = None;
        } else if missing >= MOST_MISSING {
            let address = &self.node().route.server.address;
            let words = format!("{address}: too many answers are missing");
            let kind = FailureKind::Unavailable;
            return Err(Failure::plain(kind, Outcome::NotExecuted, words));
        }
        Ok(())
    }

    /// Reads the late answers that have come.
    pub(super) fn read_late(&mut self) {
        let is_late = |pipeline: &Pipeline<_>| !pipeline.is_idle();
        if self.pipeline.as_ref().is_some_and(is_late) {
            // An answer that is overdue may still come.
            self.drop_late_answers(Duration::MAX);
        }
    }

    /// Reads and drops the late answers that have come. Closes the connection if it has failed, or an answer is overdue.
    fn drop_late_answers(&mut self, overdue_after: Duration) {
        let mut dropped = Vec::new();
        let Some(pipeline) = &mut self.pipeline else {
            return;
        };
        let looked = pipeline.look(overdue_after, |value, answered| {
            dropped.push((value, answered));
        });
        for (value, answered) in dropped {
            self.heard(value, answered);
        }
        if let Err(fault) = looked {
            self.broken(fault);
        }
    }

    /// Sends commands on an open connection. Their answers come from [`Self::answer`].
    pub(super) fn send(&mut self, commands: Commands) -> Result<(), Failure> {
        self.used = Time::now();
        let Some(pipeline) = &mut self.pipeline else {
            return Ok(());
        };
        pipeline.ask(commands).map_err(|fault| self.broken(fault))
    }

    /// Sends a command for whose answer nobody waits. Does nothing if the connection is closed.
    pub(super) fn tell(&mut self, command: Command, about: About) {
        if let Some(pipeline) = &mut self.pipeline {
            if let Err(fault) = pipeline.tell(command, about) {
                self.broken(fault);
            }
        }
    }

    /// Returns the next answer that the caller waits for, if it was read.
    pub(super) fn answer(&mut self) -> Result<Option<Value>, Failure> {
        while let Some(pipeline) = self.asked() {
            let Some((value, answered)) = pipeline.take().map_err(|fault| self.broken(fault))?
            else {
                break;
            };
            if let Some(value) = self.heard(value, answered) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Takes in an answer. Returns the answer unless it is late.
    fn heard(&mut self, value: Value, answered: Unanswered<About>) -> Option<Value> {
        let (sent, now) = (answered.sent, Time::now());
        self.node().heard(sent, now);
        match answered.about {
            About::End { owner, asked_on } if node_request::released(&value).is_some() => {
                let is_ordered = asked_on == Some(self.id);
                let votes = &self.state.votes;
                votes.note(&owner, self.number, |vote| {
                    vote.confirm_end(is_ordered, sent, now);
                });
            }
            About::Ask {
                owner,
                may_have_owner,
            } if answered.is_late && !self.is_asked_again(&owner) => {
                let has_owner = may_have_owner || node_request::may_have_granted(&value);
                let votes = &self.state.votes;
                votes.note(&owner, self.number, |vote| {
                    vote.late_answer(self.id, has_owner, now);
                });
            }
            _ => {}
        }
        if answered.is_late {
            return None;
        }
        self.took = now.since(sent);
        Some(value)
    }

    /// Returns whether a later request of this owner is on its way here.
    fn is_asked_again(&mut self, owner: &str) -> bool {
        let is_of_owner =
            |about: &About| matches!(about, About::Ask { owner: asks, .. } if **asks == *owner);
        let pipeline = self.pipeline.as_mut();
        pipeline.is_some_and(|it| it.unanswered().iter().any(|it| is_of_owner(&it.about)))
    }

    /// Stops waiting. Later answers are dropped.
    pub(super) fn give_up(&mut self) {
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.give_up();
        }
    }

    /// Stops waiting after `waited`, because the time is over. If that was `node_timeout`, and the node does not show that
    /// it is well, the node is down. The connection stays open, because the node executes the next request on it after
    /// this one.
    pub(super) fn timed_out(&mut self, waited: Duration) -> Failure {
        self.give_up();
        let timeout = Phase::Request.timed_out();
        let failure = self.node().route.broken(timeout.into());
        if waited >= self.state.node_timeout && self.seems_down() {
            self.state.node_is_down(self.number, &failure);
        }
        failure
    }

    /// Returns whether a command here has no answer, and the node does not show that it is well.
    fn seems_down(&mut self) -> bool {
        let Some(pipeline) = &mut self.pipeline else {
            return false;
        };
        let Some(sent) = pipeline.unanswered().front().map(|oldest| oldest.sent) else {
            return false;
        };
        let silent_for = self.state.node_timeout / 2;
        !self.node().is_well(sent, Time::now() - silent_for)
    }

    /// Ends the connection. If a request here has no answer, the server has not just closed the connection, and does not
    /// show that it is well, the node is down.
    fn broken(&mut self, fault: TransportError) -> Failure {
        let is_closed = fault.is_closed();
        let failure = self.node().route.broken(fault);
        let seems_down = self.seems_down();
        self.close();
        // If the server is gone, the next connection is refused, and then the node is down.
        if !is_closed && seems_down {
            self.state.node_is_down(self.number, &failure);
        }
        failure
    }
}

/// Connects to a node within `connect_timeout`, and asks the server what it is.
pub(super) fn open(state: &QuorumState, number: usize) -> Result<Spare, Failure> {
    let node = &state.nodes[number];
    let route = &node.route;
    let mut deadline = Deadline::after(route.connect_timeout);
    let mut socket = login::connect(route, &mut deadline)?;
    let mut commands = vec![
        Command::new("INFO").arg("server").to_owned(),
        Command::new("INFO").arg("replication").to_owned(),
    ];
    commands.extend(node_request::load());
    commands.push(state.note_restart_delay());
    let sent = Time::now();
    let asked = socket.requests(&commands, deadline);
    let mut answers = asked.map_err(|fault| route.broken(fault))?;
    // A server may close the connection after one error.
    let has_all = answers.len() == commands.len();
    let noted = if has_all { answers.pop() } else { None };
    let noted = noted.unwrap_or(Value::Nil);
    let mut report = String::new();
    for answer in answers {
        if let Value::BulkString(bytes) = route.accepted(answer)? {
            report.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    let process = state.identify(number, &report)?;
    state.compare_restart_delay(number, noted)?;
    node.heard(sent, Time::now());
    Ok(Spare {
        pipeline: Pipeline::new(socket, state.node_timeout),
        id: ConnectionId(state.next_connection.fetch_add(1, Ordering::Relaxed)),
        process,
        opened: Time::now(),
    })
}
