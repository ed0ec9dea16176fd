//! The servers as the layers above see them: one [`Store`], whatever is behind it.
//!
//! 1. The engine makes a request by [`Store::call`].
//! 2. The store knows the master that it is for: the only one, the one that the sentinels have named, or the owner of the
//!    name's slot in a cluster. A thread finds these, and finds them again after a failover (`finder`).
//! 3. The store checks a link to that master out of its pool. The link sends the request, and sends it again if a connection
//!    that was open before turns out to be closed (`link`).
//! 4. The answer counts if the server is still the master: a demoted one may answer from old data.
//!
//! The renewal thread has a connection of its own ([`Store::dedicated_connection`]), and the wakeup thread listens
//! ([`Store::listen`]).
//!
//! A *node* is one logical Redis that runs one script atomically. On a cluster the keys of one script must share a slot
//! ([`Store::has_slots`]). Every other node holds all keys, whatever their slots.
//!
//! | module | its subject |
//! | --- | --- |
//! | `single` | the store of one server, at a fixed address or behind sentinels |
//! | `sentinel` | the master of a Sentinel set |
//! | `cluster` | the masters of a Redis Cluster, by slot |
//! | `finder` | the thread that finds the servers of a Sentinel set or a cluster |
//! | `link` | a request's way over a connection to the master that it is for |
//!
//! The store of several independent servers is [`quorum`](crate::quorum). It has a `link` to each of them.

use std::time::Duration;

use crate::error::Failure;
use crate::net::deadline::Deadline;
use crate::net::login::Pinged;
use crate::net::pubsub::PubSubEvent;
use crate::net::route::NodeReport;
use crate::sys::{Arc, Time};
use crate::wire::{Reply, Request};

pub(crate) mod cluster;
mod finder;
pub(crate) mod link;
mod sentinel;
pub(crate) mod single;

/// The reply to a request, and whether the request was sent twice.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// Whether the request was sent twice, because the first connection turned out to be closed. The server may have
    /// executed it twice, or may execute the first one later.
    pub(crate) resent: bool,
}

/// The way of the layers above to Redis.
///
/// The methods that return a [`Time`], [`has_slots`](Store::has_slots) and [`votes`](Store::votes) take no mutex, so they may be
/// called under the mutex of a name. All others, and those of [`Votes`], take mutexes of the store, and may block.
pub(crate) trait Store: Send + Sync {
    /// Sends a request on a pooled connection, and returns the reply. Blocks until there is a reply or a failure. The time
    /// limits of connecting, and of input and output, hold too.
    fn call(&self, request: &Request<'_>, deadline: Deadline<'_>) -> Result<Answer, Failure>;

    /// Asks each server whether it answers, on a new connection. Returns its address, and the time of a round trip or its
    /// failure.
    ///
    /// # Errors
    ///
    /// Returns the reason why no server is known.
    fn ping(&self, _deadline: Deadline<'_>) -> Result<Vec<Pinged>, Failure> {
        Ok(Vec::new())
    }

    /// Returns whether all names of one request must share a slot.
    fn has_slots(&self) -> bool {
        false
    }

    /// Returns the votes, if several independent nodes vote.
    fn votes(&self) -> Option<&dyn Votes> {
        None
    }

    /// Returns a connection outside the pool, for a single thread. So a thousand waiting threads that use up the pool
    /// cannot delay that thread. It connects at its first request.
    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection>;

    /// Returns when the store last saw a sign that a server may have lost its data: a connection that the other side
    /// closed or refused, or a server that was started again. Returns the clock's zero if there was none.
    fn last_data_loss_sign(&self) -> Time {
        Time::from_nanos(0)
    }

    /// Returns when the last failover was noticed: a replica has become the master of some names, and may lack the last
    /// writes. It was noted before any request went to the new master. Returns the clock's zero if there was none: most
    /// stores cannot fail over.
    fn last_failover(&self) -> Time {
        Time::from_nanos(0)
    }

    /// Returns when an answer without a request was last seen: a lease that was confirmed before may be no grant. Returns
    /// the clock's zero if there was none.
    fn last_surplus(&self) -> Time {
        Time::from_nanos(0)
    }

    /// Subscribes to the channels, and reports each event to `hear` until `hear` returns false.
    ///
    /// # Errors
    ///
    /// Returns the reason why the subscription failed or broke.
    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure>;
}

/// The votes that each owner has at several independent nodes. After a loss, some of the nodes may still have the lock.
pub(crate) trait Votes {
    /// Returns until when nodes may have an owner that has ended, because they have not confirmed its end. Returns `None` if
    /// all have, or if the owner has not ended.
    fn left_until(&self, owner: &str) -> Option<Time>;

    /// Returns whether an owner has ended, and a node that may have it has not confirmed that at all.
    fn has_unconfirmed(&self) -> bool;

    /// Forgets an owner of which [`left_until`](Self::left_until) may have returned a time. Nobody releases it any more.
    fn forget(&self, owner: &str);

    /// Returns whether the lease of an owner lacks votes that a renewal may bring.
    fn lacks_votes(&self, owner: &str) -> bool;

    /// Returns the nodes without a vote for an owner.
    fn missing_nodes(&self, owner: &str) -> Vec<Arc<str>>;
}

/// A connection for a single thread.
pub(crate) trait DedicatedConnection: Send {
    /// Connects, and prepares for renewals, unless it is connected. If it `is_silent`, because no reply has come for a while,
    /// it looks whether the server still answers, and otherwise connects anew.
    ///
    /// # Errors
    ///
    /// Returns the reason why it could not connect. The next request tries again.
    fn open(&mut self, _is_silent: bool) -> Result<(), Failure> {
        Ok(())
    }

    /// Sends a request, and returns the reply. On an open connection that takes at most `limit`, or two round trips of
    /// the link if those take longer, but at most `io_timeout`.
    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure>;

    /// Returns what the requests since the last call of this function have shown of the servers. A report may repeat an
    /// earlier one.
    fn take_reports(&mut self) -> Vec<NodeReport> {
        Vec::new()
    }
}
