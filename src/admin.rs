//! Methods for operators: they show the holders of a lock, and take it from one of them.

use std::fmt;
use std::iter;
use std::time::Duration;

#[cfg(doc)]
use crate::builder::Builder;
use crate::engine::Engine;
use crate::error::Result;
#[cfg(doc)]
use crate::error::{Error, LostCause};
use crate::manager::LockManager;
use crate::name::LockKey;
use crate::owner;
use crate::sys::Arc;
use crate::sys::hash::{BuildHasher, HashSet, RandomState};
use crate::sys::time::{SystemTime, of_wall_us};
use crate::wire::{ALL, Cursor, Seen, SeenWaiter};

/// The kind of lock that has a name in Redis, or a rate limiter.
///
/// In Redis, a [`ReentrantMutex`](crate::ReentrantMutex) and each name of a [`MultiLock`](crate::MultiLock) are
/// mutexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A [`Mutex`](crate::Mutex), or a lock of another library.
    Mutex,
    /// A [`RwLock`](crate::RwLock).
    RwLock,
    /// A [`Semaphore`](crate::Semaphore).
    Semaphore {
        /// The number of permits of the semaphore, held or free.
        permits: u32,
    },
    /// A [`RateLimiter`](crate::RateLimiter). It has no holders and no waiters.
    RateLimiter {
        /// The number of permits. If callers have several figures, the largest.
        permits: u32,
        /// The length of time in which that number of calls is admitted. If callers have several figures, the largest.
        per: Duration,
        /// How long a call would wait: zero if it would be admitted now.
        retry_after: Duration,
    },
}

/// The part of a lock that one holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The whole lock: the holder of a mutex, or a writer.
    Exclusive,
    /// The part of one reader.
    Read,
    /// This number of permits.
    Permits(u32),
}

/// A lock in Redis, as it was when it was read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The name, without the manager's prefix.
    pub name: String,
    /// The kind of the lock.
    pub kind: Kind,
    /// The holders. There can be several only for readers and permits. The threads of one process may share one holder.
    /// The list is empty if the lock is about to go to a waiter.
    pub holders: Vec<Holder>,
    /// The number of places in the lock's queue in Redis. All threads of a process that wait for one kind of lock share
    /// a place. The place of a process that crashed counts until its turn would come.
    pub waiters: u64,
    /// The first 100 places, in the order of their turns. On a quorum, those at the node with the longest queue.
    pub waiting: Vec<Waiting>,
}

/// A place in the queue of a lock in Redis, as it was when it was read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Waiting {
    /// The [`label`](crate::Builder::label) of the process that waits.
    pub label: Option<String>,
    /// When the process joined the queue, by the server's clock. A process that was about to get the lock, and did not
    /// take it in time, counts from its last request.
    pub since: SystemTime,
    /// The number of permits that it waits for. 1 for a mutex or a reader, and 4,294,967,295 for a writer.
    pub units: u32,
}

/// One holder of a lock in Redis, as it was when it was read.
///
/// `Debug` shows only the length of a value of another library, because it may be a secret.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner, as the holder's guards return it by [`Lease::owner`](crate::Lease::owner), and as
    /// [`force_release`](LockManager::force_release) needs it. A lock that was released, and that its
    /// [`min_hold`](crate::Builder::min_hold) still keeps, has its last owner here.
    pub owner: String,
    /// The [`label`](crate::Builder::label) of the holder's process. `None` for a client of another library.
    pub label: Option<String>,
    /// The [`note`](crate::Builder::note) of the holder.
    pub note: Option<String>,
    /// The largest fence that the server remembers for the lock. A reader has exactly that fence. The holder of a
    /// mutex, or a writer, may have a smaller one: its process can reserve fences in advance, to hand the lock from
    /// thread to thread. It has none with [`fencing(false)`](crate::Builder::fencing), which Redis does not know.
    ///
    /// `None` for a permit, for a client of another library, and for a kept lock after
    /// [`fence_memory`](crate::Builder::fence_memory) without a grant.
    pub fence: Option<u64>,
    /// The time until Redis drops the lock, if the holder does not renew it. `None` if it never expires, as some locks
    /// of other libraries.
    pub ttl: Option<Duration>,
    /// Whether the holder has released the lock, and its [`min_hold`](crate::Builder::min_hold) still keeps the lock from
    /// others.
    pub kept: bool,
    /// When Redis gave the lock to the holder's process, by the server's clock. It is the time of the largest fence in
    /// [`fence`](Self::fence). So it may be late by one [`quantum`](crate::Builder::quantum), while the process hands
    /// the lock from thread to thread. `None` for a reader, and without a fence. The time is that of an earlier holder
    /// if the present one has [`fencing(false)`](crate::Builder::fencing), and the earlier one had fences.
    pub since: Option<SystemTime>,
    /// The part of the lock that the holder has.
    pub mode: Mode,
    /// The addresses of the nodes of a [quorum](LockManager::quorum) that name this holder. A holder that fewer than a
    /// majority of the nodes name does not have the lock, or is about to lose it. Empty for a single server.
    pub nodes: Vec<Arc<str>>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("owner", &owner::shown(&self.owner))
            .field("label", &self.label)
            .field("note", &self.note)
            .field("fence", &self.fence)
            .field("ttl", &self.ttl)
            .field("kept", &self.kept)
            .field("since", &self.since)
            .field("mode", &self.mode)
            .field("nodes", &self.nodes)
            .finish()
    }
}

impl LockInfo {
    pub(crate) fn new(key: &LockKey, seen: Seen) -> Self {
        let kind = match (seen.limiter, seen.total_units) {
            (Some(limiter), _) => Kind::RateLimiter {
                permits: limiter.permits,
                per: limiter.per,
                retry_after: limiter.wait,
            },
            (None, None) => Kind::Mutex,
            (None, Some(ALL)) => Kind::RwLock,
            (None, Some(permits)) => Kind::Semaphore { permits },
        };
        let holders = seen.holders.into_iter().map(|holder| {
            let label = owner::label(&holder.owner).map(str::to_owned);
            let mode = match kind {
                Kind::Semaphore { .. } => Mode::Permits(holder.units),
                Kind::RwLock if holder.units < ALL => Mode::Read,
                _ => Mode::Exclusive,
            };
            let has_fence = label.is_some() && !matches!(mode, Mode::Permits(_));
            let fence = seen.fence.filter(|_| has_fence);
            let since = fence.filter(|_| mode == Mode::Exclusive);
            Holder {
                note: owner::note(&holder.owner),
                owner: holder.owner,
                label,
                fence,
                ttl: holder.ttl,
                kept: holder.is_kept,
                since: since.map(of_wall_us),
                mode,
                nodes: holder.nodes,
            }
        });
        Self {
            name: key.name().to_string(),
            kind,
            holders: holders.collect(),
            waiters: seen.waiters,
            waiting: seen.waiting.iter().map(Waiting::new).collect(),
        }
    }
}

impl Waiting {
    fn new(seen: &SeenWaiter) -> Self {
        Self {
            label: owner::label(&seen.owner).map(str::to_owned),
            since: of_wall_us(seen.joined_us),
            units: seen.units,
        }
    }
}

/// A server, and how it has answered: see [`LockManager::ping`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ping {
    /// The address of the server.
    pub server: Arc<str>,
    /// The time of a round trip on a new connection, or the failure.
    pub result: Result<Duration>,
}

/// Methods for operators.
impl LockManager {
    /// Asks each server whether it answers, for a health check: the master, each master of a cluster, or each node of a
    /// quorum. Blocks until each has answered or failed: for at most one `connect_timeout`, or two
    /// behind sentinels and in a cluster, and two `io_timeout`.
    ///
    /// Each server is asked at the same time, on a new connection. So a full pool changes nothing, and the connection of
    /// the renewals is left alone.
    ///
    /// # Errors
    ///
    /// * [`Error::Closed`]: the manager is closed.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::Config`], [`Error::Unsupported`]: the sentinels, or the nodes of
    ///   a cluster, name no master. The failure of a server stands in its [`Ping::result`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// for ping in locks.ping()? {
    ///     match ping.result {
    ///         Ok(took) => println!("{} answers in {took:.1?}", ping.server),
    ///         Err(error) => println!("{} does not answer: {error:#}", ping.server),
    ///     }
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn ping(&self) -> Result<Vec<Ping>> {
        let pings = self.engine.ping()?;
        let ping = |(server, result): (Arc<str>, Result<Duration>)| Ping { server, result };
        Ok(pings.into_iter().map(ping).collect())
    }

    /// Returns the holders and the waiters of the lock called `name`, of any kind. Returns `None` if the lock is free and no
    /// process waits for it. A waiter is a process. Threads that wait in the process of the holder are not shown.
    ///
    /// Blocks for at most one request, which changes nothing. A lock of another library on the same key is shown too.
    /// The lock may change right after the reply. So a program may display the result, but must not rely on it.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::Closed`]: no request was sent.
    /// * [`Error::WrongType`]: the key of this name is neither a lock nor a rate limiter.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::Unsupported`], [`Error::Protocol`], [`Error::Config`] (the server
    ///   does not have the database): the request failed.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// if let Some(lock) = locks.inspect("orders:42")? {
    ///     for holder in &lock.holders {
    ///         let process = holder.label.as_deref().unwrap_or("another client");
    ///         println!("{process} holds it, and {} wait", lock.waiters);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Option<LockInfo>> {
        let key = self.key(name.as_ref())?;
        let seen = self.engine.inspect(&key)?;
        Ok(seen.map(|seen| LockInfo::new(&key, seen)))
    }

    /// Returns an iterator over the locks whose names `pattern` matches, and that are held or waited for. It returns no rate
    /// limiters. In a pattern, `*` is any text, `?` any character, `[a-c]` one of these characters, and `\` takes the next
    /// character as it is. The manager adds its prefix to the pattern.
    ///
    /// A pattern without any of the characters `*?[\` is one name, and costs one request, as [`inspect`](Self::inspect).
    /// **With any other pattern Redis looks at all keys of the database**, whatever their names, in steps of 1,000
    /// keys of less than a millisecond each, so that it stays free for other work. A million other keys take a thousand
    /// requests, and some thousands more if the pattern matches them too. So know the names of your locks if you can, and
    /// inspect them, or keep the locks in a database or a server of their own.
    ///
    /// A step of the iterator blocks until there is a lock to return. After an error the iterator ends.
    ///
    /// | lock | result |
    /// | --- | --- |
    /// | held during the whole iteration | returned, once |
    /// | acquired or released meanwhile | may be returned, at most once |
    ///
    /// The iterator keeps a hash of 16 bytes for each lock that it has returned.
    ///
    /// Other keys of the database are not returned, with one exception: a string of at most 1,024 bytes whose name this
    /// crate waits for, or has locked within [`fence_memory`](crate::Builder::fence_memory). It counts as a lock of
    /// another library, and its value as the owner. So do not keep a secret under the name of a lock.
    ///
    /// # Errors
    ///
    /// As [`inspect`](LockManager::inspect), but never [`Error::InvalidName`] or [`Error::WrongType`]. The Redis user needs the
    /// [rights of line 6](Builder#rights-of-a-redis-user) for the keys that the pattern matches.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// for lock in locks.list("orders:*") {
    ///     let lock = lock?;
    ///     println!("{}: {} holders, {} waiters", lock.name, lock.holders.len(), lock.waiters);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn list(&self, pattern: &str) -> impl Iterator<Item = Result<LockInfo>> + use<> {
        Listing {
            engine: Arc::clone(&self.engine),
            pattern: pattern.to_owned(),
            next: Some(Cursor::START),
            shown: Shown::default(),
        }
        .flatten()
    }

    /// Takes the lock called `name`, of any kind, from `owner`, and hands it to the first waiter, as a release does.
    /// Returns `true` if that owner held it. Returns `false`, and changes nothing, if not. On a quorum, an owner that fewer
    /// than a majority of the nodes name did not hold it. Blocks for at most one request, and may be repeated.
    ///
    /// This is for a holder that hangs. [`inspect`](LockManager::inspect) shows the owner, which may be a client of
    /// another library. Redis compares the owner, so the call takes the lock from no later holder, not even in the same
    /// process.
    ///
    /// **The lock does not stop the work of the old holder.** Its guards read `Held` until its process learns of the loss:
    ///
    /// | process | learns of the loss |
    /// | --- | --- |
    /// | a thread of it has ever waited for a lock | by a message, within milliseconds |
    /// | no thread of it has | at the next renewal, within a third of the lease |
    /// | the same, and the lease is not renewed | at the next look, within ten seconds |
    ///
    /// Then a guard reads `Lost`, as [`Removed`](LostCause::Removed) or [`Taken`](LostCause::Taken), and its
    /// [`on_lost`](crate::Lease::on_lost) fires. Let the system that the lock protects check the
    /// [`fence`](crate::Lease::fence): later guards have larger fences.
    ///
    /// # Errors
    ///
    /// As [`inspect`](LockManager::inspect).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// for holder in locks.inspect("nightly")?.into_iter().flat_map(|lock| lock.holders) {
    ///     if holder.label.as_deref() == Some("host-that-died:4711") {
    ///         locks.force_release("nightly", &holder.owner)?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn force_release(&self, name: impl AsRef<str>, owner: &str) -> Result<bool> {
        self.engine.force_release(&self.key(name.as_ref())?, owner)
    }

    /// Asks the holders of the lock called `name`, of any kind, to release it, and tells them why: for a drain or a deploy.
    /// Returns `true` if somebody holds the lock, and `false` if not. Blocks for at most one request, and one more for each
    /// holder. `why` has at most 1,024 bytes.
    ///
    /// The request ends nothing. Each guard of the holder receives it by [`Lease::on_requested`](crate::Lease::on_requested),
    /// and the program decides.
    ///
    /// **`true` does not mean that the holder has heard.** A process hears requests if it has a subscription: a thread of it
    /// has called `on_requested`, or has waited for a lock. It hears none that comes while the lock goes from one holder to
    /// the next. A client of another library hears none at all. On a quorum, a holder that only a minority of the nodes names
    /// counts too. So repeat the request until it returns `false`, and [`force_release`](LockManager::force_release) the lock
    /// if you must.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: `why` is too long. Nothing was sent.
    /// * Any other error, as [`inspect`](LockManager::inspect).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// if !locks.request_release("nightly", "host a is drained")? {
    ///     println!("nobody holds it");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn request_release(&self, name: impl AsRef<str>, why: &str) -> Result<bool> {
        self.engine.request_release(&self.key(name.as_ref())?, why)
    }

    fn key(&self, name: &str) -> Result<LockKey> {
        LockKey::new(&self.engine.client.settings.prefix, name)
    }
}

/// The iterator of [`LockManager::list`], page by page. After an error it ends.
struct Listing {
    engine: Arc<Engine>,
    pattern: String,
    /// The place of the next page; `None` at the end.
    next: Option<Cursor>,
    shown: Shown,
}

impl Iterator for Listing {
    type Item = Vec<Result<LockInfo>>;

    fn next(&mut self) -> Option<Self::Item> {
        let from = self.next.take()?;
        Some(match self.engine.page(from, &self.pattern) {
            Ok((mut locks, next)) => {
                self.next = next;
                locks.retain(|(key, _)| self.shown.is_new(key));
                let info = |(key, seen)| Ok(LockInfo::new(&key, seen));
                locks.into_iter().map(info).collect()
            }
            Err(error) => iter::once(Err(error)).collect(),
        })
    }
}

/// The locks that were returned already: SCAN may return a key twice. A name is kept as a hash of 128 bits, so two
/// names do not share one.
#[derive(Default)]
struct Shown {
    hashers: [RandomState; 2],
    names: HashSet<[u64; 2]>,
}

impl Shown {
    fn is_new(&mut self, key: &LockKey) -> bool {
        let of = |hasher: &RandomState| hasher.hash_one(key.key());
        self.names.insert(self.hashers.each_ref().map(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::error::Failure;
    use crate::net::deadline::Deadline;
    use crate::net::pubsub::PubSubEvent;
    use crate::server::{Answer, DedicatedConnection, Store};
    use crate::sys::{AtomicU64, Ordering};
    use crate::wire::{Reply, Request};

    /// A server that returns some keys twice, as Redis may while a table shrinks. It counts its requests.
    #[derive(Default)]
    struct Repeating(AtomicU64);

    impl Store for Repeating {
        fn call(
            &self,
            request: &Request<'_>,
            _: Deadline<'_>,
        ) -> std::result::Result<Answer, Failure> {
            let reply = match request {
                Request::Scan { .. } => {
                    let (keys, next) = match self.0.fetch_add(1, Ordering::SeqCst) {
                        0 => (&["a", "b", "a"][..], Some(Cursor::START)),
                        1 => (&["{x}:lh:fence"][..], Some(Cursor::START)),
                        _ => (&["b", "c"][..], None),
                    };
                    let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
                    Reply::Page { keys, next }
                }
                Request::Inspect { keys, .. } => {
                    let seen = Seen {
                        waiters: 1,
                        ..Seen::default()
                    };
                    Reply::Inspected(keys.iter().map(|_| Some(seen.clone())).collect())
                }
                _ => unreachable!("a list asks for nothing else"),
            };
            Ok(Answer {
                reply,
                resent: false,
            })
        }

        fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
            unreachable!("nothing is held")
        }

        fn listen(
            &self,
            _: &[&str],
            _: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
        ) -> std::result::Result<(), Failure> {
            unreachable!("nobody waits")
        }
    }

    #[test]
    fn a_pattern_that_is_a_name_is_inspected_and_not_looked_for() {
        let store = Arc::new(Repeating::default());
        let of_engine = Arc::clone(&store) as Arc<dyn Store>;
        let engine = Engine::new(Settings::default(), of_engine);
        let locks = LockManager { engine };
        let listed = |pattern| {
            let names = locks.list(pattern).map(|lock| lock.expect("no error").name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(listed("job:7"), ["job:7"]);
        // No lock can have these names.
        for name in ["", "a}b", "{x}:lht:fence"] {
            assert!(listed(name).is_empty());
        }
        assert_eq!(store.0.load(Ordering::SeqCst), 0, "it scanned");
        for pattern in ["job:?", "[j]ob", "job\\:7", "*"] {
            store.0.store(0, Ordering::SeqCst);
            listed(pattern);
            assert_eq!(store.0.load(Ordering::SeqCst), 3, "{pattern}");
        }
    }

    #[test]
    fn a_list_asks_when_it_is_driven_and_shows_nothing_twice() {
        let store = Arc::new(Repeating::default());
        let of_engine = Arc::clone(&store) as Arc<dyn Store>;
        let engine = Engine::new(Settings::default(), of_engine);
        let mut list = LockManager { engine }.list("*");
        let mut next = || list.next().map(|lock| lock.expect("no error").name);
        for (name, asked) in [(Some("a"), 1), (Some("b"), 1), (Some("c"), 3), (None, 3)] {
            assert_eq!(next().as_deref(), name);
            assert_eq!(store.0.load(Ordering::SeqCst), asked);
        }
    }
}
