//! The linger: after its last guard, a mutex stays with this process for a while, and the next lock of it sends nothing.
//! [`crate::core::linger`] decides. This module does what it decides:
//!
//! 1. A call whose handle has `linger` draws a *recallable* owner, which shows the channel of this process
//!    ([`crate::owner`]). Its request reserves a block of fences, one for each guard.
//! 2. The grant makes a [`LeaseLinger`], if the owner is recallable, and starts the subscription for recalls.
//! 3. The last guard ends. If the lease may stay, no request is sent, and the lease is *idle*. At the first time, the watch
//!    thread gets a timer for the end. The renewal thread renews the lease meanwhile, so a process that dies delays others
//!    by the lease.
//! 4. A thread that locks the name gets the lease, with the next fence. If the lease does not fit the thread, the lease ends
//!    in this process. The thread is the delegate, and its first request takes the lease over.
//! 5. A stop ends the linger. If the lease is idle, it leaves its queue, and ends in this process. Then it is released. If
//!    it has a guard, the end of the guard releases it.
//!
//! | stop | comes from | the release is sent by |
//! | --- | --- | --- |
//! | the timer | the watch thread | the renewal thread |
//! | a recall | the wakeup thread | the renewal thread, and the lock is handed over |
//! | a reply to a renewal that others wait | the watch thread, because the reply makes the timer due | the renewal thread, and the lock is handed over |
//! | the subscription has ended | the wakeup thread | the renewal thread |
//! | `close` | the closing thread | the renewal thread; `close` waits for it |
//! | a request for the key as another kind | the thread that sends it | that thread, before it asks |
//!
//! All that the engine knows of a linger is here, in [`LingerState`](super::linger_state::LingerState), and in a lease's
//! [`LeaseLinger`]. A lease without one passes nothing of this module.
//!
//! # Recalls
//!
//! 1. A process that queues for the mutex marks its value. If the owner is recallable, the same script publishes a recall
//!    on the channel of the owner's process (`recall.lua`). The first waiter of the queue repeats it at each poll; if
//!    the first one has died, each waiter does. A new waiter that finds the value marked sends none, so contended locks
//!    cost no recalls.
//! 2. The wakeup thread looks the lease up by its key, and compares the owner. If the lease is not there yet, and a delegate
//!    asks, then its grant may be on the way. So the thread adds the owner to the list of early recalls.
//! 3. A lease enters its queue. Then its thread looks into that list. The wakeup thread looks for the lease and adds its
//!    owner under the mutex of the name. So either it finds the lease, or the lease finds its owner in the list.
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
//! A lease that a thread has taken out of its queue is not idle any more, and `close` does not find it. But that thread
//! counts as busy ([`Leases::count_busy`]), and `close` waits for busy threads.

use std::time::Duration;

use crate::core::lease::LeaseStatus;
use crate::core::queue::IdleLease;
use crate::core::release_task::ReleaseTask;
use crate::engine::leases::Leases;
use crate::engine::process_lease::{LeaseLinger, ProcessLease};
use crate::engine::release::HoldEnd;
use crate::engine::watch::Timed;
use crate::event::Event;
use crate::message::LockKind;
use crate::name::LockKey;
use crate::store::Deadline;
use crate::sys::{Arc, Ordering, Time};

/// The timer of a lease that lingers or has lingered. It keeps the leases alive, because only they can release the lease.
struct LingerTimer {
    leases: Arc<Leases>,
    process_lease: Arc<ProcessLease>,
}

impl Timed for LingerTimer {
    fn act(&self, _now: Time) {
        self.leases.end_linger(&self.process_lease);
    }
}

impl Leases {
    /// Starts the subscription for the recalls of a lease that has entered its queue, and may linger. Has the lease stop if
    /// it was recalled while its grant was on the way.
    pub(super) fn expect_recalls(&self, process_lease: &ProcessLease) {
        self.lingers.is_used.store(true, Ordering::SeqCst);
        self.wakeup.start(&self.client);
        if self.lingers.take_early_recall(process_lease) {
            process_lease.note_contended();
        }
    }

    /// Returns for how long the lease of an ending guard may stay. Called under the mutex of its name.
    pub(super) fn may_stay(
        &self,
        process_lease: &ProcessLease,
        linger: &LeaseLinger,
        mode: HoldEnd,
    ) -> Option<Duration> {
        // A lease without linger may have drawn the owner, when it ended for a thread whose lock may linger.
        let is_stopped = !process_lease.owner.is_recallable()
            || process_lease.is_contended()
            || !self.wakeup.is_ready()
            || self.client.is_closed();
        (mode == HoldEnd::Release && !is_stopped).then_some(linger.options.length)
    }

    /// Counts a lease that becomes idle until `until`, and sets its timer. Called under the mutex of its name.
    pub(super) fn begin_linger(self: &Arc<Self>, process_lease: &Arc<ProcessLease>, until: Time) {
        let Some(linger) = &process_lease.linger else {
            return;
        };
        self.lingers.note_idle(linger);
        let has_timer = linger.timer.lock().is_some();
        if !has_timer {
            let timer = Arc::new(LingerTimer {
                leases: Arc::clone(self),
                process_lease: Arc::clone(process_lease),
            });
            let timer_key = self.watch.register_timer(until, timer);
            *linger.timer.lock() = Some(timer_key);
        }
        // The reply to a renewal first notes that other processes wait, and then looks for the timer. So either it finds
        // the timer, or this thread sees its note.
        if process_lease.is_contended() {
            self.watch.end_linger_now(linger);
        }
    }

    /// Tells the listener of a lease that has become idle.
    pub(super) fn tell_of_linger(&self, process_lease: &ProcessLease, remaining: Duration) {
        self.client.events.tell(|| {
            let (name, owner) = self.client.name_and_owner(process_lease);
            Event::Lingers {
                name,
                owner,
                remaining,
            }
        });
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
        if !self.lingers.is_used.load(Ordering::SeqCst) {
            return;
        }
        let _counted = self.count_busy();
        for entry in self.names.all() {
            let idle = entry.lock().queue.stop_linger(|_| true);
            self.release_idle_later(idle);
        }
    }

    /// Releases the mutexes that linger on these keys, and blocks until Redis has replied. Returns the last owner of which
    /// Redis has confirmed the release.
    pub(super) fn release_lingering_on(
        &self,
        keys: &[LockKey],
        deadline: Deadline<'_>,
    ) -> Option<Arc<str>> {
        if self.lingers.idle() == 0 {
            return None;
        }
        let _counted = self.count_busy();
        let mut released = None;
        for key in keys {
            let Some(entry) = self.names.find(LockKind::Mutex, key.key()) else {
                continue;
            };
            let idle = entry.lock().queue.stop_linger(|_| true);
            if let Some(idle) = idle {
                if self.release_idle(&idle, deadline) {
                    released = Some(self.client.owner_of(&idle.process_lease));
                }
                self.let_next_thread_ask(&entry);
            }
        }
        released
    }

    /// Releases a lease that has left its queue. Blocks until Redis has replied. Returns true if Redis has released it. If
    /// the request fails, the renewal thread repeats it.
    fn release_idle(&self, idle: &IdleLease<Arc<ProcessLease>>, deadline: Deadline<'_>) -> bool {
        let process_lease = &idle.process_lease;
        let Some(release_task) = self.end_idle(idle) else {
            return false;
        };
        let cause = match self.send_release(&process_lease.entry, release_task, deadline) {
            Ok(None) => return true,
            Ok(Some(gone)) => gone.into(),
            Err(_) => return false,
        };
        self.client.count_loss(process_lease, idle.fence, cause);
        false
    }

    /// Has the renewal thread release a lease that has left its queue, and lets the next thread ask.
    pub(super) fn release_idle_later(&self, idle: Option<IdleLease<Arc<ProcessLease>>>) {
        let Some(idle) = idle else { return };
        match self.end_idle(&idle) {
            Some(release_task) => self.release_later(&idle.process_lease.entry, release_task),
            None => self.let_next_thread_ask(&idle.process_lease.entry),
        }
    }

    /// Ends a lease that has left its queue in this process. Returns its release task, or `None` if it was lost.
    pub(super) fn end_idle(&self, idle: &IdleLease<Arc<ProcessLease>>) -> Option<ReleaseTask> {
        let process_lease = &idle.process_lease;
        self.lingers.note_not_idle(process_lease);
        let now = self.client.now();
        let status = process_lease.validity.end(now);
        if let LeaseStatus::Lost(_) = status {
            self.count_loss_once(process_lease, status, Some(idle.fence));
            self.after_loss(process_lease, status);
            return None;
        }
        self.deregister(process_lease);
        Some(self.release_task(process_lease, idle.give_back, now))
    }
}
