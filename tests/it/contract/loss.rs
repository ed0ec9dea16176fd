//! How long a guard is to be relied on, and how it learns that it is not.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{LeaseState, LockManager, LostCause};

use crate::support::{
    Kind, PATIENCE, SLACK, Server, build, lost, manager, ms, name, secs, shared, wait_until,
};

/// Takes 1 % and 2 ms off, and a grain of the clocks.
fn least(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + ms(3))
}

pub(super) fn renewed_for_longer_than_its_lease(kind: Kind) {
    let redis = shared();
    let name = name("renewed");
    let lease = secs(6);
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let begun = Instant::now();
    let guard = kind.of(&one, &name).lease(lease).lock();
    let guard = guard.expect("it is free");
    let rival = kind.rival().of(&other, &name);
    let owner = guard.lease().owner().to_owned();
    while begun.elapsed() < lease * 2 {
        assert!(rival.try_lock().expect("it is asked").is_none());
        for key in kind.keys(&name) {
            let holders = redis.holders(&key);
            assert!(
                matches!(&holders[..], [(holder, _)] if *holder == owner),
                "{holders:?}"
            );
            assert!(holders[0].1 <= lease);
        }
        // Time itself is what is tested, two leases of it: looked at often enough to see a gap, and not so often as to
        // make one for other tests.
        thread::sleep(ms(20));
    }
    guard.check().expect("it is held");
    assert_eq!(guard.lease().owner(), owner);
    // On a busy machine a renewal may be overdue.
    assert_ne!(guard.lease().state(), LeaseState::Lost);
    guard.release().expect("it was held all the while");
    assert!(rival.try_lock().expect("it is asked").is_some());
}

pub(super) fn not_renewed_it_is_lost_at_its_end(kind: Kind) {
    let redis = shared();
    let name = name("unrenewed");
    let lease = secs(2);
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let begun = Instant::now();
    let guard = kind.of(&one, &name).lease(lease).unrenewed().lock();
    let guard = guard.expect("it is free");
    let loss = guard.on_lost().recv_timeout(PATIENCE).expect("it is told");
    assert!(begun.elapsed() >= least(lease), "it was lost too early");
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
    // One who asks later is told too.
    assert_eq!(guard.on_lost().try_recv(), Ok(loss.clone()));
    let next = kind.rival().of(&other, &name).try_lock_for(PATIENCE);
    let next = next.expect("it is asked").expect("it comes free");
    assert_eq!(lost(guard.release()), loss);
    // What the first has left is cleaned up in the background; once that is done, close says so.
    assert!(one.close(PATIENCE));
    next.release().expect("it was held all the while");
}

pub(super) fn never_reads_held_when_its_key_is_gone(kind: Kind) {
    let redis = shared();
    let locks = manager(redis.url());
    let mut seen = 0;
    for lease in [50, 200, 500, 1000] {
        let name = name("ends-first");
        let lock = kind.of(&locks, &name).lease(ms(lease)).unrenewed();
        let Ok(guard) = lock.lock() else {
            // On a busy machine a short lease can be over before its answer is there; then it is not handed out.
            continue;
        };
        seen += 1;
        let keys = kind.keys(&name);
        wait_until("a key is gone", || {
            keys.iter().any(|key| redis.holders(key).is_empty())
        });
        lost(guard.check());
        assert_eq!(guard.lease().state(), LeaseState::Lost, "{lease} ms");
    }
    assert!(seen > 0);
}

pub(super) fn a_silent_server_costs_it_at_the_deadline_and_for_good(kind: Kind) {
    let server = Server::start();
    // The renewal thread waits for an answer all the while, so it is another that ends the lease.
    let locks = build(LockManager::single(&server.url()).io_timeout(PATIENCE * 2));
    let other = manager(&server.url());
    let guard = kind.of(&locks, "n").lease(secs(8)).lock();
    let guard = guard.expect("it is free");
    let (lease, losses) = (guard.lease(), guard.on_lost());
    assert_eq!(lease.state(), LeaseState::Held);
    server.pause();
    let mut seen = vec![lease.state()];
    wait_until("it is at risk", || {
        // Read once: it may change between two readings.
        let state = lease.state();
        seen.push(state);
        state != LeaseState::Held
    });
    guard.check().expect("at risk is not lost");
    // No answer is under way any more, so the deadline does not move.
    let before = Instant::now();
    let left = lease.remaining();
    let after = Instant::now();
    let loss = losses.recv_timeout(PATIENCE).expect("it is told");
    let told = Instant::now();
    assert!(told + ms(1) >= before + left, "it was told too early");
    assert!(told < after + left + SLACK, "it was told too late");
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(lease.state(), LeaseState::Lost);
    seen.push(lease.state());
    seen.dedup();
    let course = [LeaseState::Held, LeaseState::AtRisk, LeaseState::Lost];
    assert_eq!(seen, course);
    assert_eq!(lost(guard.check()), loss);
    // Now the renewal is answered; that revives nothing.
    server.resume();
    let next = kind.rival().of(&other, "n").try_lock_for(PATIENCE);
    let _next = next.expect("it is asked").expect("it comes free");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(lost(guard.release()), loss);
    assert!(losses.try_recv().is_err(), "it was told twice");
}

pub(super) fn a_deleted_key_is_lost_as_removed(kind: Kind) {
    a_deleted_key_costs_the_lock(kind, 0);
}

pub(super) fn any_key_deleted_costs_all_and_frees_the_rest(kind: Kind) {
    for which in 0..kind.keys("n").len() {
        a_deleted_key_costs_the_lock(kind, which);
    }
}

fn a_deleted_key_costs_the_lock(kind: Kind, which: usize) {
    let redis = shared();
    let name = name("removed");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    // Renewed every other second or so.
    let guard = kind.of(&one, &name).lease(secs(6)).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    let keys = kind.keys(&name);
    let () = redis.ask(&["DEL", &keys[which]]);
    let loss = losses.recv_timeout(PATIENCE).expect("it is told");
    assert_eq!(
        (loss.fence, loss.cause),
        (guard.fence(), LostCause::Removed)
    );
    assert_eq!(lost(guard.check()), loss);
    for lease in guard.leases() {
        assert_eq!(lease.state(), LeaseState::Lost);
    }
    // The guard is neither dropped nor renewed, and whatever is left of it is there for everybody.
    let next = kind.rival().of(&other, &name).try_lock_for(PATIENCE);
    let next = next.expect("it is asked").expect("it comes free");
    assert_eq!(lost(guard.release()), loss);
    assert!(one.close(PATIENCE), "something is left to send");
    next.check().expect("it is none of its business");
    next.release().expect("it was held all the while");
}

pub(super) fn on_lost_disconnects_at_a_healthy_end(kind: Kind) {
    let locks = manager(shared().url());
    for ends in [drop, |guard: crate::support::Guard| {
        guard.release().expect("it was held all the while");
    }] {
        let guard = kind.of(&locks, &name("healthy")).lock();
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
            // An error without a message before it: disconnected.
            let end = losses.recv_timeout(PATIENCE);
            assert!(end.is_err_and(|error| !error.is_timeout()));
        }
    }
}

pub(super) fn extend_lengthens_and_never_shortens(kind: Kind) {
    let redis = shared();
    let name = name("extend");
    let locks = manager(redis.url());
    let guard = kind.of(&locks, &name).lease(secs(6)).lock();
    let guard = guard.expect("it is free");
    // Of several names the last, which speaks for all.
    let lease = guard.leases().last().expect("there is one");
    let is_long = || {
        // Time passes between any two lines; it is given plenty, and yet far from what would be wrong.
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
    guard.release().expect("it was held all the while");
    assert!(kind.keys(&name).iter().all(|key| !redis.exists(key)));
}

pub(super) fn max_hold_releases_for_the_others(kind: Kind) {
    let redis = shared();
    let name = name("max-hold");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let limit = ms(300);
    let begun = Instant::now();
    let guard = kind.of(&one, &name).max_hold(limit).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    // The lease of 30 s is renewed, so it is not its end that the other waits for.
    let next = kind.rival().of(&other, &name).try_lock_for(secs(15));
    let next = next.expect("it is asked").expect("it is released");
    assert!(begun.elapsed() >= limit);
    let loss = losses.recv_timeout(PATIENCE).expect("it is told");
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
    assert_eq!(lost(guard.release()), loss);
    next.check().expect("it is none of its business");
    next.release().expect("it was held all the while");
    // A guard that ends within the limit is none of its business either.
    let guard = kind.of(&one, &name).max_hold(PATIENCE).lock();
    let guard = guard.expect("it is free");
    guard.release().expect("it was held all the while");
}

pub(super) fn a_lost_guard_lets_in_who_waits_behind_it(kind: Kind) {
    let name = name("behind");
    let locks = manager(shared().url());
    let lease = secs(2);
    let begun = Instant::now();
    let guard = kind.of(&locks, &name).lease(lease).unrenewed().lock();
    let guard = guard.expect("it is free");
    // The guard is neither dropped nor looked at, and another thread's wait ends all the same.
    let waiter = kind.rival().of(&locks, &name).locking();
    waiter.locked();
    assert!(begun.elapsed() >= least(lease), "it was not over");
    assert!(begun.elapsed() < lease + SLACK);
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    // Its end is its own and not that of the next.
    drop(guard);
    waiter.release();
}

pub(super) fn the_loss_of_one_is_not_that_of_those_beside_it(kind: Kind) {
    let redis = shared();
    let name = name("beside");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
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
        assert_eq!(loss.expect("it is told").cause, cause);
    }
    kept.check().expect("it is none of its business");
    assert!(losses.is_empty());
    let rival = kind.rival().of(&other, &name);
    assert!(rival.try_lock().expect("it is asked").is_none());
    lost(unrenewed.release());
    lost(limited.release());
    assert!(rival.try_lock().expect("it is asked").is_none());
    kept.release().expect("it was held all the while");
    let next = rival.try_lock_for(secs(15)).expect("it is asked");
    assert!(next.is_some());
}
