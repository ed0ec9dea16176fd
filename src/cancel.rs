//! A token that ends blocked calls from another thread.
//!
//! The token knows the threads that are blocked with it, and nothing of locks or queues: [`Cancel::cancel`] sets its flag
//! and unparks them. Each thread then leaves its queue itself. So no mutex is held while another is taken.
//!
//! 1. A thread enters the token's register before it parks for the first time, and leaves it when its call ends.
//! 2. Before each park it looks at the flag.
//! 3. `cancel` sets the flag before it looks into the register. So either the thread sees the flag, or `cancel` sees the
//!    thread; an unpark that comes before the park makes that return at once.

use std::collections::HashMap;
use std::fmt;

use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Thread, thread};

/// A token that ends blocked calls from another thread.
///
/// A handle is given a token by its `cancel_with`, such as [`Mutex::cancel_with`](crate::Mutex::cancel_with).
/// [`cancel`](Cancel::cancel) ends each call of such a handle that blocks, with
/// [`Error::Cancelled`](crate::Error::Cancelled). Any number of handles, threads and clones may share a token. It cannot be
/// reset: make a new one.
///
/// # What the calls do
///
/// | the call | after `cancel` |
/// | --- | --- |
/// | begins | `Cancelled`; nothing is sent, and a try returns it too |
/// | waits behind another thread of this process, or for another process | `Cancelled` at once; it has left the queue, and the next thread or process takes its place |
/// | waits for a pooled connection | `Cancelled` within a second; this request is not sent |
/// | waits for Redis's reply | ends when that request ends, at the latest after `connect_timeout` and `io_timeout`. If the lock is granted, the call returns the guard; if it fails with an error that is not [retryable](crate::Error::is_retryable), that error; else `Cancelled` |
/// | was granted the lock, or was handed it by another thread, before it noticed the cancel | returns the guard: a grant wins |
/// | waits for its time at a [`RateLimiter`](crate::RateLimiter) | `Cancelled` at once; the place that it took stays taken |
///
/// A program that must not work after a cancel looks at [`is_cancelled`](Cancel::is_cancelled) after it has the guard.
/// Guards are not affected. [`close`](crate::LockManager::close) ends every call of a manager; a token ends only the calls
/// of its handles.
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
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    register: Mutex<Register>,
}

/// Guarded by the token's mutex.
#[derive(Default)]
struct Register {
    blocked: HashMap<u64, Thread>,
    next: u64,
}

/// A blocked call's place in the register; dropping it leaves.
pub(crate) struct Registered {
    shared: Arc<Shared>,
    number: u64,
}

impl Cancel {
    /// Makes a token that is not cancelled.
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

    /// Ends the calls that block with this token, and all that begin later, with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    ///
    /// Does not wait for their ends, and does not block. A second call changes nothing. Do not call it in a forked child:
    /// it can block forever there if a thread of the parent used the token at the fork.
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
        for thread in blocked.into_values() {
            thread.unpark();
        }
    }

    /// Returns whether it was cancelled. Does not block.
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

    /// Has the calling thread unparked by [`cancel`](Cancel::cancel), until the result is dropped.
    pub(crate) fn register(&self) -> Registered {
        let shared = Arc::clone(&self.shared);
        let number = {
            let mut register = shared.register.lock();
            let number = register.next;
            register.next += 1;
            register.blocked.insert(number, thread::current());
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
        let (one, other) = (token.register(), token.clone().register());
        let blocked = || token.shared.register.lock().blocked.len();
        assert_eq!(blocked(), 2);
        drop(one);
        assert_eq!(blocked(), 1);
        token.cancel();
        drop(other);
        assert_eq!(blocked(), 0);
    }

    /// At whatever moment the cancel comes, no thread parks past it.
    #[test]
    fn a_cancel_is_never_slept_through() {
        for _ in 0..2000 {
            let token = Cancel::new();
            let parked = token.clone();
            let thread = thread::spawn(move || {
                let _registered = parked.register();
                while !parked.is_cancelled() {
                    thread::park();
                }
            });
            token.cancel();
            thread.join().expect("no panic");
        }
    }
}
