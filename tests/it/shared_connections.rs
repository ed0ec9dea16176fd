//! Faults of the connections that threads share, each while fifty calls are under way.
//!
//! Each thread locks and releases another name, again and again. So each grant must be the thread's own: the key
//! in Redis has the owner of its guard. An answer that reached another thread would show.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Cancel, Error, LockGuard, LockManager, Result};

use crate::support::{
    Fault, PATIENCE, Proxy, Raw, Role, SLACK, Server, Task, build, locking, locking_asleep, ms,
    secs, task, task_asleep, wait_until,
};

const CALLERS: usize = 50;
/// Far longer than the test takes, so that only a release frees a name.
const LEASE: Duration = secs(600);
/// The time limit of a request. A busy machine stalls for less.
const IO: Duration = secs(2);
/// The limit of a call: it may open a connection, send one request, and send that again.
const CALL: Duration = secs(8);

#[derive(Default)]
struct Counts {
    /// How many guards were granted and released.
    pairs: AtomicU64,
    /// How many calls have failed.
    failures: AtomicU64,
    is_over: AtomicBool,
}

/// Locks and releases a name until the test is over. Checks each result.
fn lock_and_release(locks: &LockManager, redis: &Raw, name: &str, counts: &Counts) {
    let mutex = locks.mutex(name).lease(LEASE);
    while !counts.is_over.load(Ordering::SeqCst) {
        let begun = Instant::now();
        let done = mutex.try_lock().and_then(|guard| {
            let Some(guard) = guard else {
                // An earlier grant had no answer. The renewal thread withdraws it.
                thread::yield_now();
                return Ok(false);
            };
            let holder = redis.get(name);
            assert_eq!(holder.as_deref(), Some(guard.owner()), "not its grant");
            guard.release().map(|()| true)
        });
        assert!(begun.elapsed() < CALL * 2 + SLACK, "{:?}", begun.elapsed());
        match done {
            Ok(true) => counts.pairs.fetch_add(1, Ordering::SeqCst),
            Ok(false) => 0,
            Err(Error::Unavailable { .. }) => counts.failures.fetch_add(1, Ordering::SeqCst),
            Err(error) => panic!("{error:?}"),
        };
    }
}

fn fifty_calls(fault: Fault) {
    let server = Server::start();
    let (proxy, redis) = (Proxy::to(&server), server.raw());
    let builder = LockManager::single(&proxy.url());
    let locks = build(builder.connect_timeout(IO).io_timeout(IO));
    let counts = Arc::new(Counts::default());
    let callers: Vec<Task<()>> = (0..CALLERS)
        .map(|number| {
            let (locks, redis, counts) = (locks.clone(), redis.clone(), Arc::clone(&counts));
            task(move || lock_and_release(&locks, &redis, &format!("n{number}"), &counts))
        })
        .collect();
    let wait_for_pairs = |more: u64| {
        let before = counts.pairs.load(Ordering::SeqCst);
        wait_until("the calls go on", || {
            counts.pairs.load(Ordering::SeqCst) >= before + more
        });
    };
    wait_for_pairs(200);
    let failures = || counts.failures.load(Ordering::SeqCst);
    assert_eq!(failures(), 0);
    proxy.strike(Role::Pool, fault);
    proxy.wait_until_struck(Role::Pool);
    if fault.lets_through() {
        wait_for_pairs(100);
        assert_eq!(failures(), 0);
    } else {
        wait_until("all calls fail", || failures() >= CALLERS as u64);
    }
    proxy.heal_anew();
    wait_for_pairs(500);
    counts.is_over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.end();
    }
    assert!(locks.close(PATIENCE), "something is left to send");
    // A request that was given up may still arrive. The renewal thread withdraws its owner.
    wait_until("nothing is left", || {
        (0..CALLERS).all(|number| !redis.exists(&format!("n{number}")))
    });
}

#[test]
fn fifty_calls_outlive_a_cut() {
    fifty_calls(Fault::Close);
}

#[test]
fn fifty_calls_outlive_a_reset() {
    fifty_calls(Fault::Reset);
}

#[test]
fn fifty_calls_go_on_byte_by_byte() {
    fifty_calls(Fault::Drip);
}

#[test]
fn fifty_calls_outlive_a_connection_that_hangs() {
    fifty_calls(Fault::HalfOpen);
}

#[test]
fn fifty_calls_outlive_lost_answers() {
    fifty_calls(Fault::LoseAnswers);
}

/// The server is stopped for longer than one caller waits, and for less than the others do.
#[test]
fn a_caller_with_a_short_limit_leaves_while_others_go_on() {
    let server = Server::start();
    let redis = server.raw();
    let locks = build(
        LockManager::single(&server.url())
            .connect_timeout(PATIENCE)
            .io_timeout(PATIENCE)
            .lease(LEASE)
            .pool_size(1),
    );
    let first = locks.lock("first").expect("it is free");
    // Each of them has asked already, so the calls below only wait for answers.
    server.pause();
    let asked = locks.stats().requests;
    let others: Vec<_> = (0..20)
        .map(|number| locking(&locks.mutex(format!("n{number}"))))
        .collect();
    wait_until("they ask", || locks.stats().requests >= asked + 20);
    let short = locks.mutex("short");
    let begun = Instant::now();
    let left = short.try_lock_for(ms(300));
    assert!(
        matches!(left, Err(Error::Unavailable { .. })),
        "nobody answers: {left:?}"
    );
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    server.resume();
    for (number, other) in others.into_iter().enumerate() {
        let guard = other.end().expect("it waits for its answer");
        let holder = redis.get(&format!("n{number}"));
        assert_eq!(holder.as_deref(), Some(guard.owner()), "not its grant");
    }
    first.release().expect("it is held");
    // The renewal thread withdraws the late grant.
    wait_until("it is withdrawn", || !redis.exists("short"));
}

/// A server that is stopped, and three calls on one connection: one reads, the next one lets it read its answer too, and
/// the last one waits behind that for the same name.
struct Stopped {
    server: Server,
    locks: LockManager,
    stop: Cancel,
    reads: Task<Result<LockGuard>>,
    asks: Task<Result<()>>,
    waits_behind: Task<Result<()>>,
}

fn stopped() -> Stopped {
    let server = Server::start();
    let locks = build(
        LockManager::single(&server.url())
            .connect_timeout(PATIENCE)
            .io_timeout(PATIENCE)
            .lease(LEASE)
            .pool_size(1),
    );
    drop(locks.lock("first").expect("it is free"));
    server.pause();
    let asked = locks.stats().requests;
    let reads = locking_asleep(&locks.mutex("reads"));
    wait_until("it asks", || locks.stats().requests > asked);
    let stop = Cancel::new();
    let mutex = locks.mutex("n").cancel_with(&stop);
    let asks = task_asleep(move || mutex.lock().map(drop));
    wait_until("the next one asks", || locks.stats().requests > asked + 1);
    let mutex = locks.mutex("n");
    let waits_behind = task_asleep(move || mutex.lock().map(drop));
    Stopped {
        server,
        locks,
        stop,
        reads,
        asks,
        waits_behind,
    }
}

#[test]
fn a_cancelled_call_fails_no_other_call() {
    let stopped = stopped();
    stopped.stop.cancel();
    // The server does not answer, so the call must end without its answer.
    let cancelled = stopped.asks.end();
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    stopped.server.resume();
    stopped.waits_behind.end().expect("it asks by itself");
    drop(stopped.reads.end().expect("it is free"));
    // The renewal thread withdraws the late grant.
    let redis = stopped.server.raw();
    wait_until("nothing is left", || !redis.exists("n"));
    assert!(stopped.locks.close(PATIENCE), "something is left to send");
}

#[test]
fn close_ends_a_call_whose_answer_another_call_reads() {
    let stopped = stopped();
    let _ = stopped.locks.close(Duration::ZERO);
    let closed = stopped.asks.end();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    let closed = stopped.waits_behind.end();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    stopped.server.resume();
    drop(stopped.reads.end());
}

/// Many connections are open when the server closes all of them.
fn calls_outlive(close: impl Fn(&Server)) {
    const CONNECTIONS: u32 = 8;
    let server = Server::start();
    let locks = build(
        LockManager::single(&server.url())
            .connect_timeout(PATIENCE)
            .io_timeout(PATIENCE)
            .lease(LEASE)
            .pool_size(CONNECTIONS),
    );
    for round in 0..5 {
        // An inspection has a connection for itself.
        server.pause();
        let inspections: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let locks = locks.clone();
                task_asleep(move || locks.inspect("n").map(drop))
            })
            .collect();
        server.resume();
        for inspection in inspections {
            inspection.end().expect("Redis replies");
        }
        close(&server);
        let together = Arc::new(Barrier::new(CALLERS));
        let calls: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (locks, together) = (locks.clone(), Arc::clone(&together));
                task(move || {
                    together.wait();
                    let guard = locks.try_lock(format!("n{round}-{number}"))?;
                    guard.expect("nobody has it").release()
                })
            })
            .collect();
        for call in calls {
            call.end().expect("it is sent again");
        }
    }
}

#[test]
fn no_call_fails_after_a_restart() {
    calls_outlive(Server::restart);
}

#[test]
fn no_call_fails_after_the_server_has_closed_all_connections() {
    calls_outlive(|server| {
        let () = server
            .raw()
            .ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    });
}
