//! Maps and hashes. Their order depends on a random seed of the process.

pub(crate) use std::collections::{HashMap, HashSet};
pub(crate) use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
