//! A thread on a shared connection, and its requests.

use std::io;
use std::mem;
use std::time::Instant;

use redis::Value;

use super::combiner::{Failures, Step, Ticket};
use super::{CallTerms, Connections, Shared};
use crate::script::Command;
use crate::store::LOOK_EVERY;
use crate::store::route::TimeSpan;
use crate::store::socket::{Reading, Stream, TransportError, Writing};
use crate::sync::{Arc, Thread, thread};

/// A thread's right to send requests on a shared connection. Its drop leaves the connection.
pub(crate) struct Member {
    connections: Arc<Connections>,
    number: usize,
    terms: CallTerms,
}

impl Member {
    /// Returns the right of a thread that was counted as a member.
    pub(super) fn new(connections: Arc<Connections>, number: usize, terms: CallTerms) -> Self {
        Self {
            connections,
            number,
            terms,
        }
    }

    /// Sends a command, after ASKING if `is_asking`, and returns its answer, all in this time. While another thread reads,
    /// it calls `is_over` every [`LOOK_EVERY`], and leaves if the call is over. The failure is `CallerLeft` then. The thread
    /// that reads does not look, and leaves at its deadline.
    pub(crate) fn request(
        &mut self,
        command: &Command,
        is_asking: bool,
        time: TimeSpan,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Value, TransportError> {
        let deadline = time.begun + time.limit;
        let mut turn = Turn::begin(self, command, is_asking, (time.begun, deadline))?;
        let mut has_ended_call = false;
        loop {
            let step = turn.step();
            turn.wake_others();
            match step {
                Step::Done(result) => return result.map_err(|fault| copy(&fault)),
                Step::Write => turn.write(),
                Step::Read => turn.read(),
                Step::Wait if !turn.is_late => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    turn.now = None;
                    has_ended_call = !left.is_zero() && is_over();
                    turn.is_late = left.is_zero() || has_ended_call;
                    if !turn.is_late {
                        thread::park_timeout(left.min(LOOK_EVERY));
                    }
                }
                Step::Wait if has_ended_call => return Err(TransportError::CallerLeft),
                Step::Wait => return Err(TransportError::Io(io::ErrorKind::TimedOut.into())),
            }
        }
    }

    /// Lets no further thread enter the connection.
    pub(crate) fn retire(self) {
        self.connections.state.lock().member(self.number).is_retired = true;
    }

    /// Ends the connection, because an answer was no reply to its request. The other threads get an unknown outcome.
    pub(crate) fn distrust(self) {
        let mut wake = Vec::new();
        let mut state = self.connections.state.lock();
        let shared = state.member(self.number);
        let failures = failures(TransportError::Distrusted);
        shared.combiner.fail(failures, &mut wake);
        let stream = Arc::clone(&shared.stream);
        drop(state);
        stream.shut_down();
        for thread in wake {
            thread.unpark();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.connections.state.lock();
        let shared = state.member(self.number);
        shared.members -= 1;
        let ended = if shared.members == 0 {
            state.in_use -= 1;
            state.shared[self.number].take()
        } else {
            None
        };
        let broken = match ended {
            Some(ended) if ended.is_usable() => {
                state.unused.push(ended);
                None
            }
            broken => broken,
        };
        self.connections.notify(&state);
        drop(state);
        // It closes, and its place becomes free.
        drop(broken);
    }
}

/// A request of a thread on a shared connection. Its drop leaves the request, also by a panic.
pub(super) struct Turn<'a> {
    member: &'a Member,
    /// `None` once the request has ended.
    ticket: Option<Ticket>,
    pub(super) deadline: Instant,
    half: Half,
    /// Whether the time of the request is over.
    is_late: bool,
    /// The time, while this thread has not waited for anything.
    now: Option<Instant>,
    wake: Vec<Thread>,
    /// The connection, if this thread has found its end.
    ended: Option<Arc<Stream>>,
}

/// The half of the socket that this thread has, and the result of its work.
enum Half {
    None,
    Reading(Box<Reading>, Result<bool, TransportError>),
    Writing(Box<Writing>, io::Result<()>),
}

impl<'a> Turn<'a> {
    /// Adds the request. Its time ends at `deadline`.
    pub(super) fn begin(
        member: &'a Member,
        command: &Command,
        is_asking: bool,
        (now, deadline): (Instant, Instant),
    ) -> Result<Self, TransportError> {
        let CallTerms { key, has_priority } = member.terms;
        let mut state = member.connections.state.lock();
        let shared = state.member(member.number);
        if shared.combiner.load() == 0 {
            shared.answered = now;
        }
        let pack = |outbox: &mut Vec<u8>| {
            if is_asking {
                Command::new("ASKING").pack(outbox);
            }
            command.pack(outbox);
        };
        let (caller, answers) = (thread::current(), 1 + usize::from(is_asking));
        let added =
            (shared.combiner).add(caller, key.unwrap_or_default(), has_priority, answers, pack);
        let ticket = added.map_err(|fault| copy(&fault))?;
        Ok(Self {
            member,
            ticket: Some(ticket),
            deadline,
            half: Half::None,
            is_late: false,
            now: Some(now),
            wake: Vec::new(),
            ended: None,
        })
    }

    /// Reports the work that was done, and returns what comes next.
    pub(super) fn step(&mut self) -> Step<Value, Arc<TransportError>> {
        let Some(ticket) = self.ticket else {
            return Step::Wait;
        };
        let connections = &self.member.connections;
        let mut state = connections.state.lock();
        let shared = state.member(self.member.number);
        let was_overdue = shared.combiner.is_overdue();
        let fault = self.give_back(shared);
        let is_open_again = was_overdue && !shared.combiner.is_overdue();
        // After a failure, this process has shut the connection down.
        let is_closed =
            !shared.combiner.has_failed() && fault.as_ref().is_some_and(TransportError::is_closed);
        if let Some(fault) = fault {
            self.ended = Some(Arc::clone(&shared.stream));
            shared.combiner.fail(failures(fault), &mut self.wake);
        }
        if is_closed {
            state.note_cut();
        }
        if is_open_again {
            connections.notify(&state);
        }
        let shared = state.member(self.member.number);
        let mut step = shared.combiner.next(ticket, &mut self.wake);
        if matches!(step, Step::Write) {
            let now = Instant::now();
            self.now = Some(now);
            // A thread without time would take the bytes of others, and leave them unwritten.
            self.is_late |= now >= self.deadline;
            if self.is_late {
                step = shared.combiner.next_without_time(ticket, &mut self.wake);
            }
        }
        match step {
            Step::Done(_) => self.ticket = None,
            _ if self.is_late => {
                shared.combiner.leave(ticket, &mut self.wake);
                self.ticket = None;
                return Step::Wait;
            }
            Step::Write => {
                if let Some(mut writing) = shared.writing.take() {
                    shared.combiner.take(writing.packed());
                    self.half = Half::Writing(writing, Ok(()));
                }
            }
            Step::Read => {
                if let Some(reading) = shared.reading.take() {
                    self.half = Half::Reading(reading, Ok(false));
                }
            }
            Step::Wait => {}
        }
        step
    }

    /// Gives the half of the socket back. Returns the fault of the connection, if the work has met one.
    fn give_back(&mut self, shared: &mut Shared) -> Option<TransportError> {
        match mem::replace(&mut self.half, Half::None) {
            Half::None => None,
            Half::Writing(writing, result) => {
                shared.combiner.written(!writing.has_unsent());
                shared.writing = Some(writing);
                let fault = TransportError::Io(result.err()?);
                self.is_late = fault.is_timeout();
                Some(fault).filter(|_| !self.is_late)
            }
            Half::Reading(mut reading, result) => {
                let (has_more, fault) = match result {
                    Ok(has_more) => (has_more, None),
                    Err(fault) => (false, Some(fault)),
                };
                // Answers may have come before one that cannot be read.
                let answers = reading.ready();
                let has_answers = !answers.is_empty();
                let mut hand_out =
                    |ticket| (shared.combiner).received(ticket, answers, has_more, &mut self.wake);
                let fault = if self.ticket.is_none_or(&mut hand_out) {
                    fault
                } else {
                    let words = "more answers than requests".to_owned();
                    Some(TransportError::Malformed(words))
                };
                if has_answers && shared.combiner.load() > 0 {
                    shared.answered = Instant::now();
                }
                shared.reading = Some(reading);
                let fault = fault?;
                self.is_late = fault.is_timeout();
                Some(fault).filter(|_| !self.is_late)
            }
        }
    }

    pub(super) fn write(&mut self) {
        if let Half::Writing(writing, result) = &mut self.half {
            *result = writing.write_by(self.deadline, self.now.take());
        }
    }

    pub(super) fn read(&mut self) {
        self.now = None;
        if let Half::Reading(reading, result) = &mut self.half {
            *result = reading.answers(self.deadline);
        }
    }

    fn wake_others(&mut self) {
        if let Some(stream) = self.ended.take() {
            // A thread that reads or writes returns.
            stream.shut_down();
        }
        for thread in self.wake.drain(..) {
            thread.unpark();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut state = self.member.connections.state.lock();
            let shared = state.member(self.member.number);
            self.give_back(shared);
            shared.combiner.leave(ticket, &mut self.wake);
            drop(state);
            self.wake_others();
        }
    }
}

/// Returns the failure that a fault of a connection is for each of its callers. Only one of them has got the answer that
/// cannot be read. The others may succeed on another connection.
fn failures(fault: TransportError) -> Failures<Arc<TransportError>> {
    let first = Arc::new(fault);
    let others = match &*first {
        TransportError::Malformed(_) => Arc::new(TransportError::Distrusted),
        _ => Arc::clone(&first),
    };
    let unsent = Arc::new(TransportError::NotSent);
    Failures {
        first,
        others,
        unsent,
    }
}

/// Returns the same fault for another thread.
fn copy(fault: &TransportError) -> TransportError {
    match fault {
        TransportError::Io(error) => TransportError::Io(match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        }),
        TransportError::Malformed(what) => TransportError::Malformed(what.clone()),
        TransportError::CallerLeft => TransportError::CallerLeft,
        TransportError::Distrusted => TransportError::Distrusted,
        TransportError::NotSent => TransportError::NotSent,
    }
}
