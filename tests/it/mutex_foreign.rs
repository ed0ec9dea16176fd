//! Beside clients of other kinds, which lock by `SET name value NX PX ttl` and release by compare-and-delete.

use crate::support::{
    PATIENCE, Raw, locking, locking_asleep, manager, ms, name, shared, task, wait_in_vain,
};

/// Another client's lock.
fn acquire(redis: &Raw, name: &str, ttl_ms: &str) -> bool {
    let answer: Option<String> = redis.ask(&["SET", name, "foreign", "NX", "PX", ttl_ms]);
    answer.is_some()
}

/// Another client's release.
fn release(redis: &Raw, name: &str) -> bool {
    let script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
    redis.ask(&["EVAL", script, "1", name, "foreign"])
}

#[test]
fn ours_excludes_theirs() {
    let redis = shared();
    let name = name("ours");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    assert!(!acquire(redis, &name, "1000"));
    guard.release().expect("it was held all the while");
    assert!(acquire(redis, &name, "60000"));
    assert!(release(redis, &name));
}

#[test]
fn theirs_excludes_ours() {
    let redis = shared();
    let name = name("theirs");
    let locks = manager(redis.url());
    assert!(acquire(redis, &name, "60000"));
    assert!(locks.try_lock(&name).expect("it is asked").is_none());
    wait_in_vain(|| locks.try_lock_for(&name, ms(600)));
    assert!(release(redis, &name));
    assert!(locks.try_lock(&name).expect("it is asked").is_some());
}

#[test]
fn a_foreign_lock_is_not_touched_while_ours_waits() {
    let redis = shared();
    let name = name("unmarked");
    let locks = manager(redis.url());
    assert!(acquire(redis, &name, "60000"));
    let waiter = locking(&locks.mutex(&name));
    // Another thread of the same process, and another process.
    let behind = locking_asleep(&locks.mutex(&name));
    let elsewhere = locking(&manager(redis.url()).mutex(&name));
    redis.wait_until_queued(&name, 2);
    for owner in redis.queue(&name) {
        redis.wait_until_polled(&name, &owner);
        assert_eq!(redis.get(&name).as_deref(), Some("foreign"));
    }
    assert!(redis.ttl(&name) <= Some(ms(60_000)), "it was lengthened");
    // Nobody publishes anything, so it is a poll that finds the lock free.
    assert!(release(redis, &name), "its value was changed");
    let ends = [waiter, behind, elsewhere].map(|wait| {
        // Each releases on its own thread, or the first would keep the others waiting.
        task(move || wait.end().map(drop))
    });
    for end in ends {
        end.end().expect("it comes free");
    }
}

#[test]
fn a_foreign_lock_without_an_expiry_is_waited_for_by_polling() {
    let redis = shared();
    let name = name("no-expiry");
    let locks = manager(redis.url());
    let () = redis.ask(&["SET", &name, "foreign"]);
    let waiter = locking(&locks.mutex(&name));
    redis.wait_until_queued(&name, 1);
    let owner = redis.queue(&name).remove(0);
    redis.wait_until_polled(&name, &owner);
    let ttl: i64 = redis.ask(&["PTTL", &name]);
    assert_eq!(ttl, -1, "it was given an expiry");
    assert!(release(redis, &name));
    drop(waiter.end().expect("it comes free"));
}

#[test]
fn a_foreign_lock_that_expires_is_taken_over() {
    let redis = shared();
    let name = name("expires");
    let locks = manager(redis.url());
    assert!(acquire(redis, &name, "400"));
    let guard = locks.try_lock_for(&name, PATIENCE).expect("it is asked");
    let guard = guard.expect("it comes free");
    assert_eq!(redis.get(&name).as_deref(), Some(guard.owner()));
}
