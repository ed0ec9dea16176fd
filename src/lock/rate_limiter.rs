//! The rate limiter: so many in any window of time, over all processes.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Failure, FailureKind, Result};
use crate::lock::Handle;
use crate::message::RateRequest;

/// The shortest window.
const LEAST: Duration = Duration::from_millis(1);
/// The longest window.
const MOST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Lets so many threads of all processes past in any window of time, by the server's clock.
///
/// It is exact by the server's clock: no window of length `per`, wherever it begins, holds more than `permits` (a sliding log, not a bucket,
/// which would let twice as many past at the edge of two windows). One script decides, in one request. Redis stores one
/// time per permit and drops the log after `per`.
///
/// Handles with other figures share the log of their name: each is exact by its own, counting all, from when it was
/// first used.
///
/// A call that waits takes its place at once, in the order of asking, and sleeps until its time: however many wait, nobody
/// polls and nobody is overtaken. A place is kept for a process that crashes or is closed meanwhile, and a request
/// whose answer was lost may have taken one: both err on the side of fewer.
///
/// A thread that waited may return late, because its machine was busy. Several such returns can come together, and by a
/// clock on the wall more than `permits` calls may so return within `per`. Their places on the server keep the limit.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::Admission;
/// use std::time::Duration;
///
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let mails = locks.rate_limiter("mails", 20, Duration::from_secs(60));
/// mails.acquire()?; // waits for its turn
/// match mails.try_acquire()? {
///     Admission::Admitted => println!("sent"),
///     Admission::RetryAfter(wait) => println!("in {wait:?}"),
///     _ => {} // a later version may answer more
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    handle: Handle,
    permits: u32,
    per: Duration,
}

/// The answer of a [`RateLimiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the caller may go ahead only if it was admitted"]
#[non_exhaustive]
pub enum Admission {
    /// Go ahead.
    Admitted,
    /// Not now: there is no place before so much time has gone by, and none was taken.
    RetryAfter(Duration),
}

crate::lock::cancel_with!(RateLimiter);

impl RateLimiter {
    pub(crate) fn new(mut handle: Handle, permits: u32, per: Duration) -> Self {
        let wrong = if permits == 0 {
            Some(Error::config("permits", "zero"))
        } else if !(LEAST..=MOST).contains(&per) {
            let reason = format!("{per:?} is not between 1 ms and a year");
            Some(Error::config("per", reason))
        } else {
            None
        };
        if let Some(error) = wrong {
            handle.refuse(error);
        }
        Self {
            handle,
            permits,
            per,
        }
    }

    /// Returns the name of the rate limiter, as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Takes a place and waits for its time.
    ///
    /// While blocked the thread sleeps; nothing is sent.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`]: the name cannot be used. Nothing was sent.
    /// * [`Error::Config`]: a setting cannot be used, and nothing was sent; or the server does not have the database.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::WrongType`], [`Error::Protocol`]: what came of the one
    ///   request.
    /// * [`Error::Closed`]: the manager was closed, also during the wait.
    /// * [`Error::Cancelled`]: the handle's [token](crate::Cancel) was cancelled, also during the wait; the place that
    ///   the call took stays taken.
    pub fn acquire(&self) -> Result<()> {
        match self.ask(Duration::MAX)? {
            Admission::Admitted => Ok(()),
            Admission::RetryAfter(wait) => {
                // Beyond what the script can count: after more than a hundred years.
                let words = format!("the next free place is {wait:?} away");
                let failure = Failure::plain(FailureKind::Unavailable, false, words);
                Err(failure.into_error(Some(self.name())))
            }
        }
    }

    /// Takes a place if there is one now. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`acquire`](RateLimiter::acquire).
    pub fn try_acquire(&self) -> Result<Admission> {
        self.ask(Duration::ZERO)
    }

    /// Takes a place if its time comes within `wait`, and waits for it; else returns at once.
    ///
    /// # Errors
    ///
    /// As [`acquire`](RateLimiter::acquire).
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Admission> {
        self.ask(wait)
    }

    fn ask(&self, patience: Duration) -> Result<Admission> {
        let request = RateRequest {
            permits: self.permits,
            per: self.per,
            patience,
        };
        let target = self.handle.target()?;
        let cancel = self.handle.cancel.as_ref();
        let answer = self
            .handle
            .engine
            .ask_rate_limiter(target.first(), request, cancel);
        let refused =
            answer.map_err(|error| self.handle.with_the_kind_found(error, target, None))?;
        Ok(refused.map_or(Admission::Admitted, Admission::RetryAfter))
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .field("per", &self.per)
            .finish_non_exhaustive()
    }
}
