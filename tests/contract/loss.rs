//! For how long a guard holds its lock, and how it learns that it lost the lock.

use std::time::Duration;

use leasehold::{Builder, Error, Lease, LeaseState, LostCause};
use leasehold_simulator::Topology;

use crate::matrix::Capability::{Always, Shares, SpansNames};
use crate::matrix::{Chapter, bodies};
use crate::subject::{Guard, Kind, lost};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_lock_is_renewed_for_longer_than_its_lease,
            an_unrenewed_lock_is_lost_at_the_end_of_its_lease,
            a_guard_never_reads_held_after_its_key_is_gone,
            a_silent_server_loses_the_lock_at_its_deadline_for_ever,
            a_deleted_key_is_lost_as_removed,
            a_key_of_another_type_costs_the_other_leases_nothing,
            a_lock_without_renewal_is_looked_at,
            an_extended_lock_without_renewal_is_looked_at,
            on_lost_disconnects_at_a_healthy_end,
            extend_lengthens_and_never_shortens,
            max_hold_releases_for_the_others,
            a_loss_before_max_hold_is_told_and_counted_once,
            a_lost_lock_goes_to_the_next_waiter,
        ],
    ),
    (
        Shares,
        bodies![the_loss_of_one_sharer_costs_the_others_nothing],
    ),
    (
        SpansNames,
        bodies![one_deleted_key_loses_the_multi_lock_and_frees_its_other_names],
    ),
];

/// Returns by how much a guard ends before its key, because the clocks of its process and of the server may differ.
fn drift(lease: Duration) -> Duration {
    lease / 100 + ms(2)
}

/// Returns for how long a guard is valid that is not renewed.
fn validity(lease: Duration) -> Duration {
    lease.saturating_sub(drift(lease))
}

/// Returns when a guard ends that is not renewed meanwhile.
fn deadline(world: &World, guard: &Guard) -> Duration {
    world.now() + guard.lease().remaining()
}

pub(crate) fn a_lock_is_renewed_for_longer_than_its_lease(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("renewed"));
    let (one, other) = (world.manager(), world.manager());
    let lease = secs(6);
    let guard = kind.of(&one, &name).lease(lease).lock();
    let guard = guard.expect("it is free");
    let rival = kind.rival().of(&other, &name);
    let owner = guard.lease().owner().to_owned();
    let begun = world.now();
    while world.now() < begun + lease * 3 {
        assert!(rival.try_lock().expect("Redis replies").is_none());
        for key in kind.keys(&name) {
            let holders = redis.holders(&key);
            let [(holder, left)] = &holders[..] else {
                panic!("one holds it: {holders:?}");
            };
            assert_eq!(*holder, owner);
            // A third of the lease after a renewal comes the next one.
            assert!(*left <= lease && world.within(*left) >= lease * 2 / 3);
        }
        assert_eq!(guard.lease().state(), LeaseState::Held);
        world.pass(ms(250));
    }
    guard.check().expect("it is held");
    assert_eq!(guard.lease().owner(), owner);
    guard.release().expect("it was held until now");
    assert!(rival.try_lock().expect("Redis replies").is_some());
}

pub(crate) fn an_unrenewed_lock_is_lost_at_the_end_of_its_lease(world: &World, kind: Kind) {
    let name = world.name("unrenewed");
    let lease = secs(2);
    let (one, other) = (world.manager(), world.manager());
    let begun = world.now();
    let guard = kind.of(&one, &name).lease(lease).unrenewed().lock();
    let guard = guard.expect("it is free");
    let deadline = deadline(world, &guard);
    assert!(deadline >= begun + validity(lease));
    assert!(deadline <= world.now() + validity(lease));
    let loss = world.recv(&guard.on_lost());
    let told = world.now();
    assert!(told >= deadline, "it was told too early");
    assert!(told <= world.promptly(deadline), "it was told too late");
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
    let next = kind.rival().of(&other, &name).try_lock_for(secs(30));
    let next = next.expect("Redis replies").expect("it becomes free");
    assert!(world.now() <= world.granted_by(begun + lease));
    assert_eq!(lost(guard.release()), loss);
    // The renewal thread releases the lost lock in Redis. `close` returns `true` when that is done.
    assert!(one.close(secs(30)), "something is left to send");
    next.release().expect("it was held until now");
}

pub(crate) fn a_guard_never_reads_held_after_its_key_is_gone(world: &World, kind: Kind) {
    let redis = world.redis();
    let locks = world.manager();
    for lease in [50, 200, 500, 1000, 60_000] {
        let name = world.name(&format!("ends-first-{lease}"));
        let lock = kind.of(&locks, &name).lease(ms(lease)).unrenewed();
        let guard = lock.lock().expect("it is free");
        let keys = kind.keys(&name);
        let ends = keys.iter().map(|key| redis.holders(key)[0].1);
        let key_left = ends.min().expect("it has a key");
        // A clock that is 1 % too fast cannot make the key end before the guard.
        let most = key_left * 99 / 100;
        assert!(guard.lease().remaining() <= most, "{lease} ms");
        world.pass(guard.lease().remaining());
        world.until("a key is gone", || {
            keys.iter().any(|key| redis.holders(key).is_empty())
        });
        lost(guard.check());
        assert_eq!(guard.lease().state(), LeaseState::Lost, "{lease} ms");
    }
}

pub(crate) fn a_silent_server_loses_the_lock_at_its_deadline_for_ever(world: &World, kind: Kind) {
    let name = world.name("silent");
    let lease = secs(8);
    // The renewal thread waits for a reply all the time, so another thread must end the lease.
    let patience = secs(600);
    let locks = world.build(|it| it.io_timeout(patience).node_timeout(patience));
    let other = world.manager();
    let guard = kind.of(&locks, &name).lease(lease).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    world.pause_servers();
    // No reply is on its way any more then, so the deadline does not change.
    world.pass(ms(100));
    assert_eq!(guard.lease().state(), LeaseState::Held);
    let deadline = deadline(world, &guard);
    let is_at_risk_from = (deadline + drift(lease)).saturating_sub(lease / 2);
    world.pass_until(is_at_risk_from.saturating_sub(ms(100)));
    assert_eq!(guard.lease().state(), LeaseState::Held);
    world.pass_until(is_at_risk_from);
    assert_eq!(guard.lease().state(), LeaseState::AtRisk);
    guard.check().expect("at risk is not lost");
    let loss = world.recv(&losses);
    let told = world.now();
    assert!(told >= deadline, "it was told too early");
    assert!(told <= world.promptly(deadline), "it was told too late");
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    assert_eq!(lost(guard.check()), loss);
    // Redis replies to a renewal now, and may lengthen the lease there. That does not revive the guard.
    world.resume_servers();
    let next = kind.rival().of(&other, &name).try_lock_for(secs(30));
    let _next = next.expect("Redis replies").expect("it becomes free");
    assert!(world.now() <= world.granted_by(told + lease));
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    assert_eq!(guard.lease().remaining(), Duration::ZERO);
    assert_eq!(lost(guard.release()), loss);
    assert!(losses.try_recv().is_err(), "the notice came twice");
}

pub(crate) fn a_deleted_key_is_lost_as_removed(world: &World, kind: Kind) {
    a_deleted_key_costs_the_lock(world, kind, 0);
}

pub(crate) fn one_deleted_key_loses_the_multi_lock_and_frees_its_other_names(
    world: &World,
    kind: Kind,
) {
    for which in 0..kind.keys("n").len() {
        a_deleted_key_costs_the_lock(world, kind, which);
    }
}

fn a_deleted_key_costs_the_lock(world: &World, kind: Kind, which: usize) {
    let (redis, name) = (world.redis(), world.name(&format!("removed-{which}")));
    let (one, other) = (world.manager(), world.manager());
    let lease = secs(6);
    let guard = kind.of(&one, &name).lease(lease).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    let keys = kind.keys(&name);
    let deleted_at = world.now();
    let () = redis.ask(&["DEL", &keys[which]]);
    let loss = world.recv(&losses);
    // The next renewal finds it.
    assert!(world.now() <= world.within(deleted_at + lease / 3));
    let told = world.now();
    assert_eq!(
        (loss.fence, loss.cause),
        (guard.fence(), LostCause::Removed)
    );
    assert_eq!(lost(guard.check()), loss);
    for lease in guard.leases() {
        assert_eq!(lease.state(), LeaseState::Lost);
    }
    // The guard is neither dropped nor renewed. All its names must come free. The renewal that found one name gone has
    // just lengthened the leases of the others.
    let all_free_by = if keys.len() > 1 { told + lease } else { told };
    let next = kind.rival().of(&other, &name).try_lock_for(secs(30));
    let next = next.expect("Redis replies").expect("it becomes free");
    assert!(world.now() <= world.granted_by(all_free_by));
    assert_eq!(lost(guard.release()), loss);
    assert!(one.close(secs(30)), "something is left to send");
    next.check()
        .expect("the loss of another guard does not matter");
    next.release().expect("it was held until now");
}

/// Another client writes a hash under the name of a lock. The leases beside it in the batch of the renewal are renewed all the
/// same, wherever it stands there.
pub(crate) fn a_key_of_another_type_costs_the_other_leases_nothing(world: &World, kind: Kind) {
    for which in 0..3 {
        let (redis, locks, lease) = (world.redis(), world.manager(), secs(6));
        let names = ["x", "y", "z"].map(|it| world.name(&format!("{it}-beside-{which}")));
        let guards = names.clone().map(|name| {
            let guard = kind.of(&locks, &name).lease(lease).lock();
            guard.expect("it is free")
        });
        let losses = guards[which].on_lost();
        let taken_at = world.now();
        let key = &kind.keys(&names[which])[0];
        let () = redis.ask(&["DEL", key]);
        let () = redis.ask(&["HSET", key, "field", "value"]);
        let loss = world.recv(&losses);
        assert!(world.now() <= world.within(taken_at + lease / 3));
        assert_eq!(loss.cause, LostCause::Taken);
        world.pass(ms(100));
        for (number, (guard, name)) in guards.into_iter().zip(&names).enumerate() {
            if number == which {
                lost(guard.release());
                continue;
            }
            for key in kind.keys(name) {
                let [(_, left)] = redis.holders(&key)[..] else {
                    panic!("{key} has one holder");
                };
                assert!(guard.lease().remaining() <= left, "{key} was not renewed");
            }
            guard.release().expect("it was held until now");
        }
    }
}

/// How long the loss of a lock without renewal may stay unnoticed.
const LOOKED_AT_EVERY: Duration = secs(10);

/// What ends the lock of a guard without a word to it.
const LOSSES: [LostCause; 2] = [LostCause::Removed, LostCause::Taken];

/// Ends the lock as this cause says, and checks that the guard learns of it by the next look.
fn a_look_finds(world: &World, kind: Kind, name: &str, cause: LostCause, guard: &Guard) {
    let (redis, losses) = (world.redis(), guard.on_lost());
    let keys = kind.keys(name);
    let key = keys.last().expect("there is one");
    let gone_at = world.now();
    match cause {
        LostCause::Removed => {
            let () = redis.ask(&["DEL", key]);
        }
        _ => {
            let () = redis.ask(&["SET", key, "another"]);
        }
    }
    let loss = world.recv(&losses);
    assert!(world.now() <= world.within(gone_at + LOOKED_AT_EVERY));
    assert_eq!((loss.fence, loss.cause), (guard.fence(), cause));
    assert_eq!(guard.lease().state(), LeaseState::Lost);
}

/// The next look finds the loss. No look lengthens the lease, and a minute has few of them.
pub(crate) fn a_lock_without_renewal_is_looked_at(world: &World, kind: Kind) {
    let (redis, minute) = (world.redis(), secs(60));
    for cause in LOSSES {
        let name = world.name(&format!("looked-at-{cause:?}"));
        let locks = world.manager();
        let lock = kind.of(&locks, &name).lease(secs(600)).unrenewed();
        let guard = lock.lock().expect("it is free");
        // The last node of a quorum may still grant it.
        world.pass(secs(1));
        let ttls = || {
            let keys = kind.keys(&name).into_iter();
            keys.map(|key| redis.ttl(&key).expect("it has one"))
        };
        let (left, before): (Vec<_>, _) = (ttls().collect(), locks.stats().requests);
        world.pass(minute);
        let sent = locks.stats().requests - before;
        assert!((6..=8).contains(&sent), "{sent} requests");
        // The first look may come before the connection to a node that votes.
        let most = u64::from(world.topology() == Topology::Quorum);
        assert!(locks.stats().renewals_failed <= most);
        for (left, now_left) in left.into_iter().zip(ttls()) {
            assert!(now_left + minute <= left, "it was lengthened");
        }
        assert_eq!(guard.lease().state(), LeaseState::Held);
        a_look_finds(world, kind, &name, cause, &guard);
        drop(guard);
        for key in kind.keys(&name) {
            let _: i64 = redis.ask(&["DEL", &key]);
        }
    }
}

/// A lease that ends before a look needs none. When it is extended, it does.
pub(crate) fn an_extended_lock_without_renewal_is_looked_at(world: &World, kind: Kind) {
    let name = world.name("extended");
    let locks = world.manager();
    let lock = kind.of(&locks, &name).lease(secs(7)).unrenewed();
    let guard = lock.lock().expect("it is free");
    let before = locks.stats().requests;
    world.pass(secs(6));
    assert_eq!(locks.stats().requests, before, "it looks for nothing");
    let lease = guard
        .leases()
        .last()
        .expect("there is one")
        .extend(secs(600));
    lease.expect("it is held");
    a_look_finds(world, kind, &name, LostCause::Removed, &guard);
}

pub(crate) fn on_lost_disconnects_at_a_healthy_end(world: &World, kind: Kind) {
    let locks = world.manager();
    for ends in [drop, |guard: Guard| {
        guard.release().expect("it was held until now");
    }] {
        let guard = kind.of(&locks, &world.name("healthy")).lock();
        let guard = guard.expect("it is free");
        let all = guard.on_lost();
        let each: Vec<_> = guard.leases().iter().map(Lease::on_lost).collect();
        assert!(all.is_empty());
        ends(guard);
        for losses in each.iter().chain([&all]) {
            let loss = world.recv_or_end(losses);
            assert!(loss.is_none(), "{loss:?}");
        }
    }
}

pub(crate) fn extend_lengthens_and_never_shortens(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("extend"));
    let locks = world.manager();
    let guard = kind.of(&locks, &name).lease(secs(6)).lock();
    let guard = guard.expect("it is free");
    // The lease of the last name extends all names of a set.
    let lease = guard.leases().last().expect("there is one");
    let at_least = secs(60);
    let until = world.now() + at_least;
    lease.extend(at_least).expect("it is held");
    let extended_at = world.now();
    let is_long = || {
        for lease in guard.leases() {
            let ends_at = world.now() + lease.remaining();
            assert!(ends_at >= until && ends_at <= extended_at + at_least + drift(at_least));
        }
        for key in kind.keys(&name) {
            let (_, left) = redis.holders(&key)[0];
            assert!(left >= lease.remaining() && left <= at_least + 3 * drift(at_least));
            // It is read after the holders.
            let ttl = redis.ttl(&key).expect("it has one");
            assert!(world.within(ttl) >= left);
        }
    };
    is_long();
    lease.extend(ms(1)).expect("it is held");
    is_long();
    let too_long = lease.extend(secs(25 * 60 * 60));
    assert!(matches!(too_long, Err(Error::Config { .. })));
    is_long();
    // The renewals of the lease of 6 s shorten nothing either.
    world.pass(secs(18));
    is_long();
    guard.release().expect("it was held until now");
    redis.is_free(kind, &name);
}

pub(crate) fn a_loss_before_max_hold_is_told_and_counted_once(world: &World, kind: Kind) {
    let (locks, name) = (world.manager(), world.name("twice"));
    let lock = kind.of(&locks, &name).lease(secs(1)).unrenewed();
    let guard = lock.max_hold(secs(3)).lock().expect("it is free");
    let losses = guard.on_lost();
    let loss = world.recv(&losses);
    world.pass(secs(4));
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(lost(guard.check()), loss);
    assert_eq!(lost(guard.release()), loss);
    let stats = locks.stats();
    assert_eq!((stats.lost_expired, stats.lost_max_hold), (1, 0));
}

pub(crate) fn max_hold_releases_for_the_others(world: &World, kind: Kind) {
    let name = world.name("max-hold");
    let warns = |it: Builder| it.warn_after(Some(ms(600)));
    let (one, other) = (world.build(warns), world.manager());
    let limit = ms(300);
    let begun = world.now();
    let guard = kind.of(&one, &name).max_hold(limit).lock();
    let guard = guard.expect("it is free");
    let granted_at = world.now();
    let losses = guard.on_lost();
    // The lease of 30 s is renewed, so the other manager cannot wait for its end.
    let next = kind.rival().of(&other, &name).locking();
    let loss = world.recv(&losses);
    let told = world.now();
    assert!(told >= begun + limit && told <= world.promptly(granted_at + limit));
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
    let next_at = next.locked_at();
    assert!(next_at >= begun + limit && next_at <= world.granted_by(told));
    let guard_fence = guard.fence();
    assert_eq!(lost(guard.release()), loss);
    assert!(kind.rises(guard_fence, next.locked()));
    // The limit of another guard does not matter.
    next.release();
    world.pass(secs(1));
    assert_eq!(one.stats().held_long, 0, "it has ended");
    // A guard that ends within the limit is not lost.
    let guard = kind.of(&one, &name).max_hold(secs(30)).lock();
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
    let deadline = deadline(world, &guard);
    // The wait of another thread ends although the guard is neither dropped nor checked.
    let waiter = kind.rival().of(&locks, &name).locking();
    let next_at = waiter.locked_at();
    assert!(next_at >= deadline, "it was not over");
    assert!(next_at <= world.granted_by(begun + lease));
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    // The drop of the lost guard must not release the lock of the next thread.
    drop(guard);
    waiter.release();
}

pub(crate) fn the_loss_of_one_sharer_costs_the_others_nothing(world: &World, kind: Kind) {
    let name = world.name("beside");
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.of(&one, &name);
    let kept = lock.lock().expect("there is room");
    let unrenewed = lock.clone().lease(secs(1)).unrenewed().lock();
    let unrenewed = unrenewed.expect("there is room");
    let limited = lock.max_hold(ms(300)).lock().expect("there is room");
    let limited_until = world.now() + ms(300);
    let losses = kept.on_lost();
    for (guard, cause, at) in [
        (&limited, LostCause::MaxHold, limited_until),
        (&unrenewed, LostCause::Expired, deadline(world, &unrenewed)),
    ] {
        let loss = world.recv(&guard.on_lost());
        assert_eq!(loss.cause, cause);
        assert!(world.now() <= world.promptly(at));
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
