//! Requests of operators: to inspect and list locks, to release a lock by force, and to ask for its release.
//! [`super::lease`] says how a holder learns of the last two.

use std::time::Duration;

use crate::engine::Engine;
use crate::error::{Error, Failure, Result};
use crate::name::{LockKey, REQUEST};
use crate::owner;
use crate::sys::Arc;
use crate::wire::{Cursor, Reply, Request, Seen};

/// The longest reason of a request to release a lock, in bytes.
const MOST_OF_A_REASON: usize = 1024;

/// How many locks one request inspects when they are listed. The server serves nobody else for about a millisecond.
const INSPECTED_TOGETHER: usize = 200;

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

    /// Returns one page of the locks whose names match `pattern`. A pattern that only one name matches is not looked for
    /// among all keys of the server.
    pub(crate) fn page(&self, from: Cursor, pattern: &str) -> Result<Page> {
        let prefix = &self.client.settings.prefix;
        if !pattern.contains(['*', '?', '[', '\\']) {
            self.client.check_open()?;
            let named: Vec<_> = LockKey::new(prefix, pattern).into_iter().collect();
            return Ok((self.inspect_found(&named)?, None));
        }
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
        Ok((self.inspect_found(&keys)?, next))
    }

    /// Returns those of these keys that are locks which are held or waited for.
    fn inspect_found(&self, keys: &[LockKey]) -> Result<Vec<(LockKey, Seen)>> {
        let mut locks = Vec::new();
        let mut unseen = keys;
        while !unseen.is_empty() {
            let request = Request::Inspect {
                keys: &unseen[..unseen.len().min(INSPECTED_TOGETHER)],
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
        Ok(locks)
    }

    /// Asks each server whether it answers. Returns its address, and the time of a round trip or its failure.
    pub(crate) fn ping(&self) -> Result<Vec<(Arc<str>, Result<Duration>)>> {
        let client = &self.client;
        client.check_open()?;
        let _called = client.machine().begin_call();
        let pings = client.store.ping(client.deadline(None));
        let pings = pings.map_err(|failure| failure.into_error(None))?;
        let error = |failure: Failure| failure.into_error(None);
        let pings = pings
            .into_iter()
            .map(|(server, result)| (server, result.map_err(error)));
        Ok(pings.collect())
    }

    /// Releases the lock of an owner by force. Returns false if the owner does not hold it.
    pub(crate) fn force_release(&self, key: &LockKey, owner: &str) -> Result<bool> {
        match self.reply_to(&Request::ForceRelease { key, owner }, Some(key.name()))? {
            Reply::Released => {
                // The owner may belong to this process, which may have no subscription.
                self.released_by_force(owner);
                Ok(true)
            }
            Reply::NotOwner(_) => Ok(false),
            _ => Err(Failure::another_question().into_error(Some(key.name()))),
        }
    }

    /// Asks the holders of a lock to release it. Returns false if nobody holds it.
    pub(crate) fn request_release(&self, key: &LockKey, why: &str) -> Result<bool> {
        if why.len() > MOST_OF_A_REASON {
            return Err(Error::config("why", "longer than 1,024 bytes"));
        }
        let holders = self.inspect(key)?.map(|seen| seen.holders);
        let mut is_held = false;
        for holder in holders
            .into_iter()
            .flatten()
            .filter(|holder| !holder.is_kept)
        {
            is_held = true;
            if owner::is_ours(&holder.owner) {
                let at = self.client.machine().wall_us();
                let message = format!("{REQUEST}{} {at} {why}", holder.owner);
                let message = &*message;
                self.reply_to(&Request::Publish { key, message }, Some(key.name()))?;
            }
        }
        Ok(is_held)
    }

    fn reply_to(&self, request: &Request<'_>, name: Option<&str>) -> Result<Reply> {
        let client = &self.client;
        client.check_open()?;
        let answer = client.send(request, client.deadline(None));
        Ok(answer.map_err(|failure| failure.into_error(name))?.reply)
    }
}
