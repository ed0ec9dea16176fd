//! Maps that have the same order in each run, if a scheduler decides which thread runs.

use std::hash::{BuildHasher, DefaultHasher};

use crate::sys::machine::Machine;

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
pub(crate) type HashSet<K> = std::collections::HashSet<K, RandomState>;

/// The seed of a map.
#[derive(Clone)]
pub(crate) enum RandomState {
    OfTheProcess(std::hash::RandomState),
    /// The same seed for each map, because a `static` of the library keeps one through several runs.
    Fixed,
}

impl Default for RandomState {
    fn default() -> Self {
        match Machine::here().scheduler() {
            None => Self::OfTheProcess(std::hash::RandomState::new()),
            Some(_) => Self::Fixed,
        }
    }
}

impl BuildHasher for RandomState {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        match self {
            Self::OfTheProcess(state) => state.build_hasher(),
            Self::Fixed => DefaultHasher::new(),
        }
    }
}
