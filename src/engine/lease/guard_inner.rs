//! The inside of a guard: one thread's hold on a lease, with its fence and time limits.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::config::Options;
use crate::engine::ending::rules::ReleaseTask;
use crate::engine::lease::leases::{CountedBusy, Leases};
use crate::engine::lease::limits::HoldLimits;
use crate::engine::lease::process_lease::{Hold, LossListener, ProcessLease};
use crate::engine::lease::release::HoldEnd;
use crate::engine::lease::rules::LeaseStatus;
#[cfg(feature = "tracing")]
use crate::engine::observe::spans;
use crate::error::{Error, Failure, FailureKind, Lost, LostCause, Outcome, Result};
use crate::event::ReleaseRequest;
use crate::logging;
use crate::sys::{Arc, AtomicBool, Ordering, Time};
use crate::wire::lifetime::drift;
use crate::wire::{Renewed, Request};

/// How many requests to release a lock wait for a guard's thread to read them. Later ones are dropped.
const MOST_REQUESTS: usize = 16;

/// A guard's hold on a lease. Dropping it ends the hold.
pub(crate) struct GuardInner {
    pub(crate) leases: Arc<Leases>,
    pub(crate) process_lease: Arc<ProcessLease>,
    /// The number of this guard among the guards of the lease.
    pub(crate) number: u32,
    /// The index of the name that this guard stands for. `None` if it stands for all names of the lease.
    index: Option<u32>,
    pub(crate) fence: u64,
    /// The time at which the thread got the lock.
    pub(crate) since: Time,
    /// `max_hold` and `warn_after`, if one of them is set.
    pub(crate) limits: Option<Box<HoldLimits>>,
    /// Whether a channel was registered for the loss of this guard.
    pub(crate) is_listened_to: AtomicBool,
    /// Whether the hold has ended, so that dropping this does nothing.
    pub(crate) finished: bool,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl GuardInner {
    /// Makes the guard of a hold that the thread has had since `since`.
    pub(crate) fn new(leases: Arc<Leases>, hold: Hold, since: Time, options: &Options) -> Self {
        if !options.min_hold.is_zero() {
            hold.process_lease.note_min_hold(since + options.min_hold);
        }
        let number = hold.process_lease.guards.fetch_add(1, Ordering::Relaxed);
        let limits = HoldLimits::watch(&leases, &hold, number, since, options.max_hold);
        Self {
            #[cfg(feature = "tracing")]
            span: spans::hold(hold.process_lease.entry.target.name(), hold.fence),
            leases,
            process_lease: hold.process_lease,
            number,
            index: None,
            fence: hold.fence,
            since,
            limits,
            is_listened_to: AtomicBool::new(false),
            finished: false,
        }
    }

    /// Returns a view for each name of the guard. Dropping a view ends nothing.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = GuardInner> {
        // A view registers its loss listeners under the number of this guard. So the end of this guard must look for
        // them.
        self.is_listened_to.store(true, Ordering::Relaxed);
        let fences = std::iter::once(self.fence).chain(self.process_lease.further_fences());
        (0..).zip(fences).map(|(index, fence)| GuardInner {
            leases: Arc::clone(&self.leases),
            process_lease: Arc::clone(&self.process_lease),
            number: self.number,
            index: Some(index),
            fence,
            since: self.since,
            limits: self.limits.as_ref().and_then(|limits| limits.of_one_name()),
            is_listened_to: AtomicBool::new(false),
            finished: true,
            #[cfg(feature = "tracing")]
            span: tracing::Span::none(),
        })
    }

    /// Returns the name of the lock; for a multi-lock, the first name.
    pub(crate) fn name(&self) -> &str {
        self.process_lease.keys()[self.index.unwrap_or(0) as usize].name()
    }

    pub(crate) fn max_hold(&self) -> Option<Duration> {
        self.limits.as_ref()?.max_hold()
    }

    pub(crate) fn owner(&self) -> &str {
        self.process_lease.owner.shown(&self.leases.client.tail)
    }

    /// Returns the time that is left of the lease, and whether it is at risk: its renewal is overdue, or it is doubtful.
    pub(crate) fn status(&self) -> Result<(Duration, bool), Lost> {
        let (now, deadline) = self.held()?;
        let left = deadline.since(now);
        let is_late = self.process_lease.is_late(now, left);
        Ok((
            left,
            is_late || self.leases.is_doubtful(&self.process_lease),
        ))
    }

    /// Returns the time and the deadline of the lease. An inner guard of a reentrant mutex does little else, so this does
    /// no arithmetic.
    #[inline]
    pub(crate) fn held(&self) -> Result<(Time, Time), Lost> {
        // A forked child has a copy of the guard, but does not hold the lock.
        if self.leases.client.is_forked() {
            return Err(self.lost(LostCause::Taken));
        }
        if self
            .limits
            .as_ref()
            .is_some_and(|limits| limits.is_exceeded())
        {
            return Err(self.lost(LostCause::MaxHold));
        }
        let now = self.leases.client.now();
        match self.process_lease.validity.deadline_after(now) {
            Ok(deadline) => Ok((now, deadline)),
            Err(LeaseStatus::Lost(cause)) => Err(self.lost(cause)),
            // A lease ends with its last hold. If this guard still exists, its hold ended by a loss.
            Err(_) => Err(self.lost(LostCause::Expired)),
        }
    }

    pub(crate) fn lost(&self, cause: LostCause) -> Lost {
        Lost {
            name: self.name().into(),
            fence: self.fence,
            cause,
        }
    }

    /// Registers a channel for the loss of this guard. If the guard ends without a loss, the sender is dropped.
    pub(crate) fn tell_of_loss(&self, sender: &Sender<Lost>) {
        // The cause is a placeholder: `LossListener::notify` replaces it.
        let lost = self.lost(LostCause::Expired);
        if self.leases.client.is_forked() {
            sender.try_send(lost).ok();
            return;
        }
        self.is_listened_to.store(true, Ordering::Relaxed);
        self.process_lease.enlist(LossListener {
            guard_number: self.number,
            sender: sender.clone(),
            lost,
        });
        // If the loss was announced before this listener was registered, send it now. If it is sent twice, the channel
        // is full at the second time.
        if let Err(lost) = self.status() {
            sender.try_send(lost).ok();
        }
    }

    /// Returns a channel for requests to release the lock. Subscribes to them, unless the process has a subscription.
    pub(crate) fn on_requested(&self) -> Receiver<ReleaseRequest> {
        let (sender, receiver) = crossbeam_channel::bounded(MOST_REQUESTS);
        if self.status().is_ok() {
            self.is_listened_to.store(true, Ordering::Relaxed);
            self.process_lease.listen_to_requests(self.number, sender);
            self.leases.subscribe();
            // If the loss was announced before the channel was registered, it ends now.
            if self.status().is_err() {
                self.process_lease.end_requests(Some(self.number));
            }
        }
        receiver
    }

    /// Renews the lease for at least this time, if less is left.
    pub(crate) fn extend(&self, at_least: Duration) -> Result<()> {
        let (left, _) = self.status().map_err(Error::Lost)?;
        self.leases
            .client
            .settings
            .check_lease("at_least", at_least)?;
        if left >= at_least {
            return Ok(());
        }
        // The holder counts less than it asks for, because of drift. So it asks for more.
        let lease = at_least + drift(at_least) * 2;
        let now = self.leases.client.now();
        self.process_lease.note_extension(now + lease);
        self.renew(lease, left)?;
        if !self.process_lease.terms.renew {
            // It may live long enough for a look now. Without a thread nobody looks, and the lease is held all the same.
            let (client, renewal) = (&self.leases.client, &self.leases.renewal);
            renewal.register(client, &self.process_lease, now).ok();
        }
        Ok(())
    }

    /// Sends a renewal for `lease`, and waits for the reply for at most `left`, the time that is left of the lease.
    pub(crate) fn renew(&self, lease: Duration, left: Duration) -> Result<()> {
        let client = &self.leases.client;
        let _called = client.machine().begin_call();
        let renewals: Vec<_> = client.renewals(&self.process_lease, lease).collect();
        let sent = client.now();
        let deadline = client.deadline(Some(sent + left));
        let name = Some(self.name());
        let replies = client
            .send(&Request::Renew(&renewals), deadline)
            .and_then(|answer| answer.reply.renewed())
            .map_err(|failure| failure.into_error(name))?;
        let renewed = self
            .leases
            .renewal
            .apply(client, &self.process_lease, sent, lease, &replies);
        match renewed {
            LeaseStatus::Lost(_) | LeaseStatus::Ended => {}
            _ if replies.contains(&Renewed::Refused) => {
                let words = "the server does not let this user renew this lock";
                return Err(
                    Failure::plain(FailureKind::Denied, Outcome::NotExecuted, words)
                        .into_error(name),
                );
            }
            LeaseStatus::Live(_) if !replies.iter().all(Renewed::is_confirmed) => {
                let words = "too few nodes confirmed it";
                let kind = FailureKind::Unavailable;
                return Err(Failure::plain(kind, Outcome::Unknown, words).into_error(name));
            }
            LeaseStatus::Live(left) => client.count_renewal(&self.process_lease, left),
        }
        self.held().map(drop).map_err(Error::Lost)
    }
}

impl GuardInner {
    /// Releases the lock. Returns [`Error::Lost`] if the lease had ended before.
    pub(crate) fn release(mut self) -> Result<()> {
        self.end()
    }

    /// Does all steps of [`crate::engine::lease::release`], unless this guard has ended before.
    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        let result = self.end_and_release();
        #[cfg(feature = "tracing")]
        spans::released(&self.span, &result);
        result
    }

    fn end_and_release(&self) -> Result<()> {
        let (status, unreleased) = self.end_hold(HoldEnd::Release)?;
        let (leases, entry) = (&self.leases, &self.process_lease.entry);
        let released = match unreleased {
            None => Ok(None),
            Some((release_task, _counted)) if leases.client.settings.background_release => {
                leases.release_later(entry, release_task);
                Ok(None)
            }
            Some((release_task, _counted)) => {
                let deadline = leases.client.deadline(None);
                let result = leases.send_release(entry, release_task, deadline);
                leases.let_next_thread_ask(entry);
                result
            }
        };
        if let LeaseStatus::Lost(cause) = status {
            return Err(Error::Lost(self.lost(cause)));
        }
        match released {
            Ok(None) => Ok(()),
            Ok(Some(gone)) => {
                let cause = gone.into();
                leases
                    .client
                    .count_loss(&self.process_lease, self.fence, cause);
                Err(Error::Lost(self.lost(cause)))
            }
            Err(failure) => Err(failure.into_error(Some(entry.target.name()))),
        }
    }

    /// Does steps 1 to 3 of [`crate::engine::lease::release`], once. Returns the status of the lease at its end. Also returns the release
    /// task, if the caller must do the next steps.
    pub(crate) fn end_hold(
        &self,
        mode: HoldEnd,
    ) -> Result<(LeaseStatus, Option<(ReleaseTask, CountedBusy<'_>)>)> {
        if self.leases.client.is_forked() {
            // This raises the reference count, so that the child never drops its copy of the leases.
            std::mem::forget(Arc::clone(&self.leases));
            return Err(Error::Forked);
        }
        let limits = self.limits.as_ref();
        if limits.is_some_and(|limits| !limits.finish(&self.leases.watch)) {
            #[cfg(feature = "tracing")]
            if mode == HoldEnd::Detach {
                spans::detached(&self.span, LeaseStatus::Lost(LostCause::MaxHold));
            }
            return Err(Error::Lost(self.lost(LostCause::MaxHold)));
        }
        // Step 2 comes before the lock goes on: these listeners must not receive a loss of the next guard.
        let listeners = if self.is_listened_to.load(Ordering::Relaxed) {
            self.process_lease.remove_listeners(self.number)
        } else {
            Vec::new()
        };
        let now = self.leases.client.now();
        let held = now.since(self.since);
        self.leases
            .client
            .count_end(&self.process_lease, self.fence, now, held);
        let (status, unreleased) = self.leases.end_hold(&self.process_lease, now, mode);
        #[cfg(feature = "tracing")]
        if mode == HoldEnd::Detach {
            spans::detached(&self.span, status);
        }
        if let LeaseStatus::Lost(cause) = status {
            for listener in listeners {
                listener.notify(cause);
            }
        }
        Ok((status, unreleased))
    }
}

impl Drop for GuardInner {
    fn drop(&mut self) {
        // In a forked child, a mutex of the subscriber may stay locked without end.
        #[cfg(feature = "tracing")]
        if self.leases.client.is_forked() {
            std::mem::forget(std::mem::replace(&mut self.span, tracing::Span::none()));
        }
        match self.end() {
            // The events thread logs each loss.
            Ok(()) | Err(Error::Forked | Error::Lost(_)) => {}
            Err(error) => {
                logging::warning!(
                    "a release failed, and is repeated until Redis replies or has dropped the key: {error:#}"
                );
            }
        }
    }
}
