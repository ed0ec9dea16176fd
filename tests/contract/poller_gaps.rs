//! The gap in which a contended mutex is left free, for clients that poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::redis::companions_of;
use crate::subject::Kind;
use crate::world::{Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "poller_gaps",
    &[Topology::Single],
    subject_bodies![
        a_polling_client_gets_its_turns_beside_busy_processes,
        after_an_unused_gap_the_first_waiter_gets_its_turn,
        without_a_gap_the_lock_is_handed_over_at_once,
        a_client_that_was_seen_gets_its_turns_without_a_setting,
        a_gap_opens_by_itself_for_a_minute,
    ],
);

const GAP: Duration = ms(20);

fn with_gap(world: &World) -> Locks {
    world.build(|it| it.poller_gap(GAP))
}

/// Takes a name by polling, for a moment, as other clients do. Returns how long that took.
fn poll(world: &World, name: &str, pause: Duration, is_inside: &AtomicBool) -> Duration {
    let redis = world.redis();
    let begun = world.now();
    loop {
        let set: Option<String> = redis.ask(&["SET", name, "theirs", "NX", "PX", "30000"]);
        if set.is_some() {
            break;
        }
        assert!(world.now() < begun + secs(30), "it gets no turn");
        world.pass(pause);
    }
    let waited = world.now().saturating_sub(begun);
    assert!(!is_inside.load(Ordering::SeqCst), "two are inside");
    let deleted: u32 = redis.ask(&["DEL", name]);
    assert_eq!(deleted, 1);
    waited
}

fn a_polling_client_gets_its_turns_beside_busy_processes(world: &World) {
    for (processes, threads) in [(2, 2), (2, 1), (1, 2)] {
        let name = world.name(&format!("polled-{processes}-{threads}"));
        let stop = world.flag();
        let (inside, turns) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let last = Arc::<AtomicU64>::default();
        let mut busy = Vec::new();
        for _ in 0..processes {
            let locks = with_gap(world);
            for _ in 0..threads {
                let (mutex, world, stop) = (locks.mutex(&name), world.clone(), stop.clone());
                let (inside, turns) = (Arc::clone(&inside), Arc::clone(&turns));
                let last = Arc::clone(&last);
                busy.push(locks.thread(move || {
                    while !stop.is_raised() {
                        let guard = mutex.lock().expect("it becomes free");
                        assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                        assert!(last.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                        world.pass(ms(1));
                        inside.store(false, Ordering::SeqCst);
                        turns.fetch_add(1, Ordering::SeqCst);
                        guard.release().expect("it was held until now");
                    }
                }));
            }
        }
        for _ in 0..5 {
            let before = turns.load(Ordering::SeqCst);
            poll(world, &name, ms(5), &inside);
            // The busy processes go on after it.
            world.until("another guard", || turns.load(Ordering::SeqCst) > before);
        }
        stop.raise();
        busy.into_iter().for_each(Task::end);
        world.redis().only_fences_are_left(Kind::Mutex, &name);
    }
}

fn after_an_unused_gap_the_first_waiter_gets_its_turn(world: &World) {
    let (redis, name) = (world.redis(), world.name("unused"));
    let [one, other] = [with_gap(world), with_gap(world)];
    let [_, _, waiters] = companions_of(&name);
    for (turn, (locks, rival)) in [(&one, &other), (&other, &one)].into_iter().enumerate() {
        let guard = locks.lock(&name).expect("it is free");
        let waits = Kind::Mutex.of(rival, &name).locking();
        redis.wait_until_queued(&name, 1);
        let (fence, owner, released_at) = (guard.fence(), guard.owner().to_owned(), world.now());
        guard.release().expect("it is held");
        // Later guards may end within the same quantum, and then there is no gap.
        if turn == 0 {
            let gap: Option<String> = redis.ask(&["HGET", &waiters, "=gap"]);
            assert!(gap.is_some_and(|gap| gap.ends_with(&owner)), "no gap");
        }
        assert!(waits.locked() > fence);
        assert!(waits.locked_at() <= world.within(released_at + GAP));
        waits.release();
    }
    redis.only_fences_are_left(Kind::Mutex, &name);
}

fn without_a_gap_the_lock_is_handed_over_at_once(world: &World) {
    let name = world.name("none");
    let guard = world.manager().lock(&name).expect("it is free");
    let waits = Kind::Mutex.of(&with_gap(world), &name).locking();
    world.redis().wait_until_queued(&name, 1);
    guard.release().expect("it is held");
    assert!(world.redis().exists(&name), "there was a gap");
    waits.locked();
    waits.release();
}

/// A client that tries every 100 ms, as redis-py does, beside three processes that want the name all the time. They meet it
/// once. From then on it gets its turns.
fn a_client_that_was_seen_gets_its_turns_without_a_setting(world: &World) {
    for threads in [1, 2] {
        let (redis, name) = (world.redis(), world.name(&format!("seen-{threads}")));
        let (stop, inside) = (world.flag(), Arc::<AtomicBool>::default());
        let () = redis.ask(&["SET", &name, "theirs"]);
        let mut busy = Vec::new();
        for _ in 0..3 {
            let locks = world.manager();
            for _ in 0..threads {
                let (mutex, world, stop) = (locks.mutex(&name), world.clone(), stop.clone());
                let inside = Arc::clone(&inside);
                busy.push(locks.thread(move || {
                    while !stop.is_raised() {
                        let guard = mutex.lock().expect("it becomes free");
                        assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                        world.pass(ms(1));
                        inside.store(false, Ordering::SeqCst);
                        guard.release().expect("it was held until now");
                    }
                }));
            }
        }
        redis.wait_until_queued(&name, 3);
        let () = redis.ask(&["DEL", &name]);
        for _ in 0..5 {
            // Meanwhile the processes have found it free, and hand it to each other.
            world.pass(secs(1));
            let waited = poll(world, &name, ms(100), &inside);
            assert!(waited <= secs(5), "it waited for {waited:?}");
        }
        stop.raise();
        busy.into_iter().for_each(Task::end);
    }
}

fn a_gap_opens_by_itself_for_a_minute(world: &World) {
    let redis = world.redis();
    for is_forbidden in [false, true] {
        let name = world.name(&format!("a-minute-{is_forbidden}"));
        let one = world.build(|it| {
            if is_forbidden {
                it.poller_gap(Duration::ZERO)
            } else {
                it
            }
        });
        let other = world.manager();
        let [_, _, waiters] = companions_of(&name);
        let () = redis.ask(&["SET", &name, "theirs", "PX", "400"]);
        for (pause, has_gap) in [(Duration::ZERO, !is_forbidden), (secs(61), false)] {
            world.pass(pause);
            let guard = one.lock(&name).expect("it becomes free");
            let waits = Kind::Mutex.of(&other, &name).locking();
            redis.wait_until_queued(&name, 1);
            let owner = guard.owner().to_owned();
            guard.release().expect("it is held");
            let gap: Option<String> = redis.ask(&["HGET", &waiters, "=gap"]);
            let was_left_free = gap.is_some_and(|gap| gap.ends_with(&owner));
            assert_eq!(was_left_free, has_gap, "{is_forbidden} {pause:?}");
            waits.locked();
            waits.release();
        }
    }
}
