//! The builder of a manager.

use std::fmt;
use std::time::Duration;

use crate::clock::SystemClock;
use crate::config::{Secret, Server, Settings};
use crate::engine::Engine;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::event::{Listener, SharedListener};
use crate::manager::LockManager;
use crate::random::SystemRng;
use crate::store::node::Node;
use crate::sync::Arc;

/// How a manager is made.
impl LockManager {
    /// Connects to one Redis with default settings: `single(url).build()`.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    pub fn connect(url: &str) -> Result<Self> {
        Self::single(url).build()
    }

    /// Begins a manager for one Redis of version 6.2 or later, or Valkey. The URL gives the address of one master that
    /// holds all keys; a node of a Redis Cluster or a sentinel is [`Error::Unsupported`].
    ///
    /// | the URL | |
    /// | --- | --- |
    /// | `redis://host:port/database` | without a password; `port` defaults to 6379, `database` to 0 |
    /// | `redis://user:password@host:port/database` | a user of an access control list; `valkey://` is the same |
    /// | `redis://:password@host` | the password of the user `default`, which `requirepass` sets |
    /// | `rediss://…`, `valkeys://…` | the same over TLS, with the feature `tls` |
    /// | `unix:///path?user=…&pass=…&db=…` | a Unix socket; each parameter may be left out |
    ///
    /// Percent-encode each character of a user or password but letters, digits and `-._~`: `p@ss/1` is `p%40ss%2F1`.
    /// [`Builder::username`] and [`Builder::password`] take them as they are. An unknown parameter or a fragment is
    /// [`Error::Config`]. The parameter `protocol` (2 or 3) is accepted and has no effect.
    pub fn single(url: &str) -> Builder {
        Builder {
            url: url.into(),
            settings: Settings::default(),
        }
    }
}

/// The settings of a [`LockManager`].
#[must_use = "a builder does nothing until it is built"]
#[derive(Clone)]
pub struct Builder {
    url: String,
    settings: Settings,
}

impl Builder {
    /// How long Redis keeps a lock without a renewal: what a crashed holder delays the others by. From 10 ms to
    /// 24 h. Defaults to 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.options.lease = lease;
        self
    }

    /// How long this process may pass a lock among its own threads while another process waits for it. From
    /// 1 ms to 1 h. Defaults to 50 ms.
    pub fn quantum(mut self, quantum: Duration) -> Self {
        self.settings.quantum = quantum;
        self
    }

    /// How long a contended mutex is left free once in a [`quantum`](Builder::quantum), so that a client that polls can
    /// take it: a client of another library, which does not know of the queue. Applies to [`Mutex`](crate::Mutex) and
    /// [`ReentrantMutex`](crate::ReentrantMutex) only. A [`MultiLock`](crate::MultiLock) leaves no gap when it releases its
    /// names, though clients of other libraries can want these. The other kinds ignore it, because no other library has
    /// locks in their format.
    ///
    /// Without a gap such a client gets nothing for as long as threads of this crate want the name all the time. Set it in
    /// all processes that share the name while services move over. With a gap shorter than the pause between two polls a
    /// client needs several gaps.
    ///
    /// # Cost
    ///
    /// Of each quantum and gap together, the gap is lost to this crate. A turn of another client costs more: its release
    /// notifies nobody, so the waiting processes find the free lock by a poll after 50 to 100 ms. Measured beside two
    /// processes of two threads, with the default quantum and a gap of 20 ms: a client that polled every 10 ms got about 35
    /// turns a second instead of none. This crate's threads got about half of their guards.
    ///
    /// During a gap the lock reads as held by its last owner, to a `try_lock` and a
    /// [`MultiLock`](crate::MultiLock) as well. An acquire of a free lock takes a
    /// few commands more on the server. The queue, fences and exclusion are as without a gap.
    ///
    /// At most the quantum, and at most 500 ms. Defaults to zero, which leaves no gap.
    pub fn poller_gap(mut self, gap: Duration) -> Self {
        self.settings.poller_gap = gap;
        self
    }

    /// How long a connection may take to be made. The addresses that the server's name stands for share it, so set a
    /// longer limit for a host name with several addresses; the resolution of the name is the system's and has limits of its own. From 1 ms to 1 h.
    /// Defaults to 2 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect_timeout = limit;
        self
    }

    /// How long the server may take to answer a request. From 1 ms to 1 h. Defaults to 1 s.
    pub fn io_timeout(mut self, limit: Duration) -> Self {
        self.settings.io_timeout = limit;
        self
    }

    /// How long a wait without a deadline outlasts a server that is out of reach. At least 1 ms. Defaults to
    /// 60 s.
    pub fn outage_limit(mut self, limit: Duration) -> Self {
        self.settings.outage_limit = limit;
        self
    }

    /// Sets whether a call that waits retries transient errors from its first request on.
    ///
    /// Without it, an error of the first request is returned at once, so a loop that locks again spins while the server
    /// restarts. With it, such a call blocks until it has its lock, or its wait is over, or, if it waits without an end,
    /// [`outage_limit`](Builder::outage_limit) has passed; then it returns the last error. A try is never retried.
    /// Defaults to `false`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/")
    ///     .wait_through_outages(true)
    ///     .build_unchecked()?;
    /// let guard = locks.lock("job")?; // also while the server is restarted
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn wait_through_outages(mut self, on: bool) -> Self {
        self.settings.wait_through_outages = on;
        self
    }

    /// How long the last fence of a name is remembered. It matters only if the server's clock is set back by
    /// more. From 1 s to a year. Defaults to 10 min.
    pub fn fence_memory(mut self, memory: Duration) -> Self {
        self.settings.fence_memory = memory;
        self
    }

    /// How long one guard may be held; it is then released for the others and reads lost. If
    /// [`min_hold`](Builder::min_hold) is longer, the lock stays taken until that is over. Not zero. Defaults to `None`,
    /// no limit.
    pub fn max_hold(mut self, limit: Option<Duration>) -> Self {
        self.settings.options.max_hold = limit;
        self
    }

    /// Sets for how long a lock stays taken from a guard's grant on, even if the guard is released before. Then a short
    /// job does not run twice on two hosts whose clocks differ.
    ///
    /// A guard that is released early ends at once, but nobody gets the lock before that time, threads of this process
    /// included. Waiters are not notified then: they wait for the end of its time to live in Redis, or poll. The lock is
    /// free at the end of its lease, as ever, if the process crashes, if it loses the lease, or if it cannot reach Redis at
    /// the release. If [`max_hold`](Builder::max_hold) ends the guard before that time, the lock stays taken all the same.
    ///
    /// It has no effect on [`detach`](crate::LockGuard::detach). A guard that [`adopt`](LockManager::adopt) makes has the
    /// `min_hold` of the adopting manager, counted from the adoption. A guard that
    /// [`downgrade`](crate::WriteGuard::downgrade) makes keeps the time of the writer. At most 24 h. Defaults to zero.
    ///
    /// # Example
    ///
    /// A job that cron starts on several hosts at the same minute, and that runs on one of them:
    ///
    /// ```no_run
    /// # fn run() {}
    /// # fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/")
    ///     .min_hold(Duration::from_secs(50))
    ///     .build()?;
    /// if let Some(guard) = locks.try_lock("nightly-report")? {
    ///     run();
    ///     guard.release()?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn min_hold(mut self, length: Duration) -> Self {
        self.settings.options.min_hold = length;
        self
    }

    /// Sets how long a guard may be held before one warning is logged, with the lock's name, owner and fence,
    /// and as [`Event::HeldLong`](crate::Event::HeldLong). Nothing happens to the guard. Not zero. Defaults to `None`,
    /// never.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/")
    ///     .warn_after(Some(Duration::from_secs(60)))
    ///     .build()?;
    /// # let _ = locks;
    /// # Ok(()) }
    /// ```
    pub fn warn_after(mut self, limit: Option<Duration>) -> Self {
        self.settings.warn_after = limit;
        self
    }

    /// Who is told of each [`Event`](crate::Event), on a thread of its own. If it is set twice, the last listener counts. What it may
    /// do is said at [`Listener`]. Defaults to nobody, and then costs nothing.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::Event;
    ///
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/")
    ///     .listener(|event: &Event<'_>| println!("{event:?}"))
    ///     .build()?;
    /// # let _ = locks;
    /// # Ok(()) }
    /// ```
    pub fn listener(mut self, listener: impl Listener) -> Self {
        self.settings.listener = Some(SharedListener(Arc::new(listener)));
        self
    }

    /// Whether leases are renewed for as long as their guards live. Defaults to `true`.
    pub fn renew(mut self, on: bool) -> Self {
        self.settings.options.renew = on;
        self
    }

    /// Whether guards leave their release to the renewal thread, so that ending one never waits for the server.
    ///
    /// A release then goes out within about a millisecond, with others in one request, and at once where somebody is
    /// known to wait for the lock. [`release`](crate::LockGuard::release) tells only what this process knows: that the
    /// lease was lost here, not what the server would have said. A thread of this process that asks for the name first
    /// takes an unsent release back, and asks for the lock in the same request. A program that ends right after a
    /// release calls [`close`](LockManager::close) first, or the lock stays until its lease is over. Defaults to `false`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/")
    ///     .background_release(true)
    ///     .build()?;
    /// for order in ["orders:41", "orders:42"] {
    ///     let guard = locks.lock(order)?;
    ///     // … the work …
    ///     drop(guard); // returns at once
    /// }
    /// assert!(locks.close(Duration::from_secs(1)), "some orders stay locked until their leases are over");
    /// # Ok(()) }
    /// ```
    pub fn background_release(mut self, on: bool) -> Self {
        self.settings.background_release = on;
        self
    }

    /// How many replicas must have a lock before it counts: a grant, and each renewal, is believed only once so many
    /// have confirmed it ([`WAIT`] on the connection that wrote it, for `io_timeout` at the most). A grant that too few
    /// have is released again and the call fails with [`Error::NotReplicated`](crate::Error::NotReplicated), or, where
    /// it waits already, is tried again after a pause in which others may have the lock; a renewal that too few have is as one that failed, so the lease runs out at its
    /// deadline. At most 1,000. Defaults to 0.
    ///
    /// It makes the loss of a lock in a failover less likely, and does not exclude it: which replica becomes master
    /// is decided elsewhere. It costs one more round trip for each acquire, and one for each batch of renewals.
    ///
    /// [`WAIT`]: https://redis.io/docs/latest/commands/wait/
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::{Error, LockManager};
    ///
    /// let locks = LockManager::single("redis://127.0.0.1/").replicas(1).build()?;
    /// match locks.lock("payout") {
    ///     Ok(guard) => println!("a replica has it too: {}", guard.owner()),
    ///     Err(Error::NotReplicated { wanted, confirmed, .. }) => {
    ///         println!("{confirmed} of {wanted} replicas: better not now");
    ///     }
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.settings.replicas = replicas;
        self
    }

    /// How many connections the pool makes at the most; they are made when they are needed. From 1 to 1,024.
    /// Defaults to 10.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.settings.pool_size = connections;
        self
    }

    /// Sets the user to log in as, instead of the URL's, in plain text. Defaults to the URL's, or the server's user
    /// `default`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/")
    ///     .username("orders")
    ///     .password(std::env::var("REDIS_PASSWORD")?)
    ///     .build()?;
    /// # let _ = locks;
    /// # Ok(()) }
    /// ```
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.settings.username = Some(name.into());
        self
    }

    /// Sets the password, instead of the URL's, in plain text: nothing in it needs an encoding. `Debug`, errors and the log
    /// never show it. Defaults to the URL's, or none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.settings.password = Some(Secret(password.into()));
        self
    }

    /// Sets the database, instead of the URL's. Not negative. A database that the server does not have is
    /// [`Error::Config`] when the manager connects. Defaults to the URL's, or 0.
    pub fn database(mut self, number: i64) -> Self {
        self.settings.database = Some(number);
        self
    }

    /// What stands before every name in Redis: `lock:` makes the key of `orders` `lock:orders`. At most 1,024
    /// bytes. Defaults to nothing.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// What tells this process to whoever looks into Redis. At most 128 visible ASCII characters without `!`.
    /// Defaults to `host:pid`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.settings.label = label.into();
        self
    }

    /// Checks the settings and connects. `connect_timeout` bounds the connection, and `io_timeout` each of the requests
    /// that this takes: to log in, the question below, a PING.
    ///
    /// The first connection, whether it is made here or later, asks the server about itself (`INFO`; if that is not
    /// allowed, `CONFIG GET`). A node of a Redis Cluster or a sentinel is refused. If the server may evict locks when its
    /// memory is full, the log has a warning, once. A server that allows neither command is trusted.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`](crate::Error::Config): a setting or the URL cannot be used, and nothing was sent; or the
    ///   server does not have the database.
    /// * [`Error::Unsupported`](crate::Error::Unsupported): the server is a node of a Redis Cluster, or a sentinel.
    /// * [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Denied`](crate::Error::Denied),
    ///   [`Error::Protocol`](crate::Error::Protocol): what came of the connection.
    pub fn build(self) -> Result<LockManager> {
        let manager = self.build_unchecked()?;
        manager.engine.ping()?;
        Ok(manager)
    }

    /// Checks the settings; the first call connects.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config).
    pub fn build_unchecked(self) -> Result<LockManager> {
        self.settings.check()?;
        let server = Server::new(&self.url, &self.settings)?;
        #[cfg(feature = "tls")]
        crate::store::tls::provide_crypto();
        let store = Arc::new(Node::new(server, &self.settings));
        let engine = Engine::new(
            self.settings,
            store,
            Arc::new(SystemClock),
            Arc::new(SystemRng::new()),
        );
        Ok(LockManager { engine })
    }
}

impl fmt::Debug for Builder {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
