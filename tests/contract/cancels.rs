//! Calls that are ended by a token.

use std::time::Duration;

use leasehold::{Admission, Cancel, Error, LockManager, Result};
use leasehold_simulator::{LinkFault, Topology};

use crate::matrix::Capability::{Always, InOrder};
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::subject::{Holder, Kind};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_cancelled_token_ends_each_call_before_anything_is_sent,
            a_cancelled_wait_leaves_the_queue_of_its_process_and_of_redis,
            a_cancelled_call_inside_of_a_request_ends_with_it,
            a_cancel_that_meets_a_grant_leaves_no_orphan,
        ],
    ),
    (
        InOrder,
        bodies![
            a_cancelled_delegate_hands_its_place_to_the_next_thread,
            a_cancel_that_meets_a_hand_over_costs_nobody_a_turn,
        ],
    ),
];

pub(crate) const BODIES_OF_ONE: Subject = (
    "cancels",
    &[Topology::Single],
    subject_bodies![
        a_cancel_ends_calls_that_wait_for_a_connection,
        close_ends_calls_that_wait_for_a_connection,
        a_cancel_ends_a_call_that_waits_for_a_release_of_its_process,
        a_cancelled_call_to_a_rate_limiter_keeps_its_place,
    ],
);

const LONG: Duration = secs(600);

#[track_caller]
fn cancelled<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(Error::Cancelled) => {}
        other => panic!("it is not cancelled: {other:?}"),
    }
}

fn a_cancelled_token_ends_each_call_before_anything_is_sent(world: &World, kind: Kind) {
    let (locks, name) = (world.manager(), world.name("cancelled"));
    let stop = Cancel::new();
    let lock = kind.of(&locks, &name).cancel_with(&stop);
    let guard = lock.lock().expect("it is not cancelled");
    stop.clone().cancel();
    stop.cancel();
    assert!(stop.is_cancelled());
    let sent = locks.stats().requests;
    cancelled(lock.lock());
    cancelled(lock.try_lock());
    cancelled(lock.try_lock_for(LONG));
    cancelled(lock.try_lock_until(world.instant() + LONG));
    cancelled(lock.with(LONG, |_| ()));
    assert_eq!(locks.stats().requests, sent);
    guard.release().expect("a guard is not cancelled");
    // Only that handle.
    drop(kind.of(&locks, &name).lock().expect("it has no token"));
}

/// A delegate, a thread behind it, and a thread in another process have the token. Others wait between and behind them.
fn a_cancelled_wait_leaves_the_queue_of_its_process_and_of_redis(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("leaves"));
    let stop = Cancel::new();
    let holder = kind.rival().of(&world.manager(), &name).hold();
    let [one, other] = [(); 2].map(|()| world.manager());
    let of = |locks| kind.of(locks, &name);
    let mut ended = vec![of(&one).cancel_with(&stop).locking_asleep()];
    redis.wait_until_queued(&name, 1);
    ended.push(of(&one).cancel_with(&stop).locking_asleep());
    let stays = of(&one).locking_asleep();
    ended.push(of(&other).cancel_with(&stop).locking_asleep());
    redis.wait_until_queued(&name, 2);
    let cancelled_at = world.now();
    stop.cancel();
    for wait in ended {
        cancelled(wait.outcome());
    }
    // A request that was under way ends first.
    assert!(world.now() <= world.within(cancelled_at));
    redis.wait_until_queued(&name, 1);
    holder.release();
    stays.locked();
    stays.release();
    redis.only_fences_are_left(kind, &name);
}

fn a_cancelled_delegate_hands_its_place_to_the_next_thread(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("hands-on"));
    let holder = kind.rival().of(&world.manager(), &name).hold();
    let (locks, stop) = (world.manager(), Cancel::new());
    let lock = kind.of(&locks, &name);
    let delegate = lock.clone().cancel_with(&stop).locking();
    redis.wait_until_queued(&name, 1);
    let place = redis.queue(&name);
    let next = lock.locking_asleep();
    let asked = locks.stats().requests;
    stop.cancel();
    cancelled(delegate.outcome());
    world.until("the next thread asks", || locks.stats().requests > asked);
    assert_eq!(redis.queue(&name), place);
    holder.release();
    next.locked();
    next.release();
}

/// If a server executes the request later, no orphan is left.
fn a_cancelled_call_inside_of_a_request_ends_with_it(world: &World, kind: Kind) {
    let (redis, name, limit) = (world.redis(), world.name("inside"), secs(2));
    let holder = kind.rival().of(&world.manager(), &name).hold();
    let locks = world.build(|it| it.io_timeout(limit).node_timeout(limit));
    let stop = Cancel::new();
    let waiting = kind.of(&locks, &name).cancel_with(&stop).locking();
    redis.wait_until_queued(&name, 1);
    locks.strike(LinkFault::LoseAnswers);
    locks.wait_until_struck();
    let cancelled_at = world.now();
    stop.cancel();
    cancelled(waiting.outcome());
    assert!(world.now() <= world.within(cancelled_at + limit));
    holder.release();
    locks.heal();
    let next = kind.rival().of(&world.manager(), &name).hold();
    next.release();
    redis.only_fences_are_left(kind, &name);
}

/// Plays rounds in which a token is cancelled a little later each time: before, at, and after the other event. A round
/// returns whether the lock was granted.
fn meets_a_cancel(world: &World, mut round: impl FnMut(&Cancel, &dyn Fn()) -> bool) {
    let canceller = world.manager();
    let (mut grants, mut cancels) = (0, 0);
    for n in 0..40 {
        let stop = Cancel::new();
        let begin = || {
            let (world, stop) = (world.clone(), stop.clone());
            canceller.thread(move || {
                world.pass(Duration::from_micros(300) * n);
                stop.cancel();
            });
        };
        if round(&stop, &begin) {
            grants += 1;
        } else {
            cancels += 1;
        }
    }
    assert!(grants > 0, "the cancel won every round");
    assert!(cancels > 0, "the grant won every round");
}

/// Returns whether the lock was granted. An error must be `Cancelled`.
#[track_caller]
fn granted(waiting: Holder) -> bool {
    match waiting.outcome() {
        Ok(_) => {
            waiting.release();
            true
        }
        Err(Error::Cancelled) => false,
        Err(error) => panic!("{error:?}"),
    }
}

fn a_cancel_that_meets_a_grant_leaves_no_orphan(world: &World, kind: Kind) {
    let name = world.name("granted");
    let (locks, other) = (world.manager(), world.manager());
    meets_a_cancel(world, |stop, begin| {
        begin();
        world.pass(ms(3));
        let granted = granted(kind.of(&locks, &name).cancel_with(stop).locking());
        let next = kind.rival().of(&other, &name).try_lock_for(secs(5));
        drop(next.expect("Redis replies").expect("it is free"));
        granted
    });
    world.redis().only_fences_are_left(kind, &name);
}

/// The first waiter is cancelled. The thread behind it and the process behind both get the lock in either case.
fn a_cancel_that_meets_a_hand_over_costs_nobody_a_turn(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("handed-over"));
    let [one, two, three] = [(); 3].map(|()| world.manager());
    meets_a_cancel(world, |stop, begin| {
        let holder = kind.rival().of(&one, &name).hold();
        let first = kind.of(&two, &name).cancel_with(stop).locking();
        redis.wait_until_queued(&name, 1);
        let beside = kind.of(&two, &name).locking_asleep();
        let behind = kind.of(&three, &name).locking();
        redis.wait_until_queued(&name, 2);
        begin();
        holder.release();
        let won = granted(first);
        // Permits are not passed on in memory.
        let mut others = vec![beside, behind];
        while !others.is_empty() {
            world.until("another is granted it", || {
                !others.iter().all(Holder::waits)
            });
            let next = others.iter().position(|it| !it.waits());
            assert!(granted(others.remove(next.expect("one has it"))));
        }
        won
    });
    redis.only_fences_are_left(kind, &name);
}

/// Checks that `end` ends many calls at once. All of them wait for the only connection, and its server does not reply.
fn ends_calls_without_a_connection(world: &World, end: impl FnOnce(&LockManager, &Cancel)) {
    const CALLS: u64 = 30;
    let redis = world.redis();
    // One after the other the calls would take as many times as long.
    let limit = secs(3);
    let locks = world.build(|it| it.connect_timeout(limit).io_timeout(limit).pool_size(1));
    let stop = Cancel::new();
    let calls: Vec<_> = (0..CALLS)
        .map(|n| {
            let name = format!("n{n}");
            let () = redis.ask(&["SET", &name, "theirs"]);
            Kind::Mutex.of(&locks, &name).cancel_with(&stop).locking()
        })
        .collect();
    world.until("all wait", || locks.stats().waiting == CALLS);
    world.pause_servers();
    // By now each has polled.
    world.pass(secs(1));
    let places = locks.rate_limiter("l", 1, LONG).cancel_with(&stop);
    let limited = locks.thread(move || places.acquire());
    world.pass(ms(100));
    let ended_at = world.now();
    end(&locks, &stop);
    for outcome in calls.iter().map(|call| call.outcome().map(drop)) {
        let is_ended = matches!(outcome, Err(Error::Cancelled | Error::Closed));
        assert!(is_ended, "{outcome:?}");
    }
    let outcome = limited.end();
    let is_ended = matches!(outcome, Err(Error::Cancelled | Error::Closed));
    assert!(is_ended, "{outcome:?}");
    // The call that has the connection ends with its request.
    assert!(world.now() <= world.within(ended_at + limit));
    world.resume_servers();
}

fn a_cancel_ends_calls_that_wait_for_a_connection(world: &World) {
    ends_calls_without_a_connection(world, |_, stop| stop.cancel());
}

fn close_ends_calls_that_wait_for_a_connection(world: &World) {
    ends_calls_without_a_connection(world, |locks, _| {
        let _: bool = locks.close(Duration::ZERO);
    });
}

/// The call first waits until the renewal thread has sent the release of its process.
fn a_cancel_ends_a_call_that_waits_for_a_release_of_its_process(world: &World) {
    let locks = world.build(|it| it.io_timeout(LONG).lease(LONG).background_release(true));
    let guard = locks.lock("n").expect("it is free");
    world.pause_servers();
    guard.release().expect("it is left to the renewal thread");
    let stop = Cancel::new();
    let again = Kind::Mutex.of(&locks, "n").cancel_with(&stop).locking();
    world.pass(ms(100));
    let cancelled_at = world.now();
    stop.cancel();
    cancelled(again.outcome());
    assert!(world.now() <= world.within(cancelled_at + secs(1)));
    world.resume_servers();
}

fn a_cancelled_call_to_a_rate_limiter_keeps_its_place(world: &World) {
    let locks = world.manager();
    let limiter = locks.rate_limiter("l", 1, LONG);
    limiter.acquire().expect("there is a place");
    let stop = Cancel::new();
    let waits = limiter.clone().cancel_with(&stop);
    let waiting = locks.thread(move || waits.acquire());
    world.pass(secs(1));
    stop.cancel();
    cancelled(waiting.end());
    cancelled(limiter.clone().cancel_with(&stop).try_acquire());
    match limiter.try_acquire().expect("Redis replies") {
        Admission::RetryAfter(wait) => assert!(wait > LONG, "{wait:?}"),
        other => panic!("{other:?}"),
    }
}
