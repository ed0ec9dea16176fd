//! How a lease is lost, and what follows: its loss is counted and announced, the next thread asks Redis, and the renewal
//! thread releases the keys that may be left.

use crate::core::lease::LeaseStatus;
use crate::engine::leases::Leases;
use crate::engine::process_lease::ProcessLease;
use crate::engine::watch::LossHandler;
use crate::error::LostCause;
use crate::sync::Arc;

impl LossHandler for Leases {
    /// Ends a lost lease before its guards end. Makes the next thread the delegate, and notifies the listeners.
    fn lost(&self, process_lease: &Arc<ProcessLease>, cause: LostCause) {
        let (fence, next) = {
            let queue = &mut process_lease.entry.lock().queue;
            let fence = queue.fence(process_lease.number);
            (fence, queue.lost(process_lease.number))
        };
        self.count_loss_once(process_lease, LeaseStatus::Lost(cause), fence);
        self.make_next_the_delegate(&process_lease.entry, next);
        self.renewal.deregister(process_lease);
        process_lease.announce(cause);
        if process_lease.linger.is_some() && self.lingers.was_idle(process_lease) {
            // No guard ends after this loss.
            self.after_loss(process_lease, LeaseStatus::Lost(cause));
        }
    }
}

impl Leases {
    /// Counts the loss of a lease, if it was lost and `fence` is given. Only the thread that takes the lease out of its
    /// queue gets the fence, so each loss is counted once.
    pub(super) fn count_loss_once(
        &self,
        process_lease: &ProcessLease,
        status: LeaseStatus,
        fence: Option<u64>,
    ) {
        if let (LeaseStatus::Lost(cause), Some(fence)) = (status, fence) {
            self.client.count_loss(process_lease, fence, cause);
        }
    }

    /// Has the renewal thread release the keys that a lost lease may have left in Redis. Called at the end of a guard
    /// of the lease, or if it was lost without a guard.
    pub(super) fn after_loss(&self, process_lease: &Arc<ProcessLease>, status: LeaseStatus) {
        if let LeaseStatus::Lost(cause) = status {
            self.deregister(process_lease);
            process_lease.announce(cause);
            // A key that Redis reported as gone needs no release. The other keys of a multi-lock do.
            let may_be_left = cause == LostCause::Expired
                || process_lease.keys().len() > 1
                || self.client.store.is_quorum();
            if may_be_left && process_lease.begin_clean_up() {
                let left = self.orphaned_owner(process_lease, None, self.client.now());
                self.clean_up(&process_lease.entry, left, process_lease.terms.lease());
            }
        }
    }
}
