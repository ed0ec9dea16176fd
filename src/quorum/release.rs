//! A round that gives locks up.
//!
//! 1. The request goes to every node that is up and may have the owner ([`super::votes`]): also to one that gave no vote, because
//!    it may have the owner in its queue.
//! 2. The round ends when the result is certain.
//! 3. The nodes that have confirmed the owner's end are noted. So are those whose answers come later. The engine repeats the
//!    request for the others, until nothing is left ([`crate::engine::ending::rules`]).
//!
//! | the answers | the reply |
//! | --- | --- |
//! | some say that it is gone, and no majority can have had it | it was removed, or taken |
//! | a majority has nothing now, or never had anything | released |
//! | a majority answered, and too few of them have released it, because the others reject the request | the failure of these nodes |
//! | fewer | a failure of unknown outcome: the caller repeats the request |

use std::time::Duration;

use redis::Value;

use crate::error::{Failure, Outcome};
use crate::quorum::QuorumState;
use crate::quorum::connection::{About, Commands, Connections, Enough, Recipients};
use crate::quorum::votes::{AtNode, Trace};
use crate::sys::{Arc, Time};
use crate::wire::quorum::{LockId, NodeGiveBack};
use crate::wire::{
    Command, GiveBack, Gone, Keep, NotReleased, PlainRelease, Reply, Verb, quorum as node_request,
};

/// The end of one owner of a lock.
pub(super) struct OwnerRelease<'a> {
    pub(super) lock: LockId<'a>,
    pub(super) owner: Arc<str>,
    pub(super) units: u32,
    /// The last fence that a guard had, if there may be unused ones.
    pub(super) used: Option<u64>,
    pub(super) how: How,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Gives the lock up.
    Release,
    /// Gives up the lock, or the place in the queue.
    Withdraw,
    /// Gives the lock up, and keeps it from all processes for this time.
    Keep(Duration),
}

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

impl<'a> OwnerRelease<'a> {
    /// Returns the end of an owner by this verb. Returns `None` if the verb asks for a lock.
    pub(super) fn of(lock: LockId<'a>, verb: &Verb) -> Option<Self> {
        let used = |give_back: &Option<GiveBack>| give_back.map(|give_back| give_back.used);
        let (owner, units, used, how) = match verb {
            Verb::Release { owner, units } => (owner, units, None, How::Release),
            Verb::HandOver {
                owner,
                units,
                give_back,
            } => (owner, units, used(give_back), How::Release),
            Verb::Withdraw { owner, units } => (owner, units, None, How::Withdraw),
            Verb::Keep(keep) => {
                let how = How::Keep(keep.life);
                (&keep.owner, &keep.units, used(&keep.give_back), how)
            }
            // A quorum hands nothing over.
            Verb::Acquire { .. } | Verb::TakeOver { .. } => return None,
        };
        Some(Self {
            lock,
            owner: Arc::clone(owner),
            units: *units,
            used,
            how,
        })
    }
}

impl Tally {
    /// Takes in the answer of a node.
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
    pub(super) fn end_one(&mut self, release: OwnerRelease<'_>) -> Result<Reply, Failure> {
        let only = self.end(&[release])?.pop();
        only.flatten().ok_or_else(Failure::another_question)
    }

    /// Releases several locks by one round.
    pub(super) fn release_many(&mut self, batch: &[PlainRelease<'_>]) -> Result<Reply, Failure> {
        let releases = batch.iter().map(|release| OwnerRelease {
            lock: LockId {
                kind: release.kind,
                target: release.target,
            },
            owner: release.owner.into(),
            units: release.units,
            used: None,
            how: How::Release,
        });
        let releases: Vec<_> = releases.collect();
        let replies = self.end(&releases)?.into_iter();
        let each = replies.map(|reply| reply.ok_or(NotReleased::Refused));
        Ok(Reply::Each(each.collect()))
    }

    /// Ends several owners by one round: the steps at the top. Returns the reply for each.
    fn end(&mut self, releases: &[OwnerRelease<'_>]) -> Result<Vec<Option<Reply>>, Failure> {
        let (state, nodes) = (Arc::clone(&self.state), self.each.len());
        let nothing = Tally {
            have_nothing: nodes,
            ..Tally::default()
        };
        let mut tallies = vec![nothing; releases.len()];
        let (mut commands, mut places) = (Vec::new(), Vec::new());
        for ends in state.releases(releases) {
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
        let sufficient = if recipients == Recipients::Rest || releases.len() > 1 {
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
        if let ([None], [_]) = (&*replies, releases) {
            // The nodes reject it, and the caller must know the reason.
            let failure = state.no_quorum(tallies[0].released, failures);
            return Err(failure.with(Outcome::PartlyExecuted));
        }
        Ok(replies)
    }
}

impl QuorumState {
    /// Notes that these owners end. Returns the commands that end them, for each node that may have one of them.
    pub(super) fn releases(&self, releases: &[OwnerRelease<'_>]) -> Vec<EndsAtNode> {
        let (nodes, now) = (self.nodes.len(), Time::now());
        let mut to_nodes = vec![EndsAtNode::default(); nodes];
        for (place, release) in releases.iter().enumerate() {
            let at_nodes = self.owners.end(&release.owner, release.units, nodes, now);
            let has_votes = at_nodes.iter().any(|at_node| at_node.until().is_some());
            for (at_node, to_node) in at_nodes.iter().zip(&mut to_nodes) {
                if at_node.may_have_owner() {
                    to_node
                        .commands
                        .push(self.end_at(release, at_node, has_votes));
                    to_node.places.push(place);
                }
            }
        }
        to_nodes
    }

    /// Returns the command that ends an owner at a node that has this of it. `has_votes`: some node has a vote.
    pub(super) fn end_at(
        &self,
        release: &OwnerRelease<'_>,
        at_node: &AtNode,
        has_votes: bool,
    ) -> (Command, About) {
        let owner = (&*release.owner, release.units);
        let unused = release.used.zip(at_node.reserved);
        let has_vote = at_node.until().is_some();
        let command = match release.how {
            How::Keep(life) if has_vote || !has_votes => {
                // The node answered the first fence, so its record stays there at least.
                let give_back = unused.map(|(used, reserved)| GiveBack {
                    used: used.max(reserved.first),
                    last: reserved.last,
                });
                let keep = Keep {
                    owner: Arc::clone(&release.owner),
                    units: release.units,
                    life,
                    wakes: true,
                    give_back: give_back.filter(|block| block.used < block.last),
                };
                node_request::keep(release.lock, &keep, &self.script_settings)
            }
            How::Keep(_) => node_request::release(release.lock, owner, None, true),
            How::Release | How::Withdraw => {
                // A node without a vote may have the owner in its queue. So may one that executes an earlier request later.
                let may_wait = !has_vote || at_node.trace > Trace::Has;
                let is_withdrawal = release.how == How::Withdraw || may_wait;
                let give_back = unused.map(|(used, reserved)| NodeGiveBack { used, reserved });
                node_request::release(release.lock, owner, give_back, is_withdrawal)
            }
        };
        let about = About::End {
            owner: Arc::clone(&release.owner),
            asked_on: at_node.asked_on,
        };
        (command, about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::votes::majority;

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
