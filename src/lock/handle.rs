//! The part that all handles have in common: the names of the lock, the options, and the way into the engine; and the
//! outcome of a closure that ran under a lock.

use std::fmt::{self, DebugStruct};
use std::time::Duration;

use crate::cancel::Cancel;
use crate::claim::Claim;
use crate::config::Options;
use crate::engine::Engine;
use crate::engine::acquire::{self, Call, NotAcquired};
use crate::error::{Error, Lost, Result};
use crate::guard::{Guard, Lease};
use crate::name::{self, LockKey, Target};
use crate::net::deadline::Wait;
use crate::owner;
use crate::sys::{Arc, Time};
use crate::wire::{ALL, LockKind};

/// The part that all handles have in common.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(super) engine: Arc<Engine>,
    /// The names of the lock. If no lock can have them, or another number cannot be used, the error that each call returns,
    /// and the name as the caller gave it.
    pub(super) target: Result<Target, (Error, Arc<str>)>,
    pub(super) options: Options,
    /// The tail of the handle's owners.
    tail: Arc<str>,
    /// The token that ends blocked calls of this handle.
    pub(super) cancel: Option<Cancel>,
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

impl Handle {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        let target = LockKey::new(&engine.client.settings.prefix, name).map(Target::from);
        Self::of(engine, target.map_err(|error| (error, name.into())))
    }

    pub(super) fn of(engine: Arc<Engine>, target: Result<Target, (Error, Arc<str>)>) -> Self {
        let options = engine.client.settings.options;
        let tail = Arc::clone(&engine.client.tail);
        Self {
            engine,
            target,
            options,
            tail,
            cancel: None,
        }
    }

    /// Makes each call return this error, unless the handle has an error already.
    pub(super) fn refuse(&mut self, error: Error) {
        if let Ok(target) = &self.target {
            let given = target.name().into();
            self.target = Err((error, given));
        }
    }

    /// Sets the note of the handle's owners.
    pub(super) fn note(&mut self, note: &str) {
        if let Some(why) = owner::wrong_note(note) {
            return self.refuse(Error::config("note", why));
        }
        let client = &self.engine.client;
        self.tail = owner::tail(&client.settings.label, note).into();
        // Threads with the manager's note have no note of their own.
        self.options.note = if self.tail == client.tail {
            0
        } else {
            name::fingerprint(&self.tail)
        };
    }

    pub(super) fn name(&self) -> &str {
        match &self.target {
            Ok(target) => target.name(),
            Err((_, given)) => given,
        }
    }

    /// Returns the names of the lock.
    ///
    /// # Errors
    ///
    /// The reason why the handle cannot be used.
    pub(super) fn target(&self) -> Result<&Target> {
        self.target.as_ref().map_err(|(error, _)| error.clone())
    }

    /// Acquires `units` of the lock. Blocks for at most `wait`.
    pub(super) fn acquire(
        &self,
        kind: LockKind,
        units: u32,
        wait: Wait,
    ) -> Result<Lease, NotAcquired> {
        let call = Call {
            kind,
            target: self.target()?,
            options: self.options,
            tail: &self.tail,
            units,
            wait,
            cancel: self.cancel.as_ref(),
        };
        acquire::lock(&self.engine, &call).map_err(|why| match why {
            NotAcquired::Failed(error) => self.with_the_kind_found(error, Some(kind)).into(),
            held @ NotAcquired::Held(_) => held,
        })
    }

    /// Adopts a claim for this lock.
    pub(super) fn adopt(&self, claim: &Claim) -> Result<Lease> {
        let name = self.target()?.name();
        if claim.name() != name {
            let reason = format!(
                "it is for the lock {:?}, and this is {name:?}",
                claim.name()
            );
            return Err(Error::config("claim", reason));
        }
        self.engine.adopt(claim, &self.options, &self.tail)
    }

    /// Runs `f` with the leases of a guard, and releases the guard. `acquire` acquires it within `wait`.
    pub(super) fn run<G: Guard, L: ?Sized, T>(
        &self,
        wait: Duration,
        acquire: impl FnOnce(Wait) -> Result<G, NotAcquired>,
        leases: impl FnOnce(&G) -> &L,
        f: impl FnOnce(&L) -> T,
    ) -> Result<Ran<T>> {
        let asked = self.engine.client.now();
        let guard = acquire(self.wait_of(wait)).map_err(|why| match why {
            NotAcquired::Held(holder) => Error::Timeout {
                name: self.name().into(),
                waited: self.engine.client.now().since(asked),
                holder,
            },
            NotAcquired::Failed(error) => error,
        })?;
        let value = f(leases(&guard));
        let lost = match guard.release() {
            Err(Error::Lost(lost)) => Some(lost),
            // `f` ran under the lock. If the release failed, the renewal thread repeats it.
            Ok(()) | Err(_) => None,
        };
        Ok(Ran { value, lost })
    }

    /// Returns a wait of this length from now on.
    pub(super) fn wait_of(&self, wait: Duration) -> Wait {
        if wait.is_zero() {
            return Wait::Try;
        }
        match self.engine.client.now() + wait {
            Time::NEVER => Wait::Forever,
            end => Wait::Until(end),
        }
    }

    /// Adds to a `WrongType` error the kind of lock that has the name. To find it, sends requests that only read.
    /// Returns the error unchanged if these fail, for example because the user has no right to them.
    pub(super) fn with_the_kind_found(&self, error: Error, own: Option<LockKind>) -> Error {
        let (Error::WrongType { .. }, Ok(target)) = (&error, &self.target) else {
            return error;
        };
        let own = own.map(|kind| match kind {
            LockKind::Mutex | LockKind::Multi => "mutex",
            LockKind::Read | LockKind::Write => "reader-writer lock",
            LockKind::Semaphore { .. } => "semaphore",
        });
        let found = target.keys().iter().find_map(|key| {
            let seen = self.engine.inspect(key).ok()??;
            let found = match (seen.limiter, seen.total_units) {
                (Some(_), _) => "rate limiter",
                (None, None) => "mutex",
                (None, Some(ALL)) => "reader-writer lock",
                (None, Some(_)) => "semaphore",
            };
            (own != Some(found)).then_some(found)
        });
        match found {
            Some(found) => error.of_another_kind(found),
            None => error,
        }
    }

    /// Begins the `Debug` text of a handle with its name and its settings.
    pub(super) fn debug<'f, 'o>(
        &self,
        handle: &str,
        f: &'f mut fmt::Formatter<'o>,
    ) -> DebugStruct<'f, 'o> {
        let mut debug = f.debug_struct(handle);
        debug
            .field("name", &name::shortened(self.name()))
            .field("lease", &self.options.lease)
            .field("renew", &self.options.renew)
            .field("max_hold", &self.options.max_hold)
            .field("fencing", &self.options.fencing)
            .field("min_hold", &self.options.min_hold);
        debug
    }
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
pub(super) fn without_limit<T>(acquired: Result<T, NotAcquired>) -> Result<T> {
    acquired.map_err(|why| match why {
        NotAcquired::Failed(error) => error,
        NotAcquired::Held(_) => {
            unreachable!("a wait without a time limit does not end while the lock is held")
        }
    })
}

/// Returns the result of a wait with a time limit: `None` if the lock was held until its end.
pub(super) fn within_limit<T>(acquired: Result<T, NotAcquired>) -> Result<Option<T>> {
    match acquired {
        Ok(held) => Ok(Some(held)),
        Err(NotAcquired::Held(_)) => Ok(None),
        Err(NotAcquired::Failed(error)) => Err(error),
    }
}
