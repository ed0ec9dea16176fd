//! A panic in a request: no thread is stuck, and no lease or release task is forgotten.

use super::*;

#[test]
fn the_renewal_thread_goes_on_after_a_panic_with_all_its_leases() {
    // The clock stands still while the panic is reported, because that may take long.
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let (sender, renewals) = mpsc::channel();
    let mut calls = 0;
    let dedicated_connection = move |request: &Request<'_>| {
        calls += 1;
        sender.send(()).ok();
        assert!(calls != 1, "the first renewal panics");
        generous()(request)
    };
    let engine = Fake::new(generous(), dedicated_connection)
        .engine(SHORT, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guard = lock(&engine);
    // After this time the renewal that panicked is retried, and each other renewal is due.
    for renewal in 0..4 {
        clock.advance(SHORT / 3);
        renewals.recv_timeout(PATIENCE).expect("asked for");
        let started = Time::now();
        while renewal > 0 && guard.remaining() < SHORT / 2 {
            assert!(Time::now().since(started) < PATIENCE, "not renewed");
            thread::yield_now();
        }
    }
    // The connection was dropped. A delegate that waits has the thread connect again.
    assert!(!engine.leases.renewal.is_ready(engine.client.now()));
    guard.release().expect("never lost");
}

/// Other threads wait for the delegate, so it must not unwind out of the queue.
#[test]
fn a_request_that_panics_is_one_without_an_answer() {
    let mut calls = 0;
    let pool = move |request: &Request<'_>| {
        calls += 1;
        assert!(calls != 1, "the first request panics");
        generous()(request)
    };
    let engine = Fake::new(pool, generous()).engine(LONG, Arc::new(RealMachine));
    let failed = mutex(Arc::clone(&engine), "name").lock();
    assert!(
        matches!(failed, Err(Error::Unavailable { .. })),
        "{failed:?}"
    );
    lock(&engine).release().expect("it is held");
}

#[test]
fn a_release_that_makes_the_renewal_thread_panic_is_repeated() {
    let (sender, release_tasks) = mpsc::channel();
    let mut sent = false;
    let dedicated_connection = move |request: &Request<'_>| {
        if let Request::Lock { verb, .. } = request {
            sender.send(Arc::clone(verb.owner())).ok();
            assert!(
                std::mem::replace(&mut sent, true),
                "the first release panics"
            );
        }
        generous()(request)
    };
    let engine = Fake::new(unreleasing(), dedicated_connection).engine(LONG, Arc::new(RealMachine));
    let guard = lock(&engine);
    let owner = guard.owner().to_owned();
    assert!(guard.release().is_err());
    for _ in 0..2 {
        assert_eq!(*release_tasks.recv_timeout(PATIENCE).expect("sent"), *owner);
    }
    assert!(engine.close(PATIENCE));
}
