//! A lock that this process holds.
//!
//! 1. A grant becomes a [`process_lease::ProcessLease`], which the guards of this process have one after another, or share.
//!    Before the first of them exists, the lease is registered with two threads ([`leases`]).
//! 2. The watch thread ends the lease at its deadline, and notifies the guards. It does no I/O, so a dead network does not
//!    delay it ([`watch`]).
//! 3. The renewal thread moves the deadline, in one request for all leases that are due ([`renewal`]).
//! 4. Each thread that has a guard compares the clock with the deadline for itself ([`rules`]), so a guard is right even if
//!    both threads hang.
//! 5. A guard ends: its lock goes on to the next thread in memory, or the lease ends, and only then a request gives the lock
//!    away ([`release`]).
//!
//! | module | its subject |
//! | --- | --- |
//! | [`rules`] | one atomic word: until when a lease is valid, or how it ended |
//! | [`fence`] | blocks of fencing tokens |
//! | [`process_lease`] | the lease that guards of one process share |
//! | [`leases`] | the leases of a manager |
//! | [`release`], [`claim`], [`downgrade`] | how a guard ends: its lock goes on or is released, stays in Redis for a claim, or becomes a reader's |
//! | [`guard`], [`limits`] | the lease as a guard has it; `max_hold`, `min_hold` and `warn_after` |
//! | [`watch`] | the thread that ends each lease at its deadline |
//! | [`renewal`] | the thread that renews them all |

pub(crate) mod claim;
mod downgrade;
pub(crate) mod fence;
pub(crate) mod guard;
pub(crate) mod leases;
mod limits;
#[cfg(feature = "seam")]
mod moved_by_test;
pub(crate) mod process_lease;
mod release;
pub(crate) mod renewal;
pub(crate) mod rules;
pub(crate) mod watch;
