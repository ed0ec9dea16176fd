//! What tests on real servers share: the servers, child processes that can be killed, and functions that wait for conditions.

#![allow(missing_docs, reason = "the package is for this repository alone")]
#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]
#![allow(
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    clippy::new_without_default,
    reason = "a test may panic, and its errors are those of the library"
)]

mod child;
mod clock;
mod cluster;
mod doomed;
mod evidence;
mod hostile;
mod log;
mod nodes;
mod proxy;
mod random;
mod raw;
mod sentinels;
mod server;
mod stalls;
mod subject;
mod threads;

use std::env;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold::{Builder, Error, LockManager, Lost};

pub use child::{Child, child};
pub use clock::Clock;
pub use cluster::{Cluster, SLOTS, give_slots, is_ok, names_of_masters, slot_of};
pub use evidence::{append_evidence, commit, counts_in_json, server_in_evidence, text_in_json};
pub use hostile::{Answer, Hostile, Words, at_last, impatient, in_time, is_script, to_scripts};
pub use log::{Logged, logged};
pub use nodes::{Nodes, Topology, on, shared, start_servers};
pub use proxy::{Fault, Proxy, Role};
pub use random::Random;
pub use raw::{Raw, Servers, companions_of, fence_of, leader_of, record_of};
pub use sentinels::{MASTER, Passwords, Sentinels, SetOptions, with_password};
pub use server::{
    SCRIPTS_NEED_NO_REPLICAS, Server, cannot_show, is_before_redis_7, lacks_in_memory, unused_url,
};
pub use subject::{Guard, Holder, Kind, Locks, Subject, WithLock};
pub use threads::{Task, asleep, locking, locking_asleep, own_threads, signal, task, task_asleep};

/// The time limit of anything that must happen, so that a test that hangs fails. It is far longer than a starved thread waits.
///
/// A sentinel that had no CPU time for 2 s does nothing for 30 s: this is its
/// [TILT mode](https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/#tilt-mode).
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The pauses between two looks at a condition. They grow with the wait, because most conditions ask a server, and many
/// tests run at the same time.
const SHORTEST_PAUSE: Duration = ms(1);
const LONGEST_PAUSE: Duration = ms(10);

/// Blocks until a condition is true, which must happen within [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    stalls::watch();
    let begun = Instant::now();
    while !condition() {
        let waited = begun.elapsed();
        assert!(
            waited < PATIENCE,
            "it never came: {what}; {}",
            stalls::noticed()
        );
        thread::sleep((waited / 50).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
}

/// Returns the path of a program that cargo builds into `target/PROFILE/`. This binary is `target/PROFILE/deps/it-…`.
pub fn built(program: impl AsRef<Path>) -> PathBuf {
    let test = env::current_exe().expect("this binary");
    let profile = test.ancestors().nth(2).expect("target/PROFILE");
    profile.join(program)
}

/// Returns a name that no other test, process or run uses.
pub fn name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    format!(
        "it:{what}:{}:{:x}:{number}",
        std::process::id(),
        now.as_micros()
    )
}

/// Returns settings with a short time limit for requests, and leases that outlast each test.
pub fn hasty(url: &str) -> Builder {
    LockManager::single(url)
        .lease(Duration::from_mins(10))
        .io_timeout(secs(1))
}

/// Returns settings for a busy machine, whose servers may take longer than the default allows. See [`settings_of`] for
/// the URL.
pub fn patient(url: &str) -> Builder {
    settings_of(url)
        .connect_timeout(secs(60))
        .io_timeout(secs(60))
}

/// Gives a call all the time that a starved machine may need: for servers that always answer.
pub fn unhurried(settings: Builder) -> Builder {
    settings.connect_timeout(PATIENCE).io_timeout(PATIENCE)
}

/// Stands in a URL between the master and its sentinels.
pub const BEHIND: &str = "behind";
/// Stands behind the URLs of the masters of a Cluster.
pub const CLUSTER: &str = "cluster";

/// Returns the default settings for a URL, or for several words that are separated by spaces:
///
/// | words | servers |
/// | --- | --- |
/// | several URLs | the nodes of a quorum. They are asked in time even on a busy machine, and they are new, so they vote at once. |
/// | a URL, [`BEHIND`], and further URLs | a master, and its sentinels |
/// | several URLs, and [`CLUSTER`] | the masters of a Cluster |
pub fn settings_of(url: &str) -> Builder {
    let urls: Vec<_> = urls_of(url).collect();
    let sentinels: Vec<_> = url.split(' ').skip(urls.len() + 1).collect();
    if url.ends_with(CLUSTER) {
        return LockManager::cluster(urls);
    }
    match urls[..] {
        [_] if !sentinels.is_empty() => LockManager::sentinel(sentinels, MASTER),
        [url] => LockManager::single(url),
        _ => LockManager::quorum(urls)
            .node_timeout(secs(5))
            .restart_delay(Duration::ZERO),
    }
}

/// Returns the nodes that a URL names: see [`settings_of`].
pub fn urls_of(url: &str) -> impl Iterator<Item = &str> {
    let words = url.split(' ');
    words.take_while(|word| ![BEHIND, CLUSTER].contains(word))
}

/// Returns a new manager. To a lock, two managers are like two processes. Tries three times, because a server may get no CPU
/// time for seconds on a busy machine.
#[track_caller]
pub fn manager(url: &str) -> LockManager {
    for _ in 0..2 {
        match patient(url).build() {
            Err(error) if is_unreachable(&error) => eprintln!("{error}"),
            built => return built.expect("the server is there"),
        }
    }
    build(patient(url))
}

#[track_caller]
pub fn build(builder: Builder) -> LockManager {
    builder.build().expect("the server is there")
}

/// Locks, and repeats a call that gets no answer. Returns the fence.
#[track_caller]
pub fn locked_at_last(locks: &LockManager, name: &str) -> u64 {
    let mut fence = 0;
    wait_until("it is locked", || match locks.try_lock_for(name, secs(1)) {
        Ok(Some(guard)) => {
            fence = guard.fence();
            true
        }
        Ok(None) | Err(Error::Unavailable { .. }) => false,
        Err(error) => panic!("{error:?}"),
    });
    fence
}

/// Calls `wait`, which must end without the lock because another owner holds it. On a busy machine its last request may get no
/// reply in time.
#[track_caller]
pub fn wait_in_vain<G: Debug>(wait: impl FnOnce() -> Result<Option<G>, Error>) {
    match wait() {
        Ok(None) => {}
        Err(error) if is_unreachable(&error) => {}
        other => panic!("it was held all the while: {other:?}"),
    }
}

/// Returns whether a call got no answer from its server, or from too few nodes.
pub fn is_unreachable(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. } | Error::NoQuorum { .. })
}

/// Returns the loss in a result that must be `Err(Lost)`.
#[track_caller]
pub fn lost<T: Debug>(result: Result<T, Error>) -> Lost {
    match result {
        Err(Error::Lost(lost)) => lost,
        other => panic!("not lost: {other:?}"),
    }
}
