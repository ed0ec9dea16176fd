//! A server that refuses to write or does not reply. No lock is lost if that lasts for less than a lease.

use std::time::Duration;

use leasehold::{Error, LeaseState, LostCause};
use leasehold_simulator::{Refused, Topology};

use crate::holder_and_waiter::{HolderAndWaiter, NAME, both_ways};
use crate::matrix::Capability::OneServer;
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::subject::{Kind, is_unreachable, lost};
use crate::world::{World, secs};

pub(crate) const BODIES: Chapter = &[(
    OneServer,
    bodies![
        a_master_that_is_a_replica_for_a_while_costs_nothing,
        a_waiter_that_gives_up_beside_a_replica_leaves_the_queue_of_the_master,
        a_server_that_refuses_for_a_while_costs_nothing,
        full_memory_refuses_only_new_locks,
        a_restart_that_keeps_the_data_costs_nothing,
        a_server_that_stops_for_less_than_the_lease_costs_nothing,
        a_server_that_stops_for_longer_than_the_lease_loses_it_once,
        connections_that_are_closed_cost_nothing,
        an_outage_ends_all_waits_together,
        a_call_waits_through_an_outage_from_its_first_request_on,
    ],
)];

pub(crate) const BODIES_OF_ONE: Subject = (
    "outages",
    &[Topology::Single],
    subject_bodies![a_wait_believes_no_answer_from_before_a_failure],
);

/// A lease is renewed after a third of it, so two thirds are left for a fault.
const LEASE: Duration = secs(15);

/// Checks that it does no harm if the server refuses requests from `begin` to `end`.
#[track_caller]
fn refused_for_a_while(world: &World, kind: Kind, begin: impl Fn(), end: impl Fn()) {
    let pair = HolderAndWaiter::new(world, kind, LEASE);
    begin();
    pair.assert_nothing_new_is_granted();
    pair.wait_until_unreachable(true);
    assert_ne!(pair.guard.lease().state(), LeaseState::Lost);
    assert!(
        pair.waiter.waits(),
        "the waiter got an error that is transient"
    );
    end();
    pair.wait_until_unreachable(false);
    pair.assert_unharmed();
}

fn a_master_that_is_a_replica_for_a_while_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        refused_for_a_while(world, kind, || world.demote(true), || world.demote(false));
    });
}

/// A waiter gives up while the server is a replica, which cannot take it out of the queue.
fn a_waiter_that_gives_up_beside_a_replica_leaves_the_queue_of_the_master(
    world: &World,
    kind: Kind,
) {
    let redis = world.redis();
    let [holds, gives_up, stays] = [(); 3].map(|()| world.manager());
    let holder = kind.rival().of(&holds, NAME).lease(secs(600)).hold();
    let leaving = kind.of(&gives_up, NAME).locking();
    redis.wait_until_queued(NAME, 1);
    let staying = kind.of(&stays, NAME).locking();
    redis.wait_until_queued(NAME, 2);
    world.demote(true);
    assert!(
        !gives_up.close(secs(1)),
        "close() did not wait for the withdrawal"
    );
    let outcome = leaving.outcome();
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    world.demote(false);
    assert!(gives_up.close(secs(30)), "something is left to send");
    redis.wait_until_queued(NAME, 1);
    holder.release();
    staying.locked();
    staying.release();
}

/// `tests/it/outages.rs` shows on a real server how each of these errors comes about.
fn a_server_that_refuses_for_a_while_costs_nothing(world: &World, kind: Kind) {
    for (what, error) in [
        (
            Refused::Writes,
            "NOREPLICAS Not enough good replicas to write.",
        ),
        (
            Refused::WritesAndPing,
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        ),
        (
            Refused::All,
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ),
        (
            Refused::Data,
            "LOADING Redis is loading the dataset in memory",
        ),
    ] {
        both_ways(kind, |kind| {
            let begin = || world.refuse(what, error);
            refused_for_a_while(world, kind, begin, || world.refuse_nothing());
        });
    }
}

fn full_memory_refuses_only_new_locks(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(world, kind, LEASE);
        world.refuse(
            Refused::Growth,
            "OOM command not allowed when used memory > 'maxmemory'.",
        );
        pair.assert_nothing_new_is_granted();
        pair.wait_until_renewed();
        pair.wait_until_renewed();
        assert!(pair.waiter.waits());
        let owner = pair.guard.lease().owner().to_owned();
        let release = pair.guard.release();
        release.expect("a full server still frees memory");
        let holders = pair.redis.holders(NAME);
        world.refuse_nothing();
        pair.waiter.locked();
        pair.waiter.release();
        // A hand-over needs memory. The server either hands the lock over or only deletes the key.
        assert!(holders.len() <= 1, "{holders:?}");
        assert!(holders.iter().all(|(holder, _)| *holder != owner));
        pair.redis.only_fences_are_left(kind, NAME);
    });
}

fn a_restart_that_keeps_the_data_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(world, kind, LEASE);
        for _ in 0..2 {
            world.stop_servers();
            pair.assert_nothing_new_is_granted();
            world.start_servers();
            pair.wait_until_renewed();
        }
        pair.assert_unharmed();
    });
}

fn a_server_that_stops_for_less_than_the_lease_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(world, kind, LEASE);
        world.pause_servers();
        world.until("it is at risk", || {
            pair.guard.lease().state() == LeaseState::AtRisk
        });
        world.resume_servers();
        pair.assert_unharmed();
    });
}

fn a_server_that_stops_for_longer_than_the_lease_loses_it_once(world: &World, kind: Kind) {
    let pair = HolderAndWaiter::new(world, kind, LEASE);
    let losses = pair.guard.on_lost();
    world.pause_servers();
    let loss = world.recv(&losses);
    assert_eq!(loss.cause, LostCause::Expired);
    world.pass(LEASE);
    // The server executes the requests of the pause now. None of them revives the lease.
    world.resume_servers();
    pair.waiter.locked();
    assert_eq!(pair.guard.lease().state(), LeaseState::Lost);
    assert_eq!(lost(pair.guard.release()), loss);
    pair.waiter.release();
    assert!(pair.locks.close(secs(30)), "something is left to send");
    pair.redis.only_fences_are_left(kind, NAME);
}

fn connections_that_are_closed_cost_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(world, kind, LEASE);
        for _ in 0..3 {
            pair.wait_until_renewed();
            pair.locks.cut(0);
            pair.other.cut(0);
        }
        pair.assert_unharmed();
    });
}

fn an_outage_ends_all_waits_together(world: &World, kind: Kind) {
    let limit = secs(2);
    let locks = world.build(|it| it.outage_limit(limit));
    let _holder = kind.rival().of(&world.manager(), NAME).hold();
    let lock = kind.of(&locks, NAME);
    let mut waits = vec![lock.locking()];
    world.redis().wait_until_queued(NAME, 1);
    waits.extend([(); 7].map(|()| lock.locking_asleep()));
    let (short, begun) = (secs(1), world.now());
    let ends_early = {
        let (lock, world) = (lock.clone(), world.clone());
        locks.thread(move || {
            let ended = lock.try_lock_for(short).map(drop);
            (ended, world.now())
        })
    };
    world.pass(short / 2);
    world.stop_servers();
    let stopped_at = world.now();
    // The call could not ask Redis. That is an error, and not "held".
    let (ended, at) = ends_early.end();
    assert!(ended.as_ref().is_err_and(is_unreachable), "{ended:?}");
    assert!(at >= begun + short && at <= world.within(begun + short));
    for wait in waits {
        let ended = wait.outcome();
        assert!(ended.as_ref().is_err_and(is_unreachable), "{ended:?}");
        let now = world.now();
        assert!(now >= stopped_at + limit, "given up too early");
        // A wait notices the outage by its next poll.
        assert!(now <= world.within(stopped_at + limit + secs(1)), "{now:?}");
    }
}

/// Calls with another note make an attempt of their own. The first one's request fails, and the server hangs until the time of
/// all is over.
fn a_wait_believes_no_answer_from_before_a_failure(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(30)));
    let _guard = world.manager().lock(NAME).expect("it is free");
    let waiting = |note, wait| {
        let (mutex, before) = (locks.mutex(NAME).note(note), locks.stats().waiting);
        let wait = locks.thread(move || mutex.try_lock_for(wait).map(|guard| guard.is_some()));
        world.until("it waits", || locks.stats().waiting > before);
        wait
    };
    let waits = [("one", 5), ("two", 10), ("three", 8)].map(|(note, s)| waiting(note, secs(s)));
    world.redis().wait_until_queued(NAME, 1);
    world.refuse(Refused::All, "LOADING the data");
    world.pass(secs(3));
    world.pause_servers();
    for wait in waits {
        let ended = wait.end();
        assert!(ended.as_ref().is_err_and(is_unreachable), "{ended:?}");
    }
}

fn a_call_waits_through_an_outage_from_its_first_request_on(world: &World, kind: Kind) {
    let limit = secs(6);
    let build = |change: fn(leasehold::Builder) -> leasehold::Builder| {
        world.build_lazy(|it| change(it).outage_limit(limit))
    };
    let patient = build(|it| it.wait_through_outages(true));
    let lock = kind.of(&patient, NAME);
    world.stop_servers();
    for tried in [
        lock.try_lock(),
        kind.of(&build(|it| it), NAME).lock().map(Some),
    ] {
        assert!(tried.as_ref().is_err_and(is_unreachable), "{tried:?}");
    }
    let waiting = lock.locking();
    world.pass(limit / 2);
    assert!(waiting.waits());
    world.start_servers();
    let up_at = world.now();
    assert!(waiting.locked_at() <= world.within(up_at + secs(1)));
    waiting.release();
    // The wait is bounded.
    world.stop_servers();
    for (wait, bound) in [(None, limit), (Some(secs(3)), secs(3))] {
        let begun = world.now();
        let ended = match wait {
            None => lock.lock().map(Some),
            Some(wait) => lock.try_lock_for(wait),
        };
        assert!(ended.as_ref().is_err_and(is_unreachable), "{ended:?}");
        let now = world.now();
        assert!(now >= begun + bound && now <= world.within(begun + bound + secs(1)));
    }
}
