//! The limits' way to the server: one connection of the redis crate, commands that were packed beforehand, and every
//! reply checked.

use redis::io::tcp::TcpSettings;
use redis::{Connection, ConnectionLike, IntoConnectionInfo, Value};
use uuid::Uuid;

use crate::Result;

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
     return redis.call('DEL', KEYS[1]) else return 0 end";
/// As long as the library's own.
const LEASE_MS: u32 = 30_000;

/// Requests are small and wait for their replies, so packets are not held back.
pub fn connect(url: &str) -> Result<Connection> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = url.into_connection_info()?.set_tcp_settings(tcp);
    Ok(redis::Client::open(info)?.get_connection()?)
}

/// Sends a packed command, and wants a reply that `is` what it is to be.
pub fn ask(
    connection: &mut Connection,
    packed: &[u8],
    is: impl FnOnce(&Value) -> bool,
) -> Result<()> {
    let value = connection.req_packed_command(packed)?;
    if is(&value) {
        return Ok(());
    }
    Err(format!("a bare client was answered {value:?}").into())
}

/// Makes the server know a script; returns how it is called with so many keys.
pub fn load(connection: &mut Connection, script: &str, keys: usize) -> Result<redis::Cmd> {
    let digest: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script)
        .query(connection)?;
    let mut call = redis::cmd("EVALSHA");
    call.arg(digest).arg(keys);
    Ok(call)
}

/// The mutex of the manual: `SET NX PX`, and a compare-and-delete by script.
pub struct Pairs {
    connection: Connection,
    /// For each name.
    commands: Vec<[Vec<u8>; 2]>,
}

impl Pairs {
    pub fn new(url: &str, names: &[String]) -> Result<Self> {
        let mut connection = connect(url)?;
        let owner = Uuid::new_v4().to_string();
        let release = load(&mut connection, COMPARE_AND_DELETE, 1)?;
        let commands = names.iter().map(|name| {
            let mut set = redis::cmd("SET");
            set.arg(name).arg(&owner).arg("NX").arg("PX").arg(LEASE_MS);
            let mut release = release.clone();
            release.arg(name).arg(&owner);
            [set.get_packed_command(), release.get_packed_command()]
        });
        Ok(Self {
            commands: commands.collect(),
            connection,
        })
    }

    /// Takes and releases the lock of one name.
    pub fn pair(&mut self, name: usize) -> Result<()> {
        let [set, release] = &self.commands[name];
        ask(&mut self.connection, set, |value| *value == Value::Okay)?;
        ask(&mut self.connection, release, |value| {
            *value == Value::Int(1)
        })
    }
}

/// A lock as a list of tokens: who wants one blocks in BLPOP, and the server serves in the order of asking. It knows
/// no lease: a crashed holder's token is gone for ever.
pub struct Token {
    connection: Connection,
    take: Vec<u8>,
    put: Vec<u8>,
}

impl Token {
    pub fn new(url: &str, name: &str) -> Result<Self> {
        Ok(Self {
            connection: connect(url)?,
            take: redis::cmd("BLPOP").arg(name).arg(0).get_packed_command(),
            put: put(name, 1).get_packed_command(),
        })
    }

    pub fn take(&mut self) -> Result<()> {
        ask(
            &mut self.connection,
            &self.take,
            |value| matches!(value, Value::Array(parts) if parts.len() == 2),
        )
    }

    pub fn put(&mut self) -> Result<()> {
        ask(&mut self.connection, &self.put, |value| {
            matches!(value, Value::Int(_))
        })
    }
}

/// Puts so many tokens into a list.
pub fn put(name: &str, tokens: usize) -> redis::Cmd {
    let mut command = redis::cmd("RPUSH");
    command.arg(name).arg(vec!["t"; tokens]);
    command
}
