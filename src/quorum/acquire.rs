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

use redis::Value;

use crate::error::{Failure, Outcome};
use crate::name::{LockKey, Target};
use crate::quorum::QuorumState;
use crate::quorum::connection::{About, Connections, Enough, Recipients};
use crate::quorum::votes::{
    AtNode, AtNodes, Chosen, ConnectionId, Ends, NodeVote, Trace, Verdict, choose, verdict,
};
use crate::sys::{Arc, Time, thread, wall_us};
use crate::wire::lifetime::valid_until;
use crate::wire::quorum::{ReservedByName, Vote};
use crate::wire::{
    Adopt, Ask, Command, End, GiveBack, Gone, How, LockId, LockKind, Reply, quorum as node_request,
};

/// How often an owner that keeps its votes after a split asks the other nodes again.
const ASKS_ON: u32 = 4;
/// The pause before it asks them for the first time. Each further pause is longer by as much.
const ASKS_ON_AFTER: Duration = Duration::from_micros(500);

/// An attempt to get the votes of a majority.
struct Ballot<'a> {
    call: &'a mut Connections,
    state: Arc<QuorumState>,
    lock: LockId<'a>,
    ask: &'a Ask,
    request: Command,
    /// Reads an answer to the request.
    read: &'a dyn Fn(&Value) -> Option<Vote>,
    nodes: Vec<Asked>,
}

/// One node of the ballot, and its answer.
#[derive(Clone, Default)]
struct Asked {
    vote: Option<Vote>,
    /// Why there is no vote.
    failure: Option<Failure>,
    /// The connection of the first request of unknown outcome that may have put the owner there. If it was closed, the
    /// request is *cut*: the node may execute it after any later request, and has no vote.
    unanswered: Option<ConnectionId>,
}

impl Asked {
    fn has_granted(&self) -> bool {
        matches!(self.vote, Some(Vote::Granted { .. }))
    }
}

impl Connections {
    /// Asks for a lock: the table at the top. The lease that it takes over ends in the same write.
    pub(super) fn acquire(&mut self, lock: LockId<'_>, ask: &Ask) -> Result<Reply, Failure> {
        self.check_once()?;
        let sent = Time::now();
        let request = node_request::acquire(lock, ask, wall_us(), &self.state.script_settings);
        let read = |value: &Value| node_request::vote(lock, ask.fences > 0, value);
        let mut ballot = Ballot::new(self, lock, ask, request, &read);
        ballot.ask(ask.ending.as_ref());
        let mut result = ballot.verdict();
        let mut pause = ASKS_ON_AFTER;
        for _ in 0..ASKS_ON {
            let is_time = Time::now() + pause < ballot.call.until;
            if result != Verdict::Split || !ballot.has_first() || !is_time {
                break;
            }
            thread::sleep(pause);
            pause += ASKS_ON_AFTER;
            ballot.ask(None);
            result = ballot.verdict();
        }
        let granted = ballot.granted().count();
        match result {
            Verdict::Granted => match ballot.settle_fences() {
                Ok((chosen, count)) => Ok(ballot.win(&chosen, count, sent)),
                Err(granted) => Ok(ballot.outvoted(granted, None)),
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
            Verdict::Held { holder, ttl } => Ok(ballot.outvoted(granted, Some((holder, ttl)))),
            Verdict::Split => Ok(ballot.outvoted(granted, None)),
            Verdict::TooFew => {
                ballot.withdraw(true);
                let failure = ballot.no_quorum(granted);
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
        let ask = Ask::once(
            Arc::clone(&adopt.owner),
            1,
            adopt.lease,
            u64::from(adopt.fencing),
        );
        let request = |adopt: &Adopt| {
            let settings = &state.script_settings;
            node_request::adopt(key, adopt, wall_us(), settings)
        };
        let read = |value: &Value| node_request::adopted(lock, adopt.fencing, value);
        let mut ballot = Ballot::new(self, lock, &ask, request(adopt), &read);
        ballot.ask(None);
        let gone = ballot.nodes.iter().filter_map(|node| match node.vote {
            Some(Vote::Gone(gone)) => Some(gone),
            _ => None,
        });
        if gone.clone().count() > state.nodes.len() - state.needed {
            let why = Gone::of_all(gone);
            ballot.withdraw(true);
            return Ok(Reply::NotOwner(why));
        }
        let granted = match ballot.settle_fences() {
            Ok((chosen, count)) => {
                let reply = ballot.win(&chosen, count, sent);
                ballot.withdraw_detached(&adopt.from);
                return Ok(reply);
            }
            Err(granted) => granted,
        };
        // The claim must stay valid.
        let back = request(&Adopt {
            owner: Arc::clone(&adopt.from),
            from: Arc::clone(&adopt.owner),
            ..adopt.clone()
        });
        let mut outcome = Outcome::NotExecuted;
        for (node, connection) in ballot.nodes.iter().zip(&mut ballot.call.each) {
            if node.has_granted() || node.unanswered.is_some() {
                outcome = Outcome::Unknown;
                connection.tell(&state, back.clone(), About::Nothing);
            }
        }
        // The next adoption asks under this owner again, perhaps without a node that may still have it.
        ballot.note(ballot.left_behind(), None);
        Err(ballot.no_quorum(granted).with(outcome))
    }
}

impl<'a> Ballot<'a> {
    fn new(
        call: &'a mut Connections,
        lock: LockId<'a>,
        ask: &'a Ask,
        request: Command,
        read: &'a dyn Fn(&Value) -> Option<Vote>,
    ) -> Self {
        let state = Arc::clone(&call.state);
        Self {
            nodes: vec![Asked::default(); state.nodes.len()],
            call,
            state,
            lock,
            ask,
            request,
            read,
        }
    }

    /// Does step 1: asks each node that has not granted the lock, and may vote.
    fn ask(&mut self, former: Option<&End>) {
        let (state, lock) = (Arc::clone(&self.state), self.lock);
        let former = former.map(|former| (lock, former));
        let ends = state.ends(former.as_slice());
        let mut commands: Vec<_> = ends.into_iter().map(|ends| ends.commands).collect();
        // Whether the next answer of the node is about the former owner.
        let mut is_of_former: Vec<_> = commands.iter().map(|ends| !ends.is_empty()).collect();
        let mut may_have_owner = vec![false; commands.len()];
        let mut is_unanswered = vec![false; commands.len()];
        for (number, commands) in commands.iter_mut().enumerate() {
            if self.nodes[number].unanswered.is_some() {
                self.call.each[number].look(&state, Recipients::All).ok();
            }
            if self.nodes[number].has_granted() || self.is_cut(number) {
                continue;
            }
            let node = &mut self.nodes[number];
            commands.push((self.request.clone(), about(self.ask)));
            // A node that answered "held" may have the owner in its queue.
            let was_held = node.vote.take().is_some();
            may_have_owner[number] =
                node.unanswered.is_some() || was_held && self.ask.channel.is_some();
            node.failure = None;
            is_unanswered[number] = true;
        }
        let (nodes, read) = (&mut self.nodes, self.read);
        self.call
            .round(Recipients::Granters, commands, &mut |number, answer| {
                if answer.is_ok() && std::mem::take(&mut is_of_former[number]) {
                    return enough(nodes, state.needed);
                }
                let node = &mut nodes[number];
                // An earlier request without an answer may have been executed even so.
                is_unanswered[number] = may_have_owner[number] || is_of_unknown_outcome(&answer);
                match answer.map(|value| (read(&value), value)) {
                    Ok((Some(vote), _)) => {
                        node.vote = Some(vote);
                        is_unanswered[number] = false;
                    }
                    Ok((None, value)) => node.failure = Some(state.unexpected(number, value)),
                    Err(failure) => node.failure = Some(failure),
                }
                enough(nodes, state.needed)
            });
        for (number, is_unanswered) in is_unanswered.into_iter().enumerate() {
            let is_cut = self.is_cut(number);
            let node = &mut self.nodes[number];
            if is_cut {
                node.vote = None;
            } else if node.unanswered.is_none() || !is_unanswered {
                node.unanswered = is_unanswered.then_some(self.call.each[number].id);
            }
        }
    }

    /// Returns whether the connection of a request without an answer was closed.
    fn is_cut(&self, number: usize) -> bool {
        let unanswered = self.nodes[number].unanswered;
        unanswered.is_some_and(|id| self.call.each[number].is_closed(id))
    }

    /// Does step 2.
    fn verdict(&self) -> Verdict {
        verdict(self.nodes.iter().map(|node| node.vote.as_ref()))
    }

    /// Returns whether this owner has the first node of those that answered.
    fn has_first(&self) -> bool {
        let first = self.nodes.iter().find(|node| node.vote.is_some());
        first.is_some_and(Asked::has_granted)
    }

    /// Returns the nodes that granted the lock, the fences that they reserved, and whether others wait there.
    fn granted(&self) -> impl Iterator<Item = (usize, &ReservedByName, bool)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(number, node)| match &node.vote {
            Some(Vote::Granted { fences, contended }) => Some((number, fences, *contended)),
            _ => None,
        })
    }

    /// Returns whether no node has granted the lock, or may still do so.
    fn may_have_nothing(&self) -> bool {
        let may_have = |node: &Asked| node.has_granted() || node.unanswered.is_some();
        !self.nodes.iter().any(may_have)
    }

    /// Does step 3 after a grant. Returns the choice, and how many fences the lease has.
    ///
    /// # Errors
    ///
    /// Returns how many nodes have granted the fence, if that is no majority because a chosen node did not raise its
    /// record.
    fn settle_fences(&mut self) -> Result<(Chosen, u64), usize> {
        let granted: Vec<_> = self
            .granted()
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
        let commands = self
            .call
            .to_some(&raise, |number| chosen.low.contains(&number));
        let (mut raised, mut failed) = (0, 0);
        self.call
            .round(Recipients::All, commands, &mut |_, answer| {
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
    fn win(&mut self, chosen: &Chosen, count: u64, sent: Time) -> Reply {
        let until = valid_until(sent, self.ask.lease);
        let mut at_nodes = self.left_behind();
        let mut is_contended = false;
        for (number, _, contended) in self.granted() {
            is_contended |= contended;
            at_nodes[number].vote = NodeVote::Until(until);
        }
        for (number, at_node) in at_nodes.iter_mut().enumerate() {
            // If the connection was closed, another request of unknown outcome is on its way.
            let open = self.nodes[number].unanswered;
            at_node.asked_on = open.filter(|_| !self.is_cut(number));
        }
        let mut ends: Ends = chosen.fences.as_slice().into();
        // A block of `count` fences begins with the first name's.
        ends[0] += count.max(1) - 1;
        self.note(at_nodes, Some(ends));
        Reply::Granted {
            fence: chosen.fences[0],
            count: Some(count),
            rest: chosen.fences[1..].to_vec(),
            contended: is_contended,
        }
    }

    /// Withdraws the owner, and returns that it must not ask again. Without a holder the votes are split, and the owner
    /// also leaves the queues.
    fn outvoted(&mut self, granted: usize, held: Option<(Arc<str>, Option<Duration>)>) -> Reply {
        self.withdraw(held.is_none());
        let (holder, ttl) = held.map_or((None, None), |(holder, ttl)| (Some(holder), ttl));
        Reply::Outvoted {
            holder,
            ttl,
            counts: self.state.counts(granted),
        }
    }

    /// Withdraws the owner from each node that granted it, or may do so. `everywhere`: also from the queues. Otherwise
    /// the caller withdraws it again if it is in a queue.
    fn withdraw(&mut self, everywhere: bool) {
        let (ask, mut at_nodes) = (self.ask, self.left_behind());
        self.note(at_nodes.clone(), None);
        if everywhere || ask.channel.is_none() {
            let owners = &self.state.owners;
            owners.end(&ask.owner, at_nodes.len(), Time::now());
        }
        for (number, at_node) in at_nodes.iter_mut().enumerate() {
            let is_in_queue = matches!(self.nodes[number].vote, Some(Vote::Held(_)));
            if is_in_queue && !everywhere {
                at_node.trace = Trace::Nothing;
            }
            let asked_on = self.call.each[number].id;
            at_node.asked_on = (!self.is_cut(number)).then_some(asked_on);
        }
        // No guard had one of its fences.
        self.tell_end(&ask.owner, Some(0), &at_nodes);
    }

    /// Withdraws a detached owner after its adoption: where that is not confirmed, the detached owner may still be.
    fn withdraw_detached(&mut self, owner: &Arc<str>) {
        let (owners, now) = (&self.state.owners, Time::now());
        // The request that has acquired the lock may have been sent on an earlier connection.
        let lease = owners.unknown_lease.max(self.ask.lease);
        let may_have = |node: &Asked| match node.vote {
            Some(Vote::Granted { .. }) => Trace::Nothing,
            _ => Trace::Until(now + lease),
        };
        let at_nodes = self.nodes.iter().map(|node| AtNode::new(may_have(node)));
        let at_nodes: AtNodes = at_nodes.collect();
        owners.insert(owner, lease, at_nodes.clone(), None, now);
        owners.end(owner, at_nodes.len(), now);
        self.tell_end(owner, None, &at_nodes);
    }

    /// Withdraws an owner from the nodes that may have it, and waits for no answer. `used` is the last fence that a guard
    /// had, if there may be unused ones.
    fn tell_end(&mut self, owner: &Arc<str>, used: Option<u64>, at_nodes: &AtNodes) {
        let end = End {
            give_back: used.map(|used| GiveBack { used, last: used }),
            ..End::new(Arc::clone(owner), self.ask.units, How::Withdraw)
        };
        for (at_node, connection) in at_nodes.iter().zip(&mut self.call.each) {
            if at_node.may_have_owner() {
                let (command, about) = self.state.end_at(self.lock, &end, at_node, false);
                connection.tell(&self.state, command, about);
            }
        }
    }

    /// Returns what the requests may have left at each node. It has no votes yet.
    fn left_behind(&self) -> AtNodes {
        let lease_from_now = Time::now() + self.ask.lease;
        let nodes = self.nodes.iter().zip(&self.call.each);
        let left = nodes.map(|(node, connection)| {
            let trace = match &node.vote {
                Some(Vote::Granted { .. }) => Trace::Has,
                Some(Vote::Held(_)) if self.ask.channel.is_some() => Trace::Has,
                None if node.unanswered.is_some() => Trace::Until(lease_from_now),
                _ => Trace::Nothing,
            };
            let mut at_node = AtNode::new(trace);
            if node.has_granted() || node.unanswered.is_some() {
                at_node.process = connection.process;
            }
            if let Some(Vote::Granted { fences, .. }) = &node.vote {
                // Without fences there is nothing to give back.
                at_node.reserved = fences.first().copied().filter(|_| self.ask.fences > 0);
            }
            at_node
        });
        left.collect()
    }

    /// Notes what the nodes have of the owner; with its last fences if it was granted the lock.
    fn note(&self, at_nodes: AtNodes, ends: Option<Ends>) {
        let (ask, now) = (self.ask, Time::now());
        let owners = &self.state.owners;
        owners.insert(&ask.owner, ask.lease, at_nodes, ends, now);
    }

    /// Returns the failure of a ballot that too few nodes granted.
    fn no_quorum(&self, granted: usize) -> Failure {
        let failures = self.nodes.iter().map(|node| node.failure.clone());
        self.state.no_quorum(granted, failures.collect())
    }
}

/// Returns whether the votes suffice, or nobody can have a majority any more.
fn enough(nodes: &[Asked], needed: usize) -> Enough {
    let count = |is: fn(&Asked) -> bool| nodes.iter().filter(|node| is(node)).count();
    let granted = count(Asked::has_granted);
    let held = count(|node| node.vote.is_some()) - granted;
    let spare = nodes.len() - needed;
    if count(|node| node.failure.is_some()) > spare {
        Enough::Yes
    } else {
        Enough::certain_if(granted >= needed || held > spare)
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
