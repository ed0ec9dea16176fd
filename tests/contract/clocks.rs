//! A server whose clock is set by an hour. After that, leasehold promises only two things: fences rise, and a holder
//! learns that it lost its lock.

use leasehold::{LeaseState, LostCause};

use crate::holder_and_waiter::{HolderAndWaiter, NAME, both_ways};
use crate::traces::only_fences_are_left;
use crate::support::{Kind, PATIENCE, Server, lost, manager, secs, wait_until};

const HOUR: i64 = 60 * 60;

/// To the server, the lease ended an hour ago. The holder learns that from its next renewal.
pub(crate) fn a_clock_set_forward_loses_the_lock_and_the_holder_learns_it(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(kind, Server::with_clock(), secs(9));
        let losses = pair.guard.on_lost();
        pair.server.set_clock_ahead(HOUR);
        let next = pair.waiter.locked();
        let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
        assert!(
            matches!(loss.cause, LostCause::Removed | LostCause::Taken),
            "{loss:?}"
        );
        // The server's time, from which fences are made, is an hour later.
        assert!(kind.rises(loss.fence, next));
        assert_eq!(pair.guard.lease().state(), LeaseState::Lost);
        assert_eq!(lost(pair.guard.release()), loss);
        pair.waiter.release();
        assert!(pair.locks.close(PATIENCE), "something is left to send");
        only_fences_are_left(&pair.redis, kind, NAME);
    });
}

/// Renewals, releases and hand-overs go on. A lease that nobody renews or releases ends an hour later.
pub(crate) fn a_clock_set_back_costs_a_holder_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(kind, Server::with_clock(), secs(9));
        pair.server.set_clock_ahead(-HOUR);
        pair.wait_until_renewed();
        let holders = pair.redis.holders(NAME);
        assert!(
            matches!(holders[..], [(_, left)] if left > secs(3000)),
            "{holders:?}"
        );
        let redis = pair.redis.clone();
        let server = pair.assert_goes_on();
        // Redis drops the rest by the true time.
        server.set_clock_ahead(0);
        only_fences_are_left(&redis, kind, NAME);
    });
}

pub(crate) fn fences_rise_over_a_clock_that_is_set(world: &World, kind: Kind) {
    let server = Server::with_clock();
    let (one, other) = (world.manager(), world.manager());
    let mut last = 0;
    for ahead in [0, HOUR, 0, -HOUR, HOUR, -HOUR, 0] {
        server.set_clock_ahead(ahead);
        for locks in [&one, &other, &one] {
            let guard = kind.of(locks, NAME).lock().expect("it is free");
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            guard.release().expect("it was held until now");
        }
    }
    // Redis keeps the record of the last fence past the latest of these times, and not for ever.
    for key in kind.keys(NAME) {
        let fence = crate::support::fence_of(&key);
        let ttl = server.raw().ttl(&fence).expect("it expires");
        assert!(ttl < secs(60 * 60 + 11 * 60), "{ttl:?}");
    }
}

/// A guard measures its lease by the clock of its machine.
pub(crate) fn an_unrenewed_lease_ends_for_its_holder_although_the_servers_clock_is_set_back(
    kind: Kind,
) {
    let server = Server::with_clock();
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.of(&one, NAME).lease(secs(2)).unrenewed();
    let guard = lock.lock().expect("it is free");
    server.set_clock_ahead(-HOUR);
    let loss = guard
        .on_lost()
        .recv_timeout(PATIENCE)
        .expect("it is notified");
    assert_eq!(loss.cause, LostCause::Expired);
    // On the server, the lease goes on until the guard ends or the hour is over.
    let rival = kind.rival().of(&other, NAME);
    assert!(rival.try_lock().expect("Redis replies").is_none());
    assert_eq!(lost(guard.release()), loss);
    let next = rival.try_lock_for(PATIENCE);
    let next = next.expect("Redis replies").expect("it is released");
    next.release().expect("it was held until now");
    world.until("nothing is left to send", || one.close(secs(1)));
}
