//! The histories of the fenced registers: one for each name, of the calls of all threads.
//!
//! The text is in EDN, one event a line, as Knossos and Porcupine read it:
//!
//! | the call | its second event |
//! | --- | --- |
//! | is accepted | `:ok`, with the value of the register |
//! | is rejected because of its fence | `:fail`, because it had no effect |
//! | has an unknown outcome | `:info`. The next call of the thread has a new number of a process |
//! | does not return | none |
//!
//! A checker that knows no fences can check such a history too, by its model of a plain register.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::linearizability::{self, Action, Call, Outcome};

/// The events of a schedule.
#[derive(Clone, Debug, Default)]
pub struct History {
    calls: Vec<NamedCall>,
    events: Vec<Event>,
}

/// A call at the register of a name.
#[derive(Clone, Debug)]
struct NamedCall {
    name: &'static str,
    thread: usize,
    call: Call,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: Duration,
    call: usize,
    kind: EventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventKind {
    Invoked,
    Returned(Outcome),
    Unknown,
}

impl History {
    /// Notes that a thread calls the register of a name, and returns the number of the call.
    pub(crate) fn invoke(
        &mut self,
        at: Duration,
        thread: usize,
        name: &'static str,
        (action, fence): (Action, u64),
    ) -> usize {
        let invoked = self.events.len();
        let call = Call {
            action,
            fence,
            invoked,
            returned: None,
        };
        self.calls.push(NamedCall { name, thread, call });
        let call = self.calls.len() - 1;
        let kind = EventKind::Invoked;
        self.events.push(Event { at, call, kind });
        call
    }

    /// Notes the result of a call, or that the thread will never know it.
    pub(crate) fn complete(&mut self, at: Duration, call: usize, outcome: Option<Outcome>) {
        let place = self.events.len();
        self.calls[call].call.returned = outcome.map(|outcome| (place, outcome));
        let kind = outcome.map_or(EventKind::Unknown, EventKind::Returned);
        self.events.push(Event { at, call, kind });
    }

    /// Checks that the register of each name is linearizable.
    pub(crate) fn check(&self) -> Result<(), String> {
        let names: BTreeSet<_> = self.calls.iter().map(|call| call.name).collect();
        for name in names {
            let its = self.calls.iter().filter(|call| call.name == name);
            let its: Vec<_> = its.map(|call| call.call).collect();
            if !linearizability::is_linearizable(&its) {
                let count = its.len();
                return Err(format!(
                    "no order explains the {count} calls at the fenced register of {name}"
                ));
            }
        }
        Ok(())
    }

    /// Returns how many calls were made.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Returns the lines of the text.
    #[must_use]
    pub fn edn(&self) -> Vec<String> {
        let threads = self.calls.iter().map(|call| call.thread + 1).max();
        let threads = threads.unwrap_or_default();
        // The number of the process that a thread has now.
        let mut processes: Vec<_> = (0..threads).collect();
        let line = |event: &Event| {
            let NamedCall { name, thread, call } = &self.calls[event.call];
            let process = processes[*thread];
            let (kind, value) = match (event.kind, call.action) {
                (EventKind::Invoked, _) => ("invoke", None),
                (EventKind::Returned(Outcome::Accepted(value)), _) => ("ok", Some(value)),
                (EventKind::Returned(Outcome::Rejected), _) => ("fail", None),
                (EventKind::Unknown, _) => ("info", None),
            };
            if event.kind == EventKind::Unknown {
                processes[*thread] += threads;
            }
            let (action, written) = match call.action {
                Action::Read => ("read", None),
                Action::Write(value) => ("write", Some(value)),
            };
            let value = value.or(written).map_or("nil".into(), |it| it.to_string());
            let (fence, time) = (call.fence, event.at.as_nanos());
            format!(
                "{{:process {process}, :type :{kind}, :f :{action}, :key \"{name}\", :value {value}, :fence {fence}, \
                 :time {time}}}"
            )
        };
        self.events.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_text_that_foreign_checkers_read() {
        let mut history = History::default();
        let at = Duration::from_nanos;
        let write = history.invoke(at(1), 0, "a", (Action::Write(1), 5));
        let read = history.invoke(at(2), 1, "a", (Action::Read, 4));
        history.complete(at(3), write, None);
        history.complete(at(4), read, Some(Outcome::Rejected));
        let again = history.invoke(at(5), 0, "a", (Action::Read, 5));
        history.complete(at(6), again, Some(Outcome::Accepted(1)));
        let expected = [
            "{:process 0, :type :invoke, :f :write, :key \"a\", :value 1, :fence 5, :time 1}",
            "{:process 1, :type :invoke, :f :read, :key \"a\", :value nil, :fence 4, :time 2}",
            "{:process 0, :type :info, :f :write, :key \"a\", :value 1, :fence 5, :time 3}",
            "{:process 1, :type :fail, :f :read, :key \"a\", :value nil, :fence 4, :time 4}",
            "{:process 2, :type :invoke, :f :read, :key \"a\", :value nil, :fence 5, :time 5}",
            "{:process 2, :type :ok, :f :read, :key \"a\", :value 1, :fence 5, :time 6}",
        ];
        assert_eq!(history.edn(), expected);
        assert_eq!(history.check(), Ok(()));
        // The read of an old value has no place.
        let stale = history.invoke(at(7), 1, "a", (Action::Read, 5));
        history.complete(at(8), stale, Some(Outcome::Accepted(0)));
        assert!(history.check().is_err());
    }
}
