//! The figures of a manager match its work.

use std::time::Duration;

use leasehold::{Distribution, Error};
use leasehold_simulator::Topology;

use crate::matrix::Capability::Always;
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::subject::{Kind, is_unreachable, lost};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    Always,
    bodies![
        waits_and_holds_are_counted_and_measured,
        failures_and_repeated_releases_are_counted,
    ],
)];

pub(crate) const BODIES_OF_ONE: Subject = (
    "stats",
    &[Topology::Single],
    subject_bodies![
        requests_of_operators_are_counted,
        waits_for_a_connection_and_the_times_of_requests_are_measured,
    ],
);

/// Checks that a distribution has one length, which is about as long as this.
#[track_caller]
fn is_once(world: &World, lengths: &Distribution, least: Duration) {
    assert_eq!(lengths.count(), 1, "{lengths:?}");
    // Its precision is 1/32.
    let most = world.within(least + least / 32);
    assert!(
        lengths.min() >= least && lengths.max() <= most,
        "{lengths:?}"
    );
    assert_eq!(lengths.quantile(1.0), lengths.max());
}

fn waits_and_holds_are_counted_and_measured(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("counted"));
    let (one, other) = (world.manager(), world.manager());
    let guard = kind.of(&one, &name).lock().expect("it is free");
    let begun = one.stats();
    assert_eq!((begun.acquired, begun.held, begun.waiting), (1, 1, 0));
    let lock = kind.rival().of(&other, &name);
    assert!(lock.try_lock().expect("Redis replies").is_none());
    let stats = other.stats();
    assert_eq!((stats.tries_held, stats.contended), (1, 0), "no wait");
    let waited = lock.try_lock_for(secs(4)).expect("Redis replies");
    assert!(waited.is_none());
    let stats = other.stats();
    assert_eq!((stats.timed_out, stats.contended), (1, 1));
    is_once(world, &stats.waits_timed_out, secs(4));
    redis.wait_until_queued(&name, 0);
    let waiting = lock.locking();
    redis.wait_until_queued(&name, 1);
    // Between two of its polls, which would find the lock before the message of the hand-over comes.
    world.pass(ms(5_500));
    let stats = other.stats();
    assert_eq!((stats.waiting, stats.contended, stats.held), (1, 2, 0));
    guard.release().expect("it was held until now");
    waiting.locked();
    world.pass(secs(2));
    waiting.release();

    let (given, taken) = (one.stats(), other.stats());
    is_once(world, &given.holds, ms(9_500));
    is_once(world, &taken.waits, ms(5_500));
    is_once(world, &taken.holds, secs(2));
    for stats in [&given, &taken] {
        assert_eq!((stats.acquired, stats.released), (1, 1));
        assert_eq!((stats.held, stats.waiting, stats.passed_on), (0, 0, 0));
        let none = [
            stats.failed,
            stats.lost(),
            stats.held_long,
            stats.events_dropped,
            stats.renewals_failed,
        ];
        assert_eq!(none, [0; 5]);
    }
    // A node of a quorum may hand its vote over.
    if world.topology() != Topology::Quorum {
        assert_eq!((given.handed_over, taken.hand_overs_received), (1, 1));
    }
    // Another manager, but not a clone, counts for itself.
    let clone = leasehold::LockManager::clone(&one);
    drop(clone.lock("further").expect("it is free"));
    assert_eq!((one.stats().acquired, other.stats().acquired), (2, 1));
}

fn failures_and_repeated_releases_are_counted(world: &World, kind: Kind) {
    let limit = secs(2);
    let locks = world.build(|it| it.io_timeout(limit).node_timeout(limit));
    let of = |name| kind.of(&locks, name);
    assert!(matches!(of("").lock(), Err(Error::InvalidName { .. })));
    let long = of("long").lease(secs(600)).lock().expect("it is free");
    let short = of("short").lease(secs(9)).lock().expect("it is free");
    world.until("it is renewed", || locks.stats().renewed > 0);
    assert!(locks.stats().renewal_lags.max() <= world.within(ms(100)));
    let renewed = locks.stats().renewed;
    let extended = short.leases().last().expect("there is one");
    extended.extend(secs(10)).expect("it is held");
    assert!(locks.stats().renewed > renewed, "an extension is one");
    world.pause_servers();
    world.until("a renewal fails", || locks.stats().renewals_failed > 0);
    let asked = of("further").try_lock();
    assert!(asked.as_ref().is_err_and(is_unreachable), "{asked:?}");
    // A call with an invalid name is not counted.
    assert_eq!(locks.stats().failed, 1);
    let released = long.release();
    assert!(released.as_ref().is_err_and(is_unreachable), "{released:?}");
    world.until("it is repeated", || locks.stats().endings_repeated > 0);
    world.until("it is lost", || locks.stats().lost_expired == 1);
    lost(short.release());
    let stats = locks.stats();
    // The first guard was released as far as the process knew. The second was lost.
    assert_eq!((stats.released, stats.holds.count(), stats.held), (1, 2, 0));
    world.resume_servers();
    assert!(locks.close(secs(60)));
    // A closed manager still reports its figures.
    assert_eq!(locks.stats().acquired, 2);
}

fn requests_of_operators_are_counted(world: &World) {
    let locks = world.manager();
    let mut before = locks.stats().requests;
    let mut asked = || {
        let now = locks.stats().requests;
        assert!(now > before, "a request was not counted");
        before = now;
    };
    locks.inspect("n").expect("Redis replies");
    asked();
    assert_eq!(locks.list("n").count(), 0);
    asked();
    let claim = locks.lock("n").expect("it is free").detach();
    asked();
    let guard = locks.adopt(&claim).expect("it is held");
    asked();
    let broken = locks.force_release("n", guard.owner());
    assert!(broken.expect("Redis replies"));
    asked();
}

fn waits_for_a_connection_and_the_times_of_requests_are_measured(world: &World) {
    let locks = world.build(|it| it.pool_size(1).io_timeout(secs(10)));
    drop(locks.lock("n").expect("it is free"));
    assert_eq!(locks.stats().connection_waits.count(), 0);
    let before = locks.stats().request_times.count();
    world.pause_servers();
    // Each needs a connection alone.
    let inspecting = [(); 2].map(|()| {
        let manager = leasehold::LockManager::clone(&locks);
        locks.thread(move || manager.inspect("n"))
    });
    world.pass(secs(1));
    assert_eq!(locks.stats().connections_in_use, 1);
    world.resume_servers();
    for task in inspecting {
        task.end().expect("Redis replies");
    }
    let stats = locks.stats();
    assert_eq!(stats.connections_in_use, 0);
    is_once(world, &stats.connection_waits, secs(1));
    assert_eq!(stats.request_times.count(), before + 2);
    assert!(stats.request_times.max() >= secs(1));
}
