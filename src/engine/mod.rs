//! The engine: threads, blocking and requests around the decisions of [`core`](crate::core).
//!
//! # Where to read
//!
//! | subject | module |
//! | --- | --- |
//! | a lock's way in | [`acquire`], then [`wait`] or [`delegate`], then [`grant`] |
//! | its way out | [`release`] |
//! | the guard, and the lease that guards of one process share | [`guard_inner`], [`hold_limit`], [`process_lease`] |
//! | the queues of the threads, by name | [`names`] |
//! | a claim, a writer that becomes a reader | [`claim`], [`downgrade`] |
//! | the rate limiter, requests of operators | [`rate_limiter`], [`admin`] |
//! | the threads of the table below | [`renewal`], [`watch`], [`wakeup`], [`events`] |
//! | counters and events | [`metrics`] |
//!
//! # Threads
//!
//! | thread | does | never | lives |
//! | --- | --- | --- | --- |
//! | `leasehold-renewal` | renews every lease, and repeats releases, on a connection of its own | runs a caller's code | from the first lease until a while after the last lease and release |
//! | `leasehold-watch` | ends each lease at its deadline, and tells `on_lost` | does I/O | the same |
//! | `leasehold-wakeup-0` | receives messages of Redis and wakes delegates, on a connection of its own | calls scripts | from the first wait until the engine is dropped |
//! | `leasehold-events` | calls the listener, and logs warnings | holds the engine | from the first event that the listener or the log wants until the engine is dropped and the queue is empty |
//!
//! # Lock order
//!
//! A thread that holds a mutex takes only mutexes of later rows, and does no I/O:
//!
//! 1. a shard of the table of names;
//! 2. the state of one name, with its queue;
//! 3. one of: the timer queue of the renewal thread, that of the watch thread, the register of sleeping delegates, the
//!    listeners for the loss of a lease, the slot of a waiting thread, the owners that claims were tried under, the
//!    listener that the events thread has not taken yet, the threads that a [token](crate::Cancel) may unpark.

mod acquire;
mod admin;
mod claim;
mod delegate;
mod downgrade;
pub(crate) mod events;
mod grant;
pub(crate) mod guard_inner;
mod hold_limit;
mod metrics;
mod names;
pub(crate) mod process_lease;
mod rate_limiter;
mod release;
pub(crate) mod renewal;
pub(crate) mod request;
mod settle;
mod wait;
pub(crate) mod wakeup;
pub(crate) mod watch;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::clock::{Clock, Time};
use crate::config::Settings;
use crate::error::{Error, Failure, FailureKind, Result};
use crate::message::{Call, Reply};
use crate::panics::survived;
use crate::process::ForkGuard;
use crate::random::Rng;
use crate::stats::{Counters, Stats};
use crate::store::{Answer, LEAST, Limits, Store};
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, Weak};

use claim::Tried;
use events::Events;
use process_lease::{Names, Signal};
use renewal::RenewalThread;
use wakeup::Wakeup;
use watch::Watch;

/// What all handles and guards of one manager share.
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    names: Names,
    renewal: Arc<RenewalThread>,
    watch: Arc<Watch>,
    wakeup: Arc<Wakeup>,
    tried: Tried,
    events: Arc<Events>,
    stats: Counters,
    closed: AtomicBool,
    /// How many threads ask Redis, or wait to.
    delegates: AtomicU64,
    /// The process that made it; in a forked child nothing here may be touched.
    fork_guard: ForkGuard,
    next_lease_number: AtomicU64,
    weak_self: Weak<Engine>,
}

impl Engine {
    pub(crate) fn new(
        mut settings: Settings,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Arc<Self> {
        let wakeup = Arc::new(Wakeup::new(rng.uuid()));
        // It belongs to the events thread alone, which also drops it.
        let listener = settings.listener.take();
        let events = Arc::new(Events::new(listener));
        Arc::new_cyclic(|weak_self| Self {
            settings,
            store,
            clock,
            rng,
            names: Names::new(),
            renewal: Arc::new(RenewalThread::new()),
            watch: Arc::new(Watch::new()),
            wakeup,
            tried: Tried::default(),
            events,
            stats: Counters::new(),
            closed: AtomicBool::new(false),
            delegates: AtomicU64::new(0),
            fork_guard: ForkGuard::here(),
            next_lease_number: AtomicU64::new(1),
            weak_self: weak_self.clone(),
        })
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether this is a forked child, where mutexes may be locked for ever and connections are shared with
    /// the parent. Asked before anything else is touched.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_guard.is_left()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_forked() || self.is_closed() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Whether one script can touch only names of one slot.
    pub(crate) fn has_slots(&self) -> bool {
        self.store.has_slots()
    }

    /// One request without a lock: whether the server is there and lets us in.
    pub(crate) fn ping(&self) -> Result<()> {
        let answer = self
            .send(&Call::Ping, self.limits(None))
            .map_err(|failure| failure.into_error(None))?;
        if answer.reply == Reply::Pong {
            return Ok(());
        }
        let words = "the answer to PING is not PONG";
        Err(Failure::plain(FailureKind::Protocol, false, words).into_error(None))
    }

    /// What the listener does with a message.
    #[cfg(fuzzing)]
    pub(crate) fn hear(&self, channel: &str, payload: &[u8]) {
        self.wakeup.message(channel, payload, &self.weak_self);
    }

    /// Counts the caller among those who ask, until what is returned is dropped.
    fn count_delegate(&self) -> CountedDelegate<'_> {
        self.delegates.fetch_add(1, Ordering::SeqCst);
        CountedDelegate(self)
    }

    /// How many threads ask Redis, or wait to.
    fn delegates(&self) -> u32 {
        u32::try_from(self.delegates.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    fn has_delegates(&self) -> bool {
        self.delegates.load(Ordering::SeqCst) > 0
    }

    /// Ends all waits with [`Error::Closed`], then waits for queued releases to go out. True if they all did.
    pub(crate) fn close(&self, wait: Duration) -> bool {
        if self.is_forked() {
            return false;
        }
        let until = self.now() + wait;
        self.closed.store(true, Ordering::SeqCst);
        for entry in self.names.all() {
            // Their signals are sent with no mutex held, as everywhere.
            let waiting = entry.lock().queue.close();
            for slot in waiting {
                slot.send(Signal::Closed);
            }
        }
        self.wakeup.wake_all();
        self.renewal.flush(self, until)
    }

    /// Reads atomic words alone, so it is for a forked child too.
    pub(crate) fn stats(&self) -> Stats {
        self.stats.load(self.events.dropped())
    }

    /// Sends a request on a pooled connection, and returns the answer to it. A panic on the way becomes a failure: if a
    /// delegate unwound, the threads behind it would wait for ever.
    fn send(&self, call: &Call<'_>, limits: Limits<'_>) -> Result<Answer, Failure> {
        self.stats.requests.add(1);
        let answer = survived(|| self.store.call(call, limits)).unwrap_or_else(|| {
            let words = "the request panicked";
            Err(Failure::plain(FailureKind::Unavailable, true, words))
        })?;
        self.count_hand_over(call, &answer.reply);
        Ok(answer)
    }

    /// The limits of a request for a wait until `until`; none where it is only a try.
    fn limits(&self, until: Option<Time>) -> Limits<'static> {
        /// More than any setting, and within what the system's clocks can add to themselves.
        const LONG: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        match until {
            None => Limits {
                checkout: self.settings.io_timeout,
                whole: LONG,
                has_priority: false,
                is_over: None,
            },
            Some(Time::NEVER) => Limits {
                checkout: self.settings.outage_limit.min(LONG),
                whole: LONG,
                has_priority: false,
                is_over: None,
            },
            Some(until) => {
                let left = until.since(self.now()).clamp(LEAST, LONG);
                Limits {
                    checkout: left,
                    whole: left,
                    has_priority: false,
                    is_over: None,
                }
            }
        }
    }
}

/// One who asks.
struct CountedDelegate<'a>(&'a Engine);

impl Drop for CountedDelegate<'_> {
    fn drop(&mut self) {
        self.0.delegates.fetch_sub(1, Ordering::SeqCst);
        // Whoever closes sets the flag before it looks for those who ask: one of us sees the other.
        if self.0.is_closed() {
            self.0.renewal.notify_waiting();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            // Dropping the pool would take mutexes that no thread of this process will ever unlock.
            std::mem::forget(Arc::clone(&self.store));
            std::mem::forget(Arc::clone(&self.events));
            return;
        }
        self.renewal.stop();
        self.watch.stop();
        self.wakeup.stop();
    }
}
