//! The master of a Sentinel set, which changes with each failover.
//!
//! A thread finds the master ([`search`]) and publishes it with a number ([`crate::server::finder`]). All connections of a
//! manager go to the published master: those of the pool, that of the renewal thread, and that of the listener. A
//! connection that was opened before the last change is closed at its next use. The same address with a later epoch is
//! another master.
//!
//! The master is suspected if a connection to it fails, if the server answers that it is a replica, or if a check finds no
//! master. The master is *known* while it is not suspected.
//!
//! A request is sent only while the master is known, and waits for that within its time limit. An answer counts only if
//! the master is the same after it. The reply to a request that wrote nothing is no proof, because a server that has become
//! a replica may answer it from old data: the link then asks for the server's `ROLE` too ([`crate::server::link`]).
//!
//! Sentinel copies writes to replicas without waiting for them, so a failover may lose a lock. The holder learns of it at its
//! next renewal. The fence is larger after the failover than before, because it follows the servers' time, unless the clock of
//! the new master is behind.

mod opinion;
mod search;

use std::time::Duration;

use crate::config::{SentinelSet, Settings};
use crate::error::Failure;
use crate::net::deadline::Deadline;
use crate::net::pubsub::{self, PubSubEvent};
use crate::net::refusal::unavailable;
use crate::net::route::{Route, route};
use crate::server::finder::Finder;
use crate::sys::Arc;

pub(crate) use search::check_role;
use search::{Master, Sentinels};

/// The longest wait of the listener for a master.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The master that was found last.
pub(crate) struct Discovery {
    pub(super) finder: Arc<Finder<Master>>,
    /// The way to the master before one was found. It has what all masters share.
    pub(super) unknown: Route,
}

impl Discovery {
    pub(crate) fn new(set: SentinelSet, settings: &Settings) -> Self {
        let settings = Settings {
            // Only the events thread may keep it.
            listener: None,
            ..settings.clone()
        };
        let unknown = route(set.unknown_master(), &settings);
        let addresses = set.sentinels.iter().map(|server| &*server.address);
        let asked = format!("sentinel of {}", addresses.collect::<Vec<_>>().join(", "));
        let search = Box::new(Sentinels::new(set, settings, unknown.clone()));
        Self {
            finder: Finder::new("leasehold-sentinel", asked, search),
            unknown,
        }
    }

    /// Returns the number of the master, and the way to it. Blocks until it is known, or the time or the call is over.
    ///
    /// # Errors
    ///
    /// Returns the reason why no master is known.
    pub(crate) fn master(&self, deadline: Deadline<'_>) -> Result<(u64, Route), Failure> {
        self.finder.wait(deadline, |findings| {
            let (number, master) = findings.trusted()?;
            Some((number, master.route.clone()))
        })
    }

    /// Listens at the master until `hear` returns false. See [`crate::server::Store::listen`].
    pub(crate) fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        // The caller pauses and tries again, or learns that it must end.
        let limit = self.unknown.connect_timeout.min(LONGEST_WAIT);
        let master = self.master(Deadline::after(limit));
        let (number, route) = master.inspect_err(|failure| {
            hear(PubSubEvent::Node(self.unknown.report(Some(failure))));
        })?;
        let mut is_wanted = true;
        let listened = pubsub::listen(&route, channels, &mut |event| {
            is_wanted = hear(event);
            is_wanted && self.finder.is_last(number)
        });
        if let Err(failure) = &listened {
            if failure.is_transient() {
                self.finder.suspect(number);
            }
        } else if is_wanted {
            return Err(unavailable("the master has changed"));
        }
        listened
    }
}
