//! Faults in rapid succession, while threads lock, wait, renew, hand over, and hand on in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::LeaseState;

use crate::exclusion::{add_under, added};
use crate::matrix::Capability::Always;
use crate::matrix::{Chapter, bodies};
use crate::redis::Redis;
use crate::subject::{Guard, Kind, Subject, is_unreachable};
use crate::world::{Flag, Locks, Task, World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    Always,
    bodies![
        scripts_flushed_all_the_time_lose_nothing,
        connections_killed_one_after_the_other_lose_nothing,
    ],
)];

/// What it costs at most that a message was lost.
const POLL: Duration = secs(1);

/// Repeats `f` on a thread until the flag is raised. The task returns the number of repetitions.
fn over_and_over(locks: &Locks, mut f: impl FnMut() + Send + 'static) -> (Flag, Task<u32>) {
    let stop = locks.world().flag();
    let stopped = stop.clone();
    let task = locks.thread(move || {
        let mut times = 0;
        while !stopped.is_raised() {
            f();
            times += 1;
        }
        times
    });
    (stop, task)
}

fn flush_scripts(redis: &Redis) {
    let () = redis.ask(&["SCRIPT", "FLUSH"]);
}

fn scripts_flushed_all_the_time_lose_nothing(world: &World, kind: Kind) {
    const TURNS: u32 = 3;
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let crowd = kind.crowd().map(|crowd| crowd.of(&one, "busy").hold());
    let (of_thread, server) = (world.clone(), redis.clone());
    let (stop, flushing) = over_and_over(&one, move || {
        flush_scripts(&server);
        of_thread.pass(ms(1));
    });
    // One lock is renewed all the time, while others come and go.
    let kept = kind.of(&one, "kept").lease(secs(9)).lock();
    let kept = kept.expect("it is free");
    let turns = [&one, &other, &one, &other].map(|locks| {
        let lock = kind.of(locks, "busy");
        let (world, redis) = (world.clone(), redis.clone());
        locks.thread(move || {
            if kind == Kind::Reader {
                (0..TURNS).for_each(|_| drop(lock.lock().expect("it becomes free")));
            } else {
                add_under(&world, &redis, &lock, TURNS);
            }
        })
    });
    for turn in turns {
        turn.end();
    }
    stop.raise();
    assert!(flushing.end() > 0, "no script was flushed");
    world.until("it is renewed", || {
        flush_scripts(&redis);
        one.stats().renewed > 1
    });
    assert_eq!(kept.lease().state(), LeaseState::Held);
    kept.release().expect("it was held until now");
    if kind != Kind::Reader {
        let (sum, fences) = added(&redis, "busy");
        assert_eq!((sum, fences.len() as u32), (4 * TURNS, 4 * TURNS));
        assert!(fences.is_sorted_by(|a, b| kind.rises(*a, *b)), "{fences:?}");
    }
    drop(crowd);
    assert_eq!((one.stats().failed, other.stats().failed), (0, 0));
    redis.only_fences_are_left(kind, "kept");
    redis.only_fences_are_left(kind, "busy");
}

/// Locks, and repeats a call that fails: a connection may be closed during its first request.
fn lock_somehow(world: &World, lock: &Subject) -> Guard {
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

/// What the workers have done under the lock.
#[derive(Default)]
struct Work {
    /// Each worker reads the number and then writes it, like a program that relies on the lock.
    sum: AtomicU32,
    turns: AtomicU32,
}

impl Work {
    fn turn(&self, world: &World, lock: &Subject) {
        let guard = lock_somehow(world, lock);
        let before = self.sum.load(Ordering::Relaxed);
        world.pass(ms(1));
        self.sum.store(before + 1, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Relaxed);
        match guard.release() {
            // The outcome of a release that failed is unknown. The renewal thread repeats it.
            Ok(()) => {}
            Err(error) if is_unreachable(&error) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn connections_killed_one_after_the_other_lose_nothing(world: &World, kind: Kind) {
    const KILLS: usize = 12;
    let redis = world.redis();
    let managers @ [one, other] = &[(); 2].map(|()| world.manager());
    let crowd = kind.crowd().map(|crowd| crowd.of(one, "busy").hold());
    let kept = kind.of(one, "kept").lease(secs(9)).lock();
    let kept = kept.expect("it is free");
    let work = Arc::<Work>::default();
    let workers = [one, other, one, other].map(|locks| {
        let (lock, work, world) = (kind.of(locks, "busy"), Arc::clone(&work), world.clone());
        over_and_over(locks, move || work.turn(&world, &lock))
    });
    for kill in 0..KILLS {
        let (killed_at, before) = (world.now(), work.turns.load(Ordering::Relaxed));
        managers[kill % 2].cut_one(kill / 2);
        world.until("they go on", || work.turns.load(Ordering::Relaxed) > before);
        assert!(world.now() <= world.within(killed_at + POLL), "kill {kill}");
    }
    for (stop, _) in &workers {
        stop.raise();
    }
    let done: u32 = workers.into_iter().map(|(_, worker)| worker.end()).sum();
    let renewed = one.stats().renewed;
    world.until("it is renewed", || one.stats().renewed > renewed);
    assert_eq!(kept.lease().state(), LeaseState::Held);
    kept.release().expect("it was held until now");
    if kind != Kind::Reader {
        assert_eq!(work.sum.load(Ordering::Relaxed), done);
    }
    drop(crowd);
    for locks in managers {
        assert_eq!(locks.stats().lost(), 0);
        assert!(locks.close(world.within(POLL)), "something is left to send");
    }
    redis.only_fences_are_left(kind, "kept");
    redis.only_fences_are_left(kind, "busy");
}
