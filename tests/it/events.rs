//! The events that a listener receives, and listeners that block, panic or call back.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{
    Connection, Error, Event, LeaseState, Listener, LockManager, LostCause, Result, Stats,
};

use crate::support::{
    Nodes, PATIENCE, Server, build, locking, locking_asleep, logged, lost, manager, ms, name,
    patient, secs, shared, task, task_asleep, unused_url, wait_until,
};

/// An event that a listener received.
#[derive(Clone, Debug)]
struct RecordedEvent {
    what: &'static str,
    name: String,
    /// The owner. If a wait begins, this is the holder.
    owner: String,
    /// For a long wait, the number of places in the queue.
    fence: u64,
    /// The wait, hold or remaining time of the event.
    length: Duration,
    cause: Option<LostCause>,
    connection: Option<Connection>,
    /// The address of the server.
    node: Option<String>,
    /// The event as `Debug` shows it.
    text: String,
}

impl RecordedEvent {
    #[allow(clippy::too_many_lines)] // One arm for each event, and nothing but arms.
    fn new(event: &Event<'_>) -> Self {
        let about_lock = |what, name: &str, owner: &str, fence, length| Self {
            what,
            name: name.into(),
            owner: owner.into(),
            fence,
            length,
            cause: None,
            connection: None,
            node: None,
            text: format!("{event:?}"),
        };
        let about_connection = |what, connection, node: Option<&str>| Self {
            connection: Some(connection),
            node: node.map(str::to_owned),
            ..about_lock(what, "", "", 0, ms(0))
        };
        let recorded = match event {
            Event::Acquired {
                name,
                owner,
                fence,
                waited,
                ..
            } => about_lock("acquired", name, owner, *fence, *waited),
            Event::Contended { name, holder, .. } => about_lock(
                "contended",
                name,
                holder.as_deref().unwrap_or_default(),
                0,
                ms(0),
            ),
            Event::PassedOn {
                name,
                owner,
                fence,
                waited,
                ..
            } => about_lock("passed on", name, owner, *fence, *waited),
            Event::HandedOver { name, owner, .. } => {
                about_lock("handed over", name, owner, 0, ms(0))
            }
            Event::Released {
                name,
                owner,
                fence,
                held,
                ..
            } => about_lock("released", name, owner, *fence, *held),
            Event::HeldLong {
                name,
                owner,
                fence,
                held,
                ..
            } => about_lock("held long", name, owner, *fence, *held),
            Event::WaitsLong {
                name,
                holder,
                waited,
                queue,
                ..
            } => Self {
                fence: queue.unwrap_or_default(),
                ..about_lock(
                    "waits long",
                    name,
                    holder.as_deref().unwrap_or_default(),
                    0,
                    *waited,
                )
            },
            Event::Renewed {
                name,
                owner,
                remaining,
                ..
            } => about_lock("renewed", name, owner, 0, *remaining),
            Event::AtRisk {
                name,
                owner,
                remaining,
                ..
            } => about_lock("at risk", name, owner, 0, *remaining),
            Event::LacksVotes { name, owner, .. } => {
                about_lock("lacks votes", name, owner, 0, ms(0))
            }
            Event::Lost { lost, owner, .. } => Self {
                cause: Some(lost.cause),
                ..about_lock("lost", &lost.name, owner, lost.fence, ms(0))
            },
            Event::Unreachable {
                connection,
                node,
                error,
                ..
            } => {
                let is_of_a_quorum = matches!(error, Error::NoQuorum { name: None, .. });
                assert!(is_of_a_quorum || matches!(error, Error::Unavailable { name: None, .. }));
                assert_eq!(node.is_none(), is_of_a_quorum);
                about_connection("unreachable", *connection, node.as_deref())
            }
            Event::Recovered {
                connection, node, ..
            } => about_connection("recovered", *connection, node.as_deref()),
            other => panic!("an unknown event: {other:?}"),
        };
        assert_eq!(event.kind(), recorded.what.replace(' ', "_"));
        assert_eq!(event.name().unwrap_or_default(), recorded.name);
        assert_eq!(event.name().is_none(), recorded.connection.is_some());
        recorded
    }
}

/// A listener that records all events, and its log.
#[derive(Clone, Default)]
struct EventLog(Arc<Mutex<Vec<RecordedEvent>>>);

impl Listener for EventLog {
    fn on_event(&self, event: &Event<'_>) {
        self.lock().push(RecordedEvent::new(event));
    }
}

impl EventLog {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<RecordedEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<RecordedEvent> {
        self.lock().clone()
    }

    /// Returns the kinds of the events of one lock so far. Leaves out renewals, which depend on the speed of the
    /// machine.
    fn kinds_of(&self, name: &str) -> Vec<&'static str> {
        let is_of_renewal =
            |event: &RecordedEvent| ["renewed", "at risk", "lacks votes"].contains(&event.what);
        self.all()
            .iter()
            .filter(|event| event.name == name && !is_of_renewal(event))
            .map(|event| event.what)
            .collect()
    }

    /// Blocks until the nth event of a kind, and returns the event.
    #[track_caller]
    fn nth(&self, what: &str, n: usize) -> RecordedEvent {
        let mut found = None;
        wait_until(what, || {
            let all = self.all();
            found = all
                .into_iter()
                .filter(|event| event.what == what)
                .nth(n - 1);
            found.is_some()
        });
        found.expect("it was waited for")
    }

    #[track_caller]
    fn first(&self, what: &str) -> RecordedEvent {
        self.nth(what, 1)
    }
}

/// Returns the number of events that these figures count. Events about a late renewal or a connection are not counted.
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
fn each_turn_has_its_events_in_order() {
    let redis = shared();
    let (name, events) = (name("turns"), EventLog::default());
    let locks = build(
        patient(redis.url())
            .listener(events.clone())
            .quantum(secs(60)),
    );
    let begun = Instant::now();
    let first = locks.lock(&name).expect("it is free");
    let (owner, fence) = (first.owner().to_owned(), first.fence());
    let mutex = locks.mutex(&name);
    let mut waiting = vec![locking_asleep(&mutex)];
    let waits = Instant::now();
    events.first("contended");
    let least = waits.elapsed();
    // The second waiter makes the first one ask for a block of fences, so that it can pass the lock on.
    waiting.push(locking_asleep(&mutex));
    events.nth("contended", 2);
    first.release().expect("it was held until now");
    let mut turns = Vec::new();
    for task in waiting {
        let guard = task.end().expect("it becomes free");
        turns.push((guard.owner().to_owned(), guard.fence()));
        guard.release().expect("it was held until now");
    }
    let most = begun.elapsed();
    events.nth("released", 3);
    let kinds = [
        "acquired",
        "contended",
        "contended",
        "released",
        "acquired",
        "released",
        "passed on",
        "released",
    ];
    assert_eq!(events.kinds_of(&name), kinds);

    let acquired = events.first("acquired");
    assert_eq!((&acquired.owner, acquired.fence), (&owner, fence));
    assert!(acquired.length <= most);
    let released = events.first("released");
    assert_eq!((&released.owner, released.fence), (&owner, fence));
    assert!(least <= released.length && released.length <= most);
    assert_eq!(events.first("contended").owner, owner, "the holder");
    let acquired = events.nth("acquired", 2);
    assert_eq!((acquired.owner, acquired.fence), turns[0]);
    assert!(least <= acquired.length && acquired.length <= most);
    let passed_on = events.first("passed on");
    assert_eq!((passed_on.owner, passed_on.fence), turns[1]);
    assert_eq!(turns[0].0, turns[1].0);
    assert_eq!(events.nth("released", 3).fence, turns[1].1);
}

#[test]
fn a_hand_over_has_events_at_the_giver_and_at_the_taker() {
    let redis = shared();
    let (name, giver, taker) = (name("gives"), EventLog::default(), EventLog::default());
    let one = build(patient(redis.url()).listener(giver.clone()));
    let other = build(patient(redis.url()).listener(taker.clone()));
    let first = one.lock(&name).expect("it is free");
    let owner = first.owner().to_owned();
    let waiting = locking_asleep(&other.mutex(&name));
    redis.wait_until_queued(&name, 1);
    first.release().expect("it was held until now");
    let second = waiting.end().expect("it becomes free");
    assert_eq!(giver.first("handed over").owner, owner);
    let kinds = ["acquired", "released", "handed over"];
    assert_eq!(giver.kinds_of(&name), kinds);
    assert_eq!(taker.first("contended").owner, owner);
    let acquired = taker.first("acquired");
    assert_eq!(
        (&*acquired.owner, acquired.fence),
        (second.owner(), second.fence())
    );
    assert_eq!(taker.kinds_of(&name), ["contended", "acquired"]);
}

#[test]
fn a_release_after_the_quantum_hands_the_lock_over() {
    let redis = shared();
    let (name, events) = (name("quantum"), EventLog::default());
    let one = build(patient(redis.url()).listener(events.clone()).quantum(ms(1)));
    let other = manager(redis.url());
    let first = one.lock(&name).expect("it is free");
    let owner = first.owner().to_owned();
    let theirs = locking_asleep(&other.mutex(&name));
    redis.wait_until_queued(&name, 1);
    let ours = locking_asleep(&one.mutex(&name));
    // The test needs time to pass: the quantum of a millisecond must be over.
    thread::sleep(ms(2));
    first.release().expect("it was held until now");
    let theirs = theirs.end().expect("it becomes free");
    assert_eq!(events.first("handed over").owner, owner);
    drop(theirs);
    let ours = ours.end().expect("it becomes free");
    assert_eq!(events.nth("acquired", 2).owner, ours.owner());
    drop(ours);
    events.nth("released", 2);
    let kinds = [
        "acquired",
        "contended",
        "released",
        "handed over",
        "acquired",
        "released",
    ];
    assert_eq!(events.kinds_of(&name), kinds, "the thread waits once");
    assert_eq!(one.stats().handed_over, 1);
}

#[test]
fn semaphores_readers_and_multi_locks_have_events_too() {
    let redis = shared();
    let (name, events) = (name("kinds"), EventLog::default());
    let locks = build(patient(redis.url()).listener(events.clone()));
    let other = manager(redis.url());
    // A permit is handed over to a waiting process.
    let permit = locks.semaphore(&name, 1).acquire().expect("it is free");
    let semaphore = other.semaphore(&name, 1);
    let waiting = task_asleep(move || semaphore.acquire().map(drop));
    redis.wait_until_queued(&name, 1);
    drop(permit);
    waiting.end().expect("it becomes free");
    events.first("handed over");
    assert_eq!(
        events.kinds_of(&name),
        ["acquired", "released", "handed over"]
    );

    // A downgrade releases the writer and acquires a reader. The next reader joins it.
    let name = format!("{name}:rw");
    let rwlock = locks.rwlock(&name);
    let writer = rwlock.write().expect("it is free");
    let reader = writer.downgrade().expect("it was held");
    let beside = rwlock.read().expect("others read");
    let fence = beside.fence();
    drop(reader);
    drop(beside);
    events.nth("released", 4);
    let kinds = ["acquired", "released", "acquired", "passed on"];
    assert_eq!(events.kinds_of(&name)[..4], kinds);
    assert_eq!(events.first("passed on").fence, fence);

    // A multi-lock has one event for all its names.
    let names = [format!("{name}:a"), format!("{name}:b")];
    let set = locks.multi(&names).lock().expect("they are free");
    set.release().expect("they were held");
    let released = events.nth("released", 5);
    assert_eq!(events.kinds_of(&released.name), ["acquired", "released"]);
}

#[test]
fn a_silent_server_is_reported_with_the_loss_and_its_recovery() {
    let server = Server::start();
    let events = EventLog::default();
    let locks = patient(&server.url()).listener(events.clone());
    let locks = build(locks.lease(secs(6)));
    let guard = locks.lock("n").expect("it is free");
    let renewed = events.first("renewed");
    assert_eq!((&*renewed.name, &*renewed.owner), ("n", guard.owner()));
    assert!(renewed.length <= secs(6));
    server.pause();
    events.first("lost");
    let all = events.all();
    let last = |what| {
        let last = all.iter().rposition(|event| event.what == what);
        last.unwrap_or_else(|| panic!("no event {what}: {all:#?}"))
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
    let unreachable = events.first("unreachable");
    assert_eq!(unreachable.connection, Some(Connection::Renewal));
    let address = Some(format!("127.0.0.1:{}", server.port()));
    assert_eq!(unreachable.node, address);
    // The renewal thread still has to release the key in Redis.
    server.resume();
    let recovered = events.first("recovered");
    assert_eq!(recovered.connection, Some(Connection::Renewal));
    assert_eq!(recovered.node, address);
    assert_eq!(
        events.kinds_of("n"),
        ["acquired", "lost"],
        "a lost lock has no release event"
    );
    assert_eq!(locks.stats().lost_expired, 1);
}

#[test]
fn a_broken_subscription_and_its_recovery_are_reported() {
    let server = Server::start();
    let events = EventLog::default();
    let locks = build(patient(&server.url()).listener(events.clone()));
    let other = manager(&server.url());
    let held = other.lock("n").expect("it is free");
    let waiting = locking_asleep(&locks.mutex("n"));
    server.raw().wait_until_queued("n", 1);
    // The other manager waits for no lock, so it has no subscription.
    let killed: u32 = server.raw().ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(killed, 1);
    let unreachable = events.first("unreachable");
    assert_eq!(unreachable.connection, Some(Connection::Wakeup));
    let address = Some(format!("127.0.0.1:{}", server.port()));
    assert_eq!(unreachable.node, address);
    let recovered = events.first("recovered");
    assert_eq!(recovered.connection, Some(Connection::Wakeup));
    assert_eq!(recovered.node, address);
    drop(held);
    drop(waiting.end().expect("it becomes free"));
}

/// One node is killed, and then another: the last one is no majority.
#[test]
fn each_node_of_a_quorum_and_the_majority_have_events() {
    let (nodes, events) = (Nodes::start(3), EventLog::default());
    let locks = build(nodes.builder().listener(events.clone()));
    let other = nodes.manager();
    let kept = locks.mutex("kept").lease(secs(6)).lock();
    let kept = kept.expect("it is free");
    let held = other.lock("n").expect("it is free");
    let waiting = locking(&locks.mutex("n"));
    // Only a wait that has begun outlives an outage.
    wait_until("it waits", || {
        nodes.raws().iter().any(|node| !node.queue("n").is_empty())
    });
    let address = |number: usize| Some(format!("127.0.0.1:{}", nodes.servers()[number].port()));
    let wait_for = |what: &str, node: Option<String>| {
        for connection in [Connection::Renewal, Connection::Wakeup] {
            wait_until(&format!("{node:?} is {what} for {connection:?}"), || {
                let all = events.all();
                let last = all
                    .iter()
                    .rfind(|event| event.connection == Some(connection) && event.node == node);
                last.is_some_and(|event| event.what == what)
            });
        }
    };
    nodes.servers()[2].kill();
    wait_for("unreachable", address(2));
    assert!(
        events
            .all()
            .iter()
            .all(|event| event.node == address(2) || event.connection.is_none())
    );
    nodes.servers()[1].kill();
    wait_for("unreachable", address(1));
    wait_for("unreachable", None);
    // On a busy machine the lease has ended by now. Without one, nothing is renewed, so no node is asked.
    let mut renewed = Vec::new();
    for number in [1, 2] {
        nodes.servers()[number].restart();
        wait_until("there is a lease to renew", || {
            let more = locks.mutex(format!("more-{number}")).lease(secs(6));
            renewed.extend(more.try_lock().ok().flatten());
            renewed.len() == number
        });
        wait_for("recovered", address(number));
    }
    wait_for("recovered", None);
    drop((kept, held));
    drop(waiting.end().expect("it becomes free"));
}

#[test]
fn each_loss_is_one_event_with_its_cause() {
    let redis = shared();
    let (name, events) = (name("causes"), EventLog::default());
    let locks = patient(redis.url()).quantum(secs(60));
    let locks = build(locks.listener(events.clone()));
    let mutex = locks.mutex(&name).lease(secs(5));

    // A renewal finds the loss.
    let guard = mutex.lock().expect("it is free");
    let () = redis.ask(&["DEL", &name]);
    let removed = events.first("lost");
    assert_eq!(removed.cause, Some(LostCause::Removed));
    assert_eq!(
        (&*removed.owner, removed.fence),
        (guard.owner(), guard.fence())
    );
    lost(guard.release());

    // The release finds the loss. Its event was sent before.
    let guard = locks.lock(&name).expect("it is free");
    let () = redis.ask(&["SET", &name, "foreign"]);
    lost(guard.release());
    assert_eq!(events.nth("lost", 2).cause, Some(LostCause::Taken));
    let () = redis.ask(&["DEL", &name]);

    // `max_hold` ends the lock.
    let guard = mutex.max_hold(Some(ms(10))).lock().expect("it is free");
    let by_hold = events.nth("lost", 3);
    assert_eq!(by_hold.cause, Some(LostCause::MaxHold));
    assert_eq!(by_hold.fence, guard.fence());
    lost(guard.release());

    // The lease ends, because nobody renews it.
    let guard = locks.mutex(&name).lease(secs(2)).renew(false).lock();
    let expired = events.nth("lost", 4);
    assert_eq!(expired.cause, Some(LostCause::Expired));
    lost(guard.expect("it is free").release());

    // Two readers share one lease, and lose it.
    let rwlock = locks.rwlock(format!("{name}:rw")).lease(secs(5));
    let readers = [(); 2].map(|()| rwlock.read().expect("they are granted"));
    let () = redis.ask(&["DEL", &format!("{name}:rw")]);
    let removed = events.nth("lost", 5);
    assert_eq!(removed.fence, readers[0].fence());
    for reader in readers {
        lost(reader.release());
    }
    let kinds = [
        "acquired", "lost", "acquired", "released", "lost", "acquired", "lost", "acquired", "lost",
    ];
    let mut found = events.kinds_of(&name);
    // The renewal thread releases a lock that `max_hold` ended. The next thread may have to wait for that.
    found.retain(|what| *what != "contended");
    assert_eq!(found, kinds);
    let stats = locks.stats();
    let by_cause = [stats.lost_removed, stats.lost_taken, stats.lost_max_hold];
    assert_eq!(by_cause, [2, 1, 1]);
    let lost = events
        .all()
        .iter()
        .filter(|event| event.what == "lost")
        .count();
    assert_eq!(stats.lost(), lost as u64);
}

#[test]
fn a_guard_that_is_held_for_long_causes_one_warning() {
    let redis = shared();
    let (name, events) = (name("long"), EventLog::default());
    let limit = ms(100);
    let locks = patient(redis.url()).warn_after(Some(limit));
    let locks = build(locks.listener(events.clone()));
    let logged = logged(&format!("{name:?}: held for"));
    let begun = Instant::now();
    // Its warning would come before the warning of the other guard. A busy machine may release it too late.
    let short = locks.lock(format!("{name}:short")).expect("it is free");
    drop(short);
    let in_time = begun.elapsed() < limit;
    let guard = locks.lock(&name).expect("it is free");
    let before = events.all();
    let held_long = loop {
        let all = events.all();
        if let Some(warning) = all
            .iter()
            .find(|event| event.name == name && event.what == "held long")
        {
            break warning.clone();
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "no warning came after {before:?}"
        );
        thread::yield_now();
    };
    assert_eq!(
        (&*held_long.owner, held_long.fence),
        (guard.owner(), guard.fence())
    );
    assert!(limit <= held_long.length && held_long.length <= begun.elapsed());
    if in_time {
        assert_eq!(
            events.kinds_of(&format!("{name}:short")),
            ["acquired", "released"]
        );
    }
    let line = logged.recv_timeout(PATIENCE).expect("it is logged");
    assert_eq!(line.thread, "leasehold-events");
    for part in [&name, guard.owner(), &guard.fence().to_string()] {
        assert!(line.text.contains(part), "{line:?}");
    }
    guard.release().expect("it was held until now");
    wait_until("the release", || events.kinds_of(&name).len() == 3);
    assert_eq!(
        events.kinds_of(&name),
        ["acquired", "held long", "released"]
    );
    assert!(logged.try_recv().is_err(), "it is logged twice");
}

/// One thread waits for another process, and one behind it.
#[test]
fn a_call_that_waits_for_long_causes_a_warning() {
    let redis = shared();
    let (name, events) = (name("long-wait"), EventLog::default());
    let limit = ms(100);
    let holder = manager(redis.url());
    let guard = holder.lock(&name).expect("it is free");
    let locks = patient(redis.url()).warn_wait_after(Some(limit));
    let locks = build(locks.listener(events.clone()));
    let logged = logged(&format!("{name:?}: a call has waited for"));
    drop(locks.lock(format!("{name}:free")).expect("it is free"));
    let waiting = [(); 2].map(|()| locking_asleep(&locks.mutex(&name)));
    let warning = events.first("waits long");
    assert_eq!((&*warning.name, &*warning.owner), (&*name, guard.owner()));
    assert!(warning.length >= limit, "{warning:?}");
    let line = logged.recv_timeout(PATIENCE).expect("it is logged");
    for part in [&name, guard.owner()] {
        assert!(line.text.contains(part), "{line:?}");
    }
    drop(guard);
    for waiting in waiting {
        drop(waiting.end().expect("it becomes free"));
    }
    let zero = LockManager::single(redis.url()).warn_wait_after(Some(ms(0)));
    assert!(matches!(
        zero.build_unchecked(),
        Err(Error::Config {
            option: "warn_wait_after",
            ..
        })
    ));
}

/// The holder is a thread of the same process, so no thread asks Redis.
#[test]
fn a_wait_behind_a_thread_of_the_same_process_is_warned_of_too() {
    let redis = shared();
    let (name, events) = (name("long-inside"), EventLog::default());
    let locks = patient(redis.url()).warn_wait_after(Some(ms(50)));
    let locks = build(locks.listener(events.clone()));
    let guard = locks.lock(&name).expect("it is free");
    let waiting = locking_asleep(&locks.mutex(&name));
    let warning = events.first("waits long");
    assert_eq!((&*warning.owner, warning.fence), (guard.owner(), 0));
    drop(guard);
    drop(waiting.end().expect("it becomes free"));
}

#[test]
fn a_warning_needs_no_listener_and_its_limit_must_not_be_zero() {
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
fn a_listener_that_blocks_for_ever_delays_no_lock() {
    let server = Server::start();
    let (go_on, gate) = channel::<()>();
    let (sender, received) = channel();
    let (gate, sender) = (Mutex::new(gate), Mutex::new(sender));
    let locks = build(patient(&server.url()).listener(move |event: &Event<'_>| {
        // Blocks until the test drops `go_on`.
        gate.lock().expect("no panic").recv().ok();
        let sender = sender.lock().expect("no panic");
        sender.send(RecordedEvent::new(event).what).ok();
    }));
    // More events than the queue holds.
    let turns = task({
        let mutex = locks.mutex("busy");
        move || (0..3000).try_for_each(|_| mutex.lock().map(drop))
    });
    turns.end().expect("nothing is wrong");
    wait_until("events are dropped", || locks.stats().events_dropped > 0);
    // A thread waits, the lock is handed on in memory, and then handed over to a process.
    let other = manager(&server.url());
    let held = locks.lock("n").expect("it is free");
    let both = [&locks, &other].map(|locks| {
        let mutex = locks.mutex("n");
        task_asleep(move || mutex.lock().map(drop))
    });
    server.raw().wait_until_queued("n", 1);
    drop(held);
    for turn in both {
        turn.end().expect("it becomes free");
    }
    // A lease is renewed.
    let guard = locks.mutex("r").lease(secs(12)).lock().expect("it is free");
    let renewed = locks.stats().renewed;
    wait_until("it is renewed", || locks.stats().renewed > renewed);
    drop(guard);
    // A lock is lost at its deadline.
    let lease = secs(2);
    let short = locks.mutex("l").lease(lease).renew(false);
    let guard = short.lock().expect("it is free");
    let loss = guard.on_lost().recv_timeout(PATIENCE).expect("a loss");
    assert_eq!(loss.cause, LostCause::Expired);
    lost(guard.release());
    drop(short);
    // The manager is closed and dropped.
    let closing = task({
        let locks = locks.clone();
        move || locks.close(PATIENCE)
    });
    assert!(closing.end());
    let stats = locks.stats();
    let dropping = task(move || drop(locks));
    dropping.end();

    // All other events were dropped. The end of the lost lock may have added events after `stats`.
    drop(go_on);
    let count = task(move || received.iter().count()).end() as u64;
    assert!(stats.events_dropped > 0);
    assert_eq!(count, 4096 + 1, "the queue, and the event that blocks");
    let all = events_of(&stats);
    assert!(count + stats.events_dropped >= all, "{stats:?}");
}

#[test]
fn a_listener_that_panics_is_called_again_and_fails_no_lock() {
    let redis = shared();
    let (name, calls) = (name("panics"), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&calls);
    let locks = build(patient(redis.url()).listener(move |_: &Event<'_>| {
        *counted.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        // `panic!` would print a message into the output of every test.
        std::panic::resume_unwind(Box::new("a panic of the listener"));
    }));
    let mutex = locks.mutex(&name).lease(secs(5));
    let guard = mutex.lock().expect("it is free");
    wait_until("it is renewed", || locks.stats().renewed > 0);
    let waiting = locking_asleep(&mutex);
    guard.release().expect("it was held until now");
    drop(waiting.end().expect("it becomes free"));
    let stats = locks.stats();
    assert_eq!((stats.lost(), stats.events_dropped), (0, 0));
    let called = || *calls.lock().unwrap_or_else(PoisonError::into_inner);
    wait_until("it is called for each", || called() >= events_of(&stats));
}

#[test]
fn a_listener_may_use_the_locks_of_its_manager() {
    let redis = shared();
    let (name, own) = (name("calls"), Arc::new(Mutex::new(None::<LockManager>)));
    let (sender, received) = channel();
    let (sender, theirs) = (Mutex::new(sender), Arc::clone(&own));
    let watched = name.clone();
    let locks = build(patient(redis.url()).listener(move |event: &Event<'_>| {
        let event = RecordedEvent::new(event);
        if event.what != "acquired" || event.name != watched {
            return;
        }
        let locks = theirs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let locks = locks.expect("the test has set the manager");
        // The thread of the events locks the lock whose event it delivers.
        let held = locks.try_lock(&watched).map(|guard| guard.is_some());
        let waited = locks.lock(format!("{watched}:own")).map(drop);
        let sender = sender.lock().expect("no panic");
        sender.send((held, waited)).ok();
    }));
    *own.lock().expect("no panic") = Some(locks.clone());
    let guard = locks.lock(&name).expect("it is free");
    let (held, waited) = received.recv_timeout(PATIENCE).expect("the listener ran");
    assert!(!held.expect("Redis replies"), "it is held here");
    waited.expect("it is free");
    drop(guard);
    // The listener holds the manager, which holds the listener.
    own.lock().expect("no panic").take();
}

/// A listener with a log. The test learns when the listener is dropped.
struct ListenerWithEnd {
    events: EventLog,
    _end: Sender<()>,
}

impl Listener for ListenerWithEnd {
    fn on_event(&self, event: &Event<'_>) {
        self.events.on_event(event);
    }
}

fn listener_with_end() -> (ListenerWithEnd, EventLog, Receiver<()>) {
    let (end, ended) = channel();
    let events = EventLog::default();
    let listener = ListenerWithEnd {
        events: events.clone(),
        _end: end,
    };
    (listener, events, ended)
}

#[test]
fn the_last_release_is_the_last_event() {
    let redis = shared();
    let name = name("last");
    let (listener, events, ended) = listener_with_end();
    let locks = build(patient(redis.url()).listener(listener));
    let guard = locks.lock(&name).expect("it is free");
    let waiting = locks.mutex(&name);
    drop(locks);
    wait_in_vain_behind(&waiting);
    drop(waiting);
    assert!(ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty));
    drop(guard);
    // The thread of the events drops the listener after the last event.
    let gone = ended.recv_timeout(PATIENCE);
    assert_eq!(gone, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    let kinds = events.kinds_of(&name);
    assert_eq!(kinds, ["acquired", "contended", "released"]);
}

/// Waits for a lock that stays held. That starts the thread of the subscription.
fn wait_in_vain_behind(mutex: &leasehold::Mutex) {
    let held: Result<Option<_>> = mutex.try_lock_for(ms(10));
    assert!(held.expect("Redis replies").is_none());
}

#[test]
fn an_unused_manager_drops_its_listener() {
    let (listener, events, ended) = listener_with_end();
    let locks = LockManager::single(&unused_url()).listener(listener);
    drop(locks.build_unchecked().expect("the settings are good"));
    let gone = ended.try_recv();
    assert_eq!(gone, Err(std::sync::mpsc::TryRecvError::Disconnected));
    assert!(events.all().is_empty());
}

#[test]
fn no_event_has_a_password() {
    let server = Server::with(&["--requirepass", "s3cret"]);
    let url = server.url().replace("redis://", "redis://:s3cret@");
    let events = EventLog::default();
    let builder = patient(&url).listener(events.clone());
    assert!(!format!("{builder:?}").contains("s3cret"));
    let locks = build(builder.lease(secs(3)));
    let guard = locks.lock("n").expect("it is free");
    server.kill();
    events.first("unreachable");
    events.first("lost");
    lost(guard.release());
    for event in events.all() {
        assert!(!event.text.contains("s3cret"), "{}", event.text);
    }
}
