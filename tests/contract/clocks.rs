//! A server whose clock is set by an hour. After that, leasehold promises only two things: fences rise, and a holder
//! learns that it lost its lock.

use std::time::Duration;

use leasehold::{LeaseState, LostCause};

use crate::holder_and_waiter::{HolderAndWaiter, NAME, both_ways};
use crate::matrix::Capability::{OneClock, OneServer};
use crate::matrix::{Chapter, bodies};
use crate::redis::fence_of;
use crate::subject::{Kind, lost};
use crate::world::{World, secs};

pub(crate) const BODIES: Chapter = &[
    (
        OneServer,
        bodies![
            a_clock_set_forward_loses_the_lock_and_the_holder_learns_it,
            a_clock_set_back_costs_a_holder_nothing,
            an_unrenewed_lease_ends_for_its_holder_although_the_servers_clock_is_set_back,
        ],
    ),
    (OneClock, bodies![fences_rise_over_a_clock_that_is_set]),
];

const HOUR: Duration = secs(60 * 60);
const LEASE: Duration = secs(9);

/// To the server, the lease ended an hour ago. The holder learns that from its next renewal, after a third of the lease.
fn a_clock_set_forward_loses_the_lock_and_the_holder_learns_it(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(world, kind, LEASE);
        let losses = pair.guard.on_lost();
        world.set_clock_forward(HOUR);
        let set_at = world.now();
        let next = pair.waiter.locked();
        let loss = world.recv(&losses);
        assert!(world.now() <= world.within(set_at + LEASE / 3));
        assert!(
            matches!(loss.cause, LostCause::Removed | LostCause::Taken),
            "{loss:?}"
        );
        // The server's time, from which fences are made, is an hour later.
        assert!(kind.rises(loss.fence, next));
        assert_eq!(pair.guard.lease().state(), LeaseState::Lost);
        assert_eq!(lost(pair.guard.release()), loss);
        pair.waiter.release();
        assert!(pair.locks.close(LEASE), "something is left to send");
        pair.redis.only_fences_are_left(kind, NAME);
    });
}

/// Renewals, releases and hand-overs go on. A lease that nobody renews or releases ends an hour later.
fn a_clock_set_back_costs_a_holder_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(world, kind, LEASE);
        world.set_clock_back(HOUR);
        pair.wait_until_renewed();
        let holders = pair.redis.holders(NAME);
        assert!(
            matches!(holders[..], [(_, left)] if left > secs(3000)),
            "{holders:?}"
        );
        let redis = pair.redis.clone();
        pair.assert_goes_on();
        // Redis drops the rest by the true time.
        world.set_clock_forward(HOUR);
        redis.only_fences_are_left(kind, NAME);
    });
}

fn fences_rise_over_a_clock_that_is_set(world: &World, kind: Kind) {
    let (one, other) = (world.manager(), world.manager());
    let mut last = 0;
    let mut use_it = || {
        for locks in [&one, &other, &one] {
            let guard = kind.of(locks, NAME).lock().expect("it is free");
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            guard.release().expect("it was held until now");
        }
    };
    use_it();
    for hours in [1_i32, -1, -1, 2, -2, 1] {
        let by = HOUR * hours.unsigned_abs();
        if hours < 0 {
            world.set_clock_back(by);
        } else {
            world.set_clock_forward(by);
        }
        use_it();
    }
    // Redis keeps the record of the last fence past the latest of these times, and not for ever.
    for key in kind.keys(NAME) {
        let ttl = world.redis().ttl(&fence_of(&key)).expect("it expires");
        assert!(ttl < secs(60 * 60 + 11 * 60), "{ttl:?}");
    }
}

/// A guard measures its lease by the clock of its machine.
fn an_unrenewed_lease_ends_for_its_holder_although_the_servers_clock_is_set_back(
    world: &World,
    kind: Kind,
) {
    let (one, other) = (world.manager(), world.manager());
    let begun = world.now();
    let lock = kind.of(&one, NAME).lease(LEASE).unrenewed();
    let guard = lock.lock().expect("it is free");
    world.set_clock_back(HOUR);
    let loss = world.recv(&guard.on_lost());
    assert!(world.now() <= world.within(begun + LEASE));
    assert_eq!(loss.cause, LostCause::Expired);
    // On the server, the lease goes on until the guard ends or the hour is over.
    let rival = kind.rival().of(&other, NAME);
    assert!(rival.try_lock().expect("Redis replies").is_none());
    assert_eq!(lost(guard.release()), loss);
    let next = rival.try_lock_for(secs(1)).expect("Redis replies");
    next.expect("it is released")
        .release()
        .expect("it was held until now");
    assert!(one.close(secs(1)), "something is left to send");
}
