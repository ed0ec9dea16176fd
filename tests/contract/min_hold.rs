//! Locks that stay taken after their release (`min_hold`).

use std::ops::RangeInclusive;
use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::{Error, Event, EventKind, LostCause};
use leasehold_simulator::{LinkFault, Topology};

use crate::closures::holder_at_timeout;
use crate::matrix::Capability::{Always, KeepsFences, OneServer, SpansNames};
use crate::matrix::{Chapter, bodies};
use crate::redis::fence_of;
use crate::subject::{Guard, Kind, Subject, lost};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_released_lock_stays_taken_until_min_hold_is_over,
            a_lock_that_is_kept_goes_to_no_thread_of_its_process,
            a_release_after_min_hold_frees_the_lock,
            a_guard_that_forgets_min_hold_frees_the_lock,
            a_lock_that_max_hold_ends_stays_taken_until_min_hold_is_over,
            a_lock_that_was_lost_is_not_kept,
            a_timeout_at_a_kept_lock_names_the_last_owner,
            a_wait_that_ends_after_the_release_of_a_kept_lock_ends_as_held,
        ],
    ),
    (
        OneServer,
        bodies![
            a_waiter_that_queues_at_a_kept_lock_has_it_next,
            a_release_within_min_hold_wakes_the_first_waiter,
            a_repeated_release_lengthens_no_min_hold,
        ],
    ),
    (
        KeepsFences,
        bodies![
            fences_do_not_run_ahead_of_the_clock_with_min_hold,
            a_lock_that_is_kept_gives_its_unused_fences_back,
        ],
    ),
    (
        SpansNames,
        bodies![one_foreign_key_does_not_end_the_min_hold_of_the_other_names],
    ),
];

/// A lease that is shorter than [`KEPT`].
const LEASE: Duration = secs(4);
const KEPT: Duration = secs(15);
/// So long that one surplus block of fences shows.
const QUANTUM: Duration = secs(600);

fn micros(length: Duration) -> u64 {
    length.as_micros().try_into().expect("it is short")
}

/// A lock that is kept after its release.
fn kept(subject: Subject) -> Subject {
    subject.lease(LEASE).min_hold(KEPT)
}

/// Locks, and returns with the guard when its lock may come free: `KEPT` after the grant, which was made during the call.
fn lock_kept(world: &World, lock: &Subject) -> (Guard, RangeInclusive<Duration>) {
    let begun = world.now();
    let guard = lock.lock().expect("it is free");
    let latest = world.granted_by(world.now() + KEPT);
    (guard, begun + KEPT..=latest)
}

/// Checks soon after a release that one owner has each key of the lock, and that the key ends in this span. Returns the
/// ends.
#[track_caller]
fn is_kept(
    world: &World,
    kind: Kind,
    name: &str,
    until: &RangeInclusive<Duration>,
) -> Vec<Duration> {
    let redis = world.redis();
    // On a quorum, a node may execute the release after a majority has.
    world.pass(ms(100));
    let ends = kind.keys(name).into_iter().map(|key| {
        let holders = redis.holders(&key);
        assert_eq!(holders.len(), 1, "{key}: {holders:?}");
        let (now, left) = (world.now(), holders[0].1);
        // The server counts in whole milliseconds.
        let is_in_time = until.contains(&(now + left + ms(1)));
        assert!(is_in_time, "{key}: {now:?} + {left:?}, not {until:?}");
        now + left
    });
    ends.collect()
}

pub(crate) fn a_released_lock_stays_taken_until_min_hold_is_over(world: &World, kind: Kind) {
    let name = world.name("kept");
    let (one, other) = (world.manager(), world.manager());
    let (guard, until) = lock_kept(world, &kept(kind.of(&one, &name)));
    guard.release().expect("it was held until now");
    is_kept(world, kind, &name, &until);
    let rivals = [&one, &other].map(|locks| kind.rival().of(locks, &name));
    let is_tried = || {
        for rival in &rivals {
            assert!(rival.try_lock().expect("Redis replies").is_none());
        }
    };
    is_tried();
    // A try takes a few round trips.
    world.pass_until(until.start().saturating_sub(ms(200)));
    is_tried();
    is_kept(world, kind, &name, &until);
    world.pass_until(*until.end());
    for rival in &rivals {
        assert!(rival.try_lock().expect("Redis replies").is_some());
    }
}

pub(crate) fn a_lock_that_is_kept_goes_to_no_thread_of_its_process(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-inside"));
    let locks = world.manager();
    let (guard, until) = lock_kept(world, &kept(kind.of(&locks, &name)));
    let waiter = kind.rival().of(&locks, &name).locking_asleep();
    guard.release().expect("it was held until now");
    redis.wait_until_queued(&name, 1);
    assert!(waiter.waits());
    is_kept(world, kind, &name, &until);
    let next_at = waiter.locked_at();
    assert!(until.contains(&next_at), "{next_at:?} {until:?}");
    waiter.release();
}

pub(crate) fn a_release_after_min_hold_frees_the_lock(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-before"));
    let locks = world.manager();
    let (guard, _) = lock_kept(world, &kept(kind.of(&locks, &name)));
    world.pass(KEPT);
    guard.release().expect("it was held until now");
    redis.is_free(kind, &name);
}

/// The guard of a job that has failed, which another host can try now.
pub(crate) fn a_guard_that_forgets_min_hold_frees_the_lock(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("forgets"));
    let locks = world.manager();
    let (guard, _) = lock_kept(world, &kept(kind.of(&locks, &name)));
    guard.lease().forget_min_hold();
    guard.release().expect("it was held until now");
    redis.is_free(kind, &name);
}

pub(crate) fn a_lock_that_max_hold_ends_stays_taken_until_min_hold_is_over(
    world: &World,
    kind: Kind,
) {
    let name = world.name("kept-max-hold");
    let locks = world.manager();
    let lock = kept(kind.of(&locks, &name)).max_hold(secs(1));
    let (guard, until) = lock_kept(world, &lock);
    let waiter = kind.rival().of(&world.manager(), &name).locking();
    let loss = world.recv(&guard.on_lost());
    assert_eq!(loss.cause, LostCause::MaxHold);
    // The renewal thread sends the release.
    is_kept(world, kind, &name, &until);
    assert_eq!(lost(guard.release()), loss);
    is_kept(world, kind, &name, &until);
    let next_at = waiter.locked_at();
    assert!(until.contains(&next_at), "{next_at:?} {until:?}");
    waiter.release();
}

pub(crate) fn a_lock_that_was_lost_is_not_kept(world: &World, kind: Kind) {
    let redis = world.redis();
    for is_taken in [false, true] {
        let name = world.name(&format!("kept-lost-{is_taken}"));
        let (one, other) = (world.manager(), world.manager());
        let (guard, _) = lock_kept(world, &kept(kind.of(&one, &name)));
        let keys = kind.keys(&name);
        for key in &keys {
            let () = redis.ask(&["DEL", key]);
        }
        let rival = kind.rival().of(&other, &name).lease(LEASE);
        let next = is_taken.then(|| rival.lock().expect("it is free"));
        lost(guard.release());
        for key in &keys {
            let holders = redis.holders(key);
            let owners: Vec<_> = holders.iter().map(|(owner, _)| &**owner).collect();
            let next: Vec<_> = next.iter().map(|next| next.lease().owner()).collect();
            assert_eq!(owners, next);
            assert!(holders.iter().all(|(_, ttl)| *ttl <= LEASE), "{holders:?}");
        }
    }
}

pub(crate) fn a_waiter_that_queues_at_a_kept_lock_has_it_next(world: &World, kind: Kind) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    for is_broken in [false, true] {
        let name = world.name(&format!("kept-queue-{is_broken}"));
        let keys = kind.keys(&name);
        let (guard, until) = lock_kept(world, &kept(kind.of(&one, &name)));
        let owner = guard.lease().owner().to_owned();
        guard.release().expect("it was held until now");
        let waiter = kind.rival().of(&other, &name).locking();
        redis.wait_until_queued(&keys[0], 1);
        if kind.family() == Kind::Mutex {
            // The value ends with the sign of a kept lock, and then the mark for waiters.
            assert_eq!(redis.get(&keys[0]), Some(format!("{owner}!~!")));
        }
        let info = one.inspect(&keys[0]).expect("Redis replies");
        let holders = info.expect("it is kept").holders;
        let owners: Vec<_> = holders.into_iter().map(|holder| holder.owner).collect();
        assert_eq!(owners, [&*owner]);
        let in_time = if is_broken {
            let broken_at = world.now();
            for key in &keys {
                assert!(one.force_release(key, &owner).expect("Redis replies"));
            }
            broken_at..=world.within(world.now())
        } else {
            until
        };
        let next_at = waiter.locked_at();
        assert!(in_time.contains(&next_at), "{next_at:?} {in_time:?}");
        waiter.release();
    }
}

/// The waiter asked when the lease had long to go. A message tells it to ask again, and the reply when the lock is free.
pub(crate) fn a_release_within_min_hold_wakes_the_first_waiter(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-wakes"));
    let (one, other) = (world.manager(), world.manager());
    let key = &kind.keys(&name)[0];
    let (guard, until) = lock_kept(world, &kept(kind.of(&one, &name)));
    let waiter = kind.rival().of(&other, &name).locking();
    let (owner, _) = redis.waiters(key, 1).remove(0);
    redis.wait_until_polled(key, &owner);
    // The next poll is most of a second away, so that only a message makes the waiter ask earlier.
    world.pass(ms(200));
    let silence = || redis.silence(key, &owner).expect("it is in the queue");
    assert!(silence() >= ms(200));
    let released_at = world.now();
    guard.release().expect("it was held until now");
    world.until("the waiter asks", || silence() < ms(200));
    assert!(world.now() <= world.within(released_at), "only a poll");
    is_kept(world, kind, &name, &until);
    let next_at = waiter.locked_at();
    assert!(until.contains(&next_at), "{next_at:?} {until:?}");
    waiter.release();
}

pub(crate) fn a_timeout_at_a_kept_lock_names_the_last_owner(world: &World, kind: Kind) {
    let name = world.name("kept-told");
    let (tell, told) = unbounded();
    let locks = world.build(|it| {
        it.listener(move |event: &Event<'_>| {
            if let EventKind::Contended { holder, .. } = &event.kind {
                tell.send(holder.as_deref().map(str::to_owned)).ok();
            }
        })
    });
    let (guard, _) = lock_kept(world, &kept(kind.of(&locks, &name)));
    let owner = guard.lease().owner().to_owned();
    guard.release().expect("it was held until now");
    let rival = kind.rival().of(&locks, &name);
    // The last wait finds the mark that the second wait has left.
    for wait in [Duration::ZERO, ms(600), Duration::ZERO] {
        let named = holder_at_timeout(world, &rival, wait);
        assert_eq!(named.as_deref(), Some(&*owner));
    }
    assert_eq!(world.recv(&told), Some(owner));
}

/// Until the next thread has an answer, the last that is known is that this process had the lock.
pub(crate) fn a_wait_that_ends_after_the_release_of_a_kept_lock_ends_as_held(
    world: &World,
    kind: Kind,
) {
    let locks = world.manager();
    for ends_after in (0..24).map(|half| half * Duration::from_micros(500)) {
        let name = world.name(&format!("kept-{ends_after:?}"));
        let rival = kind.rival().of(&locks, &name);
        let guard = kept(kind.of(&locks, &name)).lock().expect("it is free");
        let first = rival.locking_asleep();
        let (released_at, end) = (
            world.now() + ms(200),
            world.instant() + ms(200) + ends_after,
        );
        let second = locks.thread(move || rival.try_lock_until(end).map(|guard| guard.is_some()));
        world.pass_until(released_at);
        guard.release().expect("it was held until now");
        let waited = second.end();
        assert!(matches!(waited, Ok(false)), "{ends_after:?}: {waited:?}");
        drop(first);
    }
}

pub(crate) fn a_repeated_release_lengthens_no_min_hold(world: &World, kind: Kind) {
    let name = world.name("kept-repeated");
    let locks = world.manager();
    // A server that lacks the script replies with an error first.
    let (first, _) = lock_kept(world, &kept(kind.of(&locks, "first")));
    first.release().expect("it was held until now");
    let (guard, until) = lock_kept(world, &kept(kind.of(&locks, &name)));
    locks.strike(LinkFault::LoseAnswers);
    let released = guard.release();
    assert!(
        matches!(released, Err(Error::Unavailable { .. })),
        "{released:?}"
    );
    let before = is_kept(world, kind, &name, &until);
    locks.heal();
    assert!(locks.close(secs(30)), "it is repeated");
    let after = is_kept(world, kind, &name, &until);
    for (before, after) in before.iter().zip(&after) {
        assert!(*after <= *before + ms(1), "{before:?} {after:?}");
    }
}

pub(crate) fn fences_do_not_run_ahead_of_the_clock_with_min_hold(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-fences"));
    // There are more tasks than permits, so that they wait for each other.
    let tasks = [(); 5].map(|()| {
        let locks = world.build(|it| it.quantum(QUANTUM));
        let lock = kind.of(&locks, &name).min_hold(ms(5));
        locks.thread(move || {
            let turns = (0..4).map(|_| {
                let guard = lock.lock().expect("it gets its turn");
                let fence = guard.fence();
                guard.release().expect("it is held");
                fence
            });
            turns.max()
        })
    });
    let last = tasks.into_iter().filter_map(|task| task.end()).max();
    let (last, now) = (last.expect("there were turns"), micros(redis.time()));
    assert!(last <= now + micros(QUANTUM), "{last} is ahead of {now}");
}

pub(crate) fn a_lock_that_is_kept_gives_its_unused_fences_back(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-block"));
    let first = kind.rival().of(&world.manager(), &name).hold();
    let locks = world.build(|it| it.quantum(QUANTUM));
    let lock = kind.of(&locks, &name).lease(LEASE);
    // A thread waited for it, so it reserves the fences of a quantum, and hands them on in memory.
    let second = lock.locking_asleep();
    redis.wait_until_queued(&kind.keys(&name)[0], 1);
    let third = lock.min_hold(KEPT).locking_asleep();
    first.release();
    second.locked();
    let earliest = world.now() + KEPT;
    second.release();
    let latest = world.within(third.locked_at() + KEPT);
    third.release();
    is_kept(world, kind, &name, &(earliest..=latest));
    for key in kind.keys(&name) {
        let last: u64 = redis.ask(&["GET", &fence_of(&key)]);
        // Permits of one process share the fences of a quantum. Only the owner that reserved last gives any back.
        let beside = match (kind.crowd(), world.topology()) {
            (Some(_), _) => QUANTUM,
            // A node of a quorum keeps the block of a vote that came to nothing, which has the fences of a second.
            (None, Topology::Quorum) => secs(1),
            (None, _) => Duration::ZERO,
        };
        let now = micros(redis.time());
        assert!(last <= now + micros(beside), "{last} is ahead of {now}");
    }
}

pub(crate) fn one_foreign_key_does_not_end_the_min_hold_of_the_other_names(
    world: &World,
    kind: Kind,
) {
    let (redis, name) = (world.redis(), world.name("kept-foreign"));
    let keys = kind.keys(&name);
    let (guard, until) = lock_kept(world, &kept(kind.of(&world.manager(), &name)));
    let () = redis.ask(&["DEL", &keys[0]]);
    let () = redis.ask(&["RPUSH", &keys[0], "theirs"]);
    assert!(matches!(guard.release(), Err(Error::Lost(_))));
    world.pass(ms(100));
    for key in &keys[1..] {
        let ends_at = world.now() + redis.ttl(key).expect("it is kept") + ms(1);
        assert!(until.contains(&ends_at), "{ends_at:?} {until:?}");
    }
}
