//! The lease that a guard derefs to.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::engine::lease::guard_inner::GuardInner;
use crate::error::{Error, Lost, Result};
use crate::event::ReleaseRequest;
use crate::sys::Arc;

/// The state of a lease, as [`Lease::state`] returns it.
///
/// A guard that holds its lock excludes others as its kind promises:
///
/// | the guard | others that may hold the lock at the same time |
/// | --- | --- |
/// | [`LockGuard`](crate::LockGuard), [`WriteGuard`](crate::WriteGuard), [`ReentrantGuard`](crate::ReentrantGuard), [`MultiGuard`](crate::MultiGuard) | none |
/// | [`ReadGuard`](crate::ReadGuard) | readers |
/// | [`Permit`](crate::Permit) | permits, in all at most as many as the semaphore has |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// The guard holds its lock.
    Held,
    /// The guard still holds its lock, but Redis must confirm it: half of the lease has passed since Redis last did, or an
    /// answer came that nobody had asked for, so that an earlier answer may have been none.
    AtRisk,
    /// The guard has lost its lock, and others may hold it. This is final: no later reply of Redis revives the lease.
    Lost,
}

/// The lease of a lock, as one guard sees it. Every guard derefs to its lease, except [`MultiGuard`](crate::MultiGuard), which has one
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
    pub(super) guard_inner: GuardInner,
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
    /// | [`LockGuard`](crate::LockGuard), [`WriteGuard`](crate::WriteGuard), [`ReentrantGuard`](crate::ReentrantGuard), a lease of a [`MultiGuard`](crate::MultiGuard) | larger than the fence of every earlier exclusive guard of the name |
    /// | [`ReadGuard`](crate::ReadGuard) | the fence of the last writer, which all readers until the next writer share |
    /// | [`Permit`](crate::Permit) | different from the fence of every other permit. It orders nothing, because several permits are held at a time |
    /// | any, with [`fencing(false)`](crate::Builder::fencing) | 0 |
    ///
    /// Send the fence with each write to the resource that the lock protects. Let the resource reject a fence that is
    /// smaller than the largest it has seen. Then a holder that was paused past its lease does no harm (Martin
    /// Kleppmann, "How to do distributed locking", 2016).
    ///
    /// # When a fence may be smaller
    ///
    /// * The server loses its data *and* its clock is set back. A failover is the same case, if the replica missed the
    ///   last fence and its clock is behind.
    /// * Two masters exist at once, and their clocks differ.
    /// * The server lost its data a moment ago, and a process that hands the lock from thread to thread in memory does not
    ///   know that yet. The fences of these guards may be smaller than a fence that the server has granted since. That ends at
    ///   the latest with the [`quantum`](crate::Builder::quantum), because the next thread then asks the server, and within a
    ///   few milliseconds if the process listens for messages, because it then notices that its connections were closed.
    /// * A node of a [quorum](crate::LockManager::quorum) loses its data, *and* the clocks of the nodes differ.
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
        self.guard_inner.fence
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
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.guard_inner.tell_of_loss(&sender);
        receiver
    }

    /// Returns the addresses of the nodes of a [quorum](crate::LockManager::quorum) that do not vote for this lock now: they
    /// were down or late when it was granted, or have lost it since. If only a majority votes, the next node that fails may
    /// end the lease. The renewals ask these nodes again: see the table of [`quorum`](crate::LockManager::quorum). A node
    /// that hangs votes until the lease that it has confirmed last is over.
    ///
    /// All nodes if the lock is lost. None on any other topology. Does not block.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// if !guard.missing_nodes().is_empty() {
    ///     println!("{} is at risk if another node fails", guard.name());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn missing_nodes(&self) -> Vec<Arc<str>> {
        let inner = &self.guard_inner;
        inner.leases.client.missing_nodes(&inner.process_lease)
    }

    /// Returns a channel on which [`request_release`](crate::LockManager::request_release) is heard: somebody asks for the
    /// release of this lock. The program decides what to do. If the lock is shared by threads of this process, each of their
    /// guards hears it.
    ///
    /// Each call returns a new channel, so call it once for a guard. The channel has the last request at once, if one came
    /// before: also one that came while an earlier guard of this process had the lock. It is disconnected when the guard ends
    /// or is lost. It keeps at most 16 requests that were not received. On a quorum a request may rarely come twice.
    ///
    /// The first call has this process subscribe to requests, unless a thread of it has waited for a lock before. It does not
    /// block, so a request of the first moments may be missed.
    ///
    /// # Example
    ///
    /// A program that wants the same lock again and again keeps its guard, so that it sends no request between two jobs, and
    /// lets go when somebody else wants the lock. That process calls `request_release`, waits in
    /// [`try_lock_for`](crate::Mutex::try_lock_for), and repeats both until it has its guard.
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// # let jobs = ["orders", "refunds"];
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let mut guard = locks.lock("import")?;
    /// let mut requested = guard.on_requested();
    /// for job in jobs {
    ///     if let Ok(request) = requested.try_recv() {
    ///         println!("letting others go first before {job}: {}", request.why);
    ///         guard.release()?;
    ///         guard = locks.lock("import")?; // behind those that wait
    ///         requested = guard.on_requested();
    ///     }
    ///     // … the job …
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_requested(&self) -> Receiver<ReleaseRequest> {
        self.guard_inner.on_requested()
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
