//! Tests of the single steps of an attempt, each with the answer that causes it.

use super::patience::UNCONFIRMED_PAUSE;
use super::*;
use crate::config::{Options, Settings};
use crate::error::Outcome;
use crate::sys::{LONGEST_SLEEP, Machine, Rng};
use crate::wire::GiveBack;

mod messages;
mod quorum;

const LEASE: Duration = Duration::from_secs(30);

/// The longest pickup window of a manager with the default time limits.
const LONGEST_WINDOW: Duration = Duration::from_secs(2);

const START: Time = Time::from_nanos(1 << 50);

/// How many fences are reserved for a lease that will go to other threads.
const FENCE_BLOCK: u64 = 100;

/// An attempt, and the facts about the present that its thread sees.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact that tests set by itself"
)]
struct Scene {
    rng: Arc<dyn Rng>,
    now: Time,
    wait: Wait,
    subscription: SubscriptionState,
    failed_over_at: Time,
    lease: Duration,
    busy_threads: u32,
    waits_through_outages: bool,
    fencing: bool,
    grants_by_message: bool,
    round_trip: Duration,
    shareable_owner: Option<Arc<str>>,
    crowded: bool,
    attempt: Attempt,
    /// The last request.
    asked: Option<Ask>,
}

impl Scene {
    fn new(wait: Wait) -> Self {
        let rng = Arc::new(Machine::default());
        Self {
            attempt: Attempt::new(&*rng, "l", 1, false),
            rng,
            now: START,
            wait,
            subscription: SubscriptionState::Ready("c".into()),
            failed_over_at: Time::from_nanos(0),
            lease: LEASE,
            busy_threads: 1,
            waits_through_outages: false,
            fencing: true,
            grants_by_message: false,
            round_trip: Duration::ZERO,
            shareable_owner: None,
            crowded: false,
            asked: None,
        }
    }

    fn waiting() -> Self {
        Self::new(Wait::Forever)
    }

    fn step(&mut self, input: Input) -> Step {
        let step = self.with_context(|attempt, context| attempt.step(input, context));
        if let Step::Send(ask) = &step {
            self.asked = Some(ask.clone());
        }
        step
    }

    fn asked(&self) -> Ask {
        self.asked.clone().expect("a request was sent")
    }

    /// Calls `action` with the attempt and the facts.
    fn with_context<T>(&mut self, action: impl FnOnce(&mut Attempt, &Context<'_>) -> T) -> T {
        let options = Options {
            lease: self.lease,
            fencing: self.fencing,
            ..Settings::default().options
        };
        let context = Context {
            arrived: START,
            terms: Settings::default()
                .checked_terms(&options)
                .expect("they fit"),
            wait: self.wait,
            pickup_window: lifetime::pickup_window(self.lease, LONGEST_WINDOW / 2),
            grants_by_message: self.grants_by_message,
            outage_limit: Duration::from_mins(1),
            waits_through_outages: self.waits_through_outages,
            tail: "l",
            rng: &*self.rng,
            now: self.now,
            subscription: self.subscription.clone(),
            failed_over_at: self.failed_over_at,
            round_trip: self.round_trip,
            fence_block: FENCE_BLOCK,
            shareable_owner: self.shareable_owner.clone(),
            crowded: self.crowded,
            busy_threads: self.busy_threads,
        };
        action(&mut self.attempt, &context)
    }

    fn send(&mut self, input: Input) -> Ask {
        match self.step(input) {
            Step::Send(ask) => ask,
            other => panic!("{other:?}"),
        }
    }

    fn replied(&mut self, reply: Reply) -> Step {
        let sent = self.now;
        self.step(Input::Replied {
            ask: self.asked(),
            sent,
            reply,
            resent: false,
        })
    }

    fn failed(&mut self, kind: FailureKind, outcome: Outcome) -> Step {
        let sent = self.now;
        let failure = Failure::plain(kind, outcome, "a fault of the test");
        self.step(Input::Failed {
            ask: self.asked(),
            sent,
            failure,
            cut_short: false,
        })
    }
}

fn held(ttl: Option<Duration>) -> Reply {
    Reply::Held {
        ttl,
        holder: "lh1:other:l".into(),
        handed_over: false,
    }
}

const GRANTED: Reply = Reply::Granted {
    fence: 7,
    count: None,
    rest: Vec::new(),
    contended: false,
};

fn sleep_of(step: Step, now: Time) -> Duration {
    match step {
        Step::Sleep(until) => until.since(now),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_free_lock_is_one_request_with_one_fence() {
    let mut scene = Scene::waiting();
    let ask = scene.send(Input::Go);
    assert_eq!((ask.fences, ask.takes_free), (1, true));
    let Step::Granted(grant) = scene.replied(GRANTED) else {
        panic!("not granted");
    };
    assert_eq!(
        (grant.fence, grant.contended, grant.uncertain_until),
        (7, false, None)
    );
    assert_eq!(grant.deadline, valid_until(START, LEASE));
    assert_eq!(scene.attempt.abandon(), []);
}

/// A contended lock is likely to be contended again.
#[test]
fn a_lease_that_will_go_to_other_threads_has_many_fences() {
    let fences = |scene: &mut Scene| scene.send(Input::Go).fences;
    let mut crowded = Scene::waiting();
    crowded.crowded = true;
    assert_eq!(fences(&mut crowded), FENCE_BLOCK);
    let mut was_held = Scene::waiting();
    assert_eq!(fences(&mut was_held), 1);
    was_held.replied(held(None));
    assert_eq!(fences(&mut was_held), FENCE_BLOCK);
    let mut unfenced = Scene::waiting();
    (unfenced.fencing, unfenced.crowded) = (false, true);
    assert_eq!(fences(&mut unfenced), 0);
}

#[test]
fn only_an_owner_outside_the_queue_offers_a_lease_to_be_shared() {
    let offered: Arc<str> = "lh1:mine:l".into();
    let mut scene = Scene::waiting();
    scene.shareable_owner = Some(Arc::clone(&offered));
    let ask = scene.send(Input::Go);
    assert_eq!(ask.shareable_owner, Some(offered));
    let step = scene.replied(Reply::Shared);
    assert!(matches!(step, Step::Shared), "{step:?}");
    scene.send(Input::Go);
    scene.replied(held(None));
    let ask = scene.send(Input::Woken);
    assert_eq!(ask.shareable_owner, None);
}

/// A lease that is shared says nothing about an earlier request.
#[test]
fn an_owner_that_shares_a_lease_stays_uncertain() {
    let mut scene = Scene::waiting();
    scene.subscription = SubscriptionState::NotYet;
    scene.shareable_owner = Some("lh1:mine:l".into());
    scene.waits_through_outages = true;
    scene.send(Input::Go);
    scene.failed(FailureKind::Unavailable, Outcome::Unknown);
    scene.send(Input::Woken);
    let step = scene.replied(Reply::Shared);
    assert!(matches!(step, Step::Shared), "{step:?}");
    let left = scene.attempt.abandon();
    assert_eq!(left[0].uncertain_until, Some(START + LEASE));
}

#[test]
fn a_thread_carries_an_attempt_on_that_has_its_units_and_its_tail() {
    let attempt = Attempt::new(&Machine::default(), "l", 2, false);
    assert!(attempt.is_for(2, "l"));
    assert!(!attempt.is_for(1, "l") && !attempt.is_for(2, "m") && !attempt.is_for(1, "m"));
}

#[test]
fn a_wait_has_begun_for_a_thread_that_has_waited_behind_others() {
    let scene = Scene::waiting();
    assert!(!scene.attempt.waits());
    assert!(Attempt::new(&*scene.rng, "l", 1, true).waits());
}

/// Another thread may carry the attempt on.
#[test]
fn a_request_that_its_thread_has_left_is_of_unknown_outcome() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    let failure = Failure::unknown(FailureKind::Unavailable, "the thread has left");
    let sent = scene.now;
    let ask = scene.asked();
    scene.with_context(|attempt, context| attempt.failed(&ask, sent, &failure, context));
    let owner = Arc::clone(scene.attempt.owner());
    assert_eq!(scene.send(Input::Go).owner, owner);
    let left = scene.attempt.abandon();
    assert_eq!(left[0].uncertain_until, Some(START + LEASE));
}

#[test]
fn a_lease_that_was_not_offered_cannot_be_shared() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    let Step::Failed(failure) = scene.replied(Reply::Shared) else {
        panic!("the lease was shared");
    };
    assert_eq!(failure.kind, FailureKind::Protocol);
}

#[test]
fn a_try_never_queues_and_ends_with_the_answer() {
    let mut scene = Scene::new(Wait::Try);
    let ask = scene.send(Input::Go);
    assert_eq!(ask.channel, None);
    let step = scene.replied(held(None));
    assert!(matches!(step, Step::TimeOver(None)));
    assert_eq!(scene.attempt.abandon(), []);
}

#[test]
fn a_wait_queues_only_after_the_first_try_to_subscribe() {
    let mut scene = Scene::waiting();
    scene.subscription = SubscriptionState::NotYet;
    let ask = scene.send(Input::Go);
    assert_eq!(ask.channel, None);
    assert!(sleep_of(scene.replied(held(None)), START) <= poll::SUBSCRIBING);
    scene.send(Input::Woken);
    // Confirmed while the request was under way.
    scene.subscription = SubscriptionState::Ready("c".into());
    assert!(sleep_of(scene.replied(held(None)), START) <= AFTER_EXPIRY);
    let ask = scene.send(Input::Woken);
    assert_eq!((ask.channel.as_deref(), ask.takes_free), (Some("c"), true));
    scene.replied(held(None));
    // Queued under its channel: the queue goes first now.
    scene.subscription = SubscriptionState::NoSubscription;
    let ask = scene.send(Input::Woken);
    assert_eq!((ask.channel.as_deref(), ask.takes_free), (Some(""), false));
    assert!(sleep_of(scene.replied(held(None)), START) <= poll::NO_SUBSCRIPTION);
}

/// Each state of the subscription before a request and after it: only a message to the named channel wakes it.
#[test]
fn a_request_that_named_the_wrong_channel_is_followed_by_another_at_once() {
    let states = [
        SubscriptionState::Ready("c".into()),
        SubscriptionState::NoSubscription,
    ];
    for before in &states {
        for after in &states {
            let mut scene = Scene::waiting();
            scene.subscription = before.clone();
            scene.send(Input::Go);
            scene.subscription = after.clone();
            let slept = sleep_of(scene.replied(held(None)), START);
            assert_eq!(slept <= AFTER_EXPIRY, before != after, "{slept:?}");
        }
    }
}

/// The process may have been handed the lock, for its pickup window, and the message may be lost or never sent.
#[test]
fn polls_come_within_the_pickup_window() {
    for (lease_ms, window_ms) in [
        (10, 250),
        (250, 250),
        (600, 600),
        (1000, 1000),
        (30_000, 1000),
    ] {
        let window = Duration::from_millis(window_ms);
        for subscription in [
            SubscriptionState::Ready("c".into()),
            SubscriptionState::NoSubscription,
        ] {
            let mut scene = Scene::waiting();
            scene.lease = Duration::from_millis(lease_ms);
            scene.subscription = subscription.clone();
            scene.send(Input::Go);
            let slept = sleep_of(scene.replied(held(None)), START);
            let most = match subscription {
                SubscriptionState::NoSubscription => window / 3,
                _ => window * 19 / 20,
            };
            assert!(slept <= most, "{lease_ms} ms, {subscription:?}: {slept:?}");
        }
    }
}

/// No message announces the release. Many delegates share the number of polls that the process may send.
#[test]
fn a_holder_of_another_client_is_polled_more_often() {
    for (busy_threads, least_ms, most_ms) in [
        (1, 50, 100),
        (50, 50, 100),
        (200, 200, 400),
        (5000, 700, 950),
    ] {
        for holder in ["6e0b1c", "", "lh2:other"] {
            let mut scene = Scene::waiting();
            scene.busy_threads = busy_threads;
            scene.send(Input::Go);
            let holder = holder.into();
            let slept = sleep_of(
                scene.replied(Reply::Held {
                    ttl: None,
                    holder,
                    handed_over: false,
                }),
                START,
            );
            let bounds = Duration::from_millis(least_ms)..=Duration::from_millis(most_ms);
            assert!(bounds.contains(&slept), "{busy_threads}: {slept:?}");
        }
    }
}

#[test]
fn a_sleep_ends_at_the_reported_expiry_and_is_never_of_no_length() {
    for (ttl, least, most) in [
        (None, 700, 950),
        (Some(60_000), 700, 950),
        (Some(100), 100, 110),
        (Some(0), 1, 10),
    ] {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        let slept = sleep_of(scene.replied(held(ttl.map(Duration::from_millis))), START);
        let bounds = Duration::from_millis(least)..=Duration::from_millis(most);
        assert!(bounds.contains(&slept), "{ttl:?}: {slept:?}");
    }
}

#[test]
fn the_first_error_is_returned_and_later_ones_are_waited_out() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    let step = scene.failed(FailureKind::Unavailable, Outcome::Unknown);
    assert!(matches!(step, Step::Failed(_)));
    // Redis may still execute the request.
    assert_eq!(
        scene.attempt.abandon()[0].uncertain_until,
        Some(START + LEASE)
    );

    // A slot that moves is an answer, and the move ends.
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    let step = scene.failed(FailureKind::SlotMoves, Outcome::NotExecuted);
    assert!(matches!(step, Step::Sleep(_)), "{step:?}");

    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    scene.replied(held(None));
    let owner = Arc::clone(scene.attempt.owner());
    scene.send(Input::Woken);
    let mut slept = Duration::ZERO;
    let failure = loop {
        match scene.failed(FailureKind::Unavailable, Outcome::Unknown) {
            Step::Sleep(until) => {
                assert!(until > scene.now && until.since(scene.now) <= LONGEST_SLEEP);
                slept += until.since(scene.now);
                scene.now = until;
            }
            Step::Failed(failure) => break failure,
            other => panic!("{other:?}"),
        }
        // The owner is the same, so it keeps its place in the queue.
        match scene.step(Input::Woken) {
            Step::Send(ask) => assert_eq!(ask.owner, owner),
            Step::Failed(failure) => break failure,
            other => panic!("{other:?}"),
        }
    };
    assert!(failure.is_transient());
    assert!(
        slept >= Duration::from_mins(1) && slept < Duration::from_secs(65),
        "{slept:?}"
    );
}

#[test]
fn a_request_cut_short_by_one_threads_deadline_fails_no_other() {
    let mut scene = Scene::new(Wait::Until(START + Duration::from_millis(1)));
    scene.send(Input::Go);
    scene.now = START + Duration::from_millis(100);
    let step = scene.failed(FailureKind::Unavailable, Outcome::Unknown);
    assert!(matches!(step, Step::TimeOver(Some(_))));
}

#[test]
fn a_permanent_failure_ends_a_wait() {
    for kind in [
        FailureKind::Denied,
        FailureKind::WrongType,
        FailureKind::Protocol,
    ] {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        scene.replied(held(None));
        scene.send(Input::Woken);
        let step = scene.failed(kind, Outcome::NotExecuted);
        assert!(matches!(step, Step::Failed(failure) if failure.kind == kind));
    }
}

#[test]
fn a_deadline_during_an_outage_is_an_error_for_this_thread_alone() {
    let mut scene = Scene::new(Wait::Until(START + Duration::from_secs(1)));
    scene.send(Input::Go);
    scene.replied(held(None));
    scene.send(Input::Woken);
    scene.now = START + Duration::from_secs(1);
    let step = scene.failed(FailureKind::Unavailable, Outcome::NotExecuted);
    assert!(matches!(step, Step::TimeOver(Some(_))));
    // The next thread continues the attempt, under the same owner.
    let owner = Arc::clone(scene.attempt.owner());
    scene.wait = Wait::Forever;
    assert_eq!(scene.send(Input::Go).owner, owner);
}

#[test]
fn a_grant_after_an_unknown_outcome_stays_uncertain() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    scene.replied(held(None));
    scene.send(Input::Woken);
    scene.failed(FailureKind::Unavailable, Outcome::Unknown);
    scene.now = START + Duration::from_secs(1);
    scene.send(Input::Woken);
    let Step::Granted(grant) = scene.replied(GRANTED) else {
        panic!("not granted");
    };
    assert_eq!(grant.uncertain_until, Some(START + LEASE));
    assert_eq!(grant.key_gone_at, Some(START + LEASE * 2));
    assert!(grant.contended);
}

#[test]
fn a_grant_is_certain_once_no_earlier_request_can_come() {
    let mut scene = Scene::waiting();
    scene.waits_through_outages = true;
    scene.send(Input::Go);
    scene.failed(FailureKind::Unavailable, Outcome::Unknown);
    scene.now = START + LEASE;
    scene.send(Input::Woken);
    let Step::Granted(grant) = scene.replied(GRANTED) else {
        panic!("not granted");
    };
    assert_eq!(grant.uncertain_until, None);
}

#[test]
fn a_grant_by_a_request_that_was_sent_twice_stays_uncertain() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    let step = scene.step(Input::Replied {
        ask: scene.asked(),
        sent: START,
        reply: GRANTED,
        resent: true,
    });
    let Step::Granted(grant) = step else {
        panic!("not granted");
    };
    assert_eq!(grant.uncertain_until, Some(START + LEASE));
}

/// A guard holds the lock under this owner, so a withdrawal would end the lock under the guard.
#[test]
fn an_attempt_that_was_granted_leaves_nothing_behind() {
    for resent in [false, true] {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        let step = scene.step(Input::Replied {
            ask: scene.asked(),
            sent: START,
            reply: GRANTED,
            resent,
        });
        assert!(matches!(step, Step::Granted(_)), "{step:?}");
        assert_eq!(scene.attempt.abandon(), [], "resent: {resent}");
    }
}

#[test]
fn a_grant_past_its_validity_is_not_used() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    scene.replied(held(None));
    let owner = Arc::clone(scene.attempt.owner());
    scene.send(Input::Woken);
    let sent = scene.now;
    scene.now = valid_until(sent, LEASE);
    let step = scene.step(Input::Replied {
        ask: scene.asked(),
        sent,
        reply: GRANTED,
        resent: false,
    });
    assert!(matches!(step, Step::Sleep(_)));
    let left = scene.attempt.ended_owners();
    assert_eq!(left[0].owner, owner);
    assert_eq!(left[0].uncertain_until, Some(sent + LEASE));
    assert_ne!(*scene.attempt.owner(), owner);
}

const UNCONFIRMED: FailureKind = FailureKind::NotReplicated {
    wanted: 2,
    confirmed: 1,
};

/// The answer to a grant that too few replicas confirmed.
fn unconfirmed(scene: &mut Scene) -> Step {
    let failure = Failure::plain(UNCONFIRMED, Outcome::PartlyExecuted, "1 of 2");
    let sent = scene.now;
    scene.step(Input::Failed {
        ask: scene.asked(),
        sent,
        failure,
        cut_short: false,
    })
}

/// One withdrawal is enough: Redis has executed the request, and will not execute it again.
#[test]
fn a_grant_that_too_few_replicas_have_is_withdrawn_before_the_next_try() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    scene.replied(held(None));
    for _ in 0..3 {
        let owner = Arc::clone(scene.attempt.owner());
        scene.send(Input::Woken);
        let Step::Sleep(until) = unconfirmed(&mut scene) else {
            panic!("it does not go on");
        };
        assert!(until.since(scene.now) >= UNCONFIRMED_PAUSE * 3 / 4);
        let left = scene.attempt.ended_owners();
        assert_eq!((left.len(), &left[0].owner), (1, &owner));
        assert_eq!(left[0].uncertain_until, Some(scene.now));
        assert_ne!(*scene.attempt.owner(), owner);
        scene.now = until;
        // The withdrawal is on its way, so "held" is no answer yet.
        scene.send(Input::Woken);
        let ttl = None;
        let step = scene.replied(Reply::Held {
            ttl,
            holder: owner,
            handed_over: false,
        });
        assert!(matches!(step, Step::Sleep(_)), "{step:?}");
        // Another process holds the lock for a while.
        scene.send(Input::Woken);
        scene.replied(held(None));
    }
    // Other holders that come and go do not show that the replicas are back.
    scene.now = scene.now + Duration::from_secs(40);
    scene.send(Input::Woken);
    assert!(matches!(unconfirmed(&mut scene), Step::Sleep(_)));
    scene.send(Input::Woken);
    scene.replied(held(None));
    scene.now = scene.now + Duration::from_secs(40);
    scene.send(Input::Woken);
    let Step::Failed(failure) = unconfirmed(&mut scene) else {
        panic!("it waits for ever");
    };
    assert_eq!(failure.kind, UNCONFIRMED);
}

/// The withdrawal may still be on its way, however the requests of the new owner end.
#[test]
fn held_by_the_former_owner_is_no_answer_after_a_failure_either() {
    for outcome in [Outcome::NotExecuted, Outcome::Unknown] {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        scene.replied(held(None));
        scene.send(Input::Woken);
        let holder = Arc::clone(scene.attempt.owner());
        unconfirmed(&mut scene);
        scene.send(Input::Woken);
        scene.failed(FailureKind::Unavailable, outcome);
        scene.send(Input::Woken);
        assert!(scene.attempt.is_former_owner(&holder), "{outcome:?}");
        scene.replied(Reply::Held {
            ttl: None,
            holder,
            handed_over: false,
        });
        // The thread learns why it has no answer.
        scene.wait = Wait::Until(scene.now);
        let step = scene.step(Input::Woken);
        assert!(matches!(step, Step::TimeOver(Some(_))), "{step:?}");
    }
}

#[test]
fn a_first_request_that_fails_is_waited_out_if_that_is_asked_for() {
    let minute = Duration::from_mins(1);
    for wait in [Wait::Forever, Wait::Until(START + minute), Wait::Try] {
        let mut scene = Scene::new(wait);
        scene.waits_through_outages = true;
        scene.send(Input::Go);
        let mut step = scene.failed(FailureKind::Unavailable, Outcome::NotExecuted);
        assert_eq!(
            matches!(step, Step::Sleep(_)),
            wait != Wait::Try,
            "{step:?}"
        );
        while let Step::Sleep(end) = step {
            scene.now = end;
            step = scene.step(Input::Woken);
            if let Step::Send(_) = step {
                step = scene.failed(FailureKind::Unavailable, Outcome::NotExecuted);
            }
        }
        let is_error = matches!(step, Step::Failed(_) | Step::TimeOver(Some(_)));
        assert!(is_error, "{step:?}");
        let waited = scene.now.since(START);
        assert_eq!(waited >= minute, wait != Wait::Try, "{waited:?}");
    }
}

#[test]
fn a_wait_whose_time_is_over_sends_nothing_more() {
    let end = START + Duration::from_secs(1);
    let after = |answer: fn(&mut Scene) -> Step| {
        let mut scene = Scene::new(Wait::Until(end));
        scene.waits_through_outages = true;
        scene.send(Input::Go);
        assert!(matches!(answer(&mut scene), Step::Sleep(_)));
        scene.now = end;
        scene.step(Input::Woken)
    };
    let was_held = after(|scene| scene.replied(held(None)));
    assert!(matches!(was_held, Step::TimeOver(None)), "{was_held:?}");
    let failed = after(|scene| scene.failed(FailureKind::Unavailable, Outcome::NotExecuted));
    assert!(matches!(failed, Step::TimeOver(Some(_))), "{failed:?}");
}

/// Each answer to the request before it.
#[test]
fn a_request_that_is_cut_short_leaves_the_answer_before_it() {
    let end = START + Duration::from_secs(1);
    let cut_short = |scene: &mut Scene| {
        scene.send(Input::Woken);
        let sent = scene.now;
        scene.now = end;
        let failure = Failure {
            timed_out: true,
            ..Failure::unknown(FailureKind::Unavailable, "no answer in time")
        };
        match scene.step(Input::Failed {
            ask: scene.asked(),
            sent,
            failure,
            cut_short: true,
        }) {
            Step::TimeOver(failure) => failure.map(|failure| failure.kind),
            other => panic!("{other:?}"),
        }
    };
    let mut nothing = Scene::new(Wait::Until(end));
    assert_eq!(cut_short(&mut nothing), Some(FailureKind::Unavailable));

    let mut was_held = Scene::new(Wait::Until(end));
    was_held.send(Input::Go);
    was_held.replied(held(None));
    assert_eq!(cut_short(&mut was_held), None);
    // An answer from before this thread's wait does not count.
    was_held.now = START;
    was_held.attempt.patience = Patience::new(WaitState::Held(START - Duration::from_millis(1)));
    assert_eq!(cut_short(&mut was_held), Some(FailureKind::Unavailable));

    let mut failed = Scene::new(Wait::Until(end));
    failed.send(Input::Go);
    failed.replied(held(None));
    failed.send(Input::Woken);
    unconfirmed(&mut failed);
    assert_eq!(cut_short(&mut failed), Some(UNCONFIRMED));
}

/// An owner of this process whose lease an attempt takes over.
fn ended_owner() -> EndedOwner {
    EndedOwner::new("lh1:mine:l".into(), 1)
}

fn taking_over(scene: &mut Scene) -> Arc<str> {
    let from = ended_owner().owner;
    scene.attempt = Attempt::take_over(&*scene.rng, "l", ended_owner());
    let ask = scene.send(Input::Go);
    assert!(ask.ending.is_some_and(|end| end.owner == from));
    from
}

#[test]
fn a_take_over_of_unknown_outcome_leaves_both_owners_behind() {
    let mut scene = Scene::waiting();
    let from = taking_over(&mut scene);
    let owner = Arc::clone(scene.attempt.owner());
    assert!(matches!(
        scene.failed(FailureKind::Unavailable, Outcome::Unknown),
        Step::Sleep(_)
    ));
    let left: Vec<_> = scene.attempt.ended_owners();
    assert_eq!([&left[0].owner, &left[1].owner], [&from, &owner]);
    assert!(left.iter().all(
        |ended_owner| ended_owner.uncertain_until == Some(START + LEASE)
            && ended_owner.key_gone_at == Some(START + LEASE * 2)
    ));
    scene.now = scene.now + Duration::from_secs(1);
    let ask = scene.send(Input::Woken);
    assert_eq!(ask.ending, None);
    assert!(ask.owner != owner && ask.owner != from);
}

#[test]
fn an_answer_to_another_request_takes_nothing_over() {
    for reply in [Reply::Shared, Reply::Released] {
        let mut scene = Scene::waiting();
        let from = taking_over(&mut scene);
        let owner = Arc::clone(scene.attempt.owner());
        let step = scene.replied(reply);
        assert!(matches!(step, Step::Failed(_)), "{step:?}");
        let left = scene.attempt.abandon();
        let left: Vec<_> = left.iter().map(|ended_owner| &*ended_owner.owner).collect();
        assert_eq!(left, [&*from, &*owner]);
    }
}

/// One withdrawal is enough: Redis will not execute the request later.
#[test]
fn a_request_that_is_rejected_half_way_leaves_its_owner_behind() {
    for outcome in [Outcome::NotExecuted, Outcome::PartlyExecuted] {
        let mut scene = Scene::new(Wait::Try);
        scene.send(Input::Go);
        let failure = Failure::plain(FailureKind::Denied, outcome, "no right to this");
        let sent = scene.now;
        let step = scene.step(Input::Failed {
            ask: scene.asked(),
            sent,
            failure,
            cut_short: false,
        });
        assert!(matches!(step, Step::Failed(_)), "{step:?}");
        let left = scene.attempt.abandon();
        let uncertain: Vec<_> = left
            .iter()
            .map(|ended_owner| ended_owner.uncertain_until)
            .collect();
        let in_part = outcome == Outcome::PartlyExecuted;
        assert_eq!(uncertain, if in_part { vec![Some(sent)] } else { vec![] });
    }
}

#[test]
fn a_take_over_that_was_not_sent_is_sent_again_or_cleaned_up() {
    let mut scene = Scene::waiting();
    let from = taking_over(&mut scene);
    assert!(matches!(
        scene.failed(FailureKind::Unavailable, Outcome::NotExecuted),
        Step::Sleep(_)
    ));
    scene.now = scene.now + Duration::from_secs(1);
    assert!(scene.send(Input::Woken).ending.is_some());
    assert_eq!(scene.attempt.abandon()[0].owner, from);
}

#[test]
fn a_take_over_that_is_abandoned_leaves_its_unused_fences_to_be_given_back() {
    let unused = Some(GiveBack { used: 1, last: 9 });
    for failure in [None, Some(Outcome::Unknown), Some(Outcome::NotExecuted)] {
        let mut scene = Scene::waiting();
        let from = EndedOwner {
            give_back: unused,
            ..ended_owner()
        };
        scene.attempt = Attempt::take_over(&*scene.rng, "l", from);
        scene.send(Input::Go);
        if let Some(outcome) = failure {
            scene.failed(FailureKind::Unavailable, outcome);
        }
        assert_eq!(scene.attempt.abandon()[0].give_back, unused);
    }
}

#[test]
fn a_take_over_from_an_uncertain_owner_leaves_that_owner_behind() {
    for reply in [GRANTED, held(None)] {
        let mut scene = Scene::waiting();
        let from = EndedOwner {
            uncertain_until: Some(START + LEASE),
            give_back: Some(GiveBack { used: 1, last: 9 }),
            ..ended_owner()
        };
        scene.attempt = Attempt::take_over(&*scene.rng, "l", from.clone());
        scene.send(Input::Go);
        scene.replied(reply);
        // The take-over has given the unused fences back.
        let give_back = None;
        assert_eq!(
            scene.attempt.ended_owners(),
            [EndedOwner { give_back, ..from }]
        );
    }
}

#[test]
fn a_take_over_leaves_an_owner_behind_only_while_that_is_uncertain() {
    let moment = Duration::from_nanos(1);
    for (uncertain_until, is_left) in [
        (START - moment, false),
        (START, false),
        (START + moment, true),
    ] {
        let mut scene = Scene::waiting();
        let from = EndedOwner {
            uncertain_until: Some(uncertain_until),
            ..ended_owner()
        };
        scene.attempt = Attempt::take_over(&*scene.rng, "l", from);
        scene.send(Input::Go);
        scene.replied(Reply::Held {
            ttl: None,
            holder: "another client".into(),
            handed_over: true,
        });
        assert_eq!(!scene.attempt.ended_owners().is_empty(), is_left);
    }
}

#[test]
fn a_take_over_that_was_handed_over_waits_in_the_queue() {
    let mut scene = Scene::waiting();
    taking_over(&mut scene);
    assert!(matches!(scene.replied(held(None)), Step::Sleep(_)));
    let ask = scene.send(Input::Woken);
    assert!(ask.ending.is_none() && !ask.takes_free);
    let left = scene.attempt.abandon();
    assert_eq!(
        left.len(),
        1,
        "the old owner is gone, the new one is queued"
    );
}
