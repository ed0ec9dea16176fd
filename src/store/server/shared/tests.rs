use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::sys::net::PollFlags;
use redis::Value;

use super::connections::MOST_IN_FLIGHT;
use super::request::{SharedRequest, Work};
use super::terms::CallTerms;
use super::*;
use crate::config::{Server, Settings};
use crate::error::{Failure, FailureKind, Outcome};
use crate::message::{RateRequest, Reply, Request};
use crate::name::LockKey;
use crate::script::Command;
use crate::store::server::places::IDLE;
use crate::store::server::route::route;
use crate::store::topology::link::Link;
use crate::store::transport::frame::Frame;
use crate::store::transport::socket::Socket;
use crate::store::{Answer, Deadline};
use crate::sys::{Arc, AtomicBool, AtomicU32, Ordering, Time};
use std::thread;

const SOON: Duration = Duration::from_secs(20);
/// A short limit of a call.
const SHORT: Duration = Duration::from_millis(300);
const ORDINARY: CallTerms = CallTerms {
    key: Some(1),
    has_priority: false,
};
const ALONE: CallTerms = CallTerms {
    key: None,
    has_priority: false,
};

/// A server of a test. A request is a rate limiter's, and has a number. Its answer repeats the number.
struct Peer {
    listener: TcpListener,
    connections: Arc<Connections>,
}

/// A connection of the server.
struct Line {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Peer {
    fn new(size: u32) -> Self {
        Self::closing_after(IDLE, size)
    }

    fn closing_after(idle: (Duration, Duration), size: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let url = format!("redis://127.0.0.1:{port}/");
        let server = Server::parse(&url).expect("a URL");
        let settings = Settings {
            io_timeout: SOON,
            ..Settings::default()
        };
        let route = route(server, &settings);
        // No test is about the question of the first connection.
        route.asked_about_itself.store(true, Ordering::Relaxed);
        Self {
            listener,
            connections: Connections::closing_after(idle, (0, Arc::new(route)), size),
        }
    }

    fn accept(&self) -> Line {
        let (stream, _) = self.listener.accept().expect("somebody connects");
        stream.set_read_timeout(Some(SOON)).expect("a connection");
        Line {
            stream,
            received: Vec::new(),
        }
    }

    /// Sends the request of this number.
    fn call(&self, number: u64, limit: Duration) -> Result<Answer, Failure> {
        self.call_within(number, Deadline::after(limit), || {})
    }

    /// Does the same within this deadline. Calls `entered` when it has a connection, before it sends anything.
    fn call_within(
        &self,
        number: u64,
        mut deadline: Deadline<'_>,
        entered: impl FnOnce(),
    ) -> Result<Answer, Failure> {
        let key = LockKey::new("", &format!("n{number}")).expect("a name");
        let rate = RateRequest {
            permits: 1,
            per: Duration::from_secs(1),
            patience: Duration::from_micros(number),
        };
        let request = Request::RateLimit {
            key: &key,
            request: rate,
        };
        let mut link = Link::pooled(&self.connections, None, &request, &mut deadline)?;
        entered();
        link.call(&request, &mut deadline)
    }

    fn enter(&self, terms: CallTerms, wait: Duration) -> Result<PooledConnection<'_>, Failure> {
        self.enter_within(terms, Deadline::after(wait))
    }

    fn enter_within(
        &self,
        terms: CallTerms,
        mut deadline: Deadline<'_>,
    ) -> Result<PooledConnection<'_>, Failure> {
        let mut pooled = PooledConnection {
            connections: &self.connections,
            terms,
            place: None,
            connection: None,
        };
        pooled.enter(&mut deadline)?;
        Ok(pooled)
    }

    /// Enters a connection to share. Opens it if there is none.
    fn share(&self) -> PooledConnection<'_> {
        self.share_for(1)
    }

    /// Does the same for a request about this key.
    fn share_for(&self, key: u32) -> PooledConnection<'_> {
        let terms = CallTerms {
            key: Some(key),
            ..ORDINARY
        };
        let mut pooled = self.enter(terms, SOON * 3).expect("there is room");
        if !pooled.is_open() {
            let (_, route) = self.connections.gate.lock().master.clone();
            let socket = Socket::connect(&route.server, &route.resolver, soon());
            pooled.open(socket.expect("it listens"), 0);
        }
        pooled
    }

    fn waiting(&self) -> usize {
        self.connections.gate.lock().waiting.iter().sum()
    }

    /// Checks that no place is in use.
    fn assert_free(&self) {
        let gate = self.connections.gate.lock();
        assert_eq!((gate.taken, gate.shared.len()), (0, 0));
    }
}

impl Line {
    /// Returns the number of the next request, or `None` at the end of the connection.
    fn request(&mut self) -> Option<u64> {
        let mut frame = Frame::default();
        loop {
            let end = frame.end(&self.received, usize::MAX).expect("a request");
            if let Some(end) = end {
                let request: Vec<_> = self.received.drain(..end).collect();
                let request = redis::parse_redis_value(&request).expect("a request");
                let Value::Array(parts) = request else {
                    panic!("{request:?}");
                };
                let Some(Value::BulkString(number)) = parts.last() else {
                    panic!("{parts:?}");
                };
                let number = String::from_utf8_lossy(number);
                return Some(number.parse().expect("a number"));
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece).expect("not in time") {
                0 => return None,
                read => self.received.extend_from_slice(&piece[..read]),
            }
        }
    }

    fn requests(&mut self, count: usize) -> Vec<u64> {
        let request = |_| self.request().expect("it was closed");
        (0..count).map(request).collect()
    }

    fn answer(&mut self, numbers: &[u64]) {
        let answer = |number| format!("*2\r\n:0\r\n:{number}\r\n");
        let answers: Vec<_> = numbers.iter().map(answer).collect();
        self.send(&answers.concat());
    }

    fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).expect("it is open");
    }

    /// Answers each request until the end of the connection.
    fn serve(&mut self) {
        while let Some(number) = self.request() {
            self.answer(&[number]);
        }
    }
}

/// Returns the deadline of a request that takes its time.
fn soon() -> Deadline<'static> {
    Deadline::after(SOON)
}

/// Returns a command of this number.
fn command(number: u64) -> Command {
    Command::new("n").arg(number).clone()
}

/// Begins a request of this number, and returns what its thread does first.
fn begin<'a>(caller: &'a PooledConnection<'_>, number: u64) -> (SharedRequest<'a>, Work) {
    SharedRequest::begin(caller, &command(number), false, soon()).expect("it is open")
}

/// Lets the thread of a request go on.
fn step(request: &mut SharedRequest<'_>) -> Work {
    request.step(request.connection.state.lock())
}

/// Returns the value of the answer to the request of this number.
fn answer_to(number: i64) -> Value {
    Value::Array(vec![Value::Int(0), Value::Int(number)])
}

fn is_answer(answer: &Answer, number: u64) -> bool {
    answer.reply == Reply::NotAdmitted(Duration::from_micros(number))
}

fn assert_timed_out(failed: Result<Answer, Failure>) {
    let failure = failed.expect_err("nobody answers");
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert_eq!(failure.outcome, Outcome::Unknown);
    assert!(failure.timed_out, "{failure:?}");
}

#[test]
fn a_caller_whose_time_is_over_leaves_alone_and_its_late_answer_is_for_nobody() {
    const CALLERS: u64 = 10;
    /// The others must have asked by then, also on a busy machine.
    const LIMIT: Duration = Duration::from_secs(2);
    let peer = Peer::new(1);
    let (has_asked, has_left) = (AtomicBool::new(false), AtomicBool::new(false));
    let wait_for = |flag: &AtomicBool| {
        while !flag.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let (peer, has_asked, has_left) = (&peer, &has_asked, &has_left);
        scope.spawn(move || {
            let mut line = peer.accept();
            let mut numbers = line.requests(1);
            has_asked.store(true, Ordering::SeqCst);
            numbers.extend(line.requests(CALLERS as usize - 1));
            wait_for(has_left);
            // In pieces, so that other callers read while answers are missing.
            for number in numbers {
                line.answer(&[number]);
            }
            line.serve();
        });
        let leaves = scope.spawn(move || {
            assert_timed_out(peer.call(0, LIMIT));
            has_left.store(true, Ordering::SeqCst);
        });
        wait_for(has_asked);
        let others: Vec<_> = (1..CALLERS)
            .map(|number| scope.spawn(move || (number, peer.call(number, SOON))))
            .collect();
        leaves.join().expect("no panic");
        for other in others {
            let (number, answer) = other.join().expect("no panic");
            let answer = answer.expect("it goes on");
            assert!(is_answer(&answer, number) && !answer.resent, "{answer:?}");
        }
        // The connection lives on.
        let answer = peer.call(99, SOON).expect("it is answered");
        assert!(is_answer(&answer, 99));
        peer.assert_free();
        peer.connections.close_idle(Duration::ZERO);
    });
}

#[test]
fn a_connection_that_stops_answering_fails_each_of_its_callers_once() {
    const CALLERS: u64 = 20;
    let peer = Peer::new(1);
    thread::scope(|scope| {
        let peer = &peer;
        let calls: Vec<_> = (0..CALLERS)
            .map(|number| scope.spawn(move || peer.call(number, SHORT * 4)))
            .collect();
        let mut silent = peer.accept();
        let mut numbers = silent.requests(CALLERS as usize);
        for call in calls {
            assert_timed_out(call.join().expect("no panic"));
        }
        peer.assert_free();
        // None of them was sent twice.
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..CALLERS));
        assert_eq!(silent.request(), None);
        scope.spawn(|| peer.accept().serve());
        let answer = peer.call(7, SOON).expect("on another connection");
        assert!(is_answer(&answer, 7) && !answer.resent);
        peer.connections.close_idle(Duration::ZERO);
    });
}

/// Only the caller that opened the connection cannot know that it was open before.
#[test]
fn callers_of_a_connection_that_ends_send_again_and_say_so() {
    const CALLERS: u64 = 20;
    let peer = Peer::new(1);
    thread::scope(|scope| {
        let peer = &peer;
        let calls: Vec<_> = (0..CALLERS)
            .map(|number| scope.spawn(move || (number, peer.call(number, SOON))))
            .collect();
        let mut first = peer.accept();
        let numbers = first.requests(CALLERS as usize);
        first.answer(&numbers[..1]);
        drop(first);
        scope.spawn(|| peer.accept().serve());
        let mut failures = 0;
        for call in calls {
            let (number, answer) = call.join().expect("no panic");
            match answer {
                Ok(answer) => {
                    assert!(is_answer(&answer, number));
                    assert_eq!(answer.resent, number != numbers[0]);
                }
                Err(failure) => {
                    assert_eq!(failure.outcome, Outcome::Unknown);
                    failures += 1;
                }
            }
        }
        assert!(failures <= 1, "{failures} callers opened it");
        peer.assert_free();
        peer.connections.close_idle(Duration::ZERO);
    });
}

#[test]
fn an_answer_that_is_no_reply_fails_each_caller_of_the_connection_once() {
    const CALLERS: u64 = 20;
    let peer = Peer::new(1);
    thread::scope(|scope| {
        let peer = &peer;
        let calls: Vec<_> = (0..CALLERS)
            .map(|number| scope.spawn(move || peer.call(number, SOON)))
            .collect();
        let mut line = peer.accept();
        line.requests(CALLERS as usize);
        line.send("+OK\r\n");
        let mut kinds = Vec::new();
        for call in calls {
            let failure = call.join().expect("no panic").expect_err("no reply");
            assert_eq!(failure.outcome, Outcome::Unknown);
            kinds.push(failure.kind);
        }
        // The others may succeed on another connection.
        let is_transient = |kind: &FailureKind| *kind == FailureKind::Unavailable;
        let (others, strange): (Vec<_>, Vec<_>) = kinds.into_iter().partition(is_transient);
        assert_eq!(strange, [FailureKind::Protocol]);
        assert_eq!(others.len() as u64, CALLERS - 1);
        assert_eq!(line.request(), None, "nothing more is sent");
        peer.assert_free();
    });
}

/// Both come at once.
#[test]
fn an_answer_before_one_that_cannot_be_read_reaches_its_caller() {
    let peer = Peer::new(1);
    thread::scope(|scope| {
        let peer = &peer;
        let calls = [0, 1].map(|number| scope.spawn(move || peer.call(number, SOON)));
        let mut line = peer.accept();
        let numbers = line.requests(2);
        line.send(&format!("*2\r\n:0\r\n:{}\r\nnothing\r\n", numbers[0]));
        for (number, call) in (0..).zip(calls) {
            let answer = call.join().expect("no panic");
            if number == numbers[0] {
                assert!(is_answer(&answer.expect("it was answered"), number));
            } else {
                let failure = answer.expect_err("no answer");
                assert_eq!(failure.kind, FailureKind::Protocol);
            }
        }
        assert_eq!(line.request(), None, "nothing more is sent");
    });
    peer.assert_free();
}

#[test]
fn a_call_that_has_sent_nothing_goes_to_another_connection() {
    let peer = Peer::new(1);
    let other = peer.share();
    let mut line = peer.accept();
    thread::scope(|scope| {
        let peer = &peer;
        // Its caller has entered the connection when another one ends it.
        let mut other = other;
        let call = scope.spawn(move || peer.call_within(1, soon(), || other.distrust()));
        assert_eq!(line.request(), None, "nothing is sent on it");
        scope.spawn(|| peer.accept().serve());
        let answer = call.join().expect("no panic").expect("it is answered");
        assert!(is_answer(&answer, 1));
        assert!(!answer.resent, "it was sent once");
        peer.connections.close_idle(Duration::ZERO);
    });
    peer.assert_free();
}

/// The connection has ended, and another thread keeps its place.
#[test]
fn a_call_that_sends_again_waits_no_longer_for_a_connection_than_before() {
    for is_ended in [false, true] {
        let peer = Peer::new(1);
        let held = peer.share();
        let mut line = peer.accept();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (peer, is_over) = (&peer, &is_over);
            let call = scope.spawn(move || {
                let is_over = || is_over.load(Ordering::SeqCst);
                let mut deadline = Deadline::after(SOON * 3).ended_by(&is_over);
                if !is_ended {
                    // It was sent half of `SOON` ago, and no time is left for another connection.
                    deadline.checkout = SOON / 2;
                    deadline.now = Some(Time::now() - SOON / 2);
                }
                peer.call_within(1, deadline, || {})
            });
            line.requests(1);
            let begun = Time::now();
            drop(line);
            if is_ended {
                while peer.waiting() == 0 {
                    thread::yield_now();
                }
                is_over.store(true, Ordering::SeqCst);
            }
            assert_timed_out(call.join().expect("no panic"));
            assert!(begun.elapsed() < SOON / 2, "{:?}", begun.elapsed());
        });
        drop(held);
        peer.assert_free();
    }
}

/// The other side has closed both, and one call finds out.
#[test]
fn connections_that_were_open_before_one_was_found_closed_are_not_used() {
    let peer = Peer::new(3);
    let members = [peer.share(), peer.share()];
    drop([peer.accept(), peer.accept()]);
    thread::scope(|scope| {
        let peer = &peer;
        scope.spawn(|| peer.accept().serve());
        // It enters one of the two, and sends again on neither.
        let answer = peer.call(1, SOON).expect("it is sent again");
        assert!(is_answer(&answer, 1) && answer.resent, "{answer:?}");
        drop(members);
        let alone = (0..3).map(|_| peer.enter(ALONE, SOON).expect("it has a place for itself"));
        let alone: Vec<_> = alone.collect();
        let open = alone.iter().filter(|pooled| pooled.is_open()).count();
        assert_eq!(open, 1, "only the connection of the last request");
        drop(alone);
        peer.connections.close_idle(Duration::ZERO);
    });
    peer.assert_free();
}

/// The reader then finds the end of the connection too.
#[test]
fn a_connection_that_a_caller_ends_is_not_taken_for_one_that_the_server_closed() {
    let peer = Peer::new(1);
    thread::scope(|scope| {
        let call = scope.spawn(|| peer.call(1, SOON));
        let mut line = peer.accept();
        line.requests(1);
        let connection = {
            let gate = peer.connections.gate.lock();
            Arc::clone(gate.shared[0].connection.as_ref().expect("it is open"))
        };
        while connection.state.lock().reading.is_some() {
            thread::yield_now();
        }
        connection.distrust();
        let failure = call.join().expect("no panic").expect_err("no answer");
        assert_eq!(failure.outcome, Outcome::Unknown);
    });
    assert_eq!(peer.connections.gate.lock().last_closed, None);
    peer.assert_free();
}

#[test]
fn an_answer_to_no_request_is_not_kept_for_the_next_one() {
    let peer = Peer::new(1);
    thread::scope(|scope| {
        let peer = &peer;
        let call = scope.spawn(|| peer.call(1, SOON));
        let mut line = peer.accept();
        line.requests(1);
        line.answer(&[1, 2]);
        let failure = call.join().expect("no panic").expect_err("two answers");
        assert_eq!(failure.kind, FailureKind::Protocol);
        scope.spawn(|| peer.accept().serve());
        let answer = peer.call(2, SOON).expect("on another connection");
        assert!(is_answer(&answer, 2));
        peer.connections.close_idle(Duration::ZERO);
    });
}

/// The call of the next request finds out before it writes, and then no other uses a connection that was opened before.
#[test]
fn a_connection_that_has_ended_or_has_something_unread_is_not_used() {
    for has_ended in [false, true] {
        let peer = Peer::new(2);
        thread::scope(|scope| {
            let peer = &peer;
            let call = scope.spawn(|| peer.call(1, SOON));
            let mut line = peer.accept();
            let number = line.requests(1);
            line.answer(&number);
            call.join().expect("no panic").expect("it is answered");
            let idle = peer.share();
            let stream = Arc::clone(&idle.connection.as_ref().expect("it is open").stream);
            drop(idle);
            if has_ended {
                line.stream.shutdown(Shutdown::Write).expect("it is open");
            } else {
                line.answer(&number);
            }
            assert!(
                !stream.poll(PollFlags::IN, SOON).is_empty(),
                "nothing comes"
            );
            let other = scope.spawn(|| peer.accept().serve());
            let answer = peer.call(2, SOON).expect("on another connection");
            assert!(is_answer(&answer, 2) && !answer.resent, "{answer:?}");
            assert_eq!(line.request(), None, "nothing is sent on it");
            let gate = peer.connections.gate.lock();
            assert!(gate.last_closed.is_some());
            assert!(gate.master.1.data_loss_signs.last() > Time::from_nanos(0));
            drop(gate);
            peer.connections.close_idle(Duration::ZERO);
            other.join().expect("no panic");
        });
        peer.assert_free();
    }
}

/// A thread whose look takes long keeps its role, and others write nothing meanwhile.
#[test]
fn only_one_caller_looks_at_an_idle_connection() {
    let peer = Peer::new(1);
    let [first, second] = [peer.share(), peer.share_for(2)];
    let mut line = peer.accept();
    thread::scope(|scope| {
        scope.spawn(|| {
            line.requests(1);
            line.answer(&[1]);
        });
        let answer = first.request(&command(1), false, soon());
        assert_eq!(answer.expect("it is answered"), answer_to(1));
    });
    let (mut looks, work) = begin(&first, 2);
    assert!(matches!(work, Work::LookAtIdle));
    let (mut other, work) = begin(&second, 3);
    assert!(matches!(work, Work::Park));
    // It takes the role over, because the socket has room.
    while !other.park() {}
    assert!(matches!(step(&mut other), Work::Park));
    looks.look_at_idle();
    assert!(matches!(step(&mut looks), Work::Park));
    assert!(matches!(step(&mut other), Work::LookAtIdle));
    other.look_at_idle();
    assert!(matches!(step(&mut other), Work::Write));
    other.write();
    assert_eq!(line.requests(2), [2, 3]);
    drop((looks, other));
    drop((first, second));
    peer.assert_free();
}

/// The thread that reads panics. Another one reads on, with the bytes that have come.
#[test]
fn a_caller_that_panics_passes_its_role_on() {
    let peer = Peer::new(1);
    let [panics, other] = [peer.share(), peer.share_for(2)];
    let mut line = peer.accept();
    thread::scope(|scope| {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let (mut request, work) = begin(&panics, 1);
            assert!(matches!(work, Work::Write));
            request.write();
            assert!(matches!(step(&mut request), Work::Await(PollFlags::IN)));
            line.requests(1);
            line.send("*2\r\n:0\r\n");
            request.await_socket(PollFlags::IN);
            assert!(matches!(step(&mut request), Work::Read));
            request.read();
            panic!("a panic of the test");
        }));
        assert!(panicked.is_err());
        let other = scope.spawn(move || other.request(&command(2), false, soon()));
        line.requests(1);
        line.send(":1\r\n");
        line.answer(&[2]);
        let answer = other.join().expect("no panic").expect("it goes on");
        assert_eq!(answer, answer_to(2));
    });
    drop(panics);
    peer.assert_free();
}

/// The time of the writer ends before it takes the bytes that wait, or before it has written any of those that it took.
#[test]
fn a_writer_without_time_leaves_its_role_to_another_caller() {
    for has_taken in [false, true] {
        let peer = Peer::new(1);
        let first = peer.share();
        let mut line = peer.accept();
        // Alone on the connection, it blocks until its time is over.
        let mut entered = (!has_taken).then(|| peer.share_for(2));
        let over = Time::now();
        let (mut writer, work) = begin(&first, 1);
        assert!(matches!(work, Work::Write));
        let second = entered.take().unwrap_or_else(|| peer.share_for(2));
        let (mut other, work) = begin(&second, 2);
        // A caller that reads would not write what the writer leaves.
        assert!(matches!(work, Work::Park));
        if has_taken {
            writer.deadline = Deadline::at(over);
        }
        writer.write();
        writer.deadline = Deadline::at(over);
        assert!(matches!(step(&mut writer), Work::Left));
        drop(writer);
        for _ in 0..if has_taken { 2 } else { 1 } {
            assert!(matches!(step(&mut other), Work::Write));
            other.write();
        }
        assert_eq!(line.requests(2), [1, 2]);
        line.answer(&[1, 2]);
        loop {
            match step(&mut other) {
                Work::Await(asked) => other.await_socket(asked),
                Work::Read => other.read(),
                Work::Done(answer) => break assert_eq!(answer.expect("it came"), answer_to(2)),
                _ => panic!("it is the reader"),
            }
        }
        drop(other);
        drop((first, second));
        peer.assert_free();
    }
}

/// The system gives it no CPU time. Another thread sleeps until it reads the answer of both.
#[test]
fn a_reader_that_never_runs_again_holds_up_no_other_caller() {
    let peer = Peer::new(1);
    let [stopped, other] = [peer.share(), peer.share_for(2)];
    let mut line = peer.accept();
    let (mut reader, work) = begin(&stopped, 1);
    assert!(matches!(work, Work::Write));
    reader.write();
    assert!(matches!(step(&mut reader), Work::Await(PollFlags::IN)));
    thread::scope(|scope| {
        let other = scope.spawn(move || other.request(&command(2), false, soon()));
        assert_eq!(line.requests(2), [1, 2]);
        line.answer(&[1, 2]);
        let answer = other.join().expect("no panic").expect("it reads itself");
        assert_eq!(answer, answer_to(2));
    });
    // It has its answer when it runs again.
    let Work::Done(answer) = step(&mut reader) else {
        panic!("another thread has read its answer");
    };
    assert_eq!(answer.expect("it came"), answer_to(1));
    drop(reader);
    drop(stopped);
    peer.assert_free();
}

/// The socket had no room for all that it wrote. Another thread sleeps until it writes the requests of both.
#[test]
fn a_writer_that_never_runs_again_holds_up_no_other_caller() {
    /// More than a socket holds.
    const LONG: usize = 32 << 20;
    let peer = Peer::new(1);
    let [stopped, other] = [peer.share(), peer.share_for(2)];
    let mut line = peer.accept();
    let long = Command::new("n").arg(vec![b'x'; LONG]).arg(1).clone();
    let (mut writer, work) =
        SharedRequest::begin(&stopped, &long, false, soon()).expect("it is open");
    assert!(matches!(work, Work::Write));
    writer.write();
    assert!(matches!(step(&mut writer), Work::Await(PollFlags::OUT)));
    thread::scope(|scope| {
        let other = scope.spawn(move || other.request(&command(2), false, soon()));
        assert_eq!(line.requests(2), [1, 2]);
        line.answer(&[1, 2]);
        let answer = other.join().expect("no panic").expect("it writes itself");
        assert_eq!(answer, answer_to(2));
    });
    let Work::Done(answer) = step(&mut writer) else {
        panic!("another thread has read its answer");
    };
    assert_eq!(answer.expect("it came"), answer_to(1));
    drop(writer);
    drop(stopped);
    peer.assert_free();
}

/// It is late, and another thread that gets no CPU time should have read its answer.
#[test]
fn a_caller_takes_an_answer_that_has_come_by_its_deadline() {
    let peer = Peer::new(1);
    let [stopped, second] = [peer.share(), peer.share_for(2)];
    let mut line = peer.accept();
    let (mut reader, work) = begin(&stopped, 1);
    assert!(matches!(work, Work::Write));
    reader.write();
    assert!(matches!(step(&mut reader), Work::Await(PollFlags::IN)));
    let (mut late, work) = begin(&second, 2);
    assert!(matches!(work, Work::Write));
    late.write();
    assert!(matches!(step(&mut late), Work::Park));
    assert_eq!(line.requests(2), [1, 2]);
    line.answer(&[1, 2]);
    reader.await_socket(PollFlags::IN);
    late.deadline = Deadline::at(Time::now());
    late.park();
    assert!(matches!(step(&mut late), Work::Read));
    late.read();
    let Work::Done(answer) = step(&mut late) else {
        panic!("the answer has come");
    };
    assert_eq!(answer.expect("it came"), answer_to(2));
    drop((reader, late));
    drop((stopped, second));
    peer.assert_free();
}

/// The renewal thread has no part in it: it may never have run, or has ended.
#[test]
fn connections_that_nobody_uses_are_closed() {
    let soon = Duration::from_millis(20);
    let peer = Peer::closing_after((soon, soon), 3);
    thread::scope(|scope| {
        // It serves until the connection is closed.
        let served = scope.spawn(|| peer.accept().serve());
        peer.call(1, SOON).expect("it is answered");
        served.join().expect("it was closed");
    });
}

#[test]
fn two_threads_have_a_connection_each_and_more_share_one() {
    let peer = Peer::new(3);
    let mut members: Vec<_> = (0..3).map(|_| peer.share()).collect();
    let connections = || peer.connections.gate.lock().taken;
    assert_eq!(connections(), 2);
    // The third shares the one that it has found fullest, and so do the threads that come back.
    for _ in 0..2 {
        members.remove(0);
        members.push(peer.share());
    }
    assert_eq!(connections(), 1);
    drop(members);
    peer.assert_free();
}

#[test]
fn a_full_connection_has_room_for_requests_with_priority_only() {
    let peer = Peer::new(1);
    let members: Vec<_> = (1..MOST_IN_FLIGHT).map(|_| peer.share()).collect();
    // They have sent nothing yet, but each of them may.
    let last = peer.share();
    assert!(peer.enter(ORDINARY, SHORT).is_err());
    let release = CallTerms {
        has_priority: true,
        ..ORDINARY
    };
    let entered = peer.enter(release, Duration::ZERO);
    assert!(entered.as_ref().is_ok_and(PooledConnection::is_open));
    thread::scope(|scope| {
        let waits = scope.spawn(|| peer.enter(ORDINARY, SOON).is_ok());
        while peer.waiting() == 0 {
            thread::yield_now();
        }
        // They leave room for another.
        drop((last, entered));
        assert!(waits.join().expect("no panic"));
    });
    drop(members);
    peer.assert_free();
}

/// Many threads only ask, and one has priority: it gets the next place.
#[test]
fn a_request_with_priority_gets_the_next_place() {
    const ASKING: u32 = 200;
    for size in [1, 3] {
        let peer = Peer::new(size);
        let served = AtomicU32::new(0);
        let take = |has_priority| {
            let terms = CallTerms {
                has_priority,
                ..ALONE
            };
            peer.enter(terms, SOON).expect("it comes free")
        };
        let mut held: Vec<_> = (0..size).map(|_| take(false)).collect();
        thread::scope(|scope| {
            for _ in 0..ASKING {
                scope.spawn(|| {
                    let entered = take(false);
                    served.fetch_add(1, Ordering::SeqCst);
                    drop(entered);
                });
            }
            let with_priority = scope.spawn(|| {
                let entered = take(true);
                let before = served.load(Ordering::SeqCst);
                drop(entered);
                before
            });
            while peer.waiting() <= ASKING as usize {
                thread::yield_now();
            }
            drop(held.pop());
            assert_eq!(with_priority.join().expect("no panic"), 0);
            drop(held);
        });
        assert_eq!(served.load(Ordering::SeqCst), ASKING);
        peer.assert_free();
    }
}

#[test]
fn a_thread_that_wants_a_connection_for_itself_gets_a_shared_one_when_it_is_empty() {
    let peer = Peer::new(1);
    let member = peer.share();
    thread::scope(|scope| {
        let alone = scope.spawn(|| peer.enter(ALONE, SOON));
        while peer.waiting() == 0 {
            thread::yield_now();
        }
        // Otherwise the connection might never be empty.
        assert!(peer.enter(ORDINARY, SHORT).is_err());
        drop(member);
        let alone = alone.join().expect("no panic").expect("it comes free");
        assert!(alone.place.is_some(), "others may enter it");
        assert!(alone.is_open(), "it was closed");
    });
    peer.assert_free();
}

#[test]
fn a_wait_ends_at_its_time_limit_or_when_its_call_is_over() {
    let peer = Peer::new(1);
    let held = peer.enter(ALONE, SOON).expect("it is free");
    for terms in [ORDINARY, ALONE] {
        let begun = Time::now();
        assert!(peer.enter(terms, SHORT).is_err());
        assert!(begun.elapsed() >= SHORT);
    }
    let over = AtomicBool::new(false);
    let is_over = || over.load(Ordering::SeqCst);
    let enter = |terms| {
        let deadline = Deadline::after(SOON * 10).ended_by(&is_over);
        peer.enter_within(terms, deadline).is_err()
    };
    thread::scope(|scope| {
        let waits = [ORDINARY, ALONE].map(|terms| scope.spawn(move || enter(terms)));
        over.store(true, Ordering::SeqCst);
        let begun = Time::now();
        for wait in waits {
            assert!(wait.join().expect("no panic"), "it has a connection");
        }
        assert!(begun.elapsed() < SOON);
    });
    drop(held);
    // A call that is over does not get a free place either.
    assert!(enter(ALONE));
    peer.assert_free();
}
