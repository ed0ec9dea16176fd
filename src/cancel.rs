//! A token that ends blocked calls from another thread.
//!
//! The token has a flag, and a register of the threads that are blocked with it. It has no reference to locks or queues:
//! [`Cancel::cancel`] sets the flag and wakes the threads, and each thread leaves its queue itself, so that no thread takes a
//! mutex while it holds another.
//!
//! 1. A thread enters the register before it sleeps for the first time, and leaves the register when its call ends.
//! 2. The thread reads the flag before each sleep.
//! 3. `cancel` sets the flag before it reads the register. So either the thread sees the flag, or `cancel` sees the
//!    thread. If `cancel` wakes the thread before it sleeps, the sleep returns at once.

use std::fmt;

use crate::sys::hash::HashMap;
use crate::sys::thread::Parker;
use crate::sys::{Arc, AtomicBool, Mutex, Ordering};

/// A token that ends blocked calls from another thread.
///
/// A handle gets a token by its `cancel_with`, such as [`Mutex::cancel_with`](crate::Mutex::cancel_with).
/// [`cancel`](Cancel::cancel) ends each call of such a handle that blocks, with
/// [`Error::Cancelled`](crate::Error::Cancelled). Any number of handles, threads and clones may share a token. A token cannot
/// be reset: make a new one.
///
/// # The effect on a call
///
/// | the call | result of `cancel` |
/// | --- | --- |
/// | begins after it, also a try | `Cancelled`; no request is sent |
/// | waits behind another thread of this process, or for another process | `Cancelled` at once; the next thread or process takes its place in the queue |
/// | waits for a pooled connection | `Cancelled` within 1 s; the request is not sent |
/// | waits for Redis's reply | the call ends with the request, at the latest after `connect_timeout` and `io_timeout`. It returns the guard if Redis grants the lock, and an error that is not [retryable](crate::Error::is_retryable) as it is; else `Cancelled` |
/// | has got the lock, from Redis or from another thread, but has not returned yet | the guard |
/// | waits for its time at a [`RateLimiter`](crate::RateLimiter) | `Cancelled` at once; the place that the call took stays taken |
///
/// A program that must not work after a cancel calls [`is_cancelled`](Cancel::is_cancelled) when it has the guard. A
/// token does not affect guards. [`close`](crate::LockManager::close) ends every call of a manager; a token ends only
/// the calls of its handles.
///
/// # Example
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::{Cancel, Error};
/// use std::time::Duration;
///
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let stop = Cancel::new();
/// let job = locks.mutex("job").cancel_with(&stop);
/// let worker = std::thread::spawn(move || match job.lock() {
///     Ok(guard) => println!("working as number {}", guard.fence()),
///     Err(Error::Cancelled) => println!("stopped before its turn came"),
///     Err(error) => println!("{error:#}"),
/// });
/// std::thread::sleep(Duration::from_secs(1));
/// stop.cancel();
/// worker.join().unwrap();
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Cancel {
    shared: Arc<TokenState>,
}

#[derive(Default)]
struct TokenState {
    cancelled: AtomicBool,
    register: Mutex<BlockedThreads>,
}

/// The threads that are blocked with a token. The token's mutex guards it.
#[derive(Default)]
struct BlockedThreads {
    blocked: HashMap<u64, Arc<Parker>>,
    next: u64,
}

/// The place of a blocked call in the register. Dropping it leaves the register.
pub(crate) struct Registered {
    shared: Arc<TokenState>,
    number: u64,
}

impl Cancel {
    /// Returns a new token that is not cancelled.
    ///
    /// # Example
    ///
    /// ```
    /// assert!(!leasehold::Cancel::new().is_cancelled());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the calls that block with this token, and all calls that begin later, with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    ///
    /// Does not block: the calls may end after it returns. A second `cancel` changes nothing. Do not use it in a forked
    /// child, where it can block for ever if a thread of the parent used the token during the fork.
    ///
    /// # Example
    ///
    /// ```
    /// let token = leasehold::Cancel::new();
    /// let clone = token.clone();
    /// token.cancel();
    /// assert!(clone.is_cancelled());
    /// ```
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::SeqCst);
        let blocked = std::mem::take(&mut self.shared.register.lock().blocked);
        for parker in blocked.into_values() {
            parker.wake();
        }
    }

    /// Returns whether the token is cancelled. Does not block.
    ///
    /// # Example
    ///
    /// ```
    /// let token = leasehold::Cancel::new();
    /// token.cancel();
    /// assert!(token.is_cancelled());
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::SeqCst)
    }

    /// Registers the thread that sleeps at `parker`: [`cancel`](Cancel::cancel) wakes it, until the result is dropped.
    pub(crate) fn register(&self, parker: &Arc<Parker>) -> Registered {
        let shared = Arc::clone(&self.shared);
        let number = {
            let mut register = shared.register.lock();
            let number = register.next;
            register.next += 1;
            register.blocked.insert(number, Arc::clone(parker));
            number
        };
        Registered { shared, number }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.register.lock().blocked.remove(&self.number);
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel")
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_ends_leaves_nothing_in_the_register() {
        let token = Cancel::new();
        let parker = Arc::default();
        let (one, other) = (token.register(&parker), token.clone().register(&parker));
        let blocked = || token.shared.register.lock().blocked.len();
        assert_eq!(blocked(), 2);
        drop(one);
        assert_eq!(blocked(), 1);
        token.cancel();
        drop(other);
        assert_eq!(blocked(), 0);
    }
}
