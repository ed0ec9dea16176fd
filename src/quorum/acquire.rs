//! Rounds that ask for a lock, and the adoption of one that was detached.
//!
//! | step | the thread |
//! | --- | --- |
//! | 1 | Every node that is up and may vote is asked, with one reading of this process's clock. A take-over sends the release of the former owner in the same write. |
//! | 2 | The answers are votes ([`verdict`]). |
//! | 3, granted | The fences are chosen ([`choose`]). If a chosen node has reserved too few, it is asked to raise its record. If one refuses, go on as after a split. |
//! | 4, granted | The votes are kept. A node that has not answered has no vote, even if it grants the lock later. It may join ([`super::renew`]). A node that answered "held" may have the owner in its queue until the release or a join. |
//! | 3, split | The owner that has the first node of those that answered keeps its votes for a moment, and asks the others again. All others withdraw, and ask again later. So one of them wins, and they do not hinder each other again and again. |
//! | 3, held | The owner is withdrawn from the nodes that granted it. At the others it stays in the queue. If no node granted it, it may ask again. |
//! | 3, too few | The owner is withdrawn everywhere. |
//!
//! A withdrawal goes to a node on the connection of the request, so the node executes it after the request. Nobody
//! waits for its answer. It is noted when it comes, and until then the node may have the owner ([`super::votes`]). If the
//! connection of a request without an answer was closed, the node may execute that request later: after the withdrawal,
//! which is not final then, or when another owner has had the lock. So a repeat gives no vote there.
//!
//! # Adoption
//!
//! A mutex was detached, and each node that has it under the detached owner gives it the new one.
//!
//! | the answers | the next step |
//! | --- | --- |
//! | a majority adopted it | the fences are settled, and the votes kept, as after an acquire. At the other nodes both owners are withdrawn |
//! | the detached owner has no majority any more | the new owner is withdrawn; the claim is lost |
//! | fewer answers | the nodes that adopted it take the detached owner back, so that the claim can be adopted later. A node that cannot be asked to may keep the new owner. No release is sent to it, because it must not free the lock. The caller asks under the same owner again, which that node grants. |
//!
//! The process that detached the lock may have asked a slow node to join ([`super::renew`]). If that node executes the join
//! after the adoption, it has the detached owner until the lease of the join is over, and gives the new owner no vote
//! before.

use std::time::Duration;

use crate::error::{Failure, Outcome};
use crate::name::{LockKey, Target};
use crate::quorum::QuorumState;
use crate::quorum::connection::{About, Connections, Enough, Recipients};
use crate::quorum::release::OwnerRelease;
use crate::quorum::votes::{
    AtNode, AtNodes, Chosen, ConnectionId, Ends, NodeVote, Trace, Verdict, choose, verdict,
};
use crate::sys::{Arc, Time, thread, wall_us};
use crate::wire::lifetime::valid_until;
use crate::wire::quorum::{LockId, NodeGiveBack, Reserved, ReservedByName, Vote};
use crate::wire::{Adopt, Ask, Command, Gone, LockKind, Reply, quorum as node_request};

/// How often an owner that keeps its votes after a split asks the other nodes again.
const ASKS_ON: u32 = 4;
/// The pause before it asks them for the first time. Each further pause is longer by as much.
const ASKS_ON_AFTER: Duration = Duration::from_micros(500);

/// An attempt to get the votes of a majority.
struct Ballot<'a> {
    state: &'a QuorumState,
    lock: LockId<'a>,
    ask: &'a Ask,
    /// The votes, and the reasons why there is none.
    votes: Vec<Option<Vote>>,
    failures: Vec<Option<Failure>>,
    /// The connection of the first request of unknown outcome that may have put the owner there. If it was closed, the
    /// request is *cut*: the node may execute it after any later request, and has no vote.
    unanswered: Vec<Option<ConnectionId>>,
}

impl Connections {
    /// Asks for a lock: the table at the top. `former` is released in the same write.
    pub(super) fn acquire(
        &mut self,
        lock: LockId<'_>,
        ask: &Ask,
        former: Option<&OwnerRelease<'_>>,
    ) -> Result<Reply, Failure> {
        self.check_once()?;
        let (sent, state) = (Time::now(), Arc::clone(&self.state));
        let mut ballot = Ballot::new(&state, lock, ask);
        let was_writer =
            lock.kind == LockKind::Read && former.is_some_and(|former| former.units != ask.units);
        let request =
            node_request::acquire(lock, ask, was_writer, wall_us(), &state.script_settings);
        ballot.ask(self, &request, former);
        let mut result = verdict(&ballot.votes);
        let mut pause = ASKS_ON_AFTER;
        for _ in 0..ASKS_ON {
            if result != Verdict::Split || !ballot.has_first() || Time::now() + pause >= self.until
            {
                break;
            }
            thread::sleep(pause);
            pause += ASKS_ON_AFTER;
            ballot.ask(self, &request, None);
            result = verdict(&ballot.votes);
        }
        let granted = ballot.granted_votes().count();
        match result {
            Verdict::Granted => match ballot.settle_fences(self) {
                Ok((chosen, count)) => Ok(ballot.granted(self, &chosen, count, sent)),
                Err(granted) => Ok(ballot.outvoted(self, granted, None)),
            },
            Verdict::Held { holder, ttl } if ballot.may_have_nothing() => {
                if ask.channel.is_some() {
                    ballot.note(ballot.left_behind(), None);
                }
                Ok(Reply::Held {
                    ttl,
                    holder,
                    handed_over: false,
                })
            }
            Verdict::Held { holder, ttl } => {
                Ok(ballot.outvoted(self, granted, Some((holder, ttl))))
            }
            Verdict::Split => Ok(ballot.outvoted(self, granted, None)),
            Verdict::TooFew => {
                ballot.withdraw(self, true);
                let failure = state.no_quorum(granted, ballot.failures);
                // Until then the nodes had less than `node_timeout`.
                let timed_out = failure.is_transient() && Time::now() >= self.until;
                Err(Failure {
                    timed_out,
                    ..failure
                })
            }
        }
    }

    /// Adopts a mutex: the second table at the top.
    pub(super) fn adopt(&mut self, key: &LockKey, adopt: &Adopt) -> Result<Reply, Failure> {
        self.check_once()?;
        let (sent, state) = (Time::now(), Arc::clone(&self.state));
        let target = Target::from(key.clone());
        let lock = LockId {
            kind: LockKind::Mutex,
            target: &target,
        };
        let ask = |owner: &Arc<str>, lease| Ask {
            owner: Arc::clone(owner),
            units: 1,
            lease,
            fences: u64::from(adopt.fencing),
            shareable_owner: None,
            channel: None,
            nonce: None,
        };
        let request = |adopt: &Adopt| {
            let settings = &state.script_settings;
            node_request::adopt(key, adopt, wall_us(), settings)
        };
        let new = ask(&adopt.owner, adopt.lease);
        let mut ballot = Ballot::new(&state, lock, &new);
        let spare = state.nodes.len() - state.needed;
        let (mut adopted, mut gone, mut why) = (0, 0, Gone::Removed);
        let mut is_unanswered = vec![true; state.nodes.len()];
        let commands = vec![vec![(request(adopt), about(&new))]; state.nodes.len()];
        self.round(Recipients::Granters, commands, &mut |number, answer| {
            is_unanswered[number] = is_of_unknown_outcome(&answer);
            match answer.map(|value| (node_request::adopted(lock, adopt.fencing, &value), value)) {
                Ok((Some(Ok(vote)), _)) => {
                    ballot.votes[number] = Some(vote);
                    adopted += 1;
                }
                Ok((Some(Err(now)), _)) => {
                    gone += 1;
                    // A node that has only missed the adoption by another owner says "removed".
                    why = if now == Gone::Taken { now } else { why };
                }
                Ok((None, value)) => {
                    ballot.failures[number] = Some(state.unexpected(number, value));
                }
                Err(failure) => ballot.failures[number] = Some(failure),
            }
            Enough::certain_if(adopted >= state.needed || gone > spare)
        });
        for (number, connection) in self.each.iter().enumerate() {
            ballot.unanswered[number] = is_unanswered[number].then_some(connection.id);
        }
        if gone > spare {
            ballot.withdraw(self, true);
            return Ok(Reply::NotOwner(why));
        }
        let settled = ballot.settle_fences(self);
        if let Ok((chosen, count)) = settled {
            let reply = ballot.granted(self, &chosen, count, sent);
            // Where the adoption is not confirmed, the detached owner may still be.
            let old = ask(&adopt.from, state.owners.unknown_lease.max(adopt.lease));
            let mut rest = Ballot::new(&state, lock, &old);
            for (vote, unanswered) in ballot.votes.iter().zip(&mut rest.unanswered) {
                // The request that has acquired the lock may have been sent on an earlier connection.
                *unanswered = vote.is_none().then(ConnectionId::default);
            }
            rest.withdraw(self, true);
            return Ok(reply);
        }
        // The claim must stay valid.
        let back = request(&Adopt {
            owner: Arc::clone(&adopt.from),
            from: Arc::clone(&adopt.owner),
            ..adopt.clone()
        });
        let mut outcome = Outcome::NotExecuted;
        for (number, connection) in self.each.iter_mut().enumerate() {
            if ballot.votes[number].is_some() || ballot.unanswered[number].is_some() {
                outcome = Outcome::Unknown;
                connection.tell(&state, back.clone(), About::Nothing);
            }
        }
        // The next adoption asks under this owner again, perhaps without a node that may still have it.
        ballot.note(ballot.left_behind(), None);
        let failure = state.no_quorum(settled.err().unwrap_or(adopted), ballot.failures);
        Err(failure.with(outcome))
    }
}

impl<'a> Ballot<'a> {
    fn new(state: &'a QuorumState, lock: LockId<'a>, ask: &'a Ask) -> Self {
        let nodes = state.nodes.len();
        Self {
            state,
            lock,
            ask,
            votes: vec![None; nodes],
            failures: vec![None; nodes],
            unanswered: vec![None; nodes],
        }
    }

    /// Does steps 1 and 2: asks each node that has not granted the lock, and may vote.
    fn ask(
        &mut self,
        call: &mut Connections,
        request: &Command,
        former: Option<&OwnerRelease<'_>>,
    ) {
        let (state, lock) = (self.state, self.lock);
        let ends = former.map(|former| state.releases(std::slice::from_ref(former)));
        let mut commands = ends.map_or_else(
            || vec![Vec::new(); self.votes.len()],
            |ends| ends.into_iter().map(|end| end.commands).collect(),
        );
        // Whether the next answer of the node is about the former owner.
        let mut is_of_former: Vec<_> = commands.iter().map(|ends| !ends.is_empty()).collect();
        let mut may_have_owner = vec![false; self.votes.len()];
        let mut is_unanswered = vec![false; self.votes.len()];
        for number in 0..self.votes.len() {
            if self.unanswered[number].is_some() {
                call.each[number].look(state, Recipients::All).ok();
            }
            let is_granted = matches!(self.votes[number], Some(Vote::Granted { .. }));
            if is_granted || self.is_cut(call, number) {
                continue;
            }
            commands[number].push((request.clone(), about(self.ask)));
            // A node that answered "held" may have the owner in its queue.
            let was_held = self.votes[number].take().is_some();
            may_have_owner[number] =
                self.unanswered[number].is_some() || was_held && self.ask.channel.is_some();
            self.failures[number] = None;
            is_unanswered[number] = true;
        }
        let has_fences = self.ask.fences > 0;
        call.round(Recipients::Granters, commands, &mut |number, answer| {
            if answer.is_ok() && std::mem::take(&mut is_of_former[number]) {
                return enough(state.needed, &self.votes, &self.failures);
            }
            // An earlier request without an answer may have been executed even so.
            is_unanswered[number] = may_have_owner[number] || is_of_unknown_outcome(&answer);
            match answer {
                Ok(value) => {
                    let vote = node_request::vote(lock, has_fences, &value);
                    is_unanswered[number] &= vote.is_none();
                    if vote.is_none() {
                        self.failures[number] = Some(state.unexpected(number, value));
                    }
                    self.votes[number] = vote;
                }
                Err(failure) => self.failures[number] = Some(failure),
            }
            enough(state.needed, &self.votes, &self.failures)
        });
        for (number, connection) in call.each.iter().enumerate() {
            if self.is_cut(call, number) {
                self.votes[number] = None;
            } else if self.unanswered[number].is_none() || !is_unanswered[number] {
                self.unanswered[number] = is_unanswered[number].then_some(connection.id);
            }
        }
    }

    /// Returns whether the connection of a request without an answer was closed.
    fn is_cut(&self, call: &Connections, number: usize) -> bool {
        self.unanswered[number].is_some_and(|id| call.each[number].is_closed(id))
    }

    /// Returns whether this owner has the first node of those that answered.
    fn has_first(&self) -> bool {
        let first = self.votes.iter().flatten().next();
        matches!(first, Some(Vote::Granted { .. }))
    }

    /// Returns the nodes that granted the lock, and the fences that they reserved.
    fn granted_votes(&self) -> impl Iterator<Item = (usize, &ReservedByName, bool)> {
        self.votes
            .iter()
            .enumerate()
            .filter_map(|(number, vote)| match vote {
                Some(Vote::Granted { fences, contended }) => Some((number, fences, *contended)),
                _ => None,
            })
    }

    /// Returns whether no node has granted the lock, or may still do so.
    fn may_have_nothing(&self) -> bool {
        self.granted_votes().next().is_none() && self.unanswered.iter().all(Option::is_none)
    }

    /// Does step 3 after a grant. Returns the choice, and how many fences the lease has.
    ///
    /// # Errors
    ///
    /// Returns how many nodes have granted the fence, if that is no majority because a chosen node did not raise its
    /// record.
    pub(super) fn settle_fences(&self, call: &mut Connections) -> Result<(Chosen, u64), usize> {
        let granted: Vec<_> = self
            .granted_votes()
            .map(|(number, fences, _)| (number, fences.clone()))
            .collect();
        let Some(chosen) = choose(&granted, self.state.needed) else {
            return Err(granted.len());
        };
        if self.ask.fences == 0 {
            return Ok((chosen, 0));
        }
        // A lock of several names has one fence for each, so only the first name has a block.
        let fence = chosen.fences[0];
        let mut end = fence + self.ask.fences - 1;
        for (number, fences) in &granted {
            if chosen.nodes.contains(number) && !chosen.low.contains(number) {
                end = end.min(fences[0].last);
            }
        }
        if chosen.low.is_empty() {
            return Ok((chosen, end + 1 - fence));
        }
        let raise = node_request::raise(
            self.lock,
            (&self.ask.owner, self.ask.units),
            &chosen.fences,
            self.ask.fences,
            &self.state.script_settings,
        );
        let mut commands = call.to_all(&raise);
        for (number, commands) in commands.iter_mut().enumerate() {
            commands.retain(|_| chosen.low.contains(&number));
        }
        let (mut raised, mut failed) = (0, 0);
        call.round(Recipients::All, commands, &mut |_, answer| {
            let records = answer.ok().and_then(|value| node_request::raised(&value));
            match records {
                Some(Ok(records)) if reaches(&records, &chosen.fences) => {
                    end = end.min(records[0]);
                    raised += 1;
                }
                _ => failed += 1,
            }
            if failed > 0 || raised == chosen.low.len() {
                Enough::Yes
            } else {
                Enough::No
            }
        });
        if raised == chosen.low.len() {
            return Ok((chosen, end + 1 - fence));
        }
        Err(chosen.nodes.len() - chosen.low.len() + raised)
    }

    /// Does step 4 after a grant.
    fn granted(
        &mut self,
        call: &mut Connections,
        chosen: &Chosen,
        count: u64,
        sent: Time,
    ) -> Reply {
        let until = valid_until(sent, self.ask.lease);
        let mut votes = self.left_behind();
        let mut is_contended = false;
        for (number, fences, contended) in self.granted_votes() {
            is_contended |= contended;
            votes[number].vote = NodeVote::Until(until);
            votes[number].process = call.each[number].process;
            votes[number].reserved = self.reserved(fences);
        }
        for (number, connection) in call.each.iter().enumerate() {
            if let Some(id) = self.unanswered[number] {
                votes[number].process = connection.process;
                // Otherwise another request of unknown outcome is on its way.
                votes[number].asked_on = Some(id).filter(|id| !connection.is_closed(*id));
            }
        }
        let mut ends: Ends = chosen.fences.as_slice().into();
        // A block of `count` fences begins with the first name's.
        ends[0] += count.max(1) - 1;
        self.note(votes, Some(ends));
        Reply::Granted {
            fence: chosen.fences[0],
            count: Some(count),
            rest: chosen.fences[1..].to_vec(),
            contended: is_contended,
        }
    }

    /// Withdraws the owner, and returns that it must not ask again. Without a holder the votes are split, and the owner
    /// also leaves the queues.
    fn outvoted(
        &mut self,
        call: &mut Connections,
        granted: usize,
        held: Option<(Arc<str>, Option<Duration>)>,
    ) -> Reply {
        self.withdraw(call, held.is_none());
        let (holder, ttl) = held.map_or((None, None), |(holder, ttl)| (Some(holder), ttl));
        Reply::Outvoted {
            holder,
            ttl,
            counts: self.state.counts(granted),
        }
    }

    /// Withdraws the owner from each node that granted it, or may do so. `everywhere`: also from the queues. Otherwise
    /// the caller withdraws it again if it is in a queue.
    fn withdraw(&mut self, call: &mut Connections, everywhere: bool) {
        let (left_behind, now) = (self.left_behind(), Time::now());
        self.note(left_behind.clone(), None);
        if everywhere || self.ask.channel.is_none() {
            let (ask, votes) = (self.ask, &self.state.owners);
            votes.end(&ask.owner, ask.units, left_behind.len(), now);
        }
        for (number, vote) in left_behind.iter().enumerate() {
            let is_in_queue = matches!(self.votes[number], Some(Vote::Held(_)));
            if vote.may_have_owner() && (everywhere || !is_in_queue) {
                self.withdraw_from(call, number);
            }
        }
    }

    /// Returns what the requests may have left at each node. It has no votes yet.
    fn left_behind(&self) -> AtNodes {
        let lease_from_now = Time::now() + self.ask.lease;
        let trace = |number: usize| match &self.votes[number] {
            Some(Vote::Granted { .. }) => Trace::Has,
            Some(Vote::Held(_)) if self.ask.channel.is_some() => Trace::Has,
            None if self.unanswered[number].is_some() => Trace::Until(lease_from_now),
            _ => Trace::Nothing,
        };
        let nodes = (0..self.votes.len()).map(trace);
        nodes.map(AtNode::new).collect()
    }

    /// Notes what the nodes have of the owner; with its last fences if it was granted the lock.
    fn note(&self, votes: AtNodes, ends: Option<Ends>) {
        let (ask, now) = (self.ask, Time::now());
        let table = &self.state.owners;
        table.insert(&ask.owner, (ask.units, ask.lease), votes, ends, now);
    }

    /// Returns the fences of the first name that a node has reserved. Returns `None` if the lock has no fence.
    fn reserved(&self, fences: &ReservedByName) -> Option<Reserved> {
        fences.first().copied().filter(|_| self.ask.fences > 0)
    }

    fn withdraw_from(&self, call: &mut Connections, number: usize) {
        let reserved = match &self.votes[number] {
            Some(Vote::Granted { fences, .. }) => self.reserved(fences),
            _ => None,
        };
        let owner = &self.ask.owner;
        let give_back = reserved.map(|reserved: Reserved| NodeGiveBack { used: 0, reserved });
        let command = node_request::release(self.lock, (owner, self.ask.units), give_back, true);
        let about = About::End {
            owner: Arc::clone(owner),
            asked_on: (!self.is_cut(call, number)).then_some(call.each[number].id),
        };
        call.each[number].tell(self.state, command, about);
    }
}

/// Returns whether the votes suffice, or nobody can have a majority any more.
fn enough(needed: usize, votes: &[Option<Vote>], failures: &[Option<Failure>]) -> Enough {
    let granted = |vote: &&Option<Vote>| matches!(vote, Some(Vote::Granted { .. }));
    let granted = votes.iter().filter(granted).count();
    let held = votes.iter().flatten().count() - granted;
    let failed = failures.iter().flatten().count();
    let spare = votes.len() - needed;
    if failed > spare {
        Enough::Yes
    } else if granted >= needed || held > spare {
        Enough::Certain
    } else {
        Enough::No
    }
}

/// Returns what an answer to a request for a lock is about.
fn about(ask: &Ask) -> About {
    About::Ask {
        owner: Arc::clone(&ask.owner),
        may_have_owner: ask.channel.is_some(),
    }
}

/// Returns whether a node that was asked has not answered.
fn is_of_unknown_outcome<T>(answer: &Result<T, Failure>) -> bool {
    matches!(answer, Err(failure) if failure.outcome != Outcome::NotExecuted)
}

/// Returns whether the records of a node have reached the fences, each that of its name.
fn reaches(records: &[u64], fences: &[u64]) -> bool {
    let mut pairs = records.iter().zip(fences);
    records.len() == fences.len() && pairs.all(|(record, fence)| record >= fence)
}
