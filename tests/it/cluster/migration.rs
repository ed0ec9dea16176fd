//! Slots that move from one master to another while locks in them are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use leasehold::{Error, LockGuard, LockManager};

use super::end_of;
use crate::support::{Cluster, Kind, Raw, Task, secs, slot_of, task, wait_until};

/// Names of one slot.
fn name(number: usize) -> String {
    format!("{{moving}}{number}")
}

/// Blocks until each of the guards was renewed.
#[track_caller]
fn wait_until_renewed(guards: &[LockGuard]) {
    let ends: Vec<_> = guards.iter().map(end_of).collect();
    for (guard, end) in guards.iter().zip(ends) {
        wait_until("it is renewed", || {
            guard.check().expect("it is held");
            end_of(guard) > end + secs(1)
        });
    }
}

/// Starts a thread that locks and unlocks names of the slot until `stop`. It counts its turns.
fn locking(locks: &LockManager, stop: &Arc<AtomicBool>, turns: &Arc<AtomicU32>) -> Task<()> {
    let (locks, stop, turns) = (locks.clone(), Arc::clone(stop), Arc::clone(turns));
    task(move || {
        for number in (100..110).cycle() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            match locks.try_lock_for(name(number), secs(1)) {
                Ok(Some(guard)) => {
                    guard.release().expect("it is held");
                    turns.fetch_add(1, Ordering::Relaxed);
                }
                // The slot moves for longer than the wait.
                Ok(None) | Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    })
}

#[test]
fn a_slot_moves_under_load_forwards_and_back_and_no_holder_loses_its_lock() {
    let cluster = Cluster::start();
    let (holder, other) = (cluster.manager(), cluster.manager());
    let (stop, turns) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let go_on = || {
        let before = turns.load(Ordering::Relaxed);
        wait_until("others lock names of the slot", || {
            turns.load(Ordering::Relaxed) >= before + 20
        });
    };
    let load: Vec<_> = (0..4)
        .map(|number| {
            locking(
                if number % 2 == 0 { &holder } else { &other },
                &stop,
                &turns,
            )
        })
        .collect();
    let guards: Vec<_> = (0..20)
        .map(|number| {
            let mutex = holder.mutex(name(number)).lease(secs(15));
            mutex.lock().expect("it is free")
        })
        .collect();
    let slot = slot_of(&name(0));
    let (first, _) = cluster.owner(&name(0));
    let mut servers = cluster.servers()[..3].iter();
    let second = servers.find(|server| server.port() != first.port());
    let second = second.expect("there are three masters");
    for to in [second, first] {
        go_on();
        let migration = cluster.migrate(slot, to);
        // Some of the locks are at the new master, and the others are not.
        for number in 0..10 {
            migration.move_key(&name(number));
        }
        wait_until_renewed(&guards);
        migration.end();
        wait_until_renewed(&guards);
    }
    go_on();
    stop.store(true, Ordering::Relaxed);
    load.into_iter().for_each(Task::end);
    for guard in guards {
        guard.release().expect("it is held");
    }
}

/// A waiter has marked the lock. Its release cannot use the queue while the slot moves.
#[test]
fn a_lock_with_a_waiter_is_released_while_its_slot_moves() {
    let cluster = Cluster::start();
    let (holder, other) = (cluster.manager(), cluster.manager());
    let slot = slot_of(&name(0));
    let (from, _) = cluster.owner(&name(0));
    let to = cluster.servers()[..3]
        .iter()
        .find(|server| server.port() != from.port());
    let guards = [0, 1].map(|number| holder.lock(name(number)).expect("it is free"));
    let waiters = [0, 1].map(|number| Kind::Mutex.of(&other, &name(number)).locking());
    wait_until("the locks are marked", || {
        [0, 1].iter().all(|number| {
            let value = from.raw().get(&name(*number));
            value.is_some_and(|value| value.ends_with('!'))
        })
    });
    let migration = cluster.migrate(slot, to.expect("there are three"));
    // One of them is at the new master already.
    migration.move_key(&name(0));
    for guard in guards {
        guard.release().expect("it is held");
    }
    // All keys of the other one are at the old master, so it may have been handed over.
    assert!(waiters[0].waits());
    migration.end();
    for waiter in waiters {
        waiter.locked();
        waiter.release();
    }
}

/// Returns how often a server has redirected a request, or has asked to repeat it.
fn redirections_and_retries(raw: &Raw) -> u64 {
    let report: String = raw.ask(&["INFO", "errorstats"]);
    let count = |line: &str| line.trim_end().split_once(":count=")?.1.parse::<u64>().ok();
    let is_such = |line: &&str| {
        ["_ASK:", "_MOVED:", "_TRYAGAIN:"]
            .iter()
            .any(|kind| line.contains(kind))
    };
    report.lines().filter(is_such).filter_map(count).sum()
}

#[test]
fn a_lock_waits_for_the_end_of_the_move_of_its_slot() {
    let cluster = Cluster::start();
    let locks = cluster.builder().io_timeout(secs(1)).build();
    let locks = locks.expect("all are there");
    let (from, _) = cluster.owner(&name(0));
    let mut servers = cluster.servers()[..3].iter();
    let to = servers.find(|server| server.port() != from.port());
    let migration = cluster.migrate(slot_of(&name(0)), to.expect("there are three"));
    let error = locks.try_lock(name(0)).expect_err("the slot moves");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let waiting = Kind::Mutex.of(&locks, &name(0)).locking();
    // The test needs time to pass: the move takes longer than a request may.
    let begun = Instant::now();
    wait_until("its first request is over", || begun.elapsed() > secs(3));
    assert!(waiting.waits());
    // Each request pauses before it is sent again.
    let mut all = 0;
    for server in cluster.servers() {
        let sent = redirections_and_retries(&server.raw());
        assert!(sent < 300, "{sent} requests in some seconds");
        all += sent;
    }
    assert!(all > 0, "the server counts them");
    migration.end();
    waiting.locked();
    waiting.release();
}
