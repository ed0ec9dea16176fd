//! The r2d2 pool of *places* for connections to one server, or to every node of a quorum.
//!
//! The thread that uses a place connects it, so a refused connection is a typed error at once. r2d2 would connect on
//! other threads, and report a failure only after the whole time limit, as a string. A thread that notices a broken
//! connection replaces it. So the pool does not test connections on checkout: a PING would cost half of the throughput,
//! and prove nothing about the request after it.
//!
//! r2d2's thread has a second task: it closes connections that no thread has used for a while. The task holds the pool
//! weakly, and ends with it.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::error::{Failure, FailureKind, Outcome};
use crate::panics::survived;
use crate::store::LOOK_EVERY;
use crate::sync::{Arc, Weak};

/// How long an unused connection is kept. A held lock needs none.
const IDLE: Duration = Duration::from_secs(15);
/// How often the pool looks for unused connections.
const CLOSE_EVERY: Duration = Duration::from_secs(3);

/// How long to wait for r2d2's thread to start.
const THREAD_STARTS_WITHIN: Duration = Duration::from_secs(10);

/// The content of a place of the pool: a link, or a connection to each node of a quorum.
pub(crate) trait Pooled: Send + 'static {
    /// Closes the connections that have not been used for `idle`. They open again when they are used.
    fn close_if_idle(&mut self, idle: Duration);
}

/// The factory of places, as r2d2 wants it.
pub(super) struct Factory<L>(Box<dyn Fn() -> Option<L> + Send + Sync>);

/// The store was dropped, so nobody waits for a place any more.
#[derive(Debug)]
pub(super) struct Dropped;

impl<L: Pooled> r2d2::ManageConnection for Factory<L> {
    type Connection = L;
    type Error = Dropped;

    fn connect(&self) -> Result<L, Dropped> {
        (self.0)().ok_or(Dropped)
    }

    fn is_valid(&self, _: &mut L) -> Result<(), Dropped> {
        Ok(())
    }

    /// Returns false: a link that broke has closed its connection, and opens another when it is used.
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
pub(super) type TakenPlace<L> = r2d2::PooledConnection<Factory<L>>;

/// The places of a pool.
pub(super) struct Places<L: Pooled> {
    pool: Arc<r2d2::Pool<Factory<L>>>,
    /// The thread of the pool.
    threads: Arc<ScheduledThreadPool>,
    idle: Duration,
    look_every: Duration,
}

impl<L: Pooled> Places<L> {
    /// Makes `size` places. `make` makes what a place has, and returns `None` if the store was dropped.
    pub(super) fn new(make: impl Fn() -> Option<L> + Send + Sync + 'static, size: u32) -> Self {
        Self::closing_after(make, size, IDLE, CLOSE_EVERY)
    }

    /// Makes places whose unused connections are looked for every `look_every`, and closed if not used for `idle`.
    pub(super) fn closing_after(
        make: impl Fn() -> Option<L> + Send + Sync + 'static,
        size: u32,
        idle: Duration,
        look_every: Duration,
    ) -> Self {
        // r2d2's default is three threads, most of which would have no work.
        let threads = ScheduledThreadPool::builder()
            .num_threads(1)
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
            .thread_name_pattern("leasehold-pool-{}")
            .build();
        let threads = Arc::new(threads);
        let places = r2d2::Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            // Places do not expire. The task below closes the connections in them.
            .idle_timeout(None)
            .max_lifetime(None)
            .thread_pool(Arc::clone(&threads))
            .build_unchecked(Factory(Box::new(make)));
        // r2d2's thread makes the places. Wait for the first one: on a busy machine the thread may start later than the
        // time limit of the first request, which would then fail although the server is there.
        drop(places.get_timeout(THREAD_STARTS_WITHIN));
        let pool = Arc::new(places);
        let places = Self {
            pool: Arc::clone(&pool),
            threads,
            idle,
            look_every,
        };
        places.look_after(Arc::downgrade(&pool), close_idle);
        places
    }

    /// Has the pool's thread look for unused connections in `owner` too, as it does in the free places.
    pub(super) fn look_after<T>(&self, owner: Weak<T>, close_idle: fn(&T, Duration))
    where
        T: Send + Sync + 'static,
    {
        let (every, idle) = (self.look_every, self.idle);
        self.threads
            .execute_with_fixed_delay(every, every, move || {
                if let Some(owner) = owner.upgrade() {
                    // The pool of threads does not call a task again after a panic.
                    survived(|| close_idle(&owner, idle));
                }
            });
    }

    /// Returns a free place, the one that came back last.
    pub(super) fn try_take(&self) -> Option<TakenPlace<L>> {
        self.pool.try_get()
    }

    /// Returns a free place. Waits for one for at most `limit`.
    pub(super) fn take(&self, limit: Duration) -> Option<TakenPlace<L>> {
        self.pool.get_timeout(limit).ok()
    }
}

/// The limits of a thread's wait for a connection.
pub(crate) struct Wait<'a> {
    begun: Instant,
    limit: Duration,
    /// The last reading of the clock, because a reading takes a tenth as long as a call without waits.
    now: Cell<Instant>,
    /// Returns whether the call is over. It is called every [`LOOK_EVERY`].
    pub(super) is_over: &'a dyn Fn() -> bool,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(limit: Duration, is_over: &'a dyn Fn() -> bool) -> Self {
        Self::since(Instant::now(), limit, is_over)
    }

    /// Makes the limits of a wait that begins now.
    pub(super) fn since(now: Instant, limit: Duration, is_over: &'a dyn Fn() -> bool) -> Self {
        Self {
            begun: now,
            limit,
            now: Cell::new(now),
            is_over,
        }
    }

    /// Returns the last reading of the clock: the beginning, unless the thread has waited.
    pub(super) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Reads the clock.
    pub(super) fn read(&self) -> Instant {
        self.now.set(Instant::now());
        self.now()
    }

    pub(super) fn left(&self) -> Duration {
        let waited = self.read().saturating_duration_since(self.begun);
        self.limit.saturating_sub(waited)
    }

    /// Returns how long to wait before the next look; `None` if the time or the call is over.
    pub(super) fn slice(&self) -> Option<Duration> {
        let left = self.left();
        (!left.is_zero() && !(self.is_over)()).then(|| left.min(LOOK_EVERY))
    }

    /// Returns the failure of a call that got no connection.
    pub(super) fn failure(&self) -> Failure {
        let waited = self.read().saturating_duration_since(self.begun);
        let words = format!("no pooled connection became free within {waited:.0?}");
        Failure {
            timed_out: true,
            ..Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
        }
    }
}

/// Closes the connections of the free links that have not been used for `idle`. They connect again on their next use.
fn close_idle<L: Pooled>(places: &r2d2::Pool<Factory<L>>, idle: Duration) {
    // All links are taken out before one goes back. Otherwise the same link would come again and again.
    let mut free = Vec::new();
    while let Some(link) = places.try_get() {
        free.push(link);
    }
    // The link that was used last goes back last, because the pool gives out first the link that came back last.
    while let Some(mut link) = free.pop() {
        link.close_if_idle(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU32, Ordering, thread};

    const SOON: Duration = Duration::from_secs(20);

    /// A place that has a number.
    struct Numbered(u32);

    impl Pooled for Numbered {
        fn close_if_idle(&mut self, _: Duration) {}
    }

    fn places() -> Places<Numbered> {
        let next = AtomicU32::new(0);
        let make = move || Some(Numbered(next.fetch_add(1, Ordering::Relaxed)));
        Places::new(make, 3)
    }

    /// The place that came back last has the connection that is most surely open.
    #[test]
    fn closing_idle_connections_keeps_the_order_of_checkouts() {
        let places = places();
        let take = || places.take(SOON).expect("it is free");
        let all: Vec<_> = (0..3).map(|_| take()).collect();
        let mut order: Vec<_> = all.iter().map(|place| place.0).collect();
        order.reverse();
        for place in all {
            drop(place);
        }
        close_idle(&places.pool, Duration::ZERO);
        let again: Vec<_> = (0..3).map(|_| take()).collect();
        let again: Vec<_> = again.iter().map(|place| place.0).collect();
        assert_eq!(again, order);
    }

    #[test]
    fn the_thread_ends_with_the_places() {
        let places = places();
        let weak = Arc::downgrade(&places.pool);
        drop(places);
        let begun = Instant::now();
        while weak.upgrade().is_some() {
            assert!(begun.elapsed() < SOON, "something keeps it");
            thread::yield_now();
        }
    }
}
