//! Memory that threads share.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Weak};

#[cfg(not(feature = "testing"))]
pub(crate) use super::locks::{Condvar, Mutex, MutexGuard};
#[cfg(feature = "testing")]
pub(crate) use super::of_test::locks::{Condvar, Mutex, MutexGuard};
