//! Memory that threads share. `locks` has the mutexes.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Weak};
