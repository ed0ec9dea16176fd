//! What the threads of a schedule did with each lock, and with each of its registers: a history for each object of each name,
//! as text in EDN that a judge of others can read. `docs/evidence/README.md` has the form, and the models.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::schedule::Plan;

/// What a history is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    Lock,
    /// The register that nothing protects but the lock.
    Plain,
    /// The register that rejects old fences.
    Fenced,
    /// The register in the Redis of the lock, which holders write by `commit`.
    Committed,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Acquire,
    /// Looks at the guard with this fence.
    Look(u64),
    /// Is told by the guard's channel that it is lost.
    Told(u64),
    Release(u64),
    Read,
    /// Had read the first value, and writes the second one.
    Write(u64, u64),
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted {
        fence: u64,
        /// Whether exclusion is promised to the guard.
        is_promised: bool,
    },
    Held,
    Lost,
    Done,
    Value(u64),
    /// It had no effect.
    Failed,
    /// Nobody knows whether it had one.
    Unknown,
}

/// Which call of which history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    pub(crate) of: (&'static str, Object),
    event: usize,
}

/// The histories of a schedule.
#[derive(Clone, Debug)]
pub struct History {
    /// The process of each thread.
    processes: Vec<usize>,
    events: BTreeMap<(&'static str, Object), Vec<Event>>,
    /// The guards to which exclusion was promised when they were granted.
    promised: BTreeSet<(&'static str, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: Duration,
    /// `None` if it is the harness.
    thread: Option<usize>,
    call: Call,
    /// `None` when the call begins.
    answer: Option<Answer>,
}

impl History {
    pub(crate) fn new(processes: usize, threads_each: usize) -> Self {
        let threads = 0..processes * threads_each;
        Self {
            processes: threads.map(|thread| thread / threads_each).collect(),
            events: BTreeMap::new(),
            promised: BTreeSet::new(),
        }
    }

    /// Notes that a thread, or the harness, begins a call. What is done with a guard without a promise is left out.
    pub(crate) fn begin(
        &mut self,
        at: Duration,
        thread: Option<usize>,
        of: (&'static str, Object),
        call: Call,
    ) -> Option<Number> {
        if let Call::Look(fence) | Call::Told(fence) | Call::Release(fence) = call {
            self.promised.get(&(of.0, fence))?;
        }
        let events = self.events.entry(of).or_default();
        let answer = None;
        events.push(Event {
            at,
            thread,
            call,
            answer,
        });
        let event = events.len() - 1;
        Some(Number { of, event })
    }

    /// Notes how a call ends.
    pub(crate) fn end(&mut self, at: Duration, Number { of, event }: Number, answer: Answer) {
        if let Answer::Granted {
            fence,
            is_promised: true,
        } = answer
        {
            self.promised.insert((of.0, fence));
        }
        let events = self.events.entry(of).or_default();
        let begun = events[event];
        let answer = Some(answer);
        events.push(Event {
            at,
            answer,
            ..begun
        });
    }

    /// Returns the name and the text of each file.
    #[must_use]
    pub fn files(&self, plan: Plan, commit: &str) -> Vec<(String, String)> {
        let Plan { seed, topology, .. } = plan;
        let files = self.events.iter().map(|((name, object), events)| {
            let (model, initial) = object.model();
            let head = format!(
                "; {{:object :{object}, :name \"{name}\", :model :{model}, :initial {initial}, :topology :{topology}, \
                 :seed {seed}, :commit \"{commit}\"}}\n"
            );
            let lines = self.lines(*object, events);
            let lines = lines.iter().enumerate();
            let lines = lines.map(|(index, line)| format!("{{:index {index}, {line}}}\n"));
            let text = [head].into_iter().chain(lines).collect();
            (format!("{topology}-{seed}-{name}-{object}.edn"), text)
        });
        files.collect()
    }

    /// Returns the events of a file, each without its index.
    fn lines(&self, object: Object, events: &[Event]) -> Vec<String> {
        let harness = self.processes.len();
        let mut lines = Vec::new();
        if object != Object::Lock {
            // The model of another judge may begin with no value.
            lines.extend(["invoke", "ok"].map(|kind| {
                format!(
                    ":time 0, :process {harness}, :client :harness, :type :{kind}, :f :write, :value 0"
                )
            }));
        }
        // The number of the process that each thread has now: a new one after a call of unknown outcome.
        let mut numbers: Vec<_> = (0..=harness).collect();
        for event in events {
            let thread = event.thread.unwrap_or(harness);
            let client = match event.thread {
                Some(thread) => format!("[{} {thread}]", self.processes[thread]),
                None => ":harness".to_owned(),
            };
            let (time, number) = (event.at.as_nanos(), numbers[thread]);
            lines.push(format!(
                ":time {time}, :process {number}, :client {client}, {event}"
            ));
            if event.answer == Some(Answer::Unknown) {
                numbers[thread] += harness + 1;
            }
        }
        lines
    }
}

impl Object {
    /// Returns the model and its first state.
    fn model(self) -> (&'static str, &'static str) {
        match self {
            Self::Lock => ("lock-with-fences", "[0 0]"),
            Self::Plain | Self::Fenced | Self::Committed => ("cas-register", "0"),
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "lock",
            Self::Plain => "plain",
            Self::Fenced => "fenced",
            Self::Committed => "committed",
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.answer {
            None => "invoke",
            Some(Answer::Failed) => "fail",
            Some(Answer::Unknown) => "info",
            Some(_) => "ok",
        };
        write!(f, ":type :{kind}, :f ")?;
        match (self.call, self.answer) {
            (Call::Acquire, Some(Answer::Granted { fence, is_promised })) => {
                let promised = if is_promised { "" } else { ", :promised false" };
                write!(f, ":acquire, :value {fence}{promised}")
            }
            (Call::Acquire, _) => f.write_str(":acquire, :value nil"),
            (Call::Look(fence), Some(Answer::Held)) => write!(f, ":look, :value [{fence} :held]"),
            (Call::Look(fence), Some(_)) => write!(f, ":look, :value [{fence} :lost]"),
            (Call::Look(fence), None) => write!(f, ":look, :value [{fence} nil]"),
            (Call::Told(fence), _) => write!(f, ":told, :value {fence}"),
            (Call::Release(fence), _) => write!(f, ":release, :value {fence}"),
            (Call::Read, Some(Answer::Value(value))) => write!(f, ":read, :value {value}"),
            (Call::Read, _) => f.write_str(":read, :value nil"),
            (Call::Write(read, value), _) => write!(f, ":cas, :value [{read} {value}]"),
        }
    }
}
