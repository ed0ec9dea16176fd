//! The vote of one node for an owner, and whether the node may have the owner at all: from the first request for the lock
//! until the node has confirmed the owner's end.
//!
//! | a node | event | next |
//! | --- | --- | --- |
//! | has no vote | it granted the lock before the guard began | votes: for the lease, counted from before the request was sent |
//! | has no vote | it joins ([`super::join`]) | is a candidate: it counts for nothing |
//! | is a candidate | a later renewal is confirmed by it, and by a majority that voted before | votes: for the renewed lease, counted from before that renewal was sent |
//! | votes | it confirms a renewal | votes: for the renewed lease, never shorter than before |
//! | votes, or is a candidate | it answers that the owner does not hold the lock | has no vote |
//! | votes, or is a candidate | the same, from the process of its server that voted, before the vote's own deadline | is barred: it never joins again. The lock was taken from the owner |
//!
//! A node that grants the lock only after the guard began has no vote, because another owner may have had a majority
//! meanwhile.
//!
//! | a node | event | next |
//! | --- | --- | --- |
//! | has nothing of the owner | a request for the lock is written to it, and it grants the lock, or may have the owner in its queue | may have the owner |
//! | has nothing of the owner | such a request has no answer | may have the owner, until the lease of that request is over |
//! | may have the owner | it confirms the owner's end | has nothing |
//! | may have the owner | the same, and the answer to a join, or a late answer, was read since the end was sent | the same, because the node may have executed that request later |
//! | may have the owner, until a lease is over | the same, on the connection of that request | has nothing |
//! | may have the owner, until a lease is over | the same, on another connection | the same, because the request may come later; then has nothing |

use crate::sys::Time;
use crate::wire::quorum::Reserved;

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
