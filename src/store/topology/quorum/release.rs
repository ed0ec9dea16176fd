//! A round that gives locks up.
//!
//! 1. The request goes to every node that is up: also to one that gave no vote, because it may still have the owner, as
//!    the holder or in its queue.
//! 2. The round ends when the result is certain. The other answers are dropped when they come.
//! 3. At a node that was skipped, or has failed, the owner may be left as an orphan: the background thread releases it
//!    there later. It does the same at a node that has not answered yet, unless that node executes the request.
//!
//! | the answers | the reply |
//! | --- | --- |
//! | released, at a majority | released |
//! | no majority can have had it | it was removed, or taken |
//! | a majority answered, and some have released it | released |
//! | a majority answered, and too few of them have released it, because the others reject the request | the failure of these nodes |
//! | fewer | a failure of unknown outcome: the caller repeats the request |

use std::time::Duration;

use redis::Value;

use crate::clock::{Clock, SystemClock};
use crate::core::lease::drift;
use crate::error::{Failure, Outcome};
use crate::message::{GiveBack, Gone, LockKind, NotReleased, PlainRelease, Reply, Request, Verb};
use crate::name::Target;
use crate::script::quorum::{self as node_request, LockId, NodeGiveBack};
use crate::script::{self, Command};
use crate::store::topology::quorum::node::Orphan;
use crate::store::topology::quorum::round::{Enough, QuorumCall, Recipients};
use crate::store::topology::quorum::state::QuorumState;
use crate::sync::Arc;

/// For how long a node may have an owner in its queue: a waiter that does not ask again for 3 s loses its place.
const LEFT_IN_QUEUE: Duration = Duration::from_secs(3);

/// The answer of a node to the command that ends an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It has answered, or there was no such command.
    Answer,
    /// Nothing yet. This many commands were sent to it afterwards.
    Nothing { sent_after: usize },
    /// It was not asked, or has failed.
    Failure,
}

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

/// How many nodes gave each answer about one owner.
#[derive(Clone, Copy, Default)]
struct Tally {
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
            Verb::Keep {
                owner,
                units,
                life,
                give_back,
            } => (owner, units, How::Keep(*life, used(*give_back))),
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
    /// Returns how many units the owner has.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Returns the owner, to be released in the background at a node that may have it for this time.
    fn orphan(&self, length: Duration) -> Orphan {
        let now = SystemClock.now();
        Orphan {
            kind: self.lock.kind,
            target: self.lock.target.clone(),
            owner: Arc::clone(&self.owner),
            units: self.units,
            until: now + length,
            repeated_after: None,
            due: now,
        }
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
    fn answered(&self) -> usize {
        self.released + self.gone()
    }

    fn gone(&self) -> usize {
        self.removed + self.taken
    }

    /// Returns whether further answers cannot change the result.
    fn is_certain(&self, nodes: usize, needed: usize) -> bool {
        self.released >= needed || self.gone() > nodes - needed
    }

    /// Returns the result of the answers of `nodes` nodes. Returns `None` if too few have answered.
    fn result(&self, nodes: usize, needed: usize) -> Option<Reply> {
        let gone = if self.taken > 0 {
            Gone::Taken
        } else {
            Gone::Removed
        };
        if self.gone() > nodes - needed {
            return Some(Reply::NotOwner(gone));
        }
        (self.answered() >= needed).then_some(if self.is_contended {
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

    /// Releases several mutexes by one round.
    pub(super) fn release_many(&mut self, batch: &[PlainRelease<'_>]) -> Result<Reply, Failure> {
        let targets: Vec<_> = batch
            .iter()
            .map(|release| Target::from(release.key.clone()))
            .collect();
        let releases: Vec<_> = batch
            .iter()
            .zip(&targets)
            .map(|(release, target)| OwnerRelease {
                lock: LockId {
                    kind: LockKind::Mutex,
                    target,
                },
                owner: release.owner.into(),
                units: 1,
                how: How::Release { used: None },
            })
            .collect();
        let replies = self.end(&releases)?.into_iter();
        let each = replies.map(|reply| reply.ok_or(NotReleased::Refused));
        Ok(Reply::Each(each.collect()))
    }

    /// Ends several owners by one round: the steps at the top. Returns the reply for each.
    fn end(&mut self, releases: &[OwnerRelease<'_>]) -> Result<Vec<Option<Reply>>, Failure> {
        let (state, nodes) = (self.state, self.connections.len());
        let commands = state.releases(releases);
        let mut failures = vec![None; nodes];
        let mut tallies = vec![Tally::default(); releases.len()];
        let mut answers = vec![0; nodes];
        let (recipients, enough) = match releases {
            [_] => (Recipients::Majority, Enough::Yes),
            // The number of late answers would keep the connection from the next request.
            _ => (Recipients::All, Enough::Almost),
        };
        let commands = |number: usize| Some(&commands[number][..]);
        self.round(recipients, commands, &mut |number, answer| {
            match answer {
                Ok(value) => {
                    if let Some(tally) = tallies.get_mut(answers[number]) {
                        if let Err(failure) = tally.note(state, number, value) {
                            failures[number] = Some(failure);
                        }
                    }
                    answers[number] += 1;
                }
                Err(failure) => failures[number] = Some(failure),
            }
            let is_certain = |tally: &Tally| tally.is_certain(nodes, state.needed);
            if tallies.iter().all(is_certain) {
                enough
            } else {
                Enough::No
            }
        });
        let is_told = |tally: &Tally| {
            tally.result(nodes, state.needed).is_some()
                || tally.answered() + tally.refused >= state.needed
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
        for (place, release) in releases.iter().enumerate() {
            if replies[place].is_some() {
                self.forget(release, |number| match failures[number] {
                    Some(_) => Heard::Failure,
                    None if answers[number] > place => Heard::Answer,
                    None => Heard::Nothing {
                        sent_after: releases.len() - 1 - place,
                    },
                });
            }
        }
        Ok(replies)
    }

    /// Forgets the votes of an owner that has ended. Has it released later at each node that has not confirmed the end.
    pub(super) fn forget(&mut self, release: &OwnerRelease<'_>, heard: impl Fn(usize) -> Heard) {
        let removed = self.state.votes.remove(&release.owner);
        let (votes, longest) = removed.unwrap_or_default();
        // A node may have executed any request about the owner, even the last one, and even without a vote.
        let length = (longest + drift(longest)).max(LEFT_IN_QUEUE);
        let mut orphan = None;
        let mut orphan = || {
            let made = orphan.get_or_insert_with(|| release.orphan(length));
            made.clone()
        };
        let is_kept = matches!(release.how, How::Keep(..));
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let has_vote = votes.get(number).is_some_and(|vote| vote.until.is_some());
            if is_kept && !has_vote {
                // The node has kept nothing, but it may have the owner in its queue.
                let owner = (&*release.owner, release.units);
                let withdrawal = node_request::release(release.lock, owner, None, true);
                connection.send_and_forget(withdrawal, Some(orphan()));
                continue;
            }
            match heard(number) {
                Heard::Answer => {}
                Heard::Nothing { sent_after } => connection.release_later(sent_after, orphan()),
                Heard::Failure => self.state.keep_orphan(number, orphan()),
            }
        }
    }
}

impl QuorumState {
    /// Returns the commands that end these owners, for each node.
    pub(super) fn releases(&self, releases: &[OwnerRelease<'_>]) -> Vec<Vec<Command>> {
        let mut commands = vec![Vec::with_capacity(releases.len() + 1); self.nodes.len()];
        for release in releases {
            let owner = (&*release.owner, release.units);
            let votes = match release.how {
                How::Withdraw => None,
                How::Release { .. } | How::Keep(..) => self.votes.of(&release.owner),
            };
            // A node without a vote may have the owner in its queue.
            let has_vote = |number: usize| {
                let vote = votes.as_ref().map(|votes| votes[number]);
                vote.is_some_and(|vote| vote.until.is_some())
            };
            for (number, commands) in commands.iter_mut().enumerate() {
                commands.push(match release.how {
                    How::Keep(life, used) => {
                        let reserved = votes.as_ref().and_then(|votes| votes[number].reserved);
                        // The node answered the first fence, so its record stays there at least.
                        let give_back = used.zip(reserved).map(|(used, reserved)| GiveBack {
                            used: used.max(reserved.first),
                            last: reserved.last,
                        });
                        let verb = Verb::Keep {
                            owner: Arc::clone(&release.owner),
                            units: release.units,
                            life,
                            give_back: give_back.filter(|block| block.used < block.last),
                        };
                        let request = Request::Lock {
                            kind: release.lock.kind,
                            target: release.lock.target,
                            verb: &verb,
                        };
                        script::encode(&request, &self.script_settings)
                    }
                    How::Withdraw => node_request::release(release.lock, owner, None, true),
                    How::Release { used } => {
                        let reserved = votes.as_ref().and_then(|votes| votes[number].reserved);
                        let give_back = used
                            .zip(reserved)
                            .map(|(used, reserved)| NodeGiveBack { used, reserved });
                        node_request::release(release.lock, owner, give_back, !has_vote(number))
                    }
                });
            }
        }
        commands
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
