//! The threads of this process that want one name.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`rules`] | the queue: who asks Redis, who waits, who gets the lease next |
//! | [`quantum`] | for how long threads hand a lock on in memory |
//! | [`names`] | the table of the names in use |

pub(crate) mod names;
pub(crate) mod quantum;
pub(crate) mod rules;
