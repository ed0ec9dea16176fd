//! The kinds of lock: small handles over the engine.

pub(crate) mod mutex;
