//! This process's way to a lock: from the first request to the lease.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`rules`] | the attempt: what to send next, and what each reply means |
//! | [`poll`] | how often an attempt polls |
//!
//! The delegate, the thread that sends what the rules say, is a call on its way: [`crate::engine::acquire`].

pub(crate) mod poll;
pub(crate) mod rules;
