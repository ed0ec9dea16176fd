//! The handles: one for each kind of lock, each a thin layer over the engine, and the trait over all kinds.
//!
//! All have a [`Handle`] inside, which has the names, the options and the way into the engine ([`Handle::acquire`]). The
//! macros in [`methods`] give each kind its methods from that: six for each way to acquire it, and the setters of the options.
//! Those of the mutex are written out, because its documentation is that of all.

use std::fmt::Debug;
use std::time::Duration;

use crate::error::Result;
use crate::guard::{
    Guard, LockGuard, MultiGuard, Permit, ReadGuard, ReentrantGuard, Sealed, WriteGuard,
};

pub use election::{Election, Leader, Leadership};
pub(crate) use handle::Handle;
pub use handle::Ran;
pub use multi::MultiLock;
pub use mutex::Mutex;
pub use once::{Fired, Once, OnceGuard};
pub use rate_limiter::{Admission, RateLimiter};
pub use reentrant::ReentrantMutex;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;

mod election;
mod handle;
mod methods;
mod multi;
mod mutex;
mod once;
mod rate_limiter;
mod reentrant;
mod rwlock;
mod semaphore;

/// A lock of any kind, for a function whose caller chooses the kind.
///
/// [`Mutex`], [`ReentrantMutex`] and [`MultiLock`] are locks. [`RwLock::reader`], [`RwLock::writer`] and
/// [`Semaphore::permits`] return a lock for one way to use theirs. Each method does what the kind's own method of that
/// name does. For a [`RwLock`] that is `read` or `write`, for a [`Semaphore`] `acquire_many`. No other crate can
/// implement this trait, so it may get further methods.
///
/// # Example
///
/// ```no_run
/// use leasehold::{Guard, Lock, LockManager};
/// use std::time::Duration;
///
/// /// Runs a step of the migration, unless another host runs it.
/// fn migrate<L: Lock>(lock: &L, step: impl FnOnce()) -> leasehold::Result<bool> {
///     let Some(guard) = lock.try_lock_for(Duration::from_secs(5))? else {
///         println!("{} is held", lock.name());
///         return Ok(false);
///     };
///     step();
///     guard.release()?;
///     Ok(true)
/// }
///
/// # fn main() -> leasehold::Result<()> {
/// let locks = LockManager::connect("redis://127.0.0.1/")?;
/// migrate(&locks.mutex("users"), || {})?;
/// migrate(&locks.multi(["users", "orders"]), || {})?;
/// migrate(&locks.rwlock("schema").writer(), || {})?;
/// migrate(&locks.semaphore("imports", 4).permits(2), || {})?;
/// # Ok(()) }
/// ```
pub trait Lock: Sealed + Clone + Debug + Send + Sync {
    /// The guard of this kind, which releases the lock when it is dropped.
    type Guard: Guard;

    /// Returns the name of the lock, as it was given.
    fn name(&self) -> &str;

    /// Acquires the lock. Blocks until it is granted, as [`Mutex::lock`] does.
    ///
    /// # Errors
    ///
    /// As the kind's own method.
    fn lock(&self) -> Result<Self::Guard>;

    /// Acquires the lock if that needs no wait, as [`Mutex::try_lock`] does. Returns `None` if it needs one.
    ///
    /// # Errors
    ///
    /// As the kind's own method.
    fn try_lock(&self) -> Result<Option<Self::Guard>> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Acquires the lock within `wait`, as [`Mutex::try_lock_for`] does. Returns `None` if it is held until then.
    ///
    /// # Errors
    ///
    /// As the kind's own method.
    fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>>;
}

/// Makes a handle a [`Lock`] by two of its methods.
macro_rules! lock {
    ($lock:ident $(.$inner:tt)? => $guard:ident: $wait:ident, $within:ident $(, $n:ident)?) => {
        impl Sealed for $lock {}

        impl Lock for $lock {
            type Guard = $guard;

            fn name(&self) -> &str {
                self$(.$inner)?.name()
            }

            fn lock(&self) -> Result<$guard> {
                self$(.$inner)?.$wait($(self.$n)?)
            }

            fn try_lock_for(&self, wait: Duration) -> Result<Option<$guard>> {
                self$(.$inner)?.$within($(self.$n,)? wait)
            }
        }
    };
}

lock!(Mutex => LockGuard: lock, try_lock_for);
lock!(ReentrantMutex => ReentrantGuard: lock, try_lock_for);
lock!(MultiLock => MultiGuard: lock, try_lock_for);
lock!(Reader.0 => ReadGuard: read, try_read_for);
lock!(Writer.0 => WriteGuard: write, try_write_for);
lock!(Permits.semaphore => Permit: acquire_many, try_acquire_many_for, n);

/// The readers' side of a [`RwLock`], as a [`Lock`]: see [`RwLock::reader`].
#[derive(Clone, Debug)]
pub struct Reader(RwLock);

/// The writers' side of a [`RwLock`], as a [`Lock`]: see [`RwLock::writer`].
#[derive(Clone, Debug)]
pub struct Writer(RwLock);

/// A number of permits of a [`Semaphore`], as a [`Lock`]: see [`Semaphore::permits`].
#[derive(Clone, Debug)]
pub struct Permits {
    semaphore: Semaphore,
    n: u32,
}

impl RwLock {
    /// Returns the readers' side as a [`Lock`], with this handle's options.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use leasehold::Lock;
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let guard = config.reader().lock()?; // as config.read()
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(self.clone())
    }

    /// Returns the writers' side as a [`Lock`], with this handle's options.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use leasehold::Lock;
    /// # fn example(config: &leasehold::RwLock) -> leasehold::Result<()> {
    /// let guard = config.writer().lock()?; // as config.write()
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn writer(&self) -> Writer {
        Writer(self.clone())
    }
}

impl Semaphore {
    /// Returns `n` permits, which are acquired together, as a [`Lock`] with this handle's options.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use leasehold::Lock;
    /// # fn example(downloads: &leasehold::Semaphore) -> leasehold::Result<()> {
    /// let guard = downloads.permits(2).lock()?; // as downloads.acquire_many(2)
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn permits(&self, n: u32) -> Permits {
        Permits {
            semaphore: self.clone(),
            n,
        }
    }
}
