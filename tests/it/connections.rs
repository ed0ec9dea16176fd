//! Real connections of a pool that end while many calls are under way. `tests/contract/link_phases.rs` shows each fault of a
//! link in simulated time.
//!
//! Each thread locks and releases another name, again and again. So each grant must be the thread's own: the key
//! in Redis has the owner of its guard. An answer that reached another thread would show.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use leasehold::{Error, LockManager};

use crate::support::{
    Fault, PATIENCE, Proxy, Raw, Role, Server, Task, build, secs, task, task_asleep, wait_until,
};

const CALLERS: usize = 20;
/// Far longer than the test takes, so that only a release frees a name.
const LEASE: Duration = secs(600);

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
        match done {
            Ok(true) => counts.pairs.fetch_add(1, Ordering::SeqCst),
            Ok(false) => 0,
            Err(Error::Unavailable { .. }) => counts.failures.fetch_add(1, Ordering::SeqCst),
            Err(error) => panic!("{error:?}"),
        };
    }
}

/// FIN, and then RST.
#[test]
fn calls_outlive_a_cut_and_a_reset() {
    let server = Server::start();
    let (proxy, redis) = (Proxy::to(&server), server.raw());
    let builder = LockManager::single(&proxy.url());
    let locks = build(builder.connect_timeout(PATIENCE).io_timeout(PATIENCE));
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
    wait_for_pairs(100);
    assert_eq!(counts.failures.load(Ordering::SeqCst), 0);
    for fault in [Fault::Close, Fault::Reset] {
        let before = counts.failures.load(Ordering::SeqCst);
        proxy.strike(Role::Pool, fault);
        proxy.wait_until_struck(Role::Pool);
        wait_until("all calls fail", || {
            counts.failures.load(Ordering::SeqCst) >= before + CALLERS as u64
        });
        proxy.heal_anew();
        wait_for_pairs(100);
    }
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

/// Many connections are open when the server ends.
#[test]
fn no_call_fails_after_a_restart() {
    const CONNECTIONS: u32 = 8;
    let server = Server::start();
    let locks = build(
        LockManager::single(&server.url())
            .connect_timeout(PATIENCE)
            .io_timeout(PATIENCE)
            .lease(LEASE)
            .pool_size(CONNECTIONS),
    );
    for round in 0..2 {
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
        server.restart();
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
