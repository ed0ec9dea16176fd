//! Releases that guards leave to the renewal thread.

use leasehold::{Error, LockManager};
use leasehold_simulator::{LinkFault, Topology};

use crate::matrix::Capability::{Always, OneServer};
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::subject::{Kind, is_unreachable, lost};
use crate::world::{Locks, World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_queued_release_lets_its_process_lock_again,
            a_short_wait_outlasts_a_queued_release,
            a_queued_release_wakes_another_process,
            a_queued_release_whose_answer_was_lost_is_repeated,
            close_returns_whether_queued_releases_were_sent,
            a_release_in_the_background_outlives_its_manager,
            a_queued_release_is_lost_with_its_process,
        ],
    ),
    (
        OneServer,
        bodies![a_lock_whose_release_cannot_be_sent_is_not_held_for_its_process],
    ),
];

pub(crate) const BODIES_OF_ONE: Subject = (
    "background_releases",
    &[Topology::Single],
    subject_bodies![
        a_queued_release_lets_its_process_lock_as_another_kind,
        many_queued_releases_share_requests,
    ],
);

fn background(world: &World) -> Locks {
    world.build(|it| it.background_release(true))
}

/// The earlier release may not have been sent yet.
fn a_queued_release_lets_its_process_lock_again(world: &World, kind: Kind) {
    let (locks, name) = (background(world), world.name("again"));
    let lock = kind.of(&locks, &name);
    let mut last = 0;
    for _ in 0..20 {
        let guard = lock.try_lock().expect("Redis replies");
        let guard = guard.expect("it was released");
        assert!(guard.fence() >= last);
        last = guard.fence();
        guard.release().expect("this process knows of no loss");
    }
    let lost_here = lock.lease(secs(2)).unrenewed().lock();
    let lost_here = lost_here.expect("it is free");
    world.pass(secs(2));
    lost(lost_here.release());
    assert!(locks.close(secs(30)), "something is left to send");
    world.redis().wait_until_free(kind, &name);
}

/// Any request may take 100 ms, however short the wait is. So may the release before it.
fn a_short_wait_outlasts_a_queued_release(world: &World, kind: Kind) {
    let (locks, name) = (background(world), world.name("short"));
    let lock = kind.of(&locks, &name);
    for wait in [ms(1), ms(2), ms(5)] {
        lock.lock().expect("it is free").release().expect("held");
        let guard = lock.try_lock_for(wait).expect("nothing has failed");
        guard.expect("it was released").release().expect("held");
    }
    assert!(locks.close(secs(30)), "something is left to send");
}

fn a_queued_release_wakes_another_process(world: &World, kind: Kind) {
    let (locks, name) = (background(world), world.name("wakes"));
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let waiting = kind.rival().of(&world.manager(), &name).locking();
    world.redis().wait_until_queued(&name, 1);
    let (fence, released_at) = (guard.fence(), world.now());
    guard.release().expect("this process knows of no loss");
    assert!(waiting.locked_at() <= world.within(released_at));
    assert!(waiting.locked() > fence || !kind.has_fences());
    waiting.release();
}

fn a_queued_release_whose_answer_was_lost_is_repeated(world: &World, kind: Kind) {
    let name = world.name("repeated");
    for fault in [LinkFault::Close, LinkFault::LoseAnswers] {
        let limit = secs(2);
        let locks = world.build(|it| {
            let it = it.io_timeout(limit).node_timeout(limit);
            it.background_release(true).lease(secs(600))
        });
        let guard = kind.of(&locks, &name).lock().expect("it is free");
        locks.strike(fault);
        guard.release().expect("no request is sent");
        locks.wait_until_struck();
        locks.heal();
        // Its own process asks after the release.
        let again = kind.of(&locks, &name).try_lock_for(secs(30));
        drop(again.expect("Redis replies").expect("it was released"));
        assert!(locks.close(secs(30)), "something is left to send");
        world.redis().wait_until_free(kind, &name);
    }
}

fn close_returns_whether_queued_releases_were_sent(world: &World, kind: Kind) {
    let (locks, name) = (background(world), world.name("closed"));
    let guard = kind.of(&locks, &name).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    world.pause_servers();
    guard.release().expect("no request is sent");
    assert!(!locks.close(ms(50)));
    world.resume_servers();
    assert!(locks.close(secs(60)));
    world.redis().wait_until_free(kind, &name);
    let closed = kind.of(&locks, &name).try_lock();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
}

fn a_release_in_the_background_outlives_its_manager(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("outlives"));
    let locks = world.build(|it| it.background_release(true));
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    drop(locks);
    let released_at = world.now();
    drop(guard);
    redis.wait_until_free(kind, &name);
    assert!(world.now() <= world.within(released_at));
}

/// It is not if the program called `close` before.
fn a_queued_release_is_lost_with_its_process(world: &World, kind: Kind) {
    let (redis, name, lease) = (world.redis(), world.name("lost-release"), secs(12));
    let locks = background(world);
    let guard = kind.of(&locks, &name).lease(lease).lock();
    let guard = guard.expect("it is free");
    locks.strike(LinkFault::LoseRequests);
    guard.release().expect("this process knows of no loss");
    locks.wait_until_struck();
    locks.kill();
    assert_eq!(redis.holders(&name).len(), 1);
    world.pass(world.within(lease));
    redis.is_free(kind, &name);
}

/// "Held", by an owner that this process has released, would be no answer.
fn a_lock_whose_release_cannot_be_sent_is_not_held_for_its_process(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("unsent"));
    let limit = secs(2);
    let locks = world.build(|it| it.background_release(true).io_timeout(limit));
    let guard = kind.of(&locks, &name).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    locks.strike(LinkFault::LoseRequests);
    guard.release().expect("the renewal thread sends it");
    let lock = kind.rival().of(&locks, &name);
    for wait in [secs(0), limit / 2, limit] {
        let begun = world.now();
        let tried = lock.try_lock_for(wait);
        assert!(tried.as_ref().is_err_and(is_unreachable), "{tried:?}");
        assert!(world.now() <= world.within(begun + 2 * limit));
    }
    locks.heal();
    lock.hold().release();
    assert!(locks.close(secs(30)), "something is left to send");
    redis.wait_until_free(kind, &name);
}

fn a_queued_release_lets_its_process_lock_as_another_kind(world: &World) {
    let locks = background(world);
    let kinds = [
        Kind::Writer,
        Kind::Reader,
        Kind::Permit,
        Kind::Mutex,
        Kind::Multi,
        Kind::AllPermits,
    ];
    for kind in kinds.iter().cycle().take(60) {
        let guard = kind.of(&locks, "n").try_lock().expect("Redis replies");
        let guard = guard.unwrap_or_else(|| panic!("{kind:?}: it was released"));
        guard.release().expect("this process knows of no loss");
    }
    assert!(locks.close(secs(30)), "something is left to send");
}

fn many_queued_releases_share_requests(world: &World) {
    let locks = background(world);
    let lock = |locks: &LockManager, n| locks.lock(format!("n{n}")).expect("it is free");
    let guards: Vec<_> = (0..300).map(|n| lock(&locks, n)).collect();
    let before = locks.stats().requests;
    drop(guards);
    assert!(locks.close(secs(30)), "something is left to send");
    assert!(world.redis().keys("n*").is_empty());
    let requests = locks.stats().requests - before;
    assert!(requests <= 30, "{requests} requests for 300 releases");
}
