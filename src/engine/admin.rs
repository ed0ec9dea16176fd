//! Requests of operators: to inspect and list locks, and to release a lock by force.
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

use crate::engine::Engine;
use crate::error::{Failure, Result};
use crate::message::{Cursor, Reply, Request, Seen};
use crate::name::LockKey;
use crate::owner::{self, Owner};

/// The locks of one page, and the cursor of the next page.
pub(crate) type Page = (Vec<(LockKey, Seen)>, Option<Cursor>);

impl Engine {
    /// Returns the holder and the waiters of a lock, or `None` if it has neither.
    pub(crate) fn inspect(&self, key: &LockKey) -> Result<Option<Seen>> {
        let request = Request::Inspect {
            keys: std::slice::from_ref(key),
            named: true,
        };
        match self.reply_to(&request, Some(key.name()))? {
            Reply::Inspected(mut seen) => Ok(seen.pop().flatten()),
            _ => Err(Failure::another_question().into_error(Some(key.name()))),
        }
    }

    /// Returns one page of the locks whose names match `pattern`.
    pub(crate) fn page(&self, from: Cursor, pattern: &str) -> Result<Page> {
        let prefix = &self.settings.prefix;
        let request = Request::Scan {
            from,
            prefix,
            pattern,
        };
        let Reply::Page { keys, next } = self.reply_to(&request, None)? else {
            return Err(Failure::another_question().into_error(None));
        };
        let lock = |key: &Vec<u8>| {
            // Keys that are not a lock's, such as companions, are skipped.
            let name = std::str::from_utf8(key).ok()?.strip_prefix(&**prefix)?;
            LockKey::new(prefix, name).ok()
        };
        let keys: Vec<_> = keys.iter().filter_map(lock).collect();
        let mut locks = Vec::new();
        let mut unseen = &keys[..];
        while !unseen.is_empty() {
            let request = Request::Inspect {
                keys: unseen,
                named: false,
            };
            let Reply::Inspected(seen) = self.reply_to(&request, None)? else {
                return Err(Failure::another_question().into_error(None));
            };
            let (now, later) = unseen.split_at(seen.len());
            let both = now.iter().zip(seen);
            locks.extend(both.filter_map(|(key, seen)| Some((key.clone(), seen?))));
            unseen = later;
        }
        Ok((locks, next))
    }

    /// Releases the lock of an owner by force. Returns false if the owner does not hold it.
    pub(crate) fn force_release(&self, key: &LockKey, owner: &str) -> Result<bool> {
        self.check_open()?;
        let released = self.release_lingering_on(std::slice::from_ref(key), self.limits(None));
        if released.is_some_and(|released| *released == *owner) {
            return Ok(true);
        }
        match self.reply_to(&Request::ForceRelease { key, owner }, Some(key.name()))? {
            Reply::Released => {
                // The owner may belong to this process, which may have no subscription.
                self.ask_about(owner);
                Ok(true)
            }
            Reply::NotOwner(_) => Ok(false),
            _ => Err(Failure::another_question().into_error(Some(key.name()))),
        }
    }

    /// Has the renewal thread renew this process's lease of an owner at once. If the grant is still on its way, that
    /// happens when the lease begins.
    ///
    /// Searches all names in use, which takes some milliseconds for very many names. An index would cost every lease
    /// memory for a rare event.
    pub(crate) fn ask_about(&self, owner: &str) {
        // An owner with another label belongs to another manager.
        if owner::label(owner) != Some(&self.settings.label) {
            return;
        }
        let owner = Owner::new(owner, &self.settings.label);
        let now = self.now();
        for entry in self.names.all() {
            let mut state = entry.lock();
            let found = state
                .queue
                .process_leases()
                .find(|process_lease| process_lease.owner == owner);
            if let Some(process_lease) = found.cloned() {
                drop(state);
                self.renewal.renew_now(self, &process_lease);
            } else {
                state.note_forced_release(now);
            }
        }
    }

    fn reply_to(&self, request: &Request<'_>, name: Option<&str>) -> Result<Reply> {
        self.check_open()?;
        let answer = self.send(request, self.limits(None));
        Ok(answer.map_err(|failure| failure.into_error(name))?.reply)
    }
}
