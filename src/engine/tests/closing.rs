//! Managers that are closed while a thread asks.

use super::*;
use crate::core::lease::LeaseStatus;
use crate::engine::process_lease::ProcessLease;

#[test]
fn a_request_without_a_reply_at_close_is_cancelled_until_a_lease_has_passed() {
    let (ManualPool { answers, asked }, pool) = manual_pool();
    let (withdrawals, dedicated_connection) = finding_nothing();
    let engine = Fake::new(pool, dedicated_connection).engine(SHORT, Arc::new(RealMachine));
    drop(lock(&engine));
    let handle = mutex(Arc::clone(&engine), "name");
    let started = Time::now();
    let asking = thread::spawn(move || handle.lock().map(drop));
    asked.recv_timeout(PATIENCE).expect("it asks");
    assert!(!engine.close(Duration::ZERO), "a request is in flight");
    answers.send(Err(unavailable())).expect("it waits for it");
    let ended = asking.join().expect("no panic");
    assert!(
        matches!(ended, Err(Error::Closed | Error::Unavailable { .. })),
        "{ended:?}"
    );
    let (mut last, owner) = withdrawals.recv_timeout(PATIENCE).expect("withdrawn");
    while last < started + SHORT {
        let (at, again) = withdrawals.recv_timeout(PATIENCE).expect("withdrawn again");
        assert_eq!(again, owner);
        last = at;
    }
    assert!(engine.close(PATIENCE));
}

/// A clock on which the threads of one name stop at each reading, until the test lets them go on. If there is a lease,
/// they stop after its end only.
struct StepClock {
    clock: ManualClock,
    stops: &'static str,
    lease: Mutex<Option<Arc<ProcessLease>>>,
    reached: mpsc::Sender<()>,
    go_on: crossbeam_channel::Receiver<()>,
}

/// The test's end of a [`StepClock`]. If it is dropped, nothing stops any more.
struct Steps {
    reached: mpsc::Receiver<()>,
    go_on: crossbeam_channel::Sender<()>,
}

const STEPPED: &str = "stepped";

impl StepClock {
    fn new(stops: &'static str) -> (Arc<Self>, Steps) {
        let (reached, stops_seen) = mpsc::channel();
        let (permit, go_on) = crossbeam_channel::bounded(0);
        let clock = Self {
            clock: ManualClock::starting_at(Time::from_nanos(1 << 40)),
            stops,
            lease: Mutex::default(),
            reached,
            go_on,
        };
        let test = Steps {
            reached: stops_seen,
            go_on: permit,
        };
        (Arc::new(clock), test)
    }
}

impl StepClock {
    /// Returns whether there is a lease, and it is live.
    fn is_live(&self, now: Time) -> bool {
        let lease = self.lease.lock().clone();
        lease.is_some_and(|lease| matches!(lease.validity.status(now), LeaseStatus::Live(_)))
    }
}

impl TestMachine for StepClock {
    fn now(&self) -> Time {
        let now = self.clock.now();
        if thread::current().name() != Some(self.stops) {
            return now;
        }
        if !self.is_live(now) && self.reached.send(()).is_ok() {
            self.go_on.recv().ok();
        }
        now
    }
}

impl Steps {
    /// Blocks until a thread has stopped.
    fn stop(&self) {
        self.reached.recv_timeout(PATIENCE).expect("it stops");
    }

    /// Lets the thread go on to its next reading of the clock, until `is_over`. Calls `check` at each.
    fn each(&self, is_over: impl Fn() -> bool, check: impl Fn()) {
        wait_for(|| {
            if self.reached.try_recv().is_ok() {
                check();
                self.go_on.send(()).expect("it has stopped");
            }
            is_over()
        });
    }
}

fn stepped<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    let thread = thread::Builder::new().name(STEPPED.into());
    thread.spawn(run).expect("a thread starts")
}

/// Returns a script that grants every request, and whether a lock has been released by it.
fn noting_release() -> (
    Arc<AtomicBool>,
    impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Clone + Send,
) {
    let is_released = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&is_released);
    let script = move |request: &Request<'_>| {
        if let Request::Release(_)
        | Request::Lock {
            verb: Verb::Release { .. } | Verb::HandOver { .. } | Verb::TakeOver { .. },
            ..
        } = request
        {
            note.store(true, Ordering::SeqCst);
        }
        generous()(request)
    };
    (is_released, script)
}

/// Returns whether `close` would report that all is released.
fn is_settled(engine: &Engine) -> bool {
    let now = engine.client.now();
    engine.leases.renewal.flush(&engine.client, now)
}

fn lease_of(engine: &Engine) -> Option<Arc<ProcessLease>> {
    let all = engine.leases.names.all();
    all.iter()
        .find_map(|entry| entry.lock().queue.process_lease().cloned())
}

/// Checks at each step of the stopped thread after the end of the lease that `close` reports no lock as released that
/// Redis still has.
fn never_settled_too_early(
    engine: &Engine,
    clock: &StepClock,
    is_released: &AtomicBool,
    steps: &Steps,
    is_over: impl Fn() -> bool,
) {
    let seen = AtomicBool::new(false);
    steps.each(is_over, || {
        // The thread may have stopped before the clock got the lease.
        let is_ended = !clock.is_live(clock.clock.now());
        let is_released = || is_released.load(Ordering::SeqCst);
        seen.fetch_or(is_ended && !is_released(), Ordering::SeqCst);
        // The renewal thread goes on meanwhile, so this comes before the last look at the release.
        let is_settled = is_settled(engine);
        assert!(
            !is_ended || !is_settled || is_released(),
            "Redis still has the lock"
        );
    });
    assert!(
        seen.into_inner(),
        "the thread never stopped between the two"
    );
}

#[test]
fn close_waits_for_a_thread_that_is_about_to_release() {
    let (clock, steps) = StepClock::new(STEPPED);
    let (is_released, script) = noting_release();
    let engine =
        Fake::new(script.clone(), script).engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guard = lock(&engine);
    *clock.lease.lock() = lease_of(&engine);
    let ending = stepped(move || drop(guard));
    never_settled_too_early(&engine, &clock, &is_released, &steps, || {
        ending.is_finished()
    });
    assert!(is_settled(&engine));
}

#[test]
fn close_waits_for_the_end_of_a_guard_at_its_max_hold() {
    let (clock, steps) = StepClock::new("leasehold-watch");
    let (is_released, script) = noting_release();
    let engine =
        Fake::new(script.clone(), script).engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let handle = mutex(Arc::clone(&engine), "name").max_hold(Some(SHORT));
    let guard = handle.lock().expect("granted");
    *clock.lease.lock() = lease_of(&engine);
    clock.clock.advance(SHORT);
    // The renewal thread holds a release back until its clock has moved.
    let is_over = || {
        clock.clock.advance(Duration::from_micros(10));
        is_released.load(Ordering::SeqCst)
    };
    never_settled_too_early(&engine, &clock, &is_released, &steps, is_over);
    assert_eq!(guard.state(), LeaseState::Lost);
    drop(steps);
    wait_for(|| is_settled(&engine));
}

/// The lease of the guard has ended, and the thread that takes the lock over has not woken up yet.
#[test]
fn close_waits_for_a_thread_that_is_about_to_take_over() {
    let (clock, steps) = StepClock::new(STEPPED);
    let (is_released, script) = noting_release();
    let engine =
        Fake::new(script.clone(), script).engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guard = lock(&engine);
    let handle = mutex(Arc::clone(&engine), "name");
    let waiting = stepped(move || handle.try_lock_for(LONG).map(drop));
    let is_waiting = || {
        let all = engine.leases.names.all();
        all.iter().any(|entry| entry.lock().queue.waiting() == 1)
    };
    steps.each(is_waiting, || {});
    steps.stop();
    // The quantum is over, so the lock does not go on in memory.
    clock.clock.advance(QUANTUM);
    guard.release().expect("it is held");
    assert!(lease_of(&engine).is_none() && !is_released.load(Ordering::SeqCst));
    assert!(!is_settled(&engine), "Redis still has the lock");
    drop(steps);
    waiting.join().expect("no panic").expect("granted");
    wait_for(|| is_settled(&engine));
}

/// The delegate has left an owner in the queue in Redis to the next thread, which has not woken up yet.
#[test]
fn close_waits_for_a_thread_that_is_about_to_carry_an_attempt_on() {
    let (clock, steps) = StepClock::new(STEPPED);
    let (asked, was_asked) = mpsc::channel();
    let is_held = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&is_held);
    let pool = move |request: &Request<'_>| {
        asked.send(()).ok();
        if held.load(Ordering::SeqCst) {
            let (ttl, holder) = (None, "lh1:other:l".into());
            return Ok(Reply::Held {
                ttl,
                holder,
                handed_over: false,
            });
        }
        generous()(request)
    };
    let engine =
        Fake::new(pool, generous()).engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let wait_for_lock = |length: Duration| {
        let handle = mutex(Arc::clone(&engine), "name");
        move || handle.try_lock_for(length).map(|guard| guard.is_some())
    };
    let cancel = crate::Cancel::new();
    let delegate = {
        let (handle, cancel) = (mutex(Arc::clone(&engine), "name"), cancel.clone());
        thread::spawn(move || handle.cancel_with(&cancel).lock().map(drop))
    };
    was_asked.recv_timeout(PATIENCE).expect("the delegate asks");
    let waiting = stepped(wait_for_lock(LONG));
    let is_waiting = || {
        let all = engine.leases.names.all();
        all.iter().any(|entry| entry.lock().queue.waiting() == 1)
    };
    steps.each(is_waiting, || {});
    steps.stop();
    cancel.cancel();
    let ended = delegate.join().expect("no panic");
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    assert!(!is_settled(&engine), "the owner is in the queue");
    is_held.store(false, Ordering::SeqCst);
    drop(steps);
    assert!(waiting.join().expect("no panic").expect("no failure"));
    wait_for(|| is_settled(&engine));
}
