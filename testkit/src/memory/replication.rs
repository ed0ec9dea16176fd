//! The state of a server's replication. `replicas` changes it.

use std::collections::BTreeMap;
use std::time::Duration;

use std::sync::Arc;

use super::keyspace::{Keyspace, StoredKey};

/// The host and the port of a server.
pub(super) type HostPort = (String, u16);

/// The values of the keys that one command of a master has written.
#[derive(Debug)]
pub struct Change {
    pub(super) offset: i64,
    /// The database, the key, and its value. `None` if the key was deleted.
    pub(super) keys: Vec<(usize, Vec<u8>, Option<StoredKey>)>,
}

/// All data of a server.
#[derive(Debug)]
pub struct DataCopy {
    pub(super) offset: i64,
    pub(super) databases: BTreeMap<usize, Keyspace>,
}

/// The part of a server that concerns replication.
#[derive(Default)]
pub(super) struct Replication {
    /// The master, if this server is a replica.
    pub(super) master: Option<HostPort>,
    /// The number of the last change.
    pub(super) offset: i64,
    /// The changes that the caller has not taken.
    pub(super) changes: Vec<Arc<Change>>,
    /// The replicas, by the numbers that the caller gives them.
    pub(super) replicas: BTreeMap<usize, Replica>,
    /// Whether it ever had one.
    pub(super) had_a_replica: bool,
    pub(super) waits: Vec<BlockedClient>,
    /// Until when the server loads its data.
    pub(super) loading_until: Duration,
}

/// A replica, as its master sees it.
pub(super) struct Replica {
    pub(super) address: HostPort,
    /// The number of the last change that it has confirmed, if it has confirmed any.
    pub(super) confirmed: Option<i64>,
}

/// A client in a `WAIT`.
pub(super) struct BlockedClient {
    pub(super) connection: u64,
    pub(super) needed: usize,
    /// The number of its last change.
    pub(super) offset: i64,
    /// `None` if it waits without end.
    pub(super) until: Option<Duration>,
}

/// The master that a sentinel watches, as it sees it. Addresses are hosts with ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedMaster {
    /// Its name among the masters of the sentinel.
    pub name: String,
    /// Where clients find the master.
    pub address: (String, u16),
    /// The address in the report. It is older while the sentinel leads a failover.
    pub reported: (String, u16),
    /// The epoch of the failover that made it the master.
    pub config_epoch: u64,
}

impl Replication {
    pub(super) fn count_confirmed(&self, offset: i64) -> usize {
        let replicas = self.replicas.values();
        let have = replicas.filter(|replica| replica.confirmed.is_some_and(|it| it >= offset));
        have.count()
    }

    /// Forgets what ends with the process of the server.
    pub(super) fn restart(&mut self) {
        self.replicas.clear();
        self.waits.clear();
        self.changes.clear();
        self.loading_until = Duration::ZERO;
    }

    pub(super) fn is_master(&self) -> bool {
        self.master.is_none()
    }

    /// Returns the fields of `INFO replication`.
    pub(super) fn info(&self) -> String {
        match &self.master {
            None => format!(
                "role:master\r\nconnected_slaves:{}\r\nmaster_repl_offset:{}\r\n",
                self.replicas.len(),
                self.offset
            ),
            Some((host, port)) => {
                format!("role:slave\r\nmaster_host:{host}\r\nmaster_port:{port}\r\n")
            }
        }
    }
}
