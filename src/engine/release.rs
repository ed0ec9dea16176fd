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
use crate::core::attempt::{Attempt, Leftover};
use crate::core::ending::{Ending, Next};
use crate::core::lease::Standing;
use crate::core::queue::{Finish, Health};
use crate::engine::Engine;
use crate::engine::holding::Holding;
use crate::engine::names::Last;
use crate::engine::tenure::{Entry, Signal, Slot, Tenure};
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

impl Holding {
    /// Releases the lock. Returns whether the lease lasted until then.
    pub(crate) fn release(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.finished {
            return Ok(());
        }
        let (standing, unreleased) = self.end_turn(Mode::Release)?;
        let released = match unreleased {
            None => Ok(None),
            Some(unreleased) if self.engine.settings.background_release => {
                self.engine.release_later(&self.tenure, unreleased);
                Ok(None)
            }
            Some(unreleased) => self.engine.release_now(&self.tenure, unreleased),
        };
        if let Standing::Lost(cause) = standing {
            return Err(Error::Lost(self.lost(cause)));
        }
        match released {
            Ok(None) => Ok(()),
            Ok(Some(gone)) => {
                let cause = match gone {
                    Gone::Removed => LostCause::Removed,
                    Gone::Taken => LostCause::Taken,
                };
                self.engine.count_loss(&self.tenure, self.fence, cause);
                Err(Error::Lost(self.lost(cause)))
            }
            Err(failure) => Err(failure.into_error(Some(self.tenure.entry.target.name()))),
        }
    }

    /// Does steps 1 to 3. Returns what the lease was, and the lock if it is still in Redis.
    pub(super) fn end_turn(&mut self, mode: Mode) -> Result<(Standing, Option<Unreleased>)> {
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
            self.tenure.withdraw(self.number)
        } else {
            Vec::new()
        };
        let now = self.engine.now();
        let held = now.since(self.since);
        self.engine.count_end(&self.tenure, self.fence, now, held);
        let (standing, unreleased) = self.engine.end_turn(&self.tenure, now, mode);
        if let Standing::Lost(cause) = standing {
            for listener in listeners {
                listener.tell(cause);
            }
        }
        Ok((standing, unreleased))
    }
}

impl Drop for Holding {
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
        tenure: &Arc<Tenure>,
        now: Time,
        mode: Mode,
    ) -> (Standing, Option<Unreleased>) {
        let (standing, finish, fence, now) = {
            let mut state = tenure.entry.lock();
            // The wait for the mutex may have been long.
            let now = now.max(self.now());
            let health = self.health_at_end(tenure, now, mode);
            // A loss is told with the fence, which the queue forgets.
            let fence = match health {
                Health::Lost => state.queue.fence(tenure.number),
                Health::Good | Health::Poor | Health::KeptBack => None,
            };
            let finish = state.queue.finish(tenure.number, now, health);
            let standing = match finish {
                Finish::Passed(..) => tenure.cell.standing(now),
                _ => tenure.cell.end(now),
            };
            if mode == Mode::Release && matches!(finish, Finish::TakeOver(..)) {
                // Until the next thread has asked.
                state.note_last(Last::Held(self.owner_of(tenure)));
            }
            (standing, finish, fence, now)
        };
        let unreleased = match finish {
            Finish::Passed((first, rest)) => {
                for (slot, turn) in first.into_iter().chain(rest) {
                    slot.send(Signal::Turn(turn, now));
                }
                None
            }
            Finish::TakeOver(next, give_back) => {
                self.deregister(tenure);
                if mode == Mode::Detach || tenure.kept_back(now).is_some() {
                    // The lock is not the next thread's to take over: that thread asks Redis as any other process would.
                    next.send(Signal::Delegate(None));
                    Some(Unreleased { give_back })
                } else {
                    let from = Leftover {
                        give_back,
                        ..self.leftover(tenure, now)
                    };
                    let attempt = Attempt::take_over(&*self.chance, &self.settings.label, from);
                    next.send(Signal::Delegate(Some(Box::new(attempt))));
                    None
                }
            }
            Finish::Release(give_back) => {
                self.deregister(tenure);
                Some(Unreleased { give_back })
            }
            Finish::Lost(next) => {
                self.count_loss_once(tenure, standing, fence);
                self.hand_on(&tenure.entry, next);
                self.after_loss(tenure, standing);
                None
            }
            Finish::Stale => {
                self.after_loss(tenure, standing);
                None
            }
        };
        (standing, unreleased)
    }

    /// Returns whether a lease may go on in another thread, when a guard of it ends.
    fn health_at_end(self: &Arc<Self>, tenure: &Arc<Tenure>, now: Time, mode: Mode) -> Health {
        match (mode, self.health(tenure, now)) {
            (_, Health::Lost) => Health::Lost,
            (Mode::Detach, _) => Health::Poor,
            (Mode::Release, _) if tenure.kept_back(now).is_some() => Health::KeptBack,
            (Mode::Release, health) => health,
        }
    }

    /// Does steps 4 to 6 on this thread. Returns where the lock had gone, if Redis did not have it under this owner.
    fn release_now(
        &self,
        tenure: &Tenure,
        Unreleased { give_back }: Unreleased,
    ) -> Result<Option<Gone>, Failure> {
        let ending = self.ending(tenure, give_back, self.now());
        let result = self.send_ending(&tenure.entry, ending, self.limits(None));
        self.release_over(&tenure.entry);
        result
    }

    /// Leaves steps 4 and 5 to the renewal thread. The next thread that asks for the name waits for its answer.
    fn release_later(&self, tenure: &Tenure, Unreleased { give_back }: Unreleased) {
        let entry = &tenure.entry;
        let ending = self.ending(tenure, give_back, self.now());
        // Any thread that asks from here on finds the place.
        let place = self.renewal.reserve(self.now(), entry, &ending);
        self.release_over(entry);
        self.renewal.leave(self, entry, ending, place);
    }

    /// Ends the turn of a guard that has reached its `max_hold`.
    pub(super) fn end_at_max_hold(self: &Arc<Self>, tenure: &Arc<Tenure>, now: Time) {
        if let (_, Some(unreleased)) = self.end_turn(tenure, now, Mode::Release) {
            self.release_later(tenure, unreleased);
        }
    }

    /// Sends a release once, within `limits`. If it fails, the renewal thread repeats it. Returns where the lock
    /// had gone, if Redis did not have it under this owner.
    pub(super) fn send_ending(
        &self,
        entry: &Arc<Entry>,
        mut ending: Ending,
        limits: Limits<'_>,
    ) -> Result<Option<Gone>, Failure> {
        loop {
            ending.brought_up_to(self.now());
            let next = match self.send(&entry.call(ending.verb()), limits) {
                Ok(answer) => ending.replied(self.now(), &answer.reply, answer.resent),
                Err(failure) => {
                    self.stats.endings_repeated.add(1);
                    ending.failed(self.now(), failure.passes(), &*self.chance);
                    self.renewal.end(self, entry, ending);
                    return Err(failure);
                }
            };
            match next {
                Next::Send => {}
                Next::Later(_) => {
                    self.stats.endings_repeated.add(1);
                    let gone = ending.gone();
                    self.renewal.end(self, entry, ending);
                    return Ok(gone);
                }
                Next::Done => return Ok(ending.gone()),
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
    pub(super) fn ending(&self, tenure: &Tenure, give_back: Option<GiveBack>, now: Time) -> Ending {
        let contended = tenure.is_contended();
        let left = Leftover {
            give_back,
            ..self.leftover(tenure, now)
        };
        let ending = Ending::of_tenure(left, contended, now, tenure.terms.lease());
        match tenure.kept_back(now) {
            Some(until) => ending.keeping_back(until, now),
            None => ending,
        }
    }

    /// Returns what may be left of a lease in Redis, and until when. The thread that ends it may have a shorter lease.
    pub(super) fn leftover(&self, tenure: &Tenure, now: Time) -> Leftover {
        Leftover {
            owner: self.owner_of(tenure),
            units: tenure.units,
            doubt: tenure.doubt(),
            kept_until: tenure.kept_until().max(Some(now + tenure.terms.lease())),
            give_back: None,
        }
    }

    fn deregister(&self, tenure: &Arc<Tenure>) {
        self.renewal.deregister(tenure);
        self.watch.deregister_lease(tenure);
    }

    /// Ends a lease that the watch thread, or a renewal, has found lost. The next thread may ask, and listeners are told.
    pub(super) fn lost(&self, tenure: &Arc<Tenure>, cause: LostCause) {
        let (fence, next) = {
            let queue = &mut tenure.entry.lock().queue;
            (queue.fence(tenure.number), queue.lost(tenure.number))
        };
        self.count_loss_once(tenure, Standing::Lost(cause), fence);
        self.hand_on(&tenure.entry, next);
        self.renewal.deregister(tenure);
        tenure.announce(cause);
    }

    /// Counts a loss if the caller has taken the lease out of its queue, in which its guards had this fence. So each loss
    /// is counted once.
    fn count_loss_once(&self, tenure: &Tenure, standing: Standing, fence: Option<u64>) {
        if let (Standing::Lost(cause), Some(fence)) = (standing, fence) {
            self.count_loss(tenure, fence, cause);
        }
    }

    /// Cleans up after the guard of a lost lease: no guard relies any more on what may be left of it in Redis.
    fn after_loss(&self, tenure: &Arc<Tenure>, standing: Standing) {
        if let Standing::Lost(cause) = standing {
            self.deregister(tenure);
            tenure.announce(cause);
            // If Redis says that a key is gone, that key needs no release. The other keys of a set do.
            let may_be_left = cause == LostCause::Expired || tenure.keys().len() > 1;
            if may_be_left && tenure.begin_clean_up() {
                let left = self.leftover(tenure, self.now());
                self.clean_up(&tenure.entry, left, tenure.terms.lease());
            }
        }
    }
}
