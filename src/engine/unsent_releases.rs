//! The lingers of other kinds on the keys of a call.

use crate::engine::way_in::WayIn;

impl WayIn<'_> {
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
