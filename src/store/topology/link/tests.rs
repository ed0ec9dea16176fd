//! Links of a pool to a server of the test.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use super::*;
use crate::config::{Server, Settings};
use crate::message::{AcquireMode, Ask, Gone, LockKind, NotReleased, RateRequest};
use crate::name::{LockKey, Target};
use crate::store::server::pool::{Pool, PoolThreads};
use crate::store::server::route::route;
use crate::store::transport::frame::Frame;
use crate::sys::Ordering;
use crate::sys::net::readable;

const SOON: Duration = Duration::from_secs(20);

/// A server of a test. A request is a rate limiter's, and has a number. Its answer repeats the number.
struct Peer {
    listener: TcpListener,
    pool: Arc<Pool<Link>>,
    _threads: PoolThreads,
}

/// A connection of the server.
struct Line {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Peer {
    fn new(size: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let url = format!("redis://127.0.0.1:{port}/");
        let server = Server::parse(&url).expect("a URL");
        let settings = Settings {
            io_timeout: SOON,
            ..Settings::default()
        };
        let route = Arc::new(route(server, &settings));
        // No test is about the question of the first connection.
        route.asked_about_itself.store(true, Ordering::Relaxed);
        let threads = PoolThreads::start().expect("threads");
        let link = move || Link::pooled(Arc::clone(&route), None);
        Self {
            listener,
            pool: Pool::new(link, size, &threads, Arc::default()).expect("its thread runs"),
            _threads: threads,
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
        let key = LockKey::new("", &format!("n{number}")).expect("a name");
        let request = Request::RateLimit {
            key: &key,
            request: RateRequest {
                permits: 1,
                per: Duration::from_secs(1),
                patience: Duration::from_micros(number),
            },
        };
        let mut deadline = Deadline::after(limit);
        self.pool
            .check_out(&mut deadline)?
            .call(&request, &mut deadline)
    }

    /// Serves one call, whose connection then is open and idle.
    fn open(&self) -> Line {
        thread::scope(|scope| {
            let call = scope.spawn(|| self.call(1, SOON));
            let mut line = self.accept();
            let number = line.request().expect("it asks");
            line.answer(number);
            call.join().expect("no panic").expect("it is answered");
            line
        })
    }

    /// Closes the connections that no call uses.
    fn close_idle(&self) {
        self.pool
            .for_each_free(|link| link.close_if_idle(Duration::ZERO));
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

    fn answer(&mut self, number: u64) {
        self.send(&format!("*2\r\n:0\r\n:{number}\r\n"));
    }

    fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).expect("it is open");
    }

    /// Answers each request until the end of the connection.
    fn serve(&mut self) {
        while let Some(number) = self.request() {
            self.answer(number);
        }
    }
}

fn is_answer(answer: &Answer, number: u64) -> bool {
    answer.reply == Reply::NotAdmitted(Duration::from_micros(number))
}

/// Checks that the next call gets its answer on another connection.
fn calls_elsewhere(peer: &Peer, number: u64, is_resent: bool) {
    thread::scope(|scope| {
        scope.spawn(|| peer.accept().serve());
        let answer = peer.call(number, SOON).expect("on another connection");
        assert!(is_answer(&answer, number), "{answer:?}");
        assert_eq!(answer.resent, is_resent);
        peer.close_idle();
    });
}

/// With one connection, a late answer would be that to the next request.
#[test]
fn a_connection_whose_answer_is_late_is_closed() {
    let peer = Peer::new(1);
    let mut line = peer.open();
    let failure = peer.call(2, Duration::from_millis(20));
    let failure = failure.expect_err("nobody answers");
    assert!(failure.timed_out && failure.outcome == Outcome::Unknown);
    assert_eq!(line.request(), Some(2));
    assert_eq!(line.request(), None, "it was sent once");
    calls_elsewhere(&peer, 3, false);
}

#[test]
fn a_request_on_an_old_connection_that_closes_is_sent_again_and_says_so() {
    let peer = Peer::new(1);
    let mut line = peer.open();
    thread::scope(|scope| {
        let call = scope.spawn(|| peer.call(2, SOON));
        assert_eq!(line.request(), Some(2));
        drop(line);
        let mut line = peer.accept();
        assert_eq!(line.request(), Some(2));
        line.answer(2);
        let answer = call.join().expect("no panic").expect("it is sent again");
        assert!(is_answer(&answer, 2) && answer.resent, "{answer:?}");
    });
}

/// A server that closes each connection gets no request for ever.
#[test]
fn a_request_on_a_new_connection_that_closes_is_not_sent_again() {
    let peer = Peer::new(1);
    thread::scope(|scope| {
        let call = scope.spawn(|| peer.call(1, SOON));
        let mut line = peer.accept();
        assert_eq!(line.request(), Some(1));
        drop(line);
        let failure = call
            .join()
            .expect("no panic")
            .expect_err("it has no answer");
        assert_eq!(failure.outcome, Outcome::Unknown);
    });
    calls_elsewhere(&peer, 2, false);
}

#[test]
fn an_answer_that_is_no_reply_or_one_too_many_ends_the_connection() {
    for answer in ["+OK\r\n", "nothing\r\n", "*2\r\n:0\r\n:2\r\n:2\r\n"] {
        let peer = Peer::new(1);
        let mut line = peer.open();
        thread::scope(|scope| {
            let call = scope.spawn(|| peer.call(2, SOON));
            assert_eq!(line.request(), Some(2));
            line.send(answer);
            let failure = call.join().expect("no panic").expect_err(answer);
            assert_eq!(failure.kind, FailureKind::Protocol);
            assert_eq!(failure.outcome, Outcome::Unknown);
            assert_eq!(line.request(), None, "nothing more is sent");
        });
        calls_elsewhere(&peer, 3, false);
    }
}

/// The server answers ASKING with an error, and the command later. That answer must not be the next request's.
#[test]
fn a_connection_on_which_the_command_after_asking_has_no_answer_is_closed() {
    let peer = Peer::new(1);
    let mut line = peer.open();
    thread::scope(|scope| {
        let peer = &peer;
        let call = scope.spawn(move || {
            let mut deadline = Deadline::after(Duration::from_millis(300));
            let mut pooled = peer.pool.check_out(&mut deadline).expect("it is free");
            pooled.ask_moving(&Command::new("n"), &mut deadline)
        });
        let mut piece = [0; 4096];
        assert!(line.stream.read(&mut piece).expect("not in time") > 0);
        line.send("-ERR not now\r\n");
        let fault = call.join().expect("no panic").expect_err("no answer");
        assert!(fault.is_timeout(), "{fault:?}");
    });
    calls_elsewhere(&peer, 3, false);
}

/// The next call finds out before it writes.
#[test]
fn a_connection_that_has_ended_or_has_something_unread_is_not_used() {
    for has_ended in [false, true] {
        let peer = Peer::new(1);
        let mut line = peer.open();
        if has_ended {
            line.stream.shutdown(Shutdown::Write).expect("it is open");
        } else {
            line.answer(1);
        }
        peer.pool.for_each_free(|link| {
            let socket = link.socket.as_ref().expect("it is open");
            let come = readable([socket.bytes()], None, Time::now() + SOON);
            assert!(come[0], "nothing comes");
        });
        calls_elsewhere(&peer, 2, false);
        assert_eq!(line.request(), None, "nothing is sent on it");
        peer.pool.for_each_free(|link| {
            assert!(link.route.data_loss_signs.last() > Time::from_nanos(0));
        });
    }
}

#[test]
fn calls_at_the_same_time_have_a_connection_each_and_one_opens_only_when_it_is_needed() {
    let peer = Peer::new(3);
    let mut first = peer.open();
    thread::scope(|scope| {
        let [one, other] = [2, 3].map(|number| {
            let peer = &peer;
            scope.spawn(move || peer.call(number, SOON))
        });
        let mut second = peer.accept();
        let numbers = [&mut first, &mut second].map(|line| {
            let number = line.request().expect("it asks");
            line.answer(number);
            number
        });
        assert_eq!(numbers.iter().sum::<u64>(), 5);
        for (number, call) in [(2, one), (3, other)] {
            let answer = call.join().expect("no panic").expect("it is answered");
            assert!(is_answer(&answer, number), "{answer:?}");
        }
    });
    let mut open = 0;
    peer.pool
        .for_each_free(|link| open += u32::from(link.socket.is_some()));
    assert_eq!(open, 2);
    peer.close_idle();
    assert_eq!(first.request(), None, "it was closed");
}

fn acquire(channel: Option<&str>) -> Verb {
    Verb::Acquire {
        ask: Ask {
            owner: "o".into(),
            units: 1,
            lease: Duration::from_secs(1),
            fences: 1,
            shareable_owner: None,
            channel: channel.map(Into::into),
            nonce: None,
        },
        mode: AcquireMode::TakeFree,
    }
}

/// A replica rejects each write. So only a reply to a request that wrote nothing may come from one.
#[test]
fn a_reply_that_proves_a_write_is_that_of_a_master() {
    let target = Target::from(LockKey::new("", "n").expect("a name"));
    let release = Verb::Release {
        owner: "o".into(),
        units: 1,
    };
    let (waits, tries) = (acquire(Some("c")), acquire(None));
    let about = |verb| Request::Lock {
        kind: LockKind::Mutex,
        target: &target,
        verb,
    };
    let granted = Reply::Granted {
        fence: 1,
        count: None,
        rest: Vec::new(),
        contended: false,
    };
    let held = Reply::Held {
        ttl: None,
        holder: "h".into(),
        handed_over: false,
    };
    let done = Renewed::Done { contended: false };
    let gone = Renewed::Gone(Gone::Removed);
    let not_owner = Reply::NotOwner(Gone::Taken);
    for (request, reply, expected) in [
        (about(&tries), granted, false),
        (about(&tries), held.clone(), true),
        // The script enters a waiter in the queue.
        (about(&waits), held, false),
        (about(&release), Reply::Released, false),
        (about(&release), Reply::HandedOver, false),
        (about(&release), Reply::Contended, true),
        (about(&release), not_owner.clone(), true),
        (Request::Renew(&[]), Reply::Renewed(vec![done, done]), false),
        (Request::Renew(&[]), Reply::Renewed(vec![done, gone]), true),
        (
            Request::Release(&[]),
            Reply::Each(vec![Ok(Reply::Released), Err(NotReleased::Refused)]),
            false,
        ),
        (
            Request::Release(&[]),
            Reply::Each(vec![Ok(not_owner)]),
            true,
        ),
        (Request::Ping, Reply::Pong, true),
    ] {
        let found = may_come_from_a_replica(&request, &reply);
        assert_eq!(found, expected, "{request:?}: {reply:?}");
    }
}
