//! A node of a cluster: its table of the slots, and its answer to a request for keys.
//!
//! | the keys of a request | the answer |
//! | --- | --- |
//! | have several slots | `CROSSSLOT` |
//! | have a slot that nobody owns | `CLUSTERDOWN` |
//! | have a slot of another master, or the node is a replica | `MOVED` |
//! | have a slot that moves away; all keys are here | the node executes the request |
//! | have a slot that moves away; some keys are here | `TRYAGAIN` |
//! | have a slot that moves away; no key is here | `ASK` |
//! | have a slot that moves to here; the request came after `ASKING` | the node executes the request, or answers `TRYAGAIN` if there are several keys and one is missing |
//!
//! The caller carries keys and messages from node to node, and tells each node its table.

use std::time::Duration;

use leasehold::seam;

use super::arguments::{Arguments, CommandError};
use super::cluster::{ChannelMessage, ClusterTable, MovedKey};
use super::keyspace::{Keyspace, Stored};
use super::pubsub;
use super::replicas::note_writes;
use super::resp::Resp;
use super::state::ServerState;

/// The number of no connection.
const NOBODY: u64 = 0;

fn slot_of(key: &[u8]) -> u16 {
    seam::slot_of(key)
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the redirection or the error of a request for these keys, if this node does not execute it.
pub(super) fn check(
    state: &ServerState,
    connection: u64,
    keys: &[Vec<u8>],
) -> Result<(), CommandError> {
    let (Some(cluster), Some(first)) = (&state.cluster, keys.first()) else {
        return Ok(());
    };
    if state.now < cluster.rejects_until {
        return Err(CommandError::new("CLUSTERDOWN The cluster is down"));
    }
    let table = &cluster.table;
    let slot = slot_of(first);
    if keys.iter().any(|key| slot_of(key) != slot) {
        let text = "CROSSSLOT Keys in request don't hash to the same slot";
        return Err(CommandError::new(text));
    }
    let Some(owner) = table.owner(slot) else {
        return Err(CommandError::new("CLUSTERDOWN Hash slot not served"));
    };
    let is_here = |key: &&Vec<u8>| {
        let database = state.databases.get(&0);
        database.is_some_and(|database| database.has(key, millis(state.now)))
    };
    let here = keys.iter().filter(is_here).count();
    let try_again = || {
        let text = "TRYAGAIN Multiple keys request during rehashing of slot";
        Err(CommandError::new(text))
    };
    if owner == table.own {
        return match table.migrating {
            Some((moving, to)) if moving == slot && here < keys.len() => {
                if here > 0 {
                    return try_again();
                }
                Err(table.redirection("ASK", slot, to))
            }
            _ => Ok(()),
        };
    }
    let peer = state.peers.get(&connection);
    let is_importing = table.importing.is_some_and(|(moving, _)| moving == slot);
    if is_importing && peer.is_some_and(|peer| peer.is_asking) {
        if keys.len() > 1 && here < keys.len() {
            return try_again();
        }
        return Ok(());
    }
    Err(table.redirection("MOVED", slot, owner))
}

/// Returns the error of a command that a script calls. A script is not redirected.
pub(super) fn of_script(error: String) -> String {
    let is_elsewhere = ["MOVED ", "ASK ", "TRYAGAIN "];
    if is_elsewhere.iter().any(|word| error.starts_with(word)) {
        return "ERR Script attempted to access a non local key in a cluster node".into();
    }
    error
}

/// `CLUSTER SLOTS` and `CLUSTER NODES`.
pub(super) fn cluster(
    server: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let Some(cluster) = &server.cluster else {
        let text = "ERR This instance has cluster support disabled";
        return Err(CommandError::new(text));
    };
    match (arguments.option(1).as_str(), arguments.len()) {
        ("SLOTS", 2) => Ok(cluster.table.slots()),
        ("NODES", 2) => Ok(Resp::bulk(cluster.table.lines())),
        _ => Err(CommandError::unknown_subcommand(arguments)),
    }
}

/// `ASKING`: the next request may be about a slot that moves to here.
pub(super) fn asking(
    server: &mut ServerState,
    connection: u64,
    _: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    if server.cluster.is_none() {
        let text = "ERR This instance has cluster support disabled";
        return Err(CommandError::new(text));
    }
    if let Some(peer) = server.peers.get_mut(&connection) {
        peer.is_asking = true;
    }
    Ok(Resp::ok())
}

impl ServerState {
    /// Makes the server a node of a cluster with this table.
    pub fn take_table(&mut self, table: ClusterTable) {
        self.cluster.get_or_insert_default().table = table;
    }

    /// Has the node reject requests until this time since 1970, as after a restart.
    pub fn reject_until(&mut self, until: Duration) {
        self.cluster.get_or_insert_default().rejects_until = until;
    }

    /// Returns the messages that were published here since the last call, for the other nodes.
    pub fn take_published(&mut self) -> Vec<ChannelMessage> {
        let cluster = self.cluster.as_mut();
        cluster.map_or_else(Vec::new, |cluster| std::mem::take(&mut cluster.published))
    }

    /// Gives the clients a message that was published at another node.
    pub fn deliver(&mut self, message: &ChannelMessage) {
        pubsub::deliver(self, &message.channel, &message.payload);
    }

    /// Returns a key of a slot, if there is one.
    #[must_use]
    pub fn key_of_slot(&self, slot: u16) -> Option<Vec<u8>> {
        let keys = self.databases.get(&0).map(Keyspace::live_keys);
        let mut keys = keys.into_iter().flatten();
        keys.find(|key| slot_of(key) == slot).cloned()
    }

    /// Returns what a key holds, although the node may redirect requests for it, and when that ends, in ms since 1970: a string
    /// with its key, and a member of a sorted set at its score. Of other types it returns nothing.
    pub fn entries(&mut self, key: &[u8], now: Duration) -> Vec<(Vec<u8>, i64)> {
        let Some(keys) = self.databases.get_mut(&0) else {
            return Vec::new();
        };
        keys.now = millis(now);
        let ends_at = keys.expires_at(key).unwrap_or(i64::MAX);
        match keys.get(key) {
            Some(Stored::String(bytes)) => vec![(bytes.clone(), ends_at)],
            Some(Stored::SortedSet(members)) => {
                let members = members.iter();
                members
                    .map(|(member, score)| (member.clone(), score as i64))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Gives a key away at this time since 1970, as `MIGRATE` does.
    pub fn give_key(&mut self, key: &[u8], now: Duration) -> Option<MovedKey> {
        let keys = self.databases.entry(0).or_default();
        keys.now = millis(now);
        let ttl = keys.expires_at(key).map(|at| at - keys.now);
        let stored = keys.stored(key).cloned()?;
        keys.remove(key);
        note_writes(self, NOBODY);
        Some(MovedKey { stored, ttl })
    }

    /// Takes over a key of another node at this time since 1970, as `RESTORE` does.
    pub fn take_key(&mut self, key: &[u8], moved: MovedKey, now: Duration) {
        let keys = self.databases.entry(0).or_default();
        let MovedKey { stored, ttl } = moved;
        let expires_at = ttl.map(|ttl| millis(now).saturating_add(ttl));
        keys.set(key, stored.into_value(), expires_at);
        note_writes(self, NOBODY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::cluster::ClusterNode;
    use crate::memory::tests::TestClient;

    const OWNER: usize = 0;
    const OTHER: usize = 1;

    /// Returns a node of a cluster of two masters, of which the first one has all slots.
    fn node(own: usize) -> TestClient {
        let mut node = TestClient::new();
        node.server.state().take_table(table(own));
        node
    }

    fn table(own: usize) -> ClusterTable {
        let node = |number: u16| ClusterNode {
            id: format!("id{number}"),
            address: ("h".into(), number),
            config_epoch: 7,
            master: (number == 3).then_some(OWNER),
        };
        ClusterTable {
            own,
            nodes: [1, 2, 3].map(node).into(),
            ranges: vec![(0..=16_383, OWNER)],
            migrating: None,
            importing: None,
        }
    }

    #[test]
    fn a_node_redirects_requests_for_the_slots_of_others() {
        let mut owner = node(OWNER);
        assert_eq!(owner.ask("SET {a}b 1"), "+OK");
        assert_eq!(owner.ask("DEL {a}b {a}c"), ":1");
        assert!(owner.ask("DEL a b").starts_with("-CROSSSLOT"));
        for own in [OTHER, 2] {
            let mut other = node(own);
            assert_eq!(other.ask("GET a"), "-MOVED 15495 h:1");
            assert!(other.ask("EVAL return{1} 1 a").starts_with("-MOVED"));
            assert_eq!(other.ask("ECHO a"), "$1 a");
        }
        let lines = owner.ask("CLUSTER NODES");
        assert!(
            lines.contains("id1 h:1@10001 myself,master - 0 0 7 connected 0-16383"),
            "{lines}"
        );
        assert!(
            lines.contains("id3 h:3@10003 slave id1 0 0 7 connected"),
            "{lines}"
        );
        let slots = owner.ask("CLUSTER SLOTS");
        assert_eq!(slots, "*1 *4 :0 :16383 *3 $1 h :1 $3 id1 *3 $1 h :3 $3 id3");
    }

    #[test]
    fn while_a_slot_moves_each_key_is_at_one_of_two_nodes() {
        let (mut owner, mut other) = (node(OWNER), node(OTHER));
        owner.ask("SET a 1 PX 5000");
        owner.ask("SET {a}b 2");
        let moving = |own| ClusterTable {
            migrating: (own == OWNER).then_some((15_495, OTHER)),
            importing: (own == OTHER).then_some((15_495, OWNER)),
            ..table(own)
        };
        owner.server.state().take_table(moving(OWNER));
        other.server.state().take_table(moving(OTHER));
        assert_eq!(owner.ask("GET a"), "$1 1");
        assert_eq!(owner.ask("GET {a}c"), "-ASK 15495 h:2");
        assert!(owner.ask("DEL a {a}c").starts_with("-TRYAGAIN"));
        assert!(
            owner
                .ask("EVAL redis.call('DEL',KEYS[1]);return{redis.call('GET',KEYS[1])} 1 {a}b")
                .contains("non local key")
        );
        let moved = owner
            .server
            .state()
            .give_key(b"a", owner.now)
            .expect("a key");
        // The clock of the other node is ahead.
        other.now += Duration::from_secs(100);
        other.server.state().take_key(b"a", moved, other.now);
        assert_eq!(owner.ask("GET a"), "-ASK 15495 h:2");
        assert!(other.ask("GET a").starts_with("-MOVED"));
        other.ask("ASKING");
        assert_eq!(other.ask("GET a"), "$1 1");
        assert!(
            other.ask("GET a").starts_with("-MOVED"),
            "ASKING is for one request"
        );
        other.ask("ASKING");
        assert!(other.ask("DEL a {a}c").starts_with("-TRYAGAIN"));
        other.ask("ASKING");
        assert_eq!(other.ask("PTTL a"), ":5000");
    }

    #[test]
    fn a_message_goes_to_the_clients_of_all_nodes() {
        let (mut owner, mut other) = (node(OWNER), node(OTHER));
        other.ask("SUBSCRIBE c");
        assert_eq!(
            owner.ask("PUBLISH c m"),
            ":0",
            "nobody listens at this node"
        );
        for message in owner.server.state().take_published() {
            other.server.state().deliver(&message);
        }
        let connection = other.connection;
        assert_eq!(other.output(connection), "*3 $7 message $1 c $1 m");
    }

    #[test]
    fn a_node_that_has_restarted_rejects_requests_for_a_while() {
        let mut owner = node(OWNER);
        let until = owner.now + Duration::from_secs(2);
        owner.server.state().reject_until(until);
        assert!(owner.ask("GET a").starts_with("-CLUSTERDOWN"));
        owner.now = until;
        assert_eq!(owner.ask("GET a"), "$-1");
    }
}
