//! When *not* to use a lock: 64 threads sell one stock without a lock, under a lock, by `DECR` and by a script.
//!
//! `cargo run --release --example inventory`, with a Redis on this machine; `REDIS_URL` names another.
//!
//! Work that one command or one script of Redis can do needs no lock. The command is exact, and faster by far. A lock
//! is for work that Redis cannot do, such as asking a supplier between a read and a write.
//!
//! - `sale`: the threads, and their measurement

mod sale;

use std::{env, process, sync::Barrier, time::Duration};

use leasehold::LockManager;
use redis::{Script, TypedCommands};

use crate::sale::{Result, STOCK, Shop};

/// Does not go below zero, unlike `DECR`.
const SELL: &str = "
    if tonumber(redis.call('GET', KEYS[1])) > 0 then return redis.call('DECR', KEYS[1]) end";

fn main() -> Result<()> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let key = format!("inventory:{}", process::id());
    let patient = LockManager::single(&url).io_timeout(Duration::from_secs(10));
    let locks = patient.build()?;
    let mutex = locks.mutex(format!("{key}:lock"));
    let mut shop = Shop::open(&url, &key)?;

    // In the first round all threads read before any of them writes. Otherwise some runs would lose few updates.
    let all_have_read = Barrier::new(shop.threads());
    let unlocked = shop.sell("no lock", STOCK, |redis, round| {
        let stock = redis.get_int(&key);
        if round == 0 {
            all_have_read.wait();
        }
        redis.set(&key, stock?.unwrap_or(0) - 1)?;
        Ok(true)
    })?;
    let locked = shop.sell("the lock", STOCK, |redis, _| {
        let guard = mutex.lock()?;
        let stock = redis.get_int(&key)?.unwrap_or(0);
        redis.set(&key, stock - 1)?;
        guard.release()?;
        Ok(true)
    })?;
    let decr = shop.sell("DECR", STOCK, |redis, _| {
        redis.decr(&key, 1)?;
        Ok(true)
    })?;
    // The threads ask for twice the stock. The script refuses half of them.
    let script = Script::new(SELL);
    let scripted = shop.sell("a script", 2 * STOCK, |redis, _| {
        Ok(script.key(&key).invoke::<Option<i64>>(redis)?.is_some())
    })?;

    if unlocked <= 0 || (locked, decr, scripted) != (0, 0, 0) {
        return Err("only the sale without a lock should have lost updates".into());
    }
    println!("Without a lock updates were lost. For one counter a command or a script is best.");
    Ok(())
}
