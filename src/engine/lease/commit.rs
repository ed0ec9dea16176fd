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

use crate::engine::Engine;
use crate::engine::lease::guard::Lease;
use crate::engine::lease::process_lease::ProcessLease;
use crate::error::{Cause, Error, Failure, Lost, Outcome, Result, on_a_line};
use crate::net::deadline::Deadline;
use crate::sys::Arc;
use crate::wire::{Commit, Renewed, Reply, Request};
use crate::write::{self, Write};

impl Engine {
    /// Sends a request that writes only if this lease holds its locks. If it does not, it is lost, as after a renewal.
    pub(crate) fn write_if_held(
        &self,
        process_lease: &Arc<ProcessLease>,
        fence: u64,
        request: &Request<'_>,
        deadline: Deadline<'_>,
    ) -> Result<Reply> {
        let client = &self.client;
        let (sent, name) = (client.now(), process_lease.keys()[0].name());
        match client.send(request, deadline) {
            Ok(answer) => match answer.reply {
                Reply::NotOwner(gone) => {
                    let replies = [Renewed::Gone(gone)];
                    let renewal = &self.renewal;
                    renewal.apply(process_lease, sent, Duration::ZERO, &replies);
                    let (name, cause) = (name.into(), gone.into());
                    Err(Error::Lost(Lost { name, fence, cause }))
                }
                reply => Ok(reply),
            },
            Err(failure) => {
                if failure.outcome == Outcome::Unknown && !request.may_repeat() {
                    process_lease.note_late_commit(sent + process_lease.terms.lease());
                }
                Err(failure.into_error(Some(name)))
            }
        }
    }
}

impl Lease {
    /// Executes writes, if this owner still holds the lock. Blocks for one request.
    pub(crate) fn commit(&self, writes: &[Write]) -> Result<Vec<write::Reply>> {
        let (client, process_lease) = (&self.engine.client, &self.process_lease);
        let (keys, kind) = (process_lease.keys(), process_lease.entry.kind);
        write::check(writes, keys, client.has_slots())?;
        self.held().map_err(Error::Lost)?;
        let commit = Commit {
            locks: keys,
            owner: &client.owner_of(process_lease),
            units: kind.units_in_key(process_lease.units),
            writes,
        };
        let request = Request::Commit(&commit);
        let (engine, deadline) = (&self.engine, client.deadline(None));
        match engine.write_if_held(process_lease, self.fence, &request, deadline)? {
            Reply::Committed(replies) => Ok(replies),
            Reply::Stopped { done, why } => {
                let cause: Box<dyn std::error::Error + Send + Sync> = on_a_line(&why).into();
                let cause = Cause::from(cause);
                Err(Error::Refused { done, cause })
            }
            _ => Err(Failure::another_question().into_error(Some(self.name()))),
        }
    }
}
