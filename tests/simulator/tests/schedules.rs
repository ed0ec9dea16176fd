//! Schedules replay, the library passes some, and the checks find what is wrong on purpose.

use std::ops::Range;

use leasehold_simulator::faults::{Bug, FaultKind};
use leasehold_simulator::shrink::rule;
use leasehold_simulator::{Kept, Plan, Report, Topology, shrink};

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
        for seed in 0..2 {
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

/// The library failed this one: an acquire that was late came to the server when the lock had been detached and adopted.
/// When the lock was free again, the acquire got it for the owner of the claim, and a second process adopted the claim. The
/// unit tests of claims show the rule; this shows the whole.
#[test]
fn a_claim_is_adopted_once_although_a_request_of_its_owner_is_late() {
    let kept = Kept {
        faults: vec![1],
        operations: vec![(0, 2), (1, 0), (1, 5), (3, 9), (3, 10)],
        stream: 2,
    };
    let report = plan(Topology::Single, 28_507).scenario().keep(&kept).run();
    assert_eq!(report.failure, None);
}

/// The library failed this one too: a thread waited for a lock that its process had detached, while the delegate slept until
/// its next poll. At the end of the wait it got an error, although Redis had answered everything.
#[test]
fn a_wait_after_a_lock_was_detached_learns_that_it_is_held() {
    assert_eq!(plan(Topology::Single, 47_559).run().failure, None);
}

#[test]
fn the_library_passes_schedules_of_all_topologies() {
    for (topology, seeds) in [
        (Topology::Single, 0..8),
        (Topology::Sentinel, 0..6),
        (Topology::Cluster, 0..6),
        (Topology::Quorum, 0..2),
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
            grants > 20 && hand_overs > 10 && faults > 2,
            "{topology}: little was run"
        );
    }
}

/// Returns the first failure of schedules with a bug.
#[track_caller]
fn found(topology: Topology, bug: Bug, seeds: Range<u64>) -> String {
    let run = |seed| {
        Plan {
            bug: Some(bug),
            ..plan(topology, seed)
        }
        .run()
    };
    let failure = seeds.clone().find_map(|seed| run(seed).failure);
    failure.unwrap_or_else(|| panic!("{bug:?} is not found by the seeds {seeds:?}"))
}

#[test]
fn a_release_that_ignores_the_owner_is_found() {
    // One seed in hundreds shows it.
    let failure = found(Topology::Single, Bug::ReleaseIgnoresOwner, 240..1_240);
    // A process whose lock was taken away may see another one come before it, and nobody wakes the next one.
    let rules = ["is not lost", "units", ", before p", "nobody has had"];
    assert!(rules.iter().any(|rule| failure.contains(rule)), "{failure}");
}

#[test]
fn a_renewal_that_shortens_the_life_of_the_key_is_found() {
    let failure = found(Topology::Single, Bug::RenewalsShorten, 0..50);
    assert!(
        failure.contains("is not lost") || failure.contains("units"),
        "{failure}"
    );
}

#[test]
fn clocks_that_are_slower_than_assumed_are_found() {
    let failure = found(Topology::Single, Bug::SlowClocks, 0..200);
    assert!(
        failure.contains("is not lost") || failure.contains("units"),
        "{failure}"
    );
}

/// The checks demand exclusion although a failover may lose the last writes, because all replicas must confirm a grant.
#[test]
fn a_grant_that_no_replica_has_confirmed_is_found_after_a_failover() {
    let failure = found(Topology::Sentinel, Bug::SkipsReplicas, 0..200);
    assert!(
        failure.contains("is not lost") || failure.contains("units"),
        "{failure}"
    );
}

#[test]
fn a_stale_write_that_is_let_through_is_found() {
    let failure = found(Topology::Single, Bug::StaleWrites, 0..200);
    assert!(failure.contains("has lost an update"), "{failure}");
}

/// The form of docs/evidence/README.md.
#[test]
fn a_history_is_a_file_for_each_lock_and_each_register() {
    let plan = plan(Topology::Single, 1);
    let files = plan.run().history.files(plan, "0123456789ab");
    let text = |of: &str| {
        let mut its = files.iter().filter(|(file, _)| file == of);
        its.next().map_or("", |(_, text)| text).to_owned()
    };
    let lock = text("single-1-a-lock.edn");
    let head = "; {:object :lock, :name \"a\", :model :lock-with-fences, :initial [0 0], :topology :single, :seed 1, \
                :commit \"0123456789ab\"}\n";
    assert!(lock.starts_with(head), "{lock}");
    let parts = [
        ":f :acquire, :value nil",
        ":f :look, :value [",
        " :held]",
        ":f :release",
        ":client [0 ",
    ];
    for part in parts {
        assert!(lock.contains(part), "nothing has {part}: {lock}");
    }
    for object in ["plain", "fenced", "committed"] {
        let text = text(&format!("single-1-a-{object}.edn"));
        for part in [
            ":model :cas-register",
            ":f :read, :value 1}",
            ":type :ok, :f :cas, :value [1 2]}",
        ] {
            assert!(text.contains(part), "nothing has {part}: {text}");
        }
        let indices = text.lines().skip(1).enumerate();
        assert!(indices.clone().count() > 20, "{text}");
        for (index, line) in indices {
            assert!(
                line.starts_with(&format!("{{:index {index}, :time ")),
                "{line}"
            );
        }
    }
}

#[test]
fn a_schedule_that_fails_is_made_smaller() {
    let plan = |seed| Plan {
        bug: Some(Bug::RenewalsShorten),
        ..plan(Topology::Single, seed)
    };
    let fails = |seed: &u64| plan(*seed).run().failure.is_some();
    let seed = (0..200).find(fails).expect("the bug is found");
    let whole = plan(seed).scenario();
    let shrunk = shrink(plan(seed)).expect("it fails");
    let Kept { operations, .. } = &shrunk.kept;
    // A holder that has lost its lock is enough.
    assert!((1..10).contains(&operations.len()), "{shrunk}");
    assert!(whole.all().operations.len() > 50, "{whole}");
    let again = whole.keep(&shrunk.kept).run();
    assert_eq!(again.failure.as_deref(), Some(shrunk.failure.as_str()));
    let text = shrunk.to_string();
    assert!(text.contains(&format!("seed: {seed},")), "{text}");
    assert!(
        text.contains(&format!("operations: vec!{operations:?}")),
        "{text}"
    );
}

#[test]
fn a_schedule_that_passes_is_not_made_smaller() {
    assert!(shrink(plan(Topology::Single, 1)).is_none());
    let failure = "the fence 7 of a is not larger than 9";
    assert_eq!(rule(failure), "the fence not larger than");
}

/// The fence record protects a register even then.
#[test]
fn an_unfenced_register_is_corrupted_in_one_of_a_hundred_schedules_with_pauses() {
    let reports = (0..100).map(|seed| plan(Topology::Single, seed).run());
    let with_pauses = reports.filter(|report| report.faults.contains_key(&FaultKind::Pause));
    let (mut corrupted, mut count) = (0, 0);
    for report in with_pauses {
        assert_eq!(report.failure, None);
        corrupted += usize::from(report.counts.unfenced_corruptions > 0);
        count += 1;
    }
    assert!(count > 20, "{count} schedules had a pause");
    assert!(corrupted * 100 >= count, "{corrupted} of {count} schedules");
}
