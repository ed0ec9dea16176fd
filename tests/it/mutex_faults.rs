//! Servers that refuse, lose data, hang, stop and come back.

use std::fmt::{Debug, Display, Write};
use std::time::{Duration, Instant};

use leasehold::{Error, LeaseState, LockManager, LostCause};

use crate::support::{
    Child, Fault, PATIENCE, Proxy, Role, SCRIPTS_NEED_NO_REPLICAS, Server, build, cannot_show,
    companions_of, fence_of, locking, locking_asleep, lost, manager, ms, name, patient, secs,
    shared, task, task_asleep, unused_url, wait_until,
};

#[test]
fn an_unreachable_server_is_not_a_held_lock() {
    let url = unused_url();
    let locks = LockManager::single(&url).build_unchecked();
    let locks = locks.expect("no request is sent yet");
    let tried = locks.try_lock("n");
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    let waited = locks.try_lock_for("n", secs(1));
    assert!(
        matches!(waited, Err(Error::Unavailable { .. })),
        "{waited:?}"
    );
    // The first error is returned at once. Otherwise the call would take as long as the outage limit.
    let locked = locks.lock("n");
    assert!(
        matches!(locked, Err(Error::Unavailable { .. })),
        "{locked:?}"
    );
    let with = locks.with_lock("n", secs(1), |_| panic!("it ran without the lock"));
    assert!(matches!(with, Err(Error::Unavailable { .. })));
    let built = LockManager::connect(&url);
    assert!(matches!(built, Err(Error::Unavailable { .. })), "{built:?}");
}

#[test]
fn a_silent_server_is_not_a_held_lock() {
    let server = Server::start();
    let locks = build(patient(&server.url()).io_timeout(ms(1500)));
    server.pause();
    let tried = locks.try_lock("n");
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    server.resume();
    // The renewal thread cleans up whatever the request did.
    let other = manager(&server.url());
    let next = other.try_lock_for("n", secs(15)).expect("Redis replies");
    assert!(next.is_some());
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
        let unchecked = patient(&url).build_unchecked();
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
            .build_unchecked()
            .expect_err("no such URL");
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(!shown(&error).contains("s3cret"), "{}", shown(&error));
    }
}

#[test]
fn a_key_that_is_no_lock_is_the_wrong_type() {
    let redis = shared();
    let locks = manager(redis.url());
    let name = name("wrong-type");
    let () = redis.ask(&["RPUSH", &name, "a list"]);
    let wrong = |result: Result<bool, Error>| {
        let error = result.expect_err("a list is no lock");
        assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
        assert!(error.to_string().contains(&name), "{error}");
    };
    wrong(locks.lock(&name).map(|_| true));
    wrong(locks.try_lock(&name).map(|guard| guard.is_some()));
    wrong(
        locks
            .try_lock_for(&name, PATIENCE)
            .map(|guard| guard.is_some()),
    );
    let kind: String = redis.ask(&["TYPE", &name]);
    assert_eq!(kind, "list");
    let () = redis.ask(&["DEL", &name]);

    // A companion of another type causes the same error, and leaves no orphan.
    let () = redis.ask(&["RPUSH", &fence_of(&name), "a list"]);
    wrong(locks.lock(&name).map(|_| true));
    assert!(!redis.exists(&name));
    let () = redis.ask(&["DEL", &fence_of(&name)]);
    assert!(locks.try_lock(&name).expect("Redis replies").is_some());
}

#[test]
fn a_queue_of_another_type_is_the_wrong_type_for_waiters() {
    let redis = shared();
    let name = name("no-queue");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let guard = one.lock(&name).expect("it is free");
    let [_, queue, waiters] = companions_of(&name);
    for (companion, beside) in [(&queue, &waiters), (&waiters, &queue)] {
        let () = redis.ask(&["SET", companion, "a string", "PX", "60000"]);
        let error = other.lock(&name).expect_err("it cannot queue");
        assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
        assert!(!redis.exists(beside), "{beside} was made for nobody");
        let () = redis.ask(&["DEL", companion]);
    }
    guard.release().expect("it was held until now");
}

#[test]
fn a_queue_of_another_type_leaves_no_orphan() {
    let server = Server::start();
    let (redis, proxy) = (server.raw(), Proxy::to(&server));
    let locks = build(LockManager::single(&proxy.url()).io_timeout(secs(2)));
    // Loads the script into the server, so that the next call sends one request.
    drop(manager(&server.url()).lock("n").expect("it is free"));
    let [_, queue, _] = companions_of("n");
    let () = redis.ask(&["SET", &queue, "a string"]);
    proxy.strike_all(Fault::LoseAnswers);
    let tried = locks.mutex("n").lease(secs(600)).try_lock();
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    proxy.wait_until_struck(Role::Pool);
    assert!(redis.exists("n"), "it was not granted");
    proxy.heal();
    wait_until("its owner is withdrawn", || !redis.exists("n"));
    assert_eq!(redis.get(&queue).as_deref(), Some("a string"));
}

#[test]
fn a_wait_survives_a_restart_whose_holder_is_gone() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    let mut holder = Child::start(&server.url(), "");
    let fence = holder.lock("n");
    let asking = locking(&locks.mutex("n"));
    redis.wait_until_queued("n", 1);
    let behind = locking_asleep(&locks.mutex("n"));
    holder.kill();
    server.restart();
    for wait in [asking, behind] {
        let next = wait.end().expect("the wait goes on");
        assert!(next.fence() > fence);
    }
}

#[test]
fn a_wait_survives_an_outage_whose_holder_is_not_gone() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    let holder = manager(&server.url());
    let guard = holder.mutex("n").lease(secs(6)).lock().expect("it is free");
    let waiter = locking(&locks.mutex("n"));
    redis.wait_until_queued("n", 1);
    server.kill();
    // A renewal is overdue when the state is `AtRisk`.
    wait_until("it is at risk", || guard.state() == LeaseState::AtRisk);
    server.restart();
    // The server lost the key, so exclusion is over. No renewal creates the key again, and the old holder learns of
    // the loss.
    let next = waiter.end().expect("the wait goes on");
    assert!(next.fence() > guard.fence());
    wait_until("the old holder knows", || guard.state() == LeaseState::Lost);
    let cause = lost(guard.release()).cause;
    let by_time_or_by_word = [LostCause::Expired, LostCause::Taken, LostCause::Removed];
    assert!(by_time_or_by_word.contains(&cause), "{cause:?}");
    assert_eq!(redis.get("n").as_deref(), Some(next.owner()));
}

#[test]
fn an_outage_fails_all_threads_together() {
    let server = Server::start();
    let redis = server.raw();
    let limit = secs(2);
    let holder = manager(&server.url());
    let locks = build(patient(&server.url()).outage_limit(limit));
    let guard = holder.lock("n").expect("it is free");
    let wait = || {
        let mutex = locks.mutex("n");
        move || {
            let result = mutex.lock();
            (result, Instant::now())
        }
    };
    let mut waits = vec![task(wait())];
    redis.wait_until_queued("n", 1);
    waits.extend((0..7).map(|_| task_asleep(wait())));
    let begun = Instant::now();
    server.kill();
    let mut ends = Vec::new();
    for wait in waits {
        let (result, end) = wait.end();
        assert!(
            matches!(result, Err(Error::Unavailable { .. })),
            "{result:?}"
        );
        ends.push(end.duration_since(begun));
    }
    ends.sort();
    assert!(ends[0] >= limit, "given up too early: {ends:?}");
    // If they failed one after the other, each would take the whole limit.
    let spread = ends[7].saturating_sub(ends[0]);
    assert!(spread < limit * 3, "one by one: {ends:?}");
    drop(guard);
}

#[test]
fn a_wait_shorter_than_the_outage_limit_ends_at_its_own_deadline() {
    let server = Server::start();
    let redis = server.raw();
    let holder = manager(&server.url());
    let locks = manager(&server.url());
    let _guard = holder.lock("n").expect("it is free");
    let waiting = task(move || locks.try_lock_for("n", secs(3)));
    redis.wait_until_queued("n", 1);
    server.kill();
    // The call could not ask Redis. That is an error, and not "held".
    let result = waiting.end();
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "{result:?}"
    );
}

#[test]
fn scripts_that_were_flushed_are_sent_again() {
    let server = Server::start();
    let redis = server.raw();
    let flush = || -> () { redis.ask(&["SCRIPT", "FLUSH"]) };
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let guard = one.mutex("n").lease(secs(6)).lock().expect("it is free");
    flush();
    redis.wait_until_renewed("n", 2);
    flush();
    assert!(other.try_lock("n").expect("Redis replies").is_none());
    let waiter = locking(&other.mutex("n"));
    redis.wait_until_queued("n", 1);
    flush();
    guard.release().expect("it was held until now");
    flush();
    let guard = waiter.end().expect("it becomes free");
    flush();
    guard.release().expect("it was held until now");
    assert!(!redis.exists("n"));
}

#[test]
fn a_full_pool_stops_neither_renewal_nor_release() {
    let redis = shared();
    let holder = manager(redis.url());
    let locks = build(patient(redis.url()).pool_size(1));
    let mine = name("pool-mine");
    let others: Vec<_> = (0..50).map(|_| name("pool-other")).collect();
    let held: Vec<_> = others
        .iter()
        .map(|name| holder.lock(name).expect("it is free"))
        .collect();
    let guard = locks.mutex(&mine).lease(secs(6)).lock();
    let guard = guard.expect("it is free");
    let waits: Vec<_> = others
        .iter()
        .map(|name| locking(&locks.mutex(name)))
        .collect();
    for name in &others {
        redis.wait_until_queued(name, 1);
    }
    redis.wait_until_renewed(&mine, 2);
    guard.check().expect("it is renewed");
    guard.release().expect("there is a connection for it");
    assert!(!redis.exists(&mine));
    drop(held);
    for wait in waits {
        drop(wait.end().expect("it becomes free"));
    }
}

#[test]
fn a_pool_without_a_free_connection_is_waited_for() {
    let server = Server::start();
    let locks = build(patient(&server.url()).pool_size(1).io_timeout(PATIENCE));
    drop(locks.lock("n").expect("it is free"));
    server.pause();
    // One thread has the only connection and waits for Redis. The others wait for the connection.
    let waits: Vec<_> = (0..5)
        .map(|number| locking_asleep(&locks.mutex(format!("n{number}"))))
        .collect();
    server.resume();
    for wait in waits {
        drop(wait.end().expect("it is free"));
    }
}

#[test]
fn connections_closed_between_requests_cause_no_error() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    let kill = |kind: &str| -> u32 { redis.ask(&["CLIENT", "KILL", "TYPE", kind]) };
    for round in 0..5 {
        let guard = locks.lock("n").expect("the connection is replaced");
        assert!(kill("normal") > 0, "round {round}");
        guard.release().expect("the connection is replaced");
        assert!(kill("normal") > 0, "round {round}");
        let tried = locks.try_lock("n").expect("the connection is replaced");
        let guard = tried.expect("it was released");
        guard.release().expect("it was held until now");
        assert!(kill("normal") > 0, "round {round}");
    }
    assert!(!redis.exists("n"));
}

#[test]
fn a_subscription_whose_connection_was_closed_is_made_again() {
    let server = Server::start();
    let redis = server.raw();
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let listeners = || -> usize {
        let channels: Vec<String> = redis.ask(&["PUBSUB", "CHANNELS", "leasehold:*"]);
        channels.len()
    };
    for _ in 0..3 {
        let guard = one.lock("n").expect("it is free");
        let waiter = locking(&other.mutex("n"));
        redis.wait_until_queued("n", 1);
        let killed: u32 = redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert!(killed > 0);
        wait_until("it listens again", || listeners() > 0);
        guard.release().expect("it was held until now");
        drop(waiter.end().expect("it becomes free"));
    }
}

#[test]
fn a_drop_makes_one_attempt_and_leaves_the_rest_to_the_background() {
    let server = Server::start();
    let redis = server.raw();
    // The lease is far longer than `PATIENCE`, so its end does not free the lock.
    let lease = PATIENCE * 10;
    let locks = build(patient(&server.url()).io_timeout(ms(1500)).lease(lease));
    let guard = locks.lock("n").expect("it is free");
    server.pause();
    let begun = Instant::now();
    drop(guard);
    assert!(begun.elapsed() < PATIENCE);
    assert!(
        !locks.close(Duration::ZERO),
        "who should have carried it out?"
    );
    server.resume();
    assert!(locks.close(PATIENCE), "it is not sent again");
    assert!(!redis.exists("n"));
}

#[test]
fn a_full_server_still_renews_and_releases() {
    let server = Server::start();
    let redis = server.raw();
    let limit = |bytes: &str| -> () { redis.ask(&["CONFIG", "SET", "maxmemory", bytes]) };
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let guard = one.mutex("n").lease(secs(9)).lock().expect("it is free");
    let waiter = locking(&other.mutex("n"));
    redis.wait_until_queued("n", 1);
    limit("1");
    let error = one.try_lock("more").expect_err("there is no room for it");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    redis.wait_until_renewed("n", 2);
    // The server either hands the lock over or only deletes the key, which needs less memory.
    guard.release().expect("it was held until now");
    limit("0");
    drop(waiter.end().expect("the wait goes on"));
}

#[test]
fn a_wait_outlasts_a_server_that_refuses_to_write() {
    if cannot_show(SCRIPTS_NEED_NO_REPLICAS) {
        return;
    }
    let server = Server::start();
    let redis = server.raw();
    let replicas = |n: &str| -> () { redis.ask(&["CONFIG", "SET", "min-replicas-to-write", n]) };
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let guard = one.lock("n").expect("it is free");
    let waiter = locking(&other.mutex("n"));
    redis.wait_until_queued("n", 1);
    replicas("1");
    let error = one.try_lock("more").expect_err("it cannot be written");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = guard.release().expect_err("it cannot be written");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    replicas("0");
    // The renewal thread repeats the release.
    drop(waiter.end().expect("the wait goes on"));
}

#[test]
fn errors_name_their_lock() {
    let locks = LockManager::single(&unused_url()).build_unchecked();
    let error = locks
        .expect("no request is sent yet")
        .lock("the name\n")
        .expect_err("there is no server");
    let text = error.to_string();
    assert!(text.contains("\"the name\\n\""), "{text}");
    assert!(error.is_retryable());
    let cause: Option<&dyn Display> = std::error::Error::source(&error).map(|e| e as &dyn Display);
    assert!(cause.is_some());
}

#[test]
fn a_call_waits_through_an_outage_from_its_first_request_on() {
    let server = Server::start();
    let builder = patient(&server.url()).wait_through_outages(true);
    let locks = builder.clone().build_unchecked();
    let locks = locks.expect("no request is sent yet");
    server.kill();
    let tried = locks.try_lock("n");
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    let waiting = locking(&locks.mutex("n"));
    wait_until("it asks again", || locks.stats().requests > 4);
    server.restart();
    drop(waiting.end().expect("the server is back"));
    // The wait is bounded.
    server.kill();
    let limited = builder.outage_limit(ms(50)).build_unchecked();
    let limited = limited.expect("no request is sent yet").lock("n");
    assert!(
        matches!(limited, Err(Error::Unavailable { .. })),
        "{limited:?}"
    );
    let waited = locks.try_lock_for("n", ms(50));
    assert!(
        matches!(waited, Err(Error::Unavailable { .. })),
        "{waited:?}"
    );
}
