//! How long a call waits, and what ends its wait.

use std::time::Duration;

use leasehold::{Error, LockManager};

use crate::matrix::Capability::{Always, InOrder};
use crate::matrix::{Chapter, bodies};
use crate::subject::{Kind, is_unreachable};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_wait_returns_none_at_its_deadline_and_not_before,
            a_wait_may_have_any_duration,
            a_release_lets_in_a_thread_of_its_manager,
            a_release_wakes_another_process,
            close_ends_waits_and_leaves_guards,
            waits_that_fill_the_pool_stop_neither_renewal_nor_release,
        ],
    ),
    (
        InOrder,
        bodies![a_thread_that_gives_up_leaves_its_place_to_the_next],
    ),
];

pub(crate) fn a_wait_returns_none_at_its_deadline_and_not_before(world: &World, kind: Kind) {
    let name = world.name("deadline");
    let (one, other) = (world.manager(), world.manager());
    let holder = kind.rival().of(&one, &name).hold();
    // The same process holds the lock, and then another process.
    for locks in [&one, &other] {
        for wait in [ms(1), ms(600), secs(5)] {
            let begun = world.now();
            let waited = kind.of(locks, &name).try_lock_for(wait);
            assert!(waited.expect("Redis replies").is_none());
            let ended = world.now();
            // The last request has 100 ms, however short the wait is. Behind a thread of the own process there is none.
            let is_behind = kind == kind.rival() && std::ptr::eq(locks, &raw const one);
            let least = if is_behind { ms(1) } else { ms(100) };
            let limit = begun + world.within(wait.max(least));
            assert!(ended >= begun + wait && ended <= limit, "{ended:?}");
        }
    }
    holder.release();
    for locks in [&one, &other] {
        let guard = kind.of(locks, &name).try_lock_for(secs(15));
        let guard = guard.expect("Redis replies").expect("it is free again");
        guard.release().expect("it was held until now");
    }
}

/// A wait of 0 is a try, and the longest wait has no end. Neither is a busy loop.
pub(crate) fn a_wait_may_have_any_duration(world: &World, kind: Kind) {
    let name = world.name("any-duration");
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.of(&one, &name);
    let nano = Duration::from_nanos(1);
    for wait in [Duration::MAX, Duration::ZERO] {
        let guard = lock.try_lock_for(wait).expect("Redis replies");
        guard.expect("it is free").release().expect("it was held");
    }
    let far = world.instant() + secs(100 * 365 * 24 * 60 * 60);
    drop(
        lock.try_lock_until(far)
            .expect("Redis replies")
            .expect("it is free"),
    );
    world.redis().wait_until_free(kind, &name);
    let holder = kind.rival().of(&other, &name).hold();
    for wait in [Duration::ZERO, nano] {
        let outcome = lock.try_lock_for(wait);
        // The one request of the shortest wait has no time left.
        let is_unanswered = wait == nano && outcome.as_ref().is_err_and(is_unreachable);
        assert!(is_unanswered || matches!(outcome, Ok(None)), "{outcome:?}");
    }
    let waiting = one.thread(move || {
        let guard = lock.try_lock_for(Duration::MAX);
        guard.map(|guard| guard.is_some())
    });
    world.redis().wait_until_queued(&name, 1);
    let before = one.stats().requests;
    world.pass(secs(10));
    let requests = one.stats().requests - before;
    assert!(requests <= 60, "{requests} requests in 10 s");
    holder.release();
    assert!(waiting.end().expect("Redis replies"));
    assert!(LockManager::clone(&one).close(Duration::MAX));
}

pub(crate) fn a_release_lets_in_a_thread_of_its_manager(world: &World, kind: Kind) {
    let name = world.name("same-process");
    let locks = world.manager();
    for (inside, outside) in [(kind, kind.rival()), (kind.rival(), kind)] {
        let holder = inside.of(&locks, &name).hold();
        let waiter = outside.of(&locks, &name).locking_asleep();
        let behind = outside.of(&locks, &name).locking_asleep();
        assert!(waiter.waits() && behind.waits());
        let mut released_at = world.now();
        holder.release();
        for next in [waiter, behind] {
            assert!(next.locked_at() <= world.within(released_at));
            released_at = world.now();
            next.release();
        }
    }
}

pub(crate) fn a_release_wakes_another_process(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("wakes"));
    let (one, other) = (world.manager(), world.manager());
    for _ in 0..5 {
        let holder = kind.rival().of(&one, &name).hold();
        let waiter = kind.of(&other, &name).locking();
        // A poll has queued it. The next one is most of a second away, so that only a message can wake the waiter in time.
        redis.wait_until_queued(&name, 1);
        let released_at = world.now();
        holder.release();
        let woken_at = waiter.locked_at();
        assert!(woken_at <= world.within(released_at), "a poll woke it");
        waiter.release();
    }
}

pub(crate) fn close_ends_waits_and_leaves_guards(world: &World, kind: Kind) {
    let redis = world.redis();
    let (name, mine) = (world.name("close"), world.name("close-mine"));
    let (one, other) = (world.manager(), world.manager());
    let theirs = kind.rival().of(&one, &name).lock().expect("it is free");
    // A guard that keeps this kind out, and a guard of this kind. Both must stay valid.
    let lease = secs(9);
    let blocking = kind.rival().of(&other, &mine).lease(lease).lock();
    let blocking = blocking.expect("it is free");
    let kept = format!("{mine}:kept");
    let guard = kind.of(&other, &kept).lease(lease).lock();
    let guard = guard.expect("it is free");
    // The first wait asks Redis, the second waits behind it, and the third waits for a guard of this manager.
    let asking = kind.of(&other, &name).locking();
    redis.wait_until_queued(&name, 1);
    let behind = kind.of(&other, &name).locking_asleep();
    let behind_ours = kind.of(&other, &mine).locking_asleep();
    let closed_at = world.now();
    let is_all_sent = LockManager::clone(&other).close(secs(30));
    assert!(is_all_sent, "something is left to send");
    for wait in [asking, behind, behind_ours] {
        let outcome = wait.outcome();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    redis.wait_until_queued(&name, 0);
    assert!(world.now() <= world.within(closed_at));
    let again = kind.of(&other, &kept);
    assert!(matches!(again.lock(), Err(Error::Closed)));
    assert!(matches!(again.try_lock(), Err(Error::Closed)));
    assert!(matches!(again.try_lock_for(secs(1)), Err(Error::Closed)));
    assert!(matches!(again.with(secs(1), |_| ()), Err(Error::Closed)));
    // Only renewals keep a lock for longer than its lease.
    world.pass(2 * lease);
    assert!(redis.exists(&kept) && redis.exists(&mine));
    guard.check().expect("it is held");
    guard.release().expect("it was held until now");
    blocking.release().expect("it was held until now");
    assert!(!redis.exists(&kept) && !redis.exists(&mine));
    // Other managers are not affected.
    theirs.check().expect("it is held");
    theirs.release().expect("it was held until now");
}

fn a_thread_that_gives_up_leaves_its_place_to_the_next(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("place"));
    let (one, other) = (world.manager(), world.manager());
    let holder = kind.rival().of(&one, &name).hold();
    let lock = kind.of(&other, &name);
    let first = other.thread(move || lock.try_lock_for(secs(2)).map(|guard| guard.is_none()));
    redis.wait_until_queued(&name, 1);
    let place = redis.queue(&name);
    let second = kind.of(&other, &name).locking_asleep();
    assert!(first.end().expect("Redis replies"));
    assert_eq!(redis.queue(&name), place, "the place was given up");
    let released_at = world.now();
    holder.release();
    assert!(second.locked_at() <= world.within(released_at));
    assert_eq!(redis.holders(&name)[0].0, place[0]);
    second.release();
}

/// Each thread waits for another name, so each sends its own requests. All share one connection.
fn waits_that_fill_the_pool_stop_neither_renewal_nor_release(world: &World, kind: Kind) {
    let (redis, mine) = (world.redis(), world.name("mine"));
    let others = [1, 2, 3, 4, 5, 6, 7, 8].map(|number| world.name(&format!("other-{number}")));
    let (holder, locks) = (world.manager(), world.build(|it| it.pool_size(1)));
    let held = others.each_ref().map(|name| {
        let guard = kind.rival().of(&holder, name).lock();
        guard.expect("it is free")
    });
    let guard = kind.of(&locks, &mine).lease(secs(6)).lock();
    let guard = guard.expect("it is free");
    let waits = others
        .each_ref()
        .map(|name| kind.of(&locks, name).locking());
    for name in &others {
        redis.wait_until_queued(name, 1);
    }
    let renewed = locks.stats().renewed;
    world.until("it is renewed", || locks.stats().renewed > renewed + 1);
    guard.check().expect("it is held");
    let released_at = world.now();
    guard.release().expect("there is a connection for it");
    assert!(world.now() <= world.within(released_at));
    redis.wait_until_free(kind, &mine);
    drop(held);
    for wait in waits {
        wait.locked();
        wait.release();
    }
}
