//! A lease of this process, and the turns that its threads have in it.

use crate::clock::Time;
use crate::core::fence::Fences;
use crate::message::{GiveBack, Sharing};

/// The facts about a grant that the queue needs.
#[derive(Debug)]
pub(crate) struct Granted<T> {
    pub(crate) process_lease: T,
    pub(crate) units: u32,
    pub(crate) fences: Fences,
    pub(crate) quantum_over: Time,
}

/// One thread's part in a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn<T> {
    pub(crate) process_lease: T,
    pub(crate) fence: u64,
}

/// A lease, and how many of its seats are taken.
#[derive(Debug)]
pub(super) struct Seats<T> {
    pub(super) process_lease: T,
    units: u32,
    /// How many threads have a turn now.
    taken: u32,
    fences: Fences,
    quantum_over: Time,
}

impl<T: Clone> Seats<T> {
    pub(super) fn new(granted: Granted<T>) -> Self {
        Self {
            process_lease: granted.process_lease,
            units: granted.units,
            taken: 0,
            fences: granted.fences,
            quantum_over: granted.quantum_over,
        }
    }

    /// Returns whether a thread that wants `units` of the lock finds a seat.
    pub(super) fn has_room(&self, units: u32, sharing: Sharing) -> bool {
        units == self.units && self.taken < sharing.seats()
    }

    /// Returns whether the quantum is not over.
    pub(super) fn is_open(&self, now: Time) -> bool {
        now < self.quantum_over
    }

    pub(super) fn reopen(&mut self, quantum_over: Time) {
        self.quantum_over = quantum_over;
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
