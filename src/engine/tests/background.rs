//! Background releases. The clock stands still, so no release is due before the test moves the clock.

use super::*;
use crate::lock::semaphore::Semaphore;
use crate::message::NotReleased;

/// A time longer than a release is held back.
const LATER: Duration = Duration::from_millis(10);

fn background(store: Fake, clock: &Arc<ManualClock>) -> Arc<Engine> {
    let mut settings = Settings::default();
    settings.options.lease = LONG;
    settings.background_release = true;
    let clock: Arc<dyn TestMachine> = Arc::clone(clock) as _;
    Engine::on(clock, settings, Arc::new(store))
}

/// Does not wait until the release is due: the clock stands still.
#[test]
fn the_next_thread_has_an_unsent_release_sent_and_asks_after_it() {
    let (clock, (sent, verbs)) = (still(), mpsc::channel());
    let engine = background(Fake::new(recording(sent.clone()), recording(sent)), &clock);
    let first = lock(&engine);
    let (old, fence) = (first.owner().to_owned(), first.fence());
    first.release().expect("the renewal thread sends it");
    let second = mutex(Arc::clone(&engine), "name")
        .try_lock()
        .expect("asked");
    assert!(second.expect("this process released it").fence() > fence);
    assert!(matches!(verbs.recv(), Ok(Verb::Acquire { .. })));
    match verbs.recv() {
        Ok(Verb::Release { owner, .. }) => assert_eq!(*owner, *old),
        other => panic!("{other:?}"),
    }
    assert!(matches!(verbs.recv(), Ok(Verb::Acquire { .. })));
    clock.advance(LATER);
    assert!(engine.close(PATIENCE));
    assert!(
        engine.leases.names.all().is_empty(),
        "the name is still in use"
    );
}

#[test]
fn the_next_thread_waits_for_a_release_in_flight() {
    let (clock, (asked, verbs)) = (still(), mpsc::channel());
    let (arrived, arrivals) = mpsc::channel();
    let (keep, dedicated_connection) = stuck();
    let mut dedicated_connection = dedicated_connection;
    let mut sent = recording(asked.clone());
    let slow = move |request: &Request<'_>| {
        arrived.send(()).ok();
        dedicated_connection(request).ok();
        sent(request)
    };
    let engine = background(Fake::new(recording(asked), slow), &clock);
    lock(&engine)
        .release()
        .expect("the renewal thread sends it");
    assert!(matches!(verbs.recv(), Ok(Verb::Acquire { .. })));
    clock.advance(LATER);
    arrivals.recv_timeout(PATIENCE).expect("it is sent");
    let next = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || mutex(engine, "name").try_lock())
    };
    // The thread is the delegate, and has sent no request yet.
    wait_for(|| {
        engine
            .leases
            .names
            .all()
            .iter()
            .any(|entry| !entry.lock().queue.is_unused())
    });
    drop(keep);
    assert!(next.join().expect("no panic").expect("asked").is_some());
    // The release is recorded at its answer.
    assert!(matches!(verbs.recv(), Ok(Verb::Release { .. })));
    assert!(matches!(verbs.recv(), Ok(Verb::Acquire { .. })));
}

#[test]
fn a_stuck_renewal_thread_delays_a_call_only_briefly() {
    let clock = still();
    let (keep, dedicated_connection) = stuck();
    let engine = background(Fake::new(generous(), dedicated_connection), &clock);
    lock(&engine)
        .release()
        .expect("the renewal thread sends it");
    clock.advance(LATER);
    let next = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || lock(&engine).fence())
    };
    wait_for(|| {
        clock.advance(engine.client.settings.io_timeout);
        next.is_finished()
    });
    next.join().expect("granted");
    drop(keep);
}

#[test]
fn releases_share_a_request_and_each_has_its_own_reply() {
    const NAMES: usize = 450;
    let (clock, (sent, requests)) = (still(), mpsc::channel());
    let mut refused_once = false;
    let dedicated_connection = move |request: &Request<'_>| {
        Ok(match request {
            Request::Release(batch) => {
                let keys: Vec<_> = batch
                    .iter()
                    .map(|one| one.target.first().key().to_owned())
                    .collect();
                let replies = keys.iter().map(|key| match key.as_str() {
                    "7" if !std::mem::replace(&mut refused_once, true) => Err(NotReleased::Refused),
                    "8" => Ok(Reply::Contended),
                    _ => Ok(Reply::Released),
                });
                let replies = Reply::Each(replies.collect());
                sent.send(keys).ok();
                replies
            }
            Request::Lock { target, verb, .. } => {
                let is_expected = matches!(verb, Verb::HandOver { .. } | Verb::Release { .. });
                assert!(is_expected, "{verb:?}");
                sent.send(vec![target.first().key().to_owned()]).ok();
                Reply::Released
            }
            request => return generous()(request),
        })
    };
    let engine = background(Fake::new(generous(), dedicated_connection), &clock);
    for name in 0..NAMES {
        let guard = mutex(Arc::clone(&engine), &name.to_string()).lock();
        guard
            .expect("granted")
            .release()
            .expect("the renewal thread sends it");
    }
    assert!(requests.try_recv().is_err(), "it is not due yet");
    let (mut batches, mut count) = (Vec::new(), std::collections::HashMap::new());
    clock.advance(LATER);
    while count.len() < NAMES || count["7"] < 2 || count["8"] < 2 {
        // The refused release is repeated after a pause.
        clock.advance(LATER);
        let Ok(keys) = requests.recv_timeout(Duration::from_millis(20)) else {
            continue;
        };
        batches.push(keys.len());
        for key in keys {
            *count.entry(key).or_insert(0) += 1;
        }
    }
    assert_eq!(batches.iter().max(), Some(&crate::engine::renewal::BATCH));
    let repeated: Vec<_> = count.iter().filter(|(_, times)| **times != 1).collect();
    assert_eq!(repeated.len(), 2, "{repeated:?}");
    assert!(engine.close(PATIENCE));
}

/// One key that this user may not use makes the server refuse the whole request.
#[test]
fn a_refused_batch_is_sent_again_in_halves() {
    let (clock, (sent, released)) = (still(), mpsc::channel());
    let dedicated_connection = move |request: &Request<'_>| {
        let keys: Vec<String> = match request {
            Request::Release(batch) => batch
                .iter()
                .map(|one| one.target.first().key().into())
                .collect(),
            Request::Lock { target, .. } => vec![target.first().key().into()],
            request => return generous()(request),
        };
        if keys.iter().any(|key| key == "bad") {
            return Err(Failure::plain(
                FailureKind::Denied,
                Outcome::NotExecuted,
                "NOPERM",
            ));
        }
        let replies = vec![Ok(Reply::Released); keys.len()];
        let single = matches!(request, Request::Lock { .. });
        for key in keys {
            sent.send(key).ok();
        }
        Ok(if single {
            Reply::Released
        } else {
            Reply::Each(replies)
        })
    };
    let engine = background(Fake::new(generous(), dedicated_connection), &clock);
    for name in ["a", "b", "bad", "c", "d"] {
        drop(mutex(Arc::clone(&engine), name).lock().expect("granted"));
    }
    clock.advance(LATER);
    let mut names: Vec<_> = (0..4)
        .map(|_| released.recv_timeout(PATIENCE).expect("released"))
        .collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c", "d"]);
}

#[test]
fn a_queued_release_outlives_every_handle() {
    let (clock, (sent, releases)) = (still(), mpsc::channel());
    let engine = background(Fake::new(generous(), recording(sent)), &clock);
    let gone = Arc::downgrade(&engine.client);
    drop(lock(&engine));
    drop(engine);
    assert!(gone.upgrade().is_some());
    clock.advance(LATER);
    let sent = releases.recv_timeout(PATIENCE);
    assert!(matches!(sent, Ok(Verb::Release { .. })), "{sent:?}");
    wait_for(|| gone.upgrade().is_none());
}

/// "Held", by the owner that this process has not released yet, would be no answer.
#[test]
fn a_call_without_time_left_fails_if_a_release_could_not_be_sent() {
    let clock = still();
    let (keep, dedicated_connection) = stuck();
    let (asked, verbs) = mpsc::channel();
    let engine = background(Fake::new(recording(asked), dedicated_connection), &clock);
    drop(lock(&engine));
    assert!(matches!(verbs.recv(), Ok(Verb::Acquire { .. })));
    let io_timeout = engine.client.settings.io_timeout;
    for wait in [None, Some(io_timeout / 2), Some(io_timeout)] {
        let next = {
            let next = mutex(Arc::clone(&engine), "name");
            thread::spawn(move || match wait {
                None => next.try_lock().map(drop),
                Some(wait) => next.try_lock_for(wait).map(drop),
            })
        };
        wait_for(|| {
            clock.advance(io_timeout);
            engine.leases.renewal.notify_waiting();
            next.is_finished()
        });
        let ended = next.join().expect("no panic");
        assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
    }
    assert!(verbs.try_recv().is_err(), "Redis was asked");
    drop(keep);
}

/// The renewal thread is busy with the release of another lock.
#[test]
fn the_next_thread_waits_for_all_releases_of_its_keys() {
    const PERMITS: u32 = 5;
    let (clock, (asked, verbs)) = (still(), mpsc::channel());
    let (arrived, arrivals) = mpsc::channel();
    let (keep, mut stuck) = stuck();
    let mut sent = recording(asked.clone());
    let dedicated_connection = move |request: &Request<'_>| {
        arrived.send(()).ok();
        stuck(request).ok();
        sent(request)
    };
    let engine = background(Fake::new(recording(asked), dedicated_connection), &clock);
    drop(lock(&engine));
    clock.advance(LATER);
    arrivals.recv_timeout(PATIENCE).expect("it is sent");
    let semaphore = Semaphore::new(Handle::new(Arc::clone(&engine), "permits"), PERMITS);
    let permits: Vec<_> = (0..PERMITS)
        .map(|_| semaphore.acquire().expect("granted"))
        .collect();
    drop(permits);
    let next = thread::spawn(move || semaphore.try_acquire().map(|permit| permit.is_some()));
    drop(keep);
    assert!(next.join().expect("no panic").expect("asked"));
    let verbs: Vec<_> = verbs.try_iter().collect();
    let asked = verbs
        .iter()
        .rposition(|verb| matches!(verb, Verb::Acquire { .. }));
    let ended = |verb: &&Verb| !matches!(verb, Verb::Acquire { .. });
    let ends = verbs
        .iter()
        .take(asked.expect("it asks"))
        .filter(ended)
        .count();
    assert_eq!(ends, 1 + PERMITS as usize, "{verbs:?}");
}

/// A release can wait, a lease cannot.
#[test]
fn a_lease_that_becomes_due_is_renewed_before_the_rest_of_the_releases() {
    let (clock, (sent, calls)) = (still(), mpsc::channel());
    let (keep, held) = mpsc::channel::<()>();
    let (mut answered, time) = (generous(), Arc::clone(&clock));
    let mut first = true;
    let dedicated_connection = move |request: &Request<'_>| {
        sent.send(matches!(request, Request::Renew(_))).ok();
        held.recv().ok();
        if std::mem::replace(&mut first, false) {
            time.advance(LONG / 2);
        }
        answered(request)
    };
    let engine = background(Fake::new(generous(), dedicated_connection), &clock);
    let guard = lock(&engine);
    let semaphore = Semaphore::new(Handle::new(Arc::clone(&engine), "permits"), 3);
    let permits = [(); 3].map(|()| semaphore.acquire().expect("granted"));
    drop(permits);
    assert_eq!(calls.recv_timeout(PATIENCE), Ok(false));
    // All three are due, and the first is in flight.
    drop(keep);
    let next: Vec<_> = (0..3).map(|_| calls.recv_timeout(PATIENCE)).collect();
    assert_eq!(next, [Ok(true), Ok(false), Ok(false)]);
    guard.check().expect("it is renewed");
}

/// The request of the next thread may take the lock after the release.
#[test]
fn a_manager_is_not_closed_while_a_thread_still_asks() {
    let clock = still();
    let (keep, mut held) = stuck();
    let (arrived, arrivals) = mpsc::channel();
    let (mut granted, mut is_first) = (generous(), true);
    let pool = move |request: &Request<'_>| {
        if std::mem::replace(&mut is_first, false) {
            return granted(request);
        }
        arrived.send(()).ok();
        held(request)
    };
    let engine = background(Fake::new(pool, generous()), &clock);
    drop(lock(&engine));
    let next = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || mutex(engine, "name").lock().map(drop))
    };
    arrivals.recv_timeout(PATIENCE).expect("it asks");
    let closer = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || engine.close(LATER))
    };
    wait_for(|| {
        clock.advance(LATER);
        closer.is_finished()
    });
    assert!(!closer.join().expect("no panic"));
    drop(keep);
    next.join().expect("no panic").expect_err("closed");
    assert!(engine.close(PATIENCE), "its owner is withdrawn");
}
