//! Claims: a guard is detached in one process, and another process (or the same) adopts the lock.
//!
//! # Detaching
//!
//! 1. The thread renews the lease once, so that the adopter has time. A failure of this renewal is ignored.
//! 2. The lease ends in this process ([`HoldEnd::Detach`]). No request is sent, so Redis keeps the lock for the same
//!    owner. A thread that waits in this process becomes the delegate, and queues in Redis.
//! 3. If an earlier request of the owner has an unknown outcome, the thread adopts the lock under a new owner, for at least
//!    as long as Redis keeps it. The renewal thread then withdraws the old owner.
//! 4. Only after that is the claim made of the name, the owner and the fence.
//!
//! An example of why step 3 is there: A sends an acquire twice, and the second copy is granted. A detaches, B adopts the
//! claim, and releases the lock. Then the first copy arrives, and the lock has the owner of the claim again. Without step 3,
//! C could adopt the claim now. Step 3 is left out if the renewal has failed. If it is not executed, the claim has the old
//! owner. If its outcome stays unknown, the claim has the old owner too, and its adoption returns `Lost` if Redis has executed
//! step 3.
//!
//! If the guard was lost before, or belongs to a forked child, the claim has a new owner that Redis does not know. Its
//! adoption returns `Lost`.
//!
//! # Adopting
//!
//! One script replaces the claim's owner by a new owner, so only one of several adopters succeeds. For each claim, the
//! manager keeps the owners under which it has tried to adopt without a clear reply ([`Tried`]):
//!
//! | kept owners | event | kept owners then | the call |
//! | --- | --- | --- | --- |
//! | none | a call | none | asks under a new owner |
//! | some | a call | none, so that no other call uses them | asks under the last of them |
//! | | granted in time | none | returns the guard |
//! | | Redis has neither this owner nor the claim's | none | asks under the next of its owners; after the last one, returns `Lost` |
//! | | failed: not executed | the owners of the call, without one that was never asked for | returns the error |
//! | | failed otherwise, or granted too late | the owners of the call | returns the error |
//! | some | their leases must be over | none | |
//!
//! If a reply is lost, the caller calls again: the script then finds the owner of the lost request in place of the
//! claim's, and grants. No two guards share an owner, because an owner is no longer kept once it has a grant. No
//! release is ever sent for a kept owner, so it can be asked for again. The exception is a quorum that has granted the
//! lock too late: it has released the owner at the nodes that had not answered, and the others decide.
//!
//! Nothing must be cleaned up. A request that Redis executes late either replaces the claim's owner or does nothing. If
//! no call follows, the lock ends with its lease.

use crate::claim::Claim;
use crate::config::{Options, Terms};
use crate::engine::Engine;
use crate::engine::attempt::Grant;
use crate::engine::lease::guard::Lease;
use crate::engine::lease::process_lease::Hold;
use crate::engine::lease::release::HoldEnd;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::queue::Entry;
use crate::engine::queue::rules::GrantedTo;
use crate::error::{Error, Failure, Lost, Outcome, Result};
use crate::name::LockKey;
use crate::net::deadline::Deadline;
use crate::owner;
use crate::server::Answer;
use crate::sys::hash::HashMap;
use crate::sys::{Arc, Mutex, Time};
use crate::wire::{Adopt, Gone, LockKind, Reply, Request};
use std::time::Duration;

/// How often a detaching thread adopts its lock without a clear reply.
const MOST_TRIES: u32 = 3;

/// The owners of adoptions without a clear reply, by the owner of the claim.
#[derive(Default)]
pub(crate) struct Tried(Mutex<HashMap<Arc<str>, Vec<Candidate>>>);

/// An owner under which to adopt a claim.
struct Candidate {
    owner: Arc<str>,
    /// The time until which Redis may keep the lock for this owner. `None` if no request may have been executed.
    until: Option<Time>,
}

impl Tried {
    /// Removes and returns the owners for one claim.
    fn take(&self, claimed: &str) -> Vec<Candidate> {
        self.0.lock().remove(claimed).unwrap_or_default()
    }

    /// Keeps those owners for a claim that may have the lock. Drops all owners, of any claim, that can no longer have
    /// it.
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

impl Lease {
    /// Ends this guard, and leaves the lock in Redis for the claim. Blocks until Redis has replied to one renewal, and for
    /// step 3.
    pub(crate) fn detach(mut self) -> Claim {
        let mut is_reached = true;
        if self.process_lease.terms.renew {
            if let Ok((left, _)) = self.status() {
                let renewed = self.renew(self.process_lease.terms.lease(), left);
                is_reached = renewed.is_ok();
            }
        }
        // The claim has the lock, unless the guard was lost before, or the process is a forked child.
        let mut left = None;
        self.finished = true;
        if let Ok((status, Some(_))) = self.end_hold(HoldEnd::Detach) {
            self.engine.let_next_thread_ask(&self.process_lease.entry);
            if let LeaseStatus::Live(rest) = status {
                left = Some(rest);
            }
        }
        let client = &self.engine.client;
        let owner = match left {
            Some(left) => self.owner_of_claim(left, is_reached),
            None => owner::generate(client.machine(), &client.tail),
        };
        Claim::new(self.name().into(), owner, self.fence)
    }

    /// Does step 3 of detaching, for at most the rest of the lease. Returns the owner of the claim.
    fn owner_of_claim(&self, left: Duration, is_reached: bool) -> Arc<str> {
        let (engine, process_lease) = (&self.engine, &self.process_lease);
        let (client, entry) = (&engine.client, &process_lease.entry);
        let now = client.now();
        let from = engine.ended_owner(process_lease, None, now);
        let is_uncertain = from.uncertain_until.is_some_and(|until| until > now);
        if !is_uncertain || !is_reached {
            return from.owner;
        }
        let terms = process_lease.terms;
        let lease = if terms.renew { terms.lease() } else { left };
        let tail = owner::tail_of(&from.owner).unwrap_or(&client.tail);
        let adopt = Adopt {
            owner: owner::generate(client.machine(), tail),
            lease,
            from: Arc::clone(&from.owner),
            last: self.fence,
            fencing: terms.fencing,
            shortens: false,
        };
        if !engine.is_adopted(entry, &adopt, now + left) {
            return from.owner;
        }
        engine.clean_up(entry, from, lease);
        adopt.owner
    }
}

impl Engine {
    /// Sends an adoption until its outcome is known, a few times and until this time at most. Returns whether Redis has
    /// executed it.
    fn is_adopted(&self, entry: &Arc<Entry>, adopt: &Adopt, until: Time) -> bool {
        for _ in 0..MOST_TRIES {
            let deadline = self.client.deadline(Some(until));
            let failure = match self.send_adoption(entry, adopt, deadline) {
                Ok(answer) => return matches!(answer.reply, Reply::Granted { .. }),
                Err(failure) => failure,
            };
            match failure.outcome {
                Outcome::NotExecuted => return false,
                // Too few replicas have confirmed it.
                Outcome::PartlyExecuted => return true,
                Outcome::Unknown if self.client.now() >= until => return false,
                Outcome::Unknown => {}
            }
        }
        false
    }

    /// Sends an adoption, and makes the renewal thread release what it leaves at the nodes of a quorum.
    fn send_adoption(
        &self,
        entry: &Arc<Entry>,
        adopt: &Adopt,
        deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let key = entry.target.first();
        let answer = (self.client).send(&Request::Adopt { key, adopt }, deadline);
        for owner in [&adopt.owner, &adopt.from] {
            self.clean_up_nodes(entry, owner, 1);
        }
        answer
    }

    /// Adopts a claim, with these options and a new owner with this tail. Blocks until Redis has replied.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        claim: &Claim,
        options: &Options,
        tail: &str,
    ) -> Result<Lease> {
        let client = &self.client;
        client.check_open()?;
        let terms = client.settings.checked_terms(options)?;
        let key = LockKey::new(&client.settings.prefix, claim.name())?;
        let entry = self.names.pin(LockKind::Mutex, &key.into());
        let adopted = self.ask_to_adopt(&entry, claim, terms, tail);
        self.names.unpin(&entry);
        Ok(Lease::new(Arc::clone(self), adopted?, options))
    }

    /// Asks under each owner that may have the lock, or under a new one. Returns the first hold.
    fn ask_to_adopt(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        claim: &Claim,
        terms: Terms,
        tail: &str,
    ) -> Result<Hold> {
        let client = &self.client;
        let _called = client.machine().begin_call();
        let asked = client.now();
        let mut candidates = self.tried.take(claim.owner());
        if candidates.is_empty() {
            candidates.push(Candidate {
                owner: owner::generate(client.machine(), tail),
                until: None,
            });
        }
        let mut gone = Gone::Removed;
        // There are several only if several calls got no reply. Any one of them may have the lock.
        while let Some(candidate) = candidates.last_mut() {
            let failure = match self.adopt_as(entry, claim, terms, candidate) {
                Ok(Ok(grant)) => {
                    let count = |hold: &Hold| {
                        client.count_guard(hold, hold.since.since(asked), true);
                    };
                    let begun = self.begin_lease(entry, grant, GrantedTo::OtherThread, count);
                    return begun.map_err(|failure| failure.into_error(Some(entry.target.name())));
                }
                Ok(Err(now)) => {
                    gone = now;
                    candidates.pop();
                    continue;
                }
                Err(failure) => failure,
            };
            self.tried.keep(claim.owner(), candidates, client.now());
            return Err(failure.into_error(Some(entry.target.name())));
        }
        Err(Error::Lost(Lost {
            name: entry.target.name().into(),
            fence: claim.fence(),
            cause: gone.into(),
        }))
    }

    /// Asks under one owner. If the outcome is unknown, notes the time until which this owner may have the lock.
    fn adopt_as(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        terms: Terms,
        candidate: &mut Candidate,
    ) -> Result<Result<Grant, Gone>, Failure> {
        let (client, lease) = (&self.client, terms.lease());
        let adopt = Adopt {
            owner: Arc::clone(&candidate.owner),
            lease,
            from: claim.owner().into(),
            last: claim.fence(),
            fencing: terms.fencing,
            shortens: true,
        };
        let sent = client.now();
        let deadline = client.deadline(None);
        let answer = self.send_adoption(entry, &adopt, deadline);
        let now = client.now();
        // An adoption that Redis executes late never takes a free lock. So the grant is certain.
        let granted = answer.and_then(|answer| match answer.reply {
            Reply::NotOwner(gone) => Ok(Err(gone)),
            reply => {
                let fences = u64::from(adopt.fencing);
                let owner = Arc::clone(&adopt.owner);
                Grant::of_reply(reply, owner, terms, fences, sent, now).map(Ok)
            }
        });
        let failure = match granted {
            Ok(granted) => return Ok(granted),
            Err(failure) => failure,
        };
        if failure.outcome != Outcome::NotExecuted {
            // Redis may execute the request up to a lease after it was sent. Then the lock lives for one more lease.
            candidate.until = Some(sent + lease * 2);
        }
        Err(failure)
    }
}
