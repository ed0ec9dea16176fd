//! The pool of connections to one server, or to every node of a quorum: a call checks one out, has it alone, and gives it
//! back. While it waits for one, another call may take its request along: see [`line`](crate::net::line).
//!
//! | event | nobody waits | threads wait |
//! | --- | --- | --- |
//! | a thread comes, and a connection is free | takes it | a holder takes it if no holder waits. Any other thread waits, because the connection is for one that came before |
//! | a thread comes, and none is free | waits | waits: a holder behind the other holders, any other thread behind all |
//! | a connection comes back | it is free | it is free, and the first thread is woken, which takes it |
//! | the first thread takes one, or its time or call is over | | the next one is woken if another connection is free |
//!
//! A holder is a thread that releases or keeps a lock, or that was notified of a hand-over and would lose its turn. So a
//! thousand threads that ask for locks cannot keep a release waiting, and no such thread passes one that came before.
//!
//! r2d2 holds `pool_size` connection *values*, which are all made with the pool. The socket inside of a value opens at its
//! first request: on the thread of the caller, within the caller's deadline, and with a typed error. r2d2 would connect on
//! other threads, and report a failure only after the whole time limit, as a string. The caller closes the socket when it
//! fails, and the thread of [`PoolThreads`] does so when nobody has used it for a while. No call waits in r2d2 for a
//! connection, because a test that moves the clock could not see such a wait. Only the making of a pool waits there, for
//! r2d2's own thread.
//!
//! r2d2 gives out the value that came back last, whose socket is the most surely open.

use std::convert::Infallible;
use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crossbeam_channel::bounded;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::error::{Failure, Outcome};
use crate::net::deadline::{Deadline, Phase};
use crate::net::line::{Line, Offer, Turn, timed_out};
use crate::net::refusal::unavailable;
use crate::net::tasks::{TaskThread, Tasks};
use crate::panics::survived;
use crate::stats::PoolCounters;
use crate::sys::{Arc, Machine, Weak, thread};

/// How long an unused connection stays open. A held lock needs none.
const IDLE: Duration = Duration::from_secs(15);
/// How often a pool looks for such connections.
const LOOKS_EVERY: Duration = Duration::from_secs(15);

/// How long the system may take to run r2d2's thread, which connects to nothing. r2d2 wants a limit, and a machine without CPU
/// time for that thread has none for the caller either.
const MADE_WITHIN: Duration = Duration::from_secs(60 * 60);

/// A connection value: a connection, or one to each node of a quorum.
pub(crate) trait Pooled: Send + 'static {
    /// Closes the sockets that have not been used for `idle`. They open again when they are used.
    fn close_if_idle(&mut self, idle: Duration);
}

/// The threads of the pools of a store.
pub(crate) struct PoolThreads {
    /// r2d2's thread. It makes the values of a new pool, and then sleeps.
    of_r2d2: Arc<ScheduledThreadPool>,
    upkeep: TaskThread,
}

/// A pool.
pub(crate) struct Pool<V: Pooled> {
    values: r2d2::Pool<Factory<V>>,
    pub(crate) line: Arc<Line>,
    counters: Arc<PoolCounters>,
}

/// A value that a thread has checked out. Its drop gives the value back, and then wakes a thread that waits for one.
pub(crate) struct CheckedOut<'a, V: Pooled> {
    value: r2d2::PooledConnection<Factory<V>>,
    _returned: Returned<'a>,
}

/// Dropped when a value has been given back.
struct Returned<'a> {
    line: &'a Line,
    counters: &'a PoolCounters,
}

/// Makes the values, as r2d2 wants it.
struct Factory<V>(Box<dyn Fn() -> V + Send + Sync>);

impl<V: Pooled> r2d2::ManageConnection for Factory<V> {
    /// In a box, because r2d2 moves it several times on each way.
    type Connection = Box<V>;
    type Error = Infallible;

    fn connect(&self) -> Result<Box<V>, Infallible> {
        Ok(Box::new((self.0)()))
    }

    fn is_valid(&self, _: &mut Box<V>) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Box<V>) -> bool {
        false
    }
}

impl PoolThreads {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// Returns the reason why the system starts no further thread.
    pub(crate) fn start() -> Result<Self, Failure> {
        let refused =
            |why: &dyn Display| unavailable(format!("no thread of a pool can be started: {why}"));
        let upkeep = TaskThread::start("leasehold-pool").map_err(|error| refused(&error))?;
        // r2d2's scheduler panics if its thread is refused. So a thread of our own finds out first. The panic is survived
        // all the same: the process may have reached its limit since.
        thread::try_one().map_err(|error| refused(&error))?;
        let of_r2d2 = || {
            ScheduledThreadPool::builder()
                .num_threads(1)
                .thread_name_pattern("leasehold-r2d2-{}")
                .build()
        };
        let of_r2d2 = survived(of_r2d2).ok_or_else(|| refused(&"r2d2 panicked"))?;
        Ok(Self {
            of_r2d2: Arc::new(of_r2d2),
            upkeep,
        })
    }

    /// Returns the tasks of the thread that closes unused sockets, to plan more of them.
    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        self.upkeep.tasks()
    }
}

impl<V: Pooled> Pool<V> {
    /// Makes a pool of `size` values. Blocks until r2d2's thread has made them, which needs no server.
    ///
    /// # Errors
    ///
    /// Returns a transient failure if the system has not run that thread within [`MADE_WITHIN`].
    pub(crate) fn new(
        make: impl Fn() -> V + Send + Sync + 'static,
        size: u32,
        threads: &PoolThreads,
        counters: Arc<PoolCounters>,
    ) -> Result<Arc<Self>, Failure> {
        let machine = Machine::here();
        let make = move || {
            let _entered = machine.enter();
            make()
        };
        let values = r2d2::Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .thread_pool(Arc::clone(&threads.of_r2d2))
            .connection_timeout(MADE_WITHIN)
            .build(Factory(Box::new(make)))
            .map_err(|_| unavailable("the thread of r2d2 does not run"))?;
        // r2d2's thread shares the values for a moment after it has made the last one. If the pool ended meanwhile, that thread
        // would close the connections, although it runs on no machine of a test.
        let (ended, has_ended) = bounded::<()>(0);
        threads.of_r2d2.execute(move || drop(ended));
        has_ended.recv().ok();
        let pool = Arc::new(Self {
            values,
            line: Arc::default(),
            counters,
        });
        plan_upkeep(threads.tasks(), Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Checks a value out. Blocks while all are in use: see the table at the top.
    ///
    /// # Errors
    ///
    /// Returns [`FailureKind::Unavailable`](crate::error::FailureKind) if none came back in time, or before the call was
    /// over.
    pub(crate) fn check_out(
        &self,
        deadline: &mut Deadline<'_>,
    ) -> Result<CheckedOut<'_, V>, Failure> {
        match self.turn(deadline, || None)? {
            Turn::Own(value, _) => Ok(value),
            Turn::Along(_) => unreachable!("it has offered no request"),
        }
    }

    /// Checks a value out, or returns what another call has got for the request that this one has offered while it waited.
    ///
    /// # Errors
    ///
    /// Those of [`check_out`](Self::check_out).
    pub(crate) fn turn(
        &self,
        deadline: &mut Deadline<'_>,
        offer: impl FnOnce() -> Option<Offer>,
    ) -> Result<Turn<CheckedOut<'_, V>>, Failure> {
        let mut wait = deadline.phase(Phase::Checkout, deadline.checkout);
        let is_first = !self.line.is_there();
        let free = if is_first { self.free_value() } else { None };
        let turn = if let Some(value) = free {
            Ok(Turn::Own(value, Outcome::NotExecuted))
        } else {
            let begun = wait.now();
            let (free, until) = (|| self.free_value(), deadline.end());
            let (turn, ended) = self.line.wait(&mut wait, offer(), until, free);
            // Two may have come back while this thread was the first.
            if self.values.state().idle_connections > 0 {
                self.line.wake_first();
            }
            self.counters.waits.record(ended.since(begun));
            turn
        };
        deadline.after_checkout(&wait);
        // One more look, so that no request of a call that is over delays others.
        if let (Ok(Turn::Own(_, outcome)), true) = (&turn, wait.is_over()) {
            return Err(timed_out(&wait.timed_out(), *outcome));
        }
        turn
    }

    /// Returns a value, if one is free.
    fn free_value(&self) -> Option<CheckedOut<'_, V>> {
        let value = self.values.try_get()?;
        self.counters.taken();
        let returned = Returned {
            line: &self.line,
            counters: &self.counters,
        };
        Some(CheckedOut {
            value,
            _returned: returned,
        })
    }

    /// Does this with each value that no thread has.
    pub(crate) fn for_each_free(&self, mut act: impl FnMut(&mut V)) {
        // All are taken before one goes back. Otherwise the same one would come again and again.
        let mut free: Vec<_> = std::iter::from_fn(|| self.values.try_get()).collect();
        // The one that was used last goes back last.
        while let Some(mut value) = free.pop() {
            act(&mut value);
            drop(value);
            self.line.wake_first();
        }
    }
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        self.counters.given_back();
        self.line.wake_first();
    }
}

/// Plans the next look for unused sockets, as long as the pool is there.
fn plan_upkeep<V: Pooled>(tasks: &Arc<Tasks>, pool: Weak<Pool<V>>) {
    let weak = Arc::downgrade(tasks);
    tasks.after(LOOKS_EVERY, move || {
        if let (Some(tasks), Some(open)) = (weak.upgrade(), pool.upgrade()) {
            survived(|| open.for_each_free(|free| free.close_if_idle(IDLE)));
            plan_upkeep(&tasks, pool);
        }
    });
}

impl<V: Pooled> Deref for CheckedOut<'_, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V: Pooled> DerefMut for CheckedOut<'_, V> {
    fn deref_mut(&mut self) -> &mut V {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

    use super::*;
    use crate::sys::test_machine::manual::ManualClock;
    use crate::sys::{AtomicBool, AtomicU32, Mutex, Ordering, Time};

    const SOON: Duration = Duration::from_secs(60 * 60);

    /// A value that has a number, and tells when it is to close.
    struct Numbered(u32, Option<Sender<Duration>>);

    impl Pooled for Numbered {
        fn close_if_idle(&mut self, idle: Duration) {
            if let Some(closes) = &self.1 {
                closes.send(idle).ok();
            }
        }
    }

    fn pool(
        size: u32,
        threads: &PoolThreads,
        closes: Option<Sender<Duration>>,
    ) -> Arc<Pool<Numbered>> {
        let next = AtomicU32::new(0);
        let make = move || Numbered(next.fetch_add(1, Ordering::Relaxed), closes.clone());
        Pool::new(make, size, threads, Arc::default()).expect("its thread runs")
    }

    fn check_out(pool: &Pool<Numbered>) -> CheckedOut<'_, Numbered> {
        let value = pool.check_out(&mut Deadline::after(SOON));
        value.expect("it is free")
    }

    fn within(limit: Duration, has_priority: bool) -> Deadline<'static> {
        let mut deadline = Deadline::after(limit);
        deadline.has_priority = has_priority;
        deadline
    }

    fn wait_for_a_line(pool: &Pool<Numbered>, length: usize) {
        while pool.line.length() < length {
            thread::yield_now();
        }
    }

    /// Threads come one by one, some of them with priority, while all values are checked out.
    #[test]
    fn holders_come_first_and_all_others_in_the_order_of_their_arrival() {
        const COMING: [bool; 8] = [false, false, true, false, true, false, false, true];
        let threads = PoolThreads::start().expect("threads");
        for size in [1, 3] {
            let pool = pool(size, &threads, None);
            let held: Vec<_> = (0..size).map(|_| check_out(&pool)).collect();
            let served = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for (number, has_priority) in COMING.into_iter().enumerate() {
                    let (pool, served) = (&pool, &served);
                    scope.spawn(move || {
                        let value = pool.check_out(&mut within(SOON, has_priority));
                        served.lock().push(number);
                        drop(value.expect("it comes free"));
                    });
                    wait_for_a_line(pool, number + 1);
                }
                // With one value, each thread gets it after the one before it.
                drop(held);
            });
            let mut served = std::mem::take(&mut *served.lock());
            if size > 1 {
                served.sort_unstable();
                assert!(served.into_iter().eq(0..COMING.len()));
            } else {
                assert_eq!(served, [2, 4, 7, 0, 1, 3, 5, 6]);
            }
            let mut free = 0;
            pool.for_each_free(|_| free += 1);
            assert_eq!(free, size);
        }
    }

    #[test]
    fn a_thread_that_comes_passes_none_that_waits() {
        let threads = PoolThreads::start().expect("threads");
        let pool = pool(1, &threads, None);
        let held = check_out(&pool);
        thread::scope(|scope| {
            let first = scope.spawn(|| check_out(&pool));
            wait_for_a_line(&pool, 1);
            drop(held);
            // The first thread has it, or is about to take it.
            let newcomer = pool.check_out(&mut within(Duration::ZERO, false));
            let first = first.join().expect("no panic");
            assert!(newcomer.is_err());
            drop(first);
        });
        drop(check_out(&pool));
    }

    #[test]
    fn a_wait_ends_with_its_time_or_its_call_and_leaves_the_line() {
        let threads = PoolThreads::start().expect("threads");
        let pool = pool(1, &threads, None);
        let held = check_out(&pool);
        let short = Duration::from_millis(20);
        for has_priority in [false, true] {
            let begun = Time::now();
            let late = pool.check_out(&mut within(short, has_priority));
            assert!(late.is_err() && begun.elapsed() >= short);
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let wait = scope.spawn(|| {
                let is_over = || is_over.load(Ordering::SeqCst);
                let mut deadline = within(SOON * 10, false).ended_by(&is_over);
                pool.check_out(&mut deadline).is_err()
            });
            wait_for_a_line(&pool, 1);
            is_over.store(true, Ordering::SeqCst);
            let begun = Time::now();
            assert!(wait.join().expect("no panic"), "it has a value");
            assert!(begun.elapsed() < SOON, "it waits for its time limit");
        });
        assert_eq!(pool.line.length(), 0);
        drop(held);
        drop(check_out(&pool));
    }

    /// The one that came back last has the socket that is most surely open.
    #[test]
    fn all_values_are_there_from_the_beginning_and_the_last_one_used_comes_first() {
        let threads = PoolThreads::start().expect("threads");
        let pool = pool(3, &threads, None);
        let mut all: Vec<_> = (0..3).map(|_| check_out(&pool)).collect();
        let mut order: Vec<_> = all.iter().map(|value| value.0).collect();
        all.drain(..).for_each(drop);
        let mut numbers = order.clone();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2]);
        order.reverse();
        for _ in 0..2 {
            let all: Vec<_> = (0..3).map(|_| check_out(&pool)).collect();
            assert!(all.iter().map(|value| value.0).eq(order.iter().copied()));
            all.into_iter().rev().for_each(drop);
            // A look at all of them keeps the order.
            pool.for_each_free(|_| {});
        }
    }

    #[test]
    fn a_call_that_is_over_gets_no_value() {
        let threads = PoolThreads::start().expect("threads");
        let pool = pool(3, &threads, None);
        let is_over = || true;
        let over = pool.check_out(&mut Deadline::after(SOON).ended_by(&is_over));
        assert!(over.is_err_and(|failure| failure.timed_out));
        let all: Vec<_> = (0..3).map(|_| check_out(&pool)).collect();
        let late = pool.check_out(&mut Deadline::after(Duration::ZERO));
        assert!(late.is_err_and(|failure| failure.timed_out));
        drop(all);
    }

    #[test]
    fn unused_sockets_are_closed_by_the_threads_of_the_store() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        let threads = PoolThreads::start().expect("threads");
        let (sender, to_close) = channel();
        let pool = pool(3, &threads, Some(sender));
        for _ in 0..2 {
            clock.advance(LOOKS_EVERY);
            // The thread looks at the clock. When it has done this task, it has planned its next look.
            let (done, is_done) = channel();
            let tell = move || done.send(()).expect("the test waits");
            threads.tasks().after(Duration::ZERO, tell);
            for _ in 0..3 {
                assert_eq!(to_close.recv_timeout(SOON), Ok(IDLE));
            }
            assert_eq!(is_done.recv_timeout(SOON), Ok(()));
        }
        drop(pool);
    }

    #[test]
    fn the_thread_ends_with_the_store() {
        let threads = PoolThreads::start().expect("threads");
        let pool = pool(3, &threads, None);
        let weak = Arc::downgrade(threads.tasks());
        drop((pool, threads));
        let begun = Time::now();
        while weak.upgrade().is_some() {
            assert!(begun.elapsed() < SOON, "something keeps it");
            thread::yield_now();
        }
    }
}
