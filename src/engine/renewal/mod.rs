//! The renewal thread: one for all leases of a manager, on a dedicated connection.
//!
//! | step | the thread |
//! | --- | --- |
//! | 1 | at the first lease: connects, and has the server load the script, so that a renewal takes one round trip. While a delegate waits: checks a silent connection |
//! | 2 | takes a batch of leases that are due, or nearly due, out of the timer queue, and notes them as in flight |
//! | 3 | sends the batch in one request |
//! | 4 | puts each confirmed lease back at its next renewal, and each unconfirmed one at its retry; has the watch thread handle each lost lease; repeats from 2 until no lease is due |
//! | 5 | sends the release tasks that are due, until the connection fails or a lease is due ([`release_tasks`]). |
//! | 6 | sleeps until the next lease or release task is due, for at most a second |
//!
//! If an answer without a request has come, an earlier request may have been answered wrongly. So the thread makes all
//! leases due within a second. Until Redis has confirmed a lease again, its guard reads `AtRisk`.
//!
//! No error or panic makes the thread forget a lease or a release task. Before it sends a request, it notes the leases
//! as in flight, and leaves the release tasks in their timer queue at a later time.
//!
//! A lease that was granted by message lasts for the pickup window only. It is due ten milliseconds after its grant, and so
//! before most renewals of other leases. Most contended leases have ended by then, and need no renewal. No lease is granted
//! by message unless the thread runs, has connected, and is not stuck in a request ([`RenewalThread::is_ready`]). So a
//! delegate that begins to wait has the thread start and connect ([`RenewalThread::prepare`]). If no reply has come on the
//! connection for five seconds, the delegate has the thread check it by a PING.
//!
//! A thread registers a lease before it makes the lease's first guard. It deregisters the lease before it sends the
//! release.
//!
//! The renewal thread starts with the first lease or release task, and ends when there has been neither for a while. A
//! release task in the timer queue keeps the client alive, and so the thread too. The thread uses nothing above the client and
//! the watch thread: it has the watch thread handle a lease that is lost, or for which other processes wait.

mod release_tasks;
mod rounds;
mod schedule;

#[cfg(test)]
pub(super) use release_tasks::MOST_REPEATED;
#[cfg(test)]
pub(super) use schedule::BATCH;
pub(super) use schedule::RenewalThread;
