//! The threads of this process that want one name.
//!
//! A thread that wants a name enters its queue. The first thread that finds no room in a lease, and may ask, is the *delegate*:
//! the only thread of this process that asks Redis. The others wait behind it, first come, first served. A grant from
//! Redis begins a *lease*. A lease goes from thread to thread in memory as long as its quantum, its fences and its health
//! allow.
//!
//! | state | event | next state | the caller must |
//! | --- | --- | --- | --- |
//! | unused | a thread arrives | asking | ask Redis: the thread is the delegate |
//! | asking | a thread arrives | asking | let it wait; a try gets "held" if that was the last answer, with no failure since |
//! | asking | this process adopts the lock | held, asking | give a hold to the adopter, and to no other thread: the delegate is first |
//! | asking | Redis grants | held | give a hold to the delegate, and to all waiting threads that fit in |
//! | asking | the delegate gives up | asking / unused | hand its attempt to the next thread / clean up |
//! | asking | a delegate that waits fails with an error that ends its wait | unused | fail all threads behind it |
//! | asking | a delegate that tries fails | asking / unused | fail the tries behind it; the next thread that waits asks |
//! | held | a thread arrives that fits in | held | give it a hold on the lease, without a request |
//! | held | a thread arrives that does not fit in, and the kind allows one lease | held | let it wait; a try gets "held" |
//! | held | a thread arrives that does not fit in, and the kind allows several | held, asking | ask Redis |
//! | held | a hold ends, the next thread may have the lease | held | hand the lease to it, without a request |
//! | held | the last hold ends, threads wait | asking | let the first ask by *taking over* the lease |
//! | held | the last hold ends, nobody waits | ending | release |
//! | held | the last hold ends, and the lock is kept from all threads (`min_hold`) | ending | release it to nobody; then let the first thread ask |
//! | held | the lease is lost | asking / unused | let the next thread ask anew |
//! | ending | a thread arrives | ending | let it wait: the lock is still this process's |
//! | ending | the release is over | asking / unused | let the first thread that waits ask |
//!
//! Invariant: no thread waits while the queue is unused, so no thread is ever forgotten.
//!
//! The kind decides how threads share a lease ([`Sharing`]). A mutex has one lease with room for one thread. The readers of
//! a name share one lease. A semaphore's permits are leases beside each other. If a kind allows several leases, a
//! process asks while it holds, so "held" and "asking" are both true. A thread that finds no room then need not wait
//! for a lease's end. A lease that ends is released to the first waiter in Redis, which may be this process's own
//! delegate.
//!
//! A mutex has one lease, but a thread may adopt a claim at any moment. The delegate may be asking then, a release may
//! be under way, or this process may have lost a lease without knowing. So here, too, several states may be true at
//! once. No thread asks until the last lease has ended. If the delegate gives up meanwhile, the threads behind it
//! wait for that end.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::config::Terms;
use crate::engine::lease::fence::Fences;
use crate::sys::Time;
use crate::wire::{GiveBack, Sharing};

/// The part of a lock that a thread wants, and on which terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireParams {
    /// The number of units that the thread takes up.
    pub(crate) units: u32,
    pub(crate) terms: Terms,
    /// Whether it waits for the lock, or only for an answer.
    pub(crate) waits: bool,
}

/// The facts about a lease that the queue needs.
pub(crate) trait HeldLease: Clone {
    /// Returns the number that tells the lease from all others.
    fn number(&self) -> u64;
    /// Returns the terms that all holds of the lease share.
    fn terms(&self) -> Terms;
    /// Returns how much of the lock each hold of the lease takes up.
    fn units(&self) -> u32;
}

/// One thread's part in a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldOf<T> {
    pub(crate) process_lease: T,
    pub(crate) fence: u64,
    /// When the thread got it.
    pub(crate) since: Time,
}

/// A lease as the queue of its name sees it.
#[derive(Debug)]
pub(crate) struct QueueLease<T> {
    process_lease: T,
    /// How many threads hold it now.
    holders: u32,
    fences: Fences,
    quantum_end: Time,
}

/// The queue of one name. `W` stands for a waiting thread, `T` for a lease.
#[derive(Debug)]
pub(crate) struct Queue<W, T> {
    sharing: Sharing,
    /// The threads that wait, the first at the front.
    #[expect(
        clippy::box_collection,
        reason = "most names never have one, and an empty deque takes 24 bytes more in each name"
    )]
    waiting: Option<Box<VecDeque<QueuedThread<W>>>>,
    /// The delegate's request, while there is a delegate.
    asking: Option<DelegateRequest>,
    /// At most one lease, unless the kind allows several, or a thread adopts.
    leases: SmallVec<[QueueLease<T>; 1]>,
    /// Whether the only lease is being released.
    is_releasing: bool,
    /// Whether the queue has left the table of names, so that no thread may enter.
    retired: bool,
}

/// A thread that waits.
#[derive(Debug)]
struct QueuedThread<W> {
    params: AcquireParams,
    waiter: W,
}

/// A request of the delegate that Redis has not granted yet.
#[derive(Clone, Copy, Debug)]
struct DelegateRequest {
    /// The number of units that it asks for.
    units: u32,
    answer: DelegateReply,
}

/// The last answer to a delegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DelegateReply {
    /// Redis has not answered yet, or the delegate has failed to ask since.
    None,
    /// "Held": Redis does not give this much of the lock.
    Held,
    /// "Held", and the delegate stands in the queue in Redis. No process gets past it, not even for fewer units.
    Queued,
}

/// Whether a lease may go to the next thread in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Held, renewed, on time.
    Good,
    /// Still held, but not renewed, late, extended beyond its terms, detached, not confirmed since a sign of lost data, or a
    /// commit may still arrive: the next thread asks Redis.
    Poor,
    /// Still held, but kept from all threads for a while (`min_hold`): it is released, and then the next thread asks.
    KeptBack,
    Lost,
}

/// The role of a thread that arrived.
#[derive(Debug)]
pub(crate) enum Arrival<W, T> {
    /// It asks Redis.
    Delegate,
    /// It waits, as this thread.
    Queued(W),
    /// It shares a lease that this process has.
    Hold(HoldOf<T>),
    /// It only tried, and the lock is held.
    Held,
}

/// A thread that waited and now has its hold.
pub(crate) type Admitted<W, T> = (W, HoldOf<T>);

/// The threads that come in at one moment. It is seldom more than one.
pub(crate) type Entrants<W, T> = SmallVec<[Admitted<W, T>; 1]>;

/// The thread whose request brought a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantedTo {
    Delegate,
    /// A thread that adopts, or downgrades. There may be a delegate too.
    OtherThread,
}

/// The tasks after a grant.
#[derive(Debug)]
pub(crate) struct Begun<W, T> {
    /// The hold of the thread that asked.
    pub(crate) hold: HoldOf<T>,
    /// The waiting threads that share the lease.
    pub(crate) admitted: Entrants<W, T>,
    /// Threads that only tried, and now know that the lock is held.
    pub(crate) tried: Vec<W>,
    /// The thread that asks next.
    pub(crate) next: Option<W>,
}

/// The tasks after a hold has ended.
#[derive(Debug)]
pub(crate) enum Finish<W, T> {
    /// The lease was over before.
    Stale,
    /// The lease goes on: in the guards that share it still, and in these threads.
    GoesOn(Entrants<W, T>),
    /// The lease has ended here. This thread is the delegate, and its request takes the lease over. If that is not possible,
    /// because the lock was detached or is kept for a `min_hold`, the caller releases it first.
    TakeOver(W, Option<GiveBack>),
    /// The lease has ended here, and no thread may ask yet: release it, then call [`Queue::ended`].
    Release(Option<GiveBack>),
    /// The lease was lost; this thread, if any, asks anew.
    Lost(Option<W>),
}

impl<W: Clone, T: HeldLease> Queue<W, T> {
    pub(crate) fn new(sharing: Sharing) -> Self {
        Self {
            sharing,
            waiting: None,
            asking: None,
            leases: SmallVec::new(),
            is_releasing: false,
            retired: false,
        }
    }

    /// Closes an unused queue: no thread enters it any more.
    pub(crate) fn retire(&mut self) {
        debug_assert!(self.is_unused() && !self.is_crowded());
        self.retired = true;
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired
    }

    /// Lets a thread in. Calls `waiter` only if the thread must wait, and `health` only for a lease with room for it.
    pub(crate) fn arrive(
        &mut self,
        params: AcquireParams,
        now: Time,
        health: impl Fn(&T) -> Health,
        waiter: impl FnOnce() -> W,
    ) -> Arrival<W, T> {
        // 1. Nobody is before it: it shares a lease, or asks for one.
        if !self.is_crowded() {
            for lease in &mut self.leases {
                let is_admitted = lease.admits(&params, self.sharing, now);
                if is_admitted && health(&lease.process_lease) == Health::Good {
                    if let Some(hold) = lease.admit(now) {
                        return Arrival::Hold(hold);
                    }
                }
            }
            if self.may_ask() {
                self.asking = Some(DelegateRequest {
                    units: params.units,
                    answer: DelegateReply::None,
                });
                return Arrival::Delegate;
            }
        }
        // 2. A try needs no more than an answer, which the delegate may have. Without a delegate, this process itself
        //    holds or releases the lock.
        let is_held = !self.sharing.several && !self.leases.is_empty();
        let is_answered = self
            .asking
            .is_none_or(|asking| asking.answers(params.units));
        if !params.waits && (is_held || is_answered) {
            return Arrival::Held;
        }
        // 3. It waits.
        let waiter = waiter();
        let waiting = self.waiting.get_or_insert_default();
        waiting.push_back(QueuedThread {
            params,
            waiter: waiter.clone(),
        });
        Arrival::Queued(waiter)
    }

    /// Takes out a thread that gives up. Returns false if it has a hold or a task already.
    pub(crate) fn leave(&mut self, is_it: impl Fn(&W) -> bool) -> bool {
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        let place = waiting.iter().position(|queued| is_it(&queued.waiter));
        place.is_some_and(|place| waiting.remove(place).is_some())
    }

    /// Takes out all threads that wait, because the manager is closed.
    pub(crate) fn close(&mut self) -> Vec<W> {
        self.take_waiting(|_| true)
    }

    /// Returns whether threads wait that could get a lease in memory.
    pub(crate) fn is_crowded(&self) -> bool {
        self.waiting
            .as_ref()
            .is_some_and(|waiting| !waiting.is_empty())
    }

    /// Returns whether nothing is held, asked or waited for.
    pub(crate) fn is_unused(&self) -> bool {
        self.asking.is_none() && self.leases.is_empty() && !self.is_releasing
    }

    /// Returns whether a thread asks Redis.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Returns whether the delegate's last answer tells a thread that it cannot have `units` of the lock either.
    pub(crate) fn is_answered(&self, units: u32) -> bool {
        self.asking.is_some_and(|asking| asking.answers(units))
    }

    /// Returns whether this process is releasing the lock.
    pub(crate) fn is_releasing(&self) -> bool {
        self.is_releasing
    }

    /// Returns the threads that wait.
    #[cfg(any(test, feature = "seam"))]
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &W> {
        self.waiting
            .iter()
            .flat_map(|waiting| waiting.iter())
            .map(|queued| &queued.waiter)
    }

    /// Returns the lease of this process, if it can have no other.
    pub(crate) fn process_lease(&self) -> Option<&T> {
        let only = self.leases.first().filter(|_| !self.sharing.several);
        only.map(|lease| &lease.process_lease)
    }

    /// Returns all leases of this process.
    pub(crate) fn process_leases(&self) -> impl Iterator<Item = &T> {
        self.leases.iter().map(|lease| &lease.process_lease)
    }

    /// Returns the fence of the threads that share lease `number`. Returns `None` if that lease is over.
    pub(crate) fn fence(&self, number: u64) -> Option<u64> {
        let index = self.position(number)?;
        Some(self.leases[index].fences.last())
    }

    /// Notes that Redis answered "held" to the delegate. `queued`: the delegate stands in the queue there. Returns the
    /// threads that waited only for this answer.
    pub(crate) fn answered_held(&mut self, queued: bool) -> Vec<W> {
        let Some(asking) = &mut self.asking else {
            return Vec::new();
        };
        asking.answer = if queued {
            DelegateReply::Queued
        } else {
            DelegateReply::Held
        };
        let asking = *asking;
        self.take_tries(|units| asking.answers(units))
    }

    /// Notes that the delegate could not ask. Its last answer may not be true now.
    pub(crate) fn not_answered(&mut self) {
        if let Some(asking) = &mut self.asking {
            asking.answer = DelegateReply::None;
        }
    }

    /// Begins a lease. Its first hold is for the thread whose request brought it.
    pub(crate) fn begin(
        &mut self,
        mut lease: QueueLease<T>,
        to: GrantedTo,
        now: Time,
    ) -> Begun<W, T> {
        match to {
            GrantedTo::Delegate => self.asking = None,
            GrantedTo::OtherThread if self.asking.is_some() && !self.sharing.several => {
                // In memory, the lease would go past the delegate, and past the waiters before the delegate in Redis.
                lease.quantum_end = now;
            }
            GrantedTo::OtherThread => {}
        }
        let hold = lease
            .admit(now)
            .expect("a grant has at least one fence, for the thread that asked");
        self.leases.push(lease);
        self.admit_behind(self.leases.len() - 1, hold, now)
    }

    /// Returns a lease that the delegate could share, if its quantum were not over.
    pub(crate) fn shareable_lease(
        &self,
        units: u32,
        terms: Terms,
        health: impl Fn(&T) -> Health,
    ) -> Option<&T> {
        let fits = |lease: &&QueueLease<T>| {
            lease.has_room(units, self.sharing)
                && lease.process_lease.terms() == terms
                && health(&lease.process_lease) == Health::Good
        };
        let lease = self.leases.iter().find(fits)?;
        Some(&lease.process_lease)
    }

    /// Begins another quantum of lease `number`, with the delegate in it. Returns `None` if the lease has ended.
    pub(crate) fn reopened(
        &mut self,
        number: u64,
        now: Time,
        quantum_end: Time,
    ) -> Option<Begun<W, T>> {
        let index = self.position(number)?;
        self.leases[index].quantum_end = quantum_end;
        let hold = self.leases[index].admit(now)?;
        self.asking = None;
        Some(self.admit_behind(index, hold, now))
    }

    /// Ends a delegate that gives up. Returns the next thread, if any, which continues its attempt.
    pub(crate) fn delegate_left(&mut self) -> Option<W> {
        let left = self.asking.take();
        debug_assert!(left.is_some(), "only a delegate leaves");
        let next = self.next_delegate(DelegateReply::None)?;
        // The answer belongs to the attempt. A thread that wants more or less begins a new attempt.
        if let (Some(asking), Some(left)) = (&mut self.asking, left) {
            if asking.units == left.units {
                asking.answer = left.answer;
            }
        }
        Some(next)
    }

    /// Ends a delegate whose failure counts for all threads behind it. Returns those threads.
    pub(crate) fn failed(&mut self) -> Vec<W> {
        debug_assert!(self.asking.is_some());
        self.asking = None;
        self.close()
    }

    /// Ends a delegate that only tried, and failed. Returns the tries behind it, and the thread that asks next. A
    /// thread that waits does not fail because another has tried.
    pub(crate) fn try_failed(&mut self) -> (Vec<W>, Option<W>) {
        debug_assert!(self.asking.is_some());
        self.asking = None;
        let tries = self.take_tries(|_| true);
        (tries, self.next_delegate(DelegateReply::None))
    }

    /// Ends a hold of lease `number`.
    pub(crate) fn finish(&mut self, number: u64, now: Time, health: Health) -> Finish<W, T> {
        // 1. The lease may be over already.
        let Some(index) = self.position(number) else {
            return Finish::Stale;
        };
        let lease = &mut self.leases[index];
        lease.holders -= 1;
        let (holders, give_back) = (lease.holders, lease.fences.give_back());
        // 2. It goes on in the threads that have a hold, and a good one in those that wait.
        match health {
            Health::Lost => return Finish::Lost(self.over(index, DelegateReply::None)),
            Health::Good => {
                let entrants = self.admit_waiting(index, now);
                if !entrants.is_empty() || holders > 0 {
                    return Finish::GoesOn(entrants);
                }
            }
            Health::Poor | Health::KeptBack if holders > 0 => {
                return Finish::GoesOn(SmallVec::new());
            }
            Health::Poor => {}
            // Nobody asks before it is released, unless the kind allows several.
            Health::KeptBack => self.is_releasing = !self.sharing.several,
        }
        // 3. It ends here, and the next thread asks to take it over. Until Redis answers that thread, this process
        //    holds the lock: a try need not ask.
        if let Some(next) = self.over(index, DelegateReply::Held) {
            return Finish::TakeOver(next, give_back);
        }
        // 4. Nobody waits, or nobody may ask.
        self.is_releasing = !self.sharing.several;
        Finish::Release(give_back)
    }

    /// Takes out lease `number`, which was lost. Returns the thread that asks anew, if the lease was not over yet and
    /// a thread waits.
    pub(crate) fn lost(&mut self, number: u64) -> Option<W> {
        let index = self.position(number)?;
        self.over(index, DelegateReply::None)
    }

    /// Ends a release. Returns the thread that asks next.
    pub(crate) fn ended(&mut self) -> Option<W> {
        self.is_releasing = false;
        self.next_delegate(DelegateReply::None)
    }

    /// After the first hold of a quantum: lets the waiting threads in for which there is room, and finds out which
    /// others are answered or ask next.
    fn admit_behind(&mut self, index: usize, hold: HoldOf<T>, now: Time) -> Begun<W, T> {
        let admitted = self.admit_waiting(index, now);
        let next = self.next_delegate(DelegateReply::None);
        let tried = if self.sharing.several {
            // Redis may have more of the lock: each try asks for itself.
            Vec::new()
        } else {
            self.take_tries(|_| true)
        };
        Begun {
            hold,
            admitted,
            tried,
            next,
        }
    }

    /// Lets in the first threads that wait, up to the first that does not fit.
    fn admit_waiting(&mut self, index: usize, now: Time) -> Entrants<W, T> {
        let mut entrants = SmallVec::new();
        let lease = &mut self.leases[index];
        let Some(waiting) = &mut self.waiting else {
            return entrants;
        };
        while let Some(next) = waiting.front() {
            if !lease.admits(&next.params, self.sharing, now) {
                break;
            }
            let Some(hold) = lease.admit(now) else {
                break;
            };
            entrants.extend(waiting.pop_front().map(|next| (next.waiter, hold)));
        }
        entrants
    }

    /// Takes a lease out. Returns the thread that asks next.
    fn over(&mut self, index: usize, answer: DelegateReply) -> Option<W> {
        self.leases.swap_remove(index);
        self.next_delegate(answer)
    }

    /// Makes the first thread that waits the delegate, if there may be one. `answer`: the last thing known of the lock.
    fn next_delegate(&mut self, answer: DelegateReply) -> Option<W> {
        if !self.may_ask() {
            return None;
        }
        let next = self.waiting.as_mut()?.pop_front()?;
        let units = next.params.units;
        self.asking = Some(DelegateRequest { units, answer });
        Some(next.waiter)
    }

    fn may_ask(&self) -> bool {
        let has_room = self.sharing.several || self.leases.is_empty();
        has_room && self.asking.is_none() && !self.is_releasing
    }

    /// Takes out the tries for which `is_answered` returns true. Tries wait only until the first answer.
    fn take_tries(&mut self, is_answered: impl Fn(u32) -> bool) -> Vec<W> {
        self.take_waiting(|params| !params.waits && is_answered(params.units))
    }

    /// Takes out the waiting threads for which `is_meant` returns true, in their order.
    fn take_waiting(&mut self, is_meant: impl Fn(&AcquireParams) -> bool) -> Vec<W> {
        let mut taken = Vec::new();
        if let Some(waiting) = &mut self.waiting {
            waiting.retain(|queued| {
                let is_meant = is_meant(&queued.params);
                taken.extend(is_meant.then(|| queued.waiter.clone()));
                !is_meant
            });
        }
        taken
    }

    fn position(&self, number: u64) -> Option<usize> {
        let is_it = |lease: &QueueLease<T>| lease.process_lease.number() == number;
        self.leases.iter().position(is_it)
    }
}

impl<T: HeldLease> QueueLease<T> {
    /// Makes a lease that no thread has yet. Further threads may share it until `quantum_end`.
    pub(crate) fn new(process_lease: T, fences: Fences, quantum_end: Time) -> Self {
        Self {
            process_lease,
            holders: 0,
            fences,
            quantum_end,
        }
    }

    /// Returns whether a thread that wants `units` of the lock finds room.
    fn has_room(&self, units: u32, sharing: Sharing) -> bool {
        units == self.process_lease.units() && self.holders < sharing.most_holds()
    }

    /// Returns whether a thread may share the lease in its present quantum.
    fn admits(&self, params: &AcquireParams, sharing: Sharing, now: Time) -> bool {
        self.has_room(params.units, sharing)
            && self.process_lease.terms() == params.terms
            && now < self.quantum_end
    }

    /// Lets a thread in. Returns `None` if the fences are used up.
    fn admit(&mut self, now: Time) -> Option<HoldOf<T>> {
        let fence = self.fences.take()?;
        self.holders += 1;
        Some(HoldOf {
            process_lease: self.process_lease.clone(),
            fence,
            since: now,
        })
    }
}

impl DelegateRequest {
    /// Returns whether the last answer tells a thread that it cannot have `units` of the lock either.
    fn answers(self, units: u32) -> bool {
        match self.answer {
            DelegateReply::None => false,
            DelegateReply::Held => units >= self.units,
            DelegateReply::Queued => true,
        }
    }
}

#[cfg(test)]
mod tests;
