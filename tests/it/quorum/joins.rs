//! Nodes without a vote that join a lease later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{Builder, Event, LockGuard, LockManager};

use super::{holders, locked_on_all, wait_until_waiting};
use crate::support::{
    Fault, Kind, Nodes, Proxy, Raw, Server, build, fence_of, locking, patient, secs, wait_until,
};

const LEASE: Duration = secs(6);
const HOUR: i64 = 60 * 60;

/// Renewals come three times in a lease, and four times as often while votes are missing.
fn renewing(nodes: &Nodes) -> Builder {
    nodes.builder().lease(LEASE)
}

/// Returns a manager that has a connection to each node.
#[track_caller]
fn connected(builder: Builder) -> LockManager {
    let locks = build(builder);
    locked_on_all(&locks.mutex("first"))
        .release()
        .expect("it is held");
    locks
}

/// Blocks until a manager has renewed a lease this many times more.
#[track_caller]
fn wait_for_renewals(locks: &LockManager, count: u64) {
    let until = locks.stats().renewed + count;
    wait_until("it is renewed", || locks.stats().renewed >= until);
}

/// Blocks until a node has all of these locks.
#[track_caller]
fn wait_until_held(guards: &[LockGuard], node: &Raw) {
    wait_until("the node has the locks", || {
        let mut guards = guards.iter();
        guards.all(|guard| {
            node.ask::<Option<String>>(&["GET", guard.name()])
                .as_deref()
                == Some(guard.owner())
        })
    });
}

/// Blocks until all nodes vote for these locks.
#[track_caller]
fn wait_until_voted(guards: &[LockGuard]) {
    wait_until("all nodes vote", || {
        let mut guards = guards.iter();
        guards.all(|guard| guard.missing_nodes().is_empty())
    });
}

/// Checks that the locks outlive this fault for longer than two leases.
#[track_caller]
fn assert_outlive(guards: &[LockGuard], node: &Server) {
    node.pause();
    let begun = Instant::now();
    wait_until("two leases have passed", || {
        for guard in guards {
            guard.check().expect("two nodes have it");
        }
        begun.elapsed() > LEASE * 2
    });
    node.resume();
}

#[test]
fn a_node_that_paused_during_the_grant_joins_and_another_may_fail() {
    let nodes = Nodes::start(3);
    let locks = connected(renewing(&nodes));
    nodes.servers()[2].pause();
    let lock = |number: u32| locks.lock(format!("n{number}")).expect("two nodes answer");
    let guards: Vec<_> = (0..20).map(lock).collect();
    nodes.servers()[2].resume();
    // The manager knows that the node is up.
    drop(locked_on_all(&locks.mutex("beside")));
    wait_until_voted(&guards);
    assert_outlive(&guards, &nodes.servers()[0]);
    assert_eq!(locks.stats().lost(), 0);
    drop(guards);
    wait_until("all is released", || {
        nodes
            .raws()
            .iter()
            .all(|node| node.ask::<Vec<String>>(&["KEYS", "n*"]).is_empty())
    });
}

/// Returns a manager, and the proxy before its third node.
#[track_caller]
fn with_link_to_third(nodes: &Nodes) -> (LockManager, Proxy) {
    let proxy = Proxy::to(&nodes.servers()[2]);
    let mut urls = nodes.urls();
    urls[2] = proxy.url();
    let locks = connected(patient(&urls.join(" ")).lease(LEASE));
    (locks, proxy)
}

#[test]
fn a_node_at_a_long_round_trip_gets_a_vote_of_each_lock() {
    let nodes = Nodes::start(3);
    let (locks, proxy) = with_link_to_third(&nodes);
    proxy.strike_all(Fault::Late(80));
    let lock = |number: u32| locks.lock(format!("n{number}")).expect("two nodes answer");
    let guards: Vec<_> = (0..20).map(lock).collect();
    wait_until_voted(&guards);
    assert_outlive(&guards, &nodes.servers()[0]);
    assert_eq!(locks.stats().lost(), 0);
}

/// A waiter asks more than once, so several answers of the slow node are late.
#[test]
fn a_node_at_a_long_round_trip_gets_a_vote_of_a_lock_that_was_waited_for() {
    let nodes = Nodes::start(3);
    let (locks, proxy) = with_link_to_third(&nodes);
    let holder = connected(nodes.builder());
    let names: Vec<_> = (0..5).map(|number| format!("n{number}")).collect();
    let held: Vec<_> = names
        .iter()
        .map(|name| locked_on_all(&holder.mutex(name)))
        .collect();
    proxy.strike_all(Fault::Late(80));
    let waiting: Vec<_> = names
        .iter()
        .map(|name| locking(&locks.mutex(name)))
        .collect();
    for name in &names {
        wait_until_waiting(&nodes, name);
    }
    drop(held);
    let guards: Vec<_> = waiting
        .into_iter()
        .map(|waiter| waiter.end().expect("two nodes answer"))
        .collect();
    wait_until_voted(&guards);
    assert_outlive(&guards, &nodes.servers()[0]);
    assert_eq!(locks.stats().lost(), 0);
}

/// All nodes are restarted without data, one after another. Each is waited for until it has all locks.
#[test]
fn leases_outlive_a_rolling_restart() {
    let nodes = Nodes::start(3);
    let locks = renewing(&nodes).restart_delay(LEASE).build_unchecked();
    let locks = locks.expect("nothing is sent yet");
    wait_until("the nodes vote", || {
        let locked = locks.lock("first");
        locked.is_ok_and(|guard| guard.missing_nodes().is_empty())
    });
    let lock = |number: u32| locks.lock(format!("n{number}")).expect("the nodes vote");
    let guards: Vec<_> = (0..50).map(lock).collect();
    // A node that answers late may lack a lock. The restart of another one would end this lock.
    wait_until_voted(&guards);
    for (number, node) in nodes.servers().iter().enumerate() {
        node.restart();
        wait_until_held(&guards, &nodes.raws()[number]);
        wait_until_voted(&guards);
    }
    for guard in guards {
        guard.release().expect("it is held");
    }
    assert_eq!(locks.stats().lost(), 0);
}

#[test]
fn every_kind_of_lock_is_joined_with_its_fence() {
    let nodes = Nodes::start_each(3, Server::with_clock);
    // The record is raised however far the node's clock is behind.
    nodes.servers()[2].set_clock_ahead(-HOUR);
    let locks = connected(renewing(&nodes));
    for kind in [
        Kind::Mutex,
        Kind::Reentrant,
        Kind::Reader,
        Kind::Writer,
        Kind::Multi,
    ] {
        let name = kind.name();
        nodes.servers()[2].pause();
        let held = kind.of(&locks, name).hold();
        nodes.servers()[2].resume();
        let late = &nodes.raws()[2];
        // The node also grants the late request, and takes the fence from its own clock.
        let record = |node: &Raw| node.ask::<Option<u64>>(&["GET", &fence_of(name)]);
        wait_until("the node has joined", || {
            late.exists(name) && record(late) >= record(&nodes.raws()[0])
        });
        held.release();
        wait_until("it is free everywhere", || {
            nodes.raws().iter().all(|node| !node.exists(name))
        });
    }
}

#[test]
fn a_node_from_which_the_lock_was_taken_does_not_join() {
    let nodes = Nodes::start(3);
    let locks = connected(renewing(&nodes));
    let guard = locked_on_all(&locks.mutex("n"));
    let _: u32 = nodes.raws()[0].ask(&["DEL", "n"]);
    wait_for_renewals(&locks, 4);
    guard.check().expect("two nodes have it");
    assert_eq!(holders(&nodes, "n")[0], None, "it has joined");
    let missing = guard.missing_nodes();
    assert!(matches!(&missing[..], [node] if nodes.urls()[0].contains(&**node)));
}

/// Of two nodes that miss the lock, one holds it for another client and one is asked to join again and again.
#[test]
fn a_forced_release_ends_a_lease_that_nodes_are_about_to_join() {
    let nodes = Nodes::start(5);
    let locks = connected(renewing(&nodes));
    let (operator, other) = (nodes.manager(), nodes.manager());
    for round in 0..10 {
        let name = format!("n{round}");
        nodes.servers()[3..].iter().for_each(Server::pause);
        let guard = locks.lock(&name).expect("three nodes answer");
        nodes.servers()[3..].iter().for_each(Server::resume);
        let owner = guard.owner().to_owned();
        assert!(operator.force_release(&name, &owner).expect("they answer"));
        wait_until("the holder learns of it", || guard.check().is_err());
        let next = other.try_lock_for(&name, secs(60)).expect("they answer");
        assert!(next.expect("it is free").fence() > guard.fence());
    }
}

#[test]
fn the_listener_learns_which_nodes_have_no_vote() {
    let nodes = Nodes::start(3);
    let told = Arc::new(Mutex::new(Vec::new()));
    let (listener, address) = (Arc::clone(&told), nodes.urls()[1].clone());
    let locks = connected(renewing(&nodes).listener(move |event: &Event<'_>| {
        if let Event::LacksVotes { nodes, .. } = event {
            let mut told = listener.lock().unwrap_or_else(PoisonError::into_inner);
            let nodes = nodes.iter().map(|node| (**node).to_owned());
            told.push(nodes.collect::<Vec<_>>());
        }
    }));
    let guard = locked_on_all(&locks.mutex("n"));
    let _: u32 = nodes.raws()[1].ask(&["DEL", "n"]);
    wait_until("it is told", || {
        !told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    });
    wait_for_renewals(&locks, 2);
    guard.release().expect("two nodes have it");
    let told = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        matches!(&told[0][..], [node] if address.contains(node.as_str())),
        "{told:?}"
    );
}
