//! Answers that a mutex without a fence gets to its bare `SET`, which no simulated server gives. The contract has the rest.

use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::Error;

use crate::support::{Answer, Hostile, Server, build, patient};

/// The server executes the command, and closes the connection before it answers. The link sends it once more, and "held"
/// is then no answer: this owner holds the lock itself.
#[test]
fn a_command_that_was_sent_twice_gets_the_lock() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    // With one connection, the lock is asked for on one that was used before. Only then is a request sent again.
    let locks = patient(&hostile.url()).fencing(false).pool_size(1);
    let locks = build(locks);
    drop(locks.lock("first").expect("it is free"));
    let (raw, is_first) = (server.raw(), AtomicBool::new(true));
    hostile.answers(move |words| {
        let words = words.iter().map(|word| String::from_utf8_lossy(word));
        let words: Vec<_> = words.collect();
        let is_set = words.first().is_some_and(|verb| verb == "SET");
        if !is_set || !is_first.swap(false, Ordering::SeqCst) {
            return Answer::Pass;
        }
        let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
        let () = raw.ask(&words);
        Answer::Close(Vec::new())
    });
    let guard = locks.lock("n").expect("this owner holds it");
    assert_eq!(guard.fence(), 0);
    assert_eq!(server.raw().get("n").as_deref(), Some(guard.owner()));
}

/// Only OK and "nothing" answer the command. After anything else, the connection is not used again.
#[test]
fn a_strange_answer_is_no_grant() {
    let server = Server::start();
    for answer in [":0\r\n", ":1\r\n", "+QUEUED\r\n", "*0\r\n", "$2\r\nOK\r\n"] {
        let hostile = Hostile::before(&server);
        let locks = build(patient(&hostile.url()).fencing(false));
        drop(locks.lock("first").expect("it is free"));
        hostile.answers(move |words| match words.first() {
            Some(verb) if verb == b"SET" => Answer::Say(answer.as_bytes().to_vec()),
            _ => Answer::Pass,
        });
        let error = locks.lock("n").expect_err("it is no answer");
        assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    }
}
