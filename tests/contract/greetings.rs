//! A server that refuses a connection before it has read any request, and closes the connection.

use leasehold::{Error, ErrorKind, Result};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::world::{Fault, World};

pub(crate) const BODIES: Subject = (
    "greetings",
    &[
        Topology::Single,
        Topology::Sentinel,
        Topology::Cluster,
        Topology::Quorum,
    ],
    subject_bodies![a_server_that_refuses_connections_says_why],
);

/// What a server says, the kind of error that it becomes, and a part of its text.
const GREETINGS: [(&[u8], ErrorKind, &str); 5] = [
    (
        b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for \
          the default user. In this mode connections are only accepted from the loopback interface.\r\n",
        ErrorKind::Denied,
        "it refuses the connection: DENIED Redis is running in protected mode because protected mode is enabled and no \
         password is set for the default user (set a password at the server, or `protected-mode no`)",
    ),
    (
        b"-ERR max number of clients reached\r\n",
        ErrorKind::Unavailable,
        "it refuses the connection: ERR max number of clients reached",
    ),
    (
        b"-LOADING Redis is loading the dataset in memory\r\n",
        ErrorKind::Unavailable,
        "LOADING Redis is loading",
    ),
    // The alert of a TLS server that has got something other than a handshake.
    (
        b"\x15\x03\x01\x00\x02\x02\x46",
        ErrorKind::Denied,
        "it speaks TLS, so its URL must begin with rediss",
    ),
    // The begin of a handshake.
    (
        b"\x16\x03\x03\x00\x7a\x02",
        ErrorKind::Denied,
        "it speaks TLS, so its URL must begin with rediss",
    ),
];

/// Checks the error. Of a quorum each node has failed.
#[track_caller]
fn became<T>(outcome: Result<T>, (_, kind, text): (&[u8], ErrorKind, &str)) {
    let error = outcome.map(drop).expect_err("no connection is accepted");
    let said = format!("{error:#}");
    assert!(said.contains(text) && !said.contains("s3cret"), "{said}");
    match &error {
        Error::NoQuorum { failures, .. } => {
            let is_of_kind = failures.iter().all(|failed| failed.error.kind() == kind);
            assert!(!failures.is_empty() && is_of_kind, "{said}");
        }
        _ => assert_eq!(error.kind(), kind, "{said}"),
    }
}

/// Whether the greeting or its own first write reaches a client first differs from seed to seed.
fn a_server_that_refuses_connections_says_why(world: &World) {
    let locks = world.manager();
    drop(locks.lock("n").expect("it is free"));
    // The master and its replicas come before the sentinels.
    let all = if world.topology() == Topology::Sentinel {
        6
    } else {
        world.servers()
    };
    for greeting in GREETINGS {
        for server in 0..all {
            world.fault(Fault::Greet(server, Some(greeting.0)));
        }
        for _ in 0..8 {
            became(world.try_build(|it| it), greeting);
            became(world.try_build(|it| it.password("s3cret")), greeting);
        }
        for server in 0..all {
            locks.cut(server);
        }
        world.until("it has noticed", || match locks.try_lock("n") {
            Err(error) => format!("{error:#}").contains(greeting.2),
            Ok(_) => false,
        });
        for server in 0..all {
            world.fault(Fault::Greet(server, None));
        }
        world.until("it is well", || {
            locks.try_lock("n").is_ok_and(|got| got.is_some())
        });
    }
}
