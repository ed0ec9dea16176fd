//! The events that a listener receives, and listeners that block or call back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::{Builder, Connection, Event, EventKind, LeaseState, LostCause};
use leasehold_simulator::{LinkFault, Role, Topology};

use crate::matrix::Capability::Always;
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::subject::{Kind, lost};
use crate::world::{Fault, Locks, World, locked, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    Always,
    bodies![
        each_turn_has_its_events_in_order,
        each_loss_is_one_event_with_its_cause,
        silent_servers_are_told_of_with_the_loss_and_their_recovery,
        a_listener_that_blocks_for_ever_delays_no_lock,
        a_listener_may_use_the_locks_of_its_manager,
    ],
)];

pub(crate) const BODIES_OF_ONE: Subject = (
    "events",
    &[Topology::Single],
    subject_bodies![
        threads_that_pass_a_lock_on_have_events,
        a_release_after_the_quantum_hands_the_lock_over,
        a_writer_that_becomes_a_reader_has_events,
        a_long_hold_and_a_long_wait_are_warned_of,
        a_wait_of_a_minute_is_warned_of_by_default,
        a_renewal_that_is_overdue_again_is_told_of_in_time,
        the_value_of_another_program_is_shown_nowhere,
        a_broken_subscription_and_its_recovery_are_told,
    ],
);

pub(crate) const BODIES_OF_NODES: Subject = (
    "events_of_a_quorum",
    &[Topology::Quorum],
    subject_bodies![each_node_and_the_majority_have_events],
);

const LONG: Duration = secs(600);

/// An event that a listener received.
#[derive(Clone, Debug)]
struct Told {
    what: &'static str,
    /// The wait or the hold.
    length: Option<Duration>,
    connection: Option<Connection>,
    node: Option<String>,
    cause: Option<LostCause>,
    /// The event as `Display` and `Debug` show it.
    text: String,
}

impl Told {
    fn new(event: &Event<'_>) -> Self {
        let (connection, node) = match &event.kind {
            EventKind::Unreachable {
                connection, node, ..
            }
            | EventKind::Recovered {
                connection, node, ..
            } => (Some(*connection), node.as_deref().map(str::to_owned)),
            _ => (None, None),
        };
        Self {
            what: event.kind.as_str(),
            length: match &event.kind {
                EventKind::Acquired { waited, .. }
                | EventKind::PassedOn { waited, .. }
                | EventKind::WaitsLong { waited, .. } => Some(*waited),
                EventKind::Released { held, .. } | EventKind::HeldLong { held, .. } => Some(*held),
                _ => None,
            },
            connection,
            node,
            cause: match &event.kind {
                EventKind::Lost { cause, .. } => Some(*cause),
                _ => None,
            },
            text: format!("{event} {event:?}"),
        }
    }

    #[track_caller]
    fn is_about(&self, owner: &str, fence: u64) {
        for part in [owner, &fence.to_string()] {
            assert!(self.text.contains(part), "{part}: {self:?}");
        }
    }
}

/// A manager, and the events that it has told.
struct Teller {
    locks: Locks,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Teller {
    fn new(world: &World, change: impl FnOnce(Builder) -> Builder) -> Self {
        let told = Arc::<Mutex<Vec<Told>>>::default();
        let log = Arc::clone(&told);
        let listener = move |event: &Event<'_>| locked(&log).push(Told::new(event));
        let locks = world.build(|it| change(it).listener(listener));
        Self { locks, told }
    }

    fn all(&self) -> Vec<Told> {
        locked(&self.told).clone()
    }

    /// Returns the kinds of the events so far, without those of renewals and connections.
    fn kinds(&self) -> Vec<&'static str> {
        let left_out = [
            "renewed",
            "at_risk",
            "lacks_votes",
            "unreachable",
            "recovered",
        ];
        let all = self.all().into_iter().map(|told| told.what);
        all.filter(|what| !left_out.contains(what)).collect()
    }

    /// Blocks until the nth event of a kind, and returns it.
    #[track_caller]
    fn nth(&self, what: &str, n: usize) -> Told {
        let mut found = None;
        self.locks.world().until(what, || {
            let all = self.all().into_iter();
            found = all.filter(|told| told.what == what).nth(n - 1);
            found.is_some()
        });
        found.expect("it was waited for")
    }
}

#[track_caller]
fn is_about(world: &World, length: Option<Duration>, expected: Duration) {
    let length = length.expect("it has one");
    assert!(
        length >= expected && length <= world.within(expected),
        "{length:?}"
    );
}

fn each_turn_has_its_events_in_order(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("turns"));
    let [giver, taker] = [(); 2].map(|()| Teller::new(world, |it| it.lease(LONG)));
    let guard = kind.of(&giver.locks, &name).lock().expect("it is free");
    let (owner, fence) = (guard.lease().owner().to_owned(), guard.fence());
    giver.nth("acquired", 1).is_about(&owner, fence);
    let waiter = kind.rival().of(&taker.locks, &name).locking();
    redis.wait_until_queued(&name, 1);
    assert!(
        taker.nth("contended", 1).text.contains(&owner),
        "the holder"
    );
    world.pass(secs(5));
    guard.release().expect("it was held until now");
    let next = waiter.locked();
    world.pass(secs(2));
    waiter.release();

    if world.topology() != Topology::Quorum {
        assert!(giver.nth("handed_over", 1).text.contains(&owner));
    }
    let released = giver.nth("released", 1);
    released.is_about(&owner, fence);
    is_about(world, released.length, secs(5));
    let acquired = taker.nth("acquired", 1);
    assert!(acquired.text.contains(&next.to_string()), "{acquired:?}");
    assert!(acquired.length.is_some_and(|waited| waited >= secs(5)));
    is_about(world, taker.nth("released", 1).length, secs(2));
    assert_eq!(taker.kinds(), ["contended", "acquired", "released"]);
    // A node of a quorum may hand its vote over.
    let mut kinds = giver.kinds();
    if world.topology() == Topology::Quorum {
        kinds.retain(|what| *what != "handed_over");
        kinds.push("handed_over");
    }
    assert_eq!(kinds, ["acquired", "released", "handed_over"]);
}

fn each_loss_is_one_event_with_its_cause(world: &World, kind: Kind) {
    let redis = world.redis();
    let it = Teller::new(world, |it| it.lease(secs(6)));
    for (n, cause) in [LostCause::Removed, LostCause::MaxHold, LostCause::Expired]
        .into_iter()
        .enumerate()
    {
        let name = world.name(&format!("lost-{n}"));
        let subject = kind.of(&it.locks, &name);
        let subject = match cause {
            LostCause::MaxHold => subject.max_hold(secs(1)),
            LostCause::Expired => subject.unrenewed(),
            _ => subject,
        };
        let guard = subject.lock().expect("it is free");
        if cause == LostCause::Removed {
            for key in kind.keys(&name) {
                let () = redis.ask(&["DEL", &key]);
            }
        }
        let told = it.nth("lost", n + 1);
        assert_eq!(told.cause, Some(cause));
        told.is_about(guard.lease().owner(), guard.fence());
        // The release adds no event.
        lost(guard.release());
    }
    assert!(it.locks.close(secs(30)));
    assert_eq!(it.kinds(), ["acquired", "lost"].repeat(3));
    let stats = it.locks.stats();
    let by_cause = [stats.lost_removed, stats.lost_max_hold, stats.lost_expired];
    assert_eq!((stats.lost(), by_cause), (3, [1; 3]));
}

fn silent_servers_are_told_of_with_the_loss_and_their_recovery(world: &World, kind: Kind) {
    let lease = secs(12);
    let it = Teller::new(world, |it| it.lease(lease));
    let guard = kind.of(&it.locks, "n").lock().expect("it is free");
    let renewed = it.nth("renewed", 1);
    assert!(renewed.text.contains(guard.lease().owner()));
    world.pause_servers();
    it.nth("lost", 1)
        .is_about(guard.lease().owner(), guard.fence());
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    let kinds: Vec<_> = it.all().into_iter().map(|told| told.what).collect();
    let last = |what| kinds.iter().rposition(|it| *it == what).expect(what);
    assert!(last("renewed") < last("at_risk") && last("at_risk") < last("lost"));
    let told = it.nth("unreachable", 1);
    assert_eq!(told.connection, Some(Connection::Renewal));
    assert!(told.node.is_some(), "{told:?}");
    lost(guard.release());
    // The renewal thread still has to release the key.
    world.resume_servers();
    let back = it.nth("recovered", 1);
    assert_eq!(back.connection, Some(Connection::Renewal));
}

/// A lock is handed over, renewed and lost, and the manager is closed.
fn a_listener_that_blocks_for_ever_delays_no_lock(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("blocked"));
    let (go_on, lease) = (world.flag(), secs(6));
    let gate = go_on.clone();
    let locks = world.build(|it| it.lease(lease).listener(move |_: &Event<'_>| gate.wait()));
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let waiter = kind.rival().of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, 1);
    world.pass(2 * lease);
    let released_at = world.now();
    guard.release().expect("it was renewed");
    assert!(waiter.locked_at() <= world.within(released_at));
    waiter.release();
    let guard = kind.of(&locks, "lost").unrenewed().lock();
    let guard = guard.expect("it is free");
    let deadline = world.now() + guard.lease().remaining();
    let loss = world.recv(&guard.on_lost());
    assert_eq!(loss.cause, LostCause::Expired);
    assert!(world.now() <= world.promptly(deadline));
    lost(guard.release());
    assert!(locks.close(secs(30)));
    go_on.raise();
}

fn a_listener_may_use_the_locks_of_its_manager(world: &World, kind: Kind) {
    let name = world.name("calls-back");
    let own = Arc::<Mutex<Option<Locks>>>::default();
    let (tell, told) = unbounded();
    let (theirs, watched) = (Arc::clone(&own), name.clone());
    let locks = world.build(|it| {
        it.listener(move |event: &Event<'_>| {
            let is_watched = event
                .name
                .as_ref()
                .is_some_and(|name| name.starts_with(&watched));
            let locks = locked(&theirs).clone();
            if let Some(locks) = locks.filter(|_| is_watched && event.kind.as_str() == "acquired") {
                // The lock whose event this is, and another one.
                let held = kind.rival().of(&locks, &watched).try_lock();
                let other = locks.lock("other").map(drop);
                tell.send((held.map(|guard| guard.is_none()), other)).ok();
            }
        })
    });
    *locked(&own) = Some(locks.clone());
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let (is_held, other) = world.recv(&told);
    assert!(is_held.expect("Redis replies"));
    other.expect("it is free");
    guard.release().expect("it was held until now");
    // The listener holds the manager, which holds the listener.
    locked(&own).take();
}

fn threads_that_pass_a_lock_on_have_events(world: &World) {
    let it = Teller::new(world, |it| it.quantum(secs(60)));
    let first = it.locks.lock("n").expect("it is free");
    let of = || Kind::Mutex.of(&it.locks, "n");
    // The second waiter makes the first one ask for a block of fences, so that it can pass the lock on.
    let waiting = [(); 2].map(|()| of().locking_asleep());
    it.nth("contended", 2);
    world.pass(secs(1));
    first.release().expect("it was held until now");
    for next in waiting {
        next.locked();
        next.release();
    }
    it.nth("released", 3);
    let expected = [
        "acquired",
        "contended",
        "contended",
        "released",
        "acquired",
        "released",
        "passed_on",
        "released",
    ];
    assert_eq!(it.kinds(), expected);
    for waited in [it.nth("acquired", 2), it.nth("passed_on", 1)] {
        is_about(world, waited.length, secs(1));
    }
}

fn a_release_after_the_quantum_hands_the_lock_over(world: &World) {
    let one = Teller::new(world, |it| it.quantum(ms(1)));
    let other = world.manager();
    let first = one.locks.lock("n").expect("it is free");
    let theirs = Kind::Mutex.of(&other, "n").locking();
    world.redis().wait_until_queued("n", 1);
    let ours = Kind::Mutex.of(&one.locks, "n").locking_asleep();
    world.pass(ms(2));
    first.release().expect("it was held until now");
    theirs.locked();
    theirs.release();
    ours.locked();
    ours.release();
    one.nth("released", 2);
    let expected = [
        "acquired",
        "contended",
        "released",
        "handed_over",
        "acquired",
        "released",
    ];
    assert_eq!(one.kinds(), expected, "the thread waits once");
}

fn a_writer_that_becomes_a_reader_has_events(world: &World) {
    let it = Teller::new(world, |it| it);
    let rwlock = it.locks.rwlock("n");
    let writer = rwlock.write().expect("it is free");
    let reader = writer.downgrade().expect("it was held");
    let beside = rwlock.read().expect("others read");
    let fence = beside.fence();
    drop((reader, beside));
    it.nth("released", 3);
    let kinds = it.kinds();
    assert_eq!(
        kinds[..4],
        ["acquired", "released", "acquired", "passed_on"]
    );
    let told = it.nth("passed_on", 1).text;
    assert!(told.contains(&fence.to_string()), "{told}");
}

fn a_long_hold_and_a_long_wait_are_warned_of(world: &World) {
    let limit = secs(3);
    let warned = || {
        Teller::new(world, |it| {
            it.warn_after(Some(limit)).warn_wait_after(Some(limit))
        })
    };
    let (one, other) = (warned(), warned());
    drop(one.locks.lock("short").expect("it is free"));
    let guard = one.locks.lock("n").expect("it is free");
    // A thread of the same process, and another process.
    let of = |it: &Teller| Kind::Mutex.of(&it.locks, "n").locking_asleep();
    let waiting = [of(&other), of(&one)];
    world.pass(2 * limit);
    for it in [&one, &other] {
        let warning = it.nth("waits_long", 1);
        assert!(warning.text.contains(guard.owner()), "{warning:?}");
        assert!(warning.length.is_some_and(|length| length >= limit));
    }
    let warning = one.nth("held_long", 1);
    warning.is_about(guard.owner(), guard.fence());
    is_about(world, warning.length, limit);
    guard.release().expect("it was held until now");
    for waiting in waiting {
        waiting.locked();
        waiting.release();
    }
    let all = [one.kinds(), other.kinds()].concat();
    let count = |what| all.iter().filter(|it| **it == what).count();
    assert_eq!((count("held_long"), count("waits_long")), (1, 2));
    assert_eq!(one.locks.stats().held_long, 1);
}

fn a_wait_of_a_minute_is_warned_of_by_default(world: &World) {
    let it = Teller::new(world, |it| it);
    let held = world.manager().lock("n").expect("it is free");
    let waiting = Kind::Mutex.of(&it.locks, "n").locking_asleep();
    world.pass(secs(50));
    assert!(!it.kinds().contains(&"waits_long"));
    world.pass(secs(15));
    let warning = it.nth("waits_long", 1);
    assert!(warning.text.contains(held.owner()), "{warning:?}");
    // A long hold is no fault.
    assert_eq!(it.locks.stats().held_long, 0);
    held.release().expect("it was held until now");
    waiting.locked();
    waiting.release();
}

/// The first renewal is confirmed when it is overdue, and the next one is not. It becomes overdue before the deadline that
/// the lease had then.
fn a_renewal_that_is_overdue_again_is_told_of_in_time(world: &World) {
    let lease = secs(12);
    let it = Teller::new(world, |it| it.lease(lease));
    let guard = it.locks.lock("n").expect("it is free");
    world.pass(secs(3));
    world.pause_servers();
    it.nth("at_risk", 1);
    world.resume_servers();
    it.nth("renewed", 1);
    let half = guard.remaining().saturating_sub(lease / 2);
    let again_at = world.now() + half + lease / 100 + ms(2);
    world.pause_servers();
    world.pass_until(again_at.saturating_sub(ms(100)));
    let count = || {
        let all = it.all().into_iter();
        all.filter(|told| told.what == "at_risk").count()
    };
    assert_eq!(count(), 1);
    it.nth("at_risk", 2);
    assert!(world.now() <= world.within(again_at));
    world.resume_servers();
}

/// The value may be a secret, such as the number of a card. Only `inspect` returns it. The log has the text of the events.
fn the_value_of_another_program_is_shown_nowhere(world: &World) {
    let value = "4111 1111";
    let shown = "a value of another client (9 characters)";
    let it = Teller::new(world, |it| it);
    let () = world.redis().ask(&["SET", "n", value]);
    let timeout = it.locks.with_lock("n", secs(2), |_| ());
    let timeout = timeout.expect_err("it is held").to_string();
    for text in [timeout, it.nth("contended", 1).text] {
        assert!(text.contains(shown) && !text.contains(value), "{text}");
    }
    let seen = it.locks.inspect("n").expect("Redis replies");
    let seen = seen.expect("it is held");
    assert_eq!(seen.holders[0].owner, value);
    assert!(!format!("{seen:?}").contains(value), "{seen:?}");
}

fn a_broken_subscription_and_its_recovery_are_told(world: &World) {
    let it = Teller::new(world, |it| it);
    let held = Kind::Mutex.of(&world.manager(), "n").hold();
    let waiting = Kind::Mutex.of(&it.locks, "n").locking();
    world.redis().wait_until_queued("n", 1);
    it.locks.strike_on(Role::Listener, LinkFault::Close);
    let broken = it.nth("unreachable", 1);
    assert_eq!(broken.connection, Some(Connection::Wakeup));
    it.locks.heal();
    let back = it.nth("recovered", 1);
    assert_eq!(back.connection, Some(Connection::Wakeup));
    assert_eq!(back.node, broken.node);
    held.release();
    waiting.locked();
    waiting.release();
}

/// One node stops, and then another: the last one is no majority.
fn each_node_and_the_majority_have_events(world: &World) {
    world.make_nodes(3);
    let it = Teller::new(world, |it| it.lease(secs(6)));
    let kept = it.locks.lock("kept").expect("it is free");
    let held = Kind::Mutex.of(&world.manager(), "n").lease(LONG).hold();
    let waiting = Kind::Mutex.of(&it.locks, "n").locking();
    // Only a wait that has begun outlives an outage.
    world.redis().wait_until_queued("n", 1);
    let wait_for = |what: &str, server: Option<usize>| {
        for connection in [Connection::Renewal, Connection::Wakeup] {
            world.until(what, || {
                let all = it.all();
                let is_of = |told: &&Told| match (&told.node, server) {
                    (Some(node), Some(server)) => node.ends_with(&format!("/{server}")),
                    (node, server) => node.is_some() == server.is_some(),
                };
                let mut of = all
                    .iter()
                    .filter(|told| told.connection == Some(connection));
                of.rfind(is_of).is_some_and(|told| told.what == what)
            });
        }
    };
    world.fault(Fault::StopServer(2));
    wait_for("unreachable", Some(2));
    let all = it.all();
    let mut of_nodes = all.iter().filter(|told| told.connection.is_some());
    assert!(of_nodes.all(|told| told.node.is_some()), "{all:?}");
    world.fault(Fault::StopServer(1));
    wait_for("unreachable", Some(1));
    wait_for("unreachable", None);
    let mut renewed = Vec::new();
    for server in [1, 2] {
        world.fault(Fault::StartServer {
            server,
            has_data: true,
        });
        // Without a lease, nothing is renewed, so no node is asked.
        world.until("there is a lease to renew", || {
            let more = it.locks.try_lock(format!("more-{server}"));
            renewed.extend(more.ok().flatten());
            renewed.len() == server
        });
        wait_for("recovered", Some(server));
    }
    wait_for("recovered", None);
    drop(kept);
    held.release();
    waiting.locked();
    waiting.release();
}
