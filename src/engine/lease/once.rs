//! The record of a job that runs once: `Once`.
//!
//! | the server says | the lease | the caller gets |
//! | --- | --- | --- |
//! | the fire is recorded | stays as it is: the guard's drop releases it | success |
//! | the owner does not hold the lock | is lost, as after a renewal | the loss |
//! | nothing in time, or an error | stays as it is | the failure. The record may have been written |
//!
//! Unlike a commit, this request may arrive late: the job that it records was done, and the script never replaces a fire by an
//! earlier one.

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::lease::guard::Lease;
use crate::error::{Error, Failure, Result, Unsupported};
use crate::name::LockKey;
use crate::wire::{Done, Recorded, Reply, Request};

impl Engine {
    /// Fails on a quorum, whose nodes could keep different records. Sends nothing.
    pub(crate) fn can_record(&self) -> Result<()> {
        match self.client.store.votes() {
            Some(_) => Err(Unsupported::RECORDED_BY_VOTES.into()),
            None => Ok(()),
        }
    }

    /// Returns the record of a job. Blocks for one request.
    pub(crate) fn record_of(&self, key: &LockKey) -> Result<Recorded> {
        let client = &self.client;
        client.check_open()?;
        let answer = client.send(&Request::Once { key, done: None }, client.deadline(None));
        match answer.map(|answer| answer.reply) {
            Ok(Reply::Record(record)) => Ok(record),
            Ok(_) => Err(Failure::another_question().into_error(Some(key.name()))),
            Err(failure) => Err(failure.into_error(Some(key.name()))),
        }
    }
}

impl Lease {
    /// Records that a fire was done, if this owner holds the lock, or has recorded it before. Blocks for one request.
    pub(crate) fn record(&self, fire_us: u64, keep_for: Duration) -> Result<()> {
        self.held().map_err(Error::Lost)?;
        let (engine, process_lease) = (&self.engine, &self.process_lease);
        let owner = engine.client.owner_of(process_lease);
        let done = Some(Done {
            owner: &owner,
            fire_us,
            keep_for,
        });
        let key = &process_lease.keys()[0];
        let request = Request::Once { key, done };
        let deadline = engine.client.deadline(None);
        match engine.write_if_held(process_lease, self.fence, &request, deadline)? {
            Reply::Recorded => Ok(()),
            _ => Err(Failure::another_question().into_error(Some(self.name()))),
        }
    }
}
