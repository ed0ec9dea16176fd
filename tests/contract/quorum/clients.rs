//! Clients that die between the writes to the nodes.

use leasehold_simulator::{LinkFault, Topology};

use super::{Nodes, locking};
use crate::matrix::{Subject, subject_bodies};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Subject = (
    "quorum::clients",
    &[Topology::Quorum],
    subject_bodies![a_client_killed_between_two_nodes_delays_others_by_its_lease],
);

/// A client asks two of five nodes, and is killed before its requests reach the others.
fn a_client_killed_between_two_nodes_delays_others_by_its_lease(world: &World) {
    let nodes = Nodes::new(world, 5);
    let lease = secs(4);
    let killed = world.build(|it| it.lease(lease).node_timeout(secs(60)));
    // Its connections are open.
    drop(killed.lock("first").expect("it is free"));
    killed.strike_at(&[2, 3, 4], LinkFault::LoseRequests);
    let locked = locking(&killed, killed.mutex("n"));
    let asked = &nodes.each[..2];
    world.until("two nodes grant it", || {
        asked.iter().all(|node| node.exists("n"))
    });
    killed.kill();
    let left = || asked.iter().map(|node| node.ttl("n").expect("it is there"));
    let free_at = world.now() + left().min().expect("two");
    let other = world.manager();
    // The three other nodes are free.
    let guard = other.lock("n").expect("three nodes are free");
    guard.release().expect("it is held");
    assert!(world.now() < free_at);
    // Without one of them, others wait until the votes of the killed client are over.
    nodes.stop(&[4]);
    let waiter = locking(&other, other.mutex("n"));
    let guard = waiter.end().expect("it becomes free");
    let now = world.now();
    assert!(now + ms(1) >= free_at, "{now:?} before {free_at:?}");
    assert!(now <= world.granted_by(free_at), "{now:?} of {free_at:?}");
    guard.release().expect("it is held");
    assert!(!locked.has_ended());
}
