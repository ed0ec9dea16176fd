//! The judge accepts what the library does, and rejects what it must not do.

use std::fs;
use std::path::Path;

use leasehold_judge::history::History;
use leasehold_judge::verdict::{Verdict, judge};
use leasehold_judge::{Verdicts, plan};
use leasehold_simulator::faults::{Bug, FaultKind};
use leasehold_simulator::{Plan, Topology};

#[test]
fn histories_are_accepted_and_corrupted_copies_are_not() {
    let mut verdicts = Verdicts::default();
    for topology in Topology::ALL {
        for seed in 0..3 {
            verdicts
                .add(plan(topology, seed), false)
                .expect("its text is right");
        }
    }
    assert_eq!(verdicts.wrong, [""; 0]);
    assert!(verdicts.histories >= 100 && verdicts.corrupted >= 100);
}

#[test]
fn a_fence_that_follows_a_clock_set_back_is_rejected_by_the_judge_alone() {
    let is_rejected = |seed: &u64| {
        let plan = Plan {
            bug: Some(Bug::FencesFollowTheClock),
            ..plan(Topology::Single, *seed)
        };
        let report = plan.scenario().unchecked().run();
        let mut files = report.history.files(plan, "").into_iter();
        let is_set_back = report.faults.contains_key(&FaultKind::ServerClockBack);
        is_set_back
            && files.any(|(file, text)| {
                let history = History::parse(&text).expect("its text is right");
                file.ends_with("-lock.edn") && judge(&history) == Ok(Verdict::Rejected)
            })
    };
    // Today 29 does.
    assert!((20..220).any(|seed| is_rejected(&seed)));
}

#[test]
fn the_samples_are_judged_as_their_names_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence/histories");
    let mut count = [0, 0];
    for file in fs::read_dir(folder).expect("the folder is there") {
        let path = file.expect("it is a file").path();
        let is_good = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("good-"));
        let text = fs::read_to_string(&path).expect("it is text");
        let verdict = History::parse(&text).and_then(|history| judge(&history));
        let expected = if is_good {
            Verdict::Accepted
        } else {
            Verdict::Rejected
        };
        assert_eq!(verdict, Ok(expected), "{}", path.display());
        count[usize::from(is_good)] += 1;
    }
    assert_eq!(count, [2, 2]);
}
