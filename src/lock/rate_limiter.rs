//! The rate limiter: a number of admissions in any window of time, among all processes.

use std::fmt;
use std::time::Duration;

use crate::engine::rate_limiter;
use crate::error::{Error, Failure, FailureKind, Result};
use crate::lock::handle::Handle;
use crate::lock::methods::basics;
use crate::wire::RateRequest;

/// The shortest window.
const LEAST: Duration = Duration::from_millis(1);
/// The longest window.
const MOST: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The most places of one call. Redis serves nobody else while it writes them down.
const MOST_PLACES: u32 = 10_000;

/// A limit on how often callers are admitted, among all threads of all processes that use the same Redis.
///
/// By the server's clock, at most `permits` callers are admitted in any window of length `per`, wherever the window
/// begins. (The limiter is a sliding log. A limiter with fixed windows admits up to twice as many around the end of a
/// window.) One script decides, in one request. Redis stores one time for each permit, and drops the log when `per`
/// has passed since the last admission.
///
/// Handles with other numbers share the log of their name. Each handle keeps to its own numbers, and counts the
/// admissions of all, from its first call on.
///
/// A call that waits takes its place at once, in the order of the calls, and sleeps until the time of that place. No call
/// polls, and no call is overtaken. A place stays taken if its process crashes or its manager is closed, and a request
/// whose reply was lost may have taken one too, so faults admit fewer callers, and never more.
///
/// On a busy machine, a thread that waited may return late, and several late returns can come together, so that more than
/// `permits` calls return within `per` by the clock on the wall. The places in Redis keep the limit.
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
///     _ => {} // a later version may have more variants
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    handle: Handle,
    permits: u32,
    per: Duration,
}

/// The reply of a [`RateLimiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the caller may go ahead only if it was admitted"]
#[non_exhaustive]
pub enum Admission {
    /// The caller may go ahead.
    Admitted,
    /// The caller has no place. The next place is free after this time.
    RetryAfter(Duration),
}

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

    /// Takes a place, and blocks until its time.
    ///
    /// Sends one request, and then the thread sleeps.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`]: the name cannot be used. Nothing was sent.
    /// * [`Error::Config`]: a setting cannot be used, and nothing was sent. Or the server does not have the database.
    /// * [`Error::Unavailable`]: the request failed, or the next place is more than a hundred years away.
    /// * [`Error::Denied`], [`Error::WrongType`], [`Error::Unsupported`], [`Error::Protocol`]: the request failed.
    /// * [`Error::Closed`]: the manager was closed, before the call or while it slept.
    /// * [`Error::Forked`]: this process is a forked child.
    /// * [`Error::Cancelled`]: the handle's [token](crate::Cancel) was cancelled. If the call had a place, the place
    ///   stays taken.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(mails: &leasehold::RateLimiter) -> leasehold::Result<()> {
    /// mails.acquire()?;
    /// // … send one mail …
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> Result<()> {
        self.acquire_many(1)
    }

    /// Takes `n` places at once, and blocks until their time. A caller that costs more than others takes more places.
    ///
    /// The places have one time: the earliest at which no window has more than `permits` admissions. Redis keeps each place by
    /// itself, so count in units of which a window has thousands, and not millions. Otherwise as
    /// [`acquire`](RateLimiter::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](RateLimiter::acquire), and [`Error::Config`] if `n` is 0, or more than the limiter's `permits` or 10,000.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(mails: &leasehold::RateLimiter, recipients: u32) -> leasehold::Result<()> {
    /// mails.acquire_many(recipients)?;
    /// // … send the mail to all of them …
    /// # Ok(()) }
    /// ```
    pub fn acquire_many(&self, n: u32) -> Result<()> {
        match self.ask(n, Duration::MAX)? {
            Admission::Admitted => Ok(()),
            Admission::RetryAfter(wait) => {
                // The script does not count further: this is more than a hundred years.
                let words = format!("the next free place is {wait:?} away");
                let failure = Failure::not_executed(FailureKind::Unavailable, words);
                Err(failure.into_error(Some(self.name())))
            }
        }
    }

    /// Takes a place if one is free now. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`acquire`](RateLimiter::acquire).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(mails: &leasehold::RateLimiter) -> leasehold::Result<()> {
    /// if let leasehold::Admission::RetryAfter(wait) = mails.try_acquire()? {
    ///     println!("not before {wait:?} have passed");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> Result<Admission> {
        self.ask(1, Duration::ZERO)
    }

    /// Takes `n` places if all are free now, and otherwise none. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](RateLimiter::acquire_many).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(mails: &leasehold::RateLimiter) -> leasehold::Result<()> {
    /// if let leasehold::Admission::RetryAfter(wait) = mails.try_acquire_many(20)? {
    ///     println!("not before {wait:?} have passed");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_many(&self, n: u32) -> Result<Admission> {
        self.ask(n, Duration::ZERO)
    }

    /// Takes a place if its time comes within `wait`, and blocks until that time. If no place comes in time, takes
    /// none, and returns without a wait.
    ///
    /// Sends one request, and then the thread sleeps.
    ///
    /// # Errors
    ///
    /// As [`acquire`](RateLimiter::acquire).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(mails: &leasehold::RateLimiter) -> leasehold::Result<()> {
    /// if mails.try_acquire_for(Duration::from_secs(2))? == leasehold::Admission::Admitted {
    ///     // … send one mail …
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Admission> {
        self.ask(1, wait)
    }

    /// Takes `n` places if their time comes within `wait`, and blocks until that time. Otherwise takes none, and returns
    /// without a wait.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](RateLimiter::acquire_many).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(mails: &leasehold::RateLimiter) -> leasehold::Result<()> {
    /// if mails.try_acquire_many_for(20, Duration::from_secs(2))? == leasehold::Admission::Admitted {
    ///     // … send 20 mails …
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_many_for(&self, n: u32, wait: Duration) -> Result<Admission> {
        self.ask(n, wait)
    }

    fn ask(&self, n: u32, patience: Duration) -> Result<Admission> {
        let target = self.handle.target()?;
        if n == 0 || n > self.permits.min(MOST_PLACES) {
            let reason = format!("{n} places of {}, and at most 10,000 at once", self.permits);
            return Err(Error::config("n", reason));
        }
        let request = RateRequest {
            permits: self.permits,
            per: self.per,
            taken: n,
            patience,
        };
        let cancel = self.handle.cancel.as_ref();
        let engine = &self.handle.engine;
        let refused = rate_limiter::ask(engine, target.first(), request, cancel)
            .map_err(|error| self.handle.with_the_kind_found(error, None))?;
        Ok(refused.map_or(Admission::Admitted, Admission::RetryAfter))
    }
}

basics!(RateLimiter);

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .field("per", &self.per)
            .finish_non_exhaustive()
    }
}
