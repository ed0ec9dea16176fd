//! The pickup window: how long Redis keeps a lock for the waiter that it was handed to.
//!
//! A waiter names its window in each of its requests. The window starts with the hand-over, and the waiter's next
//! request raises it to the waiter's lease. A waiter that is late loses its turn.

use std::time::Duration;

/// The shortest window.
pub(crate) const SHORTEST: Duration = Duration::from_millis(250);
/// The window of a long lease, unless `io_timeout` asks for a longer one.
const ORDINARY: Duration = Duration::from_secs(1);

/// Returns the window of a waiter with this lease. `longest` is the manager's [`longest_window`].
///
/// A waiter that crashes at the hand-over delays the others by its window, so the window is no longer than the lease.
/// But it is always long enough for a thread to wake up on a busy machine.
pub(crate) fn window(lease: Duration, longest: Duration) -> Duration {
    lease.max(SHORTEST).min(longest)
}

/// Returns the longest window of a manager. It has time for the message or a poll, and for a request that is repeated.
pub(crate) fn longest_window(io_timeout: Duration) -> Duration {
    ORDINARY.max(io_timeout * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_bounded_by_the_lease_and_by_the_time_for_a_repeated_request() {
        let ms = Duration::from_millis;
        for (lease, io_timeout, expected) in [
            (ms(10), ms(1_000), SHORTEST),
            (ms(700), ms(1_000), ms(700)),
            (ms(30_000), ms(100), ORDINARY),
            (ms(30_000), ms(2_000), ms(4_000)),
        ] {
            let window = window(lease, longest_window(io_timeout));
            assert_eq!(window, expected, "{lease:?}, {io_timeout:?}");
        }
    }
}
