use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Cancel, LockGuard, LockManager, Result};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Locks for the tasks of a program. Clones share everything.
#[derive(Clone)]
pub struct AsyncLocks {
    pub locks: LockManager,
    /// How many tasks may have a thread of the pool to wait in: half of the pool.
    pub threads: Arc<Semaphore>,
}

impl AsyncLocks {
    /// Connects to the servers of a URL.
    pub async fn connect(url: &str) -> Result<Self> {
        let builder = LockManager::from_url(url)?.background_release(true);
        let locks = spawn_blocking(|| builder.build()).await;
        Ok(Self {
            locks: locks.expect("no panic")?,
            threads: Arc::new(Semaphore::new(256)),
        })
    }

    /// Locks the mutex `name`. Returns `None` if it is not free within `wait`.
    pub async fn lock(&self, name: &str, wait: Duration) -> Result<Option<LockGuard>> {
        let begun = Instant::now();
        let permit = Arc::clone(&self.threads).acquire_owned();
        let Ok(permit) = timeout(wait, permit).await else {
            return Ok(None);
        };
        let stop = CancelOnDrop(Cancel::new());
        let mutex = self.locks.mutex(name).cancel_with(&stop.0);
        let locked = spawn_blocking(move || {
            let _until_the_end = permit;
            mutex.try_lock_for(wait.saturating_sub(begun.elapsed()))
        });
        locked.await.expect("no panic")
    }
}

/// Ends the wait of a thread when the future that waits for it is dropped. A guard lives on.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs a future while the lock is held. Drops it within a tenth of a second after a loss, and returns the error.
pub async fn while_held<T>(guard: &LockGuard, work: impl Future<Output = T>) -> Result<T> {
    let mut work = pin!(work);
    loop {
        match timeout(Duration::from_millis(100), work.as_mut()).await {
            Ok(done) => return Ok(done),
            Err(_) => guard.check()?,
        }
    }
}
