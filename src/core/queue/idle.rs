//! Leases that stay with this process without a guard: see [`crate::core::linger`].

use super::decisions::IdleLease;
use super::delegate::{DelegateReply, DelegateRequest};
use super::{HeldLease, Queue};
use crate::clock::Time;
use crate::core::linger::Stay;

impl<W, T: HeldLease> Queue<W, T> {
    /// Returns whether a thread asks Redis.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Returns whether lease `number` is idle.
    pub(crate) fn is_lingering(&self, number: u64) -> bool {
        let index = self.position(number);
        index.is_some_and(|index| self.process_leases[index].is_idle())
    }

    /// Ends the linger of the leases for which `is_meant` returns true. Takes out the one that is idle: the caller must
    /// release it, and then call [`ended`](Queue::ended).
    pub(crate) fn stop_linger(&mut self, is_meant: impl Fn(&T) -> bool) -> Option<IdleLease<T>> {
        let index = self
            .process_leases
            .iter_mut()
            .position(|seats| is_meant(&seats.process_lease) && seats.stop_linger())?;
        self.is_releasing = !self.sharing.several;
        Some(self.take_idle(index))
    }

    /// Makes the arriving thread the delegate if the only obstacle is an idle lease. Takes the lease out.
    pub(super) fn replace_idle(&mut self, units: u32) -> Option<IdleLease<T>> {
        let is_alone = self.process_leases.len() == 1 && self.process_leases[0].is_idle();
        if !is_alone || self.asking.is_some() || self.is_releasing {
            return None;
        }
        self.asking = Some(DelegateRequest::new(units, DelegateReply::None));
        Some(self.take_idle(0))
    }

    /// Lets the lease stay without a guard, if it lingers and no other thread or lease is there. While an adopted lease is
    /// being released, a thread that the lease does not fit would wait for it until the linger ends.
    pub(super) fn stay(&mut self, index: usize, now: Time) -> Option<Stay> {
        let is_wanted = !self.waiting.is_empty() || self.asking.is_some() || self.is_releasing;
        if is_wanted || self.process_leases.len() > 1 {
            return None;
        }
        self.process_leases[index].stay(now)
    }

    fn take_idle(&mut self, index: usize) -> IdleLease<T> {
        let seats = self.process_leases.swap_remove(index);
        IdleLease {
            fence: seats.fence(),
            give_back: seats.give_back(),
            process_lease: seats.process_lease,
        }
    }
}
