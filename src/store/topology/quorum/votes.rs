//! The votes of the nodes for the owners of this process, from the grant to the release.
//!
//! | event | the vote of that node |
//! | --- | --- |
//! | it granted the lock before the guard began | lasts for the lease, counted from before the request was sent |
//! | it confirms a renewal | lasts for the renewed lease, counted from before that request; never shorter than before |
//! | it answers that the owner does not hold the lock | is gone for ever |
//! | it grants the lock only after the guard began | there is none: another owner may have had a majority meanwhile |
//!
//! A lease lasts as long as a majority of its votes ([`crate::core::quorum::deadline`]).

use std::collections::HashMap;
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::Time;
use crate::core::quorum::{Reserved, deadline};
use crate::message::Gone;
use crate::sync::{Arc, Mutex};

/// The vote of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeVote {
    /// Until when the vote counts; `None` if there is none.
    pub(super) until: Option<Time>,
    /// The fences of the node's reply to the request for the lock.
    pub(super) reserved: Option<Reserved>,
}

pub(super) type NodeVotes = SmallVec<[NodeVote; 5]>;

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
#[derive(Default)]
pub(super) struct Votes(Mutex<Table>);

#[derive(Default)]
struct Table {
    owners: HashMap<Arc<str>, Record>,
    /// The number of owners at which votes that have ended are looked for.
    sweep_at: usize,
}

/// The votes for one owner, and how often they were renewed.
struct Record {
    votes: NodeVotes,
    /// The units of the lock that the owner has.
    units: u32,
    /// The longest lease that any node was asked for.
    longest: Duration,
    version: u32,
}

/// The smallest number of owners at which votes that have ended are looked for.
const FIRST_SWEEP: usize = 1024;

impl Votes {
    /// Notes the votes of a grant for `lease`.
    pub(super) fn insert(
        &self,
        owner: &Arc<str>,
        units: u32,
        lease: Duration,
        votes: NodeVotes,
        now: Time,
    ) {
        let mut table = self.0.lock();
        if table.owners.len() >= table.sweep_at.max(FIRST_SWEEP) {
            // A lease whose release was given up leaves its votes here.
            let lasts = |vote: &NodeVote| vote.until.is_some_and(|until| until > now);
            table
                .owners
                .retain(|_, record| record.votes.iter().any(lasts));
            table.sweep_at = table.owners.len() * 2;
        }
        let record = Record {
            votes,
            units,
            longest: lease,
            version: 0,
        };
        table.owners.insert(Arc::clone(owner), record);
    }

    /// Returns the votes of an owner.
    pub(super) fn of(&self, owner: &str) -> Option<NodeVotes> {
        let table = self.0.lock();
        table.owners.get(owner).map(|record| record.votes.clone())
    }

    /// Returns the units that an owner has.
    pub(super) fn units_of(&self, owner: &str) -> Option<u32> {
        let table = self.0.lock();
        table.owners.get(owner).map(|record| record.units)
    }

    /// Notes that the nodes are asked for a longer lease. A node may grant it although its answer is lost.
    pub(super) fn ask_for(&self, owner: &str, lease: Duration) {
        if let Some(record) = self.0.lock().owners.get_mut(owner) {
            record.longest = record.longest.max(lease);
        }
    }

    /// Forgets an owner that was released. Returns its votes, and the longest lease that any node was asked for.
    pub(super) fn remove(&self, owner: &str) -> Option<(NodeVotes, Duration)> {
        let removed = self.0.lock().owners.remove(owner);
        removed.map(|record| (record.votes, record.longest))
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
        let mut table = self.0.lock();
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
            reserved: None,
        };
        until.iter().map(vote).collect()
    }

    #[test]
    fn a_vote_that_is_gone_ends_the_lease_earlier_and_never_comes_back() {
        use Confirmation::{Confirmed, Gone as NotHeld, None as Silent};
        let (table, owner): (Votes, Arc<str>) = (Votes::default(), "o".into());
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
        let (table, owner): (Votes, Arc<str>) = (Votes::default(), "o".into());
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
        table.remove("o");
        assert!(table.of("o").is_none());
    }

    #[test]
    fn owners_that_were_never_released_are_forgotten() {
        let table = Votes::default();
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
        let left = table.0.lock().owners.len();
        assert!(left <= 2 * FIRST_SWEEP, "{left}");
    }
}
