//! The record of a schedule: a file to which each process appends a line for each event, by one write. So it has all events of
//! a process that was killed. The times are of `CLOCK_MONOTONIC`, which all processes of a machine share.
//!
//! | line | its meaning |
//! | --- | --- |
//! | `grant HOLD PROCESS KIND NAME CALLED GRANTED FENCE` | a call from `CALLED` to `GRANTED` got a guard. A multi-lock has a line for each name. |
//! | `valid HOLD AT` | the guard read as held after the clock read `AT` |
//! | `lost HOLD AT` | the guard read as lost |
//! | `refused CALLED ENDED` | a call returned that the lock was held |
//! | `failed KIND CALLED ENDED` | a call returned an error of this kind |
//! | `unclosed` | a manager did not release all in time |
//! | `wrong TEXT` | the process has seen a broken rule |

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use crate::support::Kind;

/// A process notes this if it gets no lock after the faults.
pub(super) const NO_GRANT: &str = "no grant comes after the faults";

/// A time of the clock that all processes share, in µs.
pub(super) type Micros = u64;

pub(super) fn now() -> Micros {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    u64::try_from(micros).expect("it begins with the machine")
}

/// Appends the events of a process.
pub(super) struct Recorder(File);

impl Recorder {
    pub(super) fn open(path: &Path) -> Self {
        let file = File::options().append(true).create(true).open(path);
        Self(file.expect("a file"))
    }

    pub(super) fn note(&self, event: impl Display) {
        // One write, so that the line is there as a whole or not at all.
        let written = (&self.0).write_all(format!("{event}\n").as_bytes());
        written.expect("the record can be written");
    }
}

/// A guard of a name.
pub(super) struct Hold {
    /// The number of the guard. The names of a multi-lock have one.
    pub(super) guard: String,
    pub(super) process: u32,
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) called: Micros,
    pub(super) granted: Micros,
    pub(super) fence: u64,
    /// Times at which the guard was valid.
    pub(super) valid: Vec<Micros>,
}

impl Hold {
    /// Returns the first and the last time at which the guard was valid.
    pub(super) fn valid_within(&self) -> Option<(Micros, Micros)> {
        Some((*self.valid.first()?, *self.valid.last()?))
    }

    /// Returns the units of the lock that the guard has, and those that the lock has.
    pub(super) fn units(&self) -> (u32, u32) {
        units(self.kind)
    }

    pub(super) fn is_exclusive(&self) -> bool {
        is_exclusive(self.kind)
    }
}

/// Returns the units that a guard of this kind has, and those of its lock.
fn units(kind: Kind) -> (u32, u32) {
    match kind {
        Kind::Reader => (1, 1_000),
        Kind::Writer => (1_000, 1_000),
        Kind::Permit => (1, 3),
        Kind::Permits => (2, 3),
        _ => (1, 1),
    }
}

pub(super) fn is_exclusive(kind: Kind) -> bool {
    let (has, of) = units(kind);
    has == of
}

impl Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            guard,
            process,
            name,
            called,
            granted,
            fence,
            ..
        } = self;
        let kind = self.kind.name();
        write!(
            f,
            "grant {guard} {process} {kind} {name} {called} {granted} {fence}"
        )
    }
}

/// All events of a schedule.
#[derive(Default)]
pub(super) struct Record {
    pub(super) holds: Vec<Hold>,
    pub(super) lost: u64,
    pub(super) unclosed: u64,
    pub(super) refused: u64,
    /// The calls that failed, by the kind of their error.
    pub(super) failed: BTreeMap<String, u64>,
    /// The begin and the end of each call.
    pub(super) calls: Vec<(Micros, Micros)>,
    pub(super) wrong: Vec<String>,
}

impl Record {
    pub(super) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut record = Self::default();
        let mut valid = BTreeMap::<&str, Vec<Micros>>::new();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["grant", guard, process, kind, name, called, granted, fence] => {
                    let (called, granted) = (number(called), number(granted));
                    record.holds.push(Hold {
                        guard: guard.to_owned(),
                        process: process.parse().expect("a number"),
                        kind: Kind::named(kind),
                        name: name.to_owned(),
                        called,
                        granted,
                        fence: number(fence),
                        valid: Vec::new(),
                    });
                    record.calls.push((called, granted));
                }
                ["valid", guard, at] => {
                    valid.entry(guard).or_default().push(number(at));
                }
                ["lost", _, _] => record.lost += 1,
                ["unclosed"] => record.unclosed += 1,
                ["refused", called, ended] => {
                    record.refused += 1;
                    record.calls.push((number(called), number(ended)));
                }
                ["failed", kind, called, ended] => {
                    *record.failed.entry(kind.to_owned()).or_default() += 1;
                    record.calls.push((number(called), number(ended)));
                }
                ["wrong", ..] => record.wrong.push(line["wrong ".len()..].to_owned()),
                _ => record.wrong.push(format!("no such event: {line}")),
            }
        }
        for hold in &mut record.holds {
            hold.valid = valid.get(&*hold.guard).cloned().unwrap_or_default();
        }
        record
    }
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}
