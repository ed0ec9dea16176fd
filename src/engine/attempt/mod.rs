//! This process's way to a lock: from the first request to the lease.
//!
//! Process B wants `orders:42`, which A holds.
//!
//! 1. B's delegate begins an attempt with a fresh owner, `B1`, and asks, with the channel of the process and a nonce. Redis
//!    puts `B1` into the queue, and answers that A holds the lock, and for how long its lease still lasts. Before its first
//!    wait a process has no channel, so it does not queue yet: it subscribes, and asks again.
//! 2. The delegate sleeps without a connection: until a message comes, A's lease must be over, or it is time to poll.
//! 3. A releases the lock, and Redis gives it to `B1`. If the message to B proves that the hand-over came after B's last
//!    request, B has the lock without another one. Otherwise the attempt asks, and Redis grants the lock to its holder.
//! 4. A request without an answer may still be executed. So the attempt asks again under the same owner, which is
//!    idempotent. Where it is not, the attempt goes on as `B2`, and leaves `B1` to be withdrawn ([`crate::engine::ending`]).
//! 5. If the time of the delegate is over, the next thread of B goes on with the attempt, and with its place in Redis. If
//!    there is no next thread, `B1` is withdrawn.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`rules`] | the attempt: it decides what to send next, and what each reply means |
//! | [`poll`] | how often an attempt polls |
//!
//! The delegate, the thread that sends what the rules decide, is a call on its way: [`crate::engine::acquire`].

pub(crate) mod poll;
pub(crate) mod rules;
