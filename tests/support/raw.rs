//! Servers as an operator sees them, without the crate under test.
//!
//! On a quorum, a question about a lock gets the answer of a majority, a command that only reads goes to the first node,
//! and any other command goes to all nodes. On a Cluster, a command with a key goes to the owner of the slot, and a command
//! without keys to all masters.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::time::Duration;

use redis::FromRedisValue;

use super::{CLUSTER, Kind, PATIENCE, urls_of, wait_until};

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

/// The commands of one word in these tests that only read.
const READS: [&str; 9] = [
    "EXISTS", "GET", "HGET", "INFO", "KEYS", "LRANGE", "PTTL", "PUBSUB", "ZRANGE",
];

fn only_reads(command: &[&str]) -> bool {
    READS.contains(&command[0]) || command.starts_with(&["SENTINEL", "MASTER"])
}

/// For how long the record of the last fence stays after a release, and a little more.
const FENCE_MEMORY: Duration = Duration::from_secs(11 * 60);

fn is_interrupted(error: &redis::RedisError) -> bool {
    let interrupted = io::Error::from(rustix::io::Errno::INTR);
    error.is_io_error() && error.to_string().contains(&interrupted.to_string())
}

/// One server, or several, and how a test waits for what they do.
pub trait Servers: Clone {
    /// Returns each server.
    fn each(&self) -> Vec<Self>;

    fn are_a_cluster(&self) -> bool;

    /// Sends a command to one server.
    fn send(&self, command: &[&str]) -> redis::RedisResult<redis::Value>;

    /// Blocks until a condition is true.
    #[track_caller]
    fn until(&self, what: &str, condition: impl FnMut() -> bool);
}

/// The servers of a URL, which may name all nodes of a quorum: see [`urls_of`]. Each command uses a new connection, because
/// the tests stop servers.
#[derive(Clone)]
pub struct Urls(String);

impl Servers for Urls {
    fn each(&self) -> Vec<Self> {
        urls_of(&self.0).map(|url| Self(url.into())).collect()
    }

    fn are_a_cluster(&self) -> bool {
        self.0.ends_with(CLUSTER)
    }

    /// A command that only reads is sent again if a signal interrupts it: that happens when a paused virtual machine
    /// resumes.
    fn send(&self, command: &[&str]) -> redis::RedisResult<redis::Value> {
        let once = || {
            let client = redis::Client::open(&*self.0)?;
            let mut connection = client.get_connection_with_timeout(PATIENCE)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            let mut packed = redis::cmd(command[0]);
            packed.arg(&command[1..]);
            packed.query(&mut connection)
        };
        loop {
            match once() {
                Err(error) if only_reads(command) && is_interrupted(&error) => {}
                answer => return answer,
            }
        }
    }

    #[track_caller]
    fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        wait_until(what, condition);
    }
}

/// Direct access to servers.
#[derive(Clone)]
pub struct Raw<S = Urls>(S);

impl Raw {
    pub fn new(url: &str) -> Self {
        Self(Urls(url.into()))
    }

    pub fn url(&self) -> &str {
        &self.0.0
    }
}

impl<S: Servers> Raw<S> {
    pub fn to(servers: S) -> Self {
        Self(servers)
    }

    /// Sends a command to each server, or only to the first if the command reads. Returns the answer of the first. Of a
    /// Cluster, returns the first answer that is no redirection.
    pub fn try_ask<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let each = self.0.each();
        if self.0.are_a_cluster() {
            let is_moved = |answer: &redis::RedisResult<redis::Value>| {
                let error = answer.as_ref().err();
                error.is_some_and(|error| error.code() == Some("MOVED"))
            };
            let answers: Vec<_> = each.iter().map(|it| it.send(command)).collect();
            let mut answers = answers.into_iter().filter(|answer| !is_moved(answer));
            let first = answers.next().expect("a slot has an owner")?;
            return redis::from_redis_value(first).map_err(Into::into);
        }
        let first = each[0].send(command)?;
        if !only_reads(command) {
            for other in &each[1..] {
                other.send(command)?;
            }
        }
        redis::from_redis_value(first).map_err(Into::into)
    }

    /// Returns each node of a quorum. A Cluster is one node.
    pub fn nodes(&self) -> Vec<Self> {
        if self.0.are_a_cluster() {
            return vec![self.clone()];
        }
        self.servers()
    }

    /// Returns each server.
    pub fn servers(&self) -> Vec<Self> {
        self.0.each().into_iter().map(Self).collect()
    }

    #[track_caller]
    pub fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        self.0.until(what, condition);
    }

    /// Returns the time of the first server.
    #[track_caller]
    pub fn time(&self) -> Duration {
        let (whole, micros): (u64, u64) = self.servers()[0].ask(&["TIME"]);
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
    pub fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        match self.try_ask(command) {
            Ok(answer) => answer,
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    #[track_caller]
    pub fn get(&self, key: &str) -> Option<String> {
        self.ask(&["GET", key])
    }

    /// Returns the owner that holds a mutex. Its value may have the mark that others wait.
    #[track_caller]
    pub fn owner(&self, key: &str) -> Option<String> {
        let value = self.get(key)?;
        Some(value.trim_end_matches('!').to_owned())
    }

    /// Returns whether a majority of the nodes has the key.
    #[track_caller]
    pub fn exists(&self, key: &str) -> bool {
        self.of_a_majority(|node| node.ask::<bool>(&["EXISTS", key]))[0]
    }

    /// Checks that no key of a lock is there.
    #[track_caller]
    pub fn is_free(&self, kind: Kind, name: &str) {
        for key in kind.keys(name) {
            assert!(!self.exists(&key), "{key} is there");
        }
    }

    /// Blocks until no node has a key of a lock. On a quorum, a node may execute a release after a majority has.
    #[track_caller]
    pub fn wait_until_free(&self, kind: Kind, name: &str) {
        let (keys, nodes) = (kind.keys(name), self.nodes());
        self.until("each node has executed the release", || {
            let is_free = |node: &Self| keys.iter().all(|key| !node.exists(key));
            nodes.iter().all(is_free)
        });
    }

    /// Blocks until only the fences of a lock are there, and checks that they expire.
    #[track_caller]
    pub fn only_fences_are_left(&self, kind: Kind, name: &str) {
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
    pub fn keys(&self, pattern: &str) -> BTreeSet<String> {
        let servers = self.servers().into_iter();
        servers
            .flat_map(|node| node.ask::<Vec<String>>(&["KEYS", pattern]))
            .collect()
    }

    /// Returns the time to live of the key at a majority, or `None` without a key or an expiry.
    #[track_caller]
    pub fn ttl(&self, key: &str) -> Option<Duration> {
        let ttl = self.of_a_majority(|node| node.ask::<i64>(&["PTTL", key]))[0];
        u64::try_from(ttl).ok().map(Duration::from_millis)
    }

    /// Returns the holders of the lock of any kind at `key`, each with the rest of its lease. An owner that has no
    /// majority of the nodes is no holder.
    #[track_caller]
    pub fn holders(&self, key: &str) -> Vec<(String, Duration)> {
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

    /// Returns the shares of the lock at `key`: `<units> <owner>`, each with the ms at which its lease ends.
    #[track_caller]
    pub fn shares(&self, key: &str) -> HashMap<String, u64> {
        self.ask(&["ZRANGEBYSCORE", key, "0", "+inf", "WITHSCORES"])
    }

    /// Returns the waiters of the lock at `key`, the first in front. Of a quorum, returns those of the first node.
    #[track_caller]
    pub fn queue(&self, key: &str) -> Vec<String> {
        self.ask(&["ZRANGE", &queue_of(key), "0", "-1"])
    }

    /// Blocks until `count` processes wait for the lock at `key`: at a majority of the nodes, or nobody at any node.
    #[track_caller]
    pub fn wait_until_queued(&self, key: &str, count: usize) {
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
    pub fn waiters(&self, key: &str, count: usize) -> Vec<(String, String)> {
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
    pub fn wait_until_polled(&self, key: &str, owner: &str) {
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
    pub fn silence(&self, key: &str, owner: &str) -> Option<Duration> {
        let entry: Option<String> = self.ask(&["HGET", &waiters_of(key), owner]);
        let seen = entry?.split(' ').next()?.parse().expect("ms");
        Some(self.time().saturating_sub(Duration::from_millis(seen)))
    }

    /// Returns the channel of the waiter `owner`.
    #[track_caller]
    pub fn channel(&self, key: &str, owner: &str) -> String {
        let entry: String = self.ask(&["HGET", &waiters_of(key), owner]);
        channel_in(&entry)
    }

    /// Returns the number of subscribers of a channel.
    #[track_caller]
    pub fn listeners(&self, channel: &str) -> u32 {
        let servers = if self.0.are_a_cluster() {
            self.servers()
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
    pub fn wait_until_renewed(&self, key: &str, mut times: u32) {
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

    /// Returns the number of commands that the server has executed, also inside of scripts. The commands that ask for
    /// this number are not counted.
    #[track_caller]
    pub fn commands(&self) -> u64 {
        self.stats()
            .iter()
            .filter(|(command, _)| {
                !["info", "client", "config"]
                    .iter()
                    .any(|own| command.split('|').next() == Some(own))
            })
            .map(|(_, calls)| calls)
            .sum()
    }

    /// Returns how often the server has executed each command.
    #[track_caller]
    pub fn stats(&self) -> HashMap<String, u64> {
        let report: String = self.ask(&["INFO", "commandstats"]);
        report
            .lines()
            .filter_map(|line| {
                let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let (calls, _) = figures.split_once(',')?;
                Some((command.to_owned(), calls.parse().ok()?))
            })
            .collect()
    }
}

// These names do not come from the crate's code, because other versions of the crate read the same keys.

pub fn fence_of(key: &str) -> String {
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

/// Returns the key of the record of a job that runs once.
pub fn record_of(key: &str) -> String {
    companion_of(key, "once")
}

/// Returns the key of the value of a leader.
pub fn leader_of(key: &str) -> String {
    companion_of(key, "leader")
}

/// Returns the companions that a lock at `key` may have, whatever uses it.
pub fn companions_of(key: &str) -> [String; 3] {
    [fence_of(key), queue_of(key), waiters_of(key)]
}

/// Returns the channel in the record of a waiter.
fn channel_in(entry: &str) -> String {
    let channel = entry.split(' ').nth(3);
    channel.expect("it follows the units").into()
}
