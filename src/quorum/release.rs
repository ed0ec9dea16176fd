//! A round that gives locks up.
//!
//! 1. The request goes to every node that is up and may have the owner ([`super::votes`]): also to one that gave no vote, because
//!    it may have the owner in its queue.
//! 2. The round ends when the result is certain.
//! 3. The nodes that have confirmed the owner's end are noted. So are those whose answers come later. The engine repeats the
//!    request for the others, until nothing is left (`engine/ending/`).
//!
//! | the answers | the reply |
//! | --- | --- |
//! | some say that it is gone, and no majority can have had it | it was removed, or taken |
//! | a majority has nothing now, or never had anything | released |
//! | a majority answered, and too few of them have released it, because the others reject the request | the failure of these nodes |
//! | fewer | a failure of unknown outcome: the caller repeats the request |

use redis::Value;

use crate::error::{Failure, Outcome};
use crate::quorum::QuorumState;
use crate::quorum::connection::{About, Commands, Connections, Enough, Recipients};
use crate::quorum::votes::{AtNode, Trace};
use crate::sys::{Arc, Time};
use crate::wire::quorum::Reserved;
use crate::wire::{
    Command, End, GiveBack, Gone, How, LockId, NotReleased, Reply, quorum as node_request,
};

/// The ends of owners at one node.
#[derive(Clone, Default)]
pub(super) struct EndsAtNode {
    pub(super) commands: Commands,
    /// For each command, the place of its release.
    places: Vec<usize>,
}

/// How many nodes gave each answer about one owner.
#[derive(Clone, Copy, Default)]
struct Tally {
    /// The nodes that were not asked, because they have nothing.
    have_nothing: usize,
    released: usize,
    is_contended: bool,
    removed: usize,
    taken: usize,
    /// The nodes that answered with an error.
    refused: usize,
}

impl Tally {
    /// Counts the answer of a node.
    fn note(&mut self, state: &QuorumState, number: usize, value: Value) -> Result<(), Failure> {
        match node_request::released(&value) {
            Some(Reply::Released) => self.released += 1,
            Some(Reply::HandedOver) => {
                self.released += 1;
                self.is_contended = true;
            }
            Some(Reply::NotOwner(Gone::Removed)) => self.removed += 1,
            Some(Reply::NotOwner(Gone::Taken)) => self.taken += 1,
            _ => {
                self.refused += 1;
                return Err(state.unexpected(number, value));
            }
        }
        Ok(())
    }

    /// Returns how many nodes have nothing any more.
    fn settled(&self) -> usize {
        self.released + self.removed + self.taken + self.have_nothing
    }

    /// Returns whether the owner has lost the lock: no majority can have had it.
    fn is_lost(&self, nodes: usize, needed: usize) -> bool {
        let gone = self.removed + self.taken;
        gone > 0 && gone + self.have_nothing > nodes - needed
    }

    /// Returns whether further answers cannot change the result.
    fn is_certain(&self, nodes: usize, needed: usize) -> bool {
        let is_certain = self.released >= needed || self.have_nothing >= needed;
        is_certain || self.is_lost(nodes, needed)
    }

    /// Returns the result of the answers of `nodes` nodes. Returns `None` if too few have answered.
    fn result(&self, nodes: usize, needed: usize) -> Option<Reply> {
        if self.is_lost(nodes, needed) {
            let taken = (self.taken > 0).then_some(Gone::Taken);
            return Some(Reply::NotOwner(Gone::of_all(taken.into_iter())));
        }
        (self.settled() >= needed).then_some(if self.is_contended {
            Reply::HandedOver
        } else {
            Reply::Released
        })
    }
}

impl Connections {
    /// Ends one owner.
    pub(super) fn end_one(&mut self, lock: LockId<'_>, end: &End) -> Result<Reply, Failure> {
        let only = self.end(&[(lock, end)])?.pop();
        only.flatten().ok_or_else(Failure::another_question)
    }

    /// Releases several locks by one round.
    pub(super) fn release_many(&mut self, batch: &[(LockId<'_>, &End)]) -> Result<Reply, Failure> {
        let replies = self.end(batch)?.into_iter();
        let each = replies.map(|reply| reply.ok_or(NotReleased::Refused));
        Ok(Reply::Each(each.collect()))
    }

    /// Ends several owners by one round: the steps at the top. Returns the reply for each.
    fn end(&mut self, batch: &[(LockId<'_>, &End)]) -> Result<Vec<Option<Reply>>, Failure> {
        let (state, nodes) = (Arc::clone(&self.state), self.each.len());
        let nothing = Tally {
            have_nothing: nodes,
            ..Tally::default()
        };
        let mut tallies = vec![nothing; batch.len()];
        let (mut commands, mut places) = (Vec::new(), Vec::new());
        for ends in state.ends(batch) {
            for place in &ends.places {
                tallies[*place].have_nothing -= 1;
            }
            commands.push(ends.commands);
            places.push(ends.places.into_iter());
        }
        let is_certain = |tally: &Tally| tally.is_certain(nodes, state.needed);
        let recipients = if tallies.iter().all(is_certain) {
            Recipients::Rest
        } else {
            Recipients::All
        };
        // Many late answers would keep the connection from its next request.
        let sufficient = if recipients == Recipients::Rest || batch.len() > 1 {
            Enough::Certain
        } else {
            Enough::Yes
        };
        let mut failures = vec![None; nodes];
        self.round(recipients, commands, &mut |number, answer| {
            let noted = answer.and_then(|value| match places[number].next() {
                Some(place) => tallies[place].note(&state, number, value),
                None => Ok(()),
            });
            if let Err(failure) = noted {
                failures[number] = Some(failure);
            }
            if tallies.iter().all(is_certain) {
                sufficient
            } else {
                Enough::No
            }
        });
        let result = |tally: &Tally| tally.result(nodes, state.needed);
        let is_told = |tally: &Tally| {
            result(tally).is_some() || tally.settled() + tally.refused >= state.needed
        };
        if !tallies.iter().all(is_told) {
            let fewest = tallies.iter().map(|tally| tally.released).min();
            let failure = state.no_quorum(fewest.unwrap_or(0), failures);
            return Err(failure.with(Outcome::Unknown));
        }
        let replies: Vec<_> = tallies.iter().map(result).collect();
        if let ([None], [_]) = (&*replies, batch) {
            // The nodes reject it, and the caller must know the reason.
            let failure = state.no_quorum(tallies[0].released, failures);
            return Err(failure.with(Outcome::PartlyExecuted));
        }
        Ok(replies)
    }
}

impl QuorumState {
    /// Notes that these owners end. Returns the commands that end them, for each node that may have one of them.
    pub(super) fn ends(&self, batch: &[(LockId<'_>, &End)]) -> Vec<EndsAtNode> {
        let (nodes, now) = (self.nodes.len(), Time::now());
        let mut to_nodes = vec![EndsAtNode::default(); nodes];
        for (place, (lock, end)) in batch.iter().enumerate() {
            let at_nodes = self.owners.end(&end.owner, nodes, now);
            let has_votes = at_nodes.iter().any(|at_node| at_node.until().is_some());
            for (at_node, to_node) in at_nodes.iter().zip(&mut to_nodes) {
                if at_node.may_have_owner() {
                    let command = self.end_at(*lock, end, at_node, has_votes);
                    to_node.commands.push(command);
                    to_node.places.push(place);
                }
            }
        }
        to_nodes
    }

    /// Returns the command that ends an owner at a node that has this of it. `has_votes`: some node has a vote.
    pub(super) fn end_at(
        &self,
        lock: LockId<'_>,
        end: &End,
        at_node: &AtNode,
        has_votes: bool,
    ) -> (Command, About) {
        // A node without a vote may have the owner in its queue. So may one that executes an earlier request later.
        let has_vote = at_node.until().is_some();
        let may_wait = !has_vote || at_node.trace > Trace::Has;
        let is_kept = !end.kept_for.is_zero() && (has_vote || !has_votes);
        let withdraws = end.how == How::Withdraw || !is_kept && may_wait;
        let end = End {
            how: if withdraws {
                How::Withdraw
            } else {
                How::HandOver
            },
            give_back: unused_at_node(end.give_back, at_node.reserved),
            ..end.clone()
        };
        let about = About::End {
            owner: Arc::clone(&end.owner),
            asked_on: at_node.asked_on,
        };
        let command = node_request::end(lock, &end, &self.script_settings);
        (command, about)
    }
}

/// Returns the fences that a node takes back. The node answered the first of those that it reserved, so its record stays there
/// at least. If the owner used larger ones than the node reserved, there are none. After a raise the record is larger than the
/// answer, and the node keeps it. The end of a raise must not be the last: a late copy of the raise would make it the record
/// again, after another owner's grant.
fn unused_at_node(unused: Option<GiveBack>, reserved: Option<Reserved>) -> Option<GiveBack> {
    let (GiveBack { used, .. }, Reserved { first, last }) = unused.zip(reserved)?;
    let used = used.max(first);
    (used < last).then_some(GiveBack { used, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::votes::majority;

    #[test]
    fn a_node_takes_only_unused_fences_back() {
        let reserved = Some(Reserved { first: 4, last: 9 });
        let unused_after = |used, reserved| {
            let unused = unused_at_node(Some(GiveBack { used, last: 7 }), reserved);
            unused.map(|GiveBack { used, last }| (used, last))
        };
        assert_eq!(unused_after(6, reserved), Some((6, 9)));
        // It has answered the first one.
        assert_eq!(unused_after(0, reserved), Some((4, 9)));
        // Another node has answered more.
        assert_eq!(unused_after(9, reserved), None);
        assert_eq!(unused_after(12, reserved), None);
        assert_eq!(unused_after(6, None), None);
        assert_eq!(unused_at_node(None, reserved), None);
    }

    #[test]
    fn what_is_certain_has_a_result() {
        for nodes in 1..=6 {
            let needed = majority(nodes);
            for number in 0..(nodes + 1).pow(3) {
                let digit = |place| number / (nodes + 1usize).pow(place) % (nodes + 1);
                let tally = Tally {
                    have_nothing: digit(0),
                    released: digit(1),
                    removed: digit(2),
                    ..Tally::default()
                };
                if tally.settled() <= nodes && tally.is_certain(nodes, needed) {
                    let result = tally.result(nodes, needed);
                    assert!(result.is_some(), "{number} of {nodes} nodes");
                }
            }
        }
    }
}
