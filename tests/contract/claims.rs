//! Locks that go from one guard to another by a claim: one process detaches, another adopts.

use std::time::Duration;

use leasehold::{Claim, Error, LeaseState, LockGuard, LockManager, Lost, LostCause};
use leasehold_simulator::{LinkFault, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::redis::fence_of;
use crate::subject::{Kind, is_unreachable, lost};
use crate::world::{Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "claims",
    &Topology::ALL,
    subject_bodies![
        a_claim_is_adopted_once_with_a_larger_fence,
        an_adopted_lock_is_renewed_and_a_detached_one_is_not,
        a_lock_is_detached_while_the_servers_are_silent,
        the_claim_of_a_lost_guard_is_lost,
        one_of_several_adopters_gets_the_lock,
        an_adopted_lock_has_the_min_hold_of_its_manager_from_the_adoption_on,
    ],
);

pub(crate) const BODIES_OF_ONE: Subject = (
    "claims_on_one_server",
    &[Topology::Single],
    subject_bodies![
        a_detached_lock_has_a_full_lease_if_it_was_renewed,
        an_adoption_whose_answer_was_lost_is_repeated,
        the_threads_behind_a_detached_lock_ask_for_it_and_keep_their_order,
        an_adopted_lock_is_handed_on_in_memory,
        a_timeout_beside_an_adopted_lock_strands_no_other_waiter,
        a_wait_beside_a_lock_that_was_adopted_and_released_ends_as_held,
        a_wait_beside_a_lock_that_was_adopted_and_detached_knows_its_owner,
        a_wait_beside_a_downgrade_ends_as_held,
        adoption_ignores_fences_that_were_only_reserved,
        a_claim_with_a_fence_that_was_never_given_is_refused_and_leaves_the_record_alone,
        a_claim_that_cannot_be_adopted_stays_as_it_is,
    ],
);

const LONG: Duration = secs(600);

#[track_caller]
fn locked(locks: &LockManager, name: &str) -> LockGuard {
    locks.lock(name).expect("it is free")
}

#[track_caller]
fn adopted(locks: &LockManager, claim: &Claim) -> LockGuard {
    locks.adopt(claim).expect("it is not adopted yet")
}

/// Adopts a claim whose lock is lost.
#[track_caller]
fn too_late(locks: &LockManager, claim: &Claim) -> Lost {
    let lost = lost(locks.adopt(claim));
    assert_eq!((&*lost.name, lost.fence), (claim.name(), claim.fence()));
    lost
}

fn a_claim_is_adopted_once_with_a_larger_fence(world: &World) {
    let (redis, name) = (world.redis(), world.name("claimed"));
    let (one, other) = (world.manager(), world.manager());
    let mut guard = locked(&one, &name);
    // The same manager may adopt it, too.
    for locks in [&one, &other, &one, &other] {
        let (fence, told) = (guard.fence(), guard.on_lost());
        let claim = guard.detach();
        assert_eq!((claim.name(), claim.fence()), (&*name, fence));
        assert!(world.recv_or_end(&told).is_none(), "a healthy end");
        assert!(one.try_lock(&name).expect("Redis replies").is_none());
        guard = adopted(locks, &claim);
        assert!(guard.fence() > fence);
        assert_eq!((guard.name(), guard.state()), (&*name, LeaseState::Held));
        assert_eq!(redis.holders(&name)[0].0, guard.owner());
        for locks in [&one, &other] {
            assert_eq!(too_late(locks, &claim).cause, LostCause::Taken);
        }
    }
    let claim = guard.detach();
    let guard = adopted(&other, &claim);
    guard.release().expect("it was held until now");
    redis.wait_until_free(Kind::Mutex, &name);
    assert_eq!(too_late(&one, &claim).cause, LostCause::Removed);
    drop(locked(&one, &name));
}

fn an_adopted_lock_is_renewed_and_a_detached_one_is_not(world: &World) {
    let (redis, name, lease) = (world.redis(), world.name("renewed"), secs(6));
    let locks = world.build(|it| it.lease(lease));
    let guard = locked(&locks, &name);
    world.pass(2 * lease);
    let guard = adopted(&locks, &guard.detach());
    world.pass(2 * lease);
    guard.check().expect("it is held");
    let claim = guard.detach();
    world.pass(world.within(lease));
    assert!(!redis.exists(&name));
    assert_eq!(too_late(&locks, &claim).cause, LostCause::Removed);
}

fn a_lock_is_detached_while_the_servers_are_silent(world: &World) {
    let name = world.name("silent");
    let locks = world.build(|it| it.io_timeout(secs(2)).node_timeout(secs(2)));
    let guard = locked(&locks, &name);
    world.pause_servers();
    let claim = guard.detach();
    world.resume_servers();
    let guard = adopted(&world.manager(), &claim);
    guard.release().expect("it was held until now");
}

fn an_adoption_whose_answer_was_lost_is_repeated(world: &World) {
    let (redis, name) = (world.redis(), world.name("unanswered"));
    let locks = world.build(|it| it.io_timeout(secs(2)));
    let other = world.manager();
    // Loads the script into the servers.
    let claim = locked(&locks, &name).detach();
    let claim = adopted(&locks, &claim).detach();
    locks.strike(LinkFault::LoseAnswers);
    let outcome = locks.adopt(&claim).map(drop);
    assert!(outcome.as_ref().is_err_and(is_unreachable), "{outcome:?}");
    locks.heal();
    world.until("the servers have executed it", || {
        let holders = redis.holders(&name);
        holders.iter().any(|(owner, _)| owner != claim.owner())
    });
    assert_eq!(too_late(&other, &claim).cause, LostCause::Taken);
    let guard = adopted(&locks, &claim);
    assert!(guard.fence() > claim.fence());
    too_late(&locks, &claim);
    guard.release().expect("it was held until now");
    too_late(&locks, &claim);
}

fn the_claim_of_a_lost_guard_is_lost(world: &World) {
    let redis = world.redis();
    let locks = world.build(|it| it.lease(LONG));
    let other = world.manager();
    let fixed = |name: &str| locks.mutex(name).renew(false);
    let until_lost = |guard: LockGuard| {
        world.until("it is lost", || guard.state() == LeaseState::Lost);
        too_late(&locks, &guard.detach());
    };
    let guard = |mutex: leasehold::Mutex| mutex.lock().expect("it is free");

    until_lost(guard(fixed("expired").lease(secs(2))));
    until_lost(guard(locks.mutex("exceeded").max_hold(Some(ms(300)))));
    // The key still exists, because another client has lengthened its life.
    let kept = guard(fixed("kept").lease(secs(2)));
    let () = redis.ask(&["PEXPIRE", "kept", "600000"]);
    until_lost(kept);

    // Nothing has found the loss yet.
    for name in ["deleted", "taken"] {
        let lost = guard(fixed(name));
        let () = redis.ask(&["DEL", name]);
        let next = (name == "taken").then(|| locked(&other, name));
        too_late(&locks, &lost.detach());
        drop(next);
    }
    let claim = locked(&locks, "broken").detach();
    let broken = other.force_release("broken", claim.owner());
    assert!(broken.expect("Redis replies"));
    assert_eq!(too_late(&locks, &claim).cause, LostCause::Removed);
}

fn one_of_several_adopters_gets_the_lock(world: &World) {
    let managers = [(); 3].map(|()| world.manager());
    for round in 0..5 {
        let name = world.name(&format!("race-{round}"));
        let claim = locked(&managers[0], &name).detach();
        let adopters = managers.iter().cycle().take(9).map(|locks| {
            let (manager, claim) = (LockManager::clone(locks), claim.clone());
            locks.thread(move || match manager.adopt(&claim) {
                Ok(guard) => Some(guard),
                Err(Error::Lost(_)) => None,
                Err(error) => panic!("{error}"),
            })
        });
        let adopters: Vec<_> = adopters.collect();
        let held: Vec<_> = adopters.into_iter().filter_map(Task::end).collect();
        // Of a quorum, each adopter may have the vote of one node.
        let is_split = world.topology() == Topology::Quorum && held.is_empty();
        assert!(held.len() == 1 || is_split, "{held:?}");
        for guard in held {
            guard.release().expect("it was held until now");
        }
    }
}

fn an_adopted_lock_has_the_min_hold_of_its_manager_from_the_adoption_on(world: &World) {
    let (redis, name) = (world.redis(), world.name("min-hold"));
    let [one, other] = [ms(0), LONG].map(|length| world.build(|it| it.min_hold(length)));
    let guard = adopted(&one, &locked(&other, &name).detach());
    guard.release().expect("it was held until now");
    redis.wait_until_free(Kind::Mutex, &name);

    let guard = locked(&one, &name);
    world.pass(secs(5));
    let begun = world.now();
    let guard = adopted(&other, &guard.detach());
    guard.release().expect("it was held until now");
    world.pass(secs(599));
    assert!(redis.exists(&name), "it is kept");
    world.pass_until(world.within(begun + LONG) + secs(1));
    assert!(!redis.exists(&name), "it is kept for too long");
}

fn a_detached_lock_has_a_full_lease_if_it_was_renewed(world: &World) {
    let redis = world.redis();
    let locks = world.build(|it| it.lease(LONG));
    for (name, renew) in [("renewed", true), ("fixed", false)] {
        let guard = locks.mutex(name).renew(renew).lock();
        let guard = guard.expect("it is free");
        world.pass(secs(100));
        let claim = guard.detach();
        let ttl = redis.ttl(name).expect("it is detached");
        assert_eq!(ttl > secs(599), renew);
        drop(adopted(&locks, &claim));
    }
    // `detach` does not shorten an extended lease.
    let guard = locked(&locks, "extended");
    guard.extend(LONG * 2).expect("it is held");
    let claim = guard.detach();
    assert!(redis.ttl("extended").is_some_and(|ttl| ttl > LONG));
    // The extension belongs to the guard that asked for it, and to its claim.
    let guard = adopted(&locks, &claim);
    assert!(redis.ttl("extended").is_some_and(|ttl| ttl <= LONG));
    drop(guard);
}

fn the_threads_behind_a_detached_lock_ask_for_it_and_keep_their_order(world: &World) {
    let (redis, name) = (world.redis(), world.name("behind"));
    let [one, other, adopter] = [(); 3].map(|()| world.manager());
    let guard = locked(&one, &name);
    let of = |locks: &Locks| Kind::Mutex.of(locks, &name);
    let here = of(&one).locking_asleep();
    let later = of(&one).locking_asleep();
    let elsewhere = of(&other).locking();
    redis.wait_until_queued(&name, 1);
    let claim = guard.detach();
    redis.wait_until_queued(&name, 2);
    // A thread of the adopting process that asks already stays in the queue.
    let beside = of(&adopter).locking();
    redis.wait_until_queued(&name, 3);
    let guard = adopted(&adopter, &claim);
    assert!(adopter.try_lock(&name).expect("it is known").is_none());
    let mut fence = guard.fence();
    guard.release().expect("it was held until now");
    for next in [elsewhere, here, later, beside] {
        let next_fence = next.locked();
        assert!(next_fence > fence);
        fence = next_fence;
        next.release();
    }
    redis.only_fences_are_left(Kind::Mutex, &name);
}

fn an_adopted_lock_is_handed_on_in_memory(world: &World) {
    let name = world.name("passed-on");
    let locks = world.build(|it| it.quantum(LONG));
    let guard = adopted(&locks, &locked(&locks, &name).detach());
    let behind = [(); 3].map(|()| Kind::Mutex.of(&locks, &name).locking_asleep());
    let mut fence = guard.fence();
    let passed_on = locks.stats().passed_on;
    guard.release().expect("it was held until now");
    for next in behind {
        let next_fence = next.locked();
        assert!(next_fence > fence);
        fence = next_fence;
        next.release();
    }
    assert!(locks.stats().passed_on >= passed_on + 2);
}

fn a_timeout_beside_an_adopted_lock_strands_no_other_waiter(world: &World) {
    let (redis, name) = (world.redis(), world.name("gives-up"));
    let (locks, other) = (world.manager(), world.manager());
    let claim = locked(&other, &name).detach();
    let mutex = locks.mutex(&name);
    let asks = locks.thread(move || mutex.try_lock_for(secs(6)).map(|guard| guard.is_some()));
    redis.wait_until_queued(&name, 1);
    let behind = Kind::Mutex.of(&locks, &name).locking_asleep();
    let guard = adopted(&locks, &claim);
    assert!(!asks.end().expect("Redis replies"));
    guard.release().expect("it was held until now");
    assert!(behind.locked() > claim.fence());
    behind.release();
}

/// The delegate sleeps until its next poll, so nobody asks who has the lock since the adopter has released it.
fn a_wait_beside_a_lock_that_was_adopted_and_released_ends_as_held(world: &World) {
    let (redis, name) = (world.redis(), world.name("beside"));
    let [locks, owner, next] = [(); 3].map(|()| world.manager());
    let guard = locked(&owner, &name);
    let of = |locks: &Locks| Kind::Mutex.of(locks, &name);
    let elsewhere = of(&next).locking();
    redis.wait_until_queued(&name, 1);
    let delegate = of(&locks).locking();
    redis.wait_until_queued(&name, 2);
    let guard = adopted(&locks, &guard.detach());
    guard.release().expect("it was held until now");
    elsewhere.locked();
    for wait in [ms(0), ms(75), ms(150), ms(300)] {
        let waited = of(&locks).try_lock_for(wait);
        assert!(waited.expect("nothing has failed").is_none(), "{wait:?}");
    }
    elsewhere.release();
    delegate.locked();
    delegate.release();
}

fn adoption_ignores_fences_that_were_only_reserved(world: &World) {
    let (redis, name) = (world.redis(), world.name("fences"));
    // A block of fences for ten minutes.
    let locks = world.build(|it| it.quantum(LONG));
    let other = world.manager();
    let guard = locked(&locks, &name);
    let waiting = [(); 2].map(|()| {
        let mutex = locks.mutex(&name);
        let before = locks.stats().waiting;
        let waiting = locks.thread(move || mutex.lock());
        world.until("it waits", || locks.stats().waiting > before);
        waiting
    });
    drop(guard);
    let [first, second] = waiting;
    drop(first.end().expect("it becomes free"));
    let claim = second.end().expect("it becomes free").detach();
    let kept: u64 = redis.ask(&["GET", &fence_of(&name)]);
    assert!(kept > claim.fence() + 500_000_000, "a block was reserved");
    let guard = adopted(&other, &claim);
    assert!(guard.fence() > claim.fence());
    let now = u64::try_from(redis.time().as_micros()).expect("µs");
    assert!(guard.fence() <= now, "ahead of time");
    // If Redis lost the record, the claim has the last fence.
    let ahead = guard.fence() + 30_000_000;
    let claim = guard.detach();
    let () = redis.ask(&["DEL", &fence_of(&name)]);
    let guard = adopted(&other, &with_fence(&claim, ahead));
    assert_eq!(guard.fence(), ahead + 1);
    assert!(redis.ttl(&fence_of(&name)).is_some(), "it stays for ever");
}

/// Returns a claim with another fence. Any program can write one, because it is text.
fn with_fence(claim: &Claim, fence: u64) -> Claim {
    let text = claim.to_string();
    let (_, rest) = text.split_once('/').expect("a fence first");
    format!("{fence}/{rest}").parse().expect("a claim")
}

/// If `adopt` accepted a fence that the lock never gave, Redis would keep it until the clock is past it, and all later fences
/// would follow it.
fn a_claim_with_a_fence_that_was_never_given_is_refused_and_leaves_the_record_alone(world: &World) {
    let (redis, locks) = (world.redis(), world.manager());
    for (name, forgotten) in [("kept", false), ("forgotten", true)] {
        let claim = locked(&locks, name).detach();
        let record = fence_of(name);
        if forgotten {
            let () = redis.ask(&["DEL", &record]);
        }
        let before: Option<u64> = redis.ask(&["GET", &record]);
        let minute = 60_000_000;
        let day = 24 * 60 * minute;
        // The clock runs on. So without a record a small change may not be detected.
        let least = if forgotten { day / 2 } else { minute / 2 };
        let first = claim.fence();
        for fence in [
            first + least,
            first + day,
            8_999_999_999_999_000,
            (1 << 53) - 1,
        ] {
            lost(locks.adopt(&with_fence(&claim, fence)));
            assert_eq!(redis.ask::<Option<u64>>(&["GET", &record]), before);
        }
        let guard = adopted(&locks, &claim);
        assert!(guard.fence() > first && guard.fence() < first + day / 2);
        guard.release().expect("it is held");
        assert!(redis.ttl(&record).expect("it expires") < secs(60 * 60));
    }
}

fn a_claim_that_cannot_be_adopted_stays_as_it_is(world: &World) {
    let (redis, name) = (world.redis(), world.name("refused"));
    let locks = world.manager();
    let claim = locked(&locks, &name).detach();
    // The manager's prefix is part of the key, so this is another key.
    too_late(&world.build(|it| it.prefix("p:")), &claim);
    let unfit = world.build(|it| it.prefix("}")).adopt(&claim);
    assert!(matches!(unfit, Err(Error::InvalidName { .. })), "{unfit:?}");
    let closed = world.manager();
    assert!(closed.close(secs(30)));
    assert!(matches!(closed.adopt(&claim), Err(Error::Closed)));
    // A fence of another type, and then a key of another type.
    for key in [&fence_of(&name), &name] {
        let () = redis.ask(&["DEL", key]);
        let () = redis.ask(&["RPUSH", key, "x"]);
        let error = locks.adopt(&claim);
        assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
        if *key != name {
            assert_eq!(redis.get(&name).as_deref(), Some(claim.owner()));
            let () = redis.ask(&["DEL", key]);
        }
    }
}

/// The delegate sleeps after "held", and does not know of the adoption.
fn a_wait_beside_a_lock_that_was_adopted_and_detached_knows_its_owner(world: &World) {
    let (redis, name) = (world.redis(), world.name("beside"));
    let [locks, owner] = [(); 2].map(|()| world.manager());
    let guard = locked(&owner, &name);
    let delegate = Kind::Mutex.of(&locks, &name).locking();
    redis.wait_until_queued(&name, 1);
    let claim = adopted(&locks, &guard.detach()).detach();
    let timeout = locks.mutex(&name).run(ms(75), |_| ());
    adopted(&owner, &claim).release().expect("held");
    delegate.locked();
    delegate.release();
    match timeout {
        Err(Error::Timeout { holder, .. }) => assert_eq!(holder.as_deref(), Some(claim.owner())),
        other => panic!("{other:?}"),
    }
}

/// The first waiter becomes the delegate when the downgrade has ended, and the time of the second one is over before the
/// server has answered the first.
fn a_wait_beside_a_downgrade_ends_as_held(world: &World) {
    let (locks, name) = (world.manager(), world.name("down"));
    let writer = locks.rwlock(&name).write().expect("free");
    locks.strike(LinkFault::Late(ms(35)));
    let downgrading = locks.thread(move || writer.downgrade());
    world.pass(ms(2));
    let first = Kind::Writer.of(&locks, &name).locking_asleep();
    let waited = Kind::Writer.of(&locks, &name).try_lock_for(ms(110));
    locks.heal();
    downgrading.end().expect("held").release().expect("held");
    first.locked();
    first.release();
    assert!(waited.expect("held").is_none());
}
