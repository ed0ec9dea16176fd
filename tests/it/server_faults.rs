//! Servers that refuse connections or commands, or that may lose locks: what a real Redis says then. One kind of lock stands
//! for all.

use std::error::Error as _;
use std::fmt::{Debug, Write};
use std::thread;

use leasehold::{Error, LockManager};
use log::Level;

use crate::support::{
    Server, build, is_before_redis_7, locking, logged, manager, ms, name, patient, task, wait_until,
};

/// Redis before 7 holds plain commands to `min-replicas-to-write`, and no scripts.
#[test]
fn a_server_without_its_replicas_grants_by_script_only_before_redis_7() {
    let server = Server::with(&["--min-replicas-to-write", "1"]);
    let locks = manager(&server.url());
    let by_script = locks.try_lock("n");
    let by_command = locks.mutex("m").fencing(false).try_lock();
    assert!(
        matches!(by_command, Err(Error::Unavailable { .. })),
        "{by_command:?}"
    );
    if is_before_redis_7() {
        assert!(by_script.expect("Redis replies").is_some());
    } else {
        assert!(
            matches!(by_script, Err(Error::Unavailable { .. })),
            "{by_script:?}"
        );
    }
}

/// A script that fails at its first write returns the words of the server.
#[test]
fn an_error_names_why_a_server_takes_no_writes() {
    let server = Server::start();
    // With a gap, a try looks at the queue before it writes.
    let locks = build(patient(&server.url()).poller_gap(ms(20)));
    let () = server.raw().ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = locks.try_lock("n").expect_err("it is a replica");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let cause = error.source().expect("the words of the server");
    assert!(cause.to_string().contains("READONLY"), "{cause}");
}

/// Returns the URL of a user with all rights but those that `rights` take away.
fn as_user(server: &Server, rights: &[&str]) -> String {
    let user = [
        "ACL",
        "SETUSER",
        "user",
        "on",
        ">us3r-s3cret",
        "~*",
        "&*",
        "+@all",
    ];
    let () = server.raw().ask(&[&user[..], rights].concat());
    server.url().replace("//", "//user:us3r-s3cret@")
}

/// Checks that the waits of two managers poll, and that each manager logs once what its user lacks.
#[track_caller]
fn polls_and_says_so_once(rights: &[&str], says: &str) {
    let server = Server::start();
    let url = as_user(&server, rights);
    let (one, other) = (manager(&url), manager(&url));
    let mut channels = Vec::new();
    let said = logged(says);
    for _ in 0..2 {
        for (holder, waiter) in [(&one, &other), (&other, &one)] {
            let guard = holder.lock("n").expect("it is free");
            let waiter = locking(&waiter.mutex("n"));
            server.raw().wait_until_queued("n", 1);
            guard.release().expect("it was held until now");
            drop(waiter.end().expect("it polls"));
        }
        // The managers subscribe again.
        let _: u32 = server.raw().ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    // No manager of another test lacks this right. Each record names the channel of its manager.
    wait_until("both managers have logged it", || {
        channels.extend(said.try_iter().map(|logged| {
            assert_eq!(logged.level, Level::Warn);
            let (_, rest) = logged.text.split_once("\"leasehold:").expect("a channel");
            rest.split('"').next().unwrap_or_default().to_owned()
        }));
        channels.len() >= 2
    });
    channels.sort();
    assert!(channels.is_sorted_by(|a, b| a < b), "twice: {channels:?}");
}

#[test]
fn without_pub_sub_rights_waits_poll_and_the_log_reports_it_once() {
    let deaf = "the server refused the subscription to";
    // Most of the time goes by between two polls.
    thread::scope(|scope| {
        scope.spawn(|| polls_and_says_so_once(&["resetchannels"], deaf));
        let mute = "does not let this user publish";
        scope.spawn(|| polls_and_says_so_once(&["-publish"], mute));
    });
}

#[test]
fn a_server_with_too_many_clients_is_unavailable() {
    let server = Server::start();
    let client = redis::Client::open(server.url()).expect("a URL");
    // It stays open while the server refuses others.
    let mut operator = client.get_connection().expect("it is accepted");
    let mut most = |clients: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxclients").arg(clients);
        let set: redis::RedisResult<()> = command.query(&mut operator);
        set.expect("it is a right of the operator");
    };
    let unchecked = patient(&server.url()).build_lazy();
    let unchecked = unchecked.expect("no request is sent yet");
    most("1");
    let built = LockManager::connect(&server.url());
    assert!(matches!(built, Err(Error::Unavailable { .. })), "{built:?}");
    for outcome in [unchecked.lock("n").map(Some), unchecked.try_lock("n")] {
        assert!(
            matches!(outcome, Err(Error::Unavailable { .. })),
            "{outcome:?}"
        );
    }
    most("1000");
    drop(unchecked.lock("n").expect("it is accepted"));
}

/// Only the first connection of a manager asks. A server without a memory limit never evicts.
#[test]
fn a_server_that_may_evict_locks_causes_one_warning() {
    let limited = "100mb";
    let all: &[&str] = &[];
    // If CONFIG has another name, the manager asks by INFO.
    let moved = &["--rename-command", "CONFIG", "moved"];
    for (memory, policy, options, rights, warns) in [
        (limited, "allkeys-lru", all, all, true),
        (limited, "volatile-ttl", moved, all, true),
        (limited, "noeviction", all, all, false),
        ("0", "allkeys-lru", all, all, false),
        (limited, "allkeys-lru", all, &["-config", "-info"], false),
    ] {
        let fixed = ["--maxmemory", memory, "--maxmemory-policy", policy];
        let server = Server::with(&[&fixed, options].concat());
        let url = as_user(&server, rights);
        let address = format!("127.0.0.1:{} may evict locks", server.port());
        let said = logged(&address);
        let built = manager(&url);
        assert_eq!(said.try_iter().count(), usize::from(warns), "{policy}");
        let unchecked = patient(&url).build_lazy();
        let unchecked = unchecked.expect("no request is sent yet");
        assert_eq!(said.try_iter().count(), 0, "there is no connection");
        drop(unchecked.lock("n").expect("it is free"));
        let warning = said.try_recv();
        assert_eq!(warning.is_ok(), warns, "{policy}");
        if let Ok(warning) = warning {
            assert_eq!(warning.level, Level::Warn);
            assert!(warning.text.contains(policy), "{warning:?}");
        }
        // Both open connections in place of closed ones.
        let _: u32 = server.raw().ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        drop(built.lock("n").expect("the connection is replaced"));
        drop(unchecked.lock("n").expect("the connection is replaced"));
        assert_eq!(said.try_iter().count(), 0, "the warning is repeated");
    }
}

/// Returns all that an error shows, with its causes.
fn shown(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        write!(text, " {deeper} {deeper:?}").expect("a write to a string succeeds");
        cause = deeper.source();
    }
    text
}

/// Redis has no code for it, and the server must not be asked again and again.
#[test]
fn a_password_for_a_server_without_one_is_denied_and_not_shown() {
    let server = Server::start();
    let builder = patient(&server.url()).password("s3cret");
    let error = builder.build().expect_err("it has no password");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let said = shown(&error);
    assert!(said.contains("without any password configured"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
}

#[test]
fn a_wrong_password_is_denied_and_not_shown() {
    const WRONG: &str = "wr0ng-s3cret";
    const RIGHT: &str = "r1ght-s3cret";
    let server = Server::with(&["--requirepass", RIGHT]);
    let with = |login: &str| {
        server
            .url()
            .replace("redis://", &format!("redis://{login}"))
    };
    let shows = |thing: &dyn Debug| {
        let text = format!("{thing:?} {thing:#?}");
        assert!(!text.contains("s3cret"), "{text}");
    };

    for login in [
        format!(":{WRONG}@"),
        format!("default:{WRONG}@"),
        format!("nobody:{RIGHT}@"),
        String::new(),
    ] {
        let url = with(&login);
        shows(&LockManager::single(&url));
        let built = patient(&url).build().expect_err("it has no right");
        assert!(matches!(built, Error::Denied { .. }), "{built:?}");
        assert!(!shown(&built).contains("s3cret"), "{}", shown(&built));
        let unchecked = patient(&url).build_lazy();
        let unchecked = unchecked.expect("no request is sent yet");
        shows(&unchecked);
        // A call that waits is `Denied` at once, too.
        let error = unchecked.lock("n").expect_err("it has no right");
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(!shown(&error).contains("s3cret"), "{}", shown(&error));
    }

    let locks = manager(&with(&format!(":{RIGHT}@")));
    shows(&locks);
    let guard = locks.lock("n").expect("the password is right");
    shows(&guard);
    shows(&locks.mutex("n"));
    server.kill();
    let error = locks.lock("other").expect_err("there is no server");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(!shown(&error).contains("s3cret"), "{}", shown(&error));
    for bad in [
        "redis://u:s3cret@host:port/",
        "redis://u:s3cret@host/nine",
        "http://u:s3cret@host",
        "s3cret",
    ] {
        let error = LockManager::single(bad)
            .build_lazy()
            .expect_err("no such URL");
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(!shown(&error).contains("s3cret"), "{}", shown(&error));
    }
}

/// Redis 7.0 reads its clock twice at a `PEXPIRE`. It deletes a key whose time ends between the two readings.
#[test]
fn a_min_hold_that_ends_at_its_release_leaves_no_key_without_an_expiry() {
    const LOCKS: u32 = 200;
    const WITHOUT_EXPIRY: &str = "local found = {} \
        for _, key in ipairs(redis.call('KEYS', '*')) do \
        if redis.call('PTTL', key) == -1 then table.insert(found, key) end end \
        return found";
    let server = Server::start();
    let redis = server.raw();
    let locks = build(patient(&server.url()).min_hold(ms(1)));
    let threads = [(); 8].map(|()| {
        let locks = locks.clone();
        task(move || {
            let name = name("short");
            for number in 0..LOCKS {
                let guard = locks.lock(format!("{name}:{number}")).expect("it is free");
                guard.release().expect("it was held");
            }
        })
    });
    for thread in threads {
        thread.end();
    }
    let found: Vec<String> = redis.ask(&["EVAL", WITHOUT_EXPIRY, "0"]);
    assert_eq!(found, [""; 0]);
}
