//! The mistakes of other lock libraries, in the time of the kit. docs/FAULTS.md has the list, with the reports.

use std::thread;
use std::time::Duration;

use leasehold::{LeaseState, LockGuard};
use leasehold_testing::Redis;

use super::{HOUR, on_both, secs};

#[test]
fn renewal_ends_with_the_release() {
    let ends: [fn(LockGuard); 3] = [
        |guard| guard.release().expect("it is held"),
        drop,
        |guard| drop(guard.detach()),
    ];
    for end in ends {
        let check = |redis: &Redis| {
            let locks = redis.manager();
            let guard = locks.lock("n").expect("it is free");
            redis.pass(HOUR);
            let renewed = locks.stats().renewed;
            assert!(renewed > 100, "{renewed} renewals of the held lock");
            end(guard);
            let renewed = locks.stats().renewed;
            redis.pass(HOUR);
            assert_eq!(
                locks.stats().renewed,
                renewed,
                "it is renewed after its end"
            );
            let next = redis.manager().try_lock("n").expect("it answers");
            assert!(next.is_some(), "it is still held");
        };
        check(&Redis::new());
        check(&Redis::quorum(3));
    }
}

/// The renewal thread ends when it has had nothing to do for a while.
#[test]
fn a_lock_after_an_idle_hour_is_renewed() {
    on_both(|redis| {
        let locks = redis.manager();
        for _ in 0..3 {
            let guard = locks.mutex("n").lease(secs(300)).lock();
            let guard = guard.expect("it is free");
            redis.pass(HOUR);
            guard.release().expect("it was renewed");
            redis.pass(HOUR);
        }
    });
}

#[test]
fn errors_of_renewals_do_not_end_renewal() {
    on_both(|redis| {
        let locks = redis.manager();
        let guard = locks.mutex("n").lease(secs(300)).lock();
        let guard = guard.expect("it is free");
        for _ in 0..3 {
            let before = locks.stats().renewals_failed;
            redis.cut();
            redis.pass(secs(150));
            let after = locks.stats();
            assert!(after.renewals_failed > before, "no renewal failed");
            redis.restore();
            while locks.stats().renewed == after.renewed {
                assert_ne!(guard.state(), LeaseState::Lost, "it is renewed no more");
                redis.advance(Duration::from_millis(10));
                thread::yield_now();
            }
            redis.pass(HOUR);
        }
        guard.release().expect("it was renewed");
    });
}
