//! Other clients that lock a majority of the same five servers, each of them as on one server (Redlock).

use std::ops::Range;

use leasehold::{LockGuard, Mutex};

use super::{Foreign, LONG, held_everywhere, value};
use crate::support::{
    Kind, Nodes, PATIENCE, Raw, is_unreachable, manager, ms, name, secs, wait_in_vain, wait_until,
};

/// Calls `tests!` with the names of the tests of a quorum, and with the function that starts its servers.
macro_rules! each_on_a_quorum {
    ($tests:ident) => {
        mod on_five_nodes {
            $tests! { on_five_nodes:
                ours_excludes_theirs_on_a_quorum
                theirs_excludes_ours
                a_majority_excludes_the_other_side_and_a_minority_does_not
                theirs_is_not_touched_while_ours_waits
                theirs_that_expires_is_taken_over_and_cannot_come_back
                both_sides_together_lose_no_update
            }
        }

        mod losing_two_of_five_nodes {
            $tests! { losing_two_of_five_nodes:
                ours_keeps_its_lock_and_excludes_theirs
                theirs_keeps_its_lock_and_excludes_ours
            }
        }
    };
}

pub(super) use each_on_a_quorum;

pub(super) fn on_five_nodes(test: fn(&Raw)) {
    test(&Nodes::start(5).raw());
}

/// Runs a test on five nodes, two of which it kills.
pub(super) fn losing_two_of_five_nodes(test: fn(&Nodes)) {
    test(&Nodes::start(5));
}

/// Locks on every node. A busy machine may be late with the answer of a node, and then its vote does not count.
#[track_caller]
fn locked_on_all(mutex: &Mutex) -> LockGuard {
    let mut guard = None;
    wait_until("each node grants it", || {
        let locked = match mutex.lock() {
            Ok(locked) => locked,
            // Too few nodes vote yet.
            Err(error) if is_unreachable(&error) => return false,
            Err(error) => panic!("{error:?}"),
        };
        guard = Some(locked).filter(|locked| locked.missing_nodes().is_empty());
        guard.is_some()
    });
    guard.expect("each node granted it")
}

fn kill_two(nodes: &Nodes) {
    nodes.servers()[1].kill();
    nodes.servers()[3].kill();
}

pub(super) fn ours_excludes_theirs_on_a_quorum<F: Foreign>(redis: &Raw) {
    let name = name("ours");
    let mut foreign = F::new(redis, &name);
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    assert!(!foreign.try_acquire(Some(secs(1))));
    // A waiter marks the value on each node.
    let waiter = Kind::Mutex.of(&manager(redis.url()), &name).locking();
    redis.wait_until_queued(&name, 1);
    assert!(!foreign.try_acquire(Some(secs(1))));
    guard.release().expect("it was held until now");
    waiter.locked();
    assert!(!foreign.try_acquire(Some(secs(1))));
    waiter.release();
    foreign.acquire(LONG);
    assert!(locks.try_lock(&name).expect("the nodes reply").is_none());
    assert!(foreign.release());
}

/// Clients that know only some of the nodes hold these for their side.
pub(super) fn a_majority_excludes_the_other_side_and_a_minority_does_not<F: Foreign>(redis: &Raw) {
    let name = name("part");
    let urls: Vec<_> = redis.url().split(' ').collect();
    let part = |nodes: Range<usize>| Raw::new(&urls[nodes].join(" "));
    let locks = manager(redis.url());
    let mut foreign = F::new(redis, &name);
    // They have three nodes.
    let three = part(0..3);
    let mut theirs = F::new(&three, &name);
    theirs.acquire(LONG);
    let before = held_everywhere(&mut theirs, &three, &name);
    assert!(locks.try_lock(&name).expect("the nodes reply").is_none());
    wait_in_vain(|| locks.try_lock_for(&name, ms(300)));
    assert_eq!(value(&three, &name), before, "its value was changed");
    assert!(theirs.release());
    // They have two nodes, and ours gets the three others.
    let two = part(3..5);
    let mut theirs = F::new(&two, &name);
    theirs.acquire(LONG);
    let before = held_everywhere(&mut theirs, &two, &name);
    let guard = locks.try_lock_for(&name, PATIENCE);
    let guard = guard.expect("the nodes reply").expect("three are free");
    assert!(!foreign.try_acquire(Some(secs(1))));
    assert_eq!(value(&two, &name), before, "its value was changed");
    guard.release().expect("it was held until now");
    assert_eq!(value(&two, &name), before, "its value was changed");
    assert!(theirs.release());
    // Ours has two nodes, and they get the three others.
    let few = manager(part(0..2).url());
    let guard = few.lock(&name).expect("it becomes free");
    foreign.acquire(LONG);
    assert!(locks.try_lock(&name).expect("the nodes reply").is_none());
    guard.check().expect("it is held");
    assert!(foreign.release());
    guard.release().expect("it was held until now");
}

pub(super) fn ours_keeps_its_lock_and_excludes_theirs<F: Foreign>(nodes: &Nodes) {
    let redis = nodes.raw();
    let name = name("ours");
    let mut foreign = F::new(&redis, &name);
    let guard = locked_on_all(&nodes.manager().mutex(&name).lease(secs(9)));
    assert!(!foreign.try_acquire(Some(secs(1))));
    kill_two(nodes);
    // One of their clients loses two connections. The other cannot open them.
    for mut foreign in [foreign, F::new(&redis, &name)] {
        assert!(!foreign.try_acquire(Some(secs(1))));
    }
    guard.check().expect("three nodes have it");
    guard.release().expect("it was held until now");
    let mut foreign = F::new(&redis, &name);
    foreign.acquire(LONG);
    assert!(foreign.release());
}

pub(super) fn theirs_keeps_its_lock_and_excludes_ours<F: Foreign>(nodes: &Nodes) {
    let redis = nodes.raw();
    let name = name("theirs");
    let locks = nodes.manager();
    let mut foreign = F::new(&redis, &name);
    foreign.acquire(LONG);
    held_everywhere(&mut foreign, &redis, &name);
    assert!(locks.try_lock(&name).expect("the nodes reply").is_none());
    kill_two(nodes);
    // One of our managers loses two connections. The other cannot open them.
    for locks in [&locks, &nodes.manager()] {
        assert!(locks.try_lock(&name).expect("three reply").is_none());
        wait_in_vain(|| locks.try_lock_for(&name, ms(300)));
    }
    assert!(foreign.extend(LONG));
    assert!(foreign.release());
    let guard = locks.try_lock_for(&name, PATIENCE).expect("three reply");
    drop(guard.expect("it becomes free"));
}
