//! The change of a writer to a reader, without a moment in which another writer could get the lock.
//!
//! 1. The writer's lease ends in this process, as at a release ([`HoldEnd::Detach`]). Only after that is a request sent.
//! 2. One request ends the writer's lease in Redis, and begins the reader's lease under a new owner. The same script
//!    grants the lock to all readers that wait.
//! 3. The reader's lease enters the queue of this process's readers. If a thread of this process waits to write, it
//!    becomes the delegate.
//! 4. If the reply is lost, either owner may be in Redis. The renewal thread releases both, and the caller gets an
//!    error.

use std::time::Duration;

use crate::config::Options;
use crate::engine::Engine;
use crate::engine::attempt::{EndedOwner, Grant};
use crate::engine::lease::guard::Lease;
use crate::engine::lease::process_lease::{Hold, ProcessLease};
use crate::engine::lease::release::HoldEnd;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::queue::Entry;
use crate::engine::queue::rules::GrantedTo;
use crate::error::{Error, Failure, LostCause, Result};
use crate::owner;
use crate::sys::Arc;
use crate::wire::{Ask, LockKind, Reply, Request};

impl Lease {
    /// Ends this writer's hold, and returns a reader's. Blocks until Redis has replied to one request.
    pub(crate) fn downgrade(mut self) -> Result<Self> {
        self.finished = true;
        let (status, unreleased) = self.end_hold(HoldEnd::Detach)?;
        if let LeaseStatus::Lost(cause) = status {
            if unreleased.is_some() {
                self.engine.let_next_thread_ask(&self.process_lease.entry);
            }
            return Err(Error::Lost(self.lost(cause)));
        }
        let Some((release_task, _counted)) = unreleased else {
            // The lease was lost before its guard ended.
            return Err(Error::Lost(self.lost(LostCause::Expired)));
        };
        let writer = &self.process_lease;
        let engine = Arc::clone(&self.engine);
        let entry = engine.names.pin(LockKind::Read, &writer.entry.target);
        let reader = engine.become_reader(writer, &entry, release_task.unsent());
        engine.let_next_thread_ask(&writer.entry);
        engine.names.unpin(&entry);
        let hold = match reader {
            Ok(Ok(hold)) => hold,
            Ok(Err(cause)) => return Err(Error::Lost(self.lost(cause))),
            Err(failure) => return Err(failure.into_error(Some(self.name()))),
        };
        let now = hold.since;
        // The rest of the writer's `min_hold` is the reader's.
        let min_hold_until = self.process_lease.min_hold_until(now);
        let options = Options {
            max_hold: self.max_hold(),
            min_hold: min_hold_until.map_or(Duration::ZERO, |until| until.since(now)),
            ..engine.client.settings.options
        };
        Ok(Self::new(engine, hold, &options))
    }
}

impl Engine {
    /// Sends the request, which ends the writer's owner. Returns the reader's hold, or why there is none.
    fn become_reader(
        self: &Arc<Self>,
        writer: &Arc<ProcessLease>,
        entry: &Arc<Entry>,
        from: EndedOwner,
    ) -> Result<Result<Hold, LostCause>, Failure> {
        let (client, terms, lease) = (&self.client, writer.terms, writer.terms.lease());
        let tail = owner::tail_of(&from.owner).unwrap_or(&client.tail);
        let reader = owner::generate(client.machine(), tail);
        let fences = u64::from(terms.fencing);
        let ask = Ask {
            takes_free: false,
            ending: Some(from.end()),
            ..Ask::once(Arc::clone(&reader), 1, lease, fences)
        };
        let sent = client.now();
        let answer = client.send(&Request::Ask(entry.id(), &ask), client.deadline(None));
        let now = client.now();
        self.clean_up_nodes(entry, &reader, 1);
        let granted = answer.and_then(|answer| {
            match answer.reply {
                // The writer was not in Redis any more.
                Reply::NotOwner(_) => return Ok(Err(LostCause::Removed)),
                // A node of a quorum ends the writer and begins the reader by two scripts, and another process came between.
                Reply::Held { .. } | Reply::Outvoted { .. } => return Ok(Err(LostCause::Taken)),
                _ => {}
            }
            let owner = Arc::clone(&reader);
            let grant = Grant::of_reply(answer.reply, owner, terms, fences, sent, now)?;
            Ok(Ok(Grant {
                uncertain_until: answer.resent.then(|| sent + lease),
                ..grant
            }))
        });
        let failure = match granted {
            Ok(grant) => {
                self.clean_up_nodes(&writer.entry, &from.owner, from.units);
                // Redis may still execute an earlier request of the writer's owner.
                if from.uncertain_until.is_some() {
                    let left = EndedOwner {
                        give_back: None,
                        ..from
                    };
                    self.clean_up(&writer.entry, left, lease);
                }
                let grant = match grant {
                    Ok(grant) => grant,
                    Err(cause) => return Ok(Err(cause)),
                };
                let count = |hold: &Hold| client.count_guard(hold, Duration::ZERO, true);
                let begun = self.begin_lease(entry, grant, GrantedTo::OtherThread, count);
                return begun.map(Ok);
            }
            Err(failure) => failure,
        };
        let uncertain_until = failure.uncertain_until(sent, lease);
        let left = EndedOwner {
            uncertain_until: from.uncertain_until.max(uncertain_until),
            ..from
        };
        self.clean_up(&writer.entry, left, lease);
        if uncertain_until.is_some() {
            let left = EndedOwner {
                owner: reader,
                units: 1,
                uncertain_until,
                key_gone_at: None,
                give_back: None,
            };
            self.clean_up(entry, left, lease);
        }
        Err(failure)
    }
}
