//! The records of the log, and when they are written. The logger is that of the whole process, so a simulated one cannot have
//! its own.

use leasehold::LostCause;
use log::Level;

use crate::support::{
    Logged, PATIENCE, build, locking, logged, lost, manager, ms, name, patient, secs, shared,
};

/// The target that the documentation names.
const TARGET: &str = "leasehold";

#[test]
fn a_loss_is_logged_once_while_its_guard_still_lives() {
    let redis = shared();
    let name = name("logged-loss");
    let records = logged(&format!("lock {name:?} was lost"));
    let mutex = manager(redis.url()).mutex(&name).max_hold(Some(ms(1)));
    let guard = mutex.lock().expect("the lock is free");
    let (owner, fence) = (guard.owner().to_owned(), guard.fence());
    let record = records.recv_timeout(PATIENCE).expect("the loss is logged");
    assert_eq!((record.level, &*record.target), (Level::Warn, TARGET));
    // The watch thread found the loss. It must not log, because a logger may block.
    assert_eq!(record.thread, "leasehold-events");
    for part in [&owner, &fence.to_string(), "max_hold"] {
        assert!(record.text.contains(part), "{record:?}");
    }
    assert_eq!(lost(guard.release()).cause, LostCause::MaxHold);
    assert!(records.try_recv().is_err(), "the loss is logged twice");
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

/// Without a listener, nothing else shows a guard that is held for long, or why a wait has no end.
#[test]
fn a_long_hold_and_a_wait_for_a_key_without_an_expiry_warn_once() {
    let redis = shared();
    let locks = build(patient(redis.url()).warn_after(Some(ms(1))));
    let name = name("no-expiry");
    let held = logged(&format!("{name:?}: held for"));
    let records = logged(&format!("lock {name:?}: the holder has no expiry"));
    let () = redis.ask(&["SET", &name, "theirs"]);
    assert!(locks.try_lock(&name).expect("Redis replies").is_none());
    assert!(records.try_recv().is_err(), "a try does not wait");
    let waiting = locking(&locks.mutex(&name));
    let record = records.recv_timeout(PATIENCE).expect("it warns");
    assert_eq!((record.level, &*record.target), (Level::Warn, TARGET));
    assert!(record.text.ends_with("Set a prefix"), "{record:?}");
    let () = redis.ask(&["DEL", &name]);
    let guard = waiting.end().expect("it becomes free");
    assert!(records.try_recv().is_err(), "it warns once for each wait");
    let record = held.recv_timeout(PATIENCE).expect("it warns");
    assert_eq!(record.thread, "leasehold-events");
    guard.release().expect("it was held until now");
    assert!(held.try_recv().is_err(), "it warns once for each guard");
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
