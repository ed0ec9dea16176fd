//! python-redis-lock, run by `tests/python_redis_lock/client.py`. Its key is `lock:` and the name: see `PREFIX`.
//!
//! Its waits block in Redis by BLPOP on a second key, `lock-signal:` and the name. Only a release of theirs pushes to this
//! key. So the common tests poll, and the waits have tests of their own.

use std::process::Command;
use std::time::{Duration, Instant};

use leasehold::LostCause;

use super::program::{Client, Program, in_python};
use super::{Foreign, LONG, PREFIX, each, each_without_expiry, name};
use crate::support::{PATIENCE, Raw, Task, manager, ms, secs, shared, task, wait_until};

struct PythonRedisLock;

impl Client for PythonRedisLock {
    fn command(redis: &Raw, name: &str) -> Command {
        assert!(name.starts_with(PREFIX), "{name}");
        let mut client = in_python("python_redis_lock");
        client.args([redis.url(), name]);
        client
    }
}

type Theirs = Program<PythonRedisLock>;

/// Makes a wait of theirs. Returns when it blocks in Redis. The task returns the holder, and how long it waited.
fn waiting(redis: &Raw, name: &str, ttl: Option<Duration>) -> Task<(Theirs, Duration)> {
    let mut theirs = Theirs::new(redis, name);
    let wait = task(move || {
        let begun = Instant::now();
        assert!(theirs.ask_with("wait", ttl));
        (theirs, begun.elapsed())
    });
    wait_until("it blocks", || is_blocked(redis, name));
    wait
}

/// Returns whether a client of this lock blocks in Redis.
fn is_blocked(redis: &Raw, name: &str) -> bool {
    let clients: String = redis.ask(&["CLIENT", "LIST"]);
    let name = format!(" name={name} ");
    clients
        .lines()
        .any(|client| client.contains(&name) && client.contains(" flags=b "))
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            #[ignore = "it needs a Python with python-redis-lock: .ci/long makes one"]
            fn $behaviour() {
                super::$servers(super::$behaviour::<Theirs>);
            }
        )+
    };
}

each!(tests);
each_without_expiry!(tests);

/// Its BLPOP ends after the expiry of theirs, 1 s.
#[test]
#[ignore = "it needs a Python with python-redis-lock: .ci/long makes one"]
fn a_wait_of_theirs_tries_again_after_each_expiry() {
    let redis = shared();
    let name = name("next-try");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    let wait = waiting(redis, &name, Some(secs(1)));
    guard.release().expect("it was held until now");
    let (_theirs, waited) = wait.end();
    assert!(waited > ms(950), "it noticed the release");
}

#[test]
#[ignore = "it needs a Python with python-redis-lock: .ci/long makes one"]
fn a_wait_of_theirs_without_an_expiry_notices_only_a_release_of_theirs() {
    let redis = shared();
    let name = name("no-signal");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    let wait = waiting(redis, &name, None);
    guard.release().expect("it was held until now");
    // Redis wakes a blocked client in the command that pushes, so this wait has not noticed.
    assert!(is_blocked(redis, &name) && !redis.exists(&name));
    let mut other = Theirs::new(redis, &name);
    assert!(other.try_acquire(Some(LONG)));
    assert!(other.release());
    assert!(wait.end().0.release());
}

#[test]
#[ignore = "it needs a Python with python-redis-lock: .ci/long makes one"]
fn a_reset_of_theirs_deletes_the_lock_of_ours() {
    let redis = shared();
    let name = name("reset");
    let mutex = manager(redis.url()).mutex(&name).lease(secs(3));
    let guard = mutex.lock().expect("it is free");
    let losses = guard.on_lost();
    assert!(Theirs::new(redis, &name).ask("reset"));
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert_eq!(loss.cause, LostCause::Removed);
}
