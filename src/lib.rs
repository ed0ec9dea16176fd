//! Distributed locks on Redis for programs with threads and no async runtime.
//!
//! A process holds a lock by a *lease*: the lock's key in Redis expires unless the process renews it. A *guard* holds
//! the lock for one thread, and releases it when dropped. One thread renews all leases of the process, and another
//! watches their deadlines. A guard never claims a lock that the process may have lost.
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
//! * A program makes one [`LockManager`], and clones it freely. [`LockManager::lock`] waits, [`try_lock`] does not,
//!   [`try_lock_for`] waits for a limited time, and [`with_lock`] runs a closure under the lock.
//! * [`LockManager::mutex`] returns a [`Mutex`] handle, which can set its own lease and `max_hold`.
//! * The other kinds are [`ReentrantMutex`], which its thread can lock again; [`RwLock`]; [`Semaphore`]; and [`MultiLock`],
//!   which locks several names at once. A [`RateLimiter`] is not a lock, but its callers wait in order too.
//! * A [`LockGuard`] derefs to its [`Lease`]: [`fence`], [`remaining`], [`state`], [`check`], [`on_lost`],
//!   [`extend`].
//! * [`LockGuard::detach`] turns a guard into a [`Claim`], which can be written as text. [`LockManager::adopt`] turns a claim
//!   into a guard again, on another thread or in another process.
//! * Operators see the holders and the waiters by [`LockManager::inspect`] and [`LockManager::list`].
//!   [`LockManager::request_release`] asks a holder to release the lock. The holder hears that by [`Lease::on_requested`].
//!   [`LockManager::force_release`] takes a lock from a holder that hangs.
//! * [`Builder`] has the settings, such as the lease, the prefix of the names, the pool and the time limits.
//! * [`LockManager::stats`] counts and measures. A [`listener`](Builder::listener) receives each [`Event`].
//!   [`Builder::warn_after`] warns of a guard that is held for long, [`Builder::warn_wait_after`] of a long wait.
//! * [`LockManager::cluster`] makes a manager whose locks are spread over the masters of a Redis Cluster.
//! * [`LockManager::quorum`] makes a manager whose locks need a majority of several independent servers (Redlock).
//! * Each fault has its own variant of [`Error`]. A call never reports that a lock is held if its request failed.
//!
//! Thousands of threads may want one name. The threads of a process hand the lock to each other in memory, without a
//! request. Between processes, Redis hands it to the process that has waited longest, and notifies only that process. A lease
//! may also end without a release, because its process has died or has detached it. At that moment a process that did not
//! wait may get the lock first.
//!
//! # Where to find it
//!
//! | subject | place |
//! | --- | --- |
//! | errors that a program may retry | [`Error::is_retryable`], and the [table of errors](Error#what-is-retryable) |
//! | values, alarms and a runbook for the people who run it | [docs/operating.md](https://docs.rs/crate/leasehold/latest/source/docs/operating.md) |
//! | a move from another library | [docs/moving.md](https://docs.rs/crate/leasehold/latest/source/docs/moving.md) |
//! | an async program | [docs/async.md](https://docs.rs/crate/leasehold/latest/source/docs/async.md) |
//! | data that rejects an old fence | SQL and other ways in [docs/fencing.md](https://docs.rs/crate/leasehold/latest/source/docs/fencing.md) |
//! | one server, or a quorum of several | [when a quorum is worth it](LockManager::quorum), and [`Builder::replicas`] |
//! | user and password | [`Builder::username`] and [`Builder::password`], or the [URL](LockManager::from_url); if they change, [`Builder::credentials`] |
//! | rights of the Redis user | [lines to paste](crate#rights-of-a-redis-user) |
//! | cancelling one wait | a [`Cancel`] that a handle gets by [`cancel_with`](Mutex::cancel_with); [`LockManager::close`] ends all waits |
//! | a job that runs on one host only, or once a day | [`LockManager::try_lock`]; [`Builder::min_hold`] keeps a short job from running twice; the runbook in [docs/operating.md](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#runbook) has both |
//! | one URL for the servers and the settings | [`LockManager::connect`], and the [table of URLs](LockManager::from_url) |
//! | locks for scripts and cron jobs | the program `leasehold`: [docs/cli.md](https://docs.rs/crate/leasehold/latest/source/docs/cli.md) |
//! | TLS with a client certificate (mutual TLS) | [`Tls`](https://docs.rs/leasehold/latest/leasehold/struct.Tls.html), or `?cacert=…&cert=…&key=…` in the [URL](LockManager::from_url) |
//! | log records | the log target `leasehold`: see [Logging](crate#logging) |
//! | the result of a closure that lost its lock | [`Mutex::run`] returns the result and the loss; [`Mutex::with`] returns the loss alone |
//! | metrics | the features [`metrics` and `tracing`](crate#features); [`LockManager::stats`], [`Distribution`] for histograms, [`Event::kind`] and [`Error::kind`] as labels |
//! | code that is generic over the kind of lock | the trait [`Lock`] |
//! | panics | [Panics](crate#panics) |
//!
//! # What it promises
//!
//! 1. **Exclusion.** At most one exclusive guard of a name reads [`Held`](LeaseState::Held). This has three conditions: the
//!    rates of the machines' clocks differ by less than 1 %, no server's clock jumps, and the server keeps its data. A lease
//!    is counted from before its request was sent, less 1 % and 2 ms, on a clock that runs through suspend. So the guard
//!    ends before the key does.
//! 2. **Fencing.** Each exclusive guard of a name has a larger [`fence`] than every earlier one. A read guard has the fence of
//!    the last writer. Each permit of a semaphore has its own fence, but these are in no order, because several permits are
//!    held at once. Guards of [`fencing(false)`](Builder::fencing) have none. Fences follow the server's clock in microseconds. So they also rise after the server has lost all its
//!    data, and after its clock was set back by less than [`fence_memory`](Builder::fence_memory). There are four
//!    exceptions:
//!    * The server loses its data *and* its clock is set back. A failover is the same case, if the replica missed the
//!      last fence and its clock is behind.
//!    * Two masters exist at once, and their clocks differ.
//!    * The server lost its data a moment ago, and a process does not know that yet. While the process hands the lock from
//!      thread to thread in memory, the fences of these guards may be smaller than a fence that the server has granted
//!      since. That ends at the latest with the [`quantum`](Builder::quantum), because the next thread then asks the
//!      server, and within a few milliseconds if the process listens for messages, because it then notices that its
//!      connections were closed.
//!    * A node of a [quorum](LockManager::quorum) loses its data, *and* the clocks of the nodes differ.
//! 3. **No hidden loss.** A holder learns of a loss by its own clock, at the deadline, even if the network is dead and the
//!    renewal thread is stuck. `Lost` is final: no late reply revives a lease. [`on_lost`] fires within 50 ms, from a thread
//!    that does no I/O.
//! 4. **Liveness.** A crash delays the other processes for a limited time:
//!    * by at most the lease of a holder that crashes, or 250 ms if that lease is shorter;
//!    * by at most one pickup window for up to 64 waiters that crash or hang together. A *pickup window* is the time that a
//!      process has to pick up a lock that Redis handed over to it. By default, it is 2 s, and at most the waiter's lease.
//!      In general it is twice the [`io_timeout`](Builder::io_timeout), but at least 1 s. With a lease below 250 ms it is
//!      250 ms. A waiter that only hung for that time keeps its place. If more than 64 waiters hang, the lock goes to a
//!      process that asks, at most one poll later, until the waiters are dropped after 3 s;
//!    * by at most one poll, 1 s, for a message that is lost.
//! 5. **Nobody else's lock.** Every request compares the owner, may be repeated without harm, and never shortens a lease that
//!    is held.
//!
//! # What it does not promise
//!
//! No lease in Redis, in any implementation, excludes a second holder in these cases:
//!
//! * A failover or a restart of the server loses the key.
//! * The server evicts the key, because its memory is full and its `maxmemory-policy` is not `noeviction`. [`Builder::build`]
//!   logs a warning if that can happen.
//! * The server's clock jumps.
//! * A virtual machine is stopped with the process inside.
//! * An operator calls [`force_release`](LockManager::force_release).
//!
//! On a [quorum](LockManager::quorum) the first case needs the restart of several nodes, one soon after another: a node
//! that has restarted does not vote for the [`restart_delay`](Builder::restart_delay).
//!
//! The [`fence`] is for these cases: let the system that the lock protects reject a fence that is smaller than the
//! largest it has seen.
//!
//! If the server's clock is set forward, leases end early, and their holders learn of it at the next renewal. If the
//! clock is set back, Redis keeps the lock of a crashed process for that much longer. A live holder renews and releases
//! as before.
//!
//! There is no poisoning. A thread that locks a mutex that it already holds waits for itself. A client of another
//! library polls, outside of the queue, so it can starve: see [`Builder::poller_gap`].
//!
//! # On the wire
//!
//! A mutex is the plain string key that `SET prefix+name owner NX PX lease` makes. It is released by compare and
//! delete. So it excludes the locks of redis-py, redsync, bsm/redislock, node-redlock and rslock on the same key; the
//! [`prefix`](Builder::prefix) can match their names. A release by another library sends no message, so a waiter finds it at
//! its next poll.
//!
//! A waiter appends `!` to the owner, but never to the value of another library. A release within
//! [`min_hold`](Builder::min_hold) keeps the key, and appends `!~` to the owner; a waiter then appends another `!`. Beside the
//! key there are `{key}:lh:fence`, `{key}:lh:queue` and `{key}:lh:waiters`, or `key:lht:…` if the key has its own hash
//! tag. Each of these keys has a time to live. A multi-lock consists of the same keys for each of its names. Each node
//! of a quorum also has the key `leasehold:restart_delay` behind the prefix, so no lock can have that name.
//!
//! Reader-writer locks and semaphores are sorted sets at `prefix+name`. Each lease is a member `units owner`, and its
//! score is the millisecond at which it ends. Two further members count the units. A rate limiter is a list of times in
//! microseconds.
//!
//! # Rights of a Redis user
//!
//! These lines make a user of an access control list that can use every kind of lock. Leave out the lines that the
//! program does not need.
//!
//! ```text
//! ACL SETUSER app on >PASSWORD resetkeys ~* resetchannels &leasehold:*
//! ACL SETUSER app +ping +info +select +subscribe +eval +evalsha +get +getrange +exists +set +del +append +pttl +pexpire +time +hset +hget +hdel +zadd +zrem +zpopmin +zcard +zscore +zrange +publish +pubsub|numsub
//! ACL SETUSER app +hlen +zrangebyscore +pexpireat
//! ACL SETUSER app +lindex +llen +lpop +lset +rpush +pexpire
//! ACL SETUSER app +wait
//! ACL SETUSER app +scan +type +strlen +zrangebyscore +lindex +llen
//! ACL SETUSER app +script|load
//! ACL SETUSER app +role
//! ACL SETUSER app +cluster|slots +cluster|nodes +asking +role
//! ```
//!
//! | line | for |
//! | --- | --- |
//! | 1 | the keys and the channels. For a [`prefix`](Builder::prefix), write `~prefix*`, and `~{prefix*` for the keys beside a lock. |
//! | 2 | every program: mutexes, reentrant mutexes, multi-locks, claims |
//! | 3 | reader-writer locks, semaphores |
//! | 4 | rate limiters |
//! | 5 | [`replicas`](Builder::replicas) |
//! | 6 | operators: [`inspect`](LockManager::inspect), [`list`](LockManager::list), [`force_release`](LockManager::force_release), [`request_release`](LockManager::request_release) |
//! | 7 | each node of a [quorum](LockManager::quorum), which also needs `INFO` |
//! | 8 | each server behind [sentinels](LockManager::sentinel), replicas too |
//! | 9 | each node of a [cluster](LockManager::cluster); `ROLE` and `INFO` are for [`list`](LockManager::list) |
//!
//! A process that waits for a mutex believes a message that has its nonce: it then holds the mutex. Redis keeps the nonce
//! beside the lock, in the key that ends in `waiters`. So a user that may read that key (or `MONITOR`, `SLOWLOG` and the
//! files of the server) and publish on the channels can forge a grant. A user that may only subscribe and publish cannot.
//!
//! This line is for each sentinel:
//!
//! ```text
//! ACL SETUSER app on >PASSWORD resetchannels &+switch-master +subscribe +sentinel|get-master-addr-by-name +sentinel|master
//! ```
//!
//! `AUTH` needs no right. `SELECT` is for a database other than 0. `INFO` is for the question that [`Builder::build`]
//! asks the server. A connection to a single server works without either. Without the channels, `PUBLISH` or `SUBSCRIBE`, waits poll, and
//! one warning is logged. A call that lacks a right fails with [`Error::Denied`].
//!
//! # Logging
//!
//! Every record has the log target `leasehold`, and goes to the logger that the program has installed for the
//! [`log`](https://docs.rs/log) crate. With `env_logger`, `RUST_LOG=leasehold=debug` shows all records. No record contains a
//! password.
//!
//! | level | records |
//! | --- | --- |
//! | error | a panic that this crate survived; a lock that stays held until its lease ends, because no thread could be started to release it |
//! | warn | each loss, with fence and owner; a guard that is held for longer than [`warn_after`](Builder::warn_after), or a call that waits for longer than [`warn_wait_after`](Builder::warn_wait_after); leases that cannot be renewed; a drop whose release failed, and is repeated; a server that may evict locks; a missing right to publish or subscribe |
//! | info | the end of a time in which leases could not be renewed |
//! | debug | a lock that is granted, waited for, handed to the next thread in memory, handed over to another process, or released; a new start of the connection that receives messages |
//!
//! The thread `leasehold-events` logs losses, long holds and long waits, and calls the [`Listener`]. So a logger or listener that
//! blocks there delays only later events. If more than 4,096 events wait, further ones are dropped, and counted in
//! [`Stats::events_dropped`].
//!
//! Every other record is written by the thread that causes it, such as the calling thread or the renewal thread. A
//! logger that blocks delays this thread. The thread holds no mutex of this crate meanwhile.
//!
//! # Panics
//!
//! This holds for every function of the crate, so their own pages have no section on panics:
//!
//! * A call panics if the operating system cannot provide random numbers. There is no other panic that a program can cause
//!   by its arguments or by a fault of the server.
//! * A panic in a closure of [`with_lock`], or of another such method, releases the lock and reaches the caller.
//! * A panic in a [`Listener`] or in the program's logger is caught.
//! * Dropping a guard never panics.
//!
//! # Ending without a drop
//!
//! A guard that the program forgets ([`std::mem::forget`]) is renewed until the process ends, or until its `max_hold`.
//! This does not depend on the manager.
//!
//! A process that exits or is killed releases nothing. Its locks come free when their leases end. The same is true for
//! a release that [`background_release`](Builder::background_release) has not sent yet: call [`LockManager::close`] first.
//! Redis skips the places of the process in queues.
//!
//! # Forking
//!
//! In a forked child every guard reads `Lost`, every call for a lock returns [`Forked`](Error::Forked), and a drop does
//! nothing. This holds for a child of `fork(2)`, also if other code calls that. A child of `_Fork(3)`, or of a bare
//! `clone(2)` system call, is not noticed, because the C library does not report it.
//!
//! # Features
//!
//! * `metrics`: histograms, counters and gauges for the [`metrics`](https://docs.rs/metrics) facade. The table of their names,
//!   labels and units is in [docs/metrics.md](https://docs.rs/crate/leasehold/latest/source/docs/metrics.md). The program installs
//!   a recorder before it builds a manager.
//! * `tracing`: the spans `leasehold.wait` and `leasehold.hold` for the [`tracing`](https://docs.rs/tracing) facade. The same
//!   page has their fields.
//! * `tls`: `rediss://` URLs by rustls, with TLS 1.2 and 1.3. The trusted certificates are those that the system has at the
//!   first connection, or those of [`Builder::tls`], which also has the certificate of this process. If the program has not installed a provider of cryptography, building a manager installs ring's.
//!   If one side refuses the certificate of the other, the call returns [`Config`](Error::Config).
//!
//! The package [`leasehold-testing`](https://docs.rs/leasehold-testing) is a Redis in memory, so that the tests of a program need
//! no server.
//!
//! # Sources
//!
//! Leases: C. Gray, D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache
//! consistency", 1989. Fencing: M. Kleppmann, "How to do distributed locking", 2016. The lock in Redis: the
//! documentation of its [`SET`](https://redis.io/docs/latest/commands/set/) command. The mark on a contended
//! lock: U. Drepper, "Futexes are tricky", 2004.
//!
//! [`try_lock`]: LockManager::try_lock
//! [`try_lock_for`]: LockManager::try_lock_for
//! [`with_lock`]: LockManager::with_lock
//! [`fence`]: Lease::fence
//! [`remaining`]: Lease::remaining
//! [`state`]: Lease::state
//! [`check`]: Lease::check
//! [`on_lost`]: Lease::on_lost
//! [`extend`]: Lease::extend

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
pub use event::{Connection, Event, Listener, ReleaseRequest};
pub use guard::{
    Guard, Lease, LeaseState, LockGuard, MultiGuard, Permit, ReadGuard, ReentrantGuard, WriteGuard,
};
pub use lock::Ran;
pub use lock::generic::{Lock, Permits, Reader, Writer};
pub use lock::multi::MultiLock;
pub use lock::mutex::Mutex;
pub use lock::rate_limiter::{Admission, RateLimiter};
pub use lock::reentrant::ReentrantMutex;
pub use lock::rwlock::RwLock;
pub use lock::semaphore::Semaphore;
pub use manager::LockManager;
pub use stats::{Bucket, Distribution, Stats};
