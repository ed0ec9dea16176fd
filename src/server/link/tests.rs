//! Which reply may come from a replica, and what an answer means that is missing, or that nobody has asked for.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{Scope, ScopedJoinHandle};

use super::*;
use crate::config::{Server, Settings};
use crate::name::{LockKey, Target};
use crate::net::frame::{self, Frame};
use crate::net::pool::{CheckedOut, PoolThreads};
use crate::net::route::route;
use crate::sys::Ordering;
use crate::sys::net::readable;
use crate::wire::{Ask, End, Gone, How, LockId, LockKind, NotReleased};

/// Longer than any machine starves the tests.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Returns a server, and the way to it. A request may take this time.
fn server(io_timeout: Duration) -> (TcpListener, Arc<Route>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}/", listener.local_addr().expect("it is bound"));
    let settings = Settings {
        connect_timeout: HOUR,
        io_timeout,
        ..Settings::default()
    };
    let route = route(Server::parse(&url).expect("a URL"), &settings);
    // No test is about the question of the first connection.
    route.asked_about_itself.store(true, Ordering::Relaxed);
    (listener, Arc::new(route))
}

/// Accepts a connection, and answers its first write by this.
fn serve(listener: &TcpListener, answer: &str) -> TcpStream {
    let (mut peer, _) = listener.accept().expect("a connection");
    assert!(peer.read(&mut [0; 8_192]).expect("a request") > 0);
    peer.write_all(answer.as_bytes()).expect("it is open");
    peer
}

fn acquire(channel: Option<&str>) -> Ask {
    Ask {
        channel: channel.map(Into::into),
        ..Ask::once("o".into(), 1, Duration::from_secs(1), 1)
    }
}

/// A replica rejects each write. So only a reply to a request that wrote nothing may come from one.
#[test]
fn a_reply_that_proves_a_write_is_that_of_a_master() {
    let target = Target::from(LockKey::new("", "n").expect("a name"));
    let release = End::new("o".into(), 1, How::Release);
    let (waits, tries) = (acquire(Some("c")), acquire(None));
    let lock = LockId {
        kind: LockKind::Mutex,
        target: &target,
    };
    let about = |ask| Request::Ask(lock, ask);
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
        (Request::End(lock, &release), Reply::Released, false),
        (Request::End(lock, &release), Reply::HandedOver, false),
        (Request::End(lock, &release), Reply::Contended, true),
        (Request::End(lock, &release), not_owner.clone(), true),
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

/// The user may not ask for subscribers, and the connection ends between that answer and the answer to the acquire.
#[test]
fn a_command_may_be_executed_although_only_the_one_before_it_is_answered() {
    let (listener, route) = server(HOUR);
    route.together.subscribed("c", route.together.era());
    let server = std::thread::spawn(move || {
        let peer = serve(&listener, "-NOPERM User u has no permissions\r\n");
        peer.shutdown(Shutdown::Write).expect("it is open");
        peer
    });
    let target = Target::from(LockKey::new("", "n").expect("a name"));
    let lock = LockId {
        kind: LockKind::Mutex,
        target: &target,
    };
    let ask = acquire(None);
    let request = Request::Ask(lock, &ask);
    let mut link = Link::pooled(route, None);
    let answer = link.call(&request, &mut Deadline::after(HOUR));
    let failure = answer.expect_err("it has no answer");
    assert_eq!(failure.kind, FailureKind::Unavailable, "{failure:?}");
    assert_eq!(failure.outcome, Outcome::Unknown, "{failure:?}");
    server.join().expect("no panic");
}

/// An earlier answer may have been that of another request.
#[test]
fn an_idle_connection_is_looked_at_before_it_closes() {
    for surplus in [&b"+PONG\r\n"[..], b""] {
        let (listener, route) = server(HOUR);
        let server = std::thread::spawn(move || serve(&listener, "+PONG\r\n"));
        let mut link = Link::pooled(Arc::clone(&route), None);
        let answer = link.call(&Request::Ping, &mut Deadline::after(HOUR));
        assert_eq!(answer.expect("it answers").reply, Reply::Pong);
        let mut peer = server.join().expect("no panic");
        if !surplus.is_empty() {
            peer.write_all(surplus).expect("it is open");
            let socket = link.socket.as_ref().expect("it is open");
            assert!(readable([socket.bytes()], Time::now() + HOUR)[0]);
        }
        link.close_if_idle(Duration::ZERO);
        assert!(!link.is_open());
        let is_noted = route.data_loss_signs.last_surplus() > Time::from_nanos(0);
        assert_eq!(is_noted, !surplus.is_empty());
    }
}

#[test]
fn a_connection_whose_first_look_fails_is_closed_and_not_measured() {
    for (answer, kind, io_timeout) in [
        (
            "-NOPERM User u has no rights\r\n",
            FailureKind::Denied,
            HOUR,
        ),
        ("+OK\r\n", FailureKind::Protocol, HOUR),
        // There is no answer in time.
        ("", FailureKind::Unavailable, Duration::from_millis(1)),
    ] {
        let (listener, route) = server(io_timeout);
        let server = std::thread::spawn(move || serve(&listener, answer));
        let mut link = Link::dedicated((*route).clone(), None);
        let failure = link.open(false).expect_err("it has no reply");
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(!link.is_open() && link.round_trip().is_zero());
        let is_noted = route.data_loss_signs.last_surplus() > Time::from_nanos(0);
        assert_eq!(is_noted, kind == FailureKind::Protocol);
        server.join().expect("no panic");
    }
}

/// A server that a test answers for, and a pool of links to it.
struct Peer {
    listener: TcpListener,
    route: Arc<Route>,
    pool: Arc<Pool<Link>>,
    _threads: PoolThreads,
}

type Asking<'s> = ScopedJoinHandle<'s, Result<Answer, Failure>>;

impl Peer {
    fn with_links(size: u32) -> Self {
        let (listener, route) = server(HOUR);
        let threads = PoolThreads::start().expect("threads");
        let way = Arc::clone(&route);
        let link = move || Link::pooled(Arc::clone(&way), None);
        let pool = Pool::new(link, size, &threads, Arc::default()).expect("its thread runs");
        Self {
            listener,
            route,
            pool,
            _threads: threads,
        }
    }

    fn link(&self) -> CheckedOut<'_, Link> {
        let link = self.pool.check_out(&mut Deadline::after(HOUR));
        link.expect("it is free")
    }

    fn accept(&self) -> TcpStream {
        self.listener.accept().expect("a connection").0
    }

    /// Asks for a lock on a thread of its own.
    fn ask<'s>(&'s self, scope: &'s Scope<'s, '_>, name: &'static str) -> Asking<'s> {
        scope.spawn(move || {
            let target = Target::from(LockKey::new("", name).expect("a name"));
            let lock = LockId {
                kind: LockKind::Mutex,
                target: &target,
            };
            let ask = acquire(None);
            let request = Request::Ask(lock, &ask);
            let mut deadline = Deadline::after(HOUR * 2);
            Link::call_in_turn(&self.pool, &self.route, &request, false, &mut deadline)
        })
    }

    /// Asks for locks while all links are in use. The threads wait in this order.
    fn ask_in_line<'s, const N: usize>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        names: [&'static str; N],
    ) -> [Asking<'s>; N] {
        let mut length = 0;
        names.map(|name| {
            let asking = self.ask(scope, name);
            length += 1;
            self.wait_for_a_line(length);
            asking
        })
    }

    fn wait_for_a_line(&self, length: usize) {
        while self.pool.line.length() < length {
            std::thread::yield_now();
        }
    }
}

/// Reads so many requests, and answers them with these lines. Returns their commands.
fn answer<const N: usize>(stream: &mut TcpStream, answers: [&str; N]) -> [String; N] {
    let (mut received, mut piece) = (Vec::new(), [0; 8_192]);
    let commands = answers.map(|_| {
        let end = loop {
            let end = Frame::default().end(&received, 1 << 20);
            if let Some(end) = end.expect("a request") {
                break end;
            }
            let read = stream.read(&mut piece).expect("a request");
            assert!(read > 0, "it is closed");
            received.extend_from_slice(&piece[..read]);
        };
        let request: Vec<u8> = received.drain(..end).collect();
        match frame::parse(&request) {
            Ok(Value::Array(parts)) => match &parts[0] {
                Value::BulkString(command) => String::from_utf8_lossy(command).into_owned(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    });
    assert!(received.is_empty(), "there are more");
    let lines = answers.map(|answer| format!("{answer}\r\n"));
    let lines = lines.concat();
    stream.write_all(lines.as_bytes()).expect("it is open");
    commands
}

fn last_digit(asking: Asking<'_>) -> u64 {
    match asking.join().expect("no panic").expect("granted").reply {
        Reply::Granted { fence, .. } => fence % 10,
        other => panic!("{other:?}"),
    }
}

/// The first answer may be that to another request, and then so may the second one.
#[test]
fn a_call_whose_own_answer_is_none_tells_no_other_call_a_grant() {
    let peer = Peer::with_links(1);
    std::thread::scope(|scope| {
        let link = peer.link();
        let asking = peer.ask_in_line(scope, ["a", "b"]);
        drop(link);
        answer(&mut peer.accept(), ["+PONG", ":1700000000000001"]);
        for asking in asking {
            let failure = asking.join().expect("no panic").expect_err("it failed");
            assert_eq!(failure.kind, FailureKind::Protocol, "{failure:?}");
            assert_eq!(failure.outcome, Outcome::Unknown);
        }
    });
    assert!(peer.route.data_loss_signs.last_surplus() > Time::from_nanos(0));
}

/// The new connection hangs, while the other one comes back.
#[test]
fn requests_that_were_not_written_go_on_another_connection() {
    let peer = Peer::with_links(2);
    std::thread::scope(|scope| {
        let (a, mut of_a) = (peer.ask(scope, "a"), peer.accept());
        let (b, mut of_b) = (peer.ask(scope, "b"), peer.accept());
        assert_eq!(answer(&mut of_a, [":1700000000000001"]), ["EVALSHA"]);
        assert_eq!(last_digit(a), 1);
        assert_eq!(answer(&mut of_b, [":1700000000000002"]), ["EVALSHA"]);
        assert_eq!(last_digit(b), 2);
        // The one that came back last comes first.
        let (open, closed) = (peer.link(), peer.link());
        drop(of_a);
        let [c, d] = peer.ask_in_line(scope, ["c", "d"]);
        drop(closed);
        // The new connection has no answer yet.
        let mut of_c = peer.accept();
        peer.wait_for_a_line(1);
        drop(open);
        assert_eq!(answer(&mut of_b, [":1700000000000004"]), ["EVALSHA"]);
        assert_eq!(last_digit(d), 4);
        assert_eq!(answer(&mut of_c, [":1700000000000003"]), ["EVALSHA"]);
        assert_eq!(last_digit(c), 3);
    });
}

#[test]
fn the_text_of_a_script_is_sent_once() {
    let peer = Peer::with_links(1);
    std::thread::scope(|scope| {
        let link = peer.link();
        let asking = peer.ask_in_line(scope, ["a", "b", "c"]);
        drop(link);
        let mut stream = peer.accept();
        assert_eq!(answer(&mut stream, ["-NOSCRIPT no"; 3]), ["EVALSHA"; 3]);
        assert_eq!(answer(&mut stream, [":1700000000000001"]), ["EVAL"]);
        assert_eq!(answer(&mut stream, [":1700000000000002"]), ["EVALSHA"]);
        assert_eq!(answer(&mut stream, [":1700000000000003"]), ["EVALSHA"]);
        assert_eq!(asking.map(last_digit), [1, 2, 3]);
    });
}

/// This connection may lead to the old server. The call has come after that was known.
#[test]
fn a_connection_takes_no_request_along_after_a_sign_that_others_lead_elsewhere() {
    let peer = Peer::with_links(1);
    std::thread::scope(|scope| {
        let mut link = peer.link();
        link.line = Some(Arc::clone(&peer.pool.line));
        peer.route.together.read_only();
        let [a] = peer.ask_in_line(scope, ["a"]);
        let (own, mut deadline) = (Command::new("PING"), Deadline::default());
        assert!(link.take_along(&own, &mut deadline).is_none());
        peer.wait_for_a_line(1);
        link.known = peer.route.together.look();
        let along = link.take_along(&own, &mut deadline);
        assert_eq!(along.expect("it is there").commands().count(), 0);
        assert_eq!(deadline.now, None, "the write may be late by now");
        drop(link);
        answer(&mut peer.accept(), [":1700000000000001"]);
        assert_eq!(last_digit(a), 1);
    });
}
