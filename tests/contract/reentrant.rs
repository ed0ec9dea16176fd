//! What only a reentrant mutex has: a thread locks it again.

use std::panic;

use leasehold::{Error, LeaseState, ReentrantMutex};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::subject::{Kind, lost};
use crate::world::{Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "reentrant",
    &Topology::ALL,
    subject_bodies![
        locking_again_sends_nothing_and_changes_no_lease,
        the_last_guard_releases_whichever_it_is,
        others_wait_for_the_last_guard,
        each_handle_of_a_name_and_manager_is_the_same_lock,
        a_lost_lock_is_refused_until_all_its_guards_are_dropped,
        closures_nest_with_closures_and_guards,
    ],
);

const NAME: &str = "n";

fn received(world: &World) -> u64 {
    (0..world.servers()).map(|one| world.received(one)).sum()
}

fn locking_again_sends_nothing_and_changes_no_lease(world: &World) {
    let (redis, locks) = (world.redis(), world.manager());
    let mutex = locks.reentrant_mutex(NAME).renew(false);
    let outer = mutex.clone().lease(secs(60)).lock().expect("it is free");
    // The votes of a quorum come one after the other.
    world.pass(secs(1));
    let before = received(world);
    for (lease, renew) in [(ms(10), false), (ms(10), true), (secs(600), true)] {
        let again = mutex.clone().lease(lease).renew(renew);
        let left = outer.remaining();
        let inner = again.lock().expect("this thread holds it");
        let tried = again.try_lock().expect("this thread holds it");
        let waited = again.try_lock_for(secs(1)).expect("this thread holds it");
        again.with(secs(1), |_| ()).expect("this thread holds it");
        let guards = [inner, tried.expect("again"), waited.expect("again")];
        for guard in guards {
            assert_eq!(
                (guard.fence(), guard.owner()),
                (outer.fence(), outer.owner())
            );
            assert!(guard.remaining() <= left && guard.remaining() > secs(50));
            guard.release().expect("it is held");
        }
        let ttl = redis.ttl(NAME).expect("it expires");
        assert!(ttl <= secs(60) && ttl > secs(50), "{ttl:?}");
    }
    assert_eq!(received(world), before);
    assert_eq!(outer.state(), LeaseState::Held);
    outer.release().expect("it is held");
    assert!(received(world) > before, "the last one does");
}

fn the_last_guard_releases_whichever_it_is(world: &World) {
    let redis = world.redis();
    let mutex = world.manager().reentrant_mutex(NAME);
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut guards = [(); 3].map(|()| Some(mutex.lock().expect("it is free, or ours")));
        for index in order {
            assert!(redis.exists(NAME), "{order:?}");
            drop(guards[index].take());
        }
        redis.wait_until_free(Kind::Reentrant, NAME);
    }
}

fn others_wait_for_the_last_guard(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    let mutex = one.reentrant_mutex(NAME);
    let (outer, inner) = (mutex.lock(), mutex.lock());
    let outer = outer.expect("it is free");
    let inner = inner.expect("this thread holds it");
    let fence = outer.fence();
    let waiters = [&one, &other].map(|locks| {
        let mutex = locks.reentrant_mutex(NAME);
        locks.thread(move || mutex.lock().map(|guard| guard.fence()))
    });
    drop(outer);
    world.pass(secs(3));
    assert!(!waiters.iter().any(Task::has_ended));
    inner.release().expect("it was held until now");
    for waiter in waiters {
        assert!(waiter.end().expect("it becomes free") > fence);
    }
}

fn each_handle_of_a_name_and_manager_is_the_same_lock(world: &World) {
    let locks = world.manager();
    let guard = locks.reentrant_mutex(NAME).lock().expect("it is free");
    let again = locks.clone().reentrant_mutex(NAME).try_lock();
    let again = again.expect("this thread holds it").expect("again");
    assert_eq!(again.owner(), guard.owner());
    // A plain mutex, another manager and another name are not.
    assert!(locks.try_lock(NAME).expect("Redis replies").is_none());
    let elsewhere = world.manager().reentrant_mutex(NAME);
    assert!(elsewhere.try_lock().expect("Redis replies").is_none());
    let beside = locks.reentrant_mutex("beside").lock().expect("it is free");
    assert_ne!(beside.owner(), guard.owner());
    drop((guard, again));
    let plain = locks.lock(NAME).expect("it is free");
    let mutex = locks.reentrant_mutex(NAME);
    assert!(mutex.try_lock().expect("Redis replies").is_none());
    drop(plain);
    beside.release().expect("it was held until now");
}

fn a_lost_lock_is_refused_until_all_its_guards_are_dropped(world: &World) {
    let mutex = world.manager().reentrant_mutex(NAME);
    let outer = mutex.clone().lease(secs(2)).renew(false).lock();
    let outer = outer.expect("it is free");
    let inner = mutex.lock().expect("this thread holds it");
    let (owner, fence) = (outer.owner().to_owned(), outer.fence());
    for told in [outer.on_lost(), inner.on_lost()] {
        assert_eq!(world.recv(&told).fence, fence);
    }
    for _ in 0..2 {
        assert_eq!(lost(mutex.lock()).fence, fence);
        lost(mutex.try_lock());
        lost(mutex.try_lock_for(secs(1)));
        lost(mutex.with(secs(1), |_| -> () { panic!("it never runs") }));
    }
    // Other processes do not wait for the guards that are left here.
    let elsewhere = world.manager().reentrant_mutex(NAME);
    drop(elsewhere.lock().expect("it is free"));
    lost(inner.release());
    lost(mutex.lock());
    lost(outer.release());
    let anew = mutex.lock().expect("it is free");
    assert_ne!(anew.owner(), owner);
    assert!(anew.fence() > fence);
}

/// Locks `depth` times, each time under the guard before. Returns the number of guards.
fn down(mutex: &ReentrantMutex, depth: u32, fence: Option<u64>) -> u32 {
    let below = mutex.with(secs(10), |lease| {
        assert!(fence.is_none_or(|fence| fence == lease.fence()));
        match depth {
            0 => 0,
            _ => down(mutex, depth - 1, Some(lease.fence())),
        }
    });
    below.expect("it is free, or ours") + 1
}

fn closures_nest_with_closures_and_guards(world: &World) {
    let redis = world.redis();
    let locks = world.manager();
    let mutex = locks.reentrant_mutex(NAME);
    assert_eq!(down(&mutex, 20, None), 21);
    redis.wait_until_free(Kind::Reentrant, NAME);
    let guard = mutex.lock().expect("it is free");
    mutex.with(secs(1), |_| ()).expect("this thread holds it");
    assert!(redis.exists(NAME));
    // A closure that panics ends its guard alone.
    let panics = || mutex.with(secs(1), |_| panic::resume_unwind(Box::new(())));
    let panicked: Result<Result<(), Error>, _> =
        panic::catch_unwind(panic::AssertUnwindSafe(panics));
    assert!(panicked.is_err());
    guard.check().expect("it is held");
    let nested = mutex.with(secs(1), |_| {
        drop(guard);
        assert!(redis.exists(NAME));
    });
    nested.expect("this thread held it");
    redis.wait_until_free(Kind::Reentrant, NAME);
}
