//! The votes of the nodes for the owners of this process, from the grant to the release. Also the nodes that may have an
//! owner at all, from the first request for the lock until each node has confirmed the owner's end.
//!
//! | event | the vote of that node |
//! | --- | --- |
//! | it granted the lock before the guard began | lasts for the lease, counted from before the request was sent |
//! | it confirms a renewal | lasts for the renewed lease, counted from before that request; never shorter than before |
//! | it answers that the owner does not hold the lock | is gone for ever |
//! | it grants the lock only after the guard began | there is none: another owner may have had a majority meanwhile |
//!
//! A lease lasts as long as a majority of its votes ([`crate::core::quorum::deadline`]).
//!
//! | a node | event | next |
//! | --- | --- | --- |
//! | has nothing of the owner | a request for the lock is written to it, and it grants the lock, or may have the owner in its queue | may have the owner |
//! | has nothing of the owner | such a request has no answer | may have the owner, until the lease of that request is over |
//! | may have the owner | it confirms the owner's end | has nothing |
//! | may have the owner, until a lease is over | the same, on the connection of that request | has nothing |
//! | may have the owner, until a lease is over | the same, on another connection | the same, because the request may come later; then has nothing |
//!
//! Only nodes that may have the owner are asked to end it. The engine's release task repeats that
//! ([`crate::core::release_task`]) for as long as [`Votes::left_until`] names a time.

use std::time::Duration;

use smallvec::SmallVec;

use crate::core::lease::drift;
use crate::core::quorum::{Reserved, deadline};
use crate::message::Gone;
use crate::sys::hash::HashMap;
use crate::sys::{Arc, Mutex, Time};

/// For how long a node may have an owner in its queue: a waiter that does not ask again for 3 s loses its place.
const LEFT_IN_QUEUE: Duration = Duration::from_secs(3);

/// The vote of one node for an owner, and whether the node may have the owner.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeVote {
    /// Until when the vote counts; `None` if there is none.
    pub(super) until: Option<Time>,
    /// The fences of the node's reply to the request for the lock.
    pub(super) reserved: Option<Reserved>,
    /// From when on the node's confirmation of the owner's end is final: at once, or when no request of unknown outcome can
    /// reach the node any more. `None` if the node has nothing of the owner.
    pub(super) settles_at: Option<Time>,
    /// Whether the node has confirmed the owner's end, final or not.
    has_confirmed_end: bool,
}

/// At once.
pub(super) const AT_ONCE: Option<Time> = Some(Time::from_nanos(0));

pub(super) type NodeVotes = SmallVec<[NodeVote; 5]>;

/// The end of an owner that the answer to a command confirms, if nobody waits for that answer.
pub(super) struct LateConfirmation {
    pub(super) owner: Arc<str>,
    /// Whether the node executes the command after every request for the lock.
    pub(super) is_ordered: bool,
}

/// The subject of a late answer.
pub(super) type LateAbout = Option<LateConfirmation>;

/// The answer of a node to the renewal of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confirmation {
    Confirmed,
    Gone(Gone),
    /// It did not answer, or rejected the request.
    None,
}

/// The state of a lease after a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VoteStatus {
    /// It lasts until then. `is_confirmed`: a majority has confirmed this renewal.
    Lasts {
        until: Time,
        /// Rises with each renewal of this owner.
        version: u32,
        is_confirmed: bool,
    },
    Lost(Gone),
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
    /// How often the lease was renewed.
    version: u32,
    /// Until when a node may have the owner. `None` before the owner's end.
    left_until: Option<Time>,
}

/// The smallest number of owners at which votes that have ended are looked for.
const FIRST_SWEEP: usize = 1024;

impl NodeVote {
    /// Returns what a node without a vote has.
    pub(super) fn new(settles_at: Option<Time>) -> Self {
        Self {
            settles_at,
            ..Self::default()
        }
    }
}

impl Votes {
    /// Makes an empty table. A node may have an owner without a record for at most `unknown_lease`.
    pub(super) fn new(unknown_lease: Duration) -> Self {
        Self {
            table: Mutex::default(),
            unknown_lease,
        }
    }

    /// Notes what the nodes have of an owner after a request for `lease`. A node that may have the owner by an earlier request still may.
    pub(super) fn insert(
        &self,
        owner: &Arc<str>,
        units: u32,
        lease: Duration,
        votes: NodeVotes,
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
            version: 0,
            left_until: None,
        };
        if let Some(before) = table.owners.get(owner) {
            record.longest = record.longest.max(before.longest);
            for (vote, before) in record.votes.iter_mut().zip(&before.votes) {
                vote.settles_at = vote.settles_at.max(before.settles_at);
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

    /// Notes that a node has confirmed the end of an owner. `is_ordered`: it has executed that after every request for the
    /// lock.
    pub(super) fn confirmed(&self, owner: &str, node: usize, is_ordered: bool, now: Time) {
        if let Some(record) = self.table.lock().owners.get_mut(owner) {
            let vote = &mut record.votes[node];
            vote.settles_at = vote.settles_at.filter(|at| *at > now && !is_ordered);
            vote.has_confirmed_end = true;
        }
    }

    /// Returns whether a node that may have an owner has not confirmed its end at all.
    pub(super) fn is_unconfirmed(&self, owner: &str) -> bool {
        let table = self.table.lock();
        let is_missing = |vote: &NodeVote| vote.settles_at.is_some() && !vote.has_confirmed_end;
        let record = table.owners.get(owner);
        record.is_some_and(|record| record.votes.iter().any(is_missing))
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

    /// Forgets an owner.
    pub(super) fn forget(&self, owner: &str) {
        self.table.lock().owners.remove(owner);
    }

    /// Returns the units that an owner has.
    pub(super) fn units_of(&self, owner: &str) -> Option<u32> {
        let table = self.table.lock();
        table.owners.get(owner).map(|record| record.units)
    }

    /// Notes that the nodes are asked for a longer lease. A node may grant it although its answer is lost.
    pub(super) fn ask_for(&self, owner: &str, lease: Duration) {
        if let Some(record) = self.table.lock().owners.get_mut(owner) {
            record.longest = record.longest.max(lease);
        }
    }

    /// Takes in what each node answered to the renewal of an owner's lease, which now lasts until `until` where it was
    /// confirmed.
    pub(super) fn renewed(
        &self,
        owner: &str,
        confirmations: &[Confirmation],
        until: Time,
        needed: usize,
    ) -> VoteStatus {
        let mut table = self.table.lock();
        let gone = |confirmation: &Confirmation| match confirmation {
            Confirmation::Gone(gone) => Some(*gone),
            _ => None,
        };
        let why = || {
            let mut all = confirmations.iter().filter_map(gone);
            let taken = all.find(|gone| *gone == Gone::Taken);
            taken.unwrap_or(Gone::Removed)
        };
        let Some(record) = table.owners.get_mut(owner) else {
            return VoteStatus::Lost(why());
        };
        let mut confirmed = 0;
        record.version += 1;
        for (vote, confirmation) in record.votes.iter_mut().zip(confirmations) {
            match confirmation {
                Confirmation::Confirmed if vote.until.is_some() => {
                    vote.until = vote.until.max(Some(until));
                    confirmed += 1;
                }
                Confirmation::Gone(_) => vote.until = None,
                Confirmation::Confirmed | Confirmation::None => {}
            }
        }
        let deadlines: SmallVec<[_; 8]> = record.votes.iter().map(|vote| vote.until).collect();
        match deadline(&deadlines, needed) {
            Some(until) => VoteStatus::Lasts {
                until,
                version: record.version,
                is_confirmed: confirmed >= needed,
            },
            None => VoteStatus::Lost(why()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn votes(until: &[Option<u64>]) -> NodeVotes {
        let vote = |until: &Option<u64>| NodeVote {
            until: until.map(at),
            ..NodeVote::new(AT_ONCE)
        };
        until.iter().map(vote).collect()
    }

    #[test]
    fn a_vote_that_is_gone_ends_the_lease_earlier_and_never_comes_back() {
        use Confirmation::{Confirmed, Gone as NotHeld, None as Silent};
        let (table, owner): (Votes, Arc<str>) = (Votes::new(Duration::ZERO), "o".into());
        table.insert(
            &owner,
            1,
            Duration::ZERO,
            votes(&[Some(100), Some(100), Some(100), None, None]),
            at(0),
        );
        let gone = NotHeld(Gone::Removed);
        let lasts = |version, until, is_confirmed| VoteStatus::Lasts {
            until: at(until),
            version,
            is_confirmed,
        };
        // A node without a vote that confirms gets none. The slowest of the three decides.
        let two = [Confirmed, Confirmed, Silent, Confirmed, Silent];
        assert_eq!(table.renewed("o", &two, at(200), 3), lasts(1, 100, false));
        let three = [Confirmed, Confirmed, Confirmed, Silent, Silent];
        assert_eq!(table.renewed("o", &three, at(300), 3), lasts(2, 300, true));
        // A shorter renewal shortens nothing.
        assert_eq!(table.renewed("o", &three, at(250), 3), lasts(3, 300, true));
        let one_gone = [gone, Confirmed, Confirmed, Silent, Silent];
        let lost = VoteStatus::Lost(Gone::Removed);
        assert_eq!(table.renewed("o", &one_gone, at(400), 3), lost);
        assert_eq!(table.renewed("o", &three, at(500), 3), lost);
    }

    #[test]
    fn with_all_nodes_a_lease_survives_the_loss_of_a_minority() {
        use Confirmation::{Confirmed, Gone as NotHeld, None as Silent};
        let (table, owner): (Votes, Arc<str>) = (Votes::new(Duration::ZERO), "o".into());
        table.insert(&owner, 1, Duration::ZERO, votes(&[Some(100); 5]), at(0));
        let taken = NotHeld(Gone::Taken);
        let answers = [taken, taken, Confirmed, Confirmed, Confirmed];
        let lasts = VoteStatus::Lasts {
            until: at(200),
            version: 1,
            is_confirmed: true,
        };
        assert_eq!(table.renewed("o", &answers, at(200), 3), lasts);
        let answers = [Silent, Silent, Confirmed, Confirmed, taken];
        assert_eq!(
            table.renewed("o", &answers, at(300), 3),
            VoteStatus::Lost(Gone::Taken)
        );
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
        table.insert(&"o".into(), 1, lease, asked_for, at(0));
        assert_eq!(table.left_until("o", at(0)), None, "it has not ended");
        assert_eq!(asked(&table, 10), [true, true, false]);
        table.confirmed("o", 0, false, at(20));
        let until = table.left_until("o", at(20)).expect("the second node");
        assert!(table.is_unconfirmed("o"), "the second node");
        assert!(until >= at(10) + lease);
        // A repeat asks the second node only, and extends nothing.
        assert_eq!(asked(&table, 1000), [false, true, false]);
        assert_eq!(table.left_until("o", at(1000)), Some(until));
        table.confirmed("o", 1, false, at(1000));
        assert_eq!(table.left_until("o", at(1000)), None);
        assert!(table.table.lock().owners.is_empty(), "it is not forgotten");
        // A node that never confirms has dropped the key by then, or the engine gives up.
        asked(&table, 0);
        table.forget("o");
        assert_eq!(table.left_until("o", at(0)), None);
        table.insert(&"o".into(), 1, lease, traces([AT_ONCE; 3]), at(0));
        asked(&table, 0);
        assert_eq!(table.left_until("o", at(200_000)), None);
        assert!(table.table.lock().owners.is_empty(), "it is not forgotten");
    }

    #[test]
    fn a_request_without_an_answer_may_come_after_a_confirmation_on_another_connection() {
        let (table, lease) = (Votes::new(Duration::ZERO), Duration::from_secs(10));
        let silent = traces([Some(at(10_000)), Some(at(10_000)), None]);
        table.insert(&"o".into(), 1, lease, silent, at(0));
        asked(&table, 0);
        for node in [0, 1] {
            table.confirmed("o", node, node == 0, at(9_999));
        }
        assert_eq!(asked(&table, 9_999), [false, true, false]);
        let until = table.left_until("o", at(9_999)).expect("it may come");
        assert!(until >= at(20_000), "it takes the lock for a lease");
        assert!(!table.is_unconfirmed("o"), "each node has confirmed it");
        table.confirmed("o", 1, false, at(10_000));
        assert_eq!(table.left_until("o", at(10_000)), None);
    }

    #[test]
    fn what_earlier_requests_have_left_is_asked_too() {
        let table = Votes::new(Duration::ZERO);
        for left_behind in [[AT_ONCE, None, None], [None, AT_ONCE, None]] {
            table.insert(&"o".into(), 1, Duration::ZERO, traces(left_behind), at(0));
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
            table.insert(
                &owner,
                1,
                Duration::ZERO,
                votes(&[Some(number)]),
                at(number),
            );
        }
        let left = table.table.lock().owners.len();
        assert!(left <= 2 * FIRST_SWEEP, "{left}");
    }
}
