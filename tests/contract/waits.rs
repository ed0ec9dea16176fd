//! How long a call waits, and what ends its wait.

use std::time::Instant;

use leasehold::{Error, LockManager};

use crate::support::{
    Child, Kind, PATIENCE, SLACK, manager, ms, name, secs, shared, wait_in_vain, wait_until,
};

pub(crate) fn a_wait_returns_none_at_its_deadline_and_not_before(world: &World, kind: Kind) {
    let name = world.name("deadline");
    let (one, other) = (world.manager(), world.manager());
    let holder = kind.rival().of(&one, &name).hold();
    // Another process holds the lock, and then the same process.
    for locks in [&one, &other] {
        let lock = kind.of(locks, &name);
        let wait = ms(600);
        let mut begun = world.now();
        wait_in_vain(|| {
            begun = world.now();
            lock.try_lock_for(wait)
        });
        assert!((world.now() - begun) >= wait);
        assert!((world.now() - begun) < wait + SLACK);
    }
    holder.release();
    for locks in [&one, &other] {
        let guard = kind.of(locks, &name).try_lock_for(secs(15));
        let guard = guard.expect("Redis replies").expect("it is free again");
        guard.release().expect("it was held until now");
    }
}

pub(crate) fn a_release_lets_in_a_thread_of_its_manager(world: &World, kind: Kind) {
    let name = world.name("same-process");
    let locks = world.manager();
    for (inside, outside) in [(kind, kind.rival()), (kind.rival(), kind)] {
        let holder = inside.of(&locks, &name).hold();
        let waiter = outside.of(&locks, &name).locking_asleep();
        let behind = outside.of(&locks, &name).locking_asleep();
        assert!(waiter.waits() && behind.waits());
        holder.release();
        waiter.locked();
        waiter.release();
        behind.locked();
        behind.release();
    }
}

/// Checks that a message, and not a poll, wakes a waiter in at least one of five rounds. Polls are most of a second
/// apart. A busy machine may be late in some rounds.
#[track_caller]
fn assert_woken_by_a_message(name: &str, mut round: impl FnMut(&mut dyn FnMut()) -> Instant) {
    let redis = world.redis();
    for _ in 0..5 {
        let mut released = None;
        let woken = round(&mut || {
            // On a busy machine a waiter may lose its place, and queue again.
            let mut first = None;
            world.until("it is queued", || {
                first = redis.queue(name).into_iter().next();
                first.is_some()
            });
            redis.wait_until_polled(name, &first.expect("it is queued"));
            released = Some(world.now());
        });
        if woken - released.expect("it was released") < ms(600) {
            return;
        }
    }
    panic!("only polls woke the waiter");
}

pub(crate) fn a_release_wakes_another_manager(world: &World, kind: Kind) {
    let name = world.name("wakes-manager");
    let (one, other) = (world.manager(), world.manager());
    assert_woken_by_a_message(&name, |before_release| {
        let holder = kind.rival().of(&one, &name).hold();
        let waiter = kind.of(&other, &name).locking();
        before_release();
        holder.release();
        waiter.locked();
        let woken = world.now();
        waiter.release();
        woken
    });
}

pub(crate) fn a_release_wakes_another_process(world: &World, kind: Kind) {
    let name = world.name("wakes-process");
    let locks = world.manager();
    let mut child = Child::start(world.redis().url(), "");
    assert_woken_by_a_message(&name, |before_release| {
        let holder = kind.rival().of(&locks, &name).hold();
        child.wait_as(kind, &name);
        before_release();
        holder.release();
        child.locked();
        let woken = world.now();
        assert_eq!(child.ask(format_args!("release {name}")), "released");
        woken
    });
}

pub(crate) fn close_ends_waits_and_leaves_guards(world: &World, kind: Kind) {
    let redis = world.redis();
    let (name, mine) = (world.name("close"), world.name("close-mine"));
    let (one, other) = (world.manager(), world.manager());
    let theirs = kind.rival().of(&one, &name).lock().expect("it is free");
    // A guard that keeps this kind out, and a guard of this kind. Both must stay valid.
    let blocking = kind.rival().of(&other, &mine).lease(secs(9));
    let blocking = blocking.lock().expect("it is free");
    let kept = format!("{mine}:kept");
    let guard = kind.of(&other, &kept).lease(secs(9)).lock();
    let guard = guard.expect("it is free");
    // The first wait asks Redis, the second waits behind it, and the third waits for a guard of this manager.
    let asking = kind.of(&other, &name).locking();
    redis.wait_until_queued(&name, 1);
    let behind = kind.of(&other, &name).locking_asleep();
    let behind_ours = kind.of(&other, &mine).locking_asleep();
    assert!(
        LockManager::clone(&other).close(PATIENCE),
        "something is left to send"
    );
    for wait in [asking, behind, behind_ours] {
        let outcome = wait.outcome();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    redis.wait_until_queued(&name, 0);
    let again = kind.of(&other, &kept);
    assert!(matches!(again.lock(), Err(Error::Closed)));
    assert!(matches!(again.try_lock(), Err(Error::Closed)));
    assert!(matches!(again.try_lock_for(secs(1)), Err(Error::Closed)));
    assert!(matches!(again.with(secs(1), |_| ()), Err(Error::Closed)));
    redis.wait_until_renewed(&kept, 2);
    redis.wait_until_renewed(&mine, 2);
    guard.check().expect("it is held");
    guard.release().expect("it was held until now");
    blocking.release().expect("it was held until now");
    assert!(!redis.exists(&kept) && !redis.exists(&mine));
    // Other managers are not affected.
    theirs.check().expect("it is held");
    theirs.release().expect("it was held until now");
}
