//! What is due when: the timetable that the renewal thread and the watch thread each keep, and the times at
//! which a lease is renewed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Time;

/// Things in the order of their times.
///
/// The place of a thing is `(its time, its number)`; whoever put it in keeps the place, and takes it out by
/// it. Both cost the logarithm of how many there are.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    due: BTreeMap<Place, T>,
}

/// Where a thing stands in a [`Schedule`].
pub(crate) type Place = (Time, u64);

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            due: BTreeMap::new(),
        }
    }
}

impl<T> Schedule<T> {
    pub(crate) fn insert(&mut self, place: Place, thing: T) {
        self.due.insert(place, thing);
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<T> {
        self.due.remove(&place)
    }

    /// The earliest thing that is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Place, T)> {
        let first = self.due.first_entry()?;
        (first.key().0 <= now).then(|| first.remove_entry())
    }

    /// When the earliest thing is due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.first_key_value().map(|((time, _), _)| *time)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

/// When a lease that was confirmed by a request sent at `sent` is renewed: after a third of it, so that two
/// more chances remain, and up to a twelfth earlier, so that leases taken together drift apart.
pub(crate) fn renewal_due(sent: Time, lease: Duration, jitter: u64) -> Time {
    let (most, jitter) = (lease / 3, (jitter >> 48) as u32);
    // The top 16 bits are a fraction in 65,536ths.
    sent + most.saturating_sub(most / 4 * jitter / 65_536)
}

/// How long after a failure a lease is tried again: often enough for a few more tries in what remains, and
/// never so often that a server that is coming back is held down.
pub(crate) fn retry_after(lease: Duration) -> Duration {
    (lease / 20).clamp(Duration::from_millis(2), Duration::from_secs(1))
}

/// Below how much of it left a renewed lease counts as at risk: the renewal due at a third, and the retry of
/// a sixth more, have not come through.
pub(crate) fn at_risk_below(lease: Duration) -> Duration {
    lease / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(n: u64) -> Time {
        Time::from_nanos(n)
    }

    #[test]
    fn a_lease_is_renewed_between_a_quarter_and_a_third() {
        let lease = Duration::from_secs(12);
        let zero = at(0);
        assert_eq!(renewal_due(zero, lease, 0), zero + Duration::from_secs(4));
        let earliest = renewal_due(zero, lease, u64::MAX);
        assert!(
            earliest > zero + Duration::from_secs(3) && earliest < zero + Duration::from_secs(4)
        );
    }

    #[test]
    fn the_shortest_lease_is_renewed_in_time() {
        let lease = Duration::from_millis(10);
        let due = renewal_due(at(0), lease, 0);
        let deadline = crate::core::lease::valid_until(at(0), lease);
        assert!(due + retry_after(lease) < deadline);
    }

    proptest! {
        /// Against the plain model: a list that is searched.
        #[test]
        fn things_come_out_by_their_times(
            acts in proptest::collection::vec((0u8..3, 0u64..20), 1..60)
        ) {
            let mut schedule = Schedule::default();
            let mut model: Vec<(Time, u64)> = Vec::new();
            for (number, (act, time)) in acts.into_iter().enumerate() {
                match act {
                    0 => {
                        let place = (at(time), number as u64);
                        schedule.insert(place, place);
                        model.push(place);
                    }
                    1 if !model.is_empty() => {
                        let place = model.swap_remove(usize::try_from(time).expect("small") % model.len());
                        prop_assert_eq!(schedule.remove(place), Some(place));
                    }
                    _ => {
                        model.sort_unstable();
                        let due = model.first().filter(|(due, _)| *due <= at(time)).copied();
                        if due.is_some() {
                            model.remove(0);
                        }
                        prop_assert_eq!(schedule.pop_due(at(time)).map(|(place, _)| place), due);
                    }
                }
                prop_assert_eq!(schedule.next(), model.iter().min().map(|(time, _)| *time));
            }
        }
    }
}
