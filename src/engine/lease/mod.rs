//! The locks that this process holds: how a lease begins, and what Redis says about it.
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
//!
//! # The messages of Redis
//!
//! A holder learns of a forced release as follows:
//!
//! 1. The script publishes the removed owner on a channel to which every process subscribes.
//! 2. The process with that owner does not trust the message, so it renews that lease at once.
//! 3. Redis replies to the renewal that the key is gone, or has another owner. The lease is lost.
//!
//! The message may overtake the grant of that owner. So a process that has no such lease notes the time, for each name for
//! which a grant may be on its way. When a lease begins that was asked for at or before that time, it does step 2 then.
//!
//! If the message is lost, or the process has no subscription because no thread has waited yet, the next renewal gets
//! the same reply. For a lease without renewal, a renewal only looks whether it is still held.
//!
//! A *request to release* a lock names the holder's owner too. It ends nothing: the process sends it to the channels of the
//! guards of that lease, and remembers the last one for a channel that comes later. If the request overtakes the grant,
//! nobody hears it.

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
use crate::engine::wakeup;
use crate::error::{Failure, FailureKind, LostCause};
use crate::event::ReleaseRequest;
use crate::logging;
use crate::name::{BROKEN, LEADER, REQUEST};
use crate::owner::{self, Owner};
use crate::sys::time::of_wall_us;
use crate::sys::{Arc, Ordering, Time};

use fence::Fences;
use process_lease::{Hold, ProcessLease};
use rules::LeaseStatus;

/// A busy thread, counted until this is dropped.
pub(crate) struct CountedBusy<'a>(pub(crate) &'a Engine);

impl Engine {
    /// Starts the wakeup thread if it does not run.
    pub(crate) fn subscribe(self: &Arc<Self>) {
        self.wakeup.start(self.client.now(), || {
            let (wakeup, store) = (Arc::clone(&self.wakeup), Arc::clone(&self.client.store));
            let (events, engine) = (Arc::downgrade(&self.client.events), Arc::downgrade(self));
            let run = move || wakeup::run(&wakeup, &*store, &events, &engine);
            self.client.machine().spawn("leasehold-wakeup-0", run)
        });
    }

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
            state.forget_replies();
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
        let spawn_watch = || {
            let (watch, engine) = (Arc::clone(&self.watch), Arc::downgrade(self));
            let run = move || watch::run(&watch, &engine);
            self.client.machine().spawn("leasehold-watch", run)
        };
        let registered = self
            .watch
            .register_lease(&self.client, &process_lease, spawn_watch)
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
            let queue = &mut entry.lock().queue;
            let lease = queue.process_leases().find(|lease| lease.owner == owner)?;
            if lease.health(now) == Health::Lost {
                return None;
            }
            let number = lease.number;
            queue.reopened(number, now, now + self.quantum(now))?
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
        self.client.busy_threads.fetch_add(1, Ordering::SeqCst);
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

    /// Handles a message. Any client could have sent it.
    pub(crate) fn hear(&self, channel: &str, payload: &[u8]) {
        let Ok(text) = std::str::from_utf8(payload) else {
            return;
        };
        match (channel == BROKEN, text.strip_prefix(REQUEST)) {
            (true, Some(request)) => self.release_requested(request),
            (true, None) => self.released_by_force(text),
            (false, _) => match text.strip_prefix(LEADER) {
                Some(changed) => self.leader_changed(changed),
                None => self.wakeup.wake(payload),
            },
        }
    }

    /// Makes the renewal thread renew this process's lease of an owner at once. If the grant is still on its way, that
    /// happens when the lease begins.
    ///
    /// Searches all names in use, which takes some milliseconds for very many names. An index would cost every lease
    /// memory for a rare event.
    pub(crate) fn released_by_force(&self, owner: &str) {
        // An owner with another label belongs to another manager.
        let label = &self.client.settings.label;
        if owner::label(owner) != Some(label) {
            return;
        }
        let owner = Owner::new(owner, &self.client.tail);
        let now = self.client.now();
        for entry in self.names.all() {
            let mut state = entry.lock();
            let found = state
                .queue
                .process_leases()
                .find(|process_lease| process_lease.owner == owner);
            if let Some(process_lease) = found.cloned() {
                drop(state);
                self.renewal.renew_now(&process_lease);
            } else {
                state.note_forced_release(now);
            }
        }
    }

    /// Tells the guards of the owner's lease of a request: the owner, the time in µs since 1970, and the reason. Searches all names in use.
    fn release_requested(&self, request: &str) {
        let mut parts = request.splitn(3, ' ');
        let (Some(owner), Some(at), Some(why)) = (parts.next(), parts.next(), parts.next()) else {
            return;
        };
        let Ok(at_us) = at.parse() else {
            return;
        };
        if owner::label(owner) != Some(&self.client.settings.label) {
            return;
        }
        let owner = Owner::new(owner, &self.client.tail);
        let request = ReleaseRequest {
            why: why.to_owned(),
            at: of_wall_us(at_us),
        };
        for entry in self.names.all() {
            let state = entry.lock();
            let found = state
                .queue
                .process_leases()
                .find(|process_lease| process_lease.owner == owner);
            let Some(process_lease) = found.cloned() else {
                continue;
            };
            drop(state);
            if process_lease.note_request(&request) {
                let name = entry.target.name();
                logging::info!("lock {name:?}: its release is requested: {why:?}");
            }
            return;
        }
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
        engine.client.busy_threads.fetch_sub(1, Ordering::SeqCst);
        // `close` sets its flag before it reads the counter, and this thread changes the counter before it reads the
        // flag. So at least one of the two threads sees the other's change.
        if engine.client.is_closed() {
            engine.renewal.notify_waiting();
        }
    }
}
