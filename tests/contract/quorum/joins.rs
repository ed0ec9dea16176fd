//! Nodes without a vote that join a lease later.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Builder, Event, EventKind, LockGuard};
use leasehold_simulator::{LinkFault, Topology};

use super::{HOUR, Nodes, locked_on_all, locking, missing};
use crate::matrix::{Subject, subject_bodies};
use crate::redis::{Redis, fence_of};
use crate::subject::Kind;
use crate::world::{Locks, World, locked, ms, secs};

pub(crate) const BODIES: Subject = (
    "quorum::joins",
    &[Topology::Quorum],
    subject_bodies![
        a_node_that_paused_during_the_grant_joins_and_another_may_fail,
        a_node_at_a_long_round_trip_gets_a_vote_of_each_lock,
        a_node_at_a_long_round_trip_gets_a_vote_of_a_lock_that_was_waited_for,
        leases_outlive_a_rolling_restart,
        every_kind_of_lock_is_joined_with_its_fence,
        a_node_from_which_the_lock_was_taken_does_not_join,
        a_forced_release_ends_a_lease_that_nodes_are_about_to_join,
        the_listener_learns_which_nodes_have_no_vote,
    ],
);

const LEASE: Duration = secs(6);

/// Returns a manager that has a connection to each node.
#[track_caller]
fn connected(world: &World, change: impl FnOnce(Builder) -> Builder) -> Locks {
    let locks = world.build(|it| change(it.lease(LEASE)));
    drop(locked_on_all(world, &locks.mutex("first")));
    locks
}

/// Locks some names at two nodes.
fn locked_names(locks: &Locks, count: usize) -> Vec<LockGuard> {
    let lock = |number| locks.lock(format!("n{number}")).expect("two nodes answer");
    (0..count).map(lock).collect()
}

/// Blocks until all nodes vote for these locks: a node joins with a renewal, and votes after the next one.
#[track_caller]
fn wait_until_voted(world: &World, guards: &[LockGuard]) {
    world.until("all nodes vote", || {
        guards.iter().all(|guard| guard.missing_nodes().is_empty())
    });
}

/// Checks that the locks outlive the failure of another node for longer than two leases.
#[track_caller]
fn assert_outlive(nodes: &Nodes, locks: &Locks, guards: &[LockGuard]) {
    nodes.pause(&[0]);
    nodes.world.pass(LEASE * 2);
    for guard in guards {
        guard.check().expect("two nodes have it");
    }
    assert_eq!(locks.stats().lost(), 0);
    nodes.resume(&[0]);
}

fn a_node_that_paused_during_the_grant_joins_and_another_may_fail(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = connected(world, |it| it);
    nodes.pause(&[2]);
    let guards = locked_names(&locks, 20);
    nodes.resume(&[2]);
    wait_until_voted(world, &guards);
    assert_outlive(&nodes, &locks, &guards);
    drop(guards);
    world.until("all is released", || {
        let is_free = |node: &Redis| node.ask::<Vec<String>>(&["KEYS", "n*"]).is_empty();
        nodes.each.iter().all(is_free)
    });
}

fn a_node_at_a_long_round_trip_gets_a_vote_of_each_lock(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = connected(world, |it| it.node_timeout(secs(1)));
    locks.strike_at(&[2], LinkFault::Late(ms(80)));
    let guards = locked_names(&locks, 20);
    wait_until_voted(world, &guards);
    assert_outlive(&nodes, &locks, &guards);
}

/// A waiter asks more than once, so several answers of the slow node are late.
fn a_node_at_a_long_round_trip_gets_a_vote_of_a_lock_that_was_waited_for(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = connected(world, |it| it.node_timeout(secs(1)));
    let holder = connected(world, |it| it);
    let names = ["n0", "n1", "n2", "n3", "n4"];
    let held = names.map(|name| locked_on_all(world, &holder.mutex(name)));
    locks.strike_at(&[2], LinkFault::Late(ms(80)));
    let waiting = names.map(|name| locking(&locks, locks.mutex(name)));
    for name in names {
        nodes.wait_until_waiting(name);
    }
    drop(held);
    let guards = waiting.map(|waiter| waiter.end().expect("two nodes answer"));
    wait_until_voted(world, &guards);
    assert_outlive(&nodes, &locks, &guards);
}

/// All nodes are restarted without data, one after another. Each is waited for until it has all locks.
fn leases_outlive_a_rolling_restart(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = connected(world, |it| it.restart_delay(LEASE));
    let guards = locked_names(&locks, 20);
    // A node that answers late may lack a lock. The restart of another one would end this lock.
    wait_until_voted(world, &guards);
    for node in nodes.all() {
        nodes.restart_empty(&[node]);
        world.until("the node has the locks", || {
            let has = |guard: &LockGuard| {
                let holder = nodes.each[node].get(guard.name());
                holder.as_deref() == Some(guard.owner())
            };
            guards.iter().all(has)
        });
        wait_until_voted(world, &guards);
    }
    for guard in guards {
        guard.release().expect("it is held");
    }
    assert_eq!(locks.stats().lost(), 0);
}

fn every_kind_of_lock_is_joined_with_its_fence(world: &World) {
    let nodes = Nodes::new(world, 3);
    // The record is raised however far the node's clock is behind.
    nodes.set_clocks(&[2], HOUR, true);
    let locks = connected(world, |it| it);
    for kind in [
        Kind::Mutex,
        Kind::Reentrant,
        Kind::Reader,
        Kind::Writer,
        Kind::Multi,
    ] {
        let name = kind.name();
        nodes.pause(&[2]);
        let held = kind.of(&locks, name).hold();
        nodes.resume(&[2]);
        let late = &nodes.each[2];
        // The node also grants the late request, and takes the fence from its own clock.
        let record = |node: &Redis| node.ask::<Option<u64>>(&["GET", &fence_of(name)]);
        world.until("the node has joined", || {
            late.exists(name) && record(late) >= record(&nodes.each[0])
        });
        held.release();
        nodes.wait_until_free_everywhere(name);
    }
}

fn a_node_from_which_the_lock_was_taken_does_not_join(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = connected(world, |it| it);
    let guard = locked_on_all(world, &locks.mutex("n"));
    nodes.delete(&[0], "n");
    // Long enough for several renewals, which ask each node that lacks the lock whether it joins.
    world.pass(LEASE * 2);
    guard.check().expect("two nodes have it");
    assert_eq!(nodes.holders("n")[0], None, "it has joined");
    assert_eq!(missing(&guard), [0]);
}

/// Two nodes miss the lock, and are asked to join again and again.
fn a_forced_release_ends_a_lease_that_nodes_are_about_to_join(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = connected(world, |it| it);
    let (operator, other) = (world.manager(), world.manager());
    for round in 0..3 {
        let name = format!("n{round}");
        nodes.pause(&[3, 4]);
        let guard = locks.lock(&name).expect("three nodes answer");
        nodes.resume(&[3, 4]);
        let owner = guard.owner().to_owned();
        assert!(operator.force_release(&name, &owner).expect("they answer"));
        world.until("the holder learns of it", || guard.check().is_err());
        let next = other.try_lock_for(&name, secs(60)).expect("they answer");
        assert!(next.expect("it is free").fence() > guard.fence());
    }
}

fn the_listener_learns_which_nodes_have_no_vote(world: &World) {
    let nodes = Nodes::new(world, 3);
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let locks = connected(world, |it| {
        it.listener(move |event: &Event<'_>| {
            if let EventKind::LacksVotes { nodes, .. } = &event.kind {
                if event.name.as_deref() == Some("n") {
                    let nodes = nodes.iter().map(|node| (**node).to_owned());
                    locked(&listener).push(nodes.collect::<Vec<_>>());
                }
            }
        })
    });
    let guard = locked_on_all(world, &locks.mutex("n"));
    nodes.delete(&[1], "n");
    world.until("it is told", || !locked(&told).is_empty());
    world.pass(LEASE);
    guard.release().expect("two nodes have it");
    let told = locked(&told).clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(matches!(&told[0][..], [node] if node.ends_with("/1")));
}
