//! A machine that was suspended: the clock has moved on, and no thread has had time to notice.

use super::*;

const HOUR: Duration = Duration::from_hours(1);

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)))
}

/// Suspends the machine for so long.
fn suspend(clock: &ManualClock, length: Duration) {
    // All threads are asleep by now, as they would be; one that is not yet makes no test fail that would not.
    thread::sleep(Duration::from_millis(100));
    clock.advance(length);
}

/// Runs with a renewal thread that hangs in its request, and with one whose request is answered after the resume.
fn with_either_line(check: impl Fn(&Arc<ManualClock>, &Arc<Engine>)) {
    let (keep, silent) = stuck();
    let stuck = Fake::new(generous(), silent);
    let answered = Fake::new(generous(), generous());
    for store in [stuck, answered] {
        let clock = clock();
        let engine = store.engine(LONG, Arc::clone(&clock) as Arc<dyn Clock>);
        check(&clock, &engine);
    }
    drop(keep);
}

#[test]
fn whoever_listens_is_told_of_the_loss_after_a_resume() {
    with_either_line(|clock, engine| {
        let guard = lock(engine);
        let losses = guard.on_lost();
        assert_eq!(guard.state(), LeaseState::Held);
        suspend(clock, HOUR);
        assert_eq!(guard.state(), LeaseState::Lost);
        let told = losses.recv_timeout(PATIENCE).expect("it is told");
        assert_eq!(
            (told.cause, told.fence),
            (LostCause::Expired, guard.fence())
        );
        // No renewal that comes through now revives it.
        assert_eq!(guard.state(), LeaseState::Lost);
        assert!(matches!(guard.release(), Err(Error::Lost(lost)) if lost == told));
    });
}

#[test]
fn a_thread_that_waits_has_the_lock_after_a_resume() {
    with_either_line(|clock, engine| {
        let guard = lock(engine);
        let handle = mutex(Arc::clone(engine), "name");
        let waiting = thread::spawn(move || handle.lock().map(|guard| guard.fence()));
        wait_until_waiting(engine, 1);
        suspend(clock, HOUR);
        // The guard before it is neither dropped nor looked at.
        let fence = waiting.join().expect("no panic").expect("granted");
        assert!(fence > guard.fence());
        assert_eq!(guard.state(), LeaseState::Lost);
    });
}

#[test]
fn waits_that_were_over_during_the_suspend_end_after_it() {
    let clock = clock();
    let held = |call: &Call<'_>| match call {
        Call::Lock {
            verb: Verb::Acquire { .. },
            ..
        } => Ok(Reply::Held {
            ttl: None,
            holder: "lh1:other:l".into(),
        }),
        call => generous()(call),
    };
    let engine = Fake::new(held, generous()).engine(LONG, Arc::clone(&clock) as Arc<dyn Clock>);
    let wait = || {
        let handle = mutex(Arc::clone(&engine), "name");
        thread::spawn(move || handle.try_lock_for(HOUR / 2).map(|guard| guard.is_some()))
    };
    // One asks and sleeps, the other sleeps behind it.
    let waits = [wait(), wait()];
    wait_until_waiting(&engine, 1);
    suspend(&clock, HOUR);
    for wait in waits {
        let got = wait.join().expect("no panic").expect("it was asked");
        assert!(!got, "it was held all the while");
    }
}

#[test]
fn a_limit_that_was_reached_during_the_suspend_holds_after_it() {
    let clock = clock();
    let store = Fake::new(generous(), generous());
    let engine = store.engine(LONG, Arc::clone(&clock) as Arc<dyn Clock>);
    let limited = mutex(Arc::clone(&engine), "name").max_hold(Some(LONG / 4));
    let guard = limited.lock().expect("granted");
    let losses = guard.on_lost();
    suspend(&clock, LONG / 2);
    let told = losses.recv_timeout(PATIENCE).expect("it is told");
    assert_eq!(told.cause, LostCause::MaxHold);
    assert_eq!(guard.state(), LeaseState::Lost);
    // The lease itself was not over; so it is the limit that has let go.
    let handle = mutex(engine, "name");
    let next = thread::spawn(move || handle.lock().map(|guard| guard.fence()));
    let started = SystemClock.now();
    while !next.is_finished() {
        assert!(SystemClock.now().since(started) < PATIENCE, "not released");
        // The release goes out a moment later, by this clock.
        clock.advance(Duration::from_millis(1));
        thread::sleep(Duration::from_millis(1));
    }
    let fence = next.join().expect("no panic").expect("granted");
    assert!(fence > guard.fence());
}

/// Waits until so many wait behind the holder, or the delegate, of their name.
fn wait_until_waiting(engine: &Engine, count: usize) {
    let started = SystemClock.now();
    let waiting = || {
        let names = engine.names.all();
        let waiting = names.iter().map(|entry| entry.lock().queue.waiting());
        waiting.sum::<usize>()
    };
    while waiting() < count {
        assert!(SystemClock.now().since(started) < PATIENCE, "nobody waits");
        thread::yield_now();
    }
}
