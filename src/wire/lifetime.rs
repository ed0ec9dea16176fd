//! How long the things last that a request makes in Redis: a lease, the pickup window of a waiter, a turn on a quorum. The
//! scripts and the rules of this process must agree on them.

use std::time::Duration;

use crate::sys::Time;

/// Returns how far the clocks of a holder and of a server may differ after a lease: 1 %, and 2 ms for their resolution.
pub(crate) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// Returns the time until which a lease is valid that was requested at `sent`.
pub(crate) fn valid_until(sent: Time, lease: Duration) -> Time {
    sent + lease.saturating_sub(drift(lease))
}

/// Returns when the request was sent that gave a lease this deadline.
pub(crate) fn sent_for(deadline: Time, lease: Duration) -> Time {
    deadline - lease.saturating_sub(drift(lease))
}

/// The shortest window.
pub(crate) const SHORTEST_WINDOW: Duration = Duration::from_millis(250);
/// The least window of a long lease. Twice the `io_timeout` is the window if that is longer: 2 s by default.
const ORDINARY_WINDOW: Duration = Duration::from_secs(1);

/// Returns the window of a waiter with this lease.
///
/// A waiter that crashes at the hand-over delays the others by its window, so the window is no longer than the lease.
/// But it is always long enough for a thread to wake up on a busy machine. The longest window has time for the message or a
/// poll, and for a request that is repeated.
pub(crate) fn pickup_window(lease: Duration, io_timeout: Duration) -> Duration {
    let longest = ORDINARY_WINDOW.max(io_timeout * 2);
    lease.max(SHORTEST_WINDOW).min(longest)
}

/// How long a node grants the free lock only to the waiter that it has woken, at first. `quorum_turn.lua` has it too.
pub(crate) const FIRST_TURN: Duration = Duration::from_millis(100);

/// How often a waiter with a subscription asks. A lost message costs at most this.
pub(crate) const POLL: Duration = Duration::from_millis(950);
/// How long a waiter stays in a queue after it was last seen. It may miss two polls.
pub(crate) const WAITER_LIFE: Duration = Duration::from_secs(3);
const _: () = assert!(
    WAITER_LIFE.as_millis() > 3 * POLL.as_millis(),
    "the third poll must come in time"
);

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_guard_ends_before_the_key() {
        let lease = Duration::from_secs(30);
        assert_eq!(valid_until(at(1000), lease), at(1000 + 30_000 - 302));
        let shortest = Duration::from_millis(10);
        assert!(valid_until(at(1), shortest) > at(1));
        assert_eq!(sent_for(valid_until(at(1000), lease), lease), at(1000));
    }

    #[test]
    fn a_window_is_bounded_by_the_lease_and_by_the_time_for_a_repeated_request() {
        let ms = Duration::from_millis;
        for (lease, io_timeout, expected) in [
            (ms(10), ms(1_000), SHORTEST_WINDOW),
            (ms(700), ms(1_000), ms(700)),
            (ms(30_000), ms(100), ORDINARY_WINDOW),
            (ms(30_000), ms(2_000), ms(4_000)),
        ] {
            let window = pickup_window(lease, io_timeout);
            assert_eq!(window, expected, "{lease:?}, {io_timeout:?}");
        }
    }
}
