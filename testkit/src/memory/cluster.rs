//! The knowledge of a cluster's node. `nodes` has its answers.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::arguments::CommandError;
use super::keyspace::StoredKey;
use super::resp::Resp;

/// The port of the cluster bus is that of the clients and this.
const BUS: u32 = 10_000;

/// The table of a node.
#[derive(Clone, Debug, Default)]
pub struct ClusterTable {
    /// The place of this node in `nodes`.
    pub own: usize,
    /// The nodes that it knows.
    pub nodes: Vec<ClusterNode>,
    /// The slots, and the places of their masters.
    pub ranges: Vec<(RangeInclusive<u16>, usize)>,
    /// The slot that moves away, and where to.
    pub migrating: Option<(u16, usize)>,
    /// The slot that moves to here, and where from.
    pub importing: Option<(u16, usize)>,
}

/// A node of a cluster, as another one knows it.
#[derive(Clone, Debug)]
pub struct ClusterNode {
    /// Its name, of 40 digits.
    pub id: String,
    /// Its host and its port.
    pub address: (String, u16),
    /// The epoch of the last change that gave it slots, or gave its master slots.
    pub config_epoch: u64,
    /// The place of its master, if it is a replica.
    pub master: Option<usize>,
}

/// A message of a channel, for the other nodes.
#[derive(Clone, Debug)]
pub struct ChannelMessage {
    pub(super) channel: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

/// A server as a node of a cluster.
#[derive(Default)]
pub(super) struct ClusterMember {
    pub(super) table: ClusterTable,
    pub(super) published: Vec<ChannelMessage>,
    /// Until when the node rejects requests.
    pub(super) rejects_until: Duration,
}

/// A key that is on its way to another node.
#[derive(Debug)]
pub struct MovedKey {
    pub(super) stored: StoredKey,
    /// For how long it lives, in ms.
    pub(super) ttl: Option<i64>,
}

impl ClusterTable {
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        let mut ranges = self.ranges.iter();
        let range = ranges.find(|(slots, _)| slots.contains(&slot));
        range.map(|(_, owner)| *owner)
    }

    pub(super) fn redirection(&self, word: &str, slot: u16, to: usize) -> CommandError {
        let (host, port) = &self.nodes[to].address;
        CommandError(format!("{word} {slot} {host}:{port}"))
    }

    /// `CLUSTER SLOTS`.
    pub(super) fn slots(&self) -> Resp {
        let ranges = self.ranges.iter().map(|(slots, owner)| {
            let replicas = self.nodes.iter();
            let replicas = replicas.filter(|node| node.master == Some(*owner));
            let nodes = [&self.nodes[*owner]].into_iter().chain(replicas);
            let nodes = nodes.map(|node| {
                let (host, port) = &node.address;
                let port = Resp::Int(i64::from(*port));
                Resp::Array(vec![
                    Resp::bulk(host.as_str()),
                    port,
                    Resp::bulk(node.id.as_str()),
                ])
            });
            let bounds = [slots.start(), slots.end()].map(|slot| Resp::Int(i64::from(*slot)));
            Resp::Array(bounds.into_iter().chain(nodes).collect())
        });
        Resp::Array(ranges.collect())
    }

    /// `CLUSTER NODES`.
    pub(super) fn lines(&self) -> String {
        let lines = self.nodes.iter().enumerate().map(|(place, node)| {
            let (host, port) = &node.address;
            let own = if place == self.own { "myself," } else { "" };
            let (role, master) = match node.master {
                Some(master) => ("slave", self.nodes[master].id.as_str()),
                None => ("master", "-"),
            };
            let ranges = self.ranges.iter().filter(|(_, owner)| *owner == place);
            let ranges = ranges.map(|(slots, _)| format!(" {}-{}", slots.start(), slots.end()));
            format!(
                "{} {host}:{port}@{} {own}{role} {master} 0 0 {} connected{}\n",
                node.id,
                u32::from(*port) + BUS,
                node.config_epoch,
                ranges.collect::<String>()
            )
        });
        lines.collect()
    }
}
