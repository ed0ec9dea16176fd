//! The releases before and after an attempt:
//!
//! * Before it, the delegate settles the releases of the same lock that the renewal thread has not sent yet.
//! * After it, the renewal thread releases the owners that the attempt may have left in Redis.

use std::time::Duration;

use crate::core::attempt::{Attempt, OrphanedOwner};
use crate::core::release_task::ReleaseTask;
use crate::engine::Engine;
use crate::engine::call::AcquireCall;
use crate::engine::process_lease::Entry;
use crate::store::Limits;
use crate::sync::Arc;

impl Engine {
    /// Settles the background releases of these keys:
    ///
    /// | the release | this thread |
    /// | --- | --- |
    /// | is in flight | waits until its request, or the hand-over after that, has a reply or has failed |
    /// | is not sent, and is of this lock and kind | takes it back: the attempt takes over from the released owner, in one request |
    /// | is not sent, and cannot be taken over: another kind, a kind with several owners, a `min_hold`, an attempt that has begun | takes it back, and sends it; after the time limit, or if the call must end, returns it to the renewal thread |
    ///
    /// Begins the last request within the time limit of one request, for all releases together; a hand-over may follow
    /// it. So neither a stuck renewal thread
    /// nor a server that does not reply delays the call for longer.
    pub(super) fn settle_releases(
        self: &Arc<Self>,
        call: &AcquireCall<'_>,
        entry: &Arc<Entry>,
        attempt: &mut Attempt,
    ) {
        let keys = entry.target.keys();
        let places = self.renewal.background_releases(keys);
        if places.is_empty() {
            return;
        }
        let limit = self.now() + self.settings.io_timeout;
        let until = call.until.map_or(limit, |until| until.min(limit));
        let is_over = || call.is_over(self);
        for place in places {
            let Some((released, release_task)) = self.renewal.take_back(place) else {
                self.renewal
                    .wait_until_sent(self, keys, place, until, &is_over);
                continue;
            };
            let is_this_lock = released.is_of(entry)
                && !entry.kind.sharing().several
                && !release_task.keeps_lock();
            if is_this_lock && attempt.is_new() {
                let (label, waits) = (&self.settings.label, attempt.waits());
                let rng = self.owner_source(call.linger().is_some());
                *attempt = Attempt::take_back(rng, label, release_task.unsent(), waits);
            } else if self.now() >= until || is_over() {
                self.renewal.add_release_task(self, &released, release_task);
            } else {
                // If the request fails, the renewal thread repeats it.
                let limits = Limits {
                    is_over: Some(&is_over),
                    ..self.limits(Some(until))
                };
                self.send_release(&released, release_task, limits).ok();
            }
        }
    }

    /// Ends an attempt that no thread continues.
    pub(super) fn abandon(&self, call: &AcquireCall<'_>, entry: &Arc<Entry>, attempt: Attempt) {
        self.clean_up_after(entry, attempt, call.options.terms().lease());
        self.names.retire(entry);
    }

    /// Has the renewal thread release all owners of an attempt that may have something in Redis.
    pub(super) fn clean_up_after(&self, entry: &Arc<Entry>, attempt: Attempt, lease: Duration) {
        for orphaned_owner in attempt.abandon() {
            self.clean_up(entry, orphaned_owner, lease);
        }
    }

    /// Has the renewal thread release an owner.
    pub(super) fn clean_up(
        &self,
        entry: &Arc<Entry>,
        orphaned_owner: OrphanedOwner,
        lease: Duration,
    ) {
        let release_task = ReleaseTask::of_orphaned_owner(orphaned_owner, self.now(), lease);
        self.renewal.add_release_task(self, entry, release_task);
    }
}
