//! The seam to the machine. No other module of the library touches one of these:
//!
//! | module | its subject |
//! | --- | --- |
//! | [`time`] | the clock of a lease's holder, and the time of day |
//! | [`Arc`] and the atomics, `locks` | memory that threads share, and waits for other threads |
//! | [`thread`] | starts and sleeps; a queue between threads |
//! | [`random`] | random numbers |
//! | [`hash`] | maps, whose order depends on a random seed |
//! | [`net`] | connections, waits for several of them, and lookups of names |
//! | [`process`] | this process: its host and number, and whether it is a forked child |
//! | [`machine`] | which machine a thread runs on: the [`real`] one, or one of a test (`test_machine`, `of_test`) |
//!
//! They are free functions and types: the standard library's, or thin covers of it. Only a build with the hidden feature
//! `seam` knows another machine than the real one, and there a manager on the real machine does the same: see [`machine`].

#[cfg(not(feature = "seam"))]
mod locks;
pub(crate) mod machine;
pub(crate) mod net;
#[cfg(feature = "seam")]
mod of_test;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod test_machine;
pub(crate) mod thread;
pub(crate) mod time;

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Weak};

#[cfg(not(feature = "seam"))]
pub(crate) use locks::{Condvar, Mutex, MutexGuard};
pub(crate) use machine::{Machine, real, wall_us};
#[cfg(feature = "seam")]
pub(crate) use of_test::locks::{
    ScheduledCondvar as Condvar, ScheduledMutex as Mutex, ScheduledMutexGuard as MutexGuard,
};
pub(crate) use process::ForkGuard;
pub(crate) use random::Rng;
pub use time::{LONGEST_SLEEP, Time};

/// Maps and hashes. Their order depends on a random seed of the process.
pub(crate) mod hash {
    #[cfg(feature = "seam")]
    pub(crate) use super::of_test::hash::{HashMap, HashSet, RandomState};
    #[cfg(not(feature = "seam"))]
    pub(crate) use std::collections::{HashMap, HashSet};
    #[cfg(not(feature = "seam"))]
    pub(crate) use std::hash::RandomState;
    pub(crate) use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
}
