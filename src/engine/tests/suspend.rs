//! A machine that was suspended: the clock has gone on, and no thread has run meanwhile.

use super::*;

const HOUR: Duration = Duration::from_hours(1);

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)))
}

/// Moves the clock as a suspend of this length does.
fn suspend(clock: &ManualClock, length: Duration) {
    // Give the threads time to fall asleep. If one does not, the test checks less, but does not fail.
    thread::sleep(Duration::from_millis(100));
    clock.advance(length);
}

/// Runs `check` with a renewal thread that gets no reply, and with one that gets a reply after the resume.
fn with_either_renewal(check: impl Fn(&Arc<ManualClock>, &Arc<Engine>)) {
    let (keep, silent) = stuck();
    let stuck = Fake::new(generous(), silent);
    let answered = Fake::new(generous(), generous());
    for store in [stuck, answered] {
        let clock = clock();
        let engine = store.engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
        check(&clock, &engine);
    }
    drop(keep);
}

#[test]
fn listeners_receive_the_loss_after_a_resume() {
    with_either_renewal(|clock, engine| {
        let guard = lock(engine);
        let losses = guard.on_lost();
        assert_eq!(guard.state(), LeaseState::Held);
        suspend(clock, HOUR);
        assert_eq!(guard.state(), LeaseState::Lost);
        let loss = losses.recv_timeout(PATIENCE).expect("a loss");
        assert_eq!(
            (loss.cause, loss.fence),
            (LostCause::Expired, guard.fence())
        );
        // A late reply to a renewal does not revive the lease.
        assert_eq!(guard.state(), LeaseState::Lost);
        assert!(matches!(guard.release(), Err(Error::Lost(released)) if released == loss));
    });
}

#[test]
fn a_thread_that_waits_gets_the_lock_after_a_resume() {
    with_either_renewal(|clock, engine| {
        let guard = lock(engine);
        let handle = mutex(Arc::clone(engine), "name");
        let waiting = thread::spawn(move || handle.lock().map(|guard| guard.fence()));
        wait_until_waiting(engine, 1);
        suspend(clock, HOUR);
        // The lost guard is neither dropped nor used meanwhile.
        let fence = waiting.join().expect("no panic").expect("granted");
        assert!(fence > guard.fence());
        assert_eq!(guard.state(), LeaseState::Lost);
    });
}

#[test]
fn waits_that_were_over_during_the_suspend_end_after_it() {
    let clock = clock();
    let held = |request: &Request<'_>| match request {
        Request::Lock {
            verb: Verb::Acquire { .. },
            ..
        } => Ok(Reply::Held {
            ttl: None,
            holder: "lh1:other:l".into(),
            handed_over: false,
        }),
        request => generous()(request),
    };
    let engine =
        Fake::new(held, generous()).engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let wait = || {
        let handle = mutex(Arc::clone(&engine), "name");
        thread::spawn(move || handle.try_lock_for(HOUR / 2).map(|guard| guard.is_some()))
    };
    // The first thread asks Redis and sleeps. The second waits behind it.
    let waits = [wait(), wait()];
    wait_until_waiting(&engine, 1);
    suspend(&clock, HOUR);
    for wait in waits {
        let got = wait.join().expect("no panic").expect("it was asked");
        assert!(!got, "the lock was held");
    }
}

#[test]
fn a_guard_that_reached_max_hold_during_the_suspend_ends_after_it() {
    let clock = clock();
    let store = Fake::new(generous(), generous());
    let engine = store.engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let limited = mutex(Arc::clone(&engine), "name").max_hold(Some(LONG / 4));
    let guard = limited.lock().expect("granted");
    let losses = guard.on_lost();
    suspend(&clock, LONG / 2);
    let loss = losses.recv_timeout(PATIENCE).expect("a loss");
    assert_eq!(loss.cause, LostCause::MaxHold);
    assert_eq!(guard.state(), LeaseState::Lost);
    // The lease itself is not over, so only the limit can have released the lock.
    let handle = mutex(engine, "name");
    let next = thread::spawn(move || handle.lock().map(|guard| guard.fence()));
    let started = Time::now();
    while !next.is_finished() {
        assert!(Time::now().since(started) < PATIENCE, "not released");
        // The renewal thread sends the release a moment later, by this clock.
        clock.advance(Duration::from_millis(1));
        thread::sleep(Duration::from_millis(1));
    }
    let fence = next.join().expect("no panic").expect("granted");
    assert!(fence > guard.fence());
}

/// Waits until `count` threads wait behind the guard or the delegate of their name.
fn wait_until_waiting(engine: &Engine, count: usize) {
    let started = Time::now();
    let waiting = || {
        let names = engine.leases.names.all();
        let waiting = names.iter().map(|entry| entry.lock().queue.waiting());
        waiting.sum::<usize>()
    };
    while waiting() < count {
        assert!(Time::now().since(started) < PATIENCE, "no thread waits");
        thread::yield_now();
    }
}
