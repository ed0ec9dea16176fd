//! A round that renews leases: one batch for each node, written to all of them before an answer is read.
//!
//! The votes decide how long a lease lasts ([`super::votes`]). The round waits for all nodes that are well, because
//! each of them moves its own vote. A node that hangs does not delay the votes of the others ([`super::round`]).
//!
//! A node that has restarted renews nothing until it may vote: it may have forgotten who holds the lock. In the same write
//! the renewal thread asks nodes without a vote to join ([`super::join`]).

use crate::error::{Failure, Outcome};
use crate::quorum::round::{Enough, QuorumCall, Recipients};
use crate::quorum::votes::{Confirmation, MayJoin, Round, VoteStatus};
use crate::sys::Time;
use crate::wire::lifetime::valid_until;
use crate::wire::{self, Renewal, Renewed, Reply, Request};

impl QuorumCall<'_> {
    /// Renews leases. Returns the result for each key. The keys of one owner come after each other, and have one
    /// result.
    pub(super) fn renew(&mut self, batch: &[Renewal<'_>]) -> Result<Vec<Renewed>, Failure> {
        let (sent, state) = (Time::now(), self.state);
        let request = Request::Renew(batch);
        let renewal = [wire::encode(&request, &state.script_settings)];
        let may_join = self.may_join();
        let may_join = may_join.as_deref();
        let mut joins = self.begin_joins(batch, may_join);
        let with_joins = joins.iter().map(|joins| joins.behind(&renewal[0]));
        let with_joins: Vec<Vec<_>> = with_joins.collect();
        let mut failures = vec![None; self.connections.len()];
        let mut answers: Vec<Option<Vec<Renewed>>> = vec![None; self.connections.len()];
        // How many nodes have answered, and how many of them have confirmed all leases.
        let (mut answered, mut confirmed) = (0, 0);
        let mut has_answered = vec![false; self.connections.len()];
        let commands = |number: usize| {
            let with_joins = &with_joins[number];
            Some(if with_joins.is_empty() {
                &renewal[..]
            } else {
                with_joins
            })
        };
        self.round(Recipients::Voters, commands, &mut |number, answer| {
            if has_answered[number] || answer.is_err() {
                joins[number].hear(&answer, sent);
            }
            if !has_answered[number] {
                has_answered[number] = true;
                let reply = answer.and_then(|value| state.decode(number, &request, value));
                match reply.and_then(Reply::renewed) {
                    Ok(results) => {
                        confirmed += usize::from(results.iter().all(Renewed::is_confirmed));
                        answers[number] = Some(results);
                        answered += 1;
                    }
                    Err(failure) => failures[number] = Some(failure),
                }
            }
            Enough::certain_if(confirmed >= state.needed)
        });
        let voted = self.votes_of(batch, sent, may_join, &answers);
        // After the votes: the node has executed a join after the renewal.
        self.end_joins(joins);
        // With few answers the votes count too: a lease may have lost one.
        if answered == 0 {
            let is_unsent = |failure: &Failure| failure.outcome == Outcome::NotExecuted;
            let outcome = if failures.iter().flatten().all(is_unsent) {
                Outcome::NotExecuted
            } else {
                Outcome::Unknown
            };
            let failure = state.no_quorum(answered, failures);
            return Err(Failure { outcome, ..failure });
        }
        Ok(voted)
    }

    /// Takes in what each node answered to the renewal of a batch. Returns the result for each key.
    fn votes_of(
        &self,
        batch: &[Renewal<'_>],
        sent: Time,
        may_join: Option<&MayJoin>,
        answers: &[Option<Vec<Renewed>>],
    ) -> Vec<Renewed> {
        let mut results = Vec::with_capacity(batch.len());
        for one_owner in batch.chunk_by(|one, other| one.owner == other.owner) {
            let first = results.len();
            let result = self.votes_of_owner(one_owner, sent, may_join, |node, key| {
                answers[node].as_ref().map(|results| results[first + key])
            });
            results.resize(first + one_owner.len(), result);
        }
        results
    }

    /// Takes in what the nodes answered about the keys of one owner. `answer` returns the answer of a node about a key.
    fn votes_of_owner(
        &self,
        keys: &[Renewal<'_>],
        sent: Time,
        may_join: Option<&MayJoin>,
        answer: impl Fn(usize, usize) -> Option<Renewed>,
    ) -> Renewed {
        let (state, now) = (self.state, Time::now());
        let mut is_contended = false;
        let mut confirmation = |node: usize| {
            let mut all = Confirmation::Confirmed;
            for key in 0..keys.len() {
                match answer(node, key) {
                    Some(Renewed::Done { contended }) => is_contended |= contended,
                    Some(Renewed::Gone(gone)) => {
                        return Confirmation::Gone(gone, self.connections[node].process());
                    }
                    _ => all = Confirmation::Silent,
                }
            }
            all
        };
        let confirmations: Vec<_> = (0..state.nodes.len()).map(&mut confirmation).collect();
        let round = Round {
            confirmations: &confirmations,
            sent,
            until: valid_until(sent, keys[0].lease),
            needed: state.needed,
            may_join,
        };
        let status = state.votes.renewed(&keys[0].owner, round, now);
        match status {
            VoteStatus::Lasts {
                until,
                version,
                is_confirmed,
                lacks_votes,
                has_new_misses,
            } => Renewed::Voted {
                contended: is_contended,
                until,
                version,
                is_confirmed,
                lacks_votes,
                has_new_misses,
            },
            VoteStatus::Lost(gone) => Renewed::Gone(gone),
        }
    }
}
