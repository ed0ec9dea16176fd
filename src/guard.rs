//! Guards, and the lease that each of them derefs to.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::claim::Claim;
use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Lost, Result};
use crate::sync::{Arc, MutexGuard};

/// What a lease is at the moment it is asked.
///
/// "Held" means what the kind promises: a [`LockGuard`], [`WriteGuard`], [`ReentrantGuard`] or [`MultiGuard`] holds its lock
/// alone. Beside a [`ReadGuard`] there may be other readers, and no writer. Beside a [`Permit`] there may be others, as
/// many in all as the semaphore has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// The guard holds its lock.
    Held,
    /// The guard still holds its lock, but a renewal is overdue: the server does not answer.
    AtRisk,
    /// The lock may be somebody else's. This is final: no later answer revives the lease.
    Lost,
}

/// One guard's hold on a lock; every guard derefs to its own.
///
/// # Guarantees
///
/// The lease is counted from a reading of this machine's clock taken before the request was sent, less 1 % and
/// 2 ms for what two clocks may differ by, so it ends here before it ends on the server. The clock runs
/// through suspend. [`state`](Lease::state) never reads `Held` past that moment, even while no server and no
/// thread of this crate answers.
///
/// In a forked child of the process that took the lock, every lease reads lost.
pub struct Lease {
    guard_inner: GuardInner,
}

impl Lease {
    pub(crate) fn new(guard_inner: GuardInner) -> Self {
        Self { guard_inner }
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.guard_inner.name()
    }

    /// The unique string that stands in Redis for this process's hold on the lock.
    ///
    /// Guards that were passed on between threads of one process may share it; their fences differ.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.guard_inner.owner()
    }

    /// Returns the fencing token of this guard. Its promise depends on the kind of the guard:
    ///
    /// | the guard | its fence |
    /// | --- | --- |
    /// | [`LockGuard`], [`WriteGuard`], [`ReentrantGuard`], a lease of a [`MultiGuard`] | larger than that of every earlier exclusive guard of the name |
    /// | [`ReadGuard`] | the last writer's, which all readers between two writers share |
    /// | [`Permit`] | its own, and no other permit's; as several permits are held at once, their fences order nothing |
    ///
    /// Pass it to whatever the lock protects, and have that refuse any number smaller than the largest it has
    /// seen: a holder that was paused past its lease then does no harm (Martin Kleppmann, "How to do
    /// distributed locking", 2016).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.guard_inner.fence()
    }

    /// How much longer the lock may be relied on without another renewal; zero when it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard_inner
            .status()
            .map_or(Duration::ZERO, |(left, _)| left)
    }

    /// What the lease is now. It asks this machine's clock, not the server.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        match self.guard_inner.status() {
            Ok((_, false)) => LeaseState::Held,
            Ok((_, true)) => LeaseState::AtRisk,
            Err(_) => LeaseState::Lost,
        }
    }

    /// Whether the lock can still be relied on; the same as [`state`](Lease::state), for use with `?`.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when it is lost, and only then.
    pub fn check(&self) -> Result<()> {
        self.guard_inner.status().map(drop).map_err(Error::Lost)
    }

    /// A channel that receives one [`Lost`] within 50 ms of the loss, or is disconnected when the guard ends in
    /// good health. Each call gives a channel of its own, kept until the guard ends, so call it once and keep what it
    /// gives; several are told one after the other. On a lease that is lost already it holds the message.
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
    ///         break; // stop in good order: somebody else may have started
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

    /// Makes sure that the lease lasts for at least `at_least` from now, by asking the server unless it does
    /// already. It never shortens a lease, and blocks for one request at the most. It is for this guard only: the
    /// next starts with the handle's own lease again.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] when the lease is lost, also where the server says so now.
    /// * [`Error::Config`] when `at_least` is over 24 h.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::Protocol`] when the server could not be asked; the
    ///   lease is what it was.
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

/// What every guard of one lease has: its lease, its end.
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

            /// Releases the lock and says whether it was held until now.
            ///
            /// # Errors
            ///
            /// * [`Error::Lost`] when the lease had ended before.
            /// * [`Error::Unavailable`], [`Error::Denied`] or [`Error::Protocol`] when the server could not be
            ///   told; the renewal thread goes on trying until the lease is over.
            /// * [`Error::Closed`] in a forked child, where nothing is released.
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
    /// An acquired [`Mutex`](crate::Mutex), released when dropped.
    ///
    /// Dropping never panics. It makes one attempt, bounded by
    /// [`connect_timeout`](crate::Builder::connect_timeout) and [`io_timeout`](crate::Builder::io_timeout), and
    /// leaves what failed to the renewal thread, which repeats it until the lease is over. Where another thread of
    /// this process waits for the name, the lock is passed to it in memory and nothing is sent.
    LockGuard
}

guard! {
    /// A reader's part in a [`RwLock`](crate::RwLock), ended when dropped; as with [`LockGuard`].
    ///
    /// Its [`fence`](Lease::fence) is the last writer's, so it is larger than those of the writers before that and
    /// smaller than those of all to come. Readers share it.
    ReadGuard
}

guard! {
    /// A writer's hold on a [`RwLock`](crate::RwLock), released when dropped; as with [`LockGuard`].
    WriteGuard
}

guard! {
    /// Some permits of a [`Semaphore`](crate::Semaphore), given back when dropped; as with [`LockGuard`].
    ///
    /// Its [`fence`](Lease::fence) is no other permit's; as several are held at a time, it orders nothing.
    Permit
}

impl LockGuard {
    /// Ends the guard and leaves the lock held, for [`LockManager::adopt`](crate::LockManager::adopt) by whoever is given
    /// the claim: another thread, or as text another process. It blocks for one request at the most, by which the lease
    /// is renewed once more; whether that succeeds or not, the claim is good for as long as Redis keeps the lock.
    ///
    /// Nobody renews a lock that is detached. Unless it is adopted, it ends with its lease, as that of a crashed holder;
    /// [`extend`](Lease::extend) it before where the claim takes longer on its way. Without
    /// [`renew`](crate::Builder::renew) it keeps the end that it has. Threads and processes that wait for it go on
    /// waiting, first come, first served.
    ///
    /// A guard whose lease was lost gives a claim too, as does one in a forked child, where the lock is the parent's:
    /// adopting that is [`Error::Lost`]. [`check`](Lease::check) the guard before where it matters.
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
    /// Becomes a reader with no gap: no other writer comes in between, and the readers that wait come in too. It
    /// blocks for one request.
    ///
    /// # Errors
    ///
    /// In each case the guard has ended, and the lock is freed, even before the end of the guard's
    /// [`min_hold`](crate::Builder::min_hold).
    ///
    /// * [`Error::Lost`] when the lease had ended before.
    /// * [`Error::Unavailable`], [`Error::NotReplicated`], [`Error::Denied`], [`Error::Protocol`] when the server could
    ///   not be asked, did not answer, or too few replicas confirmed it; what may be left of it is released in the background.
    /// * [`Error::Closed`] in a forked child.
    pub fn downgrade(self) -> Result<ReadGuard> {
        self.lease.guard_inner.downgrade().map(ReadGuard::new)
    }
}

impl Permit {
    /// How many permits it is.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.lease.guard_inner.units()
    }
}

/// The guards of one thread on a [`ReentrantMutex`](crate::ReentrantMutex) share one hold on it; the last one
/// releases it when it is dropped, as a [`LockGuard`] does.
///
/// It stays on its thread.
///
/// ```compile_fail
/// fn is_send<T: Send>() {}
/// is_send::<leasehold::ReentrantGuard>();
/// ```
#[must_use = "if unused the lock is released at once"]
#[derive(Debug)]
pub struct ReentrantGuard {
    hold: Arc<Lease>,
    /// The standard library's guard is bound to its thread, and so is this.
    on_its_thread: PhantomData<MutexGuard<'static, ()>>,
}

impl ReentrantGuard {
    pub(crate) fn new(hold: Arc<Lease>) -> Self {
        Self {
            hold,
            on_its_thread: PhantomData,
        }
    }

    /// Ends this guard, and with the last one the hold, and says whether the lock was held until now.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`]; of a guard that is not the last one, [`Error::Lost`] alone.
    pub fn release(self) -> Result<()> {
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

/// An acquired [`MultiLock`](crate::MultiLock): all of its names, released together when dropped; as with
/// [`LockGuard`].
#[must_use = "if unused the locks are released at once"]
#[derive(Debug)]
pub struct MultiGuard {
    /// In the order of their names.
    leases: Vec<Lease>,
    /// What they stand on: one hold for all names that one request can take.
    holds: Vec<Lease>,
}

impl MultiGuard {
    pub(crate) fn new(held: Vec<GuardInner>) -> Self {
        let by_name = held.iter().flat_map(GuardInner::by_name);
        let mut leases: Vec<_> = by_name.map(Lease::new).collect();
        leases.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        Self {
            leases,
            holds: held.into_iter().map(Lease::new).collect(),
        }
    }

    /// The lease of each name, in the order of the names. They are renewed together, and each has a fence of its own.
    #[must_use]
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Whether all can still be relied on.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when one is lost, and only then; it names all that were taken by the same request.
    pub fn check(&self) -> Result<()> {
        self.holds.iter().try_for_each(Lease::check)
    }

    /// Returns the state of the weakest: [`Lost`](LeaseState::Lost) if any is lost, else [`AtRisk`](LeaseState::AtRisk) if
    /// the renewal of any is overdue.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        let states = || self.holds.iter().map(Lease::state);
        [LeaseState::Lost, LeaseState::AtRisk]
            .into_iter()
            .find(|state| states().any(|one| one == *state))
            .unwrap_or(LeaseState::Held)
    }

    /// Returns how much longer all of them may be relied on without another renewal; zero if one is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let left = self.holds.iter().map(Lease::remaining);
        left.min().unwrap_or_default()
    }

    /// Makes sure that all of them last for at least `at_least` from now; as [`Lease::extend`]. It blocks for at most one
    /// request, or on a topology with slots one for each slot.
    ///
    /// # Errors
    ///
    /// As [`Lease::extend`]. Some of them may have been extended.
    pub fn extend(&self, at_least: Duration) -> Result<()> {
        self.holds.iter().try_for_each(|hold| hold.extend(at_least))
    }

    /// As [`Lease::on_lost`], for the loss of any of them; the message names all that were taken by the same request.
    #[must_use]
    pub fn on_lost(&self) -> Receiver<Lost> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        for hold in &self.holds {
            hold.guard_inner.tell_of_loss(&sender);
        }
        receiver
    }

    /// Releases all of them and says whether they were held until now.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`].
    pub fn release(self) -> Result<()> {
        let ends: Vec<_> = self
            .holds
            .into_iter()
            .map(|hold| hold.guard_inner.release())
            .collect();
        ends.into_iter().collect()
    }
}
