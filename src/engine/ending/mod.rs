//! How a lock is given up, and how that is repeated until it is sure.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`rules`] | the release task: what to send for an owner that has ended, and for how long |
//! | [`tasks`] | the tasks that the renewal thread sends |
//!
//! [`crate::engine::lease::release`] has the steps of a thread that ends a lease.

pub(crate) mod rules;
pub(crate) mod tasks;
