//! Programs that misuse their locks, or use very many of them.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use leasehold::{Error, LeaseState, Mutex};

use crate::support::{
    Child, PATIENCE, Server, Task, build, locking, locking_asleep, manager, ms, name, patient,
    secs, shared, task, task_asleep, wait_until,
};

#[test]
fn a_thousand_threads_that_wait_stop_neither_renewal_nor_release() {
    const THREADS: usize = 1_000;
    let server = Server::start();
    let redis = server.raw();
    let holder = manager(&server.url());
    // All waits share one connection. Each waits for another name, so each sends its own requests.
    let locks = build(patient(&server.url()).pool_size(1));
    let mine = locks.mutex("mine").lease(secs(9)).lock();
    let mine = mine.expect("it is free");
    let held: Vec<_> = (0..THREADS)
        .map(|number| holder.lock(format!("n{number}")).expect("it is free"))
        .collect();
    let waits: Vec<_> = held
        .iter()
        .map(|guard| locking(&locks.mutex(guard.name())))
        .collect();
    // A busy machine may need long for this many requests. The test only checks that they go on.
    for number in (0..=THREADS).step_by(50) {
        wait_until("the next fifty wait", || {
            locks.stats().waiting >= number as u64
        });
    }
    redis.wait_until_renewed("mine", 2);
    assert_ne!(mine.state(), LeaseState::Lost);
    mine.release().expect("there is a connection for it");
    assert!(!redis.exists("mine"));
    assert_eq!(locks.stats().waiting, THREADS as u64);
    drop(held);
    for wait in waits {
        drop(wait.end().expect("it becomes free"));
    }
}

#[test]
fn ten_thousand_threads_at_once_each_get_a_turn() {
    const THREADS: u32 = 10_000;
    let name = name("ten-thousand");
    let locks = manager(shared().url());
    let mutex = locks.mutex(&name);
    // Each thread reads the number and then writes it, so a mutex that does not exclude would lose updates.
    let counter = Arc::new(AtomicU32::new(0));
    let guard = mutex.lock().expect("it is free");
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (mutex, counter) = (mutex.clone(), Arc::clone(&counter));
            thread::Builder::new()
                .stack_size(64 * 1024)
                .spawn(move || {
                    let guard = mutex.lock().expect("it becomes free");
                    let value = counter.load(Ordering::Relaxed);
                    thread::yield_now();
                    counter.store(value + 1, Ordering::Relaxed);
                    guard.release().expect("it was held until now");
                })
                .expect("a thread")
        })
        .collect();
    for number in (0..=THREADS).step_by(1_000) {
        wait_until("the next thousand wait", || {
            locks.stats().waiting >= u64::from(number)
        });
    }
    assert_eq!(counter.load(Ordering::Relaxed), 0);
    guard.release().expect("it was held until now");
    // A busy machine may need long for this many turns. The test only checks that they go on.
    for number in (0..=THREADS).step_by(100) {
        wait_until("the next hundred have theirs", || {
            counter.load(Ordering::Relaxed) >= number
        });
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(counter.load(Ordering::Relaxed), THREADS);
    let stats = locks.stats();
    assert_eq!((stats.waiting, stats.held), (0, 0));
    assert!(!shared().exists(&name));
}

#[test]
fn a_panic_releases_the_lock_to_waiting_threads() {
    let redis = shared();
    let name = name("panic");
    let locks = manager(redis.url());
    let mutex = locks.mutex(&name);
    let guard = mutex.lock().expect("it is free");
    let fence = guard.fence();
    // A thread of the same process waits, and so does another process. Each releases on its own thread, because the
    // quantum decides which of them gets the lock first.
    let here = waiting(&mutex);
    let elsewhere = waiting(&manager(redis.url()).mutex(&name));
    redis.wait_until_queued(&name, 1);
    let panicked = task(move || {
        panic::catch_unwind(panic::AssertUnwindSafe(|| {
            let _held = guard;
            // `panic!` would print a message that looks like a failure.
            panic::resume_unwind(Box::new(()));
        }))
    });
    assert!(panicked.end().is_err());
    for wait in [here, elsewhere] {
        let after = wait.end().expect("there is no poisoning");
        assert!(after > fence);
    }
    assert!(!redis.exists(&name));
}

/// Starts a thread that locks, releases, and returns the fence. This function returns when the thread sleeps.
fn waiting(mutex: &Mutex) -> Task<leasehold::Result<u64>> {
    let mutex = mutex.clone();
    task_asleep(move || {
        let guard = mutex.lock()?;
        let fence = guard.fence();
        guard.release().map(|()| fence)
    })
}

#[test]
fn waits_and_guards_outlive_their_manager() {
    let redis = shared();
    let name = name("outlives");
    let held = manager(redis.url()).lock(&name).expect("it is free");
    let locks = manager(redis.url());
    let (one, other) = (locks.mutex(&name), locks.mutex(&name));
    // One thread asks Redis, and the other waits behind it. The threads own their handles.
    let asking = task(move || one.lease(secs(9)).lock());
    redis.wait_until_queued(&name, 1);
    let behind = locking_asleep(&other.lease(secs(9)));
    drop(locks);
    held.release().expect("it was held until now");
    let guard = asking.end().expect("it becomes free");
    // Only this thread and the one behind it still own anything of their manager.
    redis.wait_until_renewed(&name, 2);
    assert_ne!(guard.state(), LeaseState::Lost);
    guard.release().expect("it was held until now");
    let guard = behind.end().expect("it becomes free");
    guard.release().expect("it was held until now");
    assert!(!redis.exists(&name));
}

/// Locks on a thread. Returns when the server has received the request and does not reply.
fn inside_a_request(server: &Server, mutex: Mutex) -> Task<leasehold::Result<bool>> {
    server.pause();
    task_asleep(move || {
        let guard = mutex.lock()?;
        Ok(guard.check().is_ok() && guard.release().is_ok())
    })
}

#[test]
fn a_close_during_a_request_ends_the_wait_with_its_answer() {
    let server = Server::start();
    let redis = server.raw();
    let holder = manager(&server.url());
    let locks = build(patient(&server.url()).io_timeout(PATIENCE));
    drop(locks.lock("free").expect("it is free"));
    let guard = holder.lock("n").expect("it is free");
    let asking = inside_a_request(&server, locks.mutex("n"));
    let behind = locking_asleep(&locks.mutex("n"));
    assert!(!locks.close(ms(1)), "the request is on its way");
    let closed = behind.end();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    server.resume();
    let closed = asking.end();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    assert!(locks.close(PATIENCE), "something is left to send");
    assert_eq!(redis.queue("n"), [""; 0]);
    guard.release().expect("it was held until now");
    assert!(!redis.exists("n"));
}

#[test]
fn a_grant_during_a_close_is_returned_as_a_guard() {
    let server = Server::start();
    let locks = build(patient(&server.url()).io_timeout(PATIENCE));
    drop(locks.lock("n").expect("it is free"));
    let asking = inside_a_request(&server, locks.mutex("n"));
    assert!(!locks.close(ms(1)), "the request is on its way");
    server.resume();
    assert!(asking.end().expect("it was granted"), "it was no guard");
    assert!(locks.close(PATIENCE), "something is left to send");
    assert!(!server.raw().exists("n"));
    assert!(matches!(locks.lock("n"), Err(Error::Closed)));
}

#[test]
fn a_close_during_a_request_without_an_answer_leaves_no_orphan() {
    let server = Server::start();
    let redis = server.raw();
    // The lease is far longer than `PATIENCE`, so its end does not free the lock.
    let settings = patient(&server.url()).lease(PATIENCE * 10);
    let locks = build(settings.io_timeout(secs(3)));
    drop(locks.lock("n").expect("it is free"));
    let asking = inside_a_request(&server, locks.mutex("n"));
    assert!(!locks.close(ms(1)), "the request is on its way");
    let closed = asking.end();
    // The call ends by the cancel, or because it got no reply.
    assert!(
        matches!(closed, Err(Error::Closed | Error::Unavailable { .. })),
        "{closed:?}"
    );
    // Redis executes the request now, and no caller waits for the reply.
    server.resume();
    assert!(locks.close(PATIENCE), "something is left to send");
    // A server may execute the request after its owner was withdrawn by another connection. So the withdrawal is
    // repeated.
    wait_until("it is released", || !redis.exists("n"));
}

/// The thread that wants the lock opens the first connection, which logs.
#[test]
fn a_logger_that_panics_fails_no_call() {
    let server = Server::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let mut child = Child::start(&server.url(), "logger=panics");
    child.lock("n");
    assert_eq!(child.ask("release n"), "released");
    child.lock("n");
}

#[test]
fn a_logger_that_panics_stops_no_renewal() {
    let server = Server::start();
    let redis = server.raw();
    let mut child = Child::start(&server.url(), "logger=panics lease_ms=18000");
    child.lock("n");
    for _ in 0..2 {
        let failed = child.ask("failed-renewals");
        server.pause();
        wait_until("a renewal fails, and it is logged", || {
            child.ask("failed-renewals") != failed
        });
        server.resume();
        redis.wait_until_renewed("n", 2);
    }
    assert_ne!(child.ask("state n"), "Lost");
    assert_eq!(child.ask("release n"), "released");
}

#[test]
fn a_logger_that_panics_stops_no_subscription() {
    let server = Server::start();
    let redis = server.raw();
    let mut child = Child::start(&server.url(), "logger=panics");
    let holder = manager(&server.url());
    let listeners = || -> Vec<String> { redis.ask(&["PUBSUB", "CHANNELS", "leasehold:*"]) };
    for _ in 0..2 {
        let guard = holder.lock("n").expect("it is free");
        child.say("lock n");
        redis.wait_until_queued("n", 1);
        let killed: u32 = redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert!(killed > 0);
        wait_until("it listens again", || !listeners().is_empty());
        guard.release().expect("it was held until now");
        child.locked();
        assert_eq!(child.ask("release n"), "released");
    }
}

#[test]
fn a_logger_that_panics_makes_no_drop_panic() {
    let server = Server::start();
    let redis = server.raw();
    let mut child = Child::start(&server.url(), "logger=panics lease_ms=600000");
    child.lock("n");
    server.pause();
    assert_eq!(child.ask("drop-guard n"), "dropped");
    server.resume();
    // The renewal thread repeats the release.
    wait_until("it is released", || !redis.exists("n"));
}
