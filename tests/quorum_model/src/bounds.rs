//! The bounds of the searches for the right rules.

use crate::joins::Begin;
use crate::{fences, joins, votes};

/// Bounds of a search for fences over three nodes.
pub type FenceBounds = fences::Bounds<3>;
/// Bounds of a search for votes over three nodes.
pub type VoteBounds = votes::Bounds<3>;
/// Bounds of a search for joins over three nodes.
pub type JoinBounds = joins::Bounds<3>;

/// Bounds of the right rule of the fence model, each with its name.
#[must_use]
pub fn of_fences() -> Vec<(&'static str, FenceBounds)> {
    let right = || FenceBounds::new(fences::Rule::Right);
    vec![
        (
            "two attempts, a key vanishes",
            FenceBounds {
                // The last clock is fast: it is ahead of the nodes' time by more than the margin.
                clocks: vec![4, 6, 9],
                vanishing: 1,
                ..right()
            },
        ),
        (
            "two attempts, a key vanishes, a request is repeated",
            FenceBounds {
                block: 1,
                vanishing: 1,
                repeats: 1,
                records: vec![0],
                ..right()
            },
        ),
        (
            "three attempts",
            FenceBounds {
                attempts: 3,
                block: 1,
                clocks: vec![5],
                records: vec![0],
                ..right()
            },
        ),
    ]
}

/// Bounds of a search in which a node crashes, comes back without its record, and refuses for this delay. The clocks of
/// the nodes agree, and the client's clock is one ahead.
#[must_use]
pub fn after_a_crash(rule: fences::Rule, restart_delay: u8) -> FenceBounds {
    FenceBounds {
        block: 1,
        margin: 1,
        records: vec![0],
        times: [4; 3],
        clocks: vec![5],
        ticks: restart_delay,
        crashes: 1,
        restart_delay,
        ..FenceBounds::new(rule)
    }
}

/// Bounds of a search after a crash in which the clocks of the nodes disagree by one.
#[must_use]
pub fn with_unequal_clocks(restart_delay: u8) -> FenceBounds {
    FenceBounds {
        times: [4, 4, 5],
        clocks: vec![6],
        ..after_a_crash(fences::Rule::Right, restart_delay)
    }
}

/// Bounds of the right rule of the vote model, each with its name.
#[must_use]
pub fn of_votes() -> Vec<(&'static str, VoteBounds)> {
    let right = || VoteBounds::new(votes::Rule::Right);
    vec![
        ("two clients", right()),
        (
            "two clients, a node crashes",
            VoteBounds {
                crashes: 1,
                ..right()
            },
        ),
        (
            "two clients, a request is repeated",
            VoteBounds {
                repeats: 1,
                ..right()
            },
        ),
        (
            "two clients, one renews, a key vanishes",
            VoteBounds {
                renewals: 1,
                renewing: 1,
                vanishing: 1,
                ..right()
            },
        ),
    ]
}

/// Bounds in which an attempt sends a join, and a node crashes while a majority of the others counts for it. Records may
/// be as far ahead of the nodes' time as they can be. So a crash without a restart delay forgets fences.
#[must_use]
pub fn in_a_rolling_restart(rule: fences::Rule) -> FenceBounds {
    FenceBounds {
        block: 1,
        clocks: vec![5],
        records: vec![0, 7],
        crashes: 1,
        joins: 1,
        is_rolling: true,
        ..FenceBounds::new(rule)
    }
}

/// Bounds in which an attempt joins a node, and a request is repeated.
#[must_use]
pub fn giving_back_after_a_join<const N: usize>(rule: fences::Rule) -> fences::Bounds<N> {
    fences::Bounds {
        attempts: 3,
        clocks: vec![4],
        records: vec![0],
        joins: 1,
        repeats: 1,
        ..fences::Bounds::new(rule)
    }
}

/// Bounds of a join to a node that was down when the guard began. A key vanishes.
#[must_use]
pub fn joining_after_a_loss(rule: joins::Rule) -> JoinBounds {
    JoinBounds {
        begins: vec![Begin::OthersWereDown],
        vanishing: 1,
        loses_confirmations: false,
        ..JoinBounds::new(rule)
    }
}

/// Bounds of a join without a rival. Two keys vanish, so too many nodes may say "gone".
#[must_use]
pub fn joining_alone(rule: joins::Rule) -> JoinBounds {
    JoinBounds {
        rivals: 0,
        vanishing: 2,
        loses_confirmations: true,
        ..joining_after_a_loss(rule)
    }
}

/// Bounds of a guard with a node that may make the holder's key again. Two keys vanish.
#[must_use]
pub fn joined_unanswered() -> JoinBounds {
    JoinBounds {
        begins: vec![Begin::OthersWereJoinedUnanswered],
        renewals: 1,
        vanishing: 2,
        ..JoinBounds::new(joins::Rule::JoinsUnanswered)
    }
}

/// Bounds of a join while two keys vanish. The guard may begin in each way.
#[must_use]
pub fn joining_after_two_losses() -> JoinBounds {
    JoinBounds {
        vanishing: 2,
        ..JoinBounds::new(joins::Rule::Right)
    }
}

/// Bounds of a `force_release` while the holder renews three times.
#[must_use]
pub fn force_release(rule: joins::Rule) -> JoinBounds {
    JoinBounds {
        begins: vec![Begin::AllVote],
        rivals: 0,
        renewals: 3,
        forces: true,
        loses_confirmations: false,
        ..JoinBounds::new(rule)
    }
}

/// Bounds of a `force_release` while a key vanishes, perhaps in its last round.
#[must_use]
pub fn force_release_and_a_loss(vanishes_while_forced: bool) -> JoinBounds {
    JoinBounds {
        begins: vec![Begin::OthersWereDown],
        rivals: 0,
        vanishing: 1,
        forces: true,
        loses_confirmations: false,
        vanishes_while_forced,
        ..JoinBounds::new(joins::Rule::Right)
    }
}

/// Bounds in which a node crashes. The holder joins it, or another one.
#[must_use]
pub fn joining_after_a_crash() -> JoinBounds {
    JoinBounds {
        crashes: 1,
        ..JoinBounds::new(joins::Rule::Right)
    }
}
