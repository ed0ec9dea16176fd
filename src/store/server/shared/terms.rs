//! The demands of a call on the connection that it uses.

use crate::message::{LockKind, Request};
use crate::name::{Fingerprint, LockKey};

/// The properties of a call.
#[derive(Clone, Copy)]
pub(crate) struct CallTerms {
    /// A fingerprint of the key. `None` if no other thread may use the connection.
    pub(super) key: Option<Fingerprint>,
    pub(super) has_priority: bool,
}

impl CallTerms {
    /// Returns the terms of a call. `is_confirmed` means that replicas must confirm what it gains.
    pub(super) fn of(request: &Request<'_>, has_priority: bool, is_confirmed: bool) -> Self {
        let key = match request {
            Request::Lock { target, kind, verb } => {
                let is_of_one = *kind != LockKind::Multi || target.keys().len() == 1;
                let shares = is_of_one && !(is_confirmed && verb.asks());
                shares.then_some(target.first())
            }
            Request::RateLimit { key, .. } => Some(*key),
            Request::Adopt { key, .. } => Some(*key).filter(|_| !is_confirmed),
            Request::Ping
            | Request::Renew(_)
            | Request::Release(_)
            | Request::Inspect { .. }
            | Request::Scan { .. }
            | Request::ForceRelease { .. }
            | Request::Publish { .. } => None,
        };
        Self {
            key: key.map(LockKey::fingerprint),
            has_priority: has_priority || request.is_of_a_holder(),
        }
    }

    /// Returns the number of the queue in which a thread waits at the gate. Threads of a lower number enter first.
    pub(super) fn queue(self) -> usize {
        usize::from(!self.has_priority) * 2 + usize::from(self.key.is_some())
    }
}
