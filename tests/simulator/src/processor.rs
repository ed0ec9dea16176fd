//! The processor on which a world runs.
//!
//! Only one thread of a world runs at a time, so all of them stay on one processor: that doubles the speed. Beside other
//! programs it does more, because a thread that hands the baton to another processor waits there for its turn each time.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, and what it starts from now on, on one processor. Each thread that calls this gets the next one.
pub fn stay() {
    static ALL: LazyLock<Vec<usize>> = LazyLock::new(|| {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        (0..CpuSet::MAX_CPU)
            .filter(|at| allowed.is_set(*at))
            .collect()
    });
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(processor) = ALL.get(MINE.with(|mine| *mine) % ALL.len().max(1)) {
        stay_on(*processor);
    }
}

/// Keeps this thread, and what it starts from now on, on a processor.
pub fn stay_on(processor: usize) {
    let mut one = CpuSet::new();
    one.set(processor);
    // A refusal costs only time.
    let _ = sched_setaffinity(None, &one);
}
