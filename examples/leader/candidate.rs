//! A process that waits to lead, and then leads while it holds the lock.

use std::time::Duration;
use std::{io, process, thread};

use leasehold::LockManager;

use crate::Outcome;
use crate::acts::{Act, Acts};

/// The time for which a dead leader keeps the lock.
const LEASE: Duration = Duration::from_secs(1);

pub fn stand(url: &str, name: &str) -> Outcome {
    thread::spawn(end_with_parent);
    let patient = LockManager::single(url).io_timeout(Duration::from_secs(10));
    let office = patient.build()?.mutex(name).lease(LEASE);
    let mut acts = Acts::new(url, name)?;
    loop {
        let guard = office.lock()?;
        // A leader that was paused for longer than its lease has lost the lock. Then it waits again.
        while guard.check().is_ok() {
            acts.add(Act {
                fence: guard.fence(),
                process: process::id(),
            })?;
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// When the parent ends, this process's standard input ends too.
fn end_with_parent() {
    io::copy(&mut io::stdin(), &mut io::sink()).ok();
    process::exit(1);
}
