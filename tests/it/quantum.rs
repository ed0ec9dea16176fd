//! The quantum of a manager follows the hand-overs to its process.

use std::time::Duration;

use crate::support::{
    Fault, Proxy, Server, build, locking, manager, ms, patient, shared, wait_until,
};

/// The bounds of a quantum that the program does not set.
const SHORTEST: Duration = ms(5);
const LONGEST: Duration = ms(50);

#[test]
fn the_quantum_rises_on_a_slow_link_and_falls_on_a_fast_one() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (locks, other) = (build(patient(&proxy.url())), manager(&server.url()));
    let hand_over = || {
        let held = other.lock("n").expect("it becomes free");
        let waiter = locking(&locks.mutex("n"));
        server.raw().wait_until_queued("n", 1);
        held.release().expect("it was held until now");
        let guard = waiter.end().expect("it becomes free");
        guard.release().expect("it was held until now");
        let quantum = locks.stats().quantum;
        assert!((SHORTEST..=LONGEST).contains(&quantum), "{quantum:?}");
        quantum
    };
    // Two round trips without any delay take less than 2.5 ms, unless the machine is busy again and again.
    wait_until("the fast link is measured", || hand_over() < LONGEST);
    // A round trip takes 20 ms now, so no pickup is faster.
    proxy.strike_all(Fault::Late(10));
    wait_until("the slow link is measured", || hand_over() == LONGEST);
    proxy.heal();
    wait_until("the fast link is measured again", || hand_over() < LONGEST);
}

#[test]
fn a_manager_shows_its_quantum_from_the_start() {
    let redis = shared();
    for (builder, quantum) in [
        // Nothing has been measured yet.
        (patient(redis.url()), ms(10)),
        (patient(redis.url()).quantum(ms(7)), ms(7)),
        (patient(redis.url()).poller_gap(ms(7)), LONGEST),
        (patient(redis.url()).poller_gap(ms(7)).quantum(ms(9)), ms(9)),
    ] {
        let locks = build(builder);
        assert_eq!(locks.stats().quantum, quantum);
    }
}
