//! A node that restarted without its data may have forgotten who holds a lock. It votes only after `restart_delay`, and
//! all clients of a quorum must have one value.

use std::time::Duration;

use leasehold::{Builder, Error, LeaseState, LockManager, LostCause};
use leasehold_simulator::{Refusal, Refused, Topology};

use super::{LONG, Nodes, locked_on_all};
use crate::matrix::{Subject, subject_bodies};
use crate::redis::Redis;
use crate::subject::{is_unreachable, lost};
use crate::world::{Fault, Locks, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "quorum::restarts",
    &[Topology::Quorum],
    subject_bodies![
        a_node_that_restarted_empty_does_not_vote_before_the_delay,
        the_first_request_after_a_restart_is_refused,
        nobody_is_granted_a_lock_that_restarted_nodes_have_forgotten,
        restarted_nodes_cost_a_holder_their_votes_until_they_join,
        no_lease_is_longer_than_the_delay,
        the_default_does_not_depend_on_the_lease,
        the_error_tells_a_first_start_from_a_restart,
        managers_of_different_delays_cannot_both_start,
        a_delay_of_zero_is_noted_too,
        a_full_node_without_a_note_renews,
        a_process_renews_its_note_and_compares_it_again,
    ],
);

/// The key by which clients compare their values.
const NOTE: &str = "leasehold:restart_delay";
/// The pause between two tries.
const EVERY: Duration = ms(50);
/// A node counts its uptime in whole seconds, and so does the margin for them.
const WHOLE_SECONDS: Duration = secs(2);

/// Sets this delay, which is also the lease.
fn delayed(delay: Duration) -> impl Fn(Builder) -> Builder {
    move |it| it.lease(delay).restart_delay(delay)
}

/// Returns a manager that has seen none of the nodes yet.
fn unconnected(world: &World, delay: Duration) -> Locks {
    world.build_lazy(delayed(delay))
}

/// Returns a manager that knows all nodes.
#[track_caller]
fn settled(world: &World, delay: Duration) -> Locks {
    let locks = world.build(delayed(delay));
    drop(locked_on_all(world, &locks.mutex("settled")));
    locks
}

/// Blocks until the manager gets the lock, and returns when its last call began.
#[track_caller]
fn granted_at_last(world: &World, locks: &LockManager, name: &str) -> Duration {
    let mut granted_at = None;
    world.until("the nodes vote again", || {
        world.pass(EVERY);
        let asked_at = world.now();
        match locks.try_lock(name) {
            Ok(Some(_)) => granted_at = Some(asked_at),
            Ok(None) => {}
            Err(error) if is_unreachable(&error) => {}
            Err(error) => panic!("{error:?}"),
        }
        granted_at.is_some()
    });
    granted_at.expect("it was granted")
}

fn a_node_that_restarted_empty_does_not_vote_before_the_delay(world: &World) {
    let delay = secs(3);
    let nodes = Nodes::new(world, 3);
    let known = settled(world, delay);
    let new = unconnected(world, delay);
    let restarted_at = world.now();
    nodes.restart_empty(&[0, 1]);
    // Each asks on its own thread, so the manager that knows the nodes also opens new connections.
    let mut number = 0;
    let asking = [&known, &known, &new].map(|locks| {
        let (world, manager) = (world.clone(), LockManager::clone(locks));
        number += 1;
        let name = format!("n{number}");
        locks.thread(move || granted_at_last(&world, &manager, &name))
    });
    let at = restarted_at + delay;
    for asking in asking {
        let granted_at = asking.end();
        assert!(granted_at >= at, "{granted_at:?} before {at:?}");
        let latest = world.within(at + WHOLE_SECONDS + EVERY);
        assert!(granted_at <= latest, "{granted_at:?} after {latest:?}");
    }
}

/// The request that goes out on a new connection is refused too, because the node is asked first for how long it is up.
fn the_first_request_after_a_restart_is_refused(world: &World) {
    let delay = secs(3);
    let nodes = Nodes::new(world, 3);
    let new = unconnected(world, delay);
    drop(settled(world, delay));
    nodes.restart_empty(&[0, 1]);
    match new.try_lock("n") {
        Err(Error::NoQuorum { failures, .. }) => {
            let shown = format!("{failures:?}");
            assert!(shown.contains("restart_delay"), "{shown}");
        }
        other => panic!("{other:?}"),
    }
}

fn nobody_is_granted_a_lock_that_restarted_nodes_have_forgotten(world: &World) {
    let delay = secs(3);
    let nodes = Nodes::new(world, 3);
    let one = settled(world, delay);
    // Its own leases are short.
    let other = world.build(|it| delayed(delay)(it).lease(ms(300)));
    let guard = locked_on_all(world, &one.mutex("n").renew(false));
    nodes.restart_empty(&[0, 1]);
    granted_at_last(world, &other, "n");
    assert_eq!(guard.state(), LeaseState::Lost);
    // The notice came before the other manager's guard.
    assert_eq!(lost(guard.check()).cause, LostCause::Expired);
}

fn restarted_nodes_cost_a_holder_their_votes_until_they_join(world: &World) {
    let delay = secs(6);
    let nodes = Nodes::new(world, 5);
    let (one, other) = (settled(world, delay), settled(world, delay));
    let guard = locked_on_all(world, &one.mutex("n"));
    // Without two votes the lock is kept, and renewed for longer than its lease.
    let begun = world.now();
    nodes.restart_empty(&[0, 1]);
    world.until("these nodes have joined", || {
        world.pass(EVERY);
        assert!(other.try_lock("n").expect("they answer").is_none());
        nodes.holders("n")[..2].iter().all(Option::is_some)
    });
    assert!(world.now() >= begun + delay);
    // Without a third vote it is lost, at the end of its lease and not later.
    nodes.restart_empty(&[0, 1, 2]);
    let latest = world.within(world.now() + delay);
    let loss = world.recv(&guard.on_lost());
    assert!(world.now() <= latest, "it is lost late");
    assert!(
        matches!(loss.cause, LostCause::Expired | LostCause::Removed),
        "{loss:?}"
    );
    granted_at_last(world, &other, "n");
    assert!(other.lock("n").expect("they vote").fence() > loss.fence);
}

fn no_lease_is_longer_than_the_delay(world: &World) {
    let is_refused = |error: Error| {
        let refused = matches!(
            error,
            Error::Config {
                option: "lease",
                ..
            }
        );
        assert!(refused, "{error:?}");
    };
    let delay = secs(2);
    let longer = delay + ms(1);
    let built = world.try_build(|it| delayed(delay)(it).lease(longer));
    is_refused(built.map(drop).expect_err("the lease is too long"));
    let locks = settled(world, delay);
    let locked = locks.mutex("n").lease(longer).lock();
    is_refused(locked.expect_err("the lease is too long"));
    let guard = locks.lock("n").expect("it is as long as the delay");
    guard.extend(delay).expect("it is as long as the delay");
    let extended = guard.extend(longer);
    assert!(
        matches!(extended, Err(Error::Config { .. })),
        "{extended:?}"
    );
    // Without a delay no lease is limited.
    drop(guard);
    locks.kill();
    remove_notes(&Nodes::new(world, 3));
    let locks = world.manager();
    let long = locks.mutex("m").lease(LONG).lock();
    drop(long.expect("it is not limited"));
}

/// Removes the notes, and with them the value that new clients must have.
fn remove_notes(nodes: &Nodes) {
    nodes.delete(&nodes.all(), NOTE);
}

fn the_default_does_not_depend_on_the_lease(world: &World) {
    let nodes = Nodes::new(world, 3);
    let urls = ["unix:///0", "unix:///1", "unix:///2"];
    for lease in [secs(4), secs(60)] {
        let locks = world.build(|_| LockManager::quorum(urls).lease(lease));
        for node in &nodes.each {
            assert_eq!(node.ask::<String>(&["GET", NOTE]), "60000");
        }
        let longer = locks.mutex("n").lease(secs(61)).lock();
        assert!(matches!(longer, Err(Error::Config { .. })), "{longer:?}");
    }
}

fn the_error_tells_a_first_start_from_a_restart(world: &World) {
    let nodes = Nodes::new(world, 3);
    nodes.restart_empty(&nodes.all());
    let locks = world.build(delayed(secs(60)));
    let refused = || locks.lock("n").expect_err("no node votes yet").to_string();
    let error = refused();
    assert!(
        error.contains("0 of 3 nodes agreed, 2 are needed"),
        "{error}"
    );
    let (started, restarted) = ("started a moment ago", "it has restarted");
    assert_eq!(error.matches(started).count(), 3, "{error}");
    assert!(!error.contains(restarted), "{error}");
    nodes.restart_empty(&nodes.all());
    // The connections end.
    world.pass(ms(20));
    world.until("the nodes are asked again", || {
        let error = refused();
        assert!(!error.contains(started), "{error}");
        error.matches(restarted).count() == 3
    });
}

#[track_caller]
fn is_another_delay<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Config {
            option: "restart_delay",
            reason,
        }) => reason.into(),
        other => panic!("{other:?}"),
    }
}

/// Blocks until a process that goes on finds another value at so many nodes that no majority is left for it.
#[track_caller]
fn wait_until_it_finds_another_delay(world: &World, locks: &LockManager) {
    world.until("it finds the other value", || {
        world.pass(EVERY);
        match locks.try_lock("m") {
            Ok(_) => false,
            Err(error) if is_unreachable(&error) => false,
            other => {
                is_another_delay(other);
                true
            }
        }
    });
}

fn built(world: &World, delay: Duration) -> Result<(), Error> {
    let built = world.try_build(|it| it.lease(secs(4)).restart_delay(delay));
    built.map(drop)
}

fn managers_of_different_delays_cannot_both_start(world: &World) {
    let nodes = Nodes::new(world, 3);
    let one = world.build(|it| it.lease(secs(4)).restart_delay(secs(60)));
    for delay in [secs(4), secs(61), Duration::ZERO] {
        let reason = is_another_delay(built(world, delay));
        for part in ["use 60s", &format!("uses {delay:?}"), NOTE] {
            assert!(reason.contains(part), "{reason}");
        }
        let other = world.build_lazy(|it| it.lease(secs(4)).restart_delay(delay));
        is_another_delay(other.try_lock("n"));
        other.kill();
    }
    // One node is enough to keep a process from starting, but not to stop one that has started.
    let set_note = |some: &[usize]| {
        for node in some {
            let () = nodes.each[*node].ask(&["SET", NOTE, "4000", "PX", "600000"]);
            one.cut(*node);
        }
    };
    set_note(&[0]);
    is_another_delay(built(world, secs(60)));
    drop(one.try_lock("n").expect("two nodes have its value"));
    set_note(&[0, 1]);
    wait_until_it_finds_another_delay(world, &one);
    // Two of three nodes have lost their notes, and a client with another value is the first to come.
    nodes.delete(&[1, 2], NOTE);
    let first = world.build_lazy(|it| it.lease(secs(4)).restart_delay(Duration::ZERO));
    is_another_delay(first.try_lock("n"));
    // The remedy of the error's text.
    one.kill();
    first.kill();
    remove_notes(&nodes);
    let other = world.build(delayed(secs(4)));
    // The note is no lock.
    assert!(other.list("*").next().is_none());
}

fn a_delay_of_zero_is_noted_too(world: &World) {
    let nodes = Nodes::new(world, 3);
    let zero = world.manager();
    for node in &nodes.each {
        assert_eq!(node.ask::<String>(&["GET", NOTE]), "0");
        assert!(node.ttl(NOTE) > Some(secs(500)), "{:?}", node.ttl(NOTE));
    }
    let reason = is_another_delay(built(world, secs(60)));
    assert!(reason.contains("use 0ns"), "{reason}");
    drop(zero.lock("n").expect("its nodes vote at once"));
}

/// A node that is full grants nothing. But leases there are renewed, also on a new connection that finds no note.
fn a_full_node_without_a_note_renews(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.manager();
    let guard = locked_on_all(world, &locks.mutex("n").lease(secs(60)).renew(false));
    remove_notes(&nodes);
    let full = Refusal {
        what: Refused::Growth,
        error: "OOM command not allowed when used memory > 'maxmemory'.",
    };
    for node in nodes.all() {
        world.fault(Fault::Refuse(node, Some(full)));
        locks.cut(node);
    }
    // The first renewal goes to the nodes that have connections again.
    world.until("each node renews", || {
        guard.extend(secs(90)).expect("a majority renews");
        let is_renewed = |node: &Redis| node.ttl("n") > Some(secs(60));
        nodes.each.iter().all(is_renewed)
    });
    assert!(!nodes.each.iter().any(|node| node.exists(NOTE)));
    let error = locks.try_lock("m").expect_err("no node may vote");
    assert!(is_unreachable(&error), "{error:?}");
    assert!(format!("{error:#}").contains("no memory for the note"));
    // With memory, only one of two values is noted.
    let other = world.build(delayed(secs(4)));
    for node in nodes.all() {
        world.fault(Fault::Refuse(node, None));
    }
    world.until("the note is made", || locks.try_lock("m").is_ok());
    wait_until_it_finds_another_delay(world, &other);
}

/// "After five times its value at the latest", a process looks at the note on connections that stay open.
fn a_process_renews_its_note_and_compares_it_again(world: &World) {
    let delay = secs(1);
    let nodes = Nodes::new(world, 3);
    let locks = settled(world, delay);
    let mut left = nodes.each[0].ttl(NOTE);
    world.until("the note is renewed", || {
        world.pass(EVERY);
        locks.try_lock("n").ok();
        let now = nodes.each[0].ttl(NOTE);
        std::mem::replace(&mut left, now) < now
    });
    for node in &nodes.each {
        let () = node.ask(&["SET", NOTE, "4000"]);
    }
    let latest = world.within(world.now() + delay * 5 + EVERY);
    wait_until_it_finds_another_delay(world, &locks);
    assert!(world.now() <= latest, "{:?}", world.now());
}
