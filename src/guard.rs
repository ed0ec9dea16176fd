//! The guards: the trait over all of them, those with one lease each, and that of a multi-lock with several. Each is a thin face
//! of its [`Lease`], which it derefs to. All but that of a reentrant mutex may move to another thread.

use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::claim::Claim;
#[cfg(doc)]
use crate::error::Error;
use crate::error::{Lost, Result, Unsupported};
use crate::sys::{Arc, MutexGuard};
use crate::write::{Reply, Write};

pub use crate::engine::lease::guard::{Lease, LeaseState};
pub(crate) use sealed::Sealed;

mod sealed {
    /// Keeps other crates from implementing a trait.
    pub trait Sealed {}
}

/// A guard of any kind: see [`Lock`](crate::Lock).
pub trait Guard: Sealed + Debug {
    /// Returns an error if the lock is lost, as [`Lease::check`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lock is lost.
    fn check(&self) -> Result<()>;

    /// Releases the lock, as [`LockGuard::release`] does. Returns an error if the lock was lost before.
    ///
    /// # Errors
    ///
    /// As the guard's own method.
    fn release(self) -> Result<()>;
}

macro_rules! guards {
    ($($guard:ty: $checked:ty),*) => {$(
        impl Sealed for $guard {}

        impl Guard for $guard {
            fn check(&self) -> Result<()> {
                <$checked>::check(self)
            }

            fn release(self) -> Result<()> {
                <$guard>::release(self)
            }
        }
    )*};
}

guards!(
    LockGuard: Lease, ReentrantGuard: Lease, ReadGuard: Lease, WriteGuard: Lease, Permit: Lease,
    MultiGuard: MultiGuard
);

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
            pub(crate) fn new(lease: Lease) -> Self {
                Self { lease }
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
            /// * [`Error::Forked`]: this process is a forked child. Nothing is released.
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
            #[doc(alias = "unlock")]
            pub fn release(self) -> Result<()> {
                self.lease.release()
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
    /// Executes writes in Redis if, and only if, this guard's owner still holds the lock there: one script compares the owner
    /// and executes the commands, in order. So a holder that was paused for longer than its lease writes nothing, even if no
    /// other holder has written yet. If the server rejects a command, Redis does not roll back those before it.
    ///
    /// This protects data that every writer commits under this lock, and reads under it: by a client of its own at the master, or
    /// by a write whose reply is the value, such as `GETEX key` or `INCRBY key 0`. The data must be in the same server and
    /// database as the lock. On a cluster it must be in the lock's slot: put the same text in braces into both keys, as in the
    /// example. The keys of the lock itself cannot be written. A commit has at most 1,000 writes with 100,000 arguments of
    /// 1 MiB, and each write at most 4,000 arguments.
    ///
    /// Returns the reply to each write. Blocks for one request, within
    /// [`connect_timeout`](crate::Builder::connect_timeout) and [`io_timeout`](crate::Builder::io_timeout). Neither renews nor
    /// shortens the lease. Success says that at the moment of the write this owner held the lock on this server. A failover may
    /// lose the writes, as it may lose any. After the last commit drop the guard: [`release`](Self::release) returns `Lost` if the
    /// lease has ended since, although the writes were executed.
    ///
    /// Methods that run a closure, such as [`Mutex::with`](crate::Mutex::with), pass it a [`Lease`], which has no `commit`: lock by
    /// a guard.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: a write is not allowed (see [`Write`]), its key is the lock's or is in another slot, or there are
    ///   none or too many. Nothing was sent.
    /// * [`Error::Lost`]: the lock was lost before, by this process's clock or by the server's reply. Nothing was written.
    /// * [`Error::Refused`]: the server rejected a write, for example because its key is of another type. The writes before it
    ///   were executed, and those after it were not. No replica was asked to confirm them.
    /// * [`Error::NotReplicated`]: all writes were executed, and too few [`replicas`](crate::Builder::replicas) confirmed them.
    /// * [`Error::Unavailable`], [`Error::Protocol`]: the commit may have been executed, or may be executed later, for as long as
    ///   this guard has the lock. Unlike every other request it is not sent again once it may have arrived. To find out, release
    ///   the lock, acquire it again, and read: no later guard has the same owner, so the old commit can come no more. If others
    ///   may have written meanwhile, read a mark of the update that is in the same commit, such as a key with its number. A
    ///   reply of more than 8 MiB, such as that of a `GETDEL`, is [`Error::Protocol`] too.
    /// * [`Error::Denied`]: the server does not let this user run scripts, or use these keys. Nothing was written.
    /// * [`Error::Unsupported`]: the lock is that of a quorum, or a multi-lock on a cluster with names in several slots.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn read(_key: &str) -> u64 { 0 }
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::{Error, LockManager, Write};
    ///
    /// let locks = LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = locks.lock("{stock:42}")?;
    /// let left = read("{stock:42}:left"); // by a client of your own
    /// // … a minute of work …
    /// match guard.commit(&[Write::new("SET", "{stock:42}:left").arg(left - 1)]) {
    ///     Ok(_) => println!("sold"),
    ///     Err(Error::Lost(lost)) => println!("nothing was written: {lost}"),
    ///     Err(other) => return Err(other),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn commit(&self, writes: &[Write]) -> Result<Vec<Reply>> {
        self.lease.commit(writes)
    }

    /// Ends the guard, leaves the lock held in Redis, and returns a claim to the lock.
    /// [`LockManager::adopt`](crate::LockManager::adopt) makes a guard of the claim: on another thread, or in another
    /// process that receives the claim as text.
    ///
    /// Blocks for one request, which renews the lease once more. If that fails, the claim is valid for as long as
    /// Redis keeps the lock. Without [`renew`](crate::Builder::renew) this request is not sent, and the lease keeps its
    /// end. If Redis may still execute an earlier request of the guard, one more request gives the claim a new owner, so
    /// [`Claim::owner`] is not that of the guard. If the reply to this request is lost several times, the claim may be
    /// lost.
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
        self.lease.detach()
    }
}

impl WriteGuard {
    /// Executes writes in Redis if, and only if, this writer still holds the lock: see [`LockGuard::commit`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::commit`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::WriteGuard) -> leasehold::Result<()> {
    /// guard.commit(&[leasehold::Write::new("SET", "greeting").arg("hello")])?;
    /// # Ok(()) }
    /// ```
    pub fn commit(&self, writes: &[Write]) -> Result<Vec<Reply>> {
        self.lease.commit(writes)
    }

    /// Makes the writer a reader, so that no other writer gets the lock in between. The readers that wait for the lock
    /// get it at the same time. Blocks for one request.
    ///
    /// # Errors
    ///
    /// After each error the guard has ended, and the lock is released: at once, even if the guard has a
    /// [`min_hold`](crate::Builder::min_hold).
    ///
    /// * [`Error::Lost`]: the lock was lost before. On a quorum also, though rarely, because another writer came in between
    ///   at most nodes.
    /// * [`Error::Unavailable`], [`Error::NotReplicated`], [`Error::Denied`], [`Error::WrongType`],
    ///   [`Error::Unsupported`], [`Error::Protocol`]: the request failed. The renewal thread releases the reader and
    ///   the writer.
    /// * [`Error::Forked`]: this process is a forked child. Nothing is released.
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
        self.lease.downgrade().map(ReadGuard::new)
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
        self.lease.process_lease.units
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

    /// Executes writes in Redis if, and only if, this process still holds the lock: see [`LockGuard::commit`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::commit`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::ReentrantGuard) -> leasehold::Result<()> {
    /// guard.commit(&[leasehold::Write::new("SET", "greeting").arg("hello")])?;
    /// # Ok(()) }
    /// ```
    pub fn commit(&self, writes: &[Write]) -> Result<Vec<Reply>> {
        self.hold.commit(writes)
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
            Ok(last) => last.release(),
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

/// A guard of a [`MultiLock`](crate::MultiLock): it holds all names. Dropping it releases them together, as dropping a
/// [`LockGuard`] does.
#[must_use = "if unused the locks are released at once"]
pub struct MultiGuard {
    /// One lease for each name, in the order of the names. They only report: the end of one releases nothing.
    leases: Vec<Lease>,
    /// One lease for each request that acquired names. The end of such a lease releases its names.
    holds: Vec<Lease>,
}

impl MultiGuard {
    pub(crate) fn new(holds: Vec<Lease>) -> Self {
        let mut leases: Vec<_> = holds.iter().flat_map(Lease::by_name).collect();
        leases.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        Self { leases, holds }
    }

    /// Executes writes in Redis if, and only if, this guard still holds all its names: see [`LockGuard::commit`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::commit`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) -> leasehold::Result<()> {
    /// guard.commit(&[leasehold::Write::new("SET", "greeting").arg("hello")])?;
    /// # Ok(()) }
    /// ```
    pub fn commit(&self, writes: &[Write]) -> Result<Vec<Reply>> {
        match self.holds.as_slice() {
            [hold] => hold.commit(writes),
            _ => Err(Unsupported::SEVERAL_SLOTS.into()),
        }
    }

    /// Returns the lease of each name, in the byte order of the names. The leases are renewed together. Each has
    /// another fence.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) {
    /// for lease in guard.leases() {
    ///     println!("{} has fence {}", lease.name(), lease.fence());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Returns an error if at least one name is lost.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: a name is lost. The error names the names that the same request acquired, as
    /// [`MultiLock::name`](crate::MultiLock::name) does.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) -> leasehold::Result<()> {
    /// guard.check()?; // before a step that needs all names
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<()> {
        self.holds.iter().try_for_each(Lease::check)
    }

    /// Returns the state of the weakest lease: [`Lost`](LeaseState::Lost) if one is lost, else
    /// [`AtRisk`](LeaseState::AtRisk) if the renewal of one is overdue.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) {
    /// if guard.state() == leasehold::LeaseState::AtRisk {
    ///     eprintln!("a renewal is overdue");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn state(&self) -> LeaseState {
        let states = || self.holds.iter().map(Lease::state);
        [LeaseState::Lost, LeaseState::AtRisk]
            .into_iter()
            .find(|state| states().any(|one| one == *state))
            .unwrap_or(LeaseState::Held)
    }

    /// Returns how long the guard may rely on all names without another renewal: zero if one is lost.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) {
    /// println!("{:?} left", guard.remaining());
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let left = self.holds.iter().map(Lease::remaining);
        left.min().unwrap_or_default()
    }

    /// Extends the leases so that all last for at least `at_least` from now, as [`Lease::extend`] does. Blocks for at
    /// most one request, or on a topology with slots for at most one for each slot.
    ///
    /// # Errors
    ///
    /// As [`Lease::extend`]. Some of the leases may have been extended.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) -> leasehold::Result<()> {
    /// guard.extend(std::time::Duration::from_secs(300))?;
    /// # Ok(()) }
    /// ```
    pub fn extend(&self, at_least: Duration) -> Result<()> {
        self.holds.iter().try_for_each(|hold| hold.extend(at_least))
    }

    /// Returns a channel that receives one [`Lost`] within 50 ms of the loss of any name, as [`Lease::on_lost`] does.
    /// The message names the names that the same request acquired, as [`MultiLock::name`](crate::MultiLock::name) does.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) {
    /// let lost = guard.on_lost();
    /// if let Ok(lost) = lost.try_recv() {
    ///     eprintln!("{lost}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn on_lost(&self) -> Receiver<Lost> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        for hold in &self.holds {
            hold.tell_of_loss(&sender);
        }
        receiver
    }

    /// Releases all names. Returns an error if one was lost before.
    ///
    /// Blocks as [`LockGuard::release`] does.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`]. All names are released, even if the release of one fails.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: leasehold::MultiGuard) -> leasehold::Result<()> {
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn release(self) -> Result<()> {
        let ends: Vec<_> = self.holds.into_iter().map(Lease::release).collect();
        ends.into_iter().collect()
    }
}

impl Debug for MultiGuard {
    /// Shows the first lease only, because there may be a thousand.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("leases", &self.leases.len())
            .field("first", &self.leases.first())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
