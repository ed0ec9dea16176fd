//! The test kit, used as a program's own tests use it.

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]

mod elections;
mod kill;
mod moves;
mod pains;
mod unparks;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Error, LeaseState, LockGuard, LockManager, LostCause, Reply, Write};
use leasehold_testing::Redis;

const HOUR: Duration = Duration::from_secs(3_600);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Runs a test on one server, and on a quorum of three.
fn on_both(test: fn(&Redis)) {
    test(&Redis::new());
    test(&Redis::quorum(3));
}

/// A value is read, changed for a minute and written back by two processes, of which one is paused meanwhile.
#[test]
fn a_holder_that_was_paused_past_its_lease_commits_nothing() {
    let redis = Redis::new();
    let (one, other) = (redis.manager(), redis.manager());
    let stock = |left: u32| Write::new("SET", "{42}stock").arg(left).arg("GET");
    let paused = one.mutex("{42}").lease(secs(30)).renew(false).lock();
    let paused = paused.expect("it is free");
    paused.commit(&[stock(10)]).expect("it is held");
    redis.advance(secs(60));
    let next = other.lock("{42}").expect("the lease of the first is over");
    next.commit(&[stock(9)]).expect("it is held");
    let late = paused.commit(&[stock(9)]);
    assert!(matches!(late, Err(Error::Lost(_))), "{late:?}");
    let before = next.commit(&[stock(8)]).expect("it is held");
    assert_eq!(before, [Reply::Bytes(b"9".to_vec())]);
}

/// Adds to a number, and to the list of who did. Begins again with the read if the lock is lost meanwhile.
fn add(locks: &LockManager, who: &str, read: impl Fn() -> i64, work: impl Fn()) {
    loop {
        let guard = locks.lock("n").expect("it becomes free");
        let sum = read() + 1;
        work();
        let writes = [
            Write::new("SET", "sum").arg(sum),
            Write::new("RPUSH", "by").arg(who),
        ];
        match guard.commit(&writes) {
            Err(Error::Lost(_)) => {}
            written => return drop(written.expect("Redis answers")),
        }
    }
}

/// Once the guard of the first knows of its loss, and once only the server knows.
#[test]
fn an_update_that_lost_its_lock_is_repeated_from_the_read() {
    let losses: [fn(&Redis); 2] = [
        |redis| redis.advance(secs(60)),
        |redis| drop(redis.command(["DEL", "n"])),
    ];
    for lose in losses {
        let redis = Redis::new();
        let (one, other) = (redis.manager(), redis.manager());
        let read = || match redis.command(["INCRBY", "sum", "0"]) {
            Reply::Integer(sum) => sum,
            other => panic!("{other:?}"),
        };
        let is_paused = Cell::new(true);
        add(&one, "one", read, || {
            if is_paused.take() {
                lose(&redis);
                add(&other, "other", read, || {});
            }
        });
        assert_eq!(read(), 2);
        let by = ["other", "one"].map(|who| Reply::Bytes(who.into()));
        let found = redis.command(["LRANGE", "by", "0", "-1"]);
        assert_eq!(found, Reply::Array(by.into()));
    }
}

#[test]
fn only_the_server_knows_of_a_lock_that_a_command_has_deleted() {
    let redis = Redis::new();
    let guard = redis.manager().mutex("n").renew(false).lock();
    let guard = guard.expect("it is free");
    assert_eq!(redis.command(["DEL", "n"]), Reply::Integer(1));
    assert_eq!(guard.state(), LeaseState::Held);
    let refused = guard.commit(&[Write::new("SADD", "done").arg("81")]);
    match refused {
        Err(Error::Lost(lost)) => assert_eq!(lost.cause, LostCause::Removed),
        other => panic!("{other:?}"),
    }
    assert_eq!(redis.command(["SMEMBERS", "done"]), Reply::Array(vec![]));
}

#[test]
fn a_write_that_the_kit_lacks_is_named() {
    let redis = Redis::new();
    let guard = redis.manager().lock("n").expect("it is free");
    let writes = ["SET", "XADD"].map(|command| Write::new(command, "k").arg("v"));
    let refused = guard.commit(&writes).expect_err("it has no streams");
    let text = format!("{refused:#}");
    assert!(matches!(refused, Error::Refused { done: 1, .. }), "{text}");
    assert!(text.contains("'xadd': the Redis in memory"), "{text}");
}

#[test]
fn a_waiter_gets_the_lock_at_its_release() {
    on_both(|redis| {
        let guard = redis.manager().lock("n").expect("it is free");
        let locks = redis.manager();
        let waiting = thread::spawn(move || locks.lock("n").expect("it becomes free").fence());
        let fence = guard.fence();
        while redis.locks()[0].waiters == 0 {
            thread::yield_now();
        }
        drop(guard);
        assert!(waiting.join().expect("no panic") > fence);
    });
}

#[test]
fn a_lock_that_is_taken_reads_lost() {
    on_both(|redis| {
        let guard = redis.manager().lock("n").expect("it is free");
        let notices = guard.on_lost();
        redis.lose("n");
        assert_eq!(guard.state(), LeaseState::Lost);
        let loss = notices.recv_timeout(secs(20)).expect("it is told");
        assert_eq!(loss.cause, LostCause::Removed);
        assert!(matches!(guard.check(), Err(Error::Lost(_))));
    });
}

#[test]
fn a_lock_that_another_program_holds_is_waited_for() {
    on_both(|redis| {
        let locks = redis.manager();
        let guard = locks.lock("n").expect("it is free");
        redis.hold_by_other("n", secs(60));
        let loss = guard.on_lost().recv_timeout(secs(20)).expect("it is told");
        assert_eq!(loss.cause, LostCause::Taken);
        assert!(locks.try_lock("n").expect("it answers").is_none());
        assert_eq!(redis.locks()[0].holders.len(), 1);
        redis.advance(secs(60) + Duration::from_millis(1));
        assert!(locks.try_lock("n").expect("it answers").is_some());
    });
}

#[test]
fn an_outage_ends() {
    on_both(|redis| {
        let locks = redis
            .builder()
            .io_timeout(secs(1))
            .build()
            .expect("it answers");
        let guard = locks.lock("n").expect("it is free");
        redis.cut();
        let failed = locks.try_lock("m").expect_err("no server answers");
        assert!(failed.is_retryable(), "{failed:?}");
        redis.restore();
        let again = Instant::now() + secs(20);
        while locks.try_lock("m").is_err() {
            assert!(Instant::now() < again, "it never answers");
        }
        guard.check().expect("the lease is longer than the outage");
    });
}

#[test]
fn a_suspended_machine_has_lost_its_lock() {
    on_both(|redis| {
        let (one, other) = (redis.manager(), redis.manager());
        let guard = one.lock("n").expect("it is free");
        redis.advance(secs(20));
        assert_ne!(guard.state(), LeaseState::Lost);
        redis.advance(secs(40));
        assert_eq!(guard.state(), LeaseState::Lost);
        let loss = guard.on_lost().recv_timeout(secs(20)).expect("it is told");
        assert_eq!(loss.cause, LostCause::Expired);
        let next = other
            .try_lock("n")
            .expect("it answers")
            .expect("it is free");
        assert!(next.fence() > guard.fence());
    });
}

#[test]
fn an_hour_of_renewals_takes_a_moment() {
    on_both(|redis| {
        let (one, other) = (redis.manager(), redis.manager());
        let guard = one.lock("n").expect("it is free");
        let short = one.mutex("short").lease(secs(300)).renew(false).lock();
        let short = short.expect("it is free");
        redis.pass(HOUR);
        guard.check().expect("it was renewed");
        assert_eq!(short.state(), LeaseState::Lost);
        assert!(other.try_lock("n").expect("it answers").is_none());
        assert!(other.try_lock("short").expect("it answers").is_some());
    });
}

#[test]
fn a_wait_ends_at_its_limit() {
    on_both(|redis| {
        let _guard = redis
            .manager()
            .mutex("n")
            .lease(HOUR)
            .lock()
            .expect("it is free");
        let locks = redis.manager();
        let waiting = thread::spawn(move || locks.try_lock_for("n", secs(600)));
        while redis.locks()[0].waiters == 0 {
            thread::yield_now();
        }
        redis.advance(secs(601));
        let ended = waiting.join().expect("no panic").expect("it answers");
        assert!(ended.is_none());
    });
}

#[test]
fn a_restart_without_data_loses_all_locks() {
    on_both(|redis| {
        let guard = redis.manager().lock("n").expect("it is free");
        redis.restart_empty();
        let loss = guard.on_lost().recv_timeout(secs(20)).expect("it is told");
        assert_eq!(loss.cause, LostCause::Removed);
        assert!(redis.locks().is_empty());
    });
}

/// The nodes of a quorum are found again in the time of the kit, too.
#[test]
fn an_outage_shorter_than_a_lease_loses_nothing() {
    on_both(|redis| {
        let locks = redis.manager();
        let guard = locks.lock("n").expect("it is free");
        redis.cut();
        redis.pass(secs(12));
        redis.restore();
        redis.pass(secs(30));
        assert_eq!(guard.state(), LeaseState::Held);
        drop(locks.lock("m").expect("the servers are back"));
    });
}

/// Far more calls at once than the pool has connections: each waits for one, for as long as its caller allows.
#[test]
fn a_call_has_its_whole_time_after_the_clock_was_moved() {
    on_both(|redis| {
        let locks = redis.manager();
        redis.advance(HOUR);
        thread::scope(|scope| {
            for number in 0..64 {
                let locks = &locks;
                scope.spawn(move || {
                    for _ in 0..10 {
                        let name = format!("n{number}");
                        let guard = locks.try_lock_for(&name, secs(60)).expect("it answers");
                        let guard = guard.expect("it is free");
                        guard.extend(secs(40)).expect("it is held");
                    }
                });
            }
        });
    });
}

/// Does something when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn time_moves_while_threads_are_busy() {
    on_both(|redis| {
        let locks = redis.manager();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..8 {
                let (locks, is_over) = (&locks, &is_over);
                scope.spawn(move || {
                    while !is_over.load(SeqCst) {
                        drop(locks.lock(format!("n{number}")).expect("it is free"));
                    }
                });
            }
            // Ends the threads also if the kit panics.
            let _end = OnDrop(|| is_over.store(true, SeqCst));
            for _ in 0..3 {
                redis.advance(secs(40));
                redis.pass(secs(2));
                redis.lose("n0");
            }
        });
    });
}

#[test]
fn locks_are_shown_whatever_the_restart_delay() {
    for delay in [Duration::ZERO, secs(5), secs(60)] {
        let redis = Redis::quorum(3);
        assert!(redis.locks().is_empty());
        let builder = redis.builder().restart_delay(delay).lease(secs(1));
        let locks = builder.build().expect("no other value was noted");
        redis.advance(HOUR);
        let _guard = locks.lock("n").expect("it is free");
        assert_eq!(redis.locks().len(), 1);
        drop(locks.lock("m").expect("the value is the same"));
    }
}

#[test]
fn each_redis_has_its_own_data_and_its_own_time() {
    let (one, other) = (Redis::new(), Redis::new());
    let guard = other.manager().lock("n").expect("it is free");
    let _same = one.manager().lock("n").expect("it is free there");
    one.advance(HOUR);
    one.lose("n");
    assert_eq!(guard.state(), LeaseState::Held);
    assert_eq!(other.locks().len(), 1);
}

#[test]
fn all_kinds_of_locks_work() {
    let redis = Redis::new();
    let locks = redis.manager();
    let reads = [locks.rwlock("rw").read(), locks.rwlock("rw").read()];
    assert!(
        locks
            .rwlock("rw")
            .try_write()
            .expect("it answers")
            .is_none()
    );
    drop(reads);
    assert!(
        locks
            .rwlock("rw")
            .try_write()
            .expect("it answers")
            .is_some()
    );
    let semaphore = locks.semaphore("s", 2);
    let permits = [semaphore.acquire(), semaphore.acquire()];
    assert!(semaphore.try_acquire().expect("it answers").is_none());
    drop(permits);
    drop(locks.multi(["a", "b"]).lock().expect("they are free"));
    let limiter = locks.rate_limiter("r", 1, secs(60));
    limiter.acquire().expect("it admits one");
    let refused = limiter.try_acquire().expect("it answers");
    assert!(matches!(refused, leasehold::Admission::RetryAfter(_)));
    redis.advance(secs(60));
    limiter.acquire().expect("it admits one more");
}

#[test]
fn a_thousand_threads_add_one() {
    let redis = Redis::new();
    let managers = [redis.manager(), redis.manager()];
    let sum = AtomicU32::new(0);
    let add = |locks: &LockManager| {
        let _guard = locks.lock("sum").expect("it becomes free");
        let before = sum.load(SeqCst);
        sum.store(before + 1, SeqCst);
    };
    thread::scope(|scope| {
        for number in 0..1_000 {
            let (locks, add) = (&managers[number % 2], &add);
            scope.spawn(move || add(locks));
        }
    });
    assert_eq!(sum.load(SeqCst), 1_000);
}

/// The first helper that a program's tests have returns a manager alone.
#[test]
fn a_manager_keeps_its_server() {
    let locks = Redis::new().manager();
    drop(locks.lock("n").expect("the server is there"));
}

#[test]
fn a_grant_by_message_counts_after_a_long_time_too() {
    let redis = Redis::new();
    redis.advance(24 * HOUR);
    let (one, other) = (redis.manager(), redis.manager());
    for _ in 0..20 {
        let guard = one.lock("n").expect("it is free");
        let locks = other.clone();
        let waiting = thread::spawn(move || locks.lock("n").expect("it becomes free").release());
        while redis.locks()[0].waiters == 0 {
            thread::yield_now();
        }
        guard.release().expect("it was held");
        waiting.join().expect("no panic").expect("it was held");
    }
    assert!(other.stats().granted_by_message > 0);
}

#[test]
fn waiters_keep_their_places_while_time_passes() {
    let redis = Redis::new();
    let guard = redis.manager().lock("n").expect("it is free");
    let (first, second) = (redis.manager(), redis.manager());
    let waiting = thread::spawn(move || first.lock("n").expect("it becomes free"));
    let has_waiters = |count| redis.locks()[0].waiters == count;
    while !has_waiters(1) {
        thread::yield_now();
    }
    redis.pass(HOUR);
    assert!(has_waiters(1));
    let behind = thread::spawn(move || second.lock("n").expect("it becomes free"));
    while !has_waiters(2) {
        thread::yield_now();
    }
    redis.pass(HOUR);
    guard.release().expect("it was renewed");
    let first = waiting.join().expect("no panic");
    assert!(!behind.is_finished());
    first.release().expect("it is held");
    drop(behind.join().expect("no panic"));
}

#[test]
fn an_outage_reads_as_it_does_beside_a_real_server() {
    let redis = Redis::new();
    let guard = redis.manager().lock("n").expect("it is free");
    redis.cut();
    assert_eq!(guard.state(), LeaseState::Held);
    redis.pass(secs(20));
    assert_eq!(guard.state(), LeaseState::AtRisk);
    redis.pass(secs(20));
    assert_eq!(guard.state(), LeaseState::Lost);
}

/// A node that has restarted without its data might grant a lock that is held.
#[test]
fn the_restart_delay_counts_in_the_time_of_the_kit() {
    let redis = Redis::quorum(3);
    let builder = redis.builder().restart_delay(secs(60));
    let locks = builder.build_lazy().expect("the settings are right");
    locks.try_lock("n").expect_err("the nodes are new");
    redis.advance(HOUR);
    let tried = || locks.try_lock("n");
    drop(tried().expect("they have waited").expect("it is free"));
    redis.restart_empty();
    tried().expect_err("they have restarted");
    redis.advance(HOUR);
    drop(tried().expect("they have waited").expect("it is free"));
}

#[test]
fn max_hold_has_ended_a_lock_when_the_time_has_moved() {
    for _ in 0..100 {
        let redis = Redis::new();
        let locks = redis.manager();
        let guard = locks.mutex("n").max_hold(Some(secs(10))).lock();
        let guard = guard.expect("it is free");
        let notices = guard.on_lost();
        redis.advance(secs(11));
        assert_eq!(guard.state(), LeaseState::Lost);
        notices.try_recv().expect("it is told");
    }
}

/// The thread's own variables end in the opposite order of their first use, and the test kit has one too.
#[test]
fn a_guard_may_end_with_its_thread() {
    thread_local! {
        static GUARD: RefCell<Option<LockGuard>> = const { RefCell::new(None) };
    }
    let locks = Redis::new().manager();
    let holds = locks.clone();
    let holding = thread::spawn(move || {
        GUARD.with_borrow_mut(|guard| *guard = Some(holds.lock("n").expect("it is free")));
    });
    holding.join().expect("no panic");
    drop(locks.lock("n").expect("it was released"));
}

/// Two hosts start the job each night. The first try fails, and the other host comes five minutes later.
#[test]
fn a_nightly_job_that_fails_is_done_by_the_other_host() {
    let redis = Redis::new();
    let hosts = [redis.manager(), redis.manager()];
    let reports = AtomicU32::new(0);
    let nightly = |host: usize, night: u32, is_broken: bool| {
        let fire = SystemTime::UNIX_EPOCH + secs(1_795_834_800) + 24 * HOUR * night;
        let Some(guard) = hosts[host].once("nightly").claim(fire)? else {
            return Ok::<_, Error>(());
        };
        if !is_broken {
            reports.fetch_add(1, SeqCst);
            guard.done()?;
        }
        Ok(())
    };
    for night in 0..3 {
        for (host, is_broken) in [(0, night == 1), (1, false), (0, false)] {
            nightly(host, night, is_broken).expect("Redis answers");
            redis.pass(secs(300));
        }
        assert_eq!(reports.load(SeqCst), night + 1);
        redis.pass(23 * HOUR);
    }
    // The record of a night that nobody does stays.
    let last = hosts[0].once("nightly").last().expect("Redis answers");
    let night = last.expect("it was done").fire;
    nightly(0, 3, true).expect("Redis answers");
    let last = hosts[1].once("nightly").last().expect("Redis answers");
    assert_eq!(last.expect("it was done").fire, night);
}
