//! A cached value is gone, and 500 threads on two machines miss it at the same moment. One thread computes it again.
//!
//! `cargo run --example cache_stampede`, with a Redis on this machine; `REDIS_URL` names another.
//!
//! The lock alone would make the threads compute the value one after the other. So each thread looks into the cache
//! once more under the lock, and finds the value of the first thread there.
//!
//! - `cache`: the cache, and the slow work that fills it

mod cache;

use std::{env, process, sync::Barrier, thread, time::Duration};

use leasehold::LockManager;

use crate::cache::{Cache, Result};

const THREADS: usize = 500;

fn main() -> Result<()> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let key = format!("cache_stampede:{}", process::id());
    let name = format!("{key}:lock");
    let patient = LockManager::single(&url).io_timeout(Duration::from_secs(10));
    let machines = [patient.clone().build()?, patient.build()?];

    let cache = Cache::new(&url, &key)?;
    stampede(&cache, |_| cache.compute())?;
    let without = cache.computed();
    println!("without the lock {THREADS} threads computed it {without} times");

    let cache = Cache::new(&url, &key)?;
    let values = stampede(&cache, |thread| {
        let _guard = machines[thread % machines.len()].lock(&name)?;
        // Another thread may have filled the cache meanwhile.
        match cache.get()? {
            Some(value) => Ok(value),
            None => cache.compute(),
        }
    })?;
    let with = cache.computed();
    println!("with the lock {THREADS} threads computed it {with} times");

    let same = values.iter().all(|value| *value == values[0]);
    if without != THREADS || with != 1 || !same {
        return Err(format!("it should have been {THREADS} times, and then once").into());
    }
    Ok(())
}

/// Makes all threads miss the value before any of them calls `refill`. Returns the value that each thread got.
fn stampede<F>(cache: &Cache, refill: F) -> Result<Vec<String>>
where
    F: Fn(usize) -> Result<String> + Sync,
{
    let all_have_looked = Barrier::new(THREADS);
    let value = |thread| {
        let found = cache.get();
        all_have_looked.wait();
        match found? {
            Some(value) => Ok(value),
            None => refill(thread),
        }
    };
    let value = &value;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || value(thread)))
            .collect();
        let values = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        values.collect()
    })
}
