//! The servers of one schedule after another, and the faults that hit them.
//!
//! The links of one server and of a quorum have proxies. The nodes of the other topologies tell clients their own addresses,
//! so there the servers themselves cut connections.

use std::thread;
use std::time::Duration;

use leasehold::LockManager;

use super::PREFIX;
use super::plan::{Plan, ServerFault, Strike, pick};
use super::program::REGISTERS;
use super::record::{Micros, now};
use crate::support::{
    BEHIND, CLUSTER, Cluster, Fault, Nodes, Proxy, Random, Raw, Sentinels, Server, Topology, ms,
    names_of_masters, secs, slot_of, wait_until,
};

/// The servers of a topology.
pub(super) enum Stage {
    Single { server: Server, link: Proxy },
    Quorum { nodes: Nodes, links: Vec<Proxy> },
    Sentinel(Sentinels),
    Cluster(Cluster),
}

/// The effect of a fault.
pub(super) struct Struck {
    /// When it began, and when the servers were well again.
    pub(super) from: Micros,
    pub(super) until: Micros,
    /// Whether the servers may have forgotten a lock.
    pub(super) lost_locks: bool,
    /// Between these times no server answered.
    pub(super) silence: Option<(Micros, Micros)>,
}

impl Struck {
    /// Returns the effect of something that began then and may have lost all data.
    pub(super) fn lost_all(from: Micros) -> Self {
        Self {
            from,
            until: now(),
            lost_locks: true,
            silence: None,
        }
    }
}

impl Stage {
    pub(super) fn start(topology: Topology) -> Self {
        match topology {
            Topology::Single => {
                let server = Server::keeping_data_with_clock();
                let link = Proxy::to(&server);
                Self::Single { server, link }
            }
            Topology::Quorum => {
                let nodes = Nodes::start(3);
                let links = nodes.servers().iter().map(Proxy::to).collect();
                Self::Quorum { nodes, links }
            }
            Topology::Sentinel => Self::Sentinel(Sentinels::start()),
            Topology::Cluster => Self::Cluster(Cluster::start()),
        }
    }

    /// Returns the URLs for the processes: see [`settings_of`](crate::support::settings_of).
    pub(super) fn url(&self) -> String {
        match self {
            Self::Single { link, .. } => link.url(),
            Self::Quorum { links, .. } => {
                let urls: Vec<_> = links.iter().map(Proxy::url).collect();
                urls.join(" ")
            }
            Self::Sentinel(set) => {
                let mut words = vec![set.master().url(), BEHIND.to_owned()];
                words.extend(set.urls());
                words.join(" ")
            }
            Self::Cluster(cluster) => {
                let mut words = cluster.urls();
                words.push(CLUSTER.to_owned());
                words.join(" ")
            }
        }
    }

    fn servers(&self) -> Vec<&Server> {
        match self {
            Self::Single { server, .. } => vec![server],
            Self::Quorum { nodes, .. } => nodes.servers().iter().collect(),
            Self::Sentinel(set) => set.servers().collect(),
            Self::Cluster(cluster) => cluster.servers().iter().collect(),
        }
    }

    fn links(&self) -> Vec<&Proxy> {
        match self {
            Self::Single { link, .. } => vec![link],
            Self::Quorum { links, .. } => links.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the servers that may have keys of locks.
    pub(super) fn with_keys(&self) -> Vec<Raw> {
        match self {
            Self::Sentinel(set) => vec![set.master().raw()],
            _ => self.servers().into_iter().map(Server::raw).collect(),
        }
    }

    /// Returns the ports of the servers that grant the locks of a schedule.
    pub(super) fn masters(&self, plan: &Plan) -> Vec<u16> {
        match self {
            Self::Sentinel(set) => vec![set.master().port()],
            Self::Cluster(cluster) => {
                let slots = REGISTERS.map(|name| slot_of(&plan.name(name)));
                let first = &cluster.servers()[0];
                let owners = slots.map(|slot| {
                    let owner = cluster.owner_by(first, slot);
                    owner.map_or(0, |(owner, _)| owner.port())
                });
                owners.to_vec()
            }
            _ => Vec::new(),
        }
    }

    /// Blocks until the servers are well.
    pub(super) fn wait_until_well(&self) {
        match self {
            Self::Single { .. } | Self::Quorum { .. } => {
                wait_until("the servers answer", || {
                    let pongs = self.servers().into_iter().map(Server::raw);
                    pongs
                        .into_iter()
                        .all(|raw| raw.try_ask::<String>(&["PING"]).is_ok())
                });
            }
            Self::Sentinel(set) => set.wait_until_well(),
            Self::Cluster(cluster) => cluster.wait_until_well(),
        }
    }

    /// Blocks until the servers grant a lock.
    pub(super) fn wait_until_granting(&self, plan: &Plan) {
        let locks: LockManager = plan
            .builder(&self.url())
            .build_lazy()
            .expect("good settings");
        let name = format!("{PREFIX}first");
        wait_until("the servers grant", || {
            locks
                .try_lock_for(&name, secs(1))
                .is_ok_and(|guard| guard.is_some())
        });
    }

    /// Has a fault hit the servers. Returns when they are well again.
    pub(super) fn strike(&self, plan: &Plan, strike: Strike<ServerFault>) -> Struck {
        let masters = self.masters(plan);
        let from = now();
        let silence = self.hit(plan, strike);
        self.wait_until_well();
        let hands_over = matches!(strike.kind, ServerFault::Reshard)
            || strike.kind == ServerFault::FailOver && plan.topology == Topology::Cluster;
        let has_failed_over = !hands_over && self.masters(plan) != masters;
        Struck {
            from,
            until: now(),
            // A clock ahead ends keys early.
            lost_locks: has_failed_over
                || strike.kind.loses_data(plan.topology)
                || strike.kind == ServerFault::Clock,
            silence,
        }
    }

    /// Returns between which times no server answered, if that is certain.
    fn hit(&self, plan: &Plan, strike: Strike<ServerFault>) -> Option<(Micros, Micros)> {
        let Strike {
            kind,
            target,
            length,
            ..
        } = strike;
        let servers = self.servers();
        let pick = |count: usize| usize::try_from(target).expect("small") % count;
        let server = servers[pick(servers.len())];
        match kind {
            ServerFault::Stop => {
                server.pause();
                let from = now();
                thread::sleep(length);
                let until = now();
                server.resume();
                return (servers.len() == 1).then_some((from, until));
            }
            ServerFault::Restart => {
                server.kill_for_now();
                let from = now();
                thread::sleep(length);
                let until = now();
                server.start_again();
                return (servers.len() == 1).then_some((from, until));
            }
            ServerFault::RestartEmpty => {
                server.kill();
                thread::sleep(length);
                server.restart();
            }
            ServerFault::Rolling => self.restart_all(length),
            ServerFault::KillMaster => self.kill_master(plan, length),
            ServerFault::FailOver => self.fail_over(plan),
            ServerFault::Reshard => self.reshard(plan, target, length),
            ServerFault::FlushScripts => {
                for server in servers {
                    ask(server, &["SCRIPT", "FLUSH"]);
                }
            }
            ServerFault::KillClients => {
                for server in servers {
                    ask(server, &["CLIENT", "KILL", "TYPE", "normal"]);
                    ask(server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
                }
            }
            ServerFault::PauseClients => {
                let length_ms = length.as_millis().to_string();
                let what = if target % 2 == 0 { "ALL" } else { "WRITE" };
                ask(server, &["CLIENT", "PAUSE", &length_ms, what]);
                thread::sleep(length);
            }
            ServerFault::Clock => {
                server.set_clock_ahead(1 + i64::try_from(target).expect("small") % 10);
                thread::sleep(length);
                server.set_clock_ahead(0);
            }
            ServerFault::Link(fault) => self.fail_links(fault, target, length),
            ServerFault::Forget => {
                let links = self.links();
                links[pick(links.len())].forget_connections();
                thread::sleep(length);
            }
        }
        None
    }

    fn fail_links(&self, fault: Fault, target: u64, length: Duration) {
        let links = self.links();
        let link = links[usize::try_from(target).expect("small") % links.len()];
        link.strike_all(fault);
        thread::sleep(length);
        link.heal_anew();
    }

    /// Restarts all nodes of a quorum, or the replicas of a Cluster, one after the other.
    fn restart_all(&self, length: Duration) {
        let servers = self.servers();
        let masters: Vec<u16> = match self {
            Self::Cluster(cluster) => {
                let names = names_of_masters();
                names
                    .iter()
                    .map(|name| cluster.owner(name).0.port())
                    .collect()
            }
            _ => Vec::new(),
        };
        for server in servers.iter().filter(|it| !masters.contains(&it.port())) {
            server.kill_for_now();
            thread::sleep(length / 4);
            server.start_again();
            self.wait_until_well();
        }
    }

    fn kill_master(&self, plan: &Plan, length: Duration) {
        match self {
            Self::Sentinel(set) => {
                let old = set.master();
                old.kill_for_now();
                set.wait_for_another_than(old);
                thread::sleep(length / 4);
                set.start_as_replica(old.port());
            }
            Self::Cluster(cluster) => {
                let name = plan.name(REGISTERS[0]);
                let (master, replica) = cluster.owner(&name);
                master.kill_for_now();
                cluster.wait_for_failover(master, replica, slot_of(&name));
                thread::sleep(length / 4);
                master.start_again();
            }
            _ => unreachable!("no other topology has replicas"),
        }
    }

    fn fail_over(&self, plan: &Plan) {
        match self {
            Self::Sentinel(set) => {
                set.fail_over();
            }
            Self::Cluster(cluster) => {
                let name = plan.name(REGISTERS[0]);
                let (_, replica) = cluster.owner(&name);
                wait_until("the replica takes over", || {
                    // It gives up after 5 s on a busy machine. Then it is asked again.
                    ask(replica, &["CLUSTER", "FAILOVER"]);
                    (0..60).any(|_| {
                        thread::sleep(ms(100));
                        let mut servers = cluster.servers().iter();
                        servers.all(|it| cluster.is_owner_by(it, slot_of(&name), replica))
                    })
                });
            }
            _ => unreachable!("no other topology has replicas"),
        }
    }

    fn reshard(&self, plan: &Plan, target: u64, length: Duration) {
        let Self::Cluster(cluster) = self else {
            unreachable!("no other topology has slots");
        };
        let mut random = Random(target);
        let slot = slot_of(&plan.name(REGISTERS[random.below(3) as usize]));
        let (from, _) = cluster
            .owner_by(&cluster.servers()[0], slot)
            .expect("the cluster is well");
        let others: Vec<_> = names_of_masters()
            .iter()
            .map(|name| cluster.owner(name).0)
            .filter(|other| other.port() != from.port())
            .collect();
        let migration = cluster.migrate(slot, pick(&mut random, &others));
        thread::sleep(length);
        migration.end();
    }
}

/// Sends a command to a server that may close the connection instead of an answer.
fn ask(server: &Server, command: &[&str]) {
    server.raw().try_ask::<redis::Value>(command).ok();
}
