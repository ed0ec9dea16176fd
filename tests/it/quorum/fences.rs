//! Fences rise from guard to guard, although no node knows all guards and no two clocks agree.

use leasehold::{LockGuard, LockManager};

use super::partitions::Proxied;
use super::wait_until_waiting;
use crate::support::{
    Child, Fault, Nodes, Raw, Server, build, fence_of, locking_asleep, secs, wait_until,
};

const HOUR: i64 = 60 * 60;

/// Returns the record of the last fence at a node, and how far it is ahead of the node's clock, in µs.
fn record(node: &Raw, name: &str) -> (u64, u64) {
    let last: Option<u64> = node.ask(&["GET", &fence_of(name)]);
    let (whole, rest): (u64, u64) = node.ask(&["TIME"]);
    let last = last.unwrap_or(0);
    (last, last.saturating_sub(whole * 1_000_000 + rest))
}

/// The processes have clocks that are an hour ahead, an hour behind, and right.
#[test]
fn fences_rise_from_process_to_process_with_wrong_clocks() {
    let nodes = Nodes::start(5);
    let url = nodes.url();
    let locks = nodes.manager();
    let mut ahead = Child::start_at(&url, "", HOUR);
    let mut behind = Child::start_at(&url, "", -HOUR);
    let mut last = 0;
    let mut rises = |fence: u64| {
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    for _ in 0..5 {
        for child in [&mut ahead, &mut behind] {
            let guard = locks.lock("n").expect("it is free");
            rises(guard.fence());
            guard.release().expect("it is held");
            rises(child.lock("n"));
            assert_eq!(child.ask("release n"), "released");
        }
        rises(behind.lock("n"));
        assert_eq!(behind.ask("release n"), "released");
        rises(ahead.lock("n"));
        assert_eq!(ahead.ask("release n"), "released");
    }
    // A node follows a wrong clock by at most a second.
    for node in nodes.raws() {
        let (record, ahead) = record(&node, "n");
        assert!(ahead <= 1_000_000, "{record} is {ahead} µs ahead");
    }
}

/// The nodes have different clocks, and each manager reaches three of them.
#[test]
fn fences_rise_from_majority_to_majority_with_different_clocks() {
    let nodes = Nodes::start_each(5, Server::with_clock);
    for (node, ahead) in nodes.servers().iter().zip([0, HOUR, -HOUR, 10, -10]) {
        node.set_clock_ahead(ahead);
    }
    let managers: Vec<_> = [[3, 4], [0, 1], [1, 3], [0, 4], [2, 3]]
        .into_iter()
        .map(|cut| {
            let proxied = Proxied::new(&nodes);
            proxied.cut(&cut, Fault::Close);
            proxied
        })
        .collect();
    let mut last = 0;
    for _ in 0..4 {
        for proxied in &managers {
            let guard = proxied.locks.lock("n").expect("three nodes are there");
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            guard.release().expect("it is held");
        }
    }
}

/// Makes three threads of `locks` wait for a lock that another manager holds, and lets them take turns. Returns the last
/// guard.
fn turns_in_memory(nodes: &Nodes, locks: &LockManager) -> LockGuard {
    let first = nodes.manager().lock("n").expect("it is free");
    let waiters: Vec<_> = (0..3).map(|_| locking_asleep(&locks.mutex("n"))).collect();
    wait_until_waiting(nodes, "n");
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

#[test]
fn threads_of_a_process_have_rising_fences_and_give_the_unused_ones_back() {
    let nodes = Nodes::start(5);
    let locks = build(nodes.builder().quantum(secs(3600)));
    let guard = turns_in_memory(&nodes, &locks);
    let last = guard.fence();
    // The record of a node reaches a second further, which is far more than the threads used.
    let records = || -> Vec<u64> {
        let raws = nodes.raws();
        raws.iter().map(|node| record(node, "n").0).collect()
    };
    let reserved = records();
    assert!(
        reserved.iter().any(|end| *end > last),
        "no block was reserved"
    );
    guard.release().expect("it is held");
    // A node may execute the release after a majority has answered it. A node whose vote came late keeps the rest.
    wait_until("a majority took the rest back", || {
        let ends = records().into_iter().zip(&reserved);
        let taken = ends.filter(|(now, before)| now < *before || **before <= last);
        taken.count() > nodes.servers().len() / 2
    });
    let next = nodes.manager().lock("n").expect("it is free");
    assert!(next.fence() > last, "{} after {last}", next.fence());
}
