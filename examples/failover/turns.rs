//! The threads that take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use leasehold::{Error, LockManager, Mutex};
use shared::{Result, wait_until};

use crate::file::FencedFile;
use crate::grants::Grants;
use crate::join;

/// The record that they write.
const RECORD: u64 = 0;
/// The threads of each machine.
const THREADS: usize = 8;

/// Threads that take turns until they are stopped.
pub struct Turns {
    pub grants: Arc<Grants>,
    file: Arc<FencedFile>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<u64>>>,
}

impl Turns {
    pub fn start(machines: &[LockManager], file: Arc<FencedFile>) -> Self {
        let (grants, is_over) = (Arc::<Grants>::default(), Arc::<AtomicBool>::default());
        let start = |mutex: Mutex| {
            let (file, grants) = (Arc::clone(&file), Arc::clone(&grants));
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                let mut turns = 0;
                while !is_over.load(SeqCst) {
                    let guard = mutex.lock()?;
                    grants.add();
                    turns += u64::from(file.add_one(RECORD, guard.fence())?);
                    if let Err(Error::Lost(lost)) = guard.release() {
                        println!("{lost} (fencing token {})", lost.fence);
                    }
                }
                Ok(turns)
            })
        };
        let mutexes = machines.iter().map(|locks| locks.mutex("failover:turns"));
        let mutexes = mutexes.flat_map(|mutex| vec![mutex; THREADS]);
        Self {
            threads: mutexes.map(start).collect(),
            grants,
            file,
            is_over,
        }
    }

    /// Blocks until the threads have had this number of further turns, or one of them has failed.
    pub fn wait_for_more(&self, turns: usize) -> Result<()> {
        let before = self.grants.count();
        wait_until("the threads get on", || {
            let has_failed = self.threads.iter().any(JoinHandle::is_finished);
            Ok(has_failed || self.grants.count() >= before + turns)
        })
    }

    /// Stops the threads. Returns the number of turns whose write the file took, if none of these writes was lost.
    pub fn stop(self) -> Result<u64> {
        self.is_over.store(true, SeqCst);
        let turns = join(self.threads)?;
        let number = self.file.read(RECORD, u64::MAX)?;
        if number != Some(turns) {
            return Err(format!("{turns} turns made {number:?}: a write was lost").into());
        }
        Ok(turns)
    }
}
