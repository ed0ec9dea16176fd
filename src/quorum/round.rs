//! One round: a request to several nodes, and their answers.
//!
//! 1. Connections that are closed are replaced: they are made in the background ([`super::node`]). With connections to a
//!    majority the round goes on at once, but for this table. With fewer it waits for half of its time, if the connects under
//!    way could still make a majority. Otherwise it asks the few at once.
//! 2. The request is written to each node, before any answer is read. A node that is down, has no connection, or has too
//!    many answers missing, is skipped.
//! 3. The answers are read as they come. After each of them the caller says whether it has enough. Nodes that are alike
//!    answer at almost the same time, and to wake a thread takes longer than to read an answer. So the thread first
//!    waits, for at most a millisecond, for the answer that is probably the last that it needs.
//! 4. If the result is certain, the round waits for the other nodes, as this table says.
//! 5. A node that does not answer for `node_timeout` is down, unless it shows that it is well ([`super::node`]).
//!
//! *A grace* is as long as the majority took: at least `node_timeout / 200`, at most `node_timeout / 4`. So a node that
//! hangs costs each caller little, until it is down. A connect is waited for until it has taken `node_timeout / 4`, so that
//! the first locks of a program get the votes of all nodes.
//!
//! | the round | with a majority it waits for connects | with a certain result it waits for answers |
//! | --- | --- | --- |
//! | asks for a lock | yes | for a grace |
//! | renews | no | for the whole `node_timeout`: each node moves its own vote |
//! | repeats a release of which the result is certain | no | for `node_timeout / 4` |
//! | any other | yes, but not the renewal thread | for `node_timeout / 4`, if it wants more answers |

use std::time::Duration;

use redis::Value;

use crate::error::{Failure, Outcome};
use crate::net::exchange::{self, Exchange, Pipeline};
use crate::quorum::QuorumState;
use crate::quorum::connection::{About, Commands, NodeConnection};
use crate::sys::{Arc, Time};
use crate::wire::Command;

/// For how long a round waits for one answer alone.
const TOGETHER: Duration = Duration::from_millis(1);
/// The longest grace is `node_timeout` divided by this, and the shortest by the next.
const LONGEST_GRACE: u32 = 4;
const SHORTEST_GRACE: u32 = 200;

/// A connection to each node, and the call that uses them.
pub(super) struct NodeConnections {
    pub(super) state: Arc<QuorumState>,
    pub(super) connections: Box<[NodeConnection]>,
    /// When the call ends.
    pub(super) until: Time,
    /// Whether the renewal thread calls. It waits for no connect if it has a majority, and asks nodes to join.
    pub(super) is_of_renewals: bool,
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
    begun: Time,
    until: Time,
    /// The times for which the round waits after a certain result: the least and the most.
    grace: (Duration, Duration),
}

impl NodeConnections {
    pub(super) fn new(state: &Arc<QuorumState>, is_of_renewals: bool) -> Self {
        let connection = |number| NodeConnection::new(Arc::clone(state), number);
        Self {
            state: Arc::clone(state),
            connections: (0..state.nodes.len()).map(connection).collect(),
            until: Time::now(),
            is_of_renewals,
        }
    }

    /// Begins a call that ends then.
    pub(super) fn begin(&mut self, until: Time) -> &mut Self {
        // A panic may have left a connection that waits.
        self.connections
            .iter_mut()
            .for_each(NodeConnection::give_up);
        self.until = until;
        self
    }

    /// Returns the shortest grace and the longest.
    fn graces(&self) -> (Duration, Duration) {
        let node_timeout = self.state.node_timeout;
        (node_timeout / SHORTEST_GRACE, node_timeout / LONGEST_GRACE)
    }

    /// Returns the same command for each node.
    pub(super) fn to_all(&self, command: &Command) -> Vec<Commands> {
        vec![vec![(command.clone(), About::Nothing)]; self.connections.len()]
    }

    /// Does a round with these commands for each connection. One without commands is left out. Gives each answer to
    /// `heard`, with the number of its connection. The same for a failure: one of a node that was not asked has the
    /// outcome [`NotExecuted`](Outcome::NotExecuted), and no other one has. Afterwards no connection waits for anything.
    pub(super) fn round(
        &mut self,
        recipients: Recipients,
        commands: Vec<Commands>,
        heard: &mut dyn FnMut(usize, Result<Value, Failure>) -> Enough,
    ) {
        let mut unasked = self.look(recipients, &commands);
        for (number, commands) in commands.into_iter().enumerate() {
            if unasked[number].is_none() && !commands.is_empty() {
                unasked[number] = self.connections[number].send(commands).err();
            }
        }
        let begun = Time::now();
        let node_timeout = self.state.node_timeout;
        let (shortest, longest) = self.graces();
        let (enough, limit, grace) = match recipients {
            Recipients::Granters => (Enough::No, node_timeout, (shortest, longest)),
            Recipients::Voters => (Enough::No, node_timeout, (node_timeout, node_timeout)),
            Recipients::All => (Enough::No, node_timeout, (longest, longest)),
            Recipients::Rest => (Enough::Certain, longest, (longest, longest)),
        };
        let mut gathering = Gathering {
            connections: &mut self.connections,
            heard,
            enough,
            begun,
            until: self.until.min(begun + limit),
            grace,
        };
        for (number, failure) in unasked.into_iter().enumerate() {
            if let Some(failure) = failure {
                gathering.hear(number, Err(failure.with(Outcome::NotExecuted)));
            }
        }
        if let Some(last) = slowest(gathering.connections) {
            let alone = gathering.connections[last].asked().into_iter();
            exchange::read_ready(alone, gathering.until.min(begun + TOGETHER));
        }
        exchange::run(&mut gathering);
        gathering.end();
    }

    /// Does step 1 for the nodes that have commands. Returns for each the reason why it is not asked.
    fn look(&mut self, recipients: Recipients, commands: &[Commands]) -> Vec<Option<Failure>> {
        let state = Arc::clone(&self.state);
        let is_patient =
            !self.is_of_renewals && matches!(recipients, Recipients::All | Recipients::Granters);
        let (_, longest) = self.graces();
        // The rest of the time is for the request: with few connections too, an answer may show that a vote is gone.
        let begun = Time::now();
        let left = self.until.since(begun);
        let (few_until, latest) = (begun + left / 2, begun + left / 4);
        loop {
            let seen = state.connects();
            let mut failures = vec![None; self.connections.len()];
            let (mut wanted, mut open, mut opening) = (0, 0, 0);
            let now = Time::now();
            // When the connects are over for which a round with a majority waits.
            let mut all_until = now;
            for (number, connection) in self.connections.iter_mut().enumerate() {
                if commands[number].is_empty() {
                    continue;
                }
                wanted += 1;
                let node = &state.nodes[number];
                let looked = connection.look();
                let is_open = connection.is_open();
                // Only a new connection shows that the node has restarted.
                let asked = looked.and_then(|()| match recipients {
                    _ if !is_open => Ok(()),
                    Recipients::Voters => node.check_may_vote(now),
                    Recipients::Granters => node.check_may_grant(now),
                    Recipients::All | Recipients::Rest => Ok(()),
                });
                failures[number] = match asked {
                    Ok(()) if is_open => {
                        open += 1;
                        None
                    }
                    Ok(()) => {
                        opening += 1;
                        let since = node.connecting_since().unwrap_or(now);
                        all_until = all_until.max(since + longest);
                        Some(node.being_opened())
                    }
                    Err(failure) => Some(failure),
                };
            }
            let needed = state.needed.min(wanted);
            if open + opening < needed {
                state.probe_all();
            }
            let until = if open < needed {
                let may_be_enough = open + opening >= needed && recipients != Recipients::Rest;
                if may_be_enough { few_until } else { now }
            } else if is_patient && opening > 0 {
                all_until.min(latest)
            } else {
                now
            };
            if now >= until {
                return failures;
            }
            state.await_connect(seen, until);
        }
    }
}

impl Gathering<'_> {
    fn hear(&mut self, number: usize, answer: Result<Value, Failure>) {
        let before = self.enough;
        self.enough = (self.heard)(number, answer);
        if (before, self.enough) == (Enough::No, Enough::Certain) {
            let (now, (least, most)) = (Time::now(), self.grace);
            let grace = now.since(self.begun).clamp(least, most);
            self.until = self.until.min(now + grace);
        }
    }

    /// Stops waiting for the answers that have not come.
    fn end(&mut self) {
        let waited = self.begun.elapsed();
        for (number, connection) in self.connections.iter_mut().enumerate() {
            if connection.is_asked() && self.enough == Enough::No {
                let failure = connection.timed_out(waited);
                (self.heard)(number, Err(failure));
            } else {
                connection.give_up();
            }
        }
    }
}

impl Exchange for Gathering<'_> {
    type About = About;

    fn take_in(&mut self) -> Option<Time> {
        for number in 0..self.connections.len() {
            while self.enough != Enough::Yes {
                let Some(answer) = self.connections[number].answer().transpose() else {
                    break;
                };
                self.hear(number, answer);
            }
        }
        let is_asked = self.connections.iter().any(NodeConnection::is_asked);
        (is_asked && self.enough != Enough::Yes).then_some(self.until)
    }

    fn asked(&mut self) -> impl Iterator<Item = &mut Pipeline<About>> {
        let connections = self.connections.iter_mut();
        connections.filter_map(NodeConnection::asked)
    }
}

/// Returns the connection whose answer is probably the last of those that come almost at the same time, by what each node
/// took the last time.
fn slowest(connections: &[NodeConnection]) -> Option<usize> {
    let connections = connections.iter().enumerate();
    let asked =
        connections.filter(|(_, connection)| connection.is_asked() && connection.took <= TOGETHER);
    let slowest = asked.max_by_key(|(_, connection)| connection.took);
    slowest.map(|(number, _)| number)
}
