//! Maps and hashes. Their order depends on a random seed of the process.

#[cfg(feature = "testing")]
pub(crate) use super::of_test::hash::{HashMap, HashSet, RandomState};
#[cfg(not(feature = "testing"))]
pub(crate) use std::collections::{HashMap, HashSet};
#[cfg(not(feature = "testing"))]
pub(crate) use std::hash::RandomState;
pub(crate) use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
