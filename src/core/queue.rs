//! The threads of this process that want one name.
//!
//! Whatever wants a name enters its queue. The first that cannot be let in is the *delegate*, the only thread of
//! this process that asks Redis; the others wait behind it, first come, first served. A grant from Redis starts a
//! *tenure*, which is then passed from thread to thread in memory for as long as its quantum, its fences and the
//! health of its lease allow.
//!
//! | what is so | event | what is so then | what the caller is to do |
//! | --- | --- | --- | --- |
//! | nothing | a thread arrives | asking | it is the delegate: ask Redis |
//! | asking | a thread arrives | asking | it waits; a try is answered "held" if Redis said so last, and no failure since |
//! | asking | this process adopts the lock | held, asking | its turn; it is passed to nobody: who asks is first |
//! | asking | Redis grants | held | hand the delegate its turn, and whoever else fits in |
//! | asking | the delegate gives up | asking / nothing | the next thread carries its attempt on / clean up |
//! | asking | a delegate that waits fails with an error that ends its wait | nothing | fail everybody behind it |
//! | asking | a delegate that tries fails | asking / nothing | fail the tries behind it; the next thread that waits asks |
//! | held | a thread arrives that fits in | held | its turn: no request |
//! | held | a turn ends, the next thread may have the tenure | held | pass it on: no request |
//! | held | the last turn ends, threads wait | asking | the first asks by *taking over* the tenure |
//! | held | the last turn ends, nobody waits | ending | release |
//! | held | the lease is lost | asking / nothing | the next thread asks afresh |
//! | ending | a thread arrives | ending | it waits; the lock is still this process's |
//! | ending | the release is over | asking / nothing | the first thread that waits asks |
//!
//! Invariant: nobody waits while nothing is so, so no thread is ever forgotten.
//!
//! How a tenure is shared is the kind's ([`Sharing`]): a mutex has one tenure of one seat; the readers of a name sit
//! in one tenure together; a semaphore's permits are tenures beside each other. Where tenures may stand beside each
//! other, a process asks while it holds, so that a thread that does not fit into a tenure it has need not wait for
//! its end: then "held" and "asking" are both so, nobody waits without a delegate, and what ends is released to
//! whoever is first in Redis, be it this process's own delegate.
//!
//! A mutex has one tenure, but a hold that was detached elsewhere may be adopted here at any moment: while the delegate
//! asks, while a release is under way, even while this process has a tenure that it has lost without knowing. Then the
//! same is so for it. Nobody asks until the last tenure has ended; if the delegate gives up meanwhile, those behind it
//! wait for that end.

use smallvec::SmallVec;

use crate::clock::Time;
use crate::config::Terms;
use crate::core::fence::Fences;
use crate::core::ticket_queue::TicketQueue;
use crate::message::{GiveBack, Sharing};

/// What a thread wants of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    /// How much of the lock it takes up.
    pub(crate) units: u32,
    pub(crate) terms: Terms,
    /// Whether it waits for the lock, or only for an answer.
    pub(crate) waits: bool,
}

/// Whether a tenure's lease allows it to be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Held, renewed, on time.
    Good,
    /// Still held, but not renewed, or late: the next thread asks Redis.
    Poor,
    /// Still held, and to be kept from everybody for a while: it is released, and then the next thread asks.
    KeptBack,
    Lost,
}

/// What the queue wants to know of a tenure.
pub(crate) trait Tenancy: Clone {
    /// Tells it from the queue's other ones.
    fn number(&self) -> u64;
    fn terms(&self) -> Terms;
}

/// A grant, as the queue keeps it.
#[derive(Debug)]
pub(crate) struct Granted<T> {
    pub(crate) tenure: T,
    pub(crate) units: u32,
    pub(crate) fences: Fences,
    pub(crate) quantum_over: Time,
}

/// What became of a thread that arrived.
#[derive(Debug)]
pub(crate) enum Arrival<T> {
    /// It asks Redis.
    Delegate,
    /// It waits, under this ticket.
    Queued(u64),
    /// It shares a tenure that this process has.
    Turn(Turn<T>),
    /// It only tried, and the lock is held.
    Held,
}

/// One thread's part in a tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn<T> {
    pub(crate) tenure: T,
    pub(crate) fence: u64,
}

/// A thread that waited and now has its turn.
pub(crate) type Admitted<W, T> = (W, Turn<T>);

/// The threads that come in at one moment. Mostly it is one, so the first is kept apart from the allocation.
pub(crate) type Entrants<W, T> = (Option<Admitted<W, T>>, Vec<Admitted<W, T>>);

/// What is to be done after a grant.
#[derive(Debug)]
pub(crate) struct Begun<W, T> {
    /// The turn of the thread that asked.
    pub(crate) turn: Turn<T>,
    pub(crate) beside: Entrants<W, T>,
    /// Threads that only tried, and now know that it is held.
    pub(crate) tried: Vec<W>,
    /// The thread that asks next.
    pub(crate) next: Option<W>,
}

/// What is to be done after a turn has ended.
#[derive(Debug)]
pub(crate) enum Finish<W, T> {
    /// The tenure was over before.
    Stale,
    /// The tenure goes on, in these threads too.
    Passed(Entrants<W, T>),
    /// The tenure has ended here; this thread asks Redis to let this process keep the lock.
    TakeOver(W, Option<GiveBack>),
    /// The tenure has ended here, and nobody wants it: release it, then call [`Queue::ended`].
    Release(Option<GiveBack>),
    /// The lease was lost; this thread, if any, asks afresh.
    Lost(Option<W>),
}

/// The queue of one name. `W` stands for a waiting thread, `T` for a tenure.
#[derive(Debug)]
pub(crate) struct Queue<W, T> {
    sharing: Sharing,
    waiting: TicketQueue<Waiting<W>>,
    asking: Option<Asking>,
    /// One at the most, unless the kind has several beside each other.
    tenures: SmallVec<[Held<T>; 1]>,
    /// Whether the only tenure is being released.
    ending: bool,
    retired: bool,
}

/// A thread that waits.
#[derive(Debug)]
struct Waiting<W> {
    wants: Wants,
    waiter: W,
}

/// What is known of a delegate's question.
#[derive(Clone, Copy, Debug)]
struct Asking {
    units: u32,
    /// The last answer.
    answer: Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// None yet, or a failure since.
    Nothing,
    /// Held: so much is not to be had.
    Held,
    /// Held, and it stands in the queue, so that nobody gets past it who wants less.
    Queued,
}

impl Asking {
    fn new(units: u32) -> Self {
        Self {
            units,
            answer: Answered::Nothing,
        }
    }

    /// Whether the answer is one to who wants so much.
    fn answers(self, units: u32) -> bool {
        match self.answer {
            Answered::Nothing => false,
            Answered::Held => units >= self.units,
            Answered::Queued => true,
        }
    }
}

#[derive(Debug)]
struct Held<T> {
    tenure: T,
    units: u32,
    /// How many turns it has at this time.
    taken: u32,
    fences: Fences,
    quantum_over: Time,
}

impl<W, T: Tenancy> Queue<W, T> {
    pub(crate) fn new(sharing: Sharing) -> Self {
        Self {
            sharing,
            waiting: TicketQueue::new(),
            asking: None,
            tenures: SmallVec::new(),
            ending: false,
            retired: false,
        }
    }

    /// Nobody enters it any more.
    pub(crate) fn retire(&mut self) {
        debug_assert!(self.is_idle() && !self.is_crowded());
        self.retired = true;
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired
    }

    /// A thread wants the name. `waiter` is called only where it has to wait; `health` only where there is a
    /// tenure that it could share.
    pub(crate) fn arrive(
        &mut self,
        wants: Wants,
        now: Time,
        health: impl Fn(&T) -> Health,
        waiter: impl FnOnce() -> W,
    ) -> Arrival<T> {
        if self.waiting.is_empty() {
            for held in &mut self.tenures {
                if held.admits(&wants, self.sharing, now) && health(&held.tenure) == Health::Good {
                    if let Some(turn) = held.admit() {
                        return Arrival::Turn(turn);
                    }
                }
            }
            if self.may_ask() {
                self.asking = Some(Asking::new(wants.units));
                return Arrival::Delegate;
            }
        }
        // Whatever keeps a process from asking is the question under way, or its own hold on the lock.
        let is_held = !self.sharing.several && !self.tenures.is_empty();
        let is_answered = self.asking.is_none_or(|asking| asking.answers(wants.units));
        if !wants.waits && (is_held || is_answered) {
            return Arrival::Held;
        }
        let waiter = waiter();
        Arrival::Queued(self.waiting.push(Waiting { wants, waiter }))
    }

    /// A waiting thread gives up. False where it waits no longer: a turn or a task is on its way to it.
    pub(crate) fn leave(&mut self, ticket: u64) -> bool {
        self.waiting.remove(ticket).is_some()
    }

    /// Whether threads wait here that a grant would be passed on to.
    pub(crate) fn is_crowded(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether nothing is held, asked or waited for.
    pub(crate) fn is_idle(&self) -> bool {
        self.asking.is_none() && self.tenures.is_empty() && !self.ending
    }

    /// Whether this process releases the lock at this time.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.iter().count()
    }

    /// The tenure that this process has now, where it can have no other.
    pub(crate) fn tenure(&self) -> Option<&T> {
        let only = self.tenures.first().filter(|_| !self.sharing.several);
        only.map(|held| &held.tenure)
    }

    /// All that it has.
    pub(crate) fn tenures(&self) -> impl Iterator<Item = &T> {
        self.tenures.iter().map(|held| &held.tenure)
    }

    /// The fence of those who sit in tenure `number`; none where that is over. Whoever sit in one together have the
    /// same.
    pub(crate) fn fence(&self, number: u64) -> Option<u64> {
        let index = self.position(number)?;
        Some(self.tenures[index].fences.last())
    }

    /// The delegate was told that the lock is held, and stands in the queue in Redis, or not. Returns the threads that
    /// wait for no more than that.
    pub(crate) fn answered_held(&mut self, queued: bool) -> Vec<W> {
        let Some(asking) = &mut self.asking else {
            return Vec::new();
        };
        asking.answer = if queued {
            Answered::Queued
        } else {
            Answered::Held
        };
        let asking = *asking;
        self.take_tries(|units| asking.answers(units))
    }

    /// The delegate could not ask: what Redis last said is not what it would say now.
    pub(crate) fn not_answered(&mut self) {
        if let Some(asking) = &mut self.asking {
            asking.answer = Answered::Nothing;
        }
    }

    /// The delegate was granted the lock.
    pub(crate) fn granted(&mut self, granted: Granted<T>, now: Time) -> Begun<W, T> {
        self.asking = None;
        self.begin(granted, now)
    }

    /// This process was granted the lock in another way than by this queue's delegate.
    pub(crate) fn given(&mut self, mut granted: Granted<T>, now: Time) -> Begun<W, T> {
        if self.asking.is_some() && !self.sharing.several {
            // Passed on here, it would go past the delegate, and past whoever is before that in Redis.
            granted.quantum_over = now;
        }
        self.begin(granted, now)
    }

    /// The tenure that a delegate who wants this could sit in if its quantum were not over.
    pub(crate) fn beside(
        &self,
        units: u32,
        terms: Terms,
        health: impl Fn(&T) -> Health,
    ) -> Option<&T> {
        let fits = |held: &&Held<T>| {
            held.units == units
                && held.tenure.terms() == terms
                && held.taken < self.sharing.seats()
                && health(&held.tenure) == Health::Good
        };
        let held = self.tenures.iter().find(fits)?;
        Some(&held.tenure)
    }

    /// Redis lets the delegate sit in tenure `number` for another quantum. None where that has ended meanwhile.
    pub(crate) fn reopened(
        &mut self,
        number: u64,
        now: Time,
        quantum_over: Time,
    ) -> Option<Begun<W, T>> {
        let index = self.position(number)?;
        self.tenures[index].quantum_over = quantum_over;
        let turn = self.tenures[index].admit()?;
        self.asking = None;
        Some(self.begun(index, turn, now))
    }

    /// The delegate gives up. The next thread, if any, carries its attempt on, and knows what it was told.
    pub(crate) fn delegate_left(&mut self) -> Option<W> {
        let left = self.asking.take();
        debug_assert!(left.is_some(), "only a delegate leaves");
        let next = self.next_delegate(false)?;
        // The answer is the attempt's, and that is carried on only by who wants as much.
        if let (Some(asking), Some(left)) = (&mut self.asking, left) {
            if asking.units == left.units {
                asking.answer = left.answer;
            }
        }
        Some(next)
    }

    /// The delegate failed in a way that holds for all. Returns everybody behind it.
    pub(crate) fn failed(&mut self) -> Vec<W> {
        debug_assert!(self.asking.is_some());
        self.asking = None;
        self.close()
    }

    /// The delegate was a try, and failed. Returns the tries behind it, and the thread that asks next: one that waits does
    /// not fail because another has tried.
    pub(crate) fn try_failed(&mut self) -> (Vec<W>, Option<W>) {
        debug_assert!(self.asking.is_some());
        self.asking = None;
        let tries = self.take_tries(|_| true);
        (tries, self.next_delegate(false))
    }

    /// Everybody who waits is to be told that the manager is closed.
    pub(crate) fn close(&mut self) -> Vec<W> {
        self.take_waiting(|_| true)
    }

    /// A turn of tenure `number` has ended.
    pub(crate) fn finish(&mut self, number: u64, now: Time, health: Health) -> Finish<W, T> {
        let Some(index) = self.position(number) else {
            return Finish::Stale;
        };
        let held = &mut self.tenures[index];
        held.taken -= 1;
        let taken = held.taken;
        let give_back = held.fences.give_back();
        match health {
            Health::Lost => return Finish::Lost(self.over(index, false)),
            Health::Good => {
                let entrants = self.admit_waiting(index, now);
                if entrants.0.is_some() || taken > 0 {
                    return Finish::Passed(entrants);
                }
            }
            Health::Poor | Health::KeptBack if taken > 0 => {
                return Finish::Passed((None, Vec::new()));
            }
            Health::Poor => {}
            // Nobody asks before it is released, unless there may be more of it.
            Health::KeptBack => self.ending = !self.sharing.several,
        }
        // Until Redis says otherwise, this process holds the lock: a try need not ask.
        if let Some(next) = self.over(index, true) {
            return Finish::TakeOver(next, give_back);
        }
        self.ending = !self.sharing.several;
        Finish::Release(give_back)
    }

    /// The lease of tenure `number` was lost. Returns the thread that asks afresh, if that was news and
    /// somebody waits.
    pub(crate) fn lost(&mut self, number: u64) -> Option<W> {
        let index = self.position(number)?;
        self.over(index, false)
    }

    /// A release is over. Returns the thread that asks next.
    pub(crate) fn ended(&mut self) -> Option<W> {
        self.ending = false;
        self.next_delegate(false)
    }

    fn may_ask(&self) -> bool {
        let has_room = self.sharing.several || self.tenures.is_empty();
        has_room && self.asking.is_none() && !self.ending
    }

    /// The thread that asks next, where one waits and it may be asked.
    fn next_delegate(&mut self, held: bool) -> Option<W> {
        if !self.may_ask() {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.asking = Some(Asking {
            units: next.wants.units,
            answer: if held {
                Answered::Held
            } else {
                Answered::Nothing
            },
        });
        Some(next.waiter)
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.tenures
            .iter()
            .position(|held| held.tenure.number() == number)
    }

    fn begin(&mut self, granted: Granted<T>, now: Time) -> Begun<W, T> {
        let mut held = Held {
            tenure: granted.tenure,
            units: granted.units,
            taken: 0,
            fences: granted.fences,
            quantum_over: granted.quantum_over,
        };
        let turn = held
            .admit()
            .expect("a grant holds at least the fence of the turn that asked for it");
        self.tenures.push(held);
        self.begun(self.tenures.len() - 1, turn, now)
    }

    fn begun(&mut self, index: usize, turn: Turn<T>, now: Time) -> Begun<W, T> {
        let beside = self.admit_waiting(index, now);
        let next = self.next_delegate(false);
        let tried = if self.sharing.several {
            // There may be more of it: each asks for itself.
            Vec::new()
        } else {
            self.take_tries(|_| true)
        };
        Begun {
            turn,
            beside,
            tried,
            next,
        }
    }

    /// A tenure is over here. Returns the thread that asks next.
    fn over(&mut self, index: usize, held: bool) -> Option<W> {
        self.tenures.swap_remove(index);
        self.next_delegate(held)
    }

    /// Takes out the threads that wait for an answer only, where it is one to what they want. There are none but while
    /// the first is awaited.
    fn take_tries(&mut self, is_answered: impl Fn(u32) -> bool) -> Vec<W> {
        self.take_waiting(|wants| !wants.waits && is_answered(wants.units))
    }

    /// Takes out the waiting threads for which `is_meant` returns true.
    fn take_waiting(&mut self, is_meant: impl Fn(&Wants) -> bool) -> Vec<W> {
        let taken = self.waiting.take(|waiting| is_meant(&waiting.wants));
        taken.into_iter().map(|waiting| waiting.waiter).collect()
    }

    /// Lets in whoever is first and fits, until somebody does not.
    fn admit_waiting(&mut self, index: usize, now: Time) -> Entrants<W, T> {
        let (mut first, mut rest) = (None, Vec::new());
        let held = &mut self.tenures[index];
        while let Some(next) = self.waiting.front() {
            if !held.admits(&next.wants, self.sharing, now) {
                break;
            }
            let Some(turn) = held.admit() else {
                break;
            };
            let Some(next) = self.waiting.pop_front() else {
                break;
            };
            let admitted = (next.waiter, turn);
            if first.is_none() {
                first = Some(admitted);
            } else {
                rest.push(admitted);
            }
        }
        (first, rest)
    }
}

impl<T: Tenancy> Held<T> {
    fn admits(&self, wants: &Wants, sharing: Sharing, now: Time) -> bool {
        wants.units == self.units
            && wants.terms == self.tenure.terms()
            && now < self.quantum_over
            && self.taken < sharing.seats()
    }

    fn admit(&mut self) -> Option<Turn<T>> {
        let fence = self.fences.take()?;
        self.taken += 1;
        Some(Turn {
            tenure: self.tenure.clone(),
            fence,
        })
    }
}

#[cfg(test)]
mod tests;
