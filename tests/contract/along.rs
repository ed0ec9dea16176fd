//! Requests of calls that wait for a connection, and go along with that of a call that has one.

use std::time::Duration;

use leasehold::{Cancel, Error, LockGuard, Result};
use leasehold_simulator::{LinkFault, Role, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::redis::Redis;
use crate::subject::{Kind, is_unreachable};
use crate::world::{Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "along",
    &[Topology::Single, Topology::Cluster],
    subject_bodies![
        each_call_gets_its_own_answer,
        a_far_server_carries_more_requests_than_connections,
        a_release_goes_before_the_calls_that_wait,
        scripts_flushed_before_a_joint_write_change_no_answer,
        a_cut_before_the_server_reads_a_joint_write_fails_no_call,
        a_cut_before_the_answers_to_a_joint_write_fails_no_call,
        a_cancel_of_the_call_that_writes_ends_no_other,
        a_call_whose_script_the_server_lacks_waits_no_longer_than_its_time,
        a_joint_write_without_answers_leaves_no_orphan,
    ],
);

pub(crate) const SENTINEL_BODIES: Subject = (
    "along",
    &[Topology::Sentinel],
    subject_bodies![behind_sentinels_each_call_goes_alone],
);

/// More calls than go out in one write.
const CALLS: usize = 40;
/// Calls that each get a connection of their own in time.
const FEW: usize = 8;
/// How late each message is, and how long a request takes with its answer.
const DELAY: Duration = ms(500);
const ROUND_TRIP: Duration = ms(1000);

/// The names of all calls have one slot.
fn name(number: usize) -> String {
    format!("{{along}}:{number}")
}

/// Makes a manager with this number of connections, which are open, and far from the server.
fn far(world: &World, connections: u32, io_timeout: Duration) -> Locks {
    let locks = world.build(|it| {
        let it = it.pool_size(connections).io_timeout(io_timeout);
        it.connect_timeout(secs(10)).lease(secs(60))
    });
    drop(locks.lock("{along}:warm-up").expect("it is free"));
    locks.strike_on(Role::Pool, LinkFault::Late(DELAY));
    locks
}

/// Starts calls, one after the other.
fn lock_all(
    locks: &Locks,
    numbers: impl IntoIterator<Item = usize>,
) -> Vec<Task<Result<LockGuard>>> {
    let start = |number| {
        let mutex = locks.mutex(name(number));
        let task = locks.thread(move || mutex.lock());
        locks.world().pass(ms(1));
        task
    };
    numbers.into_iter().map(start).collect()
}

/// Checks that the lock of this number is that of the guard, and releases it on a thread.
fn check(redis: &Redis, number: usize, guard: &LockGuard) {
    assert_eq!(guard.name(), name(number));
    let holders = redis.holders(&name(number));
    let owners: Vec<_> = holders.iter().map(|(owner, _)| owner.as_str()).collect();
    assert_eq!(owners, [guard.owner()]);
}

/// Releases all at once, and checks that no lock is left.
fn release_all(redis: &Redis, locks: &Locks, guards: Vec<LockGuard>) {
    let tasks = guards
        .into_iter()
        .map(|guard| locks.thread(move || guard.release()));
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.end().expect("it was held until now");
    }
    (0..CALLS).for_each(|number| redis.is_free(Kind::Mutex, &name(number)));
}

/// An answer counts only if its connection leads to the master, and each call finds that out for itself.
fn behind_sentinels_each_call_goes_alone(world: &World) {
    let redis = world.redis();
    let locks = far(world, 1, secs(10));
    let begun = world.now();
    let calls = lock_all(&locks, 0..FEW);
    let guards = calls.into_iter().enumerate().map(|(number, call)| {
        let guard = call.end().expect("it is free");
        check(&redis, number, &guard);
        guard
    });
    let guards: Vec<_> = guards.collect();
    assert!(world.now() >= begun + FEW as u32 * ROUND_TRIP);
    release_all(&redis, &locks, guards);
}

fn each_call_gets_its_own_answer(world: &World) {
    let redis = world.redis();
    let other = world.manager();
    let held = (0..CALLS).step_by(3).map(|number| other.lock(name(number)));
    let held: Vec<_> = held.map(|guard| guard.expect("it is free")).collect();
    let locks = far(world, 1, secs(10));
    let start = |number| {
        let mutex = locks.mutex(name(number));
        locks.thread(move || mutex.try_lock())
    };
    let calls: Vec<_> = (0..CALLS).map(start).collect();
    let mut guards = Vec::new();
    for (number, call) in calls.into_iter().enumerate() {
        let guard = call.end().expect("Redis replies");
        assert_eq!(guard.is_none(), number % 3 == 0, "{number}");
        if let Some(guard) = guard {
            check(&redis, number, &guard);
            guards.push(guard);
        }
    }
    drop(held);
    release_all(&redis, &locks, guards);
}

fn a_far_server_carries_more_requests_than_connections(world: &World) {
    let redis = world.redis();
    let locks = far(world, 2, secs(10));
    let begun = world.now();
    let calls = lock_all(&locks, 0..CALLS);
    let guards = calls.into_iter().enumerate().map(|(number, call)| {
        let guard = call.end().expect("it is free");
        check(&redis, number, &guard);
        guard
    });
    let guards: Vec<_> = guards.collect();
    // Alone on its connection each, they would take twenty.
    assert!(world.now() <= world.within(begun + 3 * ROUND_TRIP));
    let stats = locks.stats();
    assert_eq!(stats.connection_waits.count(), CALLS as u64 - 2);
    assert!(stats.connection_waits.max() <= world.within(2 * ROUND_TRIP));
    release_all(&redis, &locks, guards);
    assert!(world.now() <= world.within(begun + 6 * ROUND_TRIP));
}

fn a_release_goes_before_the_calls_that_wait(world: &World) {
    let redis = world.redis();
    let locks = far(world, 1, secs(10));
    let guard = locks.lock("{along}:held").expect("it is free");
    let calls = lock_all(&locks, 0..3 * CALLS);
    let begun = world.now();
    guard.release().expect("it was held until now");
    // It waits for the request that is on its way.
    assert!(world.now() <= world.within(begun + 2 * ROUND_TRIP));
    let waiting = calls.iter().filter(|call| !call.has_ended());
    assert!(waiting.count() >= CALLS, "it was the last one");
    let guards = calls
        .into_iter()
        .map(|call| call.end().expect("it is free"));
    release_all(&redis, &locks, guards.collect());
}

fn scripts_flushed_before_a_joint_write_change_no_answer(world: &World) {
    let redis = world.redis();
    let locks = far(world, 1, secs(10));
    let calls = lock_all(&locks, 0..FEW / 2);
    let guards: Vec<_> = calls
        .into_iter()
        .map(|call| call.end().expect("it is free"))
        .collect();
    // The first call has the connection. Releases and acquires go out in one write after it.
    let calls = lock_all(&locks, FEW / 2..FEW);
    let releases = guards
        .into_iter()
        .map(|guard| locks.thread(move || guard.release()));
    let releases: Vec<_> = releases.collect();
    world.pass(ROUND_TRIP + DELAY / 2);
    let () = redis.ask(&["SCRIPT", "FLUSH"]);
    for release in releases {
        release.end().expect("it was held until now");
    }
    let guards = calls.into_iter().enumerate().map(|(number, call)| {
        let guard = call.end().expect("it is free");
        check(&redis, FEW / 2 + number, &guard);
        guard
    });
    release_all(&redis, &locks, guards.collect());
}

/// Cuts the connection so long after the first joint write.
fn cut_after(world: &World, pause: Duration) {
    let redis = world.redis();
    let locks = far(world, 1, secs(10));
    let begun = world.now();
    let calls = lock_all(&locks, 0..FEW);
    world.pass_until(begun + ROUND_TRIP + pause);
    locks.cut(world.master(&name(0)));
    let guards = calls.into_iter().enumerate().map(|(number, call)| {
        let guard = call.end().expect("the request is sent again");
        check(&redis, number, &guard);
        guard
    });
    release_all(&redis, &locks, guards.collect());
}

fn a_cut_before_the_server_reads_a_joint_write_fails_no_call(world: &World) {
    cut_after(world, ms(200));
}

fn a_cut_before_the_answers_to_a_joint_write_fails_no_call(world: &World) {
    cut_after(world, ms(800));
}

fn a_joint_write_without_answers_leaves_no_orphan(world: &World) {
    let redis = world.redis();
    let io_timeout = secs(3);
    let locks = far(world, 1, io_timeout);
    let calls = lock_all(&locks, 0..CALLS);
    // The first call has its answer. The second one has written those that wait.
    world.pass(ROUND_TRIP + ms(200));
    locks.strike_on(Role::Pool, LinkFault::LoseAnswers);
    let struck_at = world.now();
    let mut outcomes = calls.into_iter().map(Task::end);
    let guard = outcomes
        .next()
        .expect("there is a first")
        .expect("it is free");
    for outcome in outcomes {
        assert!(outcome.as_ref().is_err_and(is_unreachable), "{outcome:?}");
    }
    // Two writes. Alone on its connection each, they would take forty.
    assert!(world.now() <= world.within(struck_at + 3 * io_timeout));
    locks.heal();
    guard.release().expect("it was held until now");
    assert!(locks.close(secs(120)), "something is left to send");
    (0..CALLS).for_each(|number| redis.is_free(Kind::Mutex, &name(number)));
}

/// The request of the call that is cancelled is on its way, with those of the others.
fn a_cancel_of_the_call_that_writes_ends_no_other(world: &World) {
    let redis = world.redis();
    let locks = far(world, 1, secs(10));
    let stop = Cancel::new();
    let begun = world.now();
    let first = lock_all(&locks, 0..1);
    let writes = locks.mutex(name(1)).cancel_with(&stop);
    let writes = locks.thread(move || writes.lock());
    world.pass(ms(1));
    let others = lock_all(&locks, 2..CALLS / 2);
    world.pass_until(begun + ROUND_TRIP + DELAY);
    stop.cancel();
    let mut guards: Vec<_> = first
        .into_iter()
        .map(|call| call.end().expect("it is free"))
        .collect();
    for (number, call) in others.into_iter().enumerate() {
        let guard = call.end().expect("it is free");
        check(&redis, 2 + number, &guard);
        guards.push(guard);
    }
    assert!(world.now() <= world.within(begun + 2 * ROUND_TRIP));
    match writes.end() {
        Ok(guard) => guards.push(guard),
        Err(error) => assert!(matches!(error, Error::Cancelled), "{error:?}"),
    }
    let tasks = guards
        .into_iter()
        .map(|guard| locks.thread(move || guard.release()));
    for task in tasks.collect::<Vec<_>>() {
        task.end().expect("it was held until now");
    }
    redis.wait_until_free(Kind::Mutex, &name(1));
}

/// The call that writes sends the script, and has the connection for longer than the other one lasts.
fn a_call_whose_script_the_server_lacks_waits_no_longer_than_its_time(world: &World) {
    let redis = world.redis();
    let locks = far(world, 1, secs(2));
    let begun = world.now();
    let mut calls = lock_all(&locks, [0, 1]);
    let leaves = locks.mutex(name(2));
    let limit = ms(3200);
    let leaves = locks.thread(move || leaves.try_lock_for(limit).map(drop));
    world.pass_until(begun + ROUND_TRIP + ms(200));
    let () = redis.ask(&["SCRIPT", "FLUSH"]);
    world.pass_until(begun + 2 * ROUND_TRIP + ms(100));
    locks.strike_on(Role::Pool, LinkFault::LoseAnswers);
    let left = leaves.end();
    assert!(left.as_ref().is_err_and(is_unreachable), "{left:?}");
    assert!(world.now() <= world.within(begun + limit));
    let writes = calls.pop().expect("there are two");
    assert!(!writes.has_ended(), "it has more time");
    let written = writes.end();
    assert!(written.as_ref().is_err_and(is_unreachable), "{written:?}");
    locks.heal();
    drop(calls);
    assert!(locks.close(secs(120)), "something is left to send");
    redis.wait_until_free(Kind::Mutex, &name(1));
    redis.wait_until_free(Kind::Mutex, &name(2));
}
