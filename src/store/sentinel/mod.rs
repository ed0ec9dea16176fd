//! The master of a Sentinel set, which changes with each failover.
//!
//! A thread finds the master and publishes it ([`watcher`]). All connections of a manager go to the published master:
//! those of the pool, that of the renewal thread, and that of the listener. A connection that was opened before the
//! last change is closed at its next use.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | no master | the thread has found one | known |
//! | known | a connection to the master fails, the server answers that it is a replica, or a check finds no master | suspected |
//! | known | the thread has found the same | known |
//! | known, suspected | the thread has found another, or the same address with a later epoch | known, with the next number |
//! | suspected | a check that began after the suspicion has found the same | known |
//!
//! A request is sent only while the master is known, and waits for that within its time limit. An answer counts only if
//! the master is the same after it. The reply to a request that wrote nothing is no proof: a server that has become a
//! replica may answer it from old data. So the link asks for the server's `ROLE` then ([`super::link`]).
//!
//! Sentinel copies writes to replicas without waiting for them. So a failover may lose a lock. The holder learns of it
//! at its next renewal. The fence is larger after the failover than before, because it follows the servers' time, unless the
//! clock of the new master is behind.

mod client;
mod opinion;
mod watcher;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use crate::config::{SentinelSet, Settings};
use crate::error::{Failure, FailureKind, Outcome};
use crate::store::pubsub;
use crate::store::route::{Route, route};
use crate::store::waker::{wake, wakers};
use crate::store::{LOOK_EVERY, PubSubEvent};
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, Ordering, thread};

use opinion::Opinion;
use watcher::Watcher;
pub(crate) use watcher::check_role;

/// The longest wait of the listener for a master.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The master that was found last.
pub(crate) struct Discovery {
    set: SentinelSet,
    settings: Settings,
    /// The way to the master before one was found. It has what all masters share.
    unknown: Route,
    /// The number of the master while it is known, otherwise 0.
    known: AtomicU64,
    state: Mutex<State>,
    /// Notified after each check.
    checked: Condvar,
    /// Wakes the thread. Empty before it runs.
    waker: OnceCell<UnixStream>,
    /// Whether nobody uses the master any more.
    is_over: AtomicBool,
}

#[derive(Default)]
struct State {
    master: Option<Master>,
    /// How often the master was suspected.
    suspicions: u64,
    /// How many of these suspicions came before the last check began.
    began: u64,
    /// How many of them a check has answered.
    answered: u64,
    /// How many checks have found no master.
    failed: u64,
    /// Why the last of them has found none.
    failure: Option<Failure>,
}

/// A master, as it was found.
#[derive(Clone)]
pub(crate) struct Master {
    pub(crate) number: u64,
    pub(crate) route: Route,
    opinion: Opinion,
}

impl State {
    fn is_known(&self) -> bool {
        self.master.is_some() && self.suspicions == self.answered
    }
}

impl Discovery {
    pub(crate) fn new(set: SentinelSet, settings: &Settings) -> Self {
        Self {
            unknown: route(set.unknown_master(), settings),
            settings: Settings {
                // Only the events thread may keep it.
                listener: None,
                ..settings.clone()
            },
            set,
            known: AtomicU64::new(0),
            state: Mutex::default(),
            checked: Condvar::new(),
            waker: OnceCell::new(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Returns the way to a master that is not known yet.
    pub(crate) fn unknown(&self) -> &Route {
        &self.unknown
    }

    /// Returns whether the master of this number is known to be the master now.
    pub(crate) fn is_current(&self, number: u64) -> bool {
        number > 0 && self.known.load(Ordering::Acquire) == number
    }

    /// Blocks until the master is known, but for at most `limit`. Every [`LOOK_EVERY`] it calls `is_over`, and stops
    /// waiting if the call is over.
    ///
    /// # Errors
    ///
    /// Returns the reason why no master is known.
    pub(crate) fn wait(
        self: &Arc<Self>,
        limit: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        if self.known.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        self.master_unless(limit, is_over).map(|_| ())
    }

    /// Returns the master. Blocks until it is known, but for at most `limit`.
    ///
    /// # Errors
    ///
    /// Returns the reason why no master is known.
    pub(crate) fn master(self: &Arc<Self>, limit: Duration) -> Result<Master, Failure> {
        self.master_unless(limit, &|| false)
    }

    fn master_unless(
        self: &Arc<Self>,
        limit: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Master, Failure> {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        if self.waker.get().is_none() {
            // Under the mutex, so no other thread has set it.
            self.waker.set(self.start()?).ok();
        }
        let failed_before = state.failed;
        loop {
            if let Some(master) = state.master.as_ref().filter(|_| state.is_known()) {
                return Ok(master.clone());
            }
            // Another check would find the same.
            let is_final =
                |failure: &&Failure| !failure.is_transient() && state.failed > failed_before;
            if let Some(failure) = state.failure.as_ref().filter(is_final) {
                return Err(failure.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || is_over() {
                let none = || unavailable("no sentinel has answered in time");
                return Err(state.failure.clone().unwrap_or_else(none));
            }
            state = self.checked.wait_for(state, left.min(LOOK_EVERY));
        }
    }

    /// Makes the thread check the master of this number, because a connection to it has failed.
    pub(crate) fn suspect(&self, number: u64) {
        let mut state = self.state.lock();
        let is_this = state
            .master
            .as_ref()
            .is_some_and(|master| master.number == number);
        // A check that has begun may have asked before this. One more check is enough for all that suspect it now.
        if is_this && (state.is_known() || state.suspicions == state.began) {
            state.suspicions += 1;
            self.known.store(0, Ordering::Release);
            self.wake();
        }
    }

    /// Starts the thread. Returns what wakes it.
    fn start(self: &Arc<Self>) -> Result<UnixStream, Failure> {
        let failed = |error: std::io::Error| {
            let words = format!("the thread that asks the sentinels cannot be started: {error}");
            unavailable(words)
        };
        let (waker, woken) = wakers().map_err(failed)?;
        let watcher = Watcher::new(Arc::clone(self), woken);
        thread::Builder::new()
            .name("leasehold-sentinel".into())
            .spawn(move || watcher.run())
            .map_err(failed)?;
        Ok(waker)
    }

    /// Ends the thread. Takes no mutex, because a forked child may call it.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.wake();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            wake(waker);
        }
    }

    /// Notes that a check begins. Returns how often the master was suspected before.
    fn begin_check(&self) -> u64 {
        let mut state = self.state.lock();
        state.began = state.suspicions;
        state.began
    }

    /// Returns whether the master was suspected after the last check began.
    fn is_suspected_anew(&self) -> bool {
        let state = self.state.lock();
        state.suspicions != state.began
    }

    /// Returns the way to the server of an opinion.
    fn route_to(&self, opinion: &Opinion) -> Route {
        let master = self.state.lock().master.clone();
        match master.filter(|master| master.opinion.is_at(opinion)) {
            Some(master) => master.route,
            None => Route {
                cuts: Arc::clone(&self.unknown.cuts),
                // A lookup that was too slow for one check serves the next.
                resolver: Arc::clone(&self.unknown.resolver),
                ..route(
                    self.set
                        .server_at(&opinion.host, opinion.port, &self.settings),
                    &self.settings,
                )
            },
        }
    }

    /// Publishes the master that a check has found, and returns its number. The check began after this many suspicions.
    fn publish(&self, opinion: &Opinion, route: Route, suspicions: u64) -> u64 {
        let mut state = self.state.lock();
        let number = match &state.master {
            Some(master) if master.opinion == *opinion => master.number,
            Some(master) => master.number + 1,
            None => 1,
        };
        let is_same = |master: &Master| master.number == number;
        let is_new = !state.master.as_ref().is_some_and(is_same);
        if is_new && state.master.is_some() {
            // The new master may lack what the last one had.
            self.unknown.cuts.note();
        }
        state.master = Some(Master {
            number,
            route,
            opinion: opinion.clone(),
        });
        // A suspicion of the last master says nothing about a new one.
        state.answered = if is_new { state.suspicions } else { suspicions };
        state.failure = None;
        let known = if state.is_known() { number } else { 0 };
        self.known.store(known, Ordering::Release);
        drop(state);
        self.checked.notify_all();
        number
    }

    /// Notes why a check has found no master.
    fn not_found(&self, failure: Failure) {
        let mut state = self.state.lock();
        if state.master.is_some() && state.is_known() {
            // The next check will answer this one.
            state.suspicions += 1;
            state.began = state.suspicions;
            self.known.store(0, Ordering::Release);
        }
        state.failed += 1;
        state.failure = Some(Failure {
            outcome: Outcome::NotExecuted,
            ..failure
        });
        drop(state);
        self.checked.notify_all();
    }

    /// Listens at the master until `hear` returns false. See [`crate::store::Store::listen`].
    pub(crate) fn listen(
        self: &Arc<Self>,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        // The caller pauses and tries again, or learns that it must end.
        let master = self.master(self.settings.connect_timeout.min(LONGEST_WAIT));
        let master = master.inspect_err(|failure| {
            hear(PubSubEvent::Node(self.unknown.report(Some(failure))));
        })?;
        let mut is_wanted = true;
        let listened = pubsub::listen(&master.route, channels, &mut |event| {
            is_wanted = hear(event);
            is_wanted && self.is_last(master.number)
        });
        if let Err(failure) = &listened {
            if failure.is_transient() {
                self.suspect(master.number);
            }
        } else if is_wanted {
            return Err(unavailable("the master has changed"));
        }
        listened
    }

    /// Returns whether no later master was found.
    fn is_last(&self, number: u64) -> bool {
        let state = self.state.lock();
        state
            .master
            .as_ref()
            .is_some_and(|master| master.number == number)
    }
}

fn unavailable(words: impl Into<String>) -> Failure {
    Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a discovery whose thread does not run.
    fn discovery() -> Arc<Discovery> {
        let settings = Settings::default();
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let set = SentinelSet::new(&urls, "mine", &settings).expect("a URL");
        let discovery = Discovery::new(set, &settings);
        let (waker, _) = UnixStream::pair().expect("a pair");
        discovery.waker.set(waker).expect("it is empty");
        Arc::new(discovery)
    }

    fn opinion(port: u16, epoch: u64) -> Opinion {
        Opinion {
            host: "127.0.0.1".into(),
            port,
            epoch,
        }
    }

    /// A check that finds this master.
    fn check(discovery: &Discovery, opinion: &Opinion) -> u64 {
        let suspicions = discovery.begin_check();
        discovery.publish(opinion, discovery.route_to(opinion), suspicions)
    }

    fn number(discovery: &Arc<Discovery>) -> Option<u64> {
        let master = discovery.master(Duration::ZERO).ok()?;
        assert!(discovery.is_current(master.number));
        Some(master.number)
    }

    #[test]
    fn only_another_address_or_epoch_is_another_master() {
        let discovery = discovery();
        assert_eq!(number(&discovery), None);
        for (found, expected) in [
            (opinion(1, 5), 1),
            (opinion(1, 5), 1),
            (opinion(2, 6), 2),
            (opinion(2, 7), 3),
            (opinion(1, 8), 4),
        ] {
            assert_eq!(check(&discovery, &found), expected);
            assert_eq!(number(&discovery), Some(expected));
            assert!(discovery.is_last(expected) && !discovery.is_last(expected - 1));
        }
        let port = discovery
            .master(Duration::ZERO)
            .expect("it is known")
            .route
            .server
            .address
            .clone();
        assert!(port.ends_with(":1"), "{port}");
    }

    #[test]
    fn a_call_that_is_over_waits_for_no_master() {
        let discovery = discovery();
        let hour = Duration::from_secs(3600);
        let failure = discovery.wait(hour, &|| true).expect_err("none is known");
        assert_eq!(failure.kind, FailureKind::Unavailable);
        check(&discovery, &opinion(1, 5));
        discovery
            .wait(Duration::ZERO, &|| true)
            .expect("it is known");
    }

    #[test]
    fn a_suspicion_is_answered_by_a_later_check_only() {
        let discovery = discovery();
        let master = opinion(1, 5);
        check(&discovery, &master);
        discovery.suspect(1);
        assert_eq!(number(&discovery), None);
        assert!(discovery.is_suspected_anew());
        // Another suspicion comes while the check asks.
        let suspicions = discovery.begin_check();
        assert!(!discovery.is_suspected_anew());
        discovery.suspect(1);
        discovery.suspect(1);
        discovery.publish(&master, discovery.route_to(&master), suspicions);
        assert_eq!(number(&discovery), None, "an older check has answered it");
        assert!(discovery.is_suspected_anew());
        check(&discovery, &master);
        assert_eq!(number(&discovery), Some(1));
        // A suspicion of an earlier master is none of this one.
        check(&discovery, &opinion(2, 6));
        discovery.suspect(1);
        assert_eq!(number(&discovery), Some(2));
    }

    #[test]
    fn a_new_master_is_known_although_the_last_one_is_suspected() {
        let discovery = discovery();
        check(&discovery, &opinion(1, 5));
        let suspicions = discovery.begin_check();
        discovery.suspect(1);
        let new = opinion(2, 6);
        discovery.publish(&new, discovery.route_to(&new), suspicions);
        assert_eq!(number(&discovery), Some(2));
        assert!(discovery.unknown.cuts.last() > crate::clock::Time::from_nanos(0));
    }

    #[test]
    fn a_check_without_a_result_makes_the_master_unknown() {
        let discovery = discovery();
        let master = opinion(1, 5);
        check(&discovery, &master);
        discovery.begin_check();
        discovery.not_found(unavailable("it is gone"));
        assert_eq!(number(&discovery), None);
        // The thread waits before it asks again.
        assert!(!discovery.is_suspected_anew());
        let error = discovery.master(Duration::ZERO).err().expect("it is gone");
        assert!(error.cause.to_string().contains("it is gone"));
        check(&discovery, &master);
        assert_eq!(number(&discovery), Some(1));
    }
}
