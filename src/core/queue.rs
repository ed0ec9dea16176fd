//! The threads of this process that want one name.
//!
//! Whatever wants a name enters its queue. The first is the *delegate*, the only thread of this process that
//! asks Redis; the others wait behind it, first come, first served. A grant from Redis starts a *tenure*,
//! which is then passed from thread to thread in memory for as long as its quantum, its fences and the
//! health of its lease allow.
//!
//! | phase | event | next phase | what the caller is to do |
//! | --- | --- | --- | --- |
//! | idle | a thread arrives | asking | it is the delegate: ask Redis |
//! | asking | a thread arrives | asking | it waits; a try is answered "held" if Redis said so last, and no failure since |
//! | asking | Redis grants | held | hand the delegate its turn, and whoever else fits in |
//! | asking | the delegate gives up | asking / idle | the next thread carries its attempt on / clean up |
//! | asking | the delegate fails for good | idle | fail everybody behind it |
//! | held | a turn ends, the next thread may have the tenure | held | pass it on: no request |
//! | held | the last turn ends, threads wait | asking | the first asks by *taking over* the tenure |
//! | held | the last turn ends, nobody waits | ending | release |
//! | held | the lease is lost | asking / idle | the next thread asks afresh |
//! | ending | a thread arrives | ending | it waits; the lock is still this process's |
//! | ending | the release is over | asking / idle | the first thread that waits asks |
//!
//! Invariant: nobody waits while the phase is idle, so no thread is ever forgotten.
//!
//! Demand is counted in units of capacity: a mutex is 1 of 1, a reader 1 of very many, a writer all of them,
//! a semaphore's permits n of k. A tenure has some capacity, its turns use parts of it, and a thread may be
//! let in when its demand fits what is left and nobody is ahead of it.

use std::collections::VecDeque;

use crate::clock::Time;
use crate::config::Terms;
use crate::core::fence::Fences;
use crate::script::GiveBack;

/// What one turn uses of its tenure's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) units: u32,
    pub(crate) of: u32,
}

impl Demand {
    /// One of one.
    pub(crate) const EXCLUSIVE: Demand = Demand { units: 1, of: 1 };
}

/// What a thread wants of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    pub(crate) demand: Demand,
    pub(crate) terms: Terms,
    /// Whether it waits for the lock, or only for an answer.
    pub(crate) waits: bool,
}

/// Whether a tenure's lease allows it to be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Held, renewed, on time.
    Good,
    /// Still exclusive, but not renewed, or late: the next thread takes it over by a script.
    Poor,
    Lost,
}

/// A grant, as the queue keeps it.
#[derive(Debug)]
pub(crate) struct Granted<T> {
    /// Tells this tenure from the queue's earlier ones.
    pub(crate) number: u64,
    pub(crate) tenure: T,
    pub(crate) terms: Terms,
    pub(crate) capacity: u32,
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
    /// It shares the tenure that this process has.
    Turn(Turn<T>),
    /// It only tried, and the lock is held.
    Held,
}

/// One thread's part in a tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn<T> {
    pub(crate) tenure: T,
    pub(crate) fence: u64,
    /// Which of the queue's tenures it belongs to.
    pub(crate) number: u64,
}

/// A thread that waited and now has its turn.
pub(crate) type Admitted<W, T> = (W, Turn<T>);

/// The threads that come in at one moment. Mostly it is one, so the first is kept apart from the allocation.
pub(crate) type Entrants<W, T> = (Option<Admitted<W, T>>, Vec<Admitted<W, T>>);

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
    /// First come, first served; tickets rise from front to back.
    waiting: VecDeque<Waiting<W>>,
    phase: Phase<T>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Waiting<W> {
    ticket: u64,
    wants: Wants,
    waiter: W,
}

#[derive(Debug)]
enum Phase<T> {
    Idle,
    Asking {
        /// Whether the last answer was that somebody holds the lock.
        held: bool,
    },
    Held(Held<T>),
    Ending,
}

#[derive(Debug)]
struct Held<T> {
    used: u32,
    granted: Granted<T>,
}

impl<W, T: Clone> Queue<W, T> {
    pub(crate) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            phase: Phase::Idle,
            next_ticket: 0,
        }
    }

    /// A thread wants the name. `waiter` is called only where it has to wait; `health` only where there is a
    /// tenure that it could share.
    pub(crate) fn arrive(
        &mut self,
        wants: Wants,
        now: Time,
        health: impl FnOnce(&T) -> Health,
        waiter: impl FnOnce() -> W,
    ) -> Arrival<T> {
        match &mut self.phase {
            Phase::Idle => {
                self.phase = Phase::Asking { held: false };
                return Arrival::Delegate;
            }
            Phase::Held(held) => {
                if self.waiting.is_empty()
                    && held.admits(&wants, now)
                    && health(&held.granted.tenure) == Health::Good
                    && let Some(turn) = held.admit(wants.demand)
                {
                    return Arrival::Turn(turn);
                }
                if !wants.waits {
                    return Arrival::Held;
                }
            }
            Phase::Asking { held: true } | Phase::Ending if !wants.waits => return Arrival::Held,
            Phase::Asking { .. } | Phase::Ending => {}
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.push_back(Waiting {
            ticket,
            wants,
            waiter: waiter(),
        });
        Arrival::Queued(ticket)
    }

    /// A waiting thread gives up. False where it waits no longer: a turn or a task is on its way to it.
    pub(crate) fn leave(&mut self, ticket: u64) -> bool {
        match self.waiting.binary_search_by_key(&ticket, |w| w.ticket) {
            Ok(index) => {
                self.waiting.remove(index);
                true
            }
            Err(_) => false,
        }
    }

    /// Whether threads wait here that a grant would be passed on to.
    pub(crate) fn is_crowded(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether nothing is held, asked or waited for.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The tenure that this process has now.
    pub(crate) fn tenure(&self) -> Option<&T> {
        match &self.phase {
            Phase::Held(held) => Some(&held.granted.tenure),
            _ => None,
        }
    }

    /// The delegate was told that the lock is held. Returns the threads that wait for no more than that.
    pub(crate) fn answered_held(&mut self) -> Vec<W> {
        if let Phase::Asking { held } = &mut self.phase {
            *held = true;
        }
        self.take_tries()
    }

    /// The delegate could not ask: what Redis last said is not what it would say now.
    pub(crate) fn not_answered(&mut self) {
        if let Phase::Asking { held } = &mut self.phase {
            *held = false;
        }
    }

    /// The delegate was granted the lock. Returns its turn, those of the threads that fit in beside it, and the
    /// threads that only tried and now know that it is held.
    pub(crate) fn granted(
        &mut self,
        demand: Demand,
        granted: Granted<T>,
        now: Time,
    ) -> (Turn<T>, Vec<Admitted<W, T>>, Vec<W>) {
        let mut held = Held { used: 0, granted };
        let turn = held
            .admit(demand)
            .expect("a grant holds at least the fence of the turn that asked for it");
        self.phase = Phase::Held(held);
        let (first, rest) = self.admit_waiting(now);
        (
            turn,
            first.into_iter().chain(rest).collect(),
            self.take_tries(),
        )
    }

    /// The delegate gives up. The next thread, if any, carries its attempt on, and knows what it was told.
    pub(crate) fn delegate_left(&mut self) -> Option<W> {
        let Phase::Asking { held } = self.phase else {
            debug_assert!(false, "only a delegate leaves");
            return None;
        };
        self.next_delegate(held)
    }

    /// The delegate failed in a way that holds for all. Returns everybody behind it.
    pub(crate) fn failed(&mut self) -> Vec<W> {
        debug_assert!(matches!(self.phase, Phase::Asking { .. }));
        self.phase = Phase::Idle;
        self.waiting.drain(..).map(|w| w.waiter).collect()
    }

    /// Everybody who waits is to be told that the manager is closed.
    pub(crate) fn close(&mut self) -> Vec<W> {
        self.waiting.drain(..).map(|w| w.waiter).collect()
    }

    /// A turn of tenure `number` has ended.
    pub(crate) fn finish(
        &mut self,
        number: u64,
        demand: Demand,
        now: Time,
        health: Health,
    ) -> Finish<W, T> {
        let Phase::Held(held) = &mut self.phase else {
            return Finish::Stale;
        };
        if held.granted.number != number {
            return Finish::Stale;
        }
        held.used -= demand.units;
        let used = held.used;
        let give_back = held.granted.fences.give_back();
        match health {
            Health::Lost => return Finish::Lost(self.next_delegate(false)),
            Health::Good => {
                let entrants = self.admit_waiting(now);
                if entrants.0.is_some() || used > 0 {
                    return Finish::Passed(entrants);
                }
            }
            Health::Poor if used > 0 => return Finish::Passed((None, Vec::new())),
            Health::Poor => {}
        }
        // Until Redis says otherwise, this process holds the lock: a try need not ask.
        if let Some(next) = self.next_delegate(true) {
            return Finish::TakeOver(next, give_back);
        }
        self.phase = Phase::Ending;
        Finish::Release(give_back)
    }

    /// The lease of tenure `number` was lost. Returns the thread that asks afresh, if that was news and
    /// somebody waits.
    pub(crate) fn lost(&mut self, number: u64) -> Option<W> {
        match &self.phase {
            Phase::Held(held) if held.granted.number == number => self.next_delegate(false),
            _ => None,
        }
    }

    /// The release is over. Returns the thread that asks next.
    pub(crate) fn ended(&mut self) -> Option<W> {
        debug_assert!(matches!(self.phase, Phase::Ending));
        self.next_delegate(false)
    }

    fn next_delegate(&mut self, held: bool) -> Option<W> {
        let next = self.waiting.pop_front();
        self.phase = match next {
            Some(_) => Phase::Asking { held },
            None => Phase::Idle,
        };
        next.map(|w| w.waiter)
    }

    /// Takes out the threads that wait for an answer only. There are none but while the first is awaited.
    fn take_tries(&mut self) -> Vec<W> {
        if self.waiting.iter().all(|w| w.wants.waits) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.waiting);
        let (tries, waits): (VecDeque<_>, _) = all.into_iter().partition(|w| !w.wants.waits);
        self.waiting = waits;
        tries.into_iter().map(|w| w.waiter).collect()
    }

    /// Lets in whoever is first and fits, until somebody does not.
    fn admit_waiting(&mut self, now: Time) -> Entrants<W, T> {
        let (mut first, mut rest) = (None, Vec::new());
        let Phase::Held(held) = &mut self.phase else {
            return (first, rest);
        };
        while let Some(next) = self.waiting.front()
            && held.admits(&next.wants, now)
            && let Some(turn) = held.admit(next.wants.demand)
            && let Some(next) = self.waiting.pop_front()
        {
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

impl<T: Clone> Held<T> {
    fn admits(&self, wants: &Wants, now: Time) -> bool {
        wants.terms == self.granted.terms
            && now < self.granted.quantum_over
            && wants.demand.units <= self.granted.capacity - self.used
    }

    fn admit(&mut self, demand: Demand) -> Option<Turn<T>> {
        let fence = self.granted.fences.take()?;
        self.used += demand.units;
        Some(Turn {
            tenure: self.granted.tenure.clone(),
            fence,
            number: self.granted.number,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const TERMS: Terms = Terms {
        lease: Duration::from_secs(30),
        renew: true,
    };

    fn wants(units: u32, waits: bool) -> Wants {
        Wants {
            demand: Demand { units, of: 4 },
            terms: TERMS,
            waits,
        }
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn grant(tenure: u32, capacity: u32, fences: Fences, quantum_over: Time) -> Granted<u32> {
        Granted {
            number: u64::from(tenure),
            tenure,
            terms: TERMS,
            capacity,
            fences,
            quantum_over,
        }
    }

    #[test]
    fn a_tenure_passes_until_its_quantum_is_over() {
        let mut queue = Queue::new();
        let exclusive = Wants {
            demand: Demand::EXCLUSIVE,
            terms: TERMS,
            waits: true,
        };
        let arrive = |queue: &mut Queue<&str, u32>, who| {
            queue.arrive(exclusive, at(0), |_| Health::Good, || who)
        };
        assert!(matches!(arrive(&mut queue, "a"), Arrival::Delegate));
        assert!(matches!(arrive(&mut queue, "b"), Arrival::Queued(0)));
        assert!(matches!(arrive(&mut queue, "c"), Arrival::Queued(1)));
        let (turn, beside, _) = queue.granted(
            Demand::EXCLUSIVE,
            grant(9, 1, Fences::new(100, 10), at(50)),
            at(0),
        );
        assert_eq!((turn.fence, beside.len()), (100, 0));
        let Finish::Passed((Some(("b", turn)), _)) =
            queue.finish(turn.number, Demand::EXCLUSIVE, at(49), Health::Good)
        else {
            panic!("not passed on");
        };
        assert_eq!(turn.fence, 101);
        let Finish::TakeOver("c", Some(back)) =
            queue.finish(turn.number, Demand::EXCLUSIVE, at(50), Health::Good)
        else {
            panic!("no take-over at the end of the quantum");
        };
        assert_eq!(
            back,
            GiveBack {
                used: 101,
                last: 109
            }
        );
    }

    #[test]
    fn other_terms_take_over_instead_of_being_passed_to() {
        let mut queue: Queue<&str, u32> = Queue::new();
        let mut other = wants(1, true);
        queue.arrive(other, at(0), |_| Health::Good, || "a");
        other.terms.lease = Duration::from_secs(31);
        queue.arrive(other, at(0), |_| Health::Good, || "b");
        let one = Demand { units: 1, of: 4 };
        let (turn, ..) = queue.granted(one, grant(1, 4, Fences::new(1, 9), at(50)), at(0));
        assert!(matches!(
            queue.finish(turn.number, one, at(1), Health::Good),
            Finish::TakeOver("b", _)
        ));
    }

    /// One step of a random history.
    #[derive(Clone, Debug)]
    enum Act {
        Arrive(u32, bool),
        Leave(usize),
        Held,
        NotAnswered,
        Grant(u64),
        GiveUp,
        Fail,
        Finish(usize, Health),
        Lose,
        Released,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            5 => (prop_oneof![Just(1u32), Just(4)], any::<bool>()).prop_map(|(u, w)| Act::Arrive(u, w)),
            1 => any::<usize>().prop_map(Act::Leave),
            2 => Just(Act::Held),
            1 => Just(Act::NotAnswered),
            4 => (1u64..6).prop_map(Act::Grant),
            1 => Just(Act::GiveUp),
            1 => Just(Act::Fail),
            6 => (any::<usize>(), prop_oneof![
                8 => Just(Health::Good), 1 => Just(Health::Poor), 1 => Just(Health::Lost),
            ]).prop_map(|(n, h)| Act::Finish(n, h)),
            1 => Just(Act::Lose),
            3 => Just(Act::Released),
        ]
    }

    /// The plain model: who waits (in order), who asks, which turns are alive, whether a release is under way.
    #[derive(Debug, Default)]
    struct Model {
        waiting: Vec<(u64, u32, bool, u64)>,
        asking: Option<(u32, bool)>,
        tenure: Option<u32>,
        turns: Vec<(Turn<u32>, u32)>,
        ending: bool,
        fence: u64,
    }

    impl Model {
        fn used(&self) -> u32 {
            self.turns.iter().map(|(_, units)| units).sum()
        }

        /// Takes the thread at the front, which must be the one that came first.
        fn serve(&mut self, who: u64) -> (u32, bool) {
            let (_, units, waits, first) = self.waiting.remove(0);
            assert_eq!(first, who, "served out of turn");
            (units, waits)
        }

        fn turn(&mut self, turn: Turn<u32>, units: u32) {
            assert!(turn.fence > self.fence, "a fence was repeated");
            self.fence = turn.fence;
            self.turns.push((turn, units));
            assert!(self.used() <= 4, "more was given out than there is");
        }

        fn admitted(&mut self, admitted: impl IntoIterator<Item = Admitted<u64, u32>>) {
            for (who, turn) in admitted {
                let (units, _) = self.serve(who);
                self.turn(turn, units);
            }
        }

        /// Everybody who only tried was answered.
        fn tried(&mut self, answered: &[u64]) {
            let tries = self.waiting.iter().filter(|w| !w.2).map(|w| w.3);
            assert_eq!(answered, tries.collect::<Vec<_>>());
            self.waiting.retain(|w| w.2);
        }

        fn delegate(&mut self, next: Option<u64>, held: bool) {
            assert_eq!(
                next.is_some(),
                !self.waiting.is_empty(),
                "somebody was forgotten"
            );
            self.asking = next.map(|who| (self.serve(who).0, held));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn it_agrees_with_the_plain_model(acts in proptest::collection::vec(act(), 1..80)) {
            let mut queue: Queue<u64, u32> = Queue::new();
            let mut model = Model::default();
            let now = at(0);
            for (who, act) in acts.into_iter().enumerate() {
                let who = who as u64;
                match act {
                    Act::Arrive(units, waits) => {
                        let fits = model.tenure.is_some()
                            && model.waiting.is_empty()
                            && units <= 4 - model.used();
                        match queue.arrive(wants(units, waits), now, |_| Health::Good, || who) {
                            Arrival::Delegate => {
                                prop_assert!(model.asking.is_none() && model.tenure.is_none());
                                prop_assert!(!model.ending && model.waiting.is_empty());
                                model.asking = Some((units, false));
                            }
                            Arrival::Turn(turn) => {
                                prop_assert!(fits);
                                model.turn(turn, units);
                            }
                            Arrival::Held => {
                                prop_assert!(!waits);
                                let told = model.asking.is_some_and(|(_, held)| held);
                                prop_assert!(model.tenure.is_some() || model.ending || told);
                            }
                            Arrival::Queued(ticket) => model.waiting.push((ticket, units, waits, who)),
                        }
                    }
                    Act::Leave(index) => {
                        if let Some(index) = index.checked_rem(model.waiting.len()) {
                            let (ticket, ..) = model.waiting.remove(index);
                            prop_assert!(queue.leave(ticket));
                            prop_assert!(!queue.leave(ticket));
                        }
                    }
                    Act::Held => {
                        if let Some((_, held)) = &mut model.asking {
                            *held = true;
                            model.tried(&queue.answered_held());
                        }
                    }
                    Act::NotAnswered => {
                        queue.not_answered();
                        if let Some((_, held)) = &mut model.asking {
                            *held = false;
                        }
                    }
                    Act::Grant(fences) => {
                        if let Some((units, _)) = model.asking.take() {
                            let block = Fences::new(model.fence + 10, fences);
                            let demand = Demand { units, of: 4 };
                            let granted = grant(who as u32, 4, block, at(1));
                            let (turn, beside, tried) = queue.granted(demand, granted, now);
                            model.tenure = Some(who as u32);
                            model.turn(turn, units);
                            model.admitted(beside);
                            model.tried(&tried);
                        }
                    }
                    Act::GiveUp => {
                        if let Some((_, held)) = model.asking.take() {
                            let next = queue.delegate_left();
                            model.delegate(next, held);
                        }
                    }
                    Act::Fail => {
                        if model.asking.take().is_some() {
                            let all: Vec<u64> = model.waiting.drain(..).map(|w| w.3).collect();
                            prop_assert_eq!(queue.failed(), all);
                        }
                    }
                    Act::Finish(index, health) => {
                        let Some(index) = index.checked_rem(model.turns.len()) else { continue };
                        let (turn, units) = model.turns.remove(index);
                        let stale = model.tenure != Some(turn.tenure);
                        let demand = Demand { units, of: 4 };
                        match queue.finish(turn.number, demand, now, health) {
                            Finish::Stale => prop_assert!(stale),
                            Finish::Passed((first, rest)) => {
                                model.admitted(first.into_iter().chain(rest));
                                prop_assert!(!model.turns.is_empty());
                            }
                            Finish::TakeOver(who, _) => {
                                prop_assert!(model.turns.is_empty());
                                model.tenure = None;
                                model.delegate(Some(who), true);
                            }
                            Finish::Release(_) => {
                                prop_assert!(model.turns.is_empty() && model.waiting.is_empty());
                                model.tenure = None;
                                model.ending = true;
                            }
                            Finish::Lost(next) => {
                                prop_assert_eq!(health, Health::Lost);
                                model.tenure = None;
                                model.turns.clear();
                                model.delegate(next, false);
                            }
                        }
                    }
                    Act::Lose => {
                        if let Some((turn, _)) = model.turns.first() {
                            let next = queue.lost(turn.number);
                            model.tenure = None;
                            model.turns.clear();
                            model.delegate(next, false);
                        }
                    }
                    Act::Released => {
                        if std::mem::take(&mut model.ending) {
                            let next = queue.ended();
                            model.delegate(next, false);
                        }
                    }
                }
                prop_assert_eq!(queue.tenure().copied(), model.tenure);
                let busy = model.asking.is_some() || model.tenure.is_some() || model.ending;
                prop_assert_eq!(queue.is_idle(), !busy);
                prop_assert!(busy || model.waiting.is_empty(), "a thread waits for nobody");
                prop_assert_eq!(queue.is_crowded(), !model.waiting.is_empty());
            }
        }
    }
}
