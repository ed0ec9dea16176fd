//! Threads and processes that a lock keeps out or lets in, and the order in which it lets them in.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use leasehold::{LeaseState, LockManager};

use crate::support::{
    Child, Kind, PATIENCE, add_under, added, manager, ms, name, secs, shared, task, wait_until,
};

pub(super) fn a_free_lock_is_granted_and_released(kind: Kind) {
    let redis = shared();
    let name = name("smoke");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let guard = kind.of(&one, &name).lock().expect("it is free");
    guard.check().expect("it is held");
    let keys = kind.keys(&name);
    assert_eq!(guard.leases().len(), keys.len());
    for (lease, key) in guard.leases().iter().zip(&keys) {
        assert_eq!(lease.name(), key);
        assert_eq!(lease.state(), LeaseState::Held);
        assert_eq!(lease.fence() > 0, kind.has_fences());
        assert!(lease.remaining() > secs(15) && lease.remaining() < secs(30));
        let holders = redis.holders(key);
        let [(owner, left)] = &holders[..] else {
            panic!("one holds it: {holders:?}");
        };
        assert_eq!(owner, lease.owner());
        assert!(*left > secs(15) && *left <= secs(30), "{left:?}");
    }
    guard.release().expect("it was held until now");
    assert!(keys.iter().all(|key| !redis.exists(key)));
    let next = kind.of(&other, &name).try_lock().expect("Redis replies");
    let next = next.expect("it is free");
    next.release().expect("it was held until now");
}

pub(super) fn released_on_drop(kind: Kind) {
    let redis = shared();
    let name = name("drop");
    let guard = kind.of(&manager(redis.url()), &name).lock();
    let guard = guard.expect("it is free");
    let keys = kind.keys(&name);
    assert!(keys.iter().all(|key| redis.exists(key)));
    drop(guard);
    assert!(keys.iter().all(|key| !redis.exists(key)));
}

pub(super) fn released_on_panic(kind: Kind) {
    let redis = shared();
    let name = name("panic");
    let lock = kind.of(&manager(redis.url()), &name);
    let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let _guard = lock.lock().expect("it is free");
        assert!(redis.exists(&name));
        // `panic!` would print a message that looks like a failure.
        panic::resume_unwind(Box::new(()));
    }));
    assert!(panicked.is_err());
    assert!(kind.keys(&name).iter().all(|key| !redis.exists(key)));
    let next = lock.try_lock().expect("Redis replies");
    assert!(next.is_some(), "there is no poisoning");
}

pub(super) fn keeps_out_threads_of_its_manager(kind: Kind) {
    let name = name("threads");
    let locks = manager(shared().url());
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

pub(super) fn keeps_out_other_managers(kind: Kind) {
    let redis = shared();
    let name = name("managers");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
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

pub(super) fn keeps_out_other_processes(kind: Kind) {
    let redis = shared();
    let name = name("processes");
    let locks = manager(redis.url());
    let mut child = Child::start(redis.url(), "");
    child.lock_as(kind.rival(), &name);
    let lock = kind.of(&locks, &name);
    assert!(lock.try_lock().expect("Redis replies").is_none());
    assert_eq!(child.ask(format_args!("state {name}")), "Held");
    assert_eq!(child.ask(format_args!("release {name}")), "released");
    let guard = lock.try_lock().expect("Redis replies");
    let guard = guard.expect("it is free again");
    let rival = kind.rival().name();
    let answer = child.ask(format_args!("try@{rival} {name} 0"));
    assert_eq!(answer, "held");
    guard.release().expect("it was held until now");
    child.lock_as(kind.rival(), &name);
}

pub(super) fn three_hundred_threads_finish(kind: Kind) {
    let redis = shared();
    let name = name("crowd");
    let locks = manager(redis.url());
    let tasks: Vec<_> = (0..300)
        .map(|_| {
            let lock = kind.of(&locks, &name);
            task(move || {
                let guard = lock.lock().expect("it becomes free");
                guard.release().expect("it was held until now");
            })
        })
        .collect();
    for task in tasks {
        task.end();
    }
    wait_until("it is free", || {
        kind.keys(&name).iter().all(|key| !redis.exists(key))
    });
}

/// Threads of two managers and of another process add to a number in Redis. The threads of the managers also add to a
/// number in memory, so often that the lock goes both ways: from thread to thread and over Redis.
pub(super) fn no_update_is_lost(kind: Kind) {
    const QUICK_TURNS: u32 = 50;
    let redis = shared();
    let name = name("updates");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let crowd = kind.crowd().map(|crowd| crowd.of(&one, &name).hold());
    let mut child = Child::start(redis.url(), "");
    child.say(format_args!("add@{} {name} 4 15", kind.name()));
    let counter = Arc::new(AtomicU32::new(0));
    let tasks = [&one, &other, &one, &other].map(|locks| {
        let (lock, counter) = (kind.of(locks, &name), Arc::clone(&counter));
        task(move || {
            add_under(redis, &lock, 15);
            for _ in 0..QUICK_TURNS {
                let guard = lock.lock().expect("it becomes free");
                // A second thread under the lock would read the same value.
                let value = counter.load(Ordering::Relaxed);
                thread::yield_now();
                counter.store(value + 1, Ordering::Relaxed);
                guard.release().expect("it was held until now");
            }
        })
    });
    for task in tasks {
        task.end();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 4 * QUICK_TURNS);
    assert_eq!(child.hear(), "added");
    let (sum, fences) = added(redis, &name);
    assert_eq!((sum, fences.len()), (120, 120));
    assert!(fences.is_sorted_by(|a, b| kind.rises(*a, *b)), "{fences:?}");
    drop(crowd);
}

pub(super) fn serves_processes_in_the_order_in_which_they_came(kind: Kind) {
    let redis = shared();
    let name = name("order");
    let locks = manager(redis.url());
    let crowd = kind.crowd().map(|crowd| crowd.of(&locks, &name).hold());
    let mut holder = kind.of(&locks, &name).hold();
    let waiters: Vec<_> = (0..4)
        .map(|before| {
            let waiter = kind.of(&manager(redis.url()), &name).locking();
            redis.wait_until_queued(&name, before + 1);
            waiter
        })
        .collect();
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
        assert!(waiters.as_slice().iter().all(|waiter| waiter.waits()));
    }
    holder.release();
    drop(crowd);
}

pub(super) fn several_hold_it_at_once(kind: Kind) {
    let redis = shared();
    let name = name("several");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
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

pub(super) fn waiters_that_can_share_are_granted_together(kind: Kind) {
    let redis = shared();
    let name = name("together");
    let rival = kind.rival().of(&manager(redis.url()), &name);
    let holder = rival.hold();
    let waiters: Vec<_> = (0..3)
        .map(|before| {
            let waiter = kind.of(&manager(redis.url()), &name).locking();
            redis.wait_until_queued(&name, before + 1);
            waiter
        })
        .collect();
    assert!(waiters.iter().all(|waiter| waiter.waits()));
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
    let outside = rival.try_lock_for(ms(200));
    assert!(!matches!(outside, Ok(Some(_))));
    for waiter in waiters {
        waiter.release();
    }
    assert!(
        rival
            .try_lock_for(secs(15))
            .expect("Redis replies")
            .is_some()
    );
}

pub(super) fn sharers_and_exclusive_owners_do_not_starve_each_other(kind: Kind) {
    let managers = [(); 3].map(|()| manager(shared().url()));
    // The lock goes from process to process, and from thread to thread.
    for crowd in [[0, 1, 2], [0, 0, 0]] {
        let crowd = crowd.map(|number| &managers[number]);
        a_crowd_lets_in(kind, kind.rival(), crowd);
        a_crowd_lets_in(kind.rival(), kind, crowd);
    }
}

fn a_crowd_lets_in(kind: Kind, rival: Kind, crowd: [&LockManager; 3]) {
    let redis = shared();
    let name = name("starve");
    // Each thread holds the lock most of the time, and for a different length. So at nearly any time some thread holds
    // it. The threads stop when `stop` is dropped.
    let stop = Arc::new(());
    let mut holds = [47, 61, 83].into_iter().map(ms);
    let busy = crowd.map(|locks| {
        let held = holds.next().expect("a length for each thread");
        let (lock, stopped) = (kind.of(locks, &name), Arc::downgrade(&stop));
        task(move || {
            while stopped.strong_count() > 0 {
                let guard = lock.lock().expect("it becomes free");
                // The test needs time to pass: the different lengths put the threads out of step.
                thread::sleep(held);
                drop(guard);
            }
        })
    });
    let rival = rival.of(&manager(redis.url()), &name);
    for _ in 0..3 {
        wait_until("they are granted", || !redis.holders(&name).is_empty());
        let guard = rival.try_lock_for(PATIENCE).expect("Redis replies");
        let guard = guard.expect("it has its turn");
        guard.release().expect("it was held until now");
    }
    drop(stop);
    for task in busy {
        task.end();
    }
}
