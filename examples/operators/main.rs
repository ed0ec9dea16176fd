//! An operator looks at the locks, asks a holder to release one, and takes a lock from a holder that hangs.
//!
//! `cargo run --example operators`, with a Redis on this machine; `REDIS_URL` names another. Each host is a thread with its
//! own lock manager.
//!
//! - `hosts`: one job stops on request, one hangs, and one waits for its turn

mod hosts;

use std::time::Duration;
use std::{env, error::Error, process, thread};

use leasehold::{LockInfo, LockManager};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long the example waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Outcome {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let prefix = format!("operators:{}:", process::id());
    let manager = |label: &str, note: &str| {
        let builder = LockManager::from_url(&url)?.prefix(&*prefix);
        let lease = Duration::from_secs(3);
        builder.label(label).note(note).lease(lease).build()
    };
    let operator = manager("operator", "")?;
    let [a, b, c] = [
        manager("host-a", "job 4711")?,
        manager("host-b", "job 4712")?,
        manager("host-c", "job 4713")?,
    ];
    thread::scope(|scope| {
        let (stops, hangs) = (a.lock("invoices")?, b.lock("nightly")?);
        let stopped = scope.spawn(|| hosts::stop_when_asked(stops));
        let hanging = scope.spawn(move || hosts::hang(&hangs));
        let waiting = scope.spawn(|| hosts::wait_for_a_turn(&c, "nightly"));
        while operator
            .inspect("nightly")?
            .is_none_or(|lock| lock.waiters == 0)
        {
            thread::sleep(Duration::from_millis(5));
        }
        println!("All locks:");
        let mut locks: Vec<LockInfo> = operator.list("*").collect::<leasehold::Result<_>>()?;
        locks.sort_by(|one, other| one.name.cmp(&other.name));
        locks.iter().for_each(show);

        println!("The operator asks for invoices, because host-a is drained:");
        while operator.request_release("invoices", "host-a is drained")? {
            // The holder may not have heard the first request: it subscribes in the background.
            thread::sleep(Duration::from_millis(20));
        }
        stopped.join().expect("it does not panic")?;

        println!("host-b hangs, so the operator takes nightly from it:");
        let nightly = operator.inspect("nightly")?.ok_or("it is held")?;
        let owner = &nightly.holders[0].owner;
        if !operator.force_release("nightly", owner)? {
            return Err("the lock was not taken".into());
        }
        hanging.join().expect("it does not panic")?;
        waiting.join().expect("it does not panic")
    })
}

fn show(lock: &LockInfo) {
    for holder in &lock.holders {
        let label = holder.label.as_deref().unwrap_or("another client");
        let note = holder.note.as_deref().unwrap_or("no note");
        println!("  {}: {label} holds it ({note})", lock.name);
    }
    for waiting in &lock.waiting {
        let label = waiting.label.as_deref().unwrap_or("another client");
        println!("  {}: {label} waits", lock.name);
    }
}
