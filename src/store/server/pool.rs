//! The pool of connections to the nodes of a quorum: a thread has a connection to each node for itself.
//!
//! Requests with priority take a place before all others. So a thousand threads that wait for locks cannot keep a holder
//! from its release. The requests of holders have priority. So does the request of a thread that was notified of a
//! hand-over: if it does not ask soon, it loses its turn.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::error::Failure;
use crate::stats::PoolCounters;
use crate::store::server::places::{IDLE, Places, Pooled, TakenPlace, no_place};
use crate::store::server::tasks::TaskThread;
use crate::store::{Deadline, Phase};
use crate::sys::{Arc, Condvar, Mutex};

/// A pool of links, with a gate before it.
pub(crate) struct Pool<L: Pooled> {
    places: Places<L>,
    counters: Arc<PoolCounters>,
    /// The gate: how many threads wait for a place, with priority and without.
    waiting: Mutex<[usize; 2]>,
    /// Notified when a place may be free for a thread with priority, or without.
    changed: [Condvar; 2],
}

/// A place that a thread has taken. Its drop gives the place back.
pub(crate) struct PoolPlace<'a, L: Pooled> {
    pool: &'a Pool<L>,
    /// `None` during its drop.
    place: Option<TakenPlace<L>>,
}

impl<L: Pooled> Pool<L> {
    /// Makes a pool of `size` places. `make` makes what a place has, and returns `None` if the store was dropped. The pool's
    /// thread does the tasks of `tasks`.
    pub(crate) fn new(
        make: impl Fn() -> Option<L> + Send + Sync + 'static,
        size: u32,
        tasks: TaskThread,
        counters: Arc<PoolCounters>,
    ) -> Arc<Self> {
        let pool = Arc::new(Self {
            places: Places::new(make, size, tasks),
            counters,
            waiting: Mutex::new([0; 2]),
            changed: [const { Condvar::new() }; 2],
        });
        pool.places.close_idle_of(&pool, IDLE, Self::close_idle);
        pool
    }

    fn close_idle(&self, idle: Duration) {
        self.for_each_free(|free| free.close_if_idle(idle));
    }

    /// Does this with each free place.
    pub(crate) fn for_each_free(&self, act: impl FnMut(&mut L)) {
        self.places.for_each_free(act);
        self.notify(*self.waiting.lock());
    }

    /// Waits for a free place. With priority it waits before all others.
    ///
    /// # Errors
    ///
    /// Returns [`FailureKind::Unavailable`](crate::error::FailureKind) if no place became free in time, or before the
    /// call was over.
    pub(crate) fn take(&self, deadline: &mut Deadline<'_>) -> Result<PoolPlace<'_, L>, Failure> {
        let mut wait = deadline.phase(Phase::Checkout, deadline.checkout);
        let own = usize::from(!wait.has_priority);
        let mut waiting = self.waiting.lock();
        let mut begun = None;
        let place = loop {
            if wait.has_priority || waiting[0] == 0 {
                if let Some(place) = self.places.try_take() {
                    break Some(place);
                }
            }
            let Some(slice) = wait.next_look() else {
                break None;
            };
            begun.get_or_insert(wait.now());
            waiting[own] += 1;
            waiting = self.changed[own].wait_for(waiting, slice);
            waiting[own] -= 1;
        };
        // Only this thread was notified. If a place is free, another thread may take it.
        self.notify(*waiting);
        drop(waiting);
        if let Some(begun) = begun {
            self.counters.waits.record(wait.now().since(begun));
        }
        deadline.after_checkout(&wait);
        let place = place.map(|place| {
            self.counters.taken();
            PoolPlace {
                pool: self,
                place: Some(place),
            }
        });
        // One more look, so that no request of a call that is over delays others.
        let place = place.filter(|_| !wait.is_over());
        place.ok_or_else(|| no_place(&wait))
    }

    /// Wakes a thread that waits, first those with priority, if there is a free place.
    fn notify(&self, waiting: [usize; 2]) {
        let first = waiting.iter().position(|count| *count > 0);
        if let Some(first) = first.filter(|_| self.places.has_free()) {
            self.changed[first].notify_one();
        }
    }
}

impl<L: Pooled> Drop for PoolPlace<'_, L> {
    fn drop(&mut self) {
        let waiting = self.pool.waiting.lock();
        self.place = None;
        self.pool.counters.given_back();
        self.pool.notify(*waiting);
    }
}

impl<L: Pooled> Deref for PoolPlace<'_, L> {
    type Target = L;

    fn deref(&self) -> &L {
        self.place.as_ref().expect("it is there until the drop")
    }
}

impl<L: Pooled> DerefMut for PoolPlace<'_, L> {
    fn deref_mut(&mut self) -> &mut L {
        self.place.as_mut().expect("it is there until the drop")
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::sys::{AtomicBool, AtomicU32, Ordering, Time};
    use std::thread;

    const SOON: Duration = Duration::from_secs(20);

    struct Nothing;

    impl Pooled for Nothing {
        fn close_if_idle(&mut self, _: Duration) {}
    }

    /// Returns the deadline of a call that waits this long for a place.
    fn within(limit: Duration, has_priority: bool) -> Deadline<'static> {
        let mut deadline = Deadline::after(limit);
        deadline.has_priority = has_priority;
        deadline
    }

    fn pool(size: u32) -> Arc<Pool<Nothing>> {
        Pool::new(|| Some(Nothing), size, TaskThread::new(), Arc::default())
    }

    /// Many threads only ask, and one has priority: it gets the next place.
    #[test]
    fn a_request_with_priority_gets_the_next_place() {
        const ASKING: u32 = 200;
        for size in [1, 3] {
            let pool = pool(size);
            let (waiting, served) = (AtomicU32::new(0), AtomicU32::new(0));
            let mut held: Vec<_> = (0..size)
                .map(|_| pool.take(&mut within(SOON, false)).expect("it is free"))
                .collect();
            thread::scope(|scope| {
                for _ in 0..ASKING {
                    scope.spawn(|| {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        let link = pool.take(&mut within(SOON, false)).expect("it comes free");
                        served.fetch_add(1, Ordering::SeqCst);
                        drop(link);
                    });
                }
                let with_priority = scope.spawn(|| {
                    let link = pool.take(&mut within(SOON, true)).expect("it comes free");
                    let before = served.load(Ordering::SeqCst);
                    drop(link);
                    before
                });
                while waiting.load(Ordering::SeqCst) < ASKING || pool.waiting.lock()[0] == 0 {
                    thread::yield_now();
                }
                drop(held.pop());
                assert_eq!(with_priority.join().expect("no panic"), 0);
                drop(held);
            });
            assert_eq!(served.load(Ordering::SeqCst), ASKING);
            let free = (0..=size).map_while(|_| pool.places.try_take());
            assert_eq!(free.collect::<Vec<_>>().len() as u32, size);
        }
    }

    #[test]
    fn a_wait_ends_at_its_time_limit() {
        let pool = pool(1);
        let held = pool.take(&mut within(SOON, false)).expect("it is free");
        let short = Duration::from_millis(20);
        for has_priority in [false, true] {
            let started = Time::now();
            assert!(pool.take(&mut within(short, has_priority)).is_err());
            assert!(started.elapsed() >= short);
        }
        drop(held);
        for has_priority in [true, false, true] {
            assert!(pool.take(&mut within(SOON, has_priority)).is_ok());
        }
    }

    #[test]
    fn a_call_that_is_over_does_not_wait_for_a_place() {
        let pool = pool(1);
        let held = pool.take(&mut within(SOON, false)).expect("it is free");
        let over = AtomicBool::new(false);
        let is_over = || over.load(Ordering::SeqCst);
        thread::scope(|scope| {
            // One thread waits at the gate, the other for a place.
            let waits = [false, true].map(|has_priority| {
                let (pool, is_over) = (&pool, &is_over);
                scope.spawn(move || {
                    let mut deadline = within(SOON * 10, has_priority).ended_by(is_over);
                    pool.take(&mut deadline).is_err()
                })
            });
            over.store(true, Ordering::SeqCst);
            let begun = Time::now();
            for wait in waits {
                assert!(wait.join().expect("no panic"), "it has a link");
            }
            assert!(begun.elapsed() < SOON);
        });
        drop(held);
        // A call that is over does not get a free place either.
        let mut over = within(SOON, false).ended_by(&is_over);
        assert!(pool.take(&mut over).is_err());
        assert!(pool.take(&mut within(SOON, false)).is_ok());
    }
}
