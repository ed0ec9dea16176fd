//! Distributed locks on Redis for threaded Rust programs: servers, batch jobs and cron tasks on several machines.
//!
//! A lock is a *lease*, a key that expires unless its holder renews it. That is why a crash delays the others by a lease (30 s by
//! default) and seldom by a few seconds more, but also why a holder can lose its lock while it works. With leasehold the holder learns
//! of that by its own clock, before the key expires. If Redis itself loses the key, by a failover, a restart without data, or a `DEL`,
//! the holder learns at its next renewal, and until then a fence protects the data. If the link dies, this happens:
//!
//! ![The link of process A to Redis is cut. A learns that its lease is at risk, and then that it is lost. Some milliseconds later B gets the lock.][loss]
//!
//! A server, after `cargo add leasehold`:
//!
//! ```rust
//! # fn charge(_: u32, _: u64) -> u16 { 200 }
//! use leasehold::LockManager; // one for all threads: LockManager::connect("redis://127.0.0.1/")?
//! use std::time::Duration;
//!
//! /// Pays an order, and returns the HTTP status of the answer.
//! fn pay(locks: &LockManager, order: u32) -> u16 {
//!     match locks.try_lock_for(format!("orders:{order}"), Duration::from_secs(1)) {
//!         // Your code, which pays an open order only, and whose database rejects a smaller fence (a u64).
//!         Ok(Some(guard)) => charge(order, guard.fence()),
//!         Ok(None) => 409, // another request is at work on this order, maybe on another machine
//!         Err(error) if error.is_retryable() => 503, // Redis cannot be asked now
//!         Err(_) => 500,
//!     } // the guard was dropped: the next request has the lock
//! }
//! ```
//!
//! A job that several hosts start, and that one of them does at a time:
//!
//! ```rust
//! # use leasehold::LockManager;
//! # fn settle(_: u32, _: u64) {}
//! /// Settles the accounts that are still open.
//! fn settle_all(locks: &LockManager, open: impl Iterator<Item = u32>) -> leasehold::Result<()> {
//!     let Some(guard) = locks.try_lock("settlement")? else {
//!         return Ok(()); // another host is at work
//!     };
//!     for account in open {
//!         guard.check()?; // `Err(Lost)` once the lease is over: the next start does the rest
//!         settle(account, guard.fence());
//!     }
//!     guard.release()
//! }
//! ```
//!
//! - **No hidden loss.** A guard compares the holder's own clock with the end of the lease. So it reads `Lost` at that end even if
//!   the network is dead or the renewal thread is stuck, and no late reply makes it `Held` again.
//! - **Fences everywhere.** Each exclusive guard has a larger [fencing token][fence] than every earlier one, with
//!   rare exceptions. For data in the same Redis, [`commit`][commit] writes only while the lock is held.
//! - **First come, first served.** A release hands the lock to the process that has waited longest, and wakes only that one.
//! - **Thousands of threads.** Threads of one process pass a lock on in memory, for some milliseconds if others wait. One thread
//!   renews all leases: 100,000 of them take one connection of the client, 2 % of a core, and 540 bytes each.
//! - **Any deployment, by one URL.** `redis+sentinel://s1,s2,s3/mymaster?lease=10s` is a Sentinel set with a lease of 10 s, and other
//!   URLs name a single server, a Cluster, or a quorum of independent masters (Redlock, but with fences).
//! - **Tested under faults**, on simulated machines and on real servers: [EVIDENCE.md][evidence] has the results so far.
//!
//! [loss]: https://docs.rs/crate/leasehold/latest/source/docs/loss.svg
//! [fence]: Lease::fence
//! [commit]: LockGuard::commit
//! [evidence]: https://docs.rs/crate/leasehold/latest/source/EVIDENCE.md
//!
//! # The tour
//!
//! A program makes one [`LockManager`], and clones it freely. Each fault has its own variant of [`Error`], whose
//! [table](Error#what-is-retryable) says what a program may retry. No call reports that a lock is held if its request failed.
//!
//! | for | see |
//! | --- | --- |
//! | waiting, trying, a limited wait, a closure | [`LockManager::lock`], [`try_lock`](LockManager::try_lock), [`try_lock_for`](LockManager::try_lock_for), [`with_lock`](LockManager::with_lock); a [`Cancel`] ends one wait, [`LockManager::close`] all |
//! | a lock with its own lease or `max_hold` | [`Mutex`], by [`LockManager::mutex`]; [`Mutex::run`] returns a closure's result beside a loss |
//! | the other kinds | [`RwLock`], [`Semaphore`], [`ReentrantMutex`], [`MultiLock`] over several names, [`RateLimiter`]; the trait [`Lock`] over all kinds |
//! | a job on one host only, once for each time of a schedule | [`LockManager::try_lock`]; [`Once::claim_for`], with the [runbook](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#runbook) |
//! | a leader among processes, and who it is | [`Election`], by [`LockManager::election`] |
//! | the state of a guard | its [`Lease`]: [`fence`](Lease::fence), [`remaining`](Lease::remaining), [`state`](Lease::state), [`check`](Lease::check), [`on_lost`](Lease::on_lost), [`extend`](Lease::extend) |
//! | data in the Redis of the lock, or elsewhere | [`LockGuard::commit`]; [docs/fencing.md](https://docs.rs/crate/leasehold/latest/source/docs/fencing.md) |
//! | a lock that goes to another process | [`LockGuard::detach`] makes a [`Claim`], which is text, and [`LockManager::adopt`] a guard of it |
//! | servers and settings | one URL: [`LockManager::connect`] and its [table](LockManager::from_url); or a [`Builder`], with changing [`credentials`](Builder::credentials), and the [rights](Builder#rights-of-a-redis-user) that a Redis user needs |
//! | several servers | [`LockManager::sentinel`], [`LockManager::cluster`], [`Builder::replicas`]; [`LockManager::quorum`], and when it is worth it |
//! | the holder of a lock, and taking it away | [`LockManager::inspect`], [`list`](LockManager::list), [`request_release`](LockManager::request_release), [`force_release`](LockManager::force_release) |
//! | figures, events and the log | [`LockManager::stats`], [`Builder::listener`]; [what to watch](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#what-to-watch), and the [log target](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#the-log) `leasehold` |
//! | async programs, scripts, other libraries | [docs/async.md](https://docs.rs/crate/leasehold/latest/source/docs/async.md), [docs/cli.md](https://docs.rs/crate/leasehold/latest/source/docs/cli.md), [docs/moving.md](https://docs.rs/crate/leasehold/latest/source/docs/moving.md) |
//! | tests without a server | the package [`leasehold-testing`](https://docs.rs/leasehold-testing), a Redis in memory |
//!
//! # What it promises
//!
//! 1. **Exclusion.** At most one exclusive guard of a name reads [`Held`](LeaseState::Held), if the rates of the machines'
//!    clocks differ by less than 1 %, no server's clock jumps, and the server keeps its data. The guard ends before the key does,
//!    because a lease counts from before its request was sent, less 1 % and 2 ms, on a clock that runs through suspend.
//! 2. **Fencing.** Each exclusive guard of a name has a larger [`fence`](Lease::fence) than every earlier one. Fences follow the
//!    server's clock, so they also rise after the server has lost its data, or was set back by less than
//!    [`fence_memory`](Builder::fence_memory). There are [four exceptions](Lease#when-a-fence-may-be-smaller), such as a server
//!    that loses its data *and* whose clock is set back.
//! 3. **No hidden loss.** A guard reads `Lost` at its deadline, and stays lost. [`on_lost`](Lease::on_lost) fires within 50 ms,
//!    from a thread that does no I/O.
//! 4. **Liveness.** A crash delays the others by at most the lease of a holder, or 250 ms if that lease is shorter; by one pickup
//!    window (2 s by default: see [`io_timeout`](Builder::io_timeout)) for up to 64 waiters that crash or hang together; and by one
//!    poll, 1 s, for a message that is lost. A waiter that only hung for a window keeps its place.
//! 5. **Nobody else's lock.** Every request about a held lock compares the owner, and never shortens a lease that is held. All but
//!    a [commit](LockGuard::commit) may be repeated without harm.
//!
//! # What it does not promise
//!
//! No lease in Redis, of any library, excludes a second holder if a failover, a restart or an eviction loses the key, if the
//! server's clock jumps, if a failover or the move of a slot gives a semaphore or a reader-writer lock to a server whose clock is
//! ahead, if a virtual machine is stopped with the process inside, or after [`force_release`](LockManager::force_release). For
//! these cases let the system that the lock protects reject a fence that is smaller than the largest it has seen. On a
//! [quorum](LockManager::quorum) a loss needs the restart of several nodes, one soon after another.
//!
//! There is no poisoning. A thread that locks a mutex that it already holds waits for itself. A client of another library polls
//! outside of the queue, and can starve: see [`Builder::poller_gap`]. A process that exits or is killed releases nothing, so its
//! locks come free when their leases end; call [`LockManager::close`] first if releases are in the
//! [background](Builder::background_release). A guard that the program forgets is renewed until its `max_hold`.
//!
//! # On the wire
//!
//! A mutex is the plain string that `SET prefix+name owner NX PX lease` makes, released by compare and delete, so it excludes the
//! locks of other libraries on the same key. A waiter appends `!` to the owner, and a release within
//! [`min_hold`](Builder::min_hold) `!~`, but never to the value of another library. The other keys, such as `{key}:lh:fence`, end
//! by themselves: see [ARCHITECTURE.md](https://docs.rs/crate/leasehold/latest/source/ARCHITECTURE.md#in-redis).
//!
//! # Panics and forks
//!
//! A call panics if the operating system has no random numbers, and for no other reason. A panic in a closure under a lock releases
//! it and reaches the caller; one in a [`Listener`] or in the program's logger is caught. Dropping a guard never panics.
//! In a child of `fork(2)` every guard reads `Lost`, every call for a lock returns [`Forked`](Error::Forked), and a drop does
//! nothing. A child of `_Fork(3)`, or of a bare `clone(2)`, is not noticed, because the C library does not report it.
//!
//! # Features
//!
//! | feature, off by default | adds |
//! | --- | --- |
//! | `tls` | `rediss://` URLs by rustls, [`Builder::tls`], and [`Tls`](https://docs.rs/leasehold/latest/leasehold/struct.Tls.html). If the program has installed no provider of cryptography, building a manager installs ring's. |
//! | `metrics` | histograms, counters and gauges for the [`metrics`](https://docs.rs/metrics) facade: [docs/metrics.md](https://docs.rs/crate/leasehold/latest/source/docs/metrics.md), and `Builder::metric_names` |
//! | `tracing` | spans of waits and holds for the [`tracing`](https://docs.rs/tracing) facade |
//!
//! # Sources
//!
//! Leases: C. Gray, D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache consistency", 1989.
//! Fencing: M. Kleppmann, "How to do distributed locking", 2016. The mark on a contended lock: U. Drepper, "Futexes are tricky", 2004.

// The pages of docs.rs, where this is set, name the feature that an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

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
