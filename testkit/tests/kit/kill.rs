//! Processes that are killed, while others live on.

use std::thread;

use leasehold::{Error, LeaseState, LockManager};
use leasehold_testing::Redis;

use super::{HOUR, on_both, secs};

fn wait_for_waiters(redis: &Redis, count: u64) {
    while redis.locks().iter().map(|lock| lock.waiters).sum::<u64>() < count {
        thread::yield_now();
    }
}

#[test]
fn the_lock_of_a_killed_process_is_free_after_its_lease() {
    on_both(|redis| {
        let (one, other) = (redis.manager(), redis.manager());
        let guard = one.lock("n").expect("it is free");
        redis.pass(HOUR);
        redis.kill(&one);
        let tried = || other.try_lock("n").expect("it answers");
        assert!(tried().is_none(), "nobody has released it");
        redis.pass(secs(15));
        assert!(tried().is_none(), "its lease is 30 s");
        assert_eq!(guard.state(), LeaseState::AtRisk);
        redis.pass(secs(20));
        let next = tried().expect("the lease is over");
        assert!(next.fence() > guard.fence());
        // What is left of the killed process disturbs nobody.
        assert_eq!(guard.state(), LeaseState::Lost);
        drop(guard);
        redis.pass(HOUR);
        next.release().expect("it was renewed");
    });
}

#[test]
fn a_killed_process_sends_nothing_and_its_calls_end() {
    on_both(|redis| {
        let other = redis.manager();
        let held = other.lock("n").expect("it is free");
        let locks = redis.builder().background_release(true).build();
        let locks = locks.expect("it answers");
        let guard = locks.lock("mine").expect("it is free");
        let waits = locks.clone();
        let waiting = thread::spawn(move || waits.lock("n").map(drop));
        wait_for_waiters(redis, 1);
        redis.kill(&locks);
        let ended = waiting.join().expect("no panic");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        let later = locks.clone().try_lock("free");
        assert!(matches!(later, Err(Error::Closed)), "{later:?}");
        drop(guard);
        redis.advance(secs(1));
        let mine = other.try_lock("mine").expect("it answers");
        assert!(mine.is_none(), "a release was sent");
        held.release().expect("other processes live on");
    });
}

/// The lock goes to the next waiter that lives, without a wait for the dead one's lease.
#[test]
fn a_killed_waiter_is_passed_over() {
    on_both(|redis| {
        let (holder, dead, next) = (redis.manager(), redis.manager(), redis.manager());
        let guard = holder.lock("n").expect("it is free");
        let wait = |locks: LockManager| thread::spawn(move || locks.lock("n"));
        let killed = wait(dead.clone());
        wait_for_waiters(redis, 1);
        let waiting = wait(next);
        wait_for_waiters(redis, 2);
        redis.kill(&dead);
        guard.release().expect("it was held");
        killed
            .join()
            .expect("no panic")
            .expect_err("its process was killed");
        // The servers drop a waiter that has said nothing for 3 s.
        redis.pass(secs(10));
        let next = waiting.join().expect("no panic").expect("it is free");
        next.release().expect("it was renewed");
    });
}

/// Two managers of one builder are two processes.
#[test]
fn only_the_process_of_that_manager_is_killed() {
    let redis = Redis::new();
    let builder = redis.builder().lease(secs(10));
    let (one, other) = (builder.clone().build(), builder.build());
    let (one, other) = (one.expect("it answers"), other.expect("it answers"));
    let guard = other.lock("n").expect("it is free");
    redis.kill(&one);
    redis.kill(&one);
    redis.pass(HOUR);
    guard.release().expect("it was renewed");
    drop(other.lock("m").expect("it lives on"));
}

#[test]
#[should_panic(expected = "the manager is one of a real server")]
fn a_manager_of_a_real_server_cannot_be_killed() {
    let real = LockManager::single("redis://127.0.0.1:1/").build_lazy();
    Redis::new().kill(&real.expect("nothing connects"));
}
