//! The rate limiter: how many calls it admits in which time, and what ends a call.

use std::time::Duration;

use leasehold::{Admission, Error, RateLimiter};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::redis::Redis;
use crate::subject::is_unreachable;
use crate::world::{Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "rate_limiter",
    &[Topology::Single],
    subject_bodies![
        no_window_admits_more_calls_than_the_limit,
        a_call_for_several_places_keeps_the_limit,
        callers_are_admitted_in_the_order_of_their_requests,
        a_wait_that_is_too_long_is_refused_at_once_and_takes_no_place,
        a_clock_set_back_admits_no_further_call_and_delays_none_by_more_than_a_window,
        closing_ends_a_wait,
        a_wait_outlives_its_server,
        figures_that_make_no_sense_are_refused_before_anything_is_sent,
        a_key_of_another_kind_is_left_alone,
        a_right_that_is_missing_takes_no_place_and_leaves_no_log_without_an_end,
    ],
);

const NAME: &str = "n";
const LONG: Duration = secs(600);

#[track_caller]
fn admitted(answer: leasehold::Result<Admission>) {
    assert_eq!(answer.expect("Redis replies"), Admission::Admitted);
}

#[track_caller]
fn retry_after(answer: leasehold::Result<Admission>) -> Duration {
    match answer {
        Ok(Admission::RetryAfter(wait)) => wait,
        other => panic!("not refused: {other:?}"),
    }
}

/// Returns the limiter's list: its head, then the times, the oldest first.
fn log_of(redis: &Redis, name: &str) -> Vec<String> {
    redis.ask(&["LRANGE", name, "0", "-1"])
}

/// Calls the limiter on a thread, and returns when it was admitted.
fn calling(locks: &Locks, limiter: &RateLimiter, times: usize) -> Task<Vec<Duration>> {
    let (world, limiter) = (locks.world().clone(), limiter.clone());
    locks.thread(move || {
        let call = |_| {
            limiter.acquire().expect("Redis replies");
            world.now()
        };
        (0..times).map(call).collect()
    })
}

fn no_window_admits_more_calls_than_the_limit(world: &World) {
    const PERMITS: usize = 5;
    const PER: Duration = secs(10);
    const THREADS: usize = 16;
    const TIMES: usize = 5;
    let managers = [world.manager(), world.manager()];
    let begun = world.now();
    let threads: Vec<_> = (0..THREADS)
        .map(|index| {
            let locks = &managers[index % 2];
            calling(locks, &locks.rate_limiter(NAME, PERMITS as u32, PER), TIMES)
        })
        .collect();
    let mut times: Vec<_> = threads.into_iter().flat_map(Task::end).collect();
    times.sort_unstable();
    for few in times.windows(PERMITS + 1) {
        // A call may return a round trip after its time.
        let long = world.within(few[PERMITS]).saturating_sub(few[0]);
        assert!(long >= PER, "{} within {long:?}", PERMITS + 1);
    }
    // No window admits fewer calls either, because there are always more callers.
    let windows = (THREADS * TIMES).div_ceil(PERMITS) - 1;
    let last = begun + PER * u32::try_from(windows).expect("it is small");
    assert!(times[times.len() - 1] <= world.within(last));
    let redis = world.redis();
    assert!(log_of(&redis, NAME).len() <= PERMITS + 1, "no bound");
    world.pass(PER + ms(10));
    assert!(!redis.exists(NAME), "its key expires after the window");
}

/// Calls for one place to all places, of two processes.
fn a_call_for_several_places_keeps_the_limit(world: &World) {
    const PERMITS: u32 = 7;
    const PER: Duration = secs(10);
    let managers = [world.manager(), world.manager()];
    let threads: Vec<Task<Vec<(Duration, u32)>>> = (1..=PERMITS)
        .map(|places| {
            let locks = &managers[places as usize % 2];
            let (world, limiter) = (world.clone(), locks.rate_limiter(NAME, PERMITS, PER));
            locks.thread(move || {
                let call = |_| {
                    limiter.acquire_many(places).expect("Redis replies");
                    (world.now(), places)
                };
                (0..5).map(call).collect()
            })
        })
        .collect();
    let calls = threads.into_iter().flat_map(Task::end);
    let mut times: Vec<_> = calls
        .flat_map(|(at, places)| std::iter::repeat_n(at, places as usize))
        .collect();
    times.sort_unstable();
    for few in times.windows(PERMITS as usize + 1) {
        // A call may return a round trip after its time.
        let long = world.within(few[PERMITS as usize]).saturating_sub(few[0]);
        assert!(long >= PER, "{} within {long:?}", PERMITS + 1);
    }
    let redis = world.redis();
    assert_eq!(log_of(&redis, NAME).len(), PERMITS as usize + 1);
    // All or none.
    let limiter = managers[0].rate_limiter("other", PERMITS, LONG);
    admitted(limiter.try_acquire_many(PERMITS - 1));
    let before = log_of(&redis, "other");
    retry_after(limiter.try_acquire_many(2));
    retry_after(limiter.try_acquire_many_for(2, secs(1)));
    assert_eq!(log_of(&redis, "other"), before);
    admitted(limiter.try_acquire());
}

fn callers_are_admitted_in_the_order_of_their_requests(world: &World) {
    const PER: Duration = ms(200);
    let redis = world.redis();
    let managers = [world.manager(), world.manager()];
    let limiters = managers.each_ref().map(|it| it.rate_limiter(NAME, 1, PER));
    let begun = world.now();
    limiters[0].acquire().expect("the first");
    let first = world.now();
    let threads: Vec<_> = (0..4)
        .map(|index| {
            let before = log_of(&redis, NAME);
            let thread = calling(&managers[index % 2], &limiters[index % 2], 1);
            world.until("it has its place", || log_of(&redis, NAME) != before);
            thread
        })
        .collect();
    for (index, thread) in (1..).zip(threads) {
        let at = thread.end()[0];
        assert!(at >= begun + index * PER, "number {index}");
        assert!(at <= world.within(first + index * PER), "number {index}");
    }
    admitted(limiters[0].try_acquire_for(PER));
    assert!(world.now() >= begun + 5 * PER);
}

fn a_wait_that_is_too_long_is_refused_at_once_and_takes_no_place(world: &World) {
    let redis = world.redis();
    let managers = [world.manager(), world.manager()];
    let limiters = managers.each_ref().map(|it| it.rate_limiter(NAME, 2, LONG));
    for limiter in &limiters {
        admitted(limiter.try_acquire());
    }
    let (before, begun) = (log_of(&redis, NAME), world.now());
    for limiter in &limiters {
        let waits = [limiter.try_acquire(), limiter.try_acquire_for(LONG / 2)].map(retry_after);
        for wait in waits {
            assert!(wait <= LONG && world.within(wait) >= LONG, "{wait:?}");
        }
    }
    assert!(world.now() <= world.within(begun));
    assert_eq!(log_of(&redis, NAME), before);
    // The place of the first call is free one window after it was taken.
    world.pass(retry_after(limiters[0].try_acquire()));
    admitted(limiters[0].try_acquire());
    // Callers with the largest figures share the log.
    let largest = managers[0].rate_limiter(NAME, u32::MAX, secs(365 * 24 * 60 * 60));
    for _ in 0..3 {
        admitted(largest.try_acquire());
    }
}

/// Each refused call once moved all times back again, so that the second call made room.
fn a_clock_set_back_admits_no_further_call_and_delays_none_by_more_than_a_window(world: &World) {
    const HOUR: Duration = secs(60 * 60);
    let locks = world.manager();
    let limiter = locks.rate_limiter(NAME, 1, LONG);
    limiter.acquire().expect("the first");
    for _ in 0..2 {
        world.set_clock_back(HOUR);
        let mut shortest = LONG;
        for _ in 0..20 {
            let wait = retry_after(limiter.try_acquire());
            assert!(wait <= shortest, "{wait:?} after {shortest:?}");
            shortest = wait;
        }
        assert!(shortest > LONG / 2, "{shortest:?}");
        world.pass(shortest);
        admitted(limiter.try_acquire());
    }
    world.set_clock_forward(2 * HOUR);
    admitted(limiter.try_acquire());
    world.pass(LONG + secs(1));
    assert!(!world.redis().exists(NAME));
}

fn closing_ends_a_wait(world: &World) {
    let locks = world.manager();
    let limiter = locks.rate_limiter(NAME, 1, LONG);
    limiter.acquire().expect("the first");
    let waits = {
        let limiter = limiter.clone();
        locks.thread(move || limiter.acquire())
    };
    world.pass(secs(1));
    assert!(locks.close(secs(1)), "nothing is queued");
    assert!(matches!(waits.end(), Err(Error::Closed)));
    assert!(matches!(limiter.try_acquire(), Err(Error::Closed)));
}

fn a_wait_outlives_its_server(world: &World) {
    const PER: Duration = secs(5);
    let locks = world.manager();
    let limiter = locks.rate_limiter(NAME, 1, PER);
    let begun = world.now();
    limiter.acquire().expect("the first");
    let waits = calling(&locks, &limiter, 1);
    world.pass(secs(1));
    world.stop_servers();
    let refused = limiter.acquire().expect_err("the server is down");
    assert!(is_unreachable(&refused), "{refused:?}");
    // Its place was given.
    assert!(waits.end()[0] <= world.within(begun + PER));
    world.restart_servers_empty();
    world.until("it is back", || limiter.try_acquire().is_ok());
}

fn figures_that_make_no_sense_are_refused_before_anything_is_sent(world: &World) {
    let locks = world.build_lazy(|it| it);
    let refused = |permits, per, figure: &str| {
        let limiter = locks.rate_limiter(NAME, permits, per);
        for answer in [
            limiter.acquire(),
            limiter.try_acquire().map(drop),
            limiter.try_acquire_for(secs(1)).map(drop),
        ] {
            match answer {
                Err(error @ Error::Config { .. }) => {
                    assert!(error.to_string().contains(figure), "{error}");
                }
                other => panic!("not refused: {other:?}"),
            }
        }
    };
    refused(0, secs(1), "permits");
    refused(1, Duration::ZERO, "per");
    refused(1, Duration::from_nanos(999_999), "per");
    refused(1, Duration::MAX, "per");
    for (permits, places) in [(1, 0), (1, 2), (u32::MAX, 10_001)] {
        let several = locks
            .rate_limiter(NAME, permits, secs(1))
            .acquire_many(places);
        assert!(matches!(several, Err(Error::Config { option: "n", .. })));
    }
    let unnamed = locks.rate_limiter("", 1, secs(1)).acquire();
    assert!(matches!(unnamed, Err(Error::InvalidName { .. })));
    assert_eq!(world.received(0), 0);
}

fn a_key_of_another_kind_is_left_alone(world: &World) {
    let locks = world.manager();
    let guard = locks.lock(NAME).expect("it is free");
    let limiter = locks.rate_limiter(NAME, 1, secs(1));
    assert!(matches!(limiter.acquire(), Err(Error::WrongType { .. })));
    guard.release().expect("it was held until now");
    limiter.acquire().expect("it is free");
    assert!(matches!(locks.lock(NAME), Err(Error::WrongType { .. })));
}

/// Takes each right away in turn: with a new list, with a list that has room, and with one whose oldest time makes room.
fn a_right_that_is_missing_takes_no_place_and_leaves_no_log_without_an_end(world: &World) {
    const COMMANDS: [&str; 7] = ["time", "lindex", "llen", "lset", "pexpire", "rpush", "lpop"];
    let redis = world.redis();
    let grant = |rights: &[&str]| {
        let () = redis.ask(&[&["ACL", "SETUSER", "user"][..], rights].concat());
    };
    grant(&["on", ">us3r-s3cret", "~*", "+@all"]);
    let locks = world.manager_as("user", "us3r-s3cret");
    let mut denied = 0;
    for command in COMMANDS {
        for places in 0..3 {
            let name = format!("without-{command}-{places}");
            let limiter = locks.rate_limiter(&name, 2, LONG);
            for _ in 0..places {
                limiter.acquire().expect("there is room");
                world.pass(LONG / 2 + secs(1));
            }
            let before = log_of(&redis, &name);
            grant(&[&format!("-{command}")]);
            let answer = limiter.try_acquire();
            grant(&["+@all"]);
            let after = log_of(&redis, &name);
            match answer {
                Ok(Admission::Admitted) => assert_ne!(after, before, "{name}"),
                Err(Error::Denied { .. }) => {
                    denied += 1;
                    // The head may have been written again.
                    assert_eq!(after.get(1..), before.get(1..), "{name}");
                    admitted(limiter.try_acquire());
                }
                other => panic!("{name}: {other:?}"),
            }
            let ttl = redis.ttl(&name);
            let ttl = ttl.unwrap_or_else(|| panic!("{name} never ends"));
            assert!(ttl <= LONG, "{name}: {ttl:?}");
        }
    }
    assert!(denied > 12, "{denied} were denied");
}
