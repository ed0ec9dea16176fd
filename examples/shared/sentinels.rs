//! A throwaway Sentinel set: a master, its replicas, and three sentinels that watch them.

use std::time::Duration;

use redis::Value;

use crate::{Poller, Result, Server, wait_until};

/// The name by which the sentinels know the master.
pub const MASTER: &str = "mine";
const SENTINELS: usize = 3;
const MAJORITY: usize = 2;

/// A master, its replicas, and three sentinels. Dropping it kills them.
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts all of them, and blocks until the replicas are in sync, and the sentinels know the servers and each
    /// other. A sentinel takes the master for dead if it has not answered for `down_after`.
    pub fn start(replicas: usize, down_after: Duration) -> Result<Self> {
        let master = Server::start("")?;
        let port = master.port();
        let of_replica = format!("replicaof 127.0.0.1 {port}");
        let mut servers = vec![master];
        for _ in 0..replicas {
            servers.push(Server::start(&of_replica)?);
        }
        // A sentinel asks the master for its replicas every 10 s, so the replicas come first.
        let mut master = servers[0].connect()?;
        wait_until("the replicas are in sync", || {
            let info: String = redis::cmd("INFO").arg("replication").query(&mut master)?;
            Ok(info.matches("state=online").count() == replicas)
        })?;
        let config = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {port} {MAJORITY}\n\
             sentinel down-after-milliseconds {MASTER} {}\n\
             sentinel failover-timeout {MASTER} 10000",
            down_after.as_millis()
        );
        let sentinels = (0..SENTINELS).map(|_| Server::start_sentinel(&config));
        let set = Self {
            servers,
            sentinels: sentinels.collect::<Result<_>>()?,
        };
        for sentinel in &set.sentinels {
            let mut sentinel = sentinel.connect()?;
            wait_until("the sentinel knows all", || {
                let facts = redis::cmd("SENTINEL").arg("MASTER").arg(MASTER).clone();
                let facts: Vec<String> = facts.query(&mut sentinel)?;
                let is = |name: &str, number: usize| {
                    let mut pairs = facts.chunks_exact(2);
                    pairs.any(|pair| pair[0] == name && pair[1] == number.to_string())
                };
                Ok(is("num-slaves", replicas) && is("num-other-sentinels", SENTINELS - 1))
            })?;
        }
        Ok(set)
    }

    /// Returns the URLs of the sentinels.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// Returns the sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Returns the first master, and its replicas.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Blocks until a majority of the sentinels names another master than `old`, which answers as a master. Returns the
    /// new one.
    pub fn wait_for_new_master(&self, old: &Server) -> Result<&Server> {
        let mut sentinels: Vec<_> = self.sentinels.iter().map(Poller::new).collect();
        let others = self.servers.iter().map(Poller::new);
        let mut others: Vec<_> = others
            .filter(|other| other.server().port() != old.port())
            .collect();
        let mut new = None;
        wait_until("there is a new master", || {
            let named = sentinels.iter_mut().filter_map(named_port);
            let named: Vec<_> = named.collect();
            for other in &mut others {
                let port = other.server().port();
                let votes = named.iter().filter(|named| **named == port).count();
                if votes >= MAJORITY && is_master(other) {
                    new = Some(other.server());
                }
            }
            Ok(new.is_some())
        })?;
        new.ok_or_else(|| "there is no new master".into())
    }
}

/// Returns the port of the master that a sentinel names.
fn named_port(sentinel: &mut Poller<'_>) -> Option<u16> {
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER);
    let (_, port): (String, u16) = sentinel.ask(&ask)?;
    Some(port)
}

fn is_master(server: &mut Poller<'_>) -> bool {
    let role: Option<Vec<Value>> = server.ask(&redis::cmd("ROLE"));
    role.is_some_and(|role| role.first() == Some(&Value::BulkString(b"master".into())))
}
