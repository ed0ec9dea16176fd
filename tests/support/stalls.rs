//! How long the machine stood still, so that a starved test is told from a fault.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(5);

static STALLS: AtomicU64 = AtomicU64::new(0);
static LONGEST_MICROS: AtomicU64 = AtomicU64::new(0);

/// Starts the thread that notes how late it wakes, if it does not run yet.
pub(crate) fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        thread::spawn(|| {
            loop {
                let began = Instant::now();
                thread::sleep(NAP);
                note(began.elapsed().saturating_sub(NAP));
            }
        });
    });
}

fn note(late: Duration) {
    if late > Duration::from_millis(100) {
        STALLS.fetch_add(1, Ordering::Relaxed);
    }
    let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
    LONGEST_MICROS.fetch_max(micros, Ordering::Relaxed);
}

/// Returns what a bound that failed says of the machine.
pub(crate) fn noticed() -> String {
    let longest = Duration::from_micros(LONGEST_MICROS.load(Ordering::Relaxed));
    let count = STALLS.load(Ordering::Relaxed);
    format!("a thread of 5 ms naps woke {count} times more than 100 ms late, at most {longest:?}")
}
