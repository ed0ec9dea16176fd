//! Managers that reach different majorities, and links that fail.

use std::time::{Duration, Instant};

use leasehold::{Builder, LockManager};

use super::{holders, locked_on_all, wait_until_waiting};
use crate::support::{
    Fault, Nodes, PATIENCE, Proxy, Raw, Role, Server, add, added, is_unreachable, locking,
    locking_asleep, ms, patient, secs, task, wait_until,
};

/// Far longer than a test takes.
const LONG: Duration = secs(600);
const FAULTS: [Fault; 8] = [
    Fault::Delay,
    Fault::Late(300),
    Fault::Drip,
    Fault::Close,
    Fault::Reset,
    Fault::HalfOpen,
    Fault::LoseRequests,
    Fault::LoseAnswers,
];

/// A manager with a proxy before each node.
pub(super) struct Proxied {
    pub(super) locks: LockManager,
    pub(super) proxies: Vec<Proxy>,
}

impl Proxied {
    pub(super) fn new(nodes: &Nodes) -> Self {
        Self::with(nodes, |builder| builder)
    }

    pub(super) fn with(nodes: &Nodes, set: impl FnOnce(Builder) -> Builder) -> Self {
        let proxies: Vec<_> = nodes.servers().iter().map(Proxy::to).collect();
        let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
        let builder = patient(&urls.join(" ")).node_timeout(secs(2)).lease(LONG);
        let locks = set(builder).build_unchecked().expect("good settings");
        // On a busy machine the first connections may take longer than a request may. The first lock also checks all
        // nodes. The renewal thread connects when it has a lease.
        let first = locks.mutex("first").renew(false);
        wait_until("a majority grants a lock", || first.lock().is_ok());
        Self { locks, proxies }
    }

    /// Breaks the links to these nodes.
    pub(super) fn cut(&self, some: &[usize], fault: Fault) {
        for number in some {
            self.proxies[*number].strike_all(fault);
        }
    }

    pub(super) fn heal(&self, some: &[usize]) {
        for number in some {
            self.proxies[*number].heal_anew();
        }
    }
}

/// Two managers reach three nodes each, with one in common. Two threads of each add to a number.
///
/// A node that gets requests although its answers are lost may keep a vote of which its owner does not know, until the lease
/// ends. The other manager needs that node.
fn two_majorities_exclude_each_other(fault: Fault) {
    const TURNS: u32 = 8;
    const SHORT: Duration = secs(6);
    const NODE_TIMEOUT: Duration = secs(4);
    const { assert!(2 * (SHORT.as_secs() + NODE_TIMEOUT.as_secs()) < PATIENCE.as_secs()) };
    let nodes = Nodes::start(5);
    let data = nodes.servers()[2].raw();
    let is_kept = fault == Fault::LoseAnswers;
    let lease = if is_kept { SHORT } else { LONG };
    let proxied = || Proxied::with(&nodes, |it| it.lease(lease).node_timeout(NODE_TIMEOUT));
    let (one, other) = (proxied(), proxied());
    one.cut(&[3, 4], fault);
    other.cut(&[0, 1], fault);
    let turns = [&one, &other, &one, &other].map(|proxied| {
        let (locks, data) = (proxied.locks.clone(), data.clone());
        task(move || add(&data, &locks, "n", TURNS))
    });
    for turns in turns {
        turns.end();
    }
    let (sum, fences) = added(&data, "n");
    assert_eq!((sum, fences.len()), (4 * TURNS, 32));
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    one.heal(&[3, 4]);
    other.heal(&[0, 1]);
    for locks in [&one.locks, &other.locks] {
        assert_eq!(locks.stats().lost(), 0);
        assert!(locks.close(PATIENCE), "something is left to send");
    }
}

#[test]
fn majorities_behind_closed_links_exclude_each_other() {
    two_majorities_exclude_each_other(Fault::Close);
}

#[test]
fn majorities_behind_half_open_links_exclude_each_other() {
    two_majorities_exclude_each_other(Fault::HalfOpen);
}

#[test]
fn majorities_whose_requests_are_lost_exclude_each_other() {
    two_majorities_exclude_each_other(Fault::LoseRequests);
}

#[test]
fn majorities_whose_answers_are_lost_exclude_each_other() {
    two_majorities_exclude_each_other(Fault::LoseAnswers);
}

/// Fails the links to these nodes while a lock is held, waited for, released and asked for.
#[track_caller]
fn locks_go_on(nodes: &Nodes, one: &Proxied, failing: &[usize], fault: Fault) {
    let other = nodes.manager();
    let guard = locked_on_all(&one.locks.mutex("n"));
    let waiter = locking(&other.mutex("n"));
    wait_until_waiting(nodes, "n");
    one.cut(failing, fault);
    guard.extend(LONG + secs(60)).expect("a majority has it");
    let fence = guard.fence();
    guard.release().expect("a majority had it");
    let guard = waiter.end().expect("it becomes free");
    assert!(guard.fence() > fence);
    let waiter = locking(&one.locks.mutex("n"));
    wait_until_waiting(nodes, "n");
    let fence = guard.fence();
    guard.release().expect("a majority had it");
    let guard = waiter.end().expect("it becomes free");
    assert!(guard.fence() > fence);
    one.heal(failing);
    guard.release().expect("a majority had it");
    wait_until(&format!("it is free everywhere after {fault:?}"), || {
        // The manager learns of a connection that has ended at its next use.
        drop(one.locks.lock("m").expect("it is free"));
        holders(nodes, "n") == vec![None; 5]
    });
}

#[test]
fn locks_go_on_if_the_link_to_one_node_fails() {
    let nodes = Nodes::start(5);
    let one = Proxied::new(&nodes);
    for fault in FAULTS {
        locks_go_on(&nodes, &one, &[1], fault);
    }
}

#[test]
fn locks_go_on_if_the_links_to_two_nodes_fail() {
    let nodes = Nodes::start(5);
    let one = Proxied::new(&nodes);
    for fault in FAULTS {
        locks_go_on(&nodes, &one, &[0, 4], fault);
    }
}

#[test]
fn a_vote_that_comes_after_the_grant_does_not_count() {
    let nodes = Nodes::start(5);
    let one = Proxied::new(&nodes);
    drop(one.locks.lock("first").expect("it is free"));
    // The node grants the lock at once, but its answer comes when the guard has begun.
    one.cut(&[4], Fault::Late(300));
    let guard = one.locks.lock("n").expect("four nodes answer");
    let late = nodes.servers()[4].raw();
    wait_until("the node has granted it", || late.exists("n"));
    one.heal(&[4]);
    // An extension has no node join, and the renewals come much later.
    guard.extend(LONG + secs(60)).expect("a majority has it");
    // Without two of the four votes that count, the lock is lost at the next request.
    for node in &nodes.servers()[..2] {
        let _: u32 = node.raw().ask(&["DEL", "n"]);
    }
    let extended = guard.extend(LONG + secs(120));
    assert!(extended.is_err(), "two votes are no majority");
    drop(guard);
    wait_until("it is free everywhere", || {
        holders(&nodes, "n") == vec![None; 5]
    });
}

/// A majority has answered the release when the request of the last node is lost.
#[test]
fn a_release_that_one_node_missed_is_repeated_there() {
    let nodes = Nodes::start(5);
    let one = Proxied::new(&nodes);
    let guard = locked_on_all(&one.locks.mutex("n"));
    one.proxies[4].strike(Role::Pool, Fault::LoseRequests);
    guard.release().expect("a majority had it");
    one.proxies[4].wait_until_struck(Role::Pool);
    one.heal(&[4]);
    // The manager learns of it at the next use of the connection. The lease is far longer than the test.
    wait_until("the node is asked again", || {
        drop(one.locks.lock("m").expect("it is free"));
        holders(&nodes, "n") == vec![None; 5]
    });
    assert!(one.locks.try_lock("n").expect("they answer").is_some());
}

/// On each node, answers are left unread when the servers close the connections.
#[test]
fn connections_that_are_closed_with_unread_answers_cost_no_vote() {
    let nodes = Nodes::start(5);
    let one = Proxied::new(&nodes);
    // A node whose connection closes while the renewal thread opens it would count as down.
    let mutex = one.locks.mutex("n").renew(false);
    // On a busy machine a node may be late, and then its vote does not count.
    wait_until("a lock on new connections has all votes", || {
        // The release waits for three answers.
        drop(locked_on_all(&mutex));
        one.heal(&[0, 1, 2, 3, 4]);
        wait_until("the connections are closed", || {
            nodes.raws().iter().all(|node| {
                let clients: String = node.ask(&["CLIENT", "LIST"]);
                clients.lines().count() == 1
            })
        });
        // A connection is looked at after a pause.
        wait_until_later(ms(20));
        let guard = mutex.lock().expect("a majority is there");
        let has_all = !holders(&nodes, "n").contains(&None);
        drop(guard);
        has_all
    });
}

pub(super) fn wait_until_later(pause: Duration) {
    let begun = Instant::now();
    wait_until("the time passes", || begun.elapsed() >= pause);
}

/// All nodes execute an extension whose answers are lost, and the last one misses the release.
#[test]
fn a_release_is_repeated_for_as_long_as_an_extension_without_an_answer_may_last() {
    const LEASE: Duration = secs(2);
    let nodes = Nodes::start(5);
    let one = Proxied::with(&nodes, |builder| builder.lease(LEASE).node_timeout(ms(500)));
    let guard = locked_on_all(&one.locks.mutex("n").renew(false));
    one.cut(&[0, 1, 2, 3, 4], Fault::LoseAnswers);
    assert!(guard.extend(LONG).is_err(), "no node answers");
    let is_extended = |node: &Raw| node.ttl("n").is_some_and(|ttl| ttl > secs(60));
    wait_until("each node has executed it", || {
        nodes.raws().iter().all(is_extended)
    });
    one.heal(&[0, 1, 2, 3]);
    one.cut(&[4], Fault::HalfOpen);
    drop(guard);
    let at_last = nodes.servers()[4].raw();
    wait_until("the others release it", || {
        nodes.raws()[..4].iter().all(|node| !node.exists("n"))
    });
    // The lease ends meanwhile, and the time for which the node may have the owner in its queue.
    wait_until_later(secs(4));
    assert!(at_last.exists("n"), "it has missed the release");
    one.heal(&[4]);
    wait_until("the node is asked again", || {
        drop(one.locks.lock("m"));
        !at_last.exists("n")
    });
}

/// A majority of the nodes executes an adoption, and then their connections are closed. The first node takes no part in
/// the next adoption.
#[test]
fn an_adoption_that_fails_leaves_the_lock_taken() {
    let nodes = Nodes::start(5);
    let one = Proxied::new(&nodes);
    // On a busy machine the test may take longer than the default lease.
    let mutex = nodes.manager().mutex("n").lease(secs(600));
    let claim = locked_on_all(&mutex).detach();
    drop(locked_on_all(&one.locks.mutex("connected")));
    one.cut(&[0, 1, 2], Fault::LoseAnswers);
    let (locks, claimed) = (one.locks.clone(), claim.clone());
    let adopting = task(move || locks.adopt(&claimed));
    wait_until("three nodes have executed it", || {
        let holders = holders(&nodes, "n");
        let is_adopted = |holder: &Option<String>| holder.as_deref() != Some(claim.owner());
        holders[..3].iter().all(is_adopted)
    });
    // The first node cannot be asked to take the adoption back.
    one.cut(&[0], Fault::HalfOpen);
    one.heal(&[1, 2]);
    let failed = adopting.end();
    assert!(failed.as_ref().is_err_and(is_unreachable), "{failed:?}");
    wait_until("the others answer", || {
        let guard = one.locks.lock("m");
        let has_all = !holders(&nodes, "m")[1..].contains(&None);
        drop(guard);
        has_all
    });
    // A release in the background would come now.
    wait_until_later(ms(200));
    let held = nodes.manager().try_lock("n").expect("they answer");
    assert!(held.is_none(), "the claim was released");
    let adopted = one.locks.adopt(&claim).expect("it was detached");
    let at_first = nodes.servers()[0].raw();
    assert!(at_first.exists("n"), "it has taken part");
    adopted.release().expect("it is held");
    one.heal(&[0]);
    wait_until("the first node is asked too", || {
        drop(one.locks.lock("m"));
        !at_first.exists("n")
    });
}

/// The renewal thread releases several mutexes by one request, and the last node loses it.
#[test]
fn releases_in_the_background_that_one_node_missed_are_repeated_there() {
    let nodes = Nodes::start(5);
    let one = Proxied::with(&nodes, |builder| builder.background_release(true));
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let lock = |name| locked_on_all(&one.locks.mutex(name));
    let guards: Vec<_> = names.iter().map(lock).collect();
    // The fault strikes only after connections were in use. Each of them has sent all that came before.
    one.cut(&[4], Fault::LoseRequests);
    drop(guards);
    let are_free = |nodes: &[Server]| {
        let raws: Vec<_> = nodes.iter().map(Server::raw).collect();
        let is_free = |name: &String| raws.iter().all(|node| !node.exists(name));
        names.iter().all(is_free)
    };
    wait_until("the other nodes release them", || {
        are_free(&nodes.servers()[..4])
    });
    assert!(!are_free(&nodes.servers()[4..]), "its requests are lost");
    one.heal(&[4]);
    // The renewal thread learns of it at the next use of the connection. The leases are far longer than the test.
    wait_until("the node is asked again", || {
        drop(one.locks.lock("m").expect("it is free"));
        are_free(nodes.servers())
    });
}

/// A thread takes a lease over, and the last node loses the request, which also releases the former owner.
#[test]
fn a_former_owner_that_one_node_kept_is_released_there() {
    let nodes = Nodes::start(5);
    let one = Proxied::new(&nodes);
    let mutex = one.locks.mutex("n");
    let guard = locked_on_all(&mutex);
    // So the next thread asks the nodes for a new lease.
    guard.extend(LONG + secs(60)).expect("a majority has it");
    let waiter = locking_asleep(&mutex);
    one.cut(&[4], Fault::LoseRequests);
    let former = guard.owner().to_owned();
    guard.release().expect("a majority had it");
    let guard = waiter.end().expect("four nodes answer");
    assert_ne!(guard.owner(), former);
    let holder = || holders(&nodes, "n").pop().flatten();
    assert_eq!(holder(), Some(former), "its request is lost");
    one.heal(&[4]);
    wait_until("the node is asked again", || {
        drop(one.locks.lock("m").expect("it is free"));
        holder().is_none()
    });
    guard.release().expect("four nodes have it");
}

/// The two nodes without a vote answer a renewal at once, and one of the three others only later.
#[test]
fn a_renewal_waits_for_the_nodes_that_have_a_vote() {
    let nodes = Nodes::start(5);
    let one = Proxied::new(&nodes);
    let guard = locked_on_all(&one.locks.mutex("n"));
    for node in &nodes.servers()[..2] {
        let _: u32 = node.raw().ask(&["DEL", "n"]);
    }
    one.cut(&[4], Fault::Late(100));
    for more in [60, 120] {
        guard
            .extend(LONG + secs(more))
            .expect("three nodes have it");
    }
    guard.release().expect("three nodes had it");
}
