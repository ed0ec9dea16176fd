//! Attempts at a lock of a quorum.

use super::*;
use crate::error::NodeCounts;

const COUNTS: NodeCounts = NodeCounts {
    nodes: 5,
    needed: 3,
    granted: 2,
};

fn outvoted(holder: Option<&str>, ttl: Option<Duration>) -> Reply {
    Reply::Outvoted {
        holder: holder.map(Arc::from),
        ttl,
        counts: COUNTS,
    }
}

fn no_quorum(scene: &mut Scene) -> Step {
    let sent = scene.now;
    scene.step(Input::Failed {
        ask: scene.asked(),
        sent,
        failure: Failure::no_quorum(COUNTS, Vec::new()),
        cut_short: false,
    })
}

/// The votes that it got were given back, so a late copy of that could end its next grant.
#[test]
fn an_owner_that_was_outvoted_never_asks_again() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    let first = Arc::clone(scene.attempt.owner());
    let ttl = Some(Duration::from_millis(300));
    let slept = sleep_of(scene.replied(outvoted(Some("lh1:other:l"), ttl)), START);
    assert!(slept >= Duration::from_millis(300) && slept < Duration::from_millis(400));
    // While it sleeps, a message to this owner reaches it. The next request is of another owner.
    assert_eq!(*scene.attempt.owner(), first);
    scene.send(Input::Woken);
    assert_ne!(*scene.attempt.owner(), first);
    let left = scene.attempt.ended_owners();
    assert_eq!((left.len(), &left[0].owner), (1, &first));
    // The same if nobody has the lock. The quorum has taken that owner out of the queues too.
    let second = Arc::clone(scene.attempt.owner());
    let slept = sleep_of(scene.replied(outvoted(None, None)), START);
    assert!(slept < Duration::from_millis(100), "{slept:?}");
    assert_ne!(*scene.attempt.owner(), second);
    scene.send(Input::Woken);
    let third = Arc::clone(scene.attempt.owner());
    assert!(matches!(no_quorum(&mut scene), Step::Sleep(_)));
    assert_ne!(*scene.attempt.owner(), third);
    assert_eq!(scene.attempt.ended_owners(), []);
    scene.send(Input::Woken);
    assert!(matches!(scene.replied(GRANTED), Step::Granted(_)));
}

/// It loses its place at its next request. So it does not ask at the end of a turn that is not its own.
#[test]
fn an_owner_that_was_outvoted_sleeps_past_the_turn_of_another() {
    for (ttl, at_least, at_most) in [
        (Some(101), 101, 150),
        (Some(100), 180, 252),
        (Some(1), 180, 252),
        (None, 700, 950),
    ] {
        let mut scene = Scene::waiting();
        scene.send(Input::Go);
        let reply = outvoted(Some("lh1:other:l"), ttl.map(Duration::from_millis));
        let slept = sleep_of(scene.replied(reply), START).as_millis();
        assert!(slept >= at_least && slept <= at_most, "{ttl:?}: {slept} ms");
    }
}

#[test]
fn a_wait_that_gives_up_leaves_the_queues_in_which_it_was_outvoted() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    let owner = Arc::clone(scene.attempt.owner());
    scene.replied(outvoted(Some("lh1:other:l"), None));
    let left = scene.attempt.abandon();
    assert_eq!((left.len(), &left[0].owner), (1, &owner));
}

/// "Held" would be false, because nobody has the lock.
#[test]
fn a_try_asks_once_more_after_split_votes() {
    let mut scene = Scene::new(Wait::Try);
    scene.send(Input::Go);
    assert!(matches!(
        scene.replied(outvoted(None, None)),
        Step::Sleep(_)
    ));
    scene.send(Input::Woken);
    let Step::Failed(failure) = scene.replied(outvoted(None, None)) else {
        panic!("it goes on");
    };
    assert_eq!(failure.kind, FailureKind::NoQuorum(COUNTS));
    // With a holder it has its answer.
    let mut scene = Scene::new(Wait::Try);
    scene.send(Input::Go);
    let step = scene.replied(outvoted(Some("lh1:other:l"), None));
    assert!(matches!(step, Step::TimeOver(None)));
}

#[test]
fn each_pause_after_split_votes_is_longer_up_to_a_limit() {
    let mut scene = Scene::waiting();
    for splits in 1..=20 {
        scene.send(Input::Woken);
        let slept = sleep_of(scene.replied(outvoted(None, None)), START);
        let most = Duration::from_millis(4) * splits.min(8);
        assert!(slept >= most / 2 && slept <= most, "{splits}: {slept:?}");
    }
}

#[test]
fn a_wait_outlasts_split_votes_until_its_deadline() {
    let mut scene = Scene::new(Wait::Until(START + Duration::from_secs(1)));
    scene.send(Input::Go);
    let mut step = scene.replied(outvoted(None, None));
    let mut rounds = 0;
    while let Step::Sleep(until) = step {
        assert!(until > scene.now);
        scene.now = until;
        step = scene.step(Input::Woken);
        if let Step::Send(_) = step {
            step = scene.replied(outvoted(None, None));
        }
        rounds += 1;
    }
    assert!(rounds > 10, "{rounds}");
    let Step::TimeOver(Some(failure)) = step else {
        panic!("{step:?}");
    };
    assert!(matches!(failure.kind, FailureKind::NoQuorum(_)));
    assert_eq!(scene.attempt.abandon(), []);
}

#[test]
fn a_take_over_without_a_majority_leaves_the_former_lease_to_be_released() {
    let mut scene = Scene::waiting();
    let from = EndedOwner {
        owner: "lh1:former:l".into(),
        units: 1,
        uncertain_until: None,
        key_gone_at: None,
        give_back: None,
    };
    scene.attempt = Attempt::take_over(&*scene.rng, "l", from.clone());
    assert!(scene.send(Input::Go).ending.is_some());
    no_quorum(&mut scene);
    assert_eq!(scene.attempt.ended_owners(), [from]);
    assert_eq!(scene.send(Input::Woken).ending, None);
}

/// The fences that a quorum reserves may be fewer than were asked for.
#[test]
fn a_grant_has_as_many_fences_as_its_answer_says() {
    let mut scene = Scene::waiting();
    scene.send(Input::Go);
    let Step::Granted(grant) = scene.replied(Reply::Granted {
        fence: 7,
        count: Some(3),
        rest: Vec::new(),
        contended: false,
    }) else {
        panic!("not granted");
    };
    assert_eq!(grant.fences, 3);
}
