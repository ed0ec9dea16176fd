//! Locks a free mutex on the Redis of `REDIS_URL`. `scripts/way-in` runs this program, and counts the functions of
//! leasehold between the last call of `Mutex::lock` and its first write.

use std::env;
use std::error::Error;

use leasehold::{LockGuard, LockManager, Mutex};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = LockManager::single(&env::var("REDIS_URL")?).build()?;
    let mutex = locks.mutex("way-in");
    // These connect, start the threads of the manager, and have the server load the scripts.
    for _ in 0..3 {
        mutex.lock()?.release()?;
    }
    measured(&mutex)?.release()?;
    Ok(())
}

/// Locks the mutex. valgrind finds the call by the name of this function.
#[inline(never)]
fn measured(mutex: &Mutex) -> leasehold::Result<LockGuard> {
    mutex.lock()
}
