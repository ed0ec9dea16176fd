//! Locks of all slots of a cluster, and slots that move. `failovers` has the failovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Admission, Error, LockGuard, LockManager};
use leasehold_simulator::{LinkFault, Refusal, Refused, Topology};
use leasehold_test_support::names_of_masters;

use crate::failovers::locked_at_last;
use crate::matrix::{Subject, subject_bodies};
use crate::subject::{Kind, lost};
use crate::world::{Fault, Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "cluster",
    &[Topology::Cluster],
    subject_bodies![
        a_rate_limiter_counts_the_permits_of_all_processes,
        a_claim_is_adopted_by_another_process,
        a_multi_lock_over_slots_excludes_each_of_its_names,
        a_multi_lock_that_loses_an_earlier_slot_begins_again,
        a_multi_lock_that_gets_only_some_names_keeps_none_for_its_min_hold,
        without_full_coverage_the_slots_of_other_masters_are_served,
        a_master_with_too_few_replicas_grants_nothing,
        a_replica_that_hangs_is_no_failure_of_its_master,
        the_cluster_is_found_from_any_node_that_answers,
        a_master_that_hangs_delays_no_build,
        an_error_names_the_node_that_failed_and_who_has_named_it,
        a_wrong_password_is_denied_and_not_shown,
        a_lock_of_any_slot_is_inspected_and_released_by_force,
        a_slot_moves_under_load_forwards_and_back_and_no_holder_loses_its_lock,
        a_lock_waits_for_the_end_of_the_move_of_its_slot,
        a_node_to_which_a_slot_moves_and_that_hangs_delays_no_other_renewal,
        a_short_lease_is_renewed_while_a_long_one_waits_for_a_master_that_hangs,
        leases_at_several_masters_are_renewed_over_a_slow_link,
    ],
);

pub(crate) const FOREIGN_BODIES: Subject = (
    "cluster",
    &[Topology::Single, Topology::Cluster],
    subject_bodies![a_server_that_is_no_node_of_a_cluster_is_unsupported],
);

const MASTERS: usize = 3;
const NODES: usize = 6;

fn url(server: usize) -> String {
    format!("redis://10.0.0.{}:6379", server + 1)
}

fn a_rate_limiter_counts_the_permits_of_all_processes(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    for name in names_of_masters() {
        let limited = |locks: &Locks| locks.rate_limiter(&name, 1, secs(600)).try_acquire();
        assert_eq!(limited(&one).expect("asked"), Admission::Admitted);
        assert!(limited(&other).expect("asked") != Admission::Admitted);
    }
}

fn a_claim_is_adopted_by_another_process(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    for name in names_of_masters() {
        let guard = one.lock(&name).expect("it is free");
        let fence = guard.fence();
        let claim = guard.detach();
        let adopted = other.adopt(&claim).expect("nobody else has");
        assert!(adopted.fence() > fence);
        adopted.release().expect("it is held");
    }
}

fn a_multi_lock_over_slots_excludes_each_of_its_names(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    let names = names_of_masters();
    let set = one.multi(&names);
    let guard = set.lock().expect("all are free");
    for name in &names {
        assert!(other.try_lock(name).expect("asked").is_none());
    }
    let two = other.multi(&names[1..]).try_lock();
    assert!(two.expect("asked").is_none());
    guard.extend(secs(120)).expect("all are held");
    guard.release().expect("all are held");
    // A try that gets only some of the names keeps none.
    let last = other.lock(&names[2]).expect("it is free");
    assert!(set.try_lock().expect("asked").is_none());
    for name in &names[..2] {
        drop(other.try_lock(name).expect("asked").expect("it is free"));
    }
    last.release().expect("it is held");
    drop(set.try_lock().expect("asked").expect("all are free"));
}

#[track_caller]
fn assert_unavailable(locks: &Locks, name: &str) {
    let error = locks.try_lock(name).expect_err("no master serves its slot");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// The wait for a later slot outlasts the lease of the first one, and another process takes that.
fn a_multi_lock_that_loses_an_earlier_slot_begins_again(world: &World) {
    let [one, other] = [(); 2].map(|()| world.manager());
    let names = names_of_masters();
    // The slots are asked for in their order, which the names do not show. So each name is once the one that is held.
    for last in 0..names.len() {
        let set = one.multi(&names).lease(secs(2)).renew(false);
        let held = other.lock(&names[last]).expect("it is free");
        let locking = one.thread(move || set.lock().map(|guard| guard.check().is_ok()));
        world.pass(secs(5));
        assert!(!locking.has_ended());
        let taken: Vec<_> = (0..names.len())
            .filter(|name| *name != last)
            .map(|name| other.try_lock_for(&names[name], secs(5)))
            .map(|guard| guard.expect("asked").expect("its lease has ended"))
            .collect();
        held.release().expect("it is held");
        world.pass(secs(5));
        assert!(!locking.has_ended(), "it lacks the other names");
        drop(taken);
        assert!(locking.end().expect("all are free"), "it lacks a name");
    }
}

/// Otherwise it waits for itself when it begins again, and may lose an earlier name meanwhile, without end.
fn a_multi_lock_that_gets_only_some_names_keeps_none_for_its_min_hold(world: &World) {
    let [one, other] = [(); 2].map(|()| world.manager());
    let names = names_of_masters();
    let set = one.multi(&names).min_hold(secs(60));
    for last in 0..names.len() {
        let held = other.lock(&names[last]).expect("it is free");
        assert!(set.try_lock().expect("asked").is_none());
        for name in names.iter().filter(|name| **name != names[last]) {
            drop(other.try_lock(name).expect("asked").expect("it is free"));
        }
        let set = one.multi(&names).min_hold(secs(4)).max_hold(Some(secs(2)));
        let locking = one.thread(move || set.lock().map(|guard| guard.check().is_ok()));
        world.pass(secs(3));
        held.release().expect("it is held");
        let begun = world.now();
        assert!(locking.end().expect("all become free"), "it lacks a name");
        assert!(
            world.now() <= world.within(begun + secs(5)),
            "it has waited for itself"
        );
        for name in &names {
            drop(other.lock(name).expect("its `min_hold` ends"));
        }
    }
}

/// A cluster refuses all keys while a slot has no master, unless it need not have all slots.
fn without_full_coverage_the_slots_of_other_masters_are_served(world: &World) {
    let short = Duration::from_millis(300);
    let locks = world.build(|it| it.io_timeout(short).lease(secs(1)));
    let names = names_of_masters();
    let require = |is_required: bool| {
        let refusal = is_required.then_some(Refusal {
            what: Refused::Writes,
            error: "CLUSTERDOWN The cluster is down",
        });
        for other in [1, 2, 4, 5] {
            world.fault(Fault::Refuse(other, refusal));
        }
    };
    world.fault(Fault::StopServer(3));
    world.fault(Fault::StopServer(0));
    require(true);
    for name in &names {
        assert_unavailable(&locks, name);
    }
    require(false);
    for name in &names[1..] {
        let begun = world.now();
        locked_at_last(world, &locks, name);
        assert!(world.now() <= world.within(begun));
    }
    assert_unavailable(&locks, &names[0]);
    // A new process finds the others too.
    locked_at_last(world, &world.manager(), &names[1]);
}

fn a_master_with_too_few_replicas_grants_nothing(world: &World) {
    let locks = world.manager();
    let names = names_of_masters();
    let refusal = Refusal {
        what: Refused::Writes,
        error: "NOREPLICAS Not enough good replicas to write.",
    };
    world.fault(Fault::Refuse(0, Some(refusal)));
    assert_unavailable(&locks, &names[0]);
    drop(locks.lock(&names[1]).expect("this master needs none"));
    world.fault(Fault::Refuse(0, None));
    let begun = world.now();
    drop(locks.lock(&names[0]).expect("it has enough"));
    assert!(world.now() <= world.within(begun));
}

/// The master answers each renewal, although too few replicas have it. So no renewal is left out, and the master is not
/// suspected, which would be logged.
fn a_replica_that_hangs_is_no_failure_of_its_master(world: &World) {
    let locks = world.build(|it| it.replicas(1).lease(secs(12)));
    let locked = |name: &String| locks.lock(name).expect("it is free");
    let names = names_of_masters();
    let guards: Vec<_> = names.iter().map(locked).collect();
    let redis = world.redis_at(world.master(&names[0]));
    let writes = || {
        let (_, offset, _): (String, u64, redis::Value) = redis.ask(&["ROLE"]);
        offset
    };
    for replica in world.replicas(&names[0]) {
        world.fault(Fault::PauseServer(replica));
    }
    let (mut before, mut renewals) = (writes(), 0);
    let lines = world.log_lines();
    while guards[0].remaining() > secs(6) {
        world.pass(ms(100));
        let now = writes();
        renewals += u32::from(now != before);
        before = now;
    }
    // The first renewal after a third of the lease, and its repeats after about a second each.
    assert!(renewals >= 2, "{renewals}");
    assert_eq!(world.log_lines(), lines);
    assert!(guards[1].remaining() > secs(6), "the others are renewed");
}

fn the_cluster_is_found_from_any_node_that_answers(world: &World) {
    let mut last = locked_at_last(world, &world.manager(), "n");
    for node in 0..NODES {
        let begun = world.now();
        let found = world.build(|_| LockManager::cluster([url(99), url(node)]));
        let guard = found.lock("n").expect("one of them answers");
        assert!(world.now() <= world.within(begun));
        assert!(guard.fence() > last);
        last = guard.fence();
    }
    let dead = world.try_build(|_| LockManager::cluster([url(99)]));
    let error = dead.map(drop).expect_err("there is none");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// It accepts connections, and answers nothing.
fn a_master_that_hangs_delays_no_build(world: &World) {
    for hung in 0..MASTERS {
        world.fault(Fault::PauseServer(hung));
        let begun = world.now();
        drop(world.manager());
        // So long a build waits for the others, to compare the tables of all that answer.
        assert!(world.now() <= world.within(begun + Duration::from_millis(200)));
        world.fault(Fault::ResumeServer(hung));
    }
}

/// The nodes may name each other by addresses that this process does not reach.
fn an_error_names_the_node_that_failed_and_who_has_named_it(world: &World) {
    let says = |outcome: leasehold::Result<()>, parts: &[&str]| {
        let said = format!("{:#}", outcome.expect_err("a node is gone"));
        assert!(
            parts.iter().all(|part| said.contains(part)),
            "{parts:?}: {said}"
        );
    };
    let locks = world.build(|_| LockManager::cluster([url(1)]));
    // A master and its replica.
    world.fault(Fault::StopServer(0));
    world.fault(Fault::StopServer(MASTERS));
    let failed = names_of_masters().map(|name| locks.try_lock(name).map(drop));
    let failed = failed.into_iter().find(Result::is_err);
    let named =
        "the cluster names 10.0.0.1:6379 as a master: the connection to 10.0.0.1:6379 failed";
    says(failed.expect("it had slots"), &[named]);
    // One node hangs, and another refuses.
    let refuse = |node, error| {
        let what = Refused::All;
        world.fault(Fault::Refuse(node, Some(Refusal { what, error })));
    };
    world.fault(Fault::PauseServer(2));
    refuse(1, "LOADING Redis is loading the dataset in memory");
    let build = || {
        let built = world.try_build(|_| {
            LockManager::cluster([url(1), url(2)]).connect_timeout(Duration::from_millis(500))
        });
        built.map(drop)
    };
    let named = "no node of the cluster has named its slots: asking 10.0.0.2:6379: LOADING";
    says(build(), &[named]);
    world.fault(Fault::StopServer(2));
    refuse(1, "NOAUTH Authentication required.");
    says(
        build(),
        &["the server denies access: asking 10.0.0.2:6379: NOAUTH"],
    );
}

/// Nor is a node of a cluster a single server.
fn a_server_that_is_no_node_of_a_cluster_is_unsupported(world: &World) {
    let is_single = world.topology() == Topology::Single;
    let built = world.try_build(|_| {
        if is_single {
            LockManager::cluster([url(0)])
        } else {
            LockManager::single(&url(0))
        }
    });
    let error = built.map(drop).expect_err("it is of the other topology");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("a URL that begins with redis"), "{text}");
}

fn a_wrong_password_is_denied_and_not_shown(world: &World) {
    for node in 0..NODES {
        let rules = ["ACL", "SETUSER", "default", "resetpass", ">s3cret"];
        let () = world.redis_at(node).ask(&rules);
    }
    drop(world.build(|it| it.password("s3cret")));
    for wrong in [Some("s3cret-wrong"), None] {
        let built = world.try_build(|it| match wrong {
            Some(wrong) => it.password(wrong),
            None => it,
        });
        let error = built.map(drop).expect_err("it is wrong");
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        let shown = format!("{error:?} {error:#}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

fn a_lock_of_any_slot_is_inspected_and_released_by_force(world: &World) {
    let (holder, operator) = (world.manager(), world.manager());
    let pings = operator.ping().expect("the masters are known");
    assert_eq!(pings.len(), MASTERS);
    assert!(pings.iter().all(|ping| ping.result.is_ok()), "{pings:?}");
    for name in names_of_masters() {
        assert_eq!(operator.inspect(&name).expect("asked"), None);
        let guard = holder.lock(&name).expect("it is free");
        let losses = guard.on_lost();
        let seen = operator.inspect(&name).expect("asked").expect("it is held");
        assert_eq!(seen.holders[0].owner, guard.owner());
        let released = operator.force_release(&name, guard.owner());
        assert!(released.expect("asked"));
        guard.extend(secs(600)).expect_err("it is released");
        world.recv(&losses);
        lost(guard.release());
    }
}

/// The names of the slot that moves.
const MOVING: &str = "{moving}";

fn name(number: usize) -> String {
    format!("{MOVING}{number}")
}

/// Locks and unlocks names of the slot until `stop`. Counts the turns.
fn turns(world: &World, locks: &Locks, stop: &AtomicBool, turns: &AtomicU32) {
    for number in (100..110).cycle() {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        match locks.try_lock_for(name(number), secs(1)) {
            Ok(Some(guard)) => {
                guard.release().expect("it is held");
                turns.fetch_add(1, Ordering::SeqCst);
                world.pass(Duration::from_millis(100));
            }
            // The slot moves for longer than the wait.
            Ok(None) | Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Moves the slot to another master. Half of its keys have moved at some time, and their leases are renewed all the while.
fn move_slot(world: &World, guards: &[LockGuard]) {
    const LENGTH: Duration = secs(4);
    let old = world.master(MOVING);
    world.fault(Fault::MoveSlot(MOVING, LENGTH));
    let begun = world.now();
    while world.master(MOVING) == old {
        world.pass(Duration::from_millis(100));
        for guard in guards {
            guard.check().expect("it is held");
            assert!(guard.remaining() > secs(1), "it is renewed after 1 s of 3");
        }
    }
    assert!(world.now() >= begun + LENGTH);
}

fn a_slot_moves_under_load_forwards_and_back_and_no_holder_loses_its_lock(world: &World) {
    let managers = [(); 2].map(|()| world.manager());
    let (stop, count) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let go_on = || {
        let before = count.load(Ordering::SeqCst);
        let go_on = || count.load(Ordering::SeqCst) >= before + 10;
        world.until("others lock names of the slot", go_on);
    };
    let load = |locks: &Locks| -> Task<()> {
        let (world, own) = (world.clone(), locks.clone());
        let (stop, count) = (Arc::clone(&stop), Arc::clone(&count));
        locks.thread(move || turns(&world, &own, &stop, &count))
    };
    let load: Vec<_> = managers.iter().map(load).collect();
    let lock = |number| {
        let mutex = managers[0].mutex(name(number)).lease(secs(3));
        mutex.lock().expect("it is free")
    };
    let guards: Vec<_> = (0..10).map(lock).collect();
    for _ in 0..2 {
        go_on();
        move_slot(world, &guards);
        go_on();
    }
    stop.store(true, Ordering::SeqCst);
    load.into_iter().for_each(Task::end);
    for guard in guards {
        guard.release().expect("it is held");
    }
}

fn a_lock_waits_for_the_end_of_the_move_of_its_slot(world: &World) {
    const LENGTH: Duration = secs(10);
    let (locks, name) = (world.manager(), name(0));
    let begun = world.now();
    world.fault(Fault::MoveSlot(MOVING, LENGTH));
    // The master that has the slot knows of the move a moment later.
    world.pass(secs(1));
    let error = locks.try_lock(&name).expect_err("the slot moves");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let waiting = Kind::Mutex.of(&locks, &name).locking();
    let received = || (0..NODES).map(|node| world.received(node)).sum::<u64>();
    let before = received();
    world.pass(secs(3));
    assert!(waiting.waits());
    // Each request pauses before it is sent again.
    let sent = received() - before;
    assert!(sent > 0 && sent < 300, "{sent} pieces of requests in 3 s");
    let (locked_at, ended_at) = (waiting.locked_at(), begun + LENGTH);
    assert!(locked_at >= ended_at && locked_at <= world.within(ended_at + secs(2)));
    waiting.release();
}

/// The node has no slot yet, so no table names it. It accepts connections, and answers nothing.
fn a_node_to_which_a_slot_moves_and_that_hangs_delays_no_other_renewal(world: &World) {
    const LEASE: Duration = secs(12);
    const IO_TIMEOUT: Duration = secs(8);
    world.make_nodes(NODES + 1);
    world.fault(Fault::PauseServer(NODES));
    let locks = world.build(|it| it.io_timeout(IO_TIMEOUT));
    let lock = |name: &String| {
        let mutex = locks.mutex(name).lease(LEASE);
        mutex.lock().expect("it is free")
    };
    let guards = names_of_masters().each_ref().map(lock);
    let refuse = |refusal| world.fault(Fault::Refuse(0, refusal));
    refuse(Some(Refusal {
        what: Refused::Data,
        error: "ASK 0 10.0.0.7:6379",
    }));
    world.until("it is redirected", || world.connects(NODES) > 0);
    let (begun, before) = (world.now(), world.received(0));
    // After half of its time, the first connection asks on another one.
    while world.now() < begun + IO_TIMEOUT * 3 / 8 {
        for guard in &guards[1..] {
            // It is renewed after a third of its lease, and the node that hangs takes a moment once.
            assert!(guard.remaining() + secs(1) > LEASE * 2 / 3);
        }
        assert_eq!(world.connects(NODES), 1, "there is a connection");
        world.pass(ms(100));
    }
    assert!(world.received(0) > before + 2, "each repeat is redirected");
    refuse(None);
    for guard in guards {
        guard.release().expect("it is held");
    }
}

/// A renewal may take a quarter of its lease, and of the long one that is more than the whole short one.
fn a_short_lease_is_renewed_while_a_long_one_waits_for_a_master_that_hangs(world: &World) {
    const LONG: Duration = secs(24);
    const SHORT: Duration = secs(3);
    let locks = world.build(|it| it.io_timeout(secs(8)));
    let [one, other, _] = names_of_masters();
    let lock = |name: &str, lease| {
        let mutex = locks.mutex(name).lease(lease);
        mutex.lock().expect("it is free")
    };
    let (long, short) = (lock(&one, LONG), lock(&other, SHORT));
    world.fault(Fault::PauseServer(world.master(&one)));
    while long.remaining() > LONG / 2 {
        short.check().expect("its master answers");
        assert!(short.remaining() > SHORT / 3);
        world.pass(ms(100));
    }
    short.release().expect("it is held");
}

/// A round trip takes longer than a quarter of the lease, which is the limit of a renewal.
fn leases_at_several_masters_are_renewed_over_a_slow_link(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(5)));
    locks.strike(LinkFault::Late(ms(1_200)));
    let lock_all = |what: &str, lease| {
        let locking = names_of_masters().map(|name| {
            let mutex = locks.mutex(format!("{{{name}}}{what}")).lease(lease);
            locks.thread(move || mutex.lock().expect("it is free"))
        });
        locking.map(Task::end)
    };
    // The first lock at each master loads the script, and the links of the renewals open meanwhile.
    let _first = lock_all("first", secs(60));
    world.pass(secs(6));
    let guards = lock_all("", secs(9));
    world.until("the leases are renewed often enough", || {
        for guard in &guards {
            guard.check().expect("it is renewed in time");
        }
        locks.stats().renewed >= 12
    });
    for guard in guards {
        guard.release().expect("it was held until now");
    }
}
