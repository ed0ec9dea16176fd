//! The events of a manager, and the listener that receives them.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::error::{Error, LostCause};
use crate::sys::Arc;
use crate::sys::time::SystemTime;

/// The request of an operator, or of a program, to release a lock. See
/// [`Lease::on_requested`](crate::Lease::on_requested).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The reason that the caller of [`request_release`](crate::LockManager::request_release) gave. Any client of Redis that
    /// may publish on the channels of leasehold could have sent it.
    pub why: String,
    /// When it was sent, by the clock of the sender.
    pub at: SystemTime,
}

/// An event of a lock or of a connection.
///
/// A *guard* is one thread's hold on a lock. A *lease* is this process's hold on a lock, from a grant of Redis to its
/// end. Guards of several threads may have one lease after each other, or share it if they are readers. Redis knows a
/// lease by its *owner*, a string that is never used again.
///
/// A [`MultiGuard`](crate::MultiGuard) has one owner and one event for all names that one request acquires. Locking a
/// [`ReentrantMutex`](crate::ReentrantMutex) again is no event.
///
/// `Display` writes the text that the log has. No event holds a password.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::{Event, EventKind, LockManager};
///
/// let locks = LockManager::single("redis://127.0.0.1/")
///     .listener(|event: &Event<'_>| match event.kind {
///         EventKind::Lost { fence, cause, .. } => eprintln!("{:?}: {cause:?}, fence {fence}", event.name),
///         EventKind::AtRisk { .. } => eprintln!("{event}"),
///         _ => {}
///     })
///     .build()?;
/// # let _ = locks;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The name of the lock. `None` if the event is about a connection.
    pub name: Option<Cow<'a, str>>,
    /// The owner of the lease. `None` if the event is about a connection, or about a call that waits.
    pub owner: Option<Cow<'a, str>>,
    /// The kind of event, with its own facts.
    pub kind: EventKind<'a>,
}

/// The kind of an [`Event`], with the facts that belong to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// A thread has asked Redis, and has a guard.
    #[non_exhaustive]
    Acquired {
        /// The fence of the guard.
        fence: u64,
        /// The time since the call of the thread.
        waited: Duration,
    },
    /// A call begins to wait, because the lock is held or others wait for it. Each call that waits has one such event;
    /// a try has none.
    #[non_exhaustive]
    Contended {
        /// The owner that held the lock when this process last knew. If that is the value of another library, only its length,
        /// because the value may be a secret.
        holder: Option<Cow<'a, str>>,
    },
    /// A thread has a guard in a lease that this process had already. It got the guard in memory, without a request.
    #[non_exhaustive]
    PassedOn {
        /// The fence of the guard.
        fence: u64,
        /// The time since the call of the thread.
        waited: Duration,
    },
    /// Redis has given the lock to the next in its queue when this process released it, or has left it free for others
    /// for a [`poller_gap`](crate::Builder::poller_gap). Usually that is another process. It may be a thread of this
    /// process that asks for another permit, for the other side of a reader-writer lock, or for a multi-lock.
    #[non_exhaustive]
    HandedOver,
    /// A guard was ended, and held its lock until then as far as this process knew. If Redis replies to the release
    /// that the lock had been lost, [`Lost`](EventKind::Lost) follows.
    #[non_exhaustive]
    Released {
        /// The fence of the guard.
        fence: u64,
        /// The time since the lock was granted to the guard.
        held: Duration,
    },
    /// A guard has held its lock for longer than [`warn_after`](crate::Builder::warn_after), and still holds it. Each
    /// guard has at most one such event.
    #[non_exhaustive]
    HeldLong {
        /// The fence of the guard.
        fence: u64,
        /// The time since the lock was granted to the guard.
        held: Duration,
    },
    /// A call has waited for longer than [`warn_wait_after`](crate::Builder::warn_wait_after), and still waits.
    #[non_exhaustive]
    WaitsLong {
        /// As in [`Contended`](EventKind::Contended).
        holder: Option<Cow<'a, str>>,
        /// The time since the call of the thread.
        waited: Duration,
        /// The number of places in the lock's queue in Redis, as [`LockInfo::waiters`](crate::LockInfo::waiters). `None` if
        /// another thread of this process holds the lock or asks for it, or if Redis did not say in time.
        queue: Option<u64>,
    },
    /// Redis has confirmed that a lease lasts longer: for the renewal thread, or for
    /// [`Lease::extend`](crate::Lease::extend).
    #[non_exhaustive]
    Renewed {
        /// The time that is left of the lease.
        remaining: Duration,
    },
    /// A lease is still held, but its renewal is overdue. From now on its guards are
    /// [`AtRisk`](crate::LeaseState::AtRisk). There is one such event each time that a renewal becomes overdue.
    #[non_exhaustive]
    AtRisk {
        /// The time that is left of the lease.
        remaining: Duration,
    },
    /// On a [quorum](crate::LockManager::quorum) a renewal was confirmed, but these nodes have no vote for the lease: they
    /// were down or late when the lock was granted, or have lost it since. If another node fails too, the lease may be lost.
    /// The renewals ask these nodes again, except as the table of [`quorum`](crate::LockManager::quorum) says. There is one
    /// such event each time that a further node has no vote.
    #[non_exhaustive]
    LacksVotes {
        /// The addresses of the nodes without a vote.
        nodes: Vec<Cow<'a, str>>,
    },
    /// A lease was lost, or a guard has reached its [`max_hold`](crate::Builder::max_hold). The loss of a lease is one event,
    /// even if several readers share it: their fence is the same. Each reader that reaches its `max_hold` has its own event.
    #[non_exhaustive]
    Lost {
        /// The fence of the guard.
        fence: u64,
        /// The cause of the loss.
        cause: LostCause,
    },
    /// A connection of one of leasehold's threads has failed. Further failures are no events until it has recovered. On a
    /// quorum each node has a connection and events. The failed requests of callers are errors of their
    /// calls, and no events.
    #[non_exhaustive]
    Unreachable {
        /// The connection.
        connection: Connection,
        /// The address of the server. `None` if too few nodes of a [quorum](crate::LockManager::quorum) answer.
        node: Option<Cow<'a, str>>,
        /// The failure.
        error: Error,
    },
    /// A connection that had failed works again.
    #[non_exhaustive]
    Recovered {
        /// The connection.
        connection: Connection,
        /// The address of the server, which may be another one than before: see
        /// [`sentinel`](crate::LockManager::sentinel). `None` if enough nodes of a quorum answer again.
        node: Option<Cow<'a, str>>,
    },
}

impl EventKind<'_> {
    /// Returns the variant in lowercase with underscores, such as `passed_on`. It never changes, so a metric can have
    /// it as a label.
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
    ///         *counts.lock().unwrap().entry(event.kind.as_str()).or_default() += 1;
    ///     })
    ///     .build()?;
    /// # let _ = locks;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Acquired { .. } => "acquired",
            Self::Contended { .. } => "contended",
            Self::PassedOn { .. } => "passed_on",
            Self::HandedOver => "handed_over",
            Self::Released { .. } => "released",
            Self::HeldLong { .. } => "held_long",
            Self::WaitsLong { .. } => "waits_long",
            Self::Renewed { .. } => "renewed",
            Self::AtRisk { .. } => "at_risk",
            Self::LacksVotes { .. } => "lacks_votes",
            Self::Lost { .. } => "lost",
            Self::Unreachable { .. } => "unreachable",
            Self::Recovered { .. } => "recovered",
        }
    }
}

impl Event<'static> {
    /// Returns an event of the lock of this name, which may outlive the lock's lease.
    pub(crate) fn of_lock(name: &str, owner: Option<&str>, kind: EventKind<'static>) -> Self {
        Self {
            name: Some(name.to_owned().into()),
            owner: owner.map(|owner| owner.to_owned().into()),
            kind,
        }
    }

    pub(crate) fn of_connection(kind: EventKind<'static>) -> Self {
        Self {
            name: None,
            owner: None,
            kind,
        }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner.as_deref().unwrap_or_default();
        if let Some(name) = &self.name {
            write!(f, "lock {name:?}")?;
        }
        match &self.kind {
            EventKind::Acquired { fence, waited } => {
                write!(
                    f,
                    ": granted after {waited:?}, fence {fence}, owner {owner:?}"
                )
            }
            EventKind::Contended { holder } => {
                f.write_str(": waiting")?;
                write_holder(f, holder.as_deref())
            }
            EventKind::PassedOn { fence, waited } => {
                write!(
                    f,
                    ": handed on in memory after {waited:?}, fence {fence}, owner {owner:?}"
                )
            }
            EventKind::HandedOver => write!(f, ": handed over to the next waiter by {owner:?}"),
            EventKind::Released { fence, held } => {
                write!(
                    f,
                    ": released after {held:?}, fence {fence}, owner {owner:?}"
                )
            }
            EventKind::HeldLong { fence, held } => {
                write!(f, ": held for {held:?} by {owner:?}, fence {fence}")
            }
            EventKind::WaitsLong {
                holder,
                waited,
                queue,
            } => {
                write!(f, ": a call has waited for {waited:?}")?;
                write_holder(f, holder.as_deref())?;
                queue.map_or(Ok(()), |queue| write!(f, ", {queue} in its queue"))
            }
            EventKind::Renewed { remaining } => {
                write!(f, ": renewed for {remaining:?}, owner {owner:?}")
            }
            EventKind::AtRisk { remaining } => {
                write!(
                    f,
                    ": its renewal is overdue, {remaining:?} left, owner {owner:?}"
                )
            }
            EventKind::LacksVotes { nodes } => {
                write!(f, ": no vote of {}, owner {owner:?}", nodes.join(", "))
            }
            EventKind::Lost { fence, cause } => {
                let why = cause.why();
                write!(f, " was lost: {why} (fence {fence}, owner {owner:?})")
            }
            EventKind::Unreachable {
                connection, error, ..
            } => write!(f, "connection {connection:?} is out of reach: {error}"),
            EventKind::Recovered { connection, .. } => {
                write!(f, "connection {connection:?} works again")
            }
        }
    }
}

/// Writes who holds the lock, if that is known.
fn write_holder(f: &mut fmt::Formatter<'_>, holder: Option<&str>) -> fmt::Result {
    holder.map_or(Ok(()), |holder| write!(f, ", held by {holder:?}"))
}

/// A connection of one of leasehold's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Connection {
    /// The connection of the thread `leasehold-renewal`. Without it, leases expire.
    Renewal,
    /// The connection of the thread `leasehold-wakeup-0`. Without it, waiting threads poll.
    Wakeup,
}

/// A receiver of the events of a manager: see [`Builder::listener`](crate::Builder::listener). A closure over
/// `&Event<'_>` is a listener.
///
/// # Guarantees
///
/// Events come one after the other, on the thread `leasehold-events`. The beginning of a guard comes before its end,
/// and both come before the guard that has the lock next. [`Renewed`](EventKind::Renewed) and [`AtRisk`](EventKind::AtRisk)
/// may come shortly after the end of their lease.
///
/// A listener may panic, block, or lock something: no lock, lease or wait of the manager waits for it. At most 4,096
/// events wait for a slow listener, and further ones are dropped and counted in
/// [`Stats::events_dropped`](crate::Stats::events_dropped). Panics are caught, and the first one is logged.
///
/// When the last handle and guard of the manager have been dropped, the listener still receives the events from
/// before, and then the thread ends. A listener that owns a handle or a guard of its manager keeps that manager alive.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::{Event, EventKind, Listener, LockManager};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Default)]
/// struct Losses(AtomicU64);
///
/// impl Listener for Losses {
///     fn on_event(&self, event: &Event<'_>) {
///         if let EventKind::Lost { .. } = event.kind {
///             eprintln!("{event}");
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
    /// Receives an event.
    fn on_event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Listener for F {
    fn on_event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// The listener among the settings of a manager.
#[derive(Clone)]
pub(crate) struct SharedListener(pub(crate) Arc<dyn Listener>);

impl fmt::Debug for SharedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedListener")
    }
}
