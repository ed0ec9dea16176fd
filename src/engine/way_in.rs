//! One call on its way in. The modules [`acquire`](super::acquire), [`wait`](super::wait),
//! [`delegate`](super::delegate) and [`unsent_releases`](super::unsent_releases) do its steps.

use crate::core::attempt::Attempt;
use crate::core::queue::IdleLease;
use crate::engine::call::{AcquireCall, NotAcquired};
use crate::engine::client::Client;
use crate::engine::guard_inner::GuardInner;
use crate::engine::leases::Leases;
use crate::engine::process_lease::{Entry, Hold, ProcessLease};
use crate::logging;
use crate::sys::{Arc, Rng, Time};

pub(crate) struct WayIn<'a> {
    pub(super) leases: &'a Arc<Leases>,
    pub(super) client: &'a Client,
    pub(super) call: &'a AcquireCall<'a>,
    /// When the call began.
    pub(super) arrived: Time,
    /// Whether the call has begun to wait for the lock.
    pub(super) waits: bool,
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

    /// Returns the source of the call's owners.
    pub(super) fn owner_source(&self) -> &'a dyn Rng {
        self.leases.owner_source(self.call.linger().is_some())
    }

    /// Makes an attempt for the calling thread.
    pub(super) fn attempt(&self, begin: impl FnOnce(&dyn Rng, &str, u32) -> Attempt) -> Attempt {
        begin(
            self.owner_source(),
            &self.client.settings.label,
            self.call.units,
        )
    }

    /// Ends an idle lease in this process, because it does not fit the calling thread. Returns the thread's attempt, which
    /// takes the lease over.
    pub(super) fn take_over_idle(&self, idle: &IdleLease<Arc<ProcessLease>>) -> Attempt {
        let Some(release_task) = self.leases.end_idle(idle) else {
            return self.attempt(Attempt::new);
        };
        let label = &self.client.settings.label;
        Attempt::take_back(self.owner_source(), label, release_task.unsent(), false)
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
