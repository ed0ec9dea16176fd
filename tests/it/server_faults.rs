//! What servers refuse to let in, what they forbid, and what they might forget: where one kind of lock stands for all.

use leasehold::{Error, LeaseState, LockManager, LostCause};
use log::Level;

use crate::support::{
    Child, PATIENCE, Server, build, locking, locking_asleep, logged, manager, ms, name, patient,
    secs, task, wait_in_vain, wait_until,
};

/// A connection that is there when no other is let in.
struct Operator(redis::Connection);

impl Operator {
    fn of(server: &Server) -> Self {
        let client = redis::Client::open(server.url()).expect("a URL");
        Self(client.get_connection().expect("it is let in"))
    }

    fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> T {
        let answer = redis::cmd(command[0]).arg(&command[1..]).query(&mut self.0);
        answer.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Lets nobody in beside those that are.
    fn close_the_door(&mut self) {
        // Those that have gone may not be counted out yet.
        let mut count = 0;
        wait_until("nobody comes or goes", || {
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

/// A manager whose pool has one connection, and that is open: no other is needed while the door is closed.
fn inside(server: &Server) -> LockManager {
    let locks = build(patient(&server.url()).pool_size(1));
    // Not renewed, so the renewal thread does not connect yet.
    let guard = locks.mutex("inside").renew(false).lock();
    drop(guard.expect("it is free"));
    locks
}

#[test]
fn a_server_with_too_many_clients_is_unavailable() {
    let server = Server::start();
    let mut operator = Operator::of(&server);
    let unchecked = patient(&server.url()).build_unchecked();
    let unchecked = unchecked.expect("nothing is asked yet");
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
    drop(unchecked.lock("n").expect("it is let in"));
}

#[test]
fn a_renewal_that_cannot_connect_is_retried_until_it_can() {
    let server = Server::start();
    let mut operator = Operator::of(&server);
    let locks = inside(&server);
    // The renewal thread connects when the first lease is registered, and finds the door closed.
    operator.close_the_door();
    let guard = locks.mutex("n").lease(secs(12)).lock();
    let guard = guard.expect("the pool has its connection");
    wait_until("a renewal fails", || locks.stats().renewals_failed > 0);
    assert_eq!(locks.stats().renewed, 0);
    assert_ne!(guard.state(), LeaseState::Lost);
    operator.open_the_door();
    wait_until("it is renewed", || locks.stats().renewed > 0);
    wait_until("it is held", || guard.state() == LeaseState::Held);
    guard.release().expect("it was held all the while");
}

#[test]
fn a_renewal_that_never_connects_loses_the_lock_at_its_deadline() {
    let server = Server::start();
    let mut operator = Operator::of(&server);
    let locks = inside(&server);
    operator.close_the_door();
    let guard = locks.mutex("n").lease(secs(2)).lock();
    let guard = guard.expect("the pool has its connection");
    let loss = guard.on_lost().recv_timeout(PATIENCE).expect("it is told");
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
    // It could not subscribe, so it queues without a channel.
    let waiters = ["HVALS", "{n}:lh:waiters"];
    wait_until("it queues", || {
        let waiters: Vec<String> = operator.ask(&waiters);
        waiters.len() == 1 && waiters[0].ends_with(' ')
    });
    let asked = other.stats().requests;
    wait_until("it polls", || other.stats().requests > asked + 1);
    guard.release().expect("it was held all the while");
    drop(waiter.end().expect("it polls"));
    // Let in, it listens.
    let guard = one.lock("n").expect("it is free");
    operator.open_the_door();
    let waiter = locking(&other.mutex("n"));
    server.raw().wait_until_queued("n", 1);
    guard.release().expect("it was held all the while");
    drop(waiter.end().expect("it comes free"));
}

#[test]
fn a_password_that_is_set_later_is_asked_for_by_new_connections() {
    let server = Server::start();
    let redis = server.raw();
    let mut operator = Operator::of(&server);
    // With one connection, which is open from here on; of several, each is opened when it is first used.
    let one = build(patient(&server.url()).pool_size(1));
    let other = manager(&server.url());
    let guard = one.mutex("n").lease(secs(15)).lock();
    let guard = guard.expect("it is free");
    let waiter = locking(&other.mutex("n"));
    redis.wait_until_queued("n", 1);
    let password = |password| ["CONFIG", "SET", "requirepass", password];
    let () = operator.ask(&password("s3cret"));
    // Those that are open stay as they are.
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
    guard.release().expect("it was held all the while");
}

/// The URL of a user that may do all but what these rights take away.
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

/// Waits of two managers of a user that lacks something; they are served, and the log says what it lacks, once each.
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
            guard.release().expect("it was held all the while");
            drop(waiter.end().expect("it polls"));
        }
        // The listeners begin anew.
        let _: u32 = server.raw().ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    // Nobody else's managers lack it; if they did, they would say it of their own channels.
    wait_until("both say so", || {
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

/// The first of a manager's connections asks, whichever it is, and no other.
#[test]
fn a_server_that_may_evict_locks_causes_one_warning() {
    let limited = ["--maxmemory", "100mb", "--maxmemory-policy"];
    for (policy, warns) in [
        ("allkeys-lru", true),
        ("volatile-ttl", true),
        ("noeviction", false),
    ] {
        // Where the first way of asking has another name, there is a second.
        for options in [&[] as &[&str], &["--rename-command", "CONFIG", "moved"]] {
            let server = Server::with(&[&limited[..], &[policy], options].concat());
            let address = format!("127.0.0.1:{} may evict locks", server.port());
            let said = logged(&address);
            let built = manager(&server.url());
            assert_eq!(said.try_iter().count(), usize::from(warns), "{policy}");
            let unchecked = patient(&server.url()).build_unchecked();
            let unchecked = unchecked.expect("nothing is asked yet");
            assert_eq!(said.try_iter().count(), 0, "there is no connection");
            drop(unchecked.lock("n").expect("it is free"));
            let warning = said.try_recv();
            assert_eq!(warning.is_ok(), warns, "{policy}");
            if let Ok(warning) = warning {
                assert_eq!(warning.level, Level::Warn);
                assert!(warning.text.contains(policy), "{warning:?}");
            }
            // A listener, a renewal, and connections that were closed.
            let guard = built.mutex("m").lease(secs(9)).lock();
            let guard = guard.expect("it is free");
            let waiter = locking(&unchecked.mutex("m"));
            server.raw().wait_until_queued("m", 1);
            wait_until("it is renewed", || built.stats().renewed > 0);
            let _: u32 = server.raw().ask(&["CLIENT", "KILL", "TYPE", "normal"]);
            guard.release().expect("it was held all the while");
            drop(waiter.end().expect("it comes free"));
            assert_eq!(said.try_iter().count(), 0, "it is said again");
        }
    }
}

#[test]
fn a_server_that_evicts_nothing_or_hides_it_causes_no_warning() {
    let silent: &[&str] = &["-config", "-info"];
    for (options, rights) in [
        // No limit to be reached.
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

/// What asks is under the time limits of whatever connects.
#[test]
fn a_silent_first_connection_fails_within_the_io_timeout() {
    let server = Server::start();
    let limit = ms(300);
    let locks = patient(&server.url()).io_timeout(limit).build_unchecked();
    let locks = locks.expect("nothing is asked yet");
    server.pause();
    let begun = std::time::Instant::now();
    let tried = locks.try_lock("n");
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    assert!(begun.elapsed() < limit + crate::support::SLACK);
    server.resume();
    let () = server.raw().ask(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let policy = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    let () = server.raw().ask(&policy);
    // It could not be asked, so it is asked now.
    let said = logged(&format!("127.0.0.1:{} may evict locks", server.port()));
    wait_until("it is asked", || locks.try_lock("n").is_ok());
    assert_eq!(said.try_iter().count(), 1);
}

/// What nobody promises: to the server, the lease of who crashed ends an hour late. An operator can end it.
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
    // Whoever waits is not kept for longer than it said.
    wait_in_vain(|| locks.try_lock_for("n", secs(1)));
    let waiter = locking(&locks.mutex("n"));
    redis.wait_until_queued("n", 1);
    let held = locks.inspect("n").expect("it is asked");
    let held = held.expect("it is held");
    let owner = held.holders[0].owner.clone();
    let broken = locks.force_release("n", &owner);
    assert!(broken.expect("it is asked"));
    assert!(waiter.end().expect("it comes free").fence() > fence);
}

/// The listener's connection is closed with the server; from then on the old lease is not passed on in memory.
#[test]
fn a_lease_from_before_a_restart_without_data_is_not_handed_on_in_memory() {
    let server = Server::start();
    let (redis, other) = (server.raw(), manager(&server.url()));
    // No quantum ends here, so nothing but the closed connection makes a thread ask.
    let locks = build(patient(&server.url()).quantum(secs(3600)).lease(secs(600)));
    // Its listener is there once it has waited.
    let first = other.lock("first").expect("it is free");
    let waiter = locking(&locks.mutex("first"));
    redis.wait_until_queued("first", 1);
    first.release().expect("it was held all the while");
    drop(waiter.end().expect("it comes free"));
    // The second guard has fences for many more.
    let guard = locks.lock("n").expect("it is free");
    let next = locking_asleep(&locks.mutex("n"));
    guard.release().expect("it was held all the while");
    let guard = next.end().expect("it is taken over");
    let next = locking_asleep(&locks.mutex("n"));
    server.restart();
    wait_until("it hears again", || {
        !redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).is_empty()
    });
    let others = other.lock("n").expect("the server has forgotten it");
    // The server says that it is gone, or nobody has asked yet.
    guard.release().ok();
    redis.wait_until_queued("n", 1);
    let fence = others.fence();
    others.release().expect("it was held all the while");
    let last = next.end().expect("it comes free");
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
