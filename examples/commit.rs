//! A write that the lock itself guards, beside one that a fence guards, and one that nothing guards.
//!
//! `cargo run --example commit`, with a Redis on this machine; `REDIS_URL` names another.
//!
//! A holds a lock, and an operator breaks it, because A seems to hang. B has the lock, but has not written yet. Now A wakes
//! up, and its guard does not know of the loss: the fence lets A write, and `commit` does not.

use std::time::Duration;
use std::{env, process};

use leasehold::{Error, LockGuard, LockManager, Write};
use redis::{Commands, Connection, Script};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Writes, unless it has seen a larger fence: see docs/fencing.md.
const FENCED: &str = "
    if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[2]) or 0) then return 0 end
    redis.call('SET', KEYS[2], ARGV[1])
    redis.call('SET', KEYS[1], ARGV[2])
    return 1";

fn main() -> Outcome {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let name = format!("commit:{}", process::id());
    // Two managers stand for two machines.
    let locks = || {
        let patient = LockManager::single(&url).io_timeout(Duration::from_secs(10));
        patient.build()
    };
    let (a, b) = (locks()?, locks()?);
    let mut redis = redis::Client::open(url.as_str())?.get_connection()?;
    let [plain, fenced, committed] =
        &["plain", "fenced", "committed"].map(|how| format!("{{{name}}}:{how}"));

    // With a lease of an hour, no renewal tells A of its loss here.
    let guard_of_a = a.mutex(&name).lease(Duration::from_hours(1)).lock()?;
    println!("A has the lock, and hangs. An operator breaks the lock, and B gets it.");
    b.force_release(&name, guard_of_a.owner())?;
    let guard_of_b = b.lock(&name)?;

    println!("A goes on, and its guard reads {:?}.", guard_of_a.state());
    redis.set::<_, _, ()>(plain, "A")?;
    let late = [
        true,
        write_fenced(&mut redis, fenced, &guard_of_a, "A")?,
        commit(&guard_of_a, committed, "A")?,
    ];
    for (how, written) in ["plain", "fenced", "committed"].iter().zip(late) {
        println!(
            "  A's {how} write: {}",
            if written { "accepted" } else { "rejected" }
        );
    }
    let of_b = [
        write_fenced(&mut redis, fenced, &guard_of_b, "B")?,
        commit(&guard_of_b, committed, "B")?,
    ];
    println!("B writes. From now on its fence rejects A as well.");
    let again = write_fenced(&mut redis, fenced, &guard_of_a, "A")?;
    guard_of_b.release()?;
    drop(guard_of_a);
    redis.del::<_, ()>(&[plain, fenced, committed, &format!("{fenced}:fence")])?;

    if late != [true, true, false] || of_b != [true, true] || again {
        return Err("a write had another result than the text says".into());
    }
    println!(
        "commit rejects from the moment of the loss, and a fence from the next holder's first write."
    );
    Ok(())
}

/// Returns whether the data took the fence.
fn write_fenced(
    redis: &mut Connection,
    key: &str,
    guard: &LockGuard,
    value: &str,
) -> Outcome<bool> {
    let script = Script::new(FENCED);
    let mut call = script.key(key);
    call.key(format!("{key}:fence"))
        .arg(guard.fence())
        .arg(value);
    Ok(call.invoke(redis)?)
}

/// Returns whether the guard still held its lock.
fn commit(guard: &LockGuard, key: &str, value: &str) -> Outcome<bool> {
    match guard.commit(&[Write::new("SET", key).arg(value)]) {
        Ok(_) => Ok(true),
        Err(Error::Lost(_)) => Ok(false),
        Err(other) => Err(other.into()),
    }
}
