//! How far and how fast the time of the kit moves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use leasehold::LeaseState;
use leasehold_testing::Redis;

use super::{HOUR, on_both, secs};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// By steps of a second these years would take a day.
#[test]
fn a_century_passes_at_once_if_nothing_is_held() {
    on_both(|redis| {
        let locks = redis.manager();
        drop(locks.lock("n").expect("it is free"));
        redis.pass(99 * YEAR);
        drop(locks.lock("n").expect("it is free"));
    });
}

/// By steps of a second this year would take half an hour.
#[test]
fn time_jumps_from_renewal_to_renewal() {
    on_both(|redis| {
        // The record of a fence is kept in half of its time, which would be as often as a step.
        let builder = redis.builder().lease(24 * HOUR).fence_memory(YEAR);
        let locks = builder.build().expect("it answers");
        let guard = locks.lock("n").expect("it is free");
        let short = locks.mutex("short").lease(30 * HOUR / 2).renew(false);
        let short = short.lock().expect("it is free");
        let limited = locks.mutex("limited").max_hold(Some(100 * HOUR)).lock();
        let limited = limited.expect("it is free");
        redis.pass(99 * HOUR);
        assert_eq!(short.state(), LeaseState::Lost);
        assert_eq!(limited.state(), LeaseState::Held);
        redis.pass(2 * HOUR);
        assert_eq!(limited.state(), LeaseState::Lost);
        redis.pass(YEAR);
        guard.release().expect("it was renewed");
        assert!(locks.stats().renewed > 365, "{:?}", locks.stats());
    });
}

/// A lease that a thread gains while nothing else is held is renewed from then on.
#[test]
fn a_lease_is_renewed_that_is_gained_while_time_passes() {
    let redis = Redis::new();
    let locks = redis.manager();
    redis.hold_by_other("n", secs(60));
    let waiting = thread::spawn(move || locks.lock("n").expect("it becomes free"));
    while redis.locks()[0].waiters == 0 {
        thread::yield_now();
    }
    redis.pass(HOUR);
    let guard = waiting.join().expect("no panic");
    assert_eq!(guard.state(), LeaseState::Held);
    guard.release().expect("it was renewed");
}

/// Returns the text of a panic.
fn panic_of(act: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(act)).expect_err("it panics");
    let text = panic.downcast::<String>().expect("a text with numbers");
    *text
}

#[test]
fn a_move_beyond_the_limit_is_refused_at_once_and_changes_nothing() {
    let redis = Redis::new();
    let locks = redis.manager();
    let guard = locks.lock("n").expect("it is free");
    let moves: [fn(&Redis, Duration); 2] = [Redis::advance, Redis::pass];
    for move_by in moves {
        for time in [Duration::MAX, 300 * YEAR, 101 * YEAR] {
            let panic = panic_of(|| move_by(&redis, time));
            assert!(panic.contains("at most 100 years"), "{panic}");
        }
    }
    assert_eq!(guard.state(), LeaseState::Held);
    redis.advance(60 * YEAR);
    for move_by in moves {
        let panic = panic_of(|| move_by(&redis, 41 * YEAR));
        assert!(panic.contains("at most 100 years"), "{panic}");
    }
    redis.advance(40 * YEAR);
    // All works at the end of the time of the kit too.
    let next = redis.manager().lock("n").expect("it is free");
    assert!(next.fence() > guard.fence());
    next.release().expect("it is held");
}

#[test]
fn another_program_may_hold_a_lock_for_ever() {
    let redis = Redis::new();
    let locks = redis.manager();
    redis.hold_by_other("n", Duration::MAX);
    redis.advance(99 * YEAR);
    assert!(locks.try_lock("n").expect("it answers").is_none());
    assert_eq!(redis.locks().len(), 1);
}
