//! The handles: one for each kind of lock, each a thin layer over the engine.

pub(crate) mod generic;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod rate_limiter;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;

use std::fmt::{self, DebugStruct};
use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::clock::Time;
use crate::config::Options;
use crate::engine::Engine;
use crate::engine::call::{AcquireCall, NotAcquired};
use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Lost, Result};
use crate::message::{ALL, LockKind};
use crate::name::{LockKey, Target};
use crate::sync::Arc;

/// The part that all handles have in common.
#[derive(Clone)]
pub(crate) struct Handle {
    engine: Arc<Engine>,
    /// The names of the lock, or the error that each call returns.
    target: Result<Target, Unfit>,
    options: Options,
    /// The token that ends blocked calls of this handle.
    cancel: Option<Cancel>,
}

/// The reason why a handle cannot be used: a name or a number that no lock can have.
#[derive(Clone)]
pub(crate) struct Unfit {
    error: Error,
    /// The name as the caller gave it.
    given: Arc<str>,
}

impl Handle {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        let target = LockKey::new(&engine.settings.prefix, name).map(Target::from);
        let target = target.map_err(|error| Unfit {
            error,
            given: name.into(),
        });
        Self::of(engine, target)
    }

    /// Makes each call return this error, unless the handle has an error already.
    fn refuse(&mut self, error: Error) {
        if let Ok(target) = &self.target {
            let given = target.name().into();
            self.target = Err(Unfit { error, given });
        }
    }

    fn of(engine: Arc<Engine>, target: Result<Target, Unfit>) -> Self {
        let options = engine.settings.options;
        Self {
            engine,
            target,
            options,
            cancel: None,
        }
    }

    /// Acquires the lock. Blocks without a time limit.
    fn acquire_without_limit(&self, kind: LockKind, units: u32) -> Result<GuardInner> {
        without_limit(self.acquire(self.target()?, kind, units, Some(Time::NEVER)))
    }

    /// Acquires the lock within `wait`. Returns `None` if it is held until then. A `wait` of zero is a try.
    fn acquire_within(
        &self,
        kind: LockKind,
        units: u32,
        wait: Duration,
    ) -> Result<Option<GuardInner>> {
        within_limit(self.acquire(self.target()?, kind, units, self.until(wait)))
    }

    /// Runs `f` under a guard. `acquire` acquires the lock within `wait`, `guard` makes the guard, and `release` ends
    /// it.
    fn run<H, G, T>(
        &self,
        wait: Duration,
        acquire: impl FnOnce(&Target, Option<Time>) -> Result<H, NotAcquired>,
        guard: impl FnOnce(H) -> G,
        f: impl FnOnce(&G) -> T,
        release: impl FnOnce(G) -> Result<()>,
    ) -> Result<Ran<T>> {
        let asked = self.engine.now();
        match acquire(self.target()?, self.until(wait)) {
            Ok(held) => Ok(run(guard(held), f, release)),
            Err(NotAcquired::Held(holder)) => Err(Error::Timeout {
                name: self.name().into(),
                waited: self.engine.now().since(asked),
                holder,
            }),
            Err(NotAcquired::Failed(error)) => Err(error),
        }
    }

    /// Returns when a wait of this length ends. Returns `None` if the length is zero: then it is a try.
    fn until(&self, wait: Duration) -> Option<Time> {
        (!wait.is_zero()).then(|| self.engine.now() + wait)
    }

    fn acquire(
        &self,
        target: &Target,
        kind: LockKind,
        units: u32,
        until: Option<Time>,
    ) -> Result<GuardInner, NotAcquired> {
        let mut options = self.options;
        if kind != LockKind::Mutex || self.target()?.keys().len() > 1 {
            // Only a single mutex lingers.
            options.linger = Duration::ZERO;
        }
        let acquired = self.engine.acquire(&AcquireCall {
            kind,
            target,
            options,
            units,
            until,
            cancel: self.cancel.as_ref(),
        });
        acquired.map_err(|why| match why {
            NotAcquired::Failed(error) => {
                self.with_the_kind_found(error, target, Some(kind)).into()
            }
            held @ NotAcquired::Held(_) => held,
        })
    }

    /// Adds to a `WrongType` error the kind of lock that has the name. To find it, sends requests that only read.
    /// Returns the error unchanged if these fail, for example because the user has no right to them.
    fn with_the_kind_found(&self, error: Error, target: &Target, own: Option<LockKind>) -> Error {
        if !matches!(error, Error::WrongType { .. }) {
            return error;
        }
        let own = own.map(|kind| match kind {
            LockKind::Mutex | LockKind::Multi => "mutex",
            LockKind::Read | LockKind::Write => "reader-writer lock",
            LockKind::Semaphore { .. } => "semaphore",
        });
        let found = target.keys().iter().find_map(|key| {
            let seen = self.engine.inspect(key).ok()??;
            let found = match seen.total_units {
                None => "mutex",
                Some(ALL) => "reader-writer lock",
                Some(_) => "semaphore",
            };
            (own != Some(found)).then_some(found)
        });
        match found {
            Some(found) => error.of_another_kind(found),
            None => error,
        }
    }

    /// Returns an error if the handle's token is cancelled.
    fn check_cancelled(&self) -> Result<()> {
        match &self.cancel {
            Some(cancel) if cancel.is_cancelled() => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }

    #[inline]
    fn target(&self) -> Result<&Target> {
        let target = self.target.as_ref();
        target.map_err(|unfit| unfit.error.clone())
    }

    fn name(&self) -> &str {
        match &self.target {
            Ok(target) => target.name(),
            Err(unfit) => &unfit.given,
        }
    }

    /// Begins the `Debug` text of a handle with its name and its settings.
    fn debug<'f, 'o>(&self, handle: &str, f: &'f mut fmt::Formatter<'o>) -> DebugStruct<'f, 'o> {
        let mut debug = f.debug_struct(handle);
        debug
            .field("name", &self.name())
            .field("lease", &self.options.lease)
            .field("renew", &self.options.renew)
            .field("max_hold", &self.options.max_hold)
            .field("fencing", &self.options.fencing)
            .field("min_hold", &self.options.min_hold)
            .field("linger", &self.options.linger);
        debug
    }
}

/// The outcome of a closure that ran under a lock: see [`Mutex::run`](crate::Mutex::run).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the lock may have been lost while the closure ran"]
#[non_exhaustive]
pub struct Ran<T> {
    /// The result of the closure.
    pub value: T,
    /// The loss, if the lease ended before the closure did. Then another thread or process may have held the lock at
    /// the same time.
    pub lost: Option<Lost>,
}

impl<T> Ran<T> {
    /// Returns the value. If the lock was lost, returns the loss in its place, as [`Mutex::with`](crate::Mutex::with)
    /// does.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lease ended before the closure did.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(jobs: &leasehold::Mutex) -> leasehold::Result<()> {
    /// let ran = jobs.run(std::time::Duration::from_secs(5), |_| 17)?;
    /// println!("{} jobs, or the loss", ran.into_result()?);
    /// # Ok(()) }
    /// ```
    pub fn into_result(self) -> Result<T> {
        match self.lost {
            None => Ok(self.value),
            Some(lost) => Err(Error::Lost(lost)),
        }
    }
}

/// Returns the result of a wait without a time limit.
fn without_limit<T>(acquired: Result<T, NotAcquired>) -> Result<T> {
    acquired.map_err(|why| match why {
        NotAcquired::Failed(error) => error,
        NotAcquired::Held(_) => {
            unreachable!("a wait without a time limit does not end while the lock is held")
        }
    })
}

/// Returns the result of a wait with a time limit: `None` if the lock was held until its end.
fn within_limit<T>(acquired: Result<T, NotAcquired>) -> Result<Option<T>> {
    match acquired {
        Ok(held) => Ok(Some(held)),
        Err(NotAcquired::Held(_)) => Ok(None),
        Err(NotAcquired::Failed(error)) => Err(error),
    }
}

/// Runs `f` under a guard, which `release` ends.
fn run<G, T>(guard: G, f: impl FnOnce(&G) -> T, release: impl FnOnce(G) -> Result<()>) -> Ran<T> {
    let value = f(&guard);
    let lost = match release(guard) {
        Err(Error::Lost(lost)) => Some(lost),
        // `f` ran under the lock. If the release failed, the renewal thread repeats it.
        Ok(()) | Err(_) => None,
    };
    Ran { value, lost }
}

/// Returns the time that is left until `deadline`.
fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Defines the methods of a handle that set its options.
macro_rules! options {
    ($handle:ident) => {
        $crate::lock::cancel_with!($handle);

        impl $handle {
            /// Returns the name of the lock, as it was given. A [`MultiLock`](crate::MultiLock) joins its names with
            /// ` + `.
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn example(lock: &leasehold::", stringify!($handle), ") {")]
            /// println!("{}", lock.name());
            /// # }
            /// ```
            #[must_use]
            pub fn name(&self) -> &str {
                self.handle.name()
            }

            /// Sets how long Redis keeps the lock without a renewal. A crashed holder delays the others by that time.
            /// From 10 ms to 24 h. Defaults to the manager's [`lease`](crate::Builder::lease).
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            /// let lock = lock.lease(Duration::from_secs(10));
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn lease(mut self, lease: Duration) -> Self {
                self.handle.options.lease = lease;
                self
            }

            /// Sets whether the lease is renewed while the guard lives. Without renewal a guard loses its lock when
            /// the lease ends. Defaults to the manager's [`renew`](crate::Builder::renew).
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            /// let lock = lock.renew(false);
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn renew(mut self, on: bool) -> Self {
                self.handle.options.renew = on;
                self
            }

            /// Sets whether guards have fences: see [`Builder::fencing`](crate::Builder::fencing). Defaults to the
            /// manager's.
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            /// let lock = lock.fencing(false);
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn fencing(mut self, on: bool) -> Self {
                self.handle.options.fencing = on;
                self
            }

            /// Sets how long one guard may hold the lock. After that time the lock is released for the others, and the
            /// guard has lost it: see [`Builder::max_hold`](crate::Builder::max_hold). Not zero; `None` is no limit.
            /// Defaults to the manager's.
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            /// let lock = lock.max_hold(Some(Duration::from_secs(60)));
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn max_hold(mut self, limit: Option<Duration>) -> Self {
                self.handle.options.max_hold = limit;
                self
            }

            /// Sets how long the lock stays taken after a guard is granted, even if the guard is released earlier: see
            /// [`Builder::min_hold`](crate::Builder::min_hold). At most 24 h. Defaults to the manager's.
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            /// let lock = lock.min_hold(Duration::from_secs(50));
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn min_hold(mut self, length: Duration) -> Self {
                self.handle.options.min_hold = length;
                self
            }

            /// Sets how long the lock stays with this process after its last guard, so that the next lock sends
            /// nothing: see [`Builder::linger`](crate::Builder::linger). It has no effect on locks other than a single
            /// mutex. At most 24 h. Defaults to the manager's.
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            /// let lock = lock.linger(Duration::from_secs(1));
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn linger(mut self, length: Duration) -> Self {
                self.handle.options.linger = length;
                self
            }
        }
    };
}

/// Implements `Debug` for a handle that has only a name and options.
macro_rules! debug {
    ($handle:ident) => {
        impl fmt::Debug for $handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut debug = self.handle.debug(stringify!($handle), f);
                debug.finish_non_exhaustive()
            }
        }
    };
}

/// Defines the method of a handle that sets its token.
macro_rules! cancel_with {
    ($handle:ident) => {
        impl $handle {
            /// Sets the token that ends blocked calls of this handle: see [`Cancel`](crate::Cancel). If the token is
            /// cancelled already, a call sends nothing and returns [`Error::Cancelled`](crate::Error::Cancelled). A
            /// second token replaces the first. Defaults to none.
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            /// let stop = leasehold::Cancel::new();
            /// let lock = lock.cancel_with(&stop);
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn cancel_with(mut self, cancel: &crate::cancel::Cancel) -> Self {
                self.handle.cancel = Some(cancel.clone());
                self
            }
        }
    };
}

pub(crate) use {cancel_with, debug, options};
