//! A cache of one value, which all machines share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{error::Error, thread, time::Duration};

use redis::{Connection, TypedCommands};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub struct Cache {
    /// One connection for all threads, so that the example does not need 500.
    redis: Mutex<Connection>,
    key: String,
    computed: AtomicUsize,
}

impl Cache {
    /// Returns an empty cache.
    pub fn new(url: &str, key: &str) -> Result<Self> {
        let mut redis = redis::Client::open(url)?.get_connection()?;
        redis.del(key)?;
        Ok(Self {
            redis: Mutex::new(redis),
            key: key.into(),
            computed: AtomicUsize::new(0),
        })
    }

    pub fn get(&self) -> Result<Option<String>> {
        Ok(self.redis().get(&self.key)?)
    }

    /// Computes the value. The work is slow, so it should not be done 500 times.
    pub fn compute(&self) -> Result<String> {
        let number = self.computed.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(50));
        let value = format!("the report, edition {number}");
        self.redis().set(&self.key, &value)?;
        Ok(value)
    }

    /// Returns how often the value was computed.
    pub fn computed(&self) -> usize {
        self.computed.load(Ordering::Relaxed)
    }

    fn redis(&self) -> MutexGuard<'_, Connection> {
        self.redis.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.redis().del(&self.key).ok();
    }
}
