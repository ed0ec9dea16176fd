//! What must be settled in Redis beside an attempt: releases that have not been sent, before it; and owners that it leaves
//! behind, after it.

use std::time::Duration;

use crate::core::attempt::{Attempt, OrphanedOwner};
use crate::core::release_task::ReleaseTask;
use crate::engine::Engine;
use crate::engine::process_lease::Entry;
use crate::engine::request::Request;
use crate::store::Limits;
use crate::sync::Arc;

impl Engine {
    /// Settles the releases of this lock that guards left to the renewal thread:
    ///
    /// | the release | what follows |
    /// | --- | --- |
    /// | is on its way | this thread waits until its first request is over |
    /// | waits, and is of this very lock | the attempt takes over from the released owner, in one request |
    /// | waits, and cannot be taken over from | this thread sends it |
    ///
    /// It takes no longer than one request may, however many releases there are: neither a renewal thread that is stuck, nor
    /// a server that does not answer, may hold up the call for longer.
    pub(super) fn settle_releases(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Arc<Entry>,
        attempt: &mut Attempt,
    ) {
        let keys = entry.target.keys();
        let limit = self.now() + self.settings.io_timeout;
        let until = request.until.map_or(limit, |until| until.min(limit));
        let is_over = || request.is_over(self);
        for place in self.renewal.background_releases(keys) {
            let Some((released, release_task)) = self.renewal.take_back(place) else {
                self.renewal
                    .wait_until_sent(self, keys, place, until, &is_over);
                continue;
            };
            let is_this_lock = released.is_of(entry)
                && !entry.kind.sharing().several
                && !release_task.keeps_back();
            if is_this_lock && attempt.is_new() {
                let (label, waits) = (&self.settings.label, attempt.waits());
                *attempt = Attempt::take_back(&*self.rng, label, release_task.unsent(), waits);
            } else if self.now() >= until || is_over() {
                self.renewal.add_release_task(self, &released, release_task);
            } else {
                // If it fails, the renewal thread repeats it.
                let limits = Limits {
                    is_over: Some(&is_over),
                    ..self.limits(Some(until))
                };
                self.send_release(&released, release_task, limits).ok();
            }
        }
    }

    /// Ends an attempt that no thread carries on.
    pub(super) fn abandon(&self, request: &Request<'_>, entry: &Arc<Entry>, attempt: Attempt) {
        self.clean_up_after(entry, attempt, request.options.terms().lease());
        self.names.retire(entry);
    }

    /// Has everything released in the background that an attempt may have in Redis.
    pub(super) fn clean_up_after(&self, entry: &Arc<Entry>, attempt: Attempt, lease: Duration) {
        for orphaned_owner in attempt.abandon() {
            self.clean_up(entry, orphaned_owner, lease);
        }
    }

    /// Has an owner released in the background.
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
