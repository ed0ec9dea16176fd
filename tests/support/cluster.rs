//! A Redis Cluster: three masters, and mostly a replica of each.

use std::collections::BTreeMap;

use leasehold::{Builder, LockManager};
use redis::Value;

use super::{Nodes, Raw, Server, build, secs, wait_until};

const MASTERS: usize = 3;
const NODES: usize = 6;
pub const SLOTS: usize = 16_384;

/// Three masters, and as many replicas or none. Dropping it ends them.
pub struct Cluster {
    nodes: Nodes,
}

/// The time after which a node counts as dead, in ms. A busy machine must not look like a dead master.
const NODE_TIMEOUT_MS: u32 = 2_000;
/// Longer than any test takes.
const NEVER_MS: u32 = 3_600_000;

/// A slot that is moving from one master to another.
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: &'a Server,
    to: &'a Server,
}

impl Cluster {
    /// Starts all nodes, and waits until each knows all slots and the replicas are in sync.
    #[track_caller]
    pub fn start() -> Self {
        Self::of(NODES, NODE_TIMEOUT_MS)
    }

    /// Starts three masters without replicas. No node calls another one dead within a test.
    #[track_caller]
    pub fn without_failover() -> Nodes {
        Self::of(MASTERS, NEVER_MS).nodes
    }

    #[track_caller]
    fn of(nodes: usize, node_timeout_ms: u32) -> Self {
        let start = || {
            let options = [
                "--cluster-node-timeout",
                &node_timeout_ms.to_string(),
                "--cluster-replica-validity-factor",
                "0",
                "--cluster-allow-replica-migration",
                "no",
                "--repl-diskless-sync-delay",
                "0",
                "--repl-ping-replica-period",
                "1",
            ];
            Server::of_cluster(&options)
        };
        let cluster = Self {
            nodes: Nodes::start_each(nodes, start),
        };
        cluster.form();
        cluster
    }

    #[track_caller]
    fn form(&self) {
        let servers = self.nodes.servers();
        for (number, server) in servers.iter().enumerate() {
            let epoch = (number + 1).to_string();
            let () = server.raw().ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            if number < MASTERS {
                let end = |number| number * SLOTS / MASTERS;
                give_slots(server, end(number)..end(number + 1));
            }
        }
        wait_until("the nodes know each other", || {
            self.introduce();
            servers.iter().all(|server| {
                let nodes = nodes_of(server);
                let is_known = |line: &String| line.contains(" connected");
                nodes.iter().filter(|line| is_known(line)).count() == servers.len()
                    && !nodes.iter().any(|line| line.contains("handshake"))
            })
        });
        for (replica, master) in servers[MASTERS..].iter().zip(servers) {
            let master = id_of(master);
            let () = replica.raw().ask(&["CLUSTER", "REPLICATE", &master]);
        }
        self.wait_until_well();
    }

    /// Has the first node meet each node that it does not know. It gives up a node that does not answer within the time
    /// after which nodes count as dead, so on a busy machine one meeting may not be enough.
    #[track_caller]
    fn introduce(&self) {
        let servers = self.nodes.servers();
        let known = nodes_of(&servers[0]);
        for server in &servers[1..] {
            let address = format!(" 127.0.0.1:{}@", server.port());
            if !known.iter().any(|line| line.contains(&address)) {
                let port = server.port().to_string();
                let meet = ["CLUSTER", "MEET", "127.0.0.1", &port];
                let () = servers[0].raw().ask(&meet);
            }
        }
    }

    /// Blocks until all nodes serve all slots, and each master has a replica in sync.
    #[track_caller]
    pub fn wait_until_well(&self) {
        // A master and its replica, if there are replicas.
        let of_a_range = self.servers().len() / MASTERS;
        wait_until("the cluster is well", || {
            self.servers().iter().all(|server| {
                let ranges = ranges_of(server);
                let slots: usize = ranges.iter().map(|(first, last, _)| last - first + 1).sum();
                let has_all = |range: &Range| range.2.len() == of_a_range;
                let is_whole = slots == SLOTS && ranges.iter().all(has_all);
                is_whole && is_ok(server) && (of_a_range == 1 || is_in_sync(server))
            })
        });
    }

    pub fn servers(&self) -> &[Server] {
        self.nodes.servers()
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.urls()
    }

    /// Returns settings for a busy machine.
    pub fn builder(&self) -> Builder {
        let builder = LockManager::cluster(self.urls());
        builder.connect_timeout(secs(20)).io_timeout(secs(15))
    }

    #[track_caller]
    pub fn manager(&self) -> LockManager {
        build(self.builder())
    }

    /// Returns `None` for port 0. A node reports it for a node whose address belongs to another server now.
    fn at_port(&self, port: u16) -> Option<&Server> {
        let mut servers = self.servers().iter();
        servers.find(|server| server.port() == port)
    }

    /// Returns the owner of a slot and its replica, as this node sees them. A node that is busy with a failover may see
    /// none.
    pub fn owner_by(&self, server: &Server, slot: u16) -> Option<(&Server, Option<&Server>)> {
        let ranges = ranges_of(server);
        let has = |range: &&Range| (range.0..=range.1).contains(&usize::from(slot));
        let ports = &ranges.iter().find(has)?.2;
        let replica = ports.get(1).and_then(|port| self.at_port(*port));
        Some((self.at_port(ports[0])?, replica))
    }

    /// Returns whether a node sees this server as the owner of a slot.
    pub fn is_owner_by(&self, server: &Server, slot: u16, owner: &Server) -> bool {
        let seen = self.owner_by(server, slot);
        seen.is_some_and(|(seen, _)| seen.port() == owner.port())
    }

    /// Returns the master of a name and its replica, while the cluster is well.
    #[track_caller]
    pub fn owner(&self, name: &str) -> (&Server, &Server) {
        let seen = self.owner_by(&self.servers()[0], slot_of(name));
        let (master, replica) = seen.expect("it has an owner");
        (master, replica.expect("it has a replica"))
    }

    /// Blocks until the replica of a failed master has its slots, in the view of all others.
    #[track_caller]
    pub fn wait_for_failover(&self, failed: &Server, replica: &Server, slot: u16) {
        wait_until("the replica is promoted", || {
            let mut others = self
                .servers()
                .iter()
                .filter(|server| server.port() != failed.port());
            others.all(|server| self.is_owner_by(server, slot, replica)) && is_ok(replica)
        });
    }

    /// Begins to move a slot to another master.
    #[track_caller]
    pub fn migrate<'a>(&'a self, slot: u16, to: &'a Server) -> Migration<'a> {
        let (from, _) = self.owner_by(to, slot).expect("it has an owner");
        let number = slot.to_string();
        let set = |server: &Server, what: &str, other: &Server| {
            let other = id_of(other);
            let () = server
                .raw()
                .ask(&["CLUSTER", "SETSLOT", &number, what, &other]);
        };
        set(to, "IMPORTING", from);
        set(from, "MIGRATING", to);
        Migration {
            cluster: self,
            slot,
            from,
            to,
        }
    }
}

impl Migration<'_> {
    /// Moves one key, if it is still there.
    #[track_caller]
    pub fn move_key(&self, key: &str) {
        let port = self.to.port().to_string();
        let () = self
            .from
            .raw()
            .ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "30000"]);
    }

    fn keys(&self) -> Vec<String> {
        let slot = self.slot.to_string();
        self.from
            .raw()
            .ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"])
    }

    /// Moves the other keys, and gives the slot to its new master. Blocks until all nodes know.
    #[track_caller]
    pub fn end(self) {
        let (slot, to) = (self.slot.to_string(), id_of(self.to));
        let end = |server: &Server| {
            let set = ["CLUSTER", "SETSLOT", &slot, "NODE", &to];
            server.raw().try_ask::<()>(&set)
        };
        // The keys only become fewer: a request that would add one is sent to the new master.
        wait_until("all keys have moved", || {
            let keys = self.keys();
            for key in &keys {
                self.move_key(key);
            }
            keys.is_empty()
        });
        end(self.to).expect("it imports the slot");
        end(self.from).expect("it has no key of the slot");
        wait_until("all nodes know the new master", || {
            let mut servers = self.cluster.servers().iter();
            servers.all(|server| self.cluster.is_owner_by(server, self.slot, self.to))
        });
    }
}

/// The first and the last slot of a range, and the ports of its master and replicas.
type Range = (usize, usize, Vec<u16>);

fn ranges_of(server: &Server) -> Vec<Range> {
    let ranges: redis::RedisResult<Vec<Value>> = server.raw().try_ask(&["CLUSTER", "SLOTS"]);
    let number = |value: &Value| match value {
        Value::Int(number) => usize::try_from(*number).expect("it is small"),
        other => panic!("{other:?}"),
    };
    let port = |node: &Value| match node {
        Value::Array(parts) => u16::try_from(number(&parts[1])).expect("a port"),
        other => panic!("{other:?}"),
    };
    let ranges = ranges.unwrap_or_default();
    let range = |range: &Value| match range {
        Value::Array(facts) => {
            let ports = facts[2..].iter().map(port).collect();
            (number(&facts[0]), number(&facts[1]), ports)
        }
        other => panic!("{other:?}"),
    };
    ranges.iter().map(range).collect()
}

fn info(raw: &Raw, command: &[&str]) -> BTreeMap<String, String> {
    let report: String = raw.try_ask(command).unwrap_or_default();
    let pairs = report.lines().filter_map(|line| line.split_once(':'));
    pairs
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

pub fn is_ok(server: &Server) -> bool {
    info(&server.raw(), &["CLUSTER", "INFO"])
        .get("cluster_state")
        .is_some_and(|state| state == "ok")
}

/// Returns whether a replica is in sync, or a master has one that is.
fn is_in_sync(server: &Server) -> bool {
    let facts = info(&server.raw(), &["INFO", "replication"]);
    let is = |name: &str, value: &str| facts.get(name).is_some_and(|it| it.contains(value));
    if is("role", "master") {
        is("slave0", "state=online")
    } else {
        is("master_link_status", "up")
    }
}

fn nodes_of(server: &Server) -> Vec<String> {
    let nodes: String = server.raw().ask(&["CLUSTER", "NODES"]);
    nodes.lines().map(str::to_owned).collect()
}

fn id_of(server: &Server) -> String {
    server.raw().ask(&["CLUSTER", "MYID"])
}

/// Gives slots to a node. `ADDSLOTSRANGE` is a command of Redis 7.
pub fn give_slots(server: &Server, slots: std::ops::Range<usize>) {
    let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
    let slots = slots.iter().map(String::as_str);
    let add: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
    let () = server.raw().ask(&add);
}

/// Returns the slot of a name: CRC-16/XMODEM of the text in its first braces, or of the whole.
pub fn slot_of(name: &str) -> u16 {
    let tag = name
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map_or(name, |(tag, _)| tag);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % 16_384
}

/// Returns a name on each of the masters, in the order of their slots.
pub fn names_of_masters() -> [String; MASTERS] {
    let third = |name: &String| usize::from(slot_of(name)) * MASTERS / SLOTS;
    std::array::from_fn(|master| {
        let mut names = (0..).map(|number| format!("n{number}"));
        names
            .find(|name| third(name) == master)
            .expect("there is one")
    })
}
