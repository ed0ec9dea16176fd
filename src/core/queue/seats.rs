//! A lease of this process, and the turns that its threads have in it.

use crate::clock::Time;
use crate::core::fence::Fences;
use crate::core::linger::{Linger, Stay};
use crate::core::queue::HeldLease;
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
    /// How many threads have a turn now.
    taken: u32,
    fences: Fences,
    quantum_end: Time,
    /// `None` if the lease never lingers.
    linger: Option<Box<Linger>>,
}

impl<T: HeldLease> Seats<T> {
    /// Makes the empty seats of a lease. It takes in further threads until `quantum_end`.
    pub(crate) fn new(process_lease: T, fences: Fences, quantum_end: Time) -> Self {
        Self {
            process_lease,
            taken: 0,
            fences,
            quantum_end,
            linger: None,
        }
    }

    /// Lets the lease linger after its guards.
    pub(crate) fn with_linger(mut self, linger: Option<Linger>) -> Self {
        self.linger = linger.map(Box::new);
        self
    }

    /// Returns whether a thread that wants `units` of the lock finds a seat.
    pub(super) fn has_room(&self, units: u32, sharing: Sharing) -> bool {
        units == self.process_lease.units() && self.taken < sharing.seats()
    }

    /// Returns whether a further thread may have the lease in memory: before the end of the quantum, or of the linger.
    pub(super) fn is_open(&self, now: Time) -> bool {
        let lingers = self.linger.as_ref().is_some_and(|it| it.is_open(now));
        lingers || (!self.is_idle() && now < self.quantum_end)
    }

    /// Returns whether the lease stays with this process without a guard.
    pub(super) fn is_idle(&self) -> bool {
        self.linger.as_ref().is_some_and(|it| it.is_idle())
    }

    /// Takes in that the last guard has ended, and no thread waits. Returns `None` if the lease must be released.
    pub(super) fn stay(&mut self, now: Time) -> Option<Stay> {
        let linger = self.linger.as_mut().filter(|_| !self.fences.is_empty());
        linger.and_then(|linger| linger.guard_ended(now))
    }

    /// Ends the linger. Returns true if the lease was idle, and must be released.
    pub(super) fn stop_linger(&mut self) -> bool {
        self.linger.as_mut().is_some_and(|linger| linger.stop())
    }

    /// Sets when the quantum ends.
    pub(super) fn set_quantum_end(&mut self, at: Time) {
        self.quantum_end = at;
    }

    /// Gives a thread its turn. Returns `None` if the fences are used up.
    pub(super) fn admit(&mut self) -> Option<Turn<T>> {
        let fence = self.fences.take()?;
        self.taken += 1;
        if let Some(linger) = &mut self.linger {
            linger.taken();
        }
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
