//! The record of a job that runs once: `Once`.
//!
//! | the server says | the lease | the caller gets |
//! | --- | --- | --- |
//! | the fire is recorded | stays as it is: the guard's drop releases it | success |
//! | the owner does not hold the lock | is lost, as after a renewal | the loss. Nothing was recorded, unless this owner did it before |
//! | nothing in time, or an error | stays as it is | the failure. The record may have been written |

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::lease::guard::Lease;
use crate::error::{Error, Failure, Result};
use crate::name::LockKey;
use crate::wire::{OnceRequest, Recorded, Renewed, Reply, Request};

impl Engine {
    /// Returns the record of a job.
    pub(crate) fn record_of(&self, key: &LockKey) -> Result<Recorded> {
        let client = &self.client;
        client.check_open()?;
        let once = OnceRequest::Read;
        let answer = client.send(&Request::Once { key, once }, client.deadline(None));
        match answer.map(|answer| answer.reply) {
            Ok(Reply::Record(record)) => Ok(record),
            Ok(_) => Err(Failure::another_question().into_error(Some(key.name()))),
            Err(failure) => Err(failure.into_error(Some(key.name()))),
        }
    }
}

impl Lease {
    /// Returns the record of the job, for whose repetition there is a first fire from now on.
    pub(crate) fn record_of_every(&self, keep_for: Duration) -> Result<Recorded> {
        let owner = &self.engine.client.owner_of(&self.process_lease);
        match self.ask_once(OnceRequest::ReadEvery { owner, keep_for })? {
            Reply::Record(record) => Ok(record),
            _ => Err(Failure::another_question().into_error(Some(self.name()))),
        }
    }

    /// Records that a fire was done.
    pub(crate) fn record(&self, fire_us: u64, keep_for: Duration) -> Result<()> {
        let owner = &self.engine.client.owner_of(&self.process_lease);
        let done = OnceRequest::Done {
            owner,
            fire_us,
            keep_for,
        };
        match self.ask_once(done)? {
            Reply::Recorded => Ok(()),
            _ => Err(Failure::another_question().into_error(Some(self.name()))),
        }
    }

    fn ask_once(&self, once: OnceRequest<'_>) -> Result<Reply> {
        let client = &self.engine.client;
        let (sent, _) = self.held().map_err(Error::Lost)?;
        let key = &self.process_lease.keys()[0];
        let answer = client.send(&Request::Once { key, once }, client.deadline(None));
        match answer.map(|answer| answer.reply) {
            Ok(Reply::NotOwner(gone)) => {
                let (renewal, replies) = (&self.engine.renewal, [Renewed::Gone(gone)]);
                renewal.apply(&self.process_lease, sent, Duration::ZERO, &replies);
                Err(Error::Lost(self.lost(gone.into())))
            }
            Ok(reply) => Ok(reply),
            Err(failure) => Err(failure.into_error(Some(self.name()))),
        }
    }
}
