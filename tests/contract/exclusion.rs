//! Threads and processes that a lock keeps out or lets in, and the order in which it lets them in.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::LeaseState;

use crate::matrix::Capability::{Always, Excludes, InOrder, Shares};
use crate::matrix::{Chapter, bodies};
use crate::redis::Redis;
use crate::subject::{Holder, Kind, Subject};
use crate::world::{Locks, World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_free_lock_is_granted_and_released,
            released_on_drop,
            released_on_panic,
            keeps_out_threads_of_its_manager,
            keeps_out_other_processes,
            three_hundred_threads_finish,
        ],
    ),
    (Excludes, bodies![no_update_is_lost]),
    (
        InOrder,
        bodies![serves_processes_in_the_order_in_which_they_came],
    ),
    (
        Shares,
        bodies![
            several_hold_it_at_once,
            waiters_that_can_share_are_granted_together,
            sharers_and_exclusive_owners_do_not_starve_each_other,
        ],
    ),
];

pub(crate) fn a_free_lock_is_granted_and_released(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("smoke"));
    let (one, other) = (world.manager(), world.manager());
    let guard = kind.of(&one, &name).lock().expect("it is free");
    guard.check().expect("it is held");
    let keys = kind.keys(&name);
    assert_eq!(guard.leases().len(), keys.len());
    for (lease, key) in guard.leases().iter().zip(&keys) {
        assert_eq!(lease.name(), key);
        assert_eq!(lease.state(), LeaseState::Held);
        assert_eq!(lease.fence() > 0, kind.has_fences());
        assert!(lease.remaining() < secs(30));
        assert!(world.within(lease.remaining()) > secs(29));
        let holders = redis.holders(key);
        let [(owner, left)] = &holders[..] else {
            panic!("one holds it: {holders:?}");
        };
        assert_eq!(owner, lease.owner());
        assert!(
            world.within(*left) > secs(29) && *left <= secs(30),
            "{left:?}"
        );
    }
    guard.release().expect("it was held until now");
    redis.is_free(kind, &name);
    let next = kind.of(&other, &name).try_lock().expect("Redis replies");
    let next = next.expect("it is free");
    next.release().expect("it was held until now");
}

pub(crate) fn released_on_drop(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("drop"));
    let guard = kind.of(&world.manager(), &name).lock();
    let guard = guard.expect("it is free");
    assert!(kind.keys(&name).iter().all(|key| redis.exists(key)));
    drop(guard);
    redis.is_free(kind, &name);
}

pub(crate) fn released_on_panic(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("panic"));
    let lock = kind.of(&world.manager(), &name);
    let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let _guard = lock.lock().expect("it is free");
        assert!(redis.exists(&name));
        // `panic!` would print a message that looks like a failure.
        panic::resume_unwind(Box::new(()));
    }));
    assert!(panicked.is_err());
    redis.is_free(kind, &name);
    let next = lock.try_lock().expect("Redis replies");
    assert!(next.is_some(), "there is no poisoning");
}

pub(crate) fn keeps_out_threads_of_its_manager(world: &World, kind: Kind) {
    let name = world.name("threads");
    let locks = world.manager();
    for (inside, outside) in [(kind, kind.rival()), (kind.rival(), kind)] {
        let holder = inside.of(&locks, &name).hold();
        let outside = outside.of(&locks, &name);
        for _ in 0..3 {
            assert!(outside.try_lock().expect("Redis replies").is_none());
        }
        holder.release();
        let guard = outside.try_lock().expect("Redis replies");
        let guard = guard.expect("it is free again");
        guard.release().expect("it was held until now");
    }
}

pub(crate) fn keeps_out_other_processes(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("processes"));
    let (one, other) = (world.manager(), world.manager());
    for (inside, outside) in [(kind, kind.rival()), (kind.rival(), kind)] {
        let guard = inside.of(&one, &name).lock().expect("it is free");
        let outside = outside.of(&other, &name);
        for _ in 0..3 {
            assert!(outside.try_lock().expect("Redis replies").is_none());
        }
        assert!(redis.queue(&name).is_empty(), "a try queued");
        guard.check().expect("the tries cost it nothing");
        guard.release().expect("it was held until now");
        let guard = outside.try_lock().expect("Redis replies");
        let guard = guard.expect("it is free again");
        guard.release().expect("it was held until now");
    }
}

pub(crate) fn three_hundred_threads_finish(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("crowd"));
    let locks = world.manager();
    let tasks: Vec<_> = (0..300)
        .map(|_| {
            let lock = kind.of(&locks, &name);
            locks.thread(move || {
                let guard = lock.lock().expect("it becomes free");
                guard.release().expect("it was held until now");
            })
        })
        .collect();
    for task in tasks {
        task.end();
    }
    world.until("it is free", || {
        kind.keys(&name).iter().all(|key| !redis.exists(key))
    });
}

/// Adds to a number in Redis, and to a number in memory, so often that the lock goes both ways: from thread to thread, and
/// over Redis.
pub(crate) fn no_update_is_lost(world: &World, kind: Kind) {
    const TURNS: u32 = 5;
    const QUICK_TURNS: u32 = 20;
    let (redis, name) = (world.redis(), world.name("updates"));
    let managers = [(); 3].map(|()| world.manager());
    let crowd = kind
        .crowd()
        .map(|crowd| crowd.of(&managers[0], &name).hold());
    let counter = Arc::new(AtomicU32::new(0));
    let tasks = [0, 1, 2, 0, 1].map(|process| {
        let locks = &managers[process];
        let (lock, counter) = (kind.of(locks, &name), Arc::clone(&counter));
        let (world, redis) = (world.clone(), redis.clone());
        locks.thread(move || {
            add_under(&world, &redis, &lock, TURNS);
            for _ in 0..QUICK_TURNS {
                let guard = lock.lock().expect("it becomes free");
                // A second thread under the lock would read the same value.
                let value = counter.load(Ordering::Relaxed);
                world.pass(ms(1));
                counter.store(value + 1, Ordering::Relaxed);
                guard.release().expect("it was held until now");
            }
        })
    });
    for task in tasks {
        task.end();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 5 * QUICK_TURNS);
    let (sum, fences) = added(&redis, &name);
    assert_eq!((sum, fences.len() as u32), (5 * TURNS, 5 * TURNS));
    assert!(fences.is_sorted_by(|a, b| kind.rises(*a, *b)), "{fences:?}");
    drop(crowd);
}

/// Adds one to a number in Redis, and the fence to a list.
pub(crate) fn add_under(world: &World, redis: &Redis, lock: &Subject, times: u32) {
    let (sum, fences) = sum_and_fences(lock.name());
    for _ in 0..times {
        let guard = lock.lock().expect("it becomes free");
        let value: Option<u32> = redis.ask(&["GET", &sum]);
        world.pass(ms(1));
        let () = redis.ask(&["RPUSH", &fences, &guard.fence().to_string()]);
        let () = redis.ask(&["SET", &sum, &(value.unwrap_or(0) + 1).to_string()]);
        guard.release().expect("it was held until now");
    }
}

/// Returns the number, and the fences in the order of the list. Deletes both.
pub(crate) fn added(redis: &Redis, name: &str) -> (u32, Vec<u64>) {
    let (sum, fences) = sum_and_fences(name);
    let found = (
        redis.ask(&["GET", &sum]),
        redis.ask(&["LRANGE", &fences, "0", "-1"]),
    );
    let _: [u32; 2] = [&sum, &fences].map(|key| redis.ask(&["DEL", key]));
    found
}

fn sum_and_fences(name: &str) -> (String, String) {
    (format!("{name}:sum"), format!("{name}:fences"))
}

pub(crate) fn serves_processes_in_the_order_in_which_they_came(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("order"));
    let locks = world.manager();
    let crowd = kind.crowd().map(|crowd| crowd.of(&locks, &name).hold());
    let mut holder = kind.of(&locks, &name).hold();
    let waiters = waiters(world, kind, &name, 4);
    let queue = redis.queue(&name);
    let mut waiters = waiters.into_iter();
    for owner in &queue {
        holder.release();
        // The script of the release hands the lock over, so no other client can take it in between.
        let holders = redis.holders(&name);
        assert!(holders.iter().any(|(holder, _)| holder == owner));
        holder = waiters
            .next()
            .expect("one waiter for each owner in the queue");
        holder.locked();
        assert!(waiters.as_slice().iter().all(Holder::waits));
    }
    holder.release();
    drop(crowd);
}

/// Makes processes queue one after the other.
pub(crate) fn waiters(world: &World, kind: Kind, name: &str, count: usize) -> Vec<Holder> {
    let queue = |before: usize| {
        let waiter = kind.of(&world.manager(), name).locking();
        world.redis().wait_until_queued(name, before + 1);
        waiter
    };
    (0..count).map(queue).collect()
}

pub(crate) fn several_hold_it_at_once(world: &World, kind: Kind) {
    let name = world.name("several");
    let (one, other) = (world.manager(), world.manager());
    let first = kind.of(&one, &name).lock().expect("there is room");
    let second = kind.of(&other, &name).try_lock().expect("Redis replies");
    let second = second.expect("there is room");
    // Another thread of the same manager.
    let third = kind.of(&one, &name).hold();
    let rival = kind.rival().of(&other, &name);
    assert!(rival.try_lock().expect("Redis replies").is_none());
    first.release().expect("it was held until now");
    third.release();
    assert!(rival.try_lock().expect("Redis replies").is_none());
    second.release().expect("it was held until now");
    assert!(rival.try_lock().expect("Redis replies").is_some());
}

pub(crate) fn waiters_that_can_share_are_granted_together(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("together"));
    let rival = kind.rival().of(&world.manager(), &name);
    let holder = rival.hold();
    let waiters = waiters(world, kind, &name, 3);
    assert!(waiters.iter().all(Holder::waits));
    holder.release();
    // On one server the script of the release grants it to all, so that none waits for another's guard. A quorum wakes
    // them, and they ask.
    if redis.nodes().len() == 1 {
        assert_eq!(redis.holders(&name).len(), 3);
    }
    for waiter in &waiters {
        waiter.locked();
    }
    assert_eq!(redis.holders(&name).len(), 3);
    assert!(rival.try_lock().expect("Redis replies").is_none());
    let outside = rival.try_lock_for(ms(200)).expect("Redis replies");
    assert!(outside.is_none());
    for waiter in waiters {
        waiter.release();
    }
    let next = rival.try_lock_for(secs(15)).expect("Redis replies");
    assert!(next.is_some());
}

pub(crate) fn sharers_and_exclusive_owners_do_not_starve_each_other(world: &World, kind: Kind) {
    let managers = [(); 3].map(|()| world.manager());
    // The lock goes from process to process, and from thread to thread.
    for (number, crowd) in [[0, 1, 2], [0, 0, 0]].into_iter().enumerate() {
        let crowd = crowd.map(|number: usize| &managers[number]);
        a_crowd_lets_in(world, &format!("a{number}"), kind, kind.rival(), crowd);
        a_crowd_lets_in(world, &format!("b{number}"), kind.rival(), kind, crowd);
    }
}

fn a_crowd_lets_in(world: &World, name: &str, kind: Kind, rival: Kind, crowd: [&Locks; 3]) {
    let (redis, name) = (world.redis(), world.name(name));
    // Each thread holds the lock most of the time, and for a different length. So at nearly any time some thread holds it.
    let stop = world.flag();
    let mut holds = [47, 61, 83].into_iter().map(ms);
    let busy = crowd.map(|locks| {
        let held = holds.next().expect("a length for each thread");
        let (lock, stop, world) = (kind.of(locks, &name), stop.clone(), world.clone());
        locks.thread(move || {
            while !stop.is_raised() {
                let guard = lock.lock().expect("it becomes free");
                world.pass(held);
                drop(guard);
            }
        })
    });
    let rival = rival.of(&world.manager(), &name);
    for _ in 0..3 {
        world.until("they are granted", || !redis.holders(&name).is_empty());
        let guard = rival.lock().expect("it has its turn");
        guard.release().expect("it was held until now");
    }
    stop.raise();
    for task in busy {
        task.end();
    }
}
