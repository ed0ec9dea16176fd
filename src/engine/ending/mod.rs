//! How a lock is given up, and how that is repeated until it is sure.
//!
//! Process A releases `orders:42`, which it holds as `A1`, and the link breaks before the answer comes.
//!
//! 1. The lease has ended in A already, so no guard of A depends on the answer.
//! 2. The release becomes a release task of the renewal thread, which sends it again: at once, and then after growing pauses.
//! 3. If Redis has executed the first one, another owner may have the lock by now. The script compares the owner, changes
//!    nothing, and answers that `A1` does not hold the lock. That ends the task, as "released" does.
//! 4. If no answer ever comes, the task ends when Redis must have dropped the key.
//!
//! An owner that an attempt leaves behind gets a task too, a *withdrawal*. "Not the holder" does not end it: the acquire
//! without an answer may still arrive, and so the owner is withdrawn again until a lease has passed since it was sent. On a
//! quorum a task lives until each node that may have the owner has confirmed its end.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`rules`] | the release task: the request for an owner that has ended, and for how long it is repeated |
//! | [`tasks`] | the tasks that the renewal thread sends |
//!
//! The steps of a thread that ends a lease stand in `engine/lease/release.rs`.

pub(crate) mod rules;
pub(crate) mod tasks;
