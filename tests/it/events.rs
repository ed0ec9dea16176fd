//! What a listener is told, and that what it does is nobody's harm but its own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{
    Connection, Error, Event, LeaseState, Listener, LockManager, LostCause, Result, Stats,
};

use crate::support::{
    PATIENCE, Server, build, locking_asleep, logged, lost, manager, ms, name, patient, secs,
    shared, task, task_asleep, unused_url, wait_until,
};

/// An event, as a test keeps it.
#[derive(Clone, Debug)]
struct Told {
    what: &'static str,
    name: String,
    /// Or, where a wait begins, who holds it.
    owner: String,
    fence: u64,
    /// Whatever length of time it tells.
    length: Duration,
    cause: Option<LostCause>,
    connection: Option<Connection>,
    /// All of it.
    text: String,
}

impl Told {
    #[allow(clippy::too_many_lines)] // One arm for each event, and nothing but arms.
    fn new(event: &Event<'_>) -> Self {
        let told = |what, name: &str, owner: &str, fence, length| Self {
            what,
            name: name.into(),
            owner: owner.into(),
            fence,
            length,
            cause: None,
            connection: None,
            text: format!("{event:?}"),
        };
        let of = |what, connection| Self {
            connection: Some(connection),
            ..told(what, "", "", 0, ms(0))
        };
        let told = match *event {
            Event::Acquired {
                name,
                owner,
                fence,
                waited,
                ..
            } => told("acquired", name, owner, fence, waited),
            Event::Contended { name, holder, .. } => {
                told("contended", name, holder.unwrap_or_default(), 0, ms(0))
            }
            Event::PassedOn {
                name,
                owner,
                fence,
                waited,
                ..
            } => told("passed on", name, owner, fence, waited),
            Event::HandedOver { name, owner, .. } => told("handed over", name, owner, 0, ms(0)),
            Event::Released {
                name,
                owner,
                fence,
                held,
                ..
            } => told("released", name, owner, fence, held),
            Event::HeldLong {
                name,
                owner,
                fence,
                held,
                ..
            } => told("held long", name, owner, fence, held),
            Event::Renewed {
                name,
                owner,
                remaining,
                ..
            } => told("renewed", name, owner, 0, remaining),
            Event::AtRisk {
                name,
                owner,
                remaining,
                ..
            } => told("at risk", name, owner, 0, remaining),
            Event::Lost { lost, owner, .. } => Self {
                cause: Some(lost.cause),
                ..told("lost", &lost.name, owner, lost.fence, ms(0))
            },
            Event::Unreachable {
                connection, error, ..
            } => {
                assert!(matches!(error, Error::Unavailable { name: None, .. }));
                of("unreachable", connection)
            }
            Event::Recovered { connection, .. } => of("recovered", connection),
            ref other => panic!("a new one: {other:?}"),
        };
        assert_eq!(event.kind(), told.what.replace(' ', "_"));
        assert_eq!(event.name().unwrap_or_default(), told.name);
        assert_eq!(event.name().is_none(), told.connection.is_some());
        told
    }
}

/// Keeps what it is told.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<Told>>>);

impl Listener for Diary {
    fn on_event(&self, event: &Event<'_>) {
        self.lock().push(Told::new(event));
    }
}

impl Diary {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Told> {
        self.lock().clone()
    }

    /// What was told of one lock so far, but for what a busy machine may bring at any time.
    fn course(&self, name: &str) -> Vec<&'static str> {
        let of = |told: &Told| told.name == name && !["renewed", "at risk"].contains(&told.what);
        let all = self.all();
        all.iter()
            .filter(|told| of(told))
            .map(|told| told.what)
            .collect()
    }

    /// Waits until something was told for the nth time.
    #[track_caller]
    fn nth(&self, what: &str, n: usize) -> Told {
        let mut found = None;
        wait_until(what, || {
            let all = self.all();
            found = all.into_iter().filter(|told| told.what == what).nth(n - 1);
            found.is_some()
        });
        found.expect("it was waited for")
    }

    #[track_caller]
    fn first(&self, what: &str) -> Told {
        self.nth(what, 1)
    }
}

/// How many events these figures stand for, where nothing was at risk or out of reach.
fn events_of(stats: &Stats) -> u64 {
    stats.acquired
        + stats.passed_on
        + stats.released
        + stats.contended
        + stats.handed_over
        + stats.renewed
        + stats.lost()
        + stats.held_long
}

#[test]
fn turns_are_told_in_order_with_what_is_theirs() {
    let redis = shared();
    let (name, diary) = (name("turns"), Diary::default());
    let locks = build(
        patient(redis.url())
            .listener(diary.clone())
            .quantum(secs(60)),
    );
    let begun = Instant::now();
    let first = locks.lock(&name).expect("it is free");
    let (owner, fence) = (first.owner().to_owned(), first.fence());
    let mutex = locks.mutex(&name);
    let mut waiting = vec![locking_asleep(&mutex)];
    let waits = Instant::now();
    diary.first("contended");
    let least = waits.elapsed();
    // It asks for as many fences as it may pass on, if others wait.
    waiting.push(locking_asleep(&mutex));
    diary.nth("contended", 2);
    first.release().expect("it was held all the while");
    let mut turns = Vec::new();
    for task in waiting {
        let guard = task.end().expect("it comes free");
        turns.push((guard.owner().to_owned(), guard.fence()));
        guard.release().expect("it was held all the while");
    }
    let most = begun.elapsed();
    diary.nth("released", 3);
    let course = [
        "acquired",
        "contended",
        "contended",
        "released",
        "acquired",
        "released",
        "passed on",
        "released",
    ];
    assert_eq!(diary.course(&name), course);

    let acquired = diary.first("acquired");
    assert_eq!((&acquired.owner, acquired.fence), (&owner, fence));
    assert!(acquired.length <= most);
    let released = diary.first("released");
    assert_eq!((&released.owner, released.fence), (&owner, fence));
    assert!(least <= released.length && released.length <= most);
    assert_eq!(diary.first("contended").owner, owner, "the holder");
    let acquired = diary.nth("acquired", 2);
    assert_eq!((acquired.owner, acquired.fence), turns[0]);
    assert!(least <= acquired.length && acquired.length <= most);
    let passed_on = diary.first("passed on");
    assert_eq!((passed_on.owner, passed_on.fence), turns[1]);
    assert_eq!(turns[0].0, turns[1].0);
    assert_eq!(diary.nth("released", 3).fence, turns[1].1);
}

#[test]
fn a_hand_over_is_told_by_who_gives_and_who_takes() {
    let redis = shared();
    let (name, giver, taker) = (name("gives"), Diary::default(), Diary::default());
    let one = build(patient(redis.url()).listener(giver.clone()));
    let other = build(patient(redis.url()).listener(taker.clone()));
    let first = one.lock(&name).expect("it is free");
    let owner = first.owner().to_owned();
    let waiting = locking_asleep(&other.mutex(&name));
    redis.wait_until_queued(&name, 1);
    first.release().expect("it was held all the while");
    let second = waiting.end().expect("it comes free");
    assert_eq!(giver.first("handed over").owner, owner);
    let course = ["acquired", "released", "handed over"];
    assert_eq!(giver.course(&name), course);
    assert_eq!(taker.first("contended").owner, owner);
    let acquired = taker.first("acquired");
    assert_eq!(
        (&*acquired.owner, acquired.fence),
        (second.owner(), second.fence())
    );
    assert_eq!(taker.course(&name), ["contended", "acquired"]);
}

#[test]
fn a_quantum_that_is_over_hands_over() {
    let redis = shared();
    let (name, diary) = (name("quantum"), Diary::default());
    let one = build(patient(redis.url()).listener(diary.clone()).quantum(ms(1)));
    let other = manager(redis.url());
    let first = one.lock(&name).expect("it is free");
    let owner = first.owner().to_owned();
    let theirs = locking_asleep(&other.mutex(&name));
    redis.wait_until_queued(&name, 1);
    let ours = locking_asleep(&one.mutex(&name));
    // Time itself is what is tested: the quantum, a millisecond of it, has to be over.
    thread::sleep(ms(2));
    first.release().expect("it was held all the while");
    let theirs = theirs.end().expect("it comes free");
    assert_eq!(diary.first("handed over").owner, owner);
    drop(theirs);
    let ours = ours.end().expect("it comes free");
    assert_eq!(diary.nth("acquired", 2).owner, ours.owner());
    drop(ours);
    diary.nth("released", 2);
    let course = [
        "acquired",
        "contended",
        "released",
        "handed over",
        "acquired",
        "released",
    ];
    assert_eq!(diary.course(&name), course, "it waits once");
    assert_eq!(one.stats().handed_over, 1);
}

#[test]
fn semaphores_and_readers_are_told_of_too() {
    let redis = shared();
    let (name, diary) = (name("kinds"), Diary::default());
    let locks = build(patient(redis.url()).listener(diary.clone()));
    let other = manager(redis.url());
    // A permit is handed over to a process that waits for it.
    let permit = locks.semaphore(&name, 1).acquire().expect("it is free");
    let semaphore = other.semaphore(&name, 1);
    let waiting = task_asleep(move || semaphore.acquire().map(drop));
    redis.wait_until_queued(&name, 1);
    drop(permit);
    waiting.end().expect("it comes free");
    diary.first("handed over");
    assert_eq!(diary.course(&name), ["acquired", "released", "handed over"]);

    // A writer that becomes a reader releases and acquires; the next reader sits down beside it.
    let name = format!("{name}:rw");
    let rwlock = locks.rwlock(&name);
    let writer = rwlock.write().expect("it is free");
    let reader = writer.downgrade().expect("it was held");
    let beside = rwlock.read().expect("others read");
    let fence = beside.fence();
    drop(reader);
    drop(beside);
    diary.nth("released", 4);
    let course = ["acquired", "released", "acquired", "passed on"];
    assert_eq!(diary.course(&name)[..4], course);
    assert_eq!(diary.first("passed on").fence, fence);

    // The names of a set are one.
    let names = [format!("{name}:a"), format!("{name}:b")];
    let set = locks.multi(&names).lock().expect("they are free");
    set.release().expect("they were held");
    let released = diary.nth("released", 5);
    assert_eq!(diary.course(&released.name), ["acquired", "released"]);
}

#[test]
fn a_silent_server_is_told_of_before_it_costs_the_lock_and_after() {
    let server = Server::start();
    let diary = Diary::default();
    let locks = patient(&server.url()).listener(diary.clone());
    let locks = build(locks.lease(secs(6)));
    let guard = locks.lock("n").expect("it is free");
    let renewed = diary.first("renewed");
    assert_eq!((&*renewed.name, &*renewed.owner), ("n", guard.owner()));
    assert!(renewed.length <= secs(6));
    server.pause();
    diary.first("lost");
    let all = diary.all();
    let last = |what| {
        let told = all.iter().rposition(|told| told.what == what);
        told.unwrap_or_else(|| panic!("{what} was not told: {all:#?}"))
    };
    assert!(last("renewed") < last("at risk") && last("at risk") < last("lost"));
    let at_risk = &all[last("at risk")];
    assert_eq!((&*at_risk.name, &*at_risk.owner), ("n", guard.owner()));
    assert!(at_risk.length <= secs(3));
    let loss = &all[last("lost")];
    assert_eq!(
        (&*loss.name, &*loss.owner, loss.fence, loss.cause),
        ("n", guard.owner(), guard.fence(), Some(LostCause::Expired))
    );
    assert_eq!(guard.state(), LeaseState::Lost);
    lost(guard.release());
    let unreachable = diary.first("unreachable");
    assert_eq!(unreachable.connection, Some(Connection::Renewal));
    // The renewal thread has what the guard has left in Redis to release.
    server.resume();
    let recovered = diary.first("recovered");
    assert_eq!(recovered.connection, Some(Connection::Renewal));
    assert_eq!(diary.course("n"), ["acquired", "lost"], "and no release");
    assert_eq!(locks.stats().lost_expired, 1);
}

#[test]
fn a_broken_subscription_is_told_of_and_its_return() {
    let server = Server::start();
    let diary = Diary::default();
    let locks = build(patient(&server.url()).listener(diary.clone()));
    let other = manager(&server.url());
    let held = other.lock("n").expect("it is free");
    let waiting = locking_asleep(&locks.mutex("n"));
    server.raw().wait_until_queued("n", 1);
    // The other manager waits for nothing, and so listens to nothing.
    let killed: u32 = server.raw().ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(killed, 1);
    let unreachable = diary.first("unreachable");
    assert_eq!(unreachable.connection, Some(Connection::Wakeup));
    let recovered = diary.first("recovered");
    assert_eq!(recovered.connection, Some(Connection::Wakeup));
    drop(held);
    drop(waiting.end().expect("it comes free"));
}

#[test]
fn losses_are_told_once_and_by_their_causes() {
    let redis = shared();
    let (name, diary) = (name("causes"), Diary::default());
    let locks = patient(redis.url()).quantum(secs(60));
    let locks = build(locks.listener(diary.clone()));
    let mutex = locks.mutex(&name).lease(secs(5));

    // Found by a renewal.
    let guard = mutex.lock().expect("it is free");
    let () = redis.ask(&["DEL", &name]);
    let removed = diary.first("lost");
    assert_eq!(removed.cause, Some(LostCause::Removed));
    assert_eq!(
        (&*removed.owner, removed.fence),
        (guard.owner(), guard.fence())
    );
    lost(guard.release());

    // Found by a release, so that had been told.
    let guard = locks.lock(&name).expect("it is free");
    let () = redis.ask(&["SET", &name, "foreign"]);
    lost(guard.release());
    assert_eq!(diary.nth("lost", 2).cause, Some(LostCause::Taken));
    let () = redis.ask(&["DEL", &name]);

    // By the guard's own limit.
    let guard = mutex.max_hold(Some(ms(10))).lock().expect("it is free");
    let by_hold = diary.nth("lost", 3);
    assert_eq!(by_hold.cause, Some(LostCause::MaxHold));
    assert_eq!(by_hold.fence, guard.fence());
    lost(guard.release());

    // By its end, unrenewed.
    let guard = locks.mutex(&name).lease(secs(2)).renew(false).lock();
    let expired = diary.nth("lost", 4);
    assert_eq!(expired.cause, Some(LostCause::Expired));
    lost(guard.expect("it is free").release());

    // Two readers lose one lease.
    let rwlock = locks.rwlock(format!("{name}:rw")).lease(secs(5));
    let readers = [(); 2].map(|()| rwlock.read().expect("they are let in"));
    let () = redis.ask(&["DEL", &format!("{name}:rw")]);
    let removed = diary.nth("lost", 5);
    assert_eq!(removed.fence, readers[0].fence());
    for reader in readers {
        lost(reader.release());
    }
    let course = [
        "acquired", "lost", "acquired", "released", "lost", "acquired", "lost", "acquired", "lost",
    ];
    let mut told = diary.course(&name);
    // A guard ended by its limit is released in the background, which the next may have to wait for.
    told.retain(|what| *what != "contended");
    assert_eq!(told, course);
    let stats = locks.stats();
    let by_cause = [stats.lost_removed, stats.lost_taken, stats.lost_max_hold];
    assert_eq!(by_cause, [2, 1, 1]);
    let told = diary
        .all()
        .iter()
        .filter(|told| told.what == "lost")
        .count();
    assert_eq!(stats.lost(), told as u64);
}

#[test]
fn a_guard_that_is_held_for_long_is_warned_of_once() {
    let redis = shared();
    let (name, diary) = (name("long"), Diary::default());
    let limit = ms(100);
    let locks = patient(redis.url()).warn_after(Some(limit));
    let locks = build(locks.listener(diary.clone()));
    let logged = logged(&format!("{name:?}: held for"));
    let begun = Instant::now();
    // Warned of it would be before the other, unless its end came too late on a busy machine.
    let short = locks.lock(format!("{name}:short")).expect("it is free");
    drop(short);
    let in_time = begun.elapsed() < limit;
    let guard = locks.lock(&name).expect("it is free");
    let told = diary.all();
    let held_long = loop {
        let all = diary.all();
        if let Some(told) = all
            .iter()
            .find(|told| told.name == name && told.what == "held long")
        {
            break told.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "never warned: {told:?}");
        thread::yield_now();
    };
    assert_eq!(
        (&*held_long.owner, held_long.fence),
        (guard.owner(), guard.fence())
    );
    assert!(limit <= held_long.length && held_long.length <= begun.elapsed());
    if in_time {
        assert_eq!(
            diary.course(&format!("{name}:short")),
            ["acquired", "released"]
        );
    }
    let line = logged.recv_timeout(PATIENCE).expect("it is logged");
    assert_eq!(line.thread, "leasehold-events");
    for part in [&name, guard.owner(), &guard.fence().to_string()] {
        assert!(line.text.contains(part), "{line:?}");
    }
    guard.release().expect("it was held all the while");
    wait_until("the release", || diary.course(&name).len() == 3);
    assert_eq!(diary.course(&name), ["acquired", "held long", "released"]);
    assert!(logged.try_recv().is_err(), "it is logged twice");
}

#[test]
fn a_warning_needs_no_listener_and_a_limit_of_zero_is_none() {
    let redis = shared();
    let name = name("unheard");
    let logged = logged(&format!("{name:?}: held for"));
    let locks = build(patient(redis.url()).warn_after(Some(ms(1))));
    let guard = locks.lock(&name).expect("it is free");
    logged.recv_timeout(PATIENCE).expect("it is logged");
    drop(guard);
    let stats = locks.stats();
    assert_eq!((stats.held_long, stats.events_dropped), (1, 0));

    let zero = LockManager::single(redis.url()).warn_after(Some(ms(0)));
    match zero.build_unchecked() {
        Err(Error::Config { option, .. }) => assert_eq!(option, "warn_after"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_listener_that_blocks_for_ever_holds_up_nothing() {
    let server = Server::start();
    let (go_on, gate) = channel::<()>();
    let (told, heard) = channel();
    let (gate, told) = (Mutex::new(gate), Mutex::new(told));
    let locks = build(patient(&server.url()).listener(move |event: &Event<'_>| {
        // Ends when the test drops the other end.
        gate.lock().expect("no panic").recv().ok();
        let told = told.lock().expect("no panic");
        told.send(Told::new(event).what).ok();
    }));
    // More than what waits for it.
    let turns = task({
        let mutex = locks.mutex("busy");
        move || (0..3000).try_for_each(|_| mutex.lock().map(drop))
    });
    turns.end().expect("nothing is wrong");
    wait_until("events are dropped", || locks.stats().events_dropped > 0);
    // Waits, passing on, hand-overs.
    let other = manager(&server.url());
    let held = locks.lock("n").expect("it is free");
    let both = [&locks, &other].map(|locks| {
        let mutex = locks.mutex("n");
        task_asleep(move || mutex.lock().map(drop))
    });
    server.raw().wait_until_queued("n", 1);
    drop(held);
    for turn in both {
        turn.end().expect("it comes free");
    }
    // Renewals.
    let guard = locks.mutex("r").lease(secs(12)).lock().expect("it is free");
    let renewed = locks.stats().renewed;
    wait_until("it is renewed", || locks.stats().renewed > renewed);
    drop(guard);
    // A loss, at its deadline.
    let lease = secs(2);
    let short = locks.mutex("l").lease(lease).renew(false);
    let guard = short.lock().expect("it is free");
    let loss = guard.on_lost().recv_timeout(PATIENCE).expect("it is told");
    assert_eq!(loss.cause, LostCause::Expired);
    lost(guard.release());
    drop(short);
    // The end.
    let closing = task({
        let locks = locks.clone();
        move || locks.close(PATIENCE)
    });
    assert!(closing.end());
    let stats = locks.stats();
    let dropping = task(move || drop(locks));
    dropping.end();

    // What it was not told is all that was dropped, but for what the end of the loss may have added.
    drop(go_on);
    let told = task(move || heard.iter().count()).end() as u64;
    assert!(stats.events_dropped > 0);
    assert_eq!(told, 4096 + 1, "the queue, and the one at hand");
    let all = events_of(&stats);
    assert!(told + stats.events_dropped >= all, "{stats:?}");
}

#[test]
fn a_listener_that_panics_is_called_again_and_harms_nothing() {
    let redis = shared();
    let (name, calls) = (name("panics"), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&calls);
    let locks = build(patient(redis.url()).listener(move |_: &Event<'_>| {
        *counted.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        // Not by a macro, whose message would go into every test's output.
        std::panic::resume_unwind(Box::new("a listener's own"));
    }));
    let mutex = locks.mutex(&name).lease(secs(5));
    let guard = mutex.lock().expect("it is free");
    wait_until("it is renewed", || locks.stats().renewed > 0);
    let waiting = locking_asleep(&mutex);
    guard.release().expect("it was held all the while");
    drop(waiting.end().expect("it comes free"));
    let stats = locks.stats();
    assert_eq!((stats.lost(), stats.events_dropped), (0, 0));
    let called = || *calls.lock().unwrap_or_else(PoisonError::into_inner);
    wait_until("it is called for each", || called() >= events_of(&stats));
}

#[test]
fn a_listener_may_lock_what_it_likes() {
    let redis = shared();
    let (name, own) = (name("calls"), Arc::new(Mutex::new(None::<LockManager>)));
    let (told, heard) = channel();
    let (told, theirs) = (Mutex::new(told), Arc::clone(&own));
    let watched = name.clone();
    let locks = build(patient(redis.url()).listener(move |event: &Event<'_>| {
        let told_of = Told::new(event);
        if told_of.what != "acquired" || told_of.name != watched {
            return;
        }
        let locks = theirs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let locks = locks.expect("it has the manager that tells it");
        // It waits for what is being told, on the only thread that tells.
        let held = locks.try_lock(&watched).map(|guard| guard.is_some());
        let waited = locks.lock(format!("{watched}:own")).map(drop);
        let told = told.lock().expect("no panic");
        told.send((held, waited)).ok();
    }));
    *own.lock().expect("no panic") = Some(locks.clone());
    let guard = locks.lock(&name).expect("it is free");
    let (held, waited) = heard.recv_timeout(PATIENCE).expect("it is told");
    assert!(!held.expect("it is asked"), "it is held here");
    waited.expect("it is free");
    drop(guard);
    // Or it would keep itself.
    own.lock().expect("no panic").take();
}

/// Tells when it is dropped.
struct Mortal {
    diary: Diary,
    _end: Sender<()>,
}

impl Listener for Mortal {
    fn on_event(&self, event: &Event<'_>) {
        self.diary.on_event(event);
    }
}

fn mortal() -> (Mortal, Diary, Receiver<()>) {
    let (end, ended) = channel();
    let diary = Diary::default();
    let mortal = Mortal {
        diary: diary.clone(),
        _end: end,
    };
    (mortal, diary, ended)
}

#[test]
fn the_last_release_is_told_and_nothing_after_it() {
    let redis = shared();
    let name = name("last");
    let (listener, diary, ended) = mortal();
    let locks = build(patient(redis.url()).listener(listener));
    let guard = locks.lock(&name).expect("it is free");
    let waiting = locks.mutex(&name);
    drop(locks);
    wait_in_vain_behind(&waiting);
    drop(waiting);
    assert!(ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty));
    drop(guard);
    // The listener goes with its thread, and that when all is told.
    let gone = ended.recv_timeout(PATIENCE);
    assert_eq!(gone, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    let course = diary.course(&name);
    assert_eq!(course, ["acquired", "contended", "released"]);
}

/// Waits for what is held here, so that the thread that hears messages is there too.
fn wait_in_vain_behind(mutex: &leasehold::Mutex) {
    let held: Result<Option<_>> = mutex.try_lock_for(ms(10));
    assert!(held.expect("it is asked").is_none());
}

#[test]
fn a_listener_of_a_manager_that_did_nothing_is_dropped_with_it() {
    let (listener, diary, ended) = mortal();
    let locks = LockManager::single(&unused_url()).listener(listener);
    drop(locks.build_unchecked().expect("the settings are good"));
    let gone = ended.try_recv();
    assert_eq!(gone, Err(std::sync::mpsc::TryRecvError::Disconnected));
    assert!(diary.all().is_empty());
}

#[test]
fn no_event_has_a_password() {
    let server = Server::with(&["--requirepass", "s3cret"]);
    let url = server.url().replace("redis://", "redis://:s3cret@");
    let diary = Diary::default();
    let builder = patient(&url).listener(diary.clone());
    assert!(!format!("{builder:?}").contains("s3cret"));
    let locks = build(builder.lease(secs(3)));
    let guard = locks.lock("n").expect("it is free");
    server.kill();
    diary.first("unreachable");
    diary.first("lost");
    lost(guard.release());
    for told in diary.all() {
        assert!(!told.text.contains("s3cret"), "{}", told.text);
    }
}
