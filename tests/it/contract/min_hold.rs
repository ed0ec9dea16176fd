//! Locks that stay taken after their release (`min_hold`). The tests read the time to live that Redis reports.

use std::time::{Duration, Instant};

use leasehold::Error;

use crate::support::{
    Fault, Kind, PATIENCE, Proxy, Raw, Role, Server, build, manager, ms, name, patient, secs,
    shared, wait_in_vain, wait_until,
};

/// Shorter than what it is kept for.
const LEASE: Duration = secs(30);
const KEPT: Duration = secs(600);

/// Each of its keys lives on for about what it is kept for, and no longer.
#[track_caller]
fn is_kept(redis: &Raw, kind: Kind, name: &str) -> Vec<Duration> {
    let keys = kind.keys(name).into_iter();
    let kept = keys.map(|key| {
        let holders = redis.holders(&key);
        assert_eq!(holders.len(), 1, "{key}: {holders:?}");
        let ttl = holders[0].1;
        assert!(ttl + PATIENCE > KEPT && ttl <= KEPT, "{key}: {ttl:?}");
        ttl
    });
    kept.collect()
}

pub(super) fn a_released_lock_stays_taken_until_min_hold_is_over(kind: Kind) {
    let (redis, name) = (shared(), name("kept"));
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let lock = kind.of(&one, &name).lease(LEASE).min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    guard.release().expect("it was held all the while");
    is_kept(redis, kind, &name);
    for locks in [&one, &other] {
        wait_in_vain(|| kind.rival().of(locks, &name).try_lock());
    }
    is_kept(redis, kind, &name);
}

pub(super) fn a_lock_that_is_kept_goes_to_no_thread_of_its_process(kind: Kind) {
    let (redis, name) = (shared(), name("kept-inside"));
    let locks = manager(redis.url());
    let lock = kind.of(&locks, &name).lease(LEASE).min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    let waiter = kind.rival().of(&locks, &name).locking_asleep();
    guard.release().expect("it was held all the while");
    redis.wait_until_queued(&name, 1);
    assert!(waiter.waits());
    is_kept(redis, kind, &name);
    // Its time is over.
    for key in kind.keys(&name) {
        let () = redis.ask(&["DEL", &key]);
    }
    waiter.locked();
    waiter.release();
}

pub(super) fn a_release_after_min_hold_frees_the_lock(kind: Kind) {
    let (redis, name) = (shared(), name("kept-before"));
    let locks = manager(redis.url());
    let guard = kind.of(&locks, &name).min_hold(ms(1)).lock();
    let (guard, begun) = (guard.expect("it is free"), Instant::now());
    wait_until("it has passed", || begun.elapsed() > ms(2));
    guard.release().expect("it was held all the while");
    assert!(kind.keys(&name).iter().all(|key| !redis.exists(key)));
}

pub(super) fn a_repeated_release_lengthens_no_min_hold(kind: Kind) {
    let (server, name) = (Server::start(), "n");
    let proxy = Proxy::to(&server);
    let redis = server.raw();
    let locks = build(patient(&proxy.url()).io_timeout(secs(1)));
    let locked = |name: &str| {
        let lock = kind.of(&locks, name).lease(LEASE).min_hold(KEPT);
        lock.lock().expect("it is free")
    };
    // So that the server knows the script.
    locked("first")
        .release()
        .expect("it was held all the while");
    let guard = locked(name);
    proxy.strike(Role::Pool, Fault::LoseAnswers);
    let released = guard.release();
    assert!(
        matches!(released, Err(Error::Unavailable { .. })),
        "{released:?}"
    );
    let before = is_kept(&redis, kind, name);
    proxy.heal();
    assert!(locks.close(PATIENCE), "it is repeated");
    let after = is_kept(&redis, kind, name);
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(before, after)| after <= before)
    );
}
