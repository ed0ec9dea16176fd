//! For how long a guard holds its lock, and how it learns that it lost the lock.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{LeaseState, LostCause};

use crate::support::{
    Kind, PATIENCE, SLACK, build, lost, manager, ms, name, patient, secs, settings_of, shared,
    start_servers, wait_closely_until, wait_until,
};

/// Returns the shortest time that a guard may be valid: 1 % and 2 ms less than the lease, and 1 ms for the clocks.
fn least(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + ms(3))
}

pub(crate) fn a_lock_is_renewed_for_longer_than_its_lease(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("renewed");
    // Beside other tests and the load of scripts/under-load, a server was seen to get no CPU time for five seconds.
    let lease = secs(15);
    let [one, other] = [(); 2].map(|()| world.build(|it| it.io_timeout(lease)));
    let begun = world.now();
    let guard = kind.of(&one, &name).lease(lease).lock();
    let guard = guard.expect("it is free");
    let rival = kind.rival().of(&other, &name);
    let owner = guard.lease().owner().to_owned();
    while (world.now() - begun) < lease * 2 {
        assert!(rival.try_lock().expect("Redis replies").is_none());
        for key in kind.keys(&name) {
            let holders = redis.holders(&key);
            assert!(
                matches!(&holders[..], [(holder, _)] if *holder == owner),
                "{holders:?}"
            );
            assert!(holders[0].1 <= lease);
        }
        // The test needs time to pass: two leases. It looks often enough to see a gap, and seldom enough not to delay
        // other tests.
        thread::sleep(ms(20));
    }
    guard.check().expect("it is held");
    assert_eq!(guard.lease().owner(), owner);
    // A busy machine may be late with a renewal. Then the state is `AtRisk`.
    assert_ne!(guard.lease().state(), LeaseState::Lost);
    guard.release().expect("it was held until now");
    assert!(rival.try_lock().expect("Redis replies").is_some());
}

pub(crate) fn an_unrenewed_lock_is_lost_at_the_end_of_its_lease(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("unrenewed");
    let lease = secs(2);
    let (one, other) = (world.manager(), world.manager());
    let begun = world.now();
    let guard = kind.of(&one, &name).lease(lease).unrenewed().lock();
    let guard = guard.expect("it is free");
    let loss = guard
        .on_lost()
        .recv_timeout(PATIENCE)
        .expect("it is notified");
    assert!((world.now() - begun) >= least(lease), "it was lost too early");
    assert_eq!(
        (loss.fence, loss.cause),
        (guard.fence(), LostCause::Expired)
    );
    assert_eq!(lost(guard.check()), loss);
    for (lease, key) in guard.leases().iter().zip(kind.keys(&name)) {
        assert_eq!(lease.state(), LeaseState::Lost);
        assert_eq!(lease.remaining(), Duration::ZERO);
        assert_eq!(*lost(lease.check()).name, *key);
        assert_eq!(lost(lease.extend(secs(1))).cause, LostCause::Expired);
    }
    // A receiver that is made later gets the loss too.
    assert_eq!(guard.on_lost().try_recv(), Ok(loss.clone()));
    let next = kind.rival().of(&other, &name).try_lock_for(PATIENCE);
    let next = next.expect("Redis replies").expect("it becomes free");
    assert_eq!(lost(guard.release()), loss);
    // The renewal thread releases the lost lock in Redis. `close` returns `true` when that is done.
    assert!(one.close(PATIENCE));
    next.release().expect("it was held until now");
}

pub(crate) fn a_guard_never_reads_held_after_its_key_is_gone(world: &World, kind: Kind) {
    let redis = world.redis();
    let locks = world.manager();
    let mut seen = 0;
    for lease in [50, 200, 500, 1000] {
        let name = world.name("ends-first");
        let lock = kind.of(&locks, &name).lease(ms(lease)).unrenewed();
        let Ok(guard) = lock.lock() else {
            // On a busy machine a short lease may end before the reply arrives. Then there is no guard.
            continue;
        };
        seen += 1;
        let keys = kind.keys(&name);
        wait_closely_until("a key is gone", || {
            keys.iter().any(|key| redis.holders(key).is_empty())
        });
        lost(guard.check());
        assert_eq!(guard.lease().state(), LeaseState::Lost, "{lease} ms");
    }
    assert!(seen > 0);
}

pub(crate) fn a_silent_server_loses_the_lock_at_its_deadline_for_ever(world: &World, kind: Kind) {
        // The renewal thread waits for a reply all the time, so another thread must end the lease.
    let locks = settings_of(&server.url()).io_timeout(PATIENCE * 2);
    let locks = build(locks.node_timeout(PATIENCE * 2));
    let other = world.manager();
    let guard = kind.of(&locks, "n").lease(secs(8)).lock();
    let guard = guard.expect("it is free");
    let (lease, losses) = (guard.lease(), guard.on_lost());
    assert_eq!(lease.state(), LeaseState::Held);
    server.pause();
    let mut seen = vec![lease.state()];
    world.until("it is at risk", || {
        // Read once, because the state may change between two reads.
        let state = lease.state();
        seen.push(state);
        state != LeaseState::Held
    });
    guard.check().expect("at risk is not lost");
    // No reply is on its way any more, so the deadline does not change.
    let before = world.now();
    let left = lease.remaining();
    let after = world.now();
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    let told = world.now();
    assert!(told + ms(1) >= before + left, "the notice came too early");
    assert!(told < after + left + SLACK, "the notice came too late");
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(lease.state(), LeaseState::Lost);
    seen.push(lease.state());
    seen.dedup();
    let course = [LeaseState::Held, LeaseState::AtRisk, LeaseState::Lost];
    assert_eq!(seen, course);
    assert_eq!(lost(guard.check()), loss);
    // Redis replies to the renewal now. That does not revive the lease.
    server.resume();
    let next = kind.rival().of(&other, "n").try_lock_for(PATIENCE);
    let _next = next.expect("Redis replies").expect("it becomes free");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(lost(guard.release()), loss);
    assert!(losses.try_recv().is_err(), "the notice came twice");
}

pub(crate) fn a_deleted_key_is_lost_as_removed(world: &World, kind: Kind) {
    a_deleted_key_costs_the_lock(kind, 0);
}

pub(crate) fn one_deleted_key_loses_the_multi_lock_and_frees_its_other_names(world: &World, kind: Kind) {
    for which in 0..kind.keys("n").len() {
        a_deleted_key_costs_the_lock(kind, which);
    }
}

fn a_deleted_key_costs_the_lock(world: &World, kind: Kind, which: usize) {
    let redis = world.redis();
    let name = world.name("removed");
    let (one, other) = (world.manager(), world.manager());
    // Such a lease is renewed about every two seconds.
    let guard = kind.of(&one, &name).lease(secs(6)).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    let keys = kind.keys(&name);
    let () = redis.ask(&["DEL", &keys[which]]);
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert_eq!(
        (loss.fence, loss.cause),
        (guard.fence(), LostCause::Removed)
    );
    assert_eq!(lost(guard.check()), loss);
    for lease in guard.leases() {
        assert_eq!(lease.state(), LeaseState::Lost);
    }
    // The guard is neither dropped nor renewed. All its names must come free.
    let next = kind.rival().of(&other, &name).try_lock_for(PATIENCE);
    let next = next.expect("Redis replies").expect("it becomes free");
    assert_eq!(lost(guard.release()), loss);
    assert!(one.close(PATIENCE), "something is left to send");
    next.check()
        .expect("the loss of another guard does not matter");
    next.release().expect("it was held until now");
}

pub(crate) fn on_lost_disconnects_at_a_healthy_end(world: &World, kind: Kind) {
    let locks = world.manager();
    for ends in [drop, |guard: crate::support::Guard| {
        guard.release().expect("it was held until now");
    }] {
        let guard = kind.of(&locks, &world.name("healthy")).lock();
        let guard = guard.expect("it is free");
        let all = guard.on_lost();
        let each: Vec<_> = guard
            .leases()
            .iter()
            .map(leasehold::Lease::on_lost)
            .collect();
        assert!(all.is_empty());
        ends(guard);
        for losses in each.iter().chain([&all]) {
            // The channel is disconnected without a message.
            let end = losses.recv_timeout(PATIENCE);
            assert!(end.is_err_and(|error| !error.is_timeout()));
        }
    }
}

pub(crate) fn extend_lengthens_and_never_shortens(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("extend");
    let locks = world.manager();
    let guard = kind.of(&locks, &name).lease(secs(6)).lock();
    let guard = guard.expect("it is free");
    // The lease of the last name extends all names of a set.
    let lease = guard.leases().last().expect("there is one");
    let is_long = || {
        // Time passes between two lines. The bounds leave much room for that, and exclude a shorter lease.
        for lease in guard.leases() {
            assert!(lease.remaining() > secs(30) && lease.remaining() <= secs(62));
        }
        for key in kind.keys(&name) {
            assert!(redis.holders(&key)[0].1 > secs(30));
            assert!(redis.ttl(&key).expect("it has one") > secs(30));
        }
    };
    lease.extend(secs(60)).expect("it is held");
    is_long();
    lease.extend(ms(1)).expect("it is held");
    is_long();
    let too_long = lease.extend(secs(25 * 60 * 60));
    assert!(matches!(too_long, Err(leasehold::Error::Config { .. })));
    is_long();
    guard.release().expect("it was held until now");
    assert!(kind.keys(&name).iter().all(|key| !redis.exists(key)));
}

pub(crate) fn max_hold_releases_for_the_others(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("max-hold");
    let (one, other) = (world.manager(), world.manager());
    let limit = ms(300);
    let begun = world.now();
    let guard = kind.of(&one, &name).max_hold(limit).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    // The lease of 30 s is renewed, so the other manager cannot wait for its end.
    let next = kind.rival().of(&other, &name).try_lock_for(secs(15));
    let next = next.expect("Redis replies").expect("it is released");
    assert!((world.now() - begun) >= limit);
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert_eq!(
        (loss.cause, loss.fence),
        (LostCause::MaxHold, guard.fence())
    );
    for lease in guard.leases() {
        assert_eq!(lease.state(), LeaseState::Lost);
        assert_eq!(lease.remaining(), Duration::ZERO);
        assert_eq!(lost(lease.extend(secs(1))).cause, LostCause::MaxHold);
    }
    assert_eq!(lost(guard.check()), loss);
    let guard_fence = guard.fence();
    assert_eq!(lost(guard.release()), loss);
    assert!(kind.rises(guard_fence, next.fence()));
    next.check()
        .expect("the limit of another guard does not matter");
    next.release().expect("it was held until now");
    // A guard that ends within the limit is not lost.
    let guard = kind.of(&one, &name).max_hold(PATIENCE).lock();
    let guard = guard.expect("it is free");
    guard.release().expect("it was held until now");
}

pub(crate) fn a_lost_lock_goes_to_the_next_waiter(world: &World, kind: Kind) {
    let name = world.name("behind");
    let locks = world.manager();
    let lease = secs(2);
    let begun = world.now();
    let guard = kind.of(&locks, &name).lease(lease).unrenewed().lock();
    let guard = guard.expect("it is free");
    // The wait of another thread ends although the guard is neither dropped nor checked.
    let waiter = kind.rival().of(&locks, &name).locking();
    waiter.locked();
    assert!((world.now() - begun) >= least(lease), "it was not over");
    assert!((world.now() - begun) < lease + SLACK);
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    // The drop of the lost guard must not release the lock of the next thread.
    drop(guard);
    waiter.release();
}

pub(crate) fn the_loss_of_one_sharer_costs_the_others_nothing(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("beside");
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.of(&one, &name);
    let kept = lock.lock().expect("there is room");
    let unrenewed = lock.clone().lease(secs(1)).unrenewed().lock();
    let unrenewed = unrenewed.expect("there is room");
    let limited = lock.max_hold(ms(300)).lock().expect("there is room");
    let losses = kept.on_lost();
    for (guard, cause) in [
        (&unrenewed, LostCause::Expired),
        (&limited, LostCause::MaxHold),
    ] {
        let loss = guard.on_lost().recv_timeout(PATIENCE);
        assert_eq!(loss.expect("it is notified").cause, cause);
    }
    kept.check()
        .expect("the loss of another guard does not matter");
    assert!(losses.is_empty());
    let rival = kind.rival().of(&other, &name);
    assert!(rival.try_lock().expect("Redis replies").is_none());
    lost(unrenewed.release());
    lost(limited.release());
    assert!(rival.try_lock().expect("Redis replies").is_none());
    kept.release().expect("it was held until now");
    let next = rival.try_lock_for(secs(15)).expect("Redis replies");
    assert!(next.is_some());
}
