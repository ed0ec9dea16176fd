//! One clock for all processes.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since some instant that is the same in every process of this machine.
///
/// [`std::time::Instant`] is this very clock, but cannot be sent to another process.
pub fn now() -> Duration {
    clock_gettime(ClockId::Monotonic)
        .try_into()
        .expect("the monotonic clock never reads a negative time")
}
