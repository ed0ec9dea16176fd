//! A round that renews leases, and the joins of nodes without a vote: one batch for each node, written to all of them before
//! an answer is read.
//!
//! The votes decide how long a lease lasts ([`super::votes`]). The round waits for all nodes that are well, because
//! each of them moves its own vote. A node that hangs does not delay the votes of the others ([`super::connection`]).
//!
//! A node that has restarted renews nothing until it may vote: it may have forgotten who holds the lock. In the same write
//! the renewal thread asks nodes without a vote to join.
//!
//! # Nodes that join
//!
//! A node without a vote for an owner gets the lock, and later votes. So a vote that was missed at the grant,
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
//! A node to which a join was written gives back no fences, because the join may have raised the record to the last
//! of them: a late copy of the join would then raise it again.

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::error::{Failure, Outcome};
use crate::quorum::connection::{About, Commands, Connection, Connections, Enough, Recipients};
use crate::quorum::votes::{Confirmation, Joined, MayJoin, Round};
use crate::sys::{Arc, Time};
use crate::wire::lifetime::valid_until;
use crate::wire::{self, Renewal, Renewed, Reply, Request, quorum as node_request};

/// The joins of a round to one node, by owner and lease, and how the first of them ended.
#[derive(Clone, Default)]
struct JoinsAtNode<'b> {
    joins: Vec<(&'b str, Duration)>,
    ended: Vec<Joined>,
    /// Whether the write failed, or the node was skipped.
    is_unasked: bool,
}

impl Connections {
    /// Renews leases. Returns the result for each key. The keys of one owner come after each other, and have one
    /// result.
    pub(super) fn renew(&mut self, batch: &[Renewal<'_>]) -> Result<Vec<Renewed>, Failure> {
        let (sent, state) = (Time::now(), Arc::clone(&self.state));
        let request = Request::Renew(batch);
        let mut commands = self.to_all(&wire::encode(&request, &state.script_settings));
        let may_join = self.may_join();
        let may_join = may_join.as_deref();
        let mut joins = self.begin_joins(batch, may_join, &mut commands);
        let mut answered: Vec<Option<Vec<Renewed>>> = vec![None; commands.len()];
        let mut failures = vec![None; commands.len()];
        let is_unsent = |failure: &Failure| failure.outcome == Outcome::NotExecuted;
        // How many nodes have confirmed all leases.
        let mut confirmed = 0;
        self.round(Recipients::Voters, commands, &mut |number, answer| {
            let joins = &mut joins[number];
            if answered[number].is_some() || failures[number].is_some() {
                if let Ok(value) = answer {
                    joins.hear(&value, sent);
                }
                return Enough::certain_if(confirmed >= state.needed);
            }
            joins.is_unasked = answer.as_ref().is_err_and(is_unsent);
            let reply = answer.and_then(|value| state.decode(number, &request, value));
            match reply.and_then(Reply::renewed) {
                Ok(results) => {
                    confirmed += usize::from(results.iter().all(Renewed::is_confirmed));
                    answered[number] = Some(results);
                }
                Err(failure) => failures[number] = Some(failure),
            }
            Enough::certain_if(confirmed >= state.needed)
        });
        let voted = self.votes_of(batch, sent, may_join, &answered);
        // After the votes: the node has executed a join after the renewal.
        self.end_joins(joins);
        // With few answers the votes count too: a lease may have lost one.
        if answered.iter().all(Option::is_none) {
            let outcome = if failures.iter().flatten().all(is_unsent) {
                Outcome::NotExecuted
            } else {
                Outcome::Unknown
            };
            return Err(state.no_quorum(0, failures).with(outcome));
        }
        Ok(voted)
    }

    /// Applies the answers of all nodes to the renewal of a batch. Returns the result for each key.
    fn votes_of(
        &self,
        batch: &[Renewal<'_>],
        sent: Time,
        may_join: Option<&MayJoin>,
        answers: &[Option<Vec<Renewed>>],
    ) -> Vec<Renewed> {
        let (state, now) = (&self.state, Time::now());
        let mut results = Vec::with_capacity(batch.len());
        for keys in batch.chunk_by(|one, other| one.owner == other.owner) {
            let places = results.len()..results.len() + keys.len();
            let mut is_contended = false;
            let mut confirmations = Vec::with_capacity(answers.len());
            for (connection, answer) in self.each.iter().zip(answers) {
                let mut all = Confirmation::Confirmed;
                for place in places.clone() {
                    match answer.as_ref().map(|results| results[place]) {
                        Some(Renewed::Done { contended }) => is_contended |= contended,
                        Some(Renewed::Gone(gone)) => {
                            all = Confirmation::Gone(gone, connection.process);
                            break;
                        }
                        _ => all = Confirmation::Silent,
                    }
                }
                confirmations.push(all);
            }
            let round = Round {
                confirmations: &confirmations,
                is_contended,
                sent,
                until: valid_until(sent, keys[0].lease),
                needed: state.needed,
                may_join,
            };
            let result = state.owners.renewed(&keys[0].owner, round, now);
            results.resize(places.end, result);
        }
        results
    }

    /// Returns which nodes can be asked to join. Only the renewal thread asks.
    fn may_join(&mut self) -> Option<SmallVec<[Option<u32>; 5]>> {
        self.renews_beside.as_ref()?;
        let (state, now) = (&*self.state, Time::now());
        let may_join = |connection: &mut Connection| {
            // The round gives the reason why a node is not asked.
            let is_open = connection
                .look(state, Recipients::Granters)
                .is_ok_and(|open| open);
            let may_join = is_open && state.nodes[connection.number].may_join(now);
            may_join.then_some(connection.process)
        };
        Some(self.each.iter_mut().map(may_join).collect())
    }

    /// Does step 1 for the leases of a batch. Adds the commands of step 2.
    fn begin_joins<'b>(
        &self,
        batch: &'b [Renewal<'_>],
        may_join: Option<&MayJoin>,
        commands: &mut [Commands],
    ) -> Vec<JoinsAtNode<'b>> {
        let (state, now) = (&self.state, Time::now());
        let mut to_nodes = vec![JoinsAtNode::default(); self.each.len()];
        for keys in batch.chunk_by(|one, other| one.owner == other.owner) {
            let Renewal { owner, lease, .. } = &keys[0];
            let may_join = may_join.filter(|_| keys[0].may_join);
            let joins = (state.owners).begin_renewal(owner, (*lease, state.needed), may_join, now);
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
                let about = About::Ask {
                    owner: (**owner).into(),
                    may_have_owner: true,
                };
                commands[number].push((command.clone(), about));
                to_nodes[number].joins.push((owner, *lease));
            }
        }
        to_nodes
    }

    /// Notes how the joins ended.
    fn end_joins(&self, to_nodes: Vec<JoinsAtNode<'_>>) {
        let now = Time::now();
        for (connection, to_node) in self.each.iter().zip(to_nodes) {
            let is_open = connection.is_open();
            let asked_on = is_open.then_some(connection.id);
            // The end of the connection may have cut the write behind a join.
            let unheard = if to_node.is_unasked && is_open {
                Joined::Refused
            } else {
                Joined::Unknown
            };
            let ended = to_node.ended.into_iter().chain(std::iter::repeat(unheard));
            for ((owner, _), how) in to_node.joins.into_iter().zip(ended) {
                let ended = (how, connection.process);
                (self.state.owners).note(owner, connection.number, |vote| {
                    vote.end_join(ended, asked_on, now);
                });
            }
        }
    }
}

impl JoinsAtNode<'_> {
    /// Notes the answer of the node to the next join, which was written at `sent`.
    fn hear(&mut self, answer: &Value, sent: Time) {
        if let Some((_, lease)) = self.joins.get(self.ended.len()) {
            self.ended.push(match node_request::joined(answer) {
                Some(true) => Joined::Until(valid_until(sent, *lease)),
                Some(false) => Joined::Refused,
                None => Joined::Failed,
            });
        }
    }
}
