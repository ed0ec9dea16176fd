//! The r2d2 pool of links.
//!
//! The pool holds *places* for connections, filled on first use by the thread that uses them. r2d2 itself
//! would connect on threads of its own, tell the caller nothing of a failure until the whole time limit has
//! passed, and then flatten it to a string; here a refused connection is an error at once, of its own type, and
//! a broken connection is replaced where it is noticed. For the same reason a link is never tested on check
//! out: a PING would cost half of the throughput and prove nothing about the request after it.
//!
//! Who asks for a lock goes through a gate first: a thousand threads that wait for locks must not keep one that holds
//! any from giving it back.
//!
//! | who | waits for |
//! | --- | --- |
//! | asks | the gate, through which there are never more than there are places, and none while one in haste waits; then a place |
//! | is in haste | a place: so for requests that are on their way, and those of as many as are through the gate already |
//!
//! In haste is what holders send, and who was told that the lock is handed over to it: if it does not ask soon, it is
//! passed over.
//!
//! r2d2's thread has a second task: it closes the connections that nobody has used for a while. It holds the pool weakly,
//! and ends with it.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::error::{Failure, FailureKind};
use crate::panics::survived;
use crate::store::LOOK_EVERY;
use crate::store::link::Link;
use crate::store::route::Route;
use crate::sync::{Arc, Condvar, Mutex};

/// How long a connection is kept that nobody uses: held locks need none.
const IDLE: Duration = Duration::from_secs(15);
/// How often such connections are looked for.
const CLOSE_EVERY: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct ConnectionManager {
    route: Route,
}

impl r2d2::ManageConnection for ConnectionManager {
    type Connection = Link;
    type Error = Infallible;

    fn connect(&self) -> Result<Link, Infallible> {
        Ok(Link::new(self.route.clone()))
    }

    fn is_valid(&self, _: &mut Link) -> Result<(), Infallible> {
        Ok(())
    }

    /// A link that broke has dropped its connection already; the place is as good as new.
    fn has_broken(&self, _: &mut Link) -> bool {
        false
    }
}

pub(crate) struct Pool {
    places: Arc<r2d2::Pool<ConnectionManager>>,
    gate: Gate,
}

/// The gate for those who ask.
struct Gate {
    state: Mutex<State>,
    /// One more may go through, perhaps.
    changed: Condvar,
}

/// Guarded by the gate's mutex.
struct State {
    /// How many more may go through.
    free: u32,
    /// How many in haste wait for a place.
    hasty: u32,
}

/// Somebody who is through the gate; dropping it lets in another.
struct Checkout<'a>(&'a Gate);

/// Somebody in haste who waits for a place; until it is dropped nobody goes through the gate.
struct Priority<'a>(&'a Gate);

/// How long a thread waits for a link.
struct Wait<'a> {
    until: Instant,
    is_over: &'a dyn Fn() -> bool,
}

/// A link, and the passage of who has it.
struct Taken<'a> {
    // In this order, so that the place is free when the next goes through.
    link: r2d2::PooledConnection<ConnectionManager>,
    _checkout: Option<Checkout<'a>>,
}

impl Pool {
    pub(crate) fn new(route: Route, size: u32) -> Self {
        Self::closing_after(route, size, IDLE, CLOSE_EVERY)
    }

    /// Makes a pool that looks for connections every `look_every`, and closes those that nobody has used for `idle`.
    fn closing_after(route: Route, size: u32, idle: Duration, look_every: Duration) -> Self {
        // r2d2's own default is three threads, which would have nothing to do.
        let threads = ScheduledThreadPool::builder()
            .num_threads(1)
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
            .thread_name_pattern("leasehold-pool-{}")
            .build();
        let threads = Arc::new(threads);
        let places = r2d2::Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            // A place does not expire; the connection in it does, below.
            .idle_timeout(None)
            .max_lifetime(None)
            .thread_pool(Arc::clone(&threads))
            .build_unchecked(ConnectionManager { route });
        let places = Arc::new(places);
        let weak = Arc::downgrade(&places);
        threads.execute_with_fixed_delay(look_every, look_every, move || {
            if let Some(places) = weak.upgrade() {
                // A task that panics would not be called again.
                survived(|| close_idle(&places, idle));
            }
        });
        let gate = Gate {
            state: Mutex::new(State {
                free: size,
                hasty: 0,
            }),
            changed: Condvar::new(),
        };
        Self { places, gate }
    }

    /// Waits for a free link; in haste, before those who are not. Every [`LOOK_EVERY`] it looks whether the call
    /// `is_over`, and stops waiting if it is.
    ///
    /// # Errors
    ///
    /// [`FailureKind::Unavailable`] if no link became free within `wait`, or before the call was over.
    pub(crate) fn link(
        &self,
        wait: Duration,
        has_priority: bool,
        is_over: &dyn Fn() -> bool,
    ) -> Result<impl DerefMut<Target = Link>, Failure> {
        let begun = Instant::now();
        let wait = Wait {
            until: begun + wait,
            is_over,
        };
        let taken = if has_priority {
            self.has_priority(&wait)
        } else {
            self.in_turn(&wait)
        };
        // Looked at once more, so that no request of a call that is over keeps others waiting.
        let taken = taken.filter(|_| !is_over());
        taken.ok_or_else(|| {
            let waited = begun.elapsed();
            let words = format!("no pooled connection became free within {waited:.0?}");
            Failure {
                timed_out: true,
                ..Failure::plain(FailureKind::Unavailable, false, words)
            }
        })
    }

    fn in_turn(&self, wait: &Wait<'_>) -> Option<Taken<'_>> {
        let passage = self.gate.check_out(wait)?;
        Some(Taken {
            link: self.place(wait)?,
            _checkout: Some(passage),
        })
    }

    fn has_priority(&self, wait: &Wait<'_>) -> Option<Taken<'_>> {
        let link = self.places.try_get().or_else(|| {
            let _haste = self.gate.hurry();
            self.place(wait)
        })?;
        Some(Taken {
            link,
            _checkout: None,
        })
    }

    /// Waits for a free place.
    fn place(&self, wait: &Wait<'_>) -> Option<r2d2::PooledConnection<ConnectionManager>> {
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

/// Closes the connections of the free links that have not been used for so long; they are opened again when they are
/// needed.
fn close_idle(places: &r2d2::Pool<ConnectionManager>, idle: Duration) {
    // All are taken out before one goes back, or the same would come again and again.
    let mut free = Vec::new();
    while let Some(link) = places.try_get() {
        free.push(link);
    }
    // The one that was used last goes back last, since the pool gives out first what came back last.
    while let Some(mut link) = free.pop() {
        link.close_if_idle(idle);
    }
}

impl Gate {
    /// Waits for its turn; returns `None` if the turn does not come before the wait is over.
    fn check_out(&self, wait: &Wait<'_>) -> Option<Checkout<'_>> {
        let mut state = self.state.lock();
        while !state.is_open() {
            let slice = wait.slice()?;
            state = self.changed.wait_for(state, slice);
        }
        state.free -= 1;
        // Where it is still open, this was perhaps the only one to be woken for it.
        if state.is_open() {
            self.changed.notify_one();
        }
        Some(Checkout(self))
    }

    fn hurry(&self) -> Priority<'_> {
        self.state.lock().hasty += 1;
        Priority(self)
    }
}

impl State {
    fn is_open(&self) -> bool {
        self.free > 0 && self.hasty == 0
    }
}

impl Drop for Checkout<'_> {
    fn drop(&mut self) {
        self.0.state.lock().free += 1;
        self.0.changed.notify_one();
    }
}

impl Drop for Priority<'_> {
    fn drop(&mut self) {
        self.0.state.lock().hasty -= 1;
        self.0.changed.notify_one();
    }
}

impl Deref for Taken<'_> {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::config::{Server, Settings};
    use crate::message::Call;
    use crate::store::node::route;
    use crate::sync::{AtomicBool, AtomicU32, Ordering, thread};

    const SOON: Duration = Duration::from_secs(20);

    fn never() -> bool {
        false
    }

    fn pool(size: u32) -> Pool {
        let server = Server::parse("redis://127.0.0.1:1/", None).expect("a URL");
        Pool::new(route(server, &Settings::default()), size)
    }

    /// Many that ask, and one in haste among them: it has the next place.
    #[test]
    fn who_is_in_haste_waits_for_nobody_who_only_asks() {
        const ASKING: u32 = 200;
        for size in [1, 3] {
            let pool = pool(size);
            let (waiting, served) = (AtomicU32::new(0), AtomicU32::new(0));
            let mut held: Vec<_> = (0..size)
                .map(|_| pool.link(SOON, false, &never).expect("it is free"))
                .collect();
            thread::scope(|scope| {
                for _ in 0..ASKING {
                    scope.spawn(|| {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        let link = pool.link(SOON, false, &never).expect("it comes free");
                        served.fetch_add(1, Ordering::SeqCst);
                        drop(link);
                    });
                }
                let hasty = scope.spawn(|| {
                    let link = pool.link(SOON, true, &never).expect("it comes free");
                    let before = served.load(Ordering::SeqCst);
                    drop(link);
                    before
                });
                while waiting.load(Ordering::SeqCst) < ASKING || pool.gate.state.lock().hasty == 0 {
                    thread::yield_now();
                }
                drop(held.pop());
                assert_eq!(hasty.join().expect("no panic"), 0);
                drop(held);
            });
            assert_eq!(served.load(Ordering::SeqCst), ASKING);
            assert_eq!(pool.gate.state.lock().free, size);
        }
    }

    #[test]
    fn nobody_waits_for_longer_than_told() {
        let pool = pool(1);
        let held = pool.link(SOON, false, &never).expect("it is free");
        let short = Duration::from_millis(20);
        for has_priority in [false, true] {
            let started = Instant::now();
            assert!(pool.link(short, has_priority, &never).is_err());
            assert!(started.elapsed() >= short);
        }
        drop(held);
        for has_priority in [true, false, true] {
            assert!(pool.link(SOON, has_priority, &never).is_ok());
        }
    }

    #[test]
    fn a_call_that_is_over_does_not_wait_for_a_place() {
        let pool = pool(1);
        let held = pool.link(SOON, false, &never).expect("it is free");
        let over = AtomicBool::new(false);
        let is_over = || over.load(Ordering::SeqCst);
        thread::scope(|scope| {
            // One waits at the gate, the other for a place.
            let waits = [false, true].map(|has_priority| {
                let (pool, is_over) = (&pool, &is_over);
                scope.spawn(move || pool.link(SOON * 10, has_priority, is_over).is_err())
            });
            over.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            for wait in waits {
                assert!(wait.join().expect("no panic"), "it has a link");
            }
            assert!(begun.elapsed() < SOON);
        });
        drop(held);
        // Nor does it get a free one.
        assert!(pool.link(SOON, false, &is_over).is_err());
        assert!(pool.link(SOON, false, &never).is_ok());
    }

    /// The one that was given back last is the one that is surely open.
    #[test]
    fn closing_the_idle_ones_keeps_the_order_in_which_they_are_given_out() {
        let pool = pool(3);
        let all: Vec<_> = (0..3)
            .map(|_| pool.link(SOON, false, &never).expect("it is free"))
            .collect();
        let mut order: Vec<_> = all.iter().map(|link| link.used()).collect();
        order.reverse();
        for link in all {
            drop(link);
        }
        close_idle(&pool.places, Duration::ZERO);
        let again: Vec<_> = (0..3)
            .map(|_| pool.link(SOON, false, &never).expect("it is free"))
            .collect();
        let again: Vec<_> = again.iter().map(|link| link.used()).collect();
        assert_eq!(again, order);
    }

    /// The renewal thread has nothing to do with it: it may never have run, or has ended.
    #[test]
    fn connections_that_nobody_uses_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let url = format!("redis://127.0.0.1:{port}/");
        let parsed = Server::parse(&url, None).expect("a URL");
        let route = route(parsed, &Settings::default());
        let soon = Duration::from_millis(20);
        let pool = Pool::closing_after(route, 3, soon, soon);
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("somebody connects");
                stream.set_read_timeout(Some(SOON)).expect("a connection");
                let mut piece = [0; 4096];
                // Until the connection is closed.
                while stream.read(&mut piece).expect("not in time") > 0 {
                    stream.write_all(b"+PONG\r\n").expect("a connection");
                }
            });
            let mut link = pool.link(SOON, false, &never).expect("it is free");
            link.call(&Call::Ping, SOON).expect("it is answered");
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
