//! One call on its way in. The modules [`acquire`](super::acquire), [`wait`](super::wait) and
//! [`delegate`](super::delegate) do its steps.

use crate::core::attempt::Attempt;
use crate::engine::call::{Call, NotAcquired};
use crate::engine::client::Client;
use crate::engine::guard_inner::GuardInner;
use crate::engine::leases::Leases;
use crate::engine::process_lease::{Entry, Hold};
use crate::error::{Failure, FailureKind, Outcome};
use crate::event::Event;
use crate::logging;
use crate::message::{Reply, Request};
use crate::store::LEAST;
use crate::sys::{Arc, Rng, Time};

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
        self.client.events.warn(|| Event::WaitsLong {
            name: self.call.target.name().to_owned().into(),
            holder: holder.map(|holder| holder.to_string().into()),
            waited: now.since(self.arrived),
            queue,
        });
    }

    /// Returns the length of the queue in Redis, unless that takes long.
    fn queue_in_redis(&self, entry: &Entry) -> Option<u64> {
        let request = Request::Inspect {
            keys: &entry.target.keys()[..1],
            named: true,
        };
        let is_over = || self.is_over();
        let until = self.end_of_releases().min(self.client.now() + LEAST);
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
        let (keys, until) = (self.call.target.keys(), self.end_of_releases());
        let is_over = || self.is_over();
        let renewal = &self.leases.renewal;
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

    /// Returns when the requests must end that the call sends before its own: after the time limit of one request, at the
    /// latest.
    pub(super) fn end_of_releases(&self) -> Time {
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
