//! Tests of the engine over a store that the test controls. They cause faults that a real server cannot be made to have
//! at the right moment.

mod background;
mod claims;
mod closing;
mod failovers;
mod leases;
mod left_owners;
mod listener;
mod message_grants;
mod multi;
mod panics;
mod priority;
mod release_tasks;
mod suspend;

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Engine;
use crate::config::Settings;
use crate::error::{Error, Failure, FailureKind, LostCause, Outcome};
use crate::guard::{Lease, LeaseState, LockGuard};
use crate::lock::{Handle, mutex};
use crate::message::{Renewed, Reply, Request, Verb};
use crate::store::{Answer, Deadline, DedicatedConnection, PubSubEvent, Store};
use crate::sys::test_machine::manual::{ManualClock, RealMachine};
use crate::sys::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, TestMachine, Time};

/// A short lease: it ends during the test, or the test moves the clock.
const SHORT: Duration = Duration::from_millis(300);
/// A long lease, which does not end during a test.
const LONG: Duration = Duration::from_mins(10);
/// A fixed quantum, so that no measurement changes what a test sees.
const QUANTUM: Duration = Duration::from_millis(50);
/// A time limit far longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_secs(20);

type Script = Box<dyn FnMut(&Request<'_>) -> Result<Reply, Failure> + Send>;

/// A store whose answers the test gives.
#[derive(Clone)]
struct Fake {
    /// Answers the callers' threads.
    pool: Arc<Mutex<Script>>,
    /// Answers the renewal thread.
    dedicated_connection: Arc<Mutex<Script>>,
    /// The time at which the server last closed a connection, in nanoseconds.
    cut: Arc<AtomicU64>,
    /// The time at which an answer without a request last came, in nanoseconds.
    surplus: Arc<AtomicU64>,
    /// Until when nodes may have an owner that has ended.
    left_until: Arc<Mutex<Left>>,
    forgotten: Arc<Mutex<Vec<String>>>,
    /// Tells the engine of a failover.
    failover: Arc<Mutex<Option<Failover>>>,
}

type Failover = Box<dyn Fn() + Send + Sync>;
type Left = Box<dyn FnMut(&str) -> Option<Time> + Send>;

impl Fake {
    fn new(
        pool: impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send + 'static,
        dedicated_connection: impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send + 'static,
    ) -> Self {
        Self {
            pool: Arc::new(Mutex::new(Box::new(pool))),
            dedicated_connection: Arc::new(Mutex::new(Box::new(dedicated_connection))),
            cut: Arc::default(),
            surplus: Arc::default(),
            left_until: Arc::new(Mutex::new(Box::new(|_| None))),
            forgotten: Arc::default(),
            failover: Arc::default(),
        }
    }

    fn engine(self, lease: Duration, clock: Arc<dyn TestMachine>) -> Arc<Engine> {
        engine(self, lease, clock)
    }
}

fn engine(
    store: impl Store + 'static,
    lease: Duration,
    clock: Arc<dyn TestMachine>,
) -> Arc<Engine> {
    let mut settings = Settings::default();
    settings.options.lease = lease;
    settings.quantum = Some(QUANTUM);
    Engine::on(clock, settings, Arc::new(store))
}

fn answer(reply: Result<Reply, Failure>) -> Result<Answer, Failure> {
    reply.map(|reply| Answer {
        reply,
        resent: false,
    })
}

impl Store for Fake {
    fn call(&self, request: &Request<'_>, _: Deadline<'_>) -> Result<Answer, Failure> {
        answer((self.pool.lock())(request))
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(self.clone())
    }

    fn left_until(&self, owner: &str) -> Option<Time> {
        (self.left_until.lock())(owner)
    }

    fn forget(&self, owner: &str) {
        self.forgotten.lock().push(owner.to_owned());
    }

    fn last_data_loss_sign(&self) -> Time {
        Time::from_nanos(self.cut.load(Ordering::SeqCst))
    }

    fn on_failover(&self, changed: Failover) {
        *self.failover.lock() = Some(changed);
    }

    fn last_surplus(&self) -> Time {
        Time::from_nanos(self.surplus.load(Ordering::SeqCst))
    }

    fn listen(
        &self,
        _: &[&str],
        _: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::NotExecuted,
            "this store has no messages",
        ))
    }
}

impl DedicatedConnection for Fake {
    fn call(&mut self, request: &Request<'_>, _: Duration) -> Result<Answer, Failure> {
        answer((self.dedicated_connection.lock())(request))
    }
}

/// Returns a script that grants every request, with rising fences.
fn generous() -> impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send {
    let mut fence = 0;
    move |request| {
        Ok(match request {
            Request::Ping => Reply::Pong,
            Request::RateLimit { .. } => Reply::Admitted(Duration::ZERO),
            Request::Renew(batch) => {
                Reply::Renewed(vec![Renewed::Done { contended: false }; batch.len()])
            }
            Request::Adopt { .. }
            | Request::Lock {
                verb: Verb::Acquire { .. } | Verb::TakeOver { .. },
                ..
            } => {
                fence += 1_000_000;
                Reply::Granted {
                    fence,
                    count: None,
                    rest: Vec::new(),
                    contended: false,
                }
            }
            Request::Lock { .. } | Request::ForceRelease { .. } => Reply::Released,
            Request::Release(batch) => Reply::Each(vec![Ok(Reply::Released); batch.len()]),
            Request::Inspect { keys, .. } => Reply::Inspected(vec![None; keys.len()]),
            Request::Publish { .. } => Reply::Published,
            Request::Scan { .. } => Reply::Page {
                keys: Vec::new(),
                next: None,
            },
        })
    }
}

/// Returns a script that grants every request, and sends the requests for locks to a channel.
fn recording(
    sender: mpsc::Sender<Verb>,
) -> impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send {
    let mut granted = generous();
    move |request| {
        if let Request::Lock { verb, .. } = request {
            sender.send((*verb).clone()).ok();
        }
        granted(request)
    }
}

/// Returns a clock that only the test moves.
fn still() -> Arc<ManualClock> {
    Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)))
}

/// Returns a script that grants every acquire, and does not reply to releases.
fn unreleasing() -> impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send {
    let mut granted = generous();
    move |request| match request {
        Request::Lock {
            verb: Verb::Release { .. } | Verb::HandOver { .. },
            ..
        } => Err(unavailable()),
        request => granted(request),
    }
}

/// The time of a withdrawal, and its owner.
type Withdrawn = (Time, Arc<str>);

/// Returns a script by which Redis never holds the lock of a released owner, and a receiver of the withdrawals.
fn finding_nothing() -> (
    mpsc::Receiver<Withdrawn>,
    impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send,
) {
    let (withdrawn, withdrawals) = mpsc::channel();
    let dedicated_connection = move |request: &Request<'_>| {
        if let Request::Lock {
            verb: Verb::Withdraw { owner, .. },
            ..
        } = request
        {
            withdrawn.send((Time::now(), Arc::clone(owner))).ok();
        }
        Ok(Reply::NotOwner(crate::message::Gone::Removed))
    };
    (withdrawals, dedicated_connection)
}

fn unavailable() -> Failure {
    Failure::plain(FailureKind::Unavailable, Outcome::Unknown, "no answer")
}

fn mutex(engine: Arc<Engine>, name: &str) -> mutex::Mutex {
    mutex::Mutex::new(Handle::new(engine, name))
}

fn lock(engine: &Arc<Engine>) -> LockGuard {
    mutex(Arc::clone(engine), "name").lock().expect("granted")
}

/// Blocks until the condition is true.
fn wait_for(mut condition: impl FnMut() -> bool) {
    let begun = Time::now();
    while !condition() {
        assert!(
            Time::now().since(begun) < PATIENCE,
            "the condition is never true"
        );
        thread::yield_now();
    }
}

/// Returns a script that does not reply until the returned sender is dropped.
fn stuck() -> (
    mpsc::Sender<()>,
    impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send,
) {
    let (keep, held) = mpsc::channel::<()>();
    (keep, move |_: &Request<'_>| {
        held.recv().ok();
        Err(unavailable())
    })
}

#[test]
fn listeners_receive_a_loss_while_the_renewal_thread_is_stuck() {
    let (keep, dedicated_connection) = stuck();
    let engine = Fake::new(generous(), dedicated_connection).engine(SHORT, Arc::new(RealMachine));
    let guard = lock(&engine);
    let lost = guard.on_lost();
    let lost = lost.recv_timeout(PATIENCE).expect("a loss");
    assert_eq!(
        (lost.cause, lost.fence),
        (LostCause::Expired, guard.fence())
    );
    assert_eq!(guard.state(), LeaseState::Lost);
    drop(keep);
}

#[test]
fn a_resume_from_suspend_past_the_lease_is_a_loss_at_once() {
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let (keep, dedicated_connection) = stuck();
    let engine = Fake::new(generous(), dedicated_connection)
        .engine(SHORT, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guard = lock(&engine);
    assert_eq!(guard.state(), LeaseState::Held);
    clock.advance(Duration::from_hours(1));
    // The guard compares the clock with the deadline itself: no other thread has had time to do so.
    assert_eq!(guard.state(), LeaseState::Lost);
    assert!(matches!(guard.release(), Err(Error::Lost(lost)) if lost.cause == LostCause::Expired));
    drop(keep);
}

#[test]
fn a_lease_that_the_server_refuses_does_not_prevent_the_renewal_of_others() {
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let refuses = |request: &Request<'_>| match request {
        Request::Renew(batch) if batch.iter().any(|lease| lease.key.name() == "bad") => Err(
            Failure::plain(FailureKind::Denied, Outcome::NotExecuted, "NOPERM"),
        ),
        request => generous()(request),
    };
    let engine =
        Fake::new(generous(), refuses).engine(SHORT, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guards: Vec<_> = ["a", "b", "bad", "c", "d"]
        .map(|name| mutex(Arc::clone(&engine), name).lock().expect("granted"))
        .into();
    let started = Time::now();
    clock.advance(SHORT / 3);
    for guard in guards.iter().filter(|guard| guard.name() != "bad") {
        while guard.remaining() < SHORT * 2 / 3 {
            assert!(Time::now().since(started) < PATIENCE, "not renewed");
            thread::yield_now();
        }
    }
    clock.advance(SHORT * 2 / 3);
    let lost: Vec<_> = guards
        .iter()
        .filter(|guard| guard.state() == LeaseState::Lost)
        .map(|guard| guard.name())
        .collect();
    assert_eq!(lost, ["bad"]);
}

#[test]
fn a_grant_that_comes_too_late_is_given_back() {
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let late = Arc::clone(&clock);
    let (withdrawn, withdrawals) = mpsc::channel();
    let pool = move |_: &Request<'_>| {
        late.advance(SHORT);
        Ok(Reply::Granted {
            fence: 1,
            count: None,
            rest: Vec::new(),
            contended: false,
        })
    };
    let dedicated_connection = move |request: &Request<'_>| {
        if let Request::Lock { verb, .. } = request {
            withdrawn.send((*verb).clone()).ok();
        }
        Ok(Reply::Released)
    };
    let engine = Fake::new(pool, dedicated_connection).engine(SHORT, clock);
    let error = mutex(Arc::clone(&engine), "name")
        .lock()
        .expect_err("the reply is later than the deadline");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let verb = withdrawals.recv_timeout(PATIENCE).expect("given back");
    assert!(matches!(verb, Verb::Withdraw { .. }));
}

#[test]
fn an_acquire_of_unknown_outcome_is_cancelled_until_a_lease_has_passed() {
    let (withdrawals, dedicated_connection) = finding_nothing();
    let engine = Fake::new(|_| Err(unavailable()), dedicated_connection)
        .engine(SHORT, Arc::new(RealMachine));
    let started = Time::now();
    let error = mutex(Arc::clone(&engine), "name").try_lock();
    assert!(matches!(error, Err(Error::Unavailable { .. })));
    let (first, owner) = withdrawals.recv_timeout(PATIENCE).expect("withdrawn");
    let mut last = first;
    while last < started + SHORT {
        let (at, again) = withdrawals.recv_timeout(PATIENCE).expect("withdrawn again");
        assert_eq!(again, owner);
        last = at;
    }
    // Redis has replied, so the close need not wait for the repeated withdrawals.
    assert!(engine.close(PATIENCE));
}

#[test]
fn threads_behind_a_failing_delegate_fail_with_it() {
    let (asked, was_asked) = mpsc::channel();
    let (fail, failing) = mpsc::channel::<()>();
    let pool = move |_: &Request<'_>| {
        asked.send(()).ok();
        failing.recv_timeout(PATIENCE).expect("told to fail");
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::NotExecuted,
            "refused",
        ))
    };
    let engine = Fake::new(pool, generous()).engine(LONG, Arc::new(RealMachine));
    let wait = |engine: &Arc<Engine>| {
        let handle = mutex(Arc::clone(engine), "name");
        thread::spawn(move || handle.lock().map(drop))
    };
    let mut threads = vec![wait(&engine)];
    was_asked.recv_timeout(PATIENCE).expect("the delegate asks");
    threads.extend((0..8).map(|_| wait(&engine)));
    let waiting = || {
        engine
            .leases
            .names
            .all()
            .iter()
            .all(|entry| entry.lock().queue.waiting() == 8)
    };
    while !waiting() {
        thread::yield_now();
    }
    // One request fails, and all threads get the error.
    fail.send(()).expect("the delegate waits for it");
    for thread in threads {
        let result = thread.join().expect("no panic");
        assert!(
            matches!(result, Err(Error::Unavailable { .. })),
            "{result:?}"
        );
    }
    assert!(was_asked.try_recv().is_err(), "another thread asked too");
    assert!(
        engine.leases.names.all().is_empty(),
        "the name is still in use"
    );
}

/// A try behind a failing try shares its error. A thread that waits behind it asks Redis.
#[test]
fn a_thread_behind_a_failing_try_asks_in_its_place() {
    let (ManualPool { answers, asked }, pool) = manual_pool();
    let engine = Fake::new(pool, generous()).engine(LONG, Arc::new(RealMachine));
    drop(lock(&engine));
    let run = |wait: Duration| {
        let handle = mutex(Arc::clone(&engine), "name");
        thread::spawn(move || handle.try_lock_for(wait).map(|guard| guard.is_some()))
    };
    let queued = |threads| {
        let are_queued = || {
            let all = engine.leases.names.all();
            all.iter()
                .any(|entry| entry.lock().queue.waiting() == threads)
        };
        while !are_queued() {
            thread::yield_now();
        }
    };
    let first = run(Duration::ZERO);
    asked.recv_timeout(PATIENCE).expect("the first try asks");
    let waiting = run(LONG);
    queued(1);
    let second = run(Duration::ZERO);
    queued(2);
    answers.send(Err(unavailable())).expect("it waits");
    asked
        .recv_timeout(PATIENCE)
        .expect("the thread that waits asks");
    for tried in [first, second] {
        let tried = tried.join().expect("no panic");
        assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    }
    let granted = Reply::Granted {
        fence: 9_000_000,
        count: None,
        rest: Vec::new(),
        contended: false,
    };
    answers.send(Ok(granted)).expect("it waits");
    assert!(waiting.join().expect("no panic").expect("granted"));
}

#[test]
fn a_release_that_fails_is_repeated_from_the_background() {
    let (sender, releases) = mpsc::channel();
    let mut failures = VecDeque::from([unavailable(), unavailable()]);
    let dedicated_connection = move |request: &Request<'_>| match (request, failures.pop_front()) {
        (Request::Lock { .. }, Some(failure)) => Err(failure),
        (Request::Lock { verb, .. }, None) => {
            sender.send(Arc::clone(verb.owner())).ok();
            Ok(Reply::Released)
        }
        (request, _) => generous()(request),
    };
    let engine = Fake::new(unreleasing(), dedicated_connection).engine(LONG, Arc::new(RealMachine));
    let guard = lock(&engine);
    let owner = guard.owner().to_owned();
    assert!(matches!(guard.release(), Err(Error::Unavailable { .. })));
    assert_eq!(*releases.recv_timeout(PATIENCE).expect("released"), *owner);
    assert!(engine.close(PATIENCE));
}

/// The control of a pool that grants one acquire. The test answers each further acquire.
struct ManualPool {
    answers: mpsc::Sender<Result<Reply, Failure>>,
    asked: mpsc::Receiver<()>,
}

fn manual_pool() -> (
    ManualPool,
    impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send,
) {
    let (answers, next) = mpsc::channel();
    let (asks, asked) = mpsc::channel();
    let mut granted = generous();
    let mut first = true;
    let pool = move |request: &Request<'_>| match request {
        Request::Lock {
            verb: Verb::Acquire { .. },
            ..
        } if !std::mem::take(&mut first) => {
            asks.send(()).ok();
            next.recv_timeout(PATIENCE).expect("an answer")
        }
        request => granted(request),
    };
    (ManualPool { answers, asked }, pool)
}

#[test]
fn a_wait_survives_the_outage_that_lost_the_lock_before_it() {
    let (ManualPool { answers, asked }, pool) = manual_pool();
    let engine =
        Fake::new(pool, |_: &Request<'_>| Err(unavailable())).engine(SHORT, Arc::new(RealMachine));
    let guard = lock(&engine);
    let handle = mutex(Arc::clone(&engine), "name");
    let waiting = thread::spawn(move || handle.lock().map(|guard| guard.fence()));
    // The guard is lost and not dropped. The thread that waits behind it asks, and cannot reach the server.
    for _ in 0..3 {
        asked.recv_timeout(PATIENCE).expect("asks again");
        answers.send(Err(unavailable())).expect("it waits");
    }
    asked.recv_timeout(PATIENCE).expect("asks again");
    let granted = Reply::Granted {
        fence: guard.fence() + 1,
        count: None,
        rest: Vec::new(),
        contended: false,
    };
    answers.send(Ok(granted)).expect("it waits");
    let fence = waiting.join().expect("no panic").expect("it waited");
    assert!(fence > guard.fence());
    assert_eq!(guard.state(), LeaseState::Lost);
}

#[test]
fn a_try_during_an_outage_is_an_error_though_the_lock_was_held_before() {
    let (ManualPool { answers, asked }, pool) = manual_pool();
    let settings = Settings {
        io_timeout: Duration::from_millis(50),
        ..Settings::default()
    };
    let store = Arc::new(Fake::new(pool, generous()));
    let engine = Engine::new(settings, store);
    drop(lock(&engine));
    let handle = mutex(Arc::clone(&engine), "name");
    let waiting = thread::spawn(move || handle.lock().map(drop));
    asked.recv_timeout(PATIENCE).expect("asks");
    let held = Reply::Held {
        ttl: None,
        holder: "lh1:other:l".into(),
        handed_over: false,
    };
    answers.send(Ok(held)).expect("it waits");
    asked.recv_timeout(PATIENCE).expect("polls");
    let handle = mutex(Arc::clone(&engine), "name");
    assert!(
        matches!(handle.try_lock(), Ok(None)),
        "the last reply was held"
    );
    answers.send(Err(unavailable())).expect("it waits");
    asked.recv_timeout(PATIENCE).expect("polls again");
    let result = handle.try_lock();
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "{result:?}"
    );
    answers
        .send(Err(Failure::plain(
            FailureKind::Denied,
            Outcome::NotExecuted,
            "no",
        )))
        .expect("it waits");
    assert!(matches!(
        waiting.join().expect("no panic"),
        Err(Error::Denied { .. })
    ));
}

#[test]
fn the_threads_end_with_the_engine() {
    let engine = Fake::new(generous(), generous()).engine(LONG, Arc::new(RealMachine));
    drop(lock(&engine));
    let (renewal, watch) = (
        Arc::downgrade(&engine.leases.renewal),
        Arc::downgrade(&engine.leases.watch),
    );
    drop(engine);
    let started = Time::now();
    // Each thread holds a reference to its state while it runs.
    while renewal.strong_count() + watch.strong_count() > 0 {
        assert!(Time::now().since(started) < PATIENCE, "a thread still runs");
        thread::yield_now();
    }
}
