//! Leases that go to the next thread in memory, or end. The tests move the clock.

use super::*;
use crate::core::lease::LeaseStatus;
use crate::engine::process_lease::ProcessLease;
use crate::engine::wakeup::MessageHandler;
use crate::lock::rwlock::RwLock;
use crate::message::Gone;
use crate::name::LockKey;

const LEASE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(1);

fn is_a_take_over(verb: &Verb) -> bool {
    matches!(verb, Verb::TakeOver { .. })
}

fn is_waited_for(engine: &Arc<Engine>) -> bool {
    let waits = |entry: &Arc<super::super::process_lease::Entry>| entry.lock().queue.waiting() > 0;
    engine.leases.names.all().iter().any(waits)
}

/// The server may have lost its data when it closed the connection.
#[test]
fn a_lease_from_before_a_closed_connection_is_not_handed_on_in_memory() {
    for is_closed in [false, true] {
        let (clock, (asked, verbs)) = (still(), mpsc::channel());
        let store = Fake::new(recording(asked), generous());
        let cut = Arc::clone(&store.cut);
        let engine = store.engine(LEASE, Arc::clone(&clock) as Arc<dyn TestMachine>);
        let waiter = || {
            let handle = mutex(Arc::clone(&engine), "name");
            let waiting = thread::spawn(move || handle.lock());
            wait_for(|| is_waited_for(&engine));
            waiting
        };
        let guard = lock(&engine);
        let next = waiter();
        drop(guard);
        // This lease was taken over, so it has fences for many guards.
        let guard = next.join().expect("no panic").expect("granted");
        let next = waiter();
        assert_eq!(verbs.try_iter().filter(is_a_take_over).count(), 1);
        clock.advance(TICK);
        if is_closed {
            cut.store(clock.now().as_nanos(), Ordering::SeqCst);
        }
        clock.advance(TICK);
        drop(guard);
        drop(next.join().expect("no panic").expect("granted"));
        let take_overs = verbs.try_iter().filter(is_a_take_over).count();
        assert_eq!(take_overs, usize::from(is_closed));
    }
}

#[test]
fn readers_ask_after_a_closed_connection_until_their_lease_is_confirmed() {
    let (clock, (asked, verbs)) = (still(), mpsc::channel());
    let store = Fake::new(recording(asked), generous());
    let cut = Arc::clone(&store.cut);
    let engine = store.engine(LEASE, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let lock = RwLock::new(Handle::new(Arc::clone(&engine), "name"));
    let first = lock.read().expect("granted");
    drop(lock.read().expect("shared in memory"));
    assert_eq!(
        verbs.try_iter().count(),
        1,
        "the second reader shares the lease of the first"
    );
    clock.advance(TICK);
    cut.store(clock.now().as_nanos(), Ordering::SeqCst);
    clock.advance(TICK);
    let left = first.remaining();
    drop(lock.read().expect("granted"));
    assert!(verbs.try_iter().count() >= 1, "no thread asks");
    // The lease is renewed at once, although it is not due.
    wait_for(|| first.remaining() > left);
    drop(verbs.try_iter().collect::<Vec<_>>());
    drop(lock.read().expect("shared in memory"));
    assert_eq!(verbs.try_iter().count(), 0, "a confirmed lease is shared");
}

/// The deadline of an extended lease does not tell when the server confirmed it last.
#[test]
fn readers_of_an_extended_lease_ask_until_it_is_confirmed() {
    // The lease is short, so that the extension is over within a quantum.
    let lease = Duration::from_secs(1);
    let (clock, (asked, verbs)) = (still(), mpsc::channel());
    let store = Fake::new(recording(asked), generous());
    let cut = Arc::clone(&store.cut);
    let engine = store.engine(lease, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let lock = RwLock::new(Handle::new(Arc::clone(&engine), "name"));
    let first = lock.read().expect("granted");
    first.extend(lease).expect("granted");
    // From here on, Redis keeps the key for no longer than a lease.
    clock.advance(lease / 25);
    cut.store(clock.now().as_nanos(), Ordering::SeqCst);
    clock.advance(TICK);
    let left = first.remaining();
    assert_eq!(verbs.try_iter().count(), 1, "one reader has asked");
    drop(lock.read().expect("granted"));
    assert!(verbs.try_iter().count() >= 1, "no thread asks");
    // The lease is renewed at once, although it is not due.
    wait_for(|| first.remaining() > left);
    drop(verbs.try_iter().collect::<Vec<_>>());
    drop(lock.read().expect("shared in memory"));
    let asked: Vec<_> = verbs.try_iter().collect();
    assert!(asked.is_empty(), "a confirmed lease is shared: {asked:?}");
}

/// Returns the owners that a request may end in Redis.
fn given_away(request: &Request<'_>) -> Vec<Arc<str>> {
    match request {
        Request::Lock { verb, .. } => match verb {
            Verb::Acquire { .. } => Vec::new(),
            Verb::TakeOver { from, .. } => vec![Arc::clone(from)],
            verb => vec![Arc::clone(verb.owner())],
        },
        Request::Release(batch) => batch.iter().map(|one| Arc::from(one.owner)).collect(),
        _ => Vec::new(),
    }
}

/// After such a request, another process may hold the lock. So the lease has ended here when the store gets the request,
/// whatever ends it.
#[test]
fn a_lease_ends_here_before_a_request_may_give_it_away() {
    type End = fn(&Arc<Engine>, &ManualClock, LockGuard);
    type Known = (Arc<str>, Arc<ProcessLease>);
    let ends: [(&str, End); 3] = [
        ("its guard is dropped", |_, _, guard| drop(guard)),
        ("a thread takes it over", |engine, _, guard| {
            let other = mutex(Arc::clone(engine), "name").fencing(false);
            let waiting = thread::spawn(move || other.lock());
            wait_for(|| is_waited_for(engine));
            drop(guard);
            drop(waiting.join().expect("no panic").expect("granted"));
        }),
        ("its guard reaches max_hold", |_, clock, guard| {
            clock.advance(LEASE / 4);
            wait_for(|| guard.state() == LeaseState::Lost);
        }),
    ];
    for (what, end) in ends {
        let known: Arc<Mutex<Option<Known>>> = Arc::default();
        let (sent, was_sent) = mpsc::channel();
        let clock = still();
        let script = || {
            let (known, sent, clock) = (Arc::clone(&known), sent.clone(), Arc::clone(&clock));
            let mut granted = generous();
            move |request: &Request<'_>| {
                let known = known.lock();
                for owner in given_away(request) {
                    if let Some((_, lease)) = known.as_ref().filter(|known| known.0 == owner) {
                        sent.send(lease.validity.status(clock.now())).ok();
                    }
                }
                granted(request)
            }
        };
        let store = Fake::new(script(), script());
        let engine = store.engine(LEASE, Arc::clone(&clock) as Arc<dyn TestMachine>);
        let handle = mutex(Arc::clone(&engine), "name").max_hold(Some(LEASE / 4));
        let guard = handle.lock().expect("granted");
        let entry = engine.leases.names.all().remove(0);
        let lease = entry.lock().queue.process_lease().cloned();
        *known.lock() = Some((guard.owner().into(), lease.expect("it is held")));
        end(&engine, &clock, guard);
        let begun = Time::now();
        let status = loop {
            match was_sent.recv_timeout(Duration::from_millis(10)) {
                Ok(status) => break status,
                Err(_) => assert!(Time::now().since(begun) < PATIENCE, "{what}"),
            }
            // The renewal thread holds a release back until its clock has moved. However late the thread is, these steps do
            // not reach the end of the lease.
            clock.advance(TICK);
        };
        assert_eq!(status, LeaseStatus::Ended, "{what}");
    }
}

/// The time of the decision counts, even if the thread waited long for the mutex.
#[test]
fn a_release_that_waits_for_the_names_mutex_past_the_deadline_is_a_loss() {
    let clock = still();
    let (keep, dedicated_connection) = stuck();
    let engine = Fake::new(generous(), dedicated_connection)
        .engine(LEASE, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guard = lock(&engine);
    let entry = Arc::clone(&engine.leases.names.all()[0]);
    let state = entry.lock();
    let releasing = thread::spawn(move || guard.release());
    // The thread counts the end of the guard, and then waits for the mutex.
    wait_for(|| engine.stats().released > 0);
    clock.advance(LEASE);
    drop(state);
    let released = releasing.join().expect("no panic");
    assert!(
        matches!(&released, Err(Error::Lost(lost)) if lost.cause == LostCause::Expired),
        "{released:?}"
    );
    drop(keep);
}

/// A look ahead visits each lease once, even if most leases stay where they are.
#[test]
fn a_look_ahead_visits_each_lease_once() {
    const EACH: usize = 1_000;
    let clock = still();
    let engine =
        Fake::new(generous(), generous()).engine(LEASE, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let lock = |renew: bool, number: usize| {
        let handle = mutex(Arc::clone(&engine), &format!("{renew} {number}"));
        handle.renew(renew).lock().expect("granted")
    };
    let guards: Vec<_> = (0..EACH)
        .flat_map(|number| [lock(false, number), lock(true, number)])
        .collect();
    let until = clock.now() + LEASE;
    clock.advance(LEASE / 3);
    let is_renewed = |guard: &LockGuard| guard.remaining() > LEASE * 5 / 6;
    wait_for(|| guards.iter().filter(|guard| is_renewed(guard)).count() == EACH);
    let pieces = engine.leases.watch.pieces_before(&engine.client, until);
    assert!(pieces <= 2 * EACH / 200 + 1, "{pieces}");
    // Only the leases without renewal are left. For the metrics, the others are due when a renewal is overdue.
    let left = if cfg!(feature = "metrics") {
        2 * EACH
    } else {
        EACH
    };
    assert_eq!(
        engine.leases.watch.pieces_before(&engine.client, until),
        left / 200 + 1
    );
}

/// Redis has granted the lock, and an operator has released it by force, before this process reads the reply.
#[test]
fn a_forced_release_that_overtakes_its_grant_is_remembered() {
    for overtakes in [true, false] {
        let clock = still();
        let (asked, was_asked) = mpsc::channel();
        let (go_on, gate) = mpsc::channel::<()>();
        let (mut granted, mut gone) = (generous(), generous());
        let pool = move |request: &Request<'_>| {
            if let Request::Lock { verb, .. } = request {
                asked.send(Arc::clone(verb.owner())).ok();
                gate.recv_timeout(PATIENCE).ok();
            }
            granted(request)
        };
        let renewals = move |request: &Request<'_>| match request {
            Request::Renew(batch) => {
                let gone = Renewed::Gone(Gone::Removed);
                Ok(Reply::Renewed(vec![gone; batch.len()]))
            }
            other => gone(other),
        };
        let engine =
            Fake::new(pool, renewals).engine(LEASE, Arc::clone(&clock) as Arc<dyn TestMachine>);
        let locking = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || lock(&engine))
        };
        let owner = was_asked.recv_timeout(PATIENCE).expect("it asks");
        if overtakes {
            clock.advance(TICK);
            engine.leases.released_by_force(&owner);
            clock.advance(TICK);
        }
        go_on.send(()).expect("the request waits");
        let guard = locking.join().expect("no panic");
        if !overtakes {
            engine.leases.released_by_force(&owner);
        }
        // The clock stands still again, so no renewal is due.
        let lost = guard.on_lost().recv_timeout(PATIENCE);
        assert_eq!(lost.expect("it is renewed").cause, LostCause::Removed);
        drop(go_on);
    }
}

/// A delegate asks, and other threads adopt: the grant of each may have been on its way. A lease that was asked for later
/// was not released.
#[test]
fn a_forced_release_is_remembered_for_each_grant_on_its_way() {
    let (asked, was_asked) = mpsc::channel();
    let (go_on, gate) = mpsc::channel::<()>();
    let mut granted = generous();
    let pool = move |request: &Request<'_>| {
        if let Request::Lock { verb, .. } = request {
            asked.send(Arc::clone(verb.owner())).ok();
            gate.recv_timeout(PATIENCE).ok();
        }
        granted(request)
    };
    let clock = still();
    let engine =
        Fake::new(pool, generous()).engine(LEASE, Arc::clone(&clock) as Arc<dyn TestMachine>);
    go_on.send(()).expect("the test store listens");
    let guard = mutex(Arc::clone(&engine), "held")
        .lock()
        .expect("it is free");
    was_asked.recv_timeout(PATIENCE).expect("it asks");
    let held = Arc::clone(&engine.leases.names.all()[0]);
    let locking = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || lock(&engine))
    };
    let owner = was_asked.recv_timeout(PATIENCE).expect("it asks");
    let entries = engine.leases.names.all();
    let asking = entries.iter().find(|entry| !Arc::ptr_eq(entry, &held));
    let asking = asking.expect("a thread asks for it");
    let key = LockKey::new("", "adopted").expect("a name");
    let adopted = engine.leases.names.pin(asking.kind, &key.into());

    let sent = clock.now();
    clock.advance(TICK);
    engine.leases.released_by_force(&owner);
    let noted = clock.now();
    for (entry, expected) in [(asking, true), (&adopted, true), (&held, false)] {
        let state = entry.lock();
        for asked_at in [noted, sent, noted] {
            let may_be_gone = state.notes.may_have_been_released_by_force(asked_at);
            assert_eq!(may_be_gone, expected, "{}", entry.target.name());
        }
        assert!(!state.notes.may_have_been_released_by_force(noted + TICK));
    }
    // Another lease of the name begins and ends before the adoption has its reply.
    adopted.lock().notes.forget();
    assert!(adopted.lock().notes.may_have_been_released_by_force(sent));
    engine.leases.names.unpin(&adopted);
    drop(go_on);
    drop((locking.join().expect("no panic"), guard));
}

/// The grant of the lease may have been such an answer.
#[test]
fn after_an_answer_without_a_request_all_leases_are_confirmed_again() {
    let clock = still();
    let fake = Fake::new(generous(), generous());
    let surplus = Arc::clone(&fake.surplus);
    let engine = fake.engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guards = ["a", "b"].map(|name| mutex(Arc::clone(&engine), name).lock().expect("granted"));
    surplus.store(clock.now().as_nanos(), Ordering::SeqCst);
    for guard in &guards {
        assert_eq!(guard.state(), LeaseState::AtRisk);
    }
    // A renewal that is sent now is later than that.
    clock.advance(Duration::from_millis(1));
    for guard in &guards {
        wait_for(|| guard.state() == LeaseState::Held);
    }
    assert!(guards.iter().all(|guard| guard.remaining() > LONG / 2));
}

/// The clock does not move after the grant, so a renewal that is due later than the reply would never come.
#[test]
fn a_lease_is_renewed_at_once_if_its_grant_came_late() {
    let clock = still();
    let late = Arc::clone(&clock);
    let mut granted = generous();
    let pool = move |request: &Request<'_>| {
        if matches!(request, Request::Lock { .. }) {
            late.advance(LEASE / 2);
        }
        granted(request)
    };
    let engine =
        Fake::new(pool, generous()).engine(LEASE, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guard = lock(&engine);
    wait_for(|| guard.remaining() > LEASE * 9 / 10);
}
