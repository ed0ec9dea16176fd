//! The part of the engine's state that is about lingers ([`super::linger`]).

use std::collections::VecDeque;

use uuid::Uuid;

use crate::engine::process_lease::{LeaseLinger, ProcessLease};
use crate::owner::{Owner, ProcessTag};
use crate::sys::{AtomicBool, AtomicU64, Machine, Mutex, Ordering, Rng};

/// The largest number of early recalls that are remembered. If one is forgotten, the waiter repeats it at its next poll.
const MOST_EARLY_RECALLS: usize = 64;

/// The part of an engine that is about lingers.
pub(super) struct LingerState {
    /// The source of owners for leases that may linger.
    owners: RecallableRng,
    /// Whether a lease of this engine could ever linger.
    pub(super) is_used: AtomicBool,
    /// The number of idle leases.
    idle: AtomicU64,
    /// Recalled owners of which this process had no lease, the last one at the end. Their grants may be on the way.
    early_recalls: Mutex<VecDeque<Owner>>,
}

/// A source of random numbers for recallable owners.
struct RecallableRng {
    tag: ProcessTag,
    machine: Machine,
}

impl Rng for RecallableRng {
    fn uuid(&self) -> Uuid {
        self.tag.recallable(self.machine.uuid())
    }

    fn bits(&self) -> u64 {
        self.machine.bits()
    }

    fn jitter(&self) -> u64 {
        self.machine.jitter()
    }
}

impl LingerState {
    pub(super) fn new(tag: ProcessTag, machine: Machine) -> Self {
        Self {
            owners: RecallableRng { tag, machine },
            is_used: AtomicBool::new(false),
            idle: AtomicU64::new(0),
            early_recalls: Mutex::default(),
        }
    }

    /// Returns the source of the owners for leases that may linger.
    pub(super) fn owner_source(&self) -> &dyn Rng {
        &self.owners
    }

    /// Returns the number of idle leases.
    pub(super) fn idle(&self) -> u64 {
        self.idle.load(Ordering::SeqCst)
    }

    /// Notes that a lease has become idle. Called under the mutex of its name.
    pub(super) fn note_idle(&self, linger: &LeaseLinger) {
        linger.is_idle.store(true, Ordering::SeqCst);
        self.idle.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a lease is not idle any more. Returns whether it was. Called by the thread that has given the lease a
    /// guard, or taken it out of its queue.
    pub(super) fn note_not_idle(&self, process_lease: &ProcessLease) -> bool {
        let linger = process_lease.linger.as_ref();
        let was_idle = linger.is_some_and(|linger| linger.is_idle.swap(false, Ordering::SeqCst));
        if was_idle {
            self.idle.fetch_sub(1, Ordering::SeqCst);
        }
        was_idle
    }

    /// Remembers a recall for a lease whose grant may be on its way. Called under the mutex of its name.
    pub(super) fn note_early_recall(&self, owner: Owner) {
        let mut early_recalls = self.early_recalls.lock();
        if early_recalls.len() == MOST_EARLY_RECALLS {
            early_recalls.pop_front();
        }
        early_recalls.push_back(owner);
    }

    /// Forgets the early recall of a lease. Returns whether there was one.
    pub(super) fn take_early_recall(&self, process_lease: &ProcessLease) -> bool {
        let mut early_recalls = self.early_recalls.lock();
        let is_it = |recalled: &Owner| *recalled == process_lease.owner;
        let index = early_recalls.iter().position(is_it);
        index
            .and_then(|index| early_recalls.remove(index))
            .is_some()
    }

    /// Returns the number of early recalls that are remembered.
    #[cfg(test)]
    pub(super) fn early_recalls(&self) -> usize {
        self.early_recalls.lock().len()
    }
}
