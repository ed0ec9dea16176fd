//! The quantum of a manager whose program sets none.
//!
//! A *quantum* is the time for which threads of a process hand a lock on in memory. At its end, the lock may go to another
//! process. Nobody has the lock during such a hand-over, so short quanta cost throughput, but long ones make the other
//! processes wait. So a quantum is 20 times as long as a hand-over takes, within two bounds:
//!
//! | process | quantum |
//! | --- | --- |
//! | it has measured hand-overs ([`RecentHandOvers`]) | 20 times their median, at least [`SHORTEST`], at most [`LONGEST_QUANTUM`] |
//! | it has measured none | [`FIRST`] |
//! | no message reaches it | [`LONGEST_QUANTUM`] |
//!
//! The median is that of the last eight hand-overs to the process. It ignores three slow ones of eight, and follows a link
//! that has become slow after five. A mean would follow each thread that the system did not run for a while.
//!
//! The first quantum is short, because all processes may begin at the same time, and the last of them waits for the
//! first quanta of all others. On a slow link it costs little: the first hand-over ends it.
//!
//! A process that no message reaches polls. Each lock that is handed over to it waits for the next poll.

use std::time::Duration;

use crate::config::LONGEST_QUANTUM;
use crate::engine::attempt::poll::SubscriptionState;
use crate::sys::{AtomicU64, Ordering};

/// The shortest quantum that the measurements lead to.
const SHORTEST: Duration = Duration::from_millis(5);
/// The quantum of a process that has measured nothing.
const FIRST: Duration = Duration::from_millis(10);
/// How many times as long as a hand-over a quantum is.
const HAND_OVERS: u32 = 20;
/// The unit of a measurement.
const UNIT: Duration = Duration::from_micros(10);

/// The quantum in use, and the measurements that it follows.
///
/// A hand-over to this process takes:
///
/// | part | measured by |
/// | --- | --- |
/// | the request of the other process, and the message | the round trip of the request in the next row: each of the two goes one way |
/// | the request by which this process picks the lock up | the delegate, from the message to the grant |
///
/// The message wakes the delegate, and its next request is granted. The following are not measured: a pickup
/// without a message, because polls set its duration; one that was not granted at once; and one whose request was sent
/// twice, because the connection was closed.
pub(crate) struct Quantum {
    /// The quantum that the settings fix. `None` if it follows the measurements.
    fixed: Option<Duration>,
    /// The last [`RecentHandOvers`] of all names of the manager.
    recent: AtomicU64,
}

/// The durations of the last eight hand-overs to a process, in one word.
///
/// Each byte is a duration in units of 10 µs, and the newest is the lowest. Zero means that there was no such
/// hand-over. A duration that does not fit is noted as the longest one, which is enough for the longest quantum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecentHandOvers(u64);

impl Quantum {
    pub(crate) fn new(fixed: Option<Duration>) -> Self {
        Self {
            fixed,
            recent: AtomicU64::new(RecentHandOvers::default().0),
        }
    }

    /// Returns the quantum of a process with this subscription.
    pub(crate) fn get(&self, subscription: &SubscriptionState) -> Duration {
        match self.fixed {
            Some(fixed) => fixed,
            None => RecentHandOvers(self.recent.load(Ordering::Relaxed)).quantum(subscription),
        }
    }

    /// Notes a hand-over to this process. `pickup` is the time from the message to the grant, and `round_trip` the part
    /// of it from the request to its reply.
    pub(crate) fn note_hand_over(&self, pickup: Duration, round_trip: Duration) {
        let with = |word| Some(RecentHandOvers(word).with(pickup + round_trip).0);
        // The closure always returns a value, so this does not fail.
        self.recent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, with)
            .ok();
    }
}

impl RecentHandOvers {
    /// Adds a hand-over, in place of the oldest one.
    fn with(self, took: Duration) -> Self {
        let units = took.as_nanos().div_ceil(UNIT.as_nanos());
        let newest = u8::try_from(units).unwrap_or(u8::MAX).max(1);
        Self((self.0 << u8::BITS) | u64::from(newest))
    }

    /// Returns the quantum of a process with this subscription.
    fn quantum(self, subscription: &SubscriptionState) -> Duration {
        if let SubscriptionState::NoSubscription = subscription {
            return LONGEST_QUANTUM;
        }
        // Without a measurement, all bytes are zero.
        if self.0 == 0 {
            return FIRST;
        }
        let mut units = self.0.to_be_bytes();
        units.sort_unstable();
        // Zeros come first. The rest is the hand-overs, the shortest first.
        let measured = &units[units.partition_point(|units| *units == 0)..];
        let median = measured[(measured.len() - 1) / 2];
        (UNIT * u32::from(median) * HAND_OVERS).clamp(SHORTEST, LONGEST_QUANTUM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::collection::vec;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn after(hand_overs: &[Duration]) -> Duration {
        let none = RecentHandOvers::default();
        let recent = hand_overs
            .iter()
            .fold(none, |recent, took| recent.with(*took));
        recent.quantum(&SubscriptionState::NotYet)
    }

    #[test]
    fn the_quantum_is_twenty_hand_overs_within_bounds() {
        for (hand_over, quantum) in [
            (Duration::ZERO, ms(5)),
            (us(1), ms(5)),
            (us(250), ms(5)),
            (us(260), us(5_200)),
            (us(500), ms(10)),
            // It is rounded up to 10 µs.
            (us(501), us(10_200)),
            (ms(1), ms(20)),
            (us(2_500), ms(50)),
            (us(2_550), ms(50)),
            (ms(40), ms(50)),
            (Duration::MAX, ms(50)),
        ] {
            assert_eq!(after(&[hand_over]), quantum, "{hand_over:?}");
            assert_eq!(after(&[hand_over; 20]), quantum, "{hand_over:?}");
        }
    }

    #[test]
    fn a_process_without_measurements_begins_with_a_short_quantum() {
        assert_eq!(after(&[]), ms(10));
    }

    #[test]
    fn a_process_that_polls_has_the_longest_quantum() {
        let none = RecentHandOvers::default();
        for recent in [none, none.with(us(100))] {
            assert_eq!(recent.quantum(&SubscriptionState::NoSubscription), ms(50));
            let ready = SubscriptionState::Ready("channel".into());
            assert!(recent.quantum(&ready) <= ms(10));
        }
    }

    #[test]
    fn three_slow_hand_overs_of_eight_do_not_count() {
        let (fast, slow) = (us(200), Duration::from_secs(1));
        let near = [fast; 8];
        assert_eq!(after(&[&near[..], &[slow; 3]].concat()), ms(5));
        assert_eq!(
            after(&[slow, fast, slow, fast, slow, fast, fast, fast]),
            ms(5)
        );
        // The second hand-over of a process corrects a slow first one.
        assert_eq!(after(&[slow]), ms(50));
        assert_eq!(after(&[slow, fast]), ms(5));
    }

    #[test]
    fn five_hand_overs_show_another_link() {
        let (near, far) = ([us(200); 8], [ms(40); 8]);
        assert_eq!(after(&[&near[..], &far[..4]].concat()), ms(5));
        assert_eq!(after(&[&near[..], &far[..5]].concat()), ms(50));
        assert_eq!(after(&[&far[..], &near[..3]].concat()), ms(50));
        assert_eq!(after(&[&far[..], &near[..4]].concat()), ms(5));
    }

    proptest! {
        /// The same in plain words: sort the last eight, and take twenty times the lower median.
        #[test]
        fn the_quantum_follows_the_median_of_the_last_eight(
            hand_overs in vec(0_u64..4_000, 1..30),
        ) {
            let durations: Vec<_> = hand_overs.iter().map(|took| us(*took)).collect();
            let mut last: Vec<_> = hand_overs.iter().rev().take(8).copied().collect();
            last.sort_unstable();
            let median = last[(last.len() - 1) / 2].max(1).next_multiple_of(10);
            prop_assert_eq!(after(&durations), us(median * 20).clamp(ms(5), ms(50)));
        }
    }
}
