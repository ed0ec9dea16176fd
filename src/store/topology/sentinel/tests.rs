//! Links to a master that changes during a request. The masters are sockets of the test.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::opinion::Opinion;
use super::*;
use crate::config::Server;
use crate::error::Outcome;
use crate::message::{AcquireMode, Ask, LockKind, Reply, Request, Verb};
use crate::name::{LockKey, Target};
use crate::store::Answer;
use crate::store::server::pool::{Pool, PoolThreads};
use crate::store::topology::finder::Published;
use crate::store::topology::link::Link;
use crate::sys::Ordering;

/// The time limit of a request. The next master answers none.
const LIMIT: Duration = Duration::from_secs(2);

/// Publishes the master of this epoch, at the address of this socket.
fn publish(discovery: &Discovery, listener: &TcpListener, epoch: u64) {
    let port = listener.local_addr().expect("it is bound").port();
    let server = Server::parse(&format!("redis://127.0.0.1:{port}/")).expect("a URL");
    let route = route(server, &Settings::default());
    // No test is about the question of the first connection.
    route.asked_about_itself.store(true, Ordering::Relaxed);
    let opinion = Opinion {
        host: "127.0.0.1".into(),
        port,
        epoch,
    };
    let next = |last: Option<&SentinelMaster>| {
        Ok(Published {
            found: SentinelMaster { route, opinion },
            is_another: true,
            is_failover: last.is_some(),
        })
    };
    discovery.finder.publish(next).expect("it is published");
}

/// Reads one request: all that comes before the client waits.
fn read(line: &mut TcpStream) {
    let mut bytes = [0; 16 << 10];
    assert!(line.read(&mut bytes).expect("a request") > 0);
}

/// Sends the request to a master that reads it and closes the connection, while the next master is published. Returns the
/// result, and whether the next master was asked.
fn sent_during_a_failover(verb: &Verb) -> (Result<Answer, Failure>, bool) {
    let [old, new] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let settings = Settings::default();
    let set = SentinelSet::new(&["redis://127.0.0.1:1/".to_owned()], "m", &settings);
    let discovery = Arc::new(Discovery::new(set.expect("a set"), &settings));
    publish(&discovery, &old, 1);
    let threads = PoolThreads::start().expect("threads");
    let (way, finds) = (
        Arc::new(discovery.unknown().clone()),
        Arc::clone(&discovery),
    );
    let make = move || Link::pooled(Arc::clone(&way), Some(Arc::clone(&finds)));
    let pool = Pool::new(make, 1, &threads, Arc::default()).expect("its thread runs");
    let target = Target::from(LockKey::new("", "n").expect("a name"));
    let call = |verb: &Verb| {
        let request = Request::Lock {
            kind: LockKind::Mutex,
            target: &target,
            verb,
        };
        let mut deadline = Deadline::after(LIMIT);
        pool.check_out(&mut deadline)?.call(&request, &mut deadline)
    };
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let (mut line, _) = old.accept().expect("the link connects");
            read(&mut line);
            line.write_all(b":1\r\n").expect("it is connected");
            read(&mut line);
            publish(&discovery, &new, 2);
        });
        let released = call(&release()).expect("it is answered");
        assert_eq!(released.reply, Reply::Released);
        call(verb)
    });
    new.set_nonblocking(true).expect("a socket");
    let was_asked = match new.accept() {
        Ok((mut line, _)) => {
            read(&mut line);
            true
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    };
    (result, was_asked)
}

fn release() -> Verb {
    Verb::Release {
        owner: "o".into(),
        units: 1,
    }
}

#[test]
fn a_request_that_may_have_been_executed_is_sent_to_the_next_master() {
    let acquire = Verb::Acquire {
        ask: Ask {
            owner: "o".into(),
            units: 1,
            lease: Duration::from_secs(1),
            fences: 1,
            shareable_owner: None,
            channel: None,
            nonce: None,
        },
        mode: AcquireMode::TakeFree,
    };
    for verb in [release(), acquire] {
        let (result, was_asked) = sent_during_a_failover(&verb);
        let failure = result.expect_err("it has no answer");
        assert_eq!(failure.outcome, Outcome::Unknown);
        assert!(was_asked);
    }
}
