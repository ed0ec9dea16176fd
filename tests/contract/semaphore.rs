//! What only a semaphore has: calls for several permits, and processes with different numbers of permits.

use std::time::Duration;

use leasehold::{Error, Permit, Semaphore};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::world::{Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "semaphore",
    &[Topology::Single],
    subject_bodies![
        calls_for_different_numbers_are_all_served,
        each_process_counts_permits_against_its_own_number,
        a_waiter_for_many_permits_goes_before_later_calls_until_it_leaves,
        a_release_grants_every_waiter_that_its_permits_suffice_for,
        a_thread_that_gives_up_hands_its_place_to_one_that_wants_another_number,
        permits_go_from_thread_to_thread_without_a_request,
        a_wait_without_an_answer_is_an_error_although_this_process_has_permits,
        a_wait_that_ends_after_another_thread_got_a_permit_ends_as_held,
        a_try_for_one_permit_does_not_share_the_answer_of_a_try_for_many,
    ],
);

const NAME: &str = "n";
/// Longer than any body runs.
const LONG: Duration = secs(600);

/// Acquires permits on a thread, and ends with them.
fn acquiring(locks: &Locks, semaphore: &Semaphore, n: u32) -> Task<Permit> {
    let semaphore = semaphore.clone();
    locks.thread(move || semaphore.acquire_many(n).expect("they become free"))
}

fn calls_for_different_numbers_are_all_served(world: &World) {
    let redis = world.redis();
    let managers = [world.manager(), world.manager()];
    let threads: Vec<_> = (0..10)
        .map(|index| {
            let locks = &managers[index % 2];
            let (semaphore, world) = (locks.semaphore(NAME, 4), world.clone());
            let n = [3, 2, 4, 1, 2][index / 2];
            locks.thread(move || {
                for _ in 0..10 {
                    let permit = semaphore.acquire_many(n).expect("they become free");
                    assert_eq!(permit.count(), n);
                    world.pass(ms(1));
                    permit.release().expect("it is held");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Task::end);
    assert!(!redis.exists(NAME));
    redis.wait_until_queued(NAME, 0);
}

/// A rolling change from three permits to five: the old processes count against three, and the new ones against five.
fn each_process_counts_permits_against_its_own_number(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let (three, five) = (one.semaphore(NAME, 3), other.semaphore(NAME, 5));
    let old = three.acquire_many(3).expect("it is free");
    let new = five.acquire_many(2).expect("five are enough");
    assert!(five.try_acquire().expect("Redis replies").is_none());
    assert!(three.try_acquire().expect("Redis replies").is_none());
    // Nobody passes the first waiter, although there is room by the other's number.
    let waiting = acquiring(&one, &three, 2);
    redis.wait_until_queued(NAME, 1);
    let place = redis.queue(NAME);
    new.release().expect("it is held");
    assert!(five.try_acquire().expect("Redis replies").is_none());
    assert_eq!(redis.queue(NAME), place);
    old.release().expect("it is held");
    let waiting = waiting.end();
    drop(five.acquire_many(3).expect("two are in use"));
    drop(waiting);
    assert!(matches!(three.acquire_many(4), Err(Error::Config { .. })));
}

fn a_waiter_for_many_permits_goes_before_later_calls_until_it_leaves(world: &World) {
    let redis = world.redis();
    for (end, ends) in [
        ("gives-up", (|_| {}) as fn(&Locks)),
        ("killed", Locks::kill),
        ("hangs", Locks::pause),
    ] {
        let name = world.name(end);
        let [one, other, leaving] = [(); 3].map(|()| world.manager());
        let permit = one.semaphore(&name, 4).acquire().expect("it is free");
        let all = leaving.semaphore(&name, 4);
        let wait = if end == "gives-up" { secs(2) } else { LONG };
        leaving.thread(move || drop(all.try_acquire_many_for(4, wait)));
        redis.wait_until_queued(&name, 1);
        // Three permits are free, but a waiter goes first.
        let semaphore = other.semaphore(&name, 4);
        assert!(semaphore.try_acquire().expect("Redis replies").is_none());
        let later = [
            acquiring(&other, &semaphore, 2),
            acquiring(&one, &one.semaphore(&name, 4), 1),
        ];
        redis.wait_until_queued(&name, 3);
        ends(&leaving);
        drop(later.map(Task::end));
        permit.release().expect("it was held until now");
    }
}

fn a_release_grants_every_waiter_that_its_permits_suffice_for(world: &World) {
    let redis = world.redis();
    let holder = world.manager().semaphore(NAME, 4);
    let all = holder.acquire_many(4).expect("it is free");
    let mut waiting = Vec::new();
    for n in [1, 2, 1, 1] {
        let locks = world.manager();
        waiting.push(acquiring(&locks, &locks.semaphore(NAME, 4), n));
        redis.wait_until_queued(NAME, waiting.len());
    }
    all.release().expect("it is held");
    // The script of the release granted them: four permits are held, and one call waits.
    assert_eq!(redis.holders(NAME).len(), 3);
    assert_eq!(redis.queue(NAME).len(), 1);
    for waiting in waiting {
        drop(waiting.end());
    }
}

fn a_thread_that_gives_up_hands_its_place_to_one_that_wants_another_number(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let all = one.semaphore(NAME, 3).acquire_many(3).expect("it is free");
    let semaphore = other.semaphore(NAME, 3);
    let first = semaphore.clone();
    let first = other.thread(move || first.try_acquire_many_for(3, secs(2)).map(drop));
    redis.wait_until_queued(NAME, 1);
    let place = redis.queue(NAME);
    let behind = [1, 2].map(|n| acquiring(&other, &semaphore, n));
    first.end().expect("Redis replies");
    world.until("another thread asks in its place", || {
        let queue = redis.queue(NAME);
        queue.len() == 1 && queue != place
    });
    drop(all);
    assert_eq!(behind.map(|task| task.end().count()), [1, 2]);
    assert!(!redis.exists(NAME));
}

fn permits_go_from_thread_to_thread_without_a_request(world: &World) {
    const PERMITS: usize = 8;
    let locks = world.build(|it| it.quantum(LONG).lease(LONG));
    let semaphore = locks.semaphore(NAME, 8);
    let held: Vec<_> = (0..PERMITS)
        .map(|_| semaphore.acquire().expect("it is free"))
        .collect();
    let threads: Vec<_> = (0..10 * PERMITS)
        .map(|_| {
            let (semaphore, world) = (semaphore.clone(), world.clone());
            locks.thread(move || {
                for _ in 0..10 {
                    let permit = semaphore.acquire().expect("it becomes free");
                    world.pass(ms(1));
                    permit.release().expect("it is held");
                }
            })
        })
        .collect();
    world.until("all wait", || locks.stats().waiting == threads.len() as u64);
    let before = world.received(0);
    drop(held);
    threads.into_iter().for_each(Task::end);
    let requests = world.received(0) - before;
    assert!(requests <= 100, "{requests} requests for 800 permits");
}

fn a_wait_without_an_answer_is_an_error_although_this_process_has_permits(world: &World) {
    let locks = world.manager();
    let semaphore = locks.semaphore(NAME, 8);
    let _permit = semaphore.acquire().expect("it is free");
    world.pause_servers();
    let first = semaphore.clone();
    let first = locks.thread(move || first.try_acquire_for(secs(2)).map(drop));
    world.pass(ms(1));
    let behind = semaphore.try_acquire_for(ms(300));
    world.resume_servers();
    first.end().ok();
    let is_right = matches!(behind, Err(Error::Unavailable { .. }));
    assert!(is_right, "{behind:?}");
}

/// The delegate gets the only permit, and the next thread has no answer yet.
fn a_wait_that_ends_after_another_thread_got_a_permit_ends_as_held(world: &World) {
    let (locks, other) = (world.manager(), world.manager());
    for ends_after in (0..24).map(|half| half * Duration::from_micros(500)) {
        let name = format!("{NAME}-{ends_after:?}");
        let theirs = other.semaphore(&name, 1).acquire().expect("it is free");
        let semaphore = locks.semaphore(&name, 1);
        let first = acquiring(&locks, &semaphore, 1);
        world.redis().wait_until_queued(&name, 1);
        let before = locks.stats().waiting;
        let second = acquiring(&locks, &semaphore, 1);
        world.until("it waits", || locks.stats().waiting > before);
        // The delegate's answer comes before the third call.
        world.pass(ms(20));
        let (released_at, end) = (
            world.now() + ms(200),
            world.instant() + ms(200) + ends_after,
        );
        let third = locks.thread(move || semaphore.try_acquire_until(end).map(|it| it.is_some()));
        world.pass_until(released_at);
        theirs.release().expect("it is held");
        let waited = third.end();
        assert!(matches!(waited, Ok(false)), "{ends_after:?}: {waited:?}");
        drop(first.end());
        drop(second.end());
    }
}

fn a_try_for_one_permit_does_not_share_the_answer_of_a_try_for_many(world: &World) {
    let (locks, other) = (world.manager(), world.manager());
    let semaphore = locks.semaphore(NAME, 8);
    let elsewhere = other.semaphore(NAME, 8).acquire();
    let _elsewhere = elsewhere.expect("it is free");
    drop(semaphore.acquire().expect("it is free"));
    world.pause_servers();
    let tries = [8, 1].map(|n| {
        let semaphore = semaphore.clone();
        let tried = locks.thread(move || semaphore.try_acquire_many(n).map(|it| it.is_some()));
        world.pass(ms(1));
        tried
    });
    world.resume_servers();
    let tries = tries.map(|tried| tried.end().expect("Redis replies"));
    assert_eq!(tries, [false, true], "seven are free");
}
