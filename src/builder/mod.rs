//! The builder of a manager.
//!
//! A manager is made in four steps:
//!
//! 1. `LockManager::single` and the like name the servers ([`servers`]), or one URL names them and has settings ([`url`]).
//! 2. The setters set the rest. One table has them ([`settings`]). The setters below are written by hand, because they do more than set a field.
//! 3. [`Builder::build_lazy`] checks all settings by that table, by which the URL was read too.
//! 4. It makes the store of the servers ([`Servers::store`]), and the engine over it.

use std::fmt;
use std::path::PathBuf;

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
pub use settings::parse_time;

mod servers;
mod settings;
mod url;

/// The settings of a [`LockManager`].
///
/// # Rights of a Redis user
///
/// These lines make a user of an access control list that can use every kind of lock. Leave out those that the program does not
/// need.
///
/// ```text
/// ACL SETUSER app on >PASSWORD resetkeys ~* resetchannels &leasehold:*
/// ACL SETUSER app +ping +info +select +subscribe +eval +evalsha +get +getrange +exists +set +del +append +pttl +pexpire +time +hset +hget +hdel +zadd +zrem +zpopmin +zcard +zscore +zrange +publish +pubsub|numsub
/// ACL SETUSER app +hlen +zrangebyscore +pexpireat
/// ACL SETUSER app +lindex +llen +lpop +lset +rpush +pexpire
/// ACL SETUSER app +wait
/// ACL SETUSER app +scan +type +strlen +zrangebyscore +lindex +llen
/// ACL SETUSER app +script|load
/// ACL SETUSER app +role
/// ACL SETUSER app +cluster|slots +cluster|nodes +asking +role
/// ```
///
/// | line | for |
/// | --- | --- |
/// | 1 | the keys and the channels. For a [`prefix`](Builder::prefix), write `~prefix*`, and `~{prefix*` for the keys beside a lock. |
/// | 2 | every program: mutexes, reentrant mutexes, multi-locks, claims, jobs that run once, leaders |
/// | 3 | reader-writer locks, semaphores |
/// | 4 | rate limiters |
/// | 5 | [`replicas`](Builder::replicas) |
/// | 6 | operators: [`inspect`](LockManager::inspect), [`list`](LockManager::list), [`force_release`](LockManager::force_release), [`request_release`](LockManager::request_release) |
/// | 7 | each node of a [quorum](LockManager::quorum), which also needs `INFO` |
/// | 8 | each server behind [sentinels](LockManager::sentinel), replicas too |
/// | 9 | each node of a [cluster](LockManager::cluster); `ROLE` and `INFO` are for [`list`](LockManager::list) |
///
/// This line is for each sentinel:
///
/// ```text
/// ACL SETUSER app on >PASSWORD resetchannels &+switch-master +subscribe +sentinel|get-master-addr-by-name +sentinel|master
/// ```
///
/// A [`commit`](crate::LockGuard::commit) also needs the commands and the keys of its writes.
///
/// `SELECT` is for a database other than 0, and `INFO` for the question that [`Builder::build`] asks; a single server works without
/// either. Without the channels, `PUBLISH` or `SUBSCRIBE`, waits poll, and one warning is logged. A call that lacks a right fails
/// with [`Error::Denied`]. A user that may read the keys that end in `waiters` (or `MONITOR`, `SLOWLOG` and the server's files) and
/// may publish on the channels can forge a grant; a user that may only subscribe and publish cannot.
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

    /// Sets the password, in plain text, without any encoding. It overrides the URL's, which is the default, if there is
    /// one. `Debug`, errors and the log never show it. [`username`](Builder::username) has an example.
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

    /// Sets the certificates of TLS connections, with the feature `tls`: which servers are trusted, and who this process is. Every URL must then
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

    /// Adds names of locks, without the prefix, that are labels of metrics, with the feature `metrics`: the histograms and counters of such a lock have the label
    /// `name`. Each name adds about 35 series, and 4 for each bucket of its histograms, so list a few names that are known
    /// beforehand. Defaults to none.
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
        settings::check(&settings)?;
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

impl fmt::Debug for Builder {
    /// Writes the settings without the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
