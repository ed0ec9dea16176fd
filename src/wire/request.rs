//! The requests, and the kinds of lock that they are about.

use std::time::Duration;

use crate::name::{LockKey, Target};
use crate::sys::Arc;
use crate::wire::reply::{Cursor, Nonce};

/// A kind of lock. Each kind has its rules in Redis and among the threads of a process.
///
/// A reader-writer lock is two kinds over one key. So the readers of a process and its writers have a queue and a
/// delegate each, and Redis decides between readers and writers as it does between processes. The number of permits is
/// part of a semaphore's kind: threads that disagree on it do not share a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LockKind {
    Mutex,
    Read,
    Write,
    Semaphore {
        total_units: u32,
    },
    /// Several mutexes, all or none.
    Multi,
}

/// The way in which the threads of a process share leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Whether any number of threads hold one lease at the same time. If not, one thread holds it.
    pub(crate) together: bool,
    /// Whether a process may have several leases of one lock at the same time.
    pub(crate) several: bool,
}

/// All units of a reader-writer lock. A writer takes them all, a reader takes one.
pub(crate) const ALL: u32 = u32::MAX;

/// A request to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    /// Finds out whether the node answers.
    Ping,
    /// Asks for one lock, or gives something of it up.
    Lock {
        kind: LockKind,
        target: &'a Target,
        verb: &'a Verb,
    },
    /// Renews many leases.
    Renew(&'a [Renewal<'a>]),
    /// Keeps the records of the last fences of many leases, as grants now would. A renewal touches the lock's key alone.
    KeepRecords(&'a [Renewal<'a>]),
    /// Releases many mutexes that nobody is known to wait for.
    Release(&'a [PlainRelease<'a>]),
    /// Asks a rate limiter for admission.
    RateLimit {
        key: &'a LockKey,
        request: RateRequest,
    },
    /// Gives a new owner to a mutex that was detached.
    Adopt { key: &'a LockKey, adopt: &'a Adopt },
    /// Inspects locks of any kind. Without `named`, a scan found the keys, and they may be no locks.
    Inspect { keys: &'a [LockKey], named: bool },
    /// Lists some of the keys that begin with `prefix` and go on as the Redis pattern `pattern`.
    Scan {
        from: Cursor,
        prefix: &'a str,
        pattern: &'a str,
    },
    /// Takes a lock of any kind from one owner.
    ForceRelease { key: &'a LockKey, owner: &'a str },
    /// Publishes a message about a lock on the channel of all processes.
    Publish { key: &'a LockKey, message: &'a str },
}

/// A request about one lock. Redis can grant the lock only by `Acquire` and `TakeOver`; the others give something up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Asks for the lock.
    Acquire { ask: Ask, mode: AcquireMode },
    /// Ends the lease of `from`, and asks for the lock under a new owner. If another process waits, the lock goes to
    /// that process. A reader may end a writer: the writer's lease then becomes the reader's.
    TakeOver {
        ask: Ask,
        from: Arc<str>,
        give_back: Option<GiveBack>,
    },
    /// Gives up a lock that has no known waiter.
    Release { owner: Arc<str>, units: u32 },
    /// Gives up a lock and its unused fences. The lock goes to the first waiter, if there is one.
    HandOver {
        owner: Arc<str>,
        units: u32,
        give_back: Option<GiveBack>,
    },
    /// Gives up a lock, and keeps it from all processes for a while (`min_hold`).
    Keep(Keep),
    /// Withdraws an owner: gives up the lock or the place in the queue, whichever this owner has.
    Withdraw { owner: Arc<str>, units: u32 },
}

/// The end of a lease whose lock stays taken for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) owner: Arc<str>,
    pub(crate) units: u32,
    /// How long the lock stays taken from now.
    pub(crate) life: Duration,
    /// Whether to wake the first waiter. Without it, the request touches no key but the lock's.
    pub(crate) wakes: bool,
    /// The unused fences, of a request that wakes.
    pub(crate) give_back: Option<GiveBack>,
}

/// How a request treats a free lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireMode {
    /// The caller takes a free lock, before the processes in the queue.
    TakeFree,
    /// The first process in the queue gets a free lock.
    QueueFirst,
}

/// The terms of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) owner: Arc<str>,
    /// The number of units of the lock.
    pub(crate) units: u32,
    pub(crate) lease: Duration,
    /// The number of fences to reserve. With 0 the lock has no fence, and the reply has 0 in its place.
    pub(crate) fences: u64,
    /// An owner of this process. If nobody waits for the lock, the caller may share the lease of that owner instead.
    pub(crate) shareable_owner: Option<Arc<str>>,
    /// The channel on which a hand-over is published. `None` means that the caller does not queue for a held lock; an
    /// empty text means that it queues without a channel.
    pub(crate) channel: Option<Arc<str>>,
    /// With it, a hand-over may grant the lock by message. Only a request with a channel has one.
    pub(crate) nonce: Option<Nonce>,
}

/// The unused part of a block of fences, for the server to take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GiveBack {
    /// The last fence that was given to a guard.
    pub(crate) used: u64,
    /// The last fence of the block. The server's record stands there, unless another grant raised it.
    pub(crate) last: u64,
}

/// One lease to renew.
#[derive(Clone, Debug)]
pub(crate) struct Renewal<'a> {
    pub(crate) kind: LockKind,
    pub(crate) key: &'a LockKey,
    pub(crate) owner: String,
    pub(crate) units: u32,
    pub(crate) lease: Duration,
    /// Whether a node of a quorum without a vote may join. Only a lease that is renewed may gain votes.
    pub(crate) may_join: bool,
}

/// One lock to release: a mutex, or on a quorum a lock of any kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRelease<'a> {
    pub(crate) kind: LockKind,
    pub(crate) target: &'a Target,
    pub(crate) owner: &'a str,
    pub(crate) units: u32,
}

/// The terms of a request to a rate limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateRequest {
    pub(crate) permits: u32,
    pub(crate) per: Duration,
    /// The longest wait that the caller accepts. An admission that comes later is not booked.
    pub(crate) patience: Duration,
}

/// The terms on which a claim is adopted. An adoption brings one fence: other threads of this process that want the
/// lock wait behind a delegate, so none of them gets the adopted lock in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adopt {
    /// The new owner.
    pub(crate) owner: Arc<str>,
    pub(crate) lease: Duration,
    /// The owner that was detached.
    pub(crate) from: Arc<str>,
    /// The fence of the last guard of that owner; 0 if it had none.
    pub(crate) last: u64,
    /// Whether the new lease has a fence.
    pub(crate) fencing: bool,
    /// Whether the new lease may end before the old one. At the nodes of a quorum it never does.
    pub(crate) shortens: bool,
}

impl Request<'_> {
    /// Returns whether the call is about a lock that this process holds. Such a call must not be late: a lease would
    /// end, or others would wait for a lock that this process gives up.
    pub(crate) fn is_of_a_holder(&self) -> bool {
        match self {
            Request::Lock { verb, .. } => !matches!(verb, Verb::Acquire { .. }),
            Request::Renew(_) | Request::KeepRecords(_) | Request::Release(_) => true,
            _ => false,
        }
    }

    /// Returns whether it lengthens no lease. So it writes nothing that a replica must confirm.
    pub(crate) fn is_a_look(&self) -> bool {
        match self {
            Request::Renew(all) => all.iter().all(|one| one.lease.is_zero()),
            Request::KeepRecords(_) => true,
            _ => false,
        }
    }
}

impl Verb {
    /// Returns the owner that asks, or that gives something up.
    pub(crate) fn owner(&self) -> &Arc<str> {
        match self {
            Self::Acquire { ask, .. } | Self::TakeOver { ask, .. } => &ask.owner,
            Self::Release { owner, .. }
            | Self::HandOver { owner, .. }
            | Self::Keep(Keep { owner, .. })
            | Self::Withdraw { owner, .. } => owner,
        }
    }

    /// Returns whether the request leaves its owner in the queue if the lock is held.
    pub(crate) fn queues(&self) -> bool {
        match self {
            Self::Acquire { ask, .. } | Self::TakeOver { ask, .. } => ask.channel.is_some(),
            Self::Release { .. }
            | Self::HandOver { .. }
            | Self::Keep(_)
            | Self::Withdraw { .. } => false,
        }
    }
}

impl Sharing {
    /// Returns how many threads can hold one lease at the same time.
    pub(crate) const fn most_holds(self) -> u32 {
        if self.together { u32::MAX } else { 1 }
    }
}

impl LockKind {
    /// Returns how the threads of a process share leases of this kind.
    pub(crate) fn sharing(self) -> Sharing {
        match self {
            Self::Mutex | Self::Write | Self::Multi => Sharing {
                together: false,
                several: false,
            },
            Self::Read => Sharing {
                together: true,
                several: true,
            },
            Self::Semaphore { .. } => Sharing {
                together: false,
                several: true,
            },
        }
    }

    /// Returns the units of an owner as the key has them: 0 if the owner has the whole key.
    pub(crate) fn units_in_key(self, units: u32) -> u32 {
        match self {
            Self::Mutex | Self::Multi => 0,
            Self::Read | Self::Write | Self::Semaphore { .. } => units,
        }
    }

    /// Returns how many units a lock of this kind has.
    pub(crate) fn total_units(self) -> u32 {
        match self {
            Self::Mutex | Self::Multi => 1,
            Self::Read | Self::Write => ALL,
            Self::Semaphore { total_units } => total_units,
        }
    }
}
