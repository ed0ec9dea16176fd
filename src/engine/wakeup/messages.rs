//! What the messages of Redis mean. Any client could have sent one. So a message only makes this process ask Redis, unless it
//! has the nonce of a delegate's last request.
//!
//! On the channel of this process, messages are for its delegates ([`Wakeup::wake`](super::Wakeup::wake)), or say that a leader
//! which it observes has changed ([`Engine::leader_changed`]). On the common one, the script of a *forced release* publishes the
//! owner that it removed. The process with that owner does not trust the message, so it renews that lease at once. Redis replies
//! that the key is gone, or has another owner, and the lease is lost.
//!
//! The message may overtake the grant of that owner. So a process that has no such lease notes the time, for each name for
//! which a grant may be on its way. When a lease begins that was asked for at or before that time, it is renewed at once too.
//!
//! If the message is lost, or the process has no subscription because no thread has waited yet, the next renewal gets
//! the same reply. For a lease without renewal, a renewal only looks whether it is still held.
//!
//! A *request to release* a lock names the holder's owner too. It ends nothing: the process sends it to the channels of the
//! guards of that lease, and remembers the last one for a channel that comes later. If the request overtakes the grant,
//! nobody hears it.

use crate::engine::Engine;
use crate::event::ReleaseRequest;
use crate::logging;
use crate::name::{BROKEN, LEADER, REQUEST};
use crate::owner::{self, Owner};
use crate::sys::time::of_wall_us;

impl Engine {
    /// Handles a message.
    pub(crate) fn hear(&self, channel: &str, payload: &[u8]) {
        let Ok(text) = std::str::from_utf8(payload) else {
            return;
        };
        match (channel == BROKEN, text.strip_prefix(REQUEST)) {
            (true, Some(request)) => self.release_requested(request),
            (true, None) => self.released_by_force(text),
            (false, _) => match text.strip_prefix(LEADER) {
                Some(changed) => self.leader_changed(changed),
                None => self.wakeup.wake(payload),
            },
        }
    }

    /// Makes the renewal thread renew this process's lease of an owner at once. If the grant is still on its way, that
    /// happens when the lease begins.
    ///
    /// Searches all names in use, which takes some milliseconds for very many names. An index would cost every lease
    /// memory for a rare event.
    pub(crate) fn released_by_force(&self, owner: &str) {
        let Some(owner) = self.own(owner) else {
            return;
        };
        let now = self.client.now();
        for entry in self.names.all() {
            let mut state = entry.lock();
            if let Some(lease) = state.lease_of(&owner).cloned() {
                drop(state);
                self.renewal.renew_now(&lease);
            } else {
                state.note_forced_release(now);
            }
        }
    }

    /// Tells the guards of the owner's lease of a request: the owner, the time in µs since 1970, and the reason. Searches all
    /// names in use.
    fn release_requested(&self, request: &str) {
        let mut parts = request.splitn(3, ' ');
        let (Some(owner), Some(at), Some(why)) = (parts.next(), parts.next(), parts.next()) else {
            return;
        };
        let (Some(owner), Ok(at_us)) = (self.own(owner), at.parse()) else {
            return;
        };
        let mut names = self.names.all().into_iter();
        let lease = names.find_map(|entry| entry.lock().lease_of(&owner).cloned());
        let request = ReleaseRequest {
            why: why.to_owned(),
            at: of_wall_us(at_us),
        };
        if let Some(lease) = lease.filter(|lease| lease.note_request(&request)) {
            let name = lease.entry.target.name();
            logging::info!("lock {name:?}: its release is requested: {why:?}");
        }
    }

    /// Returns this owner, unless it belongs to another manager: then it has another label.
    fn own(&self, owner: &str) -> Option<Owner> {
        let is_own = owner::label(owner) == Some(&self.client.settings.label);
        is_own.then(|| Owner::new(owner, &self.client.tail))
    }
}
