//! The servers of a world as an operator sees them, without the crate under test.
//!
//! On a quorum, a question about a lock gets the answer of a majority, a command that only reads goes to the first node, and
//! any other command goes to all nodes. On a cluster, a command with a key goes to the owner of the slot, and a command
//! without keys to all masters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_simulator::Topology;
use redis::FromRedisValue;

use crate::subject::Kind;
use crate::world::World;

/// Reads the holders at one moment. It removes the mark from the value of a mutex. In a sorted set, the scores of the
/// sums are below zero, and each holder is `<units> <owner>` with the end of its lease in ms as the score.
const HOLDERS: &str = r"
local kind, found = redis.call('TYPE', KEYS[1]).ok, {}
if kind == 'string' then
  local owner = string.gsub(redis.call('GET', KEYS[1]), '!$', '')
  found = {owner, redis.call('PTTL', KEYS[1])}
elseif kind == 'zset' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local shares = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf', 'WITHSCORES')
  for i = 1, #shares, 2 do
    table.insert(found, string.match(shares[i], ' (.*)'))
    table.insert(found, shares[i + 1] - now)
  end
end
return found
";

/// For how long the record of the last fence stays after a release, and a little more.
const FENCE_MEMORY: Duration = Duration::from_secs(11 * 60);

/// The commands of one word in these tests that only read.
const READS: [&str; 9] = [
    "EXISTS", "GET", "HGET", "INFO", "KEYS", "LRANGE", "PTTL", "PUBSUB", "ZRANGE",
];

fn only_reads(command: &[&str]) -> bool {
    READS.contains(&command[0]) || command.starts_with(&["SENTINEL", "MASTER"])
}

/// One server of a world, or all of them.
#[derive(Clone)]
pub(crate) struct Redis {
    world: World,
    servers: Vec<usize>,
}

impl Redis {
    pub(crate) fn new(world: World) -> Self {
        let servers = (0..world.servers()).collect();
        Self { world, servers }
    }

    pub(crate) fn at(world: World, server: usize) -> Self {
        let servers = vec![server];
        Self { world, servers }
    }

    /// Sends a command to each node, or only to the first if the command reads. Returns the answer of the first. Of a
    /// cluster, returns the first answer that is no redirection.
    pub(crate) fn try_ask<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let ask = |server: &usize| self.world.execute(*server, command);
        let is_moved = |answer: &redis::RedisResult<redis::Value>| {
            let error = answer.as_ref().err();
            error.is_some_and(|error| error.code() == Some("MOVED"))
        };
        let asked = if only_reads(command) && !self.is_cluster() {
            &self.servers[..1]
        } else {
            &self.servers[..]
        };
        let answers: Vec<_> = asked.iter().map(ask).filter(|it| !is_moved(it)).collect();
        let first = answers.into_iter().next().expect("a slot has an owner")?;
        redis::from_redis_value(first).map_err(Into::into)
    }

    /// Returns each node of a quorum. A cluster is one node.
    pub(crate) fn nodes(&self) -> Vec<Self> {
        if self.is_cluster() {
            return vec![self.clone()];
        }
        self.each()
    }

    /// Returns each server.
    pub(crate) fn each(&self) -> Vec<Self> {
        let one = |server: &usize| Self {
            world: self.world.clone(),
            servers: vec![*server],
        };
        self.servers.iter().map(one).collect()
    }

    fn is_cluster(&self) -> bool {
        self.world.topology() == Topology::Cluster
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        self.world.until(what, condition);
    }

    /// Returns the time of the first server.
    pub(crate) fn time(&self) -> Duration {
        let (whole, micros): (u64, u64) = self.each()[0].ask(&["TIME"]);
        Duration::from_secs(whole) + Duration::from_micros(micros)
    }

    /// Returns the answers of a majority of the nodes, the largest ones, in order.
    fn of_a_majority<T: Ord>(&self, answer: impl Fn(&Self) -> T) -> Vec<T> {
        let mut answers: Vec<_> = self.nodes().iter().map(answer).collect();
        answers.sort_unstable();
        answers.drain(..(answers.len() - 1) / 2);
        answers
    }

    #[track_caller]
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        match self.try_ask(command) {
            Ok(answer) => answer,
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    #[track_caller]
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.ask(&["GET", key])
    }

    /// Returns whether a majority of the nodes has the key.
    #[track_caller]
    pub(crate) fn exists(&self, key: &str) -> bool {
        self.of_a_majority(|node| node.ask::<bool>(&["EXISTS", key]))[0]
    }

    /// Checks that no key of a lock is there.
    #[track_caller]
    pub(crate) fn is_free(&self, kind: Kind, name: &str) {
        for key in kind.keys(name) {
            assert!(!self.exists(&key), "{key} is there");
        }
    }

    /// Blocks until no node has a key of a lock. On a quorum, a node may execute a release after a majority has.
    #[track_caller]
    pub(crate) fn wait_until_free(&self, kind: Kind, name: &str) {
        let (keys, nodes) = (kind.keys(name), self.nodes());
        self.until("each node has executed the release", || {
            let is_free = |node: &Self| keys.iter().all(|key| !node.exists(key));
            nodes.iter().all(is_free)
        });
    }

    /// Blocks until only the fences of a lock are there, and checks that they expire.
    #[track_caller]
    pub(crate) fn only_fences_are_left(&self, kind: Kind, name: &str) {
        let fences: Vec<_> = kind.keys(name).iter().map(|key| fence_of(key)).collect();
        let all = || self.keys(&format!("*{name}*"));
        // The renewal thread takes waiters that gave up out of the queue.
        self.until("nothing but fences is left", || {
            all().iter().all(|key| fences.contains(key))
        });
        let left = all();
        if !kind.has_fences() {
            assert!(left.is_empty(), "{left:?}");
            return;
        }
        assert_eq!(left.len(), fences.len(), "{left:?}");
        for fence in fences {
            let ttl = self.ttl(&fence).expect("it does not stay for ever");
            assert!(ttl < FENCE_MEMORY, "{fence}: {ttl:?}");
        }
    }

    /// Returns the names of the keys, of all nodes.
    #[track_caller]
    pub(crate) fn keys(&self, pattern: &str) -> BTreeSet<String> {
        let servers = self.each().into_iter();
        servers
            .flat_map(|node| node.ask::<Vec<String>>(&["KEYS", pattern]))
            .collect()
    }

    /// Returns the time to live of the key at a majority, or `None` without a key or an expiry.
    #[track_caller]
    pub(crate) fn ttl(&self, key: &str) -> Option<Duration> {
        let ttl = self.of_a_majority(|node| node.ask::<i64>(&["PTTL", key]))[0];
        u64::try_from(ttl).ok().map(Duration::from_millis)
    }

    /// Returns the holders of the lock of any kind at `key`, each with the rest of its lease. An owner that has no
    /// majority of the nodes is no holder.
    #[track_caller]
    pub(crate) fn holders(&self, key: &str) -> Vec<(String, Duration)> {
        let nodes: Vec<Vec<(String, u64)>> = self
            .nodes()
            .iter()
            .map(|node| node.ask(&["EVAL", HOLDERS, "1", key]))
            .collect();
        let [alone] = &nodes[..] else {
            let mut left: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for (owner, left_ms) in nodes.iter().flatten() {
                left.entry(owner).or_default().push(*left_ms);
            }
            let majority = nodes.len() / 2 + 1;
            let holders = left.into_iter().filter_map(|(owner, mut left_ms)| {
                left_ms.sort_unstable_by(|one, other| other.cmp(one));
                let left_ms = left_ms.get(majority - 1)?;
                Some((owner.to_owned(), Duration::from_millis(*left_ms)))
            });
            return holders.collect();
        };
        alone
            .iter()
            .map(|(owner, left_ms)| (owner.clone(), Duration::from_millis(*left_ms)))
            .collect()
    }

    /// Returns the waiters of the lock at `key`, the first in front. Of a quorum, returns those of the first node.
    #[track_caller]
    pub(crate) fn queue(&self, key: &str) -> Vec<String> {
        self.ask(&["ZRANGE", &queue_of(key), "0", "-1"])
    }

    /// Blocks until `count` processes wait for the lock at `key`: at a majority of the nodes, or nobody at any node.
    #[track_caller]
    pub(crate) fn wait_until_queued(&self, key: &str, count: usize) {
        self.until("the queue has its length", || {
            let nodes = self.nodes();
            let has_all = |node: &&Self| node.queue(key).len() == count;
            let needed = if count == 0 {
                nodes.len()
            } else {
                nodes.len() / 2 + 1
            };
            nodes.iter().filter(has_all).count() >= needed
        });
    }

    /// Blocks until `count` processes wait for the lock at `key` at one node. Returns their owners and their channels.
    #[track_caller]
    pub(crate) fn waiters(&self, key: &str, count: usize) -> Vec<(String, String)> {
        let at = |node: &Self| {
            let with_channel = |owner: String| {
                let entry: Option<String> = node.ask(&["HGET", &waiters_of(key), &owner]);
                Some((owner, channel_in(&entry?)))
            };
            let waiters = node.queue(key).into_iter().filter_map(with_channel);
            waiters.collect::<Vec<_>>()
        };
        let mut found = None;
        self.until("a node has all waiters", || {
            let mut nodes = self.nodes().into_iter().map(|node| at(&node));
            found = nodes.find(|waiters| waiters.len() == count);
            found.is_some()
        });
        found.expect("it was found")
    }

    /// Blocks until the waiter `owner` has polled. It polls again most of a second later.
    #[track_caller]
    pub(crate) fn wait_until_polled(&self, key: &str, owner: &str) {
        // `None` if Redis dropped the queue. It does so if a busy machine keeps all waiters from polling.
        let seen = || -> Option<String> { self.ask(&["HGET", &waiters_of(key), owner]) };
        let before = seen();
        self.until("the waiter polls", || {
            let now = seen();
            // On a quorum a waiter may ask under a new owner each time.
            (now.is_some() || self.nodes().len() > 1) && now != before
        });
    }

    /// Returns how long the waiter `owner` has not polled. `None` if it is not in the queue.
    #[track_caller]
    pub(crate) fn silence(&self, key: &str, owner: &str) -> Option<Duration> {
        let entry: Option<String> = self.ask(&["HGET", &waiters_of(key), owner]);
        let seen = entry?.split(' ').next()?.parse().expect("ms");
        Some(self.time().saturating_sub(Duration::from_millis(seen)))
    }

    /// Returns the number of subscribers of a channel.
    #[track_caller]
    pub(crate) fn listeners(&self, channel: &str) -> u32 {
        let servers = if self.is_cluster() {
            self.each()
        } else {
            vec![self.clone()]
        };
        let count = |server: &Self| {
            let (_, count): (String, u32) = server.ask(&["PUBSUB", "NUMSUB", channel]);
            count
        };
        servers.iter().map(count).sum()
    }

    /// Blocks until the lease at `key` has been renewed `times` times.
    #[track_caller]
    pub(crate) fn wait_until_renewed(&self, key: &str, mut times: u32) {
        let mut last = self.ttl(key);
        self.until("the lease is renewed", || {
            let ttl = self.ttl(key);
            if ttl > last {
                times = times.saturating_sub(1);
            }
            last = ttl;
            times == 0
        });
    }
}

// These names do not come from the crate's code, because other versions of the crate read the same keys.

pub(crate) fn fence_of(key: &str) -> String {
    companion_of(key, "fence")
}

fn queue_of(key: &str) -> String {
    companion_of(key, "queue")
}

fn waiters_of(key: &str) -> String {
    companion_of(key, "waiters")
}

fn companion_of(key: &str, what: &str) -> String {
    if key.contains('{') {
        format!("{key}:lht:{what}")
    } else {
        format!("{{{key}}}:lh:{what}")
    }
}

/// Returns all companions of the lock at `key`.
pub(crate) fn companions_of(key: &str) -> [String; 3] {
    [fence_of(key), queue_of(key), waiters_of(key)]
}

/// Returns the channel in the record of a waiter.
fn channel_in(entry: &str) -> String {
    let channel = entry.split(' ').nth(3);
    channel.expect("it follows the units").into()
}
