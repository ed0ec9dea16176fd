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
use crate::quorum::connection::NodeConnection;
use crate::quorum::round::{Enough, QuorumCall, Recipients};
use crate::quorum::state::QuorumState;
use crate::quorum::vote::{AT_ONCE, ConnectionId, NodeVote};
use crate::quorum::votes::LateAbout;
use crate::sys::{Arc, Time};
use crate::wire::quorum::{LockId, NodeGiveBack};
use crate::wire::{
    Command, GiveBack, Gone, Keep, NotReleased, PlainRelease, Reply, Verb, quorum as node_request,
};

/// The end of one owner of a lock.
pub(super) struct OwnerRelease<'a> {
    lock: LockId<'a>,
    owner: Arc<str>,
    units: u32,
    how: How,
}

enum How {
    /// Gives the lock up. `used` is the last fence that a guard had, if there may be unused ones.
    Release { used: Option<u64> },
    /// Gives up the lock, or the place in the queue.
    Withdraw,
    /// Gives the lock up, and keeps it from all processes for this time. Then the last fence that a guard had, if there
    /// may be unused ones.
    Keep(Duration, Option<u64>),
}

/// The commands to one node.
#[derive(Clone, Default)]
pub(super) struct ToNode {
    pub(super) commands: Vec<Command>,
    /// For each command, the place of its release, and the connection of the only request of unknown outcome.
    places: Vec<(usize, Option<ConnectionId>)>,
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
        let (owner, units, how) = match verb {
            Verb::Release { owner, units } => (owner, units, How::Release { used: None }),
            Verb::HandOver {
                owner,
                units,
                give_back,
            } => (owner, units, release(*give_back)),
            Verb::Withdraw { owner, units } => (owner, units, How::Withdraw),
            Verb::Keep(keep) => {
                let how = How::Keep(keep.life, used(keep.give_back));
                (&keep.owner, &keep.units, how)
            }
            // A quorum hands nothing over.
            Verb::Acquire { .. } | Verb::TakeOver { .. } => return None,
        };
        Some(Self {
            lock,
            owner: Arc::clone(owner),
            units: *units,
            how,
        })
    }

    /// Returns the end of a lease that is taken over.
    pub(super) fn of_lease(
        lock: LockId<'a>,
        owner: &Arc<str>,
        units: u32,
        give_back: Option<GiveBack>,
    ) -> Self {
        Self {
            lock,
            owner: Arc::clone(owner),
            units,
            how: release(give_back),
        }
    }
}

impl OwnerRelease<'_> {
    pub(super) fn owner(&self) -> &Arc<str> {
        &self.owner
    }

    /// Returns how many units the owner has.
    pub(super) fn units(&self) -> u32 {
        self.units
    }
}

fn release(give_back: Option<GiveBack>) -> How {
    How::Release {
        used: used(give_back),
    }
}

/// Returns the last fence that a guard had.
fn used(give_back: Option<GiveBack>) -> Option<u64> {
    give_back.map(|give_back| give_back.used)
}

impl Tally {
    /// Returns how many nodes have nothing any more.
    fn settled(&self) -> usize {
        self.released + self.gone() + self.have_nothing
    }

    fn gone(&self) -> usize {
        self.removed + self.taken
    }

    /// Returns whether further answers cannot change the result.
    fn is_certain(&self, nodes: usize, needed: usize) -> bool {
        let is_lost = self.gone() > 0 && self.gone() + self.have_nothing > nodes - needed;
        self.released >= needed || self.have_nothing >= needed || is_lost
    }

    /// Returns the result of the answers of `nodes` nodes. Returns `None` if too few have answered.
    fn result(&self, nodes: usize, needed: usize) -> Option<Reply> {
        let gone = if self.taken > 0 {
            Gone::Taken
        } else {
            Gone::Removed
        };
        if self.gone() > 0 && self.gone() + self.have_nothing > nodes - needed {
            return Some(Reply::NotOwner(gone));
        }
        (self.settled() >= needed).then_some(if self.is_contended {
            Reply::HandedOver
        } else {
            Reply::Released
        })
    }
}

impl QuorumCall<'_> {
    /// Ends one owner.
    pub(super) fn end_one(&mut self, release: OwnerRelease<'_>) -> Result<Reply, Failure> {
        let only = self.end(&[release])?.into_iter().next();
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
            how: How::Release { used: None },
        });
        let releases: Vec<_> = releases.collect();
        let replies = self.end(&releases)?.into_iter();
        let each = replies.map(|reply| reply.ok_or(NotReleased::Refused));
        Ok(Reply::Each(each.collect()))
    }

    /// Ends several owners by one round: the steps at the top. Returns the reply for each.
    fn end(&mut self, releases: &[OwnerRelease<'_>]) -> Result<Vec<Option<Reply>>, Failure> {
        let (state, nodes, sent) = (self.state, self.connections.len(), Time::now());
        let to_nodes = state.releases(releases);
        let mut failures = vec![None; nodes];
        let nothing = Tally {
            have_nothing: nodes,
            ..Tally::default()
        };
        let mut tallies = vec![nothing; releases.len()];
        for (place, _) in to_nodes.iter().flat_map(|to_node| &to_node.places) {
            tallies[*place].have_nothing -= 1;
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
        let mut is_asked = vec![true; nodes];
        let mut places: Vec<_> = to_nodes
            .iter()
            .map(|to_node| to_node.places.iter())
            .collect();
        let commands = |number: usize| to_nodes[number].some_commands();
        let mut confirmed = Vec::new();
        self.round(recipients, commands, &mut |number, answer| {
            match answer {
                Ok(value) => {
                    if let Some((place, asked_on)) = places[number].next() {
                        match tallies[*place].note(state, number, value) {
                            Ok(()) => confirmed.push((*place, number, *asked_on)),
                            Err(failure) => failures[number] = Some(failure),
                        }
                    }
                }
                Err(failure) => {
                    is_asked[number] = failure.outcome != Outcome::NotExecuted;
                    failures[number] = Some(failure);
                }
            }
            if tallies.iter().all(is_certain) {
                sufficient
            } else {
                Enough::No
            }
        });
        // On the connection of an earlier request, the node executes the release after it.
        let is_ordered = |connection: &NodeConnection, asked_on| asked_on == Some(connection.id());
        for (place, number, asked_on) in confirmed {
            let is_ordered = is_ordered(&self.connections[number], asked_on);
            state.confirmed(&releases[place], number, is_ordered, sent);
        }
        for (connection, places) in self.connections.iter_mut().zip(places) {
            if is_asked[connection.number()] {
                let about = |(place, asked_on): &(usize, _)| LateAbout::End {
                    owner: Arc::clone(&releases[*place].owner),
                    is_ordered: is_ordered(connection, *asked_on),
                };
                let abouts: Vec<_> = places.map(about).collect();
                connection.expect_late(abouts.into_iter());
            }
        }
        let is_told = |tally: &Tally| {
            tally.result(nodes, state.needed).is_some()
                || tally.settled() + tally.refused >= state.needed
        };
        if !tallies.iter().all(is_told) {
            let fewest = tallies.iter().map(|tally| tally.released).min();
            let failure = state.no_quorum(fewest.unwrap_or(0), failures);
            return Err(Failure {
                outcome: Outcome::Unknown,
                ..failure
            });
        }
        let replies = tallies
            .iter()
            .map(|tally| tally.result(nodes, state.needed));
        let replies: Vec<_> = replies.collect();
        if let ([None], [_]) = (&*replies, releases) {
            // The nodes reject it, and the caller must know the reason.
            return Err(Failure {
                outcome: Outcome::PartlyExecuted,
                ..state.no_quorum(tallies[0].released, failures)
            });
        }
        Ok(replies)
    }
}

impl ToNode {
    /// Returns the commands, unless there are none.
    pub(super) fn some_commands(&self) -> Option<&[Command]> {
        Some(&*self.commands).filter(|commands| !commands.is_empty())
    }
}

impl QuorumState {
    /// Notes that these owners end. Returns the commands that end them, for each node that may have one of them.
    pub(super) fn releases(&self, releases: &[OwnerRelease<'_>]) -> Vec<ToNode> {
        let (nodes, now) = (self.nodes.len(), Time::now());
        let mut to_nodes = vec![ToNode::default(); nodes];
        for (place, release) in releases.iter().enumerate() {
            let votes = self.votes.end(&release.owner, release.units, nodes, now);
            let has_votes = votes.iter().any(|vote| vote.until.is_some());
            for (vote, to_node) in votes.iter().zip(&mut to_nodes) {
                if vote.settles_at.is_some() {
                    to_node
                        .commands
                        .push(self.release(release, vote, has_votes));
                    to_node.places.push((place, vote.asked_on));
                }
            }
        }
        to_nodes
    }

    /// Notes that a node has confirmed the end of an owner. `is_ordered` as in [`Votes::confirmed`].
    pub(super) fn confirmed(
        &self,
        release: &OwnerRelease<'_>,
        number: usize,
        is_ordered: bool,
        sent: Time,
    ) {
        let times = (sent, Time::now());
        self.votes
            .confirmed(&release.owner, number, is_ordered, times);
    }

    /// Returns the command that ends an owner at a node with this vote. `has_votes`: some node has a vote.
    fn release(&self, release: &OwnerRelease<'_>, vote: &NodeVote, has_votes: bool) -> Command {
        let owner = (&*release.owner, release.units);
        // A node without a vote may have the owner in its queue. So may one that executes an earlier request later.
        let has_vote = vote.until.is_some();
        let may_wait = !has_vote || vote.settles_at > AT_ONCE;
        match release.how {
            How::Keep(life, used) if has_vote || !has_votes => {
                // The node answered the first fence, so its record stays there at least.
                let give_back = used.zip(vote.reserved).map(|(used, reserved)| GiveBack {
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
            How::Withdraw | How::Keep(..) => node_request::release(release.lock, owner, None, true),
            How::Release { used } => {
                let give_back = used
                    .zip(vote.reserved)
                    .map(|(used, reserved)| NodeGiveBack { used, reserved });
                node_request::release(release.lock, owner, give_back, may_wait)
            }
        }
    }
}

impl Tally {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::rules::majority;

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
