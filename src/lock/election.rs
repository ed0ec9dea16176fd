//! Leaders: one process of many does a job for as long as it lives, and the others know which.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::engine::election::Term;
pub use crate::engine::election::rules::Leader;
use crate::engine::lease::guard::Lease;
use crate::error::{Error, Result};
use crate::lock::handle::{Handle, within_limit, without_limit};
use crate::lock::methods::{basics, setters};
use crate::net::deadline::Wait;
use crate::wire::LockKind;

/// The longest value of a leader, in bytes.
const LONGEST_VALUE: usize = 200;

/// Elects a leader among processes: one at a time, which publishes a text, such as its address, and all others see who leads.
///
/// A leader holds the [mutex](crate::LockManager::mutex) of the name, so there is at most one, as
/// [the crate promises](crate#what-it-promises), and candidates come to lead in the order in which they asked. (On a quorum, that
/// is the order of each node.) A leader that resigns is followed at once. If it dies or loses its network, the next one follows at
/// the end of its [`lease`](Election::lease), by default 30 s. A program that ends by a signal resigns only if it drops its guard.
/// [docs/operating.md](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#runbook) says which call gives what.
///
/// The value stands beside the lock in Redis: `owner`, `fence`, `number` and `value` of `{scheduler}:lh:leader` (or
/// `key:lht:leader` for a name with a hash tag of its own). It counts only while that owner holds the lock. The leader writes it
/// again every ten seconds, so it comes back after a failover that has lost it.
///
/// A leadership that an observer sees may be over when the observer acts on it, as with every distributed lock. So systems that take
/// orders from a leader compare its [fence](Lease::fence), and a leader looks at its own guard and not at an observer.
///
/// The lease is always renewed, and has a fence, whatever the manager's defaults are.
///
/// # Sources
///
/// The calls are those of etcd's [`Election`](https://pkg.go.dev/go.etcd.io/etcd/client/v3/concurrency#Election), and Curator's
/// `LeaderLatch` has the same purpose. That a leader writes its address where its lock is: M. Burrows, "The Chubby lock service
/// for loosely-coupled distributed systems", OSDI 2006.
///
/// # Example
///
/// ```no_run
/// # fn schedule(_fence: u64) {}
/// # fn main() -> leasehold::Result<()> {
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let scheduler = locks.election("scheduler");
/// let observed = scheduler.observe()?;
/// std::thread::spawn(move || {
///     for leader in observed {
///         // Each change, and the same state again every 30 s.
///         println!("ask {}", leader.map_or("nobody".to_owned(), |leader| leader.value));
///     }
/// });
/// loop {
///     // Blocks until this process leads. An error ends this program, so that its supervisor starts it again.
///     let leadership = scheduler.campaign("10.0.0.7:8080")?;
///     while leadership.check().is_ok() {
///         schedule(leadership.fence()); // a step that takes less than a lease
///     }
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Election {
    handle: Handle,
}

/// The guard of a leader, which derefs to its [`Lease`]. Dropping it resigns, and blocks for two requests, as
/// [`resign`](Leadership::resign) does. With [`background_release`](crate::Builder::background_release) it blocks for none, and
/// observers learn of the end within a second.
#[must_use = "if unused the leader resigns at once"]
pub struct Leadership {
    /// Dropped before the lease: the value is taken back while the lock is held.
    term: Term,
    lease: Lease,
}

impl Election {
    pub(crate) fn new(mut handle: Handle) -> Self {
        (handle.options.renew, handle.options.fencing) = (true, true);
        Self { handle }
    }

    /// Blocks until this process leads, and publishes `value`: at most 200 bytes.
    ///
    /// Waits as [`Mutex::lock`](crate::Mutex::lock) does, and then for one request that writes the value. Between the two the
    /// lock is held, and observers are shown nobody.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: the value is longer than 200 bytes, or a setting cannot be used. Nothing was sent.
    /// * [`Error::Lost`]: the lock was lost before the value was written.
    /// * Otherwise as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// After an error this process does not lead: if the value could not be written, the lock is released. If nobody knows
    /// whether it was written, observers may be shown it until the release has succeeded.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(scheduler: &leasehold::Election) -> leasehold::Result<()> {
    /// let leadership = scheduler.campaign("10.0.0.7:8080")?;
    /// // … the work of the leader …
    /// leadership.resign()?;
    /// # Ok(()) }
    /// ```
    pub fn campaign(&self, value: &str) -> Result<Leadership> {
        check(value)?;
        let granted = without_limit(self.handle.acquire(LockKind::Mutex, 1, Wait::Forever));
        self.lead(granted?, value)
    }

    /// Leads if nobody else does. Returns `None` if somebody else has the lock. Blocks as
    /// [`Mutex::try_lock`](crate::Mutex::try_lock) does, and then for one request.
    ///
    /// # Errors
    ///
    /// As [`campaign`](Election::campaign). No error is retried.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(scheduler: &leasehold::Election) -> leasehold::Result<()> {
    /// match scheduler.try_campaign("10.0.0.7:8080")? {
    ///     Some(leadership) => leadership.resign()?, // after the work
    ///     None => println!("led by {:?}", scheduler.leader()?),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_campaign(&self, value: &str) -> Result<Option<Leadership>> {
        self.campaign_for(value, Duration::ZERO)
    }

    /// Waits for at most `wait` until this process leads. Returns `None` if somebody else has the lock until then. Blocks as
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does, and then for one request.
    ///
    /// # Errors
    ///
    /// As [`campaign`](Election::campaign), but transient errors of the wait are retried until its end.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(scheduler: &leasehold::Election) -> leasehold::Result<()> {
    /// if let Some(leadership) = scheduler.campaign_for("10.0.0.7:8080", Duration::from_secs(5))? {
    ///     leadership.resign()?; // after the work
    /// }
    /// # Ok(()) }
    /// ```
    pub fn campaign_for(&self, value: &str, wait: Duration) -> Result<Option<Leadership>> {
        check(value)?;
        let wait = self.handle.wait_of(wait);
        let granted = within_limit(self.handle.acquire(LockKind::Mutex, 1, wait))?;
        granted.map(|lease| self.lead(lease, value)).transpose()
    }

    /// Returns who leads now, or `None` if nobody does: the lock is free, or its holder has written no value yet, or the lease
    /// may be over by this process's clock. Blocks for one request.
    ///
    /// On a [quorum](crate::LockManager::quorum), the leader is the holder that a majority of the nodes names, with the last value that
    /// it has written to any of those. It is [`Error::NoQuorum`] if the nodes that did not answer
    /// could decide.
    ///
    /// # Errors
    ///
    /// As [`LockManager::inspect`](crate::LockManager::inspect), and [`Error::WrongType`] if the name is that of another kind of
    /// lock.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(scheduler: &leasehold::Election) -> leasehold::Result<()> {
    /// match scheduler.leader()? {
    ///     Some(leader) => println!("ask {}, the leader since {:?}", leader.value, leader.since),
    ///     None => println!("nobody leads"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.handle.engine.leader(self.handle.target()?.first())
    }

    /// Returns a channel that receives who leads now, and then each change, until the manager is closed or its last handle and
    /// guard are dropped. Blocks for one request.
    ///
    /// | a change | is received |
    /// | --- | --- |
    /// | a leader resigns, begins or proclaims another value | within 100 ms, by a message, if Redis and this process are reached that fast; by at most 64 processes, and by the others within a second |
    /// | a leader dies or is cut off | within its lease and a second |
    /// | this process is cut off from Redis | as `None`, once the lease of the leader last seen may be over |
    ///
    /// The channel has one place, where a new state replaces one that was not received yet. So a slow receiver gets only the
    /// latest. While nothing changes, the same state is sent again every 30 s, since only that shows whether the receiver still
    /// exists. A receiver that once leaves a state there for 30 s gets, from then on, what lies there first, and the latest state
    /// within a second after that.
    ///
    /// One thread of the manager reads each observed name once a second (twice in the time that is left, if a lease is shorter),
    /// however many threads observe it. It reads one name after another, so with many names or on a slow link a name has its turn
    /// less often. A request that fails is repeated; the first failure in a row is logged at WARN. A leader
    /// with a smaller fence than the one before is shown only when a second read confirms it after both leases, because a demoted
    /// master may still show a leader of the past. [`leader`](Election::leader) has no such memory.
    ///
    /// # Errors
    ///
    /// As [`leader`](Election::leader), and [`Error::Unavailable`] if the thread cannot be started.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(scheduler: &leasehold::Election) -> leasehold::Result<()> {
    /// for leader in scheduler.observe()? {
    ///     println!("ask {}", leader.map_or("nobody".to_owned(), |leader| leader.value));
    /// }
    /// # Ok(()) }
    /// ```
    pub fn observe(&self) -> Result<Receiver<Option<Leader>>> {
        self.handle.engine.observe(self.handle.target()?.first())
    }

    fn lead(&self, lease: Lease, value: &str) -> Result<Leadership> {
        let begun = self.handle.engine.begin_term(&lease, value);
        // Nobody has led under this lock, so nobody waits for its `min_hold`.
        let begun = begun.inspect_err(|_| lease.forget_min_hold());
        begun.map(|term| Leadership { term, lease })
    }
}

basics!(Election);
setters! { Election:
    lease(Duration), "for how long the others wait after a leader dies", "Duration::from_secs(10)";
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.debug("Election", f).finish_non_exhaustive()
    }
}

impl Leadership {
    /// Publishes another value, of at most 200 bytes. The leader and its fence stay the same. Blocks for one request.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: the value is longer than 200 bytes. Nothing was sent.
    /// * [`Error::Lost`]: this process does not lead any more. Nothing was written.
    /// * [`Error::NotReplicated`]: it was written, and too few [`replicas`](crate::Builder::replicas) confirmed it.
    /// * [`Error::Unavailable`], [`Error::Protocol`], [`Error::NoQuorum`]: the value may have been written.
    /// * [`Error::Denied`], [`Error::WrongType`], [`Error::Unsupported`]: the server has refused it.
    ///
    /// In the last two cases the library writes the value again every ten seconds, until the server takes it, unless another one
    /// is proclaimed before. On a quorum, observers may see it come and go until then, if only a minority of the nodes has it.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(mut leadership: leasehold::Leadership) -> leasehold::Result<()> {
    /// leadership.proclaim("10.0.0.7:9090")?;
    /// # Ok(()) }
    /// ```
    pub fn proclaim(&mut self, value: &str) -> Result<()> {
        check(value)?;
        self.lease.held().map_err(Error::Lost)?;
        self.term.proclaim(value)
    }

    /// Takes the value back, so that observers learn of it at once, and releases the lock. Blocks for two requests. If the first
    /// one fails, the second one is sent all the same, and observers learn of the end within a second.
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(leadership: leasehold::Leadership) -> leasehold::Result<()> {
    /// if let Err(leasehold::Error::Lost(lost)) = leadership.resign() {
    ///     eprintln!("another process may have led meanwhile: {lost}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn resign(self) -> Result<()> {
        let Self { term, lease } = self;
        term.take_back();
        drop(term);
        lease.release()
    }
}

impl Deref for Leadership {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.lease).finish()
    }
}

fn check(value: &str) -> Result<()> {
    if value.len() > LONGEST_VALUE {
        return Err(Error::config("value", "it is longer than 200 bytes"));
    }
    Ok(())
}
