//! A release is repeated for as long as Redis may keep the key. The tests move the clock.

use super::*;
use crate::sync::{AtomicBool, Ordering};

/// How long Redis may keep the key of the guard.
const KEPT: Duration = Duration::from_mins(1);
/// The lease of the thread that comes after it.
const SHORT_LEASE: Duration = Duration::from_secs(1);
/// Longer than everything that the second thread's lease accounts for.
const OUTAGE: Duration = Duration::from_secs(5);

/// A manager whose link can be cut, and the verbs that reach its renewal thread's end of the link.
struct Scene {
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    is_cut: Arc<AtomicBool>,
    /// Each with whether it was answered.
    verbs: mpsc::Receiver<(Verb, bool)>,
}

impl Scene {
    fn new(background_release: bool) -> Self {
        let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = |is_cut: &Arc<AtomicBool>| {
            let (is_cut, mut granted) = (Arc::clone(is_cut), generous());
            move |call: &Call<'_>| {
                if is_cut.load(Ordering::SeqCst) {
                    return Err(unavailable());
                }
                granted(call)
            }
        };
        let pool = cut(&is_cut);
        let (mut answers, (sent, verbs)) = (cut(&is_cut), mpsc::channel());
        let line = move |call: &Call<'_>| {
            let answer = answers(call);
            if let Call::Lock { verb, .. } = call {
                sent.send(((*verb).clone(), answer.is_ok())).ok();
            }
            answer
        };
        let mut settings = Settings {
            background_release,
            ..Settings::default()
        };
        settings.options.lease = KEPT;
        let engine = Engine::new(
            settings,
            Arc::new(Fake::new(pool, line)),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::new(SystemChance::new()),
        );
        Self {
            clock,
            engine,
            is_cut,
            verbs,
        }
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }

    fn mutex(&self, lease: Duration) -> mutex::Mutex {
        mutex(Arc::clone(&self.engine), "name").lease(lease)
    }

    /// A thread with the short lease that waits behind a guard.
    fn waiter(&self) -> thread::JoinHandle<Result<u64, Error>> {
        let handle = self.mutex(SHORT_LEASE);
        let waiting = thread::spawn(move || handle.lock().map(|guard| guard.fence()));
        let begun = SystemClock.now();
        let waits = |entry: &Arc<super::super::tenure::Entry>| entry.lock().queue.waiting() > 0;
        while !self.engine.names.all().iter().any(waits) {
            assert!(SystemClock.now().since(begun) < PATIENCE, "it never waits");
            thread::yield_now();
        }
        waiting
    }

    /// Waits until the renewal thread has asked for the end of an owner, answered or not.
    #[track_caller]
    fn wait_for_an_end_of(&self, owner: &str, is_answered: bool) {
        let begun = SystemClock.now();
        while SystemClock.now().since(begun) < PATIENCE {
            let next = self.verbs.recv_timeout(Duration::from_millis(10));
            let is_it = |verb: &Verb| **verb.owner() == *owner;
            if next.is_ok_and(|(verb, answered)| is_it(&verb) && answered == is_answered) {
                return;
            }
            // The pauses between tries are measured by this clock.
            self.clock.advance(Duration::from_millis(20));
        }
        panic!("the end of {owner} is not asked for (answered: {is_answered})");
    }

    /// The link is cut for longer than a thread with the short lease would account for, and is back then.
    #[track_caller]
    fn outlasts_the_outage(
        &self,
        owner: &str,
        waiting: Option<thread::JoinHandle<Result<u64, Error>>>,
    ) {
        self.wait_for_an_end_of(owner, false);
        self.clock.advance(OUTAGE);
        self.wait_for_an_end_of(owner, false);
        assert!(!self.engine.close(Duration::ZERO), "it may be there still");
        if let Some(waiting) = waiting {
            let ended = waiting.join().expect("no panic");
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        }
        self.clock.advance(OUTAGE);
        self.wait_for_an_end_of(owner, false);
        assert!(!self.engine.close(Duration::ZERO), "it may be there still");
        self.cut(false);
        self.wait_for_an_end_of(owner, true);
        let begun = SystemClock.now();
        while !self.engine.close(Duration::ZERO) {
            assert!(SystemClock.now().since(begun) < PATIENCE, "it was ended");
            self.clock.advance(Duration::from_millis(20));
        }
    }
}

#[test]
fn an_extended_key_is_ended_after_an_outage_of_its_take_over() {
    let scene = Scene::new(false);
    let guard = scene.mutex(SHORT_LEASE).lock().expect("granted");
    guard.extend(KEPT).expect("the server answers");
    let owner = guard.owner().to_owned();
    let waiting = scene.waiter();
    scene.cut(true);
    guard.release().expect("the next thread takes it over");
    scene.outlasts_the_outage(&owner, Some(waiting));
}

#[test]
fn a_key_of_a_longer_lease_is_ended_after_an_outage_of_its_take_over() {
    let scene = Scene::new(false);
    let guard = scene.mutex(KEPT).lock().expect("granted");
    let owner = guard.owner().to_owned();
    let waiting = scene.waiter();
    scene.cut(true);
    guard.release().expect("the next thread takes it over");
    scene.outlasts_the_outage(&owner, Some(waiting));
}

#[test]
fn an_extended_key_is_ended_after_an_outage_of_its_release() {
    let scene = Scene::new(false);
    let guard = scene.mutex(SHORT_LEASE).lock().expect("granted");
    guard.extend(KEPT).expect("the server answers");
    let owner = guard.owner().to_owned();
    scene.cut(true);
    guard.release().expect_err("the server does not answer");
    scene.outlasts_the_outage(&owner, None);
}

#[test]
fn an_extended_key_is_ended_after_an_outage_of_its_background_release() {
    let scene = Scene::new(true);
    let guard = scene.mutex(SHORT_LEASE).lock().expect("granted");
    guard.extend(KEPT).expect("the server answers");
    let owner = guard.owner().to_owned();
    scene.cut(true);
    guard.release().expect("it is left to the renewal thread");
    scene.clock.advance(Duration::from_millis(10));
    scene.outlasts_the_outage(&owner, None);
}

#[test]
fn an_extended_key_whose_release_was_taken_back_is_ended_after_an_outage() {
    let scene = Scene::new(true);
    let guard = scene.mutex(SHORT_LEASE).lock().expect("granted");
    guard.extend(KEPT).expect("the server answers");
    let owner = guard.owner().to_owned();
    scene.cut(true);
    // The clock stands still, so the release is not due.
    guard.release().expect("it is left to the renewal thread");
    let next = scene.mutex(SHORT_LEASE).try_lock();
    assert!(matches!(next, Err(Error::Unavailable { .. })), "{next:?}");
    scene.outlasts_the_outage(&owner, None);
}

/// Redis may have carried out an earlier thread's request under the same owner: the key then lives for that thread's lease.
#[test]
fn a_key_that_an_earlier_thread_may_have_asked_for_is_ended_after_an_outage() {
    let scene = Scene::new(false);
    let other = scene.mutex(KEPT);
    // The first thread's wait begins, and its next request is not answered.
    let (Told { answers, asked }, pool) = told();
    let (sent, verbs) = mpsc::channel();
    let (is_cut, mut granted) = (Arc::clone(&scene.is_cut), generous());
    let line = move |call: &Call<'_>| {
        let is_cut = is_cut.load(Ordering::SeqCst);
        if let Call::Lock { verb, .. } = call {
            sent.send(((*verb).clone(), !is_cut)).ok();
        }
        if is_cut {
            return Err(unavailable());
        }
        granted(call)
    };
    drop(other);
    let clock = Arc::clone(&scene.clock);
    let (is_cut, mut pool) = (Arc::clone(&scene.is_cut), pool);
    let pool = move |call: &Call<'_>| {
        let asks = matches!(
            call,
            Call::Lock {
                verb: Verb::Acquire { .. },
                ..
            }
        );
        if is_cut.load(Ordering::SeqCst) && !asks {
            return Err(unavailable());
        }
        pool(call)
    };
    let engine = Fake::new(pool, line).engine(KEPT, Arc::clone(&clock) as Arc<dyn Clock>);
    let scene = Scene {
        engine,
        verbs,
        ..scene
    };
    drop(lock(&scene.engine));
    let (first, wait) = (scene.mutex(KEPT), Duration::from_secs(2));
    let first = thread::spawn(move || first.try_lock_for(wait).map(|guard| guard.is_some()));
    asked.recv_timeout(PATIENCE).expect("it asks");
    let holder = "lh1:other:l".into();
    answers
        .send(Ok(Reply::Held { ttl: None, holder }))
        .expect("it waits");
    asked.recv_timeout(PATIENCE).expect("it asks again");
    let waiting = scene.waiter();
    clock.advance(wait);
    answers.send(Err(unavailable())).expect("it waits");
    let ended = first.join().expect("no panic");
    assert!(ended.is_err(), "{ended:?}");
    // The second carries the attempt on, under the same owner, and is granted the lock.
    asked.recv_timeout(PATIENCE).expect("the next thread asks");
    scene.cut(true);
    let granted = Reply::Granted {
        fence: 9_000_000,
        rest: Vec::new(),
        contended: false,
    };
    answers.send(Ok(granted)).expect("it waits");
    waiting.join().expect("no panic").expect("granted");
    let (verb, _) = scene.verbs.recv_timeout(PATIENCE).expect("it is ended");
    let owner = Arc::clone(verb.owner());
    scene.outlasts_the_outage(&owner, None);
}

/// An ending without an answer may or may not have reached Redis.
#[test]
fn a_release_that_was_given_up_on_is_no_release_that_went_out() {
    let scene = Scene::new(false);
    let guard = scene.mutex(SHORT_LEASE).lock().expect("granted");
    let owner = guard.owner().to_owned();
    scene.cut(true);
    guard.release().expect_err("the server does not answer");
    scene.wait_for_an_end_of(&owner, false);
    scene.clock.advance(KEPT);
    let begun = SystemClock.now();
    // The thread has nothing left to do.
    while Arc::strong_count(&scene.engine) > 1 {
        assert!(SystemClock.now().since(begun) < PATIENCE, "it goes on");
        thread::yield_now();
    }
    assert!(!scene.engine.close(PATIENCE));
}
