//! From a grant to guards: how a lease of this process begins.
//!
//! 1. The thread registers the lease with the watch thread and the renewal thread. If one of them cannot be started,
//!    the thread releases the lock again.
//! 2. The lease enters the queue of its name. The queue gives the first hold to the thread that asked. If the kind
//!    allows several guards at a time, threads that wait get holds too.
//! 3. The thread counts its own guard, and then sends the other threads their signals.
//! 4. If the lease was lost before it entered the queue, the thread takes the lease out again.

use crate::engine::attempt::rules::Grant;
use crate::engine::lease::fence::Fences;
use crate::engine::lease::leases::Leases;
use crate::engine::lease::process_lease::{Entry, Hold, ProcessLease, Signal, WaitingThread};
use crate::engine::lease::rules::LeaseStatus;
use crate::engine::lease::watch::LossHandler;
use crate::engine::queue::rules::{AcquireParams, Begun, GrantedTo, Health, QueueLease};
use crate::error::{Failure, FailureKind, Outcome};
use crate::sys::{Arc, Ordering, Time};

impl Leases {
    /// Begins the lease of a grant. Returns the first hold of the lease, and when the hold began. `count` counts the
    /// first guard.
    pub(crate) fn begin_lease(
        &self,
        entry: &Arc<Entry>,
        params: &AcquireParams,
        grant: Grant,
        to: GrantedTo,
        count: impl FnOnce(&Hold, Time),
    ) -> Result<(Hold, Time), Failure> {
        let fences = Fences::granted(entry.kind, grant.fence, grant.fences);
        let (quantum, sent) = (grant.quantum, grant.sent);
        let process_lease = self.register_lease(entry, params, grant)?;
        let now = self.client.now();
        let quantum_end = now + quantum;
        let lease = QueueLease::new(Arc::clone(&process_lease), fences, quantum_end);
        let (begun, may_be_gone) = {
            let mut state = entry.lock();
            // From here on the lease itself shows the holder. Only a delegate for more of the lock needs a newer reply.
            state.notes.forget_last_reply();
            let may_be_gone = state.notes.may_have_been_released_by_force(sent);
            let begun = state.queue.begin(lease, to, now);
            if !state.queue.is_crowded() {
                state.notes.forget();
            }
            (begun, may_be_gone)
        };
        if may_be_gone {
            self.renewal.renew_now(&self.client, &process_lease);
        }
        count(&begun.hold, now);
        let hold = hand_out(begun, now);
        // If its deadline passes from here on, the watch thread finds it in the queue.
        if let LeaseStatus::Lost(cause) = process_lease.validity.status(now) {
            self.lost(&process_lease, cause);
        }
        Ok((hold, now))
    }

    /// Makes the lease of a grant, and registers it before any thread relies on it. If that fails, releases the lock.
    fn register_lease(
        &self,
        entry: &Arc<Entry>,
        params: &AcquireParams,
        grant: Grant,
    ) -> Result<Arc<ProcessLease>, Failure> {
        let sent = grant.sent;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let process_lease = Arc::new(ProcessLease::new(
            number,
            &self.client.tail,
            Arc::clone(entry),
            params,
            grant,
        ));
        let registered = self
            .watch
            .register_lease(&self.client, &process_lease)
            .and_then(|()| self.renewal.register(&self.client, &process_lease, sent));
        match registered {
            Ok(()) => Ok(process_lease),
            Err(error) => {
                self.watch.deregister_lease(&process_lease);
                process_lease.validity.end(self.client.now());
                // Release the lock before another thread asks. Otherwise Redis would answer that it is held.
                let release_task = self.release_task(&process_lease, None, self.client.now());
                self.send_release(entry, release_task, self.client.deadline(None))
                    .ok();
                let words = format!("a thread of leasehold could not be started: {error}");
                Err(Failure::plain(
                    FailureKind::Unavailable,
                    Outcome::NotExecuted,
                    words,
                ))
            }
        }
    }

    /// Begins another quantum of a lease, which Redis has allowed, and gives holds to the threads that wait. Returns
    /// the delegate's hold, which `count` counts, or `None` if the lease has ended.
    pub(crate) fn reopen(
        &self,
        entry: &Entry,
        process_lease: &ProcessLease,
        now: Time,
        count: impl FnOnce(&Hold),
    ) -> Option<Hold> {
        if process_lease.health(now) == Health::Lost {
            return None;
        }
        let quantum_end = now + self.quantum(now);
        let begun = entry
            .lock()
            .queue
            .reopened(process_lease.number, now, quantum_end)?;
        count(&begun.hold);
        Some(hand_out(begun, now))
    }
}

/// Sends a signal to each thread that gets a hold or a task. Returns the hold of the delegate, which needs no signal.
fn hand_out(begun: Begun<Arc<WaitingThread>, Arc<ProcessLease>>, now: Time) -> Hold {
    let (first, rest) = begun.admitted;
    for (waiter, hold) in first.into_iter().chain(rest) {
        waiter.send(Signal::Hold(hold, now));
    }
    for waiter in begun.tried {
        waiter.send(Signal::Held);
    }
    if let Some(next) = begun.next {
        next.send(Signal::Delegate(None));
    }
    begun.hold
}
