//! The text of every error. `error_texts.txt` has them, so that a reviewer sees each change.
//!
//! `LEASEHOLD_WRITE_TEXTS=1 cargo test --test it error_texts` writes that file again.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use leasehold::{Builder, Cancel, Claim, Error, ErrorKind, LockManager, Result, Write};

use crate::support::{
    Answer, Hostile, Kind, Nodes, Server, at_last, build, cannot_show, hasty, manager, ms, patient,
    secs, to_scripts, unused_url, wait_until,
};

/// The errors so far, each with its origin and its text.
#[derive(Default)]
struct Texts {
    written: String,
    kinds: Vec<ErrorKind>,
    /// Parts that differ from run to run, and their placeholders.
    hidden: Vec<(String, &'static str)>,
}

impl Texts {
    #[track_caller]
    fn add<T>(&mut self, made_by: &str, outcome: Result<T>) {
        let Err(error) = outcome else {
            panic!("{made_by}: no error");
        };
        let mut lines = vec![error.to_string()];
        let mut source = std::error::Error::source(&error);
        while let Some(deeper) = source {
            lines.push(deeper.to_string());
            source = deeper.source();
        }
        // A reporter prints the whole chain, so no part may occur twice.
        for (number, line) in lines.iter().enumerate() {
            for deeper in &lines[number + 1..] {
                assert!(!line.contains(deeper.as_str()), "{made_by}: {lines:?}");
            }
        }
        let chain = lines.join(": ");
        assert_eq!(format!("{error:#}"), chain);
        assert_eq!(format!("{error:?}"), format!("{:?}: {chain}", error.kind()));
        for line in &lines {
            for idiom in ["makes no sense", "cannot be had", "there is none", "s3cret"] {
                assert!(!line.contains(idiom), "{made_by}: {line}");
            }
            assert!(!line.contains(char::is_control), "{made_by}: {line:?}");
        }
        let first = lines[0].chars().next();
        assert!(
            first.is_some_and(char::is_lowercase),
            "{made_by}: {lines:?}"
        );
        self.kinds.push(error.kind());
        let text = lines.join("\n    caused by: ");
        let text = self
            .hidden
            .iter()
            .fold(text, |text, (found, stands)| text.replace(found, stands));
        self.written.extend([made_by, "\n    ", &text, "\n"]);
    }

    /// Does the same for a connection to this address that could not be opened. The first line names it.
    #[track_caller]
    fn add_unopened<T>(&mut self, made_by: &str, address: &str, outcome: Result<T>) {
        if let Err(error) = &outcome {
            assert!(error.to_string().contains(address), "{made_by}: {error}");
        }
        self.add(made_by, outcome);
    }

    /// Hides the time that a call has waited.
    fn hide_wait(&mut self, error: &Error) {
        if let Error::Timeout { waited, holder, .. } = error {
            self.hidden.push((format!("{waited:?}"), "WAITED"));
            let holder = holder.as_deref().expect("it is held");
            self.hidden.push((holder.into(), "OWNER"));
        }
    }
}

#[test]
fn every_error_has_its_reviewed_text() {
    let mut texts = Texts::default();
    settings(&mut texts);
    urls_with_settings(&mut texts);
    names_and_claims(&mut texts);
    losses_and_waits(&mut texts);
    kinds_of_one_name(&mut texts);
    servers(&mut texts);
    quorums(&mut texts);
    for kind in [
        ErrorKind::Closed,
        ErrorKind::Cancelled,
        ErrorKind::Config,
        ErrorKind::InvalidName,
        ErrorKind::Lost,
        ErrorKind::Timeout,
        ErrorKind::Unavailable,
        ErrorKind::Denied,
        ErrorKind::WrongType,
        ErrorKind::NotReplicated,
        ErrorKind::NoQuorum,
        ErrorKind::Unsupported,
        ErrorKind::Refused,
        ErrorKind::Protocol,
    ] {
        assert!(texts.kinds.contains(&kind), "{kind} was not met");
    }
    if cannot_show("the server's errors in scripts have other words there") {
        return;
    }
    let path = Path::new(crate::ROOT).join("tests/it/error_texts.txt");
    if std::env::var_os("LEASEHOLD_WRITE_TEXTS").is_some() {
        fs::write(&path, &texts.written).expect("it is writable");
    }
    let reviewed = fs::read_to_string(&path).unwrap_or_default();
    for (now, then) in texts.written.lines().zip(reviewed.lines()) {
        assert_eq!(now, then, "see the head of this file");
    }
    assert_eq!(texts.written, reviewed, "see the head of this file");
}

fn settings(texts: &mut Texts) {
    let one = || LockManager::single("redis://127.0.0.1/");
    let (zero, none) = (Duration::ZERO, Some(Duration::ZERO));
    for (made_by, builder) in [
        ("lease(0)", one().lease(zero)),
        ("quantum(0)", one().quantum(zero)),
        ("connect_timeout(0)", one().connect_timeout(zero)),
        ("io_timeout(MAX)", one().io_timeout(Duration::MAX)),
        ("outage_limit(0)", one().outage_limit(zero)),
        ("fence_memory(0)", one().fence_memory(zero)),
        ("max_hold(0)", one().max_hold(none)),
        ("warn_after(0)", one().warn_after(none)),
        ("pool_size(0)", one().pool_size(0)),
        ("replicas(1001)", one().replicas(1001)),
        ("database(-1)", one().database(-1)),
        ("label with a space", one().label("a b")),
        ("label too long", one().label("a".repeat(129))),
        ("prefix too long", one().prefix("a".repeat(1025))),
    ] {
        texts.add(made_by, builder.build_lazy());
    }
    for url in [
        "127.0.0.1:6379",
        "http://127.0.0.1/",
        "redis://user:s3/cret@127.0.0.1/",
        "redis://127.0.0.1:70000/",
        "redis://127.0.0.1/one",
        "redis://127.0.0.1/?db=1",
        "redis://127.0.0.1/#1",
        "redis://0.0.0.0/",
        "unix:///redis.sock?password=s3cret",
    ] {
        let made_by = format!("single({url:?})");
        texts.add(&made_by, LockManager::single(url).build_lazy());
    }
}

fn urls_with_settings(texts: &mut Texts) {
    for url in [
        "redis://127.0.0.1/?leese=10s",
        "redis://127.0.0.1/?ttl=10s",
        "redis://127.0.0.1/?lease=10",
        "redis://127.0.0.1/?password=s3cret&s3cret",
    ] {
        let made_by = format!("from_url({:?})", url.replace("s3cret", "…"));
        texts.add(&made_by, LockManager::from_url(url));
    }
    texts.add("parse_time(\"10\")", leasehold::parse_time("10"));
}

fn quorums(texts: &mut Texts) {
    let nodes = || LockManager::quorum(["redis://127.0.0.1:1/", "redis://127.0.0.1:2/"]);
    let checked = |builder: Builder| builder.build_lazy();
    texts.add(
        "a quorum of no nodes",
        checked(LockManager::quorum([""; 0])),
    );
    texts.add("a quorum with replicas", checked(nodes().replicas(1)));
    texts.add(
        "a quorum with a poller gap",
        checked(nodes().poller_gap(ms(1))),
    );
    texts.add(
        "a quorum with a fence_memory of 2 s",
        checked(nodes().fence_memory(secs(2))),
    );
    let short = nodes().restart_delay(secs(10));
    texts.add(
        "a lease of 30 s and a restart_delay of 10 s",
        checked(short.clone()),
    );
    texts.add(
        "node_timeout(0)",
        checked(nodes().node_timeout(Duration::ZERO)),
    );
    texts.add(
        "restart_delay(MAX)",
        checked(nodes().restart_delay(Duration::MAX)),
    );
    let locks = checked(short.lease(secs(10))).expect("good settings");
    let long = locks.mutex("n").lease(secs(11)).lock();
    texts.add("a longer lease than the restart_delay", long);
    texts.add("a semaphore on a quorum", locks.semaphore("n", 1).acquire());
    texts.add("the record of a job on a quorum", locks.once("n").last());
    // The first call ends with the first node, while the other is connected to.
    wait_until("both nodes are down", || {
        let tried = format!("{:?}", locks.lock("n"));
        !tried.contains("is being connected to")
    });
    texts.add("nobody listens at two nodes", locks.lock("n"));
    let servers = Nodes::start(2);
    let _first = build(servers.builder().restart_delay(secs(60)));
    // Either node may be the first that is compared.
    for url in servers.urls() {
        let address = url.replace("redis://", "").replace('/', "");
        texts.hidden.push((address, "HOST:PORT"));
    }
    let second = servers.builder().restart_delay(secs(40)).build();
    texts.add("another restart_delay", second);
}

fn names_and_claims(texts: &mut Texts) {
    let locks = patient(&unused_url()).build_lazy().expect("good settings");
    texts.add("an empty name", locks.lock(""));
    texts.add("a name that is too long", locks.lock("a".repeat(1025)));
    texts.add("braces without a slot", locks.lock("a}b"));
    texts.add("a companion's name", locks.lock("a:lh:fence"));
    texts.add("a line break in a name", locks.lock("a\n}"));
    texts.add("multi of no name", locks.multi([""; 0]).lock());
    texts.add("multi of a name twice", locks.multi(["a", "b", "a"]).lock());
    let many = (0..1_001).map(|number| number.to_string());
    texts.add("multi of too many names", locks.multi(many).lock());
    texts.add("semaphore of no permits", locks.semaphore("n", 0).acquire());
    texts.add(
        "more permits than there are",
        locks.semaphore("n", 3).acquire_many(4),
    );
    texts.add(
        "rate_limiter of no permits",
        locks.rate_limiter("n", 0, secs(1)).acquire(),
    );
    texts.add(
        "rate_limiter per nothing",
        locks.rate_limiter("n", 1, Duration::ZERO).acquire(),
    );
    for claim in ["", "1/owner/n", "x/owner/n"] {
        texts.add(&format!("claim {claim:?}"), claim.parse::<Claim>());
    }
}

fn losses_and_waits(texts: &mut Texts) {
    let server = Server::start();
    let (raw, url) = (server.raw(), server.url());
    let locks = manager(&url);
    let guard = locks.lock("n").expect("it is free");
    texts.add("extend for too long", guard.extend(Duration::MAX));
    let other = manager(&url);
    let timeout = (0..10)
        .map(|_| other.with_lock("n", ms(300), |_| ()))
        .find(|outcome| matches!(outcome, Err(Error::Timeout { .. })))
        .expect("it is held");
    texts.hide_wait(timeout.as_ref().expect_err("it is held"));
    texts.add("with a lock that is held", timeout);
    let () = raw.ask(&["RPUSH", "queue", "x"]);
    let write = |command, key| Write::new(command, key).arg("x");
    let wrong = guard.commit(&[write("APPEND", "text"), write("APPEND", "queue")]);
    texts.add("a write of a key of another type", wrong);
    texts.add(
        "a command that is no write",
        guard.commit(&[write("GET", "text")]),
    );
    texts.add("a write of the lock", guard.commit(&[write("SET", "n")]));
    let () = raw.ask(&["DEL", "n"]);
    texts.add(
        "a write without the lock",
        guard.commit(&[write("SET", "text")]),
    );
    texts.add("the key is deleted", guard.release());
    let (job, early) = (locks.once("n"), SystemTime::UNIX_EPOCH - secs(1));
    texts.add("a fire before 1970", job.claim(early));
    texts.add("a period of no length", job.claim_every(ms(0), ms(0)));
    let short = job.clone().keep_for(secs(10));
    texts.add(
        "a period that is longer than the record",
        short.claim_every(secs(6), ms(0)),
    );
    texts.add(
        "a record that is not kept",
        job.clone().keep_for(ms(0)).claim(SystemTime::UNIX_EPOCH),
    );
    let long = locks.election("n").campaign(&"x".repeat(201));
    texts.add("a value of 201 bytes", long.map(drop));
    let guard = locks.lock("n").expect("it is free");
    let () = raw.ask(&["SET", "n", "theirs"]);
    texts.add("another owner holds the key", guard.release());
    let () = raw.ask(&["DEL", "n"]);
    // The grant must come before the lease is over.
    let short = locks.mutex("n").lease(ms(500)).renew(false);
    let guard = at_last(|| short.lock());
    wait_until("the lease is over", || guard.check().is_err());
    texts.add("the lease is over", guard.check());
    let held = locks
        .mutex("h")
        .max_hold(Some(ms(1)))
        .lock()
        .expect("it is free");
    wait_until("it was held for too long", || held.check().is_err());
    texts.add("held for longer than max_hold", held.check());
    let replicated = build(patient(&url).io_timeout(secs(5)).replicas(1));
    texts.add("no replica", replicated.lock("r"));
    let last = patient(&url).database(16).build();
    texts.add("a database that the server does not have", last);
    let stop = Cancel::new();
    stop.cancel();
    let cancelled = locks.mutex("n").cancel_with(&stop);
    texts.add("the call is cancelled", cancelled.lock());
    assert!(locks.close(secs(30)));
    texts.add("the manager is closed", locks.lock("n"));
}

/// Each kind asks for a name that another kind has.
fn kinds_of_one_name(texts: &mut Texts) {
    let server = Server::start();
    let (raw, locks, other) = (server.raw(), manager(&server.url()), manager(&server.url()));
    let kinds = [
        Kind::Mutex,
        Kind::Reentrant,
        Kind::Multi,
        Kind::Reader,
        Kind::Writer,
        Kind::Permit,
    ];
    let same = |one: Kind, two: Kind| one.family() == two.family();
    for held in kinds {
        let guard = held.of(&other, "n").lock().expect("it is free");
        for asked in kinds.into_iter().filter(|&asked| !same(held, asked)) {
            let outcome = asked.of(&locks, "n").try_lock();
            let text = outcome
                .as_ref()
                .expect_err("it is another kind's")
                .to_string();
            assert!(
                text.contains("a lock of another kind has this name"),
                "{text}"
            );
            texts.add(
                &format!("a {} while it is a {}", asked.name(), held.name()),
                outcome,
            );
        }
        let limiter = locks.rate_limiter("n", 1, secs(1));
        texts.add(
            &format!("a rate limiter while it is a {}", held.name()),
            limiter.acquire(),
        );
        drop(guard);
        let () = raw.ask(&["DEL", "n"]);
    }
    locks
        .rate_limiter("n", 1, secs(600))
        .acquire()
        .expect("it is the first");
    for asked in kinds {
        let outcome = asked.of(&locks, "n").try_lock();
        texts.add(
            &format!("a {} while it is a rate limiter", asked.name()),
            outcome,
        );
    }
    let () = raw.ask(&["RPUSH", "{f}:lht:fence", "a list"]);
    texts.add("a list in place of the fence", locks.lock("{f}"));
}

/// The test sends these error replies itself, because their words differ between versions of servers.
fn servers(texts: &mut Texts) {
    let absent = unused_url();
    let address = |url: &str| {
        url.trim_start_matches("redis://")
            .trim_end_matches('/')
            .to_owned()
    };
    let nowhere = address(&absent);
    texts.hidden.push((nowhere.clone(), "HOST:PORT"));
    texts.add_unopened("nobody listens", &nowhere, LockManager::connect(&absent));
    let lazy = LockManager::connect_lazy(&absent).expect("good settings");
    texts.add_unopened("nobody listens, for a lock", &nowhere, lazy.lock("n"));
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let here = address(&hostile.url());
    texts.hidden.push((here.clone(), "HOST:PORT"));
    for line in [
        "LOADING Redis is loading the dataset in memory",
        "NOPERM User app has no permissions to run the 'evalsha' command",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "MOVED 1234 127.0.0.1:7001",
        "ERR unknown command 'EVALSHA', with args beginning with: 'n'",
        "WHATEVER it may be",
    ] {
        hostile.behaves();
        let locks = at_last(|| patient(&hostile.url()).build());
        hostile.answers(to_scripts(Answer::Say(format!("-{line}\r\n").into_bytes())));
        texts.add(line, locks.lock("n"));
    }
    for (made_by, answer) in [
        (
            "an answer of another form",
            Answer::Say(b"+OK\r\n".to_vec()),
        ),
        (
            "no answer of a Redis",
            Answer::Say(b"HTTP/1.1 400\r\n".to_vec()),
        ),
        ("half an answer", Answer::Close(b"$5\r\nab".to_vec())),
    ] {
        hostile.behaves();
        let locks = at_last(|| patient(&hostile.url()).build());
        hostile.answers(to_scripts(answer));
        texts.add(made_by, locks.lock("n"));
    }
    hostile.behaves();
    let locks = at_last(|| hasty(&hostile.url()).build());
    hostile.answers(to_scripts(Answer::Say(Vec::new())));
    texts.add("no answer in time", locks.lock("n"));
    let login = hostile.url().replace("//", "//user:s3cret@");
    for answer in [
        "WRONGPASS invalid username-password pair or user is disabled.",
        "ERR unknown command 'AUTH', with args beginning with: 'user' 's3cret'",
        "ERR the proxy does not like s3cret",
    ] {
        hostile.answers(move |words| match words {
            [verb, ..] if verb == b"AUTH" => Answer::Say(format!("-{answer}\r\n").into_bytes()),
            _ => Answer::Pass,
        });
        let made_by = format!("the login: {}", answer.replace("s3cret", "…"));
        texts.add_unopened(&made_by, &here, patient(&login).build());
    }
    let no_auth = "NOAUTH Authentication required.";
    hostile.answers(move |words| match words {
        [] => Answer::Pass,
        _ => Answer::Say(format!("-{no_auth}\r\n").into_bytes()),
    });
    texts.add_unopened(no_auth, &here, patient(&hostile.url()).build());
    for greeting in [
        "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the \
         default user. In this mode connections are only accepted from the loopback interface.\r\n",
        "-ERR max number of clients reached\r\n",
        "\x15\x03\x03\0\x02\x02F",
    ] {
        hostile.answers(move |words| match words {
            [] => Answer::Close(greeting.as_bytes().to_vec()),
            _ => Answer::Pass,
        });
        let made_by = format!("greeted: {}", greeting.escape_default());
        texts.add_unopened(&made_by, &here, patient(&hostile.url()).build());
    }
    for mode in ["cluster", "sentinel"] {
        hostile.answers(move |words| match words {
            [verb, ..] if verb == b"INFO" => {
                let report = format!("redis_mode:{mode}\r\n");
                Answer::Say(format!("${}\r\n{report}\r\n", report.len()).into_bytes())
            }
            _ => Answer::Pass,
        });
        texts.add(&format!("a {mode}"), patient(&hostile.url()).build());
    }
}
