//! Fences rise from guard to guard, although no node knows all guards and no two clocks agree.

use leasehold::LockGuard;
use leasehold_simulator::{LinkFault, Topology};

use super::{HOUR, LONG, Nodes, locking_asleep};
use crate::matrix::{Subject, subject_bodies};
use crate::redis::{Redis, fence_of};
use crate::world::{Locks, World, secs};

pub(crate) const BODIES: Subject = (
    "quorum::fences",
    &[Topology::Quorum],
    subject_bodies![
        fences_rise_from_process_to_process_with_wrong_clocks,
        fences_rise_from_majority_to_majority_with_different_clocks,
        threads_of_a_process_have_rising_fences_and_give_the_unused_ones_back,
    ],
);

/// Returns the record of the last fence at a node, and how far it is ahead of the node's clock, in µs.
fn record(node: &Redis, name: &str) -> (u64, u64) {
    let last: Option<u64> = node.ask(&["GET", &fence_of(name)]);
    let (whole, rest): (u64, u64) = node.ask(&["TIME"]);
    let last = last.unwrap_or(0);
    (last, last.saturating_sub(whole * 1_000_000 + rest))
}

/// The processes have clocks that are an hour ahead, an hour behind, and right.
fn fences_rise_from_process_to_process_with_wrong_clocks(world: &World) {
    let nodes = Nodes::new(world, 5);
    let [right, ahead, behind] = [(); 3].map(|()| world.manager());
    ahead.set_time_of_day(HOUR, false);
    behind.set_time_of_day(HOUR, true);
    let mut last = 0;
    for locks in [&right, &ahead, &right, &behind, &behind, &ahead].repeat(5) {
        let guard = locks.lock("n").expect("it is free");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        guard.release().expect("it is held");
    }
    // A node follows a wrong clock by at most a second.
    for node in &nodes.each {
        let (record, ahead) = record(node, "n");
        assert!(ahead <= 1_000_000, "{record} is {ahead} µs ahead");
    }
}

/// The nodes have different clocks, and each manager reaches three of them.
fn fences_rise_from_majority_to_majority_with_different_clocks(world: &World) {
    let nodes = Nodes::new(world, 5);
    for (node, by, is_back) in [
        (1, HOUR, false),
        (2, HOUR, true),
        (3, secs(10), false),
        (4, secs(10), true),
    ] {
        nodes.set_clocks(&[node], by, is_back);
    }
    let managers = [[3, 4], [0, 1], [1, 3], [0, 4], [2, 3]].map(|cut| {
        let locks = world.build(|it| it.lease(LONG));
        locks.strike_at(&cut, LinkFault::Close);
        locks
    });
    let mut last = 0;
    for _ in 0..4 {
        for locks in &managers {
            let guard = locks.lock("n").expect("three nodes are there");
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            guard.release().expect("it is held");
        }
    }
}

/// Makes three threads of `locks` wait for a lock that another manager holds, and lets them take turns. Returns the last
/// guard.
fn turns_in_memory(nodes: &Nodes, locks: &Locks) -> LockGuard {
    let first = nodes.world.manager().lock("n").expect("it is free");
    let waiters: Vec<_> = (0..3)
        .map(|_| locking_asleep(locks, locks.mutex("n")))
        .collect();
    nodes.wait_until_waiting("n");
    let mut before = first;
    let mut turns = Vec::new();
    for waiter in waiters {
        let fence = before.fence();
        before.release().expect("it is held");
        let guard = waiter.end().expect("it becomes free");
        assert!(guard.fence() > fence, "{} after {fence}", guard.fence());
        before = guard;
        turns.push(before.owner().to_owned());
    }
    // They share one lease, so the lock did not go through the nodes.
    assert_eq!(turns, vec![turns[0].clone(); 3]);
    before
}

fn threads_of_a_process_have_rising_fences_and_give_the_unused_ones_back(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = world.build(|it| it.quantum(secs(3600)));
    let guard = turns_in_memory(&nodes, &locks);
    let last = guard.fence();
    // The record of a node reaches a second further, which is far more than the threads used.
    let records = || -> Vec<u64> {
        let records = nodes.each.iter().map(|node| record(node, "n").0);
        records.collect()
    };
    let reserved = records();
    assert!(
        reserved.iter().any(|end| *end > last),
        "no block was reserved"
    );
    guard.release().expect("it is held");
    // A node may execute the release after a majority has answered it. A node whose vote came late keeps the rest.
    world.until("a majority took the rest back", || {
        let ends = records().into_iter().zip(&reserved);
        let taken = ends.filter(|(now, before)| now < *before || **before <= last);
        taken.count() > nodes.each.len() / 2
    });
    let next = world.manager().lock("n").expect("it is free");
    assert!(next.fence() > last, "{} after {last}", next.fence());
}
