//! The builder of a manager, with its settings: those of the connections and the process, those of guards, and those that
//! divide a lock among threads and processes.
//!
//! A manager is made in four steps:
//!
//! 1. `LockManager::single` and the like name the servers ([`servers`]), or one URL names them and has settings ([`url`]).
//! 2. The setters below set the rest.
//! 3. [`Builder::build_lazy`] checks all settings by one table ([`table`]), by which the URL was read too.
//! 4. It makes the store of the servers ([`Servers::store`]), and the engine over it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use self::servers::Servers;
use crate::config::{Credentials, Logins, Secret, Settings};
#[cfg(feature = "tls")]
use crate::config::{Tls, TlsClients, provide_crypto};
use crate::engine::Engine;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::event::{Listener, SharedListener};
use crate::manager::LockManager;
use crate::sys::Arc;

pub use servers::Endpoint;
pub use table::parse_time;

mod servers;
mod table;
mod url;

/// The settings of a [`LockManager`].
#[must_use = "a builder does nothing until it is built"]
#[derive(Clone)]
pub struct Builder {
    servers: Servers,
    settings: Settings,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Builder {
    fn new(servers: Servers) -> Self {
        Self {
            servers,
            settings: Settings::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets the time limit for making a connection. The system's lookup of a host name is part of it. If the lookup takes
    /// longer, the attempt fails, and a later one uses the result. If an address of the name does not reply, the next one
    /// is tried beside it after 100 ms, and the one that accepts is tried first from then on. From 1 ms to 1 h. Defaults
    /// to 2 s.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").connect_timeout(Duration::from_secs(5));
    /// ```
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect_timeout = limit;
        self
    }

    /// Sets the time limit for the server's reply to a request. From 1 ms to 1 h. Defaults to 1 s.
    ///
    /// The *pickup window*, which a process has to pick up a lock that Redis handed over to it, is twice this time: at least
    /// 1 s, and at most the waiter's lease. With a lease below 250 ms it is 250 ms.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").io_timeout(Duration::from_millis(500));
    /// ```
    pub fn io_timeout(mut self, limit: Duration) -> Self {
        self.settings.io_timeout = limit;
        self
    }

    /// Sets how long a wait without a deadline goes on while the server cannot be reached. At least 1 ms. Defaults to
    /// 60 s.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").outage_limit(Duration::from_secs(300));
    /// ```
    pub fn outage_limit(mut self, limit: Duration) -> Self {
        self.settings.outage_limit = limit;
        self
    }

    /// Sets whether a call that waits retries transient errors from its first request on.
    ///
    /// Without it, the call returns an error of its first request at once. So a loop that locks again spins while the
    /// server restarts. With it, the call blocks until it has its lock or its wait is over. A wait without a deadline
    /// is over when the outage has lasted for [`outage_limit`](Builder::outage_limit). Then the call returns the last
    /// error. A try is never retried. Defaults to `false`.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").wait_through_outages(true);
    /// ```
    pub fn wait_through_outages(mut self, on: bool) -> Self {
        self.settings.wait_through_outages = on;
        self
    }

    /// Sets how long the server remembers the last fence of a name after a grant. It matters only if the server's clock
    /// is set back by more than this. While the lock is held, its process renews that memory once in half of this
    /// time, by a request of its own, so that [`inspect`](LockManager::inspect) shows since when it is held. From 1 s to
    /// 366 days; on a [quorum](LockManager::quorum) more than 2 s. Defaults to 10 min.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").fence_memory(Duration::from_secs(3600));
    /// ```
    pub fn fence_memory(mut self, memory: Duration) -> Self {
        self.settings.fence_memory = memory;
        self
    }

    /// Sets the listener that receives each [`Event`](crate::Event), on a separate thread. [`Listener`] says what it
    /// may do. If it is set twice, the last listener counts. Defaults to no listener, which costs nothing.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::{Event, LockManager};
    /// let builder = LockManager::single("redis://127.0.0.1/")
    ///     .listener(|event: &Event<'_>| println!("{event:?}"));
    /// ```
    pub fn listener(mut self, listener: impl Listener) -> Self {
        self.settings.listener = Some(SharedListener(Arc::new(listener)));
        self
    }

    /// Sets whether guards leave their release to the renewal thread. Then a guard's end never waits for the server.
    ///
    /// The renewal thread sends the release of a mutex within about a millisecond, with others in one request. It sends a
    /// release at once if this process knows that another process waits for the lock.
    ///
    /// [`release`](crate::LockGuard::release) then reports a loss only if this process knows of it, because it does not
    /// wait for the server's reply. A thread of this process that asks for the name again first waits until the release was
    /// sent, so this suits threads that lock many different names in turn. If the release cannot be sent within
    /// [`io_timeout`](Self::io_timeout), a try returns [`Unavailable`](crate::Error::Unavailable), and so does a wait that has
    /// no time left then.
    ///
    /// A program that ends right after a release must call [`close`](LockManager::close) first, or the lock stays held
    /// until its lease is over. Defaults to `false`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let locks = LockManager::single("redis://127.0.0.1/").background_release(true).build()?;
    /// drop(locks.lock("orders:42")?); // returns at once
    /// assert!(locks.close(Duration::from_secs(1)), "the order stays locked until its lease is over");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn background_release(mut self, on: bool) -> Self {
        self.settings.background_release = on;
        self
    }

    /// Sets how long a node of a [quorum](LockManager::quorum) has to answer. A node that takes longer is left out, and
    /// asked again in the background after a pause of 100 ms, which grows to 5 s. Connecting has the
    /// same limit, with the lookup of a host name. Choose a time far below the lease, and above the slowest answer of a
    /// node that is well. From 1 ms to 1 h. Defaults to 200 ms. No effect on a single server.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let locks = LockManager::quorum(["redis://one/", "redis://two/", "redis://three/"])
    ///     .node_timeout(Duration::from_millis(50))
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.settings.node_timeout = limit;
        self
    }

    /// Sets for how long a node of a [quorum](LockManager::quorum) must have been up before it votes. A node that has
    /// restarted without its data must not grant a lock that somebody still holds. So no lease and no extension may be
    /// longer than this: that is an [`Error::Config`]. At most 24 h. A node waits until it has been up for at least 3 s,
    /// because its fences may be ahead of its clock. Defaults to 60 s, whatever the lease. No effect on a single server.
    ///
    /// **All clients of a quorum need one value.** Each client notes its value at each node that has no note, in the key
    /// `<prefix>leasehold:restart_delay`. If a client finds another value at any node, [`build`](Self::build) returns
    /// [`Error::Config`]. After [`build_lazy`](Self::build_lazy) the first call that asks for a lock does. A
    /// client that runs leaves such a node out. If no majority is left, its calls return [`Error::Config`]. To change the
    /// value:
    ///
    /// 1. Stop all clients.
    /// 2. Wait for the longer of the old and the new value.
    /// 3. Delete the key at each node.
    /// 4. Start the clients with the new value.
    ///
    /// A note expires after ten times its value, or ten minutes for zero, unless a client renews it. **A wrong value can
    /// still do harm** after a majority of the nodes has restarted empty, if a client with that value is the first to
    /// connect. Its note is at the restarted nodes then, and these are a majority. So all other clients get
    /// [`Error::Config`] until an operator stops that client, and deletes the key or waits until the key expires. That
    /// client may also be granted a lock that another client still holds, if its value is shorter and the other nodes are
    /// down, or do not answer in time.
    ///
    /// With zero, a node votes at once, and leases are not limited. A lease may outlive the note. That is safe only if no node ever loses a write, as
    /// with `appendfsync always`, and for tests.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let locks = LockManager::quorum(["redis://one/", "redis://two/", "redis://three/"])
    ///     .restart_delay(Duration::from_secs(120))
    ///     .build()?;
    /// let long = locks.mutex("payroll").lease(Duration::from_secs(120));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn restart_delay(mut self, delay: Duration) -> Self {
        self.settings.restart_delay = delay;
        self
    }

    /// Sets how many replicas must confirm a grant, and each renewal, before it counts. The connection that wrote it
    /// sends
    /// [`WAIT`], for at most `io_timeout`. At most 1,000. Defaults to 0.
    ///
    /// | too few replicas confirm | result |
    /// | --- | --- |
    /// | the grant by a call's first request | it is released again, and the call fails with [`Error::NotReplicated`] |
    /// | a later grant of a call that waits | it is released again; the call asks again after a pause, in which others may get it |
    /// | a renewal | it counts as failed: the lease ends at its deadline, unless a later renewal succeeds |
    ///
    /// A failover then loses the lock less often, but it still can: it may promote a replica that has not confirmed.
    /// Or it may promote one that lacks a slot, because the slot has just moved to its master. The cost is one more
    /// round trip for each acquire, and for each batch of renewals. The server's own setting `min-replicas-to-write`
    /// also refuses a grant, but before Redis 7 no grant by a script.
    ///
    /// [`WAIT`]: https://redis.io/docs/latest/commands/wait/
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use leasehold::{Error, LockManager};
    /// let locks = LockManager::single("redis://127.0.0.1/").replicas(1).build()?;
    /// if let Err(Error::NotReplicated { wanted, confirmed, .. }) = locks.lock("payout") {
    ///     println!("{confirmed} of {wanted} replicas: better not now");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.settings.replicas = replicas;
        self
    }

    /// Sets the largest number of connections for calls: to one server, to each node of a quorum, or to each master of a
    /// cluster. A connection opens when a call needs it, and closes when no call has needed it for 15 to 30 s. If all are
    /// in use, a call waits for one: releases go first, and all other calls in the order of their arrival. From 1 to 1,024.
    /// Defaults to 32.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").pool_size(100);
    /// ```
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.settings.pool_size = connections;
        self
    }

    /// Sets the user to log in as, in plain text. It overrides the URL's, and behind sentinels it is that of the
    /// sentinels. Defaults to the URL's, or the server's user `default`.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").username("orders");
    /// let locks = builder.password(std::env::var("REDIS_PASSWORD")?).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.settings.username = Some(name.into());
        self
    }

    /// Sets the password, in plain text, without any encoding. It overrides the URL's. `Debug`, errors and the log
    /// never show it. Defaults to the URL's, or none. [`username`](Builder::username) has an example.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.settings.password = Some(Secret(password.into()));
        self
    }

    /// Asks `provider` for the user and the password at each login of a connection, so that a password can be changed while
    /// the program runs. They take the place of [`username`](Builder::username), [`password`](Builder::password),
    /// [`node_credentials`](Builder::node_credentials) and the login in the URL. `Debug`, errors and the log never show
    /// the password. Behind sentinels they are those of the servers, and the sentinels keep their own.
    ///
    /// A connection with the old password stays in use until it ends, as the server lets it. To change a password without
    /// an error, let the server accept both for a while (`ACL SETUSER app >new`), then let the provider return the new
    /// one, and at last remove the old one (`<old`). A login with a password that the server does not have is
    /// [`Error::Denied`]. Held locks are renewed on as soon as a login succeeds. Defaults to none.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use leasehold::LockManager;
    /// # fn from_vault() -> String { String::new() }
    /// let locks = LockManager::single("redis://127.0.0.1/")
    ///     .credentials(|| (Some("orders".to_owned()), from_vault()))
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn credentials(mut self, provider: impl Credentials + 'static) -> Self {
        self.settings.logins = Some(Logins::of_program(provider));
        self
    }

    /// Does the same as [`credentials`](Builder::credentials) with a password in a file, which is read at each login. A
    /// newline at its end does not count. The user stays that of the URL or of the builder, and behind sentinels that of
    /// [`node_credentials`](Builder::node_credentials). [`build`](Self::build) reads the file too, and returns
    /// [`Error::Config`] if that fails or the file is empty. Later that is [`Error::Unavailable`], until it can be read again.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://orders@127.0.0.1/").password_file("/run/secrets/redis");
    /// ```
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.logins = Some(Logins::of_file(path.into()));
        self
    }

    /// Sets the login of the servers behind sentinels: the user, if it is not `default`, and the password, in plain text.
    /// `Debug`, errors and the log never show the password. Defaults to none. No effect without
    /// [`sentinel`](LockManager::sentinel).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use leasehold::LockManager;
    /// let builder = LockManager::sentinel(["redis://one:26379/"], "mymaster");
    /// let locks = builder.node_credentials(None, &std::env::var("REDIS_PASSWORD")?).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn node_credentials(mut self, user: Option<&str>, password: &str) -> Self {
        let user = user.map(str::to_owned);
        self.settings.node_credentials = Some((user, Secret(password.to_owned())));
        self
    }

    /// Sets the certificates of TLS connections: which servers are trusted, and who this process is. Every URL must then
    /// begin with `rediss`. The servers that sentinels or nodes of a cluster name have TLS too, with the same certificates.
    ///
    /// [`build`](Self::build) reads the certificates. If that fails, it returns [`Error::Config`]. If a server's certificate
    /// is not trusted, or the server does not trust this one, the calls return [`Error::Config`] too.
    ///
    /// Defaults to [`Tls::default`]: the certificates that the system trusts, and no certificate of this process.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use leasehold::{LockManager, Tls};
    ///
    /// let tls = Tls::default().roots_file("ca.crt").client_files("client.crt", "client.key");
    /// let locks = LockManager::single("rediss://cache.example.com/").tls(tls).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the number of the database, at least 0. It overrides the URL's. If the server does not have it, connecting
    /// fails with [`Error::Config`]. Defaults to the URL's, or 0.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").database(1);
    /// ```
    pub fn database(mut self, number: i64) -> Self {
        self.settings.database = Some(number);
        self
    }

    /// Sets the text before every name in Redis: with `lock:`, the key of `orders` is `lock:orders`. At most 1,024
    /// bytes. Defaults to none.
    ///
    /// Set one if other programs use the same database. If one of them writes a key `orders` without an expiry, a lock
    /// called `orders` is held for ever.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").prefix("lock:");
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Sets the text by which a reader of Redis knows this process: each owner has it. At most 128 visible ASCII
    /// characters without `!`. Defaults to `host:pid`.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").label("billing-3");
    /// ```
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.settings.label = label.into();
        self
    }

    /// Sets a short text that [`inspect`](LockManager::inspect) shows with the holder, such as the number of a job or a
    /// deploy. Each owner has it, so it costs no request and no key. At most 200 bytes, where a space, `%`, `:`, `!` and
    /// each byte of a character that is not ASCII counts as three. Do not put a secret into it. Defaults to none. A handle
    /// may set its own, such as [`Mutex::note`](crate::Mutex::note).
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").note("deploy 2026-11-26.3");
    /// ```
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.settings.note = note.into();
        self
    }

    /// Adds names of locks, without the prefix, that are labels: the histograms and counters of such a lock have the label
    /// `name`. Each name adds about 35 series, and 4 for each bucket of its histograms, so list a few names that are known beforehand. Defaults to none.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").metric_names(["nightly", "invoices"]);
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metric_names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(Into::into);
        self.settings.metric_names.extend(names);
        self
    }

    /// Checks the settings, connects, and returns the manager. Blocks for at most `connect_timeout` while it connects,
    /// and for at most `io_timeout` at each request: the login, the question below, and a PING. Behind sentinels
    /// and on a cluster it first blocks for at most another `connect_timeout`, until a master is known.
    ///
    /// The first connection, made here or later, asks the server about itself: by `INFO`, or if that is not allowed by
    /// `CONFIG GET`. If the server may evict locks when its memory is full, the log has one warning. A server that
    /// allows neither command is trusted.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: a setting or the URL cannot be used, and no request was sent; or the server does not have the
    ///   database; or other clients of a quorum have another [`restart_delay`](Self::restart_delay).
    /// * [`Error::Unsupported`]: the server is a node of a Redis Cluster, or a sentinel; for
    ///   [`cluster`](LockManager::cluster), it is no node of a cluster.
    /// * [`Error::Unavailable`]: the server cannot be reached, or cannot serve requests now; or the system starts no thread.
    /// * [`Error::Denied`]: the server rejects the login.
    /// * [`Error::Protocol`]: the server's reply is not that of a Redis.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/").pool_size(32).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn build(self) -> Result<LockManager> {
        let manager = self.build_lazy()?;
        manager.engine.client.ping()?;
        Ok(manager)
    }

    /// Runs the manager on this machine of a test.
    #[cfg(feature = "seam")]
    #[doc(hidden)]
    pub fn on(mut self, machine: Arc<dyn crate::sys::test_machine::TestMachine>) -> Self {
        self.settings.machine = crate::sys::Machine::new(machine);
        self
    }

    /// Checks the settings and returns the manager, without a connection. The first call that needs one connects. On a
    /// quorum, the first call that asks for a lock also checks what [`build`](Self::build) checks of the nodes.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: a setting or the URL cannot be used.
    /// * [`Error::Unavailable`]: the system starts no thread.
    ///
    /// # Example
    ///
    /// ```
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/").build_lazy()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn build_lazy(self) -> Result<LockManager> {
        let mut settings = self.settings;
        // Clones of this builder count for themselves.
        settings.pools = Arc::default();
        table::check(&settings)?;
        #[cfg(feature = "seam")]
        {
            settings.machine = settings.machine.new_process();
        }
        let machine = settings.machine.clone();
        // The threads of the store run on it too.
        let _entered = machine.enter();
        #[cfg(feature = "tls")]
        {
            provide_crypto();
            let tls = self.tls.map(TlsClients::new).transpose()?;
            settings.tls = tls.map(Arc::new);
        }
        let store = self.servers.store(&mut settings)?;
        let engine = Engine::new(settings, store);
        Ok(LockManager { engine })
    }
}

/// The settings of guards: their leases, fences and limits.
impl Builder {
    /// Sets how long Redis keeps a lock without a renewal. A crashed holder delays the others by at most this time.
    /// From 10 ms to 24 h. Defaults to 30 s.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").lease(Duration::from_secs(10));
    /// ```
    #[doc(alias("expiry", "ttl"))]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.options.lease = lease;
        self
    }

    /// Sets whether leases are renewed for as long as their guards live. Without renewal, a guard is lost when its
    /// lease is over. Until then this process looks at the key about every ten seconds, so a guard reads `Lost` soon
    /// after its key was removed or taken. Defaults to `true`.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").renew(false);
    /// ```
    #[doc(alias("extend", "heartbeat", "watchdog"))]
    pub fn renew(mut self, on: bool) -> Self {
        self.settings.options.renew = on;
        self
    }

    /// Sets whether guards have [fences](crate::Lease::fence). Without them, [`fence`](crate::Lease::fence) returns 0, and
    /// a free mutex is taken by a plain `SET NX PX`, which costs the server less than a script. Choose that only if nothing
    /// behind the lock checks fences: then nothing rejects the late write of a holder that was paused past its lease.
    /// Defaults to `true`.
    ///
    /// Processes with and without fences exclude each other, and may use the same names. A guard with a fence has a larger
    /// one than every earlier guard with a fence, if the server still has the last fence: [`fence_memory`](Builder::fence_memory)
    /// counts from the last guard with a fence. A thread never gets the lease of another thread of its process in memory if
    /// only one of them wants a fence: it asks the server.
    ///
    /// A guard that [`adopt`](LockManager::adopt) makes has a fence if the adopting manager's guards have one. A guard that
    /// [`downgrade`](crate::WriteGuard::downgrade) makes has one if the writer had one. With a
    /// [`poller_gap`](Builder::poller_gap), and on a [quorum](LockManager::quorum), a mutex is always taken by a script.
    ///
    /// # Example
    ///
    /// ```
    /// # use leasehold::LockManager;
    /// let builder = LockManager::single("redis://127.0.0.1/").fencing(false);
    /// ```
    pub fn fencing(mut self, on: bool) -> Self {
        self.settings.options.fencing = on;
        self
    }

    /// Sets how long one guard may be held. After that time its lock is released, and the guard reads `Lost`. If
    /// [`min_hold`](Builder::min_hold) is longer, the lock stays taken until that is over. Not zero. Defaults to `None`, no
    /// limit.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").max_hold(Some(Duration::from_secs(600)));
    /// ```
    pub fn max_hold(mut self, limit: Option<Duration>) -> Self {
        self.settings.options.max_hold = limit;
        self
    }

    /// Sets how long a lock stays taken from the grant of a guard on, even if the guard is released earlier. So a short
    /// job does not run twice on two hosts whose clocks differ.
    ///
    /// A guard that is released early ends at once. But no thread gets the lock before that time, in this process or
    /// another. The release wakes the first waiter, which learns when the lock is free, and asks again then. It holds also
    /// if [`max_hold`](Builder::max_hold) ends the guard earlier, or if the job panics. If the process crashes, loses the lease,
    /// or cannot reach Redis at the release, the lock is free at the end of its lease. For a job that must not run again after a
    /// crash either, set a [`lease`](Builder::lease) of the same length, and [`renew(false)`](Builder::renew).
    ///
    /// It has no effect on [`detach`](crate::LockGuard::detach). A guard that [`adopt`](LockManager::adopt) makes has
    /// the `min_hold` of the adopting manager, counted from the adoption. A guard that
    /// [`downgrade`](crate::WriteGuard::downgrade) makes keeps the time of the writer. At most 24 h. Defaults to zero.
    ///
    /// # Example
    ///
    /// Cron starts this job on several hosts at the same minute, and one of them runs it:
    ///
    /// ```no_run
    /// # fn run() {}
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").min_hold(Duration::from_secs(50));
    /// let locks = builder.build()?;
    /// if let Some(guard) = locks.try_lock("nightly-report")? {
    ///     run();
    ///     guard.release()?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn min_hold(mut self, length: Duration) -> Self {
        self.settings.options.min_hold = length;
        self
    }

    /// Sets how long a guard may be held before one warning is logged, with the lock's name, owner and fence. The
    /// listener receives it as [`EventKind::HeldLong`](crate::EventKind::HeldLong). The guard itself stays as it is. Not zero.
    /// Defaults to `None`, no warning.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").warn_after(Some(Duration::from_secs(60)));
    /// ```
    pub fn warn_after(mut self, limit: Option<Duration>) -> Self {
        self.settings.warn_after = limit;
        self
    }

    /// Sets how long a call may wait before a warning is logged, with the lock's name, its holder and the number of places
    /// in its queue. The listener receives it as [`EventKind::WaitsLong`](crate::EventKind::WaitsLong). The call waits on. A call
    /// warns once, and for one name there is one warning in this time. For the queue, the call may send a request that only
    /// reads, with the [rights of line 6](crate#rights-of-a-redis-user). `None` is no warning. Not zero. Defaults to a minute.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").warn_wait_after(Some(Duration::from_secs(30)));
    /// ```
    pub fn warn_wait_after(mut self, limit: Option<Duration>) -> Self {
        self.settings.warn_wait_after = limit;
        self
    }
}

/// The settings that divide a lock among the threads of this process, other processes, and clients of other kinds.
impl Builder {
    /// Sets how long this process may hand a lock from thread to thread in memory while another process waits for it.
    /// From 1 ms to 1 h. Defaults to 20 times as long as a hand-over from another process takes, but at least 5 ms and
    /// at most 50 ms.
    ///
    /// Without this setting, the process measures each hand-over to it: the request of the other process, the message,
    /// and the request that picks the lock up. The median of the last eight counts, whatever their names. Before the
    /// first one, the quantum is 10 ms. It is 50 ms if no message reaches the process, which polls then, and with a
    /// [`poller_gap`](Builder::poller_gap). [`Stats::quantum`](crate::Stats::quantum) shows the quantum in use.
    ///
    /// A short quantum shortens the waits of other processes, and takes more requests. In a measurement, a process of
    /// one thread shared a mutex with two processes of ten busy threads. It waited 102 ms for each guard with a quantum
    /// of 50 ms, and 12 ms with 5 ms. All processes together got as many guards.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").quantum(Duration::from_millis(20));
    /// ```
    pub fn quantum(mut self, quantum: Duration) -> Self {
        self.settings.quantum = Some(quantum);
        self
    }

    /// Sets how long a contended mutex is left free once in a [`quantum`](Builder::quantum). In this gap a client of
    /// another library can take the mutex: it polls, and does not know of the queue.
    ///
    /// Without this setting, the gap opens by itself: for 20 ms, about every 50 ms, while such a client has held the
    /// mutex in the last minute and this process has seen that. Other names have none.
    ///
    /// The setting applies to [`Mutex`](crate::Mutex) and [`ReentrantMutex`](crate::ReentrantMutex). The other kinds
    /// ignore it, because no other library has locks in their format. A [`MultiLock`](crate::MultiLock) of
    /// several names leaves no gap either when it releases them.
    ///
    /// Without a gap, a polling client gets no turn while threads of this crate want the name all the time. So its first
    /// turn may take long, because nobody knows of it yet. Where that matters, set a gap in all processes that share the
    /// name. Zero leaves no gap at all. If the gap is shorter than the pause between two polls, the client needs several
    /// gaps.
    ///
    /// During a gap the lock reads as held by its last owner, also to a `try_lock` and to a
    /// [`MultiLock`](crate::MultiLock). The queue, fences and exclusion are the same as without a gap.
    ///
    /// # Cost
    ///
    /// Once a quantum, this crate's threads lose the length of the gap. A turn of another client costs more: its
    /// release notifies nobody, so the waiting processes find the free lock by a poll after 50 to 100 ms. An acquire of
    /// a free lock takes a few commands more on the server. In a measurement, two processes of two threads used a
    /// quantum of 50 ms and a gap of 20 ms. A client that polled every 10 ms got about 35 turns a second instead of
    /// none, and this crate's threads got about half of their guards.
    ///
    /// At most the quantum, and at most 500 ms. With a gap that the program sets, a quantum that it does not set is 50 ms.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").poller_gap(Duration::from_millis(20));
    /// ```
    pub fn poller_gap(mut self, gap: Duration) -> Self {
        self.settings.poller_gap = Some(gap);
        self
    }
}

impl fmt::Debug for Builder {
    /// Writes the settings without the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
