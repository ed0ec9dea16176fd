//! Measures three ways to lock from the tasks of an async program: many tasks want one lock, and each has some time to get it.
//!
//! `cargo run --release --package leasehold-async`, with a Redis on this machine; `REDIS_URL` names another.
//!
//! docs/async.md explains the ways. The exit status is 0 only if the way of that page serves more tasks than the first one.

#[allow(dead_code, reason = "the tests use the rest")]
mod locks;

use std::error::Error;
use std::time::{Duration, Instant};
use std::{env, process};

use leasehold::LockManager;
use tokio::runtime::Runtime;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::locks::AsyncLocks;

const TASKS: u32 = 2_000;
/// How long each task waits for the lock.
const WAIT: Duration = Duration::from_secs(10);
/// How long each task holds the lock.
const WORK: Duration = Duration::from_millis(1);

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Copy, Debug)]
enum Way {
    /// Both the lock and its release have a thread of the pool.
    PoolForBoth,
    /// The guard is dropped in the task.
    DropInPlace,
    /// As docs/async.md says.
    Page,
}

fn main() -> Outcome {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let mut served = Vec::new();
    for way in [Way::PoolForBoth, Way::DropInPlace, Way::Page] {
        // A pool of its own, with tokio's default of 512 threads.
        let begun = Instant::now();
        let number = Runtime::new()?.block_on(count(way, url.clone()))?;
        println!(
            "{way:?}: {number} of {TASKS} tasks got the lock, in {:.1} s",
            begun.elapsed().as_secs_f64()
        );
        served.push(number);
    }
    let [both, in_place, page] = served[..] else {
        unreachable!("there are three ways");
    };
    let ratio = |number: u32| f64::from(number) / f64::from(both.max(1));
    println!(
        "{:.1} times as many with a drop in place, and {:.1} times as many as the page says",
        ratio(in_place),
        ratio(page)
    );
    if page <= both {
        return Err("the way of the page serves no more tasks".into());
    }
    Ok(())
}

/// Returns how many tasks get the lock.
async fn count(way: Way, url: String) -> Outcome<u32> {
    let locks = match way {
        Way::PoolForBoth => {
            let connect = move || LockManager::connect(&url);
            let locks = spawn_blocking(connect).await??;
            let threads = tokio::sync::Semaphore::new(0).into();
            AsyncLocks { locks, threads }
        }
        Way::DropInPlace | Way::Page => AsyncLocks::connect(&url).await?,
    };
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(hold(way, locks.clone()));
    }
    let mut number = 0;
    while let Some(task) = tasks.join_next().await {
        number += u32::from(task??);
    }
    let is_closed = spawn_blocking(move || locks.locks.close(WAIT)).await?;
    if !is_closed {
        return Err("a release was not answered".into());
    }
    Ok(number)
}

/// Holds the lock for a while, if the task gets it in time.
async fn hold(way: Way, locks: AsyncLocks) -> leasehold::Result<bool> {
    let name = format!("async:{}", process::id());
    let guard = match way {
        Way::PoolForBoth | Way::DropInPlace => {
            let lock = move || locks.locks.try_lock_for(name, WAIT);
            spawn_blocking(lock).await.expect("no panic")?
        }
        Way::Page => locks.lock(&name, WAIT).await?,
    };
    let Some(guard) = guard else {
        return Ok(false);
    };
    sleep(WORK).await;
    match way {
        Way::PoolForBoth => {
            let release = move || guard.release();
            spawn_blocking(release).await.expect("no panic")?;
        }
        Way::DropInPlace | Way::Page => drop(guard),
    }
    Ok(true)
}
