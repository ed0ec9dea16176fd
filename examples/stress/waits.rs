//! The waits of the threads for their guards.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

/// How often each wait occurred, in microseconds, with three digits.
#[derive(Default)]
pub struct Waits(BTreeMap<u64, u64>);

/// The waits of one process, recorded by all of its threads.
#[derive(Default)]
pub struct SharedWaits(Mutex<Waits>);

/// The last few waits of one thread. The thread records them together, so that thousands of threads do not compete
/// for the mutex.
pub struct Recorder<'a> {
    shared: &'a SharedWaits,
    waits: Vec<Duration>,
}

impl Waits {
    pub fn merge(&mut self, other: &Self) {
        for (wait, count) in &other.0 {
            *self.0.entry(*wait).or_default() += count;
        }
    }

    /// Returns the wait that this share of all waits did not exceed, in thousandths. Returns zero without a wait.
    pub fn quantile(&self, thousandths: u64) -> Duration {
        let mut left = (self.0.values().sum::<u64>() * thousandths).div_ceil(1000);
        for (wait, count) in &self.0 {
            left = left.saturating_sub(*count);
            if left == 0 {
                return Duration::from_micros(*wait);
            }
        }
        Duration::ZERO
    }

    pub fn longest(&self) -> Duration {
        self.quantile(1000)
    }

    /// Returns pairs of a wait and its count.
    pub fn to_json(&self) -> Value {
        self.0
            .iter()
            .map(|(wait, count)| json!([wait, count]))
            .collect()
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        let pair = |pair: &Value| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?));
        let waits: Option<_> = value.as_array()?.iter().map(pair).collect();
        waits.map(Self)
    }

    fn record(&mut self, wait: Duration) {
        let (mut digits, mut unit) = (wait.as_micros() as u64, 1);
        while digits >= 1000 {
            (digits, unit) = (digits.div_ceil(10), unit * 10);
        }
        *self.0.entry(digits * unit).or_default() += 1;
    }
}

impl SharedWaits {
    pub fn recorder(&self) -> Recorder<'_> {
        Recorder {
            shared: self,
            waits: Vec::with_capacity(32),
        }
    }

    /// Returns the waits that were recorded so far.
    pub fn take(&self) -> Waits {
        self.with(std::mem::take)
    }

    fn with<T>(&self, f: impl FnOnce(&mut Waits) -> T) -> T {
        // A panic leaves the counts valid. It may miss the wait that was being recorded.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Recorder<'_> {
    pub fn record(&mut self, wait: Duration) {
        if self.waits.len() == self.waits.capacity() {
            self.flush();
        }
        self.waits.push(wait);
    }

    fn flush(&mut self) {
        self.shared
            .with(|shared| self.waits.drain(..).for_each(|wait| shared.record(wait)));
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
