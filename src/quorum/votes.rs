//! How votes are counted, and the votes that this process knows of: of each node for each owner, from the first request
//! for the lock until each node has confirmed the owner's end.
//!
//! # How a vote is counted
//!
//! Process A asks nodes 1, 2 and 3 for `orders:42`. Two of them are a majority ([`majority`]).
//!
//! 1. *The grant.* Each answer is a vote: "granted", or "held" with the name of the holder ([`verdict`]). With two grants A
//!    has the lock. It is held if another owner may have two nodes. If neither is so, the votes are split.
//! 2. *The fence.* Each node that grants has reserved fences of its own. The fence of the grant is the largest of two answers,
//!    and the node with the smaller one must raise its record to it before the grant stands ([`choose`]).
//! 3. *The lease.* The vote of a node lasts for the lease, counted from before the request was sent. A's lease lasts while two
//!    votes do ([`deadline`]). A node that confirms a renewal moves its own vote. If it answers that A does not hold the lock,
//!    its vote is gone.
//! 4. *A vote that was missed.* Node 3 was down at the grant. When it is back, the renewal thread asks it to join, and it gives
//!    A the lock. That makes it a candidate only, because B may have held the lock there meanwhile, and with it a majority. The
//!    next renewal that two voters and the candidate confirm makes it a vote.
//! 5. *The end.* A release goes to each node that may have A, whether or not it votes. The engine's release task repeats that
//!    (`engine/ending/`) for as long as [`Owners::left_until`] names a time.
//!
//! Why that is safe stands at the top of `fences.rs` and `votes.rs` in `tests/quorum_model/src/`, and a search of all states
//! checks it there. Redlock is described at
//! <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>. It has no fences, and no joins.
//!
//! # The vote of one node for one owner ([`NodeVote`])
//!
//! | vote | event | next vote |
//! | --- | --- | --- |
//! | none | the node granted the lock before the guard began | it lasts for the lease, counted from before the request was sent |
//! | none | the node grants the lock after the guard began | none: another owner may have had a majority meanwhile |
//! | none | the renewal thread asks it to join ([`super::renew`]) | joining |
//! | joining | it has given the lock | candidate; none, if it has said meanwhile on another connection that the owner does not hold the lock |
//! | joining | any other answer, or none | none |
//! | candidate | it confirms a renewal that was sent later, and so does a majority that voted before | it lasts for the renewed lease |
//! | lasts | it confirms a renewal | it lasts for the renewed lease, never shorter than before |
//! | lasts, candidate | it answers to a renewal that the owner does not hold the lock | none |
//! | lasts, candidate | the same, from the process of its server that voted, before the vote's own deadline | barred: the lock was taken from the owner, so the node never joins again |
//!
//! # What a node may have of an owner ([`Trace`])
//!
//! | event | what it may have |
//! | --- | --- |
//! | a request for the lock, or a join, is written to it | the owner, until it is over that the request can take the lock for a lease |
//! | it grants the lock, also late; it answers "held", and may have the owner in its queue; it joins | the owner |
//! | it refuses a join | what it had before |
//! | it answers to a renewal that the owner does not hold the lock | the same as before, because the answer may be old |
//! | it confirms the owner's end | nothing |
//! | the same, but the answer to a join, or a late answer, was read since the end was sent | the owner, because the node may have executed that request later |
//! | the same, but a request for the lock has no answer, and went out on another connection | the owner until the request's time is over, because it may come later; then nothing |

use std::time::Duration;

use smallvec::SmallVec;

use crate::sys::hash::HashMap;
use crate::sys::{Arc, Mutex, Time};
use crate::wire::lifetime::{WAITER_LIFE, drift};
use crate::wire::quorum::{NodeHolder, Reserved, ReservedByName, Vote};
use crate::wire::{Gone, Renewed};

/// The smallest number of owners at which votes that have ended are looked for.
const FIRST_SWEEP: usize = 1024;
/// After this number of failed joins in a row, a lease is not renewed earlier for this node: it may refuse for long, as with a
/// full memory.
const MOST_FAILED_JOINS: u8 = 4;

/// Returns how many of `nodes` are a majority.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The result of a round of votes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A majority granted it.
    Granted,
    /// It is held, or it is the turn of a waiter. This owner may have a majority, or get one. Enough of the leases and turns
    /// that were named end after `ttl`; `None` if that is not known.
    Held {
        holder: Arc<str>,
        ttl: Option<Duration>,
    },
    /// A majority voted, but nobody that is known to hold it can have one.
    Split,
    /// Less than a majority voted.
    TooFew,
}

/// Returns the result of the votes. `None` is a node that did not vote: it may hold the lock for anybody, or be free.
///
/// If nodes name different readers, each of the readers counts at all of those nodes: readers share the lock and the turn.
pub(super) fn verdict<'v>(votes: impl ExactSizeIterator<Item = Option<&'v Vote>>) -> Verdict {
    let (nodes, needed) = (votes.len(), majority(votes.len()));
    let mut holders: SmallVec<[&NodeHolder; 8]> = SmallVec::new();
    let mut granted = 0;
    for vote in votes.flatten() {
        match vote {
            Vote::Granted { .. } => granted += 1,
            Vote::Held(holder) => holders.push(holder),
            Vote::Gone(_) => {}
        }
    }
    if granted >= needed {
        return Verdict::Granted;
    }
    let silent = nodes - granted - holders.len();
    // How many nodes must let go before a majority can be free.
    let in_the_way = (holders.len() + needed).saturating_sub(nodes);
    if granted + holders.len() < needed {
        return Verdict::TooFew;
    }
    // The nodes that did not vote could have been enough.
    if in_the_way == 0 {
        return Verdict::Split;
    }
    let may_hold = |one: &NodeHolder, node: &NodeHolder| {
        one.owner == node.owner || one.is_reader && node.is_reader
    };
    let nodes_of = |one| holders.iter().filter(|node| may_hold(one, node)).count();
    let leading = holders
        .iter()
        .map(|one| (nodes_of(one), &one.owner))
        .max_by_key(|(count, _)| *count);
    match leading {
        Some((count, holder)) if count + silent >= needed => {
            let mut ends: SmallVec<[Duration; 8]> = holders
                .iter()
                .map(|holder| holder.ttl.unwrap_or(Duration::MAX))
                .collect();
            ends.sort_unstable();
            Verdict::Held {
                holder: Arc::clone(holder),
                ttl: Some(ends[in_the_way - 1]).filter(|end| *end < Duration::MAX),
            }
        }
        _ => Verdict::Split,
    }
}

/// The fences of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The nodes whose fences count, a majority of all nodes.
    pub(super) nodes: SmallVec<[usize; 8]>,
    /// For each name, the fence of the first guard.
    pub(super) fences: SmallVec<[u64; 1]>,
    /// Those of `nodes` whose record is too low, and must be raised before the grant stands.
    pub(super) low: SmallVec<[usize; 8]>,
}

/// Chooses the nodes whose fences count: equal answers if `needed` nodes gave them, otherwise the smallest. The fence of
/// a name is the largest of the chosen answers. Returns `None` if fewer than `needed` nodes granted the lock.
pub(super) fn choose(granted: &[(usize, ReservedByName)], needed: usize) -> Option<Chosen> {
    let mut sorted: SmallVec<[&(usize, ReservedByName); 8]> = granted.iter().collect();
    let firsts = |fences: &ReservedByName| -> SmallVec<[u64; 1]> {
        fences.iter().map(|reserved| reserved.first).collect()
    };
    sorted.sort_by_cached_key(|(_, fences)| firsts(fences));
    let is_equal = |some: &&[&(usize, ReservedByName)]| {
        let (first, last) = (some.first(), some.last());
        first
            .zip(last)
            .is_some_and(|(first, last)| firsts(&first.1) == firsts(&last.1))
    };
    let mut choices = sorted.windows(needed);
    let smallest = choices.next()?;
    let chosen = if is_equal(&smallest) {
        smallest
    } else {
        choices.find(is_equal).unwrap_or(smallest)
    };
    let mut fences = firsts(&chosen[0].1);
    for (_, reserved) in chosen {
        for (fence, reserved) in fences.iter_mut().zip(reserved) {
            *fence = reserved.first.max(*fence);
        }
    }
    let is_low = |reserved: &ReservedByName| {
        let mut pairs = reserved.iter().zip(&fences);
        pairs.any(|(reserved, fence)| reserved.last < *fence)
    };
    Some(Chosen {
        nodes: chosen.iter().map(|(node, _)| *node).collect(),
        low: chosen
            .iter()
            .filter(|(_, reserved)| is_low(reserved))
            .map(|(node, _)| *node)
            .collect(),
        fences,
    })
}

/// Returns until when a lease lasts whose votes have these deadlines: at that time fewer than `needed` of them are left.
/// Returns `None` if there are fewer than `needed` votes. A vote that was lost is `None`.
pub(super) fn deadline(votes: &[Option<Time>], needed: usize) -> Option<Time> {
    let mut left: SmallVec<[Time; 8]> = votes.iter().copied().flatten().collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    left.get(needed.checked_sub(1)?).copied()
}

/// The nodes to ask to join, and the last fence of the owner for each name.
pub(super) struct Joins {
    pub(super) nodes: SmallVec<[usize; 5]>,
    pub(super) ends: Ends,
}

/// The process of each node's server that can be asked to join, or `None`.
pub(super) type MayJoin = [Option<u32>];

/// The last fence of an owner for each of its names; 0 if the lock has no fence.
pub(super) type Ends = SmallVec<[u64; 1]>;

/// An owner at each node.
pub(super) type AtNodes = SmallVec<[AtNode; 5]>;

/// The answer of a node to the renewal of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confirmation {
    Confirmed,
    /// The owner does not hold the lock there, by this process of the node's server.
    Gone(Gone, u32),
    /// It did not answer, or rejected the request.
    Silent,
}

/// A renewal of a lease by all nodes.
#[derive(Clone, Copy)]
pub(super) struct Round<'a> {
    pub(super) confirmations: &'a [Confirmation],
    /// Whether other processes wait for the lock.
    pub(super) is_contended: bool,
    pub(super) sent: Time,
    /// Until when the lease lasts where it was confirmed.
    pub(super) until: Time,
    /// How many nodes are a majority.
    pub(super) needed: usize,
    /// The nodes that can be asked to join, if the same call asks them. On each of its connections the renewal comes before
    /// the joins.
    pub(super) may_join: Option<&'a MayJoin>,
}

/// The owners of this process, and their votes and traces at each node.
pub(super) struct Owners {
    table: Mutex<Table>,
    /// The longest lease of an owner that has no record here.
    pub(super) unknown_lease: Duration,
}

#[derive(Default)]
struct Table {
    owners: HashMap<Arc<str>, Record>,
    /// The number of owners at which votes that have ended are looked for.
    sweep_at: usize,
}

/// One owner at all nodes.
struct Record {
    nodes: AtNodes,
    /// The longest lease that any node was asked for.
    longest: Duration,
    /// `None` before the grant.
    ends: Option<Ends>,
    /// How often the lease was renewed.
    version: u32,
    /// Until when a node may have the owner. `None` before the owner's end.
    left_until: Option<Time>,
}

impl Owners {
    /// Makes an empty table. A node may have an owner without a record for at most `unknown_lease`.
    pub(super) fn new(unknown_lease: Duration) -> Self {
        Self {
            table: Mutex::default(),
            unknown_lease,
        }
    }

    /// Notes what the nodes have of an owner after a request for `lease`: with `ends` if it was granted. A node that may
    /// have the owner by an earlier request still may.
    pub(super) fn insert(
        &self,
        owner: &Arc<str>,
        lease: Duration,
        nodes: AtNodes,
        ends: Option<Ends>,
        now: Time,
    ) {
        let mut table = self.table.lock();
        if table.owners.len() >= table.sweep_at.max(FIRST_SWEEP) {
            // A lease whose release was given up leaves its votes here. So does a claim.
            table.owners.retain(|_, record| {
                record.nodes.iter().any(|node| node.lasts(now))
                    || record.left_until.is_some_and(|until| until > now)
            });
            table.sweep_at = table.owners.len() * 2;
        }
        let mut record = Record::new(nodes, lease);
        record.ends = ends;
        if let Some(before) = table.owners.get(owner) {
            record.longest = record.longest.max(before.longest);
            for (node, before) in record.nodes.iter_mut().zip(&before.nodes) {
                node.add_earlier(before);
            }
        }
        table.owners.insert(Arc::clone(owner), record);
    }

    /// Notes that an owner ends, and returns what each of `nodes` nodes has of it. An owner without a record may be at
    /// any node.
    pub(super) fn end(&self, owner: &Arc<str>, nodes: usize, now: Time) -> AtNodes {
        let mut table = self.table.lock();
        let record = table.owners.entry(Arc::clone(owner));
        let record = record.or_insert_with(|| {
            let nodes = (0..nodes).map(|_| AtNode::new(Trace::Has)).collect();
            Record::new(nodes, self.unknown_lease)
        });
        let lease = record.longest + drift(record.longest);
        // A request that comes at the last moment takes the lock for a lease from then.
        let last = record.nodes.iter().filter_map(|node| match node.trace {
            Trace::Until(until) => Some(until),
            Trace::Nothing | Trace::Has => None,
        });
        let last = last.fold(now, Time::max) + lease.max(WAITER_LIFE);
        record.left_until.get_or_insert(last);
        record.nodes.clone()
    }

    /// Returns whether an owner has ended, and a node that may have it has not confirmed that at all.
    pub(super) fn has_unconfirmed(&self, now: Time) -> bool {
        let table = self.table.lock();
        table.owners.values().any(|record| {
            let is_left = record.left_until.is_some_and(|until| until > now);
            is_left && record.nodes.iter().any(AtNode::is_unconfirmed)
        })
    }

    /// Returns until when some node may have an owner that ends. Forgets the owner if no node may.
    pub(super) fn left_until(&self, owner: &str, now: Time) -> Option<Time> {
        let mut table = self.table.lock();
        let record = table.owners.get(owner)?;
        let until = record.left_until?;
        if until <= now || !record.nodes.iter().any(AtNode::may_have_owner) {
            table.owners.remove(owner);
            return None;
        }
        Some(until)
    }

    /// Notes something of a node and an owner, if the owner has a record.
    pub(super) fn note(&self, owner: &str, node: usize, change: impl FnOnce(&mut AtNode)) {
        if let Some(record) = self.table.lock().owners.get_mut(owner) {
            change(&mut record.nodes[node]);
        }
    }

    /// Forgets an owner.
    pub(super) fn forget(&self, owner: &str) {
        self.table.lock().owners.remove(owner);
    }

    /// Applies the answer of each node to the renewal of an owner's lease.
    pub(super) fn renewed(&self, owner: &str, round: Round<'_>, now: Time) -> Renewed {
        let mut table = self.table.lock();
        let gone = round
            .confirmations
            .iter()
            .filter_map(|confirmation| match confirmation {
                Confirmation::Gone(gone, _) => Some(*gone),
                _ => None,
            });
        let lost = Renewed::Gone(Gone::of_all(gone));
        let Some(record) = table.owners.get_mut(owner) else {
            return lost;
        };
        let lasts = record
            .deadline(round.needed)
            .is_some_and(|until| until > now);
        let mut confirmed = 0;
        record.version += 1;
        for (node, confirmation) in record.nodes.iter_mut().zip(round.confirmations) {
            match confirmation {
                Confirmation::Confirmed => {
                    confirmed += usize::from(node.until().is_some());
                    node.confirm(round.sent, round.until);
                }
                Confirmation::Gone(_, process) => {
                    node.lose(round.sent, *process, round.may_join.is_some());
                }
                Confirmation::Silent => {}
            }
        }
        if confirmed >= round.needed && lasts {
            for (node, confirmation) in record.nodes.iter_mut().zip(round.confirmations) {
                if *confirmation == Confirmation::Confirmed {
                    node.promote(round.sent);
                }
            }
        }
        let Some(until) = record.deadline(round.needed) else {
            return lost;
        };
        let is_confirmed = confirmed >= round.needed;
        let may_join = round.may_join.unwrap_or_default();
        Renewed::Voted {
            contended: round.is_contended,
            until,
            version: record.version,
            is_confirmed,
            lacks_votes: record
                .may_gain(|number| may_join.get(number).is_some_and(Option::is_some)),
            has_new_misses: is_confirmed && round.may_join.is_some() && record.note_misses(now),
        }
    }

    /// Notes that the nodes are asked to renew the lease of an owner for `lease`: a node may do so although its answer is lost.
    /// Begins joins at the nodes of `may_join` that have no vote. Each of the returned nodes may have the owner from now on,
    /// until [`AtNode::end_join`] is noted for it.
    pub(super) fn begin_renewal(
        &self,
        owner: &str,
        (lease, needed): (Duration, usize),
        may_join: Option<&MayJoin>,
        now: Time,
    ) -> Option<Joins> {
        let mut table = self.table.lock();
        let record = table.owners.get_mut(owner)?;
        record.longest = record.longest.max(lease);
        let may_join = may_join?;
        if record.left_until.is_some() || !record.nodes.iter().any(AtNode::is_missing) {
            return None;
        }
        let ends = record.ends.clone()?;
        record.deadline(needed).filter(|until| *until > now)?;
        let mut nodes = SmallVec::new();
        for (number, (node, process)) in record.nodes.iter_mut().zip(may_join).enumerate() {
            if process.is_some_and(|process| node.begin_join(process, now + lease)) {
                nodes.push(number);
            }
        }
        Some(Joins { nodes, ends }).filter(|joins| !joins.nodes.is_empty())
    }

    /// Returns whether an owner lacks votes of nodes that may soon join.
    pub(super) fn has_misses(&self, owner: &str, may_join: impl Fn(usize) -> bool) -> bool {
        let table = self.table.lock();
        let record = table.owners.get(owner);
        record.is_some_and(|record| record.may_gain(may_join))
    }

    /// Returns whether a node votes for an owner.
    pub(super) fn counts(&self, owner: &str, node: usize, now: Time) -> bool {
        let table = self.table.lock();
        let record = table.owners.get(owner);
        record.is_some_and(|record| record.nodes[node].counts(now))
    }
}

impl Record {
    fn new(nodes: AtNodes, longest: Duration) -> Self {
        Self {
            nodes,
            longest,
            ends: None,
            version: 0,
            left_until: None,
        }
    }

    /// Returns until when the lease lasts. Returns `None` if it has too few votes.
    fn deadline(&self, needed: usize) -> Option<Time> {
        let votes: SmallVec<[_; 8]> = self.nodes.iter().map(AtNode::until).collect();
        deadline(&votes, needed)
    }

    /// Returns whether a vote is missing that a node may soon give by a join.
    fn may_gain(&self, may_join: impl Fn(usize) -> bool) -> bool {
        let mut nodes = self.nodes.iter().enumerate();
        nodes.any(|(number, node)| node.may_gain() && may_join(number))
    }

    /// Notes which votes are missing. Returns whether one of them was not at the last call, or this is the first.
    fn note_misses(&mut self, now: Time) -> bool {
        let mut has_new = false;
        for node in &mut self.nodes {
            has_new |= node.note_missing(now);
        }
        has_new
    }
}

/// Names one open connection among all of a quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionId(pub(super) u64);

/// The vote of a node for an owner: the first table at the top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NodeVote {
    #[default]
    None,
    /// The node was asked to join, and has not answered yet.
    Joining {
        /// The trace of the owner there before the join.
        had: Trace,
        /// Whether it has said meanwhile, on another connection, that it does not have the owner.
        is_void: bool,
    },
    /// The node has joined, and counts for nothing yet.
    Candidate {
        /// When its answer came. Only a renewal that is sent after that can make it a vote.
        since: Time,
        /// Until when the node holds the lock for the owner.
        until: Time,
    },
    /// It counts until then.
    Until(Time),
    Barred,
}

/// The trace of an owner at a node: the second table at the top. A later variant is more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trace {
    #[default]
    Nothing,
    /// The owner. Once the node confirms its end, it has nothing.
    Has,
    /// A request of unknown outcome may put the owner there until then. So the node's confirmation is final only afterwards,
    /// but for one on the connection of that request.
    Until(Time),
}

/// One owner at one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AtNode {
    pub(super) vote: NodeVote,
    pub(super) trace: Trace,
    /// Which process of the node's server has voted.
    pub(super) process: u32,
    /// The fences of the node's reply to the request for the lock. `None` if the node may give none back.
    pub(super) reserved: Option<Reserved>,
    /// The connection of the only request of unknown outcome. The node executes a later request there after it.
    pub(super) asked_on: Option<ConnectionId>,
    /// When an answer was last read after which the node may have the owner: to a join, or a late one.
    answered_at: Option<Time>,
    /// Whether the node has confirmed the owner's end, final or not.
    has_confirmed_end: bool,
    /// How many joins in a row have failed.
    failed_joins: u8,
    /// Whether [`Self::note_missing`] has reported the missing vote.
    is_told: bool,
}

/// How a join ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// The node holds the lock for the owner, at least until then.
    Until(Time),
    /// The node refused, or was not asked. If the connection has ended, it may have been asked: then the outcome is `Unknown`.
    Refused,
    /// The answer is an error.
    Failed,
    /// There is no answer.
    Unknown,
}

impl AtNode {
    /// Returns what a node without a vote has.
    pub(super) fn new(trace: Trace) -> Self {
        Self {
            trace,
            ..Self::default()
        }
    }

    /// Returns until when the vote counts, if there is one.
    pub(super) fn until(&self) -> Option<Time> {
        match self.vote {
            NodeVote::Until(until) => Some(until),
            _ => None,
        }
    }

    /// Returns whether there is a vote that has not run out.
    fn counts(&self, now: Time) -> bool {
        self.until() > Some(now)
    }

    /// Returns whether there is no vote, and the node may join.
    fn is_missing(&self) -> bool {
        !matches!(self.vote, NodeVote::Until(_) | NodeVote::Barred)
    }

    pub(super) fn may_have_owner(&self) -> bool {
        self.trace > Trace::Nothing
    }

    /// Returns whether a vote counts, or a request of unknown outcome may come.
    fn lasts(&self, now: Time) -> bool {
        self.counts(now) || self.trace > Trace::Until(now)
    }

    /// Moves the vote, because the node has confirmed a renewal.
    fn confirm(&mut self, sent: Time, confirmed: Time) {
        match &mut self.vote {
            NodeVote::Until(until) => *until = confirmed.max(*until),
            NodeVote::Candidate { since, until } if *since <= sent => {
                *until = confirmed.max(*until);
            }
            _ => {}
        }
    }

    /// Makes a candidate a vote, after a renewal that it and a majority have confirmed.
    fn promote(&mut self, sent: Time) {
        match self.vote {
            NodeVote::Candidate { since, until } if since <= sent => {
                self.vote = NodeVote::Until(until);
            }
            _ => {}
        }
    }

    /// Ends the vote: the node has answered to a renewal that it does not have the owner. If it has joined since the renewal
    /// of another connection was sent, the answer may be older than that, and says nothing.
    fn lose(&mut self, sent: Time, process: u32, joins: bool) {
        match &mut self.vote {
            NodeVote::Candidate { since, .. } if !joins && *since > sent => {}
            NodeVote::Candidate { until, .. } | NodeVote::Until(until) => {
                // By the time at which the renewal was sent, because the node may have answered then.
                let was_taken = self.process == process && *until > sent;
                self.vote = if was_taken {
                    NodeVote::Barred
                } else {
                    NodeVote::None
                };
            }
            NodeVote::Joining { is_void, .. } => *is_void |= !joins,
            NodeVote::None | NodeVote::Barred => {}
        }
    }

    /// Adds the trace that an earlier request of the owner may have left here.
    fn add_earlier(&mut self, before: &Self) {
        if before.trace > Trace::Has {
            // There is more than one request without an answer then.
            self.asked_on = None;
            self.process = self.process.max(before.process);
        }
        self.trace = self.trace.max(before.trace);
    }

    /// Notes that the node has confirmed the owner's end, which was sent at `sent`. `is_ordered`: it has executed that after
    /// every request for the lock. If the answer to one was read since, the node may have executed it later, so this says nothing.
    pub(super) fn confirm_end(&mut self, is_ordered: bool, sent: Time, now: Time) {
        if self.answered_at >= Some(sent) {
            return;
        }
        if is_ordered || self.trace <= Trace::Until(now) {
            self.trace = Trace::Nothing;
        }
        self.has_confirmed_end = true;
    }

    /// Returns whether the node may have the owner, and has not confirmed its end at all.
    fn is_unconfirmed(&self) -> bool {
        self.may_have_owner() && !self.has_confirmed_end
    }

    /// Notes the late answer to the request on this connection.
    pub(super) fn late_answer(&mut self, asked_on: ConnectionId, has_owner: bool, now: Time) {
        if self.asked_on == Some(asked_on) {
            (self.asked_on, self.has_confirmed_end) = (None, false);
            self.trace = Trace::Nothing;
            if has_owner {
                self.trace = Trace::Has;
                self.answered_at = Some(now);
            }
        }
    }

    /// Notes that the request on this connection will have no answer.
    pub(super) fn no_late_answer(&mut self, asked_on: ConnectionId) {
        self.asked_on = self.asked_on.filter(|open| *open != asked_on);
    }

    /// Begins a join at this process of the node's server. Returns false if the node must not be asked.
    fn begin_join(&mut self, process: u32, until: Time) -> bool {
        // A process that has ended executes no earlier request.
        let has_restarted = self.process > 0 && process > self.process;
        let may_ask = self.trace <= Trace::Has || has_restarted;
        let begins = may_ask && self.vote == NodeVote::None;
        if begins {
            self.vote = NodeVote::Joining {
                had: self.trace.min(Trace::Has),
                is_void: false,
            };
            self.trace = self.trace.max(Trace::Until(until));
            (self.asked_on, self.reserved) = (None, None);
            if has_restarted {
                self.failed_joins = 0;
            }
        }
        begins
    }

    /// Notes how a join at this process of the node's server ended. `asked_on` is its connection, if that is still open.
    pub(super) fn end_join(
        &mut self,
        (how, process): (Joined, u32),
        asked_on: Option<ConnectionId>,
        now: Time,
    ) {
        let NodeVote::Joining { had, is_void } = self.vote else {
            return;
        };
        self.vote = NodeVote::None;
        if how != Joined::Refused {
            self.process = process;
        }
        self.failed_joins = self.failed_joins.saturating_add(1);
        match how {
            Joined::Until(until) => {
                self.failed_joins = 0;
                if !is_void {
                    self.vote = NodeVote::Candidate { since: now, until };
                }
            }
            Joined::Refused => self.trace = had,
            Joined::Failed => {}
            Joined::Unknown => self.asked_on = asked_on,
        }
        if matches!(how, Joined::Until(_) | Joined::Failed) {
            // A release may have come before the join.
            (self.trace, self.has_confirmed_end) = (Trace::Has, false);
            self.answered_at = Some(now);
        }
    }

    /// Returns whether the node has no vote, and a renewal may soon bring one.
    fn may_gain(&self) -> bool {
        let is_joining = matches!(self.vote, NodeVote::Joining { .. });
        // The answer may still come.
        let may_join = self.trace <= Trace::Has || self.asked_on.is_some() || is_joining;
        self.is_missing() && may_join && self.failed_joins < MOST_FAILED_JOINS
    }

    /// Notes whether the vote is missing. Returns whether it is, and was not at the last call, or this is the first.
    fn note_missing(&mut self, now: Time) -> bool {
        let is_missing = !self.counts(now);
        let was_told = std::mem::replace(&mut self.is_told, is_missing);
        is_missing && !was_told
    }
}

#[cfg(test)]
mod tests;
