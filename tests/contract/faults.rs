//! A server that goes away for a while.

use leasehold::LostCause;

use crate::support::{
    Kind, PATIENCE, build, is_unreachable, lost, manager, secs, settings_of, start_servers,
    wait_until,
};

pub(crate) fn a_wait_survives_the_servers_restart(world: &World, kind: Kind) {
        let redis = server.raw();
    let one = world.manager();
    let guard = kind.rival().of(&one, "n").lease(secs(3)).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    let waiter = kind.of(&world.manager(), "n").locking();
    redis.wait_until_queued("n", 1);
    // All data is gone, and with it the lock and its queue.
    server.restart();
    waiter.locked();
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert!(matches!(
        loss.cause,
        LostCause::Removed | LostCause::Taken | LostCause::Expired
    ));
    assert_eq!(lost(guard.release()), loss);
}

pub(crate) fn a_release_that_fails_is_repeated(world: &World, kind: Kind) {
        let redis = server.raw();
    let locks = settings_of(&server.url()).io_timeout(secs(2));
    let locks = build(locks.node_timeout(secs(2)));
    // Far longer than this test: it is not the end of the lease that frees it.
    let lock = kind.of(&locks, "n").lease(secs(600));
    let (released, dropped) = (lock.lock().expect("it is free"), "m");
    let other = kind.of(&locks, dropped).lease(secs(600)).lock();
    let other = other.expect("it is free");
    server.pause();
    let failed = released.release();
    assert!(failed.as_ref().is_err_and(is_unreachable), "{failed:?}");
    drop(other);
    server.resume();
    let mut keys = kind.keys("n");
    keys.extend(kind.keys(dropped));
    world.until("both are free", || {
        keys.iter().all(|key| !redis.exists(key))
    });
    assert!(locks.close(PATIENCE), "something is left to send");
}
