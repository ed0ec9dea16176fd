//! The kinds of lock: small handles over the engine.

pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod rate_limiter;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Time;
use crate::config::Options;
use crate::engine::Engine;
use crate::engine::acquire::{Acquired, Request};
use crate::engine::holding::Holding;
use crate::error::{Error, Result};
use crate::name::{LockKey, Target};
use crate::script::{ALL, Kind};
use crate::sync::Arc;

/// What all handles are made of.
#[derive(Clone)]
pub(crate) struct Handle {
    engine: Arc<Engine>,
    /// The error of an unfit name waits for the first call.
    target: Result<Target>,
    options: Options,
}

impl Handle {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        let target = LockKey::new(&engine.settings.prefix, name).map(Target::from);
        Self::of(engine, target)
    }

    fn of(engine: Arc<Engine>, target: Result<Target>) -> Self {
        let options = engine.settings.options;
        Self {
            engine,
            target,
            options,
        }
    }

    /// Acquires, waiting for as long as it takes.
    fn wait(&self, kind: Kind, units: u32) -> Result<Holding> {
        self.acquire(kind, units, Some(Time::NEVER)).map(ever)
    }

    /// Acquires, waiting for at most `wait`; where that is zero it is a try.
    fn wait_for(&self, kind: Kind, units: u32, wait: Duration) -> Result<Option<Holding>> {
        self.acquire(kind, units, self.until(wait)).map(in_time)
    }

    /// Runs `f` under a guard that `guard` makes of what `acquire` brings within `wait`, and that `release` ends.
    fn with<H, G, T>(
        &self,
        wait: Duration,
        acquire: impl FnOnce(Option<Time>) -> Result<Acquired<H>>,
        guard: impl FnOnce(H) -> G,
        f: impl FnOnce(&G) -> T,
        release: impl FnOnce(G) -> Result<()>,
    ) -> Result<T> {
        let asked = self.engine.now();
        match acquire(self.until(wait))? {
            Acquired::Turn(held) => run(guard(held), f, release),
            Acquired::Busy(holder) => Err(Error::Timeout {
                // The call would have failed before on a name that is none.
                name: self
                    .target
                    .as_ref()
                    .map_or("".into(), |target| target.name().into()),
                waited: self.engine.now().since(asked),
                holder,
            }),
        }
    }

    /// When a wait of this length ends; none where it is only a try.
    fn until(&self, wait: Duration) -> Option<Time> {
        (!wait.is_zero()).then(|| self.engine.now() + wait)
    }

    fn acquire(&self, kind: Kind, units: u32, until: Option<Time>) -> Result<Acquired> {
        self.acquire_one(self.target()?, kind, units, until)
    }

    fn acquire_one(
        &self,
        target: &Target,
        kind: Kind,
        units: u32,
        until: Option<Time>,
    ) -> Result<Acquired> {
        let acquired = self.engine.acquire(&Request {
            kind,
            target,
            options: self.options,
            units,
            until,
        });
        acquired.map_err(|error| self.with_the_kind_found(error, target, Some(kind)))
    }

    /// Adds to a `WrongType` the kind of lock that has the name. It takes a further request, which only reads; a user
    /// without the right to it gets the error as it is.
    fn with_the_kind_found(&self, error: Error, target: &Target, own: Option<Kind>) -> Error {
        if !matches!(error, Error::WrongType { .. }) {
            return error;
        }
        let own = own.map(|kind| match kind {
            Kind::Mutex | Kind::Multi => "mutex",
            Kind::Read | Kind::Write => "reader-writer lock",
            Kind::Semaphore { .. } => "semaphore",
        });
        let found = target.keys().iter().find_map(|key| {
            let seen = self.engine.inspect(key).ok()??;
            let found = match seen.of {
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

    fn target(&self) -> Result<&Target> {
        self.target.as_ref().map_err(Error::clone)
    }

    fn fmt(&self, handle: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(handle)
            .field("name", &self.target.as_ref().map(Target::name))
            .field("lease", &self.options.lease)
            .field("renew", &self.options.renew)
            .field("max_hold", &self.options.max_hold)
            .finish_non_exhaustive()
    }
}

/// What came of a wait without an end.
fn ever<T>(acquired: Acquired<T>) -> T {
    match acquired {
        Acquired::Turn(held) => held,
        Acquired::Busy(_) => unreachable!("a wait without an end does not end with \"held\""),
    }
}

/// What came of a wait with an end.
fn in_time<T>(acquired: Acquired<T>) -> Option<T> {
    match acquired {
        Acquired::Turn(held) => Some(held),
        Acquired::Busy(_) => None,
    }
}

/// Runs `f` under a guard, which `release` ends.
fn run<G, T>(
    guard: G,
    f: impl FnOnce(&G) -> T,
    release: impl FnOnce(G) -> Result<()>,
) -> Result<T> {
    let value = f(&guard);
    match release(guard) {
        Err(Error::Lost(lost)) => Err(Error::Lost(lost)),
        // It ran under the lock; that the server could not be told goes to the renewal thread.
        Ok(()) | Err(_) => Ok(value),
    }
}

/// How long it is until `deadline`.
fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The options that handles have of their own.
macro_rules! options {
    ($handle:ident) => {
        impl $handle {
            /// How long Redis keeps the lock without a renewal: what a crashed holder delays the others by. From
            /// 10 ms to 24 h. Defaults to the manager's.
            #[must_use]
            pub fn lease(mut self, lease: Duration) -> Self {
                self.handle.options.lease = lease;
                self
            }

            /// Whether the lease is renewed for as long as the guard lives. Without renewal a guard is lost when
            /// its lease is over. Defaults to the manager's.
            #[must_use]
            pub fn renew(mut self, on: bool) -> Self {
                self.handle.options.renew = on;
                self
            }

            /// How long one guard may be held; it is then released for the others and reads lost. Defaults to the
            /// manager's.
            #[must_use]
            pub fn max_hold(mut self, limit: Option<Duration>) -> Self {
                self.handle.options.max_hold = limit;
                self
            }
        }

        impl fmt::Debug for $handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.handle.fmt(stringify!($handle), f)
            }
        }
    };
}

pub(crate) use options;
