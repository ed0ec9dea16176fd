//! The way out: how a guard ends.
//!
//! 1. If the watch thread has ended the guard at its `max_hold`, this call returns `Lost`. Otherwise that limit has no
//!    effect any more.
//! 2. The guard's loss listeners are removed, and the end of the guard is counted.
//! 3. The thread locks the mutex of the name, and the queue decides ([`Finish`]). If the lease does not go on, it ends
//!    in this process. Only after that may this process send a request that gives the lock away.
//! 4. A request releases the lock in Redis. If other processes wait, a hand-over follows, or is sent in its place. This
//!    thread sends the request and waits for the reply. With `background_release` the renewal thread sends it
//!    ([`crate::engine::lease::renewal`]).
//! 5. If the request fails, the renewal thread repeats it until Redis has replied, or must have dropped the key. It also
//!    repeats it for the nodes of a quorum that have not confirmed it.
//! 6. If another thread waits, it becomes the delegate.
//!
//! The queue decides in step 3:
//!
//! | decision | the lease | next |
//! | --- | --- | --- |
//! | goes on | goes on | other guards share the lease still, or the next threads get guards in memory; no request is sent |
//! | take over | ends | the next thread is the delegate; its first request ends the old owner in Redis too |
//! | release | ends | steps 4 to 6 |
//! | lost | was lost | the next thread asks Redis; the renewal thread releases the keys that may be left |
//! | stale | had ended or was lost before | if it was lost, the renewal thread releases the keys that may be left |
//!
//! A guard with [`HoldEnd::Detach`] differs in three points. The lease never goes on in this process. Steps 4 and 5 are left
//! out, because the lock stays in Redis for its next owner. If no other thread waits, its owner is noted as the holder.

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::attempt::{Attempt, EndedOwner};
use crate::engine::ending::{Next, ReleaseTask};
use crate::engine::lease::CountedBusy;
use crate::engine::lease::process_lease::ProcessLease;
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::queue::rules::{Finish, Health};
use crate::engine::queue::{Entry, Signal, WaitingThread};
use crate::error::{Failure, LostCause, Result};
use crate::net::deadline::Deadline;
use crate::sys::{Arc, Time};
use crate::wire::{GiveBack, Gone, Request};

/// The way in which a guard ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldEnd {
    /// The lock goes to the next thread, or is released in Redis.
    Release,
    /// The lock stays in Redis: for a claim, or for the reader that a writer becomes.
    Detach,
}

/// The result of step 3.
struct Ended<'a> {
    finish: Finish<Arc<WaitingThread>, Arc<ProcessLease>>,
    /// The status of the lease at its end.
    status: LeaseStatus,
    /// The fence for the report of a loss. `None` if another thread took the lease out of the queue.
    fence: Option<u64>,
    now: Time,
    /// Counts the thread as busy, unless the lease goes on.
    counted: Option<CountedBusy<'a>>,
}

impl Engine {
    /// Does step 3. Returns the status of the lease at its end. If the lock is still in Redis under its owner, returns a
    /// release task too. Then the caller must go on with [`release_later`](Engine::release_later), or with
    /// [`send_release`](Engine::send_release) and [`let_next_thread_ask`](Engine::let_next_thread_ask). Until then the caller
    /// counts as busy.
    pub(crate) fn end_hold(
        &self,
        process_lease: &Arc<ProcessLease>,
        now: Time,
        mode: HoldEnd,
    ) -> (LeaseStatus, Option<(ReleaseTask, CountedBusy<'_>)>) {
        let ended = self.leave_queue(process_lease, now, mode);
        let (status, now, counted) = (ended.status, ended.now, ended.counted);
        if counted.is_some() {
            self.count_loss_once(process_lease, status, ended.fence);
        }
        let is_kept = mode == HoldEnd::Detach || process_lease.min_hold_until(now).is_some();
        let give_back = match ended.finish {
            Finish::GoesOn(entrants) => {
                for (waiter, hold) in entrants {
                    waiter.send(Signal::Hold(hold));
                }
                return (status, None);
            }
            Finish::TakeOver(next, give_back) if !is_kept => {
                self.let_take_over(process_lease, &next, give_back, now);
                if let Some(counted) = counted {
                    counted.pass_on();
                }
                return (status, None);
            }
            Finish::Lost(next) => {
                self.ask_after_loss(&process_lease.entry, next);
                self.after_loss(process_lease, status);
                return (status, None);
            }
            Finish::Stale => {
                self.after_loss(process_lease, status);
                return (status, None);
            }
            // The next thread must not take the lock over. It asks Redis as another process would.
            Finish::TakeOver(next, give_back) => {
                self.deregister(process_lease);
                next.send(Signal::Ask { has_waited: true });
                give_back
            }
            Finish::Release(give_back) => {
                self.deregister(process_lease);
                give_back
            }
        };
        let release_task = self.release_task(process_lease, give_back, now);
        (status, Some(release_task).zip(counted))
    }

    /// Ends the hold in the queue of its name, and the lease with it unless it goes on.
    fn leave_queue(
        &self,
        process_lease: &Arc<ProcessLease>,
        now: Time,
        mode: HoldEnd,
    ) -> Ended<'_> {
        let mut state = process_lease.entry.lock();
        // Read the clock again, because the wait for the mutex may have been long.
        let now = now.max(self.client.now());
        // Whether the lease may go to the next thread in memory.
        let health = match (mode, self.health(process_lease, now)) {
            (_, Health::Lost) => Health::Lost,
            (HoldEnd::Detach, _) => Health::Poor,
            _ if process_lease.min_hold_until(now).is_some() => Health::KeptBack,
            (_, health) => health,
        };
        // Read the fence before `finish` removes the lease from the queue.
        let fence = state.queue.fence(process_lease.number);
        let finish = state.queue.finish(process_lease.number, now, health);
        let goes_on = matches!(finish, Finish::GoesOn(_));
        let status = if goes_on {
            process_lease.validity.status(now)
        } else {
            process_lease.validity.end(now)
        };
        let is_held_still = match finish {
            // Until the next thread has asked, other threads see this owner as the holder.
            Finish::TakeOver(..) => mode != HoldEnd::Detach,
            // A delegate may sleep until its next poll, and bring no answer before. Behind a `min_hold` nobody asks before the
            // release.
            Finish::Release(_) if health == Health::KeptBack => state.queue.is_crowded(),
            // A claim or a reader has the lock from now on, and the next delegate may have no answer yet.
            Finish::Release(_) => mode == HoldEnd::Detach,
            _ => false,
        };
        if is_held_still {
            state.note_held(self.client.owner_of(process_lease));
        }
        Ended {
            finish,
            status,
            fence,
            now,
            counted: (!goes_on).then(|| self.count_busy()),
        }
    }

    /// Makes the next thread the delegate, with an attempt that takes the ended lease over. That thread counts as busy
    /// from here on.
    fn let_take_over(
        &self,
        process_lease: &ProcessLease,
        next: &WaitingThread,
        give_back: Option<GiveBack>,
        now: Time,
    ) {
        self.deregister(process_lease);
        let from = self.ended_owner(process_lease, give_back, now);
        let attempt = Attempt::take_over(self.client.machine(), &next.tail, from);
        next.send(Signal::Delegate(Box::new(attempt)));
    }

    /// Gives steps 4 and 5 to the renewal thread, and does step 6. A thread that asks for the name first waits for the
    /// release ([`crate::engine::lease::renewal`]).
    pub(crate) fn release_later(&self, entry: &Arc<Entry>, release_task: ReleaseTask) {
        // Before step 6, so that the next thread finds the task.
        self.renewal.add_release_task(entry, release_task);
        self.let_next_thread_ask(entry);
    }

    /// Does steps 4 and 5 on this thread. Sends the requests in this time: a release, and a hand-over if Redis answers
    /// that others wait. If a request fails, the renewal thread repeats it. If Redis did not have the lock under this
    /// owner, returns whether the lock was removed or taken.
    pub(crate) fn send_release(
        &self,
        entry: &Arc<Entry>,
        mut release_task: ReleaseTask,
        deadline: Deadline<'_>,
    ) -> Result<Option<Gone>, Failure> {
        loop {
            let end = release_task.end(self.client.now());
            let answer = (self.client).send(&Request::End(entry.id(), &end), deadline);
            let now = self.client.now();
            let (next, result) = match answer {
                Ok(answer) => {
                    let left = self.client.left_until(release_task.owner());
                    let next = release_task.replied(now, &answer.reply, answer.resent, left);
                    (next, Ok(release_task.gone()))
                }
                Err(failure) => {
                    release_task.failed(now, failure.is_transient(), self.client.machine());
                    (Next::Later(now), Err(failure))
                }
            };
            match next {
                Next::Send => continue,
                // The renewal thread sends the first repeat at once, and waits before each further one. For nodes of a
                // quorum it waits a moment before the first one too.
                Next::Later(_) => {
                    if !release_task.is_left_at_nodes() {
                        self.client.stats.endings_repeated.add(1);
                    }
                    self.renewal.add_release_task(entry, release_task);
                }
                Next::Done => {}
            }
            return result;
        }
    }

    /// Does step 6: lets the next thread ask. Called when the release is over, or is left out.
    pub(crate) fn let_next_thread_ask(&self, entry: &Entry) {
        let next = self.names.leave(entry, |state| {
            let next = state.queue.ended();
            if next.is_some() {
                // It may not be true any more.
                state.forget_last_reply(self.client.now());
            }
            next
        });
        if let Some(waiter) = next {
            waiter.send(Signal::Ask { has_waited: true });
        }
    }

    /// Makes the next thread the delegate after a loss. If there is none, takes the name out of the table.
    pub(crate) fn ask_after_loss(&self, entry: &Entry, next: Option<Arc<WaitingThread>>) {
        match next {
            Some(waiter) => {
                entry.lock().forget_last_reply(self.client.now());
                waiter.send(Signal::Ask { has_waited: true });
            }
            None => self.names.leave(entry, |_| ()),
        }
    }

    /// Makes the release task of a lease that has ended in this process.
    pub(crate) fn release_task(
        &self,
        process_lease: &ProcessLease,
        give_back: Option<GiveBack>,
        now: Time,
    ) -> ReleaseTask {
        let min_hold_until = process_lease.min_hold_until(now);
        // The key of several owners has no mark for waiters, so only the whole script finds them.
        let may_have_waiters =
            min_hold_until.is_some() && process_lease.entry.kind.total_units() > 1;
        ReleaseTask::of_lease(
            self.ended_owner(process_lease, give_back, now),
            process_lease.is_contended() || may_have_waiters,
            min_hold_until,
            now,
            process_lease.terms.lease(),
        )
    }

    /// Returns the owner of an ended lease, with the time until which Redis may keep its key. The next thread may ask
    /// for a shorter lease, so that time goes with the owner. So do the unused fences.
    pub(crate) fn ended_owner(
        &self,
        process_lease: &ProcessLease,
        give_back: Option<GiveBack>,
        now: Time,
    ) -> EndedOwner {
        EndedOwner {
            owner: self.client.owner_of(process_lease),
            units: process_lease.units,
            uncertain_until: process_lease.uncertain_until(),
            key_gone_at: process_lease
                .key_gone_at()
                .max(Some(now + process_lease.terms.lease())),
            give_back,
        }
    }

    /// Makes the renewal thread release an owner.
    pub(crate) fn clean_up(&self, entry: &Arc<Entry>, ended: EndedOwner, lease: Duration) {
        let release_task = ReleaseTask::of_ended_owner(ended, self.client.now(), lease);
        self.renewal.add_release_task(entry, release_task);
    }

    /// Makes the renewal thread release an owner at the nodes of a quorum that may still have it, although the quorum has
    /// ended it.
    pub(crate) fn clean_up_nodes(&self, entry: &Arc<Entry>, owner: &Arc<str>, units: u32) {
        if let Some(until) = self.client.left_until(owner) {
            let owner = Arc::clone(owner);
            let release_task = ReleaseTask::of_left_owner(owner, units, until, self.client.now());
            self.renewal.add_release_task(entry, release_task);
        }
    }

    /// Counts the loss of a lease, if it was lost and `fence` is given. Only the thread that takes the lease out of its
    /// queue gets the fence, so each loss is counted once.
    pub(crate) fn count_loss_once(
        &self,
        process_lease: &ProcessLease,
        status: LeaseStatus,
        fence: Option<u64>,
    ) {
        if let (LeaseStatus::Lost(cause), Some(fence)) = (status, fence) {
            self.client.count_loss(process_lease, fence, cause);
        }
    }

    /// Makes the renewal thread release the keys that a lost lease may have left in Redis. Called at the end of a guard
    /// of the lease.
    pub(crate) fn after_loss(&self, process_lease: &Arc<ProcessLease>, status: LeaseStatus) {
        if let LeaseStatus::Lost(cause) = status {
            self.deregister(process_lease);
            process_lease.announce(cause);
            // A key that Redis reported as gone needs no release. The other keys of a multi-lock do.
            let may_be_left = cause == LostCause::Expired
                || process_lease.keys().len() > 1
                || self.client.store.votes().is_some();
            if may_be_left && process_lease.begin_clean_up() {
                let left = self.ended_owner(process_lease, None, self.client.now());
                self.clean_up(&process_lease.entry, left, process_lease.terms.lease());
            }
        }
    }
}
