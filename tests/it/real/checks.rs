//! The rules that a schedule must keep, by its record. They are the rules of `tests/simulator/src/checks.rs`, as far as other
//! processes can see them.
//!
//! | rule | exception |
//! | --- | --- |
//! | The guards of a name that are valid at one time have no more units than the name. | An earlier one is of before a loss of data. |
//! | A fence is larger than that of each exclusive guard whose grant was known before the call. | It is of before a loss of data. |
//! | After its only server fell silent, no guard is valid for longer than a lease and the drift of a clock. | |
//! | A fenced register loses no update. | |
//! | A lost guard stays lost, and its channel tells. The process itself looks at that. | |
//! | Each name is granted to each process after the faults. The process looks at that too. | |
//! | A key has a time to live, and no lock is left in the end: see `schedule`. | |
//!
//! A loss of data is the time from the begin of a fault until the servers are well again. A lock of before its end may be
//! forgotten, and its guards may be valid for one more lease. The fence of an exclusive guard tells when its process got the
//! lock. Another guard counts as one of before if its call began within that lease. A quorum loses no data, because a node that has restarted does not vote until all leases have passed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::record::{Hold, Micros, Record};
use crate::support::ms;

/// The knowledge of the checks about the faults.
pub(super) struct Facts {
    pub(super) lease: Duration,
    pub(super) losses: Vec<Loss>,
    /// Between these times the only server answered nothing.
    pub(super) silences: Vec<(Micros, Micros)>,
}

/// A time in which servers may have forgotten locks.
pub(super) struct Loss {
    pub(super) from: Micros,
    /// A lease after its end.
    pub(super) until: Micros,
    /// A lock of before the end has no fence that is larger than this time of day in µs, or than the fence of its name.
    pub(super) wall_clock: u64,
    pub(super) fences: BTreeMap<String, u64>,
}

/// The findings of the checks.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) violations: Vec<String>,
    pub(super) exceptions: BTreeMap<&'static str, u64>,
    pub(super) hand_overs: u64,
}

impl Findings {
    pub(super) fn of(record: &Record, facts: &Facts) -> Self {
        let mut findings = Self {
            violations: record.wrong.clone(),
            ..Self::default()
        };
        if record.unclosed > 0 {
            let unclosed = "managers whose last releases got no answer";
            findings.exceptions.insert(unclosed, record.unclosed);
        }
        let mut names = BTreeMap::<&str, Vec<&Hold>>::new();
        for hold in &record.holds {
            names.entry(&hold.name).or_default().push(hold);
        }
        for holds in names.values_mut() {
            findings.check_units(holds, facts);
            findings.check_fences(holds, facts);
            findings.check_silences(holds, facts);
        }
        findings
    }

    fn except(&mut self, exception: &'static str) {
        *self.exceptions.entry(exception).or_default() += 1;
    }

    fn check_units(&mut self, holds: &mut [&Hold], facts: &Facts) {
        holds.sort_by_key(|hold| hold.valid_within());
        let mut valid = Vec::<&Hold>::new();
        for hold in holds.iter() {
            let Some((from, _)) = hold.valid_within() else {
                continue;
            };
            valid.retain(|other| other.valid.last() >= Some(&from));
            valid.push(hold);
            if !exceeds(&valid) {
                continue;
            }
            // Without the guards that the servers may have forgotten.
            let mut known = valid.clone();
            known.retain(|other| !facts.may_be_forgotten(other, from));
            if exceeds(&known) {
                let guards = known.iter().map(ToString::to_string);
                let guards = guards.collect::<Vec<_>>().join(", ");
                self.violations
                    .push(format!("at {from} there are too many guards: {guards}"));
            } else {
                self.except("guards of before a loss of data beside later ones");
            }
        }
    }

    fn check_fences(&mut self, holds: &mut [&Hold], facts: &Facts) {
        let mut granted: Vec<_> = holds.iter().filter(|it| it.is_exclusive()).collect();
        granted.sort_by_key(|hold| hold.granted);
        let owners: Vec<_> = granted.iter().map(|hold| hold.process).collect();
        let pairs = owners.windows(2).filter(|pair| pair[0] != pair[1]);
        self.hand_overs += pairs.count() as u64;
        let mut called = granted.clone();
        called.sort_by_key(|hold| hold.called);
        // The grants that were known before a call, and their largest fence.
        let mut known = granted.iter().peekable();
        let mut largest = 0;
        for hold in called {
            while let Some(earlier) = known.next_if(|earlier| earlier.granted < hold.called) {
                largest = earlier.fence.max(largest);
            }
            if hold.fence > largest {
                continue;
            }
            if facts.has_fence_of_before(hold) {
                self.except("fences of before a loss of data");
            } else {
                self.violations
                    .push(format!("a fence is not larger than {largest}: {hold}"));
            }
        }
    }

    fn check_silences(&mut self, holds: &[&Hold], facts: &Facts) {
        // An extension asks for twice the drift on top of its length, and the holder subtracts the drift from that.
        let longest = facts.lease + facts.lease / 100 + ms(2);
        let longest = u64::try_from(longest.as_micros()).expect("it is short");
        for (from, until) in &facts.silences {
            let outlives = |hold: &&&Hold| {
                let mut valid = hold.valid.iter();
                valid.any(|at| (from + longest..*until).contains(at))
            };
            if let Some(hold) = holds.iter().find(outlives) {
                self.violations.push(format!(
                    "the server was silent from {from}, and a guard outlived its lease: {hold}"
                ));
            }
        }
    }
}

/// Returns whether guards have more units than their lock.
fn exceeds(holds: &[&Hold]) -> bool {
    let units: u32 = holds.iter().map(|hold| hold.units().0).sum();
    holds.first().is_some_and(|hold| units > hold.units().1)
}

impl Facts {
    /// Returns whether the servers may have forgotten a guard that is valid at this time. A thread may get a lock in memory
    /// after its process got it from the servers: only the fence tells when that was.
    fn may_be_forgotten(&self, hold: &Hold, at: Micros) -> bool {
        self.losses.iter().any(|loss| {
            let is_of_before = if hold.is_exclusive() {
                loss.has_fence_of_before(hold)
            } else {
                hold.called <= loss.until
            };
            (loss.from..=loss.until).contains(&at) && is_of_before
        })
    }

    /// Returns whether a process may have handed on a lock of before a loss, of which it did not know yet.
    fn has_fence_of_before(&self, hold: &Hold) -> bool {
        self.losses.iter().any(|loss| {
            (loss.from..=loss.until).contains(&hold.granted) && loss.has_fence_of_before(hold)
        })
    }
}

impl Loss {
    fn has_fence_of_before(&self, hold: &Hold) -> bool {
        let of_name = self.fences.get(&hold.name).copied().unwrap_or(0);
        hold.fence <= self.wall_clock.max(of_name)
    }
}

mod tests {
    use super::*;
    use crate::support::{Kind, secs};

    fn hold(valid: (Micros, Micros), fence: u64) -> Hold {
        Hold {
            guard: format!("0:{fence}"),
            process: fence as u32,
            kind: Kind::Mutex,
            name: "a".to_owned(),
            called: valid.0 - 1,
            granted: valid.0,
            fence,
            valid: vec![valid.0, valid.1],
        }
    }

    fn found(holds: Vec<Hold>, losses: Vec<Loss>, silences: Vec<(Micros, Micros)>) -> Findings {
        let record = Record {
            holds,
            ..Record::default()
        };
        let facts = Facts {
            lease: secs(1),
            losses,
            silences,
        };
        Findings::of(&record, &facts)
    }

    #[test]
    fn guards_that_are_valid_at_one_time_are_found() {
        let both = || vec![hold((10, 30), 1), hold((30, 40), 2)];
        let found_without = found(both(), vec![], vec![]);
        assert_eq!(found_without.violations.len(), 1);
        assert_eq!(found_without.hand_overs, 1);
        let loss = |from, until, wall_clock| {
            vec![Loss {
                from,
                until,
                wall_clock,
                fences: BTreeMap::new(),
            }]
        };
        let found_with = |loss| found(both(), loss, vec![]).violations.len();
        assert_eq!(found_with(loss(20, 35, 1)), 0);
        // It is over when they overlap.
        assert_eq!(found_with(loss(20, 29, 1)), 1);
        assert_eq!(found_with(loss(31, 35, 1)), 1);
        // Both have their locks since the loss.
        assert_eq!(found_with(loss(20, 35, 0)), 1);
        let one_after_the_other = vec![hold((10, 29), 1), hold((30, 40), 2)];
        assert!(
            found(one_after_the_other, vec![], vec![])
                .violations
                .is_empty()
        );
    }

    #[test]
    fn fences_that_do_not_rise_are_found() {
        let falling = || vec![hold((10, 20), 5), hold((30, 40), 4)];
        assert_eq!(found(falling(), vec![], vec![]).violations.len(), 1);
        let loss = |until, wall_clock, of_name| {
            vec![Loss {
                from: 15,
                until,
                wall_clock,
                fences: BTreeMap::from([("a".to_owned(), of_name)]),
            }]
        };
        let found_with = |loss| found(falling(), loss, vec![]).violations.len();
        assert_eq!(found_with(loss(30, 4, 0)), 0);
        assert_eq!(found_with(loss(30, 0, 4)), 0);
        assert_eq!(found_with(loss(30, 3, 3)), 1);
        assert_eq!(found_with(loss(29, 4, 4)), 1);
    }

    #[test]
    fn a_guard_that_outlives_its_lease_is_found() {
        let silence = vec![(1_000, 3_000_000)];
        let late = vec![hold((10, 1_014_000), 1)];
        assert_eq!(found(late, vec![], silence.clone()).violations.len(), 1);
        let in_time = vec![hold((10, 1_012_000), 1), hold((3_000_001, 3_000_002), 2)];
        assert!(found(in_time, vec![], silence).violations.is_empty());
    }
}
