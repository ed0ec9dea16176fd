//! The change of a writer to a reader, without a moment in which another writer could get the lock.
//!
//! 1. The writer's lease ends in this process, as at a release ([`Mode::Detach`]). Only after that is a request sent.
//! 2. One request ends the writer's lease in Redis, and begins the reader's lease under a new owner. The same script
//!    grants the lock to all readers that wait.
//! 3. The reader's lease enters the queue of this process's readers. If a thread of this process waits to write, it
//!    becomes the delegate.
//! 4. If the reply is lost, either owner may be in Redis. The renewal thread releases both, and the caller gets an
//!    error.

use std::time::Duration;

use crate::clock::Time;
use crate::config::Options;
use crate::core::attempt::{Grant, OrphanedOwner};
use crate::core::lease::{LeaseStatus, valid_until};
use crate::core::queue::{AcquireParams, GrantedTo};
use crate::engine::guard_inner::GuardInner;
use crate::engine::leases::Leases;
use crate::engine::process_lease::{Entry, ProcessLease, Turn};
use crate::engine::release::{Mode, Unreleased};
use crate::error::{Error, Failure, LostCause, Result};
use crate::message::{Ask, GiveBack, LockKind, Reply, Verb};
use crate::owner;
use crate::sync::Arc;

impl GuardInner {
    /// Ends this writer's turn, and returns a reader's. Blocks until Redis has replied to one request.
    pub(crate) fn downgrade(mut self) -> Result<Self> {
        let (status, unreleased) = self.end_turn(Mode::Detach)?;
        if let LeaseStatus::Lost(cause) = status {
            if unreleased.is_some() {
                self.leases.let_next_thread_ask(&self.process_lease.entry);
            }
            return Err(Error::Lost(self.lost(cause)));
        }
        let Some(Unreleased { give_back, .. }) = unreleased else {
            // The lease was lost before its guard ended.
            return Err(Error::Lost(self.lost(LostCause::Expired)));
        };
        let writer = &self.process_lease;
        let leases = Arc::clone(&self.leases);
        let entry = leases.names.pin(LockKind::Read, &writer.entry.target);
        let reader = leases.become_reader(writer, &entry, give_back);
        leases.let_next_thread_ask(&writer.entry);
        leases.names.unpin(&entry);
        let (turn, now) = match reader {
            Ok(Some(reader)) => reader,
            Ok(None) => return Err(Error::Lost(self.lost(LostCause::Removed))),
            Err(failure) => return Err(failure.into_error(Some(self.name()))),
        };
        // The rest of the writer's `min_hold` is the reader's.
        let min_hold_until = self.process_lease.min_hold_until(now);
        let options = Options {
            max_hold: self.max_hold(),
            min_hold: min_hold_until.map_or(Duration::ZERO, |until| until.since(now)),
            ..leases.client.settings.options
        };
        Ok(Self::new(leases, turn, now, &options))
    }
}

impl Leases {
    /// Sends the request. Returns the reader's turn and when it began, or `None` if the writer was not in Redis any
    /// more.
    fn become_reader(
        &self,
        writer: &Arc<ProcessLease>,
        entry: &Arc<Entry>,
        give_back: Option<GiveBack>,
    ) -> Result<Option<(Turn, Time)>, Failure> {
        let lease = writer.terms.lease();
        let reader = owner::generate(&*self.client.rng, &self.client.settings.label);
        let verb = Verb::TakeOver {
            ask: Ask {
                owner: Arc::clone(&reader),
                units: 1,
                lease,
                fences: u64::from(writer.terms.fencing),
                shareable_owner: None,
                channel: None,
                nonce: None,
            },
            from: self.client.owner_of(writer),
            give_back,
        };
        let sent = self.client.now();
        let answer = self
            .client
            .send(&entry.request(&verb), self.client.limits(None));
        let now = self.client.now();
        let failure = match answer {
            Ok(answer) => match answer.reply {
                Reply::Granted {
                    fence, contended, ..
                } if now < valid_until(sent, lease) => {
                    self.clean_up_uncertain(writer);
                    let grant = Grant {
                        owner: reader,
                        fence,
                        fences: u64::from(writer.terms.fencing),
                        quantum: self.quantum(now),
                        rest: Vec::new(),
                        pickup_window: None,
                        is_by_message: false,
                        sent,
                        deadline: valid_until(sent, lease),
                        contended,
                        uncertain_until: answer.resent.then(|| sent + lease),
                        kept_until: None,
                    };
                    let count =
                        |turn: &Turn, _| self.client.count_guard(turn, Duration::ZERO, true);
                    let params = AcquireParams {
                        units: 1,
                        terms: writer.terms,
                        linger: None,
                        waits: false,
                    };
                    let begun =
                        self.begin_lease(entry, &params, grant, GrantedTo::OtherThread, count);
                    return begun.map(Some);
                }
                Reply::NotOwner(_) => {
                    self.clean_up_uncertain(writer);
                    return Ok(None);
                }
                Reply::Granted { .. } => Failure::too_late(),
                _ => Failure::another_question(),
            },
            Err(failure) => failure,
        };
        let uncertain_until = failure.uncertain_until(sent, lease);
        let mut left = self.orphaned_owner(writer, give_back, now);
        left.uncertain_until = left.uncertain_until.max(uncertain_until);
        self.clean_up(&writer.entry, left, lease);
        if uncertain_until.is_some() {
            let left = OrphanedOwner {
                owner: reader,
                units: 1,
                uncertain_until,
                kept_until: None,
                give_back: None,
            };
            self.clean_up(entry, left, lease);
        }
        Err(failure)
    }

    /// Has the renewal thread release the writer's owner, if Redis may still execute an earlier request of it.
    fn clean_up_uncertain(&self, writer: &Arc<ProcessLease>) {
        let left = self.orphaned_owner(writer, None, self.client.now());
        if left.uncertain_until.is_some() {
            self.clean_up(&writer.entry, left, writer.terms.lease());
        }
    }
}
