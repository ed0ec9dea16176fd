//! What operators need: who holds which lock, and a way to break a hold.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Result;
#[cfg(doc)]
use crate::error::{Error, LostCause};
use crate::manager::LockManager;
use crate::message::{ALL, Cursor, Seen};
use crate::name::LockKey;
use crate::owner;
use crate::sync::Arc;

/// What kind of lock a name is in Redis.
///
/// There a [`ReentrantMutex`](crate::ReentrantMutex) and each name of a [`MultiLock`](crate::MultiLock) are mutexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A [`Mutex`](crate::Mutex), or a lock of another client's.
    Mutex,
    /// A [`RwLock`](crate::RwLock).
    RwLock,
    /// A [`Semaphore`](crate::Semaphore).
    Semaphore {
        /// How many permits there are, held or not.
        permits: u32,
    },
}

/// What one holder has of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// All of it: the holder of a mutex, a writer.
    Exclusive,
    /// A reader's part.
    Read,
    /// So many permits.
    Permits(u32),
}

/// A lock, as it stood in Redis when it was looked at.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The name, without the manager's prefix.
    pub name: String,
    /// What kind of lock it is.
    pub kind: Kind,
    /// Who holds it; more than one only where readers or permits are held. The threads of a process may share one.
    /// Nobody where it is about to be taken by one who waits.
    pub holders: Vec<Holder>,
    /// How many processes wait for it, whatever the number of their threads. One that has crashed is counted until its
    /// turn would come.
    pub waiters: u64,
}

/// One holder of a lock, as it stood in Redis when it was looked at.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Holder {
    /// What [`Lease::owner`](crate::Lease::owner) is to the holder's guards, and
    /// [`force_release`](LockManager::force_release) breaks. A lock that was released, and is kept until its
    /// [`min_hold`](crate::Builder::min_hold) is over, is shown with its last owner.
    pub owner: String,
    /// The [`label`](crate::Builder::label) of its process; `None` for a client of another kind.
    pub label: Option<String>,
    /// The last fence that is remembered for the lock. A reader's is exactly that. That of a mutex's holder or of a
    /// writer may be smaller, since a process reserves some in advance while its threads pass the lock on.
    ///
    /// `None` for a permit, for a client of another kind, and where the lock was last given longer ago than
    /// [`fence_memory`](crate::Builder::fence_memory).
    pub fence: Option<u64>,
    /// How much longer Redis keeps it if it is not renewed; `None` where it has no end, as some other clients' locks.
    pub ttl: Option<Duration>,
    /// What it has of the lock.
    pub mode: Mode,
}

impl LockInfo {
    pub(crate) fn new(key: &LockKey, seen: Seen) -> Self {
        let kind = match seen.total_units {
            None => Kind::Mutex,
            Some(ALL) => Kind::RwLock,
            Some(permits) => Kind::Semaphore { permits },
        };
        let holders = seen.holders.into_iter().map(|holder| {
            let label = owner::label(&holder.owner).map(str::to_owned);
            let mode = match kind {
                Kind::Semaphore { .. } => Mode::Permits(holder.units),
                Kind::RwLock if holder.units < ALL => Mode::Read,
                Kind::RwLock | Kind::Mutex => Mode::Exclusive,
            };
            let has_fence = label.is_some() && !matches!(mode, Mode::Permits(_));
            Holder {
                owner: holder.owner,
                label,
                fence: seen.fence.filter(|_| has_fence),
                ttl: holder.ttl,
                mode,
            }
        });
        Self {
            name: key.name().to_string(),
            kind,
            holders: holders.collect(),
            waiters: seen.waiters,
        }
    }
}

/// For operators.
impl LockManager {
    /// Who holds the lock called `name`, of whatever kind, and how many wait for it. `None` where nobody does either.
    ///
    /// It blocks for one request, which changes nothing. A lock of another client's on the same key is shown too. What
    /// it says may be over when it is read, so it is for people and for figures, and not to decide by.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::Closed`]: nothing was sent.
    /// * [`Error::WrongType`]: what has this name is no lock; a rate limiter is none.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::Protocol`]: the server could not be asked.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// if let Some(lock) = locks.inspect("orders:42")? {
    ///     for holder in &lock.holders {
    ///         let who = holder.label.as_deref().unwrap_or("another client");
    ///         println!("{who} holds it, and {} wait", lock.waiters);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Option<LockInfo>> {
        let key = self.key(name.as_ref())?;
        let seen = self.engine.inspect(&key)?;
        Ok(seen.map(|seen| LockInfo::new(&key, seen)))
    }

    /// The locks that are held and whose names `pattern` matches: `*` any text, `?` any character, `[a-c]` one of
    /// these, `\` takes the next character as it is. The manager's prefix comes before it by itself.
    ///
    /// Locks are asked for as the iterator is driven, about 200 keys at a time, so that the server is never kept from
    /// its work; a step blocks until there is a lock to show, which may be many requests where the database holds much
    /// else. A lock that is held all the while is shown, and once; one that comes or goes meanwhile may be. What is
    /// remembered meanwhile is 16 bytes for each lock that was shown. An error is the last thing that it gives.
    ///
    /// The user's own keys are not shown, with one exception: a string of at most 1,024 bytes whose name was this crate's
    /// lock within [`fence_memory`](crate::Builder::fence_memory), or is waited for as one, is taken for another client's
    /// lock, and its value for the owner. So no secret belongs under the name of a lock.
    ///
    /// # Errors
    ///
    /// As [`inspect`](LockManager::inspect), but no [`Error::WrongType`]. A user of an access control list needs the
    /// command `SCAN`, and the keys that the pattern matches.
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

    /// Takes the lock called `name`, of whatever kind, from one owner, and hands it to the first who waits, as a release
    /// does. True if that owner held it; false, with nothing changed, if not. It blocks for one request, and may be
    /// repeated.
    ///
    /// For a holder that hangs. `owner` is what [`inspect`](LockManager::inspect) shows, so that nobody else's hold is
    /// broken by mistake: not even that of the same process, should it have taken the lock anew. It may be a client of
    /// another kind.
    ///
    /// **The lock excludes nobody from what the broken holder still does.** Until it learns of it, its guards read held.
    /// A process in which any thread has ever waited for a lock learns of it by a message, within milliseconds; any
    /// other with the next renewal of the lease, a third of its length, or at its deadline where it is not renewed. A
    /// guard then reads lost, as
    /// [`Removed`](LostCause::Removed) or [`Taken`](LostCause::Taken), and its [`on_lost`](crate::Lease::on_lost)
    /// fires. What the lock protects is to be guarded by the [`fence`](crate::Lease::fence): those after it are larger.
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

    fn key(&self, name: &str) -> Result<LockKey> {
        LockKey::new(&self.engine.settings.prefix, name)
    }
}

/// A list of locks, page by page; an error is its last.
struct Listing {
    engine: Arc<Engine>,
    pattern: String,
    /// Where it goes on; none where it is over.
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

/// Which locks were shown already: the server may come to a key twice. 128 bits stand for a name, so that no two share
/// them.
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
    use crate::clock::SystemClock;
    use crate::config::Settings;
    use crate::error::Failure;
    use crate::message::{Call, Reply};
    use crate::random::SystemRng;
    use crate::store::{Answer, DedicatedConnection, Limits, PubSubEvent, Store};
    use crate::sync::{AtomicU64, Ordering};

    /// A server that comes to some keys again, as one may whose table shrinks, and counts how often it is asked.
    #[derive(Default)]
    struct Repeating(AtomicU64);

    impl Store for Repeating {
        fn call(&self, call: &Call<'_>, _: Limits<'_>) -> std::result::Result<Answer, Failure> {
            let reply = match call {
                Call::Scan { .. } => {
                    let (keys, next) = match self.0.fetch_add(1, Ordering::SeqCst) {
                        0 => (&["a", "b", "a"][..], Some(Cursor::START)),
                        1 => (&["{x}:lh:fence"][..], Some(Cursor::START)),
                        _ => (&["b", "c"][..], None),
                    };
                    let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
                    Reply::Page { keys, next }
                }
                Call::Inspect { keys, .. } => {
                    let seen = Seen {
                        total_units: None,
                        fence: None,
                        waiters: 1,
                        holders: Vec::new(),
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
    fn a_list_asks_when_it_is_driven_and_shows_nothing_twice() {
        let store = Arc::new(Repeating::default());
        let engine = Engine::new(
            Settings::default(),
            Arc::clone(&store) as Arc<dyn Store>,
            Arc::new(SystemClock),
            Arc::new(SystemRng::new()),
        );
        let mut list = LockManager { engine }.list("*");
        let mut next = || list.next().map(|lock| lock.expect("no error").name);
        for (name, asked) in [(Some("a"), 1), (Some("b"), 1), (Some("c"), 3), (None, 3)] {
            assert_eq!(next().as_deref(), name);
            assert_eq!(store.0.load(Ordering::SeqCst), asked);
        }
    }
}
