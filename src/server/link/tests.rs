//! Which reply may come from a replica, and what a missing answer means.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use super::*;
use crate::config::{Server, Settings};
use crate::name::{LockKey, Target};
use crate::net::route::route;
use crate::sys::Ordering;
use crate::wire::{AcquireMode, Ask, Gone, LockKind, NotReleased};

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

/// The user may not ask for subscribers, and the connection ends between that answer and the answer to the acquire.
#[test]
fn a_command_may_be_executed_although_only_the_one_before_it_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}/", listener.local_addr().expect("it is bound"));
    let route = route(Server::parse(&url).expect("a URL"), &Settings::default());
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
    let request = Request::Lock {
        kind: LockKind::Mutex,
        target: &target,
        verb: &acquire(None),
    };
    let mut link = Link::pooled(Arc::new(route), None);
    let answer = link.call(&request, &mut Deadline::after(Duration::from_secs(20)));
    let failure = answer.expect_err("it has no answer");
    assert_eq!(failure.kind, FailureKind::Unavailable, "{failure:?}");
    assert_eq!(failure.outcome, Outcome::Unknown, "{failure:?}");
    server.join().expect("no panic");
}
