//! The state of a server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arguments::Arguments;
use super::cluster::ClusterMember;
use super::keyspace::Keyspace;
use super::lua::Scripts;
use super::replication::{Replication, WatchedMaster};
use super::resp::Resp;
use super::users::Users;

/// All that a server has.
pub struct ServerState {
    pub(super) databases: BTreeMap<usize, Keyspace>,
    /// The clients, by the numbers of their connections.
    pub(super) peers: BTreeMap<u64, Peer>,
    pub(super) next_connection: u64,
    pub(super) scripts: Scripts,
    pub(super) users: Users,
    /// The server's time since 1970.
    pub(super) now: Duration,
    pub(super) started_at: Duration,
    pub(super) run_id: String,
    pub(super) replication: Replication,
    /// The state of a node of a cluster.
    pub(super) cluster: Option<ClusterMember>,
    /// The master that this server watches, if it is a sentinel.
    pub(super) watched: Option<WatchedMaster>,
    /// What it refuses for a while.
    pub(super) refusal: Option<Refusal>,
    /// Executes a command that a script calls.
    pub(super) execute_for_script: fn(&mut Self, u64, &Arguments<'_>) -> Resp,
    /// Executes each request of a connection that is whole.
    pub(super) execute_unread: fn(&mut Self, u64),
}

/// What a server refuses, as one does that has no disk, no memory, or no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub what: Refused,
    /// The error that it answers with.
    pub error: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Writes,
    /// What a server refuses whose disk has failed.
    WritesAndPing,
    /// The writes that need memory.
    Growth,
    /// All but what a server answers while it loads its data.
    Data,
    All,
}

/// A client, as the server sees it.
#[derive(Default)]
pub(super) struct Peer {
    /// Bytes of the client that are no whole request yet.
    pub(super) unread: Vec<u8>,
    /// Bytes for the client, which has not taken them yet.
    pub(super) out: Vec<u8>,
    /// The user that has logged in.
    pub(super) user: Option<String>,
    pub(super) database: usize,
    pub(super) channels: BTreeSet<Vec<u8>>,
    /// Whether the server has closed it. The client still receives the bytes in `out`.
    pub(super) is_closed: bool,
    /// Whether it is in a `WAIT`.
    pub(super) is_blocked: bool,
    /// Whether the last request was `ASKING`.
    pub(super) is_asking: bool,
    /// The number of the change that its last write has made.
    pub(super) last_write: i64,
}

impl ServerState {
    /// Makes the server refuse commands, or no longer.
    pub fn refuse(&mut self, refusal: Option<Refusal>) {
        self.refusal = refusal;
    }

    pub(super) fn is_subscribed(&self, connection: u64) -> bool {
        let peer = self.peers.get(&connection);
        peer.is_some_and(|peer| !peer.channels.is_empty())
    }
}
