//! Releases that guards leave to the renewal thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use leasehold::{Error, LockManager};

use crate::support::{
    Answer, Hostile, Kind, PATIENCE, Sentinels, Server, add_under, added, build, is_script, lost,
    manager, ms, name, patient, secs, shared, task_asleep, wait_until,
};

/// The number of words of a release of one lock. A request for a lock has more.
const RELEASE: usize = 5;

fn background(url: &str) -> LockManager {
    build(patient(url).background_release(true))
}

#[test]
fn smoke() {
    let raw = shared();
    let (locks, name) = (background(raw.url()), name("background"));
    let guard = locks.lock(&name).expect("it is free");
    let fence = guard.fence();
    guard.release().expect("this process knows of no loss");
    assert!(locks.close(PATIENCE), "it did not go out");
    assert!(!raw.exists(&name));
    let next = manager(raw.url()).try_lock(&name).expect("Redis replies");
    assert!(next.expect("released").fence() > fence);
}

/// A process can lock again at once, although its earlier release may not have been sent yet.
#[test]
fn a_queued_release_lets_its_process_lock_again_for_every_kind() {
    let raw = shared();
    let (locks, name) = (background(raw.url()), name("background"));
    for (kind, named) in Kind::NAMES {
        let subject = kind.of(&locks, &format!("{name}:{named}"));
        let mut last = 0;
        for round in 0..50 {
            let guard = subject.try_lock().expect("Redis replies");
            let guard = guard.unwrap_or_else(|| panic!("{named}: held in round {round}"));
            assert!(guard.fence() >= last, "{named}");
            last = guard.fence();
            guard.release().expect("this process knows of no loss");
        }
    }
    assert!(locks.close(PATIENCE));
    for (kind, named) in Kind::NAMES {
        for key in kind.keys(&format!("{name}:{named}")) {
            assert!(!raw.exists(&key), "{key}");
        }
    }
}

/// It can also lock the same key as another kind.
#[test]
fn a_queued_release_lets_its_process_lock_as_another_kind() {
    let raw = shared();
    let (locks, base) = (background(raw.url()), name("background"));
    let names = |round: u32| ["a", "b"].map(|end| format!("{base}:{round}:{end}"));
    for round in 0..100 {
        let [a, b] = names(round);
        let rwlock = locks.rwlock(&a);
        drop(
            rwlock
                .try_write()
                .expect("Redis replies")
                .expect("it is free"),
        );
        drop(
            rwlock
                .try_read()
                .expect("Redis replies")
                .expect("the writer is gone"),
        );
        drop(
            rwlock
                .try_write()
                .expect("Redis replies")
                .expect("the reader is gone"),
        );
        let semaphore = |permits| locks.semaphore(&a, permits).try_acquire();
        drop(
            semaphore(3)
                .expect("Redis replies")
                .expect("the writer is gone"),
        );
        drop(
            semaphore(5)
                .expect("Redis replies")
                .expect("the permit is back"),
        );
        let set = locks.multi([&a, &b]);
        drop(
            locks
                .try_lock(&a)
                .expect("Redis replies")
                .expect("the permit is back"),
        );
        drop(
            set.try_lock()
                .expect("Redis replies")
                .expect("the mutex is free"),
        );
        drop(
            locks
                .try_lock(&b)
                .expect("Redis replies")
                .expect("the set is free"),
        );
    }
    assert!(locks.close(PATIENCE));
}

/// Threads of two managers lock the same few names in turn. To a lock, two managers are like two processes.
#[test]
fn nothing_is_lost_between_processes_that_release_in_the_background() {
    const TIMES: u32 = 40;
    let (raw, base) = (shared(), name("background"));
    let managers = [
        background(raw.url()),
        background(raw.url()),
        manager(raw.url()),
    ];
    let subjects: Vec<_> = [Kind::Mutex, Kind::Writer, Kind::AllPermits, Kind::Multi]
        .map(|kind| (kind, format!("{base}:{}", kind.name())))
        .into();
    thread::scope(|scope| {
        for locks in &managers {
            for (kind, name) in &subjects {
                for _ in 0..2 {
                    let subject = kind.of(locks, name);
                    scope.spawn(move || add_under(raw, &subject, TIMES));
                }
            }
        }
    });
    for (kind, name) in &subjects {
        let (sum, fences) = added(raw, name);
        assert_eq!(sum, 6 * TIMES, "{kind:?}");
        assert!(fences.is_sorted_by(|one, next| one < next), "{kind:?}");
    }
}

#[test]
fn a_waiter_in_another_process_is_handed_the_lock() {
    let raw = shared();
    let (locks, other, name) = (
        background(raw.url()),
        manager(raw.url()),
        name("background"),
    );
    let guard = locks.lock(&name).expect("it is free");
    let waiting = {
        let (other, name) = (other.clone(), name.clone());
        task_asleep(move || other.lock(&name).expect("it becomes free").fence())
    };
    raw.wait_until_queued(&name, 1);
    let fence = guard.fence();
    guard.release().expect("this process knows of no loss");
    assert!(waiting.end() > fence);
}

#[test]
fn a_loss_that_this_process_knows_is_returned() {
    let (raw, name) = (shared(), name("background"));
    let guard = background(raw.url())
        .mutex(&name)
        .lease(secs(2))
        .renew(false)
        .lock()
        .expect("it is free");
    wait_until("the lease is over", || guard.check().is_err());
    lost(guard.release());
}

/// A thousand releases need far fewer requests.
#[test]
fn releases_share_requests() {
    let server = Server::start();
    let (raw, locks) = (server.raw(), background(&server.url()));
    drop(locks.lock("first").expect("it is free"));
    let calls = || raw.stats().get("evalsha").copied().unwrap_or(0);
    let guards: Vec<_> = (0..1000)
        .map(|n| locks.lock(format!("n{n}")).expect("it is free"))
        .collect();
    let before = calls();
    drop(guards);
    assert!(locks.close(PATIENCE));
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "n*"]), [""; 0]);
    let calls = calls() - before;
    assert!(calls <= 100, "{calls} requests for 1,000 releases");
}

#[test]
fn close_returns_whether_queued_releases_were_sent() {
    let server = Server::start();
    let locks = background(&server.url());
    let guard = locks.lock("n").expect("it is free");
    server.pause();
    guard.release().expect("no request is sent");
    assert!(!locks.close(ms(50)));
    server.resume();
    assert!(locks.close(secs(20)));
    assert!(!server.raw().exists("n"));
    assert!(matches!(locks.try_lock("n"), Err(Error::Closed)));
}

#[test]
fn a_release_whose_connection_is_cut_is_repeated() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let (locks, raw) = (background(&hostile.url()), server.raw());
    let cut = Arc::new(AtomicBool::new(false));
    let is_cut = Arc::clone(&cut);
    hostile.answers(move |words| {
        let is_release = is_script(words) && words.len() == RELEASE;
        if is_release && !is_cut.swap(true, Ordering::SeqCst) {
            Answer::Close(Vec::new())
        } else {
            Answer::Pass
        }
    });
    let guard = locks.lock("n").expect("it is free");
    guard.release().expect("it is queued");
    wait_until("the release is repeated", || !raw.exists("n"));
    assert!(cut.load(Ordering::SeqCst), "no release was cut off");
    assert!(locks.close(PATIENCE));
}

#[test]
fn a_lock_whose_connections_were_cut_is_not_held_for_its_own_process() {
    const ROUNDS: usize = 20;
    let server = Server::start();
    let (locks, raw) = (background(&server.url()), server.raw());
    for round in 0..ROUNDS {
        let (one, other) = (format!("one:{round}"), format!("other:{round}"));
        let guard = locks.lock(&one).expect("it is free");
        raw.ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        guard.release().expect("it is queued");
        let other = locks.lock(&other).expect("it is sent again");
        let again = locks.try_lock(&one).expect("it is asked for");
        assert!(again.is_some(), "round {round}");
        drop((again, other));
    }
    assert!(locks.close(PATIENCE));
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "o*"]), [""; 0]);
}

#[test]
fn releases_reach_the_master_of_a_sentinel_set() {
    let set = Sentinels::start();
    let locks = build(set.builder().background_release(true));
    for number in 0..3 {
        drop(locks.lock(format!("n{number}")).expect("it is free"));
    }
    assert!(locks.close(PATIENCE));
    let raw = set.master().raw();
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "n*"]), [""; 0]);
}
