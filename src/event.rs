//! What happens to locks, told to whoever listens.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Lost};
use crate::sync::Arc;

/// Something that has happened to a lock, or to a connection.
///
/// A *guard* is one thread's turn with a lock. A *lease* is this process's hold on it in Redis, which several guards
/// may use one after the other, or, where they are readers, together; it is told by its owner, which is never used
/// again. A [`MultiGuard`](crate::MultiGuard) has one owner, and one event, for all names that one request takes.
/// Locking a [`ReentrantMutex`](crate::ReentrantMutex) again is no event.
///
/// No event holds a password.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A guard was handed out by Redis: its thread has asked, and was granted the lock.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        name: &'a str,
        /// Under what name it is held in Redis.
        owner: &'a str,
        /// The guard's fence.
        fence: u64,
        /// How long ago the thread asked for it.
        waited: Duration,
    },
    /// A call has begun to wait, because others hold the lock or were there before. Once for each call that waits,
    /// however often it asks; never for a try.
    #[non_exhaustive]
    Contended {
        /// The lock.
        name: &'a str,
        /// Who held it when this process last knew.
        holder: Option<&'a str>,
    },
    /// A guard was handed out in memory, out of a lease that this process had: without a request.
    #[non_exhaustive]
    PassedOn {
        /// The lock.
        name: &'a str,
        /// Under what name it is held in Redis.
        owner: &'a str,
        /// The guard's fence.
        fence: u64,
        /// How long ago the thread asked for it.
        waited: Duration,
    },
    /// On the way out Redis has given the lock to who was first in its queue there: another process, or, where
    /// several leases may stand beside each other, another thread of this one that asks for its own.
    #[non_exhaustive]
    HandedOver {
        /// The lock.
        name: &'a str,
        /// Under what name it was held in Redis until then.
        owner: &'a str,
    },
    /// A guard has ended by its own will, and held the lock as far as this process knew. Where the server's answer
    /// to the release is that it had been lost, [`Lost`](Event::Lost) follows.
    #[non_exhaustive]
    Released {
        /// The lock.
        name: &'a str,
        /// Under what name it was held in Redis.
        owner: &'a str,
        /// The guard's fence.
        fence: u64,
        /// How long the lock was the guard's.
        held: Duration,
    },
    /// A guard is held for longer than [`warn_after`](crate::Builder::warn_after), and still is. Once for a guard.
    #[non_exhaustive]
    HeldLong {
        /// The lock.
        name: &'a str,
        /// Under what name it is held in Redis.
        owner: &'a str,
        /// The guard's fence.
        fence: u64,
        /// For how long it is held by now.
        held: Duration,
    },
    /// The server has confirmed that a lease lasts longer, as asked by the renewal thread or by
    /// [`Lease::extend`](crate::Lease::extend).
    #[non_exhaustive]
    Renewed {
        /// The lock.
        name: &'a str,
        /// Under what name it is held in Redis.
        owner: &'a str,
        /// How long the lease now lasts.
        remaining: Duration,
    },
    /// A lease is still held, but its renewal is overdue: its guards read
    /// [`AtRisk`](crate::LeaseState::AtRisk) from now on. Once each time that it becomes so.
    #[non_exhaustive]
    AtRisk {
        /// The lock.
        name: &'a str,
        /// Under what name it is held in Redis.
        owner: &'a str,
        /// How much of the lease is left.
        remaining: Duration,
    },
    /// A lease has ended before its guards did, or one guard has at its [`max_hold`](crate::Builder::max_hold). Once
    /// for a lease, however many guards share it: their fence is the same.
    #[non_exhaustive]
    Lost {
        /// What was lost, and why.
        lost: &'a Lost,
        /// Under what name it was held in Redis.
        owner: &'a str,
    },
    /// A connection of one of leasehold's own threads does not do its work any more. Once, not at each failure after
    /// it. The failures of callers' own requests are their calls' errors, and no events.
    #[non_exhaustive]
    Unreachable {
        /// Which one.
        connection: Connection,
        /// What happened.
        error: &'a Error,
    },
    /// It does its work again.
    #[non_exhaustive]
    Recovered {
        /// Which one.
        connection: Connection,
    },
}

impl Event<'_> {
    /// Returns the variant in lowercase with underscores, such as `passed_on`: a label for a metric. It never changes.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::Event;
    /// use std::collections::HashMap;
    /// use std::sync::Mutex;
    ///
    /// let counts: Mutex<HashMap<&str, u64>> = Mutex::default();
    /// let locks = leasehold::LockManager::single("redis://127.0.0.1/")
    ///     .listener(move |event: &Event<'_>| {
    ///         *counts.lock().unwrap().entry(event.kind()).or_default() += 1;
    ///     })
    ///     .build()?;
    /// # let _ = locks;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Acquired { .. } => "acquired",
            Self::Contended { .. } => "contended",
            Self::PassedOn { .. } => "passed_on",
            Self::HandedOver { .. } => "handed_over",
            Self::Released { .. } => "released",
            Self::HeldLong { .. } => "held_long",
            Self::Renewed { .. } => "renewed",
            Self::AtRisk { .. } => "at_risk",
            Self::Lost { .. } => "lost",
            Self::Unreachable { .. } => "unreachable",
            Self::Recovered { .. } => "recovered",
        }
    }

    /// Returns the name of the lock; `None` if the event is about a connection.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Acquired { name, .. }
            | Self::Contended { name, .. }
            | Self::PassedOn { name, .. }
            | Self::HandedOver { name, .. }
            | Self::Released { name, .. }
            | Self::HeldLong { name, .. }
            | Self::Renewed { name, .. }
            | Self::AtRisk { name, .. } => Some(name),
            Self::Lost { lost, .. } => Some(&lost.name),
            Self::Unreachable { .. } | Self::Recovered { .. } => None,
        }
    }
}

/// The connections that leasehold's own threads have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Connection {
    /// Of the thread `leasehold-renewal`: without it leases run out.
    Renewal,
    /// Of the thread `leasehold-wakeup-0`: without it waits poll.
    Wakeup,
}

/// Is told of each [`Event`] of a manager; given to [`Builder::listener`](crate::Builder::listener).
///
/// A closure over `&Event<'_>` is one too.
///
/// # Guarantees
///
/// Events come one after the other on a thread that does nothing else, `leasehold-events`: a guard's beginning before
/// its end, and both before those of who has the lock after it. What is said of a lease meanwhile, that it was renewed or
/// is at risk, may come a moment after the end that it did not know of.
///
/// Whatever a listener does, be it that it panics, blocks for ever or locks something, no lock, lease or wait of the
/// manager waits for it. Up to 4,096 events wait for a listener that is slow; further ones are dropped, and counted in
/// [`Stats::events_dropped`](crate::Stats::events_dropped). A panic is caught, and the first one logged.
///
/// What has happened before the last handle and guard of the manager were dropped is still told; the thread ends after
/// that. A listener that owns a handle or a guard of its own manager keeps it alive.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::{Event, Listener, LockManager};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Default)]
/// struct Losses(AtomicU64);
///
/// impl Listener for Losses {
///     fn on_event(&self, event: &Event<'_>) {
///         if let Event::Lost { lost, .. } = event {
///             eprintln!("{lost}");
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let locks = LockManager::single("redis://127.0.0.1/")
///     .listener(Losses::default())
///     .build()?;
/// # let _ = locks;
/// # Ok(()) }
/// ```
pub trait Listener: Send + Sync + 'static {
    /// Something has happened.
    fn on_event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Listener for F {
    fn on_event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// A listener among the settings.
#[derive(Clone)]
pub(crate) struct SharedListener(pub(crate) Arc<dyn Listener>);

impl fmt::Debug for SharedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedListener")
    }
}
