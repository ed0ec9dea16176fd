//! Tests of code that locks, without a server: a job, a web server, a cron job and a worker take a `&LockManager`, and `main` gives
//! them that of the test kit.
//!
//! `cargo run --package leasehold-testing --example testing`
//!
//! The exit status is 0 only if each of them did what it should. README.md explains the test kit.

use std::time::Duration;

use leasehold::{Error, LockGuard, LockManager, Result};
use leasehold_testing::Redis;

const MINUTE: Duration = Duration::from_secs(60);

/// Sends the bills one after the other, and returns how many it has sent.
fn send_bills(locks: &LockManager, send: impl Fn(u32)) -> Result<u32> {
    let guard = locks.lock("bills")?;
    for bill in 0..100 {
        guard.check()?; // an error once the lock is lost
        send(bill);
    }
    Ok(100)
}

/// Returns the status of a request that needs the account's lock.
fn pay(locks: &LockManager, account: &str) -> u16 {
    match locks.try_lock_for(account, Duration::from_millis(50)) {
        Ok(Some(_guard)) => 200,
        Ok(None) => 409,
        Err(error) if error.is_retryable() => 503,
        Err(_) => 500,
    }
}

/// Runs the job, unless another host runs it, or has begun it within the last ten minutes.
fn nightly(locks: &LockManager, job: impl FnOnce()) -> Result<bool> {
    let mutex = locks.mutex("nightly").min_hold(10 * MINUTE);
    let Some(_guard) = mutex.try_lock()? else {
        return Ok(false);
    };
    job();
    Ok(true)
}

/// Returns the number of the next part that nobody works on, and its lock.
fn claim(locks: &LockManager, parts: u32) -> Result<Option<(u32, LockGuard)>> {
    for part in 0..parts {
        if let Some(guard) = locks.try_lock(format!("part:{part}"))? {
            return Ok(Some((part, guard)));
        }
    }
    Ok(None)
}

fn main() -> Result<()> {
    let redis = Redis::new();
    let (one, other) = (redis.manager(), redis.manager());

    assert_eq!(send_bills(&one, |_| {})?, 100);
    let suspended = send_bills(&one, |bill| {
        if bill == 2 {
            redis.advance(MINUTE); // twice the lease
        }
    });
    assert!(matches!(suspended, Err(Error::Lost(_))), "{suspended:?}");
    println!("the job stopped after it had lost its lock");

    assert_eq!(pay(&one, "a"), 200);
    redis.hold_by_other("a", MINUTE);
    assert_eq!(pay(&one, "a"), 409);
    redis.cut();
    assert_eq!(pay(&one, "b"), 503);
    redis.restore();
    assert_eq!(pay(&one, "b"), 200);
    println!("the server answered 503 while there was no Redis");

    let ran = nightly(&one, || {
        redis.pass(60 * MINUTE); // the lease of 30 s is renewed all the time
        let again = nightly(&other, || panic!("it runs on another host"));
        assert!(!again.expect("Redis answers"));
    })?;
    assert!(ran);
    println!("the job of an hour ran once");

    let dead = redis.manager();
    let claimed = |locks: &LockManager| claim(locks, 2).map(|it| it.expect("one is free"));
    let (first, _guard) = claimed(&dead)?;
    redis.kill(&dead);
    let (second, _other) = claimed(&other)?;
    redis.pass(MINUTE / 2);
    let (third, _again) = claimed(&other)?;
    assert_eq!([first, second, third], [0, 1, 0]);
    println!("the part of a worker that crashed was free after its lease");
    Ok(())
}
