//! Runs the code of docs/async.md, and checks that the page shows it. Needs the Redis of `REDIS_URL`, or one on this machine.

mod locks;

use std::env;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Error, LockGuard};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::locks::{AsyncLocks, while_held};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a task waits for a lock, at most. Longer, so that a test fails before.
const WAIT: Duration = Duration::from_mins(1);

/// Runs a test on a runtime whose pool has few threads.
fn run<F: Future<Output = ()>>(test: impl FnOnce(AsyncLocks, String) -> F) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(8).build();
    let runtime: Runtime = runtime.expect("the system starts threads");
    runtime.block_on(async {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let name = format!("async:{}", now.expect("after 1970").as_nanos());
        test(connect(4).await, name).await;
    });
}

/// Connects as another process does. At most so many tasks wait at a time.
async fn connect(threads: usize) -> AsyncLocks {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let locks = AsyncLocks::connect(&url).await.expect("the server answers");
    AsyncLocks {
        threads: Arc::new(Semaphore::new(threads)),
        ..locks
    }
}

async fn locked(locks: &AsyncLocks, name: &str) -> LockGuard {
    let guard = locks.lock(name, WAIT).await.expect("it answers");
    guard.expect("it becomes free")
}

/// Returns when so many processes wait for a lock.
async fn until_waiters(locks: &AsyncLocks, name: &str, number: u64) {
    let seen = async {
        loop {
            let (locks, name) = (locks.locks.clone(), name.to_owned());
            let info = spawn_blocking(move || locks.inspect(name)).await;
            let info = info.expect("no panic").expect("it answers");
            if info.map_or(0, |info| info.waiters) == number {
                return;
            }
        }
    };
    timeout(PATIENCE, seen).await.expect("it is seen in time");
}

#[test]
fn the_page_shows_this_code() {
    let page = include_str!("../../docs/async.md");
    let (_, code) = page.split_once("```rust\n").expect("the page has code");
    let (code, _) = code.split_once("```").expect("it ends");
    assert_eq!(code, include_str!("locks.rs"));
}

/// Far more tasks than threads, which would all block each other if a release needed a thread.
#[test]
fn each_of_many_tasks_gets_the_lock_and_holds_it_alone() {
    run(|locks, name| async move {
        let inside = Arc::new(Semaphore::new(1));
        let tasks: Vec<_> = (0..200)
            .map(|_| {
                let (locks, name, inside) = (locks.clone(), name.clone(), Arc::clone(&inside));
                // A guard is `Send`, so that a task may go on in another thread of the runtime.
                tokio::spawn(async move {
                    let guard = locked(&locks, &name).await;
                    let alone = inside.try_acquire().expect("nobody else holds the lock");
                    tokio::task::yield_now().await;
                    drop(alone);
                    drop(guard);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

#[test]
fn a_task_without_a_thread_gives_up_in_time() {
    run(|mut locks, name| async move {
        locks.threads = Arc::new(Semaphore::new(0));
        let late = locks.lock(&name, Duration::from_millis(1)).await;
        assert!(late.expect("nothing is asked").is_none());
    });
}

/// The thread stops to wait, so its place in the queue and in the pool is free.
#[test]
fn a_future_that_is_dropped_waits_no_more_and_leaves_no_lock() {
    run(|locks, name| async move {
        let elsewhere = connect(1).await;
        let guard = locked(&locks, &name).await;
        for _ in 0..20 {
            let (other, wanted) = (elsewhere.clone(), name.clone());
            let task = tokio::spawn(async move { other.lock(&wanted, WAIT).await });
            until_waiters(&locks, &name, 1).await;
            task.abort();
            task.await.expect_err("it was dropped");
            // The lock is still held, so only the end of the wait gives the permit back.
            let permit = timeout(PATIENCE, elsewhere.threads.acquire()).await;
            drop(permit.expect("the thread waits no more"));
            until_waiters(&locks, &name, 0).await;
        }
        drop(guard);
        drop(locked(&elsewhere, &name).await);
    });
}

#[test]
fn work_ends_with_the_lock() {
    run(|locks, name| async move {
        let guard = locked(&locks, &name).await;
        assert_eq!(
            while_held(&guard, async { 7 }).await.expect("it is held"),
            7
        );
        let (locks, owner) = (locks.locks.clone(), guard.owner().to_owned());
        let take = move || locks.force_release(name, &owner);
        let take = spawn_blocking(take);
        let lost = while_held(&guard, pending::<()>()).await;
        assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
        take.await.expect("no panic").expect("it answers");
    });
}
