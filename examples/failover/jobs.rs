//! The threads that hold a lock each. Half of the locks have a lease that is shorter than the failover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::{Error, LockGuard, LockManager, Mutex};
use shared::Result;

use crate::file::FencedFile;
use crate::{DOWN_AFTER, join};

pub const COUNT: u64 = 10;
/// A lease that ends before the sentinels agree on a new master.
const SHORT: Duration = DOWN_AFTER;
const LONG: Duration = Duration::from_secs(30);

pub struct Jobs {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<u64>>>,
}

impl Jobs {
    /// Starts the threads. Returns when each holds its lock.
    pub fn start(machines: &[LockManager], file: &Arc<FencedFile>) -> Result<Self> {
        let is_over = Arc::<AtomicBool>::default();
        let start = |(record, locks): (u64, &LockManager)| {
            let lease = if record % 2 == 0 { SHORT } else { LONG };
            let mutex = locks.mutex(format!("failover:job:{record}")).lease(lease);
            let guard = mutex.lock()?;
            let (file, is_over) = (Arc::clone(file), Arc::clone(&is_over));
            let work = move || work(&mutex, guard, &file, record, &is_over);
            Ok(thread::spawn(work))
        };
        let jobs = (1..=COUNT).zip(machines.iter().cycle());
        let threads = jobs.map(start).collect::<Result<_>>()?;
        Ok(Self { is_over, threads })
    }

    /// Stops the threads. Returns the number of guards that were lost.
    pub fn stop(self) -> Result<u64> {
        self.is_over.store(true, SeqCst);
        join(self.threads)
    }
}

/// Writes under a guard. If the guard is lost, goes on with another one, and proves that the file refuses the first.
fn work(
    mutex: &Mutex,
    mut guard: LockGuard,
    file: &FencedFile,
    record: u64,
    is_over: &AtomicBool,
) -> Result<u64> {
    let (mut written, mut lost) = (0, 0);
    while !is_over.load(SeqCst) {
        if !file.add_one(record, guard.fence())? {
            return Err("the file refused the only guard".into());
        }
        written += 1;
        if let Err(Error::Lost(loss)) = guard.check() {
            println!("{loss} (fencing token {})", loss.fence);
            let new = mutex.lock()?;
            file.read(record, new.fence())?;
            if file.write(record, guard.fence(), 0)? {
                return Err("the file took a stale write".into());
            }
            (guard, lost) = (new, lost + 1);
        }
    }
    if let Err(Error::Lost(loss)) = guard.release() {
        println!("{loss} (fencing token {})", loss.fence);
    }
    if file.read(record, u64::MAX)? != Some(written) {
        return Err("a write was lost".into());
    }
    Ok(lost)
}
