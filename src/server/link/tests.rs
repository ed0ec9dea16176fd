//! Which reply may come from a replica, and what an answer means that is missing, or that nobody has asked for.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use super::*;
use crate::config::{Server, Settings};
use crate::name::{LockKey, Target};
use crate::net::route::route;
use crate::sys::Ordering;
use crate::sys::net::readable;
use crate::wire::{Ask, End, Gone, How, LockId, LockKind, NotReleased};

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
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}/", listener.local_addr().expect("it is bound"));
    // Longer than any machine starves the test.
    let hour = Duration::from_secs(60 * 60);
    let settings = Settings {
        connect_timeout: hour,
        io_timeout: hour,
        ..Settings::default()
    };
    let route = route(Server::parse(&url).expect("a URL"), &settings);
    route.asked_about_itself.store(true, Ordering::Relaxed);
    route.together.subscribed("c", route.together.era());
    let server = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("a connection");
        let received = peer.read(&mut [0; 8_192]).expect("both commands");
        peer.write_all(b"-NOPERM User u has no permissions\r\n")
            .expect("it is open");
        peer.shutdown(Shutdown::Write).expect("it is open");
        (received, peer)
    });
    let target = Target::from(LockKey::new("", "n").expect("a name"));
    let lock = LockId {
        kind: LockKind::Mutex,
        target: &target,
    };
    let ask = acquire(None);
    let request = Request::Ask(lock, &ask);
    let mut link = Link::pooled(Arc::new(route), None);
    let answer = link.call(&request, &mut Deadline::after(hour));
    let failure = answer.expect_err("it has no answer");
    assert_eq!(failure.kind, FailureKind::Unavailable, "{failure:?}");
    assert_eq!(failure.outcome, Outcome::Unknown, "{failure:?}");
    server.join().expect("no panic");
}

/// An earlier answer may have been that of another request.
#[test]
fn an_idle_connection_is_looked_at_before_it_closes() {
    let hour = Duration::from_secs(60 * 60);
    for surplus in [&b"+PONG\r\n"[..], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("redis://{}/", listener.local_addr().expect("it is bound"));
        let server = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().expect("a connection");
            assert!(peer.read(&mut [0; 8_192]).expect("a request") > 0);
            peer.write_all(b"+PONG\r\n").expect("it is open");
            peer
        });
        let settings = Settings {
            connect_timeout: hour,
            io_timeout: hour,
            ..Settings::default()
        };
        let route = Arc::new(route(Server::parse(&url).expect("a URL"), &settings));
        route.asked_about_itself.store(true, Ordering::Relaxed);
        let mut link = Link::pooled(Arc::clone(&route), None);
        let answer = link.call(&Request::Ping, &mut Deadline::after(hour));
        assert_eq!(answer.expect("it answers").reply, Reply::Pong);
        let mut peer = server.join().expect("no panic");
        if !surplus.is_empty() {
            peer.write_all(surplus).expect("it is open");
            let socket = link.socket.as_ref().expect("it is open");
            assert!(readable([socket.bytes()], Time::now() + hour)[0]);
        }
        link.close_if_idle(Duration::ZERO);
        assert!(!link.is_open());
        let is_noted = route.data_loss_signs.last_surplus() > Time::from_nanos(0);
        assert_eq!(is_noted, !surplus.is_empty());
    }
}
