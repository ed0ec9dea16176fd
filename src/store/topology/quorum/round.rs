//! One round: a request to several nodes, and their answers.
//!
//! 1. The request is written to each node, before any answer is read. A node that is down, or has too many answers
//!    missing, is skipped.
//! 2. The answers are read as they come. After each of them the caller says whether it has enough. Nodes that are alike
//!    answer at almost the same time, and to wake a thread takes longer than to read an answer. So the thread first
//!    waits, for at most a millisecond, for the answer that is probably the last that it needs.
//! 3. If the caller has almost enough, because a majority agrees, the round waits for the other nodes only for a
//!    quarter of `node_timeout`. So a lock gets the votes of all nodes that are well. A node that takes longer is late:
//!    for a second no round waits for it alone, unless it answers in time before. So a node that hangs costs that time
//!    once, until it is down.
//! 4. A node that has answered nobody for `node_timeout` is down.

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::error::{Failure, FailureKind, Outcome};
use crate::script::Command;
use crate::store::topology::quorum::connection::{LateAbout, NodeConnection};
use crate::store::topology::quorum::state::QuorumState;
use crate::store::transport::exchange::{self, Exchange, Pipeline};
use crate::sys::{Time, thread};

/// For how long a round waits for one answer alone.
const TOGETHER: Duration = Duration::from_millis(1);

/// A call under way.
pub(super) struct QuorumCall<'a> {
    pub(super) state: &'a QuorumState,
    /// A connection to each node, or to one of them.
    pub(super) connections: &'a mut [NodeConnection],
    /// When it ends.
    pub(super) until: Time,
}

/// The nodes that a round asks, of those that are up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipients {
    All,
    /// The nodes that may vote.
    Voters,
    /// The nodes that may vote for a new owner.
    Granters,
    /// All, and the result is certain without them.
    Rest,
}

/// The verdict of a caller on the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enough {
    No,
    /// The result is certain, but further answers would be of use.
    Certain,
    Yes,
}

impl Enough {
    /// Returns `Certain` if the result is certain.
    pub(super) fn certain_if(is_certain: bool) -> Self {
        if is_certain { Self::Certain } else { Self::No }
    }
}

/// The answers of a round whose requests are written.
struct Gathering<'a> {
    connections: &'a mut [NodeConnection],
    heard: &'a mut dyn FnMut(usize, Result<Value, Failure>) -> Enough,
    enough: Enough,
    until: Time,
    grace: Duration,
}

impl<'a> QuorumCall<'a> {
    pub(super) fn new(
        state: &'a QuorumState,
        connections: &'a mut [NodeConnection],
        until: Time,
    ) -> Self {
        // A panic may have left a connection that waits.
        connections.iter_mut().for_each(NodeConnection::give_up);
        Self {
            state,
            connections,
            until,
        }
    }

    /// Does a round. `commands` returns the commands for each connection, or `None` if it is left out. Gives each answer
    /// to `heard`, with the number of its connection. The same for a failure: one of a node that was not asked has the
    /// outcome [`NotExecuted`](Outcome::NotExecuted), and no other one has. Afterwards no connection waits for anything.
    pub(super) fn round<'c>(
        &mut self,
        recipients: Recipients,
        commands: impl Fn(usize) -> Option<&'c [Command]>,
        heard: &mut dyn FnMut(usize, Result<Value, Failure>) -> Enough,
    ) {
        let unasked = self.write(recipients, commands);
        let begun = Time::now();
        let left = self.until.since(begun);
        let (node_timeout, grace) = (self.state.node_timeout, self.state.node_timeout / 4);
        let (enough, longest) = match recipients {
            Recipients::All | Recipients::Voters | Recipients::Granters => {
                (Enough::No, node_timeout)
            }
            Recipients::Rest => (Enough::Certain, grace),
        };
        let mut gathering = Gathering {
            connections: &mut *self.connections,
            heard,
            enough,
            until: begun + left.min(longest),
            grace,
        };
        for (number, failure) in unasked.into_iter().enumerate() {
            if let Some(failure) = failure {
                let outcome = Outcome::NotExecuted;
                gathering.hear(number, Err(Failure { outcome, ..failure }));
            }
        }
        if let Some(last) = slowest(gathering.connections) {
            let alone = gathering.connections[last].asked().into_iter();
            exchange::read_ready(alone, None, gathering.until.min(begun + TOGETHER));
        }
        exchange::run(&mut gathering, None);
        gathering.end(begun);
    }

    /// Writes its commands to each connection. Returns for each the reason why it was not asked.
    ///
    /// A connection that is closed is opened first. Several are opened at the same time, each on its own thread.
    /// Otherwise the time that a caller waits for nodes that hang would be a sum.
    fn write<'c>(
        &mut self,
        recipients: Recipients,
        commands: impl Fn(usize) -> Option<&'c [Command]>,
    ) -> Vec<Option<Failure>> {
        let until = self.until;
        let ask = |connection: &mut NodeConnection, commands: &[Command]| {
            // Only a new connection shows that the node has restarted.
            let asked = connection.connect(until).and_then(|()| {
                let (node, now) = (connection.node(), Time::now());
                match recipients {
                    Recipients::Voters => node.check_may_vote(now)?,
                    Recipients::Granters => node.check_may_grant(now)?,
                    Recipients::All | Recipients::Rest => {}
                }
                connection.send(commands)
            });
            asked.err()
        };
        let mut failures = vec![None; self.connections.len()];
        let mut closed = SmallVec::<[_; 5]>::new();
        // The open connections come first: to connect to a node that hangs takes a while.
        let connections = self.connections.iter_mut().zip(&mut failures).enumerate();
        for (number, (connection, failure)) in connections {
            let Some(commands) = commands(number) else {
                continue;
            };
            *failure = connection.look().err();
            if failure.is_none() && connection.is_open() {
                *failure = ask(connection, commands);
            } else if failure.is_none() {
                closed.push((connection, failure, commands));
            }
        }
        if closed.len() <= 1 {
            for (connection, failure, commands) in closed {
                *failure = ask(connection, commands);
            }
            return failures;
        }
        let ask = &ask;
        thread::scope(|scope| {
            for (connection, failure, commands) in closed {
                let words = "no thread could be started to connect";
                let unasked = Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words);
                *failure = Some(unasked);
                let asks = move || *failure = ask(connection, commands);
                thread::spawn_scoped(scope, asks).ok();
            }
        });
        failures
    }
}

impl Gathering<'_> {
    fn hear(&mut self, number: usize, answer: Result<Value, Failure>) {
        let before = self.enough;
        self.enough = (self.heard)(number, answer);
        if (before, self.enough) == (Enough::No, Enough::Certain) {
            self.until = self.until.min(Time::now() + self.grace);
        }
    }

    /// Stops waiting for the answers that have not come.
    fn end(&mut self, begun: Time) {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            if !connection.is_asked() {
                continue;
            }
            if self.enough == Enough::No {
                let failure = connection.timed_out(begun.elapsed());
                (self.heard)(number, Err(failure));
            } else {
                // A node that was skipped because it is late has had no new chance.
                if self.enough == Enough::Certain && !connection.node().is_late() {
                    connection.node().note_late();
                }
                connection.give_up();
            }
        }
    }
}

impl Exchange for Gathering<'_> {
    type About = LateAbout;

    fn take_in(&mut self) -> Option<Time> {
        for number in 0..self.connections.len() {
            while self.enough != Enough::Yes {
                let Some(answer) = self.connections[number].answer().transpose() else {
                    break;
                };
                self.hear(number, answer);
            }
        }
        // A late node alone is not waited for.
        let is_waited_for = |connection: &NodeConnection| {
            connection.is_asked()
                && !(self.enough == Enough::Certain && connection.node().is_late())
        };
        let is_over = self.enough == Enough::Yes || !self.connections.iter().any(is_waited_for);
        (!is_over).then_some(self.until)
    }

    fn asked(&mut self) -> impl Iterator<Item = &mut Pipeline<LateAbout>> {
        let connections = self.connections.iter_mut();
        connections.filter_map(NodeConnection::asked)
    }
}

/// Returns the connection whose answer is probably the last, by what each node took the last time.
fn slowest(connections: &[NodeConnection]) -> Option<usize> {
    let connections = connections.iter().enumerate();
    let asked =
        connections.filter(|(_, connection)| connection.is_asked() && !connection.node().is_late());
    let slowest = asked.max_by_key(|(_, connection)| connection.took());
    slowest.map(|(number, _)| number)
}
