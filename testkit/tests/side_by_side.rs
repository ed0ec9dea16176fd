//! A manager of the test kit and one of a real server in one program: neither sees the time, the server or the machine of the
//! other. `REDIS_URL` names the real server.

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Event, LeaseState, LockManager, LostCause};
use leasehold_testing::Redis;
use uuid::Uuid;

const HOUR: Duration = Duration::from_secs(3_600);
/// The lease of the managers of the real server.
const LEASE: Duration = Duration::from_secs(10);
/// A busy machine may need some of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns builders of managers of the real server that share their locks, and no locks with other tests.
fn of_the_real_server() -> impl Fn() -> Builder {
    let url = std::env::var("REDIS_URL").expect("run it under scripts/with-redis");
    let prefix = format!("{}:", Uuid::new_v4());
    move || {
        let builder = LockManager::single(&url).prefix(&prefix);
        builder.lease(LEASE)
    }
}

#[test]
fn moving_the_clock_of_the_kit_moves_nothing_of_a_real_server() {
    let (redis, builder) = (Redis::new(), of_the_real_server());
    let kit = redis.manager();
    let real = builder().build().expect("it answers");
    let in_memory = kit.lock("n").expect("it is free");
    let guard = real
        .lock("n")
        .expect("it is free, although the kit holds its own");

    redis.advance(HOUR);
    assert_eq!(in_memory.state(), LeaseState::Lost);
    assert_eq!(guard.state(), LeaseState::Held);
    assert!(guard.remaining() <= LEASE);

    // The kit passes an hour, and renews its lease all the time. In the time of the real server that is a moment.
    let in_memory = kit.lock("n").expect("it is free");
    redis.pass(HOUR);
    assert_eq!(in_memory.state(), LeaseState::Held);
    // The real lease is renewed all the same, without a word to the kit.
    let before = guard.remaining();
    while guard.remaining() <= before {
        guard.check().expect("it is renewed in time");
        thread::sleep(Duration::from_millis(10));
    }

    redis.lose("n");
    assert_eq!(in_memory.state(), LeaseState::Lost);
    guard.check().expect("the real server has it still");
    guard.release().expect("it was held");
}

#[test]
fn each_loses_by_its_own_server() {
    let (redis, builder) = (Redis::new(), of_the_real_server());
    let in_memory = redis.manager().lock("n").expect("it is free");
    let guard = builder().build().expect("it answers").lock("n");
    let guard = guard.expect("it is free");
    let lost = guard.on_lost();

    let operator = builder().build().expect("it answers");
    let is_removed = operator.force_release("n", guard.owner());
    assert!(is_removed.expect("it answers"), "it was held");
    let lost = lost.recv_timeout(PATIENCE).expect("a loss");
    assert_eq!(lost.cause, LostCause::Removed);
    in_memory.check().expect("the kit has it still");
}

#[test]
fn a_wait_for_a_real_lock_takes_real_time() {
    const WAIT: Duration = Duration::from_millis(500);
    let (redis, builder) = (Redis::new(), of_the_real_server());
    let _in_memory = redis.manager().lock("n").expect("it is free");
    let _guard = builder().build().expect("it answers").lock("n");
    let other = builder().build().expect("it answers");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let begun = Instant::now();
            let guard = other.try_lock_for("n", WAIT).expect("it answers");
            (guard.is_some(), begun.elapsed())
        });
        while !waiting.is_finished() {
            redis.advance(HOUR);
        }
        let (has_it, waited) = waiting.join().expect("no panic");
        assert!(!has_it, "it is held");
        assert!(waited >= WAIT, "{waited:?}");
    });
}

/// A listener runs on a thread of its manager.
#[test]
fn a_thread_of_one_manager_may_use_the_other() {
    let (redis, builder) = (Redis::new(), of_the_real_server());
    let kit = redis.manager();
    let real = builder().build().expect("it answers");
    let _in_memory = kit.lock("inner").expect("it is free");
    let (told, is_free) = channel();
    let asks = |manager: &LockManager| {
        let (manager, told) = (manager.clone(), told.clone());
        move |_: &Event<'_>| {
            let inner = manager.try_lock("inner").expect("it answers");
            told.send(inner.is_some()).ok();
        }
    };
    let next = || is_free.recv_timeout(PATIENCE).expect("an event");

    let of_kit = redis.builder().listener(asks(&real)).build();
    let guard = of_kit.expect("it answers").lock("outer");
    assert!(next(), "the real server has no such lock");
    drop(guard);
    let of_real = builder().listener(asks(&kit)).build();
    let _guard = of_real.expect("it answers").lock("outer");
    // Events of the first manager may still come.
    while next() {}
}
