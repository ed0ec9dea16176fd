//! A server that sends wrong, partial or endless replies, or none.

use std::fmt::Debug;
use std::thread;

use leasehold::{Claim, Error, LeaseState, LockManager, LostCause, Result};

use crate::support::{
    Answer, Child, Hostile, Proxy, Server, Words, at_last, build, impatient, in_time, is_script,
    locking, lost, manager, name, patient, secs, to_scripts, unhurried, wait_until,
};

fn is_listening(words: &Words) -> bool {
    words.first().is_some_and(|verb| verb == b"SUBSCRIBE")
}

/// Returns replies that make no sense as the reply to any script.
fn nonsense() -> Vec<Vec<u8>> {
    let fixed: [&[u8]; 43] = [
        b"hello\r\n",
        b"\r\n",
        b"\0\0\0\0\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n",
        b"+OK\r\n",
        b"+\r\n",
        b"+\xff\xfe\r\n",
        b"$-1\r\n",
        b"$-2\r\n",
        b"$2\r\nabc\r\n",
        b"$1\r\n1\r\n",
        b"$x\r\n",
        // Two replies to one request, or one and the beginning of another.
        b":5\r\n:1\r\n",
        b":5\r\n+",
        b":\r\n",
        b":x\r\n",
        b":-5\r\n",
        b":9223372036854775807\r\n",
        b":9223372036854775808\r\n",
        b":-9223372036854775808\r\n",
        b":9007199254740992\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*x\r\n",
        b"*9223372036854775808\r\n",
        b"*1\r\n:1\r\n",
        b"*2\r\n:-7\r\n:1\r\n",
        b"*2\r\n:5\r\n:3\r\n",
        b"*2\r\n:9223372036854775807\r\n:1\r\n",
        b"*2\r\n:-2\r\n:-1\r\n",
        b"*3\r\n:0\r\n:1\r\n:1\r\n",
        b"*3\r\n:0\r\n$1\r\n1\r\n$1\r\no\r\n",
        b"*6\r\n:5\r\n:6\r\n:7\r\n:8\r\n:9\r\n:0\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"(12345678901234567890\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b"~1\r\n:1\r\n",
        b"|1\r\n+a\r\n:1\r\n:5\r\n",
        b"-\r\n",
    ];
    let mut all: Vec<_> = fixed.map(<[u8]>::to_vec).into();
    // Nested more deeply than any reply may be, and than a stack could bear.
    all.push(b"*1\r\n".repeat(100_000));
    all.push([&b"*1\r\n".repeat(99)[..], b":1\r\n"].concat());
    all.push([&b"-ERR "[..], &b"long ".repeat(1 << 21), b"\r\n"].concat());
    all.push(b"-ERR a line\nbroken\rtwice\r\n".to_vec());
    all.push(b"!21\r\nSYNTAX a\r\nsplit line\r\n".to_vec());
    all
}

/// Checks that the result is an error whose text is fit for a log.
#[track_caller]
fn refused<T: Debug>(outcome: Result<T>, answer: &[u8], what: impl Debug) {
    let shown = String::from_utf8_lossy(&answer[..answer.len().min(40)]);
    let error = outcome.expect_err(&shown);
    // What a TLS server says first is a refusal.
    let is_tls = answer.first() == Some(&0x16) && matches!(error, Error::Denied { .. });
    assert!(
        is_tls || matches!(error, Error::Protocol { .. } | Error::Unavailable { .. }),
        "{shown:?}, {what:?}: {error:?}"
    );
    let text = format!("{error} {error:?}");
    assert!(text.len() < 2000, "{shown:?}: {} bytes", text.len());
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[test]
fn nonsense_is_an_error_in_time_for_every_call() {
    const OWNER: &str = "lh1:67e55044-10b1-426f-9247-bb680e5fe0c8:h:1";
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let locks = at_last(|| impatient(&hostile.url()).build());
    let claim: Claim = format!("1/{OWNER}/n").parse().expect("a claim");
    // A kind for each way to read a grant.
    let calls: [Call; 9] = [
        ("mutex", |locks, _| locks.try_lock("n").map(drop)),
        ("reader", |locks, _| locks.rwlock("n").try_read().map(drop)),
        ("permit", |locks, _| {
            locks.semaphore("n", 2).try_acquire().map(drop)
        }),
        ("multi", |locks, _| {
            locks.multi(["n", "{n}:2"]).try_lock().map(drop)
        }),
        ("inspect", |locks, _| locks.inspect("n").map(drop)),
        ("force_release", |locks, _| {
            locks.force_release("n", OWNER).map(drop)
        }),
        ("adopt", |locks, claim| locks.adopt(claim).map(drop)),
        ("rate limiter", |locks, _| {
            locks.rate_limiter("n", 1, secs(1)).try_acquire().map(drop)
        }),
        ("list", |locks, _| {
            locks.list("*").collect::<Result<Vec<_>>>().map(drop)
        }),
    ];
    for bytes in nonsense() {
        let answer = Answer::Say(bytes.clone());
        hostile.answers(move |words| {
            if is_script(words) || words.first().is_some_and(|verb| verb == b"SCAN") {
                answer.clone()
            } else {
                Answer::Pass
            }
        });
        for (what, call) in calls {
            let (locks, claim) = (locks.clone(), claim.clone());
            refused(in_time(move || call(&locks, &claim)), &bytes, what);
        }
        let built = impatient(&hostile.url());
        let answer = Answer::Say(bytes.clone());
        hostile.answers(move |words| {
            if words.is_empty() {
                Answer::Pass
            } else {
                answer.clone()
            }
        });
        // Any text is a valid reply to PING.
        if !bytes.starts_with(b"+") && !bytes.starts_with(b"$1") {
            refused(in_time(move || built.build().map(drop)), &bytes, "build");
        }
    }
    // The reply grants a place in three hundred thousand years.
    let answer = b"*2\r\n:1\r\n:9223372036854775807\r\n";
    hostile.answers(to_scripts(Answer::Say(answer.to_vec())));
    let (locks, limited) = (locks.clone(), locks);
    refused(
        in_time(move || limited.rate_limiter("n", 1, secs(1)).try_acquire()),
        answer,
        "late",
    );
    hostile.behaves();
    assert_eq!(at_last(|| locks.inspect("n")), None);
    drop(at_last(|| locks.lock("n")));
}

type Call = (&'static str, fn(&LockManager, &Claim) -> Result<()>);

/// The server closes the connection before or after a request has come, so it is often reset.
#[test]
fn a_server_that_refuses_a_connection_is_quoted() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let with_password = hostile.url().replace("//", "//:pa55-s3cret@");
    for (greeting, is_denied, text) in [
        (
            &b"-DENIED Redis is running in protected mode because protected mode is enabled. In this mode\r\n"[..],
            true,
            "it refuses the connection: DENIED Redis is running in protected mode because protected mode is enabled \
             (set a password",
        ),
        (
            b"-ERR max number of clients reached\r\n",
            false,
            "it refuses the connection: ERR max number of clients reached",
        ),
        (b"\x15\x03\x03\x00\x02\x02\x46", true, "it speaks TLS"),
    ] {
        hostile.answers(move |words| match words {
            [] => Answer::Close(greeting.to_vec()),
            _ => Answer::Pass,
        });
        for _ in 0..25 {
            for url in [&hostile.url(), &with_password] {
                let built = unhurried(LockManager::single(url)).build();
                let error = built.map(drop).expect_err("no connection is accepted");
                assert_eq!(matches!(error, Error::Denied { .. }), is_denied, "{error:?}");
                assert_eq!(error.is_retryable(), !is_denied);
                let said = format!("{error:#}");
                assert!(said.contains(text) && !said.contains("s3cret"), "{said}");
            }
        }
    }
}

#[test]
fn half_a_reply_is_an_error_in_time() {
    let server = Server::start();
    let halves: [&[u8]; 9] = [
        b"",
        b":",
        b":17000000",
        b"$2147483647\r\nabc",
        b"$9223372036854775807\r\n",
        b"*1000000000\r\n:1\r\n",
        b"*9223372036854775807\r\n",
        b"*2\r\n*2147483647\r\n*2147483647\r\n%2147483647\r\n",
        // Pushes, and no reply.
        b">1\r\n+x\r\n>1\r\n+x\r\n",
    ];
    thread::scope(|scope| {
        for half in halves {
            for answer in [Answer::Say(half.to_vec()), Answer::Close(half.to_vec())] {
                let server = &server;
                scope.spawn(move || {
                    let hostile = Hostile::before(server);
                    let locks = at_last(|| impatient(&hostile.url()).build());
                    hostile.answers(to_scripts(answer));
                    let lock = locks.mutex("n");
                    refused(in_time(move || lock.try_lock().map(drop)), half, "half");
                    hostile.behaves();
                    drop(at_last(|| locks.lock("n")));
                });
            }
        }
    });
}

/// Returns replies in pieces. The time between two pieces is short, and the reply never ends.
fn endless() -> Vec<Answer> {
    let mut all = Vec::new();
    for (first, then) in [
        (&b"$2147483647\r\n"[..], &b"x"[..]),
        (b"*1000000000\r\n", b":1\r\n"),
        (b"%1000000000\r\n", b"$1\r\na\r\n"),
        (b"+", b"x"),
        (b"-ERR ", b"x"),
        // Pushes and attributes that the client did not ask for.
        (b"", b">1\r\n+x\r\n"),
        (b"", b"|1\r\n+a\r\n:1\r\n"),
    ] {
        all.push(Answer::Flood(first.to_vec(), then.repeat(1 << 14)));
        all.push(Answer::Drip(first.to_vec(), then.to_vec()));
    }
    all
}

/// The test uses a child process, to measure the memory of that process alone.
#[test]
fn an_endless_reply_is_an_error_in_time_and_takes_no_memory() {
    const MOST: u64 = 400 << 20;
    let server = Server::start();
    let hostile = Hostile::before(&server);
    // The whole time limit passes with each reply.
    let mut child = Child::start(&hostile.url(), "io_timeout_ms=300");
    for answer in endless() {
        hostile.answers(to_scripts(answer.clone()));
        let said = child.ask("try n 100");
        let is_error = said.starts_with("Unavailable") || said.starts_with("Protocol");
        assert!(is_error, "{answer:.100?}: {said}");
        let peak = child.peak_memory();
        assert!(peak < MOST, "{answer:.100?}: {} MiB", peak >> 20);
    }
    hostile.behaves();
    // A busy machine may take longer than the child's time limit.
    wait_until("it locks again", || {
        child.ask("lock n").starts_with("locked ")
    });
}

/// The proxy repeats the last answer of each connection, which grants a lock.
#[test]
fn an_answer_that_nobody_has_asked_for_grants_and_confirms_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // No renewal is due by itself.
    let locks = build(patient(&proxy.url()).lease(secs(600)));
    let other = manager(&server.url());
    let _held = other.lock("held").expect("it is free");
    let [kept, gone] = ["kept", "gone"].map(|name| locks.lock(name).expect("it is free"));
    let () = server.raw().ask(&["DEL", "gone"]);
    let renewed = locks.stats().renewed;
    assert!(
        proxy.repeat_answers(usize::MAX) > 0,
        "no connection is open"
    );
    wait_until("each lease is asked for", || {
        // The repeated answer may come after the look, and then it is found at the next one.
        let tried = locks.try_lock("held").expect("Redis replies");
        assert!(tried.is_none(), "another process holds it");
        locks.stats().renewed > renewed && gone.state() == LeaseState::Lost
    });
    assert_eq!(lost(gone.release()).cause, LostCause::Removed);
    wait_until("it is held", || kept.state() == LeaseState::Held);
    kept.release().expect("it was held until now");
}

/// Returns the right reply to a SUBSCRIBE, followed by `more`.
fn confirmed(words: &Words, more: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    for (channel, count) in words[1..].iter().zip(1..) {
        said.extend_from_slice(
            format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n", channel.len()).as_bytes(),
        );
        said.extend_from_slice(channel);
        said.extend_from_slice(format!("\r\n:{count}\r\n").as_bytes());
    }
    said.extend_from_slice(more);
    said
}

fn message(channel: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut said = b"*3\r\n$7\r\nmessage\r\n".to_vec();
    for part in [channel, payload] {
        said.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        said.extend_from_slice(part);
        said.extend_from_slice(b"\r\n");
    }
    said
}

/// Messages that make no sense stop no wait: the waits poll. The wakeup thread ends with its manager.
#[test]
fn a_wait_goes_on_whatever_messages_arrive() {
    let server = Server::start();
    let mut pieces: Vec<Vec<u8>> = nonsense().into_iter().step_by(12).collect();
    pieces.extend([
        b"".to_vec(),
        b":1\r\n".to_vec(),
        b"*1\r\n$7\r\nmessage\r\n".to_vec(),
        b"*2\r\n$7\r\nmessage\r\n$1\r\nc\r\n".to_vec(),
        b"*3\r\n$7\r\nmessage\r\n:1\r\n:2\r\n".to_vec(),
        b"*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$1\r\nx\r\n".to_vec(),
        message(
            b"leasehold:broken",
            b"lh1:67e55044-10b1-426f-9247-bb680e5fe0c8:l",
        ),
        message(b"leasehold:broken", b"\xff\xff"),
        message(b"leasehold:broken", b""),
        message(b"\xff", b"\0"),
        message(b"", &vec![b'x'; 1 << 20]),
    ]);
    thread::scope(|scope| {
        for piece in pieces {
            for is_confirmed in [false, true] {
                let (server, piece) = (&server, piece.clone());
                scope.spawn(move || {
                    let hostile = Hostile::before(server);
                    let shown = String::from_utf8_lossy(&piece[..piece.len().min(60)]).into_owned();
                    hostile.answers(move |words| {
                        if !is_listening(words) {
                            Answer::Pass
                        } else if is_confirmed {
                            Answer::Drip(confirmed(words, &piece), piece.clone())
                        } else {
                            Answer::Drip(piece.clone(), piece.clone())
                        }
                    });
                    let locks = build(patient(&hostile.url()).label("l").lease(secs(60)));
                    let holder = manager(&server.url());
                    let name = name("heard");
                    let guard = holder.lock(&name).expect("it is free");
                    let kept = at_last(|| locks.lock(format!("{name}:kept")));
                    let waiting = locking(&locks.mutex(&name));
                    wait_until("the message is received", || hostile.answered() > 0);
                    guard.release().expect("it was held until now");
                    let guard = waiting
                        .end()
                        .unwrap_or_else(|error| panic!("{shown:?}: {error}"));
                    assert_eq!(guard.state(), LeaseState::Held);
                    kept.check().expect("no message is believed");
                });
            }
        }
    });
}

#[test]
fn the_wakeup_thread_ends_with_its_manager_whatever_messages_arrive() {
    let server = Server::start();
    thread::scope(|scope| {
        for piece in [&b":1\r\n"[..], b"*3\r\n", b""] {
            let server = &server;
            scope.spawn(move || {
                let hostile = Hostile::before(server);
                let mut child = Child::start(&hostile.url(), "");
                hostile.answers(move |words| {
                    if is_listening(words) {
                        Answer::Drip(confirmed(words, piece), piece.to_vec())
                    } else {
                        Answer::Pass
                    }
                });
                let name = name("ends");
                let guard = manager(&server.url()).lock(&name).expect("it is free");
                child.say(format_args!("lock {name}"));
                wait_until("the message is received", || hostile.answered() > 0);
                guard.release().expect("it was held until now");
                child.locked();
                let threads = child.ask("drop 5");
                assert!(threads.ends_with("-> []"), "{piece:?}: {threads}");
            });
        }
    });
}
