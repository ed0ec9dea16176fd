//! Multi-locks beside the gap that a contended mutex leaves for clients that poll.

use std::time::Duration;

use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Subject = (
    "gaps",
    &[Topology::Single],
    subject_bodies![
        a_multi_lock_does_not_take_a_name_in_its_gap,
        a_multi_lock_leaves_a_gap_alone_whose_waiter_has_gone,
    ],
);

/// The longest gap.
const GAP: Duration = ms(500);
const NAMES: [&str; 2] = ["n", "{n}:2"];

fn a_multi_lock_does_not_take_a_name_in_its_gap(world: &World) {
    let redis = world.redis();
    let [one, other, sets] = [(); 3].map(|()| world.build(|it| it.poller_gap(GAP).quantum(GAP)));
    let holder = one.lock(NAMES[0]).expect("it is free");
    let mutex = other.mutex(NAMES[0]);
    let clock = world.clone();
    let waiter = other.thread(move || {
        let guard = mutex.lock().expect("it becomes free");
        (clock.now(), guard.detach())
    });
    redis.wait_until_queued(NAMES[0], 1);
    holder.release().expect("it is held");
    let released_at = world.now();
    let none = sets.multi(NAMES).try_lock().expect("Redis replies");
    assert!(none.is_none(), "it has a waiter");
    let set = sets.multi(NAMES);
    let set = sets.thread(move || set.lock().map(drop));
    redis.wait_until_queued(NAMES[0], 2);
    assert!(!redis.exists(NAMES[0]), "the gap is the clients' that poll");
    // No client took the name, so the first waiter has it.
    let (at, claim) = waiter.end();
    assert!(at <= world.within(released_at + GAP));
    assert!(!set.has_ended());
    other
        .adopt(&claim)
        .expect("it is held")
        .release()
        .expect("it is held");
    set.end().expect("it becomes free");
}

/// A withdrawal must not end the gap either: neither that of the only waiter, nor that of a set.
fn a_multi_lock_leaves_a_gap_alone_whose_waiter_has_gone(world: &World) {
    let redis = world.redis();
    let [one, other, sets] = [(); 3].map(|()| world.build(|it| it.poller_gap(GAP).quantum(GAP)));
    let holder = one.lock(NAMES[0]).expect("it is free");
    let (mutex, set) = (other.mutex(NAMES[0]), sets.multi(NAMES));
    let waits = [
        other.thread(move || mutex.try_lock_for(ms(300)).map(|guard| guard.is_some())),
        sets.thread(move || set.try_lock_for(ms(200)).map(|guard| guard.is_some())),
    ];
    redis.wait_until_queued(NAMES[0], 2);
    holder.release().expect("it is held");
    let released_at = world.now();
    for wait in waits {
        assert!(!wait.end().expect("Redis replies"), "it is in its gap");
    }
    redis.wait_until_queued(NAMES[0], 0);
    assert!(world.now() + ms(100) < released_at + GAP);
    assert!(!redis.exists(NAMES[0]), "a withdrawal cut the gap short");
    let none = sets.multi(NAMES).try_lock().expect("Redis replies");
    assert!(none.is_none(), "it is in its gap");
    assert!(!redis.exists(NAMES[0]));
    world.pass_until(released_at + GAP + secs(1));
    let set = sets.multi(NAMES).try_lock().expect("Redis replies");
    assert!(set.is_some(), "the gap is over");
}
