//! The mutex between real processes, which the tests kill and stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::support::{
    Child, PATIENCE, SLACK, Task, Topology, add, added, build, companions_of, locking, manager, ms,
    name, on, patient, secs, shared, task, wait_until,
};

#[test]
fn excludes_between_processes() {
    let redis = shared();
    let name = name("processes");
    let locks = manager(redis.url());
    let mut children: Vec<_> = (0..3).map(|_| Child::start(redis.url(), "")).collect();
    for child in &mut children {
        child.say(format_args!("add {name} 4 20"));
    }
    add(redis, &locks, &name, 20);
    for child in &children {
        assert_eq!(child.hear(), "added");
    }
    let (sum, fences) = added(redis, &name);
    assert_eq!((sum, fences.len()), (260, 260));
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn a_killed_holder_delays_others_by_its_lease() {
    let redis = shared();
    let name = name("killed-holder");
    let lease = secs(6);
    let locks = manager(redis.url());
    let mut holder = Child::start(redis.url(), "lease_ms=6000");
    let fence = holder.lock(&name);
    let waiter = locking(&locks.mutex(&name));
    redis.wait_until_queued(&name, 1);
    // The lock outlasts its first lease, so only a renewal can have kept it.
    redis.wait_until_renewed(&name, 4);
    holder.kill();
    let killed = Instant::now();
    let left = redis.ttl(&name).expect("it has one");
    let next = waiter.end().expect("it becomes free");
    assert!(next.fence() > fence);
    // The reading was taken a moment after `killed`, and the server counts in whole milliseconds.
    assert!(killed.elapsed() + ms(2) >= left, "taken too early");
    assert!(killed.elapsed() < lease + SLACK, "taken too late");
}

#[test]
fn a_holder_that_was_stopped_past_its_lease_knows_it() {
    let redis = shared();
    let name = name("stopped-holder");
    let locks = manager(redis.url());
    let mut holder = Child::start(redis.url(), "lease_ms=1000");
    let fence = holder.lock(&name);
    holder.pause();
    let next = locks.try_lock_for(&name, PATIENCE).expect("Redis replies");
    let next = next.expect("it becomes free");
    assert!(next.fence() > fence);
    holder.resume();
    // The first look must already read `Lost`, before any thread of the process has received a reply.
    assert_eq!(holder.ask(format_args!("state {name}")), "Lost");
    let answer = holder.ask(format_args!("release {name}"));
    assert!(answer.starts_with("Lost: "), "{answer}");
    assert_eq!(redis.get(&name).as_deref(), Some(next.owner()));
    next.release().expect("it was held until now");
}

#[test]
fn killed_waiters_delay_nobody() {
    const CRASHED: usize = 10;
    let redis = shared();
    let name = name("killed-waiters");
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    let mut crashing: Vec<_> = (0..CRASHED)
        .map(|_| Child::start(redis.url(), ""))
        .collect();
    for (before, child) in crashing.iter_mut().enumerate() {
        child.say(format_args!("lock {name}"));
        redis.wait_until_queued(&name, before + 1);
    }
    let mut live = Child::start(redis.url(), "");
    live.say(format_args!("lock {name}"));
    redis.wait_until_queued(&name, CRASHED + 1);
    let queue = redis.queue(&name);
    let channels: Vec<_> = queue
        .iter()
        .map(|owner| redis.channel(&name, owner))
        .collect();
    for child in crashing {
        child.kill();
    }
    // Redis learns of each exit at once, long before the waiters count as stale.
    wait_until("the server knows", || {
        channels[..CRASHED]
            .iter()
            .all(|channel| redis.listeners(channel) == 0)
    });
    assert_eq!(redis.listeners(&channels[CRASHED]), 1);
    guard.release().expect("it was held until now");
    // The script of the release skipped all of them. Each of them would have cost a pickup window.
    assert_eq!(redis.owner(&name).as_ref(), Some(&queue[CRASHED]));
    live.locked();
}

#[test]
fn a_hung_waiter_is_skipped_after_its_pickup_window() {
    let redis = shared();
    let name = name("hung-waiter");
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    // The pickup window is as long as the lease, because the lease is shorter than the default window.
    let mut hung = Child::start(redis.url(), "lease_ms=2000");
    let mut live = Child::start(redis.url(), "");
    hung.say(format_args!("lock {name}"));
    redis.wait_until_queued(&name, 1);
    live.say(format_args!("lock {name}"));
    redis.wait_until_queued(&name, 2);
    let [first, second] = &redis.queue(&name)[..] else {
        panic!("two wait");
    };
    // The waiter hangs just after a poll, so it counts as alive. It does not act on its message.
    redis.wait_until_polled(&name, first);
    hung.pause();
    guard.release().expect("it was held until now");
    let holder = redis.get(&name).expect("it was handed over");
    assert_eq!(holder.trim_end_matches('!'), first);
    let fence = live.locked();
    assert_eq!(redis.get(&name).as_ref(), Some(second));
    // The waiter wakes up too late. It does not believe that it holds the lock, and queues again.
    hung.resume();
    redis.wait_until_queued(&name, 1);
    assert_eq!(live.ask(format_args!("state {name}")), "Held");
    assert_eq!(live.ask(format_args!("release {name}")), "released");
    assert!(hung.locked() > fence);
}

#[test]
fn a_lease_is_renewed_for_as_long_as_its_guard_lives() {
    let redis = shared();
    let name = name("renewed");
    let lease = secs(5);
    let locks = manager(redis.url());
    let mut other = Child::start(redis.url(), "");
    let guard = locks.mutex(&name).lease(lease).lock().expect("it is free");
    let owner = guard.owner().to_owned();
    let begun = Instant::now();
    // The test needs time to pass.
    while begun.elapsed() < lease * 2 {
        assert_eq!(other.ask(format_args!("try {name} 0")), "held");
        assert_eq!(redis.get(&name), Some(owner.clone()));
        assert!(redis.ttl(&name) <= Some(lease));
    }
    guard.release().expect("it was held until now");
    let answer = other.ask(format_args!("try {name} 0"));
    assert!(answer.starts_with("locked "), "{answer}");
}

#[test]
fn processes_are_served_in_the_order_in_which_they_came() {
    let redis = shared();
    let name = name("order");
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    let mut children: Vec<_> = (0..3)
        .map(|number| Child::start(redis.url(), &format!("label=child-{number}")))
        .collect();
    for (number, child) in children.iter_mut().enumerate() {
        child.say(format_args!("lock {name}"));
        redis.wait_until_queued(&name, number + 1);
    }
    let queue = redis.queue(&name);
    for (number, owner) in queue.iter().enumerate() {
        assert!(owner.ends_with(&format!(":child-{number}")), "{queue:?}");
    }
    let mut last = guard.fence();
    let mut guard = Some(guard);
    let mut prompt = 0;
    for number in 0..children.len() {
        // The next poll is most of a second away, so a message wakes the waiter.
        redis.wait_until_polled(&name, &queue[number]);
        let released = Instant::now();
        if let Some(guard) = guard.take() {
            guard.release().expect("it was held until now");
        } else {
            let release = format_args!("release {name}");
            assert_eq!(children[number - 1].ask(release), "released");
        }
        let fence = children[number].locked();
        prompt += usize::from(released.elapsed() < ms(600));
        let holder = redis.get(&name).expect("it is held");
        assert_eq!(holder.trim_end_matches('!'), queue[number]);
        assert!(fence > last);
        last = fence;
    }
    // A busy machine may be late once. A waiter that polls is late each time.
    assert!(prompt >= 2, "only {prompt} were woken");
}

#[test]
fn a_process_hands_over_after_its_quantum() {
    let redis = shared();
    let name = name("quantum");
    let locks = build(patient(redis.url()).quantum(ms(50)));
    let mut other = Child::start(redis.url(), "");
    // From here on some thread of this process always wants the lock. The threads end with this test.
    let stop = Arc::new(());
    let turns = Arc::new(AtomicU32::new(0));
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let (mutex, stopped) = (locks.mutex(&name), Arc::downgrade(&stop));
            let turns = Arc::clone(&turns);
            task(move || {
                while stopped.strong_count() > 0 {
                    let guard = mutex.lock().expect("it becomes free");
                    // The test needs time to pass: the quantum must end before the fences run out.
                    thread::sleep(ms(1));
                    drop(guard);
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for _ in 0..3 {
        let before = turns.load(Ordering::Relaxed);
        wait_until("the lock goes round among these threads", || {
            turns.load(Ordering::Relaxed) > before + 8
        });
        other.lock(&name);
        assert_eq!(other.ask(format_args!("release {name}")), "released");
    }
    drop(stop);
    busy.into_iter().for_each(Task::end);
}

#[test]
fn threads_end_when_everything_is_dropped() {
    on(Topology::Single, || threads_end(&[]));
}

#[test]
fn threads_end_when_everything_behind_sentinels_is_dropped() {
    on(Topology::Sentinel, || threads_end(&["senti"]));
}

/// `more`: the threads of the topology.
fn threads_end(more: &[&str]) {
    let redis = shared();
    let (name, own) = (name("threads-end"), name("threads-end-own"));
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    let mut child = Child::start(redis.url(), "");
    // One lease to renew and to watch, and one wait that subscribes.
    child.lock(&own);
    child.say(format_args!("lock {name}"));
    redis.wait_until_queued(&name, 1);
    guard.release().expect("it was held until now");
    child.locked();
    let threads = [&["renew", "watch", "wakeu", "pool", "r2d2-"], more].concat();
    let answer = child.ask(format_args!("drop {}", threads.len()));
    let (before, after) = answer.split_once(" -> ").expect("two lists");
    // The system cuts names after 15 characters.
    for thread in threads {
        assert!(
            before.contains(&format!("leasehold-{thread}\"")),
            "{before}"
        );
    }
    assert_eq!(after, "[]");
    assert!(!redis.exists(&name) && !redis.exists(&own));
}

#[test]
fn the_companion_keys_of_a_killed_process_expire() {
    let redis = shared();
    let name = name("companions");
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    let mut waiter = Child::start(redis.url(), "");
    waiter.say(format_args!("lock {name}"));
    redis.wait_until_queued(&name, 1);
    waiter.kill();
    // No process releases the lock, so none looks into the queue. The queue expires.
    wait_until("the queue is gone", || {
        companions_of(&name)[1..]
            .iter()
            .all(|key| !redis.exists(key))
    });
    guard.release().expect("it was held until now");
    assert!(locks.try_lock(&name).expect("Redis replies").is_some());
}
