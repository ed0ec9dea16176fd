//! The ways to make a manager: each names its servers, which make its store.

use std::fmt;

use crate::builder::{Builder, url};
use crate::config::{ClusterNodes, SentinelSet, Server, Settings};
use crate::error::{Error, Failure, Result, Unsupported};
use crate::manager::LockManager;
use crate::quorum::Quorum;
use crate::server::Store;
use crate::server::cluster::Cluster;
use crate::server::single::Node;
use crate::sys::Arc;

/// The servers of a manager.
#[derive(Clone)]
pub(super) enum Servers {
    Single(String),
    /// The URLs of the sentinels, and the name of the master.
    Sentinel(Vec<String>, String),
    /// The URLs of some nodes.
    Cluster(Vec<String>),
    Quorum(Vec<Endpoint>),
}

impl Servers {
    /// Makes the store. Limits the leases, if the servers require it. Sends nothing.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: a URL or a setting cannot be used.
    /// * [`Error::Unsupported`]: a node of a quorum is no single server.
    /// * [`Error::Unavailable`]: the system starts no further thread.
    pub(super) fn store(&self, settings: &mut Settings) -> Result<Arc<dyn Store>> {
        let failed = |failure: Failure| failure.into_error(None);
        Ok(match self {
            Self::Single(url) => {
                let server = Server::new(url, settings)?;
                Arc::new(Node::new(server, settings).map_err(failed)?)
            }
            Self::Sentinel(urls, master) => {
                let sentinels = SentinelSet::new(urls, master, settings)?;
                Arc::new(Node::behind(sentinels, settings).map_err(failed)?)
            }
            Self::Cluster(urls) => {
                let nodes = ClusterNodes::new(urls, settings)?;
                Arc::new(Cluster::new(nodes, settings).map_err(failed)?)
            }
            Self::Quorum(nodes) => match nodes.as_slice() {
                [] => return Err(Error::config("nodes", "a quorum needs at least one node")),
                [only] => return only.servers.store(settings),
                nodes => {
                    let servers = nodes.iter().map(|node| node.server(settings));
                    let servers = servers.collect::<Result<_>>()?;
                    settings.check_quorum()?;
                    Arc::new(Quorum::new(servers, settings).map_err(failed)?)
                }
            },
        })
    }
}

/// A node of a quorum: see [`LockManager::quorum`]. A URL is one: `"redis://host/".into()`.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) servers: Servers,
}

impl Endpoint {
    /// Returns the master of a Sentinel set: see [`LockManager::sentinel`].
    ///
    /// As the only node it is the same as `LockManager::sentinel`. As one of several nodes it is not supported yet: then
    /// [`Builder::build`](crate::Builder::build) returns [`Error::Unsupported`]. A failover may make the new master forget
    /// a vote, and it could vote for a second owner at once. A single server that has restarted waits for
    /// [`restart_delay`](crate::Builder::restart_delay), but a promoted replica has been up for long.
    ///
    /// # Example
    ///
    /// ```
    /// use leasehold::{Endpoint, Error, LockManager};
    ///
    /// let set = Endpoint::sentinel(["redis://one:26379/", "redis://two:26379/"], "mymaster");
    /// let nodes = [set, "redis://three/".into(), "redis://four/".into()];
    /// assert!(matches!(LockManager::quorum(nodes).build(), Err(Error::Unsupported { .. })));
    /// ```
    pub fn sentinel<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, master: &str) -> Self {
        Self {
            servers: Servers::Sentinel(owned(urls), master.to_owned()),
        }
    }

    /// Returns a Redis Cluster: see [`LockManager::cluster`]. As one of several nodes it is not supported yet, for the
    /// reason that [`sentinel`](Self::sentinel) has.
    ///
    /// # Example
    ///
    /// ```
    /// use leasehold::{Endpoint, Error, LockManager};
    ///
    /// let cluster = Endpoint::cluster(["redis://one/", "redis://two/"]);
    /// let nodes = [cluster, "redis://three/".into(), "redis://four/".into()];
    /// assert!(matches!(LockManager::quorum(nodes).build(), Err(Error::Unsupported { .. })));
    /// ```
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self {
            servers: Servers::Cluster(owned(urls)),
        }
    }

    /// Returns the server, if it is a single one.
    fn server(&self, settings: &Settings) -> Result<Server> {
        let topology = match &self.servers {
            Servers::Single(url) => return Server::new(url, settings),
            Servers::Sentinel(..) => "a Sentinel set as a node of a quorum",
            Servers::Cluster(_) => "a Redis Cluster as a node of a quorum",
            Servers::Quorum(_) => "a quorum as a node of a quorum",
        };
        Err(Unsupported::as_a_node(topology).into())
    }
}

impl From<&str> for Endpoint {
    fn from(url: &str) -> Self {
        url.to_owned().into()
    }
}

impl From<String> for Endpoint {
    fn from(url: String) -> Self {
        Self {
            servers: Servers::Single(url),
        }
    }
}

impl fmt::Debug for Endpoint {
    /// Writes nothing of the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

/// The ways to make a manager.
impl LockManager {
    /// Connects to the servers of any deployment that one URL names, with the settings in the URL: `from_url(url)?.build()`.
    /// So a program can take its locks from one environment variable. [`from_url`](Self::from_url) has the form of the URL.
    /// Blocks as [`Builder::build`] does.
    ///
    /// # Errors
    ///
    /// As [`from_url`](Self::from_url) and [`Builder::build`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let locks = leasehold::LockManager::connect(&std::env::var("LOCKS_URL")?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(url: &str) -> Result<Self> {
        Self::from_url(url)?.build()
    }

    /// Does the same as [`connect`](Self::connect) without a connection: `from_url(url)?.build_lazy()`. The first call that
    /// needs a connection opens one, so the server may be down when the program starts. Does not block.
    ///
    /// # Errors
    ///
    /// As [`from_url`](Self::from_url) and [`Builder::build_lazy`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect_lazy("redis://127.0.0.1/?wait_through_outages=true")?;
    /// let guard = locks.lock("orders:42")?; // waits until the server is up, for at most `outage_limit`
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_lazy(url: &str) -> Result<Self> {
        Self::from_url(url)?.build_lazy()
    }

    /// Reads the URL of any deployment, with the settings in it, and returns the builder. A setting that the
    /// program makes on the builder replaces that of the URL. Sends nothing.
    ///
    /// | URL | servers |
    /// | --- | --- |
    /// | `redis://user:password@host:port/database` | one server: see [`single`](Self::single) |
    /// | `redis+unix:///path`, `unix:///path` | one server, by a Unix socket |
    /// | `redis+sentinel://user:password@s1:26379,s2,s3/master/database` | the master of a Sentinel set: see [`sentinel`](Self::sentinel). The login is that of the master. The port of a sentinel defaults to 26379. |
    /// | `redis+cluster://user:password@n1:6379,n2` | a Cluster: see [`cluster`](Self::cluster) |
    /// | `redis+quorum://user:password@n1:6379,n2,n3/database` | the nodes of a quorum: see [`quorum`](Self::quorum) |
    ///
    /// * Login, port and database may be left out. With `rediss` in place of `redis`, the servers have TLS, with the feature
    ///   `tls`. `valkey` and `valkeys` are the same as `redis` and `rediss`.
    /// * All hosts share the login. An IPv6 address stands in brackets: `[::1]:6379`.
    /// * A special character in a login or in a master's name is percent-encoded: `@` is `%40`, `/` is `%2F`, `,` is `%2C`. In a
    ///   parameter only `&`, `#`, `%` and a space are.
    /// * White space around the URL is ignored.
    ///
    /// Parameters follow a question mark, with `&` between them: `redis://host/?lease=10s&prefix=billing:&pool_size=20`.
    ///
    /// | parameter | value |
    /// | --- | --- |
    /// | the name of a method of [`Builder`] that takes a time, such as `lease`, `max_hold` or `io_timeout` | a whole number and `ms`, `s`, `m`, `h` or `d`: `250ms`, `10s`, `1h30m`. See [`parse_time`](crate::parse_time). |
    /// | that takes a `bool`, such as `renew` or `background_release` | `true` or `false` |
    /// | that takes a number or a text, such as `pool_size`, `replicas`, `prefix` or `label` | the number or the text |
    /// | `password_file` | the file of a password that may change: see [`Builder::password_file`]. For sentinels it is the password of the servers. |
    /// | `cacert`, `cert`, `key` | files for TLS: the trusted roots, the certificate of this process, and its key. See [`Tls`](crate::Tls). |
    /// | `sentinel_user`, `sentinel_pass` | the login of the sentinels themselves. `username` and `password` are not for sentinels. |
    /// | `db`, `user`, `pass` | of a Unix socket: the same as `database`, `username` and `password` |
    ///
    /// A parameter may not set again what another part of the URL sets.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]: the URL cannot be read, or has an unknown parameter. The error says what is wrong where, by the
    /// number of the host or parameter. It names an unknown parameter, and the nearest known one. It never repeats a part
    /// of the URL that may hold a password. [`Builder::build`] checks the bounds of the settings.
    ///
    /// # Example
    ///
    /// ```
    /// use leasehold::LockManager;
    ///
    /// let url = "redis+sentinel://s1,s2,s3/mymaster?lease=10s&prefix=billing:";
    /// let builder = LockManager::from_url(url)?.label("worker-7");
    /// let error = LockManager::from_url("redis://host/?lease=10").unwrap_err();
    /// assert_eq!(error.to_string(), "invalid `url`: `lease` is not a time such as 250ms, 10s, 5m or 1h30m");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn from_url(url: &str) -> Result<Builder> {
        url::read(url)
    }

    /// Returns a builder for one Redis of version 6.2 or later, or Valkey. The URL names one master that holds all
    /// keys. Connecting to a node of a Redis Cluster, or to a sentinel, fails with [`Error::Unsupported`].
    ///
    /// | URL | server and login |
    /// | --- | --- |
    /// | `redis://host:port/database` | no password; `port` defaults to 6379, `database` to 0; `valkey://` is the same |
    /// | `redis://user:password@host:port/database` | a user of an access control list |
    /// | `redis://:password@host` | the password of the user `default`, which `requirepass` sets |
    /// | `rediss://…`, `valkeys://…` | the same over TLS, with the feature `tls` |
    /// | `unix:///path?user=…&pass=…&db=…` | a Unix socket; each parameter may be left out |
    ///
    /// Percent-encode each character of a user or password except letters, digits and `-._~`: `p@ss/1` is `p%40ss%2F1`.
    /// [`Builder::username`] and [`Builder::password`] need no encoding. An unknown parameter or a fragment is an
    /// [`Error::Config`] when the manager is built. The parameter `protocol` (2 or 3) is accepted and has no effect.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/").prefix("lock:").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn single(url: &str) -> Builder {
        Builder::new(Servers::Single(url.into()))
    }

    /// Returns a builder for the master of a Sentinel set. The URLs are those of all sentinels, each once, with its port,
    /// which is usually 26379. `master` is the name that they watch. After a failover all connections move to the new
    /// master.
    ///
    /// | | |
    /// | --- | --- |
    /// | the master | is named by a majority of the sentinels, with a config epoch that never falls, and calls itself a master |
    /// | the login of the sentinels | comes from their URLs, or from [`username`](Builder::username) and [`password`](Builder::password) |
    /// | the login of the servers | comes from [`node_credentials`](Builder::node_credentials), or [`credentials`](Builder::credentials) |
    /// | the database | comes from [`database`](Builder::database) |
    /// | TLS | is used for the servers if the sentinels' URLs are `rediss://`. The certificates must be for the addresses that the sentinels announce. |
    /// | a failover | may lose a lock that the new master has not received yet. Its holder learns of the loss within a second after the manager hears of the failover, and the next [fence](crate::Lease::fence) is larger unless the clock of the new master is behind. [`replicas`](Builder::replicas) makes a grant wait for replicas. If the new master has not received a release, the lock stays taken for the rest of its lease, as after a crash of its holder. |
    /// | no master is known | a call fails with [`Error::Unavailable`]; a wait goes on, as in any outage |
    ///
    /// If the sentinels are set up anew with another master, their epochs begin at 0. A manager that knows a later epoch does
    /// not follow them, because a majority may also be out of date: its calls fail until the epochs have reached that one, or
    /// until the program makes a new manager.
    ///
    /// If no majority of these sentinels agrees, and none of them names a later master, the last master is used as long as
    /// it calls itself a master. If this process is cut off from a majority that elects another master, there are two
    /// masters for a while, as for any client of Sentinel. Then the fence decides, and `replicas` keeps the old master
    /// from granting or renewing anything.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use leasehold::LockManager;
    ///
    /// let sentinels = ["redis://one:26379/", "redis://two:26379/", "redis://three:26379/"];
    /// let locks = LockManager::sentinel(sentinels, "mymaster").build()?;
    /// let guard = locks.lock("orders:42")?;
    /// # drop(guard);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn sentinel<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, master: &str) -> Builder {
        Builder::new(Endpoint::sentinel(urls, master).servers)
    }

    /// Returns a builder for a Redis Cluster. The URLs are those of some nodes, masters or replicas, from which the others
    /// are found. Each name belongs to one of 16,384 slots, and its lock is on the master of that slot. Requests follow a
    /// slot that moves, and a failover.
    ///
    /// | | |
    /// | --- | --- |
    /// | the login of all nodes | comes from the URLs, or from [`username`](Builder::username) and [`password`](Builder::password) |
    /// | TLS | is used for all nodes if the URLs are `rediss://` |
    /// | connections | up to [`pool_size`](Builder::pool_size) for each master. Replicas are asked for no lock. |
    /// | a master fails | the locks on the other masters go on. A try for a name on it fails with [`Error::Unavailable`]. If the master cannot be connected to, a wait first waits for a replica to take over: for at most [`io_timeout`](Builder::io_timeout), and at most a quarter of the lease. Then the wait fails or goes on, as in any outage. |
    /// | a node leaves the cluster | remove its URL, too. If it joins another cluster, it names the masters of that one. The manager refuses such a node, with a warning in the log. |
    /// | the URLs name nodes of several clusters | is [`Error::Config`] when the manager first finds the cluster |
    /// | the cluster is built anew, with new nodes at the same addresses | needs a new manager. The manager refuses nodes of a cluster of which it knows no node. |
    /// | a failover | may lose a lock that the new master has not received yet. Its holder learns of the loss within a second after the manager hears of the failover, and the next [fence](crate::Lease::fence) is larger unless the clock of the new master is behind. [`replicas`](Builder::replicas) makes a grant wait for replicas. If the new master has not received a release, the lock stays taken for the rest of its lease, as after a crash of its holder. |
    /// | a slot moves to another master | the locks in it stay held, and are renewed. Mutexes are released. A release of another kind may fail with [`Error::Unavailable`], and is repeated until the move has ended. New locks in it wait for that end. |
    /// | a [`MultiLock`](crate::MultiLock) | acquires the names of one slot after the other. Names with the same `{tag}` share a slot. |
    /// | [`list`](Self::list) | lists one master after another. It may leave out a lock whose slot moves meanwhile. |
    ///
    /// A server that is no node of a cluster is [`Error::Unsupported`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// use leasehold::LockManager;
    ///
    /// let locks = LockManager::cluster(["redis://one:7000/", "redis://two:7000/"]).build()?;
    /// let guard = locks.lock("orders:42")?;
    /// # drop(guard);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Builder {
        Builder::new(Endpoint::cluster(urls).servers)
    }

    /// Returns a builder for a quorum: several independent servers, of which a majority must grant a lock (Redlock).
    /// The lock survives the failure of the others. Each node is one master, as for [`single`](Self::single). Three or five
    /// nodes are usual: with an even number a majority is half of them and one, and one node is the same as `single`.
    ///
    /// | | |
    /// | --- | --- |
    /// | a lock is granted | if a majority of the nodes grants it, and time is left of its lease |
    /// | a lease ends | when fewer than a majority of the nodes still have it, by this process's clock |
    /// | a node fails, or does not answer for [`node_timeout`](Builder::node_timeout) | it is left out for a moment, and asked again in the background |
    /// | a node missed the grant, or has restarted | it joins the lease: it gets the lock with a renewal, and votes after the next one. [`missing_nodes`](crate::Lease::missing_nodes) and [`EventKind::LacksVotes`](crate::EventKind::LacksVotes) name the nodes without a vote, and [`Holder::nodes`](crate::Holder) those that have the lock. A node that never answered the request for the lock joins only after a restart, and a node from which an operator took the lock never joins |
    /// | a lease has the votes of a bare majority | it lasts as long as none of these nodes fails |
    /// | a node starts | it does not vote for [`restart_delay`](Builder::restart_delay), because it may have lost its data |
    /// | too few nodes answer | [`Error::NoQuorum`] |
    /// | the [fence](crate::Lease::fence) | rises from guard to guard, although no node knows all guards |
    ///
    /// A quorum has all kinds of locks but the semaphore, and no rate limiter: the votes of several nodes would admit
    /// more than one server that counts. These calls return [`Error::Unsupported`], and send nothing.
    ///
    /// # The first start
    ///
    /// A node cannot tell its first start from a restart without data. So a fresh quorum grants no lock for the
    /// `restart_delay`, which is 60 s by default: calls return [`Error::NoQuorum`]. For a first start, start the nodes
    /// 65 s before the clients, because the clocks may differ, and a node counts whole seconds. Or let the calls wait, by
    /// [`wait_through_outages`](Builder::wait_through_outages) with an [`outage_limit`](Builder::outage_limit) of two
    /// minutes. For tests, set `restart_delay(Duration::ZERO)`.
    ///
    /// # When a quorum is worth it
    ///
    /// | the need | the simplest answer |
    /// | --- | --- |
    /// | Two holders at once would do harm, and the data can check a [fence](crate::Lease::fence). | One master. The fence decides, whatever a server forgets. |
    /// | A grant must not be lost with its master. | One master with [`replicas`](Builder::replicas): a grant counts only if that many replicas have it. |
    /// | Threads must get locks at once while any minority of the servers is down, without a failover. | A quorum. |
    ///
    /// A quorum costs more than one server. Each request goes to every node. Processes do not hand a lock over: a node
    /// wakes its first waiter, and the waiter asks all nodes. Between the threads of one process nothing changes: they
    /// hand the lock to each other in memory.
    ///
    /// Waits are fair between processes. A node that has woken its first waiter grants the free lock to that process
    /// only, for at most 100 ms. A reader does not pass a writer that waits. One wait has no bound: that of a
    /// [`MultiLock`](crate::MultiLock) if other processes hold two of its names most of the time. On a quorum it keeps
    /// no name while it waits for another.
    ///
    /// # Known objections
    ///
    /// The algorithm is that of
    /// [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/).
    /// [Kleppmann](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html) has objected to it. This
    /// is how leasehold answers:
    ///
    /// | the objection | the answer |
    /// | --- | --- |
    /// | Redlock has no fencing tokens. | Each guard has a fence that is larger than those of all guards that were granted before its first request. The exception: a node has lost its data, *and* the clocks of the nodes differ. |
    /// | A process pauses, and goes on to write after its lease has ended. | The guard reads `Lost` by the process's own clock. If it pauses between that check and the write, only the fence helps: no lease prevents that write. |
    /// | A reply is delayed until the lease is over. | A lease counts from before the first request, less 1 % and 2 ms. A grant that comes too late makes no guard, and is released. |
    /// | The clock of a node jumps forward, so a key expires early. | Not prevented: exclusion assumes that no node's clock jumps, and that clock rates differ by less than 1 %. At its next renewal the holder learns which nodes have lost the key. Without a majority its lease ends. |
    /// | A node restarts without its data, and grants a lock that is held. | The node does not vote for [`restart_delay`](Builder::restart_delay), and no lease is longer than that delay. Zero turns both off. If the node's clock is set forward meanwhile, this process does not believe the longer uptime. |
    ///
    /// These cases need an operator:
    ///
    /// * All clients have one [`restart_delay`](Builder::restart_delay). Its page says how to change it.
    /// * The clock of a node must be right before Redis starts there, because Redis counts its uptime by that clock.
    /// * A node is a master, and never becomes a replica.
    /// * To restart all nodes, restart one after another. After each of them wait until [`inspect`](LockManager::inspect)
    ///   shows all nodes at each lock, and then for one lease: a node that has joined votes after the next renewal. No
    ///   lease is lost then. If a majority of the nodes restarts without data, one soon after another, held leases are lost, and
    ///   their holders learn of it.
    /// * To replace a node by another, stop the old one, and wait for the longest lease before the new one joins. If only
    ///   the address leads to another server, by DNS or a proxy, that server must have started anew.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use leasehold::LockManager;
    ///
    /// let locks = LockManager::quorum(["redis://one/", "redis://two/", "redis://three/"]).build()?;
    /// let guard = locks.lock("orders:42")?;
    /// # drop(guard);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn quorum<N: Into<Endpoint>>(nodes: impl IntoIterator<Item = N>) -> Builder {
        let nodes = nodes.into_iter().map(Into::into).collect();
        Builder::new(Servers::Quorum(nodes))
    }
}

fn owned<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Vec<String> {
    let urls = urls.into_iter();
    urls.map(|url| url.as_ref().to_owned()).collect()
}
