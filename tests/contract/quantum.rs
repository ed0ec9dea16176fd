//! The quantum of a manager follows the hand-overs to its process.

use std::time::Duration;

use leasehold_simulator::{LinkFault, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::world::{Locks, World, ms};

pub(crate) const BODIES: Subject = (
    "quantum",
    &[Topology::Single],
    subject_bodies![
        the_quantum_rises_on_a_slow_link_and_falls_on_a_fast_one,
        a_manager_shows_its_quantum_from_the_start,
    ],
);

/// The bounds of a quantum that the program does not set.
const SHORTEST: Duration = ms(5);
const LONGEST: Duration = ms(50);

fn the_quantum_rises_on_a_slow_link_and_falls_on_a_fast_one(world: &World) {
    let (locks, other) = (world.manager(), world.manager());
    let hand_over = || {
        let held = other.lock("n").expect("it becomes free");
        let mutex = locks.mutex("n");
        let waiter = locks.thread(move || drop(mutex.lock().expect("it becomes free")));
        world.redis().wait_until_queued("n", 1);
        held.release().expect("it was held until now");
        waiter.end();
        let quantum = locks.stats().quantum;
        assert!((SHORTEST..=LONGEST).contains(&quantum), "{quantum:?}");
        quantum
    };
    world.until("the fast link is measured", || hand_over() < LONGEST);
    // A round trip takes 20 ms now, so no pickup is faster.
    locks.strike(LinkFault::Late(ms(10)));
    world.until("the slow link is measured", || hand_over() == LONGEST);
    locks.heal();
    world.until("the fast link is measured again", || hand_over() < LONGEST);
}

fn a_manager_shows_its_quantum_from_the_start(world: &World) {
    let shown = |locks: &Locks| locks.stats().quantum;
    // Nothing has been measured yet.
    assert_eq!(shown(&world.manager()), ms(10));
    assert_eq!(shown(&world.build(|it| it.quantum(ms(7)))), ms(7));
    assert_eq!(shown(&world.build(|it| it.poller_gap(ms(7)))), LONGEST);
    let with_both = world.build(|it| it.poller_gap(ms(7)).quantum(ms(9)));
    assert_eq!(shown(&with_both), ms(9));
}
