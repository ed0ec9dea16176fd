//! The records of the log, and when they are written.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold::{Event, LostCause};
use log::Level;

use crate::support::{
    Logged, PATIENCE, build, locking, logged, lost, manager, ms, name, patient, secs, shared,
    wait_until,
};

/// The target that the documentation names.
const TARGET: &str = "leasehold";

#[test]
fn a_loss_is_logged_while_its_guard_still_lives() {
    let redis = shared();
    let name = name("logged-loss");
    let records = logged(&format!("lock {name:?} was lost"));
    let locks = build(patient(redis.url()).lease(ms(50)).renew(false));
    let guard = locks.lock(&name).expect("the lock is free");
    let (owner, fence) = (guard.owner().to_owned(), guard.fence());

    let record = records.recv_timeout(PATIENCE).expect("the loss is logged");

    assert_eq!((record.level, &*record.target), (Level::Warn, TARGET));
    // The watch thread found the loss. It must not log, because a logger may block.
    assert_eq!(record.thread, "leasehold-events");
    for part in [&owner, &fence.to_string()] {
        assert!(record.text.contains(part), "{record:?}");
    }
    assert_eq!(lost(guard.release()).cause, LostCause::Expired);
    // The drop of a second lost guard adds nothing either: one loss, one record.
    assert!(records.try_recv().is_err(), "the loss is logged twice");
}

#[test]
fn each_loss_is_logged_once_whatever_its_cause() {
    let redis = shared();
    let locks = manager(redis.url());
    for (how, words) in [
        ("removed", "its key was removed"),
        ("taken", "another owner holds it"),
        ("max-hold", "max_hold"),
    ] {
        let name = name(how);
        let records = logged(&format!("lock {name:?} was lost"));
        let mutex = locks.mutex(&name);
        let guard = match how {
            "max-hold" => mutex.max_hold(Some(ms(1))).lock(),
            _ => mutex.lock(),
        };
        let guard = guard.expect("the lock is free");
        match how {
            "removed" => redis.ask(&["DEL", &name]),
            "taken" => redis.ask(&["SET", &name, "somebody else's"]),
            _ => {}
        }
        if how != "max-hold" {
            // The reply to the release reports the loss.
            drop(guard);
        }
        let record = records.recv_timeout(PATIENCE).expect("the loss is logged");
        assert_eq!((record.level, &*record.target), (Level::Warn, TARGET));
        assert!(record.text.contains(words), "{record:?}");
        assert!(
            records.try_recv().is_err(),
            "{how}: the loss is logged twice"
        );
    }
}

#[test]
fn the_steps_of_a_lock_are_logged_for_debugging() {
    let redis = shared();
    let name = name("steps");
    let records = logged(&format!("lock {name:?}: "));
    let next = || -> Logged {
        let record = records.recv_timeout(PATIENCE).expect("the step is logged");
        assert_eq!((record.level, &*record.target), (Level::Debug, TARGET));
        record
    };
    // A message grants one fence only. Without fences, the next thread needs none.
    // A busy machine may take longer than a usual quantum for the steps until the lock is handed on.
    let other = build(patient(redis.url()).fencing(false).quantum(secs(60)));
    let locks = manager(redis.url());

    let guard = locks.lock(&name).expect("the lock is free");
    let granted = next();
    assert!(granted.text.contains("granted"), "{granted:?}");
    for part in [guard.owner(), &guard.fence().to_string()] {
        assert!(granted.text.contains(part), "{granted:?}");
    }
    let waiter = locking(&other.mutex(&name));
    let waiting = next();
    assert!(waiting.text.contains("waiting"), "{waiting:?}");
    assert!(waiting.text.contains(guard.owner()), "{waiting:?}");
    redis.wait_until_queued(&name, 1);

    guard.release().expect("it was held until now");
    let released = next();
    assert!(released.text.contains("released"), "{released:?}");
    // The other manager may receive its reply before this manager's thread logs the hand-over.
    let mut last = [next().text, next().text];
    last.sort_by_key(|text| text.contains("granted"));
    assert!(last[0].contains("handed over"), "{last:?}");
    assert!(last[1].contains("granted"), "{last:?}");

    let guard = waiter.end().expect("the lock was handed over");
    let waiter = locking(&other.mutex(&name));
    let waiting = next();
    assert!(waiting.text.contains("waiting"), "{waiting:?}");
    drop(guard);
    let mut last = [next().text, next().text];
    last.sort_by_key(|text| text.contains("handed on"));
    assert!(last[0].contains("released"), "{last:?}");
    assert!(last[1].contains("handed on in memory"), "{last:?}");
    drop(waiter.end().expect("the lock was handed on"));
}

/// The value may be a secret, such as the number of a card. Only `inspect` returns it.
#[test]
fn the_value_of_another_program_is_shown_nowhere() {
    let redis = shared();
    let name = name("secret-value");
    let value = format!("4111 {name}");
    let () = redis.ask(&["SET", &name, &value]);
    let (records, about) = (logged(&value), logged(&format!("lock {name:?}: waiting")));
    let events: Arc<Mutex<String>> = Arc::default();
    let heard = Arc::clone(&events);
    let locks = patient(redis.url()).listener(move |event: &Event<'_>| {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.extend([event.to_string(), format!("{event:?}")]);
    });
    let locks = build(locks);
    // On a busy machine the first reply may take long.
    let timeout = locks.with_lock(&name, secs(2), |_| ());
    let timeout = timeout.expect_err("it is held");
    let length = value.chars().count();
    let shown = format!("a value of another client ({length} characters)");
    let logged = about.recv_timeout(PATIENCE).expect("the wait is logged");
    let of_events = || {
        events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    };
    wait_until("the listener hears of the wait", || {
        of_events().contains("waiting")
    });
    for text in [timeout.to_string(), logged.text, of_events()] {
        assert!(text.contains(&shown) && !text.contains(&value), "{text}");
    }
    assert!(records.try_recv().is_err(), "the log has the value");
    let seen = locks.inspect(&name).expect("Redis replies");
    let seen = seen.expect("it is held");
    assert_eq!(seen.holders[0].owner, value);
    assert!(!format!("{seen:?}").contains(&value), "{seen:?}");
    let () = redis.ask(&["DEL", &name]);
}

/// Without the warning, nothing shows why the wait has no end.
#[test]
fn a_wait_for_a_key_without_an_expiry_warns_once() {
    let redis = shared();
    let locks = manager(redis.url());
    let name = name("no-expiry");
    let records = logged(&format!("lock {name:?}: the holder has no expiry"));
    let () = redis.ask(&["SET", &name, "theirs"]);
    assert!(locks.try_lock(&name).expect("Redis replies").is_none());
    assert!(records.try_recv().is_err(), "a try does not wait");
    for _ in 0..2 {
        let waited = locks.try_lock_for(&name, ms(500));
        assert!(waited.expect("Redis replies").is_none());
        let record = records.recv_timeout(PATIENCE).expect("it warns");
        assert_eq!((record.level, &*record.target), (Level::Warn, TARGET));
        assert!(record.text.ends_with("Set a prefix"), "{record:?}");
        assert!(records.try_recv().is_err(), "it warns once for each wait");
    }
    // Locks of other libraries expire.
    let () = redis.ask(&["PEXPIRE", &name, "600000"]);
    let waited = locks.try_lock_for(&name, ms(300));
    assert!(waited.expect("Redis replies").is_none());
    assert!(records.try_recv().is_err(), "it expires");
    let () = redis.ask(&["DEL", &name]);
}

#[test]
fn permits_that_differ_are_logged_once_for_each_name() {
    let redis = shared();
    let name = name("logged-permits");
    let records = logged(&format!(
        "semaphore {name:?}: this process gives it 3 permits"
    ));
    let other = manager(redis.url()).semaphore(&name, 2);
    let held = other.acquire().expect("it is free");
    let semaphore = manager(redis.url()).semaphore(&name, 3);
    for _ in 0..2 {
        drop(semaphore.acquire().expect("there is room"));
    }
    let record = records.recv_timeout(PATIENCE).expect("it is logged");
    assert_eq!((record.level, &*record.target), (Level::Warn, TARGET));
    assert!(record.text.contains("another client 2"), "{record:?}");
    assert!(records.try_recv().is_err(), "it is logged twice");
    drop(held);
}
