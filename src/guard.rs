//! Guards, and the lease that a guard derefs to.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::claim::Claim;
use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Lost, Result};
use crate::sync::{Arc, MutexGuard};

pub use multi::MultiGuard;

mod multi;

/// The state of a lease, as [`Lease::state`] returns it.
///
/// A guard that holds its lock excludes others as its kind promises:
///
/// | the guard | others that may hold the lock at the same time |
/// | --- | --- |
/// | [`LockGuard`], [`WriteGuard`], [`ReentrantGuard`], [`MultiGuard`] | none |
/// | [`ReadGuard`] | readers |
/// | [`Permit`] | permits, in all at most as many as the semaphore has |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// The guard holds its lock.
    Held,
    /// The guard still holds its lock, but a renewal is overdue: half of the lease has passed since Redis last
    /// confirmed it.
    AtRisk,
    /// The guard has lost its lock, and others may hold it. This is final: no later reply of Redis revives the lease.
    Lost,
}

/// The lease of a lock, as one guard sees it. Every guard derefs to its lease, except [`MultiGuard`], which has one
/// for each name.
///
/// # Guarantees
///
/// A lease ends in this process before it ends in Redis. This process counts it from before the request was sent, on a
/// clock that runs through suspend. It takes off 1 % and 2 ms, because two clocks may differ by that. After that
/// moment [`state`](Lease::state) never returns `Held`, even if the server and all threads of this crate hang.
///
/// In a forked child of the process that acquired the lock, the state of every lease is `Lost`.
pub struct Lease {
    guard_inner: GuardInner,
}

impl Lease {
    pub(crate) fn new(guard_inner: GuardInner) -> Self {
        Self { guard_inner }
    }

    /// Returns the name of the lock.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// println!("{} is held", guard.name());
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.guard_inner.name()
    }

    /// Returns the owner: the unique string under which Redis knows this process as a holder of the lock.
    ///
    /// Several guards of a process may have the same owner: guards that had the lock after each other in memory, and
    /// readers.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// println!("{} is held by {}", guard.name(), guard.owner());
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> &str {
        self.guard_inner.owner()
    }

    /// Returns the fencing token of this guard.
    ///
    /// | the guard | its fence |
    /// | --- | --- |
    /// | [`LockGuard`], [`WriteGuard`], [`ReentrantGuard`], a lease of a [`MultiGuard`] | larger than the fence of every earlier exclusive guard of the name |
    /// | [`ReadGuard`] | the fence of the last writer, which all readers until the next writer share |
    /// | [`Permit`] | different from the fence of every other permit. It orders nothing, because several permits are held at a time |
    /// | any, with [`fencing(false)`](crate::Builder::fencing) | 0 |
    ///
    /// Send the fence with each write to the resource that the lock protects. Let the resource reject a fence that is
    /// smaller than the largest it has seen. Then a holder that was paused past its lease does no harm (Martin
    /// Kleppmann, "How to do distributed locking", 2016).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn write(_: &str, _fence: u64) {}
    /// # fn example(guard: &leasehold::LockGuard) {
    /// write("paid", guard.fence()); // the database rejects an older fence
    /// # }
    /// ```
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.guard_inner.fence()
    }

    /// Returns how long the guard may rely on the lock without another renewal: zero if the lock is lost.
    ///
    /// If another process handed a mutex over to this guard, that may be less than half of the
    /// [`lease`](crate::Mutex::lease) in the first milliseconds. Redis first keeps the lock for twice the
    /// [`io_timeout`](crate::Builder::io_timeout), and at least for a second. The renewal thread then raises that to the
    /// whole lease.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// if guard.remaining() > std::time::Duration::from_secs(5) {
    ///     // … a step that takes less than 5 s …
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard_inner
            .status()
            .map_or(Duration::ZERO, |(left, _)| left)
    }

    /// Returns the state of the lease, by this machine's clock. Sends no request.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// if guard.state() == leasehold::LeaseState::AtRisk {
    ///     eprintln!("{} is not renewed", guard.name());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn state(&self) -> LeaseState {
        match self.guard_inner.status() {
            Ok((_, false)) => LeaseState::Held,
            Ok((_, true)) => LeaseState::AtRisk,
            Err(_) => LeaseState::Lost,
        }
    }

    /// Returns an error if the lock is lost. It is [`state`](Lease::state) for use with `?`.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lock is lost.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) -> leasehold::Result<()> {
    /// guard.check()?; // before a step that needs the lock
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<()> {
        self.guard_inner.held().map(drop).map_err(Error::Lost)
    }

    /// Returns a channel that receives one [`Lost`] within 50 ms of the loss of the lock.
    ///
    /// If the lock is lost already, the message is in the channel. If the guard ends before a loss is found, the
    /// channel is disconnected. Each call makes a new channel, which lives until the guard ends. So call it once, and
    /// keep the channel.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = locks.lock("nightly")?;
    /// let lost = guard.on_lost();
    /// for step in 0..100 {
    ///     if lost.try_recv().is_ok() {
    ///         break; // another process may have started the job
    ///     }
    ///     // … one step of the work …
    ///     # let _ = step;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_lost(&self) -> Receiver<Lost> {
        self.guard_inner.on_lost()
    }

    /// Extends the lease so that it lasts for at least `at_least` from now. Never shortens it.
    ///
    /// Blocks for at most one request: none is sent if the lease lasts that long already. The next guard of the lock
    /// starts with the handle's own lease again. Readers of one process share a lease, so the extension holds for all
    /// of them.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock was lost before, or Redis replied that it is lost.
    /// * [`Error::Config`]: `at_least` is longer than 24 h.
    /// * [`Error::NotReplicated`]: too few [`replicas`](crate::Builder::replicas) confirmed the extension. The lease
    ///   ends when it would have ended.
    /// * [`Error::NoQuorum`]: too few nodes of a quorum confirmed the extension. The lease ends when it would have ended,
    ///   but a node may keep the key for longer.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::Unsupported`], [`Error::Protocol`]: the request failed.
    ///   The lease ends when it would have ended.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) -> leasehold::Result<()> {
    /// guard.extend(std::time::Duration::from_secs(300))?; // before five minutes without a network
    /// # Ok(()) }
    /// ```
    pub fn extend(&self, at_least: Duration) -> Result<()> {
        self.guard_inner.extend(at_least)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Defines a guard with one lease.
macro_rules! guard {
    ($(#[$doc:meta])* $guard:ident) => {
        $(#[$doc])*
        #[must_use = "if unused the lock is released at once"]
        #[derive(Debug)]
        pub struct $guard {
            lease: Lease,
        }

        impl $guard {
            pub(crate) fn new(guard_inner: GuardInner) -> Self {
                Self {
                    lease: Lease::new(guard_inner),
                }
            }

            /// Releases the lock. Returns an error if the lock was lost before.
            ///
            /// Sends nothing if another thread of this process gets the lock, or takes it over by its own request.
            /// Otherwise blocks until Redis has replied to a request, or to two if other processes wait. With
            /// [`background_release`](crate::Builder::background_release) the renewal thread sends the request, and
            /// this call does not block.
            ///
            /// # Errors
            ///
            /// * [`Error::Lost`]: the lease had ended before, or Redis replied that this process does not hold the
            ///   lock.
            /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::WrongType`], [`Error::Unsupported`] or
            ///   [`Error::Protocol`]: the request failed. The renewal thread repeats it until Redis has replied, or
            ///   must have dropped the key.
            /// * [`Error::Closed`]: this process is a forked child. Nothing is released.
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn example(guard: leasehold::", stringify!($guard), ") -> leasehold::Result<()> {")]
            /// match guard.release() {
            ///     Err(leasehold::Error::Lost(lost)) => eprintln!("check the result: {lost}"),
            ///     released => released?,
            /// }
            /// # Ok(()) }
            /// ```
            pub fn release(self) -> Result<()> {
                self.lease.guard_inner.release()
            }
        }

        impl Deref for $guard {
            type Target = Lease;

            fn deref(&self) -> &Lease {
                &self.lease
            }
        }
    };
}

guard! {
    /// A guard of a [`Mutex`](crate::Mutex). Dropping it releases the lock.
    ///
    /// A drop never panics. It blocks for one request, or for two if other processes wait. Each is limited by
    /// [`connect_timeout`](crate::Builder::connect_timeout) and [`io_timeout`](crate::Builder::io_timeout). If a request
    /// fails, the renewal thread repeats it until Redis has replied, or must have dropped the key. Nothing is sent if
    /// another thread of this process gets the lock, or takes it over.
    LockGuard
}

guard! {
    /// A reader's guard of a [`RwLock`](crate::RwLock). Dropping it does what dropping a [`LockGuard`] does.
    ///
    /// Its [`fence`](Lease::fence) is at least that of every earlier writer, and smaller than that of every later
    /// writer. Readers share it.
    ReadGuard
}

guard! {
    /// A writer's guard of a [`RwLock`](crate::RwLock). Dropping it does what dropping a [`LockGuard`] does.
    WriteGuard
}

guard! {
    /// A guard of one or more permits of a [`Semaphore`](crate::Semaphore). Dropping it does what dropping a
    /// [`LockGuard`] does.
    ///
    /// Its [`fence`](Lease::fence) differs from that of every other permit. It orders nothing, because several permits
    /// are held at a time.
    Permit
}

impl LockGuard {
    /// Ends the guard, leaves the lock held in Redis, and returns a claim to the lock.
    /// [`LockManager::adopt`](crate::LockManager::adopt) makes a guard of the claim: on another thread, or in another
    /// process that receives the claim as text.
    ///
    /// Blocks for one request, which renews the lease once more. If that fails, the claim is valid for as long as
    /// Redis keeps the lock. No request is sent without [`renew`](crate::Builder::renew), and then the lease keeps its
    /// end.
    ///
    /// No thread renews a detached lock. Unless it is adopted, it ends with its lease, like the lock of a crashed
    /// holder. [`extend`](Lease::extend) the lease before if the claim needs more time on its way. Threads and
    /// processes that wait for the lock keep their places in the queue.
    ///
    /// If the lock was lost before, adopting the claim returns [`Error::Lost`]. The same holds for a claim that is
    /// made in a forked child. Call [`check`](Lease::check) before if the difference matters.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Claim, LockManager};
    /// use std::process::Command;
    ///
    /// let locks = LockManager::connect("redis://127.0.0.1/")?;
    /// let claim = locks.lock("nightly")?.detach();
    /// Command::new("worker").env("CLAIM", claim.to_string()).spawn()?;
    ///
    /// // … and in the worker:
    /// let claim: Claim = std::env::var("CLAIM")?.parse()?;
    /// let guard = locks.adopt(&claim)?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use = "without its claim the lock stays held until its lease ends"]
    pub fn detach(self) -> Claim {
        self.lease.guard_inner.detach()
    }
}

impl WriteGuard {
    /// Makes the writer a reader, so that no other writer gets the lock in between. The readers that wait for the lock
    /// get it at the same time. Blocks for one request.
    ///
    /// # Errors
    ///
    /// After each error the guard has ended, and the lock is released: at once, even if the guard has a
    /// [`min_hold`](crate::Builder::min_hold).
    ///
    /// * [`Error::Lost`]: the lock was lost before.
    /// * [`Error::Unavailable`], [`Error::NotReplicated`], [`Error::Denied`], [`Error::WrongType`],
    ///   [`Error::Unsupported`], [`Error::Protocol`]: the request failed. The renewal thread releases the reader and
    ///   the writer.
    /// * [`Error::Closed`]: this process is a forked child. Nothing is released.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(writer: leasehold::WriteGuard) -> leasehold::Result<()> {
    /// // … write …
    /// let reader = writer.downgrade()?;
    /// // … read what was written …
    /// # drop(reader);
    /// # Ok(()) }
    /// ```
    pub fn downgrade(self) -> Result<ReadGuard> {
        self.lease.guard_inner.downgrade().map(ReadGuard::new)
    }
}

impl Permit {
    /// Returns the number of permits that the guard holds.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(semaphore: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// assert_eq!(semaphore.acquire_many(3)?.count(), 3);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn count(&self) -> u32 {
        self.lease.guard_inner.units()
    }
}

/// A guard of a [`ReentrantMutex`](crate::ReentrantMutex). The guards of one thread share one hold on the lock.
/// Dropping the last of them releases the lock, as dropping a [`LockGuard`] does.
///
/// A guard stays on its thread.
///
/// ```compile_fail
/// fn is_send<T: Send>() {}
/// is_send::<leasehold::ReentrantGuard>();
/// ```
#[must_use = "if unused the lock is released at once"]
#[derive(Debug)]
pub struct ReentrantGuard {
    hold: Arc<Lease>,
    /// The standard library's guard is not `Send`, so this one is not either.
    on_its_thread: PhantomData<MutexGuard<'static, ()>>,
}

impl ReentrantGuard {
    pub(crate) fn new(hold: Arc<Lease>) -> Self {
        Self {
            hold,
            on_its_thread: PhantomData,
        }
    }

    /// Ends this guard. If it is the thread's last guard of the lock, releases the lock as [`LockGuard::release`]
    /// does.
    ///
    /// Only the release of the last guard blocks.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock was lost before.
    /// * The other errors of [`LockGuard::release`], if this is the last guard.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(account: &leasehold::ReentrantMutex) -> leasehold::Result<()> {
    /// let (outer, inner) = (account.lock()?, account.lock()?);
    /// outer.release()?; // sends nothing
    /// inner.release()?; // releases the lock
    /// # Ok(()) }
    /// ```
    pub fn release(self) -> Result<()> {
        // All guards of the lock are of this thread, so their count does not change meanwhile.
        if Arc::strong_count(&self.hold) > 1 {
            return self.hold.check();
        }
        match Arc::try_unwrap(self.hold) {
            Ok(last) => last.guard_inner.release(),
            Err(hold) => hold.check(),
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.hold
    }
}
