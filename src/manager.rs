//! The manager and its builder.

use std::fmt;
use std::time::Duration;

use crate::claim::Claim;
use crate::clock::SystemClock;
use crate::config::{Secret, Server, Settings};
use crate::engine::Engine;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::event::{Listener, SharedListener};
use crate::guard::{Lease, LockGuard};
use crate::lock::multi::MultiLock;
use crate::lock::mutex::Mutex;
use crate::lock::rate_limiter::RateLimiter;
use crate::lock::reentrant::ReentrantMutex;
use crate::lock::rwlock::RwLock;
use crate::lock::semaphore::Semaphore;
use crate::lock::{Handle, Ran};
use crate::random::SystemChance;
use crate::stats::Stats;
use crate::store::node::Node;
use crate::sync::Arc;

mod outages;

/// Hands out locks. One is enough for a process; clones share everything.
///
/// It draws connections from a pool for the requests of the callers' threads. The renewal of leases and the
/// listening for wake-ups have connections of their own, so that any number of waiting threads cannot delay
/// them. Its threads are started when there is something for them to do, and end when there is nothing left.
///
/// Dropping the last clone does not end guards that are still held: they keep what they need.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::LockManager;
/// use std::time::Duration;
///
/// let locks = LockManager::single("redis://127.0.0.1/")
///     .lease(Duration::from_secs(10))
///     .prefix("lock:")
///     .build()?;
/// let total = locks.with_lock("report", Duration::from_secs(5), |lease| {
///     // … at most one thread of all processes is here …
///     lease.fence()
/// })?;
/// # let _ = total;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockManager {
    pub(crate) engine: Arc<Engine>,
}

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

    /// Acquires the lock called `name`, waiting for as long as it takes: [`Mutex::lock`] with the manager's
    /// settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Result<LockGuard> {
        self.mutex(name).lock()
    }

    /// Acquires the lock called `name` if it is free: [`Mutex::try_lock`] with the manager's settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`].
    pub fn try_lock(&self, name: impl AsRef<str>) -> Result<Option<LockGuard>> {
        self.mutex(name).try_lock()
    }

    /// Acquires the lock called `name`, waiting for at most `wait`: [`Mutex::try_lock_for`] with the manager's
    /// settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`].
    pub fn try_lock_for(&self, name: impl AsRef<str>, wait: Duration) -> Result<Option<LockGuard>> {
        self.mutex(name).try_lock_for(wait)
    }

    /// Runs `f` under the lock called `name`, waiting for it for at most `wait`: [`Mutex::with`] with the
    /// manager's settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`].
    pub fn with_lock<T>(
        &self,
        name: impl AsRef<str>,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<T> {
        self.mutex(name).with(wait, f)
    }

    /// Runs `f` under the lock called `name`, waiting for it for at most `wait`, and returns its result even if the lease
    /// was lost meanwhile: [`Mutex::run`] with the manager's settings.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`].
    pub fn run<T>(
        &self,
        name: impl AsRef<str>,
        wait: Duration,
        f: impl FnOnce(&Lease) -> T,
    ) -> Result<Ran<T>> {
        self.mutex(name).run(wait, f)
    }

    /// A handle to the mutex called `name`, for settings of its own or for use again and again.
    ///
    /// A name has 1 to 1,024 bytes of UTF-8. What is wrong with it comes from the first call.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.handle(name.as_ref()))
    }

    /// A handle to the mutex called `name` that a thread may lock again while it holds it.
    ///
    /// It is the same lock as [`mutex`](LockManager::mutex) of that name.
    #[must_use]
    pub fn reentrant_mutex(&self, name: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex::new(self.handle(name.as_ref()))
    }

    /// A handle to the reader-writer lock called `name`.
    ///
    /// A name is that of one kind of lock at a time: a mutex and a reader-writer lock of one name are told that it
    /// is the wrong type.
    #[must_use]
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.handle(name.as_ref()))
    }

    /// A handle to the semaphore called `name`, of so many permits: at least 1, at most 4,294,967,294. All who use
    /// it at one time must give the same number.
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(self.handle(name.as_ref()), permits)
    }

    /// A handle to several mutexes, locked all or none. At least one name, and none twice.
    ///
    /// They are the same locks as [`mutex`](LockManager::mutex) of these names.
    #[must_use]
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(Arc::clone(&self.engine), names)
    }

    /// A handle to the rate limiter called `name`: at least 1 permit in any window of length `per`, which is from
    /// 1 ms to a year.
    #[must_use]
    pub fn rate_limiter(&self, name: impl AsRef<str>, permits: u32, per: Duration) -> RateLimiter {
        RateLimiter::new(self.handle(name.as_ref()), permits, per)
    }

    /// Takes over a lock that was [detached](LockGuard::detach), in this process or another, with this manager's
    /// settings, which must have the same prefix. Its lease begins anew; what it was extended to before was for the claim.
    /// It blocks for one request.
    ///
    /// # Guarantees
    ///
    /// Of all who adopt a claim, one is given a guard. Its fence is larger than the claim's, and nobody has held the lock
    /// in between; those who wait for it keep their places.
    ///
    /// It may be repeated: after an [`Error::Unavailable`] the same manager is given the lock if its first request was
    /// carried out and only the answer was lost. Where it is not repeated, such a lock ends with its lease.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock is no longer the claim's. Another has adopted it, its lease has ended, or it was lost
    ///   before it was detached. Also a claim whose fence the lock never gave.
    /// * [`Error::InvalidName`], [`Error::Closed`]: nothing was sent.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::WrongType`], [`Error::Protocol`]: the server could not be
    ///   asked.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let claim = locks.lock("orders:42")?.detach();
    /// // … on another thread, in another process, a little later …
    /// match locks.adopt(&claim) {
    ///     Ok(guard) => println!("held again, as number {}", guard.fence()),
    ///     Err(leasehold::Error::Lost(lost)) => println!("too late: {lost}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn adopt(&self, claim: &Claim) -> Result<LockGuard> {
        self.engine.adopt(claim).map(LockGuard::new)
    }

    fn handle(&self, name: &str) -> Handle {
        Handle::new(Arc::clone(&self.engine), name)
    }

    /// What this manager has done so far, over all its clones. It blocks for nothing and asks nobody; also once the
    /// manager is closed, and in a forked child, which has the figures of the moment at which it was forked.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let stats = locks.stats();
    /// println!("{} held, {} lost so far", stats.held, stats.lost());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Ends all waits, of all clones, with [`Error::Closed`](crate::Error::Closed), as every later call, and
    /// waits for at most `wait` until the releases that are queued in the background have gone out. Returns true if all
    /// did. Returns false also if the renewal thread gave up a release because Redis did not answer for as long as it may
    /// have kept the lock. That counts until Redis answers the renewal thread again.
    ///
    /// Guards that are held stay held, and renewed, until they are dropped. What a request that is on its way is granted
    /// is such a guard too.
    #[must_use = "false means that something is released only when its lease is over"]
    pub fn close(&self, wait: Duration) -> bool {
        self.engine.close(wait)
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager").finish_non_exhaustive()
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
    /// take it: a client of another library, which does not know of the queue. Applies to [`Mutex`] and
    /// [`ReentrantMutex`] only; the other kinds ignore it, because no other library has locks in their format.
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
    /// During a gap the lock reads as held by its last owner, to a `try_lock` as well. An acquire of a free lock takes a
    /// few commands more on the server. The queue, fences and exclusion are as without a gap.
    ///
    /// At most the quantum, and at most 500 ms. Defaults to zero, which leaves no gap.
    pub fn poller_gap(mut self, gap: Duration) -> Self {
        self.settings.poller_gap = gap;
        self
    }

    /// How long a connection may take to be made. The addresses that the server's name stands for share it, so a name
    /// with several wants more; the resolution of the name is the system's and has limits of its own. From 1 ms to 1 h.
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

    /// How long the last fence of a name is remembered. It matters only if the server's clock is set back by
    /// more. From 1 s to a year. Defaults to 10 min.
    pub fn fence_memory(mut self, memory: Duration) -> Self {
        self.settings.fence_memory = memory;
        self
    }

    /// How long one guard may be held; it is then released for the others and reads lost. Not zero. Defaults to
    /// `None`, no limit.
    pub fn max_hold(mut self, limit: Option<Duration>) -> Self {
        self.settings.options.max_hold = limit;
        self
    }

    /// Sets for how long a lock stays taken from a guard's grant on, even if the guard is released before. Then a short
    /// job does not run twice on two hosts whose clocks differ.
    ///
    /// A guard that is released early ends at once, but nobody gets the lock before that time, threads of this process
    /// included. Waiters are not notified then: they wait for the end of its time to live in Redis, or poll. If the process
    /// crashes or loses the lease, the lock is free at the end of its lease, as ever. It has no effect on
    /// [`detach`](crate::LockGuard::detach). A guard that [`downgrade`](crate::WriteGuard::downgrade) makes keeps the time
    /// of the writer. At most 24 h. Defaults to zero.
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

    /// After how long a guard that is still held is warned of, once: in the log, with the lock's name, owner and fence,
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

    /// Who is told of each [`Event`](crate::Event), on a thread of its own; of several the one given last. What it may
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
        crate::store::link::provide_crypto();
        let store = Arc::new(Node::new(server, &self.settings));
        let engine = Engine::new(
            self.settings,
            store,
            Arc::new(SystemClock),
            Arc::new(SystemChance::new()),
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
