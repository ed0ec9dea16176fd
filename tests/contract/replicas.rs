//! Grants and renewals that count only if enough replicas have them.

use std::fmt::Debug;

use leasehold::{Error, LeaseState, LostCause};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::subject::{Kind, lost};
use crate::world::{Fault, Locks, World, ms, secs};

/// The servers of a Sentinel set are a master with two replicas.
pub(crate) const BODIES: Subject = (
    "replicas",
    &[Topology::Sentinel, Topology::Cluster],
    subject_bodies![
        a_grant_waits_for_replicas,
        a_grant_on_too_few_replicas_is_released_and_an_error,
        every_kind_needs_its_replicas,
        a_wait_goes_on_until_the_replicas_are_back,
        a_renewal_on_too_few_replicas_does_not_count,
        an_extension_on_too_few_replicas_is_an_error,
    ],
);

/// These need a master that never had a replica.
pub(crate) const LONELY_BODIES: Subject = (
    "replicas",
    &[Topology::Single],
    subject_bodies![
        a_permit_beside_another_number_of_permits_needs_its_replicas_too,
        missing_replicas_are_the_error_of_every_wait,
        a_wait_without_replicas_leaves_the_lock_free_between_tries,
    ],
);

const NAME: &str = "n";

fn not_replicated<T: Debug>(result: Result<T, Error>) -> (u32, u32) {
    match result {
        Err(Error::NotReplicated {
            wanted, confirmed, ..
        }) => (wanted, confirmed),
        other => panic!("{other:?}"),
    }
}

/// Returns how many replicas the master of the lock has.
fn count(world: &World) -> u32 {
    world.replicas(NAME).len() as u32
}

/// Blocks until so many renewals more have counted.
#[track_caller]
fn wait_until_renewed(locks: &Locks, times: u64) {
    let wanted = locks.stats().renewed + times;
    let has_come = || locks.stats().renewed >= wanted;
    locks.world().until("it is renewed", has_come);
}

/// Pauses a replica, so that one is missing, or resumes it.
fn pause_one(world: &World, is_paused: bool) {
    let replica = world.replicas(NAME)[0];
    world.fault(if is_paused {
        Fault::PauseServer(replica)
    } else {
        Fault::ResumeServer(replica)
    });
}

fn a_grant_waits_for_replicas(world: &World) {
    let all = count(world);
    let locks = world.build(|it| it.replicas(all));
    let guard = locks.mutex(NAME).lease(secs(15)).lock();
    let guard = guard.expect("it is free");
    for replica in world.replicas(NAME) {
        let keys = world.redis_at(replica).keys("*");
        assert!(keys.contains(NAME), "{keys:?}");
    }
    wait_until_renewed(&locks, 2);
    assert!(guard.remaining() > secs(9));
    guard.release().expect("it is held");
    pause_one(world, true);
    let begun = world.now();
    assert_eq!(not_replicated(locks.try_lock(NAME)), (all, all - 1));
    // Its request has an `io_timeout` of 1 s.
    assert!(world.now() <= world.within(begun + secs(1)));
}

fn a_grant_on_too_few_replicas_is_released_and_an_error(world: &World) {
    let (all, redis) = (count(world), world.redis_at(world.master(NAME)));
    let locks = world.build(|it| it.replicas(all));
    pause_one(world, true);
    assert_eq!(not_replicated(locks.lock(NAME)), (all, all - 1));
    assert_eq!(not_replicated(locks.try_lock("{n}2")), (all, all - 1));
    let text = locks.try_lock("{n}3").expect_err("no replica").to_string();
    let few = all - 1;
    assert_eq!(
        text,
        format!("lock \"{{n}}3\": {few} of {all} replicas confirmed the lock in time")
    );
    let begun = world.now();
    world.until("it is released", || {
        [NAME, "{n}2", "{n}3"]
            .iter()
            .all(|name| !redis.exists(name))
    });
    assert!(world.now() <= world.within(begun));
    pause_one(world, false);
    let begun = world.now();
    drop(locks.lock(NAME).expect("the replica is back"));
    assert!(world.now() <= world.within(begun));
}

/// More replicas than exist never confirm a grant. No key stays behind.
fn every_kind_needs_its_replicas(world: &World) {
    let more = count(world) + 1;
    let locks = world.build(|it| it.replicas(more));
    not_replicated(locks.reentrant_mutex("{n}reentrant").try_lock());
    not_replicated(locks.rwlock("{n}rw").try_read());
    not_replicated(locks.rwlock("{n}rw2").try_write());
    not_replicated(locks.semaphore("{n}sem", 3).try_acquire_many(2));
    not_replicated(locks.multi(["{n}a", "{n}b"]).try_lock());
    let (redis, begun) = (world.redis_at(world.master(NAME)), world.now());
    for key in ["reentrant", "rw", "rw2", "sem", "a", "b"] {
        let key = format!("{{n}}{key}");
        world.until("it is released", || !redis.exists(&key));
    }
    assert!(world.now() <= world.within(begun));
}

fn a_wait_goes_on_until_the_replicas_are_back(world: &World) {
    let all = count(world);
    let locks = world.build(|it| it.replicas(all));
    let first = world.manager().lock(NAME).expect("it is free");
    let waiting = Kind::Mutex.of(&locks, NAME).locking();
    world
        .redis_at(world.master(NAME))
        .wait_until_queued(NAME, 1);
    pause_one(world, true);
    let fence = first.fence();
    first.release().expect("it is held");
    // Each claim takes an `io_timeout` of 1 s.
    world.pass(secs(10));
    assert!(waiting.waits());
    pause_one(world, false);
    let begun = world.now();
    assert!(waiting.locked_at() <= world.within(begun + secs(2)));
    assert!(waiting.locked() > fence);
    waiting.release();
}

fn a_renewal_on_too_few_replicas_does_not_count(world: &World) {
    let (all, redis) = (count(world), world.redis_at(world.master(NAME)));
    let locks = world.build(|it| it.replicas(all).lease(secs(12)));
    let guard = locks.lock(NAME).expect("it is free");
    let heard = guard.on_lost();
    wait_until_renewed(&locks, 1);
    pause_one(world, true);
    let ends_at = world.now() + guard.remaining();
    // The master itself still accepts the renewals.
    let told = world.recv(&heard);
    assert!(world.now() >= ends_at && world.now() <= world.within(ends_at));
    assert_eq!(
        (told.cause, guard.state()),
        (LostCause::Expired, LeaseState::Lost)
    );
    assert!(
        redis.exists(NAME),
        "the master had it renewed all the while"
    );
    lost(guard.release());
}

fn an_extension_on_too_few_replicas_is_an_error(world: &World) {
    let (all, redis) = (count(world), world.redis_at(world.master(NAME)));
    let locks = world.build(|it| it.replicas(all));
    let guard = locks.lock(NAME).expect("it is free");
    let left = guard.remaining();
    pause_one(world, true);
    assert_eq!(not_replicated(guard.extend(secs(100))), (all, all - 1));
    assert!(guard.remaining() <= left);
    pause_one(world, false);
    guard.extend(secs(100)).expect("the replica is back");
    assert!(guard.remaining() >= secs(99));
    // The extension is longer than a renewal of this lease. Renewals must still write, or a WAIT after them would prove
    // nothing.
    let writes = || {
        let (_, offset, _): (String, u64, redis::Value) = redis.ask(&["ROLE"]);
        offset
    };
    let before = writes();
    wait_until_renewed(&locks, 1);
    assert!(writes() > before);
    assert!(guard.remaining() > secs(80));
}

/// Other processes hold permits of the same name with another number.
fn a_permit_beside_another_number_of_permits_needs_its_replicas_too(world: &World) {
    let (locks, other) = (world.build(|it| it.replicas(1)), world.manager());
    let held = other.semaphore("s", 2).acquire().expect("it is free");
    let tried = locks.semaphore("s", 3).try_acquire();
    assert_eq!(not_replicated(tried), (1, 0));
    held.release().expect("it is held");
}

/// The error is `NotReplicated` for each time limit, however little time is left for the last request.
fn missing_replicas_are_the_error_of_every_wait(world: &World) {
    let locks = world.build(|it| it.replicas(1));
    for wait_ms in (200..500).step_by(30) {
        let (name, begun) = (format!("n{wait_ms}"), world.now());
        let tried = locks.try_lock_for(&name, ms(wait_ms));
        assert_eq!(not_replicated(tried), (1, 0));
        assert!(world.now() <= world.within(begun + ms(wait_ms)));
    }
    let hurried = world.build(|it| it.replicas(1).io_timeout(ms(50)));
    for n in 0..20 {
        let tried = hurried.try_lock(format!("h{n}"));
        assert_eq!(not_replicated(tried), (1, 0));
    }
}

/// A wait leaves the lock free between its tries, and returns at its end what was missing.
fn a_wait_without_replicas_leaves_the_lock_free_between_tries(world: &World) {
    let redis = world.redis();
    let locks = world.build(|it| it.replicas(1).outage_limit(secs(10)));
    let other = world.manager();
    let first = other.lock(NAME).expect("it is free");
    let mutex = locks.mutex(NAME);
    let waiting = locks.thread(move || mutex.lock().map(drop));
    redis.wait_until_queued(NAME, 1);
    first.release().expect("it is held");
    let begun = world.now();
    // Other processes get the lock in the meantime, again and again.
    let mut guards = 0;
    world.until("others have it between its tries", || {
        guards += u32::from(other.try_lock(NAME).expect("it replies").is_some());
        guards >= 3
    });
    assert_eq!(locks.stats().failed, 0, "it still waits");
    assert_eq!(not_replicated(waiting.end()), (1, 0));
    // The outage begins with the first try that is not confirmed, and the last try takes up to an `io_timeout`.
    assert!(world.now() >= begun + secs(9) && world.now() <= world.within(begun + secs(11)));
    world.until("nothing is left", || !redis.exists(NAME));
}
