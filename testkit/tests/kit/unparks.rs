//! A program that unparks a thread while the thread waits in a call, as channels and executors do. The token is the program's:
//! it wakes no wait, and the thread has it after the call.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use leasehold::{Cancel, Error, LockManager};
use leasehold_testing::Redis;

use super::{HOUR, on_both, secs};

const NAME: &str = "n";
const UNPARKS: u64 = 1_000;
/// More polls than a busy machine has time for. A request for each unpark would be ten times as many.
const MOST_REQUESTS: u64 = 100;

/// Unparks a thread while it waits, and checks that the wait has sent nothing for that. `end` ends the wait.
fn unpark_during(
    locks: &LockManager,
    wait: impl FnOnce(&LockManager) + Send + 'static,
    is_waiting: impl Fn() -> bool,
    end: impl FnOnce(),
) {
    let (told, parked) = channel();
    let of_thread = locks.clone();
    let thread = thread::spawn(move || {
        wait(&of_thread);
        // It blocks without the token.
        thread::park();
        told.send(()).expect("the test listens");
    });
    while !is_waiting() {
        thread::yield_now();
    }
    let before = locks.stats().requests;
    for _ in 0..UNPARKS {
        thread.thread().unpark();
        thread::sleep(Duration::from_micros(100));
    }
    let sent = locks.stats().requests - before;
    assert!(sent < MOST_REQUESTS, "{sent} requests");
    end();
    parked
        .recv_timeout(secs(20))
        .expect("the wait has taken the token");
    thread.join().expect("no panic");
}

#[test]
fn a_wait_for_another_process_leaves_the_token_alone() {
    on_both(|redis| {
        let guard = redis.manager().lock(NAME).expect("it is free");
        let locks = redis.manager();
        let wait = |locks: &LockManager| drop(locks.lock(NAME).expect("it becomes free"));
        let is_waiting = || redis.locks()[0].waiters == 1;
        unpark_during(&locks, wait, is_waiting, || drop(guard));
    });
}

#[test]
fn a_wait_for_another_thread_leaves_the_token_alone() {
    on_both(|redis| {
        let locks = redis.manager();
        let guard = locks.lock(NAME).expect("it is free");
        let wait = |locks: &LockManager| drop(locks.lock(NAME).expect("it becomes free"));
        unpark_during(&locks, wait, || locks.stats().waiting == 1, || drop(guard));
    });
}

#[test]
fn a_wait_that_is_cancelled_leaves_the_token_alone() {
    on_both(|redis| {
        let guard = redis.manager().lock(NAME).expect("it is free");
        let (locks, cancel) = (redis.manager(), Cancel::new());
        let token = cancel.clone();
        let wait = move |locks: &LockManager| {
            let waited = locks.mutex(NAME).cancel_with(&token).lock();
            assert!(matches!(waited, Err(Error::Cancelled)));
        };
        unpark_during(
            &locks,
            wait,
            || locks.stats().waiting == 1,
            || cancel.cancel(),
        );
        drop(guard);
    });
}

#[test]
fn a_wait_for_a_rate_limiter_leaves_the_token_alone() {
    let redis = Redis::new();
    let (locks, cancel) = (redis.manager(), Cancel::new());
    let limiter = locks.rate_limiter(NAME, 1, HOUR).cancel_with(&cancel);
    limiter.acquire().expect("it has a place");
    let before = locks.stats().requests;
    let wait = move |_: &LockManager| {
        assert!(matches!(limiter.acquire(), Err(Error::Cancelled)));
    };
    let is_waiting = || locks.stats().requests > before;
    unpark_during(&locks, wait, is_waiting, || cancel.cancel());
}
