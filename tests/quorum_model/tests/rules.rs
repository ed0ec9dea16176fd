//! Searches all states of the right rules within small bounds, and finds a counterexample to each wrong rule.

use leasehold_quorum_model::bounds::{FenceBounds, VoteBounds, of_fences, of_votes};
use leasehold_quorum_model::fences::{self, GRANTED, NEAR, RISES, SMALLER};
use leasehold_quorum_model::votes::{self, ENDS, ONE, TOLD};
use leasehold_quorum_model::{Search, search, search_at_random};

/// Enough random states for each counterexample that is looked for at random.
const MOST: usize = 50_000_000;
const SEED: u64 = 1;

/// Checks that a wrong rule breaks this property, and no other.
#[track_caller]
fn assert_refuted(found: &Search, property: &str) {
    println!("{found:?}");
    let broken: Vec<_> = found.broken.iter().map(|(name, _)| *name).collect();
    assert_eq!(broken, [property]);
}

#[test]
fn the_fences_of_the_right_rule_rise() {
    for (name, bounds) in of_fences() {
        let keys_vanish = bounds.vanishing > 0;
        let found = search(bounds);
        println!("{name}: {found:?}");
        assert_eq!(found.broken, [], "{name}");
        assert!(
            found.examples.contains(&GRANTED),
            "{name}: nothing was searched"
        );
        // The documented exception.
        assert_eq!(found.examples.contains(&SMALLER), keys_vanish, "{name}");
    }
}

/// A node that comes back empty refuses until its clock has passed every fence that it can have forgotten.
#[test]
fn fences_rise_after_a_crash_if_the_clocks_agree() {
    let found = search(FenceBounds {
        block: 1,
        margin: 1,
        records: vec![0],
        times: [4; 3],
        clocks: vec![4],
        ticks: 3,
        crashes: 1,
        restart_delay: 3,
        ..FenceBounds::new(fences::Rule::Right)
    });
    println!("{found:?}");
    assert_eq!(found.broken, []);
    assert!(found.examples.contains(&GRANTED));
}

/// The other documented exception: a node that both majorities share has forgotten, and the nodes' clocks disagree.
#[test]
fn a_fence_may_fall_after_a_crash_if_the_clocks_disagree() {
    let bounds = FenceBounds {
        block: 1,
        margin: 1,
        records: vec![0],
        times: [1, 9, 9],
        clocks: vec![9],
        crashes: 2,
        ..FenceBounds::new(fences::Rule::Right)
    };
    assert_refuted(&search(bounds), RISES);
}

fn wrong_fences(rule: fences::Rule) -> FenceBounds {
    FenceBounds::new(rule)
}

#[test]
fn plain_counters_without_a_write_back_are_refuted() {
    assert_refuted(&search(wrong_fences(fences::Rule::PlainCounters)), RISES);
}

#[test]
fn counting_nodes_outside_of_the_chosen_ones_is_refuted() {
    assert_refuted(
        &search(wrong_fences(fences::Rule::CountsUnchosenNodes)),
        RISES,
    );
}

#[test]
fn holding_only_the_fence_is_refuted() {
    assert_refuted(
        &search(wrong_fences(fences::Rule::HoldsOnlyTheFence)),
        RISES,
    );
}

#[test]
fn believing_a_fast_clock_is_refuted() {
    let bounds = FenceBounds {
        clocks: vec![9],
        ..wrong_fences(fences::Rule::Unclamped)
    };
    assert_refuted(&search(bounds), NEAR);
}

/// This takes three attempts, for which the states are too many.
#[test]
fn taking_back_unchecked_is_refuted() {
    let bounds = FenceBounds {
        attempts: 3,
        vanishing: 2,
        ..wrong_fences(fences::Rule::TakesBackUnchecked)
    };
    assert_refuted(&search_at_random(bounds, SEED, MOST), RISES);
}

/// By a late copy of its request an owner holds the lock again, so a late copy of its release may give fences back.
#[test]
fn late_copies_take_no_fence_back_unless_the_clock_stands_still() {
    let bounds = |clock_stands_still| fences::Bounds::<1> {
        attempts: 3,
        block: 3,
        clocks: vec![4, 5],
        records: vec![0],
        vanishing: 1,
        repeats: 2,
        clock_stands_still,
        ..fences::Bounds::new(fences::Rule::Right)
    };
    assert_refuted(&search(bounds(true)), RISES);
    let found = search(bounds(false));
    println!("{found:?}");
    assert_eq!(found.broken, []);
    assert!(found.examples.contains(&GRANTED));
}

#[test]
fn at_most_one_guard_of_the_right_rule_is_valid() {
    for (name, bounds) in of_votes() {
        let found = search(bounds);
        println!("{name}: {found:?}");
        assert_eq!(found.broken, [], "{name}");
        assert_eq!(
            found.examples,
            [votes::GRANTED],
            "{name}: nothing was searched"
        );
    }
}

#[test]
fn an_instant_restart_without_data_is_refuted() {
    let bounds = VoteBounds {
        crashes: 1,
        restart_delay: 0,
        ..VoteBounds::new(votes::Rule::Right)
    };
    assert_refuted(&search(bounds), ONE);
}

#[test]
fn a_lease_longer_than_the_restart_delay_is_refuted() {
    let bounds = VoteBounds {
        crashes: 1,
        lease: 3,
        restart_delay: 1,
        ticks: 3,
        ..VoteBounds::new(votes::Rule::Right)
    };
    assert_refuted(&search_at_random(bounds, SEED, MOST), ONE);
}

#[test]
fn the_same_owner_after_a_release_is_refuted() {
    let bounds = VoteBounds {
        rounds: 2,
        ..VoteBounds::new(votes::Rule::SameOwner)
    };
    assert_refuted(&search_at_random(bounds, SEED, MOST), ONE);
}

fn wrong_votes(rule: votes::Rule) -> VoteBounds {
    VoteBounds {
        renewals: 1,
        renewing: 1,
        patient: 1,
        vanishing: 1,
        ..VoteBounds::new(rule)
    }
}

#[test]
fn a_renewal_that_creates_a_key_is_refuted() {
    assert_refuted(&search(wrong_votes(votes::Rule::RenewalCreates)), ENDS);
}

#[test]
fn a_vote_that_outlives_gone_is_refuted() {
    let bounds = VoteBounds {
        vanishing: 2,
        ..wrong_votes(votes::Rule::GoneKeepsVote)
    };
    assert_refuted(&search_at_random(bounds, SEED, MOST), TOLD);
}

#[test]
fn a_vote_for_a_late_grant_is_refuted() {
    assert_refuted(&search(wrong_votes(votes::Rule::LateGrantVotes)), ENDS);
}
