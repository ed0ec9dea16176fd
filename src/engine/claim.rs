//! How a hold goes from one guard to another that is elsewhere: detached here, adopted there.
//!
//! # Detaching
//!
//! 1. The lease is renewed once more, so that whoever adopts it has time; whatever comes of that is no matter.
//! 2. The lease is ended here, and nothing is sent: in Redis the lock stays its owner's. From here on the guard is none,
//!    and only now can there be a claim. Threads that wait here ask Redis, and queue there.
//!
//! A guard that was lost before, or is a copy in a forked child, gives a claim of an owner that nobody ever was.
//!
//! A request of the owner's own that is still in doubt may yet take the lock when it has become free. Nobody can cancel
//! it, since that would release the claim; it costs the others a lease, once.
//!
//! # Adopting
//!
//! One script replaces the claim's owner by a new one, so of all who try one succeeds. What a manager knows of a claim:
//!
//! | what is known | event | what is known then, and what the caller is told |
//! | --- | --- | --- |
//! | nothing | a call | asks under a new owner |
//! | tried under some owner | a call | asks under that owner again; it is not known to other calls meanwhile |
//! | asks | granted | nothing; the guard |
//! | asks | another has it, or it is gone | nothing; lost |
//! | asks | failed, certainly not carried out | as before the call; why |
//! | asks | failed otherwise, or granted too late | tried under this owner; why |
//! | tried | time enough for all to have run out has passed | nothing |
//!
//! So an answer that was lost costs nothing but another call: that finds the owner it had in place of the claim's. An
//! owner is still one attempt's, which goes on in that call, for no release was ever sent for it. And it never has a
//! second guard: with its grant it is known no more, so every other call asks under an owner of its own, and finds it.
//!
//! Nothing has to be cleaned up. A request that is carried out late either finds the claim's owner, or does nothing; and
//! that owner never comes back. Where nobody calls again, the lock ends with its lease.

use std::collections::HashMap;

use crate::claim::Claim;
use crate::clock::Time;
use crate::core::attempt::Grant;
use crate::core::lease::{LeaseStatus, valid_until};
use crate::core::queue::Queue;
use crate::engine::Engine;
use crate::engine::guard_inner::GuardInner;
use crate::engine::process_lease::{Entry, Turn};
use crate::engine::release::Mode;
use crate::error::{Error, Failure, Lost, LostCause, Result};
use crate::message::{Adopt, Call, Gone, Kind, Reply};
use crate::name::LockKey;
use crate::owner;
use crate::sync::{Arc, Mutex};

/// The owners that claims were tried under without a clear answer, by the claims' own owners.
#[derive(Default)]
pub(super) struct Tried(Mutex<HashMap<Arc<str>, Vec<Candidate>>>);

/// An owner to adopt a claim under.
struct Candidate {
    owner: Arc<str>,
    /// Until when it may have the lock; none where it was never asked for.
    until: Option<Time>,
}

impl Tried {
    /// Takes out those of one claim.
    fn take(&self, claimed: &str) -> Vec<Candidate> {
        self.0.lock().remove(claimed).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn count(&self, claimed: &str) -> usize {
        self.0.lock().get(claimed).map_or(0, Vec::len)
    }

    /// Puts back those of a claim that may have the lock, and forgets whatever no longer can.
    fn keep(&self, claimed: &str, candidates: Vec<Candidate>, now: Time) {
        let may_have_it = |candidate: &Candidate| candidate.until.is_some_and(|until| until > now);
        let mut tried = self.0.lock();
        tried.entry(claimed.into()).or_default().extend(candidates);
        tried.retain(|_, candidates| {
            candidates.retain(may_have_it);
            !candidates.is_empty()
        });
    }
}

impl GuardInner {
    /// Ends this guard and leaves the lock held.
    pub(crate) fn detach(mut self) -> Claim {
        if self.process_lease.terms.renew {
            if let Ok((left, _)) = self.status() {
                self.renew(self.process_lease.terms.lease(), left).ok();
            }
        }
        let owner = if self.end_for_claim() {
            self.engine.owner_of(&self.process_lease)
        } else {
            owner::generate(&*self.engine.rng, &self.engine.settings.label)
        };
        Claim::new(self.name().into(), owner, self.fence())
    }

    /// False where it was lost before, or is none of this process's.
    fn end_for_claim(&mut self) -> bool {
        match self.end_turn(Mode::Detach) {
            Ok((status, Some(_))) => {
                self.engine.release_over(&self.process_lease.entry);
                matches!(status, LeaseStatus::Live(_))
            }
            Ok((_, None)) | Err(_) => false,
        }
    }
}

impl Engine {
    /// Makes a guard's holding of a claim.
    pub(crate) fn adopt(self: &Arc<Self>, claim: &Claim) -> Result<GuardInner> {
        self.check_open()?;
        let key = LockKey::new(&self.settings.prefix, claim.name())?;
        let entry = self.names.pin(Kind::Mutex, &key.into());
        let adopted = self.ask_to_adopt(&entry, claim);
        self.names.unpin(&entry);
        let (turn, since) = adopted?;
        let (max_hold, min_hold) = (
            self.settings.options.max_hold,
            self.settings.options.min_hold,
        );
        Ok(GuardInner::new(
            Arc::clone(self),
            turn,
            since,
            max_hold,
            min_hold,
        ))
    }

    fn ask_to_adopt(self: &Arc<Self>, entry: &Arc<Entry>, claim: &Claim) -> Result<(Turn, Time)> {
        let asked = self.now();
        let mut candidates = self.tried.take(claim.owner());
        if candidates.is_empty() {
            candidates.push(Candidate {
                owner: owner::generate(&*self.rng, &self.settings.label),
                until: None,
            });
        }
        let mut gone = Gone::Removed;
        // Several only where several calls had no answer: one of them may have the lock, as long as none has said so.
        while let Some(candidate) = candidates.last_mut() {
            let failure = match self.adopt_as(entry, claim, candidate) {
                Ok(Ok(grant)) => {
                    let terms = self.settings.options.terms();
                    let count = |turn: &Turn, now: Time| {
                        self.count_guard(turn, now.since(asked), true);
                    };
                    let begun = self.begin_lease(entry, terms, 1, grant, Queue::given, count);
                    return begun.map_err(|failure| failure.into_error(Some(entry.target.name())));
                }
                Ok(Err(now)) => {
                    gone = now;
                    candidates.pop();
                    continue;
                }
                Err(failure) => failure,
            };
            self.tried.keep(claim.owner(), candidates, self.now());
            return Err(failure.into_error(Some(entry.target.name())));
        }
        Err(Error::Lost(Lost {
            name: entry.target.name().into(),
            fence: claim.fence(),
            cause: match gone {
                Gone::Removed => LostCause::Removed,
                Gone::Taken => LostCause::Taken,
            },
        }))
    }

    /// Asks under one owner; where it is not known what came of that, notes so.
    fn adopt_as(
        &self,
        entry: &Entry,
        claim: &Claim,
        candidate: &mut Candidate,
    ) -> Result<Result<Grant, Gone>, Failure> {
        let lease = self.settings.options.lease;
        let adopt = Adopt {
            owner: Arc::clone(&candidate.owner),
            lease,
            from: claim.owner().into(),
            last: claim.fence(),
        };
        let (key, sent) = (entry.target.first(), self.now());
        let call = Call::Adopt { key, adopt: &adopt };
        let answer = self.send(&call, self.limits(None));
        let failure = match answer.map(|answer| answer.reply) {
            Ok(Reply::Granted {
                fence, contended, ..
            }) if self.now() < valid_until(sent, lease) => {
                return Ok(Ok(Grant {
                    owner: adopt.owner,
                    fence,
                    fences: 1,
                    rest: Vec::new(),
                    sent,
                    deadline: valid_until(sent, lease),
                    contended,
                    // Carried out late, it takes nothing that has become free.
                    uncertain_until: None,
                    kept_until: None,
                }));
            }
            Ok(Reply::NotOwner(gone)) => return Ok(Err(gone)),
            Ok(Reply::Granted { .. }) => Failure::too_late(),
            Ok(_) => Failure::another_question(),
            Err(failure) => failure,
        };
        if failure.unknown || failure.half_done {
            // It may be carried out up to a lease after it was sent, and the lock then lives for another.
            candidate.until = Some(sent + lease * 2);
        }
        Err(failure)
    }
}
