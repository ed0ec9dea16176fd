//! A thread's holding in a lease: what a guard stands on.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::clock::Time;
use crate::config::MAX_LEASE;
use crate::core::lease::{LeaseStatus, drift};
use crate::engine::Engine;
use crate::engine::hold_limit::{HoldLimits, Limited};
use crate::engine::process_lease::{LossListener, ProcessLease, Turn};
use crate::error::{Error, Failure, FailureKind, Lost, LostCause, Result};
use crate::message::{Call, Renewed};
use crate::sync::{Arc, AtomicBool, Ordering};

/// A guard's turn in a lease, while it lasts. Dropping it ends it.
pub(crate) struct GuardInner {
    pub(super) engine: Arc<Engine>,
    pub(super) process_lease: Arc<ProcessLease>,
    /// Tells it from the lease's other holdings.
    pub(super) number: u32,
    /// Which of the lease's names it speaks of.
    scope: NameScope,
    pub(super) fence: u64,
    /// From when on the lock was the guard's.
    pub(super) since: Time,
    /// The limits to how long it may be held, if there are any.
    pub(super) limits: Option<Box<HoldLimits>>,
    /// Whether anybody was given a receiver.
    pub(super) is_listened_to: AtomicBool,
    pub(super) finished: bool,
}

/// Which of a lease's names a holding speaks of.
#[derive(Clone, Copy)]
enum NameScope {
    All,
    One(u32),
}

impl GuardInner {
    pub(crate) fn new(
        engine: Arc<Engine>,
        turn: Turn,
        since: Time,
        max_hold: Option<Duration>,
        min_hold: Duration,
    ) -> Self {
        let Turn {
            process_lease,
            fence,
            ..
        } = turn;
        if !min_hold.is_zero() {
            process_lease.note_min_hold(since + min_hold);
        }
        let number = process_lease.guards.fetch_add(1, Ordering::Relaxed);
        let limited = Limited {
            process_lease: &process_lease,
            guard_inner: number,
            fence,
            since,
        };
        let limits = HoldLimits::watch(&engine, &limited, max_hold);
        Self {
            engine,
            process_lease,
            number,
            scope: NameScope::All,
            fence,
            since,
            limits,
            is_listened_to: AtomicBool::new(false),
            finished: false,
        }
    }

    /// For each of its names a holding that speaks of that alone, and ends nothing.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = GuardInner> {
        // They listen in its name, so its end is to look for them.
        self.is_listened_to.store(true, Ordering::Relaxed);
        let fences = std::iter::once(self.fence).chain(self.process_lease.further_fences());
        (0..).zip(fences).map(|(index, fence)| GuardInner {
            engine: Arc::clone(&self.engine),
            process_lease: Arc::clone(&self.process_lease),
            number: self.number,
            scope: NameScope::One(index),
            fence,
            since: self.since,
            limits: self.limits.as_ref().and_then(|limits| limits.of_one_name()),
            is_listened_to: AtomicBool::new(false),
            finished: true,
        })
    }

    pub(crate) fn name(&self) -> &str {
        match self.scope {
            NameScope::One(index) => self.process_lease.keys()[index as usize].name(),
            NameScope::All => self.process_lease.entry.target.name(),
        }
    }

    pub(super) fn max_hold(&self) -> Option<Duration> {
        self.limits.as_ref()?.max_hold()
    }

    pub(crate) fn units(&self) -> u32 {
        self.process_lease.units
    }

    pub(crate) fn owner(&self) -> &str {
        self.process_lease.owner.shown(&self.engine.settings.label)
    }

    pub(crate) fn fence(&self) -> u64 {
        self.fence
    }

    /// How long the lease may be believed, and whether its renewal is overdue.
    pub(crate) fn status(&self) -> Result<(Duration, bool), Lost> {
        // A child of a fork has a copy of the guard and none of the lock.
        if self.engine.is_forked() {
            return Err(self.lost(LostCause::Taken));
        }
        if self
            .limits
            .as_ref()
            .is_some_and(|limits| limits.is_exceeded())
        {
            return Err(self.lost(LostCause::MaxHold));
        }
        match self.process_lease.validity.status(self.engine.now()) {
            LeaseStatus::Live(left) => Ok((left, self.process_lease.is_late(left))),
            LeaseStatus::Lost(cause) => Err(self.lost(cause)),
            // A lease ends with its last guard, so a guard that can still ask was outlived by a loss.
            LeaseStatus::Ended => Err(self.lost(LostCause::Expired)),
        }
    }

    pub(crate) fn lost(&self, cause: LostCause) -> Lost {
        Lost {
            name: self.name().into(),
            fence: self.fence,
            cause,
        }
    }

    pub(crate) fn on_lost(&self) -> Receiver<Lost> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.tell_of_loss(&sender);
        receiver
    }

    /// Has one message sent there at the loss; at a healthy end the sender is dropped.
    pub(crate) fn tell_of_loss(&self, sender: &Sender<Lost>) {
        // The causes stand in for each other here; whoever announces the loss puts the true one in.
        let lost = self.lost(LostCause::Expired);
        if self.engine.is_forked() {
            sender.try_send(lost).ok();
            return;
        }
        self.is_listened_to.store(true, Ordering::Relaxed);
        self.process_lease.enlist(LossListener {
            guard_inner: self.number,
            sender: sender.clone(),
            lost,
        });
        // A loss that was announced before we stood in the list is told here; told twice, the second finds the
        // channel full.
        if let Err(lost) = self.status() {
            sender.try_send(lost).ok();
        }
    }

    pub(crate) fn extend(&self, at_least: Duration) -> Result<()> {
        let (left, _) = self.status().map_err(Error::Lost)?;
        if at_least > MAX_LEASE {
            return Err(Error::config("at_least", "it is longer than 24 h"));
        }
        if left >= at_least {
            return Ok(());
        }
        // What drift takes off at this end is put on at the other.
        let lease = at_least + drift(at_least) * 2;
        self.process_lease.note_extension(self.engine.now() + lease);
        self.renew(lease, left)
    }

    /// Asks for so long a lease at once, within what is `left` of the present one.
    pub(super) fn renew(&self, lease: Duration, left: Duration) -> Result<()> {
        let renewals: Vec<_> = self.engine.renewals(&self.process_lease, lease).collect();
        let sent = self.engine.now();
        let limits = self.engine.limits(Some(sent + left));
        let name = Some(self.name());
        let said = self
            .engine
            .send(&Call::Renew(&renewals), limits)
            .and_then(|answer| answer.reply.renewed())
            .map_err(|failure| failure.into_error(name))?;
        let now = self.engine.now();
        match self.process_lease.renewed(sent, now, lease, &said) {
            LeaseStatus::Lost(_) => self.engine.watch.settle_now(&self.process_lease),
            _ if said.contains(&Renewed::Refused) => {
                let words = "the server does not let this user renew this lock";
                return Err(Failure::plain(FailureKind::Denied, false, words).into_error(name));
            }
            LeaseStatus::Live(left) => self.engine.count_renewal(&self.process_lease, left),
            LeaseStatus::Ended => {}
        }
        self.status().map(drop).map_err(Error::Lost)
    }
}
