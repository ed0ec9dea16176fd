//! How the data rejects an old fencing token: a holder of a lock is paused, and writes when another one has the lock.
//!
//! `cargo run --example fencing`, with a Redis on this machine; `REDIS_URL` names another. The SQL runs in SQLite, and needs
//! `python3`. With `-- --postgres URL`, the same SQL runs in PostgreSQL, and needs `psql`.
//!
//! - `account`: the data that the lock protects, and its SQL
//! - `database`, `sqlite`, `postgres`: the programs that run the SQL

mod account;
mod database;
mod postgres;
mod sqlite;

use std::time::Duration;
use std::{env, error::Error, process};

use leasehold::LockManager;

use crate::account::{Account, TABLES};
use crate::database::Database;
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LEASE: Duration = Duration::from_millis(500);
/// The time limit of the wait of B, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
const TOO_OLD: &str = "the fence is too old";

fn main() -> Outcome {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let database: Box<dyn Database> = match arguments[..] {
        [] => Box::new(Sqlite::create(TABLES)?),
        ["--postgres", url] => Box::new(Postgres::create(url, TABLES)?),
        _ => return Err("usage: fencing [--postgres URL]".into()),
    };
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let locks = || {
        let patient = LockManager::single(&url).io_timeout(Duration::from_secs(10));
        patient.build()
    };
    // Two managers stand for two machines.
    write_late(&locks()?, &locks()?, &*database)
}

fn write_late(locks: &LockManager, elsewhere: &LockManager, database: &dyn Database) -> Outcome {
    let name = format!("fencing:{}:account:7", process::id());
    // Nothing renews this lease, as if the process were paused.
    let lost = locks.mutex(&name).lease(LEASE).renew(false).lock()?;
    let a = Account::new(database, "A", lost.fence())?;
    let old = a.balance()?.ok_or(TOO_OLD)?;
    println!("A is paused until its lease is over.");

    let held = elsewhere.try_lock_for(&name, PATIENCE)?;
    let held = held.ok_or("the lease of A did not end")?;
    let b = Account::new(database, "B", held.fence())?;
    let balance = b.balance()?.ok_or(TOO_OLD)?;
    let added = b.add_entry(-20)?;

    println!("A continues.");
    let accepted = a.set_balance(old + 30)? || a.add_entry(30)? || a.balance()?.is_some();
    if accepted || lost.check().is_ok() {
        return Err("A should have been rejected".into());
    }
    println!("A stops, because its lock is lost.");

    // One guard writes several times by its one fence.
    let written = b.set_balance(balance - 10)? && b.set_balance(balance - 20)?;
    if !added || !written || b.balance()? != Some(balance - 20) {
        return Err("B should have been accepted".into());
    }
    Ok(held.release()?)
}
