//! A round that gives locks up.
//!
//! 1. The request goes to every node that is up: also to one that gave no vote, because it may still have the owner.
//! 2. The round ends when a majority has answered. The other answers are dropped when they come.
//! 3. A node that was skipped, or did not answer, has the owner as a leftover: the background thread releases it there
//!    later.
//!
//! | the answers | the reply |
//! | --- | --- |
//! | released, at a majority | released |
//! | so many nodes did not have it that no majority did | it was removed, or taken |
//! | a majority answered | released; not contended |
//! | fewer | a failure of unknown outcome: the caller repeats the request |

use std::time::{Duration, Instant};

use redis::Value;

use crate::clock::Clock;
use crate::clock::SystemClock;
use crate::error::{Failure, Outcome};
use crate::message::{GiveBack, Gone, LockKind, Reply, Request, Verb};
use crate::name::{LockKey, Target};
use crate::script::quorum::{self as node_request, NodeGiveBack};
use crate::script::{self, ScriptRef};
use crate::store::quorum::Shared;
use crate::store::quorum::line::Line;
use crate::store::quorum::node::Leftover;
use crate::store::quorum::round::{Enough, gather};
use crate::sync::Arc;

/// The end of one owner of one mutex.
pub(super) struct Ending<'a> {
    key: &'a LockKey,
    owner: Arc<str>,
    how: How,
}

enum How {
    /// Gives the lock up. `used` is the last fence that a guard had, if there may be unused ones.
    Release { used: Option<u64> },
    /// Gives up the lock, or the place in the queue.
    Withdraw,
    /// Gives the lock up, and keeps it from all processes for this time.
    Keep(Duration),
}

/// How many nodes gave each answer about one owner.
#[derive(Clone, Copy, Default)]
struct Tally {
    released: usize,
    is_contended: bool,
    removed: usize,
    taken: usize,
}

impl<'a> Ending<'a> {
    /// The end of a lease that has no unused fences.
    pub(super) fn of_release(key: &'a LockKey, owner: &str) -> Self {
        let how = How::Release { used: None };
        Self::new(key, owner, how)
    }

    /// The end of a lease that may have unused fences.
    pub(super) fn of_lease(key: &'a LockKey, owner: &str, give_back: Option<GiveBack>) -> Self {
        let used = give_back.map(|give_back| give_back.used);
        Self::new(key, owner, How::Release { used })
    }

    /// The end of an owner on which nobody relies.
    pub(super) fn of_withdrawal(key: &'a LockKey, owner: &str) -> Self {
        Self::new(key, owner, How::Withdraw)
    }

    /// The end of a lease whose lock is kept from all processes for a while.
    pub(super) fn of_keep(key: &'a LockKey, owner: &str, life: Duration) -> Self {
        Self::new(key, owner, How::Keep(life))
    }

    fn new(key: &'a LockKey, owner: &str, how: How) -> Self {
        Self {
            key,
            owner: owner.into(),
            how,
        }
    }
}

impl Tally {
    fn answered(&self) -> usize {
        self.released + self.removed + self.taken
    }

    /// Returns the result of the answers of `nodes` nodes. Returns `None` if too few have answered.
    fn result(&self, nodes: usize, needed: usize) -> Option<Reply> {
        let gone = if self.taken > 0 {
            Gone::Taken
        } else {
            Gone::Removed
        };
        if self.removed + self.taken > nodes - needed {
            return Some(Reply::NotOwner(gone));
        }
        (self.answered() >= needed).then_some(if self.is_contended {
            Reply::HandedOver
        } else {
            Reply::Released
        })
    }
}

impl Shared {
    /// Ends one owner.
    pub(super) fn end_one(
        &self,
        lines: &mut [Line],
        ending: Ending<'_>,
        until: Instant,
    ) -> Result<Reply, Failure> {
        let replies = self.end(lines, &[ending], until)?;
        let only = replies.into_iter().next();
        only.ok_or_else(Failure::another_question)
    }

    /// Ends several owners by one round: the steps at the top. Returns the reply for each.
    pub(super) fn end(
        &self,
        lines: &mut [Line],
        endings: &[Ending<'_>],
        until: Instant,
    ) -> Result<Vec<Reply>, Failure> {
        let packed = self.packed_endings(endings);
        let mut failures = self.ask_each(lines, |number| {
            Some((packed[number].clone(), endings.len()))
        });
        let is_skipped: Vec<_> = failures.iter().map(Option::is_some).collect();
        let mut tallies = vec![Tally::default(); endings.len()];
        let mut answers = vec![0; lines.len()];
        gather(lines, until, &mut |number, answer| {
            match answer {
                Ok(value) => {
                    if let Some(tally) = tallies.get_mut(answers[number]) {
                        if let Err(failure) = tally.note(self, number, value) {
                            failures[number] = Some(failure);
                        }
                    }
                    answers[number] += 1;
                }
                Err(failure) => failures[number] = Some(failure),
            }
            let is_enough = |tally: &Tally| tally.answered() >= self.needed;
            if tallies.iter().all(is_enough) {
                Enough::Yes
            } else {
                Enough::No
            }
        });
        let nodes = lines.len();
        let replies: Option<Vec<_>> = tallies
            .iter()
            .map(|tally| tally.result(nodes, self.needed))
            .collect();
        let Some(replies) = replies else {
            let released = tallies.iter().map(|tally| tally.released).min();
            let failure = self.no_quorum(released.unwrap_or(0), failures);
            return Err(Failure {
                outcome: Outcome::Unknown,
                ..failure
            });
        };
        for ending in endings {
            self.forget(lines, ending, &is_skipped, &failures);
        }
        Ok(replies)
    }

    /// Returns the packed commands that end these owners, for each node.
    pub(super) fn packed_endings(&self, endings: &[Ending<'_>]) -> Vec<Vec<u8>> {
        let mut packed = vec![Vec::new(); self.nodes.len()];
        for ending in endings {
            let votes = match ending.how {
                How::Release { used: Some(_) } => self.votes.of(&ending.owner),
                _ => None,
            };
            for (number, packed) in packed.iter_mut().enumerate() {
                let command = match ending.how {
                    How::Keep(life) => {
                        let verb = Verb::Keep {
                            owner: Arc::clone(&ending.owner),
                            units: 1,
                            life,
                            give_back: None,
                        };
                        let request = Request::Lock {
                            kind: LockKind::Mutex,
                            target: &Target::from(ending.key.clone()),
                            verb: &verb,
                        };
                        script::encode(&request, ScriptRef::Digest, &self.script_settings)
                    }
                    How::Withdraw => node_request::release(ending.key, &ending.owner, None, true),
                    How::Release { used } => {
                        let reserved = votes.as_ref().and_then(|votes| votes[number].reserved);
                        let give_back = used
                            .zip(reserved)
                            .map(|(used, reserved)| NodeGiveBack { used, reserved });
                        node_request::release(ending.key, &ending.owner, give_back, false)
                    }
                };
                command.write_packed_command(packed);
            }
        }
        packed
    }

    /// Forgets the votes of an owner that has ended. Has it released later at each node that was skipped or has failed.
    pub(super) fn forget(
        &self,
        lines: &[Line],
        ending: &Ending<'_>,
        is_skipped: &[bool],
        failures: &[Option<Failure>],
    ) {
        let votes = self.votes.of(&ending.owner);
        self.votes.remove(&ending.owner);
        let now = SystemClock.now();
        for number in 0..lines.len() {
            if !is_skipped[number] && failures[number].is_none() {
                continue;
            }
            // Without a vote the node may have the owner all the same, but no longer than the longest of the others.
            let all = votes.iter().flatten();
            let until = all.filter_map(|vote| vote.until).max();
            if let Some(until) = until.filter(|until| *until > now) {
                let leftover = Leftover {
                    target: Target::from(ending.key.clone()),
                    owner: Arc::clone(&ending.owner),
                    until: until + until.since(now) / 100 + Duration::from_secs(1),
                };
                self.keep_leftover(number, leftover);
            }
        }
    }
}

impl Tally {
    fn note(&mut self, shared: &Shared, number: usize, value: Value) -> Result<(), Failure> {
        match node_request::released(&value) {
            Some(Reply::Released) => self.released += 1,
            Some(Reply::HandedOver) => {
                self.released += 1;
                self.is_contended = true;
            }
            Some(Reply::NotOwner(Gone::Removed)) => self.removed += 1,
            Some(Reply::NotOwner(Gone::Taken)) => self.taken += 1,
            _ => return Err(shared.unexpected(number, value)),
        }
        Ok(())
    }
}
