//! When *not* to use a lock: 64 threads sell one stock without a lock, under one, by `DECR` and by a script.
//!
//! `cargo run --release --example inventory`, with a Redis on this machine; `REDIS_URL` names another.
//!
//! What one command or one script of Redis can do needs no lock: it is exact, and faster by far. A lock is for what
//! Redis cannot do by itself, such as asking a supplier between reading and writing.
//!
//! - `sale`: the threads, and what they are measured by

mod sale;

use std::{env, process, sync::Barrier, time::Duration};

use leasehold::LockManager;
use redis::{Script, TypedCommands};

use crate::sale::{Result, STOCK, Shop};

/// Refuses to go below zero, which `DECR` would not.
const SELL: &str = "
    if tonumber(redis.call('GET', KEYS[1])) > 0 then return redis.call('DECR', KEYS[1]) end";

fn main() -> Result<()> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let key = format!("inventory:{}", process::id());
    let patient = LockManager::single(&url).io_timeout(Duration::from_secs(10));
    let locks = patient.build()?;
    let mutex = locks.mutex(format!("{key}:lock"));
    let mut shop = Shop::open(&url, &key)?;

    // In the first round all read before any of them writes; chance alone would lose fewer on some days.
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
    // Twice as many are asked for as there are; the script refuses the other half.
    let script = Script::new(SELL);
    let scripted = shop.sell("a script", 2 * STOCK, |redis, _| {
        Ok(script.key(&key).invoke::<Option<i64>>(redis)?.is_some())
    })?;

    if unlocked <= 0 || (locked, decr, scripted) != (0, 0, 0) {
        return Err("only the sale without a lock should have lost updates".into());
    }
    println!(
        "Without a lock updates were lost; for one counter a command or a script is the best."
    );
    Ok(())
}
