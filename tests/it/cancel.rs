//! Calls that are ended by a token.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Admission, Cancel, Error, LockGuard, LockManager, Mutex, Result};

use crate::support::{
    Fault, PATIENCE, Proxy, Raw, Role, Server, Task, build, companions_of, locking, locking_asleep,
    manager, ms, patient, secs, task, task_asleep, wait_until,
};

/// More than any wait here takes.
const LONG: Duration = secs(600);

#[track_caller]
fn cancelled<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(Error::Cancelled) => {}
        other => panic!("it is not cancelled: {other:?}"),
    }
}

/// Nothing but the fence is left of a lock.
#[track_caller]
fn nothing_is_left(redis: &Raw, name: &str) {
    let [_, queue, waiters] = companions_of(name);
    for key in [name, &queue, &waiters] {
        wait_until(&format!("{key} is gone"), || !redis.exists(key));
    }
}

#[test]
fn a_cancelled_token_ends_each_call_before_anything_is_sent() {
    let server = Server::start();
    let locks = manager(&server.url());
    let stop = Cancel::new();
    assert_eq!(format!("{stop:?}"), "Cancel { is_cancelled: false, .. }");
    let mutex = locks.mutex("n").cancel_with(&stop);
    drop(mutex.lock().expect("it is not cancelled"));
    let reentrant = locks.reentrant_mutex("r").cancel_with(&stop);
    let inner = reentrant.lock().expect("it is not cancelled");
    stop.clone().cancel();
    stop.cancel();
    assert!(stop.is_cancelled());
    let sent = locks.stats().requests;
    cancelled(mutex.lock());
    cancelled(mutex.try_lock());
    cancelled(mutex.try_lock_for(LONG));
    cancelled(mutex.try_lock_until(Instant::now() + LONG));
    cancelled(mutex.with(LONG, |_| ()));
    cancelled(reentrant.lock());
    cancelled(reentrant.try_lock());
    let rwlock = locks.rwlock("rw").cancel_with(&stop);
    cancelled(rwlock.read());
    cancelled(rwlock.try_write());
    let semaphore = locks.semaphore("s", 3).cancel_with(&stop);
    cancelled(semaphore.acquire());
    cancelled(semaphore.try_acquire_many(2));
    let multi = locks.multi(["a", "b"]).cancel_with(&stop);
    cancelled(multi.lock());
    cancelled(multi.try_lock());
    let limiter = locks.rate_limiter("l", 1, secs(60)).cancel_with(&stop);
    cancelled(limiter.acquire());
    cancelled(limiter.try_acquire());
    assert_eq!(locks.stats().requests, sent);
    inner.release().expect("a guard is not cancelled");
    // Only those handles.
    drop(locks.mutex("n").lock().expect("it has no token"));
    let error = mutex.lock().expect_err("it is cancelled");
    assert!(!error.is_retryable());
}

/// A thread that waits behind the delegate leaves the queue of its process.
#[test]
fn a_parked_thread_leaves_and_the_others_keep_their_order() {
    let server = Server::start();
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let guard = one.lock("n").expect("it is free");
    let stop = Cancel::new();
    let mutex = other.mutex("n");
    let delegate = locking_asleep(&mutex);
    server.raw().wait_until_queued("n", 1);
    let parked = locking_asleep(&mutex.clone().cancel_with(&stop));
    let last = locking_asleep(&mutex);
    stop.cancel();
    cancelled(parked.end());
    guard.release().expect("it was held");
    let first = delegate.end().expect("it gets its turn");
    let fence = first.fence();
    first.release().expect("it was held");
    assert!(last.end().expect("it gets its turn").fence() > fence);
    nothing_is_left(&server.raw(), "n");
}

#[test]
fn each_kind_of_wait_is_ended() {
    let server = Server::start();
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let held = (
        one.rwlock("w").write().expect("it is free"),
        one.rwlock("r").read().expect("it is free"),
        one.semaphore("s", 3).acquire_many(2).expect("it is free"),
        one.lock("m2").expect("it is free"),
    );
    let stop = Cancel::new();
    let reader = other.rwlock("w").cancel_with(&stop);
    let writer = other.rwlock("r").cancel_with(&stop);
    let permits = other.semaphore("s", 3).cancel_with(&stop);
    let multi = other.multi(["m1", "m2"]).cancel_with(&stop);
    let reentrant = other.reentrant_mutex("m2").cancel_with(&stop);
    let waits = [
        task(move || reader.read().map(drop)),
        task(move || writer.write().map(drop)),
        task(move || permits.acquire_many(2).map(drop)),
        task(move || multi.lock().map(drop)),
        task(move || reentrant.lock().map(drop)),
    ];
    let redis = server.raw();
    for (key, waiters) in [("w", 1), ("r", 1), ("s", 1), ("m2", 2)] {
        redis.wait_until_queued(key, waiters);
    }
    stop.cancel();
    for wait in waits {
        cancelled(wait.end());
    }
    drop(held);
    for key in ["w", "r", "s", "m1", "m2"] {
        nothing_is_left(&redis, key);
    }
}

/// The delegate hands its place in Redis to the next thread.
#[test]
fn a_delegate_hands_its_place_to_the_next_thread() {
    let server = Server::start();
    let redis = server.raw();
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let guard = one.lock("n").expect("it is free");
    let stop = Cancel::new();
    let mutex = other.mutex("n");
    let delegate = locking_asleep(&mutex.clone().cancel_with(&stop));
    redis.wait_until_queued("n", 1);
    let place = redis.queue("n");
    let next = locking_asleep(&mutex);
    let asked = other.stats().requests;
    stop.cancel();
    cancelled(delegate.end());
    wait_until("the next thread asks", || other.stats().requests > asked);
    assert_eq!(redis.queue("n"), place);
    guard.release().expect("it was held");
    drop(next.end().expect("it gets its turn"));
    nothing_is_left(&redis, "n");
}

/// A delegate without a next thread leaves the queue in Redis, and the process behind it is not kept waiting.
#[test]
fn a_delegate_leaves_the_queue_in_redis() {
    let server = Server::start();
    let redis = server.raw();
    let [one, two, three] = [(); 3].map(|()| manager(&server.url()));
    let guard = one.lock("n").expect("it is free");
    let stop = Cancel::new();
    let cancels = [0, 1].map(|_| {
        let mutex = two.mutex("n").cancel_with(&stop);
        locking_asleep(&mutex)
    });
    redis.wait_until_queued("n", 1);
    let waiting = locking_asleep(&three.mutex("n"));
    redis.wait_until_queued("n", 2);
    stop.cancel();
    for waiting in cancels {
        cancelled(waiting.end());
    }
    redis.wait_until_queued("n", 1);
    guard.release().expect("it was held");
    drop(waiting.end().expect("it gets its turn"));
    nothing_is_left(&redis, "n");
}

/// A call inside of a request ends with that request. If the server executes the request later, no orphan is left.
#[test]
fn a_call_inside_of_a_request_ends_with_it() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = build(patient(&proxy.url()).io_timeout(secs(2)).lease(secs(5)));
    let redis = server.raw();
    let guard = manager(&server.url()).lock("n").expect("it is free");
    let stop = Cancel::new();
    // No message grants a lease without renewal, so the hand-over is followed by a request.
    let handle = locks.mutex("n").renew(false).cancel_with(&stop);
    let waiting = locking_asleep(&handle);
    redis.wait_until_queued("n", 1);
    proxy.strike(Role::Pool, Fault::LoseAnswers);
    guard.release().expect("it was held");
    proxy.wait_until_struck(Role::Pool);
    // Redis executes its request, and the call does not know.
    stop.cancel();
    cancelled(waiting.end());
    proxy.heal();
    drop(manager(&server.url()).lock("n").expect("it becomes free"));
    nothing_is_left(&redis, "n");
}

/// Checks that `end` ends many calls. All of them wait for the only connection, and its server does not reply.
fn ends_calls_without_a_connection(end: impl FnOnce(&LockManager, &Cancel)) {
    const CALLS: u32 = 30;
    // One after the other the calls would take CALLS times as long.
    const REPLY: Duration = secs(3);
    let server = Server::start();
    let redis = server.raw();
    let locks = build(
        patient(&server.url())
            .connect_timeout(REPLY)
            .io_timeout(REPLY)
            .pool_size(1),
    );
    let stop = Cancel::new();
    let calls: Vec<_> = (0..CALLS)
        .map(|n| {
            let name = format!("n{n}");
            let () = redis.ask(&["SET", &name, "theirs"]);
            locking(&locks.mutex(&name).cancel_with(&stop))
        })
        .collect();
    wait_until("all wait", || locks.stats().waiting == u64::from(CALLS));
    server.pause();
    // All poll, so no request is added once all of them wait for the connection.
    let mut sent = locks.stats().requests;
    wait_until("all ask", || {
        // Time itself is what is looked at: for this long no call sends a request.
        thread::sleep(ms(300));
        let before = std::mem::replace(&mut sent, locks.stats().requests);
        sent == before
    });
    let places = locks.rate_limiter("l", 1, LONG).cancel_with(&stop);
    let limited = task_asleep(move || places.acquire());
    end(&locks, &stop);
    let ended = Instant::now();
    for call in calls {
        match call.end() {
            Err(Error::Cancelled | Error::Closed) => {}
            other => panic!("it was not ended: {other:?}"),
        }
    }
    match limited.end() {
        Err(Error::Cancelled | Error::Closed) => {}
        other => panic!("it was not ended: {other:?}"),
    }
    assert!(ended.elapsed() < PATIENCE, "{:?}", ended.elapsed());
    server.resume();
}

#[test]
fn a_cancel_ends_calls_that_wait_for_a_connection() {
    ends_calls_without_a_connection(|_, stop| stop.cancel());
}

#[test]
fn close_ends_calls_that_wait_for_a_connection() {
    ends_calls_without_a_connection(|locks, _| {
        let _ = locks.close(Duration::ZERO);
    });
}

/// The call first waits until the renewal thread has sent the release of its process.
#[test]
fn a_cancel_ends_a_call_that_waits_for_a_release_of_its_process() {
    let server = Server::start();
    let locks = build(
        patient(&server.url())
            .io_timeout(PATIENCE)
            .lease(LONG)
            .background_release(true),
    );
    let guard = locks.lock("n").expect("it is free");
    server.pause();
    guard.release().expect("it is left to the renewal thread");
    let stop = Cancel::new();
    let again = locks.mutex("n").cancel_with(&stop);
    let again = task_asleep(move || again.lock().map(drop));
    stop.cancel();
    let begun = Instant::now();
    cancelled(again.end());
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    server.resume();
}

#[test]
fn a_rate_limiters_place_stays_taken() {
    let server = Server::start();
    let locks = manager(&server.url());
    let limiter = locks.rate_limiter("l", 1, LONG);
    limiter.acquire().expect("there is a place");
    let stop = Cancel::new();
    let waits = limiter.clone().cancel_with(&stop);
    let asked = locks.stats().requests;
    let waiting = task_asleep(move || waits.acquire());
    wait_until("it asks for its place", || locks.stats().requests > asked);
    stop.cancel();
    cancelled(waiting.end());
    match limiter.try_acquire().expect("Redis replies") {
        Admission::RetryAfter(wait) => assert!(wait > LONG, "{wait:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn thousands_of_threads_share_a_token() {
    const THREADS: u32 = 2000;
    let server = Server::start();
    let locks = manager(&server.url());
    let guards = ["a", "b", "c"].map(|name| locks.lock(name).expect("it is free"));
    let stop = Cancel::new();
    let waiting: Vec<Task<Result<LockGuard>>> = (0..THREADS)
        .map(|n| {
            let name = ["a", "b", "c"][n as usize % 3];
            locking(&locks.mutex(name).cancel_with(&stop))
        })
        .collect();
    wait_until("all wait", || locks.stats().waiting == u64::from(THREADS));
    stop.cancel();
    for waiting in waiting {
        cancelled(waiting.end());
    }
    for guard in guards {
        let name = guard.name().to_owned();
        guard.release().expect("it was held");
        drop(
            locks
                .try_lock(&name)
                .expect("Redis replies")
                .expect("it is free"),
        );
    }
}

/// The ways in which a lock comes to a thread that is cancelled at about the same time.
fn meets_a_cancel(rounds: u32, mut round: impl FnMut(&Cancel, &Sender<()>) -> bool) {
    let (mut grants, mut cancels) = (0, 0);
    for n in 0..rounds * 20 {
        // Either side may win a round. The test goes on until each side has won one.
        if n >= rounds && grants > 0 && cancels > 0 {
            break;
        }
        let stop = Cancel::new();
        let (go, gone) = channel();
        let canceller = {
            let stop = stop.clone();
            task(move || {
                gone.recv().ok();
                // From no delay to some milliseconds, so that the cancel comes before, at, and after the other event.
                for _ in 0..(1 << (n % 20)) - 1 {
                    std::hint::spin_loop();
                }
                stop.cancel();
            })
        };
        let granted = round(&stop, &go);
        canceller.end();
        if granted {
            grants += 1;
        } else {
            cancels += 1;
        }
    }
    println!("{grants} grants, {cancels} cancels");
    assert!(grants > 0, "the cancel won every round");
    assert!(cancels > 0, "the grant won every round");
}

/// Returns whether the lock was granted. An error must be `Cancelled`.
#[track_caller]
fn granted(result: Result<LockGuard>) -> bool {
    match result {
        Ok(guard) => guard.release().is_ok(),
        Err(Error::Cancelled) => false,
        Err(error) => panic!("{error:?}"),
    }
}

#[track_caller]
fn is_free(locks: &LockManager) {
    let guard = locks.try_lock_for("n", PATIENCE).expect("Redis replies");
    guard.expect("it is free").release().expect("it was held");
}

#[test]
fn a_cancel_that_meets_a_grant_leaves_no_orphan() {
    let server = Server::start();
    let (locks, other) = (manager(&server.url()), manager(&server.url()));
    meets_a_cancel(100, |stop, go| {
        let mutex = locks.mutex("n").cancel_with(stop);
        go.send(()).expect("it waits for this");
        let granted = granted(mutex.lock());
        is_free(&other);
        granted
    });
    nothing_is_left(&server.raw(), "n");
}

/// Two threads wait for the lock. The first is cancelled at about the moment at which it gets the lock. The second
/// must get the lock in either case.
fn hand_over_meets_a_cancel(holder: &LockManager, waiters: &Mutex, redis: &Raw, queued: bool) {
    meets_a_cancel(60, |stop, go| {
        let guard = holder.lock("n").expect("it is free");
        let first = locking_asleep(&waiters.clone().cancel_with(stop));
        if queued {
            redis.wait_until_queued("n", 1);
        }
        let next = locking_asleep(waiters);
        go.send(()).expect("it waits for this");
        guard.release().expect("it was held");
        let won = granted(first.end());
        assert!(granted(next.end()), "the next thread waits");
        won
    });
    nothing_is_left(redis, "n");
}

#[test]
fn a_cancel_that_meets_a_hand_over_in_memory_costs_nobody_a_turn() {
    let server = Server::start();
    let locks = manager(&server.url());
    hand_over_meets_a_cancel(&locks, &locks.mutex("n"), &server.raw(), false);
}

#[test]
fn a_cancel_that_meets_a_hand_over_between_processes_costs_nobody_a_turn() {
    let server = Server::start();
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    hand_over_meets_a_cancel(&one, &other.mutex("n"), &server.raw(), true);
}

/// The process behind the cancelled one gets the lock, at the latest after one pickup window.
#[test]
fn a_cancel_that_meets_a_hand_over_gives_the_lock_to_the_next_process() {
    let server = Server::start();
    let redis = server.raw();
    let [one, two, three] = [(); 3].map(|()| manager(&server.url()));
    meets_a_cancel(40, |stop, go| {
        let guard = one.lock("n").expect("it is free");
        let first = {
            let mutex = two.mutex("n").cancel_with(stop);
            task(move || granted(mutex.lock()))
        };
        redis.wait_until_queued("n", 1);
        let next = locking(&three.mutex("n"));
        redis.wait_until_queued("n", 2);
        go.send(()).expect("it waits for this");
        guard.release().expect("it was held");
        let won = first.end();
        assert!(granted(next.end()), "the next process waits");
        won
    });
    nothing_is_left(&redis, "n");
}

/// The holder's lease ends: the thread that would ask next is cancelled, and the one behind it asks.
#[test]
fn a_cancel_that_meets_a_loss_lets_the_next_thread_ask() {
    let server = Server::start();
    let locks = manager(&server.url());
    meets_a_cancel(10, |stop, go| {
        let short = locks.mutex("n").lease(ms(300)).renew(false);
        let mut guard = None;
        // On a busy machine it may be granted too late.
        wait_until("it is granted in time", || {
            guard = short.lock().ok();
            guard.is_some()
        });
        let lost = guard.as_ref().map(|guard| guard.on_lost());
        let lost = lost.expect("it is there");
        let first = locking(&locks.mutex("n").cancel_with(stop));
        wait_until("it waits, or there is nothing to wait for", || {
            locks.stats().waiting == 1 || !lost.is_empty()
        });
        let next = locking(&locks.mutex("n"));
        lost.recv_timeout(PATIENCE).expect("it is lost");
        go.send(()).expect("it waits for this");
        let won = match first.end() {
            Ok(guard) => guard.release().is_ok(),
            Err(error) => {
                cancelled::<()>(Err(error));
                false
            }
        };
        assert!(granted(next.end()), "the next thread waits");
        won
    });
    nothing_is_left(&server.raw(), "n");
}
