//! A master and its replicas.
//!
//! The caller carries the data from a master to its replicas, and what they confirm back:
//!
//! | the master | the caller | the replica |
//! | --- | --- | --- |
//! | gets a replica ([`ServerState::attach`]) | carries all data | loads them |
//! | executes a command. The keys that it wrote are a change ([`ServerState::take_changes`]) | carries the change, in the order of changes | applies it |
//! | ends a `WAIT` when enough replicas have confirmed its client's last write, or its time is over | carries the number of the last change that the replica has applied | |
//!
//! A change has the values of keys, and no commands. So a script is one change. A key keeps the time at which it expires, and
//! each server deletes the key by its own clock. A command that has changed nothing is no write, except those that Redis
//! replicates all the same: `SET`, and `PEXPIRE` to the same time.
//!
//! A replica answers reads from what it has. It rejects writes by `READONLY`, and most requests by `LOADING` while it loads.

use std::time::Duration;

use std::sync::Arc;

use super::arguments::{Arguments, CommandError};
use super::keyspace::Keyspace;
use super::replication::{BlockedClient, Change, DataCopy, Replica, Replication};
use super::resp::Resp;
use super::state::{Refusal, Refused, ServerState};

/// The writes that need memory, and the others. A replica rejects both.
const GROWTH: &str = "append decr decrby getset hincrby hmset hset hsetnx incr incrby linsert lpush lpushx lset psetex \
    rpush rpushx sadd set setex setnx setrange zadd zincrby";
const OTHER_WRITES: &str = "del expire expireat flushall getdel getex hdel lpop lrem ltrim persist pexpire pexpireat \
    rpop spop srem unlink zpopmax zpopmin zrem zremrangebyrank zremrangebyscore";

/// The commands that a server executes while it loads its data.
const WHILE_LOADING: [&str; 14] = [
    "acl",
    "asking",
    "auth",
    "cluster",
    "config",
    "echo",
    "info",
    "publish",
    "pubsub",
    "role",
    "select",
    "subscribe",
    "time",
    "unsubscribe",
];

/// Returns the error of a command that this server does not execute now.
pub(super) fn check(state: &ServerState, name: &str) -> Result<(), CommandError> {
    let replication = &state.replication;
    if state.now < replication.loading_until && !WHILE_LOADING.contains(&name) {
        let text = "LOADING Redis is loading the dataset in memory";
        return Err(CommandError::new(text));
    }
    let grows = || GROWTH.split(' ').any(|write| write == name);
    let writes = || grows() || OTHER_WRITES.split(' ').any(|write| write == name);
    if !replication.is_master() && writes() {
        let text = "READONLY You can't write against a read only replica.";
        return Err(CommandError::new(text));
    }
    let is_refused = |refusal: &Refusal| match refusal.what {
        Refused::Writes => writes(),
        Refused::WritesAndPing => writes() || name == "ping",
        Refused::Data => !WHILE_LOADING.contains(&name),
        // A script that has written something may write on.
        Refused::Growth => grows() && !state.databases.values().any(Keyspace::is_written),
        Refused::All => true,
    };
    match state.refusal.filter(is_refused) {
        Some(refusal) => Err(CommandError::new(refusal.error)),
        None => Ok(()),
    }
}

/// Makes a change of what a client's command has written.
pub(super) fn note_writes(state: &mut ServerState, connection: u64) {
    let mut keys = Vec::new();
    for (database, keyspace) in &mut state.databases {
        for key in keyspace.take_written() {
            let stored = keyspace.stored(&key).cloned();
            keys.push((*database, key, stored));
        }
    }
    if keys.is_empty() {
        return;
    }
    let replication = &mut state.replication;
    replication.offset += 1;
    let offset = replication.offset;
    if !replication.replicas.is_empty() {
        replication.changes.push(Arc::new(Change { offset, keys }));
    }
    if let Some(peer) = state.peers.get_mut(&connection) {
        peer.last_write = offset;
    }
}

/// `ROLE`.
pub(super) fn role(
    state: &mut ServerState,
    _: u64,
    _: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let replication = &state.replication;
    if let Some((host, port)) = &replication.master {
        return Ok(Resp::Array(vec![
            Resp::bulk("slave"),
            Resp::bulk(host.as_str()),
            Resp::Int(i64::from(*port)),
            Resp::bulk("connected"),
            Resp::Int(replication.offset),
        ]));
    }
    let replicas = replication.replicas.values();
    let replicas = replicas.filter_map(|replica| {
        let (host, port) = &replica.address;
        let parts = [
            host.clone(),
            port.to_string(),
            replica.confirmed?.to_string(),
        ];
        Some(Resp::Array(parts.map(Resp::bulk).into()))
    });
    Ok(Resp::Array(vec![
        Resp::bulk("master"),
        Resp::Int(replication.offset),
        Resp::Array(replicas.collect()),
    ]))
}

/// `WAIT replicas ms`. A master that never had a replica answers at once.
pub(super) fn wait(state: &mut ServerState, connection: u64, arguments: &Arguments<'_>) {
    let answer = begin_wait(state, connection, arguments);
    let answer = answer.unwrap_or_else(|error| Some(Resp::Error(error.0)));
    if let Some((answer, peer)) = answer.zip(state.peers.get_mut(&connection)) {
        answer.write(&mut peer.out);
    }
}

/// Returns the answer, or `None` if the client is blocked.
fn begin_wait(
    state: &mut ServerState,
    connection: u64,
    arguments: &Arguments<'_>,
) -> Result<Option<Resp>, CommandError> {
    let (needed, millis) = (arguments.int(1)?, arguments.int(2)?);
    let Ok(millis) = u64::try_from(millis) else {
        return Err(CommandError::new("ERR timeout is negative"));
    };
    let replication = &mut state.replication;
    if !replication.is_master() {
        let text = "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is \
                    configured to be writable (which is not the default) writes to replicas are just local and are not \
                    propagated.";
        return Err(CommandError::new(text));
    }
    let Some(peer) = state.peers.get_mut(&connection) else {
        return Ok(None);
    };
    let needed = usize::try_from(needed).unwrap_or(0);
    let confirmed = replication.count_confirmed(peer.last_write);
    if confirmed >= needed || !replication.had_a_replica {
        return Ok(Some(Resp::count(confirmed)));
    }
    peer.is_blocked = true;
    replication.waits.push(BlockedClient {
        connection,
        needed,
        offset: peer.last_write,
        until: (millis > 0).then(|| state.now + Duration::from_millis(millis)),
    });
    Ok(None)
}

impl ServerState {
    /// Makes the server a replica of the server at this address, at this time since 1970. Its data stay until it
    /// [loads](Self::load) others.
    pub fn follow(&mut self, master: (String, u16), now: Duration) {
        self.now = now;
        let replication = &mut self.replication;
        replication.master = Some(master);
        replication.replicas.clear();
        replication.changes.clear();
        for client in std::mem::take(&mut replication.waits) {
            let text = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
            self.unblock(client.connection, &Resp::Error(text.into()), true);
        }
    }

    /// Makes the server a master, with the data that it has.
    pub fn lead(&mut self) {
        self.replication.master = None;
    }

    /// Notes that a server is a replica of this one, and returns the data that it has to load.
    pub fn attach(&mut self, number: usize, address: (String, u16)) -> DataCopy {
        let replica = Replica {
            address,
            confirmed: None,
        };
        self.replication.replicas.insert(number, replica);
        self.replication.had_a_replica = true;
        DataCopy {
            offset: self.replication.offset,
            databases: self.databases.clone(),
        }
    }

    /// Notes that the connection to a replica has ended.
    pub fn detach(&mut self, number: usize) {
        self.replication.replicas.remove(&number);
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&mut self) -> Vec<Arc<Change>> {
        std::mem::take(&mut self.replication.changes)
    }

    /// Takes over the data of the master. The server rejects most requests until it has loaded them. Returns the number of
    /// the last change in them.
    pub fn load(&mut self, copy: &DataCopy, until: Duration) -> i64 {
        self.databases.clone_from(&copy.databases);
        self.replication.offset = copy.offset;
        self.replication.loading_until = until;
        copy.offset
    }

    /// Applies a change of the master, and returns its number.
    pub fn apply(&mut self, change: &Change) -> i64 {
        for (database, key, stored) in &change.keys {
            let keys = self.databases.entry(*database).or_default();
            keys.copy(key, stored.clone());
        }
        self.replication.offset = change.offset;
        change.offset
    }

    /// Notes that a replica has confirmed the changes up to this number, at this time since 1970. Ends each `WAIT` for that.
    pub fn confirm(&mut self, number: usize, offset: i64, now: Duration) {
        self.now = now;
        let replication = &mut self.replication;
        let Some(replica) = replication.replicas.get_mut(&number) else {
            return;
        };
        replica.confirmed = replica.confirmed.max(Some(offset));
        self.end_waits(|replication, client| {
            replication.count_confirmed(client.offset) >= client.needed
        });
    }

    /// Ends each `WAIT` whose time is over at this time since 1970.
    pub fn pass_time(&mut self, now: Duration) {
        self.now = now;
        self.end_waits(|_, client| client.until.is_some_and(|until| until <= now));
    }

    /// Returns when the time of the first `WAIT` is over, since 1970.
    #[must_use]
    pub fn first_wait_ends_at(&self) -> Option<Duration> {
        let waits = self.replication.waits.iter();
        waits.filter_map(|client| client.until).min()
    }

    /// Closes the connections of all clients, as Sentinel does when it changes the role of a server.
    pub fn close_clients(&mut self) {
        for peer in self.peers.values_mut() {
            peer.is_closed = true;
        }
    }

    fn end_waits(&mut self, is_over: impl Fn(&Replication, &BlockedClient) -> bool) {
        let waits = std::mem::take(&mut self.replication.waits);
        let (over, left): (Vec<_>, Vec<_>) = waits
            .into_iter()
            .partition(|client| is_over(&self.replication, client));
        self.replication.waits = left;
        for client in over {
            let confirmed = self.replication.count_confirmed(client.offset);
            self.unblock(client.connection, &Resp::count(confirmed), false);
        }
    }

    /// Answers a blocked client. Executes the requests that it has sent meanwhile, or closes its connection.
    fn unblock(&mut self, connection: u64, answer: &Resp, is_closed: bool) {
        if let Some(peer) = self.peers.get_mut(&connection) {
            (peer.is_blocked, peer.is_closed) = (false, is_closed);
            answer.write(&mut peer.out);
            (self.execute_unread)(self, connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::TestClient;

    const REPLICA: usize = 1;

    fn address() -> (String, u16) {
        ("h".into(), 6379)
    }

    /// Returns a master and a replica that has its data.
    fn pair() -> (TestClient, TestClient) {
        let (mut master, mut replica) = (TestClient::new(), TestClient::new());
        replica.server.state().follow(address(), replica.now);
        let data = master.server.state().attach(REPLICA, address());
        replica.server.state().load(&data, replica.now);
        (master, replica)
    }

    #[test]
    fn a_replica_has_what_each_command_of_the_master_has_written() {
        let (mut master, mut replica) = pair();
        for command in [
            "SET k v PX 5000",
            "HSET h f 1",
            "RPUSH l a b",
            "LSET l 0 c",
            "LPOP l",
            "ZADD z 1 m",
            "PEXPIRE h 700",
            "EVAL return{redis.call('INCR','n'),redis.call('DEL','k')} 0",
            "GET n",
        ] {
            master.ask(command);
        }
        let changes = master.server.state().take_changes();
        assert_eq!(changes.len(), 8, "a script is one change, a read is none");
        for change in &changes {
            replica.server.state().apply(change);
        }
        for question in [
            "GET k",
            "HGETALL h",
            "PTTL h",
            "LRANGE l 0 9",
            "ZRANGE z 0 9",
            "GET n",
        ] {
            assert_eq!(replica.ask(question), master.ask(question), "{question}");
        }
        assert!(replica.ask("SET k v").starts_with("-READONLY"));
        assert!(
            replica
                .ask("EVAL return{redis.call('SET','k','v')} 0")
                .starts_with("-READONLY")
        );
        assert!(replica.ask("ROLE").contains("slave $1 h :6379"));
        replica.server.state().lead();
        assert_eq!(replica.ask("SET k v"), "+OK");
    }

    #[test]
    fn a_wait_ends_when_enough_replicas_have_the_clients_last_write() {
        let (mut master, _) = pair();
        assert_eq!(master.ask("WAIT 0 0"), ":0");
        master.ask("SET k v");
        assert_eq!(master.ask("WAIT 1 1000"), "", "it is blocked");
        assert_eq!(master.ask("PING"), "", "a request behind it waits");
        let change = master
            .server
            .state()
            .take_changes()
            .pop()
            .expect("a change");
        let (now, connection) = (master.now, master.connection);
        master
            .server
            .state()
            .confirm(REPLICA, change.offset - 1, now);
        assert_eq!(master.output(connection), "");
        master.server.state().confirm(REPLICA, change.offset, now);
        assert_eq!(master.output(connection), ":1 +PONG");
        assert_eq!(master.ask("WAIT 1 1000"), ":1");
    }

    #[test]
    fn a_wait_ends_when_its_time_is_over() {
        let (mut master, _) = pair();
        master.ask("SET k v");
        master.ask("WAIT 1 1000");
        let until = master.server.state().first_wait_ends_at().expect("a wait");
        assert_eq!(until, master.now + Duration::from_secs(1));
        master.server.state().pass_time(until);
        let connection = master.connection;
        assert_eq!(master.output(connection), ":0");
        assert_eq!(master.server.state().first_wait_ends_at(), None);
    }

    /// As redis 7.0.15 answers `REPLICAOF` of another client.
    #[test]
    fn a_master_that_becomes_a_replica_ends_each_wait_and_its_connection() {
        let (mut master, _) = pair();
        master.ask("SET k v");
        master.ask("WAIT 1 1000");
        master.server.state().follow(address(), master.now);
        let connection = master.connection;
        assert!(master.output(connection).starts_with("-UNBLOCKED"));
        assert_eq!(master.server.take_output(connection), None);
    }

    #[test]
    fn a_replica_that_loads_its_data_rejects_requests() {
        let (mut master, mut replica) = pair();
        let data = master.server.state().attach(REPLICA, address());
        let until = replica.now + Duration::from_secs(1);
        replica.server.state().load(&data, until);
        assert!(replica.ask("GET k").starts_with("-LOADING"));
        assert!(replica.ask("ROLE").contains("slave"));
        replica.now = until;
        assert_eq!(replica.ask("GET k"), "$-1");
    }
}
