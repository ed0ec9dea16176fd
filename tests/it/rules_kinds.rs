//! One test for each way in which a kind other than the mutex was broken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{Error, LeaseState, LockManager};

use crate::support::{
    Kind, PATIENCE, Server, build, fence_of, lost, manager, ms, name, patient, secs, shared, task,
    task_asleep, wait_until,
};

const LONG: Duration = Duration::from_mins(10);

/// Blocks for longer than a second: until a lease ends that is longer.
fn wait_for_more_than_a_second() {
    let locks = manager(shared().url());
    let lease = locks.mutex(name("clock")).lease(secs(3)).renew(false);
    let guard = lease.lock().expect("it is free");
    wait_until("its lease is over", || guard.state() == LeaseState::Lost);
}

#[test]
fn a_wait_without_an_answer_is_an_error_although_this_process_has_permits() {
    let server = Server::start();
    let locks = build(
        LockManager::single(&server.url())
            .lease(LONG)
            .io_timeout(secs(5)),
    );
    let semaphore = locks.semaphore("s", 8);
    let _permit = semaphore.acquire().expect("it is free");
    server.pause();
    let first = {
        let semaphore = semaphore.clone();
        task_asleep(move || semaphore.try_acquire_for(secs(2)).map(drop))
    };
    let behind = semaphore.try_acquire_for(ms(300));
    server.resume();
    first.end().ok();
    assert!(
        matches!(behind, Err(Error::Unavailable { .. })),
        "{behind:?}"
    );
}

#[test]
fn a_try_for_one_permit_does_not_share_the_answer_of_a_try_for_many() {
    let server = Server::start();
    let locks = build(
        LockManager::single(&server.url())
            .lease(LONG)
            .io_timeout(secs(20)),
    );
    let semaphore = locks.semaphore("s", 8);
    let _elsewhere = manager(&server.url())
        .semaphore("s", 8)
        .acquire()
        .expect("it is free");
    drop(semaphore.acquire().expect("it is free"));
    server.pause();
    let many = {
        let semaphore = semaphore.clone();
        task_asleep(move || semaphore.try_acquire_many(8).map(|p| p.is_some()))
    };
    let few = {
        let semaphore = semaphore.clone();
        task_asleep(move || semaphore.try_acquire().map(|p| p.is_some()))
    };
    server.resume();
    assert!(!many.end().expect("Redis replies"));
    assert!(few.end().expect("Redis replies"), "seven are free");
}

#[test]
fn a_key_of_another_type_does_not_block_the_release_of_its_multi_lock() {
    let raw = shared();
    let mut names = [name("a"), name("b"), name("c")];
    names.sort();
    let guard = manager(raw.url())
        .multi(&names)
        .lease(LONG)
        .lock()
        .expect("it is free");
    let () = raw.ask(&["DEL", &names[1]]);
    let () = raw.ask(&["RPUSH", &names[1], "no lock"]);
    lost(guard.release());
    wait_until("the first is free", || !raw.exists(&names[0]));
    wait_until("the third is free", || !raw.exists(&names[2]));
}

#[test]
fn a_failed_downgrade_of_an_extended_writer_is_released() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(patient(&server.url()));
    let writer = locks
        .rwlock("n")
        .lease(secs(1))
        .write()
        .expect("it is free");
    writer.extend(LONG).expect("extended");
    let () = raw.ask(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
    assert!(matches!(writer.downgrade(), Err(Error::Denied { .. })));
    wait_for_more_than_a_second();
    let () = raw.ask(&["ACL", "SETUSER", "default", "+evalsha", "+eval"]);
    wait_until("released", || !raw.exists("n"));
}

#[test]
fn a_shorter_window_of_a_rate_limiter_does_not_shorten_a_longer_one() {
    let raw = shared();
    let name = name("windows");
    let locks = manager(raw.url());
    let minute = locks.rate_limiter(&name, 3, LONG);
    let second = locks.rate_limiter(&name, 3, ms(100));
    for _ in 0..3 {
        minute.acquire().expect("one of three");
    }
    second.acquire().expect("Redis replies");
    wait_until("forgotten, or not", || {
        !raw.exists(&name) || raw.ttl(&name).is_some_and(|ttl| ttl > secs(1))
    });
    assert!(raw.exists(&name));
}

#[test]
fn a_lost_lease_of_many_readers_is_released_once() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(patient(&server.url()).quantum(LONG));
    let lock = locks.rwlock("r").lease(secs(3)).renew(true);
    let readers: Vec<_> = (0..200).map(|_| lock.read().expect("it is free")).collect();
    server.pause();
    wait_until("lost", || readers[0].state() == LeaseState::Lost);
    server.resume();
    let before = raw.stats()["evalsha"];
    drop(readers);
    assert!(locks.close(PATIENCE));
    let after = raw.stats()["evalsha"];
    assert!(after - before < 10, "{}", after - before);
}

#[test]
fn no_number_in_redis_makes_the_rate_limiter_panic() {
    let raw = shared();
    let name = name("far");
    let limiter = manager(raw.url()).rate_limiter(&name, 1, secs(1));
    let () = raw.ask(&["RPUSH", &name, "9007199254740000"]);
    let error = limiter.acquire().expect_err("it is no rate limiter's list");
    assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
    // A list of a rate limiter, with a time that no clock will reach.
    let () = raw.ask(&["DEL", &name]);
    let () = raw.ask(&["RPUSH", &name, "1 1000000 1", "9007199254740000"]);
    let error = limiter.acquire().expect_err("nobody waits for so long");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn after_the_loss_of_all_data_no_release_frees_the_lock_of_another() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(patient(&server.url()).lease(LONG));
    let other = build(patient(&server.url()).lease(LONG));
    let permits = locks.semaphore("s", 2).acquire_many(2).expect("it is free");
    let writer = locks.rwlock("w").write().expect("it is free");
    let set = locks.multi(["a", "b"]).lock().expect("it is free");
    let fence = writer.fence();
    server.restart();
    let mine = loop {
        if let Ok(permit) = other.semaphore("s", 2).acquire_many(2) {
            break permit;
        }
    };
    let next = other.rwlock("w").write().expect("it is free");
    assert!(next.fence() > fence);
    let reader = next.downgrade().expect("it is held");
    let taken = other.lock("b").expect("it is free");
    permits.release().ok();
    writer.downgrade().ok();
    set.release().ok();
    assert!(
        locks
            .semaphore("s", 2)
            .try_acquire()
            .expect("Redis replies")
            .is_none()
    );
    assert!(
        locks
            .rwlock("w")
            .try_write()
            .expect("Redis replies")
            .is_none()
    );
    assert!(locks.try_lock("b").expect("Redis replies").is_none());
    assert_eq!(raw.shares("s").len(), 1);
    reader.release().expect("it is held");
    mine.release().expect("it is held");
    taken.release().expect("it is held");
}

/// In a ring, each set gets names handed over that it cannot use yet.
#[test]
fn multi_locks_that_overlap_in_a_ring_are_all_granted() {
    let server = Server::start();
    let rings = [["x", "y"], ["y", "z"], ["x", "z"]];
    let tasks: Vec<_> = rings
        .into_iter()
        .map(|ring| {
            let locks = manager(&server.url());
            task(move || {
                let set = locks.multi(ring);
                for _ in 0..100 {
                    set.lock()
                        .expect("it comes in")
                        .release()
                        .expect("it is held");
                }
            })
        })
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = ["x", "y"]
        .into_iter()
        .map(|name| {
            let (locks, stop) = (manager(&server.url()), Arc::clone(&stop));
            task(move || {
                while !stop.load(Ordering::Relaxed) {
                    drop(locks.lock(name).expect("it becomes free"));
                }
            })
        })
        .collect();
    for task in tasks {
        task.end();
    }
    stop.store(true, Ordering::Relaxed);
    for other in others {
        other.end();
    }
}

/// After each quantum, the process opens its lease for further readers, and adds no second lease.
#[test]
fn long_readers_of_a_process_share_one_lease() {
    let raw = shared();
    let name = name("long-readers");
    let lock = build(patient(raw.url()).quantum(ms(1))).rwlock(&name);
    let first = lock.read().expect("it is free");
    let mut readers = Vec::new();
    for _ in 0..20 {
        // The quantum is over after a millisecond.
        let left = first.remaining();
        wait_until("a quantum", || first.remaining() + ms(2) < left);
        readers.push(lock.read().expect("nobody waits"));
    }
    assert_eq!(raw.shares(&name).len(), 1);
    drop(readers);
    first.release().expect("it is held");
    assert!(!raw.exists(&name));
}

#[test]
fn a_sorted_set_of_another_program_is_the_wrong_type() {
    let raw = shared();
    let name = name("board");
    let () = raw.ask(&["ZADD", &name, "1", "ann", "2", "bob"]);
    let locks = manager(raw.url());
    let error = locks.semaphore(&name, 3).try_acquire().map(drop);
    assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
    let error = locks.rwlock(&name).try_read().map(drop);
    assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
    assert_eq!(
        raw.ask::<Vec<String>>(&["ZRANGE", &name, "0", "-1"]),
        ["ann", "bob"]
    );
    assert_eq!(raw.ttl(&name), None);
}

/// The record is a text of another program, or a number that no clock has reached. Fences go on from the clock.
#[test]
fn an_impossible_fence_in_redis_is_ignored() {
    let server = Server::start();
    let (raw, locks) = (server.raw(), manager(&server.url()));
    for record in [
        "1e300",
        "inf",
        "nan",
        "-5",
        "text",
        "",
        "9007199254740991",
        "99999999999999999999",
    ] {
        for kind in Kind::ALL {
            let name = name("record");
            for key in kind.keys(&name) {
                let () = raw.ask(&["SET", &fence_of(&key), record]);
            }
            let guard = kind.of(&locks, &name).lock();
            let guard = guard.unwrap_or_else(|error| panic!("{record:?}, {kind:?}: {error}"));
            let next = guard.lease().fence();
            // The fence is a time between the years 2020 and 2100.
            assert!(
                (1_577_836_800_000_000..4_102_444_800_000_000).contains(&next),
                "{next}"
            );
            guard.release().expect("it is held");
            assert!(!raw.exists(&name));
        }
    }
}
