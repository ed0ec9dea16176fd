//! The figures of a manager match its work.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Distribution, Error, LockManager};

use crate::support::{
    Server, build, hasty, is_unreachable, locking_asleep, lost, manager, ms, name, patient, secs,
    shared, task_asleep, unused_url, wait_in_vain, wait_until,
};

/// Returns the largest value that a distribution may report for a duration, given its precision.
fn nearly(length: Duration) -> Duration {
    length + length / 32 + Duration::from_nanos(1)
}

#[test]
fn the_sums_match_the_work_of_the_threads() {
    const THREADS: u64 = 8;
    const TURNS: u64 = 50;
    let redis = shared();
    let name = name("sums");
    let locks = manager(redis.url());
    let before = redis.commands();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let semaphore = locks.semaphore(format!("{name}:s"), 3);
                let rwlock = locks.rwlock(format!("{name}:rw"));
                for _ in 0..TURNS {
                    drop(locks.lock(&name).expect("it becomes free"));
                    drop(semaphore.acquire().expect("it becomes free"));
                    drop(rwlock.read().expect("it is free"));
                }
            });
        }
    });
    let stats = locks.stats();
    let guards = THREADS * TURNS * 3;
    assert_eq!(stats.acquired + stats.passed_on, guards);
    assert_eq!(stats.released, guards);
    assert_eq!((stats.waits.count(), stats.holds.count()), (guards, guards));
    assert_eq!((stats.held, stats.waiting), (0, 0));
    assert!(stats.passed_on > 0, "threads share what their process has");
    let none = [
        stats.tries_held,
        stats.timed_out,
        stats.failed,
        stats.lost(),
        stats.held_long,
        stats.events_dropped,
    ];
    assert_eq!(none, [0; 6]);
    // Each grant by Redis takes at least one request, and each request executes at least one command.
    assert!(stats.requests >= stats.acquired);
    assert!(stats.requests <= redis.commands() - before);
}

#[test]
fn every_outcome_is_counted_under_its_own_name() {
    let redis = shared();
    let name = name("outcomes");
    let (locks, other) = (manager(redis.url()), manager(redis.url()));
    let theirs = other.lock(&name).expect("it is free");
    assert!(locks.try_lock(&name).expect("Redis replies").is_none());
    let stats = locks.stats();
    assert_eq!((stats.tries_held, stats.contended), (1, 0), "no wait");
    wait_in_vain(|| locks.try_lock_for(&name, ms(50)));
    let stats = locks.stats();
    assert_eq!(stats.timed_out, 1);
    // On a busy machine a call may fail before its first reply. Then it has not begun to wait.
    assert!(stats.contended >= 1 && stats.contended <= stats.timed_out + stats.failed);
    drop(theirs);
    drop(locks.lock(&name).expect("it becomes free"));
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.released), (1, 1));

    let nowhere = hasty(&unused_url()).build_unchecked();
    let nowhere = nowhere.expect("the settings are good");
    assert!(matches!(nowhere.lock("n"), Err(Error::Unavailable { .. })));
    assert!(matches!(nowhere.lock(""), Err(Error::InvalidName { .. })));
    let stats = nowhere.stats();
    // A call with an invalid name is not counted.
    assert_eq!((stats.failed, stats.acquired), (1, 0));
}

#[test]
fn requests_of_operators_are_counted() {
    let redis = shared();
    let name = name("asked");
    let locks = manager(redis.url());
    let requests = || locks.stats().requests;
    let mut before = requests();
    let mut asked = |what: &str, least: u64| {
        let now = requests();
        assert!(now >= before + least, "{what}: {before} before, {now} now");
        before = now;
    };
    locks.inspect(&name).expect("Redis replies");
    asked("inspect", 1);
    assert_eq!(locks.list(&name).count(), 0);
    asked("list", 1);
    let claim = locks.lock(&name).expect("it is free").detach();
    asked("lock", 1);
    let guard = locks.adopt(&claim).expect("it is held");
    asked("adopt", 1);
    locks
        .force_release(&name, guard.owner())
        .expect("Redis replies");
    asked("force_release", 1);
}

#[test]
fn held_locks_and_waiting_calls_are_counted() {
    let redis = shared();
    let name = name("now");
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    let waiting: Vec<_> = (0..3)
        .map(|_| locking_asleep(&locks.mutex(&name)))
        .collect();
    let stats = locks.stats();
    assert_eq!((stats.held, stats.waiting, stats.contended), (1, 3, 3));
    drop(guard);
    for task in waiting {
        drop(task.end().expect("it becomes free"));
    }
    let stats = locks.stats();
    assert_eq!((stats.held, stats.waiting, stats.contended), (0, 0, 3));
}

#[test]
fn distributions_bracket_the_measured_durations() {
    let redis = shared();
    let name = name("brackets");
    let locks = build(patient(redis.url()).quantum(secs(60)));
    let outer = Instant::now();
    let guard = locks.lock(&name).expect("it is free");
    let inner = Instant::now();
    let waiting = locking_asleep(&locks.mutex(&name));
    let asleep = Instant::now();
    // The test needs time to pass: the distributions must show these durations.
    thread::sleep(ms(50));
    let (held, waited) = (inner.elapsed(), asleep.elapsed());
    drop(guard);
    drop(waiting.end().expect("it becomes free"));
    let most = outer.elapsed();
    let stats = locks.stats();
    let check = |lengths: &Distribution, least: Duration| {
        assert_eq!(lengths.count(), 2);
        assert!(
            least <= lengths.max() && lengths.max() <= most,
            "{lengths:?}"
        );
        let all = [
            lengths.min(),
            lengths.quantile(0.0),
            lengths.quantile(0.5),
            lengths.quantile(0.99),
            lengths.max(),
        ];
        assert!(all.is_sorted(), "{all:?}");
        assert!(lengths.quantile(0.5) <= nearly(lengths.min()));
        assert_eq!(lengths.quantile(1.0), lengths.max());
        assert!(lengths.min() <= lengths.mean() && lengths.mean() <= lengths.max());
    };
    check(&stats.waits, waited);
    check(&stats.holds, held);
}

#[test]
fn renewals_are_counted_and_how_late_they_went_out() {
    let redis = shared();
    let name = name("renewed");
    let locks = manager(redis.url());
    let guard = locks.mutex(&name).lease(secs(12)).lock();
    let guard = guard.expect("it is free");
    wait_until("it is renewed", || locks.stats().renewed > 0);
    let stats = locks.stats();
    assert!(stats.renewal_lags.count() > 0);
    assert!(stats.renewal_lags.min() < secs(12), "{stats:?}");
    let renewed = locks.stats().renewed;
    guard.extend(secs(60)).expect("it is held");
    assert!(locks.stats().renewed > renewed, "an extension is one");
}

#[test]
fn failures_are_counted_and_repeated_releases_too() {
    let server = Server::start();
    let locks = build(hasty(&server.url()));
    let long = locks.lock("long").expect("it is free");
    let short = locks.mutex("short").lease(secs(3));
    let short = short.lock().expect("it is free");
    server.pause();
    wait_until("a renewal fails", || locks.stats().renewals_failed > 0);
    // The server does not reply, so the release is repeated.
    assert!(matches!(long.release(), Err(Error::Unavailable { .. })));
    let repeated = locks.stats().endings_repeated;
    assert!(repeated >= 1);
    wait_until("it is lost", || locks.stats().lost_expired == 1);
    lost(short.release());
    let stats = locks.stats();
    // The first guard was released as far as the process knew. The second was lost.
    assert_eq!((stats.released, stats.holds.count(), stats.held), (1, 2, 0));
    server.resume();
    assert!(locks.close(crate::support::PATIENCE));
    // A closed manager still reports its figures.
    assert!(matches!(locks.lock("n"), Err(Error::Closed)));
    assert_eq!(locks.stats().acquired, 2);
}

#[test]
fn each_manager_counts_for_itself_and_its_clones() {
    let redis = shared();
    let name = name("clones");
    let (locks, other) = (manager(redis.url()), manager(redis.url()));
    let clone: LockManager = locks.clone();
    drop(clone.lock(&name).expect("it is free"));
    assert_eq!((locks.stats().acquired, other.stats().acquired), (1, 0));
}

#[test]
fn waits_for_a_connection_are_counted_and_the_time_of_requests_too() {
    let server = Server::start();
    let locks = build(patient(&server.url()).pool_size(1));
    drop(locks.lock("n").expect("it is free"));
    assert_eq!(locks.stats().connection_waits.count(), 0);
    server.pause();
    // Each needs a connection alone.
    let inspecting = [(); 2].map(|()| {
        let locks = locks.clone();
        task_asleep(move || locks.inspect("n"))
    });
    assert_eq!(locks.stats().connections_in_use, 1);
    server.resume();
    for task in inspecting {
        task.end().expect("Redis replies");
    }
    let stats = locks.stats();
    assert_eq!(stats.connections_in_use, 0);
    assert_eq!(stats.connection_waits.count(), 1);
    // The PING, the lock, its release, and two for the operator.
    assert_eq!(stats.request_times.count(), 5);
    assert!(stats.request_times.max() >= stats.connection_waits.max());
}

#[test]
fn waits_that_time_out_and_hand_overs_have_figures_of_their_own() {
    let redis = shared();
    let name = name("waits");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let guard = one.lock(&name).expect("it is free");
    let limit = ms(30);
    // On a busy machine the call may begin a while after its limit, or get no answer within it.
    wait_until("a wait of full length", || {
        match other.try_lock_for(&name, limit) {
            Ok(guard) => assert!(guard.is_none()),
            Err(error) => assert!(is_unreachable(&error), "{error:?}"),
        }
        other.stats().waits_timed_out.max() >= limit
    });
    let stats = other.stats();
    assert_eq!(stats.timed_out, stats.waits_timed_out.count());
    assert_eq!(stats.waits.count(), 0);
    let waiter = locking_asleep(&other.mutex(&name));
    redis.wait_until_queued(&name, 1);
    drop(guard);
    drop(waiter.end().expect("it is handed over"));
    assert_eq!(one.stats().handed_over, 1);
    let stats = other.stats();
    assert_eq!((stats.hand_overs_received, stats.waits.count()), (1, 1));
}
