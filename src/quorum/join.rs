//! Nodes that join: a node without a vote for an owner gets the lock, and later votes. So a vote that was missed at the grant,
//! or lost when a node restarted, comes back.
//!
//! | step | the renewal thread |
//! | --- | --- |
//! | 1 | For each lease that it renews: notes which nodes have no vote and may join ([`super::votes`]). From now on such a node may have the owner. |
//! | 2 | Writes the joins behind the renewals, in the same write. The node gives the lock to the owner if it is free there, and raises the record to the owner's last fence. If it is not free, it writes nothing. |
//! | 3 | A node that has given the lock is a candidate. Its vote counts for nothing yet: until now another owner may have held the lock there, and with it a majority. |
//! | 4 | The next renewal that a majority of the voters *and* the candidate confirm makes it a vote. So while the node has had the lock, a majority had it too. |
//!
//! Only a lease that has had a majority of votes since its grant may do that, and only on the connection of the renewal
//! thread: there the node executes the joins after the renewal, and before the next one. A node never joins
//!
//! * within its restart delay: it may have forgotten another owner;
//! * while a request for the lock, or a join, has no answer: the node could execute that again much later, after the key
//!   has vanished and another owner has had the lock. After a restart of the node no such request is left;
//! * if it says that it does not have the owner, while its own vote still lasts: an operator may have taken the
//!   lock. A node that was restarted has only forgotten it.
//!
//! A node to which a join was written gives back no fences, because the end of the join's raise may be the record.

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::error::{Failure, Outcome};
use crate::quorum::connection::NodeConnection;
use crate::quorum::round::QuorumCall;
use crate::quorum::vote::Joined;
use crate::quorum::votes::{LateAbout, MayJoin};
use crate::sys::Time;
use crate::wire::lifetime::valid_until;
use crate::wire::{Command, Renewal, quorum as node_request};

/// The joins of a round to one node.
#[derive(Clone, Default)]
pub(super) struct JoinsOfNode<'b> {
    commands: Vec<Command>,
    joins: Vec<Join<'b>>,
    answered: usize,
    /// Whether the write failed, or the node was skipped.
    is_unasked: bool,
}

/// The join of an owner.
#[derive(Clone, Copy)]
struct Join<'b> {
    owner: &'b str,
    lease: Duration,
    how: Joined,
}

impl QuorumCall<'_> {
    /// Returns which nodes can be asked to join. Only the renewal thread asks.
    pub(super) fn may_join(&mut self) -> Option<SmallVec<[Option<u32>; 5]>> {
        if !self.is_of_renewals {
            return None;
        }
        let (state, now) = (self.state, Time::now());
        let may_join = |connection: &mut NodeConnection| {
            // The round gives the reason why a node is not asked.
            connection.look().ok();
            let may_join = connection.is_open() && state.may_join(connection.number(), now);
            may_join.then(|| connection.process())
        };
        Some(self.connections.iter_mut().map(may_join).collect())
    }

    /// Does step 1 for the leases of a batch. Returns for each node the commands of step 2.
    pub(super) fn begin_joins<'b>(
        &self,
        batch: &'b [Renewal<'_>],
        may_join: Option<&MayJoin>,
    ) -> Vec<JoinsOfNode<'b>> {
        let (state, now) = (self.state, Time::now());
        let mut to_nodes = vec![JoinsOfNode::default(); self.connections.len()];
        for keys in batch.chunk_by(|one, other| one.owner == other.owner) {
            let Renewal { owner, lease, .. } = &keys[0];
            let may_join = may_join.filter(|_| keys[0].may_join);
            let joins = (state.votes).begin_renewal(owner, (*lease, state.needed), may_join, now);
            let Some(joins) = joins else { continue };
            let command = node_request::join(
                keys[0].kind,
                keys.iter().map(|renewal| renewal.key),
                (owner, keys[0].units),
                *lease,
                &joins.ends,
                &state.script_settings,
            );
            for number in joins.nodes {
                to_nodes[number].commands.push(command.clone());
                to_nodes[number].joins.push(Join {
                    owner,
                    lease: *lease,
                    how: Joined::Unknown,
                });
            }
        }
        to_nodes
    }

    /// Notes how the joins ended.
    pub(super) fn end_joins(&mut self, to_nodes: Vec<JoinsOfNode<'_>>) {
        let now = Time::now();
        for (connection, to_node) in self.connections.iter_mut().zip(to_nodes) {
            let number = connection.number();
            let is_open = connection.is_open();
            let asked_on = is_open.then(|| connection.id());
            for Join { owner, how, .. } in &to_node.joins {
                let how = match how {
                    // The end of the connection may have cut the write behind this join.
                    Joined::Refused if to_node.is_unasked && !is_open => Joined::Unknown,
                    how => *how,
                };
                let ended = (how, connection.process());
                (self.state.votes).joined(owner, number, ended, asked_on, now);
            }
            let late = to_node.joins[to_node.answered..].iter();
            connection.expect_late(late.map(|join| LateAbout::Vote {
                owner: join.owner.into(),
                may_have_owner: true,
            }));
        }
    }
}

impl JoinsOfNode<'_> {
    /// Returns a renewal and the joins behind it. Returns nothing if there are no joins.
    pub(super) fn behind(&self, renewal: &Command) -> Vec<Command> {
        if self.commands.is_empty() {
            return Vec::new();
        }
        let joins = self.commands.iter().cloned();
        std::iter::once(renewal.clone()).chain(joins).collect()
    }

    /// Takes in the next answer of the node to the write at `sent`.
    pub(super) fn hear(&mut self, answer: &Result<Value, Failure>, sent: Time) {
        let rest = &mut self.joins[self.answered..];
        match answer {
            Ok(value) => {
                let Some(join) = rest.first_mut() else { return };
                self.answered += 1;
                join.how = match node_request::joined(value) {
                    Some(true) => Joined::Until(valid_until(sent, join.lease)),
                    Some(false) => Joined::Refused,
                    None => Joined::Failed,
                };
            }
            Err(failure) if failure.outcome == Outcome::NotExecuted => {
                for join in rest {
                    join.how = Joined::Refused;
                }
                self.is_unasked = true;
                self.answered = self.joins.len();
            }
            Err(_) => {}
        }
    }
}
