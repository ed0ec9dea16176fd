//! Bugs that were made on purpose, and what found them.

use std::collections::BTreeSet;

use super::NOT_RUN;
use super::results::{Results, Verdict};
use super::table::{code, number, percent, table as table_of};

/// The schedules within which the simulator should find a bug alone.
const SOON: u64 = 1_500;
/// The share of bugs that it should find so, in percent.
const WANTED: u64 = 80;
/// The promises of `lib.rs`.
const PROMISES: [&str; 5] = [
    "Exclusion",
    "Fencing",
    "No hidden loss",
    "Liveness",
    "Nobody else's lock",
];

/// A patch in `tests/simulator/mutants`.
pub(super) struct Bug {
    pub(super) name: String,
    /// The promise of `lib.rs` that it breaks, or `none`.
    pub(super) promise: String,
    /// `None` if it was not run yet.
    pub(super) verdict: Option<Verdict>,
}

impl Bug {
    fn breaks_a_promise(&self) -> bool {
        PROMISES.contains(&&*self.promise)
    }

    fn is_found(&self) -> bool {
        let is_found = |it: &Verdict| it.killed_by != "nothing";
        self.verdict.as_ref().is_some_and(is_found)
    }

    /// Returns whether neither the schedules nor the test have found it.
    fn is_missed(&self) -> bool {
        self.verdict.is_some() && !self.is_found()
    }

    /// Returns whether simulated schedules alone have found it soon.
    fn is_seen(&self) -> bool {
        let is_soon = |it: &Verdict| it.killed_by == "simulator" && it.schedules <= SOON;
        self.verdict.as_ref().is_some_and(is_soon)
    }
}

pub(super) fn commits(results: &Results) -> BTreeSet<&str> {
    let verdicts = results.bugs.iter().filter_map(|bug| bug.verdict.as_ref());
    let verdicts = verdicts.chain(&results.control);
    verdicts.map(|it| &*it.commit).collect()
}

/// Returns the answer to "Would the checks find a bug?".
pub(super) fn verdict(bugs: &[Bug]) -> String {
    let run: Vec<_> = bugs
        .iter()
        .filter(|bug| bug.breaks_a_promise() && bug.verdict.is_some())
        .collect();
    let seen = run.iter().filter(|bug| bug.is_seen()).count() as u64;
    let whole = run.len() as u64;
    if whole == 0 {
        return NOT_RUN.to_owned();
    }
    let aim = if seen * 100 >= whole * WANTED {
        "met"
    } else {
        "missed"
    };
    let survivors = bugs.iter().filter(|bug| bug.is_missed()).count() as u64;
    format!(
        "Of the [seeded bugs](#bugs-made-on-purpose) that break a promise and were run, simulated schedules alone find {}, within {} of them: the aim of {WANTED} % is {aim}. Schedules and tests together miss {} of all {} bugs.",
        percent(seen, whole),
        number(SOON),
        number(survivors),
        number(bugs.len() as u64),
    )
}

pub(super) fn table(results: &Results) -> String {
    let mut rows = Vec::new();
    for promise in [&PROMISES[..], &["none"]].concat() {
        let of_it = || results.bugs.iter().filter(|bug| bug.promise == promise);
        let count =
            |is: &dyn Fn(&Bug) -> bool| number(of_it().filter(|bug| is(bug)).count() as u64);
        rows.push(vec![
            promise.to_owned(),
            count(&|_| true),
            // No schedule runs with a bug that breaks no promise.
            match promise {
                "none" => "–".to_owned(),
                _ => count(&|bug| bug.is_seen()),
            },
            count(&|bug| bug.is_found() && !bug.is_seen()),
            count(&Bug::is_missed),
            count(&|bug| bug.verdict.is_none()),
        ]);
    }
    let control = match &results.control {
        None => "The control, which is the tree without a bug, was not run yet.".to_owned(),
        Some(it) if it.killed_by == "nothing" => format!(
            "The control, which is the tree without a bug, passed all of its {} schedules.",
            number(it.schedules)
        ),
        Some(_) => "**The control, which is the tree without a bug, failed too**, so these verdicts show nothing.".to_owned(),
    };
    let heads = [
        "promise that they break",
        "bugs",
        "found by schedules alone",
        "by a test",
        "by nothing",
        "not run yet",
    ];
    format!("{}\n{control}", table_of(&heads, &rows))
}

/// Returns the bugs that break a promise, and that simulated schedules did not see, by promise. If their time was over before
/// all had run, the number of these schedules follows.
pub(super) fn unseen(bugs: &[Bug]) -> String {
    let of = |promise| {
        let of_it = bugs.iter().filter(move |bug| bug.promise == promise);
        let unseen = of_it.filter(|bug| !bug.is_seen());
        let names: Vec<_> = unseen
            .filter_map(|bug| {
                let (name, run) = (code(&bug.name), bug.verdict.as_ref()?.schedules);
                Some(if run < SOON {
                    format!("{name} {}", number(run))
                } else {
                    name
                })
            })
            .collect();
        (!names.is_empty()).then(|| format!("- {promise}: {}", names.join(", ")))
    };
    let lists: Vec<_> = PROMISES.into_iter().filter_map(of).collect();
    match bugs.iter().any(|bug| bug.verdict.is_some()) {
        false => NOT_RUN.to_owned(),
        true if lists.is_empty() => "None.".to_owned(),
        true => lists.join("\n"),
    }
}
