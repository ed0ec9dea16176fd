//! A lock that this process holds.
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
