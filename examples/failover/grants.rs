//! The times at which threads got a lock.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The instants at which a thread got the lock, in their order.
#[derive(Default)]
pub struct Grants(Mutex<Vec<Instant>>);

impl Grants {
    pub fn add(&self) {
        self.all().push(Instant::now());
    }

    pub fn count(&self) -> usize {
        self.all().len()
    }

    /// Returns the longest time in which no thread got the lock.
    pub fn longest_gap(&self) -> Range<Instant> {
        let all = self.all();
        let gaps = all.windows(2).map(|pair| pair[0]..pair[1]);
        let longest = gaps.max_by_key(|gap| gap.end - gap.start);
        longest.expect("there were two grants")
    }

    fn all(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
