//! The calls of operators on a cluster.

use std::collections::BTreeSet;

use crate::support::{Cluster, PATIENCE, locked_at_last, lost, names_of_masters, secs, slot_of};

#[test]
fn a_lock_of_any_slot_is_inspected_and_released_by_force() {
    let cluster = Cluster::start();
    let (holder, operator) = (cluster.manager(), cluster.manager());
    let pings = operator.ping().expect("the masters are known");
    assert_eq!(pings.len(), names_of_masters().len());
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
        losses.recv_timeout(PATIENCE).expect("it is notified");
        lost(guard.release());
    }
}

/// The scan of the first master begins again at its replica.
#[test]
fn a_list_shows_each_lock_once_although_a_master_fails_meanwhile() {
    const LOCKS: usize = 900;
    let cluster = Cluster::start();
    let locks = cluster.manager();
    let names: Vec<_> = (0..LOCKS).map(|number| format!("lock-{number}")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| {
            let mutex = locks.mutex(name).lease(secs(600));
            mutex.lock().expect("it is free")
        })
        .collect();
    let all = || {
        let all = locks.list("lock-*");
        all.map(|lock| lock.expect("all masters are well").name)
            .collect::<Vec<_>>()
    };
    let listed = all();
    let once: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!((listed.len(), once.len()), (LOCKS, LOCKS));
    for server in &cluster.servers()[..3] {
        let _: u32 = server.raw().ask(&["WAIT", "1", "0"]);
    }
    let mut list = locks.list("lock-*");
    let mut seen: Vec<_> = list.by_ref().take(1).collect();
    // The scan begins with the master of slot 0.
    let first = names.iter().min_by_key(|name| slot_of(name)).expect("some");
    let (master, replica) = cluster.owner(first);
    master.kill();
    cluster.wait_for_failover(master, replica, slot_of(first));
    locked_at_last(&locks, &names_of_masters()[0]);
    seen.extend(list);
    let seen: Vec<_> = seen
        .into_iter()
        .map(|lock| lock.expect("they are well").name)
        .collect();
    let once: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!((seen.len(), once.len()), (LOCKS, LOCKS));
    drop(guards);
}
