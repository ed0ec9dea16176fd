//! The adoption of a mutex that was detached: each node that has it under the detached owner gives it the new one.
//!
//! | the answers | the next step |
//! | --- | --- |
//! | a majority adopted it | the fences are settled, and the votes kept, as after an acquire. At the other nodes both owners are withdrawn |
//! | the detached owner has no majority any more | the new owner is withdrawn; the claim is lost |
//! | fewer answers | the nodes that adopted it take the detached owner back, so that the claim can be adopted later. A node that cannot be asked to may keep the new owner. No release is sent to it, because it must not free the lock. The caller asks under the same owner again, which that node grants. |
//!
//! The process that detached the lock may have asked a slow node to join ([`super::join`]). If that node executes the join
//! after the adoption, it has the detached owner until the lease of the join is over, and gives the new owner no vote
//! before.

use crate::error::{Failure, Outcome};
use crate::name::{LockKey, Target};
use crate::quorum::acquire::Ballot;
use crate::quorum::round::{Enough, QuorumCall, Recipients};
use crate::quorum::votes::LateAbout;
use crate::sys::{Arc, Time, wall_us};
use crate::wire::quorum::LockId;
use crate::wire::{Adopt, Ask, Gone, LockKind, Reply, quorum as node_request};

impl QuorumCall<'_> {
    /// Adopts a mutex: the table at the top.
    pub(super) fn adopt(&mut self, key: &LockKey, adopt: &Adopt) -> Result<Reply, Failure> {
        self.check_once()?;
        let (sent, state) = (Time::now(), self.state);
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
        let mut ballot = Ballot::new(state, lock, &new);
        let command = [request(adopt)];
        let spare = state.nodes.len() - state.needed;
        let (mut adopted, mut gone, mut why) = (0, 0, Gone::Removed);
        ballot.is_unanswered.fill(true);
        let commands = |_| Some(&command[..]);
        self.round(Recipients::Granters, commands, &mut |number, answer| {
            let is_unsent = |failure: &Failure| failure.outcome == Outcome::NotExecuted;
            ballot.is_unanswered[number] = matches!(&answer, Err(failure) if !is_unsent(failure));
            match answer.map(|value| (node_request::adopted(lock, adopt.fencing, &value), value)) {
                Ok((Some(Ok(vote)), _)) => {
                    ballot.votes[number] = Some(vote);
                    adopted += 1;
                }
                Ok((Some(Err(now)), _)) => {
                    gone += 1;
                    why = if gone == 1 { now } else { why };
                }
                Ok((None, value)) => {
                    ballot.failures[number] = Some(state.unexpected(number, value));
                }
                Err(failure) => ballot.failures[number] = Some(failure),
            }
            Enough::certain_if(adopted >= state.needed || gone > spare)
        });
        for (number, connection) in self.connections.iter().enumerate() {
            ballot.is_cut[number] = ballot.is_unanswered[number] && !connection.is_open();
        }
        if gone > spare {
            ballot.withdraw(self, true);
            return Ok(Reply::NotOwner(why));
        }
        let settled = ballot.settle_fences(self);
        if let Ok((chosen, count)) = settled {
            let reply = ballot.granted(self, &chosen, count, sent);
            // Where the adoption is not confirmed, the detached owner may still be.
            let old = ask(&adopt.from, state.votes.unknown_lease.max(adopt.lease));
            let mut rest = Ballot::new(state, lock, &old);
            for (number, vote) in ballot.votes.iter().enumerate() {
                rest.is_unanswered[number] = vote.is_none();
                // The request that has acquired the lock may have been sent on an earlier connection.
                rest.is_cut[number] = vote.is_none();
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
        for (number, connection) in self.connections.iter_mut().enumerate() {
            if ballot.votes[number].is_some() || ballot.is_unanswered[number] {
                outcome = Outcome::Unknown;
                connection.tell(back.clone(), LateAbout::Nothing);
            }
        }
        // The next adoption asks under this owner again, perhaps without a node that may still have it.
        ballot.note(ballot.left_behind(), None);
        let failure = state.no_quorum(settled.err().unwrap_or(adopted), ballot.failures);
        Err(Failure { outcome, ..failure })
    }
}
