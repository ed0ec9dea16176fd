//! The threads that sell.

use std::{error::Error, thread, time::Instant};

use redis::{Connection, TypedCommands};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const THREADS: u32 = 64;
pub const STOCK: u32 = THREADS * 20;

/// A connection for each thread, and the stock that they all sell.
pub struct Shop {
    tills: Vec<Connection>,
    key: String,
}

impl Shop {
    pub fn open(url: &str, key: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        let tills: redis::RedisResult<_> = (0..THREADS).map(|_| client.get_connection()).collect();
        Ok(Self {
            tills: tills?,
            key: key.into(),
        })
    }

    pub fn threads(&self) -> usize {
        self.tills.len()
    }

    /// Makes the threads try `tries` sales together. `sale` returns whether it sold one. Returns the number of sales
    /// that are missing in the stock.
    pub fn sell<F>(&mut self, how: &str, tries: u32, sale: F) -> Result<i64>
    where
        F: Fn(&mut Connection, u32) -> Result<bool> + Sync,
    {
        self.tills[0].set(&self.key, STOCK)?;
        let begun = Instant::now();
        let share = |till: &mut Connection| -> Result<u32> {
            (0..tries / THREADS)
                .map(|round| sale(till, round).map(u32::from))
                .sum()
        };
        let share = &share;
        let sold = thread::scope(|scope| {
            let tills = self.tills.iter_mut();
            let threads: Vec<_> = tills.map(|till| scope.spawn(move || share(till))).collect();
            let shares = threads
                .into_iter()
                .map(|thread| thread.join().expect("no sale panics"));
            shares.sum::<Result<u32>>()
        })?;
        let rate = f64::from(tries) / begun.elapsed().as_secs_f64();
        let left = i64::try_from(self.tills[0].get_int(&self.key)?.unwrap_or(0))?;
        let lost = i64::from(sold) + left - i64::from(STOCK);
        println!(
            "{how:8}  {sold} sold of {STOCK}, {left:4} left, {lost:4} lost, {rate:6.0} tries/s"
        );
        Ok(lost)
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.tills[0].del(&self.key).ok();
    }
}
