//! The way in: from a call to a guard.
//!
//! 1. The thread enters the queue of the name ([`crate::engine::queue::rules`]). If this process has a lease with room for the
//!    thread, the thread gets its guard, and sends no request.
//! 2. If another thread of this process asks Redis, this thread waits ([`super::wait`]). It also waits if this process
//!    holds or is releasing the lock, and the kind allows a process only one lease.
//! 3. Otherwise this thread is the *delegate* and asks Redis for all threads of this process ([`super::delegate`]).
//! 4. A grant begins a lease of this process. The delegate gets the first guard of the lease. If the kind of lock
//!    allows several guards at a time, threads that wait get guards too ([`super::grant`]).
//!
//! [`super::observe`] counts each step.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::cancel::Cancel;
use crate::config::Options;
use crate::engine::attempt::drive::Delegate;
use crate::engine::attempt::rules::Attempt;
use crate::engine::client::Client;
use crate::engine::lease::guard_inner::GuardInner;
use crate::engine::lease::leases::Leases;
use crate::engine::lease::process_lease::{Entry, Hold, WaitingThread};
use crate::engine::queue::rules::{AcquireParams, Arrival};
use crate::error::{Error, Failure, FailureKind, Outcome, Result};
use crate::event::{Event, EventKind};
use crate::logging;
use crate::name::Target;
use crate::net::deadline::LEAST;
use crate::sys::{Arc, Rng, Time};
use crate::wire::{LockKind, Reply, Request};

/// The parameters of one call.
pub(crate) struct Call<'a> {
    pub(crate) kind: LockKind,
    pub(crate) target: &'a Target,
    pub(crate) options: Options,
    /// The tail of its owners, if the handle has its own note.
    pub(crate) tail: Option<&'a Arc<str>>,
    /// The number of units.
    pub(crate) units: u32,
    /// The end of the wait. `None` for a try, which does not wait for the lock.
    pub(crate) until: Option<Time>,
    /// The token that may end the call early.
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Call<'_> {
    /// Returns the part of the lock that the call wants, and its terms.
    pub(super) fn params(&self) -> AcquireParams {
        AcquireParams {
            units: self.units,
            terms: self.options.terms(),
            waits: self.until.is_some(),
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// Converts the failure of a request into the error that the caller gets.
    pub(super) fn failed(&self, failure: Failure) -> NotAcquired {
        NotAcquired::Failed(failure.into_error(Some(self.target.name())))
    }
}

/// The reason for which a call got no guard.
pub(crate) enum NotAcquired {
    /// The lock was held until the call ended. The owner is `None` if this process does not know it.
    Held(Option<Arc<str>>),
    Failed(Error),
}

impl From<Error> for NotAcquired {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A call on its way.
pub(crate) struct WayIn<'a> {
    pub(super) leases: &'a Arc<Leases>,
    pub(super) client: &'a Client,
    pub(super) call: &'a Call<'a>,
    /// When the call began.
    pub(super) arrived: Time,
    /// Whether the call has begun to wait for the lock.
    pub(super) waits: bool,
    /// When to warn of the wait. [`Time::NEVER`] if never, or never again.
    pub(super) long_at: Time,
    /// Whether the log has the warning that the holder has no expiry.
    pub(super) has_warned: bool,
    #[cfg(feature = "tracing")]
    pub(super) span: tracing::Span,
}

impl<'a> WayIn<'a> {
    /// Acquires the lock. Blocks until the thread has a guard, the time is over, the token is cancelled, the manager is
    /// closed, or a request has failed.
    pub(crate) fn acquire(
        leases: &'a Arc<Leases>,
        call: &'a Call<'a>,
    ) -> Result<GuardInner, NotAcquired> {
        let client = &*leases.client;
        client.check_open()?;
        call.options.check()?;
        client.settings.check_lease("lease", call.options.lease)?;
        let min_hold = call.options.min_hold;
        client.settings.check_lease("min_hold", min_hold)?;
        if call.is_cancelled() {
            return Err(Error::Cancelled.into());
        }
        let arrived = client.now();
        let long_after = client
            .settings
            .warn_wait_after
            .filter(|_| call.until.is_some());
        let mut way_in = Self {
            leases,
            client,
            call,
            arrived,
            waits: false,
            long_at: long_after.map_or(Time::NEVER, |after| arrived + after),
            has_warned: false,
            #[cfg(feature = "tracing")]
            span: crate::engine::observe::spans::wait(call.target.name()),
        };
        let acquired = way_in.enter();
        if let Err(why) = &acquired {
            way_in.count_refused(why);
        }
        acquired
    }

    /// Enters the queue of the name, and does what its place there requires.
    fn enter(&mut self) -> Result<GuardInner, NotAcquired> {
        let (leases, call, arrived) = (self.leases, self.call, self.arrived);
        let mut waiter = None;
        let (entry, arrival, counted) =
            leases.names.with(call.kind, call.target, |entry, state| {
                let arrival = state.queue.arrive(
                    call.params(),
                    arrived,
                    |process_lease| leases.health(process_lease, arrived),
                    || Arc::clone(waiter.insert(WaitingThread::new(call.tail))),
                );
                // `close` looks at the name after this, and then waits for busy threads.
                let mut counted = None;
                if matches!(arrival, Arrival::Delegate) {
                    state.notes.forget_last_reply();
                    counted = Some(leases.count_busy());
                }
                (Arc::clone(entry), arrival, counted)
            });
        let (attempt, _counted) = match (arrival, waiter) {
            (Arrival::Hold(hold), _) => {
                self.count_granted(&hold, arrived, false);
                return Ok(self.guard(hold, arrived));
            }
            (Arrival::Held, _) => return Err(self.held(&entry)),
            (Arrival::Queued(number), Some(waiter)) => {
                self.count_wait(|| leases.holder(&entry.lock()));
                match self.wait(&entry, number, &waiter)? {
                    ControlFlow::Break(guard) => return Ok(guard),
                    ControlFlow::Continue((attempt, counted)) => (attempt, Some(counted)),
                }
            }
            (Arrival::Queued(_), None) => unreachable!("a queued thread has its waiter"),
            (Arrival::Delegate, _) => (Box::new(self.attempt(Attempt::new)), counted),
        };
        Delegate {
            call_context: &self.call_context(&entry),
            way_in: self,
            entry: &entry,
            attempt,
            waker: None,
            message_at: None,
            round_trip: Duration::ZERO,
        }
        .run()
    }

    /// Returns whether the call must end: the manager is closed, or the token is cancelled. Locks no mutex.
    pub(super) fn is_over(&self) -> bool {
        self.client.is_closed() || self.call.is_cancelled()
    }

    /// Returns the guard of a hold that the thread has had since `since`.
    pub(super) fn guard(&self, hold: Hold, since: Time) -> GuardInner {
        GuardInner::new(Arc::clone(self.leases), hold, since, &self.call.options)
    }

    /// Returns the result of a call that ends while another owner holds the lock.
    pub(super) fn held(&self, entry: &Entry) -> NotAcquired {
        NotAcquired::Held(self.leases.holder(&entry.lock()))
    }

    /// Warns once for each wait that the lock may stay held for ever.
    pub(super) fn warn_of_no_expiry(&mut self) {
        if self.call.until.is_some() && !std::mem::replace(&mut self.has_warned, true) {
            logging::warning!(
                "lock {:?}: the holder has no expiry; is this the key of another program? Set a prefix",
                self.call.target.name()
            );
        }
    }

    /// Warns if the wait is long: once, and for one name once in that time. `asks`: asks Redis for the queue.
    pub(super) fn warn_if_long(&mut self, entry: &Entry, asks: bool) {
        if self.long_at == Time::NEVER || self.client.now() < self.long_at {
            return;
        }
        let now = self.client.now();
        let limit = self.client.settings.warn_wait_after.unwrap_or_default();
        let holder = {
            let mut state = entry.lock();
            if let Err(later) = state.notes.begin_warning(now, limit) {
                self.long_at = later;
                return;
            }
            self.leases.holder(&state)
        };
        self.long_at = Time::NEVER;
        let queue = asks.then(|| self.queue_in_redis(entry)).flatten();
        let kind = EventKind::WaitsLong {
            holder: holder.map(|holder| holder.to_string().into()),
            waited: now.since(self.arrived),
            queue,
        };
        self.client
            .events
            .warn(|| Event::of_lock(self.call.target.name(), None, kind));
    }

    /// Returns the length of the queue in Redis, unless that takes long.
    fn queue_in_redis(&self, entry: &Entry) -> Option<u64> {
        let request = Request::Inspect {
            keys: &entry.target.keys()[..1],
            named: true,
        };
        let is_over = || self.is_over();
        let until = self.end_of_one_request().min(self.client.now() + LEAST);
        let deadline = self.client.deadline(Some(until)).ended_by(&is_over);
        match self.client.send(&request, deadline).ok()?.reply {
            Reply::Inspected(seen) => Some(seen.iter().flatten().map(|it| it.waiters).sum()),
            _ => None,
        }
    }

    /// Makes an attempt for the calling thread.
    pub(super) fn attempt(&self, begin: impl FnOnce(&dyn Rng, &str, u32) -> Attempt) -> Attempt {
        begin(self.client.machine(), self.tail(), self.call.units)
    }

    /// Returns the tail of the call's owners.
    pub(super) fn tail(&self) -> &'a str {
        self.call.tail.map_or(&self.client.tail, |tail| tail)
    }

    /// Waits until the renewal thread has sent the releases of the call's keys, but for at most the time limit of one
    /// request: so neither a busy renewal thread nor a dead server delays the call for longer.
    ///
    /// # Errors
    ///
    /// Returns a failure if the call has no time left to ask later. The answer "held", by an owner of this process that has
    /// ended, would be none.
    pub(super) fn wait_for_releases(&self) -> Result<(), Failure> {
        let (keys, renewal) = (self.call.target.keys(), &self.leases.renewal);
        if !renewal.state.lock().has_unsent(keys) {
            return Ok(());
        }
        let (until, is_over) = (self.end_of_one_request(), || self.is_over());
        let is_sent = renewal.wait_until_sent(self.client, keys, until, &is_over);
        let may_wait = self.call.until.is_some_and(|end| self.client.now() < end);
        if is_sent || may_wait || is_over() {
            return Ok(());
        }
        let words = "this process still has to release the lock, and could not do so in time";
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::NotExecuted,
            words,
        ))
    }

    /// Returns when what the call waits for before its own request must end: after the time limit of one request, at the
    /// latest.
    pub(super) fn end_of_one_request(&self) -> Time {
        let limit = self.client.now() + self.client.settings.io_timeout;
        self.call.until.map_or(limit, |until| until.min(limit))
    }

    /// Has the renewal thread release all owners of an attempt that may have something in Redis.
    pub(super) fn clean_up_after(&self, entry: &Arc<Entry>, attempt: Attempt) {
        for ended_owner in attempt.abandon() {
            let lease = self.call.options.terms().lease();
            self.leases.clean_up(entry, ended_owner, lease);
        }
    }

    /// Ends an attempt that no thread continues.
    pub(super) fn abandon(&self, entry: &Arc<Entry>, attempt: Attempt) {
        self.clean_up_after(entry, attempt);
        self.leases.names.retire(entry);
    }
}
