//! A throwaway Redis Cluster.

use std::time::Duration;

use redis::{Cmd, Connection, FromRedisValue, RedisResult};

use crate::{Result, Server, wait_until};

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

/// Three masters, each with a third of the slots, and their replicas. Dropping it kills them.
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts all nodes, and blocks until each serves all slots and the replicas are in sync. The nodes take a node
    /// for dead if it has not answered for `node_timeout`.
    pub fn start(replicas_of_each: usize, node_timeout: Duration) -> Result<Self> {
        let config = format!(
            "cluster-enabled yes\ncluster-node-timeout {}\ncluster-replica-validity-factor 0\n",
            node_timeout.as_millis()
        );
        let count = MASTERS * (1 + replicas_of_each);
        let nodes = (0..count).map(|_| Server::start(&config));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let connections = nodes.iter().map(Server::connect);
        let mut connections = connections.collect::<RedisResult<Vec<_>>>()?;

        for (number, node) in connections.iter_mut().enumerate() {
            cluster("SET-CONFIG-EPOCH").arg(number + 1).exec(node)?;
            if number < MASTERS {
                let end = |number| number * SLOTS / MASTERS;
                let slots: Vec<_> = (end(number)..end(number + 1)).collect();
                cluster("ADDSLOTS").arg(slots).exec(node)?;
            }
        }
        for node in &nodes[1..] {
            let meet = cluster("MEET").arg("127.0.0.1").arg(node.port()).clone();
            meet.exec(&mut connections[0])?;
        }
        for node in &mut connections {
            wait_until("the node knows the others", || {
                let known = lines(node, &cluster("NODES"))?;
                let is_known = |line: &String| !line.contains("handshake");
                Ok(known.len() == count && known.iter().all(is_known))
            })?;
        }
        for number in MASTERS..count {
            let master: String = ask(&mut connections[number % MASTERS], &cluster("MYID"))?;
            let follow = cluster("REPLICATE").arg(master).clone();
            follow.exec(&mut connections[number])?;
        }
        for node in &mut connections {
            wait_until("the cluster is well", || {
                let is_ok = lines(node, &cluster("INFO"))?.contains(&"cluster_state:ok".into());
                let known = lines(node, &cluster("NODES"))?;
                let replicas = known.iter().filter(|line| line.contains("slave"));
                let info = lines(node, redis::cmd("INFO").arg("replication"))?;
                let online = info.iter().filter(|line| line.contains("state=online"));
                let in_sync = info.contains(&"master_link_status:up".into())
                    || online.count() == replicas_of_each;
                Ok(is_ok && replicas.count() == count - MASTERS && in_sync)
            })?;
        }
        Ok(Self { nodes })
    }

    /// Returns the URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// Returns the nodes that were masters at first, in the order of their slots.
    #[must_use]
    pub fn masters(&self) -> &[Server] {
        &self.nodes[..MASTERS]
    }

    /// Returns the first replica of each master, in the same order.
    #[must_use]
    pub fn replicas(&self) -> &[Server] {
        &self.nodes[MASTERS..]
    }
}

fn cluster(subcommand: &str) -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(subcommand);
    command
}

fn ask<T: FromRedisValue>(node: &mut Connection, command: &Cmd) -> RedisResult<T> {
    command.query(node)
}

fn lines(node: &mut Connection, command: &Cmd) -> RedisResult<Vec<String>> {
    let text: String = ask(node, command)?;
    Ok(text.lines().map(str::to_owned).collect())
}
