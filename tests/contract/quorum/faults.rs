//! Nodes that fail while a lock is asked for, held, waited for and released: each node alone, and two of five at once.
//! Then the locks go on. With three of five they end in time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Error, LeaseState, LockGuard, LockManager, LostCause};
use leasehold_simulator::{LinkFault, Topology};

use super::{HOUR, LONG, Nodes, guard_of, locked, locked_on_all, locking, missing};
use crate::exclusion::{add_under, added};
use crate::matrix::{Subject, subject_bodies};
use crate::subject::{Kind, is_unreachable, lost};
use crate::world::{Fault, Locks, Task, World, locked as unlocked, ms, secs};

pub(crate) const BODIES: Subject = (
    "quorum::faults",
    &[Topology::Quorum],
    subject_bodies![
        locks_go_on_if_one_or_two_nodes_are_killed,
        locks_go_on_if_one_or_two_nodes_are_stopped,
        locks_go_on_if_one_or_two_nodes_restart_empty,
        locks_go_on_if_one_or_two_clocks_jump_ahead,
        locks_go_on_if_one_or_two_clocks_are_set_back,
        no_update_is_lost_while_two_nodes_are_stopped,
        no_update_is_lost_while_two_nodes_restart_empty,
        no_update_is_lost_while_two_clocks_are_set_back,
        three_killed_nodes_end_all_in_time,
        three_stopped_nodes_end_all_in_time,
        a_lock_that_expired_early_at_three_nodes_is_fenced_and_lost,
        a_vote_that_is_gone_counts_however_few_nodes_answer,
        leases_outlive_nodes_that_admit_no_further_client,
        a_wait_whose_last_request_is_cut_short_ends_as_held,
        a_wait_that_a_majority_refuses_at_its_end_is_an_error,
        a_call_connects_for_no_longer_than_it_lasts,
        a_try_beside_a_waiter_with_two_votes_learns_that_it_is_held,
        an_owner_leaves_the_queues_of_the_nodes_that_did_not_grant_it_the_lock,
        an_owner_that_keeps_the_lock_for_min_hold_leaves_the_other_queues,
        a_node_that_hangs_delays_an_acquire_only_seldom,
        two_nodes_that_hang_do_not_fail_the_first_call,
        a_node_that_was_down_when_the_lock_was_asked_for_gets_no_release,
        a_release_by_force_of_an_owner_without_a_majority_is_none,
        connections_that_were_closed_while_idle_fail_no_call,
        a_subscription_outlives_silence,
        contention_over_three_of_five_nodes_fails_no_call,
        a_node_whose_clock_was_set_back_since_its_start_votes,
        a_short_lease_outlives_a_node_that_hangs_while_it_is_connected_to,
        a_short_lease_outlives_a_node_that_hangs_while_it_is_asked,
        nodes_are_probed_often_while_a_majority_is_missing_and_wanted,
        a_lease_outlives_an_outage_of_all_nodes_that_is_shorter,
        a_node_that_is_slow_to_connect_to_votes,
        a_slow_node_does_not_delay_each_acquire,
        an_extension_waits_for_the_connection_to_a_node_that_voted,
        free_names_are_granted_after_a_node_has_missed_many_releases,
    ],
);

/// The defaults.
const CONNECT_TIMEOUT: Duration = secs(2);
const NODE_TIMEOUT: Duration = ms(200);

/// A way in which a node fails, and in which it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Killed,
    Stopped,
    RestartedEmpty,
    /// Its clock jumps an hour ahead. All its keys expire.
    ClockAhead,
    ClockBehind,
}

impl Way {
    fn fail(self, nodes: &Nodes, some: &[usize]) {
        match self {
            Self::Killed => nodes.stop(some),
            Self::Stopped => nodes.pause(some),
            Self::RestartedEmpty => nodes.restart_empty(some),
            Self::ClockAhead => nodes.set_clocks(some, HOUR, false),
            Self::ClockBehind => nodes.set_clocks(some, HOUR, true),
        }
    }

    fn heal(self, nodes: &Nodes, some: &[usize]) {
        match self {
            Self::Killed => nodes.restart_empty(some),
            Self::Stopped => nodes.resume(some),
            Self::RestartedEmpty => {}
            Self::ClockAhead => nodes.set_clocks(some, HOUR, true),
            Self::ClockBehind => nodes.set_clocks(some, HOUR, false),
        }
    }
}

/// Fails these nodes in each phase of a lock. One manager holds the lock and another waits.
#[track_caller]
fn locks_go_on(nodes: &Nodes, failing: &[usize], way: Way) {
    let world = &nodes.world;
    let (one, other) = (
        world.build(|it| it.lease(LONG)),
        world.build(|it| it.lease(LONG)),
    );
    let mut last = 0;
    let mut rises = |guard: &LockGuard| {
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
    };
    // While the lock is held, and waited for.
    let guard = locked_on_all(world, &one.mutex("n"));
    rises(&guard);
    let waiter = locking(&other, other.mutex("n"));
    nodes.wait_until_waiting("n");
    way.fail(nodes, failing);
    guard.extend(LONG + secs(60)).expect("a majority has it");
    assert!(one.try_lock("n").expect("it is held here").is_none());
    // During the release.
    guard.release().expect("a majority had it");
    let guard = waiter.end().expect("it becomes free");
    rises(&guard);
    guard.release().expect("a majority had it");
    // Before the acquire. A node whose clock was set back loses its vote when it comes back, so all others must have one.
    let mut held = None;
    world.until("the others vote", || {
        let guard = one.lock("n").expect("a majority is there");
        rises(&guard);
        held = Some(guard).filter(|guard| missing(guard).iter().all(|it| failing.contains(it)));
        held.is_some()
    });
    let guard = held.expect("the others vote");
    // While it is held, the nodes come back.
    way.heal(nodes, failing);
    assert!(other.try_lock("n").expect("it is held").is_none());
    guard.extend(LONG + secs(60)).expect("a majority has it");
    guard.release().expect("a majority had it");
    // The renewal thread releases what the nodes have missed.
    nodes.wait_until_free_everywhere("n");
    world.until("all nodes vote again", || {
        let guard = other.lock("n").expect("it is free");
        rises(&guard);
        nodes.holders("n") == vec![Some(guard.owner().to_owned()); 5]
    });
    assert_eq!((one.stats().lost(), other.stats().lost()), (0, 0));
}

/// Fails a node alone, and then two at once.
fn locks_go_on_without_any_one_or_two(world: &World, way: Way) {
    let nodes = Nodes::new(world, 5);
    for failing in [&[0][..], &[0, 1], &[2, 4]] {
        locks_go_on(&nodes, failing, way);
    }
}

fn locks_go_on_if_one_or_two_nodes_are_killed(world: &World) {
    locks_go_on_without_any_one_or_two(world, Way::Killed);
}

fn locks_go_on_if_one_or_two_nodes_are_stopped(world: &World) {
    locks_go_on_without_any_one_or_two(world, Way::Stopped);
}

fn locks_go_on_if_one_or_two_nodes_restart_empty(world: &World) {
    locks_go_on_without_any_one_or_two(world, Way::RestartedEmpty);
}

fn locks_go_on_if_one_or_two_clocks_jump_ahead(world: &World) {
    locks_go_on_without_any_one_or_two(world, Way::ClockAhead);
}

fn locks_go_on_if_one_or_two_clocks_are_set_back(world: &World) {
    locks_go_on_without_any_one_or_two(world, Way::ClockBehind);
}

/// Threads that add one to a number under the lock, until they are stopped. Each reads the number and then writes it.
struct Adders {
    world: World,
    stop: Arc<AtomicBool>,
    sum: Arc<AtomicU32>,
    /// The fence of each turn.
    fences: Arc<Mutex<Vec<u64>>>,
    threads: Vec<Task<()>>,
}

impl Adders {
    fn start(world: &World, managers: &[&Locks]) -> Self {
        let mut adders = Self {
            world: world.clone(),
            stop: Arc::default(),
            sum: Arc::default(),
            fences: Arc::default(),
            threads: Vec::new(),
        };
        for locks in managers {
            let (world, mutex) = (world.clone(), locks.mutex("n"));
            let (stop, sum) = (Arc::clone(&adders.stop), Arc::clone(&adders.sum));
            let fences = Arc::clone(&adders.fences);
            adders.threads.push(locks.thread(move || {
                while !stop.load(Ordering::Relaxed) {
                    let guard = locked_at_last(&world, &mutex);
                    let before = sum.load(Ordering::Relaxed);
                    world.pass(ms(1));
                    sum.store(before + 1, Ordering::Relaxed);
                    unlocked(&fences).push(guard.fence());
                    match guard.release() {
                        // A lock that had a bare majority is lost with one of its nodes. But it excludes others
                        // until its lease ends, because nodes that have restarted do not vote.
                        Ok(()) | Err(Error::Lost(_)) => {}
                        // The outcome is unknown. The renewal thread repeats the release.
                        Err(error) if is_unreachable(&error) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                    world.pass(ms(50));
                }
            }));
        }
        adders
    }

    fn wait_for_turns(&self, count: usize) {
        let turns = || unlocked(&self.fences).len();
        let before = turns();
        self.world.until("they go on", || turns() >= before + count);
    }

    fn assert_no_update_is_lost(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(Task::end);
        let (sum, fences) = (self.sum.load(Ordering::Relaxed), unlocked(&self.fences));
        assert_eq!(usize::try_from(sum), Ok(fences.len()));
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    }
}

/// Locks, and repeats a call that too few nodes answer.
fn locked_at_last(world: &World, mutex: &leasehold::Mutex) -> LockGuard {
    let mut guard = None;
    world.until("it is locked", || {
        world.pass(ms(20));
        guard = locked(mutex);
        guard.is_some()
    });
    guard.expect("it is locked")
}

/// Two threads of each of two managers add to a number, while two nodes fail, come back, and two others fail.
fn no_update_is_lost_while_two_nodes_fail(world: &World, way: Way) {
    let nodes = Nodes::new(world, 5);
    // A node that has restarted does not vote before each lease is over that it may have forgotten.
    let length = secs(3);
    let managers = [(); 2].map(|()| world.build(|it| it.lease(length).restart_delay(length)));
    let [one, other] = &managers;
    let wait_until_all_vote = || {
        for locks in &managers {
            drop(locked_on_all(world, &locks.mutex("m")));
        }
    };
    wait_until_all_vote();
    let adders = Adders::start(world, &[one, other, one, other]);
    adders.wait_for_turns(10);
    for pair in [[0, 1], [1, 3], [2, 4]] {
        way.fail(&nodes, &pair);
        adders.wait_for_turns(15);
        // The clocks jump ahead again, and the nodes drop their keys. All five must have this lock, so that three keep it.
        let kept = (way == Way::ClockBehind).then(|| locked_on_all(world, &one.mutex("n")));
        way.heal(&nodes, &pair);
        drop(kept);
        adders.wait_for_turns(5);
        wait_until_all_vote();
    }
    adders.assert_no_update_is_lost();
}

fn no_update_is_lost_while_two_nodes_are_stopped(world: &World) {
    no_update_is_lost_while_two_nodes_fail(world, Way::Stopped);
}

fn no_update_is_lost_while_two_nodes_restart_empty(world: &World) {
    no_update_is_lost_while_two_nodes_fail(world, Way::Killed);
}

fn no_update_is_lost_while_two_clocks_are_set_back(world: &World) {
    no_update_is_lost_while_two_nodes_fail(world, Way::ClockBehind);
}

/// Fails three of five nodes while a lock is held and waited for.
fn three_nodes_end_all_in_time(world: &World, way: Way) {
    const FAILING: [usize; 3] = [1, 2, 3];
    const LEASE: Duration = secs(7);
    let nodes = Nodes::new(world, 5);
    let (one, other) = (world.manager(), world.manager());
    let guard = locked_on_all(world, &one.mutex("n").lease(LEASE));
    let losses = guard.on_lost();
    let waiter = locking(&other, other.mutex("n").lease(LEASE));
    nodes.wait_until_waiting("n");
    way.fail(&nodes, &FAILING);
    calls_find_no_quorum(world, &other);
    world.until("it is at risk", || guard.state() != LeaseState::Held);
    // No node confirms anything any more, so the deadline does not change.
    let deadline = world.now() + guard.remaining();
    let loss = world.recv(&losses);
    assert!(world.now() >= deadline, "the notice came too early");
    assert!(world.now() <= world.promptly(deadline), "it came too late");
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(lost(guard.release()), loss);
    way.heal(&nodes, &FAILING);
    // The wait outlives the outage.
    let guard = waiter.end().expect("it becomes free");
    assert!(guard.fence() > loss.fence);
    guard.release().expect("it is held");
    drop(locked_at_last(world, &one.mutex("n")));
}

/// Checks that calls end within their limits.
fn calls_find_no_quorum(world: &World, locks: &LockManager) {
    let calls: [&dyn Fn() -> leasehold::Result<Option<LockGuard>>; 3] = [
        &|| locks.try_lock("free"),
        &|| locks.lock("free").map(Some),
        &|| locks.try_lock_for("free", secs(60)),
    ];
    for call in calls {
        // A node has this time to be connected to, and then to answer.
        let latest = world.within(world.now() + CONNECT_TIMEOUT + NODE_TIMEOUT);
        match call() {
            Err(Error::NoQuorum {
                needed, failures, ..
            }) => {
                // With three nodes down, no call waits until the others are connected to.
                assert_eq!(needed, 3);
                assert!((3..=5).contains(&failures.len()), "{failures:?}");
            }
            other => panic!("{other:?}"),
        }
        assert!(world.now() <= latest, "{:?}", world.now());
    }
}

fn three_killed_nodes_end_all_in_time(world: &World) {
    three_nodes_end_all_in_time(world, Way::Killed);
}

fn three_stopped_nodes_end_all_in_time(world: &World) {
    three_nodes_end_all_in_time(world, Way::Stopped);
}

/// The keys of a lock expire at three nodes before its lease is over. So another manager gets the lock, which the first
/// one still believes to hold. The fence tells them apart, and the first one learns of it at its next renewal.
fn a_lock_that_expired_early_at_three_nodes_is_fenced_and_lost(world: &World) {
    let lease = secs(9);
    let nodes = Nodes::new(world, 5);
    let (one, other) = (world.manager(), world.manager());
    let guard = locked_on_all(world, &one.mutex("n").lease(lease));
    let losses = guard.on_lost();
    nodes.set_clocks(&[2, 3, 4], HOUR, false);
    let jumped_at = world.now();
    let next = other.try_lock("n").expect("the nodes answer");
    let next = next.expect("three nodes have forgotten the other guard");
    assert!(next.fence() > guard.fence());
    let loss = world.recv(&losses);
    assert!(world.now() <= world.within(jumped_at + lease / 3));
    assert!(matches!(loss.cause, LostCause::Taken | LostCause::Removed));
    assert_eq!(lost(guard.release()), loss);
    next.check().expect("a majority has it");
    next.release().expect("a majority had it");
}

/// Three votes are gone, although only a minority of the nodes can say so at the same time.
fn a_vote_that_is_gone_counts_however_few_nodes_answer(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = world.manager();
    nodes.stop(&[3, 4]);
    let guard = locks.mutex("n").lease(secs(9)).lock();
    let guard = guard.expect("three nodes are there");
    // The second node says that it has no key, the first confirms, and the third says nothing.
    nodes.delete(&[1], "n");
    nodes.pause(&[2]);
    let loss = world.recv(&guard.on_lost());
    assert_eq!(loss.cause, LostCause::Removed);
}

/// The wakeup thread asks each node for a further connection.
fn leases_outlive_nodes_that_admit_no_further_client(world: &World) {
    let lease = secs(4);
    let nodes = Nodes::new(world, 3);
    let locks = world.build(|it| it.lease(lease));
    let guard = locked_on_all(world, &locks.mutex("n"));
    world.until("the renewal thread has connections too", || {
        locks.stats().renewed > 1 && guard.missing_nodes().is_empty()
    });
    for node in nodes.all() {
        world.fault(Fault::Fill(node, true));
    }
    let _requested = guard.on_requested();
    let renewed = locks.stats().renewed;
    world.pass(lease * 2);
    guard.check().expect("it is renewed");
    assert!(locks.stats().renewed > renewed);
    assert!(guard.missing_nodes().is_empty());
}

/// The nodes hang when a waiter asks again, and its time is over before theirs.
fn a_wait_whose_last_request_is_cut_short_ends_as_held(world: &World) {
    let nodes = Nodes::new(world, 3);
    let holder = world.build(|it| it.lease(LONG));
    let _guard = locked_on_all(world, &holder.mutex("n"));
    let locks = world.build(|it| it.node_timeout(secs(8)));
    let ends_at = world.now() + secs(4);
    let waiter = try_locking(&locks, secs(4));
    nodes.wait_until_waiting("n");
    nodes.pause(&nodes.all());
    assert!(!waiter.end().expect("it had the answer that it is held"));
    assert!(world.now() >= ends_at && world.now() <= world.within(ends_at));
}

/// Three of five nodes are gone, and one hangs until the wait is over.
fn a_wait_that_a_majority_refuses_at_its_end_is_an_error(world: &World) {
    let nodes = Nodes::new(world, 5);
    let holder = world.build(|it| it.lease(LONG));
    let _guard = locked_on_all(world, &holder.mutex("n"));
    let locks = world.build(|it| it.node_timeout(secs(8)));
    let ends_at = world.now() + secs(4);
    let waiter = try_locking(&locks, secs(4));
    nodes.wait_until_waiting("n");
    nodes.pause(&[0]);
    nodes.stop(&[1, 2, 3]);
    let end = waiter.end();
    assert!(matches!(end, Err(Error::NoQuorum { .. })), "{end:?}");
    assert!(world.now() <= world.within(ends_at));
}

fn try_locking(locks: &Locks, wait: Duration) -> Task<leasehold::Result<bool>> {
    let mutex = locks.mutex("n");
    locks.thread(move || mutex.try_lock_for(wait).map(|guard| guard.is_some()))
}

/// A node hangs while two calls connect for the first time.
fn a_call_connects_for_no_longer_than_it_lasts(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.build(|it| it.node_timeout(secs(60)));
    nodes.pause(&[2]);
    let latest = world.within(world.now() + secs(6));
    let calls = ["a", "b"].map(|name| {
        let mutex = locks.mutex(name);
        locks.thread(move || mutex.try_lock_for(secs(6)))
    });
    let guards = calls.map(|call| call.end().expect("two nodes are well"));
    assert!(world.now() <= latest, "{:?}", world.now());
    assert!(guards.iter().all(Option::is_some));
}

/// Three of five nodes have the holder, and the keys of the other two are gone.
fn a_try_beside_a_waiter_with_two_votes_learns_that_it_is_held(world: &World) {
    let nodes = Nodes::new(world, 5);
    let holder = world.build(|it| it.lease(LONG));
    let guard = locked_on_all(world, &holder.mutex("n"));
    nodes.delete(&[3, 4], "n");
    let other = world.build(|it| it.lease(LONG));
    let waiter = locking(&other, other.mutex("n"));
    nodes.wait_until_waiting("n");
    for _ in 0..3 {
        let tried = other.try_lock("n").expect("a waiter knows that it is held");
        assert!(tried.is_none());
    }
    guard.release().expect("a majority has it");
    drop(waiter.end().expect("it becomes free"));
}

/// A waiter waits at all nodes, and gets the lock from two of three.
fn an_owner_leaves_the_queues_of_the_nodes_that_did_not_grant_it_the_lock(world: &World) {
    an_owner_leaves_the_other_queues(world, secs(0));
}

fn an_owner_that_keeps_the_lock_for_min_hold_leaves_the_other_queues(world: &World) {
    an_owner_leaves_the_other_queues(world, secs(60));
}

fn an_owner_leaves_the_other_queues(world: &World, min_hold: Duration) {
    let nodes = Nodes::new(world, 3);
    let (one, other) = (world.manager(), world.build(|it| it.min_hold(min_hold)));
    let guard = locked_on_all(world, &one.mutex("n"));
    let waiter = locking(&other, other.mutex("n"));
    nodes.wait_until_waiting_everywhere("n");
    let () = nodes.each[2].ask(&["SET", "n", "lh1:stranger:x!", "PX", "600000"]);
    guard.release().expect("two nodes have it");
    let guard = waiter.end().expect("two nodes are free");
    guard.release().expect("two nodes have it");
    // The release has arrived at the third node too.
    world.pass(ms(20));
    assert_eq!(nodes.each[2].queue("n"), [""; 0]);
    assert_eq!(nodes.each[0].exists("n"), min_hold > secs(0));
}

/// With one node stopped, an acquire waits for it once. Then the node is skipped.
fn a_node_that_hangs_delays_an_acquire_only_seldom(world: &World) {
    let nodes = Nodes::new(world, 5);
    let limit = secs(2);
    let locks = world.build(|it| it.node_timeout(limit));
    drop(locked_on_all(world, &locks.mutex("n")));
    nodes.pause(&[2]);
    let mut slow = 0;
    let ends_at = world.now() + secs(6);
    while world.now() < ends_at {
        let asked_at = world.now();
        let guard = locks.lock("n").expect("four nodes are there");
        slow += u32::from(world.now() > world.within(asked_at));
        guard.release().expect("it is held");
        world.pass(ms(100));
    }
    assert!(slow <= 1, "{slow} of them waited for the node");
}

/// A manager that has no connection yet opens them all at the same time. So two nodes that hang leave it time to ask the
/// others.
fn two_nodes_that_hang_do_not_fail_the_first_call(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = world.build_lazy(|it| it);
    nodes.pause(&[0, 1]);
    let latest = world.within(world.now() + NODE_TIMEOUT);
    let guard = locks.lock("n").expect("three nodes are there");
    assert!(world.now() <= latest, "{:?}", world.now());
    guard.release().expect("it is held");
}

fn a_node_that_was_down_when_the_lock_was_asked_for_gets_no_release(world: &World) {
    let nodes = Nodes::new(world, 3);
    nodes.stop(&[2]);
    let locks = world.build(|it| it.lease(LONG));
    for _ in 0..20 {
        let guard = locks.lock("n").expect("two nodes are there");
        guard.release().expect("two had it");
    }
    // A release at the third node would be repeated meanwhile.
    world.pass(secs(5));
    assert_eq!(locks.stats().endings_repeated, 0);
}

/// A node that did not answer the first call may still have the owner. A second call takes it from that node, and nobody held
/// the lock.
fn a_release_by_force_of_an_owner_without_a_majority_is_none(world: &World) {
    let nodes = Nodes::new(world, 3);
    let (locks, operator) = (world.manager(), world.manager());
    let guard = locks.lock("n").expect("it is free");
    let owner = guard.owner().to_owned();
    let breaks = || operator.force_release("n", &owner).expect("they answer");
    assert!(breaks());
    world.until("the holder learns of it", || guard.check().is_err());
    drop(guard);
    nodes.wait_until_free_everywhere("n");
    assert!(!breaks());
    let () = nodes.each[2].ask(&["SET", "n", &owner, "PX", "600000"]);
    assert!(!breaks());
    nodes.wait_until_free_everywhere("n");
}

/// Nodes are asked for a sign of life after three seconds without a message. The time limit of a request is shorter than the
/// time between two looks.
fn a_subscription_outlives_silence(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.build(|it| it.io_timeout(ms(200)));
    let guard = world.manager().lock("n").expect("it is free");
    let waiter = locking(&locks, locks.mutex("n"));
    world.until("it waits", || locks.stats().waiting == 1);
    guard.release().expect("it was held until now");
    drop(waiter.end());
    // From then on no connection is idle for too long.
    world.pass(secs(60));
    let connects = || {
        (0..nodes.each.len())
            .map(|node| world.connects(node))
            .sum::<u64>()
    };
    let before = connects();
    world.pass(secs(300));
    assert_eq!(connects(), before);
}

/// The server may close connections that nobody uses, as its setting `timeout` makes it do.
fn connections_that_were_closed_while_idle_fail_no_call(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = world.manager();
    drop(locks.lock("n").expect("it is free"));
    for node in nodes.all() {
        locks.cut(node);
    }
    // Only a connection that was idle for a moment is looked at.
    world.pass(ms(200));
    let guard = locks.lock("n").expect("they are opened again");
    guard.release().expect("it is held");
}

/// With two nodes gone, each of two managers may have some of the votes of the others. Neither call fails then.
fn contention_over_three_of_five_nodes_fails_no_call(world: &World) {
    const TURNS: u32 = 15;
    let nodes = Nodes::new(world, 5);
    let data = &nodes.each[4];
    let managers = [(); 2].map(|()| world.manager());
    nodes.stop(&[0, 1]);
    let turns = managers.each_ref().map(|locks| {
        let (lock, world, data) = (Kind::Mutex.of(locks, "n"), world.clone(), data.clone());
        locks.thread(move || add_under(&world, &data, &lock, TURNS))
    });
    for turns in turns {
        turns.end();
    }
    let (sum, fences) = added(data, "n");
    assert_eq!((sum, fences.len()), (2 * TURNS, 2 * TURNS as usize));
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    for locks in managers {
        assert_eq!(locks.stats().failed, 0);
    }
}

/// The server counts its uptime by its clock, so it may be below zero.
fn a_node_whose_clock_was_set_back_since_its_start_votes(world: &World) {
    let nodes = Nodes::new(world, 3);
    nodes.set_clocks(&nodes.all(), 3 * HOUR, true);
    let uptime: String = nodes.each[0].ask(&["INFO", "server"]);
    assert!(uptime.contains("uptime_in_seconds:-"), "{uptime}");
    let locks = world.build_lazy(|it| it);
    drop(locks.lock("n").expect("the nodes are there"));
}

/// The node hangs when the renewal thread connects to it, or when the lease is renewed.
fn a_short_lease_outlives_a_node_that_hangs(world: &World, hangs_at_connect: bool) {
    const LEASE: Duration = secs(4);
    let nodes = Nodes::new(world, 3);
    let limit = 2 * LEASE;
    let locks = world.build(|it| it.node_timeout(limit).connect_timeout(limit));
    let mutex = locks.mutex("n").lease(LEASE);
    let guard = if hangs_at_connect {
        nodes.pause(&[2]);
        mutex.lock().expect("two nodes are well")
    } else {
        let guard = locked_on_all(world, &mutex);
        world.until("it is renewed", || locks.stats().renewed > 0);
        nodes.pause(&[2]);
        guard
    };
    let before = locks.stats().renewed;
    world.pass(3 * LEASE);
    guard.check().expect("two nodes are well");
    assert!(locks.stats().renewed >= before + 4);
    guard.release().expect("it is held");
}

fn a_short_lease_outlives_a_node_that_hangs_while_it_is_connected_to(world: &World) {
    a_short_lease_outlives_a_node_that_hangs(world, true);
}

fn a_short_lease_outlives_a_node_that_hangs_while_it_is_asked(world: &World) {
    a_short_lease_outlives_a_node_that_hangs(world, false);
}

/// Two of three nodes close each connection.
fn nodes_are_probed_often_while_a_majority_is_missing_and_wanted(world: &World) {
    const PROBES: u64 = 50;
    let locks = world.build_lazy(|it| it);
    locks.strike_at(&[1, 2], LinkFault::Close);
    // Each call probes, 50 ms after the last probe. With the pauses of a second between planned probes, they would take a minute.
    let ends_at = world.now() + ms(80) * PROBES as u32;
    while world.now() < ends_at {
        let failed = locks.try_lock("n").expect_err("one node is no majority");
        assert!(is_unreachable(&failed), "{failed:?}");
        world.pass(ms(20));
    }
    for node in [1, 2] {
        let probes = locks.struck_at(node);
        assert!(probes >= PROBES, "{probes}");
    }
}

/// All nodes hang for most of a lease. A server alone would still have the key.
fn a_lease_outlives_an_outage_of_all_nodes_that_is_shorter(world: &World) {
    const LEASE: Duration = secs(14);
    let nodes = Nodes::new(world, 3);
    let locks = world.manager();
    let guard = locked_on_all(world, &locks.mutex("n").lease(LEASE));
    let before = locks.stats().renewed;
    nodes.pause(&nodes.all());
    // Nobody else wants a majority meanwhile.
    world.until("a third of it is left", || guard.remaining() < LEASE / 3);
    nodes.resume(&nodes.all());
    world.until("it is renewed", || locks.stats().renewed > before);
    guard.release().expect("it is held");
}

/// The connect alone takes longer than a request may.
fn a_node_that_is_slow_to_connect_to_votes(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.build_lazy(|it| {
        it.node_timeout(ms(1500))
            .connect_timeout(secs(10))
            .io_timeout(secs(5))
    });
    locks.strike_at(&[2], LinkFault::Late(ms(500)));
    nodes.stop(&[1]);
    world.until("two nodes grant it", || {
        guard_of(locks.try_lock("n")).is_some()
    });
}

/// An acquire waits for a slow node for at most 2 ms after a majority has granted the lock.
fn a_slow_node_does_not_delay_each_acquire(world: &World) {
    let locks = world.build(|it| it.node_timeout(secs(10)));
    drop(locked_on_all(world, &locks.mutex("first")));
    locks.strike_at(&[2], LinkFault::Late(ms(2500)));
    for number in 0..8 {
        let asked_at = world.now();
        let guard = locks.lock(number.to_string()).expect("two nodes are well");
        guard.release().expect("two nodes had it");
        assert!(world.now() <= world.within(asked_at), "{:?}", world.now());
    }
}

/// One node missed the grant, so the lease needs both others. The connection to one of them has ended.
fn an_extension_waits_for_the_connection_to_a_node_that_voted(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.build(|it| it.lease(LONG).node_timeout(secs(10)));
    drop(locked_on_all(world, &locks.mutex("other")));
    nodes.pause(&[2]);
    let guard = locks.lock("n").expect("two nodes are well");
    nodes.resume(&[2]);
    locks.cut(1);
    locks.strike_at(&[1], LinkFault::Late(ms(500)));
    // Only a connection that was idle for a moment is looked at.
    world.pass(ms(200));
    guard
        .extend(LONG + secs(60))
        .expect("both nodes that voted have it");
}

/// While a node hangs, it misses the releases that matter. It was not asked for the far more locks that come then, so it
/// has missed nothing of them. Then another node hangs.
fn free_names_are_granted_after_a_node_has_missed_many_releases(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.build(|it| it.lease(LONG));
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let lock = |name: &String| locked_on_all(world, &locks.mutex(name));
    let guards: Vec<_> = names.iter().map(lock).collect();
    nodes.pause(&[2]);
    drop(guards);
    for number in 0..200 {
        let other = locks.lock(format!("other {number}"));
        drop(other.expect("two nodes are well"));
    }
    nodes.resume(&[2]);
    world.until("the node has executed the releases", || {
        names.iter().all(|name| !nodes.each[2].exists(name))
    });
    nodes.pause(&[1]);
    for name in &names {
        world.until("it is granted", || guard_of(locks.try_lock(name)).is_some());
    }
}
