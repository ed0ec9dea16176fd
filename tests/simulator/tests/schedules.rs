//! Schedules replay, the library passes some, and the checks find what is wrong on purpose.

use leasehold_simulator::checks::LOCK_AFTER_A_CLOSE;
use leasehold_simulator::faults::Bug;
use leasehold_simulator::{Plan, Report, Topology};

fn plan(topology: Topology, seed: u64) -> Plan {
    Plan {
        seed,
        topology,
        bug: None,
        keeps_trace: false,
    }
}

#[test]
fn a_seed_replays_each_event() {
    for topology in Topology::ALL {
        for seed in 0..4 {
            let run = |seed, keeps_trace| {
                let report = Plan {
                    keeps_trace,
                    ..plan(topology, seed)
                }
                .run();
                (report.hash, report.steps)
            };
            let first = run(seed, false);
            assert_ne!(run(seed + 1, false), first, "the seed decides nothing");
            assert_eq!(run(seed, true), first, "{topology} {seed}");
        }
    }
}

#[test]
fn the_library_passes_schedules_of_all_topologies() {
    for (topology, seeds) in [
        (Topology::Single, 0..40),
        (Topology::Sentinel, 0..30),
        (Topology::Cluster, 0..30),
        (Topology::Quorum, 0..8),
    ] {
        let (mut grants, mut hand_overs, mut faults) = (0, 0, 0);
        for seed in seeds {
            let Report {
                failure,
                counts,
                faults: of_it,
                ..
            } = plan(topology, seed).run();
            assert_eq!(failure, None, "{topology} {seed}");
            grants += counts.grants;
            hand_overs += counts.hand_overs;
            faults += of_it.values().sum::<u32>();
        }
        assert!(
            grants > 100 && hand_overs > 50 && faults > 10,
            "{topology}: little was run"
        );
    }
}

/// Returns the first failure of schedules with a bug.
#[track_caller]
fn found(topology: Topology, bug: Bug, most: u64) -> String {
    let run = |seed| {
        Plan {
            bug: Some(bug),
            ..plan(topology, seed)
        }
        .run()
    };
    let failure = (0..most).find_map(|seed| run(seed).failure);
    failure.unwrap_or_else(|| panic!("{bug:?} is not found within {most} schedules"))
}

#[test]
fn a_release_that_ignores_the_owner_is_found() {
    let failure = found(Topology::Single, Bug::ReleaseIgnoresOwner, 200);
    assert!(
        failure.contains("is not lost") || failure.contains("units"),
        "{failure}"
    );
}

#[test]
fn a_renewal_that_shortens_the_life_of_the_key_is_found() {
    let failure = found(Topology::Single, Bug::RenewalsShorten, 50);
    assert!(
        failure.contains("is not lost") || failure.contains("units"),
        "{failure}"
    );
}

#[test]
fn clocks_that_are_slower_than_assumed_are_found() {
    let failure = found(Topology::Single, Bug::SlowClocks, 200);
    assert!(
        failure.contains("is not lost") || failure.contains("units"),
        "{failure}"
    );
}

/// A counter does not survive a failover to a replica that lacks the last fence.
#[test]
fn fences_that_do_not_follow_the_time_are_found_after_a_failover() {
    let failure = found(Topology::Sentinel, Bug::FencesCount, 400);
    assert!(failure.contains("is not larger than"), "{failure}");
}

/// The checks demand exclusion although a failover may lose the last writes, because all replicas must confirm a grant.
#[test]
fn a_grant_that_no_replica_has_confirmed_is_found_after_a_failover() {
    let failure = found(Topology::Sentinel, Bug::SkipsReplicas, 200);
    assert!(
        failure.contains("is not lost") || failure.contains("units"),
        "{failure}"
    );
}

/// The fence record protects a register even then.
#[test]
fn an_unfenced_register_is_corrupted_and_a_fenced_one_is_not() {
    let corruptions = (0..40).map(|seed| {
        plan(Topology::Single, seed)
            .run()
            .counts
            .unfenced_corruptions
    });
    assert!(corruptions.sum::<u64>() > 0, "the faults do not bite");
}

/// The exception of `LockManager::close`. The end of a schedule checks that no such lock outlives its lease.
#[test]
fn a_request_without_an_answer_may_take_a_lock_after_a_close() {
    let is_left = |seed| {
        let Report {
            failure, counts, ..
        } = plan(Topology::Single, seed).run();
        assert_eq!(failure, None, "{seed}");
        counts.exceptions.contains_key(LOCK_AFTER_A_CLOSE)
    };
    assert!((0..1_000).any(is_left), "no request came late");
}
