//! Searches larger bounds than the tests do, and prints the number of states of each. The first search has 25,738,687
//! states, and took 144 s and 3 GB; the others take longer.

use std::process::ExitCode;

use leasehold_quorum_model::bounds::{FenceBounds, VoteBounds};
use leasehold_quorum_model::{Search, fences, search, votes};

fn main() -> ExitCode {
    let fence = || FenceBounds::new(fences::Rule::Right);
    let vote = || VoteBounds::new(votes::Rule::Right);
    let searches: [(&str, &dyn Fn() -> Search); 4] = [
        (
            "fences: two attempts, two keys vanish, a request is repeated",
            &|| {
                search(FenceBounds {
                    vanishing: 2,
                    repeats: 1,
                    ..fence()
                })
            },
        ),
        ("fences: three attempts, a key vanishes", &|| {
            search(FenceBounds {
                attempts: 3,
                block: 1,
                clocks: vec![5],
                records: vec![0],
                vanishing: 1,
                ..fence()
            })
        }),
        ("votes: two clients that renew, a key vanishes", &|| {
            search(VoteBounds {
                renewals: 1,
                vanishing: 1,
                ..vote()
            })
        }),
        ("votes: two clients, two nodes crash", &|| {
            search(VoteBounds {
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
