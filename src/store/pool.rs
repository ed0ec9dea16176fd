//! The pool of connections to the nodes of a quorum: a thread has a connection to each node for itself.
//!
//! A thread that asks for a lock goes through a gate first. So a thousand threads that wait for locks cannot keep a
//! holder from its release.
//!
//! | request | waits for |
//! | --- | --- |
//! | with priority | a place: so for the requests under way, and for the threads that are through the gate already |
//! | any other | the gate; then a place |
//!
//! The gate lets through at most as many threads as there are places, and none while a request with priority waits. The
//! requests of holders have priority. So does the request of a thread that was notified of a hand-over: if it does not
//! ask soon, it loses its turn.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::error::Failure;
use crate::store::places::{Places, Pooled, TakenPlace, Wait};
use crate::sync::{Condvar, Mutex};

/// A pool of links, with a gate before it.
pub(crate) struct Pool<L: Pooled> {
    places: Places<L>,
    gate: Gate,
}

/// The gate for requests without priority.
struct Gate {
    state: Mutex<State>,
    /// Notified when another thread may go through.
    changed: Condvar,
}

/// The state of the gate, guarded by its mutex.
struct State {
    /// How many more threads may go through.
    free: u32,
    /// How many requests with priority wait for a place.
    priority_waiting: u32,
    /// How many threads wait before the gate. A notification takes a system call even if it wakes nobody.
    waiting: u32,
}

/// The permission of a thread that is through the gate. Its drop lets another thread through.
struct Checkout<'a>(&'a Gate);

/// A request with priority that waits for a place. Until its drop no thread goes through the gate.
struct Priority<'a>(&'a Gate);

/// A link, and the permission of the thread that uses it.
struct Taken<'a, L: Pooled> {
    // The link is dropped first, so that its place is free when the next thread goes through the gate.
    link: TakenPlace<L>,
    _checkout: Option<Checkout<'a>>,
}

impl<L: Pooled> Pool<L> {
    /// Makes a pool of `size` places. `make` makes what a place has, and returns `None` if the store was dropped.
    pub(crate) fn new(make: impl Fn() -> Option<L> + Send + Sync + 'static, size: u32) -> Self {
        let gate = Gate {
            state: Mutex::new(State {
                free: size,
                priority_waiting: 0,
                waiting: 0,
            }),
            changed: Condvar::new(),
        };
        Self {
            places: Places::new(make, size),
            gate,
        }
    }

    /// Waits for a free link. With priority it waits before all others. Every [`LOOK_EVERY`] it calls `is_over`, and
    /// stops waiting if the call is over.
    ///
    /// # Errors
    ///
    /// Returns [`FailureKind::Unavailable`] if no link became free within `wait`, or before the call was over.
    pub(crate) fn take(
        &self,
        wait: Duration,
        has_priority: bool,
        is_over: &dyn Fn() -> bool,
    ) -> Result<impl DerefMut<Target = L>, Failure> {
        let wait = Wait::new(wait, is_over);
        let taken = if has_priority {
            self.with_priority(&wait)
        } else {
            self.in_turn(&wait)
        };
        // One more look, so that no request of a call that is over delays others.
        let taken = taken.filter(|_| !is_over());
        taken.ok_or_else(|| wait.failure())
    }

    fn in_turn(&self, wait: &Wait<'_>) -> Option<Taken<'_, L>> {
        let checkout = self.gate.check_out(wait)?;
        Some(Taken {
            link: self.place(wait)?,
            _checkout: Some(checkout),
        })
    }

    fn with_priority(&self, wait: &Wait<'_>) -> Option<Taken<'_, L>> {
        let link = self.places.try_take().or_else(|| {
            let _priority = self.gate.close();
            self.place(wait)
        })?;
        Some(Taken {
            link,
            _checkout: None,
        })
    }

    /// Waits for a free place.
    fn place(&self, wait: &Wait<'_>) -> Option<TakenPlace<L>> {
        // r2d2 hands out a free place even if no time is left.
        let mut slice = wait.slice().unwrap_or_default();
        loop {
            if let Some(link) = self.places.take(slice) {
                return Some(link);
            }
            slice = wait.slice()?;
        }
    }
}

impl Gate {
    /// Waits until the gate is open. Returns `None` if the wait is over first.
    fn check_out(&self, wait: &Wait<'_>) -> Option<Checkout<'_>> {
        let mut state = self.state.lock();
        while !state.is_open() {
            let slice = wait.slice()?;
            state.waiting += 1;
            state = self.changed.wait_for(state, slice);
            state.waiting -= 1;
        }
        state.free -= 1;
        // Only this thread was notified. If the gate is still open, another thread may go through.
        self.notify(&state);
        Some(Checkout(self))
    }

    /// Wakes a thread that waits, if it may go through.
    fn notify(&self, state: &State) {
        if state.waiting > 0 && state.is_open() {
            self.changed.notify_one();
        }
    }

    /// Closes the gate until the result is dropped.
    fn close(&self) -> Priority<'_> {
        self.state.lock().priority_waiting += 1;
        Priority(self)
    }
}

impl State {
    fn is_open(&self) -> bool {
        self.free > 0 && self.priority_waiting == 0
    }
}

impl Drop for Checkout<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.free += 1;
        self.0.notify(&state);
    }
}

impl Drop for Priority<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.priority_waiting -= 1;
        self.0.notify(&state);
    }
}

impl<L: Pooled> Deref for Taken<'_, L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.link
    }
}

impl<L: Pooled> DerefMut for Taken<'_, L> {
    fn deref_mut(&mut self) -> &mut L {
        &mut self.link
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::sync::{AtomicBool, AtomicU32, Ordering, thread};

    const SOON: Duration = Duration::from_secs(20);

    fn never() -> bool {
        false
    }

    struct Nothing;

    impl Pooled for Nothing {
        fn close_if_idle(&mut self, _: Duration) {}
    }

    fn pool(size: u32) -> Pool<Nothing> {
        Pool::new(|| Some(Nothing), size)
    }

    /// Many threads only ask, and one has priority: it gets the next place.
    #[test]
    fn a_request_with_priority_gets_the_next_place() {
        const ASKING: u32 = 200;
        for size in [1, 3] {
            let pool = pool(size);
            let (waiting, served) = (AtomicU32::new(0), AtomicU32::new(0));
            let mut held: Vec<_> = (0..size)
                .map(|_| pool.take(SOON, false, &never).expect("it is free"))
                .collect();
            thread::scope(|scope| {
                for _ in 0..ASKING {
                    scope.spawn(|| {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        let link = pool.take(SOON, false, &never).expect("it comes free");
                        served.fetch_add(1, Ordering::SeqCst);
                        drop(link);
                    });
                }
                let with_priority = scope.spawn(|| {
                    let link = pool.take(SOON, true, &never).expect("it comes free");
                    let before = served.load(Ordering::SeqCst);
                    drop(link);
                    before
                });
                while waiting.load(Ordering::SeqCst) < ASKING
                    || pool.gate.state.lock().priority_waiting == 0
                {
                    thread::yield_now();
                }
                drop(held.pop());
                assert_eq!(with_priority.join().expect("no panic"), 0);
                drop(held);
            });
            assert_eq!(served.load(Ordering::SeqCst), ASKING);
            assert_eq!(pool.gate.state.lock().free, size);
        }
    }

    #[test]
    fn a_wait_ends_at_its_time_limit() {
        let pool = pool(1);
        let held = pool.take(SOON, false, &never).expect("it is free");
        let short = Duration::from_millis(20);
        for has_priority in [false, true] {
            let started = Instant::now();
            assert!(pool.take(short, has_priority, &never).is_err());
            assert!(started.elapsed() >= short);
        }
        drop(held);
        for has_priority in [true, false, true] {
            assert!(pool.take(SOON, has_priority, &never).is_ok());
        }
    }

    #[test]
    fn a_call_that_is_over_does_not_wait_for_a_place() {
        let pool = pool(1);
        let held = pool.take(SOON, false, &never).expect("it is free");
        let over = AtomicBool::new(false);
        let is_over = || over.load(Ordering::SeqCst);
        thread::scope(|scope| {
            // One thread waits at the gate, the other for a place.
            let waits = [false, true].map(|has_priority| {
                let (pool, is_over) = (&pool, &is_over);
                scope.spawn(move || pool.take(SOON * 10, has_priority, is_over).is_err())
            });
            over.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            for wait in waits {
                assert!(wait.join().expect("no panic"), "it has a link");
            }
            assert!(begun.elapsed() < SOON);
        });
        drop(held);
        // A call that is over does not get a free place either.
        assert!(pool.take(SOON, false, &is_over).is_err());
        assert!(pool.take(SOON, false, &never).is_ok());
    }
}
