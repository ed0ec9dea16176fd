//! Invalid and odd arguments. A call refuses them before it sends a request, or they work like any other.
//! `contract/refusals.rs` tests that each way to lock each kind refuses invalid names and options.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Admission, Builder, Claim, Error, LockManager, Result};

use crate::support::{
    Guard, Kind, PATIENCE, Server, build, fence_of, lost, manager, ms, name, patient, secs, shared,
    task, unfit_names, unused_url, wait_until,
};

const DAY: Duration = secs(24 * 60 * 60);
const NANO: Duration = Duration::from_nanos(1);

/// Returns the longest duration that is shorter.
fn less(length: Duration) -> Duration {
    length.saturating_sub(NANO)
}

#[track_caller]
fn is_config<T>(outcome: Result<T>, option: &str) {
    match outcome.map(drop) {
        Err(error @ Error::Config { .. }) => {
            let text = error.to_string();
            assert!(
                text.starts_with(&format!("invalid `{option}`: ")),
                "{option}: {text}"
            );
        }
        other => panic!("{option}: {other:?}"),
    }
}

#[test]
fn odd_names_work_like_any_other() {
    let server = Server::start();
    let (here, elsewhere) = (manager(&server.url()), manager(&server.url()));
    let onlooker = manager(&server.url());
    let longest = ["x".repeat(1024), "é".repeat(512), "😀".repeat(256)];
    let odd = [
        "\0",
        "a\nb\r\n",
        " sp ace ",
        "quo'te\"s\\",
        "é😀\u{202e}",
        "*",
        "[a-z]?\\*",
        "{",
        "a{b",
        "{a}",
        "{a}b}c",
        "{{a}}",
        "x{a}y{",
        "}{a}",
        ":lh:fences",
        "$1\r\n",
        "-1",
    ];
    let names: Vec<_> = odd.map(str::to_owned).into_iter().chain(longest).collect();
    for kind in Kind::ALL {
        for name in &names {
            // The keys of a multi-lock are longer than the name.
            if kind == Kind::Multi && name.len() == 1024 {
                continue;
            }
            let context = format!("{kind:?} {:?}", &name[..name.len().min(20)]);
            let guard = kind.of(&here, name).lock().expect(&context);
            let fence = guard.fence();
            let waiting = kind.rival().of(&elsewhere, name).locking();
            wait_until("it waits", || {
                let info = onlooker.inspect(name).expect(&context);
                info.is_some_and(|info| info.waiters == 1 && info.name == *name)
            });
            let listed = onlooker.list("*").filter_map(|info| Some(info.ok()?.name));
            assert!(
                listed.into_iter().any(|listed| listed == *name),
                "{context}"
            );
            guard.release().expect(&context);
            assert!(waiting.outcome().expect(&context) >= fence, "{context}");
            let info = onlooker.inspect(name).expect(&context).expect(&context);
            assert_eq!((info.waiters, info.holders.len()), (0, 1), "{context}");
            waiting.release();
            assert_eq!(onlooker.inspect(name).expect(&context), None, "{context}");
        }
    }
}

/// The server counts no command.
#[test]
fn refused_arguments_send_nothing() {
    let server = Server::start();
    let (raw, locks) = (server.raw(), manager(&server.url()));
    let held = locks.mutex("held").lease(secs(600)).renew(false).lock();
    let held = held.expect("it is free");
    let before = raw.commands();
    for name in unfit_names() {
        for kind in Kind::ALL {
            let lock = kind.of(&locks, &name);
            for outcome in [
                lock.lock().map(drop),
                lock.try_lock().map(drop),
                lock.try_lock_for(Duration::MAX).map(drop),
                locks.inspect(&name).map(drop),
                locks.force_release(&name, "owner").map(drop),
                locks.rate_limiter(&name, 1, secs(1)).acquire(),
                locks.with_lock(&name, Duration::MAX, |_| ()),
            ] {
                assert!(
                    matches!(outcome, Err(Error::InvalidName { .. })),
                    "{outcome:?}"
                );
            }
        }
    }
    for lease in [
        Duration::ZERO,
        NANO,
        less(ms(10)),
        DAY + NANO,
        Duration::MAX,
    ] {
        for kind in Kind::ALL {
            is_config(kind.of(&locks, "n").lease(lease).lock(), "lease");
        }
    }
    for lock in Kind::ALL.map(|kind| kind.of(&locks, "n").max_hold(Duration::ZERO)) {
        is_config(lock.try_lock_for(Duration::MAX), "max_hold");
    }
    for wrong in [DAY + NANO, Duration::MAX] {
        is_config(held.extend(wrong), "at_least");
    }
    held.extend(Duration::ZERO).expect("it is as long already");
    is_config(locks.multi(["a", "a"]).lock(), "names");
    is_config(locks.multi([""; 0]).try_lock_for(Duration::MAX), "names");
    is_config(locks.semaphore("n", 0).acquire(), "permits");
    is_config(
        locks.semaphore("n", u32::MAX).acquire_many(u32::MAX),
        "permits",
    );
    is_config(
        locks
            .semaphore("n", 2)
            .try_acquire_many_for(3, Duration::MAX),
        "n",
    );
    is_config(locks.rate_limiter("n", 0, secs(1)).acquire(), "permits");
    for per in [Duration::ZERO, NANO, less(ms(1)), 366 * DAY, Duration::MAX] {
        is_config(locks.rate_limiter("n", 1, per).try_acquire(), "per");
    }
    for text in ["", "1/2/3", "1/lh1:x:y/n"] {
        is_config(text.parse::<Claim>(), "claim");
    }
    assert_eq!(raw.commands(), before);
    held.release().expect("it was held until now");
    assert!(raw.commands() > before, "they are counted");
}

/// A wait of 0 is a try, and the longest wait has no end. Neither is a busy loop.
#[test]
fn a_wait_may_have_any_duration() {
    let server = Server::start();
    let (raw, holder, locks) = (server.raw(), manager(&server.url()), manager(&server.url()));
    let waits: Vec<_> = Kind::ALL
        .iter()
        .map(|&kind| {
            let name = name(kind.name());
            let lock = kind.of(&locks, &name);
            // The one request of the shortest wait may get no reply, because its time is over at once.
            let shortest = || lock.try_lock_for(NANO);
            let is_unanswered =
                |outcome: &Result<Option<Guard>>| matches!(outcome, Err(Error::Unavailable { .. }));
            let free = shortest();
            assert!(
                is_unanswered(&free) || matches!(free, Ok(Some(_))),
                "{free:?}"
            );
            drop(free);
            for wait in [Duration::MAX, Duration::ZERO] {
                let guard = lock.try_lock_for(wait).expect("Redis replies");
                guard.expect("it is free").release().expect("it was held");
            }
            let guard = kind.rival().of(&holder, &name).lock().expect("it is free");
            assert!(
                lock.try_lock_for(Duration::ZERO)
                    .expect("Redis replies")
                    .is_none()
            );
            let held = shortest();
            assert!(is_unanswered(&held) || matches!(held, Ok(None)), "{held:?}");
            let waiting = task(move || {
                let guard = lock.try_lock_for(Duration::MAX);
                guard.map(|guard| guard.map(|guard| guard.fence()))
            });
            raw.wait_until_queued(&name, 1);
            (guard, waiting)
        })
        .collect();
    // The test needs time to pass: a wait polls about once a second, with some ten commands. A busy loop would send
    // thousands.
    let (before, begun) = (raw.commands(), Instant::now());
    thread::sleep(secs(2));
    let a_second = (raw.commands() - before) * 1000
        / u64::try_from(begun.elapsed().as_millis()).expect("short");
    assert!(
        a_second < 100 * Kind::ALL.len() as u64,
        "{a_second} commands a second"
    );
    for (guard, waiting) in waits {
        guard.release().expect("it was held until now");
        assert!(waiting.end().expect("it becomes free").is_some());
    }
}

#[test]
fn every_other_call_that_waits_accepts_any_duration() {
    let server = Server::start();
    let locks = manager(&server.url());
    let (mutex, set) = (locks.mutex("n"), locks.multi(["a", "b"]));
    let reentrant = locks.reentrant_mutex("n");
    let now = Instant::now();
    let far = now.checked_add(365 * 100 * DAY).expect("it can be said");
    for until in [now, far] {
        assert!(
            mutex
                .try_lock_until(until)
                .expect("Redis replies")
                .is_some()
        );
        assert!(set.try_lock_until(until).expect("Redis replies").is_some());
        assert!(
            reentrant
                .try_lock_until(until)
                .expect("Redis replies")
                .is_some()
        );
    }
    for wait in [Duration::ZERO, Duration::MAX] {
        mutex.with(wait, |_| ()).expect("it is free");
        set.with(wait, |_| ()).expect("they are free");
        reentrant.with(wait, |_| ()).expect("it is free");
        locks.with_lock("n", wait, |_| ()).expect("it is free");
        drop(
            locks
                .try_lock_for("n", wait)
                .expect("Redis replies")
                .expect("it is free"),
        );
    }
    let limiter = locks.rate_limiter("rate", 1, ms(100));
    for _ in 0..3 {
        let admission = limiter
            .try_acquire_for(Duration::MAX)
            .expect("Redis replies");
        assert_eq!(admission, Admission::Admitted);
    }
    let admission = limiter
        .try_acquire_for(Duration::ZERO)
        .expect("Redis replies");
    // On a busy machine its place may be free by now.
    if let Admission::RetryAfter(wait) = admission {
        assert!(wait <= ms(100), "{wait:?}");
    }
    let guard = locks.lock("n").expect("it is free");
    let other = manager(&server.url());
    assert!(matches!(
        other.with_lock("n", Duration::ZERO, |_| ()),
        Err(Error::Timeout { .. })
    ));
    guard.release().expect("it was held until now");
    assert!(task(move || locks.close(Duration::MAX)).end());
    assert!(other.close(Duration::ZERO));
}

/// The name of a setting, the function that sets it, and the values to test.
type Length = (
    &'static str,
    fn(Builder, Duration) -> Builder,
    Duration,
    Duration,
);

#[test]
fn durations_work_at_their_bounds_and_are_refused_beyond() {
    let server = Server::start();
    let minute = secs(60);
    let options: [Length; 8] = [
        ("lease", Builder::lease, ms(10), DAY),
        ("quantum", Builder::quantum, ms(1), 60 * minute),
        (
            "connect_timeout",
            Builder::connect_timeout,
            ms(1),
            60 * minute,
        ),
        ("io_timeout", Builder::io_timeout, ms(1), 60 * minute),
        ("outage_limit", Builder::outage_limit, ms(1), Duration::MAX),
        ("fence_memory", Builder::fence_memory, secs(1), 366 * DAY),
        (
            "warn_after",
            |builder, limit| builder.warn_after(Some(limit)),
            NANO,
            Duration::MAX,
        ),
        (
            "max_hold",
            |builder, limit| builder.max_hold(Some(limit)),
            NANO,
            Duration::MAX,
        ),
    ];
    for (option, set, least, most) in options {
        for length in [
            Duration::ZERO,
            NANO,
            less(least),
            most.saturating_add(NANO),
            Duration::MAX,
        ] {
            let built = set(patient(&unused_url()), length).build_unchecked();
            if (least..=most).contains(&length) {
                built.expect(option);
            } else {
                is_config(built, option);
            }
        }
        for length in [least, most] {
            let locks = set(patient(&server.url()), length).build_unchecked();
            let locks = locks.expect(option);
            // A limit of 1 ms may be too short for the request, and a guard with it may be lost at once.
            let outcome = task(move || locks.with_lock(option, PATIENCE, |_| ())).end();
            let is_fine = matches!(
                outcome,
                Ok(()) | Err(Error::Unavailable { .. } | Error::Lost(_))
            );
            assert!(is_fine, "{option} {length:?}: {outcome:?}");
        }
    }
}

#[test]
fn counts_work_at_their_bounds_and_are_refused_beyond() {
    let server = Server::start();
    let builder = || patient(&server.url());
    for size in [0, 1025, u32::MAX] {
        is_config(builder().pool_size(size).build(), "pool_size");
    }
    for replicas in [1001, u32::MAX] {
        is_config(builder().replicas(replicas).build(), "replicas");
    }
    for database in [-1, i64::MIN] {
        is_config(builder().database(database).build(), "database");
    }
    for size in [1, 1024] {
        drop(
            build(builder().pool_size(size))
                .lock("n")
                .expect("it is free"),
        );
    }
    // Only the server knows how many databases it has.
    for database in [16, i64::MAX] {
        let built = builder().database(database).build().map(drop);
        is_config(built, "database");
    }
    drop(build(builder().database(15)).lock("n").expect("it is free"));
}

#[test]
fn prefixes_are_refused_or_part_of_the_key() {
    let raw = shared();
    for long in [1025, 10_000] {
        let builder = patient(&unused_url()).prefix("p".repeat(long));
        is_config(builder.build_unchecked(), "prefix");
    }
    let longest = "p".repeat(1024);
    for (prefix, end, is_fit) in [
        ("{", "n", true),
        ("{", "n}", true),
        ("{a}", "n}", true),
        ("\0\n\r", "n", true),
        ("é ", "n", true),
        ("*?[a]\\", "n", true),
        ("'\"", "n", true),
        (&longest, "n", true),
        ("}", "n", false),
        ("{}", "n", false),
        ("a}", "n", false),
        ("{", "}n", false),
        ("x:lh", ":fence", false),
    ] {
        // The name is unique to this run, unless the prefix leaves no room for that.
        let own = if is_fit {
            name("prefix") + end
        } else {
            end.to_owned()
        };
        let locks = build(patient(raw.url()).prefix(prefix));
        for kind in Kind::ALL {
            let lock = kind.of(&locks, &own);
            let outcome = lock.try_lock();
            if !is_fit {
                assert!(
                    matches!(outcome, Err(Error::InvalidName { .. })),
                    "{outcome:?}"
                );
                continue;
            }
            let guard = outcome.expect("Redis replies").expect("it is free");
            assert_eq!(guard.lease().name(), own);
            assert!(raw.exists(&format!("{prefix}{own}")));
            let seen = locks
                .inspect(&own)
                .expect("Redis replies")
                .expect("it is held");
            assert_eq!(seen.name, own);
            guard.release().expect("it was held until now");
        }
    }
}

#[test]
fn labels_are_refused_or_shown() {
    let raw = shared();
    let long = "l".repeat(129);
    for label in [
        "a b",
        "a\nb",
        "\0",
        "\u{7f}",
        "é",
        "!",
        "a!",
        &long,
        &long.repeat(80),
    ] {
        let builder = patient(&unused_url()).label(label);
        is_config(builder.build_unchecked(), "label");
    }
    for label in ["", ":", "a:b:c", "%s'\"\\{}", &long[1..]] {
        let (locks, name) = (build(patient(raw.url()).label(label)), name("label"));
        let guard = locks.lock(&name).expect("it is free");
        let seen = locks
            .inspect(&name)
            .expect("Redis replies")
            .expect("it is held");
        assert_eq!(seen.holders[0].label.as_deref(), Some(label));
        assert_eq!(seen.holders[0].fence, Some(guard.fence()));
        assert!(raw.exists(&fence_of(&name)));
        let claim = guard.detach();
        let again: Claim = claim.to_string().parse().expect("its own text");
        let guard = locks.adopt(&again).expect("it is the claim's");
        let () = raw.ask(&["DEL", &name]);
        lost(guard.release());
    }
}

/// No error shows the password, whichever part of the URL is wrong.
#[test]
fn urls_are_refused_or_used_and_never_shown() {
    let shown = |error: &Error| format!("{error} {error:?}");
    for url in [
        "",
        " ",
        "\n",
        "\0",
        "redis",
        "redis:",
        "redis://",
        "redis:///",
        "redis://:6379",
        "//h",
        "h:6379",
        "http://:s3cret@h",
        "tcp://:s3cret@h",
        "redis+tls://:s3cret@h",
        "redis//:s3cret@h",
        "redis://:s3cret@",
        "redis://:s3cret@:1",
        "redis://:s3cret@h:0",
        "redis://:s3cret@h:-1",
        "redis://:s3cret@h:65536",
        "redis://:s3cret@h:port",
        "redis://:s3cret@[::1",
        "redis://:s3cret@[::g]",
        "redis://:s3cret@[]:1",
        "redis://:s3cret@0.0.0.0",
        "redis://:s3cret@[::]:1",
        "redis://:s3cret@a b",
        "redis://:s3cret@h/nine",
        "redis://:s3cret@h/-1",
        "redis://:s3cret@h/9223372036854775808",
        "redis://:s3cret@h/1/2",
        "redis://:s3cret%ff@h",
        "redis://s3cret%ff:x@h",
        "redis://:s3cret@h?protocol=s3cret",
        "unix://",
        "unix:///?db=s3cret",
        "unix:///x?pass=s3cret&db=-1",
        "redis://h?unknown=s3cret",
        "redis://h/#s3cret",
        "s3cret",
        "s3cret://h",
    ] {
        for error in [
            LockManager::connect(url).map(drop),
            LockManager::single(url).build_unchecked().map(drop),
        ] {
            match error {
                Err(error @ Error::Config { option: "url", .. }) => {
                    assert!(!shown(&error).contains("s3cret"), "{url:?}: {error:?}");
                }
                other => panic!("{url:?}: {other:?}"),
            }
        }
    }
    for url in [
        "redis://h",
        "redis://h/",
        "redis://h:1/0",
        "REDIS://h",
        "redis://[::1]:1/",
        "redis://127.0.0.1",
        "redis://user:s3cr%3Aet@h",
        "redis://user:s3cret:more@h",
        "redis://:s3cret%20%40%2F@h/3",
        "redis://us%20er@h",
        "redis://h?protocol=resp3",
        "valkey://:s3cret@h",
        "unix:///nowhere.sock?db=1&user=u&pass=s3cret",
        "redis+unix:///nowhere.sock",
    ] {
        let builder = LockManager::single(url);
        assert!(!format!("{builder:?}").contains("s3cret"), "{url}");
        let locks = builder
            .build_unchecked()
            .unwrap_or_else(|error| panic!("{url}: {error}"));
        assert!(!format!("{locks:?}").contains("s3cret"), "{url}");
    }
    // Nothing resolves these hosts. No server listens at the addresses of this machine.
    for url in [
        unused_url().replace("//", "//user:s3cret@"),
        unused_url().replace("127.0.0.1", ":s3cret@[::1]"),
        "unix:///nowhere.sock?pass=s3cret".into(),
    ] {
        let error = LockManager::connect(&url).expect_err("nobody is there");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(!shown(&error).contains("s3cret"), "{error:?}");
    }
}
