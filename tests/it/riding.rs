//! Background releases that go out in the same write as the next request, beside faults of that connection.
//!
//! A release rides only if the next request comes within a millisecond. A busy machine may miss that, so each test
//! tries again until it has seen a ride.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use leasehold::{LockManager, Result};

use crate::support::{
    Answer, Hostile, PATIENCE, Sentinels, Server, Words, build, impatient, manager, ms, patient,
    task_asleep, wait_until,
};

/// The number of words of a release of one lock. A request for a lock has more.
const RELEASE: usize = 5;

/// Returns whether a request is about a name that begins like this.
fn is_about(words: &Words, begin: &str) -> bool {
    words
        .get(3)
        .is_some_and(|key| key.starts_with(begin.as_bytes()))
}

/// Locks and releases a name, and locks another one at once. Does so again with other names, until the server has got
/// the release in one read with the request after it. Returns the names.
fn ride(
    hostile: &Hostile,
    locks: &LockManager,
    mut between: impl FnMut(&str),
    mut after: impl FnMut(&str, Result<()>),
) {
    let begun = Instant::now();
    for number in 0.. {
        assert!(begun.elapsed() < PATIENCE * 3, "nothing rides");
        let (one, other) = (format!("one:{number}"), format!("other:{number}"));
        let guard = locks.lock(&one).expect("it is free");
        between(&one);
        // The pool has sent all that it had.
        let before = hostile.came_together();
        guard.release().expect("it is queued");
        let result = locks.lock(&other).and_then(leasehold::LockGuard::release);
        after(&one, result);
        if hostile.came_together() > before {
            return;
        }
    }
}

#[test]
fn a_release_goes_out_in_one_write_with_the_next_request() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let locks = build(patient(&hostile.url()).background_release(true));
    let raw = server.raw();
    ride(
        &hostile,
        &locks,
        |_| {},
        |_, result| result.expect("granted"),
    );
    // The server has forgotten its scripts.
    raw.ask::<String>(&["SCRIPT", "FLUSH"]);
    let texts = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&texts);
    hostile.answers(move |words| {
        let is_text = words.first().is_some_and(|verb| verb == b"EVAL");
        // Rides have the script for many releases. The renewal thread sends a single one by another.
        let text = words.get(1).map(|text| String::from_utf8_lossy(text));
        if is_text && text.is_some_and(|text| text.contains("in ipairs(KEYS)")) {
            seen.store(true, Ordering::SeqCst);
        }
        Answer::Pass
    });
    // The first ride is refused, and the next one carries the text.
    for _ in 0..2 {
        ride(
            &hostile,
            &locks,
            |_| {},
            |_, result| result.expect("granted"),
        );
    }
    assert!(texts.load(Ordering::SeqCst), "nobody has sent the text");
    assert!(locks.close(PATIENCE));
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "o*"]), [""; 0]);
}

/// The waiter has come after the last request of the holder's process, which so does not know of it.
#[test]
fn a_riding_release_for_which_others_wait_hands_over() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let locks = build(patient(&hostile.url()).background_release(true));
    let (others, raw) = (manager(&server.url()), server.raw());
    let waiting = std::cell::RefCell::new(None);
    let mut count = 0;
    let wait = |name: &str| {
        let (others, one) = (others.clone(), name.to_owned());
        let waiter = task_asleep(move || others.lock(one).and_then(leasehold::LockGuard::release));
        raw.wait_until_queued(name, 1);
        *waiting.borrow_mut() = Some(waiter);
    };
    ride(&hostile, &locks, wait, |_, result| {
        result.expect("granted");
        let waiter = waiting.borrow_mut().take().expect("it waits");
        waiter.end().expect("it is handed over");
        count += 1;
    });
    assert!(locks.close(PATIENCE));
    assert_eq!(locks.stats().handed_over, count);
}

/// The server has executed the release, the request, or neither of them.
#[test]
fn a_connection_that_is_cut_during_a_ride_loses_no_release() {
    for cuts_the_release in [true, false] {
        let server = Server::start();
        let hostile = Hostile::before(&server);
        let locks = build(patient(&hostile.url()).background_release(true));
        let raw = server.raw();
        let cut = Arc::new(AtomicBool::new(false));
        let is_cut = Arc::clone(&cut);
        hostile.answers(move |words| {
            let strikes = if cuts_the_release {
                is_about(words, "one:") && words.len() == RELEASE
            } else {
                is_about(words, "other:") && words.len() > RELEASE
            };
            if strikes && !is_cut.swap(true, Ordering::SeqCst) {
                Answer::Close(Vec::new())
            } else {
                Answer::Pass
            }
        });
        ride(
            &hostile,
            &locks,
            |_| cut.store(false, Ordering::SeqCst),
            |one, result| {
                result.expect("it is sent again");
                wait_until("the release is repeated", || !raw.exists(one));
            },
        );
        assert!(cut.load(Ordering::SeqCst));
        assert!(locks.close(PATIENCE));
        assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "o*"]), [""; 0]);
    }
}

/// The thread that released a lock asks for it again while its release is repeated.
#[test]
fn a_lock_whose_ride_was_cut_is_not_held_for_its_own_process() {
    const ROUNDS: usize = 20;
    let server = Server::start();
    let locks = build(patient(&server.url()).background_release(true));
    let raw = server.raw();
    for round in 0..ROUNDS {
        let (one, other) = (format!("one:{round}"), format!("other:{round}"));
        let guard = locks.lock(&one).expect("it is free");
        raw.ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        guard.release().expect("it is queued");
        let other = locks.lock(&other).expect("it is sent again");
        let again = locks.try_lock(&one).expect("it is asked for");
        assert!(again.is_some(), "round {round}");
        drop((again, other));
    }
    assert!(locks.close(PATIENCE));
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "o*"]), [""; 0]);
}

/// Its answer may come later. The renewal thread does not wait for it.
#[test]
fn a_caller_that_leaves_does_not_lose_the_release_that_rides_with_its_request() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let locks = build(impatient(&hostile.url()).background_release(true));
    let raw = server.raw();
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE * 3, "nothing rides");
        let guard = locks.lock("one").expect("it is free");
        hostile.answers(|words| {
            let is_release = is_about(words, "one") && words.len() == RELEASE;
            if is_release || is_about(words, "other") {
                // Nobody answers, and the connection stays open.
                Answer::Say(Vec::new())
            } else {
                Answer::Pass
            }
        });
        let before = hostile.came_together();
        guard.release().expect("it is queued");
        assert!(locks.mutex("other").try_lock_for(ms(10)).is_err());
        let rode = hostile.came_together() > before;
        assert!(raw.exists("one"), "the server has got nothing");
        hostile.behaves();
        wait_until("the release is repeated", || !raw.exists("one"));
        if rode {
            break;
        }
    }
    assert!(locks.close(PATIENCE));
}

#[test]
fn releases_ride_to_the_master_of_a_sentinel_set() {
    let set = Sentinels::start();
    let locks = build(set.builder().background_release(true));
    let raw = set.master().raw();
    let begun = Instant::now();
    for number in 0.. {
        assert!(begun.elapsed() < PATIENCE * 3, "nothing rides");
        let guard = locks.lock(format!("one:{number}")).expect("it is free");
        let released = Instant::now();
        guard.release().expect("it is queued");
        let other = locks.lock("other").expect("it is free");
        let is_gone = !raw.exists(&format!("one:{number}"));
        other.release().expect("it is queued");
        // The renewal thread holds it back for longer.
        if is_gone && released.elapsed() < ms(1) {
            break;
        }
    }
    assert!(locks.close(PATIENCE));
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "o*"]), [""; 0]);
}
