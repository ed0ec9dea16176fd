//! A lease of this process, and the turns that its threads have in it.

use std::time::Duration;

use crate::clock::Time;
use crate::config::Terms;
use crate::core::fence::Fences;
use crate::core::linger::{Linger, LingerOptions};
use crate::message::{GiveBack, Sharing};

/// The part of a lock that a thread wants, and on which terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireParams {
    /// The number of units that the thread takes up.
    pub(crate) units: u32,
    pub(crate) terms: Terms,
    /// `None` if the lease must end with its last guard.
    pub(crate) linger: Option<LingerOptions>,
    /// Whether it waits for the lock, or only for an answer.
    pub(crate) waits: bool,
}

impl AcquireParams {
    /// Returns the parameters of a lease that no thread waits for, and that never lingers.
    pub(crate) fn of_one_unit(terms: Terms) -> Self {
        Self {
            units: 1,
            terms,
            linger: None,
            waits: false,
        }
    }
}

/// The facts about a lease that the queue needs.
pub(crate) trait HeldLease: Clone {
    /// Returns the number that tells the lease from all others.
    fn number(&self) -> u64;
    /// Returns the terms that all turns of the lease share.
    fn terms(&self) -> Terms;
    /// Returns how much of the lock each turn of the lease takes up.
    fn units(&self) -> u32;
    /// Returns the options that all turns of a lease that may linger share.
    fn linger(&self) -> Option<LingerOptions>;
}

/// One thread's part in a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TurnOf<T> {
    pub(crate) process_lease: T,
    pub(crate) fence: u64,
}

/// A lease, and how many of its seats are taken.
#[derive(Debug)]
pub(crate) struct Seats<T> {
    pub(super) process_lease: T,
    /// How many threads have a turn now.
    taken: u32,
    fences: Fences,
    quantum_end: Time,
    linger: Linger,
}

impl<T: HeldLease> Seats<T> {
    /// Makes the empty seats of a lease. It takes in further threads until `quantum_end`.
    pub(crate) fn new(process_lease: T, fences: Fences, quantum_end: Time) -> Self {
        Self {
            process_lease,
            taken: 0,
            fences,
            quantum_end,
            linger: Linger::default(),
        }
    }

    /// Returns whether a thread that wants `units` of the lock finds a seat.
    pub(super) fn has_room(&self, units: u32, sharing: Sharing) -> bool {
        units == self.process_lease.units() && self.taken < sharing.seats()
    }

    /// Returns whether a further thread may have the lease in memory: before the end of the quantum, or of the linger.
    fn is_open(&self, now: Time) -> bool {
        now < self.quantum_end || self.linger.is_open(now)
    }

    /// Returns whether a thread may share the lease in its present quantum.
    pub(super) fn admits(&self, params: &AcquireParams, sharing: Sharing, now: Time) -> bool {
        self.has_room(params.units, sharing)
            && self.process_lease.terms() == params.terms
            && self.process_lease.linger() == params.linger
            && self.is_open(now)
    }

    /// Returns whether the lease stays with this process without a guard.
    pub(super) fn is_idle(&self) -> bool {
        self.taken == 0
    }

    /// Lets the lease stay for `length` after its first guard. Returns the end of that time, or `None` if the lease must be
    /// released.
    pub(super) fn stay(&mut self, now: Time, length: Duration) -> Option<Time> {
        if self.fences.is_empty() {
            return None;
        }
        self.linger.guard_ended(now, length)
    }

    /// Ends the linger. Returns whether the lease is idle, and must be released.
    pub(super) fn stop_linger(&mut self) -> bool {
        self.linger.stop();
        self.is_idle()
    }

    /// Sets when the quantum ends.
    pub(super) fn set_quantum_end(&mut self, at: Time) {
        self.quantum_end = at;
    }

    /// Gives a thread its turn. Returns `None` if the fences are used up.
    pub(super) fn admit(&mut self) -> Option<TurnOf<T>> {
        let fence = self.fences.take()?;
        self.taken += 1;
        Some(TurnOf {
            process_lease: self.process_lease.clone(),
            fence,
        })
    }

    /// Ends a turn. Returns how many threads still have one.
    pub(super) fn leave(&mut self) -> u32 {
        self.taken -= 1;
        self.taken
    }

    /// Returns the fence that was given last.
    pub(super) fn fence(&self) -> u64 {
        self.fences.last()
    }

    /// Returns the unused fences.
    pub(super) fn give_back(&self) -> Option<GiveBack> {
        self.fences.give_back()
    }
}
