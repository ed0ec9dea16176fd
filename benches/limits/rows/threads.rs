//! A thousand threads of one process that want one name.
//!
//! All of them wait behind a guard of the main thread before the clock starts, and each queues again when its turn is
//! over. So every turn but the last thousand goes from one thread to another that waits. Otherwise the threads would
//! arrive one by one, and find the lock free.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use leasehold::LockManager;

use crate::Result;
use crate::nodes;
use crate::row::{Bench, Measured};
use crate::server::Tally;
use crate::team::{Team, per_second};

const THREADS: usize = 1_000;
const GUARDS: usize = 50;
/// The time that the last thread gets to fall asleep in the queue. Neither side reports that, so this is a long fixed
/// time.
const SETTLE: Duration = Duration::from_millis(300);

pub fn measure(bench: &Bench) -> Result<Measured> {
    let each = bench.count(GUARDS);
    let guards = (THREADS * each) as u64;
    let mut tally = bench.server.tally()?;
    let ours = |round| {
        let locks = LockManager::connect(bench.url())?;
        turns(&locks.mutex(bench.name(round)), each, &mut tally)
    };
    let limit = |_| {
        let queue = Arc::new(Queue::default());
        let theirs = Arc::clone(&queue);
        let arrived = Arc::new(AtomicUsize::new(0));
        let all = Arc::clone(&arrived);
        let team = Team::ready(THREADS, move |_| {
            let (queue, arrived) = (Arc::clone(&theirs), Arc::clone(&all));
            Ok(move |_| {
                let waiter = Waiter::here();
                arrived.fetch_add(1, Ordering::Relaxed);
                for _ in 0..each {
                    queue.lock(&waiter);
                    queue.unlock();
                }
                Ok(())
            })
        })?;
        queue.lock(&Waiter::here());
        settle(&team, &arrived);
        let start = Instant::now();
        queue.unlock();
        team.join()?;
        Ok(per_second(guards, start.elapsed()))
    };
    let rounds = bench.interleave(ours, limit)?;
    Ok(Measured::new(rounds).counted_to(&tally, 0.1))
}

/// Measures the same on a quorum. The limit is leasehold on one server.
pub fn quorum(bench: &Bench) -> Result<Measured> {
    let each = bench.count(GUARDS);
    let nodes = nodes::start(bench.cores)?;
    let urls = nodes::urls(&nodes);
    let (mut tally, mut of_one) = (nodes[0].tally()?, bench.server.tally()?);
    let rounds = bench.interleave(
        |round| {
            let locks = nodes::builder(&urls).build()?;
            turns(&locks.mutex(bench.name(round)), each, &mut tally)
        },
        |round| {
            let locks = nodes::builder(bench.url()).build()?;
            turns(&locks.mutex(bench.name(round)), each, &mut of_one)
        },
    )?;
    Ok(Measured::new(rounds).beside("commands_of_a_node_per_guard", tally.commands_per_guard()))
}

/// Returns the number of guards in a second, if each thread gets `each` of them.
fn turns(mutex: &leasehold::Mutex, each: usize, tally: &mut Tally) -> Result<f64> {
    let guards = (THREADS * each) as u64;
    let theirs = mutex.clone();
    let arrived = Arc::new(AtomicUsize::new(0));
    let all = Arc::clone(&arrived);
    let team = Team::ready(THREADS, move |_| {
        let (mutex, arrived) = (theirs.clone(), Arc::clone(&all));
        Ok(move |_| {
            arrived.fetch_add(1, Ordering::Relaxed);
            (0..each).try_for_each(|_| Ok(mutex.lock()?.release()?))
        })
    })?;
    let guard = mutex.lock()?;
    settle(&team, &arrived);
    tally.count(|| {
        let start = Instant::now();
        guard.release()?;
        team.join()?;
        Ok((guards, per_second(guards, start.elapsed())))
    })
}

/// Lets the threads go, and waits until all of them wait for the lock.
fn settle(team: &Team<()>, arrived: &AtomicUsize) {
    team.open();
    while arrived.load(Ordering::Relaxed) < THREADS {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(SETTLE);
}

/// The limit: a lock that goes directly to the next thread, first come, first served.
#[derive(Default)]
struct Queue(Mutex<Turns>);

#[derive(Default)]
struct Turns {
    is_held: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

/// A waiting thread. Each thread uses it again for all its waits.
struct Waiter {
    thread: Thread,
    has_turn: AtomicBool,
}

impl Waiter {
    fn here() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            has_turn: AtomicBool::new(false),
        })
    }
}

impl Queue {
    fn lock(&self, waiter: &Arc<Waiter>) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !turns.is_held {
            turns.is_held = true;
            return;
        }
        turns.waiting.push_back(Arc::clone(waiter));
        drop(turns);
        while !waiter.has_turn.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }

    fn unlock(&self) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = turns.waiting.pop_front();
        turns.is_held = next.is_some();
        drop(turns);
        if let Some(next) = next {
            next.has_turn.store(true, Ordering::Release);
            next.thread.unpark();
        }
    }
}
