//! The releases before an attempt: the delegate settles the releases of the same lock that the renewal thread has not sent
//! yet.

use crate::core::attempt::Attempt;
use crate::engine::process_lease::Entry;
use crate::engine::way_in::WayIn;
use crate::sys::Arc;

impl WayIn<'_> {
    /// Settles the background releases of these keys:
    ///
    /// | the release | this thread |
    /// | --- | --- |
    /// | is in flight | waits until its request, or the hand-over after that, has a reply or has failed |
    /// | is not sent, and is of this lock and kind | takes it back: the attempt takes over from the released owner, in one request |
    /// | is not sent, and cannot be taken over: another kind, a kind with several owners, a `min_hold`, an attempt that has begun | takes it back, and sends it; after the time limit, or if the call must end, returns it to the renewal thread |
    ///
    /// Begins the last request within the time limit of one request, for all releases together; a hand-over may follow
    /// it. So neither a stuck renewal thread nor a server that does not reply delays the call for longer.
    pub(super) fn settle_releases(&self, entry: &Arc<Entry>, attempt: &mut Attempt) {
        let (leases, renewal) = (self.leases, &self.leases.renewal);
        let keys = entry.target.keys();
        let timer_keys = renewal.background_releases(keys);
        if timer_keys.is_empty() {
            return;
        }
        let until = self.end_of_releases();
        let is_over = || self.is_over();
        for timer_key in timer_keys {
            let Some((released, release_task)) = renewal.take_back(timer_key) else {
                renewal.wait_until_sent(self.client, keys, timer_key, until, &is_over);
                continue;
            };
            let is_this_lock = released.is_of(entry)
                && !entry.kind.sharing().several
                && !release_task.keeps_lock(self.client.now());
            if is_this_lock && attempt.is_new() {
                let waits = attempt.waits();
                let rng = self.owner_source();
                *attempt = Attempt::take_back(rng, self.tail(), release_task.unsent(), waits);
            } else if self.client.now() >= until || is_over() {
                renewal.add_release_task(&leases.client, &released, release_task, None);
            } else {
                // If the request fails, the renewal thread repeats it.
                let deadline = self.client.deadline(Some(until)).ended_by(&is_over);
                leases.send_release(&released, release_task, deadline).ok();
            }
        }
    }

    /// Releases the mutexes that linger on the keys of a call for another kind ([`super::linger`]). Takes at most as long
    /// as one request may.
    pub(super) fn release_lingering(&self) {
        let is_over = || self.is_over();
        let deadline = self.client.deadline(Some(self.end_of_releases()));
        let deadline = deadline.ended_by(&is_over);
        self.leases
            .release_lingering_on(self.call.target.keys(), deadline);
    }
}
