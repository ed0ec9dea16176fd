//! Searches larger bounds than the tests do, and prints the number of states of each. The first five searches have 6 to
//! 31 million states, and take some minutes and 630 MB; the others take longer.

use std::process::ExitCode;

use leasehold_quorum_model::bounds::{
    FenceBounds, JoinBounds, VoteBounds, joining_after_a_crash, joining_after_two_losses,
    with_unequal_clocks,
};
use leasehold_quorum_model::{Search, fences, search_depth_first, votes};

fn main() -> ExitCode {
    let fence = || FenceBounds::new(fences::Rule::Right);
    let vote = || VoteBounds::new(votes::Rule::Right);
    let searches: [(&str, &dyn Fn() -> Search); 8] = [
        ("joins: two keys vanish", &|| {
            search_depth_first(joining_after_two_losses())
        }),
        ("joins: a key vanishes, a node crashes", &|| {
            search_depth_first(JoinBounds {
                vanishing: 1,
                ..joining_after_a_crash()
            })
        }),
        ("joins: two joins, a key vanishes", &|| {
            search_depth_first(JoinBounds {
                joins: 2,
                vanishing: 1,
                ..joining_after_two_losses()
            })
        }),
        (
            "fences: a node crashes, the clocks disagree, and the restart delay includes the difference",
            &|| search_depth_first(with_unequal_clocks(4)),
        ),
        (
            "fences: two attempts, two keys vanish, a request is repeated",
            &|| {
                search_depth_first(FenceBounds {
                    vanishing: 2,
                    repeats: 1,
                    ..fence()
                })
            },
        ),
        ("fences: three attempts, a key vanishes", &|| {
            search_depth_first(FenceBounds {
                attempts: 3,
                block: 1,
                clocks: vec![5],
                records: vec![0],
                vanishing: 1,
                ..fence()
            })
        }),
        ("votes: two clients that renew, a key vanishes", &|| {
            search_depth_first(VoteBounds {
                renewals: 1,
                vanishing: 1,
                ..vote()
            })
        }),
        ("votes: two clients, two nodes crash", &|| {
            search_depth_first(VoteBounds {
                crashes: 2,
                ..vote()
            })
        }),
    ];
    let mut is_right = true;
    for (name, run) in searches {
        let found = run();
        is_right &= found.broken.is_empty();
        println!("{name}: {found:?}");
    }
    if is_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
