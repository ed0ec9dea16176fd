//! A Redis server in memory, for tests. It has the commands that leasehold's scripts and connections use, and those that
//! a test of a lock or of a commit needs.
//!
//! It opens no port and has no thread, and its time comes from the caller. A connection is a number and two buffers:
//!
//! 1. [`MemoryServer::receive`] takes bytes from a client, and executes each request that is whole.
//! 2. [`MemoryServer::take_output`] returns the bytes that the server has for that client: answers, and messages of
//!    channels.
//!
//! `tests/comparison` compares it with real servers. It does not show these:
//!
//! * limits of memory, and evictions;
//! * what replicas, sentinels and clusters do by themselves: a simulator has to do it;
//! * access lists of categories of commands, of subcommands, and of keys that may only be read or written;
//! * how fast a server is.
//!
//! | module | its subject |
//! | --- | --- |
//! | `resp` | requests and replies as bytes |
//! | `arguments` | the arguments and errors of commands |
//! | `keyspace` | the keys of a database, and when they expire |
//! | `strings` `hashes` `lists` `sets` `sorted_sets` | the commands of each type of values |
//! | `sorted_set` | the members of a sorted set |
//! | `pubsub` | channels |
//! | `scripts` `lua` | Lua scripts, and what they see |
//! | `state` | the state of a server |
//! | `users` | users, and what they may do |
//! | `admin` | commands about the server and the connection |
//! | `replication` `replicas` | masters and replicas: their state, and their answers |
//! | `sentinel` | the answers of a sentinel |
//! | `cluster` `nodes` | nodes of a cluster: their state, and their answers |
//! | `glob` | patterns |

#![allow(
    clippy::unnecessary_wraps,
    reason = "all functions of commands have one type"
)]

mod admin;
mod arguments;
mod cluster;
mod glob;
mod hashes;
mod keyspace;
mod lists;
mod lua;
mod nodes;
mod pubsub;
mod replicas;
mod replication;
mod resp;
mod scripts;
mod sentinel;
mod sets;
mod sorted_set;
mod sorted_sets;
mod state;
mod strings;
mod users;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use arguments::{Arguments, CommandError};
use keyspace::Keyspace;
use lua::Scripts;
use replication::Replication;
use resp::request;
use state::Peer;
use users::Users;

pub use cluster::{ChannelMessage, ClusterNode, ClusterTable, MovedKey};
pub(crate) use resp::Resp;

pub use replication::{Change, DataCopy, WatchedMaster};
pub use state::{Refusal, Refused, ServerState};

type OnKeys = fn(&mut Keyspace, &Arguments<'_>) -> Result<Resp, CommandError>;
type OnServer = fn(&mut ServerState, u64, &Arguments<'_>) -> Result<Resp, CommandError>;
type OnConnection = fn(&mut ServerState, u64, &Arguments<'_>);

/// How a command is executed.
#[derive(Clone, Copy)]
enum Execution {
    /// On the keys of the connection's database.
    Keys(OnKeys),
    /// On the server. The number is that of the connection.
    Server(OnServer),
    /// The same, and scripts may not call it.
    NotOfScripts(OnServer),
    /// It writes its answers itself. Scripts may not call it.
    Several(OnConnection),
}

use Execution::{Keys, NotOfScripts, Server, Several};

/// Which arguments of a command are keys or channels.
#[derive(Clone, Copy)]
enum KeyPlaces {
    Nowhere,
    First,
    All,
    /// The second argument is the number of keys, and the keys follow.
    Counted,
    FirstIsChannel,
    AllAreChannels,
}

/// The commands: the name, the number of words (a negative one is the least number), where its keys
/// are, and the function.
const COMMANDS: &[(&str, i32, KeyPlaces, Execution)] = &[
    ("acl", -2, KeyPlaces::Nowhere, NotOfScripts(admin::acl)),
    ("append", 3, KeyPlaces::First, Keys(strings::append)),
    ("asking", 1, KeyPlaces::Nowhere, NotOfScripts(nodes::asking)),
    ("auth", -2, KeyPlaces::Nowhere, NotOfScripts(admin::auth)),
    (
        "cluster",
        -2,
        KeyPlaces::Nowhere,
        NotOfScripts(nodes::cluster),
    ),
    (
        "config",
        -2,
        KeyPlaces::Nowhere,
        NotOfScripts(admin::config),
    ),
    ("decr", 2, KeyPlaces::First, Keys(strings::decr)),
    ("decrby", 3, KeyPlaces::First, Keys(strings::decr_by)),
    ("del", -2, KeyPlaces::All, Keys(keyspace::del)),
    ("echo", 2, KeyPlaces::Nowhere, Server(admin::echo)),
    ("eval", -3, KeyPlaces::Counted, NotOfScripts(scripts::eval)),
    (
        "evalsha",
        -3,
        KeyPlaces::Counted,
        NotOfScripts(scripts::eval_sha),
    ),
    ("exists", -2, KeyPlaces::All, Keys(keyspace::exists)),
    ("expire", -3, KeyPlaces::First, Keys(keyspace::expire)),
    ("expireat", -3, KeyPlaces::First, Keys(keyspace::expire)),
    ("flushall", -1, KeyPlaces::Nowhere, Server(admin::flush_all)),
    ("get", 2, KeyPlaces::First, Keys(strings::get)),
    ("getdel", 2, KeyPlaces::First, Keys(strings::get_del)),
    ("getex", -2, KeyPlaces::First, Keys(strings::get_ex)),
    ("getrange", 4, KeyPlaces::First, Keys(strings::get_range)),
    ("getset", 3, KeyPlaces::First, Keys(strings::set_by_name)),
    ("hdel", -3, KeyPlaces::First, Keys(hashes::del)),
    ("hget", 3, KeyPlaces::First, Keys(hashes::get)),
    ("hgetall", 2, KeyPlaces::First, Keys(hashes::get_all)),
    ("hincrby", 4, KeyPlaces::First, Keys(hashes::incr_by)),
    ("hlen", 2, KeyPlaces::First, Keys(hashes::len)),
    ("hmset", -4, KeyPlaces::First, Keys(hashes::set)),
    ("hset", -4, KeyPlaces::First, Keys(hashes::set)),
    ("hsetnx", 4, KeyPlaces::First, Keys(hashes::set_nx)),
    ("incr", 2, KeyPlaces::First, Keys(strings::incr)),
    ("incrby", 3, KeyPlaces::First, Keys(strings::incr_by)),
    ("info", -1, KeyPlaces::Nowhere, Server(admin::info)),
    ("keys", 2, KeyPlaces::Nowhere, Keys(keyspace::keys_of)),
    ("lindex", 3, KeyPlaces::First, Keys(lists::index)),
    ("linsert", 5, KeyPlaces::First, Keys(lists::insert)),
    ("llen", 2, KeyPlaces::First, Keys(lists::len)),
    ("lpop", -2, KeyPlaces::First, Keys(lists::pop)),
    ("lpush", -3, KeyPlaces::First, Keys(lists::push)),
    ("lpushx", -3, KeyPlaces::First, Keys(lists::push)),
    ("lrange", 4, KeyPlaces::First, Keys(lists::range)),
    ("lrem", 4, KeyPlaces::First, Keys(lists::remove)),
    ("lset", 4, KeyPlaces::First, Keys(lists::set)),
    ("ltrim", 4, KeyPlaces::First, Keys(lists::trim)),
    ("mget", -2, KeyPlaces::All, Keys(strings::get_many)),
    ("persist", 2, KeyPlaces::First, Keys(keyspace::persist)),
    ("pexpire", -3, KeyPlaces::First, Keys(keyspace::expire)),
    ("pexpireat", -3, KeyPlaces::First, Keys(keyspace::expire)),
    ("ping", -1, KeyPlaces::Nowhere, Server(admin::ping)),
    ("psetex", 4, KeyPlaces::First, Keys(strings::set_by_name)),
    ("pttl", 2, KeyPlaces::First, Keys(keyspace::pttl)),
    (
        "publish",
        3,
        KeyPlaces::FirstIsChannel,
        Server(pubsub::publish),
    ),
    ("pubsub", -2, KeyPlaces::Nowhere, Server(pubsub::pubsub)),
    ("role", 1, KeyPlaces::Nowhere, NotOfScripts(replicas::role)),
    ("rpop", -2, KeyPlaces::First, Keys(lists::pop)),
    ("rpush", -3, KeyPlaces::First, Keys(lists::push)),
    ("rpushx", -3, KeyPlaces::First, Keys(lists::push)),
    ("sadd", -3, KeyPlaces::First, Keys(sets::add)),
    ("scan", -2, KeyPlaces::Nowhere, Keys(keyspace::scan)),
    ("scard", 2, KeyPlaces::First, Keys(sets::card)),
    (
        "script",
        -2,
        KeyPlaces::Nowhere,
        NotOfScripts(scripts::script),
    ),
    ("select", 2, KeyPlaces::Nowhere, Server(admin::select)),
    (
        "sentinel",
        -2,
        KeyPlaces::Nowhere,
        NotOfScripts(sentinel::sentinel),
    ),
    ("set", -3, KeyPlaces::First, Keys(strings::set)),
    ("setex", 4, KeyPlaces::First, Keys(strings::set_by_name)),
    ("setnx", 3, KeyPlaces::First, Keys(strings::set_by_name)),
    ("setrange", 4, KeyPlaces::First, Keys(strings::set_range)),
    ("sismember", 3, KeyPlaces::First, Keys(sets::is_member)),
    ("smembers", 2, KeyPlaces::First, Keys(sets::members)),
    ("spop", -2, KeyPlaces::First, Keys(sets::pop)),
    ("srem", -3, KeyPlaces::First, Keys(sets::rem)),
    ("strlen", 2, KeyPlaces::First, Keys(strings::str_len)),
    (
        "subscribe",
        -2,
        KeyPlaces::AllAreChannels,
        Several(pubsub::subscribe),
    ),
    ("time", 1, KeyPlaces::Nowhere, Server(admin::time)),
    ("ttl", 2, KeyPlaces::First, Keys(keyspace::pttl)),
    ("type", 2, KeyPlaces::First, Keys(keyspace::type_of)),
    ("unlink", -2, KeyPlaces::All, Keys(keyspace::del)),
    (
        "unsubscribe",
        -1,
        KeyPlaces::AllAreChannels,
        Several(pubsub::unsubscribe),
    ),
    ("wait", 3, KeyPlaces::Nowhere, Several(replicas::wait)),
    ("zadd", -4, KeyPlaces::First, Keys(sorted_sets::add)),
    ("zcard", 2, KeyPlaces::First, Keys(sorted_sets::card)),
    ("zincrby", 4, KeyPlaces::First, Keys(sorted_sets::incr_by)),
    ("zpopmax", -2, KeyPlaces::First, Keys(sorted_sets::pop)),
    ("zpopmin", -2, KeyPlaces::First, Keys(sorted_sets::pop)),
    ("zrange", -4, KeyPlaces::First, Keys(sorted_sets::range)),
    (
        "zrangebyscore",
        -4,
        KeyPlaces::First,
        Keys(sorted_sets::range),
    ),
    ("zrem", -3, KeyPlaces::First, Keys(sorted_sets::rem)),
    (
        "zremrangebyrank",
        4,
        KeyPlaces::First,
        Keys(sorted_sets::rem_range),
    ),
    (
        "zremrangebyscore",
        4,
        KeyPlaces::First,
        Keys(sorted_sets::rem_range),
    ),
    ("zscore", 3, KeyPlaces::First, Keys(sorted_sets::score)),
];

/// A Redis server in memory, without a clock.
pub struct MemoryServer(ServerState);

impl MemoryServer {
    /// Starts a server. `run_id` names this process of the server, and `now` is its time since 1970.
    ///
    /// # Panics
    ///
    /// Panics if there is no memory for its Lua.
    #[must_use]
    pub fn start(run_id: String, now: Duration) -> Self {
        Self(ServerState {
            databases: BTreeMap::new(),
            peers: BTreeMap::new(),
            next_connection: 0,
            scripts: Scripts::new().expect("memory for the Lua of a server"),
            users: Users::new(),
            now,
            started_at: now,
            run_id,
            replication: Replication::default(),
            cluster: None,
            watched: None,
            refusal: None,
            execute_for_script,
            execute_unread,
        })
    }

    /// Restarts the server with its data, without its connections and scripts.
    pub fn restart(&mut self, run_id: String, now: Duration) {
        let Self(state) = self;
        state.scripts.forget_all();
        state.run_id = run_id;
        (state.now, state.started_at) = (now, now);
        state.peers.clear();
        state.refusal = None;
        state.replication.restart();
    }

    /// Restarts the server as a new one: without data, and its connections have the numbers of before.
    pub fn restart_empty(&mut self, run_id: String, now: Duration) {
        self.restart(run_id, now);
        let Self(state) = self;
        (state.databases, state.users) = (BTreeMap::new(), Users::new());
        (state.replication, state.cluster, state.watched) = (Replication::default(), None, None);
        state.next_connection = 0;
    }

    /// Returns the part of the server that has replicas, or is a node of a cluster. The simulator carries what servers send
    /// to each other.
    pub fn state(&mut self) -> &mut ServerState {
        &mut self.0
    }

    /// Accepts a connection, and returns its number.
    pub fn connect(&mut self) -> u64 {
        let Self(state) = self;
        state.next_connection += 1;
        let peer = Peer {
            user: state.users.at_first(),
            ..Peer::default()
        };
        state.peers.insert(state.next_connection, peer);
        state.next_connection
    }

    /// Takes bytes from a client at this time since 1970, and executes each request that is whole.
    pub fn receive(&mut self, connection: u64, bytes: &[u8], now: Duration) {
        let Self(state) = self;
        state.now = now;
        if let Some(peer) = state.peers.get_mut(&connection) {
            peer.unread.extend(bytes);
        }
        execute_unread(state, connection);
    }

    /// Returns the connections for which the server has something, or which it has closed.
    #[must_use]
    pub fn with_output(&self) -> Vec<u64> {
        let peers = self.0.peers.iter();
        let with_output = peers.filter(|(_, peer)| !peer.out.is_empty() || peer.is_closed);
        with_output.map(|(connection, _)| *connection).collect()
    }

    /// Returns what the server has for a client. Returns `None` at the end of a connection that the server has closed.
    pub fn take_output(&mut self, connection: u64) -> Option<Vec<u8>> {
        let Self(state) = self;
        let peer = state.peers.get_mut(&connection)?;
        if peer.out.is_empty() && peer.is_closed {
            state.peers.remove(&connection);
            return None;
        }
        Some(std::mem::take(&mut peer.out))
    }

    /// Notes that a client has closed its connection.
    pub fn disconnect(&mut self, connection: u64) {
        self.0.peers.remove(&connection);
    }

    /// Executes a command as [`execute`](Self::execute) does, and returns its answer, if it is one that comes at once.
    pub(crate) fn answer(&mut self, words: &[Vec<u8>], now: Duration) -> Option<Resp> {
        let connection = self.connect_operator();
        let Self(state) = self;
        state.now = now;
        let answer = answer(state, connection, &Arguments(words));
        replicas::note_writes(state, connection);
        self.disconnect(connection);
        answer
    }

    /// Executes a command at this time since 1970, whatever the rules of users are, and returns the bytes of its answer.
    pub fn execute(&mut self, command: &[&str], now: Duration) -> Vec<u8> {
        let connection = self.connect_operator();
        self.receive(connection, &request(command), now);
        let answer = self.take_output(connection);
        self.disconnect(connection);
        answer.unwrap_or_default()
    }

    fn connect_operator(&mut self) -> u64 {
        let connection = self.connect();
        if let Some(peer) = self.0.peers.get_mut(&connection) {
            peer.user = Some(users::OPERATOR.to_owned());
        }
        connection
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryServer")
    }
}

/// Executes each request of a connection that is whole, until one blocks the client.
fn execute_unread(state: &mut ServerState, connection: u64) {
    let Some(peer) = state.peers.get_mut(&connection) else {
        return;
    };
    let mut unread = std::mem::take(&mut peer.unread);
    let mut executed = 0;
    while let Some(peer) = state.peers.get_mut(&connection) {
        if peer.is_closed || peer.is_blocked {
            break;
        }
        match resp::first_request(&unread[executed..]) {
            Ok(None) => break,
            Ok(Some((words, read))) => {
                executed += read;
                if words.is_empty() {
                    continue;
                }
                let was_asking = peer.is_asking;
                execute(state, connection, &Arguments(&words));
                if let Some(peer) = state.peers.get_mut(&connection).filter(|_| was_asking) {
                    peer.is_asking = false;
                }
                replicas::note_writes(state, connection);
            }
            Err(what) => {
                let error = Resp::Error(format!("ERR Protocol error: {what}"));
                error.write(&mut peer.out);
                peer.is_closed = true;
            }
        }
    }
    if let Some(peer) = state.peers.get_mut(&connection) {
        unread.drain(..executed);
        peer.unread = unread;
    }
}

/// Executes a request, and writes its answer.
fn execute(state: &mut ServerState, connection: u64, arguments: &Arguments<'_>) {
    let answer = answer(state, connection, arguments);
    if let Some((answer, peer)) = answer.zip(state.peers.get_mut(&connection)) {
        answer.write(&mut peer.out);
    }
}

/// Executes a request. Returns its answer, unless the command writes its answers itself.
fn answer(state: &mut ServerState, connection: u64, arguments: &Arguments<'_>) -> Option<Resp> {
    match command(state, connection, arguments) {
        Ok((name, _)) if state.is_subscribed(connection) && !may_a_subscriber(name) => {
            Some(Resp::Error(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
                 this context"
            )))
        }
        Ok((_, Several(write_answers))) => {
            write_answers(state, connection, arguments);
            None
        }
        Ok((_, Keys(run))) => Some(on_keys(state, connection, run, arguments)),
        Ok((_, Server(run) | NotOfScripts(run))) => Some(reply(run(state, connection, arguments))),
        Err(error) => Some(Resp::Error(error.0)),
    }
}

/// Executes a command that a script calls, and returns its reply.
fn execute_for_script(state: &mut ServerState, connection: u64, arguments: &Arguments<'_>) -> Resp {
    match command(state, connection, arguments) {
        Ok((_, Keys(run))) => on_keys(state, connection, run, arguments),
        Ok((_, Server(run))) => reply(run(state, connection, arguments)),
        Ok((_, NotOfScripts(_) | Several(_))) => {
            Resp::Error("ERR This Redis command is not allowed from script".into())
        }
        Err(error) => Resp::Error(nodes::of_script(error.0)),
    }
}

/// Returns the command that the first word names, if it has enough words, and if the user of the connection may execute
/// it.
fn command(
    state: &ServerState,
    connection: u64,
    arguments: &Arguments<'_>,
) -> Result<(&'static str, Execution), CommandError> {
    let name = arguments.name();
    let Ok(at) = COMMANDS.binary_search_by(|(other, ..)| (*other).cmp(&name)) else {
        return Err(CommandError(format!(
            "ERR unknown command '{name}': the Redis in memory of leasehold-testing does not have it"
        )));
    };
    let (name, words, places, execution) = COMMANDS[at];
    let least = words.unsigned_abs() as usize;
    if arguments.len() < least || words > 0 && arguments.len() > least {
        return Err(CommandError::wrong_number(name));
    }
    let (rest, none) = (arguments.from(1), &[][..]);
    let (keys, channels) = match places {
        KeyPlaces::Nowhere => (none, none),
        KeyPlaces::First => (&rest[..1], none),
        KeyPlaces::All => (rest, none),
        KeyPlaces::Counted => {
            let count = arguments.int(2).ok();
            let count = count.and_then(|count| usize::try_from(count).ok());
            let keys = rest[2..].get(..count.unwrap_or(0));
            (keys.unwrap_or_default(), none)
        }
        KeyPlaces::FirstIsChannel => (none, &rest[..1]),
        KeyPlaces::AllAreChannels => (none, rest),
    };
    let peer = state.peers.get(&connection);
    let user = peer.and_then(|peer| peer.user.as_deref());
    state.users.check(user, arguments, keys, channels)?;
    nodes::check(state, connection, keys)?;
    replicas::check(state, name)?;
    Ok((name, execution))
}

fn on_keys(
    state: &mut ServerState,
    connection: u64,
    run: OnKeys,
    arguments: &Arguments<'_>,
) -> Resp {
    let peer = state.peers.get(&connection);
    let database = peer.map_or(0, |peer| peer.database);
    let keys = state.databases.entry(database).or_default();
    keys.now = i64::try_from(state.now.as_millis()).unwrap_or(i64::MAX);
    reply(run(keys, arguments))
}

fn may_a_subscriber(name: &str) -> bool {
    ["subscribe", "unsubscribe", "ping"].contains(&name)
}

fn reply(outcome: Result<Resp, CommandError>) -> Resp {
    outcome.unwrap_or_else(|error| Resp::Error(error.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A server whose clock a test sets, and a connection to it.
    pub(super) struct TestClient {
        pub(super) server: MemoryServer,
        pub(super) connection: u64,
        pub(super) now: Duration,
    }

    impl TestClient {
        pub(super) fn new() -> Self {
            let now = Duration::from_secs(1_000_000);
            let mut server = MemoryServer::start("id".into(), now);
            let connection = server.connect();
            Self {
                server,
                connection,
                now,
            }
        }

        /// Returns the answer to a command, without the line breaks.
        pub(super) fn ask(&mut self, command: &str) -> String {
            let connection = self.connection;
            self.ask_on(connection, command)
        }

        pub(super) fn ask_on(&mut self, connection: u64, command: &str) -> String {
            let request = request(&command.split(' ').collect::<Vec<_>>());
            self.server.receive(connection, &request, self.now);
            self.output(connection)
        }

        pub(super) fn output(&mut self, connection: u64) -> String {
            let output = self.server.take_output(connection).expect("it is open");
            String::from_utf8(output)
                .expect("text")
                .replace("\r\n", " ")
                .trim()
                .to_owned()
        }
    }

    #[test]
    fn the_commands_are_in_order() {
        assert!(COMMANDS.is_sorted_by_key(|(name, ..)| name));
    }

    #[test]
    fn a_key_expires_after_its_last_millisecond() {
        let mut client = TestClient::new();
        client.ask("SET k v PX 100");
        client.ask("HSET h f v");
        client.ask("PEXPIRE h 200");
        client.now += Duration::from_millis(100);
        assert_eq!(client.ask("PTTL k"), ":0");
        assert_eq!(client.ask("GET k"), "$1 v");
        client.now += Duration::from_millis(1);
        assert_eq!(client.ask("PTTL k"), ":-2");
        assert_eq!(client.ask("SET k w NX"), "+OK");
        assert_eq!(client.ask("PTTL k"), ":-1");
        client.now += Duration::from_millis(100);
        assert_eq!(client.ask("HSET h g v"), ":1");
        assert_eq!(client.ask("HLEN h"), ":1");
        assert_eq!(client.ask("EXISTS k h"), ":2");
    }

    #[test]
    fn a_script_sees_a_clock_that_stands_still() {
        let mut client = TestClient::new();
        client.now += Duration::from_micros(1_000_007);
        let time = "return{redis.call('TIME')[1],redis.call('TIME')[2]}";
        assert_eq!(client.ask(&format!("EVAL {time} 0")), "*2 $7 1000001 $1 7");
    }

    #[test]
    fn a_message_reaches_each_subscriber_of_its_channel() {
        let mut client = TestClient::new();
        let listener = client.server.connect();
        let confirmed = client.ask_on(listener, "SUBSCRIBE a b");
        assert_eq!(confirmed, "*3 $9 subscribe $1 a :1 *3 $9 subscribe $1 b :2");
        assert_eq!(client.ask("PUBLISH a one"), ":1");
        assert_eq!(client.ask("PUBLISH c two"), ":0");
        assert_eq!(client.output(listener), "*3 $7 message $1 a $3 one");
        assert!(
            client
                .ask_on(listener, "GET k")
                .starts_with("-ERR Can't execute")
        );
        assert_eq!(client.ask_on(listener, "PING"), "*2 $4 pong $0");
        client.ask_on(listener, "UNSUBSCRIBE");
        assert_eq!(client.ask("PUBLISH a one"), ":0");
        client.server.disconnect(listener);
        assert_eq!(client.server.take_output(listener), None);
    }

    #[test]
    fn a_user_may_do_what_its_rules_say() {
        let mut client = TestClient::new();
        let set = "ACL SETUSER u on >word +@all -get ~a:* &c";
        assert_eq!(client.ask(set), "+OK");
        let listener = client.server.connect();
        assert!(client.ask("AUTH u wrong").starts_with("-WRONGPASS"));
        assert_eq!(client.ask("AUTH u word"), "+OK");
        let is_denied = |client: &mut TestClient, command: &str| {
            let answer = client.ask(command);
            let of_script = answer.split(' ').find(|word| word.contains("NOPERM"));
            of_script.is_some()
        };
        for (command, expected) in [
            ("SET a:k v", false),
            ("SET k v", true),
            ("DEL a:k k", true),
            ("GET a:k", true),
            ("PUBLISH c m", false),
            ("PUBLISH d m", true),
            ("EVAL return{1} 1 a:k", false),
            ("EVAL return{1} 1 k", true),
            ("EVAL return{redis.call('GET','a:k')} 0", true),
            ("EVAL return{redis.pcall('SET','k','v').err} 0", true),
        ] {
            assert_eq!(is_denied(&mut client, command), expected, "{command}");
        }
        // A default user with a password must log in.
        client.ask_on(listener, "ACL SETUSER default >word");
        client.connection = client.server.connect();
        assert!(client.ask("PING").starts_with("-NOAUTH"));
        assert_eq!(client.ask("AUTH word"), "+OK");
        assert_eq!(client.ask("PING"), "+PONG");
    }

    #[test]
    fn a_scan_ends_and_shows_each_key_that_was_there_all_the_time() {
        let mut client = TestClient::new();
        for number in 0..50 {
            client.ask(&format!("SET k{number} v"));
        }
        let (mut cursor, mut seen) = ("0".to_owned(), BTreeSet::new());
        loop {
            let page = client.ask(&format!("SCAN {cursor} COUNT 7 MATCH k*"));
            let mut words = page.split(' ').filter(|word| !word.starts_with(['*', '$']));
            cursor = words.next().expect("a cursor").to_owned();
            seen.extend(words.map(str::to_owned));
            client.ask("DEL k0");
            if cursor == "0" {
                break;
            }
        }
        assert!(
            (1..50).all(|number| seen.contains(&format!("k{number}"))),
            "{seen:?}"
        );
    }

    #[test]
    fn the_report_has_the_fields_that_a_client_reads() {
        let mut client = TestClient::new();
        client.now += Duration::from_secs(7);
        let report = client.ask("INFO server");
        assert!(report.contains("run_id:id uptime_in_seconds:7"), "{report}");
        assert!(!report.contains("role:"), "{report}");
        let report = client.ask("INFO");
        assert!(report.contains("maxmemory_policy:noeviction"), "{report}");
        assert!(report.contains("role:master"), "{report}");
    }
}
