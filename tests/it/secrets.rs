//! A password goes to the server and nowhere else. The tests put one into each place that takes one, and search it in
//! all output. They also print all that they check, and `.ci/run` searches the output of all tests once more.

use std::error::Error as _;
use std::fmt::{Debug, Display};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Error, Event, LockManager};
use percent_encoding::percent_decode_str;

use crate::support::{
    PATIENCE, Server, build, locking, logged, lost, manager, ms, patient, secs, unhurried,
    wait_until,
};

/// The password as the server knows it. It has many characters that a URL must encode.
const PASSWORD: &str = "pa55-s3cret/%@:";
/// The user and the password in a URL. Some characters are encoded without need.
const LOGIN: &str = "us%2Der:pa55-s%33cret%2F%25%40%3A@";

/// Checks that a text has no password, in whatever encoding.
#[track_caller]
fn hides(text: &str) {
    let plain = percent_decode_str(text).decode_utf8_lossy().to_lowercase();
    assert!(!plain.contains("s3cret"), "{text}");
}

#[track_caller]
fn show(thing: &dyn Debug) {
    for text in [format!("{thing:?}"), format!("{thing:#?}")] {
        println!("shown: {}", text.replace('\n', " "));
        hides(&text);
    }
}

#[track_caller]
fn show_text(thing: &dyn Display) {
    println!("shown: {thing}");
    hides(&thing.to_string());
}

/// Checks an error and all its causes.
#[track_caller]
fn show_error(error: &Error) {
    show(error);
    show_text(error);
    let mut cause = error.source();
    while let Some(deeper) = cause {
        show(&deeper);
        show_text(&deeper);
        cause = deeper.source();
    }
}

/// Checks that a call returns an error of the given variant.
macro_rules! fails {
    ($outcome:expr, $kind:pat) => {
        match $outcome {
            Err(error) => {
                show_error(&error);
                assert!(matches!(error, $kind), "{error:?}");
            }
            Ok(other) => panic!("{other:?}"),
        }
    };
}

/// Returns a server with a user that has all rights, and the user's URL.
fn server() -> (Server, String) {
    let server = Server::start();
    let password = format!(">{PASSWORD}");
    let user = ["ACL", "SETUSER", "us-er", "on", &password, "~*", "&*"];
    let () = server.raw().ask(&[&user[..], &["+@all"]].concat());
    let url = server.url().replace("//", &format!("//{LOGIN}"));
    (server, url)
}

#[test]
fn nothing_that_can_be_shown_has_the_password() {
    let (_server, url) = server();
    let builder = patient(&url).label("label").prefix("prefix:");
    show(&builder);
    let locks = build(builder);
    show(&locks);
    let rotating = patient(&url).credentials(|| (None, PASSWORD.to_owned()));
    show(&rotating);
    show(&build(rotating));
    show(&locks.stats());
    let mutex = locks.mutex("m");
    let guard = mutex.lock().expect("it is free");
    show(&(&mutex, &guard, &*guard, guard.on_lost()));
    show(&locks.inspect("m").expect("Redis replies"));
    show(&locks.list("*").collect::<Vec<_>>());
    let claim = guard.detach();
    show(&claim);
    show_text(&claim);
    let guard = locks.adopt(&claim).expect("nobody has");
    show(&guard);
    drop(guard);
    let reentrant = locks.reentrant_mutex("m");
    show(&(&reentrant, &reentrant.lock()));
    let both = locks.rwlock("rw");
    show(&(&both, &both.read()));
    show(&both.write());
    let semaphore = locks.semaphore("s", 3);
    show(&(&semaphore, &semaphore.acquire_many(2)));
    let multi = locks.multi(["a", "b"]);
    show(&(&multi, &multi.lock()));
    let limiter = locks.rate_limiter("r", 1, secs(600));
    show(&(&limiter, limiter.try_acquire(), limiter.try_acquire()));
}

#[test]
fn no_error_has_the_password() {
    let (server, url) = server();
    let redis = server.raw();
    let locks = manager(&url);
    fails!(locks.lock(""), Error::InvalidName { .. });
    let guard = locks.mutex("m").max_hold(Some(ms(1))).lock();
    let guard = guard.expect("it is free");
    let loss = guard
        .on_lost()
        .recv_timeout(PATIENCE)
        .expect("it is notified");
    show(&loss);
    show_text(&loss);
    fails!(guard.release(), Error::Lost(_));
    let held = locks.semaphore("s", 3).acquire().expect("it is free");
    let other = manager(&url);
    drop(other.semaphore("s", 4).acquire().expect("there is room"));
    drop(held);
    let held = locks.lock("held").expect("it is free");
    fails!(
        other.with_lock("held", ms(300), |_| ()),
        Error::Timeout { .. } | Error::Unavailable { .. }
    );
    drop(held);
    let () = redis.ask(&["RPUSH", "list", "x"]);
    fails!(locks.lock("list"), Error::WrongType { .. });
    let replicated = build(patient(&url).io_timeout(secs(5)).replicas(1));
    fails!(replicated.lock("n"), Error::NotReplicated { .. });
    let () = redis.ask(&["ACL", "SETUSER", "us-er", "resetkeys"]);
    fails!(locks.lock("n"), Error::Denied { .. });
    let () = redis.ask(&[
        "ACL",
        "SETUSER",
        "us-er",
        "~*",
        ">other",
        &format!("<{PASSWORD}"),
    ]);
    fails!(
        unhurried(LockManager::single(&url)).build(),
        Error::Denied { .. }
    );
    server.kill();
    fails!(locks.lock("n"), Error::Unavailable { .. });
    fails!(LockManager::connect(&url), Error::Unavailable { .. });
    // It does not matter whether all releases were sent.
    let _: bool = locks.close(Duration::ZERO);
    fails!(locks.lock("n"), Error::Closed);
    let socket = "unix:///nowhere/redis.sock?user=us%2Der&pass=pa55-s%33cret";
    fails!(LockManager::connect(socket), Error::Unavailable { .. });
}

/// A server that does not know AUTH repeats the command in its error.
#[test]
fn no_server_that_repeats_the_password_is_quoted() {
    let server = Server::with(&["--rename-command", "AUTH", "moved"]);
    let repeated = server
        .raw()
        .try_ask::<()>(&["AUTH", "us-er", "what-was-sent"])
        .expect_err("it is not known");
    assert!(repeated.to_string().contains("what-was-sent"), "{repeated}");
    let url = server.url().replace("//", &format!("//{LOGIN}"));
    fails!(
        unhurried(LockManager::single(&url)).build(),
        Error::Protocol { .. }
    );
    // Other services repeat their input, as an error or as it is.
    for before in [
        "-ERR what is ",
        "-WHAT is ",
        "-NOPERM ",
        "-WRONGTYPE ",
        "-LOADING ",
        "+",
        "",
    ] {
        let echo = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("redis://{LOGIN}{}/", echo.local_addr().expect("its own"));
        let echoing = crate::support::task(move || {
            let (mut peer, _) = echo.accept().expect("a client");
            let mut heard = [0; 4096];
            while let Ok(length @ 1..) = peer.read(&mut heard) {
                // A reply is one line.
                let mut said = String::from_utf8_lossy(&heard[..length]).into_owned();
                if !before.is_empty() {
                    said = format!("{before}{}\r\n", said.replace("\r\n", " "));
                }
                if peer.write_all(said.as_bytes()).is_err() {
                    return;
                }
            }
        });
        let locks = patient(&url).pool_size(1).build();
        fails!(
            locks.and_then(|locks| locks.lock("n")),
            Error::Protocol { .. }
                | Error::Denied { .. }
                | Error::WrongType { .. }
                | Error::Unavailable { .. }
        );
        echoing.end();
    }
}

#[test]
fn no_event_log_or_panic_has_the_password() {
    let (server, url) = server();
    // All records of this process meanwhile, also those of other tests.
    let all = logged("");
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let own: std::sync::Arc<Mutex<Option<LockManager>>> = std::sync::Arc::default();
    let theirs = std::sync::Arc::clone(&own);
    let listener = move |event: &Event<'_>| {
        let tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
        tell.send(format!("{event:?} {event:#?}")).ok();
        let locks = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        // The message of the panic goes to the output, with all that it shows.
        panic!("on purpose, by a listener: {event:?} {locks:?}");
    };
    let builder = patient(&url).listener(listener).warn_after(Some(ms(1)));
    let builder = builder.background_release(true);
    show(&builder);
    let locks = build(builder);
    *own.lock().expect("no panic") = Some(locks.clone());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        locks.with_lock("n", secs(10), |lease| {
            panic!("on purpose, under a lock: {lease:?} {locks:?}")
        })
    }));
    let panicked = panicked.map(|outcome: Result<(), Error>| outcome);
    let payload = panicked.expect_err("it panics");
    show_text(payload.downcast_ref::<String>().expect("a message"));
    // Waits, renewals, a warning about a long hold, a loss, and failures.
    let other = manager(&url);
    let guard = locks.mutex("n").lease(secs(60)).lock();
    let guard = guard.expect("it is free");
    guard.extend(secs(120)).expect("it is held");
    let waiter = locking(&other.mutex("n"));
    server.raw().wait_until_queued("n", 1);
    let limited = locks.mutex("limited").max_hold(Some(ms(1))).lock();
    let limited = limited.expect("it is free");
    show(&limited.on_lost().recv_timeout(PATIENCE));
    show_error(&Error::Lost(lost(limited.release())));
    wait_until("it is warned of", || locks.stats().held_long > 0);
    let () = server.raw().ask(&["ACL", "DELUSER", "us-er"]);
    show_error(&waiter.end().expect_err("it has no right any more"));
    let refused = locks.lock("further").expect_err("neither has it");
    show_error(&refused);
    server.kill();
    // The renewal thread finds no server for the release.
    guard.release().expect("it is left to the renewal thread");
    own.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(other);
    let mut wanted = vec!["Acquired", "Renewed", "HeldLong", "Unreachable", "Lost"];
    while !wanted.is_empty() {
        let event = told.recv_timeout(PATIENCE).expect("it is notified");
        hides(&event);
        wanted.retain(|wanted| !event.contains(wanted));
    }
    let lines: Vec<_> = all.try_iter().map(|logged| logged.text).collect();
    for line in &lines {
        hides(line);
    }
    for wanted in ["held for", "the event listener panicked"] {
        assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted}");
    }
}
