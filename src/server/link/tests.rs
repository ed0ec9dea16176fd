//! Which reply may come from a replica, and what an answer means that is missing, or that nobody has asked for.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;
use crate::config::{Server, Settings};
use crate::name::{LockKey, Target};
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
