//! The mutex: one guard at a time, over all processes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Time;
use crate::config::Options;
use crate::core::queue::Demand;
use crate::engine::Engine;
use crate::engine::acquire::{Acquired, Request};
use crate::error::{Error, Result};
use crate::guard::{Lease, LockGuard};
use crate::name::LockKey;
use crate::script::Kind;
use crate::sync::Arc;

/// A lock that one guard holds at a time, among all threads of all processes that use the same Redis.
///
/// A handle is cheap to clone and holds no lock by itself. In Redis it is the plain string that
/// `SET name owner NX PX lease` makes, so it excludes other clients that lock this way.
///
/// Threads are served first come, first served, and so are processes; while other processes wait, a process
/// passes the lock among its own threads for one [`quantum`](crate::Builder::quantum) at a time.
///
/// There is no poisoning: a thread that panics releases the lock. A thread that locks a mutex it holds already
/// waits for itself. A client of another kind that polls is outside of the queue, and can starve.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
///
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let orders = locks.mutex("orders").lease(Duration::from_secs(10));
/// if let Some(guard) = orders.try_lock_for(Duration::from_millis(500))? {
///     println!("in, as number {}", guard.fence());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    engine: Arc<Engine>,
    /// The error of an unfit name waits for the first call.
    key: Result<LockKey>,
    options: Options,
}

impl Mutex {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        let key = LockKey::new(&engine.settings.prefix, name);
        let options = engine.settings.options;
        Self {
            engine,
            key,
            options,
        }
    }

    /// How long Redis keeps the lock without a renewal: what a crashed holder delays the others by. From 10 ms
    /// to 24 h. Defaults to the manager's.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.terms.lease = lease;
        self
    }

    /// Whether the lease is renewed for as long as the guard lives. Without renewal a guard is lost when its
    /// lease is over. Defaults to the manager's.
    #[must_use]
    pub fn renew(mut self, on: bool) -> Self {
        self.options.terms.renew = on;
        self
    }

    /// How long one guard may be held; it is then released for the others and reads lost. Defaults to the
    /// manager's.
    #[must_use]
    pub fn max_hold(mut self, limit: Option<Duration>) -> Self {
        self.options.max_hold = limit;
        self
    }

    /// Acquires the lock, waiting for as long as it takes.
    ///
    /// While blocked the thread is parked: woken by the thread or process before it, and at the latest once a
    /// second where it is the one that asks Redis for this process. Once it waits, a server that is out of reach
    /// is retried until [`outage_limit`](crate::Builder::outage_limit).
    ///
    /// # Guarantees
    ///
    /// As on [the front page](crate#what-it-promises).
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::Config`]: nothing was sent.
    /// * [`Error::Unavailable`]: the first request failed, or an outage lasted for `outage_limit`.
    /// * [`Error::Denied`], [`Error::WrongType`], [`Error::Protocol`]: at once.
    /// * [`Error::Closed`]: the manager was closed.
    pub fn lock(&self) -> Result<LockGuard> {
        match self.acquire(Some(Time::NEVER))? {
            Acquired::Turn(holding) => Ok(LockGuard::new(holding)),
            Acquired::Busy(_) => unreachable!("a wait without an end does not end with \"held\""),
        }
    }

    /// Acquires the lock if it is free. `None` means that it is held: where another thread of this process holds
    /// it, this is known without asking.
    ///
    /// Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`lock`](Mutex::lock); nothing is retried.
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        self.acquire(None).map(guard)
    }

    /// Acquires the lock, waiting for at most `wait`. `None` means that the last answer was that it is held.
    ///
    /// A wait of zero is [`try_lock`](Mutex::try_lock); one of `Duration::MAX` has no end. The last request is given
    /// 100 ms at the least, so the call may end later by as much, or twice that where a connection is to be made.
    ///
    /// # Errors
    ///
    /// As [`lock`](Mutex::lock), but an outage ends with the wait: [`Error::Unavailable`].
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>> {
        self.wait_for(wait).map(guard)
    }

    /// Acquires the lock, waiting until `deadline` at the latest. `None` means that the last answer was that it
    /// is held.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Mutex::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>> {
        self.try_lock_for(deadline.saturating_duration_since(Instant::now()))
    }

    /// Runs `f` under the lock, waiting for it for at most `wait`, and releases it afterwards.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: `f` ran, but the lease ended before it did.
    /// * Any other error, such as [`Error::Timeout`]: `f` never ran.
    ///
    /// An error of `f` itself is part of what it returns: `Ok(Err(…))`.
    pub fn with<T>(&self, wait: Duration, f: impl FnOnce(&Lease) -> T) -> Result<T> {
        let asked = self.engine.now();
        match self.wait_for(wait)? {
            Acquired::Turn(holding) => {
                let guard = LockGuard::new(holding);
                let value = f(&guard);
                match guard.release() {
                    Err(Error::Lost(lost)) => Err(Error::Lost(lost)),
                    // It ran under the lock; that the server could not be told goes to the renewal thread.
                    Ok(()) | Err(_) => Ok(value),
                }
            }
            Acquired::Busy(holder) => Err(Error::Timeout {
                // The call would have failed before on a name that is none.
                name: self
                    .key
                    .as_ref()
                    .map_or("".into(), |key| Arc::clone(key.name())),
                waited: self.engine.now().since(asked),
                holder,
            }),
        }
    }

    fn wait_for(&self, wait: Duration) -> Result<Acquired> {
        if wait.is_zero() {
            return self.acquire(None);
        }
        self.acquire(Some(self.engine.now() + wait))
    }

    fn acquire(&self, until: Option<Time>) -> Result<Acquired> {
        self.engine.acquire(&Request {
            kind: Kind::Mutex,
            key: self.key.as_ref().map_err(Error::clone)?,
            options: self.options,
            demand: Demand::EXCLUSIVE,
            until,
        })
    }
}

fn guard(acquired: Acquired) -> Option<LockGuard> {
    match acquired {
        Acquired::Turn(holding) => Some(LockGuard::new(holding)),
        Acquired::Busy(_) => None,
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.key.as_ref().map(LockKey::name))
            .field("lease", &self.options.terms.lease)
            .field("renew", &self.options.terms.renew)
            .field("max_hold", &self.options.max_hold)
            .finish_non_exhaustive()
    }
}
