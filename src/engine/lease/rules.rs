//! The validity of a lease.
//!
//! The server keeps the key for `lease` from the moment at which it executed the request. The holder counts from a reading
//! of the local clock *before* the request was sent, and subtracts the time by which two clocks may differ, so the guard
//! ends before the key does.
//!
//! One atomic word holds the whole state of a lease, because several threads change it without a mutex. A word of at
//! least [`ENDINGS`] is the deadline in nanoseconds. A smaller word is the way in which the lease ended.
//!
//! | from | to | by | condition |
//! | --- | --- | --- | --- |
//! | deadline | later deadline | a renewal, an extension | compare-and-set from a deadline that has not passed |
//! | deadline | any deadline | the votes of a quorum | the same |
//! | deadline | `Expired` | any thread that reads the status | the deadline has passed |
//! | deadline | `Taken`, `Removed` | a renewal | Redis replied that the lease is gone |
//! | deadline | `Ended` | the releasing thread | the deadline has not passed |
//! | ended in any way | anything | no thread | an end is final |
//!
//! A late renewal cannot revive a lease: the first thread that sees the deadline pass replaces it, and the renewal's
//! compare-and-set then fails.

use std::time::Duration;

use crate::error::LostCause;
use crate::sys::{AtomicU64, Ordering, Time};

/// The smallest deadline. Smaller words say how the lease ended. A real deadline, in nanoseconds, is always larger.
const ENDINGS: u64 = 16;
const ENDED: u64 = 1;
const EXPIRED: u64 = 2;
const TAKEN: u64 = 3;
const REMOVED: u64 = 4;

/// The status of a lease at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseStatus {
    /// It is valid for this much longer.
    Live(Duration),
    /// The guard ended it.
    Ended,
    /// It was lost for this reason.
    Lost(LostCause),
}

/// The deadline of one lease, or how it ended.
#[derive(Debug)]
pub(crate) struct AtomicLease(AtomicU64);

impl AtomicLease {
    pub(crate) fn new(deadline: Time) -> Self {
        Self(AtomicU64::new(deadline.as_nanos().max(ENDINGS)))
    }

    /// Returns the status of the lease at `now`. If the deadline has passed, the lease is lost for all threads from
    /// then on.
    #[inline]
    pub(crate) fn status(&self, now: Time) -> LeaseStatus {
        match self.deadline_after(now) {
            Ok(deadline) => LeaseStatus::Live(deadline.since(now)),
            Err(end) => end,
        }
    }

    /// Returns the deadline of the lease if it is valid at `now`, and how it ended otherwise. As [`status`], but without
    /// the division that a [`Duration`] takes.
    ///
    /// [`status`]: AtomicLease::status
    #[inline]
    pub(crate) fn deadline_after(&self, now: Time) -> Result<Time, LeaseStatus> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if is_ending(word) {
                return Err(ending(word));
            }
            let deadline = Time::from_nanos(word);
            if now < deadline {
                return Ok(deadline);
            }
            match self.set(word, EXPIRED) {
                Ok(()) => return Err(LeaseStatus::Lost(LostCause::Expired)),
                Err(changed) => word = changed,
            }
        }
    }

    /// Returns the deadline, unless the lease has ended.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let word = self.0.load(Ordering::Acquire);
        (!is_ending(word)).then(|| Time::from_nanos(word))
    }

    /// Moves the deadline to `later`, never back. Returns the status of the lease afterwards.
    pub(crate) fn renew(&self, now: Time, later: Time) -> LeaseStatus {
        while let Ok(deadline) = self.deadline_after(now) {
            if deadline >= later || self.moves(deadline, later) {
                break;
            }
        }
        self.status(now)
    }

    /// Moves the deadline to `until`, which may be earlier than before, as the votes of a quorum want it. Returns whether it
    /// is.
    pub(crate) fn move_to(&self, now: Time, until: Time) -> bool {
        while let Ok(deadline) = self.deadline_after(now) {
            if self.moves(deadline, until) {
                return until < deadline;
            }
        }
        false
    }

    /// Ends the lease for its guard. Returns the status that it had before.
    pub(crate) fn end(&self, now: Time) -> LeaseStatus {
        loop {
            match self.deadline_after(now) {
                Ok(deadline) if self.set(deadline.as_nanos(), ENDED).is_ok() => {
                    return LeaseStatus::Live(deadline.since(now));
                }
                Ok(_) => {}
                Err(end) => return end,
            }
        }
    }

    /// Ends the lease because Redis replied that it is gone. Returns false if the lease had ended before.
    pub(crate) fn lose(&self, cause: LostCause) -> bool {
        let code = match cause {
            LostCause::Taken => TAKEN,
            LostCause::Removed => REMOVED,
            LostCause::Expired | LostCause::MaxHold => EXPIRED,
        };
        loop {
            let word = self.0.load(Ordering::Acquire);
            if is_ending(word) {
                return false;
            }
            if self.set(word, code).is_ok() {
                return true;
            }
        }
    }

    /// Moves the deadline, if no other thread has moved it, or ended the lease.
    fn moves(&self, from: Time, to: Time) -> bool {
        let to = to.as_nanos().max(ENDINGS);
        self.set(from.as_nanos(), to).is_ok()
    }

    fn set(&self, from: u64, to: u64) -> Result<(), u64> {
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

fn is_ending(word: u64) -> bool {
    word < ENDINGS
}

fn ending(word: u64) -> LeaseStatus {
    match word {
        ENDED => LeaseStatus::Ended,
        TAKEN => LeaseStatus::Lost(LostCause::Taken),
        REMOVED => LeaseStatus::Lost(LostCause::Removed),
        _ => LeaseStatus::Lost(LostCause::Expired),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_late_renewal_revives_nothing() {
        let cell = AtomicLease::new(at(100));
        assert_eq!(cell.status(at(100)), LeaseStatus::Lost(LostCause::Expired));
        assert_eq!(
            cell.renew(at(50), at(200)),
            LeaseStatus::Lost(LostCause::Expired)
        );
        assert!(!cell.lose(LostCause::Taken));
        assert_eq!(cell.status(at(0)), LeaseStatus::Lost(LostCause::Expired));
    }

    #[test]
    fn a_renewal_that_arrives_late_finds_the_lease_lost_though_nobody_had_looked() {
        let cell = AtomicLease::new(at(100));
        assert_eq!(
            cell.renew(at(101), at(200)),
            LeaseStatus::Lost(LostCause::Expired)
        );
    }

    #[test]
    fn the_votes_of_a_quorum_move_the_deadline_both_ways_and_revive_nothing() {
        let cell = AtomicLease::new(at(100));
        assert!(!cell.move_to(at(10), at(200)));
        assert_eq!(cell.deadline(), Some(at(200)));
        assert!(cell.move_to(at(20), at(60)));
        assert_eq!(cell.deadline(), Some(at(60)));
        assert!(!cell.move_to(at(60), at(300)));
        assert_eq!(cell.status(at(0)), LeaseStatus::Lost(LostCause::Expired));
    }

    #[derive(Clone, Debug)]
    enum Act {
        Look,
        Renew(u64),
        End,
        Lose(LostCause),
    }

    proptest! {
        /// The plain model is a deadline and when it first ended.
        #[test]
        fn a_lease_is_its_latest_deadline_until_it_first_ends(
            acts in proptest::collection::vec(
                (0u64..40, prop_oneof![
                    Just(Act::Look),
                    (0u64..120).prop_map(Act::Renew),
                    Just(Act::End),
                    Just(Act::Lose(LostCause::Taken)),
                    Just(Act::Lose(LostCause::Removed)),
                ]),
                1..40,
            )
        ) {
            let cell = AtomicLease::new(at(100));
            let (mut now, mut deadline, mut ended) = (0, 100, None);
            for (pause, act) in acts {
                now += pause;
                // A reply of Redis ends a lease without a look at the clock.
                if ended.is_none() && now >= deadline && !matches!(act, Act::Lose(_)) {
                    ended = Some(LeaseStatus::Lost(LostCause::Expired));
                }
                match act {
                    Act::Look => {}
                    Act::Renew(by) => {
                        cell.renew(at(now), at(now + by));
                        if ended.is_none() {
                            deadline = deadline.max(now + by);
                        }
                    }
                    Act::End => {
                        cell.end(at(now));
                        ended.get_or_insert(LeaseStatus::Ended);
                    }
                    Act::Lose(cause) => {
                        prop_assert_eq!(cell.lose(cause), ended.is_none());
                        ended.get_or_insert(LeaseStatus::Lost(cause));
                    }
                }
                let live = LeaseStatus::Live(Duration::from_millis(deadline.saturating_sub(now)));
                prop_assert_eq!(cell.status(at(now)), ended.unwrap_or(live));
            }
        }
    }
}
