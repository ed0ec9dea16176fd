//! The engine: everything about the locks of this process. Below it are only requests and connections.
//!
//! A subject has a folder. Its *rules* are pure: they have no clock, thread, mutex or socket, get the present time as an
//! argument, and return what to do next. Beside them stands what drives them.
//!
//! | folder | its subject |
//! | --- | --- |
//! | [`queue`] | the threads of this process that want one name |
//! | [`attempt`] | this process's way to a lock: it asks, waits, and is granted |
//! | [`lease`] | a lock that this process holds, and what keeps or ends it |
//! | [`ending`] | how a lock is given up, and how that is repeated until it is sure |
//! | [`wakeup`] | the messages of Redis |
//! | [`election`] | leaders: their values, and who observes them |
//! | [`observe`] | counters, events and spans |
//!
//! [`acquire`] is where each call begins, and tells the story of a lock. [`client`] sends the requests. [`rate_limiter`] and
//! [`admin`] are small subjects of their own.
//!
//! # Parts
//!
//! Each handle and guard keeps the [`Engine`], which holds the parts. When the last of them is dropped, the threads end; the
//! renewal thread first sends the release tasks that are left. The lowest part is the last in this table, and each part uses only parts below it:
//!
//! | part | has | does |
//! | --- | --- | --- |
//! | [`lease::guard::Lease`], [`acquire`] | the engine | one guard; one call on its way in |
//! | [`Engine`] | all of the below | begins, watches and ends the leases of this process ([`lease`], [`lease::claim`]); requests of operators ([`admin`]) |
//! | [`lease::watch::Watch`], [`wakeup::Wakeup`], [`lease::renewal::RenewalThread`], [`election::Elections`] | the work of one thread each, by its time | runs the thread |
//! | [`queue::Names`] | the names in use, with their queues of threads and their leases | finds and drops the entry of a name |
//! | [`client::Client`] | the settings, the machine, the connections, the counters and events | sends the requests of callers' threads |
//!
//! No part calls back up. The loops of the watch, wakeup and elections threads take a loss, a message or a read that is due from
//! their part, and act on it with the engine. The renewal thread sees a failover when it next wakes, within a second.
//!
//! # Threads
//!
//! | thread | does | never | lives |
//! | --- | --- | --- | --- |
//! | `leasehold-renewal` | renews every lease, or looks at one without renewal; repeats releases; on a dedicated connection to each server | calls the listener | from the first lease or release task until it has had neither for a while |
//! | `leasehold-watch` | ends each lease at its deadline; sends a loss to the channels of `on_lost` | does I/O | from the first lease until it has had none for a while |
//! | `leasehold-wakeup-0` | receives messages of Redis, wakes delegates, on a dedicated connection to each server | calls scripts | from the first wait, or the first channel for requests, until the last handle and guard are dropped |
//! | `leasehold-pool` | closes the connections that no call uses; on a quorum, also begins the probes of nodes that are down | uses the engine | from `build` until the store is dropped |
//! | `leasehold-r2d2-0` | makes the values of a new pool, and then sleeps | uses the engine | from `build` until the store is dropped |
//! | `leasehold-dns` | looks up the name of a server's host, for all callers that connect to it | uses the engine | until the system answers, which may be after the engine is dropped |
//! | `leasehold-sentinel` | finds the master; a thread for each sentinel also hears of failovers | uses the engine | from the first request until the store is dropped |
//! | without a name | behind sentinels, asks one sentinel for the master, or one server for its role | uses the engine | until the answer has come, or the time is over |
//! | `leasehold-cluster` | asks the nodes of a cluster for their slots | uses the engine | from the first request until the store is dropped |
//! | without a name | on a cluster, asks one node for its slots, or sends a batch of renewals to one of several masters | uses the engine | until the answer has come, or the time is over |
//! | `leasehold-connect` | on a quorum, connects to one node | uses the engine | until it has connected, or the time is over |
//! | `leasehold-elections` | reads the leaders of the names that are observed, and tells the receivers; writes the values of this process's leaders again | holds the engine while it sleeps | from the first leader or observer until there has been neither for a while |
//! | `leasehold-events` | calls the listener, and logs warnings | holds the engine | from the first event for the listener or the log until the engine is dropped and the queue is empty |
//!
//! # Lock order
//!
//! A thread that holds a mutex takes only mutexes of later rows, and does no I/O:
//!
//! | row | mutex | guards |
//! | --- | --- | --- |
//! | 1 | a shard of [`queue::Names`] | the entries of names |
//! | 2 | [`queue::Entry`] | the state of one name, with its queue |
//! | 3 | [`lease::renewal::RenewalThread`] | leases and release tasks, by the time at which they are due |
//! | 3 | [`lease::watch::Watch`] | leases and guards, by the time at which they must end |
//! | 3 | [`election::Elections`] | who leads and who observes, by the time at which they are due; the value of a leader |
//! | 3 | [`wakeup::Wakeup`] | the register of sleeping delegates; the message for one of them |
//! | 3 | [`lease::process_lease::ProcessLease`] | the listeners for a loss, and other rare fields; whether the metrics count it as at risk |
//! | 3 | [`queue::WaitingThread`] | the signal for one waiting thread |
//! | 3 | [`lease::claim::Tried`] | the owners of adoptions without a clear reply |
//! | 3 | [`observe::events::Events`] | the listener, until the events thread takes it; its queue |
//! | 3 | [`client::Client`] | the semaphores to which other clients give another number of permits |
//! | 3 | [`Cancel`](crate::Cancel) | the threads that a cancel wakes |
//! | 4 | [`Parker`](crate::sys::thread::Parker) | whether one thread sleeps |
//!
//! A thread holds at most one mutex of row 3. A store has further mutexes. A thread that calls it holds none of these,
//! unless the call takes no mutex, as [`Store`] says. The threads of a store take no others.

pub(crate) mod acquire;
mod admin;
pub(crate) mod attempt;
pub(crate) mod client;
mod closing;
pub(crate) mod election;
mod ending;
pub(crate) mod lease;
pub(crate) mod observe;
mod queue;
pub(crate) mod rate_limiter;
mod timer_queue;
pub(crate) mod wakeup;

use std::time::Duration;

use crate::config::Settings;
use crate::server::Store;
use crate::stats::Stats;
use crate::sys::{Arc, AtomicU64, Rng};

use client::Client;
use election::Elections;
use lease::claim::Tried;
use lease::renewal::RenewalThread;
use lease::watch::Watch;
use queue::quantum::Quantum;
use queue::{Names, Signal};
use wakeup::Wakeup;

/// The locks of one manager in this process. Its handles and guards all hold on to the same engine.
pub(crate) struct Engine {
    pub(crate) client: Arc<Client>,
    names: Names,
    renewal: Arc<RenewalThread>,
    watch: Arc<Watch>,
    wakeup: Arc<Wakeup>,
    elections: Arc<Elections>,
    quantum: Quantum,
    /// The number for the next lease.
    next_number: AtomicU64,
    tried: Tried,
}

impl Engine {
    pub(crate) fn new(settings: Settings, store: Arc<dyn Store>) -> Arc<Self> {
        let process = settings.machine.uuid();
        let quantum = Quantum::new(settings.fixed_quantum());
        let client = Arc::new(Client::new(settings, store));
        let watch = Arc::new(Watch::default());
        let engine = Arc::new(Self {
            renewal: Arc::new(RenewalThread::new(Arc::clone(&client), Arc::clone(&watch))),
            client,
            names: Names::new(),
            watch,
            wakeup: Arc::new(Wakeup::new(process)),
            elections: Arc::default(),
            quantum,
            next_number: AtomicU64::new(1),
            tried: Tried::default(),
        });
        #[cfg(feature = "seam")]
        {
            let weak: crate::sys::Weak<Self> = Arc::downgrade(&engine);
            engine.client.machine().register(weak);
        }
        engine
    }

    /// Ends all waits with [`Error::Closed`](crate::Error::Closed), and blocks for at most `wait` until
    /// Redis has replied to each release task. Returns true if Redis has replied to all of them.
    pub(crate) fn close(&self, wait: Duration) -> bool {
        let client = &self.client;
        if client.is_forked() {
            return false;
        }
        let until = client.now() + wait;
        client.note_closed();
        for entry in self.names.all() {
            // No mutex is held while the signals are sent.
            let waiting = entry.lock().queue.close();
            for waiter in waiting {
                waiter.send(Signal::Closed);
            }
        }
        self.wakeup.wake_all();
        self.elections.close();
        self.renewal.flush(until)
    }

    /// Returns the counters and the quantum. Reads only atomic values, so a forked child may call it too.
    pub(crate) fn stats(&self) -> Stats {
        let client = &self.client;
        client.stats.load(
            &client.settings.pools,
            client.events.dropped(),
            self.quantum(client.now()),
        )
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.client.is_forked() {
            self.renewal.stop();
            self.watch.stop();
            self.wakeup.stop();
            self.elections.stop();
        }
    }
}
