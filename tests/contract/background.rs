//! Releases that the renewal thread sends in the background.

use leasehold_simulator::LinkFault;

use crate::matrix::Capability::{Always, OneServer};
use crate::matrix::{Chapter, bodies};
use crate::subject::{Kind, is_unreachable};
use crate::world::{World, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_release_in_the_background_lets_its_process_lock_again,
            a_release_in_the_background_outlives_its_manager,
        ],
    ),
    (
        OneServer,
        bodies![a_lock_whose_release_cannot_be_sent_is_not_held_for_its_process],
    ),
];

fn a_release_in_the_background_lets_its_process_lock_again(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("background"));
    let locks = world.build(|it| it.background_release(true));
    let mut last = 0;
    for (inside, outside) in [(kind, kind.rival()), (kind.rival(), kind)] {
        for _ in 0..3 {
            let guard = inside.of(&locks, &name).lock().expect("it is free");
            assert!(guard.fence() >= last);
            last = guard.fence();
            guard.release().expect("it was held until now");
            let again = outside.of(&locks, &name).try_lock();
            let again = again.expect("Redis replies").expect("it was released");
            assert!(again.fence() >= last);
            // A thread that waits is woken.
            let waiter = inside.of(&locks, &name).locking_asleep();
            let released_at = world.now();
            drop(again);
            assert!(waiter.locked_at() <= world.granted_by(released_at));
            waiter.release();
        }
    }
    assert!(locks.close(secs(30)), "something is left to send");
    redis.wait_until_free(kind, &name);
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
