//! A release is repeated for as long as Redis may keep the key. The tests move the clock.

use super::*;
use crate::sys::{AtomicBool, Ordering};

/// The time for which Redis may keep the key of the guard.
const KEPT: Duration = Duration::from_mins(1);
/// The lease of the thread that waits behind the guard.
const SHORT_LEASE: Duration = Duration::from_secs(1);
/// A time longer than Redis could keep a key of the second thread's lease.
const OUTAGE: Duration = Duration::from_secs(5);

/// An engine whose link to Redis the test can cut and restore.
struct LinkedEngine {
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    is_cut: Arc<AtomicBool>,
    /// The requests of the renewal thread, each with whether Redis answered.
    verbs: mpsc::Receiver<(Verb, bool)>,
}

impl LinkedEngine {
    fn new(background_release: bool) -> Self {
        let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = |is_cut: &Arc<AtomicBool>| {
            let (is_cut, mut granted) = (Arc::clone(is_cut), generous());
            move |request: &Request<'_>| {
                if is_cut.load(Ordering::SeqCst) {
                    return Err(unavailable());
                }
                granted(request)
            }
        };
        let pool = cut(&is_cut);
        let (mut answers, (sent, verbs)) = (cut(&is_cut), mpsc::channel());
        let dedicated_connection = move |request: &Request<'_>| {
            let answer = answers(request);
            if let Request::Lock { verb, .. } = request {
                sent.send(((*verb).clone(), answer.is_ok())).ok();
            }
            answer
        };
        let mut settings = Settings {
            background_release,
            ..Settings::default()
        };
        settings.options.lease = KEPT;
        let store = Arc::new(Fake::new(pool, dedicated_connection));
        let machine = Arc::clone(&clock) as Arc<dyn TestMachine>;
        let engine = Engine::on(machine, settings, store);
        Self {
            clock,
            engine,
            is_cut,
            verbs,
        }
    }

    fn cut_link(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    fn restore_link(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }

    fn mutex(&self, lease: Duration) -> mutex::Mutex {
        mutex(Arc::clone(&self.engine), "name").lease(lease)
    }

    /// Starts a thread with the short lease, and returns when the thread waits behind a guard.
    fn waiter(&self) -> thread::JoinHandle<Result<u64, Error>> {
        let handle = self.mutex(SHORT_LEASE);
        let waiting = thread::spawn(move || handle.lock().map(|guard| guard.fence()));
        let begun = Time::now();
        let waits =
            |entry: &Arc<super::super::process_lease::Entry>| entry.lock().queue.waiting() > 0;
        while !self.engine.leases.names.all().iter().any(waits) {
            assert!(
                Time::now().since(begun) < PATIENCE,
                "the thread never waits"
            );
            thread::yield_now();
        }
        waiting
    }

    /// Waits until the renewal thread has sent a release of an owner, and Redis has answered it or not.
    #[track_caller]
    fn wait_for_release_of(&self, owner: &str, is_answered: bool) {
        let begun = Time::now();
        while Time::now().since(begun) < PATIENCE {
            let next = self.verbs.recv_timeout(Duration::from_millis(10));
            let is_it = |verb: &Verb| **verb.owner() == *owner;
            if next.is_ok_and(|(verb, answered)| is_it(&verb) && answered == is_answered) {
                return;
            }
            // The renewal thread measures its pauses by this clock.
            self.clock.advance(Duration::from_millis(20));
        }
        panic!("no release of {owner} was sent (answered: {is_answered})");
    }

    /// Keeps the link cut for longer than `OUTAGE`, and checks that the engine repeats the release until Redis answers.
    #[track_caller]
    fn assert_repeated_until_link_is_back(
        &self,
        owner: &str,
        waiting: Option<thread::JoinHandle<Result<u64, Error>>>,
    ) {
        self.wait_for_release_of(owner, false);
        self.clock.advance(OUTAGE);
        self.wait_for_release_of(owner, false);
        assert!(
            !self.engine.close(Duration::ZERO),
            "the key may still exist"
        );
        if let Some(waiting) = waiting {
            let ended = waiting.join().expect("no panic");
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        }
        self.clock.advance(OUTAGE);
        self.wait_for_release_of(owner, false);
        assert!(
            !self.engine.close(Duration::ZERO),
            "the key may still exist"
        );
        self.restore_link();
        self.wait_for_release_of(owner, true);
        let begun = Time::now();
        while !self.engine.close(Duration::ZERO) {
            assert!(
                Time::now().since(begun) < PATIENCE,
                "the release was answered"
            );
            self.clock.advance(Duration::from_millis(20));
        }
    }
}

#[test]
fn an_extended_key_is_released_after_an_outage_during_a_take_over() {
    let linked = LinkedEngine::new(false);
    let guard = linked.mutex(SHORT_LEASE).lock().expect("granted");
    guard.extend(KEPT).expect("the server answers");
    let owner = guard.owner().to_owned();
    let waiting = linked.waiter();
    linked.cut_link();
    guard
        .release()
        .expect("the next thread takes the lock over");
    linked.assert_repeated_until_link_is_back(&owner, Some(waiting));
}

#[test]
fn a_key_with_a_longer_lease_is_released_after_an_outage_during_a_take_over() {
    let linked = LinkedEngine::new(false);
    let guard = linked.mutex(KEPT).lock().expect("granted");
    let owner = guard.owner().to_owned();
    let waiting = linked.waiter();
    linked.cut_link();
    guard
        .release()
        .expect("the next thread takes the lock over");
    linked.assert_repeated_until_link_is_back(&owner, Some(waiting));
}

#[test]
fn an_extended_key_is_released_after_an_outage_during_its_release() {
    let linked = LinkedEngine::new(false);
    let guard = linked.mutex(SHORT_LEASE).lock().expect("granted");
    guard.extend(KEPT).expect("the server answers");
    let owner = guard.owner().to_owned();
    linked.cut_link();
    guard.release().expect_err("the server does not answer");
    linked.assert_repeated_until_link_is_back(&owner, None);
}

#[test]
fn an_extended_key_is_released_after_an_outage_during_its_background_release() {
    let linked = LinkedEngine::new(true);
    let guard = linked.mutex(SHORT_LEASE).lock().expect("granted");
    guard.extend(KEPT).expect("the server answers");
    let owner = guard.owner().to_owned();
    linked.cut_link();
    guard
        .release()
        .expect("the renewal thread sends the release");
    linked.clock.advance(Duration::from_millis(10));
    linked.assert_repeated_until_link_is_back(&owner, None);
}

/// Redis may have executed an earlier thread's request under the same owner. The key then lives for that thread's
/// lease.
#[test]
fn a_key_that_an_earlier_thread_may_have_set_is_released_after_an_outage() {
    let linked = LinkedEngine::new(false);
    let other = linked.mutex(KEPT);
    // The first thread begins to wait. Redis does not answer its next request.
    let (ManualPool { answers, asked }, pool) = manual_pool();
    let (sent, verbs) = mpsc::channel();
    let (is_cut, mut granted) = (Arc::clone(&linked.is_cut), generous());
    let dedicated_connection = move |request: &Request<'_>| {
        let is_cut = is_cut.load(Ordering::SeqCst);
        if let Request::Lock { verb, .. } = request {
            sent.send(((*verb).clone(), !is_cut)).ok();
        }
        if is_cut {
            return Err(unavailable());
        }
        granted(request)
    };
    drop(other);
    let clock = Arc::clone(&linked.clock);
    let (is_cut, mut pool) = (Arc::clone(&linked.is_cut), pool);
    let pool = move |request: &Request<'_>| {
        let asks = matches!(
            request,
            Request::Lock {
                verb: Verb::Acquire { .. },
                ..
            }
        );
        if is_cut.load(Ordering::SeqCst) && !asks {
            return Err(unavailable());
        }
        pool(request)
    };
    let engine = Fake::new(pool, dedicated_connection)
        .engine(KEPT, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let linked = LinkedEngine {
        engine,
        verbs,
        ..linked
    };
    drop(lock(&linked.engine));
    let (first, wait) = (linked.mutex(KEPT), Duration::from_secs(2));
    let first = thread::spawn(move || first.try_lock_for(wait).map(|guard| guard.is_some()));
    asked.recv_timeout(PATIENCE).expect("the first thread asks");
    let holder = "lh1:other:l".into();
    answers
        .send(Ok(Reply::Held {
            ttl: None,
            holder,
            handed_over: false,
        }))
        .expect("the thread waits");
    asked
        .recv_timeout(PATIENCE)
        .expect("the first thread asks again");
    let waiting = linked.waiter();
    clock.advance(wait);
    answers.send(Err(unavailable())).expect("the thread waits");
    let ended = first.join().expect("no panic");
    assert!(ended.is_err(), "{ended:?}");
    // The second thread continues the attempt under the same owner, and Redis grants the lock.
    asked.recv_timeout(PATIENCE).expect("the next thread asks");
    linked.cut_link();
    let granted = Reply::Granted {
        fence: 9_000_000,
        count: None,
        rest: Vec::new(),
        contended: false,
    };
    answers.send(Ok(granted)).expect("the thread waits");
    waiting.join().expect("no panic").expect("granted");
    let (verb, _) = linked
        .verbs
        .recv_timeout(PATIENCE)
        .expect("a release is sent");
    let owner = Arc::clone(verb.owner());
    linked.assert_repeated_until_link_is_back(&owner, None);
}

/// Redis may not have received a release that it did not answer.
#[test]
fn close_is_false_after_a_release_was_given_up() {
    let linked = LinkedEngine::new(false);
    let guard = linked.mutex(SHORT_LEASE).lock().expect("granted");
    let owner = guard.owner().to_owned();
    linked.cut_link();
    guard.release().expect_err("the server does not answer");
    linked.wait_for_release_of(&owner, false);
    linked.clock.advance(KEPT);
    let begun = Time::now();
    // The renewal thread has nothing left to do, and ends.
    while Arc::strong_count(&linked.engine) > 1 {
        assert!(
            Time::now().since(begun) < PATIENCE,
            "the renewal thread still runs"
        );
        thread::yield_now();
    }
    assert!(!linked.engine.close(PATIENCE));
}
