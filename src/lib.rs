//! Distributed locks on Redis for programs with threads and no async runtime.
//!
//! A lock is a key in Redis that expires unless the process that holds it renews it: a *lease*. A *guard* holds the lock for
//! one thread, and releases it when dropped. One thread of the process renews all its leases and another watches their
//! deadlines, so that a guard never claims a lock that the process may have lost.
//!
//! ```no_run
//! # struct Db;
//! # impl Db { fn write(&self, _: &str, _fence: u64) {} }
//! # fn main() -> leasehold::Result<()> {
//! # let db = Db;
//! use leasehold::LockManager;
//!
//! let locks = LockManager::connect("redis://127.0.0.1/")?;
//! let guard = locks.lock("orders:42")?; // blocks until this thread holds the lock
//! db.write("paid", guard.fence());      // the database rejects a smaller fence
//! guard.release()?;                     // or drop the guard; `Err(Lost)` if the lease ended early
//! # Ok(()) }
//! ```
//!
//! # The tour
//!
//! A program makes one [`LockManager`], and clones it freely. Threads of a process hand a lock to each other in memory,
//! without a request. Between processes Redis hands it to the one that has waited longest, and notifies only that one; only
//! when a lease ends without a release may a process that did not wait get the lock first. Each fault has its own variant of
//! [`Error`], and a call never reports that a lock is held if its request failed.
//!
//! | for | see |
//! | --- | --- |
//! | waiting, trying, a limited wait, a closure | [`LockManager::lock`], [`try_lock`](LockManager::try_lock), [`try_lock_for`](LockManager::try_lock_for), [`with_lock`](LockManager::with_lock); a [`Cancel`] ends one wait, [`LockManager::close`] all |
//! | a lock with its own lease or `max_hold` | [`Mutex`], by [`LockManager::mutex`]; [`Mutex::run`] returns a closure's result beside a loss |
//! | the other kinds | [`RwLock`], [`Semaphore`], [`ReentrantMutex`], which its thread can lock again, [`MultiLock`] over several names; [`RateLimiter`]; the trait [`Lock`] over all kinds |
//! | the state of a guard | its [`Lease`]: [`fence`](Lease::fence), [`remaining`](Lease::remaining), [`state`](Lease::state), [`check`](Lease::check), [`on_lost`](Lease::on_lost), [`extend`](Lease::extend) |
//! | a lock that goes to another process | [`LockGuard::detach`] makes a [`Claim`], which is text, and [`LockManager::adopt`] a guard of it |
//! | servers and settings | one URL: [`LockManager::connect`] and its [table](LockManager::from_url); or a [`Builder`], with [TLS](https://docs.rs/leasehold/latest/leasehold/struct.Tls.html), changing [`credentials`](Builder::credentials), and the [rights](Builder#rights-of-a-redis-user) that a Redis user needs |
//! | several servers | [`LockManager::sentinel`], [`LockManager::cluster`]; [`LockManager::quorum`] (Redlock) and when it is worth it; [`Builder::replicas`] |
//! | a job on one host only, or once a day | [`LockManager::try_lock`]; [`Once::claim_for`], by [`LockManager::once`], with the [runbook](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#runbook) |
//! | a leader among processes, and who it is | [`Election`], by [`LockManager::election`] |
//! | errors that a program may retry | [`Error::is_retryable`], and the [table of errors](Error#what-is-retryable) |
//! | the holder of a lock, and taking it away | [`LockManager::inspect`], [`list`](LockManager::list), [`request_release`](LockManager::request_release), [`force_release`](LockManager::force_release) |
//! | figures and events | [`LockManager::stats`], [`Builder::listener`] for each [`Event`], and [what to watch](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#what-to-watch) |
//! | log records, none of which has a password | the target `leasehold` of the [`log`](https://docs.rs/log) crate, and [its levels](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#the-log); [`Builder::warn_after`], [`Builder::warn_wait_after`] |
//! | data in the Redis of the lock | [`LockGuard::commit`] executes each [`Write`] only while the lock is held |
//! | other data, which rejects an old fence | [docs/fencing.md](https://docs.rs/crate/leasehold/latest/source/docs/fencing.md) |
//! | a move from another library | [docs/moving.md](https://docs.rs/crate/leasehold/latest/source/docs/moving.md) |
//! | an async program | [docs/async.md](https://docs.rs/crate/leasehold/latest/source/docs/async.md) |
//! | scripts and cron jobs | the program `leasehold`: [docs/cli.md](https://docs.rs/crate/leasehold/latest/source/docs/cli.md) |
//! | tests without a server | the package [`leasehold-testing`](https://docs.rs/leasehold-testing), a Redis in memory |
//!
//! # What it promises
//!
//! 1. **Exclusion.** At most one exclusive guard of a name reads [`Held`](LeaseState::Held), if the rates of the machines'
//!    clocks differ by less than 1 %, no server's clock jumps, and the server keeps its data. The guard ends before the key does,
//!    because a lease counts from before its request was sent, less 1 % and 2 ms, on a clock that runs through suspend.
//! 2. **Fencing.** Each exclusive guard of a name has a larger [`fence`](Lease::fence) than every earlier one. Fences follow
//!    the server's clock in microseconds, so they also rise after the server has lost all its data, and after its clock was set
//!    back by less than [`fence_memory`](Builder::fence_memory). There are
//!    [four exceptions](Lease#when-a-fence-may-be-smaller), such as a server that loses its data *and* whose clock is set back.
//! 3. **No hidden loss.** A holder learns of a loss by its own clock, at the deadline, even if the network is dead and the
//!    renewal thread is stuck. `Lost` is final: no late reply revives a lease. [`on_lost`](Lease::on_lost) fires within 50 ms,
//!    from a thread that does no I/O.
//! 4. **Liveness.** A crash delays the other processes by at most the lease of a holder, or 250 ms if that lease is shorter; by at
//!    most one pickup window (2 s by default, see [`io_timeout`](Builder::io_timeout)) for up to 64 waiters that crash or hang
//!    together; and by at most one poll, 1 s, for a message that is lost. A waiter that only hung for a window keeps its place. If
//!    more than 64 hang, the lock goes to a process that asks, at most one poll later, until they are dropped after 3 s.
//! 5. **Nobody else's lock.** Every request about a held lock compares the owner, and never shortens a lease that is held. All but
//!    a [commit](LockGuard::commit) may be repeated without harm.
//!
//! # What it does not promise
//!
//! No lease in Redis, in any implementation, excludes a second holder if
//!
//! * a failover or a restart of the server loses the key;
//! * the server evicts the key, because its memory is full and its `maxmemory-policy` is not `noeviction`, of which
//!   [`Builder::build`] warns in the log;
//! * the server's clock jumps, or a failover or the move of a slot gives a semaphore or a reader-writer lock to a server whose
//!   clock is ahead;
//! * a virtual machine is stopped with the process inside;
//! * an operator calls [`force_release`](LockManager::force_release).
//!
//! For these cases let the system that the lock protects reject a [`fence`](Lease::fence) that is smaller than the largest it
//! has seen. On a [quorum](LockManager::quorum) a loss needs the restart of several nodes, one soon after another, because a
//! restarted node does not vote for the [`restart_delay`](Builder::restart_delay). If a server's clock is set forward, leases end
//! early, and their holders learn of it at the next renewal. If it is set back, Redis keeps the lock of a crashed process for that
//! much longer.
//!
//! There is no poisoning. A thread that locks a mutex that it already holds waits for itself. A client of another library can
//! starve, because it polls outside of the queue: see [`Builder::poller_gap`].
//!
//! # On the wire
//!
//! A mutex is the plain string key that `SET prefix+name owner NX PX lease` makes, released by compare and delete. So it excludes
//! the locks of redis-py, redsync, bsm/redislock, node-redlock and rslock, if the [`prefix`](Builder::prefix) makes the key the
//! same. A waiter appends `!` to the owner, and a release within [`min_hold`](Builder::min_hold) `!~`, but never to the value of
//! another library. Beside the key stand `{key}:lh:fence`, `{key}:lh:queue`, `{key}:lh:waiters`, `{key}:lh:once`
//! and `{key}:lh:leader`, or
//! `key:lht:…` if the key has its own hash tag, each with a time to live. Reader-writer locks and semaphores are sorted sets of
//! leases, and a rate limiter is a list of times. A node of a quorum also has `leasehold:restart_delay` behind the prefix.
//!
//! # Panics, exits and forks
//!
//! A call panics if the operating system cannot provide random numbers, and neither the program's arguments nor a fault of the
//! server cause any other panic. A panic in a closure under a lock releases it and reaches the caller; one in a [`Listener`] or in
//! the program's logger is caught. Dropping a guard never panics.
//!
//! A guard that the program forgets is renewed until the process ends, or until its `max_hold`. A process that exits or is killed
//! releases nothing: its locks come free when their leases end, and its places in queues are skipped. So call
//! [`LockManager::close`] before an exit if releases are in the [background](Builder::background_release).
//!
//! In a child of `fork(2)` every guard reads `Lost`, every call for a lock returns [`Forked`](Error::Forked), and a drop does
//! nothing. A child of `_Fork(3)`, or of a bare `clone(2)`, is not noticed, because the C library does not report it.
//!
//! # Features
//!
//! * `tls`: `rediss://` URLs by rustls, with TLS 1.2 and 1.3, and [`Builder::tls`] for roots and certificates other than the
//!   system's. If the program has not installed a provider of cryptography, building a manager installs ring's.
//! * `metrics`: histograms, counters and gauges for the [`metrics`](https://docs.rs/metrics) facade, whose recorder the program
//!   installs before it builds a manager. `tracing`: the spans `leasehold.wait` and `leasehold.hold` for the
//!   [`tracing`](https://docs.rs/tracing) facade. [docs/metrics.md](https://docs.rs/crate/leasehold/latest/source/docs/metrics.md)
//!   lists both.
//!
//! # Sources
//!
//! Leases: C. Gray, D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache consistency", 1989.
//! Fencing: M. Kleppmann, "How to do distributed locking", 2016. The lock in Redis: its
//! [`SET`](https://redis.io/docs/latest/commands/set/) command. The mark on a contended lock: U. Drepper, "Futexes are tricky",
//! 2004.

mod admin;
mod builder;
mod cancel;
mod claim;
mod config;
mod engine;
mod error;
mod event;
mod guard;
mod lock;
mod logging;
mod manager;
mod name;
mod net;
mod owner;
mod panics;
mod quorum;
#[cfg(feature = "seam")]
#[doc(hidden)]
pub mod seam;
mod server;
mod stats;
mod sys;
mod wire;
mod write;

// The documentation tests run the Rust of these pages.
#[cfg(doctest)]
#[doc = include_str!("../docs/fencing.md")]
mod fencing_page {}
#[cfg(doctest)]
#[doc = include_str!("../docs/moving.md")]
mod moving_page {}
#[cfg(doctest)]
#[doc = include_str!("../docs/operating.md")]
mod operating_page {}

pub use admin::{Holder, Kind, LockInfo, Mode, Ping, Waiting};
pub use builder::{Builder, Endpoint, parse_time};
pub use cancel::Cancel;
pub use claim::Claim;
pub use config::Credentials;
#[cfg(feature = "tls")]
pub use config::Tls;
pub use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, TryRecvError};
pub use error::{Error, ErrorKind, Lost, LostCause, NodeFailure, Result};
pub use event::{Connection, Event, EventKind, Listener, ReleaseRequest};
pub use guard::{
    Guard, Lease, LeaseState, LockGuard, MultiGuard, Permit, ReadGuard, ReentrantGuard, WriteGuard,
};
pub use lock::{
    Admission, Election, Fired, Leader, Leadership, Lock, MultiLock, Mutex, Once, OnceGuard,
    Permits, Ran, RateLimiter, Reader, ReentrantMutex, RwLock, Semaphore, Writer,
};
pub use manager::LockManager;
pub use stats::{Bucket, Distribution, Stats};
pub use write::{Reply, Write, WriteArg};
