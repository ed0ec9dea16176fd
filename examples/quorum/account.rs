//! The data that the lock protects.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::Outcome;

/// A number that a thread adds one to by a read and a write. Without a lock, two threads could read the same number,
/// and one of their updates would be lost.
#[derive(Default)]
pub struct Account {
    balance: AtomicU64,
    newest_fence: AtomicU64,
}

impl Account {
    pub fn add_one(&self, fence: u64) -> Outcome {
        let balance = self.balance.load(SeqCst);
        thread::sleep(Duration::from_micros(100)); // The work.
        self.balance.store(balance + 1, SeqCst);
        let before = self.newest_fence.swap(fence, SeqCst);
        if fence <= before {
            return Err(format!("fence {fence} came after {before}").into());
        }
        Ok(())
    }

    pub fn balance(&self) -> u64 {
        self.balance.load(SeqCst)
    }
}
