//! A server whose clock is set, by an hour: what is promised of that is only that fences rise, and that nobody is left
//! in the dark.

use leasehold::{LeaseState, LostCause};

use super::scene::{NAME, Scene, both_ways};
use super::traces::only_fences_are_left;
use crate::support::{Kind, PATIENCE, Server, lost, manager, secs, wait_until};

const HOUR: i64 = 60 * 60;

/// For the server the lease is over, an hour ago. Its holder learns it by its next renewal, or by who came in.
pub(super) fn a_clock_set_forward_costs_the_lock_and_says_so(kind: Kind) {
    both_ways(kind, |kind| {
        let scene = Scene::new(kind, Server::with_clock(), secs(9));
        let losses = scene.guard.on_lost();
        scene.server.set_clock_ahead(HOUR);
        let next = scene.waiter.locked();
        let loss = losses.recv_timeout(PATIENCE).expect("it is told");
        assert!(
            matches!(loss.cause, LostCause::Removed | LostCause::Taken),
            "{loss:?}"
        );
        // An hour later for the server: whatever it remembered of fences, this is larger.
        assert!(next > loss.fence);
        assert_eq!(scene.guard.lease().state(), LeaseState::Lost);
        assert_eq!(lost(scene.guard.release()), loss);
        scene.waiter.release();
        assert!(scene.locks.close(PATIENCE), "something is left to send");
        only_fences_are_left(&scene.redis, kind, NAME);
    });
}

/// Renewals, releases and hand-overs go on; only by itself a lease ends an hour later.
pub(super) fn a_clock_set_back_costs_a_holder_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        let scene = Scene::new(kind, Server::with_clock(), secs(9));
        scene.server.set_clock_ahead(-HOUR);
        scene.wait_until_renewed();
        let holders = scene.redis.holders(NAME);
        assert!(
            matches!(holders[..], [(_, left)] if left > secs(3000)),
            "{holders:?}"
        );
        let redis = scene.redis.clone();
        let server = scene.goes_on();
        // By its own time, at which it will be forgotten.
        server.set_clock_ahead(0);
        only_fences_are_left(&redis, kind, NAME);
    });
}

pub(super) fn fences_rise_over_a_clock_that_is_set(kind: Kind) {
    let server = Server::with_clock();
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let mut last = 0;
    for ahead in [0, HOUR, 0, -HOUR, HOUR, -HOUR, 0] {
        server.set_clock_ahead(ahead);
        for locks in [&one, &other, &one] {
            let guard = kind.of(locks, NAME).lock().expect("it is free");
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            guard.release().expect("it was held all the while");
        }
    }
    // What is remembered of that is remembered past the latest of these times, and not for ever.
    for key in kind.keys(NAME) {
        let fence = crate::support::fence_of(&key);
        let ttl = server.raw().ttl(&fence).expect("it expires");
        assert!(ttl < secs(60 * 60 + 11 * 60), "{ttl:?}");
    }
}

/// A guard tells by its own clock.
pub(super) fn an_unrenewed_lease_ends_for_its_holder_whatever_the_servers_clock_says(kind: Kind) {
    let server = Server::with_clock();
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let lock = kind.of(&one, NAME).lease(secs(2)).unrenewed();
    let guard = lock.lock().expect("it is free");
    server.set_clock_ahead(-HOUR);
    let loss = guard.on_lost().recv_timeout(PATIENCE).expect("it is told");
    assert_eq!(loss.cause, LostCause::Expired);
    // For the server it goes on, until the guard ends or the hour is over.
    let rival = kind.rival().of(&other, NAME);
    assert!(rival.try_lock().expect("it is asked").is_none());
    assert_eq!(lost(guard.release()), loss);
    let next = rival.try_lock_for(PATIENCE);
    let next = next.expect("it is asked").expect("it is released");
    next.release().expect("it was held all the while");
    wait_until("nothing is left to send", || one.close(secs(1)));
}
