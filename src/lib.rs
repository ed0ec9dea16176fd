//! Distributed locks on Redis for programs with threads and no async runtime.
//!
//! A lock is a *lease* in Redis: a key that expires unless it is renewed. This process holds it through a
//! *guard*, which releases it when dropped. One thread renews every lease, another watches every deadline, and
//! a guard never claims a lock that it may have lost.
//!
//! ```no_run
//! # struct Db;
//! # impl Db { fn write(&self, _: &str, _fence: u64) {} }
//! # fn main() -> leasehold::Result<()> {
//! # let db = Db;
//! use leasehold::LockManager;
//!
//! let locks = LockManager::connect("redis://127.0.0.1/")?;
//! let guard = locks.lock("orders:42")?; // blocks; released when dropped
//! db.write("paid", guard.fence());      // the database refuses an older fence
//! guard.release()?;                     // or just drop(guard); Err(Lost) if it ended early
//! # Ok(()) }
//! ```
//!
//! # The tour
//!
//! * [`LockManager`] is made once and cloned freely. [`LockManager::lock`] waits, [`try_lock`] does not,
//!   [`try_lock_for`] waits for a while, [`with_lock`] runs a closure under the lock.
//! * [`LockManager::mutex`] gives a [`Mutex`] handle, with a lease, a `max_hold` or an expiry of its own.
//! * The other kinds: [`ReentrantMutex`], which a thread may lock again; [`RwLock`]; [`Semaphore`]; [`MultiLock`],
//!   several names at once; and [`RateLimiter`], which is no lock but waits in turn like one.
//! * A [`LockGuard`] derefs to its [`Lease`]: [`fence`], [`remaining`], [`state`], [`check`], [`on_lost`],
//!   [`extend`].
//! * [`LockGuard::detach`] makes of a guard a [`Claim`], which is text where it has to be, and [`LockManager::adopt`] makes
//!   of that a guard again: on another thread, in another process.
//! * For operators: [`LockManager::inspect`] and [`LockManager::list`] show who holds which lock and how many wait, and
//!   [`LockManager::force_release`] takes one from a holder that hangs.
//! * [`Builder`] has the settings: the pool, time limits, prefix, and how long a process may keep a lock to its
//!   own threads while others wait.
//! * For those who run it: [`LockManager::stats`] counts and measures, [`Builder::listener`] tells of each
//!   [`Event`], [`Builder::warn_after`] warns of guards that are held for long.
//! * Every fault is an [`Error`] of its own kind; "could not ask" is never mistaken for "is held".
//!
//! Thousands of threads may want one name: within a process the lock passes from thread to thread in memory,
//! without a request; between processes it is handed to the one that has waited longest, which is woken by a
//! message. Nobody polls in a herd.
//!
//! # Where to find it
//!
//! | question | answer |
//! | --- | --- |
//! | What can be retried? | [`Error::is_retryable`], and the [table of errors](Error#what-is-retryable) |
//! | How does the program log in? | [`Builder::username`] and [`Builder::password`], or the [URL](LockManager::single) |
//! | Which rights does its Redis user need? | [lines to paste](crate#rights-of-a-redis-user) |
//! | How is one wait cancelled? | by a [`Cancel`], given to a handle with [`cancel_with`](Mutex::cancel_with); [`LockManager::close`] ends all waits |
//! | How does a job run on one host only? | under [`LockManager::try_lock`], with [`Builder::min_hold`] so that a short job does not run twice |
//! | How is it logged? | the log target `leasehold`: see [Logging](crate#logging) |
//! | What is left of a closure's work after a loss? | [`Mutex::run`] returns its result beside the loss; [`Mutex::with`] returns the loss alone |
//! | How is it measured? | [`LockManager::stats`], [`Distribution`] for histograms, [`Event::kind`] and [`Error::kind`] as labels |
//! | Can code be generic over the kind of lock? | with the trait [`Lock`] |
//!
//! # What it promises
//!
//! 1. **Exclusion.** While the rates of the machines' clocks differ by less than 1 %, no clock of a server
//!    jumps, and the server keeps its data, at most one exclusive guard of a name reads [`Held`](LeaseState::Held). The
//!    lease is counted from before the request was sent, less the drift, on a clock that runs through suspend:
//!    the guard ends before the key does.
//! 2. **Fencing.** Each exclusive guard of a name has a larger [`fence`] than every earlier one; read guards carry
//!    the last write's, and permits, of which several are held at a time, each one of its own. Fences follow the
//!    server's clock in microseconds, so they go on rising after the loss of all data, and after the clock was
//!    set back by less than [`fence_memory`](Builder::fence_memory). The exceptions: the loss of data *and* a
//!    clock set back, both at once (a failover to a replica that has missed the record, and whose clock is behind, is
//!    that too); and two masters at once with different clocks. After a server lost its data there is a third, for a
//!    moment: a process passes the lock among its own threads until it sees that its connections are closed. That takes a
//!    few milliseconds, or at most one [`quantum`](Builder::quantum) in a process that has never waited for another. The
//!    fences of these guards may be smaller than one that the server has granted since.
//! 3. **No hidden loss.** A holder learns of the loss by its own clock, at the deadline, even if the network is
//!    dead and the renewal is stuck. `Lost` is final: no late answer revives a lease. [`on_lost`] fires within
//!    50 ms, from a thread that does no input or output.
//! 4. **Liveness.** A crashed holder delays the others by its lease at the most (or 250 ms, where the lease is
//!    shorter), any number of crashed waiters by one pickup window together (twice the `io_timeout`, a second at the
//!    least; where that is less than 1.5 s and they hang instead of ending, by 1.5 s more). A lost message costs at
//!    most one poll, a second.
//! 5. **Nobody else's lock.** Every request compares the owner, may be repeated without harm, and never shortens
//!    a lease that is held.
//!
//! # What it does not promise
//!
//! Exclusion where the server forgets or misjudges time: past a failover or restart that lost the key, the
//! eviction of keys (any `maxmemory-policy` but `noeviction`, of which [`Builder::build`] warns in the log), a jump of
//! the server's clock, a virtual machine that was stopped with the process inside, an operator's
//! [`force_release`](LockManager::force_release). A lease cannot do that, whoever implements it. For those cases there
//! is the [`fence`]: have whatever the lock protects refuse a number smaller than the largest it has seen.
//!
//! A server's clock that is set forward ends leases early; their holders learn it by their next renewal. One that is set
//! back keeps what a crashed process held for as much longer; a holder that lives renews, releases and learns of its
//! deadline as ever.
//!
//! Also: there is no poisoning; a thread that locks a mutex it holds waits for itself; a foreign client that
//! takes the same key by polling is outside of the queue and can starve, unless [`Builder::poller_gap`] leaves it a gap.
//!
//! # On the wire
//!
//! A lock is the plain string key that `SET prefix+name owner NX PX lease` makes, released by compare and
//! delete. So it excludes redis-py's `Lock`, redsync, bsm/redislock, node-redlock, rslock and their kin: the
//! [`prefix`](Builder::prefix) reaches theirs. Their release sends no message, so a wait for it ends with the
//! next poll. A waiter of this crate appends `!` to the value, never to a foreign one.
//! A release within [`min_hold`](Builder::min_hold) appends `!~` to the owner, and a waiter then another `!`. Beside the key stand
//! `{key}:lh:fence`, `{key}:lh:queue` and `{key}:lh:waiters` (`key:lht:…` where the key has a hash tag of its
//! own), each with a time to live. A multi-lock is these same keys.
//!
//! Reader-writer locks and semaphores are sorted sets at `prefix+name`: a member `units owner` for each lease, by the
//! millisecond at which it ends, and two that count. A rate limiter is a list of microseconds.
//!
//! # Rights of a Redis user
//!
//! With an access control list, these lines make a user that can use every kind of lock. Leave out the lines of what the
//! program does not use.
//!
//! ```text
//! ACL SETUSER app on >PASSWORD resetkeys ~* resetchannels &leasehold:*
//! ACL SETUSER app +ping +info +select +subscribe +eval +evalsha +get +getrange +exists +set +del +append +pttl +pexpire +time +hset +hget +hdel +zadd +zrem +zcard +zscore +zrange +publish
//! ACL SETUSER app +hlen +zrangebyscore +pexpireat +pubsub|numsub
//! ACL SETUSER app +lindex +llen +lrange +lpop +lset +ltrim +rpush +pexpire
//! ACL SETUSER app +wait
//! ACL SETUSER app +scan +type +strlen +zrangebyscore
//! ```
//!
//! | line | for |
//! | --- | --- |
//! | 1 | the keys: `~prefix*` for a [`prefix`](Builder::prefix), with `~{prefix*` for the keys beside a lock; the channels |
//! | 2 | every program: mutexes, reentrant mutexes, multi-locks, claims |
//! | 3 | reader-writer locks, semaphores |
//! | 4 | rate limiters |
//! | 5 | [`replicas`](Builder::replicas) |
//! | 6 | operators: [`inspect`](LockManager::inspect), [`list`](LockManager::list), [`force_release`](LockManager::force_release) |
//!
//! Every user may log in. `SELECT` is for a database other than 0, `INFO` for what [`Builder::build`] asks the server; a
//! connection works without either. Without the channels, `PUBLISH` or `SUBSCRIBE`, waits poll, and the log says so once.
//! A call without a right that it needs is [`Error::Denied`].
//!
//! # Logging
//!
//! Every record has the log target `leasehold`, and goes to whatever logger the program has installed for the
//! [`log`](https://docs.rs/log) crate: with `env_logger`, `RUST_LOG=leasehold=debug` shows all of them. No record holds a
//! password.
//!
//! | level | records |
//! | --- | --- |
//! | error | a panic that this crate survived; a release that must wait for its lease to end because no thread could be started |
//! | warn | each loss, at the moment it is found, with fence and owner; a guard held for longer than [`warn_after`](Builder::warn_after); leases that cannot be renewed; a release that failed and is repeated; a server that may evict locks; rights that are missing to publish or subscribe |
//! | info | leases are renewed again |
//! | debug | a lock granted, waited for, passed on to a thread of this process, handed over to another process, released; the listener's connection starts again |
//!
//! A loss is logged by the thread `leasehold-events`, which also calls the [`Listener`]: a logger or listener that blocks
//! delays no lock, but it delays later records of losses. If more than 4,096 of them wait, further ones are dropped and
//! counted in [`Stats::events_dropped`].
//!
//! # Ending without a drop
//!
//! A guard that is forgotten ([`std::mem::forget`]) is renewed for as long as its process lives, whatever becomes of its
//! manager; with a `max_hold` it is released then. A process that exits or is killed releases nothing: what it holds
//! comes free with its lease, what it has left to the background and not [closed](LockManager::close) too, and its
//! places in queues are passed over.
//!
//! # Forking
//!
//! In a forked child every guard reads lost, every call is [`Closed`](Error::Closed), and a drop touches nothing. A
//! child is one of `fork(2)`, whoever calls it; a child of `_Fork(3)`, or of a bare `clone(2)` system call past the C
//! library, is not noticed.
//!
//! # Features
//!
//! * `tls`: `rediss://` by rustls, versions 1.2 and 1.3, with the certificates that the system has at the first
//!   connection. Where the program has not installed a provider of cryptography, building a manager installs ring's.
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
mod clock;
mod config;
mod core;
mod engine;
mod error;
mod event;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod lock;
mod logging;
mod manager;
mod message;
mod name;
mod owner;
mod panics;
mod process;
mod random;
mod script;
mod stats;
mod store;
mod sync;

pub use admin::{Holder, Kind, LockInfo, Mode};
pub use builder::Builder;
pub use cancel::Cancel;
pub use claim::Claim;
pub use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, TryRecvError};
pub use error::{Error, ErrorKind, Lost, LostCause, Result};
pub use event::{Connection, Event, Listener};
pub use guard::{
    Lease, LeaseState, LockGuard, MultiGuard, Permit, ReadGuard, ReentrantGuard, WriteGuard,
};
pub use lock::Ran;
pub use lock::generic::{Guard, Lock, Permits, Reader, Writer};
pub use lock::multi::MultiLock;
pub use lock::mutex::Mutex;
pub use lock::rate_limiter::{Admission, RateLimiter};
pub use lock::reentrant::ReentrantMutex;
pub use lock::rwlock::RwLock;
pub use lock::semaphore::Semaphore;
pub use manager::LockManager;
pub use stats::{Bucket, Distribution, Stats};
