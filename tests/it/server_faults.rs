//! Servers that refuse connections or commands, or that may lose locks. One kind of lock stands for all.

use std::error::Error as _;

use leasehold::{Error, LeaseState, LockManager, LostCause};
use log::Level;

use crate::support::{
    Child, PATIENCE, Server, build, is_before_redis_7, locking, locking_asleep, logged, manager,
    ms, name, patient, secs, task, wait_in_vain, wait_until,
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

/// A connection that stays open while the server refuses others.
struct Operator(redis::Connection);

impl Operator {
    fn of(server: &Server) -> Self {
        let client = redis::Client::open(server.url()).expect("a URL");
        Self(client.get_connection().expect("it is accepted"))
    }

    fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> T {
        let answer = redis::cmd(command[0]).arg(&command[1..]).query(&mut self.0);
        answer.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Makes the server refuse further connections.
    fn close_the_door(&mut self) {
        // The server may still count connections that have ended.
        let mut count = 0;
        wait_until("no connection opens or closes", || {
            let list: String = self.ask(&["CLIENT", "LIST"]);
            let now = list.lines().count();
            std::mem::replace(&mut count, now) == now
        });
        let () = self.ask(&["CONFIG", "SET", "maxclients", &count.to_string()]);
    }

    fn open_the_door(&mut self) {
        let () = self.ask(&["CONFIG", "SET", "maxclients", "1000"]);
    }
}

/// Returns a manager whose pool has its only connection open, so it needs no other while the server refuses them.
fn inside(server: &Server) -> LockManager {
    let locks = build(patient(&server.url()).pool_size(1));
    // Without renewal, so that the renewal thread does not connect yet.
    let guard = locks.mutex("inside").renew(false).lock();
    drop(guard.expect("it is free"));
    locks
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

#[test]
fn a_server_with_too_many_clients_is_unavailable() {
    let server = Server::start();
    let mut operator = Operator::of(&server);
    let unchecked = patient(&server.url()).build_unchecked();
    let unchecked = unchecked.expect("no request is sent yet");
    operator.close_the_door();
    let built = LockManager::connect(&server.url());
    assert!(matches!(built, Err(Error::Unavailable { .. })), "{built:?}");
    for outcome in [unchecked.lock("n").map(Some), unchecked.try_lock("n")] {
        assert!(
            matches!(outcome, Err(Error::Unavailable { .. })),
            "{outcome:?}"
        );
    }
    operator.open_the_door();
    drop(unchecked.lock("n").expect("it is accepted"));
}

#[test]
fn a_renewal_that_cannot_connect_is_retried_until_it_can() {
    let server = Server::start();
    let mut operator = Operator::of(&server);
    let locks = inside(&server);
    // The renewal thread connects when the first lease is registered. The server refuses that connection.
    operator.close_the_door();
    let guard = locks.mutex("n").lease(secs(12)).lock();
    let guard = guard.expect("the pool has its connection");
    wait_until("a renewal fails", || locks.stats().renewals_failed > 0);
    assert_eq!(locks.stats().renewed, 0);
    assert_ne!(guard.state(), LeaseState::Lost);
    operator.open_the_door();
    wait_until("it is renewed", || locks.stats().renewed > 0);
    wait_until("it is held", || guard.state() == LeaseState::Held);
    guard.release().expect("it was held until now");
}

#[test]
fn a_renewal_that_never_connects_loses_the_lock_at_its_deadline() {
    let server = Server::start();
    let mut operator = Operator::of(&server);
    let locks = inside(&server);
    operator.close_the_door();
    let guard = locks.mutex("n").lease(secs(2)).lock();
    let guard = guard.expect("the pool has its connection");
    let loss = guard
        .on_lost()
        .recv_timeout(PATIENCE)
        .expect("it is notified");
    assert_eq!(loss.cause, LostCause::Expired);
    assert!(locks.stats().renewals_failed > 0);
}

#[test]
fn waits_poll_if_the_subscription_cannot_connect() {
    let server = Server::start();
    let mut operator = Operator::of(&server);
    let (one, other) = (inside(&server), inside(&server));
    let guard = one.lock("n").expect("it is free");
    operator.close_the_door();
    let waiter = locking(&other.mutex("n"));
    // The manager could not subscribe, so the wait queues without a channel.
    let waiters = ["HVALS", "{n}:lh:waiters"];
    wait_until("it queues", || {
        let waiters: Vec<String> = operator.ask(&waiters);
        waiters.len() == 1 && waiters[0].ends_with(' ')
    });
    let asked = other.stats().requests;
    wait_until("it polls", || other.stats().requests > asked + 1);
    guard.release().expect("it was held until now");
    drop(waiter.end().expect("it polls"));
    // When the server accepts connections again, the manager subscribes.
    let guard = one.lock("n").expect("it is free");
    operator.open_the_door();
    let waiter = locking(&other.mutex("n"));
    server.raw().wait_until_queued("n", 1);
    guard.release().expect("it was held until now");
    drop(waiter.end().expect("it becomes free"));
}

#[test]
fn a_password_that_is_set_later_is_asked_for_by_new_connections() {
    let server = Server::start();
    let redis = server.raw();
    let mut operator = Operator::of(&server);
    // The pool has one connection, which is open from here on. It would open each of several at its first use.
    let one = build(patient(&server.url()).pool_size(1));
    let other = manager(&server.url());
    let guard = one.mutex("n").lease(secs(15)).lock();
    let guard = guard.expect("it is free");
    let waiter = locking(&other.mutex("n"));
    redis.wait_until_queued("n", 1);
    let password = |password| ["CONFIG", "SET", "requirepass", password];
    let () = operator.ask(&password("s3cret"));
    // Open connections stay logged in.
    drop(one.lock("other").expect("it is open"));
    let _: u32 = operator.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    let denied = waiter.end();
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    let denied = one.try_lock("other");
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    wait_until("a renewal is refused", || one.stats().renewals_failed > 0);
    assert_ne!(guard.state(), LeaseState::Lost);
    let () = operator.ask(&password(""));
    let renewed = one.stats().renewed;
    wait_until("it is renewed", || one.stats().renewed > renewed);
    guard.release().expect("it was held until now");
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
    for _ in 0..3 {
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
    polls_and_says_so_once(&["resetchannels"], deaf);
    polls_and_says_so_once(&["-subscribe"], deaf);
    polls_and_says_so_once(&["-publish"], "does not let this user publish");
}

/// Only the first connection of a manager asks, whichever connection that is.
#[test]
fn a_server_that_may_evict_locks_causes_one_warning() {
    let limited = ["--maxmemory", "100mb", "--maxmemory-policy"];
    for (policy, warns) in [
        ("allkeys-lru", true),
        ("volatile-ttl", true),
        ("noeviction", false),
    ] {
        // If CONFIG has another name, the manager asks by INFO.
        for options in [&[] as &[&str], &["--rename-command", "CONFIG", "moved"]] {
            let server = Server::with(&[&limited[..], &[policy], options].concat());
            let address = format!("127.0.0.1:{} may evict locks", server.port());
            let said = logged(&address);
            let built = manager(&server.url());
            assert_eq!(said.try_iter().count(), usize::from(warns), "{policy}");
            let unchecked = patient(&server.url()).build_unchecked();
            let unchecked = unchecked.expect("no request is sent yet");
            assert_eq!(said.try_iter().count(), 0, "there is no connection");
            drop(unchecked.lock("n").expect("it is free"));
            let warning = said.try_recv();
            assert_eq!(warning.is_ok(), warns, "{policy}");
            if let Ok(warning) = warning {
                assert_eq!(warning.level, Level::Warn);
                assert!(warning.text.contains(policy), "{warning:?}");
            }
            // Subscribes, renews, and opens connections in place of closed ones.
            let guard = built.mutex("m").lease(secs(9)).lock();
            let guard = guard.expect("it is free");
            let waiter = locking(&unchecked.mutex("m"));
            server.raw().wait_until_queued("m", 1);
            wait_until("it is renewed", || built.stats().renewed > 0);
            let _: u32 = server.raw().ask(&["CLIENT", "KILL", "TYPE", "normal"]);
            guard.release().expect("it was held until now");
            drop(waiter.end().expect("it becomes free"));
            assert_eq!(said.try_iter().count(), 0, "the warning is repeated");
        }
    }
}

#[test]
fn a_server_that_evicts_nothing_or_hides_it_causes_no_warning() {
    let silent: &[&str] = &["-config", "-info"];
    for (options, rights) in [
        // Without a memory limit, the server never evicts.
        (
            ["--maxmemory", "0", "--maxmemory-policy", "allkeys-lru"],
            &[] as &[&str],
        ),
        (
            ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"],
            silent,
        ),
    ] {
        let server = Server::with(&options);
        let url = as_user(&server, rights);
        let said = logged(&format!("127.0.0.1:{}", server.port()));
        let locks = manager(&url);
        drop(locks.lock("n").expect("it is free"));
        let said: Vec<_> = said.try_iter().map(|logged| logged.text).collect();
        assert!(said.is_empty(), "{said:?}");
    }
}

/// The question about the eviction policy is subject to the time limits of any request.
#[test]
fn a_silent_first_connection_fails_within_the_io_timeout() {
    let server = Server::start();
    let limit = ms(300);
    let locks = patient(&server.url()).io_timeout(limit).build_unchecked();
    let locks = locks.expect("no request is sent yet");
    server.pause();
    let begun = std::time::Instant::now();
    let tried = locks.try_lock("n");
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    assert!(begun.elapsed() < limit + crate::support::SLACK);
    server.resume();
    let () = server.raw().ask(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let policy = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    let () = server.raw().ask(&policy);
    // The manager could not ask before, so it asks now.
    let said = logged(&format!("127.0.0.1:{} may evict locks", server.port()));
    wait_until("Redis replies", || locks.try_lock("n").is_ok());
    assert_eq!(said.try_iter().count(), 1);
}

/// No promise covers this: for the server, the lease of a crashed process ends an hour late. An operator can end it.
#[test]
fn a_clock_set_back_keeps_what_a_crashed_process_held() {
    let server = Server::with_clock();
    let redis = server.raw();
    let locks = build(patient(&server.url()));
    let mut holder = Child::start(&server.url(), "lease_ms=3000");
    let fence = holder.lock("n");
    server.set_clock_ahead(-60 * 60);
    holder.kill();
    assert!(redis.ttl("n").expect("it expires") > secs(50 * 60));
    // The wait still ends at its deadline.
    wait_in_vain(|| locks.try_lock_for("n", secs(1)));
    let waiter = locking(&locks.mutex("n"));
    redis.wait_until_queued("n", 1);
    let held = locks.inspect("n").expect("Redis replies");
    let held = held.expect("it is held");
    let owner = held.holders[0].owner.clone();
    let broken = locks.force_release("n", &owner);
    assert!(broken.expect("Redis replies"));
    assert!(waiter.end().expect("it becomes free").fence() > fence);
}

/// The connection of the subscription closes with the server. From then on the process hands the old lease on no
/// more.
#[test]
fn a_lease_from_before_a_restart_without_data_is_not_handed_on_in_memory() {
    let server = Server::start();
    let (redis, other) = (server.raw(), manager(&server.url()));
    // No quantum ends during the test, so only the closed connection makes a thread ask.
    let locks = build(patient(&server.url()).quantum(secs(3600)).lease(secs(600)));
    // The manager subscribes when it waits for the first time.
    let first = other.lock("first").expect("it is free");
    let waiter = locking(&locks.mutex("first"));
    redis.wait_until_queued("first", 1);
    first.release().expect("it was held until now");
    drop(waiter.end().expect("it becomes free"));
    // The second guard has fences for many more.
    let guard = locks.lock("n").expect("it is free");
    let next = locking_asleep(&locks.mutex("n"));
    guard.release().expect("it was held until now");
    let guard = next.end().expect("it is taken over");
    let next = locking_asleep(&locks.mutex("n"));
    server.restart();
    wait_until("it subscribes again", || {
        !redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).is_empty()
    });
    let others = other.lock("n").expect("the server has forgotten it");
    // Redis replies that the lock is gone, or no thread has asked yet.
    guard.release().ok();
    redis.wait_until_queued("n", 1);
    let fence = others.fence();
    others.release().expect("it was held until now");
    let last = next.end().expect("it becomes free");
    assert!(last.fence() > fence);
}

/// Redis 7.0 reads its clock twice at a `PEXPIRE`. It deletes a key whose time ends between the two readings.
#[test]
fn a_min_hold_that_ends_at_its_release_leaves_no_key_without_an_expiry() {
    const LOCKS: u32 = 600;
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
