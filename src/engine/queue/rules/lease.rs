//! A lease of this process, and the holds that its threads have on it.

use crate::config::Terms;
use crate::engine::lease::fence::Fences;
use crate::sys::Time;
use crate::wire::{GiveBack, Sharing};

/// The part of a lock that a thread wants, and on which terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireParams {
    /// The number of units that the thread takes up.
    pub(crate) units: u32,
    pub(crate) terms: Terms,
    /// Whether it waits for the lock, or only for an answer.
    pub(crate) waits: bool,
}

/// The facts about a lease that the queue needs.
pub(crate) trait HeldLease: Clone {
    /// Returns the number that tells the lease from all others.
    fn number(&self) -> u64;
    /// Returns the terms that all holds of the lease share.
    fn terms(&self) -> Terms;
    /// Returns how much of the lock each hold of the lease takes up.
    fn units(&self) -> u32;
}

/// One thread's part in a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldOf<T> {
    pub(crate) process_lease: T,
    pub(crate) fence: u64,
}

/// A lease as the queue of its name sees it.
#[derive(Debug)]
pub(crate) struct QueueLease<T> {
    pub(super) process_lease: T,
    /// How many threads hold it now.
    holders: u32,
    fences: Fences,
    quantum_end: Time,
}

impl<T: HeldLease> QueueLease<T> {
    /// Makes a lease that no thread has yet. It takes in further threads until `quantum_end`.
    pub(crate) fn new(process_lease: T, fences: Fences, quantum_end: Time) -> Self {
        Self {
            process_lease,
            holders: 0,
            fences,
            quantum_end,
        }
    }

    /// Returns whether a thread that wants `units` of the lock finds room.
    pub(super) fn has_room(&self, units: u32, sharing: Sharing) -> bool {
        units == self.process_lease.units() && self.holders < sharing.most_holds()
    }

    /// Returns whether a thread may share the lease in its present quantum.
    pub(super) fn admits(&self, params: &AcquireParams, sharing: Sharing, now: Time) -> bool {
        self.has_room(params.units, sharing)
            && self.process_lease.terms() == params.terms
            && now < self.quantum_end
    }

    /// Sets when the quantum ends.
    pub(super) fn set_quantum_end(&mut self, at: Time) {
        self.quantum_end = at;
    }

    /// Lets a thread in. Returns `None` if the fences are used up.
    pub(super) fn admit(&mut self) -> Option<HoldOf<T>> {
        let fence = self.fences.take()?;
        self.holders += 1;
        Some(HoldOf {
            process_lease: self.process_lease.clone(),
            fence,
        })
    }

    /// Ends a hold. Returns how many threads still have one.
    pub(super) fn leave(&mut self) -> u32 {
        self.holders -= 1;
        self.holders
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
