//! A cluster: its masters with their replicas, and slots that move.
//!
//! Each node has a table of the slots, which may be old:
//!
//! | event | who knows at once | who learns later |
//! | --- | --- | --- |
//! | a slot moves: begin | the master to which it moves, and then the one that has it | nobody |
//! | a slot moves: each key goes to the other master, after a while | | |
//! | a slot moves: end | the new owner | the old owner, and then the other nodes |
//! | a failover | the new master | the other nodes, and at the end of the fault the old master |
//!
//! Messages go to the clients of all nodes that are up. A node that has restarted rejects requests by `CLUSTERDOWN` for a
//! while. While a slot moves, its two masters do not fail over: the operator would have to mend the slot then.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use leasehold::seam::slot_of;
use leasehold_testing::memory::{ChannelMessage, ClusterNode, ClusterTable};

use crate::network::{Network, host};
use crate::programs::TIMED;
use crate::replication::PORT;
use crate::world::{Event, WorldState};

const SLOTS: u16 = 16_384;
/// When a node learns of a change.
const LEARNS_AFTER: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(2);
/// The time between two steps of a move.
const STEP: Range<Duration> = Duration::from_micros(100)..Duration::from_millis(50);
/// When a message arrives at another node.
const MESSAGE_TAKES: Range<Duration> = Duration::from_micros(30)..Duration::from_millis(3);
/// How long a node that has restarted rejects requests.
const REJECTS_FOR: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(2);

/// What the nodes of a cluster agree on in the end.
pub(crate) struct Cluster {
    latest: View,
    /// The view of each node.
    views: Vec<View>,
    /// The table that each node has.
    tables: Vec<ClusterTable>,
    /// The old masters that do not know of their successors.
    unaware: BTreeSet<usize>,
    /// The slot that moves.
    moving: Option<Move>,
}

/// The owners of the slots at some time.
#[derive(Clone)]
struct View {
    version: u64,
    /// The slots, and their groups.
    ranges: Vec<(RangeInclusive<u16>, usize)>,
    /// The master of each group, and its config epoch.
    masters: Vec<(usize, u64)>,
}

struct Move {
    slot: u16,
    /// The groups.
    from: usize,
    to: usize,
    /// When the first key moves.
    keys_move_at: Duration,
    ends_at: Duration,
    /// Whether the master that has the slot knows of the move.
    has_begun: bool,
}

/// An event of a cluster.
#[derive(Debug)]
pub(crate) enum ClusterEvent {
    /// A node learns of the latest changes.
    Learns { node: usize },
    /// The next step of the move.
    Step,
    /// A message arrives at another node.
    Message {
        node: usize,
        message: ChannelMessage,
    },
}

impl Cluster {
    /// Makes the cluster of these groups, whose first members are the masters.
    pub(crate) fn new(groups: usize, nodes: usize) -> Self {
        let share = SLOTS / groups as u16;
        let ranges = (0..groups).map(|group| {
            let first = group as u16 * share;
            let is_last = group + 1 == groups;
            let last = if is_last {
                SLOTS - 1
            } else {
                first + share - 1
            };
            (first..=last, group)
        });
        let latest = View {
            version: 0,
            ranges: ranges.collect(),
            masters: (0..groups).map(|group| (group, group as u64 + 1)).collect(),
        };
        Self {
            views: vec![latest.clone(); nodes],
            latest,
            tables: vec![ClusterTable::default(); nodes],
            unaware: BTreeSet::new(),
            moving: None,
        }
    }

    /// Returns the group that has the slot of a key, and the one to which the slot moves.
    pub(crate) fn groups_of(&self, key: &str) -> (usize, Option<usize>) {
        let slot = slot_of(key);
        let moving = self.moving.as_ref().filter(|moving| moving.slot == slot);
        (self.latest.owner(slot), moving.map(|moving| moving.to))
    }

    /// Returns whether a slot of a group moves.
    pub(crate) fn is_moving(&self, group: usize) -> bool {
        let moving = self.moving.as_ref();
        moving.is_some_and(|moving| [moving.from, moving.to].contains(&group))
    }
}

impl View {
    fn owner(&self, slot: u16) -> usize {
        let mut ranges = self.ranges.iter();
        let range = ranges.find(|(slots, _)| slots.contains(&slot));
        range.expect("each slot has an owner").1
    }

    /// Gives a slot to another group.
    fn give(&mut self, slot: u16, to: usize) {
        let ranges = std::mem::take(&mut self.ranges);
        for (slots, group) in ranges {
            let (first, last) = (*slots.start(), *slots.end());
            if !slots.contains(&slot) {
                self.ranges.push((slots, group));
                continue;
            }
            if first < slot {
                self.ranges.push((first..=slot - 1, group));
            }
            self.ranges.push((slot..=slot, to));
            if slot < last {
                self.ranges.push((slot + 1..=last, group));
            }
        }
    }

    fn next_epoch(&self) -> u64 {
        let epochs = self.masters.iter().map(|(_, epoch)| *epoch);
        epochs.max().unwrap_or(0) + 1
    }
}

impl Network {
    fn table(&self, node: usize) -> Option<ClusterTable> {
        let cluster = self.cluster.as_ref()?;
        let view = &cluster.views[node];
        let nodes = (0..self.servers.len()).map(|number| {
            let group = number % view.masters.len();
            let (master, epoch) = view.masters[group];
            ClusterNode {
                id: format!("{:040x}", number + 1),
                address: (host(number), PORT),
                config_epoch: epoch,
                master: (master != number).then_some(master),
            }
        });
        let master = |group: usize| view.masters[group].0;
        let ranges = view.ranges.iter();
        let mut table = ClusterTable {
            own: node,
            nodes: nodes.collect(),
            ranges: ranges
                .map(|(slots, group)| (slots.clone(), master(*group)))
                .collect(),
            migrating: None,
            importing: None,
        };
        if let Some(moving) = &cluster.moving {
            let (from, to) = (master(moving.from), master(moving.to));
            if node == to {
                table.importing = Some((moving.slot, from));
            }
            if node == from && moving.has_begun {
                table.migrating = Some((moving.slot, to));
            }
        }
        Some(table)
    }
}

impl WorldState {
    fn plan_cluster(&mut self, after: Duration, event: ClusterEvent) {
        self.plan(after, Event::OfCluster(event));
    }

    /// Tells each node its table, at the begin of a schedule.
    pub(crate) fn begin_cluster(&mut self) {
        for node in 0..self.network.servers.len() {
            self.give_table(node);
        }
    }

    /// Tells a node its table.
    fn give_table(&mut self, node: usize) {
        let table = self.network.table(node);
        if let Some((table, cluster)) = table.zip(self.network.cluster.as_mut()) {
            self.network.servers[node]
                .server
                .state()
                .take_table(table.clone());
            cluster.tables[node] = table;
        }
    }

    /// Gives a node that restarts its table, which is in its configuration file. The node rejects requests for a while.
    pub(crate) fn restart_node(&mut self, node: usize, up_at: Duration) {
        let Some(cluster) = &self.network.cluster else {
            return;
        };
        let table = cluster.tables[node].clone();
        self.network.servers[node].server.state().take_table(table);
        let until = up_at + self.random.length(REJECTS_FOR);
        let its = &mut self.network.servers[node];
        its.server.state().reject_until(its.clock.read(until));
    }

    /// Notes a failover of a group.
    pub(crate) fn cluster_fails_over(&mut self, group: usize, old: usize, new: usize) {
        let Some(cluster) = &mut self.network.cluster else {
            return;
        };
        let epoch = cluster.latest.next_epoch();
        cluster.latest.masters[group] = (new, epoch);
        cluster.latest.version += 1;
        cluster.unaware.insert(old);
        self.node_learns(new);
        self.tell_nodes();
    }

    /// Notes that an old master has learned of its successor.
    pub(crate) fn becomes_aware(&mut self, node: usize) {
        if let Some(cluster) = &mut self.network.cluster {
            cluster.unaware.remove(&node);
            self.node_learns(node);
        }
    }

    /// Has all nodes learn of the latest changes, one after the other.
    fn tell_nodes(&mut self) {
        for node in 0..self.network.servers.len() {
            let after = self.random.length(LEARNS_AFTER);
            self.plan_cluster(after, ClusterEvent::Learns { node });
        }
    }

    fn node_learns(&mut self, node: usize) {
        let Some(cluster) = &mut self.network.cluster else {
            return;
        };
        if cluster.unaware.contains(&node) {
            return;
        }
        if cluster.views[node].version < cluster.latest.version {
            cluster.views[node] = cluster.latest.clone();
        }
        self.give_table(node);
    }

    pub(crate) fn cluster_event(&mut self, event: ClusterEvent) {
        match event {
            ClusterEvent::Learns { node } => self.node_learns(node),
            ClusterEvent::Step => self.step_of_move(),
            ClusterEvent::Message { node, message } => {
                let its = &mut self.network.servers[node];
                if its.down_until <= self.now {
                    its.server.state().deliver(&message);
                    self.send_output_of(node);
                }
            }
        }
    }

    /// Sends the messages of a node to the others.
    pub(crate) fn spread_messages(&mut self, node: usize) {
        let messages = self.network.servers[node].server.state().take_published();
        for message in messages {
            for other in (0..self.network.servers.len()).filter(|other| *other != node) {
                let after = self.random.length(MESSAGE_TAKES);
                let message = message.clone();
                self.plan_cluster(
                    after,
                    ClusterEvent::Message {
                        node: other,
                        message,
                    },
                );
            }
        }
    }

    /// Begins to move the slot of a key. Returns false if it cannot move now.
    pub(crate) fn move_slot(&mut self, key: &str, length: Duration) -> bool {
        let now = self.now;
        let Some(cluster) = &self.network.cluster else {
            return false;
        };
        let slot = slot_of(key);
        let from = cluster.latest.owner(slot);
        let groups = cluster.latest.masters.len();
        let is_possible = cluster.moving.is_none() && cluster.unaware.is_empty();
        let to = (from + 1 + self.random.index(groups - 1)) % groups;
        let masters = [from, to].map(|group| self.network.groups[group].master);
        let Some(cluster) = self.network.cluster.as_mut().filter(|_| is_possible) else {
            return false;
        };
        cluster.moving = Some(Move {
            slot,
            from,
            to,
            keys_move_at: now + length / 2,
            ends_at: now + length,
            has_begun: false,
        });
        self.trace
            .note(now, format_args!("slot {slot} moves from {masters:?}"));
        for master in masters {
            self.node_learns(master);
        }
        self.step_soon();
        true
    }

    fn step_soon(&mut self) {
        let after = self.random.length(STEP);
        self.plan_cluster(after, ClusterEvent::Step);
    }

    fn step_of_move(&mut self) {
        let now = self.now;
        let Some(moving) = self
            .network
            .cluster
            .as_mut()
            .and_then(|cluster| cluster.moving.as_mut())
        else {
            return;
        };
        let (slot, ends_at, keys_move_at) = (moving.slot, moving.ends_at, moving.keys_move_at);
        let has_begun = std::mem::replace(&mut moving.has_begun, true);
        let [from, to] = [moving.from, moving.to].map(|group| self.network.groups[group].master);
        let (to_group, servers) = (moving.to, &self.network.servers);
        let is_up =
            |server: usize| servers[server].down_until <= now && !servers[server].stalls(now);
        if !has_begun {
            self.give_table(from);
            return self.step_soon();
        }
        if now < keys_move_at || !is_up(from) || !is_up(to) {
            return self.step_soon();
        }
        if let Some(key) = self.network.servers[from].server.state().key_of_slot(slot) {
            self.move_key(&key, from, to);
            return self.step_soon();
        }
        if now < ends_at {
            return self.step_soon();
        }
        let Some(cluster) = &mut self.network.cluster else {
            return;
        };
        let latest = &mut cluster.latest;
        latest.give(slot, to_group);
        latest.masters[to_group].1 = latest.next_epoch();
        latest.version += 1;
        cluster.moving = None;
        self.trace
            .note(now, format_args!("slot {slot} is with {to}"));
        // The old owner goes on redirecting by ASK until it learns.
        self.node_learns(to);
        self.tell_nodes();
    }

    fn move_key(&mut self, key: &[u8], from: usize, to: usize) {
        let time_of =
            |state: &Self, server: usize| state.network.servers[server].clock.read(state.now);
        let [given_at, taken_at] = [from, to].map(|server| time_of(self, server));
        let servers = &mut self.network.servers;
        let given = servers[from].server.state().give_key(key, given_at);
        let has_moved = given.is_some();
        if let Some(value) = given {
            servers[to].server.state().take_key(key, value, taken_at);
        }
        let key = String::from_utf8_lossy(key).into_owned();
        self.trace
            .note(self.now, format_args!("{key} moves from {from} to {to}"));
        // Its times are over earlier by a clock that is ahead.
        if taken_at > given_at && TIMED.contains(&&*key) {
            self.ends_beyond_the_assumptions(Some(&key), self.now);
        }
        self.server_has_run(from);
        self.server_has_run(to);
        if has_moved {
            self.network.links.note_moved_key(to);
        }
    }
}
