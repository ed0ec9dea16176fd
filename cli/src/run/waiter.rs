//! The messages of `run` while it waits, and after a wait for nothing: the holders of its locks.

use std::env;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::Receiver;
use leasehold::{Holder, Lease, LockInfo, LockManager};
use rustix::process::getpid;
use serde_json::{Value, json};

use super::report::Report;
use crate::deployment::Deployment;
use crate::output::{self, age, span};
use crate::show;

/// The time until the first message, and between two looks at the holder on a terminal. A shorter wait is not told.
const LOOK: Duration = Duration::from_secs(1);
/// The time between two lines elsewhere.
const LINE: Duration = Duration::from_secs(60);
/// How many locks a message has at most.
const MOST_LOCKS: usize = 3;
/// The variable with the owners of the locks of this `run` and of all around it, a line each.
pub const NESTED: &str = "LEASEHOLD_NESTED";

/// Tells who holds the locks that this process waits for.
#[derive(Clone)]
pub struct Waiter {
    locks: LockManager,
    report: Report,
    /// The label by which others see this process. `None` if the URL sets it, because other processes may have it too.
    label: Option<String>,
}

impl Waiter {
    pub fn new(locks: &LockManager, report: &Report, url: &str) -> Self {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let label = format!("{host}:{}", getpid().as_raw_nonzero());
        Self {
            locks: locks.clone(),
            report: report.clone(),
            label: Some(label).filter(|_| Deployment::read(url).label.is_none()),
        }
    }

    /// Returns the name of a lock that a `run` around this one holds.
    pub fn held_around(&self) -> Option<&str> {
        let around = env::var_os(NESTED)?;
        let around = around.to_string_lossy();
        let is_around = |owner: &str| around.lines().any(|line| line == owner);
        // A server that does not answer, or not this question, fails the request for the lock too, or is waited for.
        let is_held = |name: &&String| {
            let info = self.locks.inspect(name).ok().flatten();
            let is_of_around = |it: &Holder| is_around(&it.owner) && !it.kept;
            info.is_some_and(|info| info.holders.iter().any(is_of_around))
        };
        let mut names = self.report.names().iter();
        names.find(is_held).map(String::as_str)
    }

    /// Tells of the wait until the receiver is disconnected. On a terminal it writes a line over itself each second, and
    /// elsewhere a line after a second and then each minute.
    pub fn tell(&self, until: &Receiver<()>) {
        if self.report.is_quiet() {
            return;
        }
        let begun = Instant::now();
        let mut next_line = begun;
        let mut is_shown = false;
        while until
            .recv_timeout(LOOK)
            .is_err_and(|error| error.is_timeout())
        {
            let is_on_terminal = self.report.has_terminal();
            if !is_on_terminal && !is_due(&mut next_line, Instant::now()) {
                continue;
            }
            let waited = begun.elapsed();
            let (blockers, mut fields) = self.blockers(", ");
            if until.try_recv().is_err_and(|error| error.is_disconnected()) {
                break;
            }
            let blockers = blockers.unwrap_or_else(|error| format!("{}: {error}", self.names()));
            let text = format!("waiting for {blockers}; waited {}", spaced(waited));
            if is_on_terminal {
                output::passing(&text);
                is_shown = true;
            } else {
                fields["waited"] = json!(waited.as_secs_f64());
                self.report.tell("waiting", &text, fields);
            }
        }
        if is_shown && self.report.has_terminal() {
            output::passing("");
        }
    }

    /// Tells who held the locks for the whole wait.
    pub fn tell_busy(&self, waited: Duration) {
        if self.report.is_quiet() {
            return;
        }
        let (blockers, mut fields) = self.blockers(" is ");
        fields["waited"] = json!(waited.as_secs_f64());
        // The server has just answered that they are.
        let blockers = blockers.unwrap_or_else(|_| format!("{} is held by others", self.names()));
        let text = format!("{blockers}, and nothing ran");
        self.report.tell("busy", &text, fields);
    }

    fn names(&self) -> String {
        self.report.names().join(", ")
    }

    /// Returns the locks that others hold, in words and as fields of an event, or why they cannot be seen.
    fn blockers(&self, is: &str) -> (Result<String, String>, Value) {
        let names = self.report.names().iter();
        let seen = names.filter_map(|name| self.locks.inspect(name).transpose());
        let blocks = |seen: &leasehold::Result<LockInfo>| match seen {
            Ok(info) => self.is_blocked(info),
            Err(_) => true,
        };
        let seen: leasehold::Result<Vec<_>> = seen.filter(blocks).take(MOST_LOCKS).collect();
        let locks = match seen {
            Ok(locks) => locks,
            Err(error) => {
                let error = format!("{error:#}");
                return (Err(error.clone()), json!({ "error": error }));
            }
        };
        let now = SystemTime::now();
        let objects = locks
            .iter()
            .map(|info| show::object(&info.name, Some(info), now));
        let fields = json!({ "locks": objects.collect::<Vec<_>>() });
        let said = locks
            .iter()
            .map(|info| format!("{}{is}{}{}", info.name, held_by(info), self.place(info)));
        let said = said.collect::<Vec<_>>().join("; ");
        if said.is_empty() {
            // They were released between the last request for them and this look.
            let text = format!("{}{is}held by others until just now", self.names());
            return (Ok(text), fields);
        }
        (Ok(said), fields)
    }

    /// Returns whether others hold a lock, or have their turn at it. A process may have some of several names while it waits
    /// for the others. A single name it has not, so there the own label is that of an earlier process, as in a container.
    fn is_blocked(&self, info: &LockInfo) -> bool {
        let own = self.label.as_deref();
        let own = own.filter(|_| self.report.names().len() > 1);
        let is_other = |label: Option<&str>| label.is_none() || label != own;
        let mut holders = info.holders.iter().map(|it| it.label.as_deref());
        let next = info.waiting.first().map(|it| it.label.as_deref());
        holders.any(is_other) || info.holders.is_empty() && next.is_some_and(is_other)
    }

    /// Returns the place of this process in the queue of a lock, in words.
    fn place(&self, info: &LockInfo) -> String {
        let mut waiting = info.waiting.iter();
        let place = waiting.position(|it| it.label.is_some() && it.label == self.label);
        place.map_or_else(String::new, |place| {
            format!(", at place {} of {}", place + 1, info.waiters)
        })
    }
}

/// Returns whether a line is due now. Then the next one is due a minute later.
fn is_due(next: &mut Instant, now: Instant) -> bool {
    let is_due = *next <= now;
    if is_due {
        *next = now + LINE;
    }
    is_due
}

/// Returns what a nested `run` finds in [`NESTED`].
pub fn nested(leases: &[Lease]) -> String {
    let around = env::var_os(NESTED).unwrap_or_default();
    let around = around.to_string_lossy();
    let mut owners: Vec<_> = around.lines().collect();
    owners.extend(leases.iter().map(Lease::owner));
    // All names of a set may have one owner.
    owners.dedup();
    owners.join("\n")
}

/// Says who has a lock, such as `held by web-1:17281 ("deploy of build 7") for 12 s`.
fn held_by(info: &LockInfo) -> String {
    let who = |label: Option<&str>| label.unwrap_or("another client").to_owned();
    let Some(holder) = info.holders.first() else {
        return match info.waiting.first() {
            Some(next) => format!("about to go to {}", who(next.label.as_deref())),
            None => "free".to_owned(),
        };
    };
    let mut by = who(holder.label.as_deref());
    if let Some(note) = &holder.note {
        by = format!("{by} (\"{note}\")");
    }
    if holder.kept {
        let left = holder.ttl.map(spaced);
        let left = left.map_or_else(String::new, |left| format!(" for {left}"));
        return format!("kept from others{left}, although {by} has released it");
    }
    let since = holder
        .since
        .map(|since| format!(" for {}", spaced(age(since))));
    let others = match info.holders.len() {
        1 => String::new(),
        2 => " and by 1 other".to_owned(),
        count => format!(" and by {} others", count - 1),
    };
    format!("held by {by}{}{others}", since.unwrap_or_default())
}

/// Returns a time span for a sentence: `2 h 5 m`, `3.2 s`.
fn spaced(time: Duration) -> String {
    let mut text = String::new();
    for letter in span(time).chars() {
        if letter.is_ascii_alphabetic() && text.ends_with(|last: char| last.is_ascii_digit()) {
            text.push(' ');
        }
        text.push(letter);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_at_once_and_then_each_minute() {
        let begun = Instant::now();
        let mut next = begun;
        let seconds = (0..=180).map(Duration::from_secs);
        let due: Vec<_> = seconds
            .filter(|after| is_due(&mut next, begun + *after))
            .map(|after| after.as_secs())
            .collect();
        assert_eq!(due, [0, 60, 120, 180]);
    }

    #[test]
    fn a_time_in_a_sentence_has_spaces() {
        assert_eq!(spaced(Duration::from_secs(12)), "12 s");
        assert_eq!(spaced(Duration::from_secs(7_500)), "2 h 5 m");
        assert_eq!(spaced(Duration::from_millis(250)), "250 ms");
    }
}
