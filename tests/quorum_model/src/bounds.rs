//! The bounds of the searches for the right rules.

use crate::{fences, votes};

/// Bounds of a search for fences over three nodes.
pub type FenceBounds = fences::Bounds<3>;
/// Bounds of a search for votes over three nodes.
pub type VoteBounds = votes::Bounds<3>;

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
