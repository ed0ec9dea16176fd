//! What operators ask: who holds what, and that a hold be broken.
//!
//! How a holder learns that it was broken:
//!
//! 1. The script that breaks an owner's hold publishes the owner on a channel that the listener of every process hears.
//! 2. A process that has such an owner does not believe it: it asks Redis, by having that lease's renewal sent at once.
//! 3. The answer says what any renewal's does: the lock is gone, or another's, and the lease is lost.
//!
//! Where the message is lost, or nobody has ever waited in the process so that it does not listen, the next renewal
//! brings the same answer. A lease that is not renewed is asked about too, by a renewal that lengthens nothing.

use crate::engine::Engine;
use crate::error::{Failure, Result};
use crate::message::{Call, Cursor, Reply, Seen};
use crate::name::LockKey;
use crate::owner::{self, Owner};

/// Locks that were found, and where to go on.
pub(crate) type Page = (Vec<(LockKey, Seen)>, Option<Cursor>);

impl Engine {
    /// Who holds a lock; none where nobody does and nobody waits.
    pub(crate) fn inspect(&self, key: &LockKey) -> Result<Option<Seen>> {
        let call = Call::Inspect {
            keys: std::slice::from_ref(key),
            named: true,
        };
        match self.reply_to(&call, Some(key.name()))? {
            Reply::Inspected(mut seen) => Ok(seen.pop().flatten()),
            _ => Err(Failure::another_question().into_error(Some(key.name()))),
        }
    }

    /// The locks on one page of the keys whose names `pattern` matches.
    pub(crate) fn page(&self, from: Cursor, pattern: &str) -> Result<Page> {
        let prefix = &self.settings.prefix;
        let call = Call::Scan {
            from,
            prefix,
            pattern,
        };
        let Reply::Page { keys, next } = self.reply_to(&call, None)? else {
            return Err(Failure::another_question().into_error(None));
        };
        let lock = |key: &Vec<u8>| {
            // Companions, and whatever else can be no lock's, are no names.
            let name = std::str::from_utf8(key).ok()?.strip_prefix(&**prefix)?;
            LockKey::new(prefix, name).ok()
        };
        let keys: Vec<_> = keys.iter().filter_map(lock).collect();
        let mut locks = Vec::new();
        let mut unseen = &keys[..];
        while !unseen.is_empty() {
            let call = Call::Inspect {
                keys: unseen,
                named: false,
            };
            let Reply::Inspected(seen) = self.reply_to(&call, None)? else {
                return Err(Failure::another_question().into_error(None));
            };
            let (now, later) = unseen.split_at(seen.len());
            let both = now.iter().zip(seen);
            locks.extend(both.filter_map(|(key, seen)| Some((key.clone(), seen?))));
            unseen = later;
        }
        Ok((locks, next))
    }

    /// Breaks an owner's hold. False where it has none.
    pub(crate) fn force_release(&self, key: &LockKey, owner: &str) -> Result<bool> {
        match self.reply_to(&Call::ForceRelease { key, owner }, Some(key.name()))? {
            Reply::Released => {
                // It may be this very process's, which need not be listening.
                self.ask_about(owner);
                Ok(true)
            }
            Reply::NotOwner(_) => Ok(false),
            _ => Err(Failure::another_question().into_error(Some(key.name()))),
        }
    }

    /// Has Redis asked whether an owner still holds what this process has under it.
    ///
    /// It looks through all names in use. That takes some milliseconds where there are very many; an index would cost
    /// every lease memory, for what hardly ever happens.
    pub(crate) fn ask_about(&self, owner: &str) {
        // By its label an owner is mostly known for another process's.
        if owner::label(owner) != Some(&self.settings.label) {
            return;
        }
        let owner = Owner::new(owner, &self.settings.label);
        for entry in self.names.all() {
            let state = entry.lock();
            let its = state
                .queue
                .process_leases()
                .find(|process_lease| process_lease.owner == owner);
            let its = its.cloned();
            drop(state);
            if let Some(process_lease) = its {
                self.renewal.renew_now(self, &process_lease);
            }
        }
    }

    fn reply_to(&self, call: &Call<'_>, name: Option<&str>) -> Result<Reply> {
        self.check_open()?;
        let answer = self.send(call, self.limits(None));
        Ok(answer.map_err(|failure| failure.into_error(name))?.reply)
    }
}
