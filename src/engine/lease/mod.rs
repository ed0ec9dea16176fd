//! The locks that this process holds: how a lease begins, what keeps it, and how it ends.
//!
//! 1. A grant becomes a [`process_lease::ProcessLease`], which the guards of this process have one after another, or share.
//!    Before the first of them exists, the lease is registered with two threads.
//! 2. The watch thread ends the lease at its deadline, and notifies the guards. It does no I/O, so a dead network does not
//!    delay it ([`watch`]).
//! 3. The renewal thread moves the deadline, in one request for all leases that are due ([`renewal`]).
//! 4. Each thread that has a guard compares the clock with the deadline for itself ([`rules`]), so a guard is right even if
//!    both threads hang.
//! 5. A guard ends: its lock goes on to the next thread in memory, or the lease ends, and only then a request gives the lock
//!    away ([`release`]).
//!
//! | module | its subject |
//! | --- | --- |
//! | [`rules`] | one atomic word: until when a lease is valid, or how it ended |
//! | [`fence`] | blocks of fencing tokens |
//! | [`process_lease`] | the lease that guards of one process share |
//! | [`release`], [`claim`], [`downgrade`] | how a guard ends: its lock goes on or is released, stays in Redis for a claim, or becomes a reader's |
//! | [`commit`] | writes that a lease guards |
//! | [`guard`], [`limits`] | the lease as a guard has it; `max_hold`, `min_hold` and `warn_after` |
//! | [`watch`] | the thread that ends each lease at its deadline |
//! | [`renewal`] | the thread that renews them all |
//!
//! # From a grant to guards
//!
//! 1. The thread registers the lease with the watch thread and the renewal thread. If one of them cannot be started,
//!    the thread releases the lock again.
//! 2. The lease enters the queue of its name. The queue gives the first hold to the thread that asked. If the kind
//!    allows several guards at a time, threads that wait get holds too.
//! 3. The thread counts its own guard, and then sends the other threads their signals.
//! 4. If the lease was lost before it entered the queue, the thread takes the lease out again.

pub(crate) mod claim;
mod commit;
mod downgrade;
pub(crate) mod fence;
pub(crate) mod guard;
mod limits;
#[cfg(feature = "seam")]
mod moved_by_test;
mod once;
pub(crate) mod process_lease;
mod release;
pub(crate) mod renewal;
pub(crate) mod rules;
pub(crate) mod watch;

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::attempt::Grant;
use crate::engine::queue::rules::{Begun, GrantedTo, Health, QueueLease};
use crate::engine::queue::{Entry, LastReply, NameState, Signal, WaitingThread};
use crate::error::{Failure, FailureKind, LostCause};
use crate::owner::Owner;
use crate::sys::{Arc, Ordering, Time};

use fence::Fences;
use process_lease::{Hold, ProcessLease};
use rules::LeaseStatus;

/// A busy thread, counted until this is dropped.
pub(crate) struct CountedBusy<'a>(pub(crate) &'a Engine);

impl Engine {
    /// Begins the lease of a grant. Returns the first hold of the lease, which `count` counts.
    pub(crate) fn begin_lease(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        grant: Grant,
        to: GrantedTo,
        count: impl FnOnce(&Hold),
    ) -> Result<Hold, Failure> {
        let fences = Fences::granted(entry.kind, grant.fence, grant.fences);
        let sent = grant.sent;
        let process_lease = self.register_lease(entry, grant)?;
        let now = self.client.now();
        let quantum_end = now + self.quantum(now);
        let lease = QueueLease::new(Arc::clone(&process_lease), fences, quantum_end);
        let (begun, may_be_gone) = {
            let mut state = entry.lock();
            let may_be_gone = state.may_have_been_released_by_force(sent);
            let begun = state.queue.begin(lease, to, now);
            // From here on the lease itself shows the holder.
            state.forget_replies(now);
            (begun, may_be_gone)
        };
        if may_be_gone {
            self.renewal.renew_now(&process_lease);
        }
        count(&begun.hold);
        let hold = hand_out(begun);
        // If its deadline passes from here on, the watch thread finds it in the queue.
        if let LeaseStatus::Lost(cause) = process_lease.validity.status(now) {
            self.lost(&process_lease, cause);
        }
        Ok(hold)
    }

    /// Makes the lease of a grant, and registers it before any thread relies on it. If that fails, releases the lock.
    fn register_lease(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        grant: Grant,
    ) -> Result<Arc<ProcessLease>, Failure> {
        let sent = grant.sent;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let process_lease = Arc::new(ProcessLease::new(
            number,
            &self.client.tail,
            Arc::clone(entry),
            grant,
        ));
        let registered = self
            .watch
            .register_lease(self, &process_lease)
            .and_then(|()| self.renewal.register(&process_lease, sent));
        match registered {
            Ok(()) => Ok(process_lease),
            Err(error) => {
                self.watch.deregister_lease(&process_lease);
                process_lease.validity.end(self.client.now());
                // Release the lock before another thread asks. Otherwise Redis would answer that it is held.
                let release_task = self.release_task(&process_lease, None, self.client.now());
                self.send_release(entry, release_task, self.client.deadline(None))
                    .ok();
                let words = format!("a thread of leasehold could not be started: {error}");
                Err(Failure::not_executed(FailureKind::Unavailable, words))
            }
        }
    }

    /// Begins another quantum of this owner's lease, which Redis has allowed, and gives holds to the threads that wait.
    /// Returns the delegate's hold, which `count` counts, or `None` if the lease has ended.
    pub(crate) fn reopen(
        &self,
        entry: &Entry,
        owner: &str,
        count: impl FnOnce(&Hold),
    ) -> Option<Hold> {
        let owner = Owner::new(owner, &self.client.tail);
        let now = self.client.now();
        let begun = {
            let mut state = entry.lock();
            let lease = state.lease_of(&owner)?;
            if lease.health(now) == Health::Lost {
                return None;
            }
            let number = lease.number;
            state.queue.reopened(number, now, now + self.quantum(now))?
        };
        count(&begun.hold);
        Some(hand_out(begun))
    }

    /// Ends a lost lease before its guards end. Makes the next thread the delegate, and notifies the listeners.
    pub(crate) fn lost(&self, process_lease: &Arc<ProcessLease>, cause: LostCause) {
        let (fence, next) = {
            let queue = &mut process_lease.entry.lock().queue;
            let fence = queue.fence(process_lease.number);
            (fence, queue.lost(process_lease.number))
        };
        self.count_loss_once(process_lease, LeaseStatus::Lost(cause), fence);
        self.ask_after_loss(&process_lease.entry, next);
        self.renewal.deregister(process_lease);
        #[cfg(feature = "metrics")]
        process_lease.export_risk(self.client.now(), &self.client.exported.at_risk);
        process_lease.announce(cause);
    }

    /// Returns the quantum in use.
    pub(crate) fn quantum(&self, now: Time) -> Duration {
        self.quantum.get(&self.wakeup.subscription(now))
    }

    /// Counts the calling thread as busy until the returned value is dropped.
    ///
    /// A thread that takes an owner out of a queue to end it calls this before, or under the mutex of the name. It is busy
    /// until Redis has replied, or another thread has the owner. So `close` misses no owner.
    pub(crate) fn count_busy(&self) -> CountedBusy<'_> {
        self.client.closing.add_busy();
        CountedBusy(self)
    }

    /// Returns the holder of the lock, as far as this process knows.
    pub(crate) fn holder(&self, state: &NameState) -> Option<Arc<str>> {
        match (state.queue.process_lease(), state.last_reply()) {
            (Some(process_lease), _) => Some(self.client.owner_of(process_lease)),
            (None, LastReply::Held(holder)) => Some(Arc::clone(holder)),
            (None, _) => None,
        }
    }

    /// Returns whether a lease may go to the next thread in memory at `now`.
    ///
    /// If the server closed a connection, it may have restarted without its data. A lease whose last confirmation is
    /// older than that does not go to the next thread in memory: that thread asks Redis.
    pub(crate) fn health(&self, process_lease: &Arc<ProcessLease>, now: Time) -> Health {
        let health = process_lease.health(now);
        let sign = self.client.store.last_data_loss_sign();
        if health != Health::Good
            || sign == Time::from_nanos(0)
            || process_lease.is_confirmed_after(sign)
        {
            return health;
        }
        if process_lease.entry.kind.sharing().together {
            // The lease goes on while other threads ask. Renew it now: once confirmed, it can be shared in memory
            // again.
            self.renewal.renew_now(process_lease);
        }
        Health::Poor
    }

    /// Returns whether a lease may be no grant, because an answer without a request has come since its last confirmation.
    /// The renewal thread renews all such leases at once.
    pub(crate) fn is_doubtful(&self, process_lease: &ProcessLease) -> bool {
        let surplus = self.client.store.last_surplus();
        surplus > Time::from_nanos(0) && !process_lease.is_confirmed_after(surplus)
    }

    /// Ends the renewal and the watch of a lease.
    pub(crate) fn deregister(&self, process_lease: &ProcessLease) {
        self.renewal.deregister(process_lease);
        self.watch.deregister_lease(process_lease);
        #[cfg(feature = "metrics")]
        process_lease.export_risk(self.client.now(), &self.client.exported.at_risk);
    }
}

/// Sends a signal to each thread that gets a hold or a task. Returns the hold of the delegate, which needs no signal.
fn hand_out(begun: Begun<Arc<WaitingThread>, Arc<ProcessLease>>) -> Hold {
    for (waiter, hold) in begun.admitted {
        waiter.send(Signal::Hold(hold));
    }
    for waiter in begun.tried {
        waiter.send(Signal::Held);
    }
    if let Some(next) = begun.next {
        next.send(Signal::Ask { has_waited: true });
    }
    begun.hold
}

impl CountedBusy<'_> {
    /// Leaves the count to the thread that the calling thread sends an attempt to. That thread makes a new value.
    pub(crate) fn pass_on(self) {
        std::mem::forget(self);
    }
}

impl Drop for CountedBusy<'_> {
    fn drop(&mut self) {
        let Self(engine) = self;
        if engine.client.closing.remove_busy() {
            engine.renewal.notify_waiting();
        }
    }
}
