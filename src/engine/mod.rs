//! The engine: threads, blocking and requests around the decisions of [`core`](crate::core).
//!
//! # Where to read
//!
//! | subject | module |
//! | --- | --- |
//! | a lock's way in | [`acquire`], then [`wait`] or [`delegate`] with [`unsent_releases`], then [`grant`] |
//! | a call, and the reasons for which it gets no guard | [`call`] |
//! | its way out | [`release`] |
//! | the guard, and its limits | [`guard_inner`], [`hold_limit`] |
//! | the lease that guards of one process share, and its name | [`process_lease`], with [`cold_state`], [`contention`], [`health`] |
//! | the table of the names | [`names`] |
//! | a lease that stays after its last guard | [`linger`] |
//! | a claim, a writer that becomes a reader | [`claim`], [`downgrade`] |
//! | the rate limiter, requests of operators | [`rate_limiter`], [`admin`] |
//! | the threads of the table below | [`renewal`], [`watch`], [`wakeup`], [`events`] |
//! | counters and events | [`metrics`] |
//! | the quantum in use, and the hand-overs that it follows | [`quantum`] |
//!
//! # Threads
//!
//! | thread | does | never | lives |
//! | --- | --- | --- | --- |
//! | `leasehold-renewal` | renews every lease, and repeats releases, on a dedicated connection to each server | calls the listener | from the first lease or release task until it has had neither for a while |
//! | `leasehold-watch` | ends each lease at its deadline, and each linger at its end; sends a loss to the channels of `on_lost` | does I/O | from the first lease until it has had none for a while |
//! | `leasehold-wakeup-0` | receives messages of Redis, wakes delegates and ends lingers, on a dedicated connection to each server | calls scripts | from the first wait, or the first lease that may linger, until the engine is dropped |
//! | `leasehold-pool-0` | opens places of the pool, and closes idle connections; on a cluster, one for each master | uses the engine | from `build`, or the first request to that master, until the pool is dropped |
//! | `leasehold-nodes-0` | on a quorum, probes nodes that are down, and releases what a node has missed | uses the engine | from `build` until the store of the quorum is dropped |
//! | `leasehold-dns` | looks up the name of a server's host, for all callers that connect to it | uses the engine | until the system answers, which may be after the engine is dropped |
//! | `leasehold-sentinel` | asks the sentinels for the master | uses the engine | from the first request until the store is dropped |
//! | without a name | behind sentinels, connects to one sentinel, or asks one server for its role | uses the engine | until it has connected or the answer has come, or the time is over |
//! | `leasehold-cluster` | asks the nodes of a cluster for their slots | uses the engine | from the first request until the store is dropped |
//! | without a name | on a cluster, asks one node for its slots, or connects to one master for renewals | uses the engine | until it has connected or the answer has come, or the time is over |
//! | without a name | on a quorum, connects to one of several nodes and sends it the request of a call that waits for it | uses the engine | until it has connected, or the time is over |
//! | `leasehold-events` | calls the listener, and logs warnings | holds the engine | from the first event for the listener or the log until the engine is dropped and the queue is empty |
//!
//! # Lock order
//!
//! A thread that holds a mutex takes only mutexes of later rows, and does no I/O:
//!
//! | row | mutex | guards |
//! | --- | --- | --- |
//! | 1 | a shard of [`names::Names`] | the entries of names |
//! | 2 | [`process_lease::Entry`] | the state of one name, with its queue |
//! | 3 | [`renewal::RenewalThread`] | leases and release tasks, by the time at which they are due |
//! | 3 | [`watch::Watch`] | leases and guards, by the time at which they must end |
//! | 3 | [`wakeup::Wakeup`] | the register of sleeping delegates |
//! | 3 | [`process_lease::ProcessLease`] | the listeners for a loss, and other rare fields |
//! | 3 | [`process_lease::LeaseLinger`] | the place of its timer |
//! | 3 | [`linger::Lingers`] | the early recalls |
//! | 3 | [`process_lease::Mailbox`] | the signal for one waiting thread |
//! | 3 | [`claim::Tried`] | the owners of adoptions without a clear reply |
//! | 3 | [`events::Events`] | the listener, until the events thread takes it |
//! | 3 | [`Cancel`](crate::Cancel) | the threads that a cancel unparks |
//!
//! A thread holds at most one mutex of row 3. A store has further mutexes. A thread takes them only in a call to the
//! store, and then it holds none of these. The threads of a store take no others.

mod acquire;
mod admin;
pub(crate) mod call;
mod claim;
mod cold_state;
mod contention;
mod delegate;
mod downgrade;
pub(crate) mod events;
mod grant;
pub(crate) mod guard_inner;
mod health;
mod hold_limit;
mod linger;
mod metrics;
mod names;
pub(crate) mod process_lease;
mod quantum;
mod rate_limiter;
mod release;
pub(crate) mod renewal;
mod unsent_releases;
mod wait;
pub(crate) mod wakeup;
pub(crate) mod watch;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::clock::{Clock, EngineClock, Time};
use crate::config::Settings;
use crate::error::{Error, Failure, FailureKind, Outcome, Result};
use crate::message::{Reply, Request};
use crate::owner::ProcessTag;
use crate::panics::survived;
use crate::process::ForkGuard;
use crate::random::Rng;
use crate::stats::{Counters, Stats};
use crate::store::{Answer, LEAST, Limits, Store};
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, Weak};

use claim::Tried;
use events::Events;
use linger::Lingers;
use names::Names;
use process_lease::Signal;
use quantum::Quantum;
use renewal::RenewalThread;
use wakeup::Wakeup;
use watch::Watch;

/// The state that all handles and guards of one manager share.
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    store: Arc<dyn Store>,
    clock: EngineClock,
    rng: Arc<dyn Rng>,
    lingers: Lingers,
    names: Names,
    renewal: Arc<RenewalThread>,
    watch: Arc<Watch>,
    wakeup: Arc<Wakeup>,
    tried: Tried,
    events: Arc<Events>,
    stats: Counters,
    quantum: Quantum,
    closed: AtomicBool,
    /// The number of delegates, which ask Redis or sleep before they ask again, and of threads that end a linger. `close`
    /// waits for all of them.
    busy_threads: AtomicU64,
    /// The process that made this engine. A forked child locks no mutex of the engine, and uses no connection.
    fork_guard: ForkGuard,
    next_lease_number: AtomicU64,
    weak_self: Weak<Engine>,
}

impl Engine {
    /// Makes an engine that reads the machine's clock.
    pub(crate) fn new(settings: Settings, store: Arc<dyn Store>, rng: Arc<dyn Rng>) -> Arc<Self> {
        Self::with_engine_clock(settings, store, EngineClock::System, rng)
    }

    /// Makes an engine that reads this clock.
    #[cfg(test)]
    pub(crate) fn with_clock(
        settings: Settings,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Arc<Self> {
        Self::with_engine_clock(settings, store, EngineClock::OfTest(clock), rng)
    }

    fn with_engine_clock(
        mut settings: Settings,
        store: Arc<dyn Store>,
        clock: EngineClock,
        rng: Arc<dyn Rng>,
    ) -> Arc<Self> {
        let tag = ProcessTag::new(rng.uuid());
        let lingers = Lingers::new(tag, Arc::clone(&rng));
        let wakeup = Arc::new(Wakeup::new(tag));
        // The events thread must be the only owner of the listener, and drop it.
        let listener = settings.listener.take();
        let events = Arc::new(Events::new(listener));
        let quantum = Quantum::new(settings.fixed_quantum());
        Arc::new_cyclic(|weak_self| Self {
            settings,
            store,
            clock,
            rng,
            lingers,
            names: Names::new(),
            renewal: Arc::new(RenewalThread::new()),
            watch: Arc::new(Watch::new()),
            wakeup,
            tried: Tried::default(),
            events,
            stats: Counters::new(),
            quantum,
            closed: AtomicBool::new(false),
            busy_threads: AtomicU64::new(0),
            fork_guard: ForkGuard::here(),
            next_lease_number: AtomicU64::new(1),
            weak_self: weak_self.clone(),
        })
    }

    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Returns whether this process is a forked child. There a mutex may stay locked without end, and connections are
    /// shared with the parent. So a caller must check this before it uses any other part of the engine.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_guard.is_in_child()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns [`Error::Closed`] if the manager is closed, or the process is a forked child.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_forked() || self.is_closed() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Returns whether all names of one script must be in the same slot.
    pub(crate) fn has_slots(&self) -> bool {
        self.store.has_slots()
    }

    /// Sends a PING, to check that the server can be reached and accepts the login.
    pub(crate) fn ping(&self) -> Result<()> {
        let answer = self
            .send(&Request::Ping, self.limits(None))
            .map_err(|failure| failure.into_error(None))?;
        if answer.reply == Reply::Pong {
            return Ok(());
        }
        let words = "the answer to PING is not PONG";
        Err(Failure::plain(FailureKind::Protocol, Outcome::NotExecuted, words).into_error(None))
    }

    /// Handles a message as the wakeup thread does.
    #[cfg(fuzzing)]
    pub(crate) fn hear(&self, channel: &str, payload: &[u8]) {
        self.wakeup.message(channel, payload, &self.weak_self);
    }

    /// Counts the calling thread as busy until the returned value is dropped.
    fn count_busy(&self) -> CountedBusy<'_> {
        self.busy_threads.fetch_add(1, Ordering::SeqCst);
        CountedBusy(self)
    }

    /// Returns the number of busy threads. Most of them are delegates.
    fn busy_threads(&self) -> u32 {
        u32::try_from(self.busy_threads.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Returns whether there is a busy thread.
    fn has_busy_threads(&self) -> bool {
        self.busy_threads.load(Ordering::SeqCst) > 0
    }

    /// Ends all waits with [`Error::Closed`] and all lingers, and blocks for at most `wait` until Redis has replied to each
    /// release task. Returns true if Redis has replied to all of them.
    pub(crate) fn close(&self, wait: Duration) -> bool {
        if self.is_forked() {
            return false;
        }
        let until = self.now() + wait;
        self.closed.store(true, Ordering::SeqCst);
        for entry in self.names.all() {
            // No mutex is held while the signals are sent.
            let waiting = entry.lock().queue.close();
            for mailbox in waiting {
                mailbox.send(Signal::Closed);
            }
        }
        self.end_all_lingers();
        self.wakeup.wake_all();
        self.renewal.flush(self, until)
    }

    /// Returns the counters and the quantum. Reads only atomic values, so a forked child may call it too.
    pub(crate) fn stats(&self) -> Stats {
        let (lingering, dropped) = (self.lingers.idle(), self.events.dropped());
        self.stats
            .load(lingering, dropped, self.quantum(self.now()))
    }

    /// Sends a request on a pooled connection, and returns the reply. Turns a panic into a failure: if a delegate
    /// unwound, the threads behind it would wait without end.
    fn send(&self, request: &Request<'_>, limits: Limits<'_>) -> Result<Answer, Failure> {
        self.stats.requests.add(1);
        let answer = survived(|| self.store.call(request, limits)).unwrap_or_else(|| {
            let words = "the request panicked";
            Err(Failure::plain(
                FailureKind::Unavailable,
                Outcome::Unknown,
                words,
            ))
        })?;
        self.count_hand_over(request, &answer.reply);
        Ok(answer)
    }

    /// Returns the source of the owners for leases that may linger, or for leases that never do.
    fn owner_source(&self, may_linger: bool) -> &dyn Rng {
        if may_linger {
            self.lingers.owner_source()
        } else {
            &*self.rng
        }
    }

    /// Returns the time limits of a request. `until` is the end of the caller's wait, or `None` if the caller does not
    /// wait.
    fn limits(&self, until: Option<Time>) -> Limits<'static> {
        /// A year: longer than any setting, and still short enough to add to a time of the system's clock.
        const LONG: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        match until {
            None => Limits {
                checkout: self.settings.io_timeout,
                whole: LONG,
                has_priority: false,
                is_of_a_wait: false,
                is_over: None,
            },
            Some(Time::NEVER) => Limits {
                checkout: self.settings.outage_limit.min(LONG),
                whole: LONG,
                has_priority: false,
                is_of_a_wait: true,
                is_over: None,
            },
            Some(until) => {
                let left = until.since(self.now()).clamp(LEAST, LONG);
                Limits {
                    checkout: left,
                    whole: left,
                    has_priority: false,
                    is_of_a_wait: true,
                    is_over: None,
                }
            }
        }
    }
}

/// A busy thread, counted until this is dropped.
struct CountedBusy<'a>(&'a Engine);

impl Drop for CountedBusy<'_> {
    fn drop(&mut self) {
        self.0.busy_threads.fetch_sub(1, Ordering::SeqCst);
        // `close` sets its flag before it reads the counter, and this thread changes the counter before it reads the
        // flag. So at least one of the two threads sees the other's change.
        if self.0.is_closed() {
            self.0.renewal.notify_waiting();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            // Dropping the pool would lock mutexes that no thread of this process will ever unlock.
            std::mem::forget(Arc::clone(&self.store));
            std::mem::forget(Arc::clone(&self.events));
            return;
        }
        self.renewal.stop();
        self.watch.stop();
        self.wakeup.stop();
    }
}
