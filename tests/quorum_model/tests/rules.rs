//! Searches all states of the right rules within small bounds, and finds a counterexample to each wrong rule.
//!
//! A counterexample shows something only if the right rule has none within the same bounds. So most tests search both
//! rules. If a test searches the wrong rule only, its bounds lie within those of [`of_fences`] or [`of_votes`], or
//! another test searches the right rule in them.

use leasehold_quorum_model::bounds::{
    FenceBounds, VoteBounds, after_a_crash, force_release, force_release_and_a_loss,
    giving_back_after_a_join, in_a_rolling_restart, joined_unanswered, joining_after_a_crash,
    joining_after_a_loss, joining_alone, of_fences, of_votes, with_unequal_clocks,
};
use leasehold_quorum_model::fences::{self, NEAR, RISES, SMALLER};
use leasehold_quorum_model::joins::{self, FORCED, JOINED};
use leasehold_quorum_model::votes::{self, ENDS, ONE, TOLD};
use leasehold_quorum_model::{Search, search, search_at_random, search_depth_first};

/// How many states a random search has at most. It finds each counterexample below in less than a tenth of them.
const MOST: usize = 5_000_000;
const SEED: u64 = 1;

/// Checks that a wrong rule breaks this property, and no other.
#[track_caller]
fn assert_refuted(found: &Search, property: &str) {
    println!("refuted: {found:?}");
    let broken: Vec<_> = found.broken.iter().map(|(name, _)| *name).collect();
    assert_eq!(broken, [property]);
}

/// Checks that the right rule breaks no property, and that the search was not empty.
#[track_caller]
fn assert_right(name: &str, found: &Search, granted: &str) {
    println!("{name}: {found:?}");
    assert_eq!(found.broken, [], "{name}");
    assert!(
        found.examples.contains(&granted),
        "{name}: nothing was searched"
    );
}

#[test]
fn the_fences_of_the_right_rule_rise() {
    for (name, bounds) in of_fences() {
        let keys_vanish = bounds.vanishing > 0;
        let found = search_depth_first(bounds);
        assert_right(name, &found, fences::GRANTED);
        // The documented exception.
        assert_eq!(found.examples.contains(&SMALLER), keys_vanish, "{name}");
    }
}

/// The bounds of these histories are too large for a complete search.
#[test]
fn the_fences_of_the_right_rule_rise_in_long_histories() {
    let found = search_at_random(
        FenceBounds {
            attempts: 3,
            block: 3,
            clocks: vec![4, 5, 9],
            ticks: 1,
            vanishing: 1,
            repeats: 2,
            ..FenceBounds::new(fences::Rule::Right)
        },
        SEED,
        MOST,
    );
    assert_right("three attempts", &found, fences::GRANTED);
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

/// A node that comes back empty refuses until its clock has passed every fence that it can have forgotten.
#[test]
fn fences_rise_after_a_crash() {
    let found = search_depth_first(after_a_crash(fences::Rule::Right, 3));
    assert_right("the clocks agree", &found, fences::GRANTED);
}

#[test]
fn a_restart_delay_of_twice_the_margin_is_refuted() {
    assert_refuted(&search(after_a_crash(fences::Rule::Right, 2)), RISES);
}

/// A client's clock that stands still proposes the same fence again after the crash.
#[test]
fn believing_a_slow_clock_after_a_crash_is_refuted() {
    assert_refuted(&search(after_a_crash(fences::Rule::Unclamped, 3)), RISES);
}

/// The other documented exception: a node that both majorities share has forgotten, and the nodes' clocks disagree.
#[test]
fn a_fence_may_fall_after_a_crash_if_the_clocks_disagree() {
    assert_refuted(&search(with_unequal_clocks(3)), RISES);
    let found = search_at_random(with_unequal_clocks(4), SEED, MOST);
    assert_right("the delay includes the difference", &found, fences::GRANTED);
}

fn taking_back<const N: usize>(rule: fences::Rule) -> fences::Bounds<N> {
    fences::Bounds {
        attempts: 3,
        vanishing: 2,
        ..fences::Bounds::new(rule)
    }
}

/// Each node takes back its own fences. So one node is enough, and all its states can be searched.
#[test]
fn taking_back_unchecked_is_refuted_on_one_node() {
    let wrong = taking_back::<1>(fences::Rule::TakesBackUnchecked);
    assert_refuted(&search(wrong), RISES);
    let found = search_depth_first(taking_back::<1>(fences::Rule::Right));
    assert_right("the right rule", &found, fences::GRANTED);
}

#[test]
fn taking_back_unchecked_is_refuted_on_three_nodes() {
    let wrong = taking_back::<3>(fences::Rule::TakesBackUnchecked);
    assert_refuted(&search_at_random(wrong, SEED, MOST), RISES);
    let found = search_at_random(taking_back::<3>(fences::Rule::Right), SEED, MOST);
    assert_right("the right rule", &found, fences::GRANTED);
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
    let found = search_depth_first(bounds(false));
    assert_right("the clock goes on", &found, fences::GRANTED);
}

#[test]
fn at_most_one_guard_of_the_right_rule_is_valid() {
    for (name, bounds) in of_votes() {
        assert_right(name, &search_depth_first(bounds), votes::GRANTED);
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
        restart_delay: 1,
        ..VoteBounds::new(votes::Rule::Right)
    };
    assert_refuted(&search(bounds), ONE);
}

fn two_rounds<const N: usize>(rule: votes::Rule) -> votes::Bounds<N> {
    votes::Bounds {
        rounds: 2,
        ..votes::Bounds::new(rule)
    }
}

/// On one node all states can be searched.
#[test]
fn the_same_owner_after_a_release_is_refuted_on_one_node() {
    assert_refuted(&search(two_rounds::<1>(votes::Rule::SameOwner)), ONE);
    let found = search_depth_first(two_rounds::<1>(votes::Rule::Right));
    assert_right("a new owner", &found, votes::GRANTED);
}

#[test]
fn the_same_owner_after_a_release_is_refuted_on_three_nodes() {
    let wrong = two_rounds::<3>(votes::Rule::SameOwner);
    assert_refuted(&search_at_random(wrong, SEED, MOST), ONE);
    let found = search_at_random(two_rounds::<3>(votes::Rule::Right), SEED, MOST);
    assert_right("a new owner", &found, votes::GRANTED);
}

/// Each node decides whether a renewal makes a key. So one node is enough.
#[test]
fn a_renewal_that_creates_a_key_is_refuted() {
    let bounds = |rule| votes::Bounds::<1> {
        renewals: 1,
        vanishing: 1,
        ..votes::Bounds::new(rule)
    };
    assert_refuted(&search(bounds(votes::Rule::RenewalCreates)), ENDS);
    let found = search_depth_first(bounds(votes::Rule::Right));
    assert_right("a renewal creates no key", &found, votes::GRANTED);
}

#[test]
fn a_vote_that_outlives_gone_is_refuted() {
    let bounds = |rule| VoteBounds {
        clients: 1,
        renewals: 1,
        vanishing: 2,
        ..VoteBounds::new(rule)
    };
    assert_refuted(&search(bounds(votes::Rule::GoneKeepsVote)), TOLD);
    let found = search_depth_first(bounds(votes::Rule::Right));
    assert_right("gone ends a vote", &found, votes::GRANTED);
}

/// One client renews, and ends its guard only if it is lost.
#[test]
fn a_vote_for_a_late_grant_is_refuted() {
    let bounds = VoteBounds {
        renewals: 1,
        renewing: 1,
        patient: 1,
        vanishing: 1,
        ..VoteBounds::new(votes::Rule::LateGrantVotes)
    };
    assert_refuted(&search(bounds), ENDS);
}

#[test]
fn a_join_that_is_clamped_to_the_nodes_time_is_refuted() {
    let wrong = in_a_rolling_restart(fences::Rule::ClampsJoins);
    assert_refuted(&search(wrong), RISES);
    let found = search_depth_first(in_a_rolling_restart(fences::Rule::Right));
    assert_right("a join is not clamped", &found, fences::GRANTED);
}

/// Each node takes back its own fences, and executes joins alone. So one node is enough.
#[test]
fn giving_back_to_a_joined_node_is_refuted() {
    let bounds = giving_back_after_a_join::<1>;
    assert_refuted(&search(bounds(fences::Rule::GivesBackAfterJoin)), RISES);
    let found = search_depth_first(bounds(fences::Rule::Right));
    assert_right("nothing is given back", &found, fences::GRANTED);
}

#[test]
fn a_join_counts_after_a_later_round() {
    let found = search_depth_first(joining_after_a_loss(joins::Rule::Right));
    assert_right("a node was down, a key vanishes", &found, JOINED);
    // Somebody else gets the lock meanwhile.
    assert!(found.examples.contains(&joins::GRANTED));
}

#[test]
fn a_join_that_counts_at_once_is_refuted() {
    let wrong = joining_after_a_loss(joins::Rule::CountsAtOnce);
    assert_refuted(&search(wrong), joins::ENDS);
}

#[test]
fn a_join_that_counts_after_its_own_round_is_refuted() {
    let wrong = joining_after_a_loss(joins::Rule::CountsInTheSameRound);
    assert_refuted(&search(wrong), joins::ENDS);
}

#[test]
fn a_voided_answer_that_counts_is_refuted() {
    let wrong = joining_alone(joins::Rule::CountsVoidedAnswers);
    assert_refuted(&search(wrong), joins::TOLD);
    let found = search_depth_first(joining_alone(joins::Rule::Right));
    assert_right("gone voids an answer", &found, JOINED);
}

#[test]
fn a_join_after_gone_is_refuted() {
    let wrong = force_release(joins::Rule::JoinsAfterGone);
    assert_refuted(&search(wrong), FORCED);
    let found = search_depth_first(force_release(joins::Rule::Right));
    assert_right("gone bars joins", &found, JOINED);
}

/// The search begins with a node that was joined too early. The same late answers without such a join break nothing:
/// `main.rs` searches all of these states.
#[test]
fn a_join_to_a_node_that_has_not_answered_is_refuted() {
    assert_refuted(&search(joined_unanswered()), joins::ENDS);
}

/// A documented exception: a key vanishes while `force_release` asks for the last time.
#[test]
fn force_release_may_fail_to_end_a_lease_only_if_a_key_vanishes_meanwhile() {
    assert_refuted(&search(force_release_and_a_loss(true)), FORCED);
    let found = search_depth_first(force_release_and_a_loss(false));
    assert_right("no key vanishes meanwhile", &found, JOINED);
}

/// A node is joined again after its restart delay.
#[test]
fn joins_after_a_crash_keep_one_guard() {
    let found = search_depth_first(joining_after_a_crash());
    assert_right("a node crashes", &found, JOINED);
}
