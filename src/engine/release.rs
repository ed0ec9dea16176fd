//! The way out: how a guard ends.
//!
//! 1. The guard and the watch thread settle which of them ends the guard: at `max_hold` it is the watch thread.
//! 2. The guard stops listening for a loss, and its end is counted.
//! 3. Under the mutex of the name, the queue decides ([`Finish`]). If the lease does not go on, it ends here, in this
//!    process. Only then may a request that gives the lock away be sent.
//!
//!    | the queue decides | the lease | what follows |
//!    | --- | --- | --- |
//!    | pass on | goes on | the next threads have their turns; no request is sent |
//!    | take over | ends | the next thread is the delegate; its first request ends the old owner in Redis too |
//!    | release | ends | steps 4 to 6 |
//!    | lost | was lost | the next thread asks Redis; what may be left in Redis is released in the background |
//!    | stale | was over | as for a loss |
//!
//! 4. One request releases the lock in Redis, or hands it to the next process. This thread sends it and waits for the
//!    reply. With `background_release` the renewal thread sends it ([`super::renewal`]).
//! 5. If the request fails, the renewal thread repeats it until Redis has replied, or the key must have expired.
//! 6. The next thread that waits, if any, may ask Redis.
//!
//! A guard that is detached takes the same way with another [`Mode`]: the lease never goes on, and steps 4 and 5 are left
//! out, since the lock stays in Redis for its next owner.

use crate::clock::Time;
use crate::core::attempt::{Attempt, OrphanedOwner};
use crate::core::lease::LeaseStatus;
use crate::core::queue::{Finish, Health};
use crate::core::release_task::{Next, ReleaseTask};
use crate::engine::Engine;
use crate::engine::guard_inner::GuardInner;
use crate::engine::names::Last;
use crate::engine::process_lease::{Entry, ProcessLease, Signal, Slot};
use crate::error::{Error, Failure, LostCause, Result};
use crate::logging;
use crate::message::{GiveBack, Gone};
use crate::store::Limits;
use crate::sync::{Arc, Ordering};

/// What becomes of the lock when a guard ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It goes to the next thread, or is released in Redis.
    Release,
    /// It stays in Redis: for a claim, or for the reader that a writer becomes.
    Detach,
}

/// A lock whose lease has ended in this process, and that Redis still keeps.
pub(super) struct Unreleased {
    /// The unused fences of the lease.
    pub(super) give_back: Option<GiveBack>,
}

impl GuardInner {
    /// Releases the lock. Returns whether the lease lasted until then.
    pub(crate) fn release(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.finished {
            return Ok(());
        }
        let (status, unreleased) = self.end_turn(Mode::Release)?;
        let released = match unreleased {
            None => Ok(None),
            Some(unreleased) if self.engine.settings.background_release => {
                self.engine.release_later(&self.process_lease, unreleased);
                Ok(None)
            }
            Some(unreleased) => self.engine.release_now(&self.process_lease, unreleased),
        };
        if let LeaseStatus::Lost(cause) = status {
            return Err(Error::Lost(self.lost(cause)));
        }
        match released {
            Ok(None) => Ok(()),
            Ok(Some(gone)) => {
                let cause = match gone {
                    Gone::Removed => LostCause::Removed,
                    Gone::Taken => LostCause::Taken,
                };
                self.engine
                    .count_loss(&self.process_lease, self.fence, cause);
                Err(Error::Lost(self.lost(cause)))
            }
            Err(failure) => Err(failure.into_error(Some(self.process_lease.entry.target.name()))),
        }
    }

    /// Does steps 1 to 3. Returns what the lease was, and the lock if it is still in Redis.
    pub(super) fn end_turn(&mut self, mode: Mode) -> Result<(LeaseStatus, Option<Unreleased>)> {
        self.finished = true;
        if self.engine.is_forked() {
            // Counted up and never down, so that this copy of the engine is never dropped.
            std::mem::forget(Arc::clone(&self.engine));
            return Err(Error::Closed);
        }
        let limits = self.limits.as_ref();
        if limits.is_some_and(|limits| !limits.finish(&self.engine)) {
            return Err(Error::Lost(self.lost(LostCause::MaxHold)));
        }
        // Before the lock goes on: a loss of the next guard is no loss of this one.
        let listeners = if self.is_listened_to.load(Ordering::Relaxed) {
            self.process_lease.withdraw(self.number)
        } else {
            Vec::new()
        };
        let now = self.engine.now();
        let held = now.since(self.since);
        self.engine
            .count_end(&self.process_lease, self.fence, now, held);
        let (status, unreleased) = self.engine.end_turn(&self.process_lease, now, mode);
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
        match self.end() {
            // A loss is logged when it is found.
            Ok(()) | Err(Error::Closed | Error::Lost(_)) => {}
            Err(error) => {
                logging::warning!(
                    "a release failed and is repeated until the lease ends: {error:#}"
                );
            }
        }
    }
}

impl Engine {
    /// Does step 3. Returns what the lease was, and the lock if the caller must deal with it in Redis: then
    /// [`release_now`](Engine::release_now), [`release_later`](Engine::release_later) or
    /// [`release_over`](Engine::release_over) must follow.
    pub(super) fn end_turn(
        self: &Arc<Self>,
        process_lease: &Arc<ProcessLease>,
        now: Time,
        mode: Mode,
    ) -> (LeaseStatus, Option<Unreleased>) {
        let (status, finish, fence, now) = {
            let mut state = process_lease.entry.lock();
            // The wait for the mutex may have been long.
            let now = now.max(self.now());
            let health = self.health_at_end(process_lease, now, mode);
            // A loss is told with the fence, which the queue forgets.
            let fence = match health {
                Health::Lost => state.queue.fence(process_lease.number),
                Health::Good | Health::Poor | Health::KeptBack => None,
            };
            let finish = state.queue.finish(process_lease.number, now, health);
            let status = match finish {
                Finish::HandedOn(..) => process_lease.validity.status(now),
                _ => process_lease.validity.end(now),
            };
            if mode == Mode::Release && matches!(finish, Finish::TakeOver(..)) {
                // Until the next thread has asked.
                state.note_last(Last::Held(self.owner_of(process_lease)));
            }
            (status, finish, fence, now)
        };
        let unreleased = match finish {
            Finish::HandedOn((first, rest)) => {
                for (slot, turn) in first.into_iter().chain(rest) {
                    slot.send(Signal::Turn(turn, now));
                }
                None
            }
            Finish::TakeOver(next, give_back) => {
                self.deregister(process_lease);
                if mode == Mode::Detach || process_lease.min_hold_until(now).is_some() {
                    // The lock is not the next thread's to take over: that thread asks Redis as any other process would.
                    next.send(Signal::Delegate(None));
                    Some(Unreleased { give_back })
                } else {
                    let from = OrphanedOwner {
                        give_back,
                        ..self.orphaned_owner(process_lease, now)
                    };
                    let attempt = Attempt::take_over(&*self.rng, &self.settings.label, from);
                    next.send(Signal::Delegate(Some(Box::new(attempt))));
                    None
                }
            }
            Finish::Release(give_back) => {
                self.deregister(process_lease);
                Some(Unreleased { give_back })
            }
            Finish::Lost(next) => {
                self.count_loss_once(process_lease, status, fence);
                self.hand_on(&process_lease.entry, next);
                self.after_loss(process_lease, status);
                None
            }
            Finish::Stale => {
                self.after_loss(process_lease, status);
                None
            }
        };
        (status, unreleased)
    }

    /// Returns whether a lease may go on in another thread, when a guard of it ends.
    fn health_at_end(
        self: &Arc<Self>,
        process_lease: &Arc<ProcessLease>,
        now: Time,
        mode: Mode,
    ) -> Health {
        match (mode, self.health(process_lease, now)) {
            (_, Health::Lost) => Health::Lost,
            (Mode::Detach, _) => Health::Poor,
            (Mode::Release, _) if process_lease.min_hold_until(now).is_some() => Health::KeptBack,
            (Mode::Release, health) => health,
        }
    }

    /// Does steps 4 to 6 on this thread. Returns where the lock had gone, if Redis did not have it under this owner.
    fn release_now(
        &self,
        process_lease: &ProcessLease,
        Unreleased { give_back }: Unreleased,
    ) -> Result<Option<Gone>, Failure> {
        let release_task = self.release_task(process_lease, give_back, self.now());
        let result = self.send_release(&process_lease.entry, release_task, self.limits(None));
        self.release_over(&process_lease.entry);
        result
    }

    /// Leaves steps 4 and 5 to the renewal thread. The next thread that asks for the name waits for its answer.
    fn release_later(&self, process_lease: &ProcessLease, Unreleased { give_back }: Unreleased) {
        let entry = &process_lease.entry;
        let release_task = self.release_task(process_lease, give_back, self.now());
        // Any thread that asks from here on finds the place.
        let place = self.renewal.reserve(self.now(), entry, &release_task);
        self.release_over(entry);
        self.renewal
            .add_background_release(self, entry, release_task, place);
    }

    /// Ends the turn of a guard that has reached its `max_hold`.
    pub(super) fn end_at_max_hold(self: &Arc<Self>, process_lease: &Arc<ProcessLease>, now: Time) {
        if let (_, Some(unreleased)) = self.end_turn(process_lease, now, Mode::Release) {
            self.release_later(process_lease, unreleased);
        }
    }

    /// Sends a release once, within `limits`. If it fails, the renewal thread repeats it. Returns where the lock
    /// had gone, if Redis did not have it under this owner.
    pub(super) fn send_release(
        &self,
        entry: &Arc<Entry>,
        mut release_task: ReleaseTask,
        limits: Limits<'_>,
    ) -> Result<Option<Gone>, Failure> {
        loop {
            release_task.brought_up_to(self.now());
            let next = match self.send(&entry.call(release_task.verb()), limits) {
                Ok(answer) => release_task.replied(self.now(), &answer.reply, answer.resent),
                Err(failure) => {
                    self.stats.endings_repeated.add(1);
                    release_task.failed(self.now(), failure.is_transient(), &*self.rng);
                    self.renewal.add_release_task(self, entry, release_task);
                    return Err(failure);
                }
            };
            match next {
                Next::Send => {}
                Next::Later(_) => {
                    self.stats.endings_repeated.add(1);
                    let gone = release_task.gone();
                    self.renewal.add_release_task(self, entry, release_task);
                    return Ok(gone);
                }
                Next::Done => return Ok(release_task.gone()),
            }
        }
    }

    /// Does step 6.
    pub(super) fn release_over(&self, entry: &Arc<Entry>) {
        let next = entry.lock().queue.ended();
        self.hand_on(entry, next);
    }

    /// Makes the next thread the delegate. If there is none, takes the name out of the table.
    pub(super) fn hand_on(&self, entry: &Arc<Entry>, next: Option<Arc<Slot>>) {
        match next {
            Some(slot) => {
                // Whatever was replied before may not be true any more.
                entry.lock().forget_last();
                slot.send(Signal::Delegate(None));
            }
            None => self.names.retire(entry),
        }
    }

    /// Returns how a lease is ended in Redis.
    pub(super) fn release_task(
        &self,
        process_lease: &ProcessLease,
        give_back: Option<GiveBack>,
        now: Time,
    ) -> ReleaseTask {
        let contended = process_lease.is_contended();
        let left = OrphanedOwner {
            give_back,
            ..self.orphaned_owner(process_lease, now)
        };
        let release_task = ReleaseTask::of_lease(left, contended, now, process_lease.terms.lease());
        match process_lease.min_hold_until(now) {
            Some(until) => release_task.keeping_back(until, now),
            None => release_task,
        }
    }

    /// Returns what may be left of a lease in Redis, and until when. The thread that ends it may have a shorter lease.
    pub(super) fn orphaned_owner(&self, process_lease: &ProcessLease, now: Time) -> OrphanedOwner {
        OrphanedOwner {
            owner: self.owner_of(process_lease),
            units: process_lease.units,
            uncertain_until: process_lease.uncertain_until(),
            kept_until: process_lease
                .kept_until()
                .max(Some(now + process_lease.terms.lease())),
            give_back: None,
        }
    }

    fn deregister(&self, process_lease: &Arc<ProcessLease>) {
        self.renewal.deregister(process_lease);
        self.watch.deregister_lease(process_lease);
    }

    /// Ends a lease that the watch thread, or a renewal, has found lost. The next thread may ask, and listeners are told.
    pub(super) fn lost(&self, process_lease: &Arc<ProcessLease>, cause: LostCause) {
        let (fence, next) = {
            let queue = &mut process_lease.entry.lock().queue;
            (
                queue.fence(process_lease.number),
                queue.lost(process_lease.number),
            )
        };
        self.count_loss_once(process_lease, LeaseStatus::Lost(cause), fence);
        self.hand_on(&process_lease.entry, next);
        self.renewal.deregister(process_lease);
        process_lease.announce(cause);
    }

    /// Counts a loss if the caller has taken the lease out of its queue, in which its guards had this fence. So each loss
    /// is counted once.
    fn count_loss_once(
        &self,
        process_lease: &ProcessLease,
        status: LeaseStatus,
        fence: Option<u64>,
    ) {
        if let (LeaseStatus::Lost(cause), Some(fence)) = (status, fence) {
            self.count_loss(process_lease, fence, cause);
        }
    }

    /// Cleans up after the guard of a lost lease: no guard relies any more on what may be left of it in Redis.
    fn after_loss(&self, process_lease: &Arc<ProcessLease>, status: LeaseStatus) {
        if let LeaseStatus::Lost(cause) = status {
            self.deregister(process_lease);
            process_lease.announce(cause);
            // If Redis says that a key is gone, that key needs no release. The other keys of a set do.
            let may_be_left = cause == LostCause::Expired || process_lease.keys().len() > 1;
            if may_be_left && process_lease.begin_clean_up() {
                let left = self.orphaned_owner(process_lease, self.now());
                self.clean_up(&process_lease.entry, left, process_lease.terms.lease());
            }
        }
    }
}
