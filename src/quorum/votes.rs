//! The votes of the nodes for the owners of this process, from the grant to the release. Also the nodes that may have an
//! owner at all, from the first request for the lock until each node has confirmed the owner's end.
//!
//! A lease lasts as long as a majority of its votes ([`crate::quorum::rules::deadline`]). Only nodes that may have the owner
//! are asked to end it. The engine's release task repeats that ([`crate::engine::ending::rules`]) for as long as
//! [`Votes::left_until`] names a time.
//!
//! # One node and one owner
//!
//! | event | its vote | what it may have of the owner |
//! | --- | --- | --- |
//! | a request for the lock is written to it | none | the owner, until it is over that the request can take the lock for a lease |
//! | it granted the lock before the guard began | it votes: for the lease, counted from before the request was sent | the owner |
//! | it answers "held", and may have the owner in its queue | none | the owner |
//! | it grants the lock after the guard began | none: another owner may have had a majority meanwhile | the owner |
//! | it joins ([`super::renew`]) | it is a candidate, which counts for nothing | the owner |
//! | a later renewal is confirmed by the candidate, and by a majority that voted before | it votes: for the renewed lease, counted from before that renewal was sent | the owner |
//! | it confirms a renewal, and votes | it votes: for the renewed lease, never shorter than before | the owner |
//! | it answers to a renewal that the owner does not hold the lock | none | the owner, because the answer may be old |
//! | the same, from the process of its server that voted, before the vote's own deadline | it is barred, and never joins again: the lock was taken from the owner | the same |
//! | it confirms the owner's end | as before | nothing |
//! | the same, but the answer to a join, or a late answer, was read since the end was sent | as before | the owner, because the node may have executed that request later |
//! | the same, but a request for the lock has no answer, and went out on another connection | as before | the owner until the request's time is over, because it may come later; then nothing |

use std::time::Duration;

use smallvec::SmallVec;

use crate::quorum::rules::deadline;
use crate::sys::hash::HashMap;
use crate::sys::{Arc, Mutex, Time};
use crate::wire::lifetime::drift;
use crate::wire::quorum::Reserved;
use crate::wire::{Gone, Renewed};

/// For how long a node may have an owner in its queue: a waiter that does not ask again for 3 s loses its place.
const LEFT_IN_QUEUE: Duration = Duration::from_secs(3);

/// The nodes to ask to join, and the last fence of the owner for each name.
pub(super) struct Joins {
    pub(super) nodes: SmallVec<[usize; 5]>,
    pub(super) ends: Ends,
}

/// The process of each node's server that can be asked to join, or `None`.
pub(super) type MayJoin = [Option<u32>];

/// The last fence of an owner for each of its names; 0 if the lock has no fence.
pub(super) type Ends = SmallVec<[u64; 1]>;

pub(super) type NodeVotes = SmallVec<[NodeVote; 5]>;

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

/// The votes of all owners.
pub(super) struct Votes {
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

/// The votes for one owner, and the nodes that may have it.
struct Record {
    votes: NodeVotes,
    /// The units of the lock that the owner has.
    units: u32,
    /// The longest lease that any node was asked for.
    longest: Duration,
    /// `None` before the grant.
    ends: Option<Ends>,
    /// How often the lease was renewed.
    version: u32,
    /// Until when a node may have the owner. `None` before the owner's end.
    left_until: Option<Time>,
}

/// The smallest number of owners at which votes that have ended are looked for.
const FIRST_SWEEP: usize = 1024;

impl Votes {
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
        (units, lease): (u32, Duration),
        votes: NodeVotes,
        ends: Option<Ends>,
        now: Time,
    ) {
        let mut table = self.table.lock();
        if table.owners.len() >= table.sweep_at.max(FIRST_SWEEP) {
            // A lease whose release was given up leaves its votes here. So does a claim.
            let lasts = |vote: &NodeVote| vote.until.max(vote.settles_at) > Some(now);
            table.owners.retain(|_, record| {
                record.votes.iter().any(lasts) || record.left_until.is_some_and(|until| until > now)
            });
            table.sweep_at = table.owners.len() * 2;
        }
        let mut record = Record {
            votes,
            units,
            longest: lease,
            ends,
            version: 0,
            left_until: None,
        };
        if let Some(before) = table.owners.get(owner) {
            record.longest = record.longest.max(before.longest);
            for (vote, before) in record.votes.iter_mut().zip(&before.votes) {
                vote.add_earlier(before);
            }
        }
        table.owners.insert(Arc::clone(owner), record);
    }

    /// Notes that an owner ends, and returns what each of the `nodes` nodes has of it. An owner without a record may be
    /// at any node.
    pub(super) fn end(&self, owner: &Arc<str>, units: u32, nodes: usize, now: Time) -> NodeVotes {
        let mut table = self.table.lock();
        let record = table.owners.entry(Arc::clone(owner));
        let record = record.or_insert_with(|| Record {
            votes: (0..nodes).map(|_| NodeVote::new(AT_ONCE)).collect(),
            units,
            longest: self.unknown_lease,
            ends: None,
            version: 0,
            left_until: None,
        });
        let lease = record.longest + drift(record.longest);
        // A request that comes at the last moment takes the lock for a lease from then.
        let last = record.votes.iter().filter_map(|vote| vote.settles_at);
        let last = last.fold(now, Time::max) + lease.max(LEFT_IN_QUEUE);
        record.left_until.get_or_insert(last);
        record.votes.clone()
    }

    /// Returns whether an owner has ended, and a node that may have it has not confirmed that at all.
    pub(super) fn has_unconfirmed(&self, now: Time) -> bool {
        let table = self.table.lock();
        table.owners.values().any(|record| {
            let is_left = record.left_until.is_some_and(|until| until > now);
            is_left && record.votes.iter().any(NodeVote::is_unconfirmed)
        })
    }

    /// Returns until when some node may have an owner that ends. Forgets the owner if no node may.
    pub(super) fn left_until(&self, owner: &str, now: Time) -> Option<Time> {
        let mut table = self.table.lock();
        let record = table.owners.get(owner)?;
        let until = record.left_until?;
        if until <= now || record.votes.iter().all(|vote| vote.settles_at.is_none()) {
            table.owners.remove(owner);
            return None;
        }
        Some(until)
    }

    /// Notes something of a node and an owner, if the owner has a record.
    pub(super) fn note(&self, owner: &str, node: usize, change: impl FnOnce(&mut NodeVote)) {
        if let Some(record) = self.table.lock().owners.get_mut(owner) {
            change(&mut record.votes[node]);
        }
    }

    /// Forgets an owner.
    pub(super) fn forget(&self, owner: &str) {
        self.table.lock().owners.remove(owner);
    }

    /// Returns the units that an owner has.
    pub(super) fn units_of(&self, owner: &str) -> Option<u32> {
        let table = self.table.lock();
        table.owners.get(owner).map(|record| record.units)
    }

    /// Takes in what each node answered to the renewal of an owner's lease.
    pub(super) fn renewed(&self, owner: &str, round: Round<'_>, now: Time) -> Renewed {
        let mut table = self.table.lock();
        let gone = |confirmation: &Confirmation| match confirmation {
            Confirmation::Gone(gone, _) => Some(*gone),
            _ => None,
        };
        let why = || {
            let mut all = round.confirmations.iter().filter_map(gone);
            let taken = all.find(|gone| *gone == Gone::Taken);
            taken.unwrap_or(Gone::Removed)
        };
        let Some(record) = table.owners.get_mut(owner) else {
            return Renewed::Gone(why());
        };
        let lasts = record
            .deadline(round.needed)
            .is_some_and(|until| until > now);
        let mut confirmed = 0;
        record.version += 1;
        for (vote, confirmation) in record.votes.iter_mut().zip(round.confirmations) {
            match confirmation {
                Confirmation::Confirmed => {
                    confirmed += usize::from(vote.until.is_some());
                    vote.confirm(round.sent, round.until);
                }
                Confirmation::Gone(_, process) => {
                    vote.end(round.sent, *process, round.may_join.is_some());
                }
                Confirmation::Silent => {}
            }
        }
        if confirmed >= round.needed && lasts {
            for (vote, confirmation) in record.votes.iter_mut().zip(round.confirmations) {
                if *confirmation == Confirmation::Confirmed {
                    vote.promote(round.sent);
                }
            }
        }
        let Some(until) = record.deadline(round.needed) else {
            return Renewed::Gone(why());
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
    /// until [`NodeVote::end_join`] is noted for it.
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
        if record.left_until.is_some() || !record.votes.iter().any(NodeVote::is_missing) {
            return None;
        }
        let ends = record.ends.clone()?;
        record.deadline(needed).filter(|until| *until > now)?;
        let mut nodes = SmallVec::new();
        for (number, (vote, process)) in record.votes.iter_mut().zip(may_join).enumerate() {
            if process.is_some_and(|process| vote.begin_join(process, now + lease)) {
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
        record.is_some_and(|record| record.votes[node].counts(now))
    }
}

impl Record {
    /// Returns until when the lease lasts. Returns `None` if it has too few votes.
    fn deadline(&self, needed: usize) -> Option<Time> {
        let votes: SmallVec<[_; 8]> = self.votes.iter().map(|vote| vote.until).collect();
        deadline(&votes, needed)
    }

    /// Returns whether a vote is missing that a node may soon give by a join.
    fn may_gain(&self, may_join: impl Fn(usize) -> bool) -> bool {
        let mut votes = self.votes.iter().enumerate();
        votes.any(|(number, vote)| vote.may_gain() && may_join(number))
    }

    /// Notes which votes are missing. Returns whether one of them was not at the last call, or this is the first.
    fn note_misses(&mut self, now: Time) -> bool {
        let mut has_new = false;
        for vote in &mut self.votes {
            has_new |= vote.note_missing(now);
        }
        has_new
    }
}

/// At once.
pub(super) const AT_ONCE: Option<Time> = Some(Time::from_nanos(0));

/// After this number of failed joins in a row, a lease is not renewed earlier for this node: it may refuse for long, as with a
/// full memory.
const MOST_FAILED_JOINS: u8 = 4;

/// Names one open connection among all of a quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionId(pub(super) u64);

/// The vote of one node for an owner, and whether the node may have the owner.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeVote {
    /// Until when the vote counts; `None` if there is none.
    pub(super) until: Option<Time>,
    /// Which process of the node's server has voted.
    pub(super) process: u32,
    candidate: Option<Candidacy>,
    /// A join that has no answer yet.
    joining: Option<Joining>,
    /// When an answer was last read after which the node may have the owner: to a join, or a late one.
    answered_at: Option<Time>,
    /// How many joins in a row have failed.
    failed_joins: u8,
    is_barred: bool,
    /// Whether [`Self::note_missing`] has reported the missing vote.
    is_told: bool,
    /// The fences of the node's reply to the request for the lock. `None` if the node may give none back.
    pub(super) reserved: Option<Reserved>,
    /// From when on the node's confirmation of the owner's end is final: at once, or when no request of unknown outcome can
    /// reach the node any more. `None` if the node has nothing of the owner.
    pub(super) settles_at: Option<Time>,
    /// The connection of the only request of unknown outcome. The node executes a later request there after it.
    pub(super) asked_on: Option<ConnectionId>,
    /// Whether the node has confirmed the owner's end, final or not.
    has_confirmed_end: bool,
}

/// A node that has joined.
#[derive(Clone, Copy, Debug)]
struct Candidacy {
    /// When its answer came. Only a renewal that is sent after that can make it a vote.
    since: Time,
    /// Until when the node holds the lock for the owner.
    until: Time,
}

/// A join that has no answer yet.
#[derive(Clone, Copy, Debug)]
struct Joining {
    /// The `settles_at` before the join.
    settled_at: Option<Time>,
    /// Whether the node has said meanwhile, on another connection, that it does not have the owner.
    is_void: bool,
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

impl NodeVote {
    /// Returns what a node without a vote has.
    pub(super) fn new(settles_at: Option<Time>) -> Self {
        Self {
            settles_at,
            ..Self::default()
        }
    }

    /// Returns whether there is no vote, and the node may join.
    pub(super) fn is_missing(&self) -> bool {
        self.until.is_none() && !self.is_barred
    }

    /// Returns whether no request of unknown outcome is on its way.
    fn has_answered(&self) -> bool {
        [None, AT_ONCE].contains(&self.settles_at)
    }

    /// Takes in that a renewal is confirmed.
    pub(super) fn confirm(&mut self, sent: Time, until: Time) {
        if self.until.is_some() {
            self.until = self.until.max(Some(until));
        }
        if let Some(candidate) = self.candidate.as_mut().filter(|it| it.since <= sent) {
            candidate.until = candidate.until.max(until);
        }
    }

    /// Makes a candidate a vote, after a renewal that it and a majority have confirmed.
    pub(super) fn promote(&mut self, sent: Time) {
        if let Some(candidate) = self.candidate.filter(|candidate| candidate.since <= sent) {
            (self.until, self.candidate) = (Some(candidate.until), None);
        }
    }

    /// Ends the vote: the node has answered to a renewal that it does not have the owner. If it has joined since the renewal
    /// of another connection was sent, the answer may be older than that, and says nothing.
    pub(super) fn end(&mut self, sent: Time, process: u32, joins: bool) {
        if !joins && self.candidate.is_some_and(|it| it.since > sent) {
            return;
        }
        let until = self
            .until
            .or(self.candidate.map(|candidate| candidate.until));
        // By the time at which the renewal was sent, because the node may have answered then.
        let was_taken = self.process == process && until.is_some_and(|until| until > sent);
        self.is_barred |= was_taken;
        (self.until, self.candidate) = (None, None);
        if let Some(joining) = self.joining.as_mut().filter(|_| !joins) {
            joining.is_void = true;
        }
    }

    /// Takes in what an earlier request of the owner may have left here.
    pub(super) fn add_earlier(&mut self, before: &Self) {
        if before.settles_at > AT_ONCE {
            // There is more than one request without an answer then.
            self.asked_on = None;
            self.process = self.process.max(before.process);
        }
        self.settles_at = self.settles_at.max(before.settles_at);
    }

    /// Notes that the node has confirmed the owner's end, which was sent at `sent`. `is_ordered`: it has executed that after
    /// every request for the lock. If the answer to one was read since, the node may have executed it later, so this says nothing.
    pub(super) fn confirm_end(&mut self, is_ordered: bool, sent: Time, now: Time) {
        if self.answered_at >= Some(sent) {
            return;
        }
        self.settles_at = self.settles_at.filter(|at| *at > now && !is_ordered);
        self.has_confirmed_end = true;
    }

    /// Returns whether the node may have the owner, and has not confirmed its end at all.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.settles_at.is_some() && !self.has_confirmed_end
    }

    /// Notes the late answer to the request on this connection.
    pub(super) fn late_answer(&mut self, asked_on: ConnectionId, has_owner: bool, now: Time) {
        if self.asked_on == Some(asked_on) {
            self.settles_at = AT_ONCE.filter(|_| has_owner);
            (self.asked_on, self.has_confirmed_end) = (None, false);
            if has_owner {
                self.answered_at = Some(now);
            }
        }
    }

    /// Notes that the request on this connection will have no answer.
    pub(super) fn no_late_answer(&mut self, asked_on: ConnectionId) {
        self.asked_on = self.asked_on.filter(|open| *open != asked_on);
    }

    /// Begins a join at this process of the node's server. Returns false if the node must not be asked.
    pub(super) fn begin_join(&mut self, process: u32, until: Time) -> bool {
        // A process that has ended executes no earlier request.
        let has_restarted = self.process > 0 && process > self.process;
        let may_ask = self.is_missing() && (self.has_answered() || has_restarted);
        let begins = may_ask && self.candidate.is_none() && self.joining.is_none();
        if begins {
            self.joining = Some(Joining {
                settled_at: self.settles_at.min(AT_ONCE),
                is_void: false,
            });
            self.settles_at = self.settles_at.max(Some(until));
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
        let Some(joining) = self.joining.take() else {
            return;
        };
        if how != Joined::Refused {
            self.process = process;
        }
        self.failed_joins = match how {
            Joined::Until(_) => 0,
            Joined::Refused | Joined::Failed | Joined::Unknown => {
                self.failed_joins.saturating_add(1)
            }
        };
        match how {
            Joined::Until(until) => {
                let candidate = Candidacy { since: now, until };
                self.candidate = Some(candidate).filter(|_| !joining.is_void);
            }
            Joined::Refused => self.settles_at = joining.settled_at,
            Joined::Failed => {}
            Joined::Unknown => self.asked_on = asked_on,
        }
        if matches!(how, Joined::Until(_) | Joined::Failed) {
            // A release may have come before the join.
            (self.settles_at, self.has_confirmed_end) = (AT_ONCE, false);
            self.answered_at = Some(now);
        }
    }

    /// Returns whether the node has no vote, and a renewal may soon bring one.
    pub(super) fn may_gain(&self) -> bool {
        // The answer may still come.
        let may_answer = self.asked_on.is_some() || self.joining.is_some();
        let may_join = self.has_answered() || may_answer;
        self.is_missing() && may_join && self.failed_joins < MOST_FAILED_JOINS
    }

    /// Notes whether the vote is missing. Returns whether it is, and was not at the last call, or this is the first.
    pub(super) fn note_missing(&mut self, now: Time) -> bool {
        let is_missing = !self.counts(now);
        let was_told = std::mem::replace(&mut self.is_told, is_missing);
        is_missing && !was_told
    }

    /// Returns whether there is a vote that has not run out.
    pub(super) fn counts(&self, now: Time) -> bool {
        self.until > Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn votes(until: &[Option<u64>]) -> NodeVotes {
        let vote = |until: &Option<u64>| {
            let mut vote = NodeVote::new(AT_ONCE);
            vote.until = until.map(at);
            vote
        };
        until.iter().map(vote).collect()
    }

    /// Takes in a renewal, sent at the time before which the votes that it confirms then last for 100 ms.
    fn renewed(
        table: &Votes,
        confirmations: &[Confirmation],
        until: u64,
        needed: usize,
    ) -> Renewed {
        let sent = at(until - 100);
        let round = Round {
            confirmations,
            is_contended: false,
            sent,
            until: at(until),
            needed,
            may_join: Some(&[]),
        };
        table.renewed("o", round, sent)
    }

    #[test]
    fn a_vote_that_is_gone_ends_the_lease_earlier() {
        use Confirmation::{Confirmed, Gone as NotHeld, Silent};
        let (table, owner): (Votes, Arc<str>) = (Votes::new(Duration::ZERO), "o".into());
        let granted = votes(&[Some(100), Some(100), Some(100), None, None]);
        table.insert(&owner, (1, Duration::ZERO), granted, None, at(0));
        let gone = NotHeld(Gone::Removed, 0);
        let lasts = |version, until, is_confirmed| Renewed::Voted {
            contended: false,
            until: at(until),
            version,
            is_confirmed,
            lacks_votes: false,
            has_new_misses: version == 2,
        };
        // A node without a vote that confirms gets none. The slowest of the three decides.
        let two = [Confirmed, Confirmed, Silent, Confirmed, Silent];
        assert_eq!(renewed(&table, &two, 200, 3), lasts(1, 100, false));
        let three = [Confirmed, Confirmed, Confirmed, Silent, Silent];
        assert_eq!(renewed(&table, &three, 300, 3), lasts(2, 300, true));
        // A shorter renewal shortens nothing.
        assert_eq!(renewed(&table, &three, 250, 3), lasts(3, 300, true));
        let one_gone = [gone, Confirmed, Confirmed, Silent, Silent];
        let lost = Renewed::Gone(Gone::Removed);
        assert_eq!(renewed(&table, &one_gone, 400, 3), lost);
        assert_eq!(renewed(&table, &three, 500, 3), lost);
    }

    #[test]
    fn with_all_nodes_a_lease_survives_the_loss_of_a_minority() {
        use Confirmation::{Confirmed, Gone as NotHeld, Silent};
        let (table, owner): (Votes, Arc<str>) = (Votes::new(Duration::ZERO), "o".into());
        let granted = votes(&[Some(100); 5]);
        table.insert(&owner, (1, Duration::ZERO), granted, None, at(0));
        let taken = NotHeld(Gone::Taken, 0);
        let answers = [taken, taken, Confirmed, Confirmed, Confirmed];
        assert_eq!(
            lasts(renewed(&table, &answers, 200, 3)),
            Some((at(200), true))
        );
        let answers = [Silent, Silent, Confirmed, Confirmed, taken];
        assert_eq!(
            renewed(&table, &answers, 300, 3),
            Renewed::Gone(Gone::Taken)
        );
    }

    const LEASE: Duration = Duration::from_millis(100);
    const ID: Option<ConnectionId> = Some(ConnectionId(7));

    /// Makes a table in which two of three nodes vote for an owner until 100 ms.
    fn two_of_three() -> Votes {
        let table = Votes::new(Duration::ZERO);
        let granted = votes(&[Some(100), Some(100), None]);
        let ends = Some(Ends::from_slice(&[7]));
        table.insert(&"o".into(), (1, LEASE), granted, ends, at(0));
        table
    }

    /// Begins joins at `now`. Returns the nodes to ask.
    fn begin(table: &Votes, now: u64) -> Vec<usize> {
        let joins = table.begin_renewal("o", (LEASE, 2), Some(&[Some(1); 3]), at(now));
        joins.map_or_else(Vec::new, |joins| {
            assert_eq!(joins.ends.as_slice(), [7]);
            joins.nodes.to_vec()
        })
    }

    fn lasts(status: Renewed) -> Option<(Time, bool)> {
        match status {
            Renewed::Voted {
                until,
                is_confirmed,
                ..
            } => Some((until, is_confirmed)),
            _ => None,
        }
    }

    #[test]
    fn a_node_that_joins_votes_after_the_next_renewal_of_a_majority() {
        use Confirmation::{Confirmed, Silent};
        let table = two_of_three();
        assert_eq!(begin(&table, 50), [2]);
        assert_eq!(begin(&table, 50), [0; 0], "it is asked already");
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Until(at(150)), 1), ID, at(60));
        });
        // A renewal that was sent before the answer came, although the node has executed it after the join.
        renewed(&table, &[Confirmed; 3], 155, 2);
        let misses = |table: &Votes| table.has_misses("o", |_| true);
        assert!(misses(&table));
        // One voter and the candidate are no majority of voters.
        let status = renewed(&table, &[Confirmed, Silent, Confirmed], 170, 2);
        assert_eq!(lasts(status), Some((at(155), false)));
        assert!(misses(&table) && begin(&table, 70).is_empty());
        let status = renewed(&table, &[Confirmed; 3], 180, 2);
        assert_eq!(lasts(status), Some((at(180), true)));
        assert!(!misses(&table));
        // Now another node may fail.
        let status = renewed(&table, &[Confirmed, Silent, Confirmed], 190, 2);
        assert_eq!(lasts(status), Some((at(190), true)));
    }

    #[test]
    fn a_lease_whose_deadline_has_passed_gains_no_votes() {
        use Confirmation::Confirmed;
        let table = two_of_three();
        begin(&table, 50);
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Until(at(150)), 1), ID, at(60));
        });
        renewed(&table, &[Confirmed; 3], 200, 2);
        assert!(table.has_misses("o", |_| true));
        let table = two_of_three();
        assert!(begin(&table, 100).is_empty());
    }

    #[test]
    fn a_node_from_which_the_lock_was_taken_never_joins_again() {
        use Confirmation::{Confirmed, Gone as NotHeld, Silent};
        // The process that says it, the time at which the renewal was sent, and whether the node may join then.
        for (process, sent, joins_again) in [(0, 50, false), (1, 50, true), (0, 100, true)] {
            let table = Votes::new(Duration::ZERO);
            let granted = votes(&[Some(190), Some(190), Some(100)]);
            let ends = Some(Ends::from_slice(&[7]));
            table.insert(&"o".into(), (1, LEASE), granted, ends, at(0));
            let gone = NotHeld(Gone::Removed, process);
            renewed(&table, &[Silent, Silent, gone], sent + 100, 2);
            let case = (process, sent);
            assert_eq!(begin(&table, sent) == [2], joins_again, "{case:?}");
        }
        // The same for a candidate.
        let table = two_of_three();
        begin(&table, 10);
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Until(at(110)), 1), ID, at(20));
        });
        let gone = NotHeld(Gone::Taken, 1);
        renewed(&table, &[Confirmed, Confirmed, gone], 130, 2);
        assert!(begin(&table, 40).is_empty() && !table.has_misses("o", |_| true));
    }

    #[test]
    fn an_answer_of_another_connection_voids_a_join_under_way() {
        use Confirmation::{Confirmed, Gone as NotHeld};
        for joins in [true, false] {
            let table = two_of_three();
            begin(&table, 10);
            let confirmations = [Confirmed, Confirmed, NotHeld(Gone::Removed, 0)];
            let round = Round {
                confirmations: &confirmations,
                is_contended: false,
                sent: at(10),
                until: at(110),
                needed: 2,
                may_join: joins.then_some(&[][..]),
            };
            table.renewed("o", round, at(10));
            table.note("o", 2, |vote| {
                vote.end_join((Joined::Until(at(110)), 1), ID, at(20));
            });
            renewed(&table, &[Confirmed; 3], 130, 2);
            assert_eq!(table.has_misses("o", |_| true), !joins);
        }
    }

    #[test]
    fn a_node_may_have_the_owner_from_the_beginning_of_a_join_on() {
        let table = two_of_three();
        table.note("o", 2, |vote| vote.confirm_end(true, at(0), at(0)));
        let settles = |table: &Votes| table.table.lock().owners["o"].votes[2].settles_at;
        for (how, then) in [
            (Joined::Refused, None),
            (Joined::Until(at(110)), AT_ONCE),
            (Joined::Unknown, Some(at(110))),
        ] {
            let table = two_of_three();
            table.note("o", 2, |vote| vote.confirm_end(true, at(0), at(0)));
            begin(&table, 10);
            assert_eq!(settles(&table), Some(at(110)));
            table.note("o", 2, |vote| vote.end_join((how, 1), ID, at(20)));
            assert_eq!(settles(&table), then, "{how:?}");
        }
        // The release comes between the join and its answer.
        begin(&table, 10);
        assert_eq!(asked(&table, 15), [true; 3]);
        for node in 0..3 {
            table.note("o", node, |vote| vote.confirm_end(false, at(16), at(16)));
        }
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Until(at(110)), 1), ID, at(20));
        });
        assert_eq!(asked(&table, 25), [false, false, true]);
        assert!(begin(&table, 30).is_empty(), "the owner has ended");
        // The confirmation of an end that was sent before comes later. The node may have executed the join after it.
        table.note("o", 2, |vote| vote.confirm_end(false, at(16), at(31)));
        assert_eq!(asked(&table, 32), [false, false, true]);
        table.note("o", 2, |vote| vote.confirm_end(false, at(33), at(34)));
        assert_eq!(asked(&table, 35), [false; 3]);
    }

    #[test]
    fn a_late_vote_says_what_the_node_has() {
        let id = ConnectionId(7);
        for (has_owner, then) in [(true, AT_ONCE), (false, None)] {
            let table = Votes::new(Duration::ZERO);
            let mut granted = traces([AT_ONCE, AT_ONCE, Some(at(100))]);
            granted[2].asked_on = Some(id);
            table.insert(&"o".into(), (1, LEASE), granted, None, at(0));
            for _ in 0..2 {
                table.note("o", 2, |vote| vote.late_answer(id, has_owner, at(21)));
                assert_eq!(table.table.lock().owners["o"].votes[2].settles_at, then);
            }
        }
    }

    /// The release came on another connection, and the node executed it before the request for the lock.
    #[test]
    fn a_late_grant_is_released_again_if_a_confirmation_may_be_older() {
        let table = Votes::new(Duration::ZERO);
        let mut granted = traces([AT_ONCE, AT_ONCE, Some(at(100))]);
        granted[2].asked_on = ID;
        table.insert(&"o".into(), (1, LEASE), granted, None, at(0));
        asked(&table, 10);
        table.note("o", 2, |vote| {
            vote.late_answer(ConnectionId(7), true, at(21));
        });
        table.note("o", 2, |vote| vote.confirm_end(false, at(10), at(22)));
        assert_eq!(asked(&table, 23), [true; 3]);
        table.note("o", 2, |vote| vote.confirm_end(false, at(23), at(24)));
        assert_eq!(asked(&table, 25), [true, true, false]);
    }

    #[test]
    fn a_node_joins_only_if_no_earlier_request_is_on_its_way() {
        // A request for the lock has no answer, and then a join.
        for is_join in [false, true] {
            let table = two_of_three();
            if is_join {
                begin(&table, 10);
                table.note("o", 2, |vote| {
                    vote.end_join((Joined::Unknown, 1), ID, at(20));
                });
            } else {
                let mut granted = votes(&[Some(100), Some(100), None]);
                granted[2].settles_at = Some(at(110));
                granted[2].asked_on = ID;
                let ends = Some(Ends::from_slice(&[7]));
                table.forget("o");
                table.insert(&"o".into(), (1, LEASE), granted, ends, at(0));
            }
            assert!(table.has_misses("o", |_| true), "the answer may come");
            assert!(begin(&table, 30).is_empty());
            table.note("o", 2, |vote| {
                vote.late_answer(ConnectionId(8), true, at(21));
            });
            assert!(begin(&table, 30).is_empty(), "another connection");
            table.note("o", 2, |vote| {
                vote.late_answer(ConnectionId(7), true, at(21));
            });
            assert_eq!(begin(&table, 30), [2]);
            // After a restart nothing is on its way.
            table.note("o", 2, |vote| {
                vote.end_join((Joined::Unknown, 1), ID, at(40));
            });
            let joins = table.begin_renewal("o", (LEASE, 2), Some(&[Some(2); 3]), at(50));
            assert_eq!(joins.expect("it has restarted").nodes.to_vec(), [2]);
            table.note("o", 2, |vote| {
                vote.end_join((Joined::Refused, 2), ID, at(60));
            });
            assert_eq!(begin(&table, 70), [2], "it has refused");
        }
    }

    #[test]
    fn a_waiter_that_is_granted_the_lock_hears_a_late_vote_too() {
        let table = Votes::new(Duration::ZERO);
        let ask = (1, LEASE);
        table.insert(&"o".into(), ask, traces([AT_ONCE; 3]), None, at(0));
        let mut granted = votes(&[Some(100), Some(100), None]);
        (granted[2].settles_at, granted[2].asked_on) = (Some(at(110)), ID);
        let ends = Some(Ends::from_slice(&[7]));
        table.insert(&"o".into(), ask, granted, ends, at(10));
        assert!(begin(&table, 20).is_empty());
        table.note("o", 2, |vote| {
            vote.late_answer(ConnectionId(7), true, at(21));
        });
        assert_eq!(begin(&table, 20), [2]);
        // If the connection is closed, no answer comes.
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Unknown, 1), ID, at(30));
        });
        assert!(table.has_misses("o", |_| true));
        table.note("o", 2, |vote| vote.no_late_answer(ConnectionId(7)));
        assert!(!table.has_misses("o", |_| true) && begin(&table, 40).is_empty());
    }

    #[test]
    fn each_further_node_without_a_vote_is_told_once() {
        use Confirmation::{Confirmed, Gone as NotHeld, Silent};
        let table = two_of_three();
        let tells = |answers: [Confirmation; 3], until| {
            let status = renewed(&table, &answers, until, 2);
            matches!(
                status,
                Renewed::Voted {
                    has_new_misses: true,
                    ..
                }
            )
        };
        assert!(tells([Confirmed, Confirmed, Silent], 110));
        assert!(!tells([Confirmed, Confirmed, Silent], 110));
        begin(&table, 10);
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Until(at(110)), 1), ID, at(20));
        });
        assert!(!tells([Confirmed; 3], 150));
        // The node has restarted.
        let gone = NotHeld(Gone::Removed, 1);
        assert!(tells([gone, Confirmed, Confirmed], 160));
        assert!(!tells([gone, Confirmed, Confirmed], 200));
        // An unconfirmed renewal is repeated.
        begin(&table, 110);
        table.note("o", 0, |vote| {
            vote.end_join((Joined::Until(at(210)), 1), ID, at(110));
        });
        assert!(!tells([Confirmed; 3], 220));
        assert!(!tells([Confirmed, Silent, Silent], 301));
        // A vote that has run out is missing too.
        assert!(tells([Confirmed, Confirmed, Silent], 330));
    }

    #[test]
    fn a_node_that_refuses_four_joins_is_not_asked_early_any_more() {
        let table = two_of_three();
        for failed in [Joined::Refused, Joined::Failed].repeat(2) {
            assert!(table.has_misses("o", |_| true));
            assert_eq!(begin(&table, 10), [2]);
            table.note("o", 2, |vote| vote.end_join((failed, 1), ID, at(10)));
        }
        assert!(!table.has_misses("o", |_| true));
        assert_eq!(begin(&table, 20), [2], "a renewal asks it all the same");
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Until(at(120)), 1), ID, at(20));
        });
        assert!(table.has_misses("o", |_| true), "it is a candidate");
    }

    /// Returns what three nodes without votes have.
    fn traces(settles_at: [Option<Time>; 3]) -> NodeVotes {
        settles_at.into_iter().map(NodeVote::new).collect()
    }

    /// Returns which nodes have something of an owner that ends.
    fn asked(table: &Votes, now: u64) -> Vec<bool> {
        let votes = table.end(&"o".into(), 1, 3, at(now));
        let has_owner = |vote: &NodeVote| vote.settles_at.is_some();
        votes.iter().map(has_owner).collect()
    }

    #[test]
    fn an_owner_is_left_until_each_node_that_may_have_it_has_confirmed_its_end() {
        let (table, lease) = (Votes::new(Duration::ZERO), Duration::from_secs(60));
        // The third node was down when the lock was asked for.
        let asked_for = traces([AT_ONCE, AT_ONCE, None]);
        table.insert(&"o".into(), (1, lease), asked_for, None, at(0));
        assert_eq!(table.left_until("o", at(0)), None, "it has not ended");
        assert_eq!(asked(&table, 10), [true, true, false]);
        table.note("o", 0, |vote| vote.confirm_end(false, at(20), at(20)));
        let until = table.left_until("o", at(20)).expect("the second node");
        assert!(table.has_unconfirmed(at(20)), "the second node");
        assert!(until >= at(10) + lease);
        // A repeat asks the second node only, and extends nothing.
        assert_eq!(asked(&table, 1000), [false, true, false]);
        assert_eq!(table.left_until("o", at(1000)), Some(until));
        table.note("o", 1, |vote| vote.confirm_end(false, at(1000), at(1000)));
        assert_eq!(table.left_until("o", at(1000)), None);
        assert!(table.table.lock().owners.is_empty(), "it is not forgotten");
        // A node that never confirms has dropped the key by then, or the engine gives up.
        asked(&table, 0);
        table.forget("o");
        assert_eq!(table.left_until("o", at(0)), None);
        table.insert(&"o".into(), (1, lease), traces([AT_ONCE; 3]), None, at(0));
        asked(&table, 0);
        assert_eq!(table.left_until("o", at(200_000)), None);
        assert!(table.table.lock().owners.is_empty(), "it is not forgotten");
    }

    #[test]
    fn a_request_without_an_answer_may_come_after_a_confirmation_on_another_connection() {
        let (table, lease) = (Votes::new(Duration::ZERO), Duration::from_secs(10));
        let silent = traces([Some(at(10_000)), Some(at(10_000)), None]);
        table.insert(&"o".into(), (1, lease), silent, None, at(0));
        asked(&table, 0);
        for node in [0, 1] {
            table.note("o", node, |vote| {
                vote.confirm_end(node == 0, at(9_999), at(9_999));
            });
        }
        assert_eq!(asked(&table, 9_999), [false, true, false]);
        let until = table.left_until("o", at(9_999)).expect("it may come");
        assert!(until >= at(20_000), "it takes the lock for a lease");
        assert!(
            !table.has_unconfirmed(at(9_999)),
            "each node has confirmed it"
        );
        table.note("o", 1, |vote| {
            vote.confirm_end(false, at(10_000), at(10_000));
        });
        assert_eq!(table.left_until("o", at(10_000)), None);
    }

    #[test]
    fn what_earlier_requests_have_left_is_asked_too() {
        let table = Votes::new(Duration::ZERO);
        for left_behind in [[AT_ONCE, None, None], [None, AT_ONCE, None]] {
            let ask = (1, Duration::ZERO);
            table.insert(&"o".into(), ask, traces(left_behind), None, at(0));
        }
        assert_eq!(asked(&table, 0), [true, true, false]);
        // Nothing is known of another owner, so each node may have it.
        let votes = table.end(&"other".into(), 1, 3, at(0));
        assert!(votes.iter().all(|vote| vote.settles_at == AT_ONCE));
    }

    #[test]
    fn owners_that_were_never_released_are_forgotten() {
        let table = Votes::new(Duration::ZERO);
        for number in 0..5 * FIRST_SWEEP as u64 {
            let owner: Arc<str> = number.to_string().into();
            let granted = votes(&[Some(number)]);
            table.insert(&owner, (1, Duration::ZERO), granted, None, at(number));
        }
        let left = table.table.lock().owners.len();
        assert!(left <= 2 * FIRST_SWEEP, "{left}");
    }
}
