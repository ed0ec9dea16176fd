//! The calls that wait for a connection of a pool, and the requests that go along with that of another call.
//!
//! If each connection had one request on its way at a time, 32 connections at 1 ms of round trip would carry 32,000 requests
//! in a second, however many threads wait. So a call leaves its request in the line, and the next call that writes on any
//! connection of the pool takes it along (flat combining: Hendler, Incze, Shavit and Tzafrir, SPAA 2010):
//!
//! 1. Thread A finds no free connection. It enters the line with its request ([`Offer`]), and sleeps.
//! 2. Thread B gets a connection. It takes A's request along ([`Line::take`]), and writes it behind its own, in one write.
//! 3. B reads both answers in order, and sees that each is an answer to its request. Then it tells A its own ([`Along`]).
//!
//! B does nothing else for A: it connects for nobody, and sends nothing again for anybody. If A's request has not got its
//! answer, A waits again where it has stood, until it has a connection for itself. So a request goes along at most once.
//!
//! | a call | event | what becomes of it |
//! | --- | --- | --- |
//! | waits | it is the first, and a connection is free | has that connection for itself |
//! | waits | a call that writes takes its request along | is on its way |
//! | waits | its time is over, or the caller has ended it | fails |
//! | on its way | the answers come | has its own, which may be an error |
//! | on its way | one of the answers is none to its request | fails, like all in that write: nobody knows whose answers these are |
//! | on its way | the server has executed none of it: the connection was not open any more, had something unread or greeted with a refusal, may lead to another server than the others, or the server lacks the script | waits, for a connection of its own |
//! | on its way | the server closes the connection before all answers have come | the same, and the call counts as sent twice from now on |
//! | on its way | the connection fails in another way, the other thread panics, or not all answers come in time | fails: nobody knows whether its request was executed. So a script that holds the server up costs all in that write their answers |
//!
//! Holders stand before all other calls, so they get a connection, or go along, first. Only these requests go along, and take
//! others along (a mutex without a fence is asked for by a plain command, which goes alone, only if nobody waits):
//!
//! * the ask for a lock of one name, and its end, because the server answers these at once, and a caller may send them twice
//!   (`wire::reader`);
//! * without an ASKING before it, and without a WAIT for replicas behind it;
//! * not behind sentinels, where an answer may need the server's ROLE as a proof;
//! * with at least the time that a request may take (`io_timeout`). So nobody gets less time than with a connection of its own;
//! * about a name that is not in the write already.

use std::collections::BTreeMap;
use std::io;
use std::iter;

use redis::{ServerError, Value};

use crate::error::Outcome::{self, NotExecuted, Unknown};
use crate::error::{Failure, FailureKind};
use crate::net::deadline::{Deadline, LEAST, LOOK_EVERY, Phase};
use crate::net::refusal::unavailable;
use crate::net::route::Route;
use crate::net::socket::TransportError;
use crate::sys::{Arc, AtomicBool, Condvar, Mutex, Ordering, Time};
use crate::wire::{Command, Reader, Reply};

/// The most commands of a write. The server serves no other connection while it executes them, for about 0.3 ms, and the
/// answers to so many fit into one read.
const MOST: usize = 32;

/// The calls that wait.
#[derive(Default)]
pub(crate) struct Line {
    /// Whether any waits for a connection. It is read without the mutex of `state`: a thread writes it before it looks for a
    /// connection, and so whoever gives one back after that look sees it, because both take the mutex of r2d2 in between.
    is_there: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those that wait for a connection, the first one first.
    waiting: BTreeMap<Place, Waiter>,
    on_their_way: BTreeMap<Place, Waiter>,
    arrivals: u64,
}

/// Whether the thread only asks for a lock, and so waits behind holders, and the number of its arrival.
type Place = (bool, u64);

/// What a waiting call lets another one send, and how to read the answer.
pub(crate) type Offer = (Command, Reader);

struct Waiter {
    thread: Arc<Condvar>,
    /// `None` if it needs a connection for itself.
    offer: Option<Offer>,
    /// When its time is over. On its way: when it waits no longer for the answer. The other thread reads the clock again before
    /// it writes, so that no request is written much later than that.
    until: Time,
    /// When another call has taken its request along.
    taken_at: Time,
    answer: Option<Result<Reply, Failure>>,
    /// Whether the server may have executed the request, although it waits again.
    outcome: Outcome,
}

/// How a wait in the line ends well.
pub(crate) enum Turn<V> {
    /// The call has a connection for itself. With whether the server may have executed its request already.
    Own(V, Outcome),
    /// Its request went along.
    Along(Result<Reply, Failure>),
}

/// What becomes of a request that went along.
#[derive(Clone)]
enum Told {
    Answer(Result<Reply, Failure>),
    /// It waits again. With whether the server may have executed it.
    Back(Outcome),
}

/// The requests that a call takes along.
pub(crate) struct Along {
    line: Arc<Line>,
    taken: Vec<(Place, Offer)>,
}

impl Line {
    /// Returns whether any call waits for a connection.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Waits until `free` returns a connection to the first call in the line, or another call has sent the request. Returns
    /// when the wait for a connection ended, too. `until` is when the time of the call is over.
    ///
    /// # Errors
    ///
    /// Returns a transient failure if the time for the wait or the call was over before.
    pub(super) fn wait<V>(
        &self,
        wait: &mut Deadline<'_>,
        offer: Option<Offer>,
        until: Time,
        free: impl Fn() -> Option<V>,
    ) -> (Result<Turn<V>, Failure>, Time) {
        let thread = Arc::new(Condvar::new());
        let mut state = self.state.lock();
        let place = (!wait.has_priority, state.arrivals);
        state.arrivals += 1;
        let waiter = Waiter {
            thread: Arc::clone(&thread),
            offer,
            until,
            taken_at: Time::NEVER,
            answer: None,
            outcome: NotExecuted,
        };
        state.waiting.insert(place, waiter);
        self.note_length(&state);
        let value = loop {
            let slice = if let Some(sent) = state.on_their_way.get_mut(&place) {
                let (answer, left) = (sent.answer.take(), sent.until.since(Time::now()));
                if answer.is_some() || left.is_zero() {
                    let taken_at = sent.taken_at;
                    state.on_their_way.remove(&place);
                    let late = || Err(timed_out(&Phase::Request.timed_out(), Unknown));
                    return (Ok(Turn::Along(answer.unwrap_or_else(late))), taken_at);
                }
                // If it was woken for a free connection, the next one takes that.
                state.first().inspect(|next| next.notify_one());
                Some(left.min(LOOK_EVERY))
            } else {
                let is_first = state.waiting.keys().next() == Some(&place);
                if let Some(value) = is_first.then(&free).flatten() {
                    break Some(value);
                }
                wait.next_look()
            };
            match slice {
                Some(slice) => state = thread.wait_for(state, slice),
                None => break None,
            }
        };
        let waiter = state.waiting.remove(&place);
        self.note_length(&state);
        let outcome = waiter.map_or(NotExecuted, |waiter| waiter.outcome);
        let turn = value.map(|value| Turn::Own(value, outcome));
        let late = || timed_out(&wait.timed_out(), outcome);
        (turn.ok_or_else(late), wait.now())
    }

    fn note_length(&self, state: &State) {
        let is_there = !state.waiting.is_empty();
        self.is_there.store(is_there, Ordering::Release);
    }

    /// Returns how many calls wait for a connection.
    #[cfg(test)]
    pub(crate) fn length(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Wakes the first thread, if one waits.
    pub(super) fn wake_first(&self) {
        let first = self.is_there().then(|| self.state.lock().first());
        first.flatten().inspect(|first| first.notify_one());
    }

    /// Takes requests along that are to be written behind `own`, and whose calls last until then.
    pub(crate) fn take(self: &Arc<Self>, own: &Command, now: Time, until: Time) -> Along {
        let mut taken: Vec<(Place, Offer)> = Vec::new();
        let mut state = self.state.lock();
        // With no more looks than that, a long line of calls that cannot go along costs nothing.
        for (place, waiter) in state.waiting.iter_mut().take(MOST - 1) {
            let others = taken.iter().map(|(_, (command, _))| command);
            let mut names = iter::once(own).chain(others).map(Command::first_key);
            let has_time = waiter.until >= until;
            let offer = waiter
                .offer
                .take_if(|(command, _)| has_time && names.all(|name| name != command.first_key()));
            taken.extend(offer.map(|offer| (*place, offer)));
        }
        for (place, _) in &taken {
            if let Some(mut waiter) = state.waiting.remove(place) {
                waiter.taken_at = now;
                // The other thread tells the answer until then, unless it gets no CPU time.
                waiter.until = waiter.until.min(until + LEAST);
                state.on_their_way.insert(*place, waiter);
            }
        }
        self.note_length(&state);
        drop(state);
        let line = Arc::clone(self);
        Along { line, taken }
    }
}

impl State {
    fn first(&self) -> Option<Arc<Condvar>> {
        let first = self.waiting.values().next()?;
        Some(Arc::clone(&first.thread))
    }
}

impl Along {
    /// Returns their commands.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &Command> {
        self.taken.iter().map(|(_, (command, _))| command)
    }

    /// Tells each caller its answer. `is_own` tells whether the call itself has got an answer to its request.
    ///
    /// # Errors
    ///
    /// If any of them has not, all answers may be those to other requests, and nobody is told one.
    pub(crate) fn answered(
        mut self,
        is_own: bool,
        answers: Vec<Value>,
        mut refused: impl FnMut(ServerError) -> Failure,
    ) -> Result<(), TransportError> {
        let told = |((_, (_, read)), answer): (&(Place, Offer), Value)| match answer {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                Some(Told::Back(NotExecuted))
            }
            Value::ServerError(error) => Some(Told::Answer(Err(refused(error)))),
            value => read(&value).map(|reply| Told::Answer(Ok(reply))),
        };
        let told: Option<Vec<_>> = self.taken.iter().zip(answers).map(told).collect();
        let Some(told) = told.filter(|_| is_own) else {
            self.tell(iter::repeat(Told::Answer(Err(Failure::another_question()))));
            let words = "an answer belongs to another request".to_owned();
            return Err(TransportError::Malformed(words));
        };
        // The server may close the connection after an error, and so before the last answers.
        self.tell(told.into_iter().chain(iter::repeat(Told::Back(Unknown))));
        Ok(())
    }

    /// Tells the callers that the connection has failed.
    pub(crate) fn failed(mut self, fault: &TransportError, route: &Route) {
        let told = match fault {
            fault if fault.is_before_the_request() => Told::Back(NotExecuted),
            TransportError::Greeting(..) => Told::Back(NotExecuted),
            fault if fault.is_closed() => Told::Back(Unknown),
            TransportError::Io(error) => {
                let same = io::Error::new(error.kind(), error.to_string());
                Told::Answer(Err(route.broken(same.into())))
            }
            _ => Told::Answer(Err(Failure::another_question())),
        };
        self.tell(iter::repeat(told));
    }

    /// Tells each caller what becomes of its request, and wakes it.
    fn tell(&mut self, told: impl Iterator<Item = Told>) {
        let taken = std::mem::take(&mut self.taken);
        let mut state = self.line.state.lock();
        let mut threads = Vec::with_capacity(taken.len());
        for ((place, _), told) in taken.into_iter().zip(told) {
            // A caller whose time is over has left.
            let Some(mut waiter) = state.on_their_way.remove(&place) else {
                continue;
            };
            threads.push(Arc::clone(&waiter.thread));
            match told {
                Told::Answer(answer) => {
                    waiter.answer = Some(answer);
                    state.on_their_way.insert(place, waiter);
                }
                Told::Back(outcome) => {
                    waiter.outcome = outcome;
                    state.waiting.insert(place, waiter);
                }
            }
        }
        self.line.note_length(&state);
        drop(state);
        for thread in threads {
            thread.notify_one();
        }
    }
}

impl Drop for Along {
    /// The thread has panicked before it told them.
    fn drop(&mut self) {
        if !self.taken.is_empty() {
            let words = "the thread that sent the request panicked";
            let failure = Failure::unknown(FailureKind::Unavailable, words);
            self.tell(iter::repeat(Told::Answer(Err(failure))));
        }
    }
}

/// Returns the failure of a call whose time was over, in the phase that the error names. With what has become of its request.
pub(super) fn timed_out(error: &io::Error, outcome: Outcome) -> Failure {
    Failure {
        timed_out: true,
        ..unavailable(error.to_string()).with(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, Scope, ScopedJoinHandle};
    use std::time::Duration;

    use super::*;
    use crate::config::{Server, Settings};
    use crate::net::route::route;
    use crate::sys::Machine;
    use crate::sys::test_machine::manual::ManualClock;

    /// Longer than any machine starves the test.
    const LONG: Duration = Duration::from_secs(60 * 60);

    fn get(name: &str) -> Command {
        Command::new("GET").arg(name).to_owned()
    }

    /// The only answer that is one.
    fn read(value: &Value) -> Option<Reply> {
        (*value == Value::Okay).then_some(Reply::Pong)
    }

    /// A thread that asks for a name, and has this time. Returns what it has got, and no connection.
    fn ask(line: &Line, name: &str, is_holder: bool, limit: Duration) -> Result<Reply, Failure> {
        let mut wait = Deadline::after(limit);
        wait.has_priority = is_holder;
        let (offer, until) = ((get(name), read as Reader), wait.end());
        match line.wait(&mut wait, Some(offer), until, || None::<()>).0? {
            Turn::Along(answer) => answer,
            Turn::Own(..) => unreachable!(),
        }
    }

    fn wait_for_a_line(line: &Line, length: usize) {
        while line.length() < length {
            thread::yield_now();
        }
    }

    /// Starts threads that ask for these names, one after the other.
    fn ask_for<'s, const N: usize>(
        scope: &'s Scope<'s, '_>,
        line: &'s Line,
        names: [&'s str; N],
    ) -> [ScopedJoinHandle<'s, Result<Reply, Failure>>; N] {
        names.map(|name| {
            let before = line.length();
            let thread = scope.spawn(move || ask(line, name, false, LONG));
            wait_for_a_line(line, before + 1);
            thread
        })
    }

    /// Takes along what may go behind a request for this name, and has so much time.
    fn take(line: &Arc<Line>, own: &str, limit: Duration) -> Along {
        let now = Time::now();
        line.take(&get(own), now, now + limit)
    }

    fn names(along: &Along) -> Vec<String> {
        let name = |command: &Command| match command.first_key() {
            Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).into(),
            _ => String::new(),
        };
        along.commands().map(name).collect()
    }

    fn error(line: &str) -> Value {
        redis::parse_redis_value(line.as_bytes()).expect("an error line")
    }

    /// Says which error it is.
    fn refused(error: &ServerError) -> Failure {
        unavailable(error.code())
    }

    fn why(told: Result<Reply, Failure>) -> (String, Outcome) {
        let failure = told.expect_err("it failed");
        (failure.cause.to_string(), failure.outcome)
    }

    #[test]
    fn holders_go_along_first_and_nobody_with_too_little_time_or_a_name_of_the_write() {
        let line = Arc::<Line>::default();
        thread::scope(|scope| {
            let coming = [
                ("a", false, LONG),
                ("b", false, LONG / 4),
                ("own", false, LONG),
                ("c", true, LONG),
                ("a", false, LONG),
                ("d", false, LONG),
            ];
            let threads = coming.map(|(name, is_holder, limit)| {
                let line = &line;
                let before = line.length();
                let thread = scope.spawn(move || ask(line, name, is_holder, limit));
                wait_for_a_line(line, before + 1);
                thread
            });
            let along = take(&line, "own", LONG / 2);
            assert_eq!(names(&along), ["c", "a", "d"]);
            assert_eq!(line.length(), 3);
            let answers = ["-C c\r\n", "-A a\r\n", "-D d\r\n"].map(error);
            assert!(
                along
                    .answered(true, answers.into(), |error| refused(&error))
                    .is_ok()
            );
            // The others go along with a call of less time.
            let along = take(&line, "other", Duration::ZERO);
            assert_eq!(names(&along), ["b", "own", "a"]);
            assert!(!line.is_there());
            let answers = ["-B b\r\n", "-OWN own\r\n", "-A2 a\r\n"].map(error);
            assert!(
                along
                    .answered(true, answers.into(), |error| refused(&error))
                    .is_ok()
            );
            let told = threads.map(|thread| why(thread.join().expect("no panic")));
            let told = told.map(|(words, outcome)| {
                assert_eq!(outcome, NotExecuted);
                words
            });
            assert_eq!(told, ["A", "B", "OWN", "C", "A2", "D"]);
        });
        assert!(line.state.lock().on_their_way.is_empty());
    }

    #[test]
    fn a_call_takes_no_more_than_the_most() {
        let line = Arc::<Line>::default();
        thread::scope(|scope| {
            for number in 0..MOST + 7 {
                let line = &line;
                scope.spawn(move || ask(line, &number.to_string(), false, LONG));
            }
            wait_for_a_line(&line, MOST + 7);
            for taken in [MOST - 1, 8] {
                let mut along = take(&line, "own", Duration::ZERO);
                assert_eq!(along.commands().count(), taken);
                along.tell(iter::repeat(Told::Answer(Ok(Reply::Pong))));
            }
        });
    }

    #[test]
    fn a_thread_that_panics_leaves_no_caller_waiting() {
        let line = Arc::<Line>::default();
        thread::scope(|scope| {
            let threads = ask_for(scope, &line, ["a", "b"]);
            drop(take(&line, "own", LONG / 2));
            for thread in threads {
                let (words, outcome) = why(thread.join().expect("no panic"));
                assert_eq!(outcome, Unknown);
                assert!(words.contains("panicked"), "{words}");
            }
        });
    }

    /// A reply of the wrong form shows that all of them may be those to other requests.
    #[test]
    fn no_answer_counts_before_all_are_known_to_be_answers_to_their_requests() {
        let line = Arc::<Line>::default();
        let fine = || vec![Value::Okay, error("-OOM no\r\n")];
        for (is_own, answers) in [(false, fine()), (true, vec![Value::Okay, Value::Nil])] {
            thread::scope(|scope| {
                let threads = ask_for(scope, &line, ["a", "b"]);
                let along = take(&line, "own", LONG / 2);
                let told = along.answered(is_own, answers, |error| refused(&error));
                assert!(matches!(told, Err(TransportError::Malformed(_))));
                for thread in threads {
                    let failure = thread.join().expect("no panic").expect_err("it failed");
                    assert_eq!(failure.kind, FailureKind::Protocol);
                    assert_eq!(failure.outcome, Unknown);
                }
            });
        }
        // An error is an answer to any request, and keeps its meaning.
        thread::scope(|scope| {
            let [a, b] = ask_for(scope, &line, ["a", "b"]);
            let along = take(&line, "own", LONG / 2);
            assert!(
                along
                    .answered(true, fine(), |error| refused(&error))
                    .is_ok()
            );
            assert_eq!(a.join().expect("no panic").ok(), Some(Reply::Pong));
            let told = why(b.join().expect("no panic"));
            assert_eq!(told, ("OOM".to_owned(), NotExecuted));
        });
    }

    /// Nobody else sends it again: the time and the token of the other call may end, and its new connection may hang.
    #[test]
    fn a_request_without_an_answer_waits_again_before_all_others_and_goes_alone() {
        let server = Server::parse("redis://h/").expect("a URL");
        let route = &route(server, &Settings::default());
        let failed = |fault| move |along: Along| along.failed(&fault, route);
        let closed = || TransportError::Io(io::ErrorKind::UnexpectedEof.into());
        let answered = |answers: fn() -> Vec<Value>| {
            move |along: Along| {
                let told = along.answered(true, answers(), |error| refused(&error));
                told.expect("they are answers");
            }
        };
        let lacks = || vec![error("-NOSCRIPT no\r\n")];
        let ways: [(Outcome, &dyn Fn(Along)); 5] = [
            (NotExecuted, &failed(TransportError::NotSent)),
            (NotExecuted, &failed(TransportError::Surplus)),
            (NotExecuted, &answered(lacks)),
            (Unknown, &failed(closed())),
            // The server has closed the connection after another answer.
            (Unknown, &answered(Vec::new)),
        ];
        for (outcome, go_back) in ways {
            let line = Arc::<Line>::default();
            let is_free = AtomicBool::new(false);
            let turn = |name: &str| {
                let mut wait = Deadline::after(LONG);
                let (offer, until) = ((get(name), read as Reader), wait.end());
                let free = || is_free.swap(false, Ordering::SeqCst).then_some(());
                match line.wait(&mut wait, Some(offer), until, free).0 {
                    Ok(Turn::Own((), outcome)) => outcome,
                    _ => panic!("it has no connection"),
                }
            };
            thread::scope(|scope| {
                let first = scope.spawn(|| turn("a"));
                wait_for_a_line(&line, 1);
                let along = take(&line, "own", LONG / 2);
                let second = scope.spawn(|| turn("b"));
                wait_for_a_line(&line, 1);
                go_back(along);
                assert_eq!(line.length(), 2);
                let along = take(&line, "own", LONG / 2);
                assert_eq!(names(&along), ["b"]);
                along.failed(&TransportError::NotSent, route);
                for (thread, outcome) in [(first, outcome), (second, NotExecuted)] {
                    is_free.store(true, Ordering::SeqCst);
                    line.wake_first();
                    assert_eq!(thread.join().expect("no panic"), outcome);
                }
            });
        }
    }

    #[test]
    fn a_call_that_ends_while_it_waits_again_tells_whether_its_request_was_sent() {
        let line = Arc::<Line>::default();
        for outcome in [NotExecuted, Unknown] {
            let has_ended = AtomicBool::new(false);
            let is_over = || has_ended.load(Ordering::SeqCst);
            let ask = || {
                let mut wait = Deadline::after(LONG).ended_by(&is_over);
                let (offer, until) = ((get("a"), read as Reader), wait.end());
                let ended = line.wait(&mut wait, Some(offer), until, || None::<()>);
                ended.0.err()
            };
            thread::scope(|scope| {
                let thread = scope.spawn(ask);
                wait_for_a_line(&line, 1);
                let mut along = take(&line, "own", LONG / 2);
                has_ended.store(true, Ordering::SeqCst);
                along.tell(iter::repeat(Told::Back(outcome)));
                let failure = thread.join().expect("no panic").expect("it is over");
                assert!(failure.timed_out);
                assert_eq!(failure.outcome, outcome);
            });
        }
    }

    #[test]
    fn a_call_whose_answer_is_late_leaves_and_does_not_know_its_outcome() {
        let line = Arc::<Line>::default();
        thread::scope(|scope| {
            let threads = ask_for(scope, &line, ["a", "b"]);
            let along = take(&line, "own", Duration::from_millis(20));
            for thread in threads {
                let late = thread.join().expect("no panic").expect_err("it is late");
                assert!(late.timed_out);
                assert_eq!(late.outcome, Unknown);
            }
            let told = along.answered(true, vec![Value::Okay; 2], |error| refused(&error));
            assert!(told.is_ok(), "they have left");
        });
        let state = line.state.lock();
        assert!(state.on_their_way.is_empty() && state.waiting.is_empty());
    }

    /// The connection would stay free although a call waits. Nobody looks by himself, because the clock stands.
    #[test]
    fn if_the_call_that_was_to_take_a_connection_goes_along_the_next_one_takes_it() {
        let machine = Machine::new(Arc::new(ManualClock::starting_at(Time::now())));
        let line = Arc::<Line>::default();
        let is_free = AtomicBool::new(false);
        let turn = |name: &str| {
            let _entered = machine.enter();
            let mut wait = Deadline::after(LONG);
            let (offer, until) = ((get(name), read as Reader), wait.end());
            let free = || is_free.swap(false, Ordering::SeqCst).then_some(());
            line.wait(&mut wait, Some(offer), until, free).0
        };
        let _entered = machine.enter();
        thread::scope(|scope| {
            let first = scope.spawn(|| turn("a"));
            wait_for_a_line(&line, 1);
            let second = scope.spawn(|| turn("own"));
            wait_for_a_line(&line, 2);
            let mut along = take(&line, "own", LONG / 2);
            assert_eq!(names(&along), ["a"]);
            is_free.store(true, Ordering::SeqCst);
            // Whoever gave it back has called the first thread, which runs only now.
            for sent in line.state.lock().on_their_way.values() {
                sent.thread.notify_one();
            }
            let second = second.join().expect("no panic");
            assert!(matches!(second, Ok(Turn::Own(..))));
            along.tell(iter::repeat(Told::Answer(Ok(Reply::Pong))));
            let first = first.join().expect("no panic");
            assert!(matches!(first, Ok(Turn::Along(Ok(_)))));
        });
    }
}
