//! The waits of the threads for their guards.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// The longest wait that the histogram distinguishes from longer ones.
const LONGEST: Duration = Duration::from_hours(1);

/// Waits in microseconds, each with a precision of a tenth of a percent.
pub struct Waits(Histogram<u64>);

/// The waits of one process, recorded by all of its threads.
pub struct SharedWaits(Mutex<Waits>);

/// The last few waits of one thread. The thread records them together, so that thousands of threads do not compete
/// for the mutex. A histogram for each thread would need gigabytes.
pub struct Recorder<'a> {
    shared: &'a SharedWaits,
    waits: Vec<Duration>,
}

impl Waits {
    pub fn new() -> Self {
        let longest = LONGEST.as_micros() as u64;
        Self(Histogram::new_with_bounds(1, longest, 3).expect("these bounds are in order"))
    }

    pub fn merge(&mut self, other: &Self) {
        self.0
            .add(&other.0)
            .expect("all histograms have equal bounds");
    }

    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(quantile))
    }

    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }

    /// Returns pairs of a wait and its count.
    pub fn to_json(&self) -> Value {
        self.0
            .iter_recorded()
            .map(|step| json!([step.value_iterated_to(), step.count_since_last_iteration()]))
            .collect()
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        let mut waits = Self::new();
        for pair in value.as_array()? {
            let (wait, count) = (pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?);
            waits.0.saturating_record_n(wait, count);
        }
        Some(waits)
    }

    fn record(&mut self, wait: Duration) {
        self.0.saturating_record(wait.as_micros() as u64);
    }
}

impl SharedWaits {
    pub fn new() -> Self {
        Self(Mutex::new(Waits::new()))
    }

    pub fn recorder(&self) -> Recorder<'_> {
        Recorder {
            shared: self,
            waits: Vec::with_capacity(32),
        }
    }

    /// Returns the waits that were recorded so far.
    pub fn take(&self) -> Waits {
        self.with(|waits| std::mem::replace(waits, Waits::new()))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Waits) -> T) -> T {
        // A panic leaves the histogram valid. It may miss the wait that was being recorded.
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
