//! Releases that ride with a request. The clock stands still, so no release is due before the test moves the clock.

use super::*;
use crate::message::{Gone, NotReleased};
use crate::store::riding::{Ride, Rides};

/// A time longer than a release is held back.
const LATER: Duration = Duration::from_millis(10);
/// A time longer than the renewal thread leaves a release to its ride.
const OVERDUE: Duration = Duration::from_millis(200);

type Carry = Box<dyn for<'a> FnMut(Box<dyn Ride + 'a>) + Send>;

/// A store that carries what rides, and hands it to the test.
struct Carrier {
    fake: Fake,
    carry: Mutex<Carry>,
}

impl Store for Carrier {
    fn call(&self, request: &Request<'_>, limits: Limits<'_>) -> Result<Answer, Failure> {
        let ride = limits.rides.and_then(|rides| rides.board(request));
        if let Some(ride) = ride {
            (self.carry.lock())(ride);
        }
        self.fake.call(request, limits)
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        self.fake.dedicated_connection()
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        self.fake.listen(channels, hear)
    }
}

/// Returns an engine whose rides go to `carry`, and a receiver of the renewal thread's requests.
fn riding(
    clock: &Arc<ManualClock>,
    carry: impl for<'a> FnMut(Box<dyn Ride + 'a>) + Send + 'static,
) -> (Arc<Engine>, mpsc::Receiver<Verb>) {
    let (sent, verbs) = mpsc::channel();
    let fake = Fake::new(generous(), recording(sent));
    (carrying(clock, fake, carry), verbs)
}

/// Returns an engine whose rides go to `carry`, over a store.
fn carrying(
    clock: &Arc<ManualClock>,
    fake: Fake,
    carry: impl for<'a> FnMut(Box<dyn Ride + 'a>) + Send + 'static,
) -> Arc<Engine> {
    let carrier = Carrier {
        fake,
        carry: Mutex::new(Box::new(carry)),
    };
    let mut settings = Settings::default();
    settings.options.lease = LONG;
    settings.background_release = true;
    let (clock, rng) = (Arc::clone(clock), Arc::new(SystemRng::new()));
    Engine::with_clock(settings, Arc::new(carrier), clock, rng)
}

/// Locks a name, and releases it in the background.
fn pair(engine: &Arc<Engine>, name: &str) {
    let guard = mutex(Arc::clone(engine), name).lock().expect("granted");
    guard.release().expect("it is queued");
}

/// Returns the names that ride.
fn names(ride: &dyn Ride) -> Vec<String> {
    let mut names = Vec::new();
    ride.with_request(&mut |request| match request {
        Request::Release(batch) => names.extend(batch.iter().map(|one| one.key.name().to_owned())),
        request => panic!("{request:?}"),
    });
    names
}

/// Ends a ride with the same reply for each release.
fn end(ride: Box<dyn Ride + '_>, reply: &Result<Reply, NotReleased>) {
    let count = names(&*ride).len();
    ride.end(Ok(Answer {
        reply: Reply::Each(vec![reply.clone(); count]),
        resent: false,
    }));
}

#[test]
fn a_release_rides_with_the_next_request_about_another_lock() {
    let (clock, (rode, rides)) = (still(), mpsc::channel());
    let (engine, verbs) = riding(&clock, move |ride| {
        rode.send(names(&*ride)).ok();
        end(ride, &Ok(Reply::Released));
    });
    pair(&engine, "a");
    let _b = mutex(Arc::clone(&engine), "b").lock().expect("granted");
    assert_eq!(rides.try_recv(), Ok(vec!["a".to_owned()]));
    clock.advance(OVERDUE);
    pair(&engine, "c");
    // Once the renewal thread has sent this one, it has looked at all that were due.
    clock.advance(LATER);
    let released = verbs.recv_timeout(PATIENCE).expect("it is sent");
    assert!(matches!(released, Verb::Release { .. }), "{released:?}");
    assert!(engine.close(PATIENCE));
    assert!(verbs.try_recv().is_err(), "it was released twice");
}

/// A command costs the server more than a key in it.
#[test]
fn releases_that_come_fast_ride_together() {
    const NAMES: usize = 60;
    let (clock, (rode, rides)) = (still(), mpsc::channel());
    let (engine, _verbs) = riding(&clock, move |ride| {
        rode.send(names(&*ride).len()).ok();
        end(ride, &Ok(Reply::Released));
    });
    for name in 0..NAMES {
        pair(&engine, &name.to_string());
    }
    // The first one rides alone, because nothing rode before.
    let counts: Vec<_> = rides.try_iter().collect();
    assert_eq!(counts, [1, 16, 16, 16]);
    // The rest waits for the next request after a while.
    clock.advance(Duration::from_micros(800));
    pair(&engine, "last");
    assert_eq!(rides.try_iter().collect::<Vec<_>>(), [NAMES - 1 - 48]);
}

#[test]
fn a_release_does_not_ride_with_a_request_about_its_own_key() {
    let (engine, _verbs) = riding(&still(), |_| {});
    pair(&engine, "a");
    let target = |name: &str| crate::name::LockKey::new("", name).expect("a name").into();
    let verb = Verb::Release {
        owner: "o".into(),
        units: 1,
    };
    for (name, rides) in [("a", false), ("b", true)] {
        let request = Request::Lock {
            kind: crate::message::LockKind::Write,
            target: &target(name),
            verb: &verb,
        };
        let ride = engine.board(&request);
        assert_eq!(ride.is_some(), rides, "{name}");
    }
}

/// Another process has begun to wait, which this one did not know.
#[test]
fn a_riding_release_for_which_others_wait_hands_over() {
    let (clock, (rode, rides)) = (still(), mpsc::channel());
    let (engine, verbs) = riding(&clock, move |ride| {
        rode.send(()).ok();
        end(ride, &Ok(Reply::Contended));
    });
    pair(&engine, "a");
    let _b = mutex(Arc::clone(&engine), "b").lock().expect("granted");
    rides.try_recv().expect("it rides");
    // At once, although the clock stands still.
    let next = verbs.recv_timeout(PATIENCE).expect("handed over");
    assert!(matches!(next, Verb::HandOver { .. }), "{next:?}");
    assert!(engine.close(PATIENCE));
}

#[test]
fn a_ride_that_fails_is_repeated_by_the_renewal_thread() {
    let refused = Failure::plain(FailureKind::Denied, Outcome::NotExecuted, "NOPERM");
    // A ride that fails as a whole is no answer about its releases: the renewal thread does not wait.
    let fails: [(Carry, bool, &str); 5] = [
        (Box::new(|ride| drop(ride)), true, "the caller leaves"),
        (
            Box::new(|ride| ride.end(Err(unavailable()))),
            true,
            "no answer",
        ),
        (
            Box::new(move |ride| ride.end(Err(refused.clone()))),
            true,
            "refused",
        ),
        (
            Box::new(|ride| end(ride, &Err(NotReleased::Refused))),
            false,
            "this one is refused",
        ),
        (Box::new(|_| panic!("a panic of the test")), true, "a panic"),
    ];
    for (mut carry, at_once, what) in fails {
        let clock = still();
        let mut is_first = true;
        let (engine, verbs) = riding(&clock, move |ride| {
            if std::mem::replace(&mut is_first, false) {
                carry(ride);
            } else {
                end(ride, &Ok(Reply::Released));
            }
        });
        pair(&engine, "a");
        let _b = mutex(Arc::clone(&engine), "b").try_lock();
        if !at_once {
            clock.advance(LATER * 2);
        }
        // A request that panicked is withdrawn too.
        while !matches!(
            verbs.recv_timeout(PATIENCE).expect(what),
            Verb::Release { .. }
        ) {}
        assert!(engine.close(PATIENCE), "{what}");
    }
}

/// The answer to the ride comes later. It does not count any more.
#[test]
fn the_renewal_thread_sends_a_release_whose_ride_does_not_end() {
    let (clock, (arrived, arrivals), (keep, held)) =
        (still(), mpsc::channel(), mpsc::channel::<()>());
    let (engine, verbs) = riding(&clock, move |ride| {
        arrived.send(()).ok();
        held.recv().unwrap_or(());
        end(ride, &Ok(Reply::NotOwner(Gone::Removed)));
    });
    pair(&engine, "a");
    let carrier = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || mutex(engine, "b").lock().map(drop))
    };
    arrivals.recv_timeout(PATIENCE).expect("it rides");
    // A thread that asks for its lock waits until it has a reply.
    let next = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || mutex(engine, "a").try_lock().map(|guard| guard.is_some()))
    };
    clock.advance(OVERDUE);
    let released = verbs.recv_timeout(PATIENCE);
    assert!(matches!(released, Ok(Verb::Release { .. })), "{released:?}");
    assert!(next.join().expect("no panic").expect("asked"));
    drop(keep);
    carrier.join().expect("no panic").expect("granted");
    clock.advance(LATER);
    assert!(engine.close(PATIENCE));
}

/// The renewal thread has sent a release again, and has no answer. The ride's answer comes first, and counts.
#[test]
fn the_first_answer_to_a_release_that_was_sent_twice_counts() {
    let (clock, (arrived, arrivals), (keep, held)) =
        (still(), mpsc::channel(), mpsc::channel::<()>());
    let (sent, again) = mpsc::channel();
    let (hang, hanging) = mpsc::channel::<()>();
    let mut answered = generous();
    let dedicated_connection = move |request: &Request<'_>| {
        if let Request::Lock { .. } = request {
            sent.send(()).ok();
            hanging.recv().unwrap_or(());
        }
        answered(request)
    };
    let carry = move |ride: Box<dyn Ride + '_>| {
        arrived.send(()).ok();
        held.recv().unwrap_or(());
        end(ride, &Ok(Reply::Released));
    };
    let engine = carrying(&clock, Fake::new(generous(), dedicated_connection), carry);
    pair(&engine, "a");
    let (granted, grants) = mpsc::channel();
    let lock = |name: &'static str| {
        let (engine, granted) = (Arc::clone(&engine), granted.clone());
        thread::spawn(move || granted.send(mutex(engine, name).lock().map(std::mem::forget)))
    };
    lock("b");
    arrivals.recv_timeout(PATIENCE).expect("it rides");
    clock.advance(OVERDUE);
    again.recv_timeout(PATIENCE).expect("it is sent again");
    lock("a");
    drop(keep);
    for _ in 0..2 {
        let granted = grants.recv_timeout(PATIENCE);
        granted.expect("it has an answer").expect("granted");
    }
    assert!(engine.renewal.has_no_overtaken_ride());
    drop(hang);
}

/// The thread that asks for a lock whose release rides waits for the answer to it.
#[test]
fn a_lock_whose_release_rides_is_asked_for_after_its_answer() {
    let (clock, (arrived, arrivals), (keep, held)) =
        (still(), mpsc::channel(), mpsc::channel::<()>());
    let (engine, _verbs) = riding(&clock, move |ride| {
        arrived.send(()).ok();
        held.recv().unwrap_or(());
        end(ride, &Ok(Reply::Released));
    });
    pair(&engine, "a");
    let spawn = |name: &'static str| {
        let engine = Arc::clone(&engine);
        thread::spawn(move || mutex(engine, name).try_lock().map(|guard| guard.is_some()))
    };
    let carrier = spawn("b");
    arrivals.recv_timeout(PATIENCE).expect("it rides");
    let next = spawn("a");
    let is_waiting = || {
        let entries = engine.names.all();
        let named = entries.iter().find(|entry| entry.target.name() == "a");
        named.is_some_and(|entry| !entry.lock().queue.is_idle())
    };
    let begun = SystemClock.now();
    while !is_waiting() {
        assert!(SystemClock.now().since(begun) < PATIENCE, "it never asks");
        thread::yield_now();
    }
    assert!(!next.is_finished());
    drop(keep);
    for thread in [carrier, next] {
        assert!(thread.join().expect("no panic").expect("asked"));
    }
    clock.advance(LATER);
    assert!(engine.close(PATIENCE));
}
