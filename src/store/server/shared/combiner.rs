//! The requests of several callers on one connection. It decides who writes and who reads, and gives each answer to its
//! caller.
//!
//! This module does no input and output, and knows no time. Its functions run under the mutex of the connection.
//!
//! A request:
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | waiting: its bytes are in the outbox | a writer takes them | in flight |
//! | waiting | its caller leaves | none: its bytes are withdrawn |
//! | in flight | its answer has come | ended |
//! | in flight | its caller leaves | placeholder |
//! | placeholder | its answer has come | none: the answer is dropped |
//! | waiting, in flight | the connection fails | ended, with the [failure](Failures) of its state |
//! | ended | its caller takes the result | none |
//!
//! The callers do the work themselves. There are two roles:
//!
//! | role | work | is taken by | ends, or passes on |
//! | --- | --- | --- | --- |
//! | writer | writes what waits | the first caller that adds a request, or the last one that takes its result: see below | if nothing waits any more; when its caller leaves, to the caller of the first request that waits, or of one that is not written whole; to a caller that [takes it over](#roles-that-are-taken-over) |
//! | reader | reads, and hands each answer to its caller | a caller whose request is written whole, once it has nothing to write | when its caller leaves, to the last caller whose request is written whole; to a caller that takes it over |
//!
//! So these hold between two calls of these functions, until the connection fails:
//!
//! 1. If a request waits, a caller is the writer, or [collected](#collected-requests) requests wait for a caller that is
//!    about to take its result.
//! 2. If a caller has a request in flight, a caller is the reader or the writer. The writer becomes the reader once
//!    nothing waits, unless there is a reader.
//! 3. If a request is in flight that is not written whole, and its caller is there, a caller is the writer. A reader
//!    is blocked until an answer comes, so it never waits for bytes that it would have to write.
//! 4. Each role belongs to a caller that is still there. That caller was woken for it, or waits for the socket for a moment
//!    only.
//!
//! The reader passes its role to the *last* caller in flight, because that one can read the answers of all others. Each of
//! them is then woken once.
//!
//! A writer takes no two requests for one key at a time. The second one goes out with its next write. If the socket has no
//! room for all bytes, the rest is written before any others.
//!
//! ASKING may go ahead of a request. Its bytes and those of the request are one piece. Its answer is dropped.
//!
//! # Roles that are taken over
//!
//! The system may give the thread of a caller no CPU time: it has a low priority, and the cores are busy. Its role must not
//! keep the others waiting. So a caller that has slept for a while looks at the socket itself, and takes over:
//!
//! | its request | the socket | the half of the socket | it becomes |
//! | --- | --- | --- | --- |
//! | is not written whole | has room | nobody writes at this moment | the writer |
//! | is written whole | has something to read | nobody reads at this moment | the reader |
//!
//! The caller that had the role finds that out when it runs again.
//!
//! # Collected requests
//!
//! A read brings the answers of many callers, and most of these callers soon add their next requests. To write each of
//! these alone would cost each side a system call for each. So a caller that adds a request writes nothing while others
//! are about to take their results. They are awake, so that is a matter of microseconds. If the system gives those
//! threads no CPU time, the caller takes the writer's role over, and the next ones wait for those threads no more. One of
//! these callers writes the requests that wait:
//!
//! | caller | when |
//! | --- | --- |
//! | the one that adds a request | [a quarter](PARTS) of the other callers wait: the server goes on while the others run |
//! | the one that takes its result | no other is about to, or a quarter waits. It writes first, and then takes the result |
//!
//! With up to eight callers, a quarter is one of them, so each writes at once. Nobody waits for an answer, or for a time.

use std::collections::VecDeque;

use crate::name::Fingerprint;

/// Collected requests are written once a quarter of the other callers has one. With 64 threads, smaller groups take more CPU
/// time. With larger ones, client and server wait for each other in turn.
const PARTS: usize = 4;

/// The requests on a connection. `C` wakes a caller, `A` is an answer, and `E` is the failure of the connection.
pub(super) struct Combiner<C, A, E> {
    /// The requests that have a caller, by their numbers.
    requests: Vec<Option<CallerRequest<C, A, E>>>,
    /// The bytes of the requests that wait, in their order.
    outbox: Vec<u8>,
    waiting: VecDeque<WaitingRequest>,
    /// The requests that a writer has taken and that have no answer yet, in the order of their bytes.
    in_flight: VecDeque<InFlight>,
    /// How many of them, the last ones, may not be written whole.
    being_written: usize,
    /// Whether the last write has left bytes.
    has_unsent: bool,
    writer: Option<RequestNumber>,
    reader: Option<RequestNumber>,
    /// The number of results that their callers have not taken. These callers are awake, or were woken.
    results: usize,
    /// How many of the results nobody waits for any more, because their callers were not seen to take them.
    stale_results: usize,
    /// The number of placeholders, whose answers are overdue.
    placeholders: usize,
    /// The failure for callers that come after it.
    failure: Option<E>,
}

/// The number of a request. It is free for another one once its caller has the result, or has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestNumber(usize);

struct CallerRequest<C, A, E> {
    caller: C,
    state: RequestState<A, E>,
}

enum RequestState<A, E> {
    Waiting,
    InFlight,
    Ended(Result<A, E>),
}

struct WaitingRequest {
    number: RequestNumber,
    key: Fingerprint,
    has_priority: bool,
    /// How many answers it has. The last one is its result.
    answers: usize,
    /// How many bytes it has.
    length: usize,
}

struct InFlight {
    /// `None` for a placeholder.
    owner: Option<RequestNumber>,
    /// How many answers are missing.
    missing: usize,
}

/// The failure of the connection, as each sort of caller gets it.
pub(super) struct Failures<E> {
    /// The failure for the caller of the first request in flight, to which the next answer belongs.
    pub(super) first: E,
    /// The failure for the callers of the others in flight.
    pub(super) others: E,
    /// The failure for callers of which nothing was written: their requests wait, or come later.
    pub(super) unsent: E,
}

/// The next step of a caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallerStep<A, E> {
    /// It is the writer: it [takes](Combiner::take) what waits, and writes it.
    Write,
    /// It is the reader.
    Read,
    /// Other callers do the work, and wake this one.
    Wait,
    /// Its request has ended, with this result. The number is no longer valid.
    Done(Result<A, E>),
}

impl<C: Clone, A, E: Clone> Combiner<C, A, E> {
    pub(super) fn new() -> Self {
        Self {
            requests: Vec::new(),
            outbox: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: VecDeque::new(),
            being_written: 0,
            has_unsent: false,
            writer: None,
            reader: None,
            results: 0,
            stale_results: 0,
            placeholders: 0,
            failure: None,
        }
    }

    /// Adds a request about a key. With priority, it goes before requests without priority that still wait. `pack` writes
    /// its bytes, behind those that are there. The server sends this many answers to it.
    ///
    /// # Errors
    ///
    /// Returns the failure of the connection.
    pub(super) fn add(
        &mut self,
        caller: C,
        key: Fingerprint,
        has_priority: bool,
        answers: usize,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<RequestNumber, E> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let request = CallerRequest {
            caller,
            state: RequestState::Waiting,
        };
        let free = self.requests.iter().position(Option::is_none);
        let number = RequestNumber(free.unwrap_or(self.requests.len()));
        if free.is_none() {
            self.requests.push(None);
        }
        self.requests[number.0] = Some(request);
        let end = self.outbox.len();
        pack(&mut self.outbox);
        let waiting = WaitingRequest {
            number,
            key,
            has_priority,
            answers,
            length: self.outbox.len() - end,
        };
        let has_no_priority = |other: &WaitingRequest| !other.has_priority;
        match self.waiting.iter().position(has_no_priority) {
            Some(at) if has_priority => {
                let before = self.waiting.iter().take(at).map(|other| other.length);
                let begin: usize = before.sum();
                self.outbox[begin..].rotate_right(waiting.length);
                self.waiting.insert(at, waiting);
            }
            _ => self.waiting.push_back(waiting),
        }
        if self.writer.is_none() && !self.collects(self.waiting.len() - 1, self.results) {
            self.writer = Some(number);
        }
        Ok(number)
    }

    /// Returns the next step of a caller. Adds the callers to wake.
    pub(super) fn next(&mut self, number: RequestNumber, wake: &mut Vec<C>) -> CallerStep<A, E> {
        let Some(request) = &self.requests[number.0] else {
            return CallerStep::Wait;
        };
        let is_in_flight = matches!(request.state, RequestState::InFlight);
        if let RequestState::Ended(_) = request.state {
            let nobody_writes = self.writer.is_none() && !self.waiting.is_empty();
            if nobody_writes && !self.collects(self.waiting.len(), self.results - 1) {
                self.writer = Some(number);
                return CallerStep::Write;
            }
            let result = self.leave(number, wake);
            return result.map_or(CallerStep::Wait, CallerStep::Done);
        }
        if self.writer == Some(number) {
            if self.has_unsent || !self.waiting.is_empty() {
                return CallerStep::Write;
            }
            self.writer = None;
        }
        if is_in_flight && self.reader.is_none() && self.is_written(number) {
            self.reader = Some(number);
        }
        if self.reader == Some(number) {
            CallerStep::Read
        } else {
            CallerStep::Wait
        }
    }

    /// Makes a caller that has slept the writer or the reader, in place of one that may not run: the table at the top of
    /// this module. The caller says which half of the socket is free, and ready.
    pub(super) fn take_over(&mut self, number: RequestNumber, may_write: bool, may_read: bool) {
        let request = self.requests[number.0].as_ref();
        let is_written = match request.map(|request| &request.state) {
            Some(RequestState::Waiting) => false,
            Some(RequestState::InFlight) => self.is_written(number),
            Some(RequestState::Ended(_)) | None => return,
        };
        if is_written && may_read {
            self.reader = Some(number);
        } else if !is_written && may_write {
            self.writer = Some(number);
            self.stale_results = self.results;
        }
    }

    /// Moves the bytes that wait into `packed`, which must be empty. If an earlier write has left bytes, those go first, and
    /// this moves none. The writer calls this, and then [`Self::written`].
    pub(super) fn take(&mut self, packed: &mut Vec<u8>) {
        if self.has_unsent {
            return;
        }
        let is_second = |(at, other): &(usize, &WaitingRequest)| {
            let mut before = self.waiting.iter().take(*at);
            before.any(|earlier| earlier.key == other.key)
        };
        let second = self.waiting.iter().enumerate().find(is_second);
        let count = second.map_or(self.waiting.len(), |(at, _)| at);
        if count == self.waiting.len() {
            std::mem::swap(packed, &mut self.outbox);
        } else {
            let lengths = self.waiting.iter().take(count).map(|taken| taken.length);
            let end: usize = lengths.sum();
            packed.extend(self.outbox.drain(..end));
        }
        for taken in self.waiting.drain(..count) {
            if let Some(request) = &mut self.requests[taken.number.0] {
                request.state = RequestState::InFlight;
            }
            self.in_flight.push_back(InFlight {
                owner: Some(taken.number),
                missing: taken.answers,
            });
        }
        self.being_written += count;
    }

    /// Notes the end of a write. Without `is_whole` the writer's time was over, or the socket had no room for all bytes.
    pub(super) fn written(&mut self, is_whole: bool) {
        if is_whole {
            self.being_written = 0;
        }
        self.has_unsent = !is_whole;
    }

    /// Returns the callers whose requests are in flight and written whole, in the order of their bytes.
    fn written_owners(&self) -> impl DoubleEndedIterator<Item = RequestNumber> + '_ {
        // The last ones in flight are those that were written last.
        let written = self.in_flight.len().saturating_sub(self.being_written);
        let requests = self.in_flight.iter().take(written);
        requests.filter_map(|request| request.owner)
    }

    fn is_written(&self, number: RequestNumber) -> bool {
        self.being_written == 0 || self.written_owners().any(|owner| owner == number)
    }

    /// Hands answers to their callers. `has_more` means that bytes of a further answer have come too. Returns false, and
    /// hands out nothing, if these are more answers than are missing. Adds the callers to wake.
    #[must_use]
    pub(super) fn received(
        &mut self,
        reader: RequestNumber,
        answers: &mut Vec<A>,
        has_more: bool,
        wake: &mut Vec<C>,
    ) -> bool {
        if self.failure.is_some() {
            return true;
        }
        let missing: usize = self.in_flight.iter().map(|request| request.missing).sum();
        if answers.len() + usize::from(has_more) > missing {
            return false;
        }
        for answer in answers.drain(..) {
            let Some(first) = self.in_flight.front_mut() else {
                break;
            };
            first.missing -= 1;
            if first.missing > 0 {
                continue;
            }
            let owner = first.owner;
            self.in_flight.pop_front();
            let Some(owner) = owner else {
                self.placeholders -= 1;
                continue;
            };
            if let Some(request) = &mut self.requests[owner.0] {
                request.state = RequestState::Ended(Ok(answer));
                self.results += 1;
                // These two are awake, or wait for the socket for a moment only.
                if owner != reader && Some(owner) != self.writer {
                    wake.push(request.caller.clone());
                }
            }
        }
        true
    }

    /// Ends the request of a caller that leaves. Returns the result, if there is one. Adds the callers to wake.
    pub(super) fn leave(
        &mut self,
        number: RequestNumber,
        wake: &mut Vec<C>,
    ) -> Option<Result<A, E>> {
        let request = self.requests[number.0].take()?;
        let result = match request.state {
            RequestState::Waiting => {
                self.withdraw(number);
                None
            }
            RequestState::InFlight => {
                let is_its = |request: &&mut InFlight| request.owner == Some(number);
                if let Some(request) = self.in_flight.iter_mut().find(is_its) {
                    request.owner = None;
                    self.placeholders += 1;
                }
                None
            }
            RequestState::Ended(result) => {
                self.results -= 1;
                self.stale_results = self.stale_results.min(self.results);
                Some(result)
            }
        };
        self.pass_roles_of(number, wake);
        result
    }

    /// Removes the bytes of a request that no writer has taken.
    fn withdraw(&mut self, number: RequestNumber) {
        let mut before = 0;
        let at = self.waiting.iter().position(|waiting| {
            let is_it = waiting.number == number;
            before += if is_it { 0 } else { waiting.length };
            is_it
        });
        if let Some(waiting) = at.and_then(|at| self.waiting.remove(at)) {
            self.outbox.drain(before..before + waiting.length);
        }
    }

    /// Ends all requests with the failure of the connection. Adds all their callers to wake. The first failure counts.
    pub(super) fn fail(&mut self, failures: Failures<E>, wake: &mut Vec<C>) {
        if self.failure.is_some() {
            return;
        }
        let first = self.in_flight.front().and_then(|request| request.owner);
        for (number, request) in self.requests.iter_mut().enumerate() {
            let Some(request) = request else {
                continue;
            };
            let failure = match request.state {
                RequestState::Ended(_) => continue,
                RequestState::Waiting => &failures.unsent,
                RequestState::InFlight if first == Some(RequestNumber(number)) => &failures.first,
                RequestState::InFlight => &failures.others,
            };
            request.state = RequestState::Ended(Err(failure.clone()));
            self.results += 1;
            wake.push(request.caller.clone());
        }
        self.outbox.clear();
        self.waiting.clear();
        self.in_flight.clear();
        (self.being_written, self.has_unsent, self.placeholders) = (0, false, 0);
        (self.writer, self.reader) = (None, None);
        self.failure = Some(failures.unsent);
    }

    /// Passes the roles of a caller that leaves to other callers, which it adds to wake.
    fn pass_roles_of(&mut self, number: RequestNumber, wake: &mut Vec<C>) {
        if self.writer == Some(number) {
            self.writer = None;
        }
        if self.reader == Some(number) {
            self.reader = None;
        }
        if self.writer.is_none() {
            let reader = self.reader;
            let owners = || self.in_flight.iter().filter_map(|request| request.owner);
            self.writer = match self.waiting.front() {
                Some(_) if !self.has_unsent && self.collects(self.waiting.len(), self.results) => {
                    None
                }
                Some(first) => Some(first.number),
                // The reader may be blocked in a read.
                None if self.has_unsent => owners().find(|owner| Some(*owner) != reader),
                None => None,
            };
            self.wake(self.writer, wake);
        }
        if self.reader.is_none() {
            // Those whose requests are not written whole have the writer.
            let is_other = |owner: &RequestNumber| Some(*owner) != self.writer;
            let last = self.written_owners().rfind(is_other);
            self.reader = last;
            self.wake(self.reader, wake);
        }
    }

    /// Returns whether requests that wait are not written yet. Of the callers without the one that acts, `waiting` wait, and
    /// `results` are about to take their results.
    fn collects(&self, waiting: usize, results: usize) -> bool {
        let others = waiting + self.in_flight.len() + results;
        results > self.stale_results && self.waiting.len() < others / PARTS
    }

    fn wake(&self, number: Option<RequestNumber>, wake: &mut Vec<C>) {
        let request = number.and_then(|number| self.requests[number.0].as_ref());
        wake.extend(request.map(|request| request.caller.clone()));
    }

    /// Returns whether no answer is missing.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns how many requests wait or are in flight, with the placeholders.
    pub(super) fn load(&self) -> usize {
        self.waiting.len() + self.in_flight.len()
    }

    /// Returns whether something is overdue: the answer to a request whose caller has left, or the rest of a write.
    pub(super) fn is_overdue(&self) -> bool {
        self.placeholders > 0 || self.has_unsent
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Enough to collect requests.
    const CALLERS: usize = 12;
    /// The bytes of a request: its number, its key, and how many answers it has.
    const LENGTH: usize = 4;
    /// The answer to ASKING.
    const ASKED: u16 = u16::MAX;

    /// A caller, as its thread sees itself.
    #[derive(Debug)]
    enum Caller {
        Idle,
        /// It runs next when the model says so.
        Awake(u16, RequestNumber),
        /// It runs only after it is woken.
        Parked(u16, RequestNumber),
        /// It has the half that writes, and these bytes.
        Writing(u16, RequestNumber, Vec<u8>),
        /// It waits for answers, without the half that reads.
        Reading(u16, RequestNumber),
    }

    /// The callers of a connection, and the server.
    struct Model {
        combiner: Combiner<usize, u16, &'static str>,
        callers: Vec<Caller>,
        /// The callers that get no CPU time any more.
        stopped: [bool; CALLERS],
        /// The bytes that a writer has left.
        unsent: Vec<u8>,
        /// The bytes that the server has got, and the answers that it has sent.
        inbox: Vec<u8>,
        answers: VecDeque<u16>,
        next: u16,
        has_failed: bool,
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Call {
            key: u8,
            has_priority: bool,
            is_asking: bool,
        },
        /// A caller goes on. If it writes, there is room for this part of its bytes. If that is not all, its time may be over.
        GoOn {
            percent: usize,
            is_late: bool,
        },
        /// A caller that sleeps looks at the socket itself.
        Look,
        /// A caller gets no CPU time any more. Not in the middle of a write: others cannot help then.
        Stop,
        Leave,
        Answer,
        Fail,
    }

    impl Model {
        fn new() -> Self {
            Self {
                combiner: Combiner::new(),
                callers: (0..CALLERS).map(|_| Caller::Idle).collect(),
                stopped: [false; CALLERS],
                unsent: Vec::new(),
                inbox: Vec::new(),
                answers: VecDeque::new(),
                next: 0,
                has_failed: false,
            }
        }

        fn happen(&mut self, number: usize, event: Event) {
            match event {
                Event::Call { .. } | Event::GoOn { .. } | Event::Look | Event::Leave
                    if self.stopped[number] => {}
                Event::Call {
                    key,
                    has_priority,
                    is_asking,
                } => {
                    self.call(number, key, has_priority, is_asking);
                }
                Event::GoOn { percent, is_late } => self.go_on(number, percent, is_late),
                Event::Look => {
                    if let Caller::Parked(id, request) = self.callers[number] {
                        self.look(request);
                        self.step(number, id, request);
                    }
                }
                Event::Stop => {
                    let writes = matches!(self.callers[number], Caller::Writing(..));
                    self.stopped[number] |= !writes;
                }
                Event::Leave => self.leave(number),
                Event::Answer => self.answer(),
                Event::Fail => {
                    let mut wake = Vec::new();
                    let failures = Failures {
                        first: "first",
                        others: "others",
                        unsent: "unsent",
                    };
                    self.combiner.fail(failures, &mut wake);
                    self.has_failed = true;
                    // The end of the connection ends each read and write.
                    for caller in &mut self.callers {
                        if let Caller::Writing(id, request, _) | Caller::Reading(id, request) =
                            caller
                        {
                            *caller = Caller::Awake(*id, *request);
                        }
                    }
                    self.wake(wake);
                }
            }
            self.check();
        }

        fn call(&mut self, number: usize, key: u8, has_priority: bool, is_asking: bool) {
            if !matches!(self.callers[number], Caller::Idle) {
                return;
            }
            let (id, answers) = (self.next, 1 + usize::from(is_asking));
            let pack = |outbox: &mut Vec<u8>| {
                outbox.extend(id.to_be_bytes());
                outbox.extend([key, answers as u8]);
            };
            let combiner = &mut self.combiner;
            let added = combiner.add(number, key.into(), has_priority, answers, pack);
            match added {
                Ok(request) => self.callers[number] = Caller::Awake(id, request),
                Err(_) => assert!(self.has_failed),
            }
            self.next += 1;
        }

        /// Lets a caller take a role over, as far as the halves of the socket are free and ready.
        fn look(&mut self, request: RequestNumber) {
            let writes = |caller: &Caller| matches!(caller, Caller::Writing(..));
            let may_write = !self.callers.iter().any(writes);
            let may_read = !self.answers.is_empty();
            self.combiner.take_over(request, may_write, may_read);
        }

        fn go_on(&mut self, number: usize, percent: usize, is_late: bool) {
            match std::mem::replace(&mut self.callers[number], Caller::Idle) {
                Caller::Idle => {}
                Caller::Parked(id, request) => self.callers[number] = Caller::Parked(id, request),
                Caller::Awake(id, request) => self.step(number, id, request),
                Caller::Writing(id, request, bytes) => {
                    self.unsent.extend(bytes);
                    let written = self.unsent.len() * percent / 100;
                    self.inbox.extend(self.unsent.drain(..written));
                    self.combiner.written(self.unsent.is_empty());
                    if is_late && !self.unsent.is_empty() {
                        self.end_time(number, id, request);
                    } else {
                        self.step(number, id, request);
                    }
                }
                Caller::Reading(id, request) => {
                    let is_ready = !self.answers.is_empty();
                    self.look(request);
                    self.step(number, id, request);
                    // Another caller may read in its place.
                    if is_ready && matches!(self.callers[number], Caller::Reading(..)) {
                        self.read(request, percent);
                        self.step(number, id, request);
                    }
                }
            }
        }

        fn read(&mut self, reader: RequestNumber, percent: usize) {
            let count = (self.answers.len() * percent).div_ceil(100).max(1);
            let mut answers: Vec<_> = self.answers.drain(..count).collect();
            let (combiner, mut wake) = (&mut self.combiner, Vec::new());
            let fits = combiner.received(reader, &mut answers, false, &mut wake);
            assert!(fits, "more answers than requests");
            self.wake(wake);
        }

        fn step(&mut self, number: usize, id: u16, request: RequestNumber) {
            let mut wake = Vec::new();
            let step = self.combiner.next(request, &mut wake);
            self.wake(wake);
            self.callers[number] = match step {
                CallerStep::Write => {
                    let mut bytes = Vec::new();
                    self.combiner.take(&mut bytes);
                    let mut keys: Vec<_> = bytes.chunks(LENGTH).map(|request| request[2]).collect();
                    let count = keys.len();
                    keys.sort_unstable();
                    keys.dedup();
                    assert_eq!(keys.len(), count, "two requests for a key in one write");
                    Caller::Writing(id, request, bytes)
                }
                CallerStep::Read => Caller::Reading(id, request),
                CallerStep::Wait => Caller::Parked(id, request),
                CallerStep::Done(result) => {
                    self.end(id, result);
                    Caller::Idle
                }
            };
        }

        /// The time of a caller that writes is over. It leaves, unless it has its result.
        fn end_time(&mut self, number: usize, id: u16, request: RequestNumber) {
            let mut wake = Vec::new();
            if let Some(result) = self.combiner.leave(request, &mut wake) {
                self.end(id, result);
            }
            self.callers[number] = Caller::Idle;
            self.wake(wake);
        }

        /// Checks that a result is that of this request.
        fn end(&self, id: u16, result: Result<u16, &str>) {
            match result {
                Ok(answer) => assert_eq!(answer, id, "the answer to another request"),
                Err(_) => assert!(self.has_failed),
            }
        }

        fn leave(&mut self, number: usize) {
            // A thread in the middle of a write leaves when the write is over.
            if let Caller::Awake(_, request)
            | Caller::Parked(_, request)
            | Caller::Reading(_, request) = self.callers[number]
            {
                let mut wake = Vec::new();
                self.combiner.leave(request, &mut wake);
                self.callers[number] = Caller::Idle;
                self.wake(wake);
            }
        }

        /// The server executes its next request.
        fn answer(&mut self) {
            if self.inbox.len() >= LENGTH {
                let request: Vec<_> = self.inbox.drain(..LENGTH).collect();
                if request[3] == 2 {
                    self.answers.push_back(ASKED);
                }
                self.answers
                    .push_back(u16::from_be_bytes([request[0], request[1]]));
            }
        }

        fn wake(&mut self, wake: Vec<usize>) {
            for number in wake {
                if let Caller::Parked(id, request) = self.callers[number] {
                    self.callers[number] = Caller::Awake(id, request);
                }
            }
        }

        /// Checks what holds between two events: see the top of this module.
        fn check(&self) {
            if self.has_failed {
                let waits = |caller: &Caller| matches!(caller, Caller::Parked(..));
                assert!(!self.callers.iter().any(waits), "nobody woke it");
                return;
            }
            let holder = |role: Option<RequestNumber>| {
                let request = role?;
                let its = |caller: &&Caller| match caller {
                    Caller::Idle => false,
                    Caller::Awake(_, its) | Caller::Parked(_, its) | Caller::Reading(_, its) => {
                        *its == request
                    }
                    Caller::Writing(_, its, _) => *its == request,
                };
                let holder = self.callers.iter().find(its);
                assert!(holder.is_some(), "a role of a caller that has left");
                assert!(
                    !matches!(holder, Some(Caller::Parked(..))),
                    "a role of a caller that sleeps"
                );
                holder
            };
            let (writer, reader) = (holder(self.combiner.writer), holder(self.combiner.reader));
            let is_result = |request: &RequestNumber| {
                let request = self.combiner.requests[request.0].as_ref();
                request.is_some_and(|request| matches!(request.state, RequestState::Ended(_)))
            };
            let is_awake = |caller: &&Caller| match caller {
                Caller::Idle | Caller::Parked(..) => false,
                Caller::Awake(_, request)
                | Caller::Reading(_, request)
                | Caller::Writing(_, request, _) => is_result(request),
            };
            let results = self.callers.iter().filter(is_awake).count();
            assert_eq!(results, self.combiner.results, "nobody takes a result");
            if !self.combiner.waiting.is_empty() {
                assert!(writer.is_some() || results > 0, "nobody writes");
            }
            let unwritten = self.combiner.in_flight.iter().rev();
            let mut unwritten = unwritten.take(self.combiner.being_written);
            if unwritten.any(|request| request.owner.is_some()) {
                assert!(writer.is_some(), "nobody writes the rest");
            }
            let mut owners = self.combiner.in_flight.iter();
            if owners.any(|request| request.owner.is_some()) {
                assert!(writer.is_some() || reader.is_some(), "nobody reads");
            }
        }

        /// Lets everything go on until nothing happens any more.
        fn finish(&mut self) {
            for _ in 0..200 {
                for number in 0..CALLERS {
                    let (percent, is_late) = (100, false);
                    self.happen(number, Event::GoOn { percent, is_late });
                    self.happen(number, Event::Answer);
                    self.happen(number, Event::Look);
                }
            }
        }
    }

    fn event() -> impl Strategy<Value = Event> {
        let call = (0..4u8, any::<bool>(), any::<bool>());
        let call = call.prop_map(|(key, has_priority, is_asking)| Event::Call {
            key,
            has_priority,
            is_asking,
        });
        let percent = prop_oneof![3 => Just(100), 1 => 0..100usize];
        prop_oneof![
            6 => call,
            12 => (percent, any::<bool>()).prop_map(|(percent, is_late)| Event::GoOn { percent, is_late }),
            1 => Just(Event::Look),
            1 => Just(Event::Stop),
            2 => Just(Event::Leave),
            6 => Just(Event::Answer),
        ]
    }

    /// A system call for each of them would cost more than the rest of their way.
    #[test]
    fn requests_that_follow_the_answers_of_one_read_share_writes() {
        let (mut combiner, mut wake) = (Combiner::<usize, usize, ()>::new(), Vec::new());
        let add = |combiner: &mut Combiner<usize, usize, ()>, caller: usize| {
            let added = combiner.add(caller, caller as u32, false, 1, |outbox| outbox.push(0));
            added.expect("it has not failed")
        };
        // Writes, and returns the number of requests.
        let write = |combiner: &mut Combiner<usize, usize, ()>| {
            let mut bytes = Vec::new();
            combiner.take(&mut bytes);
            combiner.written(true);
            bytes.len()
        };
        let requests: Vec<_> = (0..16).map(|caller| add(&mut combiner, caller)).collect();
        assert_eq!(combiner.next(requests[0], &mut wake), CallerStep::Write);
        assert_eq!(write(&mut combiner), 16);
        assert_eq!(combiner.next(requests[0], &mut wake), CallerStep::Read);
        let mut answers = (0..16).collect();
        assert!(combiner.received(requests[0], &mut answers, false, &mut wake));
        assert_eq!(wake.len(), 15);
        let mut writes = Vec::new();
        for (caller, request) in requests.into_iter().enumerate() {
            let mut step = combiner.next(request, &mut wake);
            if step == CallerStep::Write {
                writes.push(write(&mut combiner));
                step = combiner.next(request, &mut wake);
            }
            assert_eq!(step, CallerStep::Done(Ok(caller)));
            let request = add(&mut combiner, caller);
            if combiner.next(request, &mut wake) == CallerStep::Write {
                writes.push(write(&mut combiner));
                // It reads, or another one does.
                assert_ne!(combiner.next(request, &mut wake), CallerStep::Write);
            }
        }
        // A quarter of the 15 others each. The last one has nobody to wait for.
        assert_eq!(writes, [3, 3, 3, 3, 3, 1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Each caller gets the answer to its own request, whoever writes, reads and leaves, and whoever never runs again.
        #[test]
        fn each_caller_that_stays_gets_its_answer(
            events in prop::collection::vec((0..CALLERS, event()), 1..120),
            failure in prop::option::weighted(0.2, 0..120usize),
        ) {
            let mut model = Model::new();
            for (at, (number, event)) in events.into_iter().enumerate() {
                if failure == Some(at) {
                    model.happen(0, Event::Fail);
                }
                model.happen(number, event);
            }
            model.finish();
            let mut callers = model.callers.iter().zip(model.stopped);
            let has_ended = |(caller, stopped)| stopped || matches!(caller, &Caller::Idle);
            prop_assert!(callers.all(has_ended), "{:?}", model.callers);
        }
    }
}
