//! Masters of a cluster that fail.

use leasehold::{Error, LeaseState, LockGuard, LostCause};

use super::end_of;
use crate::support::{
    Cluster, FencedWriters, Kind, PATIENCE, Server, build, locked_at_last, locking_asleep, lost,
    names_of_masters, secs, slot_of, wait_for_servers, wait_until,
};

const LEASES: usize = 1000;

/// Checks that no guard reads held without time left.
fn check_deadline(guard: &LockGuard) {
    let (state, left) = (guard.state(), guard.remaining());
    // The lease may end between the two.
    let is_held = guard.state() != LeaseState::Lost;
    assert!(!left.is_zero() || !is_held, "{state:?}");
}

/// A master fails under load. Only its own leases may be lost.
fn the_leases_of_other_masters_are_renewed(fail: fn(&Server)) {
    let cluster = Cluster::start();
    let locks = cluster.builder().io_timeout(secs(2)).build();
    let locks = locks.expect("all are there");
    let failed_name = &names_of_masters()[0];
    let (master, replica) = cluster.owner(failed_name);
    let guards: Vec<_> = (0..LEASES)
        .map(|number| {
            let mutex = locks.mutex(format!("lease-{number}")).lease(secs(30));
            mutex.lock().expect("it is free")
        })
        .collect();
    let is_of_failed =
        |guard: &LockGuard| cluster.is_owner_by(replica, slot_of(guard.name()), master);
    let (of_failed, of_others): (Vec<_>, Vec<_>) = guards.into_iter().partition(is_of_failed);
    assert!(of_failed.len() > LEASES / 10 && of_others.len() > LEASES / 3);
    fail(master);
    let other_names = &names_of_masters()[1..];
    wait_for_servers("the replica is promoted", || {
        for name in other_names {
            // The master that has failed delays no request to another.
            locked_at_last(&locks, name);
        }
        for guard in of_failed.iter().chain(&of_others) {
            check_deadline(guard);
        }
        for guard in &of_others {
            guard.check().expect("its master is well");
        }
        cluster.is_owner_by(replica, slot_of(failed_name), replica)
    });
    locked_at_last(&locks, failed_name);
    // Each lease is renewed once more, or is lost.
    let all: Vec<_> = of_others.iter().chain(&of_failed).collect();
    let ends: Vec<_> = all.iter().map(|guard| end_of(guard)).collect();
    for (guard, end) in all.into_iter().zip(ends) {
        wait_until("it is renewed or lost", || {
            check_deadline(guard);
            guard.check().is_err() || end_of(guard) > end + secs(1)
        });
    }
    for guard in of_others {
        guard.release().expect("its master is well");
    }
    for guard in of_failed {
        match guard.release() {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn the_leases_of_other_masters_are_renewed_if_one_dies() {
    the_leases_of_other_masters_are_renewed(Server::kill);
}

#[test]
fn the_leases_of_other_masters_are_renewed_if_one_hangs() {
    the_leases_of_other_masters_are_renewed(Server::pause);
}

/// Kills the master of a name. Its replica lacks all that `act` writes. Blocks until the replica is the master.
fn fail_over_without<T>(cluster: &Cluster, name: &str, act: impl FnOnce(&Server) -> T) -> T {
    let (master, replica) = cluster.owner(name);
    // WAIT counts only the writes of the connection that sends it.
    let raw = master.raw();
    let _: i64 = raw.ask(&["INCR", &format!("{{{name}}}written")]);
    let replicas: u32 = raw.ask(&["WAIT", "1", "0"]);
    assert_eq!(replicas, 1);
    replica.pause();
    let () = raw.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    let done = act(master);
    master.kill();
    replica.resume();
    cluster.wait_for_failover(master, replica, slot_of(name));
    done
}

/// The replica is stopped and cut off while the lock is granted.
#[test]
fn a_lock_that_the_new_master_lacks_is_lost_and_fenced() {
    let cluster = Cluster::start();
    let (one, other) = (cluster.manager(), cluster.manager());
    let (guard, losses) = fail_over_without(&cluster, "n", |_| {
        let guard = one.mutex("n").lease(secs(60)).lock().expect("it is free");
        let losses = guard.on_lost();
        (guard, losses)
    });
    let fence = locked_at_last(&other, "n");
    assert!(fence > guard.fence());
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert!(
        [LostCause::Removed, LostCause::Taken].contains(&loss.cause),
        "{loss:?}"
    );
    assert_eq!(lost(guard.release()), loss);
}

/// As after a crash of its holder, the lock stays for the rest of its lease.
#[test]
fn a_lock_stays_for_its_lease_if_the_new_master_lacks_its_release() {
    let cluster = Cluster::start();
    let (one, other) = (cluster.manager(), cluster.manager());
    let (_, replica) = cluster.owner("n");
    let guard = one.mutex("n").lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let owner = guard.owner().to_owned();
    fail_over_without(&cluster, "n", |_| guard.release().expect("it is held"));
    locked_at_last(&other, "{n}:another");
    assert!(other.try_lock("n").expect("Redis replies").is_none());
    let raw = replica.raw();
    assert_eq!(raw.owner("n"), Some(owner));
    // The lease is over.
    let _: u32 = raw.ask(&["PEXPIRE", "n", "1"]);
    locked_at_last(&other, "n");
}

/// B gets the lock, and the new master believes that A holds it. B learns of the loss, and nobody gets the lock meanwhile.
#[test]
fn a_hand_over_that_the_new_master_lacks_makes_no_second_holder() {
    let cluster = Cluster::start();
    let (one, other, third) = (cluster.manager(), cluster.manager(), cluster.manager());
    let (_, replica) = cluster.owner("n");
    let guard = one.mutex("n").lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let owner = guard.owner().to_owned();
    let waiting = locking_asleep(&other.mutex("n").lease(secs(600)));
    cluster.owner("n").0.raw().wait_until_queued("n", 1);
    let next = fail_over_without(&cluster, "n", |master| {
        guard.release().expect("it is held");
        let next = waiting.end().expect("it is handed over");
        // It has its whole lease, and its next renewal is far away.
        let raw = master.raw();
        wait_until("it is raised", || raw.ask::<i64>(&["PTTL", "n"]) > 400_000);
        next
    });
    let loss = next.on_lost().recv_timeout(PATIENCE).expect("it is told");
    assert_eq!(loss.cause, LostCause::Taken);
    locked_at_last(&third, "{n}:another");
    assert!(third.try_lock("n").expect("Redis replies").is_none());
    assert_eq!(replica.raw().owner("n"), Some(owner));
}

/// The first request of a wait waits, within its own time limit, until the replica has taken over.
#[test]
fn a_wait_that_begins_during_a_failover_outlasts_it() {
    let cluster = Cluster::start();
    let locks = build(cluster.builder().io_timeout(PATIENCE));
    drop(locks.lock("n").expect("it is free"));
    let (master, _) = cluster.owner("n");
    master.kill();
    let other = locks.mutex("{n}:2").lease(secs(600));
    let other = other.try_lock_for(PATIENCE);
    assert!(other.expect("the replica takes over").is_some());
}

/// Threads write to a file under the lock while the master fails. If the file refuses a write, its holder has lost the
/// lock, and learns of it.
fn a_file_with_a_fence_takes_no_stale_write(fail: fn(&Server)) {
    let cluster = Cluster::start();
    let managers = [cluster.manager(), cluster.manager()];
    let writers = FencedWriters::start(&managers, "n");
    writers.wait_for_more(20);
    let (master, replica) = cluster.owner("n");
    fail(master);
    cluster.wait_for_failover(master, replica, slot_of("n"));
    writers.wait_for_more(20);
    writers.end();
}

#[test]
fn a_file_with_a_fence_takes_no_stale_write_if_the_master_dies() {
    a_file_with_a_fence_takes_no_stale_write(Server::kill);
}

#[test]
fn a_file_with_a_fence_takes_no_stale_write_if_the_master_hangs() {
    a_file_with_a_fence_takes_no_stale_write(Server::pause);
}

/// After a manual failover, the old master is a replica, which answers every request with a redirection.
#[test]
fn a_failover_by_hand_loses_no_lock() {
    let cluster = Cluster::start();
    let (one, other) = (cluster.manager(), cluster.manager());
    let guard = one.mutex("n").lease(secs(60)).lock().expect("it is free");
    let waiting = Kind::Mutex.of(&other, "n").locking();
    let (master, replica) = cluster.owner("n");
    let () = replica.raw().ask(&["CLUSTER", "FAILOVER"]);
    cluster.wait_for_failover(master, replica, slot_of("n"));
    wait_until("it is renewed at the new master", || {
        match guard.extend(secs(120)) {
            Ok(()) => true,
            Err(Error::Unavailable { .. }) => false,
            Err(error) => panic!("{error:?}"),
        }
    });
    assert!(waiting.waits());
    guard.release().expect("it is held");
    waiting.locked();
    waiting.release();
}

#[test]
fn a_cluster_that_restarts_without_data_grants_locks_with_larger_fences() {
    let cluster = Cluster::start();
    let locks = cluster.manager();
    let names = names_of_masters();
    let fences = names.each_ref().map(|name| locked_at_last(&locks, name));
    let held = locks
        .mutex("held")
        .lease(secs(60))
        .lock()
        .expect("it is free");
    let losses = held.on_lost();
    for server in cluster.servers() {
        server.kill_for_now();
    }
    for server in cluster.servers() {
        server.start_again();
    }
    for (name, fence) in names.iter().zip(fences) {
        assert!(locked_at_last(&locks, name) > fence);
    }
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert_eq!(loss.cause, LostCause::Removed);
    drop(held);
    let new = cluster.manager();
    for name in &names {
        locked_at_last(&new, name);
    }
}
