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
use crate::wire::{Done, Recorded, Renewed, Reply, Request};

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
        let client = &self.engine.client;
        let (sent, _) = self.held().map_err(Error::Lost)?;
        let owner = client.owner_of(&self.process_lease);
        let done = Some(Done {
            owner: &owner,
            fire_us,
            keep_for,
        });
        let key = &self.process_lease.keys()[0];
        let answer = client.send(&Request::Once { key, done }, client.deadline(None));
        match answer.map(|answer| answer.reply) {
            Ok(Reply::Recorded) => Ok(()),
            Ok(Reply::NotOwner(gone)) => {
                let (renewal, replies) = (&self.engine.renewal, [Renewed::Gone(gone)]);
                renewal.apply(&self.process_lease, sent, Duration::ZERO, &replies);
                Err(Error::Lost(self.lost(gone.into())))
            }
            Ok(_) => Err(Failure::another_question().into_error(Some(self.name()))),
            Err(failure) => Err(failure.into_error(Some(self.name()))),
        }
    }
}
