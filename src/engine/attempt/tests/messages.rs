//! Grants by message.

use super::*;
use crate::engine::timer_queue::at_risk_below;
use crate::sys::{Machine, Mutex, Rng};
use crate::wire::GrantMessage;
use crate::wire::lifetime::valid_until;

const FENCE: u64 = 9;

fn scene() -> Scene {
    Scene {
        grants_by_message: true,
        ..Scene::waiting()
    }
}

impl Scene {
    /// Sends the next request. Returns the grant that a hand-over after it would publish.
    fn ask_for_grant(&mut self) -> GrantMessage {
        let nonce = self.send(Input::Woken).nonce.expect("it queues");
        GrantMessage {
            nonce,
            fence: FENCE,
        }
    }

    /// Sends the next request, which queues.
    fn queue(&mut self) -> GrantMessage {
        let grant = self.ask_for_grant();
        sleep_of(self.replied(held(None)), self.now);
        grant
    }

    /// Takes a message in. Returns the grant if the attempt uses it, and otherwise nothing: it asks.
    fn message(&mut self, grant: GrantMessage) -> Option<Grant> {
        match self.step(Input::Message(Some(grant))) {
            Step::Granted(grant) => Some(grant),
            Step::Send(_) => None,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_message_grants_the_lock_for_the_pickup_window_from_before_the_request() {
    let mut scene = scene();
    let message = scene.queue();
    scene.now = scene.now + Duration::from_millis(500);
    let owner = Arc::clone(scene.attempt.owner());
    let grant = scene.message(message).expect("it is used");
    assert_eq!((grant.fence, grant.fences, grant.owner), (FENCE, 1, owner));
    assert_eq!(grant.sent, START);
    assert_eq!(grant.deadline, valid_until(START, LONGEST_WINDOW));
    assert_eq!(grant.pickup_window, Some(LONGEST_WINDOW));
    assert!(grant.contended);
    assert!(
        scene.attempt.abandon().is_empty(),
        "the guard has the owner"
    );
}

#[test]
fn a_lease_that_is_shorter_than_the_window_needs_no_renewal_at_once() {
    let mut scene = scene();
    scene.lease = Duration::from_secs(1);
    let message = scene.queue();
    let grant = scene.message(message).expect("it is used");
    assert_eq!(grant.deadline, valid_until(START, scene.lease));
    assert_eq!(grant.pickup_window, None);
}

#[test]
fn a_message_is_not_used_if_the_lease_would_be_at_risk() {
    let deadline = valid_until(START, LONGEST_WINDOW);
    let far = Duration::from_millis(500);
    for (round_trip, left) in [
        (Duration::ZERO, at_risk_below(LONGEST_WINDOW)),
        (far, far * 3),
    ] {
        let usable = deadline - left;
        for (now, is_used) in [(usable, true), (usable + Duration::from_nanos(1), false)] {
            let mut scene = scene();
            scene.round_trip = round_trip;
            let message = scene.queue();
            scene.now = now;
            assert_eq!(scene.message(message).is_some(), is_used);
        }
    }
}

#[test]
fn a_lease_without_fences_goes_from_thread_to_thread() {
    let mut scene = scene();
    scene.fencing = false;
    let message = scene.queue();
    let message = GrantMessage {
        fence: 0,
        ..message
    };
    assert_eq!(scene.message(message).expect("it is used").fences, 0);
}

#[test]
fn an_answer_ends_what_earlier_requests_allowed() {
    let mut scene = scene();
    let (first, second) = (scene.queue(), scene.queue());
    assert_ne!(first.nonce, second.nonce);
    assert!(scene.message(first).is_none());
}

/// The third request has the last nonce that may be in Redis. But whether it was executed is unknown.
#[test]
fn a_grant_that_follows_an_unknown_outcome_stays_uncertain() {
    let mut scene = scene();
    scene.queue();
    let unknown = scene.ask_for_grant();
    sleep_of(
        scene.failed(FailureKind::Unavailable, Outcome::Unknown),
        scene.now,
    );
    let grant = scene.message(unknown).expect("it is used");
    assert_eq!(grant.uncertain_until, Some(START + LEASE));
}

#[test]
fn a_request_that_was_not_sent_ends_nothing() {
    let mut scene = scene();
    let first = scene.queue();
    scene.now = scene.now + Duration::from_millis(100);
    let unsent = scene.ask_for_grant();
    sleep_of(
        scene.failed(FailureKind::Unavailable, Outcome::NotExecuted),
        scene.now,
    );
    assert_ne!(first.nonce, unsent.nonce);
    let grant = scene.message(first).expect("it is used");
    assert_eq!(grant.sent, START);
}

/// Its call may have other terms than the record of the waiter. This thread asks at once, so it loses nothing.
#[test]
fn a_message_is_not_used_by_the_next_thread() {
    let mut scene = scene();
    let message = scene.queue();
    scene.send(Input::Go);
    scene.failed(FailureKind::Unavailable, Outcome::NotExecuted);
    assert!(scene.message(message).is_none());
}

/// Every client that may subscribe has seen the nonce of a message.
#[test]
fn a_message_ends_what_the_last_request_allowed() {
    let other = GrantMessage {
        nonce: Nonce::new(&Machine::default()),
        fence: FENCE,
    };
    for first in [None, Some(other)] {
        let mut scene = scene();
        let message = scene.queue();
        let Step::Send(_) = scene.step(Input::Message(first)) else {
            panic!("it asks");
        };
        sleep_of(
            scene.failed(FailureKind::Unavailable, Outcome::NotExecuted),
            scene.now,
        );
        assert!(scene.message(message).is_none(), "{first:?}");
    }
}

#[test]
fn a_message_without_the_fence_that_was_asked_for_is_not_used() {
    let mut scene = scene();
    let message = scene.queue();
    assert!(
        scene
            .message(GrantMessage {
                fence: 0,
                ..message
            })
            .is_none()
    );
}

#[test]
fn only_a_request_with_a_channel_allows_a_grant_by_message() {
    for (wait, subscription) in [
        (Wait::Try, SubscriptionState::Ready("c".into())),
        (Wait::Forever, SubscriptionState::NoSubscription),
        (Wait::Forever, SubscriptionState::NotYet),
    ] {
        let mut scene = scene();
        (scene.wait, scene.subscription) = (wait, subscription);
        assert_eq!(scene.send(Input::Go).nonce, None);
    }
}

#[test]
fn a_grant_to_the_former_owner_is_not_used() {
    let mut scene = scene();
    taking_over(&mut scene);
    let first = scene.ask_for_grant();
    scene.failed(FailureKind::Unavailable, Outcome::Unknown);
    let second = scene.queue();
    assert_ne!(first.nonce, second.nonce);
    assert!(scene.message(first).is_none());
}

#[test]
fn a_grant_that_a_failover_may_have_lost_is_not_used() {
    let mut scene = scene();
    let before = scene.queue();
    scene.now = scene.now + Duration::from_millis(100);
    scene.failed_over_at = scene.now;
    assert!(scene.message(before).is_none());
    sleep_of(scene.replied(held(None)), scene.now);
    let meanwhile = scene.queue();
    assert!(scene.message(meanwhile).is_none());
    sleep_of(scene.replied(held(None)), scene.now);
    scene.now = scene.now + Duration::from_nanos(1);
    let after = scene.queue();
    assert!(scene.message(after).is_some());
}

/// A source of random numbers that keeps the bits that it has returned.
struct Recorded {
    rng: Machine,
    bits: Mutex<Vec<u64>>,
}

impl Rng for Recorded {
    fn uuid(&self) -> uuid::Uuid {
        self.rng.uuid()
    }

    fn bits(&self) -> u64 {
        let bits = self.rng.bits();
        self.bits.lock().push(bits);
        bits
    }

    fn jitter(&self) -> u64 {
        self.rng.jitter()
    }
}

/// Another process sees the nonce of each grant that is published. It must not learn that of a later request from them.
#[test]
fn each_request_that_queues_draws_a_nonce_of_its_own() {
    let mut scene = scene();
    let recorded = Arc::new(Recorded {
        rng: Machine::default(),
        bits: Mutex::default(),
    });
    scene.rng = Arc::clone(&recorded) as Arc<dyn Rng>;
    for _ in 0..3 {
        let grant = scene.queue();
        // Two draws for each request are all that its nonce shows.
        let drawn = std::mem::take(&mut *recorded.bits.lock());
        let [first, second] = drawn[..] else {
            panic!("{} draws", drawn.len());
        };
        assert_eq!(
            grant.nonce.to_string(),
            format!("{first:016x}{second:016x}")
        );
    }
}

#[test]
fn a_message_is_not_used_if_other_threads_wait_by_now() {
    let mut scene = scene();
    let message = scene.queue();
    scene.crowded = true;
    assert!(scene.message(message).is_none());
    let ask = scene.send(Input::Go);
    assert_eq!((ask.nonce, ask.fences), (None, 100));
}
