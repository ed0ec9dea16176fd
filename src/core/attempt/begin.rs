//! How an attempt begins.

use super::patience::{Patience, Wait};
use super::state::State;
use super::{Attempt, OrphanedOwner};
use crate::owner;
use crate::random::Rng;

impl Attempt {
    /// Begins an attempt at `units` of the lock.
    pub(crate) fn new(rng: &dyn Rng, label: &str, units: u32) -> Self {
        Self::begin(rng, label, units, State::new(), Wait::NotBegun)
    }

    /// Begins an attempt of a thread that has waited behind others of its process.
    pub(crate) fn after_waiting(rng: &dyn Rng, label: &str, units: u32) -> Self {
        Self::begin(rng, label, units, State::new(), Wait::Begun)
    }

    /// Begins an attempt to keep the lock that this process holds as `from`. Its lease has ended here.
    pub(crate) fn take_over(rng: &dyn Rng, label: &str, from: OrphanedOwner) -> Self {
        let units = from.units;
        Self::begin(rng, label, units, State::take_over(from), Wait::Contended)
    }

    /// Begins an attempt to keep a lock whose release was not sent, so no other thread was notified.
    /// `waits`: a wait has begun.
    pub(crate) fn take_back(rng: &dyn Rng, label: &str, from: OrphanedOwner, waits: bool) -> Self {
        let units = from.units;
        let wait = if waits { Wait::Begun } else { Wait::NotBegun };
        Self::begin(rng, label, units, State::take_over(from), wait)
    }

    fn begin(rng: &dyn Rng, label: &str, units: u32, state: State, wait: Wait) -> Self {
        Self {
            owner: owner::generate(rng, label),
            units,
            state,
            patience: Patience::new(wait),
            offer: None,
            former_owner: None,
            orphaned_owners: Vec::new(),
        }
    }
}
