//! The settings, the machine, the connections, the events and the counters, which every other part of the engine uses. Only
//! this module sends the requests of callers' threads.
//!
//! The client has no thread. It lives as long as the engine or the renewal thread.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::Settings;
use crate::engine::closing::Closing;
use crate::engine::lease::process_lease::ProcessLease;
use crate::engine::observe::events::Events;
use crate::engine::queue::Entry;
use crate::error::{Error, Failure, FailureKind, Result};
use crate::net::deadline::{Deadline, LEAST};
use crate::panics::survived;
use crate::server::{Answer, Store};
use crate::stats::{Counters, Exported};
use crate::sys::{Arc, ForkGuard, Machine, Mutex, Time};
use crate::wire::{Renewal, Reply, Request};
use crate::{logging, owner};

/// How many semaphores of differing numbers a client remembers.
const MOST_DIFFERING: usize = 1_024;

pub(crate) struct Client {
    pub(crate) settings: Settings,
    /// The tail of the owners of handles that have no note of their own.
    pub(crate) tail: Arc<str>,
    pub(super) store: Arc<dyn Store>,
    pub(super) events: Arc<Events>,
    pub(super) stats: Counters,
    pub(super) exported: Exported,
    pub(super) closing: Closing,
    /// The semaphores of which other clients were seen to give another number of permits.
    differing: Mutex<BTreeSet<String>>,
    /// The process that made this client. A forked child locks no mutex of the engine, and uses no connection.
    fork_guard: ForkGuard,
}

impl Client {
    pub(super) fn new(mut settings: Settings, store: Arc<dyn Store>) -> Self {
        // The events thread must be the only owner of the listener, and drop it.
        let listener = settings.listener.take();
        let events = Events::new(listener, settings.machine.clone());
        Self {
            exported: Exported::new(&settings.metric_names),
            tail: owner::tail(&settings.label, &settings.note).into(),
            settings,
            store,
            events: Arc::new(events),
            stats: Counters::default(),
            closing: Closing::default(),
            differing: Mutex::new(BTreeSet::new()),
            fork_guard: ForkGuard::here(),
        }
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.settings.machine
    }

    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.machine().now()
    }

    /// Returns whether this process is a forked child. There a mutex may stay locked without end, and connections are
    /// shared with the parent. So a caller must check this before it uses any other part of the engine.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_guard.is_in_child()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_closed()
    }

    /// Logs that other clients give the semaphore of `entry` another number of permits: once for each name, of at most
    /// [`MOST_DIFFERING`] names.
    pub(super) fn warn_of_permits(&self, entry: &Entry, others: u32) {
        let (name, own) = (entry.target.name(), entry.kind.total_units());
        let is_new = {
            let mut differing = self.differing.lock();
            differing.len() < MOST_DIFFERING && differing.insert(name.to_string())
        };
        if is_new {
            logging::warning!(
                "semaphore {name:?}: this process gives it {own} permits, and another client {others}; each counts \
                 the permits in use against its own number"
            );
        }
    }

    /// Makes each later call return [`Error::Closed`].
    pub(super) fn note_closed(&self) {
        self.closing.note_closed();
    }

    /// Returns [`Error::Forked`] if the process is a forked child, and [`Error::Closed`] if the manager is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        match (self.is_forked(), self.is_closed()) {
            (true, _) => Err(Error::Forked),
            (_, true) => Err(Error::Closed),
            _ => Ok(()),
        }
    }

    /// Returns whether all names of one script must be in the same slot.
    pub(crate) fn has_slots(&self) -> bool {
        self.store.has_slots()
    }

    /// Returns the owner of a lease as it is written in Redis.
    pub(super) fn owner_of(&self, process_lease: &ProcessLease) -> Arc<str> {
        process_lease.owner.text(&self.tail).into()
    }

    /// Returns the nodes of a quorum without a vote for a process lease.
    pub(crate) fn missing_nodes(&self, process_lease: &ProcessLease) -> Vec<Arc<str>> {
        let votes = self.store.votes();
        votes.map_or_else(Vec::new, |votes| {
            votes.missing_nodes(&self.owner_of(process_lease))
        })
    }

    /// Returns a renewal for `lease` for each key of a process lease.
    pub(super) fn renewals<'a>(
        &'a self,
        process_lease: &'a ProcessLease,
        lease: Duration,
    ) -> impl Iterator<Item = Renewal<'a>> + use<'a> {
        process_lease.keys().iter().map(move |key| Renewal {
            kind: process_lease.entry.kind,
            key,
            owner: process_lease.owner.text(&self.tail),
            units: process_lease.units,
            lease,
            may_join: process_lease.terms.renew,
        })
    }

    /// Sends a PING, to check that the server can be reached and accepts the login.
    pub(crate) fn ping(&self) -> Result<()> {
        let answer = self
            .send(&Request::Ping, self.deadline(None))
            .map_err(|failure| failure.into_error(None))?;
        if answer.reply == Reply::Pong {
            return Ok(());
        }
        let words = "the answer to PING is not PONG";
        Err(Failure::not_executed(FailureKind::Protocol, words).into_error(None))
    }

    /// Sends a request on a pooled connection, and returns the reply. Turns a panic into a failure: if a delegate
    /// unwound, the threads behind it would wait without end.
    pub(super) fn send(
        &self,
        request: &Request<'_>,
        mut deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        self.stats.requests.add(1);
        let _called = self.machine().begin_call();
        // The store uses this reading of the clock too.
        let begun = deadline.now();
        deadline.has_priority |= request.is_of_a_holder();
        let answer = survived(|| self.store.call(request, deadline));
        self.count_request(request, self.now().since(begun));
        let answer = answer.unwrap_or_else(|| {
            let words = "the request panicked";
            Err(Failure::unknown(FailureKind::Unavailable, words))
        })?;
        self.count_hand_over(request, &answer.reply);
        Ok(answer)
    }

    /// Does what [`Votes::left_until`](crate::server::Votes::left_until) says. Without votes nothing is left.
    pub(super) fn left_until(&self, owner: &str) -> Option<Time> {
        let _entered = self.machine().enter();
        self.store.votes()?.left_until(owner)
    }

    /// Returns the deadline of a request that must end at `end`. `None`: only the limits of its phases end it.
    pub(super) fn deadline(&self, end: Option<Time>) -> Deadline<'static> {
        let (mut deadline, checkout) = match end {
            None => (Deadline::default(), self.settings.io_timeout),
            Some(end) => {
                let now = self.now();
                let left = end.since(now).max(LEAST);
                (Deadline::starting(now, left), left)
            }
        };
        deadline.checkout = checkout;
        deadline
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.is_forked() {
            // Dropping the pool would lock mutexes that no thread of this process will ever unlock.
            std::mem::forget(Arc::clone(&self.store));
            std::mem::forget(Arc::clone(&self.events));
        }
    }
}
