//! Faults in rapid succession, while threads lock, wait, renew, hand over, and hand on in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leasehold::LeaseState;

use crate::traces::only_fences_are_left;
use crate::support::{
    Kind, PATIENCE, Raw, Subject, Task, add_under, added, is_unreachable, manager, secs,
    start_servers, task, wait_until,
};

/// Repeats `f` until the flag is set. The task returns the number of repetitions.
fn over_and_over(mut f: impl FnMut() + Send + 'static) -> (Arc<AtomicBool>, Task<u32>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let task = task(move || {
        let mut times = 0;
        while !stopped.load(Ordering::Relaxed) {
            f();
            times += 1;
        }
        times
    });
    (stop, task)
}

/// Opens a connection to each node.
fn open(redis: &Raw) -> Vec<redis::Connection> {
    let open = |node: Raw| {
        let client = redis::Client::open(node.url()).expect("a URL");
        client.get_connection().expect("the server is there")
    };
    redis.servers().into_iter().map(open).collect()
}

fn flush_scripts(connections: &mut [redis::Connection]) {
    for connection in connections {
        let flushed = redis::cmd("SCRIPT").arg("FLUSH").exec(connection);
        flushed.expect("the server is there");
    }
}

pub(crate) fn scripts_flushed_all_the_time_lose_nothing(world: &World, kind: Kind) {
    const TURNS: u32 = 6;
        let redis = server.raw();
    let (one, other) = (world.manager(), world.manager());
    let crowd = kind.crowd().map(|crowd| crowd.of(&one, "busy").hold());
    let mut connections = open(&redis);
    let (stop, flushes) = over_and_over(move || flush_scripts(&mut connections));
    // One lock is renewed all the time, while others come and go.
    let kept = kind.of(&one, "kept").lease(secs(9)).lock();
    let kept = kept.expect("it is free");
    let turns: Vec<_> = [&one, &other, &one, &other]
        .map(|locks| {
            let (lock, redis) = (kind.of(locks, "busy"), redis.clone());
            task(move || {
                if kind == Kind::Reader {
                    (0..TURNS).for_each(|_| drop(lock.lock().expect("it becomes free")));
                } else {
                    add_under(&redis, &lock, TURNS);
                }
            })
        })
        .into_iter()
        .collect();
    for turn in turns {
        turn.end();
    }
    stop.store(true, Ordering::Relaxed);
    let flushes = flushes.end();
    assert!(flushes > 0, "no script was flushed");
    let mut connections = open(&redis);
    world.until("it is renewed", || {
        flush_scripts(&mut connections);
        one.stats().renewed > 1
    });
    assert_ne!(kept.lease().state(), LeaseState::Lost);
    kept.release().expect("it was held until now");
    if kind != Kind::Reader {
        let (sum, fences) = added(&redis, "busy");
        assert_eq!((sum, fences.len()), (4 * TURNS, 24));
        assert!(fences.is_sorted_by(|a, b| kind.rises(*a, *b)), "{fences:?}");
    }
    drop(crowd);
    assert_eq!((one.stats().failed, other.stats().failed), (0, 0));
    only_fences_are_left(&redis, kind, "kept");
    only_fences_are_left(&redis, kind, "busy");
}

/// Locks, and repeats a call that fails: a connection may be closed during its first request.
fn lock_somehow(lock: &Subject) -> crate::support::Guard {
    let mut guard = None;
    world.until("it is locked", || match lock.lock() {
        Ok(locked) => {
            guard = Some(locked);
            true
        }
        Err(error) if is_unreachable(&error) => false,
        Err(error) => panic!("{error:?}"),
    });
    guard.expect("it is locked")
}

pub(crate) fn connections_killed_one_after_the_other_lose_nothing(world: &World, kind: Kind) {
    const KILLS: usize = 30;
        let redis = server.raw();
    let (one, other) = (world.manager(), world.manager());
    let crowd = kind.crowd().map(|crowd| crowd.of(&one, "busy").hold());
    let kept = kind.of(&one, "kept").lease(secs(9)).lock();
    let kept = kept.expect("it is free");
    // Each thread reads the number and then writes it, like a program that relies on the lock.
    let (sum, turns) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let workers = [&one, &other, &one, &other].map(|locks| {
        let lock = kind.of(locks, "busy");
        let (sum, turns) = (Arc::clone(&sum), Arc::clone(&turns));
        over_and_over(move || {
            let guard = lock_somehow(&lock);
            let before = sum.load(Ordering::Relaxed);
            std::thread::yield_now();
            sum.store(before + 1, Ordering::Relaxed);
            turns.fetch_add(1, Ordering::Relaxed);
            match guard.release() {
                // The outcome of the release is unknown. The renewal thread repeats it.
                Ok(()) => {}
                Err(error) if is_unreachable(&error) => {}
                Err(error) => panic!("{error:?}"),
            }
        })
    });
    let mut killers = open(&redis);
    let nodes = killers.len();
    for kill in 0..KILLS {
        let killer = &mut killers[kill % nodes];
        let own: u64 = redis::cmd("CLIENT")
            .arg("ID")
            .query(killer)
            .expect("it has one");
        // Closes the connections of the pools, of the renewals and of the subscriptions in turn.
        let list: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(killer)
            .expect("the server is there");
        let ids: Vec<_> = list
            .lines()
            .filter_map(|line| line.strip_prefix("id=")?.split(' ').next())
            .filter(|id| *id != own.to_string())
            .collect();
        if !ids.is_empty() {
            let gone = redis::cmd("CLIENT")
                .arg(&["KILL", "ID", ids[kill / nodes % ids.len()]])
                .exec(killer);
            gone.expect("the server is there");
        }
        let before = turns.load(Ordering::Relaxed);
        world.until("they go on", || turns.load(Ordering::Relaxed) > before);
    }
    for (stop, _) in &workers {
        stop.store(true, Ordering::Relaxed);
    }
    let done: u32 = workers.into_iter().map(|(_, worker)| worker.end()).sum();
    let renewed = one.stats().renewed;
    world.until("it is renewed", || one.stats().renewed > renewed);
    assert_ne!(kept.lease().state(), LeaseState::Lost);
    kept.release().expect("it was held until now");
    if kind != Kind::Reader {
        assert_eq!(sum.load(Ordering::Relaxed), done);
    }
    drop(crowd);
    for locks in [&one, &other] {
        assert_eq!(locks.stats().lost(), 0);
        assert!(locks.close(PATIENCE), "something is left to send");
    }
    only_fences_are_left(&redis, kind, "kept");
    only_fences_are_left(&redis, kind, "busy");
}
