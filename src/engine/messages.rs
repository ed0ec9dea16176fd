//! The messages of Redis about the leases of this process.
//!
//! A holder learns of a forced release as follows:
//!
//! 1. The script publishes the removed owner on a channel to which every process subscribes.
//! 2. The process with that owner does not trust the message. It has the renewal of that lease sent at once.
//! 3. Redis replies to the renewal that the key is gone, or has another owner. The lease is lost.
//!
//! The message may overtake the grant of that owner. So a process that has no such lease notes the time for each name for
//! which a grant may be on its way. It does step 2 for each lease that was asked for at or before that time, when the
//! lease begins.
//!
//! If the message is lost, or the process has no subscription because no thread has waited yet, the next renewal gets
//! the same reply. For a lease without renewal, the renewal of step 2 lengthens nothing. If that message is lost, the
//! lease reads held until its deadline.
//!
//! A *request to release* a lock names the holder's owner too. It ends nothing: the process sends it to the channels of the
//! guards of that lease, and remembers the last one for a channel that comes later. If the request overtakes the grant,
//! nobody hears it.

use crate::engine::leases::Leases;
use crate::engine::wakeup::MessageHandler;
use crate::event::ReleaseRequest;
use crate::logging;
use crate::owner::{self, Owner};
use crate::sys::time::of_wall_us;

impl MessageHandler for Leases {
    /// Has the renewal thread renew this process's lease of an owner at once. If the grant is still on its way, that
    /// happens when the lease begins.
    ///
    /// Searches all names in use, which takes some milliseconds for very many names. An index would cost every lease
    /// memory for a rare event.
    fn released_by_force(&self, owner: &str) {
        // An owner with another label belongs to another manager.
        let label = &self.client.settings.label;
        if owner::label(owner) != Some(label) {
            return;
        }
        let owner = Owner::new(owner, &self.client.tail);
        let now = self.client.now();
        for entry in self.names.all() {
            let mut state = entry.lock();
            let found = state
                .queue
                .process_leases()
                .find(|process_lease| process_lease.owner == owner);
            if let Some(process_lease) = found.cloned() {
                drop(state);
                self.renewal.renew_now(&self.client, &process_lease);
            } else {
                state.note_forced_release(now);
            }
        }
    }

    /// Tells the guards of the owner's lease. Searches all names in use.
    fn release_requested(&self, request: &str) {
        let mut parts = request.splitn(3, ' ');
        let (Some(owner), Some(at), Some(why)) = (parts.next(), parts.next(), parts.next()) else {
            return;
        };
        let Ok(at_us) = at.parse() else {
            return;
        };
        if owner::label(owner) != Some(&self.client.settings.label) {
            return;
        }
        let owner = Owner::new(owner, &self.client.tail);
        let request = ReleaseRequest {
            why: why.to_owned(),
            at: of_wall_us(at_us),
        };
        for entry in self.names.all() {
            let state = entry.lock();
            let found = state
                .queue
                .process_leases()
                .find(|process_lease| process_lease.owner == owner);
            let Some(process_lease) = found.cloned() else {
                continue;
            };
            drop(state);
            if process_lease.note_request(&request) {
                let name = entry.target.name();
                logging::info!("lock {name:?}: its release is requested: {why:?}");
            }
            return;
        }
    }
}
