//! Ways to a real server: sockets, logins, rights. And what the types promise to programs.

use std::{fs, thread};

use leasehold::{
    Builder, Error, Lease, LockGuard, LockManager, Lost, MultiGuard, MultiLock, Mutex, Permit,
    RateLimiter, ReadGuard, ReentrantGuard, ReentrantMutex, RwLock, Semaphore, WriteGuard,
};

use crate::support::{
    Nodes, SLOTS, Server, at_last, build, give_slots, locking, manager, ms, name, patient, secs,
    wait_until,
};

#[test]
fn handles_and_guards_are_send_and_sync() {
    fn both<T: Send + Sync + 'static>() {}
    fn shared<T: Sync + 'static>() {}
    both::<LockManager>();
    both::<Builder>();
    both::<Mutex>();
    both::<ReentrantMutex>();
    both::<RwLock>();
    both::<Semaphore>();
    both::<MultiLock>();
    both::<RateLimiter>();
    both::<LockGuard>();
    both::<ReadGuard>();
    both::<WriteGuard>();
    both::<Permit>();
    both::<MultiGuard>();
    both::<Lease>();
    both::<Lost>();
    both::<Error>();
    // It must stay on its thread, but other threads may read it.
    shared::<ReentrantGuard>();
}

#[test]
fn a_unix_socket_is_an_address() {
    let dir = std::env::temp_dir().join(name("socket").replace(':', "-"));
    let socket = dir.to_str().expect("a plain path").to_owned();
    let server = Server::with(&["--unixsocket", &socket, "--requirepass", "pass s3cret"]);
    let locks = manager(&format!("unix://{socket}?pass=pass%20s3cret&db=3"));
    let guard = locks.lock("n").expect("it is free");
    let elsewhere = server
        .url()
        .replace("redis://", "redis://:pass%20s%33cret@");
    assert!(
        manager(&format!("{elsewhere}3"))
            .try_lock("n")
            .expect("Redis replies")
            .is_none()
    );
    assert!(
        manager(&elsewhere)
            .try_lock("n")
            .expect("Redis replies")
            .is_some()
    );
    // The builder's database comes before the URL's.
    let third = build(patient(&elsewhere).database(3));
    assert!(third.try_lock("n").expect("Redis replies").is_none());
    guard.release().expect("it is held");
    drop(server);
    fs::remove_file(socket).ok();
}

/// The first connection recognizes a server that is not one master with all keys. The error says which address to give
/// instead.
#[test]
fn a_cluster_node_or_a_sentinel_is_unsupported() {
    let nodes = std::env::temp_dir().join(name("nodes").replace(':', "-"));
    let nodes = nodes.to_str().expect("a plain path");
    let cluster = Server::of_cluster(&[
        "--cluster-config-file",
        nodes,
        "--cluster-require-full-coverage",
        "no",
    ]);
    let settings = std::env::temp_dir().join(name("sentinel").replace(':', "-"));
    fs::write(&settings, "").expect("a place for files");
    let settings = settings.to_str().expect("a plain path");
    let sentinel = Server::with(&[settings, "--sentinel"]);
    for (server, is) in [
        (&cluster, "a node of a Redis Cluster"),
        (&sentinel, "a sentinel"),
    ] {
        let instead = if is == "a sentinel" {
            "redis+sentinel://"
        } else {
            "redis+cluster://"
        };
        let is_told = |error: &Error| {
            let text = error.to_string();
            let told = text.contains(is) && text.contains(instead) && !error.is_retryable();
            assert!(told, "{error:?}: {text}");
            assert!(format!("{error:?}").starts_with("Unsupported"), "{error:?}");
        };
        is_told(&patient(&server.url()).build().expect_err(is));
        let unchecked = patient(&server.url()).build_lazy().expect("a good URL");
        // Each call returns the error, not only the first one.
        for _ in 0..2 {
            is_told(&unchecked.lock("n").expect_err(is));
            is_told(&unchecked.multi(["a", "b"]).try_lock().expect_err(is));
            is_told(&unchecked.inspect("n").expect_err(is));
        }
    }
    // Without the right to INFO the mode is unknown until the server names another slot.
    let raw = cluster.raw();
    let () = raw.ask(&["ACL", "SETUSER", "default", "-info", "-config"]);
    let locks = manager(&cluster.url());
    for error in [
        locks.lock("n").expect_err("it has no slot"),
        locks.multi(["a", "b"]).lock().expect_err("two slots"),
    ] {
        let text = error.to_string();
        let is_known = text.contains("cluster") || text.contains("a node of a Redis Cluster");
        assert!(
            is_known || matches!(error, Error::Unavailable { .. }),
            "{error:?}"
        );
    }
    give_slots(&cluster, 0..SLOTS);
    let sets = locks.multi(["a", "b"]);
    let crosses = sets.lock().expect_err("two slots").to_string();
    assert!(crosses.contains("a node of a Redis Cluster"), "{crosses}");
    drop((cluster, sentinel));
    fs::remove_file(nodes).ok();
    fs::remove_file(settings).ok();
}

/// The builder's user and password are in plain text and come before the URL's. A user without a password logs in too.
#[test]
fn the_builder_takes_a_user_and_a_password() {
    const PASSWORD: &str = "pa55 s3cret/%@:";
    let server = Server::start();
    let raw = server.raw();
    let rights = ["on", "~*", "&*", "+@all"];
    let password = format!(">{PASSWORD}");
    let () = raw.ask(&[&["ACL", "SETUSER", "us/er", &password][..], &rights].concat());
    let () = raw.ask(&[&["ACL", "SETUSER", "open", "nopass"][..], &rights].concat());
    let whoami = |locks: &LockManager| {
        drop(locks.lock("n").expect("it is free"));
        let list: String = raw.ask(&["CLIENT", "LIST"]);
        let users = list
            .lines()
            // Redis before 7 shows no subcommand.
            .filter(|line| !line.contains("cmd=client"))
            // The renewal thread's connection may be there and not have logged in yet.
            .filter(|line| !line.contains("cmd=NULL"));
        let mut users: Vec<_> = users
            .filter_map(|line| Some(line.split_once("user=")?.1.split(' ').next()?.to_owned()))
            .collect();
        users.dedup();
        users
    };
    // The server notices the end of a connection late on a busy machine.
    let wait_until_alone = || {
        wait_until("connections are closed", || {
            raw.ask::<String>(&["CLIENT", "LIST"]).lines().count() == 1
        });
    };
    let url = server.url();
    for base in [url.clone(), url.replace("//", "//other:wrong@")] {
        wait_until_alone();
        let builder = patient(&base).username("us/er").password(PASSWORD);
        assert!(!format!("{builder:?}").contains("s3cret"), "{builder:?}");
        let locks = build(builder);
        assert_eq!(whoami(&locks), ["us/er"]);
    }
    wait_until_alone();
    assert_eq!(whoami(&manager(&url.replace("//", "//open@"))), ["open"]);
    let wrong = patient(&url).username("us/er").password("no").build();
    assert!(matches!(wrong, Err(Error::Denied { .. })), "{wrong:?}");
}

/// The password is changed at the server, and all connections end, of a program that holds and of one that waits.
#[test]
fn a_password_is_changed_without_a_restart() {
    let server = Server::start();
    let raw = server.raw();
    let path = std::env::temp_dir().join(name("password").replace(':', "-"));
    let change = |password: &str| {
        fs::write(&path, format!("{password}\n")).expect("a file");
        let set = format!(">{password}");
        let () = raw.ask(&[
            "ACL",
            "SETUSER",
            "app",
            "on",
            "resetpass",
            &set,
            "~*",
            "&*",
            "+@all",
        ]);
        for of in ["normal", "pubsub"] {
            let _: u32 = raw.ask(&["CLIENT", "KILL", "TYPE", of]);
        }
    };
    change("first-s3cret");
    let by_file = || {
        let url = server.url().replace("//", "//app@");
        let url = format!("{url}?password_file={}&lease=12s", path.display());
        build(
            LockManager::from_url(&url)
                .expect("a URL")
                .io_timeout(secs(5)),
        )
    };
    let (holder, other) = (by_file(), by_file());
    let guard = holder.lock("held").expect("it is free");
    let waiter = locking(&other.mutex("held"));
    raw.wait_until_queued("held", 1);
    for next in ["second-s3cret", "third-s3cret"] {
        change(next);
        let before = holder.stats().renewed;
        wait_until("it is renewed", || holder.stats().renewed > before);
        drop(at_last(|| holder.lock("another")));
        drop(at_last(|| other.lock("another")));
    }
    guard.release().expect("it is held");
    drop(waiter.end().expect("it becomes free"));
    // Without the file, open connections serve on.
    fs::remove_file(&path).expect("it was there");
    drop(other.lock("another").expect("its connection is open"));
    let _: u32 = raw.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    let error = other.lock("another").expect_err("there is no password");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        format!("{error:#}").contains("the password file"),
        "{error:#}"
    );
    let built = LockManager::single(&server.url()).password_file(&path);
    let error = built.build_lazy().expect_err("there is no file");
    let is_of = matches!(
        error,
        Error::Config {
            option: "password_file",
            ..
        }
    );
    assert!(is_of, "{error:?}");
}

#[test]
fn credentials_that_panic_are_an_error() {
    let server = Server::start();
    let locks = patient(&server.url()).credentials(|| panic!("on purpose"));
    let error = locks.build().expect_err("there is no password");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        format!("{error:#}").contains("credentials panicked"),
        "{error:#}"
    );
}

#[test]
fn a_database_that_the_server_does_not_have_is_config() {
    let server = Server::start();
    for builder in [
        patient(&(server.url() + "16")),
        patient(&server.url()).database(16),
    ] {
        for built in [
            builder.clone().build().map(drop),
            builder.build_lazy().and_then(|l| l.lock("n")).map(drop),
        ] {
            let error = built.expect_err("there are 16");
            let is_config = matches!(
                error,
                Error::Config {
                    option: "database",
                    ..
                }
            );
            assert!(is_config, "{error:?}");
            assert!(error.to_string().contains("16"), "{error}");
        }
    }
    let last = build(patient(&server.url()).database(15));
    drop(last.lock("n").expect("it is free"));
}

type Use = fn(&LockManager);

/// Returns the rights that the page of `Builder` lists, one entry a line, for this user and password.
pub(crate) fn documented_rights() -> Vec<Vec<String>> {
    let page = include_str!("../../src/builder/mod.rs");
    let lines = page
        .lines()
        .filter_map(|line| line.strip_prefix("/// ACL SETUSER app "));
    let rights = lines.map(|line| {
        let rights = line.split(' ');
        let rights = rights.map(|right| right.replace("PASSWORD", "us3r-s3cret"));
        rights.collect()
    });
    let rights: Vec<_> = rights.collect();
    assert_eq!(rights.len(), 10, "a line for each purpose");
    rights
}

/// The rights on the front page are enough for each kind that they are listed for, also for waits, renewals and
/// hand-overs.
#[test]
fn the_documented_access_list_is_enough_for_every_kind() {
    const MUTEXES: &[Use] = &[
        |locks| drop(locks.lock("mutex").expect("it becomes free")),
        |locks| {
            let set = locks.multi(["mutex", "more"]);
            drop(set.lock().expect("it becomes free"));
        },
        |locks| {
            let guard = locks.lock("mutex").expect("it becomes free");
            guard.extend(secs(60)).expect("it is renewed");
        },
        |locks| {
            let kept = locks.mutex("kept").min_hold(ms(2));
            drop(kept.lock().expect("it becomes free"));
        },
    ];
    const SHARES: &[Use] = &[
        |locks| drop(locks.rwlock("rw").read().expect("it becomes free")),
        |locks| {
            let writer = locks.rwlock("rw").write().expect("it becomes free");
            drop(writer.downgrade().expect("it was held"));
        },
        |locks| {
            let permits = locks.semaphore("permits", 2);
            let permit = permits.acquire().expect("it becomes free");
            permit.extend(secs(60)).expect("it is renewed");
        },
        |locks| {
            let kept = locks.rwlock("kept").min_hold(ms(2));
            drop(kept.write().expect("it becomes free"));
        },
    ];
    const RATES: &[Use] = &[|locks| {
        let limiter = locks.rate_limiter("rate", 3, secs(1) / 100);
        limiter.acquire().expect("it is admitted");
    }];
    const OPERATORS: &[Use] = &[
        |locks| assert!(locks.list("*").all(|lock| lock.is_ok())),
        |locks| drop(locks.inspect("mutex").expect("Redis replies")),
        |locks| {
            let guard = locks.lock("broken").expect("it becomes free");
            let broken = locks.force_release("broken", guard.owner());
            // Another thread may have broken the lock before.
            let _: bool = broken.expect("Redis replies");
        },
        |locks| {
            let claim = locks.lock("claimed").expect("it becomes free").detach();
            drop(locks.adopt(&claim).expect("nobody else has it"));
        },
    ];
    let lines = documented_rights();
    for (line, uses) in [(1, MUTEXES), (2, SHARES), (3, RATES), (5, OPERATORS)] {
        let server = Server::start();
        let raw = server.raw();
        for line in [0, 1, line] {
            let rights = lines[line].iter().map(String::as_str);
            let () = raw.ask(
                &["ACL", "SETUSER", "app"]
                    .into_iter()
                    .chain(rights)
                    .collect::<Vec<_>>(),
            );
        }
        // Database 3 makes the connection send SELECT.
        let url = server.url().replace("//", "//app:us3r-s3cret@") + "3";
        let (one, other) = (manager(&url), manager(&url));
        // The threads run at the same time, so that they also wait and get locks handed over.
        thread::scope(|scope| {
            for subject in uses {
                for locks in [&one, &other, &one, &other] {
                    scope.spawn(move || (0..5).for_each(|_| subject(locks)));
                }
            }
        });
        // A lock that an operator breaks counts as lost.
        if line != 5 {
            assert_eq!(one.stats().lost() + other.stats().lost(), 0);
        }
        // Some refused commands fail no call, but take time.
        let refused: Vec<redis::Value> = raw.ask(&["ACL", "LOG"]);
        assert!(refused.is_empty(), "line {line}: {refused:?}");
        // The right to WAIT is the same for all.
        if line != 1 {
            continue;
        }
        let replicated = build(patient(&url).io_timeout(secs(5)).replicas(1));
        let without = replicated.lock("before");
        assert!(matches!(without, Err(Error::Denied { .. })), "{without:?}");
        let rights = lines[4].iter().map(String::as_str);
        let () = raw.ask(
            &["ACL", "SETUSER", "app"]
                .into_iter()
                .chain(rights)
                .collect::<Vec<_>>(),
        );
        let with = replicated.lock("after");
        assert!(matches!(with, Err(Error::NotReplicated { .. })), "{with:?}");
    }
}

#[test]
fn the_documented_access_list_is_enough_for_a_quorum() {
    const USES: &[Use] = &[
        |locks| {
            let guard = locks.lock("mutex").expect("it becomes free");
            guard.extend(secs(60)).expect("it is renewed");
        },
        |locks| {
            let kept = locks.mutex("kept").min_hold(ms(2));
            drop(kept.lock().expect("it becomes free"));
        },
        |locks| {
            let set = locks.multi(["mutex", "more"]);
            drop(set.lock().expect("it becomes free"));
        },
        |locks| drop(locks.rwlock("rw").read().expect("it becomes free")),
        |locks| drop(locks.rwlock("rw").write().expect("it becomes free")),
        |locks| assert!(locks.list("*").all(|lock| lock.is_ok())),
        |locks| drop(locks.inspect("mutex").expect("the nodes reply")),
        |locks| {
            let guard = locks.lock("broken").expect("it becomes free");
            let broken = locks.force_release("broken", guard.owner());
            broken.expect("the nodes reply");
        },
        |locks| {
            let claim = locks.lock("claimed").expect("it becomes free").detach();
            drop(locks.adopt(&claim).expect("nobody else has it"));
        },
    ];
    let (nodes, lines) = (Nodes::start(3), documented_rights());
    for raw in nodes.raws() {
        for line in [0, 1, 2, 5, 6] {
            let rights = lines[line].iter().map(String::as_str);
            let user = ["ACL", "SETUSER", "app"].into_iter().chain(rights);
            let () = raw.ask(&user.collect::<Vec<_>>());
        }
    }
    let urls = nodes.urls().into_iter();
    let urls: Vec<_> = urls
        .map(|url| url.replace("//", "//app:us3r-s3cret@"))
        .collect();
    let managers = [0; 2].map(|_| build(patient(&urls.join(" "))));
    // The threads run at the same time, so that they also wait and are woken.
    thread::scope(|scope| {
        for subject in USES {
            for locks in managers.iter().chain(&managers) {
                scope.spawn(move || (0..5).for_each(|_| subject(locks)));
            }
        }
    });
    for raw in nodes.raws() {
        let refused: Vec<redis::Value> = raw.ask(&["ACL", "LOG"]);
        assert!(refused.is_empty(), "{refused:?}");
    }
}
