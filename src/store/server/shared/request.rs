//! A request of a thread on a connection: the table of the thread's work stands at the top of [`super`].

use std::mem;
use std::time::Duration;

use redis::Value;

use super::combiner::{CallerStep, RequestNumber};
use super::connection::{PoolConnection, SharedState};
use super::connections::{Connections, PooledConnection};
use crate::script::Command;
use crate::store::transport::socket::{Reading, TransportError, Writing};
use crate::store::{Deadline, LOOK_EVERY};
use crate::sys::net::PollFlags;
use crate::sys::{
    MutexGuard, Ordering, Time,
    thread::{self, Thread},
};

/// A thread that waits for others looks at the socket itself after this time, for each [`FEW_CALLERS`] threads on the
/// connection. Each further pause is twice as long, up to [`LOOK_EVERY`].
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(5);
/// With more threads than this on the connection, the one that reads or writes is likely to wait until others have run.
/// With a thousand threads on eight connections, and one core, looks after 5 ms halved the rate of requests.
const FEW_CALLERS: u32 = 8;
/// The longest wait for the socket itself. An unpark does not end such a wait. So a thread whose answer another thread has
/// read meanwhile gets the answer at most this late.
const LONGEST_POLL: Duration = Duration::from_millis(20);

impl PooledConnection<'_> {
    /// Sends a command, after ASKING if `is_asking`, and returns its answer. While another thread reads, this one looks at
    /// least every [`LOOK_EVERY`] whether the call is over, and then leaves. The failure is `CallerLeft` then. The thread
    /// that reads does not look, and leaves at its deadline. After a failure the caller [closes](Self::close) the connection.
    pub(crate) fn request(
        &self,
        command: &Command,
        is_asking: bool,
        deadline: Deadline<'_>,
    ) -> Result<Value, TransportError> {
        let (mut request, mut work) = SharedRequest::begin(self, command, is_asking, deadline)?;
        let mut is_over = false;
        loop {
            match work {
                Work::Done(result) => return result,
                Work::Write => request.write(),
                Work::Read => request.read(),
                Work::LookAtIdle => request.look_at_idle(),
                Work::Await(asked) => request.await_socket(asked),
                Work::Park => {
                    is_over = request.park() && !request.is_late && request.deadline.is_over();
                    request.is_late |= is_over;
                }
                Work::Left if is_over => return Err(TransportError::CallerLeft),
                Work::Left => return Err(request.deadline.timed_out().into()),
            }
            work = request.step(request.connection.state.lock());
        }
    }
}

/// A request of a thread on a connection. Its drop leaves the request, also by a panic.
pub(super) struct SharedRequest<'a> {
    connections: &'a Connections,
    pub(super) connection: &'a PoolConnection,
    /// `None` once the request has ended.
    number: Option<RequestNumber>,
    pub(super) deadline: Deadline<'a>,
    half: TakenHalf,
    /// Whether the thread is alone on the connection, and so blocks in its reads and writes.
    is_alone: bool,
    /// The events for which the socket was ready at the last look of this thread. Empty once the thread has used them.
    ready: PollFlags,
    /// Whether the socket had no room for all bytes of the last write.
    is_full: bool,
    /// How long it waits before it looks at the socket.
    pause: Duration,
    /// Whether the time of the request is over.
    is_late: bool,
    wake: Vec<Thread>,
}

/// The half of the socket that this thread has, and the result of its work.
enum TakenHalf {
    None,
    Reading(Box<Reading>, Result<bool, TransportError>),
    /// The half that reads, and the result of a look at the idle connection.
    Idle(Box<Reading>, Result<(), TransportError>),
    Writing(Box<Writing>, Result<(), TransportError>),
}

/// The next action of a thread, which it does without the mutex.
pub(super) enum Work {
    /// It writes: it has the half for that.
    Write,
    /// It reads: it has the half for that.
    Read,
    /// It looks whether anything is unread before it writes: it has the half that reads.
    LookAtIdle,
    /// It waits, without a half, until the socket has room for more bytes, or something to read.
    Await(PollFlags),
    /// Other threads do the work, and wake it.
    Park,
    Done(Result<Value, TransportError>),
    /// Its time was over, and it has left.
    Left,
}

impl<'a> SharedRequest<'a> {
    /// Adds a request of this time, and returns what comes first.
    pub(super) fn begin(
        caller: &'a PooledConnection<'_>,
        command: &Command,
        is_asking: bool,
        mut deadline: Deadline<'a>,
    ) -> Result<(Self, Work), TransportError> {
        let connection = caller.connection.as_deref();
        let connection = connection.ok_or(TransportError::NotSent)?;
        let pack = |outbox: &mut Vec<u8>| {
            if is_asking {
                Command::new("ASKING").pack(outbox);
            }
            command.pack(outbox);
        };
        let mut state = connection.state.lock();
        if !connection.is_awaited.load(Ordering::Relaxed) {
            connection.note_use(deadline.now());
        }
        let (key, has_priority) = (
            caller.terms.key.unwrap_or_default(),
            caller.terms.has_priority,
        );
        let (thread, answers) = (thread::current(), 1 + usize::from(is_asking));
        let added = (state.combiner).add(thread, key, has_priority, answers, pack);
        let mut request = Self {
            connections: caller.connections,
            connection,
            number: Some(added?),
            deadline,
            half: TakenHalf::None,
            is_alone: false,
            ready: PollFlags::empty(),
            is_full: false,
            pause: first_pause(connection),
            is_late: false,
            wake: Vec::new(),
        };
        let work = request.step(state);
        Ok((request, work))
    }

    /// Reports the work that was done, and returns what comes next.
    pub(super) fn step(&mut self, mut guard: MutexGuard<'_, SharedState>) -> Work {
        let Some(number) = self.number else {
            return Work::Left;
        };
        let (connection, state) = (self.connection, &mut *guard);
        let was_overdue = connection.is_overdue.load(Ordering::Relaxed);
        let has_looked = matches!(self.half, TakenHalf::Idle(..));
        let fault = self.give_back(state);
        let has_failed = fault.is_some();
        if let Some(fault) = fault {
            // After a failure, this process has shut the connection down.
            if (fault.is_closed() || has_looked) && !state.combiner.has_failed() {
                self.connections.note_closed();
            }
            connection.fail(state, fault, &mut self.wake);
        }
        let ready = mem::replace(&mut self.ready, PollFlags::empty());
        let may_write = ready.contains(PollFlags::OUT) && state.writing.is_some();
        let may_read = ready.contains(PollFlags::IN) && state.reading.is_some();
        if may_write || may_read {
            state.combiner.take_over(number, may_write, may_read);
        }
        self.is_alone = connection.callers.load(Ordering::Relaxed) == 1;
        let step = state.combiner.next(number, &mut self.wake);
        let is_idle = state.combiner.is_idle();
        if let CallerStep::Write = step {
            // A thread without time would take the bytes of others, and leave them unwritten.
            self.is_late |= self.deadline.has_passed();
        }
        let work = match step {
            CallerStep::Done(result) => {
                self.number = None;
                Work::Done(result)
            }
            // A thread whose time is over still reads the bytes that have come.
            CallerStep::Read if may_read || self.is_alone && !self.is_late => {
                if let Some(reading) = state.reading.take() {
                    self.half = TakenHalf::Reading(reading, Ok(false));
                }
                Work::Read
            }
            _ if self.is_late => {
                self.number = None;
                match state.combiner.leave(number, &mut self.wake) {
                    Some(result) => Work::Done(result),
                    None => Work::Left,
                }
            }
            CallerStep::Write if self.is_full && !self.is_alone && !may_write => {
                Work::Await(PollFlags::OUT)
            }
            // Another caller looks.
            CallerStep::Write if is_idle && state.reading.is_none() => Work::Park,
            CallerStep::Write if is_idle && !has_looked && has_answered(state) => {
                if let Some(reading) = state.reading.take() {
                    self.half = TakenHalf::Idle(reading, Ok(()));
                }
                Work::LookAtIdle
            }
            CallerStep::Write => {
                if let Some(mut writing) = state.writing.take() {
                    state.combiner.take(writing.packed());
                    self.half = TakenHalf::Writing(writing, Ok(()));
                }
                Work::Write
            }
            CallerStep::Read => Work::Await(PollFlags::IN),
            CallerStep::Wait => Work::Park,
        };
        connection.show(state);
        drop(guard);
        if has_failed {
            connection.stream.shut_down();
        }
        if was_overdue && !connection.is_overdue.load(Ordering::Relaxed) {
            self.connections.notify(&self.connections.gate.lock());
        }
        self.wake_others();
        work
    }

    fn wake_others(&mut self) {
        for thread in self.wake.drain(..) {
            thread.unpark();
        }
    }

    /// Gives the half of the socket back. Returns the fault of the connection, if the work has met one.
    fn give_back(&mut self, state: &mut SharedState) -> Option<TransportError> {
        let fault = match mem::replace(&mut self.half, TakenHalf::None) {
            TakenHalf::None => return None,
            TakenHalf::Writing(writing, result) => {
                self.is_full = writing.has_unsent();
                state.combiner.written(!self.is_full);
                state.writing = Some(writing);
                result.err()?
            }
            TakenHalf::Idle(reading, result) => {
                state.reading = Some(reading);
                result.err()?
            }
            TakenHalf::Reading(mut reading, result) => {
                // Answers may have come before one that cannot be read.
                let answers = reading.ready();
                let has_answers = !answers.is_empty();
                let has_more = *result.as_ref().unwrap_or(&false);
                let fits = self.number.is_none_or(|reader| {
                    (state.combiner).received(reader, answers, has_more, &mut self.wake)
                });
                if has_answers && state.combiner.load() > 0 {
                    self.connection.note_use(Time::now());
                }
                state.reading = Some(reading);
                if fits {
                    result.err()?
                } else {
                    TransportError::Malformed("more answers than requests".to_owned())
                }
            }
        };
        self.is_late |= fault.is_timeout();
        Some(fault).filter(|fault| !fault.is_timeout())
    }

    pub(super) fn write(&mut self) {
        if let TakenHalf::Writing(writing, result) = &mut self.half {
            *result = writing.write_by(self.is_alone.then_some(&mut self.deadline));
        }
        self.deadline.now = None;
    }

    pub(super) fn read(&mut self) {
        self.deadline.now = None;
        if let TakenHalf::Reading(reading, result) = &mut self.half {
            *result = reading.answers(self.is_alone.then_some(&mut self.deadline));
        }
    }

    /// Looks whether anything is unread although no answer is missing.
    pub(super) fn look_at_idle(&mut self) {
        if let TakenHalf::Idle(reading, result) = &mut self.half {
            *result = reading.look();
        }
    }

    /// Waits, without a half, until the socket is ready for this. Another thread may do the work meanwhile. So it also
    /// returns after a pause.
    pub(super) fn await_socket(&mut self, asked: PollFlags) {
        let left = self.deadline.left();
        // At the end of its time it looks once more.
        self.is_late |= left.is_zero();
        self.look(asked, left.min(self.pause).min(LONGEST_POLL));
        if !self.ready.is_empty() {
            self.pause = first_pause(self.connection);
        }
    }

    /// Waits until another thread has done the work. After a pause it looks at the socket, because that thread may get no CPU
    /// time. Returns whether it has looked.
    pub(super) fn park(&mut self) -> bool {
        let begun = self.deadline.now();
        let left = self.deadline.left();
        let limit = left.min(self.pause);
        if !limit.is_zero() {
            thread::park_for(limit);
        }
        if begun.elapsed() < limit {
            return false;
        }
        self.is_late |= left.is_zero();
        self.look(PollFlags::IN | PollFlags::OUT, Duration::ZERO);
        true
    }

    /// Waits for at most `limit` until the socket is ready for this.
    fn look(&mut self, asked: PollFlags, limit: Duration) {
        self.ready = self.connection.stream.poll(asked, limit);
        self.pause = (self.pause * 2).min(LOOK_EVERY);
    }
}

/// Returns whether an answer has come on a connection that no thread reads.
fn has_answered(state: &SharedState) -> bool {
    let reading = state.reading.as_ref();
    reading.is_some_and(|reading| reading.has_answered())
}

/// Returns how long a thread waits before it first looks at the socket.
fn first_pause(connection: &PoolConnection) -> Duration {
    let callers = connection.callers.load(Ordering::Relaxed);
    FIRST_LOOK_AFTER * (callers / FEW_CALLERS).max(1)
}

impl Drop for SharedRequest<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut state = self.connection.state.lock();
            self.give_back(&mut state);
            state.combiner.leave(number, &mut self.wake);
            self.connection.show(&state);
            drop(state);
            self.wake_others();
        }
    }
}
