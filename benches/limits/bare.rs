//! The connection of the limits: one connection of the redis crate, with packed commands. Every reply is checked.

use leasehold::seam;
use redis::io::tcp::TcpSettings;
use redis::{Connection, ConnectionLike, IntoConnectionInfo, Value};
use uuid::Uuid;

use crate::Result;

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
     return redis.call('DEL', KEYS[1]) else return 0 end";
/// The library's default lease.
const LEASE_MS: u32 = 30_000;

/// Opens a connection without delays: requests are small and wait for their replies.
pub fn connect(url: &str) -> Result<Connection> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = url.into_connection_info()?.set_tcp_settings(tcp);
    Ok(redis::Client::open(info)?.get_connection()?)
}

/// Sends a packed command. Returns an error unless `is` accepts the reply.
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

/// Loads a script, and returns a call of it with `keys` keys.
pub fn load(connection: &mut Connection, script: &str, keys: usize) -> Result<redis::Cmd> {
    let digest: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script)
        .query(connection)?;
    let mut call = redis::cmd("EVALSHA");
    call.arg(digest).arg(keys);
    Ok(call)
}

/// The mutex of the Redis manual: `SET NX PX`, and a compare-and-delete by a script.
pub struct Pairs {
    connection: Connection,
    /// The two commands for each name.
    commands: Vec<[Vec<u8>; 2]>,
}

impl Pairs {
    pub fn new(url: &str, names: &[String]) -> Result<Self> {
        let mut connection = connect(url)?;
        let owner = Uuid::new_v4().to_string();
        let release = load(&mut connection, COMPARE_AND_DELETE, 1)?;
        let commands = names.iter().map(|name| pair(name, &owner, &release));
        Ok(Self {
            commands: commands.collect(),
            connection,
        })
    }

    /// Acquires and releases the lock of one name.
    pub fn pair(&mut self, name: usize) -> Result<()> {
        self.take(name)?;
        self.release(name)
    }

    pub fn take(&mut self, name: usize) -> Result<()> {
        let [set, _] = &self.commands[name];
        ask(&mut self.connection, set, |value| *value == Value::Okay)
    }

    pub fn release(&mut self, name: usize) -> Result<()> {
        let [_, release] = &self.commands[name];
        ask(&mut self.connection, release, |value| {
            *value == Value::Int(1)
        })
    }
}

/// The scripts with which leasehold acquires and releases a mutex, sent by a bare connection.
pub struct OurScripts {
    connection: Connection,
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl OurScripts {
    pub fn new(url: &str, name: &str) -> Result<Self> {
        let mut connection = connect(url)?;
        let owner = format!("lh1:{}:bare:1", Uuid::new_v4());
        let mut acquire = load(&mut connection, seam::script("mutex_acquire"), 4)?;
        acquire.arg(name);
        for companion in ["fence", "queue", "waiters"] {
            acquire.arg(format!("{{{name}}}:lh:{companion}"));
        }
        acquire.arg(&owner).arg(LEASE_MS).arg(1).arg(600_000);
        acquire.arg("take").arg("").arg(1_000).arg(3_000).arg(1);
        let mut release = load(&mut connection, seam::script("mutex_release"), 1)?;
        release.arg(name).arg(&owner);
        Ok(Self {
            connection,
            acquire: acquire.get_packed_command(),
            release: release.get_packed_command(),
        })
    }

    /// Acquires and releases the lock.
    pub fn pair(&mut self) -> Result<()> {
        ask(
            &mut self.connection,
            &self.acquire,
            |value| matches!(value, Value::Int(fence) if *fence > 1),
        )?;
        ask(&mut self.connection, &self.release, |value| {
            *value == Value::Int(1)
        })
    }
}

/// The same mutex on the masters of a Cluster, with a connection to each.
pub struct ClusterPairs {
    masters: Vec<Pairs>,
    /// The master that owns each name.
    owners: Vec<usize>,
}

impl ClusterPairs {
    pub fn new(urls: &[String], names: &[String]) -> Result<Self> {
        let masters = urls.iter().map(|url| Pairs::new(url, names));
        let mut masters = masters.collect::<Result<Vec<_>>>()?;
        // A master that does not own the name refuses it.
        let mut owner = |name| {
            for (number, master) in masters.iter_mut().enumerate() {
                match master.pair(name) {
                    Err(error) if error.to_string().contains("MOVED") => {}
                    done => return done.map(|()| number),
                }
            }
            Err(format!("no master takes {:?}", names[name]).into())
        };
        Ok(Self {
            owners: (0..names.len()).map(&mut owner).collect::<Result<_, _>>()?,
            masters,
        })
    }

    /// Acquires and releases the lock of one name.
    pub fn pair(&mut self, name: usize) -> Result<()> {
        self.masters[self.owners[name]].pair(name)
    }
}

/// Returns the packed commands that acquire and release the lock of a name.
fn pair(name: &str, owner: &str, release: &redis::Cmd) -> [Vec<u8>; 2] {
    let mut set = redis::cmd("SET");
    set.arg(name).arg(owner).arg("NX").arg("PX").arg(LEASE_MS);
    let mut release = release.clone();
    release.arg(name).arg(owner);
    [set.get_packed_command(), release.get_packed_command()]
}

/// The same mutex on several servers. Each command goes to all of them, and is done when a majority has answered.
pub struct QuorumPairs {
    nodes: Vec<QuorumNode>,
    commands: [Vec<u8>; 2],
}

struct QuorumNode {
    connection: Connection,
    /// The right reply to a command whose reply was not read.
    unread: Option<Value>,
}

impl QuorumPairs {
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>, name: &str) -> Result<Self> {
        let connections = urls.into_iter().map(connect);
        let mut connections = connections.collect::<Result<Vec<_>>>()?;
        let mut release = redis::Cmd::new();
        for connection in &mut connections {
            // Each server returns the same digest.
            release = load(connection, COMPARE_AND_DELETE, 1)?;
        }
        let node = |connection| QuorumNode {
            connection,
            unread: None,
        };
        Ok(Self {
            nodes: connections.into_iter().map(node).collect(),
            commands: pair(name, &Uuid::new_v4().to_string(), &release),
        })
    }

    /// Acquires and releases the lock.
    pub fn pair(&mut self) -> Result<()> {
        self.ask(0, &Value::Okay)?;
        self.ask(1, &Value::Int(1))
    }

    /// Reads the replies that a majority did not need.
    pub fn finish(&mut self) -> Result<()> {
        self.nodes.iter_mut().try_for_each(QuorumNode::read)
    }

    fn ask(&mut self, command: usize, right: &Value) -> Result<()> {
        for node in &mut self.nodes {
            node.read()?;
            node.connection
                .send_packed_command(&self.commands[command])?;
            node.unread = Some(right.clone());
        }
        let majority = self.nodes.len() / 2 + 1;
        let mut nodes = self.nodes.iter_mut().take(majority);
        nodes.try_for_each(QuorumNode::read)
    }
}

impl QuorumNode {
    /// Reads the reply that was not read yet, if there is one.
    fn read(&mut self) -> Result<()> {
        let Some(right) = self.unread.take() else {
            return Ok(());
        };
        let value = self.connection.recv_response()?;
        if value == right {
            return Ok(());
        }
        Err(format!("a bare client was answered {value:?}").into())
    }
}

/// A lock as a list of tokens. A client blocks in BLPOP, and Redis serves clients in their order. There is no lease:
/// if a holder crashes, its token is lost.
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

/// Puts `tokens` tokens into a list.
pub fn put(name: &str, tokens: usize) -> redis::Cmd {
    let mut command = redis::cmd("RPUSH");
    command.arg(name).arg(vec!["t"; tokens]);
    command
}
