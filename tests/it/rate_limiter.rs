//! The rate limiter, checked by the times that it records.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold::{Admission, Error, LockManager, RateLimiter};

use crate::support::{
    PATIENCE, Raw, Server, build, lacks_in_memory, manager, ms, name, secs, shared, task,
    task_asleep, unused_url, wait_until,
};

/// Longer than any test runs, so that no window ends during a test.
const LONG: Duration = Duration::from_mins(10);

#[test]
fn smoke() {
    let name = name("rate");
    let (one, other) = (manager(shared().url()), manager(shared().url()));
    let one = one.rate_limiter(&name, 2, LONG);
    let other = other.rate_limiter(&name, 2, LONG);
    one.acquire().expect("the first");
    let second = other.try_acquire().expect("Redis replies");
    assert_eq!(second, Admission::Admitted);
    for limiter in [one, other] {
        let wait = retry_after(limiter.try_acquire());
        assert!(wait <= LONG && wait > LONG / 2, "{wait:?}");
    }
}

#[track_caller]
fn retry_after(answer: leasehold::Result<Admission>) -> Duration {
    match answer {
        Ok(Admission::RetryAfter(wait)) => wait,
        other => panic!("not refused: {other:?}"),
    }
}

/// Returns the server's time in µs.
fn now(raw: &Raw) -> u64 {
    let (seconds, micros): (u64, u64) = raw.ask(&["TIME"]);
    seconds * 1_000_000 + micros
}

/// All the times that a limiter gives out. Its list keeps only the last ones, so the test reads them by MONITOR.
struct Times(BufReader<TcpStream>);

impl Times {
    fn overhear(server: &Server) -> Self {
        let url = server.url();
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        let mut stream = TcpStream::connect(address).expect("the server is there");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("it is not zero");
        stream.write_all(b"MONITOR\r\n").expect("it is read");
        let mut times = Self(BufReader::new(stream));
        let mut line = String::new();
        times.0.read_line(&mut line).expect("an answer");
        assert_eq!(line.trim_end(), "+OK");
        times
    }

    /// Returns the next times, in the order in which the limiter gave them out.
    fn take(&mut self, count: usize) -> Vec<u64> {
        let mut times = Vec::new();
        let mut line = String::new();
        while times.len() < count {
            line.clear();
            self.0.read_line(&mut line).expect("there are more to come");
            if let Some((_, rest)) = line.split_once("lua] \"RPUSH\" ") {
                let time = rest.trim_end().rsplit('"').nth(1);
                // The head of the list is no time.
                if time.is_some_and(|time| time.contains(' ')) {
                    continue;
                }
                times.push(time.and_then(|time| time.parse().ok()).expect("a time"));
            }
        }
        times
    }
}

#[test]
fn no_window_admits_more_calls_than_the_limit() {
    const PERMITS: usize = 5;
    const PER: Duration = Duration::from_millis(100);
    const THREADS: usize = 16;
    const TIMES: usize = 5;
    if lacks_in_memory("MONITOR") {
        return;
    }
    let server = Server::start();
    let mut overheard = Times::overhear(&server);
    let managers = [manager(&server.url()), manager(&server.url())];
    let threads: Vec<_> = (0..THREADS)
        .map(|index| {
            let limiter = managers[index % 2].rate_limiter("n", PERMITS as u32, PER);
            let raw = server.raw();
            task(move || {
                [(); TIMES].map(|()| {
                    limiter.acquire().expect("Redis replies");
                    assert!(raw.ask::<usize>(&["LLEN", "n"]) <= PERMITS + 1, "no bound");
                    now(&raw)
                })
            })
        })
        .collect();
    let times = overheard.take(THREADS * TIMES);
    assert!(times.is_sorted(), "{times:?}");
    for pair in times.windows(PERMITS + 1) {
        let long = Duration::from_micros(pair[PERMITS] - pair[0]);
        assert!(long >= PER, "{} within {long:?}", PERMITS + 1);
    }
    // No call returned before its time. So in sorted order each return comes after its time.
    let mut back: Vec<u64> = threads
        .into_iter()
        .flat_map(|thread| thread.end())
        .collect();
    back.sort_unstable();
    assert!(back.iter().zip(&times).all(|(back, given)| back >= given));
}

#[test]
fn a_place_is_free_again_one_window_after_it_was_taken() {
    let raw = shared();
    let name = name("slides");
    let limiter = manager(raw.url()).rate_limiter(&name, 3, LONG);
    for _ in 0..3 {
        assert_eq!(
            limiter.try_acquire().expect("Redis replies"),
            Admission::Admitted
        );
    }
    retry_after(limiter.try_acquire());
    // Simulates that the first call was a window ago. So one place is free, and no more.
    let first: u64 = raw.ask(&["LINDEX", &name, "1"]);
    let earlier = first - u64::try_from(LONG.as_micros()).expect("it is small");
    let () = raw.ask(&["LSET", &name, "1", &earlier.to_string()]);
    assert_eq!(
        limiter.try_acquire().expect("Redis replies"),
        Admission::Admitted
    );
    retry_after(limiter.try_acquire());
}

#[test]
fn its_key_expires_after_the_window() {
    let raw = shared();
    let name = name("forgets");
    let limiter = manager(raw.url()).rate_limiter(&name, 1, ms(200));
    // There are more calls than places, so the last call waits.
    let threads = [(); 3].map(|()| {
        let limiter = limiter.clone();
        task(move || limiter.acquire())
    });
    for thread in threads {
        thread.end().expect("in turn");
    }
    wait_until("the key goes", || !raw.exists(&name));
}

#[test]
fn a_wait_that_is_too_long_is_refused_at_once_and_takes_no_place() {
    let raw = shared();
    let name = name("refused");
    let limiter = manager(raw.url()).rate_limiter(&name, 1, LONG);
    limiter.acquire().expect("the first");
    let before: Vec<String> = raw.ask(&["LRANGE", &name, "0", "-1"]);
    let refused = task({
        let limiter = limiter.clone();
        move || limiter.try_acquire_for(LONG / 2)
    });
    // The refusal comes at once: no test waits for half of `LONG`.
    assert!(retry_after(refused.end()) > LONG / 2);
    retry_after(limiter.try_acquire());
    let after: Vec<String> = raw.ask(&["LRANGE", &name, "0", "-1"]);
    assert_eq!(after, before);
    assert!(raw.ttl(&name).expect("it expires") <= LONG);
}

#[test]
fn a_wait_that_is_short_enough_is_admitted() {
    let raw = shared();
    let limiter = manager(raw.url()).rate_limiter(name("short"), 1, ms(300));
    let begun = now(raw);
    for _ in 0..3 {
        let admission = limiter.try_acquire_for(PATIENCE).expect("Redis replies");
        assert_eq!(admission, Admission::Admitted);
    }
    assert!(now(raw) - begun >= 600_000, "two windows");
}

#[test]
fn callers_are_admitted_in_the_order_of_their_requests() {
    const PER: Duration = Duration::from_millis(200);
    if lacks_in_memory("MONITOR") {
        return;
    }
    let server = Server::start();
    let mut overheard = Times::overhear(&server);
    let managers = [manager(&server.url()), manager(&server.url())];
    managers[0]
        .rate_limiter("n", 1, PER)
        .acquire()
        .expect("the first");
    let first = overheard.take(1)[0];
    let threads: Vec<_> = (0..4)
        .map(|index| {
            let limiter = managers[index % 2].rate_limiter("n", 1, PER);
            let raw = server.raw();
            task(move || {
                limiter.acquire().expect("in turn");
                now(&raw)
            })
        })
        // Each call asks only after the call before it has been given its place.
        .inspect(|_| {
            overheard.take(1);
        })
        .collect();
    let per = u64::try_from(PER.as_micros()).expect("it is small");
    for (index, thread) in (1..).zip(threads) {
        assert!(thread.end() >= first + index * per, "number {index}");
    }
}

#[test]
fn closing_ends_a_wait() {
    let locks = manager(shared().url());
    let limiter = locks.rate_limiter(name("closing"), 1, LONG);
    limiter.acquire().expect("the first");
    let waits = {
        let limiter = limiter.clone();
        task_asleep(move || limiter.acquire())
    };
    assert!(locks.close(secs(1)), "nothing is queued");
    assert!(matches!(waits.end(), Err(Error::Closed)));
    assert!(matches!(limiter.try_acquire(), Err(Error::Closed)));
}

#[test]
fn a_wait_outlives_its_server() {
    let server = Server::start();
    let limiter = manager(&server.url()).rate_limiter("n", 1, ms(500));
    limiter.acquire().expect("the first");
    let raw = server.raw();
    let first: String = raw.ask(&["LINDEX", "n", "-1"]);
    let waits = task(move || limiter.acquire());
    wait_until("it has its place", || {
        let last: Option<String> = raw.ask(&["LINDEX", "n", "-1"]);
        last.is_none_or(|last| last != first)
    });
    server.kill();
    waits.end().expect("its place was given");
}

#[test]
fn figures_that_make_no_sense_are_refused_before_anything_is_sent() {
    let locks = LockManager::single(&unused_url())
        .build_unchecked()
        .expect("nothing is sent");
    let refused = |limiter: &RateLimiter, figure: &str| {
        for answer in [
            limiter.acquire(),
            limiter.try_acquire().map(drop),
            limiter.try_acquire_for(secs(1)).map(drop),
        ] {
            match answer {
                Err(error @ Error::Config { .. }) => {
                    assert!(error.to_string().contains(figure), "{error}");
                }
                other => panic!("not refused: {other:?}"),
            }
        }
    };
    refused(&locks.rate_limiter("n", 0, secs(1)), "permits");
    refused(&locks.rate_limiter("n", 1, Duration::ZERO), "per");
    refused(
        &locks.rate_limiter("n", 1, Duration::from_nanos(999_999)),
        "per",
    );
    refused(&locks.rate_limiter("n", 1, Duration::MAX), "per");
    let unnamed = locks.rate_limiter("", 1, secs(1)).acquire();
    assert!(matches!(unnamed, Err(Error::InvalidName { .. })));
}

#[test]
fn the_largest_figures_are_served() {
    let limiter = manager(shared().url()).rate_limiter(
        name("largest"),
        u32::MAX,
        Duration::from_hours(365 * 24),
    );
    for _ in 0..3 {
        assert_eq!(
            limiter.try_acquire().expect("Redis replies"),
            Admission::Admitted
        );
    }
}

#[test]
fn a_key_of_another_kind_is_left_alone() {
    let raw = shared();
    let name = name("kind");
    let locks = manager(raw.url());
    let guard = locks.lock(&name).expect("it is free");
    let limiter = locks.rate_limiter(&name, 1, secs(1));
    assert!(matches!(limiter.acquire(), Err(Error::WrongType { .. })));
    guard.release().expect("it was held until now");
    limiter.acquire().expect("it is free");
    assert!(matches!(locks.lock(&name), Err(Error::WrongType { .. })));
}

#[test]
fn a_server_out_of_reach_is_an_error_at_once() {
    let server = Server::start();
    let limiter = build(LockManager::single(&server.url()).io_timeout(secs(1)));
    let limiter = limiter.rate_limiter("n", 1, secs(1));
    limiter.acquire().expect("the first");
    server.kill();
    assert!(matches!(limiter.acquire(), Err(Error::Unavailable { .. })));
    server.restart();
    // The server lost its list with the other data.
    wait_until("it is back", || limiter.try_acquire().is_ok());
}

/// The clock is set back by an hour. Each refused call once moved all times back again, so that the second call made
/// room.
#[test]
fn a_clock_set_back_admits_no_further_call() {
    const HOUR: i64 = 60 * 60;
    let server = Server::with_clock();
    let limiter = manager(&server.url()).rate_limiter("n", 1, LONG);
    limiter.acquire().expect("the first");
    for ahead in [-HOUR, -2 * HOUR] {
        server.set_clock_ahead(ahead);
        let mut shortest = LONG;
        for _ in 0..20 {
            let wait = retry_after(limiter.try_acquire());
            assert!(wait <= shortest, "{wait:?} after {shortest:?}");
            shortest = wait;
        }
        // The wait is longer than any test runs.
        assert!(shortest > LONG / 2, "{shortest:?}");
    }
}

#[test]
fn a_clock_set_back_delays_callers_by_no_more_than_a_window() {
    let server = Server::with_clock();
    let limiter = manager(&server.url()).rate_limiter("n", 1, ms(300));
    for ahead in [0, -60 * 60, -2 * 60 * 60] {
        server.set_clock_ahead(ahead);
        // A refused call learns from the reply when it may try again.
        while let Admission::RetryAfter(wait) = limiter.try_acquire().expect("Redis replies") {
            assert!(wait <= ms(300), "{wait:?}");
        }
    }
    server.set_clock_ahead(0);
    limiter.acquire().expect("Redis replies");
    wait_until("the key goes", || !server.raw().exists("n"));
}

/// Returns the limiter's list: its head, then the times, the oldest first.
fn log_of(raw: &Raw, name: &str) -> Vec<String> {
    raw.ask(&["LRANGE", name, "0", "-1"])
}

/// Takes each right away in turn: with a new list, with a list that has room, and with one whose oldest time makes
/// room.
#[test]
fn a_right_that_is_missing_takes_no_place_and_leaves_no_log_without_an_end() {
    const COMMANDS: [&str; 7] = ["time", "lindex", "llen", "lset", "pexpire", "rpush", "lpop"];
    let server = Server::start();
    let raw = server.raw();
    let () = raw.ask(&[
        "ACL",
        "SETUSER",
        "user",
        "on",
        ">us3r-s3cret",
        "~*",
        "+@all",
    ]);
    let locks = manager(&server.url().replace("//", "//user:us3r-s3cret@"));
    let mut denied = 0;
    for command in COMMANDS {
        for places in 0..3 {
            let name = format!("without-{command}-{places}");
            let limiter = locks.rate_limiter(&name, 2, LONG);
            for _ in 0..places {
                limiter.acquire().expect("there is room");
            }
            if places == 2 {
                // Simulates that the first call was a window ago.
                let first: u64 = raw.ask(&["LINDEX", &name, "1"]);
                let earlier = first - u64::try_from(LONG.as_micros()).expect("it is small");
                let () = raw.ask(&["LSET", &name, "1", &earlier.to_string()]);
            }
            let before = log_of(&raw, &name);
            let () = raw.ask(&["ACL", "SETUSER", "user", &format!("-{command}")]);
            let answer = limiter.try_acquire();
            let () = raw.ask(&["ACL", "SETUSER", "user", "+@all"]);
            let after = log_of(&raw, &name);
            match answer {
                Ok(Admission::Admitted) => assert_ne!(after, before, "{name}"),
                Err(Error::Denied { .. }) => {
                    denied += 1;
                    // The head may have been written again.
                    assert_eq!(after.get(1..), before.get(1..), "{name}");
                    let answer = limiter.try_acquire().expect("Redis replies");
                    assert_eq!(answer, Admission::Admitted, "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
            let ttl = raw
                .ttl(&name)
                .unwrap_or_else(|| panic!("{name} never ends"));
            assert!(ttl <= LONG, "{name}: {ttl:?}");
        }
    }
    assert!(denied > 12, "{denied} were denied");
}

#[test]
fn full_memory_refuses_a_new_place_and_takes_none() {
    if lacks_in_memory("a limit of memory") {
        return;
    }
    let server = Server::start();
    let raw = server.raw();
    let limiter = manager(&server.url()).rate_limiter("n", 2, LONG);
    for places in 0..2 {
        let before = log_of(&raw, "n");
        let () = raw.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let full = limiter.try_acquire();
        assert!(matches!(full, Err(Error::Unavailable { .. })), "{full:?}");
        assert_eq!(log_of(&raw, "n"), before, "{places}");
        let () = raw.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(
            limiter.try_acquire().expect("Redis replies"),
            Admission::Admitted
        );
    }
}

/// Redis 7.0 reads its clock twice at a `PEXPIRE`. It deletes a list whose time ends between the two readings.
#[test]
fn a_window_that_ends_during_a_call_leaves_no_log_without_an_end() {
    const CALLS: u32 = 1000;
    let server = Server::start();
    let locks = manager(&server.url());
    let threads = [(); 8].map(|()| {
        let locks = locks.clone();
        task(move || {
            let name = name("short");
            for call in 0..CALLS {
                let limiter = locks.rate_limiter(format!("{name}:{}", call / 20), 1000, ms(1));
                // A list without its head would be of the wrong type.
                let _ = limiter.try_acquire().expect("it is a rate limiter");
            }
        })
    });
    for thread in threads {
        thread.end();
    }
}
