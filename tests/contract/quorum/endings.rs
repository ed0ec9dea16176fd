//! Owners that a majority has ended, and that a node may still have.

use leasehold::LostCause;
use leasehold_simulator::{LinkFault, Refusal, Refused, Topology};

use super::{LONG, Nodes, locked_on_all};
use crate::matrix::{Subject, subject_bodies};
use crate::subject::lost;
use crate::world::{Fault, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "quorum::endings",
    &[Topology::Quorum],
    subject_bodies![
        a_node_that_missed_the_release_keeps_the_lock_for_min_hold,
        an_owner_that_cannot_have_had_a_majority_learns_it_at_its_release,
        a_request_on_a_closed_connection_is_withdrawn_for_as_long_as_it_may_come,
        a_late_refusal_does_not_confirm_a_release,
        close_waits_until_each_node_has_released_the_locks,
    ],
);

/// The third node was down when the lock was asked for, and the second one misses the release. Only the first one keeps
/// the lock at once.
fn a_node_that_missed_the_release_keeps_the_lock_for_min_hold(world: &World) {
    let nodes = Nodes::new(world, 3);
    nodes.stop(&[2]);
    let lease = secs(120);
    let locks = world.build(|it| it.min_hold(LONG).lease(lease));
    let guard = locks.lock("n").expect("two nodes are there");
    let held_since = world.now();
    let owner = nodes.holders("n")[1].clone().expect("it has granted it");
    let holder = || nodes.holders("n").swap_remove(1);
    locks.strike_at(&[1], LinkFault::LoseRequests);
    guard.release().expect("two nodes had it");
    locks.wait_until_struck_at(1);
    assert_eq!(holder().as_ref(), Some(&owner), "it is lost");
    locks.heal_at(&[1]);
    world.until("the node is asked again", || {
        holder().as_ref() != Some(&owner)
    });
    for node in &nodes.each[..2] {
        let kept = node.ttl("n").expect("it has released the lock");
        let ends_at = world.now() + kept;
        // The time counts from the grant, of which the guard learns a little later.
        assert!(ends_at + ms(60) >= held_since + LONG, "{ends_at:?}");
        assert!(ends_at <= world.within(held_since + LONG), "{ends_at:?}");
    }
}

/// The third node was down when the lock was asked for. Another owner has the first one, and the second one hangs. So no
/// majority can have had this owner to the end.
fn an_owner_that_cannot_have_had_a_majority_learns_it_at_its_release(world: &World) {
    let nodes = Nodes::new(world, 3);
    nodes.stop(&[2]);
    let locks = world.build(|it| it.lease(LONG));
    let mutex = locks.mutex("n").renew(false);
    let guard = mutex.lock().expect("two nodes are there");
    let () = nodes.each[0].ask(&["SET", "n", "lh1:stranger:x", "PX", "600000"]);
    nodes.pause(&[1]);
    let loss = lost(guard.release());
    assert_eq!(loss.cause, LostCause::Taken);
}

/// The second node has another holder, so the votes are split. The connection to the third one ends before its first
/// answer, and that node is well again before the second one answers. So it could answer a repeat, which must give no vote: the
/// lock is granted to another owner. The third node executes the first request after the release.
fn a_request_on_a_closed_connection_is_withdrawn_for_as_long_as_it_may_come(world: &World) {
    let nodes = Nodes::new(world, 3);
    let late = secs(20);
    let locks = world.build(|it| it.node_timeout(secs(10)).lease(LONG));
    drop(locked_on_all(world, &locks.mutex("first")));
    nodes.wait_until_free_everywhere("first");
    let () = nodes.each[1].ask(&["SET", "n", "lh1:stranger:x", "PX", "600000"]);
    let at_third = || nodes.holders("n").swap_remove(2);
    let asked_at = world.now();
    nodes.pause(&[1]);
    locks.strike_at(&[2], LinkFault::Late(late));
    let asking = {
        let locks = locks.clone();
        locks
            .clone()
            .thread(move || locks.try_lock_for("n", secs(10)))
    };
    world.until("the first node grants it", || nodes.each[0].exists("n"));
    world.pass(ms(10));
    let cut = nodes.holders("n").swap_remove(0);
    locks.abandon(2);
    locks.heal_at(&[2]);
    world.until("the third node is well again", || {
        // Without the second one, both others must grant it.
        matches!(locks.try_lock("m"), Ok(Some(_)))
    });
    nodes.resume(&[1]);
    let guard = asking.end().expect("two nodes are free");
    let guard = guard.expect("the third node grants it to the next owner");
    assert_ne!(cut.as_deref(), Some(guard.owner()));
    guard.release().expect("two nodes had it");
    assert!(world.now() < asked_at + late, "the first request is late");
    assert_eq!(at_third(), None);
    world.until("the request comes", || at_third().is_some());
    assert_eq!(at_third(), cut);
    world.until("it is withdrawn", || at_third().is_none());
}

/// A node refuses a release. Its answer comes when nobody waits for it any more.
fn a_late_refusal_does_not_confirm_a_release(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.build(|it| it.lease(LONG));
    let guard = locked_on_all(world, &locks.mutex("n").renew(false));
    let refusal = Refusal {
        what: Refused::Writes,
        error: "NOPERM User default has no permissions to run the 'evalsha' command",
    };
    world.fault(Fault::Refuse(2, Some(refusal)));
    nodes.pause(&[2]);
    guard.release().expect("two nodes had it");
    nodes.resume(&[2]);
    // The refusal comes, and the next call on the connection reads it.
    world.pass(ms(60));
    drop(locks.lock("m").expect("two nodes are free"));
    assert!(nodes.each[2].exists("n"));
    world.fault(Fault::Refuse(2, None));
    world.until("it is asked again", || !nodes.each[2].exists("n"));
}

/// A node hangs while locks are released, and then the program ends.
fn close_waits_until_each_node_has_released_the_locks(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.build(|it| it.lease(LONG));
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let lock = |name: &String| locked_on_all(world, &locks.mutex(name));
    let guards: Vec<_> = names.iter().map(lock).collect();
    nodes.pause(&[2]);
    drop(guards);
    assert!(!locks.close(ms(50)), "a node has not released them");
    nodes.resume(&[2]);
    assert!(locks.close(secs(30)), "all nodes are well");
    let left = names.iter().filter(|name| nodes.each[2].exists(name));
    assert_eq!(left.count(), 0);
}
