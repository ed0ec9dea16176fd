//! A link that loses requests or replies. `links.rs` tests each fault on each connection of a mutex.

use std::time::Duration;

use leasehold::{Error, LeaseState, LockManager, LostCause};

use crate::support::{
    Fault, Kind, PATIENCE, Proxy, Role, Server, build, lost, manager, secs, wait_until,
};

/// Far longer than these tests take, so that the end of a lease frees no lock.
const LONG: Duration = secs(600);

/// Returns a server, a proxy, a manager behind the proxy and a manager without one.
fn managers() -> (Server, Proxy, LockManager, LockManager) {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = build(LockManager::single(&proxy.url()).io_timeout(secs(2)));
    let other = world.manager();
    (server, proxy, locks, other)
}

/// Makes the server load the scripts. A server that lacks a script replies with an error first.
fn make_known(world: &World, kind: Kind, locks: &LockManager) {
    let guard = kind.of(locks, "first").lock().expect("it is free");
    guard.release().expect("it was held until now");
}

pub(crate) fn an_acquire_whose_answer_was_lost_leaves_no_orphan(world: &World, kind: Kind) {
    let (server, proxy, locks, other) = managers();
    let redis = server.raw();
    make_known(kind, &other);
    proxy.strike_all(Fault::LoseAnswers);
    let tried = kind.of(&locks, "n").lease(LONG).try_lock();
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    // The proxy lost the reply, which was a grant.
    proxy.wait_until_struck(Role::Pool);
    proxy.heal();
    let next = kind.rival().of(&other, "n").try_lock_for(PATIENCE);
    let next = next.expect("Redis replies").expect("there is no orphan");
    next.release().expect("it was held until now");

    // The server executes the request after the caller has given up.
    let scripts = || redis.stats()["evalsha"];
    let before = scripts();
    server.pause();
    let tried = kind.of(&locks, "m").lease(LONG).try_lock();
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    server.resume();
    world.until("the server executes the request", || scripts() > before);
    let next = kind.rival().of(&other, "m").try_lock_for(PATIENCE);
    let next = next.expect("Redis replies").expect("there is no orphan");
    next.release().expect("it was held until now");
    assert!(locks.close(PATIENCE), "something is left to send");
}

pub(crate) fn a_release_whose_answer_was_lost_frees_it(world: &World, kind: Kind) {
    let (server, proxy, locks, other) = managers();
    let redis = server.raw();
    make_known(kind, &other);
    let guard = kind.of(&locks, "n").lease(LONG).lock();
    let guard = guard.expect("it is free");
    proxy.strike_all(Fault::LoseAnswers);
    let released = guard.release();
    assert!(
        matches!(released, Err(Error::Unavailable { .. })),
        "{released:?}"
    );
    let is_free = || kind.keys("n").iter().all(|key| !redis.exists(key));
    assert!(is_free(), "Redis did not execute it");
    let next = kind.rival().of(&other, "n").lease(LONG).lock();
    let next = next.expect("it is free");
    proxy.heal();
    assert!(locks.close(PATIENCE), "something is left to send");
    // The renewal thread repeated the release until Redis answered. That did not touch the next owner.
    next.release().expect("it was held until now");
    assert!(is_free());
}

pub(crate) fn a_dead_link_loses_the_lock_at_its_deadline_for_ever(world: &World, kind: Kind) {
    let (_server, proxy, locks, other) = managers();
    let guard = kind.of(&locks, "n").lease(secs(3)).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    proxy.strike_all(Fault::HalfOpen);
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    // The others need no message from the holder.
    let next = kind.rival().of(&other, "n").try_lock_for(PATIENCE);
    let next = next.expect("Redis replies").expect("its lease is over");
    proxy.heal();
    assert_eq!(lost(guard.release()), loss);
    assert!(locks.close(PATIENCE), "something is left to send");
    next.release().expect("it was held until now");
}

pub(crate) fn a_wait_outlives_the_faults_of_its_link(world: &World, kind: Kind) {
    let (server, proxy, locks, other) = managers();
    let redis = server.raw();
    let holder = kind.rival().of(&other, "n").lease(LONG).hold();
    let waiter = kind.of(&locks, "n").lease(LONG).locking();
    // Before that, the call would return an error at once.
    world.until("the call waits", || locks.stats().contended == 1);
    for fault in [Fault::Reset, Fault::HalfOpen, Fault::LoseAnswers] {
        redis.wait_until_queued("n", 1);
        proxy.strike_all(fault);
        // The next poll and the subscription meet the fault.
        proxy.wait_until_struck(Role::Pool);
        assert!(waiter.waits(), "{fault:?} ended it");
        proxy.heal();
        world.until("it polls again", || {
            // The queue is empty if Redis dropped it meanwhile.
            let queue = redis.queue("n");
            queue.first().is_some_and(|owner| {
                redis.wait_until_polled("n", owner);
                true
            })
        });
    }
    assert!(waiter.waits());
    holder.release();
    waiter.locked();
    waiter.release();
}
