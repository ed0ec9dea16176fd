//! Writes that a lease guards: `LockGuard::commit`.
//!
//! | the server says | the lease | the caller gets |
//! | --- | --- | --- |
//! | all writes were executed | stays as it is: a commit neither renews it nor asks for the time left | the replies, also if the lease ends meanwhile by this process's clock |
//! | it rejects a write | stays as it is | how many writes were executed before |
//! | the owner does not hold the lock | is lost, as after a renewal | the loss. Nothing was written |
//! | nothing in time | goes to no other guard under this owner, because the commit may still be executed while it is held | the failure |
//! | an error | stays as it is | the failure |

use std::time::Duration;

use crate::engine::lease::guard::Lease;
use crate::error::{Cause, Error, Failure, Outcome, Result, on_a_line};
use crate::wire::{Commit, Renewed, Reply, Request};
use crate::write::{self, Write};

impl Lease {
    /// Executes writes, if this owner still holds the lock. Blocks for one request.
    pub(crate) fn commit(&self, writes: &[Write]) -> Result<Vec<write::Reply>> {
        let (client, process_lease) = (&self.engine.client, &self.process_lease);
        let (keys, kind) = (process_lease.keys(), process_lease.entry.kind);
        write::check(writes, keys, client.has_slots())?;
        let (sent, _) = self.held().map_err(Error::Lost)?;
        let commit = Commit {
            locks: keys,
            owner: &client.owner_of(process_lease),
            units: kind.units_in_key(process_lease.units),
            writes,
        };
        let answer = client.send(&Request::Commit(&commit), client.deadline(None));
        match answer.map(|answer| answer.reply) {
            Ok(Reply::Committed(replies)) => Ok(replies),
            Ok(Reply::Stopped { done, why }) => {
                let cause: Box<dyn std::error::Error + Send + Sync> = on_a_line(&why).into();
                let cause = Cause::from(cause);
                Err(Error::Refused { done, cause })
            }
            Ok(Reply::NotOwner(gone)) => {
                let (renewal, replies) = (&self.engine.renewal, [Renewed::Gone(gone)]);
                renewal.apply(process_lease, sent, Duration::ZERO, &replies);
                Err(Error::Lost(self.lost(gone.into())))
            }
            Ok(_) => Err(Failure::another_question().into_error(Some(self.name()))),
            Err(failure) => {
                if failure.outcome == Outcome::Unknown {
                    process_lease.note_late_commit(sent + process_lease.terms.lease());
                }
                Err(failure.into_error(Some(self.name())))
            }
        }
    }
}
