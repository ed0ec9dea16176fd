//! A server that goes away for a while.

use leasehold::LostCause;
use leasehold_simulator::Topology;

use crate::matrix::Capability::{Always, OneServer};
use crate::matrix::{Chapter, bodies};
use crate::subject::{Kind, is_unreachable, lost};
use crate::world::{World, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_wait_survives_the_servers_restart,
            a_release_that_fails_is_repeated,
            a_key_that_outlives_an_outage_is_released_after_it,
        ],
    ),
    (
        OneServer,
        bodies![
            a_lock_that_a_restart_has_lost_does_not_go_on_in_memory,
            after_the_loss_of_all_data_no_release_frees_the_lock_of_another,
        ],
    ),
];

pub(crate) fn a_wait_survives_the_servers_restart(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("restart"));
    let lease = secs(3);
    let guard = kind.rival().of(&world.manager(), &name).lease(lease).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    let waiter = kind.of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, 1);
    // All data is gone, and with it the lock and its queue.
    world.restart_servers_empty();
    wait_until_up(world, kind, &name);
    let up_at = world.now();
    // The next poll finds it free, and the next renewal finds it gone.
    assert!(waiter.locked_at() <= world.within(up_at + secs(1)));
    let loss = world.recv(&losses);
    assert!(world.now() <= world.within(up_at + lease / 3));
    assert!(matches!(
        loss.cause,
        LostCause::Removed | LostCause::Taken | LostCause::Expired
    ));
    assert_eq!(lost(guard.release()), loss);
}

/// Blocks until the servers of a lock reply. The nodes of a cluster must first agree that it is up.
fn wait_until_up(world: &World, kind: Kind, name: &str) {
    let (redis, keys) = (world.redis(), kind.keys(name));
    let replies = |key: &String| redis.try_ask::<bool>(&["EXISTS", key]).is_ok();
    world.until("the servers reply", || keys.iter().all(replies));
}

pub(crate) fn a_release_that_fails_is_repeated(world: &World, kind: Kind) {
    let (silent, down) = (["silent", "silent:drop"], ["down", "down:drop"]);
    let (pause, resume) = (World::pause_servers, World::resume_servers);
    a_release_fails_meanwhile(world, kind, silent, pause, resume);
    a_release_fails_meanwhile(world, kind, down, World::stop_servers, World::start_servers);
}

fn a_release_fails_meanwhile(
    world: &World,
    kind: Kind,
    names: [&str; 2],
    begin: impl Fn(&World),
    end: impl Fn(&World),
) {
    let limit = secs(2);
    let redis = world.redis();
    let locks = world.build(|it| it.io_timeout(limit).node_timeout(limit));
    let names = names.map(|it| world.name(it));
    // It is not the end of the lease that frees it.
    let [released, dropped] = names.each_ref().map(|name| {
        let guard = kind.of(&locks, name).lease(secs(60)).lock();
        guard.expect("it is free")
    });
    begin(world);
    let asked_at = world.now();
    let failed = released.release();
    assert!(failed.as_ref().is_err_and(is_unreachable), "{failed:?}");
    drop(dropped);
    assert!(world.now() <= world.within(asked_at + 2 * limit));
    end(world);
    for name in &names {
        wait_until_up(world, kind, name);
    }
    let up_at = world.now();
    for name in &names {
        redis.wait_until_free(kind, name);
    }
    // The pauses before the next try are at most a second. On a cluster, it may have to read the slots again first.
    let pauses = match world.topology() {
        Topology::Cluster => secs(2),
        _ => secs(1),
    };
    assert!(world.now() <= world.within(up_at + pauses));
    assert!(locks.close(secs(30)), "something is left to send");
}

/// Redis keeps the key for longer than the outage lasts, and the outage lasts for longer than a lease.
pub(crate) fn a_key_that_outlives_an_outage_is_released_after_it(world: &World, kind: Kind) {
    let (redis, limit) = (world.redis(), secs(1));
    let (lease, kept) = (secs(3), secs(600));
    let locks = world.build(|it| it.io_timeout(limit).node_timeout(limit));
    let background = world.build(|it| {
        it.io_timeout(limit)
            .node_timeout(limit)
            .background_release(true)
    });
    let names = ["released", "dropped", "taken-over"].map(|it| world.name(it));
    let [released, dropped, taken_over] = names.each_ref().map(|name| {
        let manager = if name.contains("dropped") {
            &background
        } else {
            &locks
        };
        let guard = kind.of(manager, name).lease(lease).lock();
        let guard = guard.expect("it is free");
        guard.lease().extend(kept).expect("it is held");
        guard
    });
    // The next thread has a shorter lease than the key.
    let waiter = kind.rival().of(&locks, &names[2]).lease(lease);
    let waiter = waiter.locking_asleep();
    world.stop_servers();
    assert!(released.release().is_err(), "no server answers");
    drop(dropped);
    drop(taken_over);
    world.pass(5 * lease);
    for manager in [&locks, &background] {
        assert!(!manager.close(secs(0)), "the key may still exist");
    }
    world.start_servers();
    for name in &names {
        wait_until_up(world, kind, name);
    }
    drop(waiter);
    for name in &names {
        redis.wait_until_free(kind, name);
    }
    for manager in [&locks, &background] {
        assert!(manager.close(secs(30)), "something is left to send");
    }
}

/// The server has lost its data, and another process has the lock, before the next thread of the former holder has it.
pub(crate) fn a_lock_that_a_restart_has_lost_does_not_go_on_in_memory(world: &World, kind: Kind) {
    for is_extended in [false, true] {
        let name = world.name(&format!("forgotten-{is_extended}"));
        // No quantum ends meanwhile, so only the closed connection makes a thread ask.
        let one = world.build(|it| it.quantum(secs(3600)).lease(secs(600)));
        let other = world.manager();
        let lock = kind.of(&one, &name);
        let guard = lock.lock().expect("it is free");
        if is_extended {
            // The deadline of an extended lease does not tell when the server has confirmed it.
            guard.lease().extend(secs(900)).expect("it is held");
        }
        let (mut shared, mut next) = (None, None);
        if kind.rival() == kind && kind.family() != Kind::Permit {
            // A lease that was taken over has fences for further threads.
            let holder = lock.locking_asleep();
            guard.release().expect("it was held until now");
            holder.locked();
            next = Some((holder, lock.locking_asleep()));
        } else {
            shared = Some(guard);
        }
        world.restart_servers_empty();
        wait_until_up(world, kind, &name);
        let theirs = kind.rival().of(&other, &name).lock();
        let theirs = theirs.expect("the server knows of no holder");
        // A call finds that its connection has ended.
        drop(one.try_lock("another").expect("the server replies"));
        if let Some((holder, next)) = next {
            drop(holder);
            world.pass(secs(5));
            assert!(next.waits(), "it was handed on in memory");
            theirs.release().expect("it was held until now");
            next.locked();
        } else {
            let tried = lock.try_lock().expect("the server replies");
            assert!(tried.is_none(), "it was shared in memory");
            drop(shared);
        }
    }
}

fn after_the_loss_of_all_data_no_release_frees_the_lock_of_another(world: &World, kind: Kind) {
    let name = world.name("forgotten");
    let rival = kind.rival().of(&world.manager(), &name);
    // With a lease of 30 s, no renewal finds the loss.
    let forgotten = kind.of(&world.manager(), &name).lock();
    let forgotten = forgotten.expect("it is free");
    world.restart_servers_empty();
    wait_until_up(world, kind, &name);
    let next = rival.lock().expect("the data is gone");
    assert!(kind.rises(forgotten.fence(), next.fence()));
    // The restart may have cut the first request short. Then nobody knows whether it was the release.
    forgotten.release().ok();
    let third = kind.of(&world.manager(), &name);
    assert!(third.try_lock().expect("Redis replies").is_none());
    next.release().expect("it was held until now");
}
