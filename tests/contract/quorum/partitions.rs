//! Managers that reach different majorities, and links that fail.

use std::time::Duration;

use leasehold::Builder;
use leasehold_simulator::{LinkFault, Topology};

use super::{LONG, Nodes, locked_on_all, locking, locking_asleep};
use crate::exclusion::{add_under, added};
use crate::matrix::{Subject, subject_bodies};
use crate::redis::Redis;
use crate::subject::{Kind, is_unreachable};
use crate::world::{Locks, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "quorum::partitions",
    &[Topology::Quorum],
    subject_bodies![
        majorities_behind_closed_links_exclude_each_other,
        majorities_behind_half_open_links_exclude_each_other,
        majorities_whose_requests_are_lost_exclude_each_other,
        majorities_whose_answers_are_lost_exclude_each_other,
        locks_go_on_if_the_link_to_one_node_fails,
        locks_go_on_if_the_links_to_two_nodes_fail,
        a_vote_that_comes_after_the_grant_does_not_count,
        a_release_that_one_node_missed_is_repeated_there,
        connections_that_are_closed_with_unread_answers_cost_no_vote,
        a_release_is_repeated_for_as_long_as_an_extension_without_an_answer_may_last,
        an_adoption_that_fails_leaves_the_lock_taken,
        releases_in_the_background_that_one_node_missed_are_repeated_there,
        a_former_owner_that_one_node_kept_is_released_there,
        a_renewal_waits_for_the_nodes_that_have_a_vote,
    ],
);

const FAULTS: [LinkFault; 7] = [
    LinkFault::Late(ms(300)),
    LinkFault::Drip,
    LinkFault::Close,
    LinkFault::Reset,
    LinkFault::HalfOpen,
    LinkFault::LoseRequests,
    LinkFault::LoseAnswers,
];
/// Longer than an answer takes on the slowest of these links.
const NODE_TIMEOUT: Duration = secs(2);
const ALL: [usize; 5] = [0, 1, 2, 3, 4];

/// Returns a manager that has a connection to each node.
fn connected(world: &World, change: impl FnOnce(Builder) -> Builder) -> Locks {
    let locks = world.build(|it| change(it.node_timeout(NODE_TIMEOUT).lease(LONG)));
    // The renewal thread connects when it has a lease.
    drop(locked_on_all(world, &locks.mutex("first").renew(false)));
    locks
}

/// Two managers reach three nodes each, with one in common. Two threads of each add to a number.
///
/// A node that gets requests although its answers are lost may keep a vote of which its owner does not know, until the lease
/// ends. The other manager needs that node.
fn two_majorities_exclude_each_other(world: &World, fault: LinkFault) {
    const TURNS: u32 = 4;
    let nodes = Nodes::new(world, 5);
    let data = &nodes.each[2];
    let is_kept = fault == LinkFault::LoseAnswers;
    let lease = if is_kept { secs(6) } else { LONG };
    let (one, other) = (
        connected(world, |it| it.lease(lease)),
        connected(world, |it| it.lease(lease)),
    );
    one.strike_at(&[3, 4], fault);
    other.strike_at(&[0, 1], fault);
    let turns = [&one, &other, &one, &other].map(|locks| {
        let (lock, world, data) = (Kind::Mutex.of(locks, "n"), world.clone(), data.clone());
        locks.thread(move || add_under(&world, &data, &lock, TURNS))
    });
    for turns in turns {
        turns.end();
    }
    let (sum, fences) = added(data, "n");
    assert_eq!((sum, fences.len()), (4 * TURNS, 4 * TURNS as usize));
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    one.heal_at(&[3, 4]);
    other.heal_at(&[0, 1]);
    for locks in [&one, &other] {
        assert_eq!(locks.stats().lost(), 0);
        assert!(locks.close(secs(60)), "something is left to send");
    }
}

fn majorities_behind_closed_links_exclude_each_other(world: &World) {
    two_majorities_exclude_each_other(world, LinkFault::Close);
}

fn majorities_behind_half_open_links_exclude_each_other(world: &World) {
    two_majorities_exclude_each_other(world, LinkFault::HalfOpen);
}

fn majorities_whose_requests_are_lost_exclude_each_other(world: &World) {
    two_majorities_exclude_each_other(world, LinkFault::LoseRequests);
}

fn majorities_whose_answers_are_lost_exclude_each_other(world: &World) {
    two_majorities_exclude_each_other(world, LinkFault::LoseAnswers);
}

/// Fails the links to these nodes while a lock is held, waited for, released and asked for.
#[track_caller]
fn locks_go_on(world: &World, failing: &[usize]) {
    let nodes = Nodes::new(world, 5);
    let one = connected(world, |it| it);
    for fault in FAULTS {
        let other = world.manager();
        let guard = locked_on_all(world, &one.mutex("n"));
        let waiter = locking(&other, other.mutex("n"));
        nodes.wait_until_waiting("n");
        one.strike_at(failing, fault);
        guard.extend(LONG + secs(60)).expect("a majority has it");
        let fence = guard.fence();
        guard.release().expect("a majority had it");
        let guard = waiter.end().expect("it becomes free");
        assert!(guard.fence() > fence);
        let waiter = locking(&one, one.mutex("n"));
        nodes.wait_until_waiting("n");
        let fence = guard.fence();
        guard.release().expect("a majority had it");
        let guard = waiter.end().expect("it becomes free");
        assert!(guard.fence() > fence);
        one.heal_at(failing);
        guard.release().expect("a majority had it");
        nodes.wait_until_free_everywhere("n");
    }
}

fn locks_go_on_if_the_link_to_one_node_fails(world: &World) {
    locks_go_on(world, &[1]);
}

fn locks_go_on_if_the_links_to_two_nodes_fail(world: &World) {
    locks_go_on(world, &[0, 4]);
}

fn a_vote_that_comes_after_the_grant_does_not_count(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = connected(world, |it| it);
    // The node grants the lock, but its answer comes when the guard has begun.
    locks.strike_at(&[4], LinkFault::Late(ms(300)));
    let guard = locks.lock("n").expect("four nodes answer");
    world.until("the node has granted it", || nodes.each[4].exists("n"));
    world.pass(ms(600));
    locks.heal_at(&[4]);
    // An extension has no node join, and the renewals come much later.
    guard.extend(LONG + secs(60)).expect("a majority has it");
    // Without two of the four votes that count, the lock is lost at the next request.
    nodes.delete(&[0, 1], "n");
    let extended = guard.extend(LONG + secs(120));
    assert!(extended.is_err(), "two votes are no majority");
    drop(guard);
    nodes.wait_until_free_everywhere("n");
}

/// A majority has answered the release when the request of the last node is lost.
fn a_release_that_one_node_missed_is_repeated_there(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = connected(world, |it| it);
    let guard = locked_on_all(world, &locks.mutex("n"));
    locks.strike_at(&[4], LinkFault::LoseRequests);
    guard.release().expect("a majority had it");
    locks.wait_until_struck_at(4);
    locks.heal_at(&[4]);
    // The lease is far longer than this.
    nodes.wait_until_free_everywhere("n");
    assert!(locks.try_lock("n").expect("they answer").is_some());
}

/// On each node, answers are left unread when the servers close the connections.
fn connections_that_are_closed_with_unread_answers_cost_no_vote(world: &World) {
    Nodes::new(world, 5);
    let locks = connected(world, |it| it);
    // A node whose connection closes while the renewal thread opens it would count as down.
    let mutex = locks.mutex("n").renew(false);
    world.until("a lock on new connections has all votes", || {
        // The release waits for three answers.
        drop(locked_on_all(world, &mutex));
        for node in ALL {
            locks.cut(node);
        }
        // A connection is looked at after a pause.
        world.pass(ms(20));
        let guard = mutex.lock().expect("a majority is there");
        guard.missing_nodes().is_empty()
    });
}

/// All nodes execute an extension whose answers are lost, and the last one misses the release.
fn a_release_is_repeated_for_as_long_as_an_extension_without_an_answer_may_last(world: &World) {
    let nodes = Nodes::new(world, 5);
    let lease = secs(2);
    let locks = connected(world, |it| it.lease(lease).node_timeout(ms(500)));
    let guard = locked_on_all(world, &locks.mutex("n").renew(false));
    locks.strike_at(&ALL, LinkFault::LoseAnswers);
    assert!(guard.extend(LONG).is_err(), "no node answers");
    let is_extended = |node: &Redis| node.ttl("n").is_some_and(|ttl| ttl > secs(60));
    assert!(nodes.each.iter().all(is_extended));
    locks.heal_at(&ALL);
    locks.strike_at(&[4], LinkFault::HalfOpen);
    drop(guard);
    world.until("the others release it", || {
        nodes.each[..4].iter().all(|node| !node.exists("n"))
    });
    // The lease ends meanwhile, and the time for which the node may have the owner in its queue.
    world.pass(secs(4));
    assert!(nodes.each[4].exists("n"), "it has missed the release");
    locks.heal_at(&[4]);
    nodes.wait_until_free_everywhere("n");
}

/// A majority of the nodes executes an adoption, and then their connections are closed. The first node takes no part in
/// the next adoption.
fn an_adoption_that_fails_leaves_the_lock_taken(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = connected(world, |it| it);
    let owner = world.build(|it| it.lease(LONG));
    let claim = locked_on_all(world, &owner.mutex("n")).detach();
    locks.strike_at(&[0, 1, 2], LinkFault::LoseAnswers);
    let adopting = {
        let (manager, claim) = (locks.clone(), claim.clone());
        locks.thread(move || manager.adopt(&claim))
    };
    world.until("three nodes have executed it", || {
        let holders = nodes.holders("n");
        let is_adopted = |holder: &Option<String>| holder.as_deref() != Some(claim.owner());
        holders[..3].iter().all(is_adopted)
    });
    // The first node cannot be asked to take the adoption back.
    locks.heal_at(&[0, 1, 2]);
    locks.strike_at(&[0], LinkFault::HalfOpen);
    let failed = adopting.end();
    assert!(failed.as_ref().is_err_and(is_unreachable), "{failed:?}");
    // A release in the background would come now.
    world.pass(secs(1));
    let held = world.manager().try_lock("n").expect("they answer");
    assert!(held.is_none(), "the claim was released");
    let adopted = locks.adopt(&claim).expect("it was detached");
    assert!(nodes.each[0].exists("n"), "it has taken part");
    adopted.release().expect("it is held");
    locks.heal_at(&[0]);
    nodes.wait_until_free_everywhere("n");
}

/// The renewal thread releases several mutexes by one request, and the last node loses it.
fn releases_in_the_background_that_one_node_missed_are_repeated_there(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = connected(world, |it| it.background_release(true));
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let lock = |name| locked_on_all(world, &locks.mutex(name));
    let guards: Vec<_> = names.iter().map(lock).collect();
    let are_free = |nodes: &[Redis]| {
        let is_free = |name: &String| nodes.iter().all(|node| !node.exists(name));
        names.iter().all(is_free)
    };
    locks.strike_at(&[4], LinkFault::LoseRequests);
    drop(guards);
    world.until("the other nodes release them", || {
        are_free(&nodes.each[..4])
    });
    assert!(!are_free(&nodes.each[4..]), "its requests are lost");
    locks.heal_at(&[4]);
    world.until("the node is asked again", || are_free(&nodes.each));
}

/// A thread takes a lease over, and the last node loses the request, which also releases the former owner.
fn a_former_owner_that_one_node_kept_is_released_there(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = connected(world, |it| it);
    let guard = locked_on_all(world, &locks.mutex("n"));
    // So the next thread asks the nodes for a new lease.
    guard.extend(LONG + secs(60)).expect("a majority has it");
    let waiter = locking_asleep(&locks, locks.mutex("n"));
    locks.strike_at(&[4], LinkFault::LoseRequests);
    let former = guard.owner().to_owned();
    guard.release().expect("a majority had it");
    let guard = waiter.end().expect("four nodes answer");
    assert_ne!(guard.owner(), former);
    let holder = || nodes.holders("n").pop().flatten();
    assert_eq!(holder(), Some(former.clone()), "its request is lost");
    locks.heal_at(&[4]);
    world.until("the node is asked again", || {
        holder() != Some(former.clone())
    });
    guard.release().expect("four nodes have it");
}

/// The two nodes without a vote answer a renewal at once, and one of the three others only later.
fn a_renewal_waits_for_the_nodes_that_have_a_vote(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = connected(world, |it| it);
    let guard = locked_on_all(world, &locks.mutex("n"));
    nodes.delete(&[0, 1], "n");
    locks.strike_at(&[4], LinkFault::Late(ms(100)));
    for more in [60, 120] {
        let extended = guard.extend(LONG + secs(more));
        extended.expect("three nodes have it");
    }
    guard.release().expect("three nodes had it");
}
