//! A lease of this process, and the turns that its threads have in it.

use crate::clock::Time;
use crate::core::fence::Fences;
use crate::message::{GiveBack, Sharing};

/// One thread's part in a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn<T> {
    pub(crate) process_lease: T,
    pub(crate) fence: u64,
}

/// A lease, and how many of its seats are taken.
#[derive(Debug)]
pub(crate) struct Seats<T> {
    pub(super) process_lease: T,
    units: u32,
    /// How many threads have a turn now.
    taken: u32,
    fences: Fences,
    quantum_end: Time,
}

impl<T: Clone> Seats<T> {
    /// Makes the empty seats of a lease. Each thread in it wants `units`. It takes in further threads until
    /// `quantum_end`.
    pub(crate) fn new(process_lease: T, units: u32, fences: Fences, quantum_end: Time) -> Self {
        Self {
            process_lease,
            units,
            taken: 0,
            fences,
            quantum_end,
        }
    }

    /// Returns whether a thread that wants `units` of the lock finds a seat.
    pub(super) fn has_room(&self, units: u32, sharing: Sharing) -> bool {
        units == self.units && self.taken < sharing.seats()
    }

    /// Returns whether the quantum is not over.
    pub(super) fn is_open(&self, now: Time) -> bool {
        now < self.quantum_end
    }

    /// Sets when the quantum ends.
    pub(super) fn set_quantum_end(&mut self, at: Time) {
        self.quantum_end = at;
    }

    /// Gives a thread its turn. Returns `None` if the fences are used up.
    pub(super) fn admit(&mut self) -> Option<Turn<T>> {
        let fence = self.fences.take()?;
        self.taken += 1;
        Some(Turn {
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
