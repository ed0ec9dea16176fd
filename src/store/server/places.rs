//! The r2d2 pool of *places* for connections to one server, or to every node of a quorum.
//!
//! The thread that uses a place connects it, so a refused connection is a typed error at once. r2d2 would connect on
//! other threads, and report a failure only after the whole time limit, as a string. A thread that notices a broken
//! connection replaces it. So the pool does not test connections on checkout: a PING would cost half of the throughput,
//! and prove nothing about the request after it.
//!
//! No thread waits in r2d2. The owner of a pool has a mutex, its *gate*. A thread takes a place by `try_get` while it has
//! the gate, or waits at a condition variable of the gate. The owner decides who goes first.
//!
//! r2d2's thread makes the places, and r2d2 has no other work for it. From then on it does the tasks of the owner
//! ([`TaskThread`]): it closes connections that no thread has used for a while. Such a task holds the owner weakly.

use std::fmt;
use std::time::Duration;

use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::error::Failure;
use crate::panics::survived;
use crate::store::Deadline;
use crate::store::server::errors::unavailable;
use crate::store::server::tasks::{TaskThread, Tasks};
use crate::sys::{Arc, Machine, Weak};

/// How long an unused connection is kept, and how often the pool looks for such connections. A held lock needs none.
pub(crate) const IDLE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(3));

/// How long to wait for r2d2's thread to start.
const THREAD_STARTS_WITHIN: Duration = Duration::from_secs(10);

/// The content of a place of the pool: a connection, or one to each node of a quorum.
pub(crate) trait Pooled: Send + 'static {
    /// Closes the connections that have not been used for `idle`. They open again when they are used.
    fn close_if_idle(&mut self, idle: Duration);
}

/// The factory of places, as r2d2 wants it.
pub(crate) struct Factory<L>(Box<dyn Fn() -> Option<L> + Send + Sync>);

/// The store was dropped, so nobody waits for a place any more.
#[derive(Debug)]
pub(crate) struct Dropped;

impl<L: Pooled> r2d2::ManageConnection for Factory<L> {
    type Connection = L;
    type Error = Dropped;

    fn connect(&self) -> Result<L, Dropped> {
        (self.0)().ok_or(Dropped)
    }

    fn is_valid(&self, _: &mut L) -> Result<(), Dropped> {
        Ok(())
    }

    /// Returns false: the thread that finds a connection broken closes it, and the next one opens another.
    fn has_broken(&self, _: &mut L) -> bool {
        false
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the manager was dropped")
    }
}

impl std::error::Error for Dropped {}

/// A place that a thread has taken. Its drop gives the place back.
pub(crate) type TakenPlace<L> = r2d2::PooledConnection<Factory<L>>;

/// The places of a pool.
pub(crate) struct Places<L: Pooled> {
    pool: r2d2::Pool<Factory<L>>,
    tasks: TaskThread,
}

impl<L: Pooled> Places<L> {
    /// Makes `size` places. `make` makes what a place has, and returns `None` if the store was dropped.
    pub(crate) fn new(
        make: impl Fn() -> Option<L> + Send + Sync + 'static,
        size: u32,
        tasks: TaskThread,
    ) -> Self {
        // r2d2's default is three threads, most of which would have no work.
        let threads = ScheduledThreadPool::builder()
            .num_threads(1)
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
            .thread_name_pattern("leasehold-pool-{}")
            .build();
        let threads = Arc::new(threads);
        let machine = Machine::here();
        let make = move || {
            let _entered = machine.enter();
            make()
        };
        let pool = r2d2::Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            // Places do not expire. The task below closes the connections in them.
            .idle_timeout(None)
            .max_lifetime(None)
            .thread_pool(Arc::clone(&threads))
            .build_unchecked(Factory(Box::new(make)));
        // r2d2's thread makes the places, one after the other, and then does these tasks. On a busy machine the thread may
        // start later than the time limit of the first request, which would then fail although the server is there.
        let work = Machine::here().running(tasks.work());
        threads.execute_after(Duration::from_nanos(1), work);
        tasks.await_begin(THREAD_STARTS_WITHIN);
        Self { pool, tasks }
    }

    /// Has the pool's thread call `close_idle` now and then, as long as the owner of the pool is there.
    pub(crate) fn close_idle_of<T: Send + Sync + 'static>(
        &self,
        owner: &Arc<T>,
        times: (Duration, Duration),
        close_idle: fn(&T, Duration),
    ) {
        plan_close_idle(self.tasks.tasks(), Arc::downgrade(owner), times, close_idle);
    }

    /// Returns a free place, the one that came back last. The caller has the gate.
    pub(crate) fn try_take(&self) -> Option<TakenPlace<L>> {
        self.pool.try_get()
    }

    /// Returns whether a place is free.
    pub(crate) fn has_free(&self) -> bool {
        self.pool.state().idle_connections > 0
    }

    /// Closes the connections of the free places that have not been used for `idle`.
    pub(crate) fn close_idle(&self, idle: Duration) {
        self.for_each_free(|free| free.close_if_idle(idle));
    }

    /// Does this with each free place. The caller then wakes the threads that have found no place meanwhile.
    pub(crate) fn for_each_free(&self, mut act: impl FnMut(&mut L)) {
        // All places are taken before one goes back. Otherwise the same one would come again and again.
        let mut free = Vec::new();
        while let Some(place) = self.pool.try_get() {
            free.push(place);
        }
        // The one that was used last goes back last, because the pool gives out first the one that came back last.
        while let Some(mut place) = free.pop() {
            act(&mut place);
        }
    }
}

fn plan_close_idle<T: Send + Sync + 'static>(
    tasks: &Arc<Tasks>,
    owner: Weak<T>,
    times: (Duration, Duration),
    close_idle: fn(&T, Duration),
) {
    let (idle, every) = times;
    let weak = Arc::downgrade(tasks);
    tasks.after(every, move || {
        if let (Some(tasks), Some(of_pool)) = (weak.upgrade(), owner.upgrade()) {
            survived(|| close_idle(&of_pool, idle));
            plan_close_idle(&tasks, owner, times, close_idle);
        }
    });
}

/// Returns the failure of a call that got no connection.
pub(crate) fn no_place(wait: &Deadline<'_>) -> Failure {
    Failure {
        timed_out: true,
        ..unavailable(wait.timed_out().to_string())
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::sys::{AtomicU32, Ordering, Time};
    use std::thread;

    const SOON: Duration = Duration::from_secs(20);

    /// A place that has a number.
    struct Numbered(u32);

    impl Pooled for Numbered {
        fn close_if_idle(&mut self, _: Duration) {}
    }

    fn places() -> Places<Numbered> {
        let next = AtomicU32::new(0);
        let make = move || Some(Numbered(next.fetch_add(1, Ordering::Relaxed)));
        Places::new(make, 3, TaskThread::new())
    }

    /// The place that came back last has the connection that is most surely open.
    #[test]
    fn closing_idle_connections_keeps_the_order_of_checkouts() {
        let places = places();
        let take_all = || -> Vec<_> { (0..3).map_while(|_| places.try_take()).collect() };
        let all = take_all();
        let mut order: Vec<_> = all.iter().map(|place| place.0).collect();
        assert_eq!(order.len(), 3, "all are there from the beginning");
        order.reverse();
        for place in all {
            drop(place);
        }
        places.close_idle(Duration::ZERO);
        let again: Vec<_> = take_all().iter().map(|place| place.0).collect();
        assert_eq!(again, order);
    }

    #[test]
    fn the_thread_ends_with_the_places() {
        struct Owner(Places<Numbered>);
        let owner = Arc::new(Owner(places()));
        owner
            .0
            .close_idle_of(&owner, IDLE, |owner, idle| owner.0.close_idle(idle));
        let weak = Arc::downgrade(owner.0.tasks.tasks());
        drop(owner);
        let begun = Time::now();
        while weak.upgrade().is_some() {
            assert!(begun.elapsed() < SOON, "something keeps it");
            thread::yield_now();
        }
    }
}
