//! One clock for all processes.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since an instant that is the same in every process of this machine.
///
/// [`std::time::Instant`] is the same clock, but a process cannot send it to another.
pub fn now() -> Duration {
    clock_gettime(ClockId::Monotonic)
        .try_into()
        .expect("the monotonic clock never reads a negative time")
}
