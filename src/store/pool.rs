//! The r2d2 pool of connections to one server, or to every node of a quorum.
//!
//! The pool holds *places* for connections. The thread that uses a place connects it, so a refused connection is a
//! typed error at once. r2d2 would connect on other threads, and report a failure only after the whole time limit, as a
//! string. A thread that notices a broken connection replaces it. So the pool does not test links on checkout: a PING
//! would cost half of the throughput, and prove nothing about the request after it.
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
//!
//! r2d2's thread has a second task: it closes connections that no thread has used for a while. The task holds the pool
//! weakly, and ends with it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::error::{Failure, FailureKind, Outcome};
use crate::panics::survived;
use crate::store::LOOK_EVERY;
use crate::sync::{Arc, Condvar, Mutex};

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
struct Factory<L>(Box<dyn Fn() -> Option<L> + Send + Sync>);

/// The store was dropped, so nobody waits for a place any more.
#[derive(Debug)]
struct Dropped;

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

/// A pool of links, with a gate before it.
pub(crate) struct Pool<L: Pooled> {
    places: Arc<r2d2::Pool<Factory<L>>>,
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

/// The limits of a thread's wait for a link.
struct Wait<'a> {
    until: Instant,
    is_over: &'a dyn Fn() -> bool,
}

/// A link, and the permission of the thread that uses it.
struct Taken<'a, L: Pooled> {
    // The link is dropped first, so that its place is free when the next thread goes through the gate.
    link: r2d2::PooledConnection<Factory<L>>,
    _checkout: Option<Checkout<'a>>,
}

impl<L: Pooled> Pool<L> {
    /// Makes a pool of `size` places. `make` makes what a place has, and returns `None` if the store was dropped.
    pub(crate) fn new(make: impl Fn() -> Option<L> + Send + Sync + 'static, size: u32) -> Self {
        Self::closing_after(make, size, IDLE, CLOSE_EVERY)
    }

    /// Makes a pool that looks for unused connections every `look_every`, and closes those not used for `idle`.
    fn closing_after(
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
        let places = Arc::new(places);
        let weak = Arc::downgrade(&places);
        threads.execute_with_fixed_delay(look_every, look_every, move || {
            if let Some(places) = weak.upgrade() {
                // The pool of threads does not call a task again after a panic.
                survived(|| close_idle(&places, idle));
            }
        });
        let gate = Gate {
            state: Mutex::new(State {
                free: size,
                priority_waiting: 0,
                waiting: 0,
            }),
            changed: Condvar::new(),
        };
        Self { places, gate }
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
        let begun = Instant::now();
        let wait = Wait {
            until: begun + wait,
            is_over,
        };
        let taken = if has_priority {
            self.with_priority(&wait)
        } else {
            self.in_turn(&wait)
        };
        // One more look, so that no request of a call that is over delays others.
        let taken = taken.filter(|_| !is_over());
        taken.ok_or_else(|| {
            let waited = begun.elapsed();
            let words = format!("no pooled connection became free within {waited:.0?}");
            Failure {
                timed_out: true,
                ..Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
            }
        })
    }

    fn in_turn(&self, wait: &Wait<'_>) -> Option<Taken<'_, L>> {
        let checkout = self.gate.check_out(wait)?;
        Some(Taken {
            link: self.place(wait)?,
            _checkout: Some(checkout),
        })
    }

    fn with_priority(&self, wait: &Wait<'_>) -> Option<Taken<'_, L>> {
        let link = self.places.try_get().or_else(|| {
            let _priority = self.gate.close();
            self.place(wait)
        })?;
        Some(Taken {
            link,
            _checkout: None,
        })
    }

    /// Waits for a free place.
    fn place(&self, wait: &Wait<'_>) -> Option<r2d2::PooledConnection<Factory<L>>> {
        // r2d2 hands out a free place even if no time is left.
        let mut slice = wait.slice().unwrap_or_default();
        loop {
            if let Ok(link) = self.places.get_timeout(slice) {
                return Some(link);
            }
            slice = wait.slice()?;
        }
    }
}

impl Wait<'_> {
    /// Returns how long to wait before the next look; `None` if the time or the call is over.
    fn slice(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (!left.is_zero() && !(self.is_over)()).then(|| left.min(LOOK_EVERY))
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
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::config::{Server, Settings};
    use crate::message::Request;
    use crate::store::link::Link;
    use crate::store::route::Budget;
    use crate::store::route::route;
    use crate::sync::{AtomicBool, AtomicU32, Ordering, thread};

    const SOON: Duration = Duration::from_secs(20);

    fn never() -> bool {
        false
    }

    fn pool(size: u32) -> Pool<Link> {
        let server = Server::parse("redis://127.0.0.1:1/", None).expect("a URL");
        Pool::new(Link::maker(route(server, &Settings::default()), None), size)
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

    /// The link that came back last has the connection that is most surely open.
    #[test]
    fn closing_idle_connections_keeps_the_order_of_checkouts() {
        let pool = pool(3);
        let all: Vec<_> = (0..3)
            .map(|_| pool.take(SOON, false, &never).expect("it is free"))
            .collect();
        let mut order: Vec<_> = all.iter().map(|link| link.used()).collect();
        order.reverse();
        for link in all {
            drop(link);
        }
        close_idle(&pool.places, Duration::ZERO);
        let again: Vec<_> = (0..3)
            .map(|_| pool.take(SOON, false, &never).expect("it is free"))
            .collect();
        let again: Vec<_> = again.iter().map(|link| link.used()).collect();
        assert_eq!(again, order);
    }

    /// The renewal thread has no part in it: it may never have run, or has ended.
    #[test]
    fn connections_that_nobody_uses_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let url = format!("redis://127.0.0.1:{port}/");
        let parsed = Server::parse(&url, None).expect("a URL");
        let route = route(parsed, &Settings::default());
        let soon = Duration::from_millis(20);
        let pool = Pool::closing_after(Link::maker(route, None), 3, soon, soon);
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("somebody connects");
                stream.set_read_timeout(Some(SOON)).expect("a connection");
                let mut piece = [0; 4096];
                // Serves until the connection is closed.
                while stream.read(&mut piece).expect("not in time") > 0 {
                    stream.write_all(b"+PONG\r\n").expect("a connection");
                }
            });
            let mut link = pool.take(SOON, false, &never).expect("it is free");
            link.call(&Request::Ping, &mut Budget::new(SOON))
                .expect("it is answered");
            drop(link);
            served.join().expect("it was closed");
        });
    }

    #[test]
    fn the_thread_ends_with_the_pool() {
        let pool = pool(3);
        let places = Arc::downgrade(&pool.places);
        drop(pool);
        let begun = Instant::now();
        while places.upgrade().is_some() {
            assert!(begun.elapsed() < SOON, "something keeps it");
            thread::yield_now();
        }
    }
}
