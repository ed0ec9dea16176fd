//! Tests of the queue: its rules one by one, and random histories beside a plain model.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::engine::lease::fence::Fences;
use crate::wire::GiveBack;

const TERMS: Terms = Terms::new(Duration::from_secs(30), true);

const ALONE: Sharing = Sharing {
    together: false,
    several: false,
};
const TOGETHER: Sharing = Sharing {
    together: true,
    several: true,
};
const BESIDE: Sharing = Sharing {
    together: false,
    several: true,
};

/// A lease that is only its number, and in the upper half one less than its units.
impl HeldLease for u32 {
    fn number(&self) -> u64 {
        (*self & 0xffff).into()
    }

    fn units(&self) -> u32 {
        (*self >> 16) + 1
    }

    fn terms(&self) -> Terms {
        TERMS
    }
}

fn params(units: u32, waits: bool) -> AcquireParams {
    AcquireParams {
        units,
        terms: TERMS,
        waits,
    }
}

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// Returns the lease of this number. Each of its holds takes up `units`.
fn lease(number: u32, units: u32) -> u32 {
    (units - 1) << 16 | number
}

fn grant(process_lease: u32, fences: Fences, quantum_end: Time) -> QueueLease<u32> {
    QueueLease::new(process_lease, fences, quantum_end)
}

#[test]
fn a_lease_is_handed_on_until_its_quantum_is_over() {
    let mut queue = Queue::new(ALONE);
    let arrive = |queue: &mut Queue<&'static str, u32>, who| {
        queue.arrive(params(1, true), at(0), |_| Health::Good, || who)
    };
    assert!(matches!(arrive(&mut queue, "a"), Arrival::Delegate));
    assert!(matches!(arrive(&mut queue, "b"), Arrival::Queued(_)));
    assert!(matches!(arrive(&mut queue, "c"), Arrival::Queued(_)));
    let begun = queue.begin(
        grant(9, Fences::new(100, 10), at(50)),
        GrantedTo::Delegate,
        at(0),
    );
    assert_eq!(begun.hold.fence, 100);
    assert!(begun.admitted.is_empty() && begun.next.is_none());
    let Finish::GoesOn(entrants) = queue.finish(9, at(49), Health::Good) else {
        panic!("not handed on");
    };
    let (who, hold) = &entrants[0];
    assert_eq!(*who, "b");
    assert_eq!(hold.fence, 101);
    let Finish::TakeOver("c", Some(back)) =
        queue.finish(hold.process_lease.number(), at(50), Health::Good)
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
fn a_thread_with_other_terms_takes_over() {
    let mut queue: Queue<&str, u32> = Queue::new(ALONE);
    let mut other = params(1, true);
    queue.arrive(other, at(0), |_| Health::Good, || "a");
    other.terms = Terms::new(Duration::from_secs(31), true);
    queue.arrive(other, at(0), |_| Health::Good, || "b");
    queue.begin(
        grant(1, Fences::new(1, 9), at(50)),
        GrantedTo::Delegate,
        at(0),
    );
    assert!(matches!(
        queue.finish(1, at(1), Health::Good),
        Finish::TakeOver("b", _)
    ));
}

#[test]
fn readers_sit_together_until_the_quantum_is_over_and_then_ask_anew() {
    let mut queue: Queue<u32, u32> = Queue::new(TOGETHER);
    let fences = || Fences::granted(crate::wire::LockKind::Read, 7, 1);
    let arrive = |queue: &mut Queue<u32, u32>, now| {
        queue.arrive(params(1, true), now, |_| Health::Good, || 0)
    };
    assert!(matches!(arrive(&mut queue, at(0)), Arrival::Delegate));
    assert!(matches!(arrive(&mut queue, at(0)), Arrival::Queued(_)));
    let begun = queue.begin(grant(1, fences(), at(50)), GrantedTo::Delegate, at(0));
    assert_eq!(begun.admitted.first().map(|(_, hold)| hold.fence), Some(7));
    assert!(matches!(arrive(&mut queue, at(49)), Arrival::Hold(_)));
    // The old lease goes on for the threads that are in it. No other thread joins them, or waits for their end.
    assert!(matches!(arrive(&mut queue, at(50)), Arrival::Delegate));
    queue.begin(grant(2, fences(), at(100)), GrantedTo::Delegate, at(50));
    assert!(matches!(arrive(&mut queue, at(51)), Arrival::Hold(hold) if hold.process_lease == 2));
    for _ in 0..2 {
        let finish = queue.finish(1, at(52), Health::Good);
        assert!(matches!(finish, Finish::GoesOn(entrants) if entrants.is_empty()));
    }
    assert!(matches!(
        queue.finish(1, at(52), Health::Good),
        Finish::Release(None)
    ));
}

#[test]
fn permits_are_asked_for_in_turn_and_handed_on_to_equal_requests() {
    let mut queue: Queue<&str, u32> = Queue::new(BESIDE);
    let arrive = |queue: &mut Queue<&'static str, u32>, units, who| {
        queue.arrive(params(units, true), at(0), |_| Health::Good, || who)
    };
    assert!(matches!(arrive(&mut queue, 1, "a"), Arrival::Delegate));
    assert!(matches!(arrive(&mut queue, 1, "b"), Arrival::Queued(_)));
    assert!(matches!(arrive(&mut queue, 2, "c"), Arrival::Queued(_)));
    assert!(matches!(arrive(&mut queue, 1, "d"), Arrival::Queued(_)));
    let begun = queue.begin(
        grant(1, Fences::new(1, 9), at(50)),
        GrantedTo::Delegate,
        at(0),
    );
    assert_eq!(begun.next, Some("b"), "there may be another");
    // While b asks, the lease of a goes to no thread: c is first and wants two units.
    assert!(matches!(
        queue.finish(1, at(1), Health::Good),
        Finish::Release(_)
    ));
    let begun = queue.begin(
        grant(2, Fences::new(10, 9), at(50)),
        GrantedTo::Delegate,
        at(2),
    );
    assert_eq!(begun.next, Some("c"));
    let Finish::GoesOn(entrants) = queue.finish(2, at(3), Health::Good) else {
        panic!("not handed on");
    };
    assert_eq!(entrants[0].0, "d");
}

/// Returns a queue whose delegate `a` asks for one unit, and the thread `b` waits behind it for as much.
fn asking(sharing: Sharing) -> Queue<&'static str, u32> {
    let mut queue = Queue::new(sharing);
    for who in ["a", "b"] {
        queue.arrive(params(1, true), at(0), |_| Health::Good, || who);
    }
    queue
}

/// The first of the threads that came in.
fn first_of(begun: &Begun<&'static str, u32>) -> Option<&'static str> {
    begun.admitted.first().map(|(who, _)| *who)
}

#[test]
fn a_queue_tells_what_its_threads_do() {
    let mut queue: Queue<&str, u32> = Queue::new(ALONE);
    assert!(queue.is_unused() && !queue.is_retired());
    assert_eq!((queue.process_lease(), queue.fence(9)), (None, None));
    queue.arrive(params(1, true), at(0), |_| Health::Good, || "a");
    assert!(queue.is_asking() && !queue.is_releasing());
    let granted = grant(9, Fences::new(100, 9), at(50));
    queue.begin(granted, GrantedTo::Delegate, at(0));
    assert!(!queue.is_asking() && !queue.is_releasing());
    assert_eq!(
        (queue.process_lease(), queue.fence(9)),
        (Some(&9), Some(100))
    );
    queue.finish(9, at(1), Health::Good);
    assert!(queue.is_releasing());
    assert_eq!((queue.process_lease(), queue.fence(9)), (None, None));
    assert_eq!(queue.ended(), None);
    assert!(!queue.is_releasing());
    queue.retire();
    assert!(queue.is_retired());

    // A process can have several permits.
    let mut queue = asking(BESIDE);
    let granted = grant(9, Fences::new(100, 9), at(50));
    queue.begin(granted, GrantedTo::Delegate, at(0));
    assert_eq!((queue.process_lease(), queue.fence(9)), (None, Some(100)));
}

#[test]
fn a_try_behind_an_adopted_lease_knows_that_the_lock_is_held() {
    let mut queue = asking(ALONE);
    let adopted = grant(8, Fences::new(90, 9), at(50));
    queue.begin(adopted, GrantedTo::OtherThread, at(0));
    let arrival = queue.arrive(params(1, false), at(0), |_| Health::Good, || "c");
    assert!(matches!(arrival, Arrival::Held), "{arrival:?}");
}

/// The delegate is before them, unless the kind allows several leases.
#[test]
fn an_adopted_lease_goes_on_in_memory_if_no_thread_asks() {
    let adopted = || grant(8, Fences::new(90, 9), at(50));
    let mut queue = asking(ALONE);
    let begun = queue.begin(adopted(), GrantedTo::OtherThread, at(0));
    assert_eq!((first_of(&begun), queue.waiting().count()), (None, 1));
    let finish = queue.finish(8, at(1), Health::Good);
    assert!(matches!(finish, Finish::Release(_)), "{finish:?}");

    let begun = asking(TOGETHER).begin(adopted(), GrantedTo::OtherThread, at(0));
    assert_eq!(first_of(&begun), Some("b"));

    let mut queue = Queue::new(ALONE);
    queue.begin(adopted(), GrantedTo::OtherThread, at(0));
    queue.arrive(params(1, true), at(0), |_| Health::Good, || "a");
    let finish = queue.finish(8, at(1), Health::Good);
    assert!(
        matches!(&finish, Finish::GoesOn(entrants) if entrants[0].0 == "a"),
        "{finish:?}"
    );
}

#[test]
fn a_good_lease_of_the_same_terms_is_offered_to_be_shared() {
    let mut queue = asking(TOGETHER);
    let granted = grant(
        9,
        Fences::granted(crate::wire::LockKind::Read, 7, 1),
        at(50),
    );
    queue.begin(granted, GrantedTo::Delegate, at(0));
    let other = Terms::new(Duration::from_secs(31), true);
    let offered = |units, terms, health| queue.shareable_lease(units, terms, |_| health).copied();
    assert_eq!(offered(1, TERMS, Health::Good), Some(9));
    assert_eq!(offered(2, TERMS, Health::Good), None);
    assert_eq!(offered(1, other, Health::Good), None);
    assert_eq!(offered(1, TERMS, Health::Poor), None);
    // After its quantum, a thread that asks may get it for another one.
    queue.arrive(params(1, true), at(50), |_| Health::Good, || "c");
    queue.arrive(params(1, true), at(50), |_| Health::Good, || "d");
    assert!(queue.is_asking());
    let begun = queue.reopened(9, at(51), at(90)).expect("it goes on");
    assert_eq!((begun.hold.fence, first_of(&begun)), (7, Some("d")));
    assert!(!queue.is_asking());
    assert!(queue.reopened(8, at(51), at(90)).is_none());
}

/// An answer says nothing to a thread that wants another number of units.
#[test]
fn the_answer_to_a_delegate_that_gives_up_goes_with_its_attempt() {
    for (units, is_answered) in [(1, true), (2, false)] {
        let mut queue: Queue<&str, u32> = Queue::new(BESIDE);
        queue.arrive(params(1, true), at(0), |_| Health::Good, || "a");
        queue.arrive(params(units, true), at(0), |_| Health::Good, || "b");
        queue.answered_held(true);
        assert_eq!(queue.delegate_left(), Some("b"));
        let arrival = queue.arrive(params(units, false), at(0), |_| Health::Good, || "c");
        assert_eq!(matches!(arrival, Arrival::Held), is_answered, "{arrival:?}");
    }
}

#[test]
fn nobody_asks_for_a_lock_that_is_kept_back_before_its_release() {
    let mut queue = asking(ALONE);
    let granted = grant(9, Fences::new(100, 9), at(50));
    queue.begin(granted, GrantedTo::Delegate, at(0));
    let finish = queue.finish(9, at(1), Health::KeptBack);
    assert!(matches!(finish, Finish::Release(_)), "{finish:?}");
    assert_eq!(queue.ended(), Some("b"));
}

/// One step of a random history.
#[derive(Clone, Debug)]
enum Act {
    Arrive(u32, bool),
    Leave(usize),
    Held(bool),
    NotAnswered,
    Grant(u64),
    Given(u64),
    GiveUp,
    Fail,
    TryFail,
    Finish(usize, Health),
    Lose,
    Released,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (prop_oneof![Just(1u32), Just(4)], any::<bool>()).prop_map(|(u, w)| Act::Arrive(u, w)),
        1 => any::<usize>().prop_map(Act::Leave),
        2 => any::<bool>().prop_map(Act::Held),
        1 => Just(Act::NotAnswered),
        4 => (1u64..6).prop_map(Act::Grant),
        1 => (1u64..6).prop_map(Act::Given),
        1 => Just(Act::GiveUp),
        1 => Just(Act::Fail),
        1 => Just(Act::TryFail),
        6 => (any::<usize>(), prop_oneof![
            8 => Just(Health::Good), 1 => Just(Health::Poor), 1 => Just(Health::Lost),
        ]).prop_map(|(n, h)| Act::Finish(n, h)),
        1 => Just(Act::Lose),
        3 => Just(Act::Released),
    ]
}

/// The plain model: the waiting threads in order, the delegate, the live leases and holds, and whether a release is
/// under way.
#[derive(Debug)]
struct Model {
    sharing: Sharing,
    waiting: Vec<(u32, bool, u64)>,
    asking: Option<(u32, DelegateReply)>,
    /// The leases, each with its units.
    process_leases: Vec<(u32, u32)>,
    /// The leases that go to no further thread.
    shut: Vec<u32>,
    holds: Vec<HoldOf<u32>>,
    is_releasing: bool,
    fence: u64,
}

impl Model {
    fn fits(&self, units: u32) -> bool {
        self.process_leases.iter().any(|(process_lease, of)| {
            let is_open = !self.shut.contains(process_lease);
            *of == units && is_open && self.taken(*process_lease) < self.sharing.most_holds()
        })
    }

    fn taken(&self, process_lease: u32) -> u32 {
        self.holds
            .iter()
            .filter(|hold| hold.process_lease == process_lease)
            .count() as u32
    }

    /// Takes the thread at the front, which must be the one that came first.
    fn serve(&mut self, who: u64) -> (u32, bool) {
        let (units, waits, first) = self.waiting.remove(0);
        assert_eq!(first, who, "served out of order");
        (units, waits)
    }

    fn hold(&mut self, hold: HoldOf<u32>, units: u32) {
        let repeats = |other: &HoldOf<u32>| other.fence == hold.fence;
        assert!(!self.holds.iter().any(repeats), "a fence was repeated");
        self.fence = self.fence.max(hold.fence);
        assert!(
            self.process_leases.contains(&(hold.process_lease, units)),
            "it does not fit"
        );
        assert!(
            self.taken(hold.process_lease) < self.sharing.most_holds(),
            "it is full"
        );
        self.holds.push(hold);
    }

    fn admitted(&mut self, admitted: impl IntoIterator<Item = Admitted<u64, u32>>) {
        for (who, hold) in admitted {
            assert!(
                !self.shut.contains(&hold.process_lease),
                "past the delegate"
            );
            let (units, _) = self.serve(who);
            self.hold(hold, units);
        }
    }

    /// Takes out the tries for `least` units or more, which must be those that were answered.
    fn tried(&mut self, answered: &[u64], least: u32) {
        let has_it = |w: &(u32, bool, u64)| !w.1 && w.0 >= least;
        let tries = self.waiting.iter().filter(|w| has_it(w)).map(|w| w.2);
        assert_eq!(answered, tries.collect::<Vec<_>>());
        self.waiting.retain(|w| !has_it(w));
    }

    /// Returns whether the last answer holds for a thread that wants `units`.
    fn told(&self, units: u32) -> bool {
        self.asking.is_some_and(|(asked, answer)| match answer {
            DelegateReply::None => false,
            DelegateReply::Held => units >= asked,
            DelegateReply::Queued => true,
        })
    }

    /// Returns whether this process holds the whole lock.
    fn is_held(&self) -> bool {
        !self.sharing.several && !self.process_leases.is_empty()
    }

    fn may_ask(&self) -> bool {
        self.asking.is_none() && !self.is_held() && !self.is_releasing
    }

    fn delegate(&mut self, next: Option<u64>, answer: DelegateReply) {
        let expected = self.may_ask() && !self.waiting.is_empty();
        assert_eq!(next.is_some(), expected, "somebody was forgotten");
        if let Some(who) = next {
            self.asking = Some((self.serve(who).0, answer));
        }
    }

    /// Begins a lease, with the holds and the tasks that the queue returned.
    fn begun(&mut self, begun: Begun<u64, u32>, process_lease: u32, units: u32) {
        self.process_leases.push((process_lease, units));
        self.hold(begun.hold, units);
        self.admitted(begun.admitted);
        self.delegate(begun.next, DelegateReply::None);
        if self.sharing.several {
            assert!(begun.tried.is_empty());
        } else {
            self.tried(&begun.tried, 0);
        }
    }

    fn over(&mut self, process_lease: u32) {
        self.process_leases
            .retain(|(other, _)| *other != process_lease);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn it_agrees_with_the_plain_model(
        sharing in prop_oneof![Just(ALONE), Just(TOGETHER), Just(BESIDE)],
        acts in proptest::collection::vec(act(), 1..80),
    ) {
        let mut queue: Queue<u64, u32> = Queue::new(sharing);
        let mut model = Model {
            sharing,
            waiting: Vec::new(),
            asking: None,
            process_leases: Vec::new(),
            shut: Vec::new(),
            holds: Vec::new(),
            is_releasing: false,
            fence: 0,
        };
        let now = at(0);
        for (who, act) in acts.into_iter().enumerate() {
            let who = who as u64;
            match act {
                Act::Arrive(units, waits) => {
                    let fits = model.waiting.is_empty() && model.fits(units);
                    match queue.arrive(params(units, waits), now, |_| Health::Good, || who) {
                        Arrival::Delegate => {
                            prop_assert!(model.may_ask() && model.waiting.is_empty());
                            model.asking = Some((units, DelegateReply::None));
                        }
                        Arrival::Hold(hold) => {
                            prop_assert!(fits);
                            model.hold(hold, units);
                        }
                        Arrival::Held => {
                            prop_assert!(!waits);
                            let own = model.asking.is_none() && !model.may_ask();
                            prop_assert!(model.told(units) || own || model.is_held());
                        }
                        Arrival::Queued(_) => {
                            prop_assert!(!model.may_ask(), "it waits for nobody");
                            prop_assert!(waits || !model.is_held(), "that was known");
                            model.waiting.push((units, waits, who));
                        }
                    }
                }
                Act::Leave(index) => {
                    if let Some(index) = index.checked_rem(model.waiting.len()) {
                        let (.., leaves) = model.waiting.remove(index);
                        prop_assert!(queue.leave(|who| *who == leaves));
                        prop_assert!(!queue.leave(|who| *who == leaves));
                    }
                }
                Act::Held(queued) => {
                    if let Some((units, answer)) = &mut model.asking {
                        *answer = if queued { DelegateReply::Queued } else { DelegateReply::Held };
                        let least = if queued { 0 } else { *units };
                        model.tried(&queue.answered_held(queued), least);
                    }
                }
                Act::NotAnswered => {
                    queue.not_answered();
                    if let Some((_, answer)) = &mut model.asking {
                        *answer = DelegateReply::None;
                    }
                }
                Act::Grant(fences) => {
                    if let Some((units, _)) = model.asking.take() {
                        let block = Fences::new(model.fence + 10, fences);
                        let lease = lease(who as u32, units);
                        let begun = queue.begin(grant(lease, block, at(1)), GrantedTo::Delegate, now);
                        model.begun(begun, lease, units);
                    }
                }
                Act::Given(fences) => {
                    let block = Fences::new(model.fence + 10, fences);
                    let begun = queue.begin(grant(who as u32, block, at(1)), GrantedTo::OtherThread, now);
                    if !sharing.several && model.asking.is_some() {
                        model.shut.push(who as u32);
                    }
                    model.begun(begun, who as u32, 1);
                }
                Act::GiveUp => {
                    if let Some((units, answer)) = model.asking.take() {
                        let next = queue.delegate_left();
                        let same = model.waiting.first().is_some_and(|w| w.0 == units);
                        model.delegate(next, if same { answer } else { DelegateReply::None });
                    }
                }
                Act::Fail => {
                    if model.asking.take().is_some() {
                        let all: Vec<u64> = model.waiting.drain(..).map(|w| w.2).collect();
                        prop_assert_eq!(queue.failed(), all);
                    }
                }
                Act::TryFail => {
                    if model.asking.take().is_some() {
                        let (tries, next) = queue.try_failed();
                        model.tried(&tries, 0);
                        model.delegate(next, DelegateReply::None);
                    }
                }
                Act::Finish(index, health) => {
                    let Some(index) = index.checked_rem(model.holds.len()) else { continue };
                    let hold = model.holds.remove(index);
                    let process_lease = hold.process_lease;
                    let stale = !model.process_leases.iter().any(|(other, _)| *other == process_lease);
                    let empty = model.taken(process_lease) == 0;
                    match queue.finish(process_lease.number(), now, health) {
                        Finish::Stale => prop_assert!(stale),
                        Finish::GoesOn(entrants) => {
                            model.admitted(entrants);
                            prop_assert!(model.taken(process_lease) > 0);
                        }
                        Finish::TakeOver(who, _) => {
                            prop_assert!(empty && !sharing.several);
                            model.over(process_lease);
                            model.delegate(Some(who), DelegateReply::Held);
                        }
                        Finish::Release(_) => {
                            model.over(process_lease);
                            prop_assert!(empty && (model.waiting.is_empty() || !model.may_ask()));
                            model.is_releasing = !sharing.several;
                        }
                        Finish::Lost(next) => {
                            prop_assert_eq!(health, Health::Lost);
                            model.over(process_lease);
                            model.delegate(next, DelegateReply::None);
                        }
                    }
                }
                Act::Lose => {
                    if let Some((process_lease, _)) = model.process_leases.first().copied() {
                        let next = queue.lost(process_lease.number());
                        model.over(process_lease);
                        model.delegate(next, DelegateReply::None);
                    }
                }
                Act::Released => {
                    if std::mem::take(&mut model.is_releasing) {
                        let next = queue.ended();
                        model.delegate(next, DelegateReply::None);
                    }
                }
            }
            let mut process_leases: Vec<_> = queue.process_leases().copied().collect();
            process_leases.sort_unstable_by_key(HeldLease::number);
            prop_assert!(process_leases.into_iter().eq(model.process_leases.iter().map(|(process_lease, _)| *process_lease)));
            let busy = model.asking.is_some() || !model.process_leases.is_empty() || model.is_releasing;
            prop_assert_eq!(queue.is_unused(), !busy);
            prop_assert!(!model.may_ask() || model.waiting.is_empty(), "a thread waits for nobody");
            prop_assert_eq!(queue.is_crowded(), !model.waiting.is_empty());
        }
    }
}
