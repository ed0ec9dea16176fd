//! The values that the metrics of a manager have recorded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::LockManager;
use leasehold_testing::Redis;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// The metrics of one manager.
pub struct Recorded {
    snapshotter: Snapshotter,
    totals: Mutex<Totals>,
}

/// A snapshot takes the values out of the recorder, so these are the sums of all snapshots.
#[derive(Default)]
struct Totals {
    numbers: BTreeMap<String, i64>,
    times: BTreeMap<String, Vec<f64>>,
}

/// Makes a manager that records for itself. The name `n` is a label.
pub fn manager(redis: &Redis) -> (LockManager, Recorded) {
    let recorder = DebuggingRecorder::new();
    let metrics = Recorded {
        snapshotter: recorder.snapshotter(),
        totals: Mutex::default(),
    };
    // So that threads hand the lock on in memory, however slow the machine is.
    let builder = redis.builder().quantum(Duration::from_secs(3_600));
    let build = || builder.metric_names(["n"]).build();
    let locks = metrics::with_local_recorder(&recorder, build);
    (locks.expect("it answers"), metrics)
}

impl Recorded {
    /// Returns the value of a counter or gauge, such as `leasehold_lost_total{cause=taken}`.
    #[track_caller]
    pub fn number(&self, series: &str) -> i64 {
        let totals = self.update();
        let number = totals.numbers.get(series);
        *number.unwrap_or_else(|| panic!("no {series} in {:?}", totals.numbers))
    }

    /// Returns the values of a histogram, in seconds.
    #[track_caller]
    pub fn times(&self, series: &str) -> Vec<f64> {
        let totals = self.update();
        let times = totals.times.get(series);
        times
            .unwrap_or_else(|| panic!("no {series} in {:?}", totals.times))
            .clone()
    }

    /// Blocks until a counter or gauge has this value.
    #[track_caller]
    pub fn becomes(&self, series: &str, value: i64) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.number(series) != value {
            let number = self.number(series);
            assert!(Instant::now() < until, "{series} is {number}, not {value}");
            std::thread::yield_now();
        }
    }

    /// Returns all counters and gauges that are not zero.
    pub fn changed(&self) -> Vec<(String, i64)> {
        let changed = self.update().numbers.clone().into_iter();
        changed.filter(|(_, value)| *value != 0).collect()
    }

    fn update(&self) -> std::sync::MutexGuard<'_, Totals> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, _, help, value) in self.snapshotter.snapshot().into_vec() {
            let (_, key) = key.into_parts();
            assert!(help.is_some(), "{} has no HELP", key.name());
            let mut labels: Vec<_> = key
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            labels.sort();
            let series = match labels.len() {
                0 => key.name().to_owned(),
                _ => format!("{}{{{}}}", key.name(), labels.join(",")),
            };
            match value {
                DebugValue::Counter(more) => {
                    *totals.numbers.entry(series).or_default() += more.cast_signed();
                }
                DebugValue::Gauge(more) => {
                    *totals.numbers.entry(series).or_default() += more.into_inner() as i64;
                }
                DebugValue::Histogram(more) => {
                    let times = totals.times.entry(series).or_default();
                    times.extend(more.iter().map(|time| time.into_inner()));
                }
            }
        }
        totals
    }
}

/// A recorder whose metrics panic.
pub struct Panics;

impl Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(Self))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Self))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Self))
    }
}

impl CounterFn for Panics {
    fn increment(&self, _: u64) {
        panic!("on purpose");
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Panics {
    fn increment(&self, _: f64) {
        panic!("on purpose");
    }

    fn decrement(&self, _: f64) {
        panic!("on purpose");
    }

    fn set(&self, _: f64) {}
}

impl HistogramFn for Panics {
    fn record(&self, _: f64) {
        panic!("on purpose");
    }
}
