//! The linger: after its last guard, a mutex stays with this process for a while, and the next lock of it sends nothing.
//! [`crate::core::linger`] decides. This module does what it decides:
//!
//! 1. A lease that may linger gets a *recallable* owner, which shows the channel of this process ([`crate::owner`]). Its
//!    grant starts the subscription, and reserves a block of fences.
//! 2. The last guard ends. If the lease may stay, no request is sent. At the first time, the watch thread gets a timer
//!    for the end. The renewal thread renews the lease meanwhile, so a process that dies delays others by the lease.
//! 3. A thread that locks the name gets the lease, with the next fence.
//! 4. A stop ends the linger. If the lease is idle, it ends in this process under the mutex of its name, and then it is
//!    released. If it has a guard, the end of the guard releases it.
//!
//! | stop | comes from | the release is sent by |
//! | --- | --- | --- |
//! | the timer | the watch thread | the renewal thread |
//! | a recall | the wakeup thread, or a reply to a renewal | the renewal thread, and the lock is handed over |
//! | the subscription has ended | the wakeup thread | the renewal thread |
//! | `close` | the closing thread | the renewal thread; `close` waits for it |
//! | a lock of the same mutex that the lease does not fit | the locking thread | that thread, before it asks |
//! | a request for the key as another kind | the thread that sends it | that thread, before it asks |
//!
//! # Recalls
//!
//! 1. A process that queues for the mutex marks its value. If the owner is recallable, the same script publishes a recall
//!    on the channel of the owner's process (`recall.lua`). The first waiter of the queue repeats it at each poll; if
//!    the first one has died, each waiter does. A new waiter that finds the value marked sends none, so contended locks
//!    cost no recalls.
//! 2. The wakeup thread looks the lease up by its key, and compares the owner. If the lease is not there yet, its grant may
//!    be on the way: then the name remembers the owner until the lease begins.
//!
//! A recall is only a hint. If it is lost, the lease lingers until the next poll of a waiter, or the next renewal: its
//! reply says that others wait.
//!
//! # Hand-overs
//!
//! A lease that another process handed over, by message or by a reply, never lingers. Redis marks its value, because a
//! mutex that was handed over will most likely have waiters again. So the lease counts as contended, and the end of its
//! guard releases it. The next lock of the name asks Redis for a block of fences. That lease lingers, if nobody waits.
//!
//! So a grant by message does without the block. A recall changes nothing for its lease, whether the lease has begun or the
//! grant is on its way.
//!
//! # No stop is missed
//!
//! A thread reads the state of the subscription and of `close` under the mutex of the name, before the lease becomes
//! idle. The wakeup thread and `close` change that state first, and then look at each name under its mutex. So either the
//! thread sees the change, or the lease is found idle.
//!
//! A lease that a thread has taken out of its queue is not idle any more, and `close` does not find it. So a thread that
//! ends a linger counts as a delegate until Redis has replied to the release, or the renewal thread has it. `close` waits
//! for delegates.

use std::time::Duration;

use crate::config::Terms;
use crate::core::lease::LeaseStatus;
use crate::core::linger::{Linger, Stay};
use crate::core::queue::IdleLease;
use crate::engine::Engine;
use crate::engine::call::AcquireCall;
use crate::engine::events::{LeaseInfo, Notice};
use crate::engine::process_lease::{ProcessLease, State};
use crate::engine::release::Unreleased;
use crate::error::LostCause;
use crate::message::{Gone, LockKind};
use crate::name::LockKey;
use crate::owner::{self, Owner};
use crate::random::Rng;
use crate::store::Limits;
use crate::sync::Arc;

impl Engine {
    /// Returns the source of the owners for leases on these terms.
    pub(super) fn owner_source(&self, terms: Terms) -> &dyn Rng {
        if terms.lingers() {
            &self.recallable_rng
        } else {
            &*self.rng
        }
    }

    /// Returns the linger of a lease that was just granted, and starts the subscription for its recalls. Returns `None` if
    /// the lease never lingers.
    pub(super) fn new_linger(&self, process_lease: &ProcessLease) -> Option<Linger> {
        let terms = process_lease.terms;
        if !terms.lingers() || !process_lease.owner.is_recallable() {
            return None;
        }
        self.wakeup.start(self);
        Some(Linger::new(terms.linger()))
    }

    /// Has a new lease stop if it was recalled while its grant was on the way. Called under the mutex of its name.
    pub(super) fn remember_recall(&self, process_lease: &ProcessLease, state: &State) {
        if process_lease.terms.lingers() && state.was_recalled(&self.owner_of(process_lease)) {
            process_lease.note_contended();
        }
    }

    /// Stops the linger of a lease whose guard ends, if the lease must not become idle now. Called under the mutex of its
    /// name.
    pub(super) fn before_linger(&self, process_lease: &ProcessLease, state: &mut State) {
        if !process_lease.terms.lingers() {
            return;
        }
        if process_lease.is_contended() || !self.wakeup.is_ready() || self.is_closed() {
            let number = process_lease.number;
            // The lease has its guard still, so it is not idle.
            state.queue.stop_linger(|other| other.number == number);
        }
    }

    /// Counts a lease that becomes idle, and sets its timer. Called under the mutex of its name.
    pub(super) fn begin_linger(self: &Arc<Self>, process_lease: &Arc<ProcessLease>, stay: Stay) {
        self.stats.lingering.raise();
        if stay.is_first {
            self.watch.register_linger(self, process_lease, stay.until);
        }
    }

    /// Tells the listener of a lease that has become idle.
    pub(super) fn tell_of_linger(&self, process_lease: &ProcessLease, remaining: Duration) {
        self.events
            .tell(|| Notice::Lingers(LeaseInfo::of(self, process_lease), remaining));
    }

    /// Ends the linger of a lease. If it is idle, the renewal thread releases it.
    pub(super) fn end_linger(&self, process_lease: &ProcessLease) {
        let _counted = self.count_busy();
        let is_meant = |other: &Arc<ProcessLease>| other.number == process_lease.number;
        let idle = process_lease.entry.lock().queue.stop_linger(is_meant);
        self.release_idle_later(idle);
    }

    /// Ends the lingers of all leases. The renewal thread releases those that are idle.
    pub(super) fn end_all_lingers(&self) {
        let _counted = self.count_busy();
        for entry in self.names.all() {
            let idle = entry.lock().queue.stop_linger(|_| true);
            self.release_idle_later(idle);
        }
    }

    /// Ends the linger of the lease that a recall names: its owner and its key. If the lease is idle, the renewal thread
    /// hands the lock over.
    pub(super) fn recall(&self, recalled: &str) {
        let Some((owner, key)) = recalled.split_once(' ') else {
            return;
        };
        if owner::label(owner) != Some(&self.settings.label) {
            return;
        }
        let Some(entry) = self.names.find(LockKind::Mutex, key) else {
            return;
        };
        let recalled_owner = Owner::new(owner, &self.settings.label);
        let _counted = self.count_busy();
        let idle = {
            let mut state = entry.lock();
            let mut leases = state.queue.process_leases();
            let found = leases.find(|process_lease| process_lease.owner == recalled_owner);
            let Some(process_lease) = found.cloned() else {
                drop(leases);
                return state.note_recalled(owner);
            };
            drop(leases);
            process_lease.note_contended();
            state
                .queue
                .stop_linger(|other| other.owner == recalled_owner)
        };
        self.release_idle_later(idle);
    }

    /// Releases the idle lease of a mutex that the locking thread does not fit. If the request fails, the renewal thread
    /// repeats it.
    pub(super) fn release_idle_now(
        &self,
        idle: &IdleLease<Arc<ProcessLease>>,
        call: &AcquireCall<'_>,
    ) {
        let is_over = || call.is_over(self);
        self.release_idle(idle, self.limits_of_release(call, &is_over));
    }

    /// Releases the mutexes that linger on the keys of a call for another kind.
    pub(super) fn release_lingering(&self, call: &AcquireCall<'_>) {
        if call.kind != LockKind::Mutex {
            let is_over = || call.is_over(self);
            let limits = self.limits_of_release(call, &is_over);
            self.release_lingering_on(call.target.keys(), limits);
        }
    }

    /// Releases the mutexes that linger on these keys, and blocks until Redis has replied. Returns the last owner of which
    /// Redis has confirmed the release.
    pub(super) fn release_lingering_on(
        &self,
        keys: &[LockKey],
        limits: Limits<'_>,
    ) -> Option<Arc<str>> {
        if self.stats.lingering.get() == 0 {
            return None;
        }
        let mut released = None;
        for key in keys {
            let Some(entry) = self.names.find(LockKind::Mutex, key.key()) else {
                continue;
            };
            let idle = entry.lock().queue.stop_linger(|_| true);
            if let Some(idle) = idle {
                if self.release_idle(&idle, limits) {
                    released = Some(self.owner_of(&idle.process_lease));
                }
                self.let_next_thread_ask(&entry);
            }
        }
        released
    }

    /// Returns the limits of a release that a call sends before its own requests: at most those of one request.
    fn limits_of_release<'l>(
        &self,
        call: &AcquireCall<'_>,
        is_over: &'l (dyn Fn() -> bool + Sync),
    ) -> Limits<'l> {
        let limit = self.now() + self.settings.io_timeout;
        let until = call.until.map_or(limit, |until| until.min(limit));
        Limits {
            is_over: Some(is_over),
            ..self.limits(Some(until))
        }
    }

    /// Releases a lease that has left its queue. Blocks until Redis has replied. Returns true if Redis has released it. If
    /// the request fails, the renewal thread repeats it.
    fn release_idle(&self, idle: &IdleLease<Arc<ProcessLease>>, limits: Limits<'_>) -> bool {
        let _counted = self.count_busy();
        let process_lease = &idle.process_lease;
        let Some(unreleased) = self.end_idle(idle) else {
            return false;
        };
        let Unreleased {
            give_back,
            ended_at,
        } = unreleased;
        let release_task = self.release_task(process_lease, give_back, ended_at);
        let cause = match self.send_release(&process_lease.entry, release_task, limits) {
            Ok(None) => return true,
            Ok(Some(Gone::Removed)) => LostCause::Removed,
            Ok(Some(Gone::Taken)) => LostCause::Taken,
            Err(_) => return false,
        };
        self.count_loss(process_lease, idle.fence, cause);
        false
    }

    /// Has the renewal thread release a lease that has left its queue, and lets the next thread ask.
    fn release_idle_later(&self, idle: Option<IdleLease<Arc<ProcessLease>>>) {
        let Some(idle) = idle else { return };
        match self.end_idle(&idle) {
            Some(unreleased) => self.release_later(&idle.process_lease, &unreleased),
            None => self.let_next_thread_ask(&idle.process_lease.entry),
        }
    }

    /// Ends a lease that has left its queue in this process. Returns `None` if it was lost.
    fn end_idle(&self, idle: &IdleLease<Arc<ProcessLease>>) -> Option<Unreleased> {
        self.stats.lingering.lower();
        let process_lease = &idle.process_lease;
        let now = self.now();
        let status = process_lease.validity.end(now);
        if let LeaseStatus::Lost(_) = status {
            self.count_loss_once(process_lease, status, Some(idle.fence));
            self.after_loss(process_lease, status);
            return None;
        }
        self.deregister(process_lease);
        Some(Unreleased {
            give_back: idle.give_back,
            ended_at: now,
        })
    }
}
