//! One round: a request to several nodes, and their answers.
//!
//! 1. Connections that are closed are replaced. The openers connect ([`super::opener`]). With connections to a majority the
//!    round goes on at once, but for this table. With fewer it waits for half of its time, if the connects under way could
//!    still make a majority. Otherwise it asks the few at once.
//! 2. The request is written to each node, before any answer is read. A node that is down, has no connection, or has too
//!    many answers missing, is skipped.
//! 3. The answers are read as they come. After each of them the caller says whether it has enough. Nodes that are alike
//!    answer at almost the same time, and to wake a thread takes longer than to read an answer. So the thread first
//!    waits, for at most a millisecond, for the answer that is probably the last that it needs.
//! 4. If the result is certain, the round waits for the other nodes, as this table says. A *late* node did not answer a round
//!    that waited for at least a quarter of `node_timeout`: for a second no round waits for it alone, unless it answers in time
//!    before. So a node that hangs costs that time once, until it is down.
//! 5. A node that does not answer for `node_timeout` is down, unless it shows that it is well ([`super::node`]). If this
//!    thread woke too late, the machine is busy, and the nodes get half of that time more.
//!
//! | the round | with a majority it waits for connects | with a certain result it waits for answers |
//! | --- | --- | --- |
//! | asks for a lock | that began less than `node_timeout / 4` ago | for as long again as that took: at least `node_timeout / 200`, at most `node_timeout / 4` |
//! | renews | not at all | for the whole `node_timeout`: each node moves its own vote |
//! | repeats a release of which the result is certain | not at all | for `node_timeout / 4` |
//! | any other, of the renewal thread | not at all | for `node_timeout / 4`, if it wants more answers |
//! | any other | that began less than `node_timeout / 4` ago | the same |
//!
//! No round with a majority waits for a connect to a node if the last one took longer than that.

use std::time::Duration;

use redis::Value;

use crate::error::{Failure, Outcome};
use crate::net::exchange::{self, Exchange, Pipeline};
use crate::quorum::connection::NodeConnection;
use crate::quorum::state::QuorumState;
use crate::quorum::votes::LateAbout;
use crate::sys::Time;
use crate::wire::Command;

/// For how long a round waits for one answer alone.
const TOGETHER: Duration = Duration::from_millis(1);
/// A round that asks for a lock waits for further votes after a grant for at least `node_timeout` divided by this.
const SHORTEST_GRACE: u32 = 200;
/// A thread that wakes later than this had no CPU time.
const OVERSLEPT: Duration = Duration::from_millis(10);

/// A call under way.
pub(super) struct QuorumCall<'a> {
    pub(super) state: &'a QuorumState,
    /// A connection to each node.
    pub(super) connections: &'a mut [NodeConnection],
    /// When it ends.
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

impl<'a> QuorumCall<'a> {
    pub(super) fn new(
        state: &'a QuorumState,
        connections: &'a mut [NodeConnection],
        until: Time,
        is_of_renewals: bool,
    ) -> Self {
        // A panic may have left a connection that waits.
        connections.iter_mut().for_each(NodeConnection::give_up);
        Self {
            state,
            connections,
            until,
            is_of_renewals,
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
        let (node_timeout, grace) = (self.state.node_timeout, self.state.grace());
        let (enough, longest, grace) = match recipients {
            Recipients::Granters => (
                Enough::No,
                node_timeout,
                (node_timeout / SHORTEST_GRACE, grace),
            ),
            Recipients::Voters => (Enough::No, node_timeout, (node_timeout, node_timeout)),
            Recipients::All => (Enough::No, node_timeout, (grace, grace)),
            Recipients::Rest => (Enough::Certain, grace, (grace, grace)),
        };
        let mut gathering = Gathering {
            connections: &mut *self.connections,
            heard,
            enough,
            begun,
            until: self.until.min(begun + longest),
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
            exchange::read_ready(alone, gathering.until.min(begun + TOGETHER));
        }
        exchange::run(&mut gathering);
        let now = Time::now();
        if gathering.enough == Enough::No && now > gathering.until + OVERSLEPT {
            gathering.until = self.until.min(now + node_timeout / 2);
            exchange::run(&mut gathering);
        }
        gathering.end(self.state.grace());
    }

    /// Writes its commands to each connection. Returns for each the reason why it was not asked.
    fn write<'c>(
        &mut self,
        recipients: Recipients,
        commands: impl Fn(usize) -> Option<&'c [Command]>,
    ) -> Vec<Option<Failure>> {
        let is_wanted = |number: usize| commands(number).is_some();
        let mut failures = self.look(recipients, &is_wanted);
        for (number, connection) in self.connections.iter_mut().enumerate() {
            if let (Some(commands), None) = (commands(number), &failures[number]) {
                failures[number] = connection.send(commands).err();
            }
        }
        failures
    }

    /// Does step 1 for the nodes that are wanted. Returns for each the reason why it is not asked.
    fn look(
        &mut self,
        recipients: Recipients,
        is_wanted: &dyn Fn(usize) -> bool,
    ) -> Vec<Option<Failure>> {
        let state = self.state;
        let grace = match recipients {
            Recipients::All | Recipients::Granters if !self.is_of_renewals => state.grace(),
            _ => Duration::ZERO,
        };
        // The rest of the time is for the request: with few connections too, an answer may show that a vote is gone.
        let begun = Time::now();
        let left = self.until.since(begun);
        let (few_until, latest) = (begun + left / 2, begun + left / 4);
        loop {
            let seen = state.openers.changes();
            let mut failures = vec![None; self.connections.len()];
            let (mut wanted, mut open, mut opening) = (0, 0, 0);
            let now = Time::now();
            // When the connects are over for which a round with a majority waits.
            let mut until = now;
            for (number, connection) in self.connections.iter_mut().enumerate() {
                if !is_wanted(number) {
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
                failures[number] = asked.err();
                if failures[number].is_some() {
                    continue;
                }
                if is_open {
                    open += 1;
                    continue;
                }
                opening += 1;
                failures[number] = Some(node.being_opened());
                let expected = state.openers.expected(number, grace);
                if let Some(expected) = expected.filter(|_| !node.is_late()) {
                    until = until.max(latest.min(expected));
                }
            }
            let needed = state.needed.min(wanted);
            if open + opening < needed {
                state.want_majority();
            }
            if open < needed && open + opening >= needed && recipients != Recipients::Rest {
                until = few_until;
            } else if opening == 0 || open < needed {
                return failures;
            }
            if now >= until {
                return failures;
            }
            state.openers.await_change(seen, until);
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

    /// Stops waiting for the answers that have not come. A node that has not answered for `late_after` is late.
    fn end(&mut self, late_after: Duration) {
        let waited = self.begun.elapsed();
        for (number, connection) in self.connections.iter_mut().enumerate() {
            if !connection.is_asked() {
                continue;
            }
            if self.enough == Enough::No {
                let failure = connection.timed_out(waited);
                (self.heard)(number, Err(failure));
                continue;
            }
            // A node that was skipped because it is late has had no new chance.
            let is_certain = self.enough == Enough::Certain;
            if is_certain && waited >= late_after && !connection.node().is_late() {
                connection.node().note_late();
            }
            connection.give_up();
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

/// Returns the connection whose answer is probably the last of those that come almost at the same time, by what each node
/// took the last time.
fn slowest(connections: &[NodeConnection]) -> Option<usize> {
    let connections = connections.iter().enumerate();
    let asked = connections.filter(|(_, connection)| {
        connection.is_asked() && !connection.node().is_late() && connection.took() <= TOGETHER
    });
    let slowest = asked.max_by_key(|(_, connection)| connection.took());
    slowest.map(|(number, _)| number)
}
